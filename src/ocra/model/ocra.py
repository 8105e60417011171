"""OCRA, the network: one pass is Pseudocode 1 of the paper, one step of it is `OCRA.step`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocra.config import ModelConfig
from ocra.errors import OcraError, UsageError
from ocra.model.attention import Window, filter_banks, read, window_from_parameters, write
from ocra.model.capsules import CapsuleLayer
from ocra.model.deciding import check_until, look_until
from ocra.model.interventions import Interventions, Lesion, StepControl
from ocra.model.kernels import (
    DeferredWeightGradients,
    Matrices,
    Zeros,
    add_product,
    at_least_float32,
    bf16_copy,
    compiled_or_eager,
    convolve_and_pool,
    linear,
    relu,
)
from ocra.model.network import Network
from ocra.model.trace import Trace, Windows, stack_steps, stack_windows

MOST_TIMES = 1000
"""Largest number of glimpses, or of routings, that may be asked for."""
LOWEST, HIGHEST = -1.0, 2.0
"""Beyond these values an image is no image with values from 0 to 1, noise and all: bytes, or standardised."""


Asked = Literal["all", "state", "lengths"]
"""What is asked of a glimpse: all of it, all but what it writes, or only what it recognises (lines 4 to 7)."""


class State(NamedTuple):
    """Hidden and cell states of the encoder and the decoder, each [batch, hidden]."""

    encoder: Tensor
    encoder_cell: Tensor
    decoder: Tensor
    decoder_cell: Tensor


class Step(NamedTuple):
    """All that one glimpse yields; what is not asked for is None."""

    state: State | None  # None after the last glimpse of a pass that is to answer only
    lengths: Tensor  # [batch, object capsules]
    written: Tensor | None = None  # [batch, channels, height, width]
    attended: Tensor | None = None  # [batch, channels, height, width]
    glimpse: Tensor | None = None  # [batch, channels, N, N]
    read_window: Window | None = None
    write_window: Window | None = None
    winner: Tensor | None = None  # [batch]
    couplings: Tensor | None = None  # [batch, primary, objects]
    features: Tensor | None = None  # [batch, features], what the encoder was given
    latent: Tensor | None = None  # [batch, objects · size], what the decoder was given


class LSTMCell(nn.Module):
    """RNN^enc and RNN^dec: multiplies nothing by a zero state; for a single pass it has no recurrent weights."""

    def __init__(self, inputs: int, hidden: int, recurrent: bool) -> None:
        super().__init__()
        bound = hidden**-0.5
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, inputs).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden).uniform_(-bound, bound))
        if recurrent:
            self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden).uniform_(-bound, bound))
            self.bias_hh = nn.Parameter(torch.empty(4 * hidden).uniform_(-bound, bound))
        self.recurrent = recurrent

    def forward(
        self,
        inputs: Tensor,
        state: tuple[Tensor, Tensor] | None,
        weight_ih: Tensor,
        weight_hh: Tensor | None,
        zeros: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Next hidden and cell state [batch, hidden] from inputs [batch, inputs]; None stands for zeros.

        weight_ih, weight_hh: its matrices as they are multiplied by, see `ocra.model.kernels.Matrices`.
        zeros [batch, 4 · hidden]: added to the gates, see `ocra.model.kernels.DeferredWeightGradients`.
        """
        bias = self.bias_ih + self.bias_hh if self.recurrent else self.bias_ih
        gates = linear(inputs, weight_ih, bias)
        if state is not None and weight_hh is not None:
            gates = add_product(gates, state[0], weight_hh)
        if zeros is not None:
            gates = gates + zeros
        enter, keep, new, out = at_least_float32(gates).chunk(4, 1)
        cell = enter.sigmoid() * new.tanh()
        if state is not None:
            cell = cell + keep.sigmoid() * state[1]
        return out.sigmoid() * cell.tanh(), cell


class OCRA(Network, kind="ocra"):
    """Object-centric recurrent attention: recognises the objects of an image in a few glimpses."""

    Config = ModelConfig
    config: ModelConfig
    matrices: ClassVar[dict[str, int]] = {
        "encoder.weight_ih": 4, "encoder.weight_hh": 4, "decoder.weight_ih": 4, "decoder.weight_hh": 4,
        "primary.weight": 1,
    }  # fmt: skip
    attention_layers = ("read_attention.", "write_attention.")
    supports_bf16 = True

    def __init__(self, config: ModelConfig | None = None) -> None:
        config = config or ModelConfig()
        super().__init__(config)
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
        # Faster training; see `ocra.model.kernels`.
        self.bf16: Matrices | None = None  # copies to multiply by; whoever sets them keeps them up to date
        self._step: Callable[..., Step] = self.step

    def forward(
        self,
        images: Tensor,
        *,
        glimpses: int | None = None,
        until: float | None = None,
        record: bool = False,
        attended: bool = False,
        detach_windows: bool = False,
        windows: Windows | None = None,
        jitter: Tensor | None = None,
        winners: Tensor | None = None,
        lesion: Lesion | None = None,
        routings: int | None = None,
    ) -> Trace:
        """Look at images [batch, channels, height, width], values in [0, 1] (Pseudocode 1).

        glimpses, routings: other numbers than the config's. record: fill every field of the trace.
        until: each image stops once its answer is so far ahead of the next class, see
        `ocra.model.deciding.answer_margin`; `glimpses` is then the most it may take, `trace.taken` what it took.
        attended: fill `trace.attended`, which the masked reconstruction loss needs.
        detach_windows: no gradient reaches the read windows through what is seen in them.
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
        if until is not None:
            until = check_until(until, readouts=self.config.readout_digits > 0)
            return look_until(self, images, until, count, passes, record, attended or record, control)
        step = self._step if control is None else self.step
        deferred = self._deferred(images, count) if control is None else None
        state: State | None = None  # line 1: zeros
        steps: list[Step] = []
        for t in range(count):  # line 3
            zeros = None if deferred is None else deferred.zeros(t)
            at_t = None if control is None else control.at(t)
            now = step(images, state, passes, record, attended or record, at_t, zeros, detach_windows)
            if deferred is not None:
                assert now.state is not None and now.features is not None and now.latent is not None
                hidden = (None, None) if state is None else (state.encoder, state.decoder)
                deferred.keep(
                    (now.features, hidden[0]),
                    (now.latent, hidden[1]),
                    (now.state.encoder,),
                    (now.state.decoder,),
                )
            steps.append(now)
            state = now.state
        return self.sum_up(steps, record)

    @torch.no_grad()
    def answer(self, images: Tensor, glimpses: int | None = None) -> Trace:
        """The same scores sooner: nothing is written, and the last glimpse ends with its capsules."""
        self._check(images)
        count = self.config.glimpses if glimpses is None else how_often("glimpses", glimpses)
        state: State | None = None
        steps: list[Step] = []
        for t in range(count):
            asked: Asked = "lengths" if t == count - 1 else "state"
            steps.append(self._step(images, state, self.config.routings, asked=asked))
            state = steps[-1].state
        return self.sum_up(steps, record=False)

    def step(
        self,
        images: Tensor,
        state: State | None,
        routings: int,
        record: bool = False,
        attended: bool = False,
        control: StepControl | None = None,
        zeros: Zeros | None = None,
        detach_windows: bool = False,
        asked: Asked = "all",
    ) -> Step:
        """One glimpse: lines 4 to 11 of Pseudocode 1. A state of None stands for zeros.

        zeros: what gets the gradients of the large matrices, see `ocra.model.kernels.DeferredWeightGradients`.
        asked: where to end, see `Asked`.
        """
        for_encoder, for_decoder, for_primary, for_patch = (None,) * 4 if zeros is None else zeros
        matrices = self._matrices(constant=zeros is not None)
        # Line 4, READ: [batch, channels, N, N].
        glimpse, read_window, put_back = self._read(images, state, attended, control, detach_windows)
        # Line 5, CNN: [batch, features].
        features = self._convolve(glimpse)
        if self.config.feedback:
            features = torch.cat([features, self._decoder_state(images, state, control)], 1)
        # Line 6, RNN^enc: [batch, hidden].
        encoder, encoder_cell = self.encoder(
            features,
            _memory(state, "encoder", control),
            matrices.encoder_ih,
            matrices.encoder_hh,
            for_encoder,
        )
        # Line 7, CAPSULE: [batch, objects, size] and, of each capsule, ‖d_j‖: [batch, objects].
        capsules, lengths, couplings = self._recognise(
            self._project(encoder, matrices.primary, self.primary.bias, for_primary), routings, control
        )
        if asked == "lengths":
            return Step(None, lengths)
        # Line 9, mask: only the longest capsule goes on, [batch, objects · size].
        winner = lengths.argmax(1) if control is None else control.winner_instead_of(lengths.argmax(1))
        latent = self._mask(capsules, winner).flatten(1)
        # Line 10, RNN^dec: [batch, hidden].
        decoder, decoder_cell = self.decoder(
            latent, _memory(state, "decoder", control), matrices.decoder_ih, matrices.decoder_hh, for_decoder
        )
        if asked == "state":
            return Step(State(encoder, encoder_cell, decoder, decoder_cell), lengths)
        # Line 11, WRITE: [batch, channels, height, width].
        patch = self._project(decoder, matrices.patch, self.write_patch.bias, for_patch)
        written, write_window = self._write(decoder, patch)
        return Step(
            State(encoder, encoder_cell, decoder, decoder_cell),
            lengths,
            written,
            put_back,
            *((glimpse, read_window, write_window, winner, couplings) if record else (None,) * 5),
            *((None, None) if zeros is None else (features, latent)),
        )

    def _read(
        self, images: Tensor, state: State | None, attended: bool, control: StepControl | None, detach: bool
    ) -> tuple[Tensor, Window | None, Tensor | None]:
        """The glimpse, its window, and the glimpse put back into the image frame if asked for."""
        if not self.config.attention:
            return images, None, images.detach() if attended else None
        _, height, width = self.config.image_shape
        size = self.config.glimpse_size
        if state is None:  # h_dec is zero at the start, so the first window is the bias alone
            parameters = self.read_attention.bias[None].expand(images.shape[0], 4)
        else:
            parameters = self.read_attention(state.decoder)
        window = window_from_parameters(parameters, height, width, size)
        if control is not None:
            window = control.window_instead_of(window)
        seen_through = Window(*(value.detach() for value in window)) if detach else window
        bank_y, bank_x = filter_banks(seen_through, height, width, size)
        glimpse = read(images, bank_y, bank_x)
        put_back = write(glimpse.detach(), bank_y.detach(), bank_x.detach()) if attended else None
        return glimpse, window, put_back

    def _convolve(self, glimpse: Tensor) -> Tensor:
        """Two convolutions with pooling: [batch, features], channel by channel as in the paper."""
        assert self.convolution1.bias is not None
        maps = convolve_and_pool(glimpse, self.convolution1.weight, self.convolution1.bias, self._in_bf16)
        if self._in_bf16:
            second = self.convolution2
            assert second.bias is not None
            maps = F.conv2d(maps.bfloat16(), second.weight.bfloat16(), second.bias.bfloat16(), padding=1)
        else:
            maps = self.convolution2(maps)
        return relu(at_least_float32(F.max_pool2d(maps, 2).flatten(1)))

    def _project(self, inputs: Tensor, weight: Tensor, bias: Tensor, zeros: Tensor | None) -> Tensor:
        """A linear layer by one of the large matrices."""
        outputs = at_least_float32(linear(inputs, weight, bias))
        return outputs if zeros is None else outputs + zeros

    @contextmanager
    def as_used(self) -> Iterator[None]:
        """Within the block, nothing is made in bfloat16."""
        kept, self.bf16 = self.bf16, None
        try:
            yield
        finally:
            self.bf16 = kept

    @property
    def _in_bf16(self) -> bool:
        """Whether large products are made in bfloat16 now."""
        return self.bf16 is not None

    def _matrices(self, constant: bool) -> Matrices:
        """The large matrices; constants where deferred gradients, or none at all, are asked for."""
        if self.bf16 is not None and (constant or not torch.is_grad_enabled()):
            return self.bf16
        own = self.large_matrices()
        return own.each(torch.Tensor.detach) if constant else own

    def use_bf16(self, copy_of: Callable[[Tensor], Tensor] = bf16_copy) -> None:
        """Multiply by copies of the large matrices in bfloat16."""
        self.bf16 = self.large_matrices().each(copy_of)

    def large_matrices(self) -> Matrices:
        """The large matrices as parameters; for faster training, `bf16` may hold copies of them in bfloat16."""
        encoder, decoder, recurrent = self.encoder, self.decoder, self.config.recurrent
        return Matrices(
            encoder.weight_ih,
            encoder.weight_hh if recurrent else None,
            decoder.weight_ih,
            decoder.weight_hh if recurrent else None,
            self.primary.weight,
            self.write_patch.weight,
        )

    def _decoder_state(self, images: Tensor, state: State | None, control: StepControl | None) -> Tensor:
        """What decoder-to-encoder feedback delivers: h_dec of the step before [batch, hidden]."""
        if state is None or (control is not None and control.lesion.feedback):
            return images.new_zeros(images.shape[0], self.config.hidden)
        return state.decoder

    def _recognise(
        self, primary: Tensor, routings: int, control: StepControl | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Object capsules [batch, objects, size], their lengths [batch, objects], couplings [batch, primary, objects].

        Without capsules: units in their place, and the softmax of a readout in place of the lengths.
        """
        config = self.config
        if not config.capsules:
            units = self.dense(primary)
            shares = at_least_float32(self.classify(units)).softmax(1)
            return units.unflatten(1, (config.object_capsules, config.capsule_size)), shares, None
        primary = primary.unflatten(1, (config.primary_capsules, config.primary_size))
        capsules, lengths, couplings = self.object_capsules(primary, routings)
        if control is not None:
            capsules, lengths = control.silence(capsules, lengths)
        return capsules, lengths, couplings

    def _mask(self, capsules: Tensor, winner: Tensor) -> Tensor:
        """Zeros in place of all capsules [batch, objects, size] but the winner [batch]."""
        if not (self.config.capsules and self.config.masking):
            return capsules
        places = torch.arange(self.config.object_capsules, device=winner.device)
        return capsules * (winner[:, None] == places).to(capsules.dtype)[:, :, None]

    def _write(self, decoder: Tensor, patch: Tensor) -> tuple[Tensor, Window | None]:
        """What this step adds to the canvas, and its window."""
        channels, height, width = self.config.image_shape
        if self.config.attention:
            size = self.config.write_size
            window = window_from_parameters(self.write_attention(decoder), height, width, size)
            banks = filter_banks(window, height, width, size)
            written = write(patch.unflatten(1, (channels, size, size)), *banks)
        else:
            window, written = None, patch.unflatten(1, (channels, height, width))
        return relu(written) if self.config.rectify_writes else written, window

    def sum_up(self, steps: list[Step], record: bool) -> Trace:
        """Scores and canvas (lines 8 and 12) and, if asked for, the records of all steps side by side."""
        lengths = torch.stack([step.lengths for step in steps], 1)  # [batch, glimpses, objects]
        writes = stack_steps([step.written for step in steps])  # [batch, glimpses, channels, height, width]
        canvas = (
            lengths.new_zeros(len(lengths), *self.config.image_shape) if writes is None else writes.sum(1)
        )
        attended = stack_steps([step.attended for step in steps])
        couplings = stack_steps([step.couplings for step in steps])  # [batch, glimpses, primary, objects]
        return Trace(
            scores=lengths[:, :, : self.config.classes].sum(1),
            canvas=canvas.clamp(0, 1) if self.config.clip_canvas else canvas,
            capsule_lengths=lengths,
            readout=self._read_out(lengths) if self.config.readout_digits else None,
            attended=None if attended is None else attended.sum(1),
            glimpses=stack_steps([step.glimpse for step in steps]),
            read_windows=stack_windows([step.read_window for step in steps]),
            write_windows=stack_windows([step.write_window for step in steps]),
            winners=stack_steps([step.winner for step in steps]),
            canvases=None if writes is None or not record else writes.cumsum(1),
            couplings=None if couplings is None else couplings.transpose(2, 3),
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

    def deferred_weights(self, glimpses: int) -> list[Tensor]:
        """The weights whose gradients a training pass of so many glimpses defers, and overwrites."""
        if not self.defer_weight_gradients or glimpses == 1:
            return []
        return [matrix for matrix in self.large_matrices() if matrix is not None]

    def _deferred(self, images: Tensor, glimpses: int) -> DeferredWeightGradients | None:
        """The deferred weight gradients of this pass, if they are asked for, needed and possible."""
        lowered = torch.is_autocast_enabled(images.device.type)
        if not torch.is_grad_enabled() or lowered or not self.deferred_weights(glimpses):
            return None
        encoder_ih, encoder_hh, decoder_ih, decoder_hh, primary, patch = self.large_matrices()
        assert encoder_hh is not None and decoder_hh is not None
        weights = ((encoder_ih, encoder_hh), (decoder_ih, decoder_hh), (primary,), (patch,))
        precision = torch.bfloat16 if self._in_bf16 else encoder_ih.dtype
        return DeferredWeightGradients(weights, glimpses, len(images), precision)

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
        if images.shape[0] == 0:
            raise OcraError("The batch holds no image; give at least one.")
        own = self.convolution1.weight.dtype
        if own.itemsize < 4:
            raise OcraError(
                f"The model is {own}; keep it in float32 and compute under torch.autocast instead."
            )
        if images.dtype != own and not torch.is_autocast_enabled(images.device.type):
            raise OcraError(f"The images are {images.dtype}, the model is {own}; convert one with .to(...).")
        # To look at values, a program that is compiled would break in two and a GPU would be waited for.
        if images.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = images.detach().aminmax()
            if not (low >= LOWEST and high <= HIGHEST):
                raise OcraError(
                    f"Images must have values from 0 to 1; these go from {low:g} to {high:g}. Divide bytes by 255."
                )

    def compile_step(self) -> OCRA:
        """Compile the step once for any number of glimpses; without a working compiler the model stays as it is."""
        self._step = compiled_or_eager(self.step)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: it is not compiled, for the compiled step goes on with this model's weights."""
        return {**self.__dict__, "_step": self.step}

    @torch.no_grad()
    def initialise(self, capsule_std: float = 0.1, forget_bias: float = 1.0) -> None:
        """Our random start in place of the paper's: it learns the same from less than half the images.

        Larger capsule transforms, so that capsules speak from the beginning; LSTMs that begin by remembering.
        """
        if self.config.capsules:
            nn.init.normal_(self.object_capsules.weight, std=capsule_std)
        hidden = self.config.hidden
        for cell in (self.encoder, self.decoder):
            cell.bias_ih[hidden : 2 * hidden] += (
                forget_bias  # of the four gates (input, forget, cell, output)
            )
            if cell.recurrent:
                for gate in range(4):
                    nn.init.orthogonal_(cell.weight_hh[gate * hidden : (gate + 1) * hidden])

    @torch.no_grad()
    def begin_stage(self, attention_scale: float, read_window: float) -> None:
        """Change the attention layers as a stage says that begins."""
        if not self.config.attention:
            return
        for layer in (self.read_attention, self.write_attention):
            layer.weight *= attention_scale
        # The read windows do in the middle of the image what they did in all of it.
        read = self.read_attention
        read.weight[:2] *= read_window  # g_X and g_Y, from the middle of the image
        read.bias[:2] *= read_window
        read.bias[3] += math.log(read_window)  # log δ


def _memory(state: State | None, part: str, control: StepControl | None) -> tuple[Tensor, Tensor] | None:
    """Hidden and cell state of one LSTM, or None where there is nothing to remember."""
    if state is None or (control is not None and getattr(control.lesion, f"{part}_memory")):
        return None
    return getattr(state, part), getattr(state, f"{part}_cell")


def how_often(name: str, value: int) -> int:
    """The value, if it is a whole number from 1 on within reason."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= value <= MOST_TIMES:
        raise UsageError(f"{name} must be a whole number from 1 to {MOST_TIMES}, not {value!r}.")
    return int(value)
