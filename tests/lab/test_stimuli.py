"""Scenes do what their parameters say, trial by trial, and are the same each time they are made."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from ocra.data.corruptions import CORRUPTIONS, MNIST_C, Draws, corrupt, transformed
from ocra.errors import UsageError
from ocra.lab.stimuli import Scenes, box_overlap, ink_overlap

GLYPHS = Scenes(source="glyphs")
TRIALS = range(12)


def values(shown, name):
    return [row[name] for row in shown.rows]


def test_a_scene_is_a_pure_function_of_seed_and_trial():
    spec = GLYPHS.change(clutter=3, flankers=1, corruption="gaussian")
    whole, part = spec.make(TRIALS, seed=5), spec.make([7], seed=5)
    assert torch.equal(whole.images[7], part.images[0]) and whole.rows[7] == part.rows[0]
    assert not torch.equal(spec.make([7], seed=6).images, part.images)


def test_a_change_of_one_parameter_leaves_the_digits_as_they_are():
    plain, cluttered = GLYPHS.make(TRIALS), GLYPHS.change(clutter=4).make(TRIALS)
    assert values(plain, "digits") == values(cluttered, "digits")
    assert torch.equal(plain.annotations.layers, cluttered.annotations.layers)


def test_images_are_the_sum_of_the_digits_and_boxes_hold_their_ink():
    shown = GLYPHS.make(TRIALS)
    torch.testing.assert_close(shown.images, shown.annotations.layers.sum(1).clamp(max=1))
    for layers, boxes in zip(shown.annotations.layers, shown.annotations.boxes.tolist(), strict=True):
        for layer, (x, y, width, height) in zip(layers, boxes, strict=True):
            ink = layer[0] >= 0.5 * layer.max()
            assert ink.sum() == ink[y : y + height, x : x + width].sum()
            assert (
                ink[y].any() and ink[:, x].any() and ink[y + height - 1].any() and ink[:, x + width - 1].any()
            )


@pytest.mark.parametrize("relation", ["different", "same"])
def test_classes_are_related_as_asked_for(relation):
    for classes in (
        GLYPHS.change(relation=relation, objects=3, size=100).make(TRIALS).annotations.classes.tolist()
    ):
        assert len(set(classes)) == (1 if relation == "same" else 3)


def test_classes_digits_and_places_can_be_given():
    shown = GLYPHS.change(classes=(3, 8), positions=((15, 20), (25, 12))).make(TRIALS)
    assert set(values(shown, "truth")) == {"3 8"}
    x, y = shown.rows[0]["x_1"], shown.rows[0]["y_1"]
    assert abs(x - 15) <= 0.5 and abs(y - 20) <= 0.5
    assert set(values(GLYPHS.change(digits=(4, 17)).make(TRIALS), "truth")) == {"4 7"}


@pytest.mark.parametrize("wanted", [0.0, 0.2, 0.5])
def test_ink_overlaps_as_asked_for(wanted):
    shown = GLYPHS.change(ink_overlap=wanted, size=64).make(TRIALS)
    assert np.allclose(values(shown, "ink_overlap"), wanted, atol=0.06)
    layers = shown.annotations.layers[0, :, 0].double().numpy()
    assert ink_overlap(*layers) == pytest.approx(shown.rows[0]["ink_overlap"], abs=1e-3)


@pytest.mark.parametrize("wanted", [0.0, 0.4, 0.8])
def test_boxes_overlap_as_asked_for(wanted):
    shown = GLYPHS.change(box_overlap=wanted, size=64).make(TRIALS)
    assert np.allclose(values(shown, "box_overlap"), wanted, atol=0.06)
    assert box_overlap(*shown.annotations.boxes[0].tolist()) == pytest.approx(
        shown.rows[0]["box_overlap"], abs=1e-3
    )


def test_distance_and_direction_are_those_asked_for():
    shown = GLYPHS.change(distance=20, angle=90, size=100).make(TRIALS)
    assert np.allclose(values(shown, "distance"), 20, atol=1)
    for row in shown.rows:
        assert row["y_2"] - row["y_1"] == pytest.approx(20, abs=1) and abs(row["x_2"] - row["x_1"]) <= 1


def test_size_contrast_rotation_and_polarity():
    small = GLYPHS.change(objects=1, scale=0.5).make(TRIALS)
    large = GLYPHS.change(objects=1).make(TRIALS)
    heights = [np.mean(values(shown, "ink_1_height")) for shown in (small, large)]
    assert heights[0] / heights[1] == pytest.approx(0.5, abs=0.06)
    faint = GLYPHS.change(objects=1, contrast=0.3).make(TRIALS)
    torch.testing.assert_close(faint.images, 0.3 * large.images)
    assert values(faint, "ink_1_width") == values(large, "ink_1_width")
    turned = GLYPHS.change(objects=1, rotation=180).make(TRIALS).annotations.layers
    torch.testing.assert_close(turned.sum(), large.annotations.layers.sum(), rtol=0.01, atol=1)
    dark = GLYPHS.change(objects=1, polarity="dark").make(TRIALS)
    torch.testing.assert_close(dark.images, 1 - large.images)


def test_each_digit_may_have_its_own_size():
    shown = GLYPHS.change(scale=(1.0, 0.5), size=64).make(TRIALS)
    assert np.mean(values(shown, "ink_1_height")) > 1.7 * np.mean(values(shown, "ink_2_height"))


def test_clutter_and_flankers_add_ink_that_is_not_annotated():
    bare = GLYPHS.change(objects=1, size=100)
    for richer in (bare.change(clutter=5), bare.change(flankers=2, flanker_distance=24)):
        extra = richer.make(TRIALS)
        assert torch.equal(extra.annotations.layers, bare.make(TRIALS).annotations.layers)
        assert extra.images.sum() > 1.1 * bare.make(TRIALS).images.sum()
        assert (extra.batch.counts.sum(1) == 1).all()


def test_flankers_stand_at_their_distance():
    spec = Scenes(
        source="glyphs", objects=1, size=120, positions=((60, 60),), flankers=1, flanker_distance=30
    )
    with_one = spec.change(flanker_side="right").make(TRIALS)
    ring = (with_one.images - spec.change(flankers=0).make(TRIALS).images).sum((0, 1)).numpy()
    down, across = np.indices(ring.shape)
    assert (across * ring).sum() / ring.sum() == pytest.approx(90, abs=1.5)
    assert (down * ring).sum() / ring.sum() == pytest.approx(60, abs=1.5)


def test_images_of_ones_own_are_placed_like_digits():
    square = np.ones((6, 6))
    shown = Scenes(size=20, images=(square, square), classes=(1, 2), ink_overlap=0.5).make(range(3))
    assert shown.rows[0]["ink_overlap"] == 0.5 and shown.annotations.layers[0, 0].sum() == 36


def test_stimuli_are_saved_with_their_parameters(tmp_path):
    shown = GLYPHS.make(range(2))
    with open(shown.save(tmp_path / "stimuli"), newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == ["trial-00000.png", "trial-00001.png"]
    assert [row["truth"] for row in rows] == values(shown, "truth")
    pixels = np.asarray(Image.open(tmp_path / "stimuli" / rows[1]["file"])) / 255
    assert np.abs(pixels - shown.images[1, 0].numpy()).max() <= 0.5 / 255 + 1e-6


@pytest.mark.parametrize(
    "parameters",
    [
        {"objects": 0},
        {"classes": (1,)},
        {"distance": 3, "ink_overlap": 0.1},
        {"objects": 3, "distance": 3},
        {"corruption": "rain"},
        {"severity": 9},
        {"flanker_side": "inside"},
        {"scale": (1.0, 2.0, 3.0)},
    ],
)
def test_what_cannot_be_shown_is_refused(parameters):
    with pytest.raises(UsageError):
        Scenes(**parameters)


def test_there_are_the_fifteen_corruptions_of_mnist_c():
    assert len(MNIST_C) == 15 and set(MNIST_C) <= set(CORRUPTIONS)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corruption_grows_with_its_severity_and_stays_an_image(kind):
    images = GLYPHS.make(range(8)).images[:, 0].double().numpy()
    changes = []
    for severity in (0, 1, 3, 5):
        changed = np.stack([corrupt(image, kind, severity, Draws(0, k)) for k, image in enumerate(images)])
        assert changed.shape == images.shape and changed.min() >= 0 and changed.max() <= 1
        changes.append(np.abs(changed - images).mean())
    assert changes[0] == 0 and 0 < changes[1] < changes[3]


def test_shot_noise_keeps_the_mean_brightness():
    image = np.full((100, 100), 0.4)
    noisy = corrupt(image, "shot-noise", 3, Draws(0, 0))
    assert noisy.mean() == pytest.approx(0.4, abs=0.01)
    photons = 60 * (3 / 60) ** 0.6
    assert noisy.var() == pytest.approx(0.4 / photons, rel=0.1)  # that of a Poisson count


def test_a_transformation_moves_turns_and_scales_about_the_middle():
    image = np.zeros((21, 21))
    image[10, 15] = 1
    assert transformed(image, shift=(2, -3))[7, 17] == pytest.approx(1)
    assert transformed(image, degrees=90)[15, 10] == pytest.approx(1)
    assert transformed(image, scale=2)[10, 20] == pytest.approx(1)
