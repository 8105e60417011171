"""Objects found by class labels alone: where a crop looks like a class that is there, and like no other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_runs import TINY, tiny

import ocra
from ocra.config import ModelConfig
from ocra.data import ClutteredMNIST
from ocra.data.task import Batch
from ocra.errors import OcraError
from ocra.experiment import Stage
from ocra.training.localisation import EVERY, Localiser, crops_that_hold_most, find_objects

TEACHER = "mnist-6-early"


def test_crops_are_those_that_hold_most() -> None:
    images = torch.zeros(2, 1, 60, 60)
    images[0, :, 10:20, 30:40] = 1.0
    images[1] = 0.5
    images[1, :, 50:60, 0:10] = 0.0  # dark on grey
    crops, middles = crops_that_hold_most(images, side=12)
    assert crops.shape[:3] == (2, 40, 1) and crops.shape[3:] == (12, 12) and middles.shape == (2, 40, 2)
    assert (middles[0, 0] - torch.tensor([34.5, 14.5])).norm() < 5  # steps of 6 pixels
    assert (middles[1, 0] - torch.tensor([5.5, 54.5])).norm() < 5  # steps of 6 pixels
    corner = (middles[0, 0] - 5.5).int()
    assert torch.equal(crops[0, 0], images[0, :, corner[1] : corner[1] + 12, corner[0] : corner[0] + 12])


def test_every_place_is_looked_at_where_there_are_few() -> None:
    crops, middles = crops_that_hold_most(torch.rand(1, 3, 36, 28), side=28)
    assert crops.shape == (1, 3, 3, 28, 28)
    assert sorted(middles[0, :, 1].tolist()) == [13.5, 17.5, 21.5]


def test_an_object_is_where_its_class_scores_and_others_do_not() -> None:
    places = torch.tensor([[[10.0, 10.0], [16.0, 10.0], [60.0, 10.0], [60.0, 60.0]]])
    scores = torch.zeros(1, 4, 3)
    scores[0, :2, 0] = 0.9  # as much on both sides: it lies between them
    scores[0, 2] = torch.tensor([0.9, 0.9, 0.9])  # looks like anything
    scores[0, 3, 1] = 0.8
    centers, classes = find_objects(scores, places, torch.tensor([[1.0, 1.0, 0.0]]), near=14)
    assert classes.tolist() == [[0, 1]]
    assert torch.allclose(centers[0], torch.tensor([[13.0, 10.0], [60.0, 60.0]]), atol=0.1)


def test_two_of_a_class_are_in_two_places() -> None:
    places = torch.tensor([[[10.0, 10.0], [14.0, 10.0], [60.0, 60.0]]])
    scores = torch.tensor([[[0.9], [0.85], [0.6]]])
    centers, classes = find_objects(scores, places, torch.tensor([[2.0]]), near=14)
    assert classes.tolist() == [[0, 0]]
    assert centers[0, 0, 0] < 14 and torch.allclose(centers[0, 1], places[0, 2])


def test_what_is_not_found_is_left_out_and_so_are_missing_objects() -> None:
    places = torch.tensor([[[10.0, 10.0]], [[10.0, 10.0]]])
    scores = torch.tensor([[[0.1, 0.9]], [[0.1, 0.9]]])
    _, classes = find_objects(scores, places, torch.tensor([[1.0, 1.0], [0.0, 1.0]]), near=14)
    assert classes.tolist() == [[-1, 1], [1, -1]]
    _, classes = find_objects(scores, places, torch.zeros(2, 2), near=14)
    assert classes.tolist() == [[-1], [-1]]


@pytest.mark.parametrize("spread", [1.0, 0.5])
def test_a_network_of_single_digits_finds_those_among_clutter(spread: float) -> None:
    task = ClutteredMNIST(digits="glyphs", objects=1)
    batch = task.batch(np.arange(128), annotations=True, spread=spread)
    blind = Batch(batch.images, batch.counts)
    found = Localiser(TEACHER, task).annotated(blind, task.enlarged_by(spread)).annotations
    assert found is not None and batch.annotations is not None
    assert (found.classes[1::EVERY] == -1).all() and (found.boxes[1::EVERY] == 0).all()
    seen = found.classes[::EVERY, 0] >= 0
    assert seen.float().mean() > 0.5
    boxes, true = found.boxes[::EVERY, 0][seen], batch.annotations.boxes[::EVERY, 0][seen]
    assert torch.equal(found.classes[::EVERY, 0][seen], batch.annotations.classes[::EVERY, 0][seen])
    assert (boxes[:, 2:] - true[:, 2:]).abs().max() <= 1
    near = (boxes[:, :2] - true[:, :2]).float().norm(dim=1) < 0.3 * true[:, 2]
    assert near.float().mean() > 0.9


def test_boxes_are_the_same_however_images_are_batched() -> None:
    task = ClutteredMNIST(digits="glyphs")
    teacher = Localiser(TEACHER, task)
    whole = teacher.annotated(task.batch(np.arange(8)))
    half = teacher.annotated(task.batch(np.arange(4)))
    assert whole.annotations is not None and half.annotations is not None
    assert torch.equal(whole.annotations.boxes[:4], half.annotations.boxes)


def test_a_teacher_that_knows_other_classes_or_sizes_is_refused() -> None:
    stage = Stage(attention_supervision=1.0, attention_teacher=TEACHER)
    with pytest.raises(OcraError, match="28×28 pixels; to be slid over those of 28×28"):
        ocra.train(
            replace(
                TINY,
                model=replace(TINY.model, height=28, width=28),
                task=ClutteredMNIST.Config(digits="glyphs", size=28, objects=1, distractors=0),
                stages=(stage,),
            ),
            "nowhere",
            quiet=True,
        )
    with pytest.raises(OcraError, match="its classes are others"):
        Localiser("svhn-12", ClutteredMNIST(digits="glyphs"))


def test_more_objects_than_windows_can_be_ordered_for_are_refused() -> None:
    task = ClutteredMNIST(digits="glyphs", objects=6)
    with pytest.raises(OcraError, match="takes up to 5 objects in an image, not 6"):
        Localiser(TEACHER, task).annotated(task.batch(np.arange(2)))


def test_a_teacher_needs_a_loss_to_teach_by() -> None:
    with pytest.raises(OcraError, match="nothing to teach without attention_supervision"):
        Stage(attention_teacher=TEACHER)


def test_boxes_are_not_asked_for_where_a_teacher_finds_them(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batch(
        self: ClutteredMNIST, *arguments: object, annotations: bool = False, **options: object
    ) -> Batch:
        assert not annotations
        return made(self, *arguments, **options)  # type: ignore[arg-type]

    made = ClutteredMNIST.batch
    monkeypatch.setattr(ClutteredMNIST, "batch", batch)
    experiment = tiny(images=64, attention_supervision=1.0, attention_teacher=TEACHER)
    assert isinstance(experiment.model, ModelConfig)
    summary = ocra.train(experiment, f"{tmp_path}/run", processes=1, quiet=True)
    teacher = summary["config"]["stages"][0]["attention_teacher"]
    assert summary["images"] == 64 and teacher.startswith(f"{TEACHER}@")
