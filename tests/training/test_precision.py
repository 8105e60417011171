"""Products in bfloat16: close to those in float32, from copies that follow the weights, and only in training."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from tiny_runs import TINY, same_weights, tiny

import ocra
from ocra.config import ModelConfig
from ocra.errors import OcraError
from ocra.model import OCRA
from ocra.training import run as starting
from ocra.training.distributed import Group
from ocra.training.logging import Reporter
from ocra.training.trainer import Trainer

BF16 = tiny(images=32 * 8, run={"precision": "bf16"}, shampoo_lr=(0.01, 0.0))


def gradients(model: OCRA, images: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    trace = model(images)
    (trace.scores.square().mean() + 10 * (trace.canvas - images).square().mean()).backward()
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def test_gradients_in_bf16_are_close_to_those_in_fp32() -> None:
    torch.manual_seed(0)
    model = OCRA(ModelConfig(hidden=64, filters=8))
    model.initialise()
    images = torch.rand(16, 1, 36, 36)
    plain = gradients(model, images)
    model.defer_weight_gradients = True
    model.bf16 = model.large_matrices().each(lambda matrix: matrix.detach().bfloat16())
    low = gradients(model, images)
    for name, value in plain.items():
        # Where to look is learnt from small differences of large sums.
        most = 0.3 if name.startswith("read_attention") else 0.03
        assert (low[name] - value).norm() < most * value.norm(), name
        assert low[name].dtype == torch.float32
    with torch.no_grad(), model.as_used():
        exact = model(images).scores
    assert not torch.equal(exact, model(images).scores)
    assert torch.allclose(exact, model(images).scores, atol=0.02)


def test_copies_follow_the_weights_at_every_step_and_while_others_are_held() -> None:
    trainer = Trainer(BF16, Group(), None, Reporter(None))
    flat = trainer.flat
    for _ in range(2):
        trainer.step()
        assert flat.bf16 is not None and torch.equal(flat.bf16, flat.values.bfloat16())
    assert trainer.model.bf16 is not None
    assert torch.equal(trainer.model.bf16.primary, trainer.model.primary.weight.bfloat16())
    with flat.holding(flat.average):
        assert torch.equal(flat.bf16, flat.average.bfloat16())
    assert torch.equal(flat.bf16, flat.values.bfloat16())


def test_a_run_in_bf16_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ocra.train(BF16, tmp_path / "whole", processes=1, quiet=True)
    step = Trainer.step

    def interrupted(self: Trainer, *arguments: bool) -> tuple[bool, bool]:
        if self.progress.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "step", interrupted)
        ocra.train(BF16, tmp_path / "stopped", processes=1, quiet=True)
    ocra.resume(tmp_path / "stopped", quiet=True)
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")


def test_bf16_is_chosen_where_it_is_faster_and_refused_where_it_does_not_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for gain, left_to_us in ((2.2, "bf16"), (1.1, "fp32"), (0.0, "fp32")):
        monkeypatch.setattr(starting, "bf16_gain", lambda device, gain=gain: gain)
        assert starting.choose_precision("auto", "cpu") == left_to_us
        assert starting.choose_precision("fp32", "cpu") == "fp32"
    with pytest.raises(OcraError, match=r"bfloat16 does not work on this cpu; use --run\.precision fp32"):
        starting.choose_precision("bf16", "cpu")


def test_what_was_chosen_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "bf16_gain", lambda device: 2.0)
    summary = ocra.train(
        tiny(images=32, run={"precision": "auto"}), tmp_path / "run", processes=1, quiet=True
    )
    assert summary["config"]["run"]["precision"] == "bf16" and TINY.run.precision == "fp32"
