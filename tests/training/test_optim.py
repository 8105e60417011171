"""Shampoo is an optimiser as PyTorch has them; the parameters of a model are one tensor with an owner for each part."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tiny_runs import TINY, tiny, write_config

import ocra
from ocra.errors import OcraError
from ocra.model.ocra import OCRA
from ocra.training.distributed import Group
from ocra.training.init import build_model
from ocra.training.optim import FlatParameters, Optimisers, Shampoo, inverse_root, shampoo_blocks


def correlated(rows: int, columns: int) -> torch.Tensor:
    """A gradient whose directions differ in size a hundredfold."""
    torch.manual_seed(0)
    turned = torch.linalg.qr(torch.randn(columns, columns)).Q
    return torch.randn(rows, columns) * torch.logspace(0, -2, columns) @ turned


def matrix(rows: int, columns: int, blocks: int = 1) -> tuple[torch.nn.Parameter, Shampoo]:
    """A matrix of zeros and its optimiser."""
    weight = torch.nn.Parameter(torch.zeros(rows, columns))
    return weight, Shampoo([{"params": [weight], "blocks": blocks}], lr=0.1)


def test_an_inverse_root_is_one() -> None:
    gradient = correlated(64, 16)
    covariance = gradient.T @ gradient
    root = inverse_root(covariance, 1e-5)
    assert torch.allclose(root @ covariance @ root, torch.eye(16), atol=1e-2)
    assert inverse_root(torch.zeros(4, 4), 1e-5).isfinite().all()


def test_a_step_treats_all_directions_alike_and_has_its_length_in_each_block() -> None:
    gradient = correlated(64, 16) * torch.logspace(0, -1, 64)[:, None]
    weight, shampoo = matrix(64, 16, blocks=4)
    weight.grad = gradient
    shampoo.step()
    sizes, before = torch.linalg.svdvals(weight.detach()), torch.linalg.svdvals(gradient)
    assert before[-1] < 0.05 * before[0] and sizes[-1] > 0.4 * sizes[0]
    gates = weight.detach().unflatten(0, (4, -1)).flatten(1)
    assert torch.allclose(gates.norm(dim=1), torch.full((4,), 0.1 * 16**0.5))
    assert (gradient * weight.detach()).sum() < 0  # downhill


def test_two_steps_go_in_one_direction() -> None:
    weight, shampoo = matrix(8, 4)
    torch.manual_seed(0)
    moves = []
    for _ in range(4):
        before, weight.grad = weight.detach().clone(), torch.randn(8, 4)
        shampoo.step()
        moves.append(weight.detach() - before)
    assert torch.allclose(moves[0], moves[1], atol=1e-6) and torch.allclose(moves[2], moves[3], atol=1e-6)
    assert not torch.allclose(moves[1], moves[2], atol=1e-2)


def test_a_gradient_of_zero_makes_no_step() -> None:
    weight, shampoo = matrix(8, 4)
    weight.grad = torch.zeros(8, 4)
    shampoo.step()
    assert not weight.any()


def test_a_state_dict_holds_all_that_shampoo_remembers() -> None:
    (one, shampoo), (other, again) = matrix(8, 4), matrix(8, 4)
    gradients = torch.randn(14, 8, 4)
    for k, gradient in enumerate(gradients):
        if k == 7:
            other.data.copy_(one.data)
            again.load_state_dict(copy.deepcopy(shampoo.state_dict()))
        one.grad = other.grad = gradient
        shampoo.step()
        if k >= 7:
            again.step()
    assert torch.equal(one, other)


def test_shampoo_moves_the_lstms_and_the_primary_capsules_but_no_matrix_too_wide_for_it() -> None:
    blocks = shampoo_blocks(OCRA(TINY.model))
    names = [f"{cell}.weight_{kind}" for cell in ("encoder", "decoder") for kind in ("ih", "hh")]
    assert blocks == {**dict.fromkeys(names, 4), "primary.weight": 1}
    with torch.device("meta"):
        wide = OCRA(ocra.preset("multimnist-recurrent-3").model)
    assert "encoder.weight_ih" not in shampoo_blocks(wide) and "encoder.weight_hh" in shampoo_blocks(wide)


def test_every_parameter_has_one_owner_and_one_optimiser() -> None:
    """Of processes that are not there: memory is not shared and nothing is sent before the first step."""
    sizes, owned, moved = [], [], []
    for rank in range(3):
        model = OCRA(TINY.model)
        group = Group(rank, 3, one_machine=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Group, "barrier", lambda self: None)
            flat = FlatParameters(model, group)
        names = {id(value): name for name, value in model.named_parameters()}
        assert list(flat.parameters) == list(flat.owner) and flat.slices[rank] == flat.own
        owned += [names[id(value)] for value in flat.owned().values()]
        sizes.append(sum(value.numel() for value in flat.owned().values()))
        for optimiser in Optimisers(model, flat, shampoo=True).named.values():
            moved += [names[id(value)] for part in optimiser.param_groups for value in part["params"]]
    everything = sorted(name for name, _ in OCRA(TINY.model).named_parameters())
    assert sorted(owned) == sorted(moved) == everything
    assert max(sizes) < 0.5 * sum(sizes)
    assert flat.slices[0].start == 0 and flat.slices[-1].stop == flat.size
    assert all(one.stop == other.start for one, other in zip(flat.slices, flat.slices[1:], strict=False))


def test_flat_parameters_leave_the_model_as_it_was_and_gather_its_gradient() -> None:
    model, images = OCRA(TINY.model), torch.rand(4, *TINY.model.image_shape)
    before = model(images)
    before.canvas.sum().backward()
    expected = {
        name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None
    }
    flat = FlatParameters(model, Group())
    after = model(images)
    assert torch.equal(after.scores, before.scores)
    after.canvas.sum().backward()
    views = flat.unflatten(flat.gradient)
    assert all(torch.equal(views[name], value) for name, value in expected.items())
    norm = flat.reduce()
    assert norm == pytest.approx(torch.stack([v.norm() for v in expected.values()]).norm().item(), rel=1e-5)
    flat.values.zero_()
    assert all(not value.any() for value in model.parameters())


def test_a_reduced_gradient_is_the_sum_over_the_rows_of_all_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Group, "barrier", lambda self: None)
    monkeypatch.setattr(Group, "all_reduce", lambda self, tensor: tensor)
    monkeypatch.setattr(Group, "buffers", lambda self, count, length: (torch.zeros(count, length), True))
    flat = FlatParameters(OCRA(TINY.model), Group(1, 2))
    flat._gradients.copy_(torch.arange(2)[:, None] + 1.0)  # rows of 1 and of 2
    norm = flat.reduce()
    assert (flat.gradient[flat.own] == 3).all() and (flat.gradient[flat.slices[0]] == 2).all()
    assert norm == pytest.approx(3 * (flat.own.stop - flat.own.start) ** 0.5)


def test_holding_other_weights_ends_with_the_old_ones() -> None:
    model = OCRA(TINY.model)
    flat = FlatParameters(model, Group())
    before = flat.values.clone()
    with pytest.raises(KeyError), flat.holding(torch.zeros(flat.size)):
        assert not model.primary.weight.any()
        raise KeyError
    assert torch.equal(flat.values, before)


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0, 2.0])
def test_attention_learns_at_a_rate_of_its_own(rate: float) -> None:
    model = OCRA(TINY.model)
    flat = FlatParameters(model, Group())
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    flat.gradient.fill_(1.0)
    Optimisers(model, flat, shampoo=False).step(tiny(attention_lr_mult=rate).stages[0], 0.1, 0.0)
    for name, value in model.named_parameters():
        expected = 0.1 * rate if "_attention." in name else 0.1
        assert torch.allclose(before[name] - value, torch.full_like(value, expected), atol=1e-5), name


def test_a_run_cannot_be_resumed_with_what_it_does_not_remember(tmp_path: Path) -> None:
    ocra.train(tiny(images=64), tmp_path / "run", processes=1, quiet=True)
    (tmp_path / "run" / "summary.json").unlink()
    write_config(tmp_path / "run" / "config.json", tiny(images=640, shampoo_lr=0.01))
    with pytest.raises(OcraError, match=r"does not fit its config\.json \(shampoo\..* differs\)"):
        ocra.resume(tmp_path / "run", quiet=True)


@pytest.mark.slow
def test_a_tiny_model_learns_with_shampoo(tmp_path: Path) -> None:
    experiment = tiny(images=6_000, lr=(1e-2, 0.0), shampoo_lr=(0.02, 0.0), run={"test_images": 500})
    summary = ocra.train(experiment, tmp_path / "run", processes=1, quiet=True)
    assert summary["test"]["last"]["exact_error"] < 0.3  # chance: 0.9
    start, end = build_model(experiment), OCRA.from_pretrained(tmp_path / "run" / "weights" / "last")
    assert not torch.allclose(start.encoder.weight_hh, end.encoder.weight_hh)
