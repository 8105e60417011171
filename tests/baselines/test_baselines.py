"""The systems that OCRA is compared with: as large as their papers say, and they learn."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ocra
from ocra.baselines import (
    RAM,
    CapsNet,
    CapsNetConfig,
    CNNConfig,
    DRAMConfig,
    RAMConfig,
    SmallCNN,
    SmallCNNConfig,
)
from ocra.baselines.capsnet import softmax_routing
from ocra.baselines.cnn import count_scores
from ocra.baselines.ram import HardTrace, reinforce
from ocra.benchmark import multiply_adds
from ocra.cli.main import main
from ocra.config import AnswerRule, NetworkConfig
from ocra.data import ClutteredMNIST
from ocra.data.task import task_config
from ocra.errors import OcraError, UsageError
from ocra.experiment import Experiment, RunConfig, Stage
from ocra.losses import LossConfig
from ocra.metrics import predicted_counts
from ocra.prediction import answers
from ocra.presets import BASELINES, PRESETS, preset
from ocra.reproduce.baselines import (
    CONDITIONS,
    Condition,
    Measurements,
    Speed,
    baselines_table,
    figures_under,
    planned_baselines,
)
from ocra.reproduce.records import record_run
from ocra.training.distributed import Group
from ocra.training.logging import Reporter
from ocra.training.trainer import Trainer
from ocra.viz.record import records

pytestmark = pytest.mark.usefixtures("one_thread")
TASK = ClutteredMNIST.Config(digits="glyphs", size=28, objects=1, distractors=0)
SMALL: dict[str, NetworkConfig] = {
    "cnn": CNNConfig(filters=(8, 8), hidden=32),
    "cnn-small": SmallCNNConfig(widths=(8, 16, 32)),
    "capsnet": CapsNetConfig(filters=16, primary_channels=4, capsule_size=8, decoder=(32, 32)),
    "ram": RAMConfig(glimpses=3, glimpse_size=8, scales=2, hidden=64),
    "dram": DRAMConfig(
        glimpses=3, glimpse_size=12, scales=2, hidden=64, filters=(8, 8, 16), glimpse_features=64
    ),
}


def tiny(kind: str, images: int = 6400) -> Experiment:
    """A run of a few seconds: one glyph digit of ten on 28 × 28 pixels."""
    return Experiment(
        name=kind,
        model=SMALL[kind],
        task=TASK,
        loss=LossConfig(normalise_scores=False),
        stages=(
            Stage(
                images, batch_size=32, lr=(4e-3, 0.0), shampoo_lr=0.0, ema_decay=0.98,
                reconstruction=0.0005 if kind == "capsnet" else 0.0,
            ),
        ),
        run=RunConfig(
            report_every_images=320, validate_every_images=1600, validate_images=200, test_images=200, compile=False
        ),
    ).fitted()  # fmt: skip


@pytest.mark.parametrize(("name", "millions"), [("cnn-multimnist", 24.56), ("capsnet-multimnist", 11.36)])
def test_parameter_counts_are_those_of_the_paper(name: str, millions: float) -> None:
    config = preset(name).model
    with torch.device("meta"):
        assert round(config.network(config).parameter_count / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("name", "with_glimpses"),
    [("cnn-small-multimnist", "multimnist-3"), ("cnn-small-cluttered", "cluttered-5")],
)
def test_the_small_cnn_needs_no_more_arithmetic_than_three_glimpses(name: str, with_glimpses: str) -> None:
    small, glimpses = preset(name).model, replace(preset(with_glimpses).model, glimpses=3)
    assert multiply_adds(small) <= multiply_adds(glimpses)
    assert small.network(small).parameter_count < 4e6


@pytest.mark.parametrize("name", BASELINES)
def test_a_preset_fits_its_task_and_survives_json(name: str) -> None:
    own = preset(name)
    experiment = replace(own, task=own.task.with_settings(digits="glyphs"))  # which need no data
    assert experiment == experiment.fitted() == Experiment.from_dict(experiment.to_dict())
    assert experiment.to_dict()["model"]["kind"] == experiment.model.kind
    assert name not in PRESETS


def test_softmax_routing_is_procedure_1_of_the_paper() -> None:
    torch.manual_seed(0)
    predictions = torch.randn(3, 5, 4, 6, requires_grad=True)
    capsules, lengths = softmax_routing(predictions, 3)
    for image, votes in enumerate(predictions):
        logits = torch.zeros(5, 4)
        for _ in range(3):
            couplings = torch.stack([row.exp() / row.exp().sum() for row in logits])
            sums = [sum(couplings[i, j] * votes[i, j] for i in range(5)) for j in range(4)]
            squashed = [s.norm() ** 2 / (1 + s.norm() ** 2) * s / s.norm() for s in sums]
            logits = logits + torch.stack(
                [torch.stack([votes[i, j] @ squashed[j] for j in range(4)]) for i in range(5)]
            )
        assert torch.allclose(capsules[image], torch.stack(squashed), atol=1e-6)
        assert torch.allclose(lengths[image], torch.stack([v.norm() for v in squashed]), atol=1e-6)
    ours, plain = (
        torch.autograd.grad(values.square().sum(), predictions, retain_graph=True)[0][image]
        for values in (capsules[image], torch.stack(squashed))
    )
    assert torch.allclose(ours, plain, atol=1e-5)


def test_capsnet_draws_each_digit_from_its_own_capsule_alone() -> None:
    model = CapsNet(SMALL["capsnet"]).eval()  # type: ignore[arg-type]
    capsules = torch.randn(2, 10, 8)
    drawn = model.reconstruct(capsules, torch.tensor([[3, 7], [1, 1]]))
    others = capsules.clone()
    others[:, [0, 2, 4, 5, 6, 8, 9]] = 5.0
    assert torch.equal(model.reconstruct(others, torch.tensor([[3, 7], [1, 1]])), drawn)
    assert torch.equal(drawn[1, 0], drawn[1, 1]) and not torch.equal(drawn[0, 0], drawn[0, 1])


@pytest.mark.parametrize("baseline", [0.0, 0.7])
def test_reinforce_follows_the_expected_reward(baseline: float) -> None:
    """Two choices among three, the second depending on the first: all nine ways are enumerated."""
    torch.manual_seed(1)
    first, second = torch.randn(3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    rewards = torch.rand(3, 3)
    ways = torch.tensor(list(product(range(3), range(3))))
    log_probabilities = torch.stack(
        [first.log_softmax(0)[ways[:, 0]], second.log_softmax(1)[ways[:, 0], ways[:, 1]]], 1
    )
    chance = log_probabilities.sum(1).exp()
    reward = rewards[ways[:, 0], ways[:, 1]]
    policy, value = reinforce(log_probabilities, reward, torch.full((9, 2), baseline))
    estimated = torch.autograd.grad((chance.detach() * policy).sum(), (first, second), retain_graph=True)
    exact = torch.autograd.grad(-(chance * reward).sum(), (first, second))
    for ours, wanted in zip(estimated, exact, strict=True):
        assert torch.allclose(ours, wanted, atol=1e-6)
    assert torch.allclose(value, 2 * (reward - baseline).square())


def test_glimpses_are_read_where_the_windows_say() -> None:
    model = RAM(RAMConfig(height=40, width=40, glimpse_size=8, scales=2))
    images = torch.zeros(1, 1, 40, 40)
    images[0, 0, 30, 12] = 1.0
    place = (torch.tensor([[12.5, 30.5]]) + 0.5) / 40 * 2 - 1
    assert torch.allclose(model.pixels(place), torch.tensor([[12.5, 30.5]]))
    glimpse = model.read(model.pyramid(images), place)
    assert glimpse.shape == (1, 2, 8, 8)
    assert glimpse[0, 0, 3, 3] == pytest.approx(1.0, abs=1e-4)  # the pixel left above the middle of the patch
    assert glimpse[0, 0].sum() == pytest.approx(1.0, abs=1e-3)


def test_large_products_can_be_made_in_bfloat16() -> None:
    for kind in ("cnn", "cnn-small", "capsnet", "dram"):
        torch.manual_seed(0)
        config = SMALL[kind].fitted_to((1, 28, 28), 10, AnswerRule(1), 0)
        model, images = config.network(config).eval(), torch.rand(4, 1, 28, 28)
        exact = model(images).scores
        model.use_bf16(lambda matrix: matrix)
        rounded = model(images).scores
        assert rounded.dtype == torch.float32
        assert torch.allclose(rounded, exact, atol=0.02) and not torch.equal(rounded, exact)


def test_scores_of_an_unsure_network_are_not_sure() -> None:
    config = SMALL["ram"].fitted_to((1, 28, 28), 10, AnswerRule(2), 0)
    trace = config.network(config).eval()(torch.rand(8, 1, 28, 28))
    for found in answers(trace, tuple("0123456789"), AnswerRule(2)):
        assert len({item.label for item in found}) == 1 or all(item.confidence < 0.6 for item in found)


def test_the_answer_is_the_likeliest_whatever_the_rule() -> None:
    rule = AnswerRule(2, repeats=True)
    twice = torch.tensor([[[0.95, 0.6], [0.5, 0.1], [0.2, 0.0]]])
    apart = torch.tensor([[[0.95, 0.4], [0.5, 0.1], [0.2, 0.0]]])
    assert predicted_counts(count_scores(twice, 2), rule).tolist() == [[2, 0, 0]]
    assert predicted_counts(count_scores(apart, 2), rule).tolist() == [[1, 1, 0]]
    model = RAM(RAMConfig(height=40, width=40, glimpse_size=8)).eval()
    trace = model(torch.rand(50, 1, 40, 40))
    assert trace.logits is not None
    assert torch.equal(predicted_counts(trace.scores, rule), model.answers[trace.logits.argmax(1)])


@pytest.mark.parametrize(
    ("kind", "error"), {"cnn": 0.3, "cnn-small": 0.3, "capsnet": 0.3, "ram": 0.7, "dram": 0.7}.items()
)
def test_each_learns_glyph_digits(kind: str, error: float, tmp_path: Path) -> None:
    summary = ocra.train(
        tiny(kind, 12_800 if kind == "dram" else 6400), tmp_path / "run", processes=1, quiet=True
    )
    assert summary["test"]["best"]["exact_error"] < error


@pytest.mark.parametrize(("kind", "steps", "share"), [("ram", 160, 0.75), ("dram", 50, 0.5)])
def test_reinforce_brings_the_gaze_to_what_is_rewarded(kind: str, steps: int, share: float) -> None:
    """A white square lies in one of four places; the nearer the last glimpse is to it, the greater the reward."""
    torch.manual_seed(0)
    config = SMALL[kind].fitted_to((1, 32, 32), 10, AnswerRule(1), 0)
    model = config.network(config)
    places = torch.tensor([[-0.5, -0.5], [-0.5, 0.5], [0.5, -0.5], [0.5, 0.5]])
    images = torch.zeros(4, 1, 32, 32)
    for image, (x, y) in zip(images, (16 * (1 + places)).int().tolist(), strict=True):
        image[:, y - 4 : y + 4, x - 4 : x + 4] = 1.0
    images, places = images.repeat(32, 1, 1, 1), places.repeat(32, 1)

    def distances() -> tuple[HardTrace, torch.Tensor]:
        trace = model(images)
        reached = (trace.read_windows.center[:, -1] + 0.5) / 16 - 1
        return trace, (reached - places).norm(dim=1)

    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    before = distances()[1].mean()
    for _ in range(steps):
        trace, far = distances()
        policy, value = reinforce(trace.log_probabilities, -far, trace.values)
        optimiser.zero_grad()
        (policy + value).mean().backward()
        optimiser.step()
    assert distances()[1].mean() < share * before


def test_a_run_can_be_stopped_resumed_evaluated_and_used(tmp_path: Path) -> None:
    """With batch norm, whose running statistics belong to checkpoints, weights and averages."""
    experiment = tiny("cnn-small", 1280)
    whole = ocra.train(experiment, tmp_path / "whole", processes=1, quiet=True)
    with pytest.MonkeyPatch.context() as patch:
        step = Trainer.step

        def stopping(self: Trainer, *signals: bool) -> tuple[bool, bool]:
            return (self.progress.step == 13) | step(self, *signals)[0], False

        patch.setattr(Trainer, "step", stopping)
        with pytest.raises(SystemExit):
            ocra.train(experiment, tmp_path / "run", processes=1, quiet=True)
    resumed = ocra.resume(tmp_path / "run", quiet=True)
    assert resumed["test"] == whole["test"]
    one, other = (
        load_file(tmp_path / run / "weights" / "last" / "model.safetensors") for run in ("whole", "run")
    )
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert "convolutions.1.running_mean" in one and one["convolutions.1.running_mean"].any()

    folder = tmp_path / "run" / "weights" / "last"
    found = ocra.evaluate(folder, images=200, threads=1)
    assert found.exact_error == whole["test"]["last"]["exact_error"] and found.glimpses == 1
    images = ocra.make_task(TASK, "test").batch([0, 1]).images
    assert all(len(answer.objects) == 1 for answer in ocra.predict(folder, images))
    with pytest.raises(OcraError, match="another network"):
        ocra.OCRA.from_pretrained(folder)


def test_averaged_weights_are_scored_with_averaged_statistics() -> None:
    trainer = Trainer(tiny("cnn-small"), Group(), None, Reporter(None))
    assert isinstance(trainer.model, SmallCNN)
    running = trainer.model.convolutions[1].running_mean
    for _ in range(3):
        trainer.step()
    own, average = running.clone(), trainer.buffers.average["convolutions.1.running_mean"]
    assert not torch.equal(own, average)
    with trainer.holding(trainer.flat.average, trainer.buffers.average):
        assert torch.equal(running, average)
    assert torch.equal(running, own)
    assert trainer.model.training


@pytest.mark.parametrize("kind", ["capsnet", "dram"])
def test_commands_take_them_all(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = SMALL[kind].fitted_to((1, 28, 28), 10, AnswerRule(1), 0)
    model = config.network(config)
    info = replace(model.info, task=TASK.to_dict(), answer=AnswerRule(1))
    model.save_pretrained(tmp_path / "weights", info)
    weights = str(tmp_path / "weights")
    assert main(["scanpath", "--weights", weights, "--out", str(tmp_path / "a.csv"), "--number", "2"]) == 0
    rows = (tmp_path / "a.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * config.glimpses
    assert main(["look", "--weights", weights, "--out", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").stat().st_size > 1000
    (seen,) = records(model, torch.rand(1, 1, 28, 28))
    assert seen.draws == (kind == "capsnet")  # figures leave out canvases that there are not


def test_the_command_trains_a_preset_with_the_networks_own_settings(tmp_path: Path) -> None:
    small = (
        "--images 64 --quiet --processes 1 --task.digits glyphs --run.validate-images 16 --run.test-images 16"
    )
    words = ["train", "ram-cluttered", *small.split(), "--model.hidden", "32", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    record = record_run(tmp_path / "run")
    assert record.preset == "ram-cluttered" and record.changes["model.hidden"] == 32
    assert record.test is not None and record.test["n"] == 16


def test_all_systems_get_equal_time_and_a_row(tmp_path: Path) -> None:
    speeds = {"capsnet-multimnist": Speed(10, 20), "ram-cluttered": Speed(1000, 2000)}
    runs = planned_baselines(16.5, [1, 2], lambda name: speeds.get(name, Speed(100, 200)))
    assert len(runs) == 2 * 9
    images = {run.name: sum(stage.images for stage in run.stages) for run in runs.values()}
    # Ten validations of a fiftieth each, twice as fast, take a tenth of what training takes.
    assert images["capsnet-multimnist"] == 9_000 and images["ram-cluttered"] == 900_000
    assert all(stage.select == 1 for run in runs.values() for stage in run.stages)
    rows = [
        line
        for line in baselines_table([], Measurements(tmp_path), []).splitlines()
        if line.startswith("| `")
    ]
    assert len(rows) == 9 and all("not run" in row for row in rows)
    with pytest.raises(UsageError, match="buy only 320 images for capsnet"):
        planned_baselines(0.6, [1], lambda name: speeds.get(name, Speed(100, 200)))


def test_speed_is_measured_once_on_each_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocra.reproduce.baselines.MEASURING_SECONDS", 0.05)
    tiny_run = tiny("cnn-small")
    monkeypatch.setattr("ocra.reproduce.baselines.on_equal_terms", lambda name: tiny_run)
    found = Measurements(tmp_path).speed_of("cnn-small-multimnist")
    assert found.inference > found.training > 0
    again = Measurements(tmp_path)
    monkeypatch.setattr("ocra.reproduce.baselines.measure_speed", lambda experiment: Speed(1, 2))
    assert again.speed_of("cnn-small-multimnist").training == pytest.approx(found.training, abs=0.1)
    again.measured_on = "another"
    assert again.speed_of("cnn-small-multimnist") == Speed(1, 2)


def test_conditions_change_the_digits_and_not_the_size_of_the_image() -> None:
    image, draws = torch.zeros(1, 1, 36, 36), torch.Generator().manual_seed(0)
    image[..., 13:23, 13:23] = 1.0
    smaller, larger = (Condition("", scale=scale).changed(image, 36, draws) for scale in (0.8, 1.25))
    assert smaller.shape == larger.shape == image.shape
    assert smaller.sum() == pytest.approx(64, rel=0.15) and larger.sum() == pytest.approx(156, rel=0.15)
    noisy = Condition("", noise=0.2).changed(image, 36, draws)
    assert noisy.min() >= 0 and noisy.max() <= 1 and not torch.equal(noisy, image)
    assert Condition("", scale=0.8).changed(torch.zeros(1, 1, 125, 125), 100, draws).shape[-1] == 100


@pytest.mark.parametrize(
    ("task", "name", "side"), [("MultiMNIST", "multimnist", 36), ("Cluttered MNIST", "cluttered", 100)]
)
def test_a_run_is_tested_under_conditions_that_do_not_count_as_its_test(
    task: str, name: str, side: int
) -> None:
    config = SMALL["cnn-small"].fitted_to((1, side, side), 10, AnswerRule(2), 0)
    settings = task_config({"name": name, "digits": "glyphs"}).to_dict()
    tests = dict(figures_under(config.network(config).eval(), settings, task, 20))
    assert set(tests) == {condition.name for condition in CONDITIONS[task]}
    assert all(test["n"] == 20 and 0 <= test["error"] <= 1 for test in tests.values())
    assert all(test["task"]["condition"] == name for name, test in tests.items())


def test_what_a_network_cannot_do_is_refused_in_a_sentence(tmp_path: Path) -> None:
    experiment = tiny("cnn")
    stage = experiment.stages[0]
    for changes, message in (
        ({"cross_entropy": 1.0}, "losses of its own"),
        ({"glimpses": 3}, "looks once"),
    ):
        with pytest.raises(OcraError, match=message):
            ocra.train(replace(experiment, stages=(replace(stage, **changes),)), tmp_path / "run", quiet=True)  # type: ignore[arg-type]
    with pytest.raises(OcraError, match="bfloat16"):
        looking = tiny("ram")
        ocra.train(replace(looking, run=replace(looking.run, precision="bf16")), tmp_path / "run", quiet=True)
    with pytest.raises(OcraError, match="no network of the kind 'mine'"):
        Experiment.from_dict({"model": {"kind": "mine"}})
