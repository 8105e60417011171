"""Margin loss, reconstruction target, readout loss: as the paper has them, and finite where it divides by zero."""

from __future__ import annotations

import math

import pytest
import torch

from ocra.data.task import Batch
from ocra.errors import OcraError
from ocra.losses import (
    LossConfig,
    LossWeights,
    compute_losses,
    count_cross_entropy,
    image_losses,
    margin_losses,
    normalised_scores,
    readout_losses,
    reconstruction_target,
    sequence_cross_entropy,
    stretched_contrast,
)
from ocra.model.capsules import squash
from ocra.model.trace import Trace

COUNTED = LossConfig(normalise_scores=False)


def paper_margin_loss(y_pred: torch.Tensor, y_true: torch.Tensor) -> torch.Tensor:
    """The listing in the paper's supplement, in loops."""
    m, lam_abs, total = 0.1, 0.5, 0.0
    for predicted, true in zip(y_pred.tolist(), y_true.tolist(), strict=True):
        for score, count in zip(predicted, true, strict=True):
            total += min(max(count, 0), 1) * max(count - m - score, 0) ** 2
            total += lam_abs * max(1 - count, 0) * max(score - m, 0) ** 2
    return torch.tensor(total / len(y_pred))


def trace_of(lengths: torch.Tensor, canvas: torch.Tensor, attended: torch.Tensor | None = None) -> Trace:
    """A trace whose classes are all capsules but none for the background."""
    return Trace(lengths.sum(1), canvas, lengths, attended=attended)


def test_margin_loss_is_that_of_the_paper() -> None:
    scores, counts = 2.2 * torch.rand(20, 10), torch.randint(0, 3, (20, 10)).float()
    assert torch.allclose(margin_losses(scores, counts).mean(), paper_margin_loss(scores, counts))


def test_scores_within_the_margin_cost_nothing() -> None:
    assert margin_losses(torch.tensor([[0.9, 0.1, 1.9]]), torch.tensor([[1.0, 0.0, 2.0]])) == 0


def test_a_score_of_half_an_object_too_much_costs_nothing_unless_asked_for() -> None:
    scores, counts = torch.tensor([[1.7, 2.4, 0.0]]), torch.tensor([[1.0, 2.0, 0.0]])
    assert margin_losses(scores, counts) == 0
    assert margin_losses(scores, counts, over_count=0.5).item() == pytest.approx(0.5 * 0.2**2)
    stricter = margin_losses(scores, counts, over_count=0.5, over_count_from=0.1)
    assert stricter.item() > margin_losses(scores, counts, over_count=0.5).item()


def test_scores_in_the_shares_of_the_counts_cost_least() -> None:
    counts = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]])
    entropy = math.log(2) / 2  # two classes in the first image, one in the second
    assert count_cross_entropy(3 * counts, counts).item() == pytest.approx(entropy, abs=1e-3)
    assert (
        count_cross_entropy(torch.tensor([[1.0, 1.0, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0]]), counts)
        > entropy + 0.1
    )


def test_cross_entropy_is_free_without_objects() -> None:
    assert count_cross_entropy(torch.rand(4, 11), torch.zeros(4, 11)) == 0


def test_a_readout_at_its_targets_costs_little_and_one_below_zero_a_finite_amount() -> None:
    sequence = torch.randint(0, 11, (4, 5))
    targets = torch.nn.functional.one_hot(sequence, 11).float()
    assert sequence_cross_entropy(targets, sequence) < 0.01
    assert (
        sequence_cross_entropy(-targets, sequence).isfinite()
        and sequence_cross_entropy(-targets, sequence) > 40
    )


def test_a_capsule_that_is_wrongly_silent_learns_from_cross_entropy() -> None:
    vectors = torch.full((1, 3, 2), 0.01, requires_grad=True)
    _, lengths = squash(vectors)
    scores, counts = lengths + torch.tensor([[0.0, 0.9, 0.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    (by_margin,) = torch.autograd.grad(margin_losses(scores, counts).mean(), vectors, retain_graph=True)
    (by_entropy,) = torch.autograd.grad(count_cross_entropy(scores, counts), vectors)
    assert (by_entropy[0, 0] < 10 * by_margin[0, 0]).all() and (by_margin[0, 0] < 0).all()


def test_normalisation_makes_the_largest_score_one() -> None:
    trace = trace_of(torch.rand(5, 3, 10), torch.zeros(5, 1, 4, 4))
    assert torch.allclose(normalised_scores(trace).amax(1), torch.ones(5))


def test_normalisation_counts_the_background_capsule() -> None:
    lengths = torch.tensor([[[0.2, 0.1, 0.8]]])
    trace = Trace(lengths[:, :, :2].sum(1), torch.zeros(1, 1, 4, 4), lengths)
    assert torch.allclose(normalised_scores(trace), torch.tensor([[0.25, 0.125]]))


def test_masks_of_paper_and_authors() -> None:
    images, attended = torch.rand(2, 1, 4, 4), 3 * torch.rand(2, 1, 4, 4)
    mask = attended / attended.amax((1, 2, 3), keepdim=True)
    assert torch.equal(reconstruction_target(images, None, "none"), images)
    assert torch.allclose(reconstruction_target(images, attended, "paper"), mask * images)
    assert torch.allclose(
        reconstruction_target(images, attended, "authors"), 0.3 * images + 0.7 * mask * images
    )


def test_a_mask_needs_an_attended_trace() -> None:
    with pytest.raises(OcraError, match="attended=True"):
        reconstruction_target(torch.rand(1, 1, 4, 4), None, "paper")


def test_readout_loss_is_the_margin_loss_on_all_outputs() -> None:
    readout, sequence = torch.rand(4, 5, 11), torch.randint(0, 11, (4, 5))
    targets = torch.nn.functional.one_hot(sequence, 11).float().reshape(4, 55)
    assert torch.allclose(
        readout_losses(readout, sequence).mean(), paper_margin_loss(readout.reshape(4, 55), targets)
    )


def test_total_is_the_weighted_sum_of_its_parts() -> None:
    batch = Batch(torch.rand(4, 1, 4, 4), torch.zeros(4, 14), torch.randint(0, 11, (4, 5)))
    lengths = torch.rand(4, 12, 14)
    trace = Trace(lengths.sum(1), torch.rand(4, 1, 4, 4), lengths, readout=torch.rand(4, 5, 11))
    losses = compute_losses(trace, batch, COUNTED, LossWeights(200.0))
    assert torch.allclose(losses.total, losses.margin + 200 * losses.reconstruction + 10 * losses.readout)
    assert losses.readout > 0 and losses.cross_entropy == 0


def test_cross_entropy_is_of_scores_and_readout() -> None:
    sequence = torch.randint(0, 11, (4, 5))
    batch = Batch(torch.rand(4, 1, 4, 4), torch.randint(0, 2, (4, 14)).float(), sequence)
    lengths = torch.rand(4, 12, 14)
    trace = Trace(lengths.sum(1), torch.rand(4, 1, 4, 4), lengths, readout=torch.randn(4, 5, 11))
    without = compute_losses(trace, batch, COUNTED, LossWeights())
    losses = compute_losses(trace, batch, COUNTED, LossWeights(cross_entropy=0.5))
    assert trace.readout is not None
    expected = count_cross_entropy(trace.scores, batch.counts) + sequence_cross_entropy(
        trace.readout, sequence
    )
    assert torch.allclose(losses.cross_entropy, expected)
    assert torch.allclose(losses.total, without.total + 0.5 * losses.cross_entropy)


def test_contrast_is_the_same_for_dark_on_light_and_light_on_dark() -> None:
    image = torch.full((1, 1, 6, 6), 0.3)
    image[..., 2:4, 2:4] = 0.7
    expected = torch.zeros(1, 1, 6, 6)
    expected[..., 2:4, 2:4] = 1
    for shown in (image, 1 - image, 0.5 * image):
        assert torch.allclose(stretched_contrast(shown), expected, atol=1e-6)
    assert stretched_contrast(0.05 * image).max() < 0.25 and not stretched_contrast(0 * image).any()


def test_a_canvas_of_the_contrast_costs_nothing_where_that_is_reconstructed() -> None:
    batch = Batch(torch.rand(2, 1, 6, 6), torch.eye(10)[:2])
    trace = trace_of(torch.rand(2, 3, 10), stretched_contrast(batch.images), None)
    for of, free in (("contrast", True), ("image", False)):
        losses = compute_losses(trace, batch, LossConfig(reconstruction_of=of), LossWeights())  # type: ignore[arg-type]
        assert (losses.reconstruction == 0) == free


def test_early_answers_are_the_margin_loss_on_the_scores_after_each_glimpse() -> None:
    lengths, counts = torch.rand(4, 3, 11), torch.randint(0, 2, (4, 10)).float()  # one background capsule
    batch = Batch(torch.rand(4, 1, 4, 4), counts)
    trace = Trace(lengths[:, :, :10].sum(1), torch.rand(4, 1, 4, 4), lengths)
    so_far = [Trace(lengths[:, :t, :10].sum(1), trace.canvas, lengths[:, :t]) for t in (1, 2, 3)]
    for config in (COUNTED, LossConfig()):
        without = compute_losses(trace, batch, config, LossWeights())
        losses = compute_losses(trace, batch, config, LossWeights(early_answers=0.5))
        after_each = [compute_losses(part, batch, config, LossWeights()).margin for part in so_far]
        assert torch.allclose(losses.early_answers, torch.stack(after_each).mean())
        assert torch.allclose(losses.total, without.total + 0.5 * losses.early_answers)
        assert without.early_answers == 0


@pytest.mark.parametrize("entropy", [0.0, 0.5])
@pytest.mark.parametrize("mask", ["none", "authors", "paper"])
def test_black_image_and_silent_capsules_give_finite_loss_and_gradient(mask: str, entropy: float) -> None:
    lengths = torch.zeros(2, 3, 10, requires_grad=True)
    canvas = torch.zeros(2, 1, 4, 4, requires_grad=True)
    batch = Batch(torch.zeros(2, 1, 4, 4), torch.eye(10)[:2])
    trace = trace_of(lengths, canvas, torch.zeros(2, 1, 4, 4))
    config = LossConfig(reconstruction_mask=mask)  # type: ignore[arg-type]
    loss = compute_losses(
        trace, batch, config, LossWeights(cross_entropy=entropy, early_answers=entropy)
    ).total
    loss.backward()
    assert loss.isfinite()
    assert lengths.grad is not None and lengths.grad.isfinite().all()
    assert canvas.grad is not None and canvas.grad.isfinite().all()


def test_the_loss_of_each_image_is_what_is_wrong_with_its_answer() -> None:
    counts, sequence = torch.eye(14)[:3], torch.randint(0, 11, (3, 5))
    lengths = counts[:, None].clone()
    lengths[1] = 0  # the second answer says nothing
    readout = torch.nn.functional.one_hot(sequence, 11).float()
    readout[2] = 0  # the third number is not read
    trace = Trace(lengths.sum(1), torch.rand(3, 1, 4, 4), lengths, readout=readout)
    right, silent, unread = image_losses(trace, Batch(torch.rand(3, 1, 4, 4), counts, sequence), COUNTED)
    assert right == 0 and silent > 0.5 and unread > 10 * silent


def test_an_object_that_is_counted_twice_makes_an_image_hard() -> None:
    counts = torch.eye(10)[:2]
    lengths = counts[:, None] * torch.tensor([1.0, 2.0])[:, None, None]
    trace, batch = (
        Trace(lengths.sum(1), torch.rand(2, 1, 4, 4), lengths),
        Batch(torch.rand(2, 1, 4, 4), counts),
    )
    assert image_losses(trace, batch, COUNTED).tolist() == [0, 0]
    assert image_losses(trace, batch, COUNTED, over_count=0.5).tolist() == pytest.approx([0, 0.5 * 0.5**2])


def test_a_mask_that_there_is_not_is_refused() -> None:
    with pytest.raises(OcraError, match=r"loss\.reconstruction_of"):
        LossConfig(reconstruction_of="edges")  # type: ignore[arg-type]
    with pytest.raises(OcraError, match=r"loss\.reconstruction_mask"):
        LossConfig(reconstruction_mask="both")  # type: ignore[arg-type]
