"""Adaptive looking: each image stops when its answer is decided, and until then all is as in a fixed pass."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import tiny_model

import ocra
from ocra.config import AnswerRule
from ocra.errors import OcraError, UsageError
from ocra.model.deciding import answer_margin
from ocra.model.interventions import Lesion
from ocra.model.trace import Windows

TWO, TWO_OR_ONE_TWICE, ANY = AnswerRule(2, repeats=False), AnswerRule(2), AnswerRule(None)


def margin(scores, rule):
    return pytest.approx(answer_margin(torch.tensor([scores]), rule).item())


def test_the_margin_is_that_of_the_weakest_answer_over_the_next_class():
    assert margin([1.0, 0.2, 0.7, 0.1], TWO) == 0.5
    assert margin([1.0, 0.2, 0.7, 0.1], TWO_OR_ONE_TWICE) == 0.5


def test_a_class_that_is_named_twice_shares_its_score():
    assert margin([2.0, 0.3, 0.1], TWO_OR_ONE_TWICE) == 0.7
    assert margin([2.0, 0.3, 0.1], TWO) == 0.2


def test_without_a_number_of_objects_the_next_class_has_at_least_a_half():
    assert margin([0.9, 0.1], ANY) == pytest.approx(0.4)
    assert margin([0.3, 0.1], ANY) == 0  # nothing is named


def test_a_tie_is_not_decided():
    assert margin([1.0, 0.4, 0.4], TWO) == 0


@pytest.fixture(scope="module")
def model():
    return tiny_model(glimpses=6)


@pytest.fixture(scope="module")
def images():
    return torch.rand(40, 1, 36, 36, generator=torch.Generator().manual_seed(3))


def middle_margin(model, images, **interventions):
    """A margin that some of the images reach before the end."""
    lengths = model(images, **interventions).capsule_lengths
    # Not the very margin of an image, which the order of sums may put on either side.
    return answer_margin(lengths[:, :3].sum(1), model.info.answer).median().item() + 1e-4


@pytest.mark.parametrize(
    "interventions",
    [
        {},
        {"routings": 1},
        {"lesion": Lesion(encoder_memory=True)},
        {
            "jitter": torch.randn(40, 6, 2, generator=torch.Generator().manual_seed(0)),
            "winners": torch.randint(-1, 10, (40, 6), generator=torch.Generator().manual_seed(0)),
        },
        {"windows": Windows(torch.full((6, 2), 12.0), torch.full((6,), math.nan), torch.ones(6))},
    ],
    ids=["free", "routings", "lesion", "jitter-winners", "windows"],
)
def test_an_adaptive_pass_is_the_fixed_pass_up_to_the_glimpse_of_the_decision(model, images, interventions):
    until = middle_margin(model, images, **interventions)
    with torch.no_grad():
        fixed = model(images, record=True, **interventions)
        free = model(images, until=until, record=True, **interventions)
    assert free.taken.min() < free.taken.max()
    steps = fixed.capsule_lengths.cumsum(1)
    for k, taken in enumerate(free.taken.tolist()):
        margins = answer_margin(steps[k], model.info.answer)
        first = next((t + 1 for t, m in enumerate(margins.tolist()) if m >= until), 6)
        assert taken == first
        for name in ("capsule_lengths", "glimpses", "winners", "canvases", "couplings"):
            torch.testing.assert_close(getattr(free, name)[k, :taken], getattr(fixed, name)[k, :taken])
        for name in ("center", "stride", "sigma"):
            ours, theirs = (getattr(trace.read_windows, name)[k] for trace in (free, fixed))
            torch.testing.assert_close(ours[:taken], theirs[:taken])
            assert ours[taken:].isnan().all()
        torch.testing.assert_close(free.scores[k], steps[k, taken - 1])
        assert (free.winners[k, taken:] == -1).all() and (free.capsule_lengths[k, taken:] == 0).all()


def test_images_that_have_stopped_cost_nothing_more(model, images, monkeypatch):
    seen = []
    step = model.step
    monkeypatch.setattr(
        model, "step", lambda images, *rest: (seen.append(len(images)), step(images, *rest))[1]
    )
    trace = model(images, until=middle_margin(model, images))
    assert seen[0] == 40 and sum(seen) == trace.taken.sum()


def test_a_margin_that_is_never_reached_gives_the_fixed_pass(model, images):
    free, fixed = model(images, until=1e6), model(images)
    assert torch.equal(free.scores, fixed.scores) and torch.equal(free.canvas, fixed.canvas)
    assert (free.taken == 6).all() and fixed.taken is None


def test_a_margin_that_is_reached_at_once_gives_one_glimpse(model, images):
    free = model(images, until=1e-9, record=True)
    assert (free.taken == 1).all() and free.capsule_lengths.shape[1] == 6
    torch.testing.assert_close(free.canvas, model(images, glimpses=1).canvas)


def test_gradients_flow_through_an_adaptive_pass(model, images):
    model.zero_grad()
    model(images[:8], until=middle_margin(model, images)).scores.sum().backward()
    assert model.encoder.weight_hh.grad.isfinite().all() and model.encoder.weight_hh.grad.abs().sum() > 0
    model.zero_grad()


@pytest.mark.parametrize("until", [0, -1, math.nan, math.inf, "0.5", True])
def test_what_is_no_margin_is_refused(model, images, until):
    with pytest.raises(UsageError, match="until must be a number above 0"):
        model(images, until=until)


def test_a_house_number_cannot_stop_early():
    model = tiny_model(readout_digits=2, readout_skip=0, readout_span=1, readout_classes=11)
    with pytest.raises(OcraError, match="digit by digit"):
        model(torch.rand(1, 1, 36, 36), until=0.5)


def test_predictions_trials_scanpaths_and_figures_show_the_glimpses_that_were_taken(model, images, tmp_path):
    until = middle_margin(model, images)
    taken = model(images, until=until).taken.tolist()
    assert [len(said.glimpses) for said in ocra.predict(model, images, until=until)] == taken
    task = ocra.MultiMNIST(split="test", digits="glyphs")
    result = ocra.evaluate(model, task, images=20, until=until, trials=True, batch_size=7)
    counts = [trial.glimpses for trial in result.trials]
    assert result.figures["mean_glimpses"] == pytest.approx(sum(counts) / 20)
    assert [len(trial.windows) for trial in result.trials] == counts
    paths = ocra.scanpath(model, task, tmp_path / "paths.npz", number=5, until=1e-9)
    assert [len(path.glimpses) for path in paths] == [1] * 5
    (record,) = ocra.look(model, images[0], tmp_path / "look.png", until=until)
    assert record.steps == len(record.reads) == len(record.canvases) == taken[0]
