"""The experiments of the lab: each a question, its conditions and what is measured.

One of your own is a subclass of `LabExperiment` with `conditions`; see examples/own_experiment.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch

from ocra.data import SameDifferent, TaskConfig, task_of_model
from ocra.data.corruptions import MNIST_C
from ocra.data.same_different import FAMILIES
from ocra.errors import UsageError
from ocra.lab.running import Condition, LabExperiment, Look
from ocra.lab.stimuli import Scenes, Shown, TaskScenes
from ocra.model.interventions import Lesion
from ocra.model.network import Network
from ocra.model.trace import Windows

Row = dict[str, Any]
ERROR = {"error": "exact error", "decision": "glimpses to decision", "missed": "target missed"}


class Overlap(LabExperiment):
    name, title = "overlap", "Overlap of two digits"
    question = "How much does the error grow when two digits overlap more?"
    beside = (
        "Of two overlapping figures people recognise the one they attend to, and rarely the other (Rock and "
        "Gutman 1981, Journal of Experimental Psychology: Human Perception and Performance 7:275)."
    )
    axis, labels = "share of ink that overlaps (measured)", ERROR

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        two = replace(base, objects=2, clutter=0, reach=None)
        return [
            Condition(wanted, two.change(ink_overlap=wanted)) for wanted in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
        ]

    def observations(self, row: Row) -> Iterator[tuple[str, float | str, str, float]]:
        # On a small image not every overlap can be had: a trial counts where it was measured.
        yield row["series"], min(0.6, round(row["ink_overlap"], 1)), "error", row["error"]


class GlimpseBudget(LabExperiment):
    name, title = "glimpse-budget", "Error against glimpses, fixed and adaptive"
    question = (
        "What does each glimpse buy? Fixed: every image gets the same number of glimpses. Adaptive: the model stops "
        "looking at an image once its answer leads the next class by a margin; each point is one margin."
    )
    beside = (
        "People trade speed for accuracy: their answers improve with the time they are given, up to a limit "
        "(Wickelgren 1977, Acta Psychologica 41:67)."
    )
    axis, labels, logarithmic = "glimpses (mean)", ERROR, True

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        most = model.config.glimpses
        fixed = [Condition(k, base, "fixed", {"glimpses": k}) for k in range(1, most + 1)]
        margins = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
        return fixed + [Condition(margin, base, "adaptive", {"until": margin}) for margin in margins]

    def place(self, summary: Row, rows: Sequence[Row]) -> float | str:
        return float(np.mean([row["glimpses"] for row in rows]))


class ReactionTime(LabExperiment):
    name, title = "reaction-time", "Glimpses to decision against difficulty"
    question = (
        "Do harder images take more glimpses, as they take people longer? Difficulty 0 to 4 stands for Gaussian noise "
        "of severity 0, 0.25, 0.5, 0.75 and 1, for contrast 1, 0.8, 0.6, 0.4 and 0.2, and for an ink overlap of 0, "
        "0.12, 0.24, 0.36 and 0.48."
    )
    beside = (
        "People respond later where evidence is weaker, as if it were gathered up to a bound "
        "(Ratcliff 1978, Psychological Review 85:59)."
    )
    axis, measures, labels = "difficulty, from 0 (easy) to 4", ("decision", "error"), ERROR

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        found = [Condition(k, base.change(corruption="gaussian", severity=k / 4), "noise") for k in range(5)]
        found += [Condition(k, base.change(contrast=1 - 0.2 * k), "low contrast") for k in range(5)]
        if base.objects == 2:
            close = base.change(reach=None)
            found += [Condition(k, close.change(ink_overlap=0.12 * k), "overlap") for k in range(5)]
        return found

    def remarks(self, rows: Sequence[Row]) -> list[str]:
        decisions = np.array([row["decision"] for row in rows], dtype=float)
        shares = {int(k): f"{np.mean(decisions == k):.0%}" for k in np.unique(decisions)}
        said = [
            f"share of trials by glimpses to decision: {', '.join(f'{k}: {v}' for k, v in shares.items())}."
        ]
        for name in ("confidence", "error"):
            values = np.array([row[name] for row in rows], dtype=float)
            if decisions.std() and values.std():
                said.append(
                    f"correlation of glimpses to decision with {name}: {_correlation(decisions, values):+.2f}."
                )
        return said


class SetSize(LabExperiment):
    name, title = "set-size", "Clutter pieces in the image"
    question = "How do error and glimpses to decision grow with the number of clutter pieces (search slopes)?"
    beside = (
        "In visual search people's response times grow linearly with the number of items where target and distractors "
        "share features, and hardly where one feature sets the target apart (Treisman and Gelade 1980, Cognitive "
        "Psychology 12:97)."
    )
    axis, measures, labels = "clutter pieces", ("error", "decision"), ERROR

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        return [Condition(pieces, base.change(clutter=pieces)) for pieces in (0, 3, 6, 12, 24)]

    def remarks(self, rows: Sequence[Row]) -> list[str]:
        pieces = np.array([row["clutter"] for row in rows], dtype=float)
        decisions = np.array([row["decision"] for row in rows], dtype=float)
        return [f"search slope: {np.polyfit(pieces, decisions, 1)[0]:+.4f} glimpses per piece of clutter."]


class _Flanked(LabExperiment):
    """A single target and flankers; networks that always name two digits may name a flanker as the second."""

    measures, labels, smallest = ("missed",), ERROR, 64

    def target(self, base: Scenes) -> Scenes:
        middle = (base.size - 1) / 2
        return base.change(objects=1, relation="different", clutter=0, positions=((middle, middle),))

    def measure(self, look: Look) -> Row:
        return {"missed": int(str(look.classes[0]) not in look.row["answer"].split())}


class Crowding(_Flanked):
    name, title = "crowding", "A flanker near and far"
    question = "Is a digit missed more often with another one near it?"
    beside = (
        "People cannot identify a letter in peripheral vision when others are closer to it than about half its "
        "distance from fixation (Bouma 1970, Nature 226:177). The network has no fovea of fixed size; distances are "
        "in pixels."
    )
    axis = "distance of the flanker's centre, pixels"

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        one = self.target(base).change(flankers=1, flanker_side="right")
        return [
            Condition(distance, one.change(flanker_class=kind, flanker_distance=distance), f"{kind} class")
            for kind in ("other", "same")
            for distance in (6, 10, 14, 18, 22, 28, 34)
        ]


class Uncrowding(_Flanked):
    name, title = "uncrowding", "Few flankers and many"
    question = "Do many similar flankers disturb less than few, as if they formed a group of their own?"
    beside = (
        "Adding flankers can undo crowding for people, where the flankers form a group of their own (Manassi, Sayim "
        "and Herzog 2012, Journal of Vision 12(10):13). Capsule networks were reported to reproduce this (Doerig and "
        "others 2020, PLoS Computational Biology 16:e1008017)."
    )
    axis = "flankers"

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        row = self.target(base).change(flanker_side="horizontal", flanker_distance=18)
        ring = row.change(flanker_side="around", flanker_distance=20)
        return [
            Condition(number, scenes.change(flankers=number), series)
            for series, scenes, numbers in (("row", row, (0, 1, 2, 4)), ("ring", ring, (0, 1, 2, 4, 8)))
            for number in numbers
        ]


class Cueing(LabExperiment):
    name, title = "cueing", "The first or second window cued"
    question = (
        "What if the first or the second window is centred on a digit (right), or put into the corner farthest from "
        "all digits (wrong)?"
    )
    beside = (
        "People detect a target earlier at a cued place and later when the cue was wrong (Posner 1980, Quarterly "
        "Journal of Experimental Psychology 32:3)."
    )
    axis, measures, labels = "cue", ("error", "decision"), ERROR

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        if not model.config.attention:
            raise UsageError("This network reads the whole image at each step: it has no window to cue.")
        found = [Condition("none", base)]
        for glimpse in range(min(2, model.config.glimpses)):
            for right in (True, False):
                name = f"{('first', 'second')[glimpse]}\n{'right' if right else 'wrong'}"
                found.append(Condition(name, base, control=_Cue(glimpse, right)))
        return found


class _Cue:
    """Puts the centre of one window onto the first digit, or into the corner farthest from all digits."""

    def __init__(self, glimpse: int, right: bool) -> None:
        self.glimpse, self.right = glimpse, right

    def __call__(self, shown: Shown, model: Network) -> dict[str, Any]:
        trials, glimpses = len(shown.images), model.config.glimpses
        center = torch.full((trials, glimpses, 2), math.nan)
        size = model.config.height
        corners = [(x, y) for x in (size / 8, 7 * size / 8) for y in (size / 8, 7 * size / 8)]
        for k, row in enumerate(shown.rows):
            digits = [(row[f"x_{n}"], row[f"y_{n}"]) for n in range(1, len(shown.annotations.boxes[k]) + 1)]
            farthest = max(corners, key=lambda corner: min(math.dist(corner, digit) for digit in digits))
            center[k, self.glimpse] = torch.tensor(digits[0] if self.right else farthest)
        free = torch.full((trials, glimpses), math.nan)
        return {"windows": Windows(center, free, free)}


class LesionStudy(LabExperiment):
    name, title = "lesion", "One part silenced at a time"
    question = (
        "What does each part contribute? Silenced are the memory of encoder and decoder, the feedback between them "
        "where a network has it, all routing passes but the first, the winner that is sent to the decoder (replaced by "
        "a class that is not in the image), and each capsule."
    )
    beside = (
        "After lesions of both parietal lobes people may see one object at a time only (simultanagnosia: Coslett and "
        "Saffran 1991, Brain 114:1523)."
    )
    axis, labels = "lesion", ERROR

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        config = model.config
        found = [Condition("none", base)]
        if config.recurrent:
            found.append(Condition("encoder memory", base, "", {"lesion": Lesion(encoder_memory=True)}))
            found.append(Condition("decoder memory", base, "", {"lesion": Lesion(decoder_memory=True)}))
        if config.feedback:
            found.append(Condition("feedback", base, "", {"lesion": Lesion(feedback=True)}))
        if config.capsules:
            if config.routings > 1:
                found.append(Condition("one routing", base, "", {"routings": 1}))
            if config.masking:
                found.append(Condition("wrong winners", base, control=_wrong_winners))
            found += [
                Condition(f"capsule {k}", base, "", {"lesion": Lesion(capsules=(k,))})
                for k in range(config.classes)
            ]
        return found


def _wrong_winners(shown: Shown, model: Network) -> dict[str, Any]:
    """At each glimpse a class that is not in the image is sent to the decoder."""
    absent = (shown.batch.counts == 0).float()
    first = torch.tensor([row["trial"] for row in shown.rows])
    glimpses = model.config.glimpses
    chosen = [
        [int(there.nonzero()[(int(first[k]) + t) % int(there.sum())]) for t in range(glimpses)]
        for k, there in enumerate(absent)
    ]
    return {"winners": torch.tensor(chosen)}


class SizeTransfer(LabExperiment):
    name, title = "size-transfer", "Digits of other sizes than in training"
    question = "How far does recognition carry over to other sizes?"
    beside = (
        "Having named an object helps people to name it again as much at another size as at the same (Biederman and "
        "Cooper 1992, Journal of Experimental Psychology: Human Perception and Performance 18:121)."
    )
    axis, labels = "size, relative to training", ERROR

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        scales = (0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
        return [Condition(scale, base.change(scale=scale, reach=None)) for scale in scales]


class ShiftTransfer(LabExperiment):
    name, title = "shift-transfer", "Digits at other places than in training"
    question = (
        "How far does recognition carry over to places where digits never were? Parts of them may be cut off."
    )
    beside = (
        "Having named an object helps people to name it again as much at another place as at the same (Biederman and "
        "Cooper 1991, Perception 20:585)."
    )
    axis, labels = "largest shift from the middle, pixels", ERROR

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        trained = base.reach if base.reach is not None else (base.size - 28) / 2
        return [
            Condition(round(trained * share, 1), base.change(reach=trained * share))
            for share in (0.0, 0.5, 1.0, 1.25, 1.5, 2.0)
        ]


class CorruptionStudy(LabExperiment):
    name, title = "corruption", "The fifteen corruptions of MNIST-C, by severity"
    question = "Which kinds of damage does recognition withstand?"
    beside = (
        "People withstand most kinds of damage to an image better than networks that were not trained on that kind "
        "(Geirhos and others 2018, Advances in Neural Information Processing Systems 31)."
    )
    axis, labels = "", ERROR

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        found = [Condition("none", base, "undamaged")]
        for severity in (1, 3, 5):
            found += [
                Condition(kind, base.change(corruption=kind, severity=severity), f"severity {severity}")
                for kind in MNIST_C
            ]
        return found


class SameCategory(LabExperiment):
    name, title = "same-category", "Two of one class"
    question = "Can it name the same digit twice?"
    beside = (
        "People miss repeated items in rapid series more often than others: repetition blindness (Kanwisher 1987, "
        "Cognition 27:117)."
    )
    axis, measures, labels = "classes of the two digits", ("error", "decision"), ERROR

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        two = base.change(objects=2)
        return [Condition(kind, two.change(relation=kind)) for kind in ("different", "same")]


class ObjectBasedAttention(LabExperiment):
    name, title = "object-based-attention", "Is one object written at a time?"
    question = (
        "Does the model finish one object before it moves on to the next? Of the ink that a glimpse adds to pixels of "
        "one digit alone, what share goes to the digit that gets more of it? 50 % means both digits at once, 100 % one "
        "object at a time. The baseline is the same share over all glimpses together: what each would show if glimpses "
        "did not differ in where they write."
    )
    beside = (
        "People detect a target earlier in an object that was cued elsewhere than at the same distance in another one "
        "(Egly, Driver and Rafal 1994, Journal of Experimental Psychology: General 123:161)."
    )
    axis, labels = "glimpse", {"share": "new ink on one object"}
    measures = ("share",)

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        return [Condition(0, base.change(objects=2, relation="different", clutter=0), "written")]

    def measure(self, look: Look) -> Row:
        assert look.trace.canvases is not None and look.batch.annotations is not None
        canvases = look.trace.canvases[look.index]
        written = torch.diff(canvases, dim=0, prepend=torch.zeros_like(canvases[:1])).clamp(min=0)
        one, two = look.batch.annotations.layers[look.index]
        alone = torch.stack([one * (two < 0.1), two * (one < 0.1)])
        amounts = (written[:, None] * alone[None]).sum((2, 3, 4))  # [glimpses, 2]
        whole = float(amounts.sum(0).max() / amounts.sum().clamp(min=1e-6))
        # Less ink than that of half a pixel is no writing.
        shares = torch.where(amounts.sum(1) > 0.5, amounts.amax(1) / amounts.sum(1).clamp(min=1e-6), math.nan)
        steps = {f"share_{t}": round(value, 4) for t, value in enumerate(shares.tolist(), start=1)}
        return {"share_of_all": round(whole, 4), **steps}

    def observations(self, row: Row) -> Iterator[tuple[str, float | str, str, float]]:
        for name, value in row.items():
            step = name.removeprefix("share_")
            if step.isdecimal() and not math.isnan(value):
                yield "this glimpse", int(step), "share", value
                yield "all glimpses together", int(step), "share", row["share_of_all"]


class Order(LabExperiment):
    name, title = "order", "Which object is named first"
    question = (
        "Is the larger, the brighter or the more central digit recognised first? The digit whose capsule is the "
        "longest of all at an earlier glimpse comes first. 'Equal' is the control: nothing sets the digits apart, so "
        "each comes first in half of the trials; its trials also show how often a digit of each class comes first. "
        "'Central': one digit in the middle, the other towards each of the four corners in turn."
    )
    beside = (
        "People's first fixations tend to the middle of an image, whatever it shows (Tatler 2007, Journal of Vision "
        "7(14):4)."
    )
    axis, labels = "what sets the digit apart", {"first": "trials in which it comes first"}
    measures, chance = ("first",), {"first": 0.5}

    def conditions(self, base: Scenes, model: Network) -> list[Condition]:
        two = base.change(objects=2, relation="different")
        middle, away = (base.size - 1) / 2, min(base.size / 2 - 14, base.size / 4)
        corners = [(middle + x, middle + y) for x in (-away, away) for y in (-away, away)]
        return [
            Condition("equal", two),
            Condition("larger", two.change(scale=(1.2, 0.8), reach=None)),
            Condition("brighter", two.change(contrast=(1.0, 0.6))),
            # Towards each corner as often, since the first window may stand on one side of the middle.
            *(Condition("central", two.change(positions=((middle, middle), corner))) for corner in corners),
        ]

    def measure(self, look: Look) -> Row:
        lengths = look.trace.capsule_lengths[look.index, :, : look.model.config.classes]
        longest = lengths.argmax(1).tolist()
        times = [next((t for t, k in enumerate(longest) if k == label), math.inf) for label in look.classes]
        return {"first": math.nan if times[0] == times[1] else float(times[0] < times[1])}

    def observations(self, row: Row) -> Iterator[tuple[str, float | str, str, float]]:
        yield "", row["x"], "first", row["first"]
        if row["x"] == "equal" and not math.isnan(row["first"]):
            for label, value in zip(row["truth"].split(), (row["first"], 1 - row["first"]), strict=True):
                yield "", f"a {label}", "first", value


class ShapeFamilies(LabExperiment):
    name, title = "same-different", "Same or different, by family of shapes"
    question = (
        "Did it learn to compare shapes, or only the shapes of its training? Accuracy is the share of images in which "
        "same or different is named correctly, whatever is answered about the two shapes; chance is 50 %."
    )
    beside = (
        "Most people find the rule of SVRT problem 1 from a few examples (Fleuret and others 2011, PNAS 108:17621) and "
        "apply it to any shape. Convolutional networks that were trained on some shapes fail with others (Puebla and "
        "Bowers 2022, Journal of Vision 22(10):11); the authors' OCRA is right in 98.9 % of validation images (Adeli, "
        "Ahn and Zelinsky 2023, Journal of Vision 23(5):16)."
    )
    axis, measures, chance = "", ("error", "accuracy"), {"accuracy": 0.5}
    labels = ERROR | {"accuracy": "same or different named correctly"}

    def scenes(self, model: Network) -> TaskConfig:
        if model.info.task.get("name") != SameDifferent.name:
            raise UsageError(
                f"{model.info.name or 'This network'} was not trained to tell same from different; "
                "'ocra train same-different' makes a network that is."
            )
        return task_of_model(model.info.task, model.config)

    def conditions(self, base: TaskConfig, model: Network) -> list[Condition]:
        trained = model.info.task.get("families", ())
        return [
            Condition(
                family,
                TaskScenes(base.with_settings(families=(family,))),
                "trained" if family in trained else "held out",
            )
            for family in sorted(FAMILIES, key=lambda family: family not in trained)
        ]

    def measure(self, look: Look) -> Row:
        relations = {"same", "different"}
        said = relations & set(look.row["answer"].split())
        return {"accuracy": int(said == relations & set(look.row["truth"].split()))}


EXPERIMENTS: dict[str, type[LabExperiment]] = {
    kind.name: kind
    for kind in (
        Overlap, GlimpseBudget, ReactionTime, SetSize, Crowding, Uncrowding, Cueing, LesionStudy, SizeTransfer,
        ShiftTransfer, CorruptionStudy, SameCategory, ObjectBasedAttention, Order, ShapeFamilies,
    )
}  # fmt: skip


def find_experiment(name: str) -> LabExperiment:
    """The experiment of this name, or of the class at package.module:Class."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]()
    module, _, attribute = name.partition(":")
    if not attribute:
        raise UsageError(
            f"There is no experiment '{name}'; choose {', '.join(EXPERIMENTS)}, or package.module:Class."
        )
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"The experiment {name} cannot be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, LabExperiment)):
        raise UsageError(f"{name} is not a subclass of ocra.lab.LabExperiment.")
    return found()


def _correlation(one: Any, two: Any) -> float:
    return float(np.corrcoef(one, two)[0, 1])
