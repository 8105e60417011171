"""The paper's Pseudocodes 1 to 4, line for line: plain, slow, and the judge of `ocra.model.ocra`.

It takes nothing but the parameters and the config from a model. Tensors keep the batch as their first axis;
"for all i, j" of the paper is a broadcast product, its loops over t and r are loops. Symbols are the paper's.
Where the paper is silent the authors' program is followed; these places are marked "not in the paper".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, relu

from ocra.model.ocra import OCRA
from ocra.model.trace import Trace, Windows


def reference_pass(model: OCRA, images: Tensor, attended: bool = False) -> Trace:
    """Pseudocode 1, OCRA architecture overview, over images x [batch, channels, height, width].

    The trace is always filled; `attended` adds the sum of the glimpses put back into the image frame.
    """
    config, x, batch = model.config, images, len(images)
    # Line 1: hidden states start at zero; so do the LSTM's cell states.
    h_enc = c_enc = h_dec = c_dec = x.new_zeros(batch, config.hidden)
    # Line 2: scores and canvas start at zero.
    s, canvas = x.new_zeros(batch, config.classes), torch.zeros_like(x)
    put_back = torch.zeros_like(x)
    steps = []
    for _ in range(config.glimpses):  # line 3
        g, read_window, in_place = read_attention(model, x, h_dec, attended)  # line 4
        g_conv = cnn(model, g)  # line 5
        if config.feedback:  # not in the paper, but in its 2023 successor
            g_conv = torch.cat([g_conv, h_dec], dim=1)
        h_enc, c_enc = lstm(model.encoder, g_conv, h_enc, c_enc)  # line 6
        if config.capsules:
            d, c = capsule(model, h_enc)  # line 7
            lengths = torch.linalg.vector_norm(d, dim=2)  # ‖d_j‖
            winner = lengths.argmax(dim=1)  # longest at this step, background included
            latent = (mask(d, winner) if config.masking else d).flatten(1)  # line 9: d_mask
        else:
            latent, lengths = fully_connected(model, h_enc)
            c, winner = None, lengths.argmax(dim=1)
        s = s + lengths[:, : config.classes]  # line 8, background left out
        h_dec, c_dec = lstm(model.decoder, latent, h_dec, c_dec)  # line 10
        w, write_window = write_attention(model, h_dec)  # line 11
        canvas = canvas + w  # line 12
        put_back = put_back + in_place
        steps.append((g, read_window, write_window, lengths, winner, canvas, c))
    g_t, read_windows, write_windows, lengths_t, winner_t, canvas_t, c_t = zip(*steps, strict=True)
    return Trace(
        scores=s,
        canvas=canvas.clamp(0, 1) if config.clip_canvas else canvas,
        capsule_lengths=torch.stack(lengths_t, dim=1),
        readout=read_out(model, lengths_t) if config.readout_digits else None,
        attended=put_back if attended else None,
        glimpses=torch.stack(g_t, dim=1),
        read_windows=in_pixels_from_zero(read_windows) if config.attention else None,
        write_windows=in_pixels_from_zero(write_windows) if config.attention else None,
        winners=torch.stack(winner_t, dim=1),
        canvases=torch.stack(canvas_t, dim=1),
        couplings=torch.stack(c_t, dim=1) if config.capsules else None,
    )


def cnn(model: OCRA, g: Tensor) -> Tensor:
    """Line 5 of Pseudocode 1: convolution, pooling, ReLU, twice; [batch, features]."""
    first, second = model.convolution1, model.convolution2
    maps = relu(max_pool2d(conv2d(g, first.weight, first.bias, padding=2), 2))
    maps = relu(max_pool2d(conv2d(maps, second.weight, second.bias, padding=1), 2))
    return maps.flatten(1)


def lstm(cell: Any, inputs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The LSTM of lines 6 and 10: next h and c [batch, hidden]. A feed-forward model has no W_hh."""
    gates = inputs @ cell.weight_ih.T + cell.bias_ih
    if hasattr(cell, "weight_hh"):
        gates = gates + h @ cell.weight_hh.T + cell.bias_hh
    i, f, g, o = gates.chunk(4, dim=1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def mask(d: Tensor, winner: Tensor) -> Tensor:
    """Line 9 of Pseudocode 1: zeros in place of all capsules [batch, j, size] but the winner."""
    j = torch.arange(d.shape[1], device=d.device)
    return torch.where((j == winner[:, None])[..., None], d, 0.0)


def capsule(model: OCRA, h_enc: Tensor) -> tuple[Tensor, Tensor]:
    """Pseudocode 2: object capsules d [batch, j, size] and couplings c [batch, j, i] of the last pass."""
    config = model.config
    p = h_enc @ model.primary.weight.T + model.primary.bias  # line 3
    p = p.reshape(len(p), 1, config.primary_capsules, 1, config.primary_size)
    b = h_enc.new_zeros(len(p), config.object_capsules, config.primary_capsules)  # line 4
    c = torch.full_like(b, 1 / config.object_capsules)  # not in the paper: the first couplings are uniform
    # Line 6, the same in every pass: p̂_j|i = W_ij p_i, [batch, j, i, size].
    p_hat = (model.object_capsules.weight * p).sum(dim=-1)
    # Not in the paper: gradients flow through the last pass only.
    p_hat_detached = p_hat.detach()
    for _ in range(config.routings - 1):  # line 5; three routings compute d three times and update c twice
        d = squash((c[..., None] * p_hat_detached).sum(dim=2))  # line 7
        b = b + (p_hat_detached * d[:, :, None]).sum(dim=-1)  # line 8
        c = maxmin(b)  # line 9
    return squash((c[..., None] * p_hat).sum(dim=2)), c  # line 11


def maxmin(b: Tensor, lb: float = 0.01, ub: float = 1.0) -> Tensor:
    """Eq. 3 over the object capsules of b [batch, j, i]."""
    low, high = b.min(dim=1, keepdim=True).values, b.max(dim=1, keepdim=True).values
    c = lb + (ub - lb) * (b - low) / (high - low)
    # Not in the paper: where all logits are equal (0 / 0) the couplings stay uniform.
    return torch.where(high == low, torch.full_like(b, 1 / b.shape[1]), c)


def squash(v: Tensor) -> Tensor:
    """Eq. 4 over the last axis; a vector of zeros stays one."""
    length = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return length**2 / (1 + length**2) * v / length.clamp_min(1e-12)


def fully_connected(model: OCRA, h_enc: Tensor) -> tuple[Tensor, Tensor]:
    """The ablation without capsules: 320 and 160 units, and a softmax readout in place of the lengths."""
    hidden = h_enc @ model.primary.weight.T + model.primary.bias
    latent = hidden @ model.dense.weight.T + model.dense.bias
    return latent, torch.softmax(latent @ model.classify.weight.T + model.classify.bias, dim=1)


Grid = tuple[Tensor, Tensor, Tensor, Tensor]  # g_X, g_Y, δ, σ², each [batch]


def attention_grid(layer: nn.Linear, h_dec: Tensor, width: int, height: int, size: int) -> Grid:
    """Lines 4-6 of Pseudocode 3 (5-7 of 4), in pixels 1…W; A is the width and B the height."""
    g_x, g_y, log_variance, log_stride = (h_dec @ layer.weight.T + layer.bias).unbind(dim=1)
    g_x = (width + 1) / 2 * (g_x + 1)
    g_y = (height + 1) / 2 * (g_y + 1)  # the paper prints A here too
    stride = (max(width, height) - 1) / (size - 1) * torch.exp(log_stride)
    return g_x, g_y, stride, torch.exp(log_variance)


def filterbanks(grid: Grid, width: int, height: int, size: int) -> tuple[Tensor, Tensor]:
    """Lines 7-12 of Pseudocode 3 (8-13 of 4): F_X [batch, 1, size, width], F_Y [batch, 1, size, height]."""
    banks = []
    g_x, g_y, stride, variance = grid
    for center, length in ((g_x, width), (g_y, height)):
        i = torch.arange(1, size + 1, dtype=center.dtype, device=center.device)
        w = torch.arange(1, length + 1, dtype=center.dtype, device=center.device)
        mu = center[:, None] + (i - size / 2 - 0.5) * stride[:, None]
        bank = torch.exp(-((w - mu[:, :, None]) ** 2) / (2 * variance[:, None, None]))
        z = bank.sum(dim=2, keepdim=True) + length * 1e-8  # the addend is not in the paper
        banks.append((bank / z)[:, None])
    return banks[0], banks[1]


def read_attention(
    model: OCRA, x: Tensor, h_dec: Tensor, attended: bool
) -> tuple[Tensor, Grid | None, Tensor | float]:
    """Pseudocode 3: the glimpse g, its grid, and g put back into the image frame (the mask)."""
    if not model.config.attention:  # the ablation that reads the whole image
        return x, None, x.detach() if attended else 0.0
    size = model.config.width, model.config.height, model.config.glimpse_size
    grid = attention_grid(model.read_attention, h_dec, *size)
    f_x, f_y = filterbanks(grid, *size)
    g = f_y @ x @ f_x.transpose(2, 3)  # line 13
    return g, grid, (f_y.transpose(2, 3) @ g @ f_x).detach() if attended else 0.0


def write_attention(model: OCRA, h_dec: Tensor) -> tuple[Tensor, Grid | None]:
    """Pseudocode 4: what is added to the canvas, [batch, channels, height, width], and its grid."""
    config, grid = model.config, None
    w = h_dec @ model.write_patch.weight.T + model.write_patch.bias  # line 4
    if config.attention:
        size = config.width, config.height, config.write_size
        grid = attention_grid(model.write_attention, h_dec, *size)
        f_x, f_y = filterbanks(grid, *size)
        w = w.reshape(-1, config.channels, config.write_size, config.write_size)
        w = f_y.transpose(2, 3) @ w @ f_x  # line 14
    else:
        w = w.reshape(-1, *config.image_shape)
    return relu(w) if config.rectify_writes else w, grid  # ReLU: not in the paper


def read_out(model: OCRA, lengths: tuple[Tensor, ...]) -> Tensor:
    """SVHN: digit k from the class capsules' lengths at its own glimpses; [batch, digits, 11]."""
    skip, span = model.config.readout_skip, model.config.readout_span
    digits = []
    for k in range(model.config.readout_digits):
        seen = lengths[skip + k * span : skip + (k + 1) * span]
        inputs = torch.cat([step[:, : model.config.classes] for step in seen], dim=1)
        digits.append(model.readouts[k](inputs))
    return torch.stack(digits, dim=1)


def in_pixels_from_zero(grids: tuple[Grid, ...]) -> Windows:
    """The grids of all steps as the trace shows them: pixels from 0, σ in place of σ²."""
    g_x, g_y, stride, variance = (torch.stack(values, dim=1) for values in zip(*grids, strict=True))
    return Windows(torch.stack([g_x - 1, g_y - 1], dim=2), stride, variance.sqrt())
