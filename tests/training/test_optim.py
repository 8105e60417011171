"""Whitened steps: all directions alike, of a fixed length, and only for the large matrices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ocra.training.channel import Channel, SharedMatrices
from ocra.training.initialise import build_model
from tiny_runs import tiny, write_config

import ocra
from ocra.errors import OcraError
from ocra.training.distributed import Group, PeerLost
from ocra.training.optim import Whitening, inverse_root, of_equal_length


def correlated(rows: int, columns: int) -> torch.Tensor:
    """A gradient whose directions differ in size a hundredfold."""
    return (
        torch.randn(rows, columns)
        * torch.logspace(0, -2, columns)
        @ torch.linalg.qr(torch.randn(columns, columns)).Q
    )


def test_an_inverse_root_is_one() -> None:
    gradient = correlated(64, 16)
    covariance = gradient.T @ gradient
    root = inverse_root(covariance)
    assert torch.allclose(root @ covariance @ root, torch.eye(16), atol=1e-2)
    assert inverse_root(torch.zeros(4, 4)).isfinite().all()


def test_a_step_treats_all_directions_alike_and_has_its_length() -> None:
    torch.manual_seed(0)
    gradient = correlated(64, 16)
    weights = {"encoder.weight_ih": torch.zeros(64, 16), "convolution1.weight": torch.zeros(64, 16)}
    whitening = Whitening(weights, dict.fromkeys(weights, gradient), Group())
    with whitening.instead(0.1, step=0):
        for weight in weights.values():
            weight += 5  # what Adam might do
    sizes = torch.linalg.svdvals(weights["encoder.weight_ih"])
    assert torch.linalg.svdvals(gradient)[-1] < 0.05 * torch.linalg.svdvals(gradient)[0]
    assert sizes[-1] > 0.5 * sizes[0]
    gates = weights["encoder.weight_ih"].unflatten(0, (4, -1))
    assert torch.allclose(gates.flatten(1).norm(dim=1), torch.full((4,), 0.1 * 16**0.5))
    assert (gradient * weights["encoder.weight_ih"]).sum() < 0  # downhill
    assert torch.equal(weights["convolution1.weight"], torch.full((64, 16), 5.0))


def test_two_steps_go_in_one_direction() -> None:
    torch.manual_seed(0)
    weights, means = {"primary.weight": torch.zeros(8, 4)}, {"primary.weight": torch.randn(8, 4)}
    whitening = Whitening(weights, means, Group())
    moves = []
    for step in range(4):
        before = weights["primary.weight"].clone()
        with whitening.instead(0.1, step):
            means["primary.weight"].copy_(torch.randn(8, 4))
        moves.append(weights["primary.weight"] - before)
    assert torch.allclose(moves[0], moves[1], atol=1e-6) and torch.allclose(moves[2], moves[3], atol=1e-6)
    assert not torch.allclose(moves[1], moves[2], atol=1e-2)


def test_no_gradient_makes_no_step() -> None:
    wide = Whitening({"encoder.weight_ih": torch.ones(8, 2592)}, {}, Group())
    assert not wide.tensors()  # left to Adam
    weights = {"primary.weight": torch.ones(8, 4)}
    with Whitening(weights, {"primary.weight": torch.zeros(8, 4)}, Group()).instead(0.1, step=0):
        weights["primary.weight"] += 1
    assert torch.equal(weights["primary.weight"], torch.ones(8, 4))


def test_a_step_is_finished_even_if_the_other_process_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: Channel) -> torch.Tensor:
        raise PeerLost("Another process of this run has ended.")

    matrices = SharedMatrices(Group(), {"one": torch.Size([6, 2]), "other": torch.Size([3, 4])})
    matrices._parts = {"one": [slice(0, 3), slice(3, 6)], "other": [slice(0, 1), slice(1, 3)]}
    monkeypatch.setattr(Channel, "add_up", lost)
    made = matrices.make(lambda name, rows: torch.full((rows.stop - rows.start, 1), float(len(name))))
    assert torch.equal(made["one"], torch.full((6, 2), 3.0))
    assert torch.equal(made["other"], torch.full((3, 4), 5.0))


def test_blocks_of_a_change_have_equal_length() -> None:
    change = torch.randn(8, 3) * torch.tensor([1.0, 1, 1, 1, 9, 9, 9, 9])[:, None]
    norms = of_equal_length(change, 2).view(2, -1).norm(dim=1)
    assert torch.allclose(norms, torch.full((2,), 2.0))


def test_a_run_cannot_be_resumed_with_what_it_does_not_remember(tmp_path: Path) -> None:
    ocra.train(tiny(images=320), tmp_path / "run", processes=1, quiet=True)
    (tmp_path / "run" / "summary.json").unlink()
    write_config(tmp_path / "run" / "config.json", tiny(images=640, whitening=0.01))
    with pytest.raises(OcraError, match=r"without training\.whitening"):
        ocra.resume(tmp_path / "run", quiet=True)


@pytest.mark.slow
def test_a_tiny_model_learns_with_whitened_steps(tmp_path: Path) -> None:
    experiment = tiny(images=6_000, learning_rate=1e-2, whitening=0.02, validate_images=500, test_images=500)
    summary = ocra.train(experiment, tmp_path / "run", processes=1, quiet=True)
    assert summary["test"]["last"]["exact_error"] < 0.3  # chance: 0.9
    start, end = build_model(experiment), ocra.OCRA.from_pretrained(tmp_path / "run" / "weights" / "last")
    assert not torch.allclose(start.encoder.weight_hh, end.encoder.weight_hh)
