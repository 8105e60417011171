"""Attention supervision: nothing to pay for looking well, in whatever order, and a pull that leads there."""

from __future__ import annotations

import pytest
import torch

from ocra import OCRA, Experiment, ModelConfig, Stage
from ocra.data.task import Annotations, Batch
from ocra.errors import OcraError
from ocra.losses import (
    CLOSE_LOOK,
    WHOLE_IMAGE,
    LossConfig,
    LossWeights,
    attention_supervision_loss,
    check_attention_supervision,
    compute_losses,
)
from ocra.model.trace import Trace, Windows

SIZE = 18
IMAGE = (100, 100)
BOXES = torch.tensor([[10, 20, 28, 28], [60, 50, 28, 28]])
MIDDLES = [(23.5, 33.5), (73.5, 63.5)]


def objects_at(boxes: torch.Tensor = BOXES, classes: tuple[int, ...] = (3, 7)) -> Annotations:
    return Annotations(torch.zeros(1, len(boxes), 1, *IMAGE), boxes[None], torch.tensor([classes]))


def windows_on(*centers: tuple[float, float], width: float = CLOSE_LOOK * 28) -> Windows:
    """A first window on the whole image and further ones on these places."""
    widths = torch.tensor([[WHOLE_IMAGE * 100, *[width] * len(centers)]])
    center = torch.tensor([[(49.5, 49.5), *centers]])
    return Windows(center, widths / (SIZE - 1), torch.ones_like(widths))


def loss(windows: Windows, objects: Annotations | None = None) -> float:
    return attention_supervision_loss(windows, objects or objects_at(), IMAGE, SIZE).item()


def test_looking_at_all_and_then_at_each_object_costs_nothing_in_any_order() -> None:
    one, other = MIDDLES
    assert loss(windows_on(one, one, other, other)) == pytest.approx(0, abs=1e-6)
    assert loss(windows_on(other, other, one, one)) == pytest.approx(0, abs=1e-6)


def test_an_object_that_is_left_out_costs() -> None:
    one, other = MIDDLES
    assert loss(windows_on(one, one, one, one)) > 0.5
    assert loss(windows_on(one, other, one, other)) > 0.5  # one after the other, not to and fro
    assert loss(windows_on(one, one, other, other, width=60)) > 0.1


def test_the_first_look_is_at_the_whole_image() -> None:
    seen = windows_on(*[MIDDLES[0]] * 2, *[MIDDLES[1]] * 2)
    center = seen.center.clone()
    center[:, 0, 0] += 20
    assert loss(Windows(center, seen.stride, seen.sigma)) == pytest.approx(loss(seen) + 0.04, abs=1e-4)
    single = Windows(seen.center[:, :1], seen.stride[:, :1] / 2, seen.sigma[:, :1])
    assert loss(single) == pytest.approx(torch.tensor(2.0).log().square().item(), rel=1e-4)


def test_the_glimpses_of_a_missing_object_are_free() -> None:
    alone = objects_at(BOXES * torch.tensor([[1], [0]]), (3, -1))
    assert loss(windows_on(*[MIDDLES[0]] * 2, (3.0, 3.0), (90.0, 7.0)), alone) == pytest.approx(0, abs=1e-6)
    assert loss(windows_on((3.0, 3.0), (90.0, 7.0), (3.0, 3.0), (90.0, 7.0)), alone) > 0.5


def test_what_has_an_order_is_looked_at_in_that_order() -> None:
    one, other = MIDDLES
    for order, right in (((one, one, other, other), True), ((other, other, one, one), False)):
        cost = attention_supervision_loss(windows_on(*order), objects_at(), IMAGE, SIZE, in_order_over=5)
        assert (cost < 1e-5) == right


def test_with_fewer_glimpses_at_first_the_order_keeps_its_pace() -> None:
    one, other = MIDDLES
    for planned, right in ((5, (one, one)), (3, (one, other))):
        for centers in ((one, one), (one, other)):
            cost = attention_supervision_loss(
                windows_on(*centers), objects_at(), IMAGE, SIZE, in_order_over=planned
            )
            assert (cost < 1e-5) == (centers == right)


def test_a_tall_narrow_object_asks_for_a_window_as_large_as_its_box() -> None:
    tall = objects_at(torch.tensor([[30, 20, 16, 49]]), (3,))
    middle = (37.5, 44.0)
    costs = [loss(windows_on(middle, width=CLOSE_LOOK * width), tall) for width in (16, 28, 49)]
    assert costs[1] == pytest.approx(0, abs=1e-6) and costs[0] > 0.05 and costs[2] > 0.05


def test_descending_leads_to_both_objects() -> None:
    parameters = torch.tensor([[49.5, 49.5], [45, 45], [45, 45], [55, 55], [55, 55]]).requires_grad_()
    stride = torch.full((1, 5), 5.0)
    optimiser = torch.optim.Adam([parameters], lr=1.0)
    for _ in range(150):
        optimiser.zero_grad()
        attention_supervision_loss(
            Windows(parameters[None], stride, stride), objects_at(), IMAGE, SIZE
        ).backward()
        optimiser.step()
    wanted = torch.tensor([(49.5, 49.5), *[MIDDLES[0]] * 2, *[MIDDLES[1]] * 2])
    assert torch.allclose(parameters, wanted, atol=2.0)


def test_too_many_objects_are_refused_and_those_of_unknown_place() -> None:
    with pytest.raises(OcraError, match="up to 5 objects in an image, not 6"):
        check_attention_supervision(objects_at(BOXES[:1].repeat(6, 1), (1,) * 6), "cluttered")
    with pytest.raises(OcraError, match="which the task folder does not know"):
        check_attention_supervision(None, "folder")


def test_supervision_is_part_of_the_loss_by_its_weight() -> None:
    lengths, canvas = torch.rand(1, 5, 10), torch.zeros(1, 1, *IMAGE)
    batch = Batch(canvas, torch.ones(1, 10), annotations=objects_at())
    trace = Trace(
        lengths.sum(1), canvas, lengths, glimpses=torch.zeros(1, 5, 1, SIZE, SIZE),
        read_windows=windows_on(*[MIDDLES[0]] * 4),
    )  # fmt: skip
    free, supervised = (
        compute_losses(trace, batch, LossConfig(), LossWeights(attention_supervision=weight))
        for weight in (0.0, 2.0)
    )
    assert free.attention_supervision == 0 and supervised.attention_supervision > 0
    assert torch.allclose(supervised.total, free.total + 2 * supervised.attention_supervision)
    bare = Batch(canvas, torch.ones(1, 10))
    with pytest.raises(OcraError, match="annotated batches"):
        compute_losses(trace, bare, LossConfig(), LossWeights(attention_supervision=1.0))


def test_detached_windows_learn_from_supervision_alone() -> None:
    torch.manual_seed(0)
    model = OCRA(ModelConfig(height=40, width=40, glimpses=3, hidden=16))
    images = torch.rand(2, 1, 40, 40)

    def gradient(*, detach: bool, supervised: bool) -> torch.Tensor:
        trace = model(images, record=True, detach_windows=detach)
        assert trace.read_windows is not None
        aim = trace.read_windows.center.sum() if supervised else trace.scores.sum()
        (found,) = torch.autograd.grad(aim, [model.read_attention.weight], allow_unused=True)
        return torch.zeros(()) if found is None else found.abs().sum()

    assert gradient(detach=False, supervised=False) > 0
    assert gradient(detach=True, supervised=False) == 0
    assert gradient(detach=True, supervised=True) > 0
    assert torch.equal(model(images, detach_windows=True).scores, model(images).scores)


def test_windows_are_detached_only_where_supervision_teaches_them() -> None:
    with pytest.raises(OcraError, match="nothing teaches where to look"):
        Stage(detach_windows=True)
    stage = Stage(detach_windows=True, attention_supervision=(2.0, 0.5))
    assert Experiment(stages=(stage,)).check()
    with pytest.raises(OcraError, match="networks with read windows"):
        Experiment(model=ModelConfig(attention=False), stages=(stage,)).check()
