"""The model beside people: AttentionMNIST (Baruah and others 2023, Scientific Reports 13:3305).

People uncovered MNIST digits piece by piece with twelve clicks, and guessed the digit after each. The published file
has no licence: it is read from wherever the user keeps it and is not part of this program.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from ocra.data.digits import DIGIT_SIZE, load_mnist
from ocra.errors import OcraError, UsageError
from ocra.files import rows_to_csv, write_text_atomically
from ocra.lab.comparing import Path2D, compare, fixation_map
from ocra.lab.formats import Fixations
from ocra.metrics import wilson_interval
from ocra.model.deciding import predicted_counts
from ocra.model.network import Network
from ocra.prediction import Source, load, run
from ocra.viz.style import BLUE, FAINT, MUTED, VERMILLION, Sheet, save_figure, styled

TRAINING_DIGITS = 60_000
SIGMA = 1.5
"""Standard deviation of a click in a fixation map, in pixels of the digit."""


@dataclass(frozen=True)
class Clicks:
    """What one person did with one digit."""

    digit: int
    """Index into MNIST's training digits; from 60,000 on into its test digits."""
    label: int
    places: Path2D
    """[clicks, 2] as (x, y), pixels of the 28×28 digit from 0."""
    guesses: tuple[str, ...]
    """After each click; several digits as in 3_8 where the person was undecided."""


def read_attention_mnist(file: Source) -> list[Clicks]:
    """The click sequences of the published mnist.json, which may be gzipped.

    Its x-coordinate counts rows and its y-coordinate columns: so the clicks lie on the ink, and the other way round
    they do not. Stimulus NN_K is digit K − 1.
    """
    path = Path(file)
    try:
        raw = path.read_bytes()
        entries = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        return [_clicks(entry) for entry in entries]
    except OSError as error:
        raise OcraError(f"{path} could not be read: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OcraError(f"{path} is not the mnist.json of AttentionMNIST.") from None


def _clicks(entry: dict[str, Any]) -> Clicks:
    steps = [entry["Data"][f"Glimpse_{t}"] for t in range(1, len(entry["Data"]) + 1)]
    places = np.array([[float(step["y-coordinate"]), float(step["x-coordinate"])] for step in steps])
    digit = int(entry["Stimuli"].rpartition("_")[2]) - 1
    return Clicks(digit, int(entry["Label"]), places, tuple(str(step["Class"]) for step in steps))


@dataclass(frozen=True)
class HumanComparison:
    """People and model on the same digits."""

    accuracy: list[dict[str, Any]]
    """Rows: who, glimpse, n, accuracy and its 95 % interval."""
    similarity: list[dict[str, Any]]
    """Rows: measure, who, mean and its 95 % interval, by bootstrap over the digits."""
    maps: dict[str, NDArray[np.float64]]
    """Fixation maps over all digits [28, 28]: people, and the model from its second glimpse on."""
    name: str = "the model"
    """What the model is called in the figure."""

    def save(self, folder: Source) -> None:
        """Write accuracy.csv, similarity.csv and the figure (PNG, SVG, PDF)."""
        target = Path(folder)
        try:
            write_text_atomically(target / "accuracy.csv", rows_to_csv(self.accuracy))
            write_text_atomically(target / "similarity.csv", rows_to_csv(self.similarity))
        except OSError as error:
            raise OcraError(f"{folder} could not be written: {error.strerror or error}.") from None
        figure = draw(self)
        for ending in ("png", "svg", "pdf"):
            save_figure(figure, target / f"attention-mnist.{ending}")


def compare_with_people(
    model: Network | Source,
    people: Sequence[Clicks],
    *,
    glimpses: int | None = None,
    device: str | None = None,
) -> HumanComparison:
    """Accuracy by glimpse, and where and in which order people and the model look, on the digits people saw.

    The model is one of single digits on 28×28 pixels. Its first window is the same for every image, so it is left out
    of every comparison of places. Beside the model stand people among themselves (the ceiling) and people who looked
    at another digit (the baseline: what a habit of looking at the middle gives), see `ocra.lab.comparing.compare`.
    """
    network = load(model, device)
    if network.config.image_shape != (1, DIGIT_SIZE, DIGIT_SIZE) or network.info.answer.objects != 1:
        raise UsageError("The comparison needs a network for single digits on 28×28 pixels, such as mnist-6.")
    by_digit: dict[int, list[Clicks]] = defaultdict(list)
    for clicks in people:
        by_digit[clicks.digit].append(clicks)
    digits = sorted(by_digit)
    images, labels = _digits(digits)
    trace = run(network, images, **({} if glimpses is None else {"glimpses": glimpses}))
    assert trace.read_windows is not None
    windows = trace.read_windows.center[:, 1:].cpu().double().numpy()  # [digits, glimpses − 1, 2]
    right = _right_by_glimpse(network, trace.capsule_lengths.cpu(), labels)
    weights = np.array([len(by_digit[digit]) for digit in digits])
    accuracy = _accuracies(people, right)
    similarity = _similarities({digit: by_digit[digit] for digit in digits}, windows)
    clicked = np.concatenate([clicks.places for clicks in people])
    looked = np.repeat(windows, weights, axis=0).reshape(-1, 2)
    maps = {
        name: fixation_map(points, DIGIT_SIZE, DIGIT_SIZE, SIGMA)
        for name, points in (("people", clicked), ("model", looked))
    }
    return HumanComparison(accuracy, similarity, maps, network.info.name or "the model")


def _digits(numbers: Sequence[int]) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """Images [digits, 1, 28, 28] and labels, training digits first, then test digits."""
    (train, train_labels), (test, test_labels) = load_mnist(train=True), load_mnist(train=False)
    pixels = [train[k] if k < TRAINING_DIGITS else test[k - TRAINING_DIGITS] for k in numbers]
    labels = [train_labels[k] if k < TRAINING_DIGITS else test_labels[k - TRAINING_DIGITS] for k in numbers]
    images = torch.from_numpy(np.stack(pixels)[:, None].astype(np.float32) / 255)
    return images, np.array(labels)


def _right_by_glimpse(model: Network, lengths: torch.Tensor, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the answer after each glimpse is right: bool [digits, glimpses]."""
    scores = lengths[:, :, : model.config.classes].cumsum(1)
    counts = torch.stack(
        [predicted_counts(scores[:, t], model.info.answer) for t in range(scores.shape[1])], 1
    )
    return (counts[torch.arange(len(labels)), :, torch.from_numpy(labels)] == 1).numpy()


def _accuracies(people: Sequence[Clicks], right: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """Accuracy by glimpse: of people over all sequences, of the model over the digits, once each."""
    rows = []
    guessed = np.array([[guess == str(c.label) for guess in c.guesses] for c in people])
    for who, hits, n in (
        ("people", guessed.sum(0), len(people)),
        ("model", right.sum(0), len(right)),
    ):
        for t, count in enumerate(hits.tolist(), start=1):
            low, high = wilson_interval(count, n)
            rows.append(
                {"who": who, "glimpse": t, "n": n, "accuracy": count / n, "low": low, "high": high}
            )  # fmt: skip
    return rows


def _similarities(by_digit: dict[int, list[Clicks]], windows: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Where and in which order the model looks, against people: rows of measure, who, mean and interval.

    Beside it stands the model at the next digit: what is left if it looked wherever it does whatever it sees.
    """
    digits = list(by_digit)
    people = [
        Fixations(str(digit), clicks.places, str(n))
        for digit in digits
        for n, clicks in enumerate(by_digit[digit])
    ]
    model = {
        name: [
            Fixations(str(d), path) for d, path in zip(digits, np.roll(windows, shift, axis=0), strict=True)
        ]
        for name, shift in (("model", 0), ("model at another digit", -1))
    }
    return compare(model, people, size=(DIGIT_SIZE, DIGIT_SIZE), sigma=SIGMA)


def draw(comparison: HumanComparison) -> Any:
    """Accuracy by glimpse, and the two fixation maps."""
    with styled():
        figure = Sheet(8.2, 3.1)
        figure.write(0.6, 0.2, f"People and {comparison.name} on the same digits", size=10, weight="bold")
        axes = figure.panel(0.6, 0.5, 3.2, 2.05)
        for who, name, colour in (("people", "people", BLUE), ("model", comparison.name, VERMILLION)):
            rows = [row for row in comparison.accuracy if row["who"] == who]
            x, y = [row["glimpse"] for row in rows], np.array([row["accuracy"] for row in rows])
            bars = np.abs(np.array([[row["low"], row["high"]] for row in rows]).T - y)
            axes.errorbar(
                x, y, yerr=bars, color=colour, fmt="o-", markersize=4, linewidth=1.5, capsize=2, label=name
            )
        axes.set_xlabel("glimpse (model) or click (people)", color=MUTED)
        axes.set_ylabel("right answers, %")
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
        axes.set_xticks(range(1, 1 + max(row["glimpse"] for row in comparison.accuracy)))
        axes.legend(frameon=False, fontsize=8, loc="lower right")
        axes.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        for number, (who, density) in enumerate(comparison.maps.items()):
            image = figure.panel(4.2 + 2.0 * number, 0.6, 1.8, 1.8)
            image.imshow(density, cmap="magma", interpolation="nearest")
            image.set_xticks([])
            image.set_yticks([])
            name = "people" if who == "people" else comparison.name
            image.set_title(f"where {name} looked", fontsize=8.5)
    return figure


def format_comparison(comparison: HumanComparison) -> list[tuple[str, str, str, str]]:
    """Rows of text: accuracy by glimpse, then similarities."""
    rows = [
        (f"accuracy after {row['glimpse']}", row["who"], f"{row['accuracy']:.1%}", _interval(row, "%"))
        for row in comparison.accuracy
    ]
    rows += [
        (row["measure"], row["who"], f"{row['mean']:.3f}", _interval(row, ""))
        for row in comparison.similarity
    ]
    return rows


def _interval(row: dict[str, Any], unit: str) -> str:
    if math.isnan(row["low"]):
        return ""
    return f"{row['low']:.1%} to {row['high']:.1%}" if unit else f"{row['low']:.3f} to {row['high']:.3f}"
