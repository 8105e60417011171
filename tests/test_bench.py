"""The benchmark: its arithmetic is right and its output is what it says."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ocra import OCRA, benchmark
from ocra.benchmark import Job, multiply_adds, offline
from ocra.cli.main import main
from ocra.model import kernels
from ocra.presets import preset
from ocra.training import run as starting
from ocra.training.distributed import Group
from ocra.training.trainer import Trainer


@pytest.mark.parametrize("name", ["multimnist-3", "cluttered-5", "svhn-12", "multimnist-recurrent-3"])
def test_multiply_adds_agree_with_a_count_of_the_operations(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The usual first convolution: the fused one multiplies by some zeros, which do not count.
    monkeypatch.setattr(kernels, "_exporting", lambda: True)
    config = preset(name).model
    model = OCRA(config).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.rand(2, *config.image_shape))
    # The counter does not see the routing, which is made of sums; everything else it does.
    counted = counter.get_total_flops() / 2 / 2
    routing = config.glimpses * (2 * config.routings - 1) * config.primary_capsules
    routing *= config.object_capsules * config.capsule_size
    assert multiply_adds(config) - routing == pytest.approx(counted, rel=0.02)


def test_bench_prints_one_json_object_with_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench --preset multimnist-3 --mode train --seconds 0.2 --batch-size 16 --processes 2 --no-compile --json"
    assert main(words.split()) == 0
    result = json.loads(capsys.readouterr().out)
    (row,) = result["rows"]
    assert row["gemm_gflops"] > 0
    assert (row["preset"], row["mode"], row["batch_size"], row["processes"]) == (
        "multimnist-3",
        "train",
        16,
        2,
    )
    assert row["images_per_second"] > 0 and 0 < row["share_of_peak"] < 1
    assert row["times_plain"] > 0 and row["peak_memory_mb"] > 0
    assert row["parts"].keys() == {"batch", "forward", "backward", "reduce", "update"}
    assert sum(row["parts"].values()) == pytest.approx(1, abs=1e-3)


def test_it_is_the_trainers_own_step_that_is_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, right = [], Trainer.step

    def counted(self: Trainer) -> object:
        steps.append(self.progress.step)
        return right(self)

    experiment = preset("svhn-12")  # on noise, where the photographs are not at hand
    small = replace(
        experiment, model=replace(experiment.model, hidden=8), run=replace(experiment.run, compile=False)
    )
    job = Job(offline(small, 4).to_dict(), "train", 4, seconds=1e-3)
    monkeypatch.setattr(Trainer, "step", counted)
    monkeypatch.setattr(benchmark, "GEMM_SECONDS", 1e-3)
    monkeypatch.setattr("sys.argv", ["bench", json.dumps(asdict(job))])
    benchmark.work()
    found = json.loads(capsys.readouterr().out)
    assert steps == list(range(2 + found["images"] // 4)) and len(steps) >= 3


def test_left_to_itself_bench_takes_as_many_processes_as_share_the_batch_equally(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(benchmark, "cores", lambda: 6)
    monkeypatch.setattr(
        benchmark, "measure", lambda experiment, mode, batch, count, *_, **__: taken.append(count)
    )
    benchmark.measure_all(["multimnist-3"], ["train"], plain=False)
    assert taken == [4]


@pytest.mark.parametrize(
    ("asked", "gain", "measured"),
    [
        ("fp32", 2.0, ["fp32"]),
        ("bf16", 2.0, ["bf16"]),
        ("auto", 2.0, ["bf16"]),
        ("auto", 1.0, ["fp32"]),
        ("both", 2.0, ["fp32", "bf16"]),
        ("both", 1.0, ["fp32"]),
    ],
)
def test_bench_measures_the_precision_that_it_names(
    asked: str, gain: float, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(starting, "bf16_gain", lambda device: gain)
    monkeypatch.setattr(benchmark, "measure", lambda experiment, *_: taken.append(experiment.run.precision))
    benchmark.measure_all(["multimnist-3"], ["inference"], precision=asked, plain=False)
    assert taken == measured


@pytest.mark.parametrize(("precision", "multiplied"), [("fp32", False), ("bf16", True)])
def test_inference_is_measured_in_the_precision_asked_for(
    precision: str, multiplied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = preset("multimnist-3")
    small = replace(
        experiment,
        model=replace(experiment.model, hidden=8),
        run=replace(experiment.run, compile=False, precision=precision),
    )
    used: list[bool] = []
    right = OCRA.forward

    def noted(self: OCRA, images: torch.Tensor) -> object:
        used.append(self.bf16 is not None)
        return right(self, images)

    monkeypatch.setattr(OCRA, "forward", noted)
    step, _ = benchmark._step(Job(offline(small, 4).to_dict(), "inference", 4, seconds=1e-3), Group())
    step()
    assert used == [multiplied]


def test_bench_of_an_unknown_preset_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--preset", "multimnist-4"]) == 2
    assert "multimnist-4" in capsys.readouterr().err


def test_more_processes_than_images_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--preset", "multimnist-3", "--batch-size", "2", "--processes", "3"]) == 2
    assert "cannot share a batch of 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"), [("--seconds", "-1"), ("--processes", "-2"), ("--batch-size", "0")]
)
def test_impossible_numbers_are_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--preset", "multimnist-3", option, value]) == 2
    assert f"{option} must be" in capsys.readouterr().err
