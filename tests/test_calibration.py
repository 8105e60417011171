"""How sure an answer is: probabilities, unsure, nothing, and what travels with the weights."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tiny import ink_picture, tiny_model, tiny_weights

import ocra
from ocra.cli.main import main
from ocra.config import EVIDENCE, AnswerRule, Calibration
from ocra.errors import OcraError
from ocra.evaluation import MISTRUSTED, fit_plausible, fit_probability, foreign_images, halving_threshold
from ocra.model.deciding import evidence, is_plausible, margins
from ocra.model.trace import Trace
from ocra.model.weights import ModelInfo, content_hash, load, read_config
from ocra.prediction import decode
from ocra.reproduce.release import SINGLE_OBJECTS, answered_single_objects

SURE = Calibration(0.1, 0.3, 0.1, 0.3, threshold=0.7, silence=0.2, images=100)


def seen(
    scores: list[float], rule: AnswerRule, calibration: Calibration | None = SURE
) -> ocra.prediction.Prediction:
    """What is said of one image with these scores, by a network of as many classes."""
    model = tiny_model(classes=len(scores))
    info = replace(ModelInfo.from_dict({}, model.config), answer=rule, calibration=calibration)
    lengths = torch.zeros(1, 1, len(scores))
    trace = Trace(
        torch.tensor([scores]),
        torch.zeros(1, 1, 36, 36),
        lengths,
        winners=torch.zeros(1, 1, dtype=torch.long),
    )
    (said,) = decode(trace, replace(model.config, attention=False), info)
    return said


def test_a_fit_finds_the_probabilities_that_made_the_outcomes() -> None:
    generator = torch.Generator().manual_seed(0)
    margin = 3 * torch.rand(20_000, generator=generator, dtype=torch.float64)
    right = torch.rand(20_000, generator=generator, dtype=torch.float64) < torch.sigmoid((margin - 0.8) / 0.4)
    temperature, offset = fit_probability(margin, right)
    assert temperature == pytest.approx(0.4, rel=0.05) and offset == pytest.approx(0.8, rel=0.05)


def test_a_fit_ends_where_there_is_no_error_or_nothing_else() -> None:
    for right in (torch.ones(50), torch.zeros(50)):
        temperature, offset = fit_probability(torch.linspace(0, 1, 50), right)
        assert 0 < temperature < 1e4 and abs(offset) < 1e6


def test_the_threshold_halves_the_error() -> None:
    sure = torch.linspace(0, 1, 1000)
    right = (torch.arange(1000) % 7 > 3) | (torch.arange(1000) > 400)
    threshold = halving_threshold(sure, right.double())
    kept = sure >= threshold
    assert (~right[kept]).double().mean() <= (~right).double().mean() / 2
    assert kept.double().mean() > 0.5


def test_a_clear_answer_is_given_and_a_close_one_is_not() -> None:
    rule = AnswerRule(2, repeats=False)
    clear, close = seen([1.0, 0.1, 0.9, 0.0], rule), seen([1.0, 0.45, 0.5, 0.0], rule)
    assert (clear.verdict, clear.answer) == ("answer", "0 2")
    assert (close.verdict, close.answer, close.text) == ("unsure", "unsure", "0 2")
    assert clear.confidence is not None and close.confidence is not None
    assert clear.confidence > 0.95 and close.confidence < 0.5
    assert close.note == "this network always names 2: it is sure of 0 alone"


def test_a_network_that_always_names_two_sees_nothing_where_all_is_silent() -> None:
    said = seen([0.15, 0.01, 0.02, 0.0], AnswerRule(2))
    assert (said.answer, said.objects) == ("nothing", ())


def test_a_network_that_counts_is_unsure_between_two_counts() -> None:
    count = replace(SURE, offset=0.2, object_offset=0.2)
    assert seen([1.02, 0.0, 0.05, 0.0], AnswerRule(None), count).answer == "0"
    assert seen([1.48, 0.0, 0.05, 0.0], AnswerRule(None), count).answer == "unsure"
    assert seen([0.02, 0.0, 0.05, 0.0], AnswerRule(None), count).answer == "nothing"
    assert seen([0.48, 0.0, 0.05, 0.0], AnswerRule(None), count).answer == "unsure"


def test_without_a_calibration_confidence_says_so() -> None:
    said = seen([1.0, 0.45, 0.5, 0.0], AnswerRule(2), None)
    assert said.verdict == "answer" and said.confidence is None
    assert said.to_dict()["calibrated"] is False and said.to_dict()["confidence"] is None


def test_the_margin_of_a_sequence_is_that_of_its_least_clear_digit() -> None:
    readout = torch.tensor([[[0.9, 0.1, 0.0], [0.5, 0.4, 0.0]]])
    each, whole = margins(torch.zeros(1, 3), readout, AnswerRule(None))
    assert whole.item() == pytest.approx(0.1) and each.tolist()[0] == pytest.approx([0.8, 0.1])


def test_calibrate_keeps_what_it_found_beside_the_same_weights(tmp_path: Path, capsys) -> None:
    folder = tiny_weights(tmp_path / "weights")
    before = content_hash(folder)
    assert main(["calibrate", str(folder), "--images", "256"]) == 0
    assert "256 validation images" in capsys.readouterr().out
    info = read_config(folder)[1]
    assert info.calibration is not None and info.calibration.images == 256 and info.name == "tiny"
    assert content_hash(folder) == before
    assert ModelInfo.from_dict(info.to_dict(), load(folder).config) == info


def test_an_evaluation_tells_coverage_and_reliability() -> None:
    task = ocra.MultiMNIST(split="test", digits="glyphs")
    model = tiny_model()
    assert "calibration" not in ocra.evaluate(model, task, images=128).details
    model.info = replace(
        model.info, calibration=ocra.calibrate(model, "multimnist", images=256, digits="glyphs")
    )
    found = ocra.evaluate(model, task, images=300, trials=True)
    told = found.details["calibration"]
    assert sum(n for n, _, _ in told["reliability"]) == 300
    assert 0 <= told["coverage"] <= 1 and 0 <= told["error_if_sure"] <= 1
    sure = [trial for trial in found.trials if trial.confidence >= told["threshold"]]
    assert len(sure) / 300 >= told["coverage"] >= len(sure) / 300 - 3 * MISTRUSTED


def test_a_fit_tells_foreign_images_from_the_own() -> None:
    generator = torch.Generator().manual_seed(0)
    rule = AnswerRule(2, repeats=False)

    def passes(second: float, ink: float) -> tuple[torch.Tensor, torch.Tensor]:
        noise = 0.1 * torch.rand(400, 4, generator=generator)
        return torch.tensor([1.0, second, 0.1, 0.0]) + noise, torch.full((400, 1, 6, 6), ink) * (
            1 + noise[:, :1, None, None]
        )

    own, alone, noise = passes(0.9, 0.2), passes(0.4, 0.1), passes(0.9, 0.7)
    foreign = torch.cat([evidence(*alone, rule), evidence(*noise, rule)])
    known = replace(SURE, plausible=fit_plausible(evidence(*own, rule), foreign))
    assert is_plausible(*own, rule, known).all()  # none need be given up
    assert not is_plausible(*alone, rule, known).double().mean() > 0.03
    assert not is_plausible(*noise, rule, known).double().mean() > 0.03
    similar = fit_plausible(evidence(*own, rule), evidence(*passes(0.9, 0.2), rule))
    kept = is_plausible(*own, rule, replace(SURE, plausible=similar)).double().mean().item()
    assert kept == pytest.approx(1 - MISTRUSTED, abs=0.01)
    assert is_plausible(*alone, AnswerRule(None), known).all() and is_plausible(*alone, rule, SURE).all()


def test_a_network_that_makes_no_reconstruction_takes_any_image_for_its_own() -> None:
    assert fit_plausible(torch.full((5, 14), torch.nan), torch.zeros(5, 14)) == ()


def test_foreign_images_are_single_objects_and_noise() -> None:
    task, indices = ocra.MultiMNIST(split="validation", digits="glyphs"), torch.arange(8).numpy()
    foreign, single = foreign_images(task, indices), task.batch(indices, single_objects=1.0).images
    same = (foreign == single).flatten(1).all(1).tolist()
    assert same == [False, True, True, True] * 2 and foreign.min() >= 0 and foreign.max() <= 1
    one = ocra.MNIST(split="validation", digits="glyphs")
    assert not (foreign_images(one, indices) == one.batch(indices).images).flatten(1).all(1).any()


def test_what_does_not_look_like_two_is_unsure_however_clear_the_scores() -> None:
    rejecting = replace(SURE, plausible=(0.0,) * 14 + (-1.0,))
    said = seen([1.0, 0.1, 0.9, 0.0], AnswerRule(2, repeats=False), rejecting)
    assert said.answer == "unsure" and said.confidence is not None and said.confidence > 0.95
    assert said.to_dict()["note"] == "this network always names 2, and this does not look like 2"
    assert seen([1.0, 0.0, 0.0, 0.0], AnswerRule(None), replace(rejecting, threshold=0.0)).answer == "0"


@pytest.mark.parametrize("tone", [0.0, 0.4, 1.0])
def test_an_even_tone_is_nothing(tone: float) -> None:
    model = tiny_model()
    model.info = replace(model.info, calibration=SURE)
    even, other = ocra.predict(model, torch.stack([torch.full((1, 36, 36), tone), torch.rand(1, 36, 36)]))
    assert (even.answer, even.objects, even.confidence, even.note) == ("nothing", (), 1.0, "")
    assert other.answer != "nothing"


def test_predict_says_how_sure_it_is(tmp_path: Path, capsys) -> None:
    folder = tiny_weights(tmp_path / "weights")
    ink_picture().save(tmp_path / "photo.png")
    config = json.loads((folder / "config.json").read_text())
    config["calibration"] = asdict(replace(SURE, threshold=1.0))
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["predict", str(tmp_path / "photo.png"), "--weights", str(folder)]) == 0
    assert "unsure, perhaps" in capsys.readouterr().out
    assert main(["predict", str(tmp_path / "photo.png"), "--weights", str(folder), "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["answer"] == "unsure" and 0 <= line["confidence"] <= 1 and line["calibrated"] is True


def test_a_calibration_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    folder = tiny_weights(tmp_path / "weights")
    config = json.loads((folder / "config.json").read_text())
    for broken in (
        {"temperature": 1},
        {**asdict(SURE), "temperature": 0},
        {**asdict(SURE), "offset": "large"},
        {**asdict(SURE), "plausible": [1.0]},
        {**asdict(SURE), "plausible": ["large"] * 15},
    ):
        (folder / "config.json").write_text(json.dumps({**config, "calibration": broken}))
        with pytest.raises(OcraError, match="calibration"):
            load(folder)


@pytest.mark.parametrize(("constant", "answered"), [(1.0, 1.0), (-1.0, 0.0)])
def test_a_network_of_two_is_asked_how_often_it_answers_one(constant: float, answered: float) -> None:
    task, model = ocra.task_config({"name": "multimnist", "digits": "glyphs"}), tiny_model()
    model.info = replace(ModelInfo.from_dict({}, model.config), answer=AnswerRule(2), calibration=SURE)
    assert answered_single_objects(model, task) is None  # it was not calibrated for that
    plausible = (*[0.0] * EVIDENCE, constant)
    willing = replace(SURE, threshold=0.0, silence=-1.0, plausible=plausible)
    model.info = replace(model.info, calibration=willing)
    assert answered_single_objects(model, task) == {"n": SINGLE_OBJECTS, "answered": answered}
