"""What one pass over one image showed, as plain arrays ready for drawing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocra.config import ModelConfig
from ocra.images.fitting import Prepared
from ocra.model.trace import Trace, Windows
from ocra.model.weights import ModelInfo
from ocra.prediction import Prediction, decode

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Record:
    """One image, all glimpses. Coordinates are pixels of the model's image, from 0."""

    config: ModelConfig
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
    """The user's own picture, where the image was made from one."""

    @property
    def steps(self) -> int:
        """Number of glimpses."""
        return len(self.lengths)

    @property
    def right(self) -> bool | None:
        """Whether the answer is right; None where the truth is not known."""
        if self.truth is None:
            return None
        if self.config.readout_digits:
            return self.prediction.labels == self.truth
        return sorted(self.prediction.labels) == sorted(self.truth)


def records(
    trace: Trace,
    images: Tensor,
    config: ModelConfig,
    info: ModelInfo,
    *,
    truths: list[tuple[str, ...]] | None = None,
    titles: list[str] | None = None,
    prepared: list[Prepared] | None = None,
) -> list[Record]:
    """One record for each image of a pass made with record=True."""
    assert trace.glimpses is not None and trace.canvases is not None and trace.attended is not None
    batch = len(images)
    predictions = decode(trace, config, info)
    looked_at = trace.attended / trace.attended.amax((1, 2, 3), keepdim=True).clamp(min=1e-6)
    reads, writes = (
        _squares(trace.read_windows, config.glimpse_size),
        _squares(trace.write_windows, config.write_size),
    )
    whole = np.tile(
        np.array(
            [(config.width - 1) / 2, (config.height - 1) / 2, max(config.width, config.height) - 1],
            np.float32,
        ),
        (trace.capsule_lengths.shape[1], 1),
    )
    return [
        Record(
            config=config,
            image=_picture(images[i]),
            glimpses=_picture(trace.glimpses[i]),
            canvases=_picture(trace.canvases[i]),
            canvas=_picture(trace.canvas[i]),
            reads=whole if reads is None else reads[i],
            writes=None if writes is None else writes[i],
            lengths=trace.capsule_lengths[i].float().cpu().numpy(),
            mask=_picture(looked_at[i]).mean(2) if info.masked else None,
            prediction=predictions[i],
            class_names=info.class_names,
            title=titles[i] if titles else "",
            truth=truths[i] if truths else None,
            prepared=prepared[i] if prepared else None,
        )
        for i in range(batch)
    ]


def _picture(values: Tensor) -> Floats:
    """Channels last, clipped to [0, 1]."""
    return values.detach().float().cpu().movedim(-3, -1).clamp(0, 1).numpy()


def _squares(windows: Windows | None, size: int) -> Floats | None:
    """x, y, width of every window: [batch, steps, 3]."""
    if windows is None:
        return None
    return torch.cat([windows.center, windows.width(size)[..., None]], 2).float().cpu().numpy()
