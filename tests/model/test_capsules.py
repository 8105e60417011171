"""Squash and dynamic routing."""

from __future__ import annotations

import torch
from torch import Tensor

from ocra.model.capsules import CapsuleLayer, max_min_coupling, route, squash

BATCH, PRIMARY, OBJECTS, SIZE = 2, 5, 4, 3


def predictions(objects: int = OBJECTS) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = BATCH, PRIMARY, objects, SIZE
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


def test_squash_works_along_the_elements_of_a_capsule() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    squashed, lengths = squash(vectors)
    torch.testing.assert_close(lengths, torch.tensor([25 / 26, 0.25 / 1.25]))
    torch.testing.assert_close(squashed, torch.tensor([[0.6, 0.8], [0.6, 0.8]]) * lengths[:, None])


def test_lengths_are_the_lengths_of_the_squashed_vectors_and_below_one() -> None:
    vectors = torch.randn(100, 16, dtype=torch.float64) * torch.logspace(-3, 3, 100)[:, None]
    squashed, lengths = squash(vectors)
    torch.testing.assert_close(lengths, squashed.norm(dim=-1), rtol=1e-6, atol=1e-9)
    assert (lengths < 1).all()


def test_a_capsule_of_length_zero_has_a_finite_gradient() -> None:
    vectors = torch.zeros(2, 16, requires_grad=True)
    squashed, lengths = squash(vectors)
    (squashed.sum() + lengths.sum()).backward()
    assert lengths.abs().max() == 0
    assert vectors.grad is not None and vectors.grad.isfinite().all()


def test_gradients_of_squash_are_right() -> None:
    vectors = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squash, (vectors,))


def test_gradients_of_one_routing_are_right() -> None:
    assert torch.autograd.gradcheck(lambda votes: route(votes, 1)[:2], (predictions(),))


def test_gradients_of_votes_are_right() -> None:
    layer = CapsuleLayer(PRIMARY, 4, OBJECTS, SIZE, scale=1.0).double()
    capsules = torch.randn(BATCH, PRIMARY, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p, _: layer(p, 1)[:2], (capsules, layer.weight))


def test_gradients_flow_through_the_last_weighted_sum_only() -> None:
    """The same gradients as with the final couplings given as constants, and those pass gradcheck."""
    votes = predictions()
    capsules, lengths, couplings = route(votes, 3)
    assert not couplings.requires_grad

    def last_pass(votes: Tensor) -> tuple[Tensor, Tensor]:
        return squash((couplings[..., None] * votes).sum(1))

    assert torch.autograd.gradcheck(last_pass, (votes,))
    ours = torch.autograd.grad(capsules.sum() + lengths.square().sum(), votes)
    held = last_pass(votes)
    theirs = torch.autograd.grad(held[0].sum() + held[1].square().sum(), votes)
    torch.testing.assert_close(ours, theirs)


def test_one_routing_couples_uniformly() -> None:
    assert (route(predictions(), 1)[2] == 1 / OBJECTS).all()


def test_couplings_span_the_bounds_over_the_object_capsules() -> None:
    couplings = route(predictions(), 3)[2]
    torch.testing.assert_close(couplings.amax(2), torch.ones(BATCH, PRIMARY, dtype=torch.float64))
    torch.testing.assert_close(couplings.amin(2), torch.full((BATCH, PRIMARY), 0.01, dtype=torch.float64))


def test_equal_logits_keep_the_first_couplings() -> None:
    assert (max_min_coupling(torch.full((BATCH, PRIMARY, OBJECTS), 3.0)) == 1 / OBJECTS).all()


def test_routing_of_equal_votes_is_finite_with_finite_gradients() -> None:
    votes = torch.ones(BATCH, PRIMARY, OBJECTS, SIZE, requires_grad=True)
    capsules, lengths, couplings = route(votes, 3)
    (capsules.sum() + lengths.sum()).backward()
    assert (couplings == 1 / OBJECTS).all()
    assert votes.grad is not None and votes.grad.isfinite().all()


def test_a_single_object_capsule_gets_everything() -> None:
    capsules, lengths, couplings = route(predictions(objects=1), 3)
    assert (couplings == 1).all()
    assert capsules.isfinite().all() and lengths.isfinite().all()


def test_routing_prefers_the_capsule_its_votes_agree_on() -> None:
    """All primary capsules vote alike for capsule 0 and at random for the others."""
    votes = torch.randn(1, 20, 3, 8, generator=torch.Generator().manual_seed(0))
    votes[:, :, 0] = 1.0
    _, lengths, couplings = route(votes, 3)
    assert lengths.argmax(1).item() == 0
    assert couplings[0, :, 0].mean() > 0.9 > 0.6 > couplings[0, :, 1:].mean()
