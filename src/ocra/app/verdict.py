"""What a network answers, in words: whether it is right, and what it would have said if left to itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torch import Tensor

from ocra.app.looking import Look
from ocra.app.subjects import Subject
from ocra.prediction import FoundObject, Prediction

# Below this a class is hardly ahead of the best one that was not chosen (0.5: level with it).
UNSURE = 0.55


def in_words(labels: Sequence[str], joined: bool = False) -> str:
    """3 and 8; joined: the digits of a house number."""
    if joined or len(labels) < 2:
        return "".join(labels) or "nothing"
    return f"{', '.join(labels[:-1])} and {labels[-1]}"


def verdict(look: Look, subject: Subject) -> str:
    """The header above a look, as HTML."""
    glimpses = "1 glimpse" if look.glimpses == 1 else f"{look.glimpses} glimpses"
    model = f'<p class="model"><b>{escape(look.network.name)}</b> after {glimpses}</p>'
    said = '<p class="answer"><i>an empty picture</i></p>' if look.blank else _said(look, subject)
    resized = _resized(look, subject)
    return f'<header class="verdict">{model}<div class="said" role="status">{said}</div>{resized}</header>'


def _said(look: Look, subject: Subject) -> str:
    """The answer, how sure it is, and how it differs from the free one."""
    objects = _in_order(look, look.answer)
    words = _emphasised(objects, _is_number(look))
    answer = f'<p class="answer"><span>{words}</span>{_mark(look, subject)}</p>'
    return f"{answer}{_confidence(objects)}{_doubt(objects)}{_difference(look)}"


def _confidence(objects: Sequence[FoundObject]) -> str:
    if not objects:
        return ""
    values = ", ".join(f"{found.confidence:.2f}" for found in objects)
    return f'<p class="sure">confidence {values} (0.5: level with the next class)</p>'


def _doubt(objects: Sequence[FoundObject]) -> str:
    """Which labels are faint, and why."""
    unsure = [found.label for found in objects if found.confidence < UNSURE]
    if not unsure:
        return ""
    verb = "is" if len(unsure) == 1 else "are"
    return f'<p class="doubt">{escape(in_words(unsure))} {verb} hardly ahead of the next class</p>'


def _resized(look: Look, subject: Subject) -> str:
    """That a task's picture was not made for this model, where that is so."""
    if subject.exact is None or subject.fits(look.network):
        return ""
    sizes = f"from {_size(subject.exact)} to {_size(look.image)}"
    return f'<p class="resized">resized for this model, {sizes}</p>'


def _size(image: Tensor) -> str:
    channels, height, width = image.shape
    return f"{width} × {height} px{' in colour' if channels == 3 else ''}"


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
        f'<b class="unsure">{escape(found.label)}</b>'
        if found.confidence < UNSURE
        else f"<b>{escape(found.label)}</b>"
        for found in objects
    ]
    if not words:
        return "<i>no number</i>" if joined else "<i>nothing it knows</i>"
    if joined or len(words) == 1:
        return "".join(words)
    return f"{'<i>,</i> '.join(words[:-1])} <i>and</i> {words[-1]}"
