"""OCRA, the network: one pass is Pseudocode 1 of the paper, one step of it is `OCRA.step`."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocra.config import ModelConfig
from ocra.errors import OcraError, UsageError
from ocra.model.attention import Window, filter_banks, read, window_from_parameters, write
from ocra.model.capsules import CapsuleLayer
from ocra.model.compilation import compiled_or_eager
from ocra.model.convolution import convolve_and_pool
from ocra.model.gathering import Gatherer, Slots
from ocra.model.interventions import Interventions, Lesion, StepControl
from ocra.model.numerics import at_least_float32, relu
from ocra.model.recurrence import LSTMCell
from ocra.model.trace import Trace, Windows, side_by_side, transposed, windows_side_by_side
from ocra.model.weights import ModelInfo, Storage, load, save

MOST_TIMES = 1000
"""Largest number of glimpses, or of routings, that may be asked for."""


class State(NamedTuple):
    """Hidden and cell states of the encoder and the decoder, each [batch, hidden]."""

    encoder: Tensor
    encoder_cell: Tensor
    decoder: Tensor
    decoder_cell: Tensor


class Step(NamedTuple):
    """All that one glimpse yields; what is not asked for is None."""

    state: State
    lengths: Tensor  # [batch, object capsules]
    written: Tensor  # [batch, channels, height, width]
    attended: Tensor | None  # [batch, channels, height, width]
    glimpse: Tensor | None  # [batch, channels, N, N]
    read_window: Window | None
    write_window: Window | None
    winner: Tensor | None  # [batch]
    couplings: Tensor | None  # [batch, primary, objects]
    features: Tensor | None  # [batch, features], what the encoder was given
    latent: Tensor | None  # [batch, objects · size], what the decoder was given


class OCRA(nn.Module):
    """Object-centric recurrent attention: recognises the objects of an image in a few glimpses."""

    def __init__(self, config: ModelConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ModelConfig()
        self.convolution1 = nn.Conv2d(config.channels, config.filters, 5, padding=2)
        self.convolution2 = nn.Conv2d(config.filters, config.filters, 3, padding=1)
        inputs = config.features + (config.hidden if config.feedback else 0)
        self.encoder = LSTMCell(inputs, config.hidden, config.recurrent)
        self.primary = nn.Linear(config.hidden, config.primary_capsules * config.primary_size)
        latent = config.object_capsules * config.capsule_size
        if config.capsules:
            self.object_capsules = CapsuleLayer(
                config.primary_capsules, config.primary_size, config.object_capsules, config.capsule_size
            )
        else:
            self.dense = nn.Linear(config.primary_capsules * config.primary_size, latent)
            self.classify = nn.Linear(latent, config.object_capsules)
        self.decoder = LSTMCell(latent, config.hidden, config.recurrent)
        if config.attention:
            self.write_patch = nn.Linear(config.hidden, config.channels * config.write_size**2)
            self.read_attention = nn.Linear(config.hidden, 4)
            self.write_attention = nn.Linear(config.hidden, 4)
        else:
            self.write_patch = nn.Linear(config.hidden, config.channels * config.height * config.width)
        self.readouts = nn.ModuleList(
            nn.Linear(config.readout_span * config.classes, config.readout_classes)
            for _ in range(config.readout_digits)
        )
        self.convolution2.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.info = ModelInfo.from_dict({}, config)
        self.gather_gradients = False  # faster in training, see `ocra.model.kernels`; first derivatives only
        self._step: Callable[..., Step] = self.step

    def forward(
        self,
        images: Tensor,
        *,
        glimpses: int | None = None,
        record: bool = False,
        attended: bool = False,
        windows: Windows | None = None,
        jitter: Tensor | None = None,
        winners: Tensor | None = None,
        lesion: Lesion | None = None,
        routings: int | None = None,
    ) -> Trace:
        """Look at images [batch, channels, height, width], values in [0, 1] (Pseudocode 1).

        glimpses, routings: other numbers than the config's. record: fill every field of the trace.
        attended: fill `trace.attended`, which the masked reconstruction loss needs.
        windows, jitter, winners, lesion: interventions, see `ocra.model.interventions`.
        """
        self._check(images)
        count = self.config.glimpses if glimpses is None else how_often("glimpses", glimpses)
        passes = self.config.routings if routings is None else how_often("routings", routings)
        if count > 1 and not self.config.recurrent:
            raise OcraError(
                f"This model makes one pass (model.recurrent is off): give glimpses=1, not {count}."
            )
        control = Interventions(windows, jitter, winners, lesion).prepare(images, count, self.config)
        step = self._step if control is None else self.step
        gatherer = (
            Gatherer(self, count, len(images)) if control is None and self._gathers(images, count) else None
        )
        state: State | None = None
        steps = []
        for t in range(count):
            extra = None if control is None else control.at(t)
            slots = None if gatherer is None else gatherer.slots(t)
            steps.append(step(images, state, passes, record, attended or record, extra, slots))
            if gatherer is not None:
                gatherer.keep(state, steps[-1])
            state = steps[-1].state
        return self._trace(steps, record)

    def step(
        self,
        images: Tensor,
        state: State | None,
        routings: int,
        record: bool = False,
        attended: bool = False,
        control: StepControl | None = None,
        slots: Slots | None = None,
    ) -> Step:
        """One glimpse: lines 4 to 12 of Pseudocode 1. A state of None stands for zeros.

        slots: where the gradients of the LSTMs' weights are gathered, see `ocra.model.kernels`.
        """
        config = self.config
        glimpse, read_window, put_back = self._read(images, state, attended, control)
        features = self._convolve(glimpse)
        if config.feedback:
            features = torch.cat([features, self._decoder_state(images, state, control)], 1)
        encoder, encoder_cell = self.encoder(
            features, _memory(state, "encoder", control), None if slots is None else slots.encoder
        )
        latent, lengths, winner, couplings = self._recognise(encoder, routings, control)
        decoder, decoder_cell = self.decoder(
            latent, _memory(state, "decoder", control), None if slots is None else slots.decoder
        )
        written, write_window = self._write(decoder)
        return Step(
            State(encoder, encoder_cell, decoder, decoder_cell),
            lengths,
            written,
            put_back,
            *((glimpse, read_window, write_window, winner, couplings) if record else (None,) * 5),
            *((None, None) if slots is None else (features, latent)),
        )

    def compile_step(self) -> OCRA:
        """Compile the step once for any number of glimpses; without a working compiler the model stays as it is."""
        self._step = compiled_or_eager(self.step)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: it is not compiled, for the compiled step goes on with this model's weights."""
        return {**self.__dict__, "_step": self.step}

    def _gathers(self, images: Tensor, glimpses: int) -> bool:
        """Whether gathering the gradients of this pass is asked for, needed and possible."""
        lowered = torch.is_autocast_enabled(images.device.type)
        return self.gather_gradients and torch.is_grad_enabled() and glimpses > 1 and not lowered

    def _read(
        self, images: Tensor, state: State | None, attended: bool, control: StepControl | None
    ) -> tuple[Tensor, Window | None, Tensor | None]:
        """The glimpse (line 4), its window, and the glimpse put back into the image frame if asked for."""
        if not self.config.attention:
            return images, None, images.detach() if attended else None
        _, height, width = self.config.image_shape
        size = self.config.glimpse_size
        if state is None:  # h_dec is zero at the start, so the first window is the bias alone
            parameters = self.read_attention.bias[None].expand(len(images), 4)
        else:
            parameters = self.read_attention(state.decoder)
        window = window_from_parameters(parameters, height, width, size)
        if control is not None:
            window = control.window_instead_of(window)
        bank_y, bank_x = filter_banks(window, height, width, size)
        glimpse = read(images, bank_y, bank_x)
        put_back = write(glimpse.detach(), bank_y.detach(), bank_x.detach()) if attended else None
        return glimpse, window, put_back

    def _convolve(self, glimpse: Tensor) -> Tensor:
        """Two convolutions with pooling (line 5): [batch, features], channel by channel as in the paper."""
        assert self.convolution1.bias is not None
        maps = convolve_and_pool(glimpse, self.convolution1.weight, self.convolution1.bias)
        maps = F.max_pool2d(self.convolution2(maps), 2)
        return relu(maps.flatten(1))

    def _recognise(
        self, encoder: Tensor, routings: int, control: StepControl | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Object capsules and what the decoder gets of them (lines 7-9).

        Returns latent [batch, objects · size], lengths [batch, objects], winner [batch], couplings.
        """
        config = self.config
        primary = self.primary(encoder)
        if not config.capsules:
            latent = self.dense(primary)
            lengths = at_least_float32(self.classify(latent)).softmax(1)
            return latent, lengths, lengths.argmax(1), None
        primary = primary.unflatten(1, (config.primary_capsules, config.primary_size))
        capsules, lengths, couplings = self.object_capsules(primary, routings)
        if control is not None:
            capsules, lengths = control.silence(capsules, lengths)
        winner = lengths.argmax(1)
        if control is not None:
            winner = control.winner_instead_of(winner)
        if config.masking:
            places = torch.arange(config.object_capsules, device=winner.device)
            capsules = capsules * (winner[:, None] == places).to(capsules.dtype)[:, :, None]
        return capsules.flatten(1), lengths, winner, couplings

    def _write(self, decoder: Tensor) -> tuple[Tensor, Window | None]:
        """What this step adds to the canvas (line 11) and its window."""
        channels, height, width = self.config.image_shape
        patch = at_least_float32(self.write_patch(decoder))
        if self.config.attention:
            size = self.config.write_size
            window = window_from_parameters(self.write_attention(decoder), height, width, size)
            banks = filter_banks(window, height, width, size)
            written = write(patch.unflatten(1, (channels, size, size)), *banks)
        else:
            window, written = None, patch.unflatten(1, (channels, height, width))
        return relu(written) if self.config.rectify_writes else written, window

    def _decoder_state(self, images: Tensor, state: State | None, control: StepControl | None) -> Tensor:
        """What decoder-to-encoder feedback delivers: h_dec of the step before [batch, hidden]."""
        if state is None or (control is not None and control.lesion.feedback):
            return images.new_zeros(len(images), self.config.hidden)
        return state.decoder

    def _trace(self, steps: list[Step], record: bool) -> Trace:
        """Sum up the steps (lines 8 and 12) and, if asked for, lay the records side by side."""
        lengths = torch.stack([step.lengths for step in steps], 1)
        writes = torch.stack([step.written for step in steps], 1)
        canvas = writes.sum(1)
        put_back = side_by_side([step.attended for step in steps])
        return Trace(
            scores=lengths[:, :, : self.config.classes].sum(1),
            canvas=canvas.clamp(0, 1) if self.config.clip_canvas else canvas,
            capsule_lengths=lengths,
            readout=self._read_out(lengths) if self.config.readout_digits else None,
            attended=None if put_back is None else put_back.sum(1),
            glimpses=side_by_side([step.glimpse for step in steps]),
            read_windows=windows_side_by_side([step.read_window for step in steps]),
            write_windows=windows_side_by_side([step.write_window for step in steps]),
            winners=side_by_side([step.winner for step in steps]),
            canvases=writes.cumsum(1) if record else None,
            couplings=transposed(side_by_side([step.couplings for step in steps])),
        )

    def _read_out(self, lengths: Tensor) -> Tensor:
        """One linear readout for each digit from its own glimpses: [batch, digits, readout classes].

        Glimpses that were not made count as capsules of length zero.
        """
        skip, span = self.config.readout_skip, self.config.readout_span
        lengths = lengths[:, :, : self.config.classes]
        missing = skip + span * len(self.readouts) - lengths.shape[1]
        lengths = F.pad(lengths, (0, 0, 0, max(missing, 0)))
        spans = [
            lengths[:, skip + span * k : skip + span * (k + 1)].flatten(1) for k in range(len(self.readouts))
        ]
        outputs = [layer(part) for layer, part in zip(self.readouts, spans, strict=True)]
        return at_least_float32(torch.stack(outputs, 1))

    def _check(self, images: Tensor) -> None:
        """Refuse what is not a batch of images of the model's size."""
        if not isinstance(images, Tensor) or not images.is_floating_point():
            kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise OcraError(
                f"Images must be a float tensor with values from 0 to 1, not {kind}; divide bytes by 255."
            )
        if images.dim() != 4 or tuple(images.shape[1:]) != self.config.image_shape:
            wanted = ", ".join(map(str, self.config.image_shape))
            raise OcraError(f"This model takes images of shape [batch, {wanted}], not {list(images.shape)}.")
        if len(images) == 0:
            raise OcraError("The batch holds no image; give at least one.")
        own = self.convolution1.weight.dtype
        if own.itemsize < 4:
            raise OcraError(
                f"The model is {own}; keep it in float32 and compute under torch.autocast instead."
            )
        if images.dtype != own and not torch.is_autocast_enabled(images.device.type):
            raise OcraError(f"The images are {images.dtype}, the model is {own}; convert one with .to(...).")

    @property
    def parameter_count(self) -> int:
        """Number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)

    @classmethod
    def from_pretrained(cls, name: str | Path) -> OCRA:
        """Load a shipped model by name, or one from a folder written by `save_pretrained`, or from the hub."""
        return load(name)

    def save_pretrained(
        self, folder: str | Path, info: ModelInfo | None = None, storage: Storage = "float32"
    ) -> None:
        """Write `config.json` and `model.safetensors` into a folder, the layout of the Hugging Face hub.

        info: what goes into config.json besides the network. By default `self.info` without its record: what answers
        mean is kept, figures of other weights are not.
        """
        save(self, folder, info, storage)


def how_often(name: str, value: int) -> int:
    """The value, if it is a whole number from 1 on within reason."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= value <= MOST_TIMES:
        raise UsageError(f"{name} must be a whole number from 1 to {MOST_TIMES}, not {value!r}.")
    return int(value)


def _memory(state: State | None, part: str, control: StepControl | None) -> tuple[Tensor, Tensor] | None:
    """Hidden and cell state of one LSTM, or None where there is nothing to remember."""
    if state is None or (control is not None and getattr(control.lesion, f"{part}_memory")):
        return None
    return getattr(state, part), getattr(state, f"{part}_cell")
