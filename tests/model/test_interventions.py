"""Each intervention changes the one thing it names and leaves the rest of the pass untouched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from model_variants import SMALL, assert_same_trace, flat, lively, random_images
from torch import Tensor

from ocra.config import ModelConfig
from ocra.errors import OcraError
from ocra.model.interventions import Lesion
from ocra.model.ocra import OCRA
from ocra.model.trace import Trace, Windows

CONFIG = replace(SMALL, glimpses=4, feedback=True, height=14, width=20)
BATCH = 3


@pytest.fixture(scope="module")
def model() -> OCRA:
    return lively(CONFIG, seed=5).requires_grad_(False)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return random_images(CONFIG, BATCH)


@pytest.fixture(scope="module")
def free(model: OCRA, images: Tensor) -> Trace:
    return model(images, record=True)


def nowhere(glimpses: int = CONFIG.glimpses) -> Windows:
    """Windows that leave every step free."""
    return Windows(
        torch.full((BATCH, glimpses, 2), torch.nan),
        torch.full((BATCH, glimpses), torch.nan),
        torch.full((BATCH, glimpses), torch.nan),
    )


def assert_untouched_before(step: int, trace: Trace, free: Trace) -> None:
    """Steps before `step` are identical, what is read at later ones is not."""
    assert_same_trace(trace, free, steps=slice(0, step))
    later = slice(step + 1, None)
    assert trace.capsule_lengths[:, later].ne(free.capsule_lengths[:, later]).any(), (
        "nothing followed from it"
    )


def test_forcing_the_windows_the_model_chose_changes_nothing(
    model: OCRA, images: Tensor, free: Trace
) -> None:
    assert_same_trace(model(images, windows=free.read_windows, record=True), free)


def test_windows_of_nan_leave_the_model_free(model: OCRA, images: Tensor, free: Trace) -> None:
    assert_same_trace(model(images, windows=nowhere(), record=True), free)


def test_a_forced_window_is_the_one_that_is_read(model: OCRA, images: Tensor, free: Trace) -> None:
    forced = nowhere()
    forced.center[:, 2], forced.stride[:, 2], forced.sigma[:, 2] = torch.tensor([4.0, 7.0]), 0.5, 0.7
    trace = model(images, windows=forced, record=True)
    assert trace.read_windows.center[:, 2].tolist() == [[4.0, 7.0]] * BATCH
    assert (trace.read_windows.stride[:, 2] == 0.5).all() and (trace.read_windows.sigma[:, 2] == 0.7).all()
    assert_untouched_before(2, trace, free)


def test_a_place_can_be_forced_without_a_size(model: OCRA, images: Tensor, free: Trace) -> None:
    forced = nowhere()
    forced.center[:, 1] = torch.tensor([4.0, 7.0])
    windows = model(images, windows=forced, record=True).read_windows
    assert windows.center[:, 1].tolist() == [[4.0, 7.0]] * BATCH
    assert windows.stride[:, 1].equal(free.read_windows.stride[:, 1])
    assert windows.sigma[:, 1].equal(free.read_windows.sigma[:, 1])


def test_one_image_can_be_forced_among_others(model: OCRA, images: Tensor, free: Trace) -> None:
    forced = nowhere()
    forced.center[1] = 0.0
    trace = model(images, windows=forced, record=True)
    for name, value in flat(trace).items():
        assert value[[0, 2]].equal(flat(free)[name][[0, 2]]), name
    assert trace.scores[1].ne(free.scores[1]).any()


def test_forced_windows_of_one_image_hold_for_the_whole_batch(model: OCRA, images: Tensor) -> None:
    one = Windows(torch.full((4, 2), 6.0), torch.full((4,), 1.0), torch.full((4,), 1.0))
    all_of_them = Windows(
        torch.full((BATCH, 4, 2), 6.0), torch.full((BATCH, 4), 1.0), torch.full((BATCH, 4), 1.0)
    )
    assert_same_trace(
        model(images, windows=one, record=True), model(images, windows=all_of_them, record=True)
    )


def test_a_forced_window_moves_reading_only(model: OCRA, images: Tensor) -> None:
    """Where the glimpse is the same (a blank image), forcing its place changes neither answer nor writing."""
    blank = torch.zeros_like(images)
    forced = nowhere()
    forced.center[:] = 3.0
    moved, free = flat(model(blank, windows=forced, record=True)), flat(model(blank, record=True))
    for name in moved:
        if name != "read_windows.center":
            torch.testing.assert_close(moved[name], free[name])


def test_no_jitter_changes_nothing(model: OCRA, images: Tensor, free: Trace) -> None:
    assert_same_trace(model(images, jitter=torch.zeros(BATCH, 4, 2), record=True), free)


def test_jitter_shifts_the_window_of_its_step(model: OCRA, images: Tensor, free: Trace) -> None:
    jitter = torch.zeros(BATCH, 4, 2)
    jitter[:, 1] = torch.tensor([2.0, -1.0])
    trace = model(images, jitter=jitter, record=True)
    shift = trace.read_windows.center[:, 1] - free.read_windows.center[:, 1]
    torch.testing.assert_close(shift, jitter[:, 1])
    assert trace.read_windows.stride[:, 1].equal(free.read_windows.stride[:, 1])
    assert_untouched_before(1, trace, free)


def test_jitter_adds_to_a_forced_window(model: OCRA, images: Tensor) -> None:
    forced = nowhere()
    forced.center[:, 0] = 5.0
    trace = model(images, windows=forced, jitter=torch.ones(4, 2), record=True)
    assert (trace.read_windows.center[:, 0] == 6).all()


def test_clamping_the_winners_to_the_models_own_changes_nothing(
    model: OCRA, images: Tensor, free: Trace
) -> None:
    assert_same_trace(model(images, winners=free.winners, record=True), free)
    assert_same_trace(model(images, winners=torch.full((BATCH, 4), -1), record=True), free)


def test_a_clamped_winner_goes_to_the_decoder(model: OCRA, images: Tensor, free: Trace) -> None:
    winners = torch.full((BATCH, 4), -1)
    winners[:, 1] = (free.winners[:, 1] + 1) % CONFIG.classes
    trace = model(images, winners=winners, record=True)
    assert trace.winners[:, 1].equal(winners[:, 1])
    assert_same_trace(trace, free, steps=slice(0, 1))
    for name in ("capsule_lengths", "glimpses", "couplings", "read_windows.center"):
        assert flat(trace)[name][:, 1].equal(flat(free)[name][:, 1]), f"{name} is decided before the winner"
    assert trace.canvases[:, 1].ne(free.canvases[:, 1]).any()


def test_an_idle_lesion_changes_nothing(model: OCRA, images: Tensor, free: Trace) -> None:
    assert_same_trace(model(images, lesion=Lesion(), record=True), free)


def test_a_silenced_capsule_stays_at_zero_and_never_wins(model: OCRA, images: Tensor, free: Trace) -> None:
    silenced = int(free.winners[0, 0])
    trace = model(images, lesion=Lesion(capsules=(silenced,)), record=True)
    assert (trace.capsule_lengths[:, :, silenced] == 0).all() and (trace.scores[:, silenced] == 0).all()
    assert (trace.winners != silenced).all()
    others = [j for j in range(CONFIG.classes) if j != silenced]
    assert trace.capsule_lengths[:, 0, others].equal(free.capsule_lengths[:, 0, others])
    assert trace.glimpses[:, 0].equal(free.glimpses[:, 0])


def test_all_capsules_can_be_silenced(model: OCRA, images: Tensor) -> None:
    trace = model(images, lesion=Lesion(capsules=tuple(range(CONFIG.classes))), record=True)
    assert (trace.scores == 0).all() and trace.canvas.isfinite().all()


def test_without_encoder_memory_equal_glimpses_give_equal_capsules(images: Tensor) -> None:
    config = replace(CONFIG, feedback=False)
    model = lively(config)
    fixed = Windows(torch.full((4, 2), 6.0), torch.full((4,), 1.0), torch.full((4,), 1.0))
    lengths = model(images, windows=fixed, lesion=Lesion(encoder_memory=True)).capsule_lengths
    assert lengths.equal(lengths[:, :1].expand_as(lengths))
    lengths = model(images, windows=fixed).capsule_lengths
    assert lengths[:, 1:].ne(lengths[:, :1]).any()


@pytest.mark.parametrize("part", ["encoder_memory", "decoder_memory", "feedback"])
def test_a_lesion_of_memory_spares_the_first_step(
    model: OCRA, images: Tensor, free: Trace, part: str
) -> None:
    """There is nothing to remember at the first step, and the second window follows from it."""
    trace = model(images, lesion=Lesion(**{part: True}), record=True)
    assert_same_trace(trace, free, steps=slice(0, 1))
    assert trace.read_windows.center[:, 1].equal(free.read_windows.center[:, 1])
    assert trace.canvases[:, 1].ne(free.canvases[:, 1]).any()
    if part == "decoder_memory":
        assert trace.capsule_lengths[:, 1].equal(free.capsule_lengths[:, 1])


def test_without_decoder_memory_equal_winners_give_equal_writes() -> None:
    """What is written then depends on the winning capsule alone."""
    config = replace(SMALL, attention=False)
    model, images = lively(config), random_images(config)
    lesion = Lesion(encoder_memory=True, decoder_memory=True)
    canvases = model(images, lesion=lesion, record=True).canvases
    torch.testing.assert_close(canvases[:, 2], 3 * canvases[:, 0])


def test_lesioned_feedback_is_a_model_fed_with_zeros(model: OCRA, images: Tensor) -> None:
    """The same as setting the weights from the decoder state to zero."""
    deaf = lively(CONFIG, seed=5)
    with torch.no_grad():
        deaf.encoder.weight_ih[:, CONFIG.features :] = 0
    lesioned = model(images, lesion=Lesion(feedback=True), record=True)
    assert_same_trace(lesioned, deaf(images, record=True), rtol=1e-5, atol=1e-5)


def test_routings_at_test_time_are_those_of_a_model_built_with_them(model: OCRA, images: Tensor) -> None:
    for routings in (1, 2, 5):
        built = OCRA(replace(CONFIG, routings=routings))
        built.load_state_dict(model.state_dict())
        assert_same_trace(model(images, routings=routings, record=True), built(images, record=True))


def test_interventions_leave_no_trace_in_the_model(model: OCRA, images: Tensor, free: Trace) -> None:
    model(images, jitter=torch.ones(4, 2), lesion=Lesion(capsules=(0,)), routings=1, glimpses=4)
    assert_same_trace(model(images, record=True), free)


def test_interventions_of_any_number_type_work(model: OCRA, images: Tensor) -> None:
    whole = Windows(torch.full((4, 2), 6), torch.ones(4, dtype=torch.int64), torch.ones(4, dtype=torch.int32))
    double = Windows(*(value.double() for value in (whole.center, whole.stride, whole.sigma)))
    assert_same_trace(model(images, windows=whole, record=True), model(images, windows=double, record=True))
    jitter = torch.ones(4, 2)
    assert_same_trace(
        model(images, jitter=jitter.double().numpy(), record=True), model(images, jitter=jitter, record=True)
    )


WRONG: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "jitter of another batch": (CONFIG, {"jitter": torch.zeros(BATCH + 1, 4, 2)}),
    "jitter for other glimpses": (CONFIG, {"jitter": torch.zeros(BATCH, 3, 2)}),
    "jitter without y": (CONFIG, {"jitter": torch.zeros(BATCH, 4, 3)}),
    "jitter of NaN": (CONFIG, {"jitter": torch.full((4, 2), torch.nan)}),
    "infinite jitter": (CONFIG, {"jitter": torch.full((4, 2), torch.inf)}),
    "windows for other glimpses": (CONFIG, {"windows": nowhere(3)}),
    "filters of no width": (CONFIG, {"windows": replace(nowhere(), sigma=torch.zeros(BATCH, 4))}),
    "a negative stride": (CONFIG, {"windows": replace(nowhere(), stride=-torch.ones(BATCH, 4))}),
    "an infinite place": (CONFIG, {"windows": replace(nowhere(), center=torch.full((4, 2), torch.inf))}),
    "windows without windows": (replace(CONFIG, attention=False), {"windows": nowhere()}),
    "jitter without windows": (replace(CONFIG, attention=False), {"jitter": torch.zeros(4, 2)}),
    "a winner that is no capsule": (CONFIG, {"winners": torch.full((4,), CONFIG.classes)}),
    "a winner below -1": (CONFIG, {"winners": torch.full((4,), -2)}),
    "a fractional winner": (CONFIG, {"winners": torch.zeros(4)}),
    "winners for other glimpses": (CONFIG, {"winners": torch.zeros(5, dtype=torch.int64)}),
    "winners without capsules": (replace(CONFIG, capsules=False), {"winners": torch.full((4,), 1)}),
    "winners without masking": (replace(CONFIG, masking=False), {"winners": torch.full((4,), 1)}),
    "a lesion of no capsule": (CONFIG, {"lesion": Lesion(capsules=(99,))}),
    "a lesion without its comma": (CONFIG, {"lesion": Lesion(capsules=3)}),  # type: ignore[arg-type]
    "a lesion of half a capsule": (CONFIG, {"lesion": Lesion(capsules=(1.5,))}),  # type: ignore[arg-type]
    "a lesion by name": (CONFIG, {"lesion": Lesion(capsules=("a",))}),  # type: ignore[arg-type]
    "a lesion that is none": (CONFIG, {"lesion": {"capsules": (3,)}}),
    "windows that are none": (CONFIG, {"windows": (1, 2, 3)}),
    "a winner in words": (CONFIG, {"winners": "7"}),
    "a lesion without capsules": (replace(CONFIG, capsules=False), {"lesion": Lesion(capsules=(1,))}),
    "a lesion without feedback": (replace(CONFIG, feedback=False), {"lesion": Lesion(feedback=True)}),
}


@pytest.mark.parametrize("name", WRONG)
def test_impossible_interventions_are_refused_with_a_sentence(name: str, images: Tensor) -> None:
    config, options = WRONG[name]
    with pytest.raises(OcraError) as caught:
        OCRA(config)(images, **options)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
