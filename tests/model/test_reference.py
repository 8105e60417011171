"""The transcription itself, against the paper's formulas in plain Python numbers, one index at a time."""

from __future__ import annotations

import math

import torch
from model_variants import SMALL, lively, random_images

from ocra.model.reference import attention_grid, capsule, filterbanks, lstm, maxmin, reference_pass, squash


def test_filter_banks_are_those_of_pseudocode_3() -> None:
    layer = torch.nn.Linear(3, 4).double()
    hidden = torch.randn(1, 3, dtype=torch.float64)
    raw_x, raw_y, log_variance, log_stride = layer(hidden)[0].tolist()
    width, height, size = 13, 9, 8
    g_x, g_y = (width + 1) / 2 * (raw_x + 1), (height + 1) / 2 * (raw_y + 1)
    stride = (max(width, height) - 1) / (size - 1) * math.exp(log_stride)
    banks = filterbanks(attention_grid(layer, hidden, width, height, size), width, height, size)
    for bank, center, length in zip(banks, (g_x, g_y), (width, height), strict=True):
        for i in range(1, size + 1):
            mu = center + (i - size / 2 - 0.5) * stride
            row = [math.exp(-((w - mu) ** 2) / (2 * math.exp(log_variance))) for w in range(1, length + 1)]
            z = sum(row) + length * 1e-8
            for w in range(length):
                assert math.isclose(bank[0, 0, i - 1, w].item(), row[w] / z, rel_tol=1e-9, abs_tol=1e-15)


def test_glimpse_is_a_weighted_sum_of_pixels() -> None:
    model, images = lively(SMALL), random_images(SMALL, batch=1)
    glimpses = reference_pass(model, images).glimpses
    assert glimpses is not None
    size = SMALL.width, SMALL.height, SMALL.glimpse_size
    grid = attention_grid(model.read_attention, torch.zeros(1, SMALL.hidden), *size)
    f_x, f_y = (bank[0, 0].tolist() for bank in filterbanks(grid, *size))
    picture = images[0, 0].tolist()
    for row in (0, 3, 7):
        for column in (0, 2, 6):
            total = sum(
                f_y[row][h] * picture[h][w] * f_x[column][w]
                for h in range(SMALL.height)
                for w in range(SMALL.width)
            )
            assert math.isclose(glimpses[0, 0, 0, row, column].item(), total, rel_tol=1e-5, abs_tol=1e-7)


def test_routing_is_that_of_pseudocode_2() -> None:
    model = lively(SMALL).double().requires_grad_(False)
    h_enc = torch.randn(1, SMALL.hidden, dtype=torch.float64)
    d, c = capsule(model, h_enc)
    p = model.primary(h_enc)[0].reshape(SMALL.primary_capsules, SMALL.primary_size)
    objects, primaries = range(SMALL.object_capsules), range(SMALL.primary_capsules)
    prediction = [[model.object_capsules.weight[j, i] @ p[i] for i in primaries] for j in objects]
    b = [[0.0 for _ in primaries] for _ in objects]
    coupling = [[1 / SMALL.object_capsules for _ in primaries] for _ in objects]
    for routing in range(SMALL.routings):
        v = [sum(coupling[j][i] * prediction[j][i] for i in primaries) for j in objects]
        square = [sum(element**2 for element in v[j].tolist()) for j in objects]
        objects_capsules = [v[j] * (square[j] / (1 + square[j]) / math.sqrt(square[j])) for j in objects]
        if routing == SMALL.routings - 1:
            break
        for i in primaries:
            for j in objects:
                b[j][i] += float(prediction[j][i] @ objects_capsules[j])
            low, high = min(b[j][i] for j in objects), max(b[j][i] for j in objects)
            for j in objects:
                coupling[j][i] = 0.01 + 0.99 * (b[j][i] - low) / (high - low)
    torch.testing.assert_close(d[0], torch.stack(objects_capsules), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(c[0], torch.tensor(coupling, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_lstm_is_the_one_of_torch() -> None:
    cell = torch.nn.LSTMCell(5, 7)
    inputs, h, c = torch.randn(3, 5), torch.randn(3, 7), torch.randn(3, 7)
    for ours, theirs in zip(lstm(cell, inputs, h, c), cell(inputs, (h, c)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_equal_logits_keep_uniform_couplings() -> None:
    torch.testing.assert_close(maxmin(torch.ones(1, 4, 2)), torch.full((1, 4, 2), 0.25))


def test_a_zero_vector_is_squashed_to_itself() -> None:
    assert squash(torch.zeros(2, 3)).equal(torch.zeros(2, 3))
