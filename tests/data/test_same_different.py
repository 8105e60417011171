"""Two contours: the same where that is said, different where not; families look as they should; splits differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ocra
from ocra.data.same_different import FAMILIES, HELD_OUT, SameDifferent
from ocra.errors import UsageError

NUMBERS = range(60)


def shapes(batch, side=24):
    """The two contours of each image, each cut out: [batch, 2, side, side]."""
    cut = [
        torch.stack(
            [layer[0, y : y + side, x : x + side] for layer, (x, y, _, _) in zip(layers, boxes, strict=True)]
        )
        for layers, boxes in zip(batch.annotations.layers, batch.annotations.boxes.tolist(), strict=True)
    ]
    return torch.stack(cut)


@pytest.mark.parametrize("family", FAMILIES)
def test_contours_are_equal_where_the_class_is_same_and_only_there(family):
    batch = SameDifferent(split="test", families=(family,)).batch(NUMBERS, annotations=True)
    first, second = shapes(batch).unbind(1)
    difference = (first - second).abs().sum((1, 2)) / (first + second).sum((1, 2))
    same = batch.counts[:, 2] == 1
    assert (difference[same] == 0).all() and (difference[~same] > 0.2).all()
    assert 0.2 < same.float().mean() < 0.8


def test_each_image_has_two_shapes_and_one_relation():
    counts = SameDifferent().batch(NUMBERS).counts
    assert (counts[:, :2] == 1).all() and (counts[:, 2:].sum(1) == 1).all()


def test_contours_do_not_touch_and_add_up_to_the_image():
    batch = SameDifferent().batch(NUMBERS, annotations=True)
    layers = batch.annotations.layers
    torch.testing.assert_close(layers.sum(1), batch.images)
    assert ((layers > 0).sum(1) <= 1).all() and batch.images.max() <= 1
    x, y = batch.annotations.boxes[..., 0], batch.annotations.boxes[..., 1]
    assert torch.maximum((x[:, 0] - x[:, 1]).abs(), (y[:, 0] - y[:, 1]).abs()).min() > 24


@pytest.mark.parametrize("family", FAMILIES)
def test_contours_are_closed_and_of_the_size_asked_for(family):
    batch = SameDifferent(families=(family,), shape_size=28).batch(range(20), annotations=True)
    for layer in batch.annotations.layers.flatten(0, 1)[:, 0].numpy():
        rows, columns = np.nonzero(layer)
        assert 26 <= max(np.ptp(rows), np.ptp(columns)) + 1 <= 28
        black = layer == 0
        assert outside(black) < black.sum()  # some cannot be reached from the corner: the inside


def outside(free):
    """How many free pixels can be reached from the top left corner by steps across and down."""
    reached = np.zeros_like(free)
    reached[0, 0] = True
    while True:
        grown = reached.copy()
        grown[1:] |= reached[:-1]
        grown[:-1] |= reached[1:]
        grown[:, 1:] |= reached[:, :-1]
        grown[:, :-1] |= reached[:, 1:]
        grown &= free
        if (grown == reached).all():
            return reached.sum()
        reached = grown


def test_an_image_is_a_function_of_seed_split_and_number():
    task = SameDifferent(seed=3)
    assert torch.equal(task.batch([5, 9]).images[1], task.batch([9]).images[0])
    assert not torch.equal(SameDifferent(seed=4).batch([9]).images, task.batch([9]).images)
    assert not torch.equal(SameDifferent(split="test", seed=3).batch([9]).images, task.batch([9]).images)


def test_training_does_not_see_the_held_out_families():
    assert not set(SameDifferent().config.families) & set(HELD_OUT)
    assert {*SameDifferent().config.families, *HELD_OUT} == set(FAMILIES)


@pytest.mark.parametrize("settings", [{"families": ("circles",)}, {"families": ()}, {"shape_size": 40}])
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(UsageError):
        SameDifferent(**settings)


def test_the_network_has_the_parameters_of_the_authors():
    experiment = ocra.preset("same-different")
    model = ocra.OCRA(experiment.model)
    assert sum(p.numel() for p in model.parameters()) == 4_698_604  # 4.70 M (Adeli and others 2023)
    assert experiment.model.object_capsules == 4 and experiment.model.feedback
    assert experiment.model.glimpses == 10 and experiment.stages[0].reconstruction == 30
