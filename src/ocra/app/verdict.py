"""What a network answers, in words: whether it is right, and what it would have said if left to itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..inference import FoundObject, Prediction
from .looking import Look
from .subjects import Subject

# Below this a class is hardly ahead of the best one that was not chosen (0.5 is a toss-up).
UNSURE = 0.55
_CONFIDENCE = "Score against that of the best class not chosen: 0.5 is a toss-up, 1 leaves no doubt"


def in_words(labels: Sequence[str], joined: bool = False) -> str:
    """3 and 8; joined: the digits of a house number."""
    if joined or len(labels) < 2:
        return "".join(labels) or "nothing"
    return f"{', '.join(labels[:-1])} and {labels[-1]}"


def verdict(look: Look, subject: Subject) -> str:
    """The header above a look, as HTML."""
    glimpses = "1 glimpse" if look.glimpses == 1 else f"{look.glimpses} glimpses"
    model = f'<p class="model"><b>{escape(look.network.name)}</b> after {glimpses}</p>'
    if look.blank:
        return f'<header class="verdict">{model}<p class="answer"><i>an empty picture</i></p></header>'
    objects = _in_order(look, look.answer)
    sure = ", ".join(f"{found.confidence:.2f}" for found in objects)
    confidence = f'<p class="sure" title="{_CONFIDENCE}">confidence {sure}</p>' if sure else ""
    answer = (
        f'<p class="answer"><span>{_emphasised(objects, _is_number(look))}</span>{_mark(look, subject)}</p>'
    )
    return f'<header class="verdict">{model}{answer}{confidence}{_difference(look)}</header>'


def _is_number(look: Look) -> bool:
    """Whether the answer is a house number, read from left to right."""
    return look.trace.readout is not None


def _in_order(look: Look, answer: Prediction) -> Sequence[FoundObject]:
    """Objects in the order of their classes, so that the same answer always reads the same."""
    if _is_number(look):
        return answer.objects
    return sorted(answer.objects, key=lambda found: look.names.index(found.label))


def _same(look: Look, labels: Sequence[str], ordered: bool) -> bool:
    if ordered:
        return list(look.answer.labels) == list(labels)
    return sorted(look.answer.labels) == sorted(labels)


def _mark(look: Look, subject: Subject) -> str:
    """Right or wrong, where the truth is known."""
    if not subject.truth:
        return ""
    if _same(look, subject.truth, subject.is_number and _is_number(look)):
        return '<span class="mark right">✓ right</span>'
    return '<span class="mark wrong">✗ wrong</span>'


def _difference(look: Look) -> str:
    """How the answer changed by moving the gaze."""
    if not look.forced:
        return ""
    number = _is_number(look)
    if _same(look, look.free.labels, number):
        return '<p class="was">the same as when left to itself</p>'
    free = in_words([found.label for found in _in_order(look, look.free)], number)
    return f'<p class="was changed">left to itself it says {escape(free)}</p>'


def _emphasised(objects: Sequence[FoundObject], joined: bool) -> str:
    """Labels in bold, doubtful ones faint."""
    words = [
        f'<b class="unsure" title="hardly ahead of the next class">{escape(found.label)}</b>'
        if found.confidence < UNSURE
        else f"<b>{escape(found.label)}</b>"
        for found in objects
    ]
    if not words:
        return "<i>no number</i>" if joined else "<i>nothing it knows</i>"
    if joined or len(words) == 1:
        return "".join(words)
    return f"{'<i>,</i> '.join(words[:-1])} <i>and</i> {words[-1]}"
