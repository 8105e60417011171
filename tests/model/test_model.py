"""The network as its users see it: sizes, the trace, options at call time, bad input."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_variants import PAPER, SMALL, VARIATIONS, assert_same_trace, flat, lively, random_images

from ocra.config import ModelConfig
from ocra.errors import OcraError
from ocra.model.ocra import OCRA

PARAMETERS = {
    "multimnist-3": 3_877_356,
    "multimnist-10": 3_877_356,
    "multimnist-recurrent-3": 8_631_728,
    "multimnist-feedforward": 6_530_480,
    "multimnist-3-one-routing": 3_877_356,
    "multimnist-3-no-capsules": 3_879_126,
    "cluttered-5": 3_915_244,
    "cluttered-7": 3_915_244,
    "svhn-12": 5_107_591,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_as_many_as_in_the_paper_to_code_page(name: str) -> None:
    with torch.device("meta"):
        assert OCRA(PAPER[name]).parameter_count == PARAMETERS[name]


def test_recurrence_is_what_the_feed_forward_network_lacks() -> None:
    matrices_and_biases = 2 * (4 * 512 * 512 + 4 * 512)
    assert PARAMETERS["multimnist-recurrent-3"] - PARAMETERS["multimnist-feedforward"] == matrices_and_biases


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    height=st.integers(8, 40),
    width=st.integers(8, 40),
    channels=st.sampled_from([1, 3]),
    glimpse=st.integers(8, 20),
    patch=st.integers(2, 20),
    classes=st.integers(1, 6),
    background=st.integers(0, 2),
    glimpses=st.integers(1, 4),
)
def test_any_size_gives_a_trace_of_the_documented_shapes(
    height: int,
    width: int,
    channels: int,
    glimpse: int,
    patch: int,
    classes: int,
    background: int,
    glimpses: int,
) -> None:
    config = replace(
        SMALL, height=height, width=width, channels=channels, glimpse_size=glimpse, write_size=patch,
        classes=classes, background_capsules=background, glimpses=glimpses,
    )  # fmt: skip
    trace = OCRA(config)(random_images(config), record=True)
    objects = classes + background
    assert {name: tuple(value.shape) for name, value in flat(trace).items()} == {
        "scores": (2, classes),
        "canvas": (2, channels, height, width),
        "capsule_lengths": (2, glimpses, objects),
        "attended": (2, channels, height, width),
        "glimpses": (2, glimpses, channels, glimpse, glimpse),
        "read_windows.center": (2, glimpses, 2),
        "read_windows.stride": (2, glimpses),
        "read_windows.sigma": (2, glimpses),
        "write_windows.center": (2, glimpses, 2),
        "write_windows.stride": (2, glimpses),
        "write_windows.sigma": (2, glimpses),
        "winners": (2, glimpses),
        "canvases": (2, glimpses, channels, height, width),
        "couplings": (2, glimpses, objects, config.primary_capsules),
    }


def test_nothing_is_recorded_unless_asked() -> None:
    model, images = lively(SMALL), random_images(SMALL)
    assert flat(model(images)).keys() == {"scores", "canvas", "capsule_lengths"}
    assert flat(model(images, attended=True)).keys() == {"scores", "canvas", "capsule_lengths", "attended"}


@pytest.mark.parametrize("name", VARIATIONS)
def test_recording_changes_nothing(name: str) -> None:
    model, images = lively(VARIATIONS[name]), random_images(VARIATIONS[name])
    plain, recorded = flat(model(images)), flat(model(images, record=True))
    for field in plain:
        assert plain[field].equal(recorded[field]), field


def test_scores_are_lengths_summed_without_the_background() -> None:
    config = VARIATIONS["two background capsules"]
    trace = lively(config)(random_images(config))
    torch.testing.assert_close(trace.scores, trace.capsule_lengths[:, :, : config.classes].sum(1))


def test_the_winner_is_the_longest_capsule_of_its_own_step() -> None:
    config = replace(SMALL, background_capsules=2, glimpses=6)
    trace = lively(config)(random_images(config, batch=20), record=True)
    assert trace.winners.equal(trace.capsule_lengths.argmax(2))
    assert (trace.winners >= config.classes).any(), "the background never wins in this test"


def test_writes_only_ever_add_to_the_canvas() -> None:
    trace = lively(SMALL)(random_images(SMALL), record=True)
    assert (trace.canvases.diff(dim=1) >= 0).all()
    erasing = VARIATIONS["writes that erase"]
    assert (lively(erasing)(random_images(erasing), record=True).canvases.diff(dim=1) < 0).any()


def test_the_canvas_is_the_last_of_the_canvases_clipped_where_the_config_says() -> None:
    for clip in (True, False):
        model = lively(replace(SMALL, clip_canvas=clip))
        with torch.no_grad():
            model.write_patch.bias.fill_(30)
        trace = model(random_images(SMALL), record=True)
        last = trace.canvases[:, -1]
        assert last.max() > 1
        torch.testing.assert_close(trace.canvas, last.clamp(0, 1) if clip else last)


def test_an_image_is_seen_the_same_in_any_batch() -> None:
    model, images = lively(SMALL), random_images(SMALL, batch=5)
    together = model(images)
    for i in range(5):
        torch.testing.assert_close(model(images[i : i + 1]).scores[0], together.scores[i])


def test_more_or_fewer_glimpses_can_be_asked_for_at_call_time() -> None:
    model, images = lively(SMALL), random_images(SMALL)
    seven = model(images, glimpses=7, record=True)
    assert seven.capsule_lengths.shape[1] == 7
    assert_same_trace(seven, model(images, record=True), steps=slice(0, SMALL.glimpses))
    configured = OCRA(replace(SMALL, glimpses=7))
    configured.load_state_dict(model.state_dict())
    assert_same_trace(seven, configured(images, record=True))
    assert model(images, glimpses=1).capsule_lengths.shape[1] == 1


def test_readouts_see_only_their_own_glimpses() -> None:
    config = VARIATIONS["readouts"]  # 1 glimpse free, then 2 for each of 2 digits
    model, images = lively(config), random_images(config)
    whole, without_last = model(images), model(images, glimpses=3)
    torch.testing.assert_close(whole.readout[:, 0], without_last.readout[:, 0])
    assert without_last.readout[:, 1].equal(model.readouts[1].bias.expand(2, -1))


def test_background_lengths_do_not_reach_the_readout() -> None:
    assert OCRA(VARIATIONS["readouts"]).readouts[0].in_features == 2 * SMALL.classes


def test_a_model_without_attention_has_no_windows_and_sees_the_image() -> None:
    config = replace(SMALL, attention=False)
    images = random_images(config)
    trace = lively(config)(images, record=True)
    assert trace.read_windows is None and trace.write_windows is None
    assert trace.glimpses.equal(images[:, None].expand_as(trace.glimpses))


def test_attended_is_the_sum_of_glimpses_put_back_and_has_no_gradient() -> None:
    model = lively(SMALL)
    trace = model(torch.ones(1, *SMALL.image_shape), record=True)
    assert not trace.attended.requires_grad
    assert (trace.attended >= 0).all() and trace.attended.max() > 0


BAD_IMAGES = {
    "bytes": torch.zeros(2, 1, 12, 12, dtype=torch.uint8),
    "whole numbers": torch.zeros(2, 1, 12, 12, dtype=torch.int64),
    "other precision": torch.zeros(2, 1, 12, 12, dtype=torch.float64),
    "half precision": torch.zeros(2, 1, 12, 12, dtype=torch.bfloat16),
    "complex": torch.zeros(2, 1, 12, 12, dtype=torch.complex64),
    "no batch axis": torch.zeros(1, 12, 12),
    "channels last": torch.zeros(2, 12, 12, 1),
    "wrong channels": torch.zeros(2, 3, 12, 12),
    "wrong size": torch.zeros(2, 1, 12, 13),
    "empty batch": torch.zeros(0, 1, 12, 12),
    "not a tensor": [[0.0]],
    "an array": torch.zeros(2, 1, 12, 12).numpy(),
    "bytes as floats": torch.full((2, 1, 12, 12), 255.0),
    "not a number": torch.full((2, 1, 12, 12), torch.nan),
}


def assert_one_sentence(error: BaseException) -> None:
    text = str(error)
    assert "\n" not in text and text.endswith("."), text


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_wrong_images_are_refused_with_a_sentence(name: str) -> None:
    images: Any = BAD_IMAGES[name]
    with pytest.raises(OcraError) as caught:
        OCRA(SMALL)(images)
    assert_one_sentence(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"glimpses": 0}, {"glimpses": -1}, {"glimpses": 2.5}, {"routings": 0}, {"routings": "3"}],
    ids=str,
)
def test_impossible_numbers_are_refused_with_a_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(OcraError, match="whole number from 1 to 1000"):
        OCRA(SMALL)(random_images(SMALL), **options)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_is_refused_with_a_sentence(kind: torch.dtype) -> None:
    with pytest.raises(OcraError, match=r"keep it in float32 and compute under torch\.autocast"):
        OCRA(SMALL).to(kind)(random_images(SMALL).to(kind))


def test_a_copy_of_a_compiled_model_has_weights_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    model, images = lively(SMALL).compile_step(), random_images(SMALL)
    copied = copy.deepcopy(model)
    assert torch.equal(copied(images).scores, model(images).scores)
    for value in copied.parameters():
        value.data.zero_()
    assert copied(images).scores.max() < model(images).scores.max()
    assert model._step is not copied._step


def test_a_feed_forward_model_makes_one_glimpse() -> None:
    config = PAPER["multimnist-feedforward"]
    model = OCRA(replace(config, hidden=8))
    with pytest.raises(OcraError, match="one pass"):
        model(random_images(config), glimpses=2)


@pytest.mark.parametrize(
    "values",
    [
        {"channels": 2},
        {"height": 7},
        {"width": 0},
        {"glimpses": 0},
        {"glimpse_size": 7},
        {"hidden": 1.5},
        {"classes": 0},
        {"routings": 0},
        {"routings": True},
        {"background_capsules": -1},
        {"recurrent": False},
        {"readout_digits": 5},
    ],
    ids=str,
)
def test_impossible_configs_are_refused_with_a_sentence(values: dict[str, Any]) -> None:
    with pytest.raises(OcraError) as caught:
        ModelConfig(**values)
    assert str(caught.value).endswith(".")


def test_a_config_survives_the_way_through_a_dictionary() -> None:
    values = {field.name: getattr(SMALL, field.name) for field in fields(SMALL)}
    assert ModelConfig.from_dict(values) == SMALL
    with pytest.raises(OcraError, match="colour"):
        ModelConfig.from_dict({**values, "colour": 3})
