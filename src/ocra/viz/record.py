"""What one pass over one image showed, as plain arrays ready for drawing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocra.config import NetworkConfig
from ocra.images.fitting import Prepared
from ocra.model.network import Network
from ocra.model.trace import Windows
from ocra.prediction import Prediction, decode, run

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Record:
    """One image, all glimpses. Coordinates are pixels of the model's image, from 0."""

    config: NetworkConfig
    image: Floats
    """[height, width, channels]"""
    glimpses: Floats
    """[steps, N, N, channels]"""
    canvases: Floats
    """[steps, height, width, channels], cumulative"""
    canvas: Floats
    """[height, width, channels], the reconstruction"""
    reads: Floats
    """[steps, 3] as x, y, width of the square that was read"""
    writes: Floats | None
    """[steps, 3], the squares that were written; None without attention"""
    lengths: Floats
    """[steps, object capsules]"""
    mask: Floats | None
    """[height, width], the reconstruction mask, for models that were trained with one"""
    prediction: Prediction
    """With glimpses in the model's pixels."""
    class_names: tuple[str, ...]
    title: str = ""
    truth: tuple[str, ...] | None = None
    """What is in the image, where that is known."""
    prepared: Prepared | None = field(default=None, repr=False)
    """The user's own image, where the model's was made from one."""
    draws: bool = True
    """Whether the model draws what it sees; else its canvases are black, and figures leave them out."""

    @property
    def steps(self) -> int:
        """Number of glimpses."""
        return len(self.lengths)

    @property
    def scores(self) -> Floats:
        """[classes]: lengths summed over the glimpses."""
        return self.lengths[:, : len(self.class_names)].sum(0)

    @property
    def mistakes(self) -> set[str]:
        """Classes that the answer names and that are not there as often; none where the truth is not known."""
        said, truth = Counter(self.prediction.labels), Counter(self.truth)
        return set() if self.truth is None else {name for name in said if said[name] != truth[name]}

    @property
    def is_number(self) -> bool:
        """Whether the answer is a number, read from left to right."""
        return bool(self.config.readout_digits)

    @property
    def right(self) -> bool | None:
        """Whether the answer is right; None where the truth is not known."""
        return None if self.truth is None else same(self.prediction.labels, self.truth, self.is_number)

    @property
    def answer(self) -> str:
        """What the model says, as a sentence without its full stop; objects in the order of their classes."""
        if self.is_number:
            return f"It reads {in_words(self.prediction.labels, True)}"
        return f"It sees {in_words(sorted(self.prediction.labels, key=self.class_names.index))}"

    @property
    def verdict(self) -> str:
        """Whether the answer is right, and if not what is; empty where the truth is not known."""
        if self.right is None:
            return ""
        return "✓ right" if self.right else f"✗ wrong: it is {in_words(self.truth or (), self.is_number)}"


def same(labels: Sequence[str], others: Sequence[str], is_number: bool) -> bool:
    """Whether two answers are the same; the order counts in a number only."""
    return list(labels) == list(others) if is_number else sorted(labels) == sorted(others)


def in_words(labels: Sequence[str], is_number: bool = False) -> str:
    """Objects as a person would list them (3 and 8); the digits of a number as the number."""
    if is_number:
        return "".join(labels) or "no number"
    return " and ".join(filter(None, [", ".join(labels[:-1]), *labels[-1:]])) or "nothing"


def records(
    model: Network,
    images: Tensor,
    *,
    truths: Sequence[tuple[str, ...]] | None = None,
    titles: Sequence[str] | None = None,
    prepared: Sequence[Prepared] | None = None,
    **interventions: Any,
) -> list[Record]:
    """Show images [batch, channels, height, width] to a model, with interventions as in `OCRA.forward`."""
    config, info = model.config, model.info
    trace = run(model, images, **interventions)
    assert trace.glimpses is not None and trace.canvases is not None and trace.attended is not None
    predictions = decode(trace, config, info)
    looked_at = trace.attended / trace.attended.amax((1, 2, 3), keepdim=True).clamp(min=1e-6)
    reads = _squares(trace.read_windows, config.glimpse_size)
    writes = _squares(trace.write_windows, config.write_size)
    whole = [(config.width - 1) / 2, (config.height - 1) / 2, max(config.width, config.height) - 1]
    everywhere = np.tile(np.array(whole, np.float32), (trace.capsule_lengths.shape[1], 1))
    return [
        Record(
            config=config,
            image=_channels_last(images[i]),
            glimpses=_channels_last(trace.glimpses[i, : trace.glimpses_of(i)]),
            canvases=_channels_last(trace.canvases[i, : trace.glimpses_of(i)]),
            canvas=_channels_last(trace.canvas[i]),
            reads=(everywhere if reads is None else reads[i])[: trace.glimpses_of(i)],
            writes=None if writes is None else writes[i, : trace.glimpses_of(i)],
            lengths=trace.capsule_lengths[i, : trace.glimpses_of(i)].float().cpu().numpy(),
            mask=_channels_last(looked_at[i]).mean(2) if info.masked else None,
            prediction=predictions[i],
            class_names=info.class_names,
            title=titles[i] if titles else "",
            truth=truths[i] if truths else None,
            prepared=prepared[i] if prepared else None,
            draws=bool(trace.canvas[i].isfinite().all()),
        )
        for i in range(len(images))
    ]


def _channels_last(values: Tensor) -> Floats:
    """[…, channels, rows, columns] as […, rows, columns, channels], clipped to [0, 1]; what is no number is black."""
    return values.detach().float().cpu().movedim(-3, -1).nan_to_num(0).clamp(0, 1).numpy()


def _squares(windows: Windows | None, size: int) -> Floats | None:
    """x, y, width of every window: [batch, steps, 3]."""
    if windows is None:
        return None
    return torch.cat([windows.center, windows.width(size)[..., None]], 2).float().cpu().numpy()
