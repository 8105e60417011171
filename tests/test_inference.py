"""From a pass to an answer in words."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import tiny_model, tiny_weights

from ocra.errors import OcraError
from ocra.images.fitting import Placement
from ocra.model.weights import ModelInfo
from ocra.prediction import decode, predict, run
from ocra.viz import look


def answers(model, scores, **trace_fields):
    """What is said about given scores, all else being a real pass."""
    scores = torch.tensor(scores)
    images = torch.rand(len(scores), *model.config.image_shape)
    trace = dataclasses.replace(run(model, images), scores=scores, **trace_fields)
    return decode(trace, model.config, model.info)


def row(**scores):
    values = [0.1] * 10
    for name, score in scores.items():
        values[int(name[1:])] = score
    return values


def test_overlapping_digits_are_the_two_highest_scores():
    (said,) = answers(tiny_model(), [row(_3=2.5, _8=0.9)])
    assert said.labels == ("3", "8")
    assert [found.score for found in said.objects] == pytest.approx([2.5, 0.9])


def test_scattered_digits_may_be_twice_the_same():
    model = tiny_model(background_capsules=1)
    twice, once = answers(model, [row(_3=1.85, _8=0.9), row(_3=1.75, _8=0.9)])
    assert twice.labels == ("3", "3") and once.labels == ("3", "8")
    assert [found.score for found in twice.objects] == pytest.approx([0.925, 0.925])


def test_objects_of_a_folder_are_the_rounded_scores():
    model = tiny_model(classes=3)
    info = ModelInfo.from_dict({"class_names": ["cat", "dog", "owl"]}, model.config)
    trace = dataclasses.replace(run(model, torch.rand(1, 1, 36, 36)), scores=torch.tensor([[2.2, 0.4, 0.8]]))
    assert decode(trace, model.config, info)[0].labels == ("cat", "cat", "owl")


def test_house_numbers_are_read_from_left_to_right():
    model = tiny_model(glimpses=12, classes=14, readout_digits=5)
    readout = torch.full((1, 5, 11), 0.1)
    for place, digit in enumerate((7, 0, 7, 10, 10)):
        readout[0, place, digit] = 1
    (said,) = answers(model, [[0.0] * 14], readout=readout)
    assert "".join(said.labels) == "707"
    assert list(said.scores)[10:] == ["<5", "<4", "<3", "<2"]


def test_confidence_is_the_share_against_the_best_rejected_score():
    (said,) = answers(tiny_model(), [row(_3=0.9, _8=0.3)])
    assert [found.confidence for found in said.objects] == pytest.approx([0.9, 0.75])


def test_a_class_of_a_folder_is_a_toss_up_at_the_half_from_which_it_is_named():
    model = tiny_model(classes=2)
    info = ModelInfo.from_dict({"class_names": ["cat", "dog"]}, model.config)
    trace = dataclasses.replace(run(model, torch.rand(1, 1, 36, 36)), scores=torch.tensor([[1.0, 0.5]]))
    (said,) = decode(trace, model.config, info)
    assert [found.confidence for found in said.objects] == pytest.approx([2 / 3, 0.5])


@pytest.mark.parametrize("images", [np.zeros((1, 36, 36)), Image.new("L", (9, 9)), [np.zeros((36, 36))], 7])
def test_what_is_no_file_and_no_tensor_is_refused_with_a_sentence(images, tmp_path):
    with pytest.raises(
        OcraError, match=r"Give image files, or a float tensor of images, not \w+; torch.from_numpy"
    ):
        predict(tiny_model(), images)
    if not isinstance(images, list):
        with pytest.raises(OcraError, match="Give image files"):
            look(tiny_model(), images, tmp_path / "x.png")


@pytest.mark.parametrize("value", [255.0, -1.0, torch.nan])
def test_images_whose_values_are_not_from_0_to_1_are_refused(value):
    images = torch.full((1, 1, 36, 36), value)
    with pytest.raises(OcraError, match="divide bytes by 255"):
        predict(tiny_model(), images)


def test_no_pictures_get_no_answers():
    assert predict(tiny_model(), []) == []


def test_a_prediction_is_short_when_printed():
    assert str(answers(tiny_model(), [row(_3=0.9, _8=0.3)])) == "[Prediction(3 (90%), 8 (75%); 3 glimpses)]"


def test_a_toss_up_is_not_answered():
    (said,) = answers(tiny_model(), [row(_3=0.9, _8=0.5, _9=0.5)])
    assert said.labels == ("3",)


def test_glimpses_are_told_in_pixels_of_the_users_picture():
    model = tiny_model()
    images = torch.rand(2, 1, 36, 36)
    trace = run(model, images)
    here, there = decode(trace, model.config, model.info, [Placement(), Placement((4, 4), (10, 20))])
    for step, glimpse in enumerate(there.glimpses):
        x, y = trace.read_windows.center[1, step].tolist()
        assert (glimpse.x, glimpse.y) == pytest.approx((4 * x + 10, 4 * y + 20))
        assert glimpse.width == pytest.approx(4 * 17 * float(trace.read_windows.stride[1, step]))
        assert glimpse.length == pytest.approx(max(glimpse.lengths))
        assert glimpse.winner == str(int(np.argmax(glimpse.lengths)))
    assert here.glimpses[0].x == pytest.approx(float(trace.read_windows.center[0, 0, 0]))


def test_a_background_capsule_has_a_name():
    model = tiny_model(background_capsules=1)
    with torch.no_grad():
        model.object_capsules.weight.zero_()
        model.object_capsules.weight[-1] = 5
    (said,) = predict(model, torch.rand(1, 1, 36, 36))
    assert {glimpse.winner for glimpse in said.glimpses} == {"background"}


def test_a_model_without_windows_looks_at_the_whole_image():
    (said,) = predict(tiny_model(attention=False), torch.rand(1, 1, 36, 36))
    assert (said.glimpses[0].x, said.glimpses[0].y, said.glimpses[0].width) == (17.5, 17.5, 35)


def test_files_and_tensors_give_the_same_answer(tmp_path):
    values = (np.random.default_rng(0).random((2, 36, 36)) ** 4 * 255).astype(np.uint8)
    values[:, [0, -1]] = values[:, :, [0, -1]] = 0
    values[:, 20, 20] = 255
    files = []
    for number, value in enumerate(values):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(value).save(files[-1])
    model = tiny_model()
    from_tensor = predict(model, torch.from_numpy(values).float()[:, None] / 255)
    assert [said.labels for said in predict(model, files)] == [said.labels for said in from_tensor]
    folder = tiny_weights(tmp_path / "weights")
    assert predict(folder, files[0])[0].labels == from_tensor[0].labels
