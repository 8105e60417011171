"""Tasks that are made of digits: what the images are made of, and how they are distributed."""

import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ocra.data import MNIST, AnyDigits, ClutteredMNIST, MultiMNIST, Task, make_task, task_config
from ocra.data.digits import digit_pool
from ocra.errors import OcraError, UsageError


def gather_annotations(task: Task, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes [count, objects, 4] and classes [count, objects] of the first images."""
    batches = [
        task.batch(range(start, start + 1000), annotations=True).annotations
        for start in range(0, count, 1000)
    ]
    return (
        torch.cat([parts.boxes for parts in batches if parts]).numpy(),
        torch.cat([parts.classes for parts in batches if parts]).numpy(),
    )


def assert_uniform(values: np.ndarray, possible: int) -> None:
    """Pearson's chi-squared, at five standard deviations."""
    observed = np.bincount(values.reshape(-1), minlength=possible)
    assert len(observed) == possible, "a value outside the range"
    expected = values.size / possible
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < possible - 1 + 5 * np.sqrt(2 * (possible - 1))


@pytest.fixture(scope="module")
def multimnist_annotations(digits: str) -> tuple[np.ndarray, np.ndarray]:
    return gather_annotations(MultiMNIST(digits=digits), 12_000)


def test_multimnist_classes_differ(multimnist_annotations: tuple[np.ndarray, np.ndarray]) -> None:
    _, classes = multimnist_annotations
    assert (classes[:, 0] != classes[:, 1]).all()
    assert set(classes[:, 1]) == set(range(10))


def test_multimnist_boxes_overlap_by_80_percent_on_average(
    multimnist_annotations: tuple[np.ndarray, np.ndarray],
) -> None:
    boxes, _ = multimnist_annotations
    shared = np.prod(28 - np.abs(boxes[:, 0, :2] - boxes[:, 1, :2]), axis=1) / 28**2
    assert shared.mean() == pytest.approx(0.80, abs=0.01)


def test_multimnist_with_shifts_of_6_pixels_overlaps_by_72_percent(digits: str) -> None:
    boxes, _ = gather_annotations(MultiMNIST(digits=digits, split="test", max_shift=6), 6_000)
    shared = np.prod(28 - np.abs(boxes[:, 0, :2] - boxes[:, 1, :2]), axis=1) / 28**2
    assert shared.mean() == pytest.approx(0.72, abs=0.01)
    assert boxes[..., :2].min() == -2
    assert boxes[..., :2].max() == 10


def test_multimnist_positions_are_uniform(multimnist_annotations: tuple[np.ndarray, np.ndarray]) -> None:
    boxes, _ = multimnist_annotations
    for object_number in range(2):
        for axis in range(2):
            assert_uniform(boxes[:, object_number, axis], possible=9)


def test_multimnist_partners_are_uniform_over_the_other_digits() -> None:
    task = MultiMNIST(digits="glyphs")
    _, classes = gather_annotations(task, 10_000)
    assert_uniform((classes[:, 1] - classes[:, 0]) % 10 - 1, possible=9)


def test_cluttered_positions_are_uniform_and_inside(digits: str) -> None:
    boxes, classes = gather_annotations(ClutteredMNIST(digits=digits), 4_000)
    for object_number in range(2):
        for axis in range(2):
            assert_uniform(boxes[:, object_number, axis], possible=73)
    assert ((boxes[..., :2] + boxes[..., 2:]) <= 100).all()
    repeated = (classes[:, 0] == classes[:, 1]).mean()
    assert repeated == pytest.approx(0.1, abs=0.03)


def test_cluttered_counts_a_repeated_class_twice(digits: str) -> None:
    batch = ClutteredMNIST(digits=digits).batch(range(500), annotations=True)
    assert batch.annotations is not None
    same = batch.annotations.classes[:, 0] == batch.annotations.classes[:, 1]
    assert same.any()
    assert (batch.counts[same].max(dim=1).values == 2).all()
    assert (batch.counts.sum(dim=1) == 2).all()


def test_annotations_add_up_to_the_multimnist_image(digits: str) -> None:
    for max_shift in (0, 4, 6):
        batch = MultiMNIST(digits=digits, max_shift=max_shift).batch(range(50), annotations=True)
        assert batch.annotations is not None
        together = batch.annotations.layers.sum(dim=1).clamp(max=1)
        torch.testing.assert_close(together, batch.images, atol=1e-6, rtol=0)


def test_annotations_lie_in_their_boxes(digits: str) -> None:
    for task in (MultiMNIST(digits=digits, max_shift=6), ClutteredMNIST(digits=digits)):
        parts = task.batch(range(40), annotations=True).annotations
        assert parts is not None
        for layers, boxes in zip(parts.layers, parts.boxes, strict=True):
            for layer, (x, y, width, height) in zip(layers[:, 0], boxes.tolist(), strict=True):
                inside = layer[max(0, y) : y + height, max(0, x) : x + width]
                assert (inside > 0).sum() == (layer > 0).sum() > 0


def test_clutter_is_six_fragments_of_8_pixels(digits: str) -> None:
    cluttered = ClutteredMNIST(digits=digits).batch(range(300), annotations=True)
    assert cluttered.annotations is not None
    fragments = cluttered.images - cluttered.annotations.layers.sum(dim=1).clamp(max=1)
    assert fragments.min() > -1e-6
    painted = (fragments > 1e-6).sum(dim=(1, 2, 3))
    assert painted.max() <= 6 * 64
    assert painted.float().mean() > 20
    plain = ClutteredMNIST(digits=digits, distractors=0).batch(range(300), annotations=True)
    assert plain.annotations is not None
    torch.testing.assert_close(plain.images, plain.annotations.layers.sum(dim=1).clamp(max=1))


@pytest.mark.parametrize("kind", [MultiMNIST, ClutteredMNIST])
def test_share_of_single_objects(kind: type[MultiMNIST], digits: str) -> None:
    task = kind(digits=digits)
    batch = task.batch(range(2000), single_objects=0.3, annotations=True)
    assert batch.annotations is not None
    alone = batch.counts.sum(dim=1) == 1
    assert alone.float().mean().item() == pytest.approx(0.3, abs=0.04)
    assert (batch.annotations.classes[alone, 1] == -1).all()
    assert batch.annotations.layers[alone, 1].sum() == 0
    pairs = task.batch(range(2000))
    assert torch.equal(batch.images[~alone], pairs.images[~alone])
    assert (task.batch(range(100), single_objects=1.0).counts.sum(dim=1) == 1).all()


def test_digits_can_be_kept_near_the_middle(digits: str) -> None:
    task = MultiMNIST(digits=digits)
    for spread, reach in ((0.0, 0), (0.5, 4), (1.0, 8)):
        batch = task.batch(range(2000), annotations=True, spread=spread)
        assert batch.annotations is not None
        corners = batch.annotations.boxes[..., :2]
        assert (corners.min(), corners.max()) == (4 - reach / 2, 4 + reach / 2)
        assert torch.equal(batch.counts, task.batch(range(2000)).counts)


def test_the_middle_of_a_cluttered_image_is_enlarged(digits: str) -> None:
    task = ClutteredMNIST(digits=digits, distractors=0)
    whole = task.batch(range(300), annotations=True, spread=1.0)
    assert torch.equal(whole.images, task.batch(range(300)).images)
    batch = task.batch(range(300), annotations=True, spread=0.3, single_objects=0.5)
    assert batch.images.shape == whole.images.shape and batch.annotations is not None
    boxes, there = batch.annotations.boxes, batch.annotations.classes >= 0
    assert (boxes[there][:, 2:] == 56).all()  # 28 + 0.3 · 72 pixels are seen on 100
    assert boxes[there][:, :2].min() == 0 and boxes[there].view(-1, 2, 2).sum(dim=1).max() == 100
    assert (boxes[~there] == 0).all() and (batch.annotations.layers[~there] == 0).all()
    for image, object_ in there[:40].nonzero().tolist():
        x, y, width, height = boxes[image, object_].tolist()
        layer = batch.annotations.layers[image, object_, 0].clone()
        layer[max(0, y - 2) : y + height + 2, max(0, x - 2) : x + width + 2] = 0
        assert layer.max() == 0
    one = task.batch([7], spread=0.3, single_objects=0.5)
    assert torch.equal(one.images[0], batch.images[7])


def test_every_digit_is_first_in_50_multimnist_and_3_cluttered_images(real_mnist: object) -> None:
    sizes = {"train": 54_000, "validation": 6_000, "test": 10_000}
    for split, size in sizes.items():
        assert len(MultiMNIST(split=split)) == 50 * size
        assert len(ClutteredMNIST(split=split)) == 3 * size


@pytest.mark.parametrize("kind", [MultiMNIST, ClutteredMNIST])
def test_images_go_on_beyond_the_nominal_length(kind: type[MultiMNIST]) -> None:
    task = kind(digits="glyphs")
    assert not torch.equal(task.batch([5]).images, task.batch([5 + len(task)]).images)
    with pytest.raises(IndexError):
        task[len(task)]
    assert torch.equal(task[-1][0], task[len(task) - 1][0])


def test_seeds_and_splits_give_different_images() -> None:
    images = [
        MultiMNIST(digits="glyphs", split=split, seed=seed).batch(range(8)).images
        for split in ("train", "validation")
        for seed in (0, 1, 2**62)
    ]
    for position, image in enumerate(images):
        assert not any(torch.equal(image, other) for other in images[:position])


def test_images_are_float32_between_0_and_1(digits: str) -> None:
    for task in (MultiMNIST(digits=digits), ClutteredMNIST(digits=digits, size=40)):
        batch = task.batch(range(50))
        assert batch.images.dtype == torch.float32
        assert batch.images.shape == (50, *task.image_shape)
        assert batch.images.min() == 0
        assert batch.images.max() == 1


def test_loader_of_torch_stacks_samples() -> None:
    task = MultiMNIST(digits="glyphs")
    images, counts = next(iter(DataLoader(task, batch_size=4, num_workers=1)))
    whole = task.batch(range(4))
    assert torch.equal(images, whole.images)
    assert torch.equal(counts, whole.counts)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (MultiMNIST, {"split": "dev"}, "no split 'dev'"),
        (MultiMNIST, {"max_shift": -1}, "max_shift is -1"),
        (MultiMNIST, {"digits": "roman"}, "no digit source 'roman'"),
        (ClutteredMNIST, {"size": 20}, "size is 20"),
        (ClutteredMNIST, {"objects": 0}, "0 objects"),
        (ClutteredMNIST, {"distractor_size": 29}, "distractor_size is 29"),
    ],
)
def test_impossible_tasks_are_refused(kind: type[Task], options: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        kind(**{"digits": "glyphs", **options})  # type: ignore[arg-type]


def test_bad_image_numbers_are_refused() -> None:
    task = MultiMNIST(digits="glyphs")
    for numbers in ([-1], [0.5], [[1, 2]]):
        with pytest.raises(UsageError):
            task.batch(numbers)  # type: ignore[arg-type]
    assert len(task.batch([])) == 0


@pytest.mark.parametrize(
    ("name", "least"), [("multimnist", 10_000), ("cluttered", 3_000), ("digits-any", 1_500)]
)
def test_images_are_made_faster_than_any_model_uses_them(name: str, least: int, digits: str) -> None:
    task = make_task(task_config({"name": name, "digits": digits}))
    digit_pool(digits, "train")
    speeds = []
    for attempt in range(3):
        start = time.process_time()
        for number in range(10):
            task.batch(np.arange(128) + 128 * (number + 10 * attempt))
        speeds.append(1280 / (time.process_time() - start))
    assert max(speeds) > least


def test_mnist_is_its_digits_in_the_order_of_the_files() -> None:
    task = MNIST(split="test", digits="glyphs")
    batch = task.batch(range(30), annotations=True)
    assert len(task) == len(task.pool) and task.image_shape == (1, 28, 28)
    assert torch.equal((batch.images[:, 0] * 255).round().byte(), torch.from_numpy(task.pool.images[:30]))
    assert batch.counts.argmax(1).tolist() == task.pool.labels[:30].tolist()
    assert (batch.counts.sum(1) == 1).all() and task.answer_rule.objects == 1


def test_a_single_digit_moves_by_up_to_the_shift() -> None:
    boxes = (
        MNIST(split="test", digits="glyphs", size=36, max_shift=3)
        .batch(range(200), annotations=True)
        .annotations.boxes
    )
    assert boxes[:, 0, :2].min() == 1 and boxes[:, 0, :2].max() == 7


@pytest.fixture(scope="module")
def any_digits() -> tuple[np.ndarray, np.ndarray]:
    return gather_annotations(AnyDigits(digits="glyphs"), 5_000)


def test_any_digits_are_none_to_four_equally_often(any_digits: tuple[np.ndarray, np.ndarray]) -> None:
    _, classes = any_digits
    assert_uniform((classes >= 0).sum(axis=1), possible=5)


def test_any_digits_have_boxes_of_14_to_40_pixels_inside_the_image(
    any_digits: tuple[np.ndarray, np.ndarray],
) -> None:
    boxes, classes = any_digits
    there = boxes[classes >= 0]
    alone = (classes >= 0).sum(axis=1) == 1  # with others, a digit may have had to become smaller
    assert_uniform(boxes[alone][:, 0, 2] - 14, possible=27)
    assert there[:, :2].min() >= 0 and (there[:, :2] + there[:, 2:]).max() <= 64
    assert (boxes[classes < 0] == 0).all()


def ink_boxes_that_meet(task: AnyDigits) -> float:
    """Share of the pairs of digits whose ink may touch: their boxes' middle five sevenths meet."""
    boxes, classes = gather_annotations(task, 3_000)
    low = boxes[:, :, :2] + boxes[:, :, 2:] // 7
    high = boxes[:, :, :2] + boxes[:, :, 2:] - boxes[:, :, 2:] // 7
    one, other = np.triu_indices(classes.shape[1], k=1)
    meets = (np.minimum(high[:, one], high[:, other]) > np.maximum(low[:, one], low[:, other])).all(axis=2)
    return float(meets[(classes[:, one] >= 0) & (classes[:, other] >= 0)].mean())


def test_digits_lie_apart_unless_they_are_to_overlap() -> None:
    assert ink_boxes_that_meet(AnyDigits(digits="glyphs", overlapping=0.0)) < 0.05
    assert ink_boxes_that_meet(AnyDigits(digits="glyphs", overlapping=1.0)) > 0.1


def test_a_digit_without_room_becomes_smaller_but_no_smaller_than_the_smallest() -> None:
    boxes, classes = gather_annotations(
        AnyDigits(digits="glyphs", overlapping=0.0, smallest=16, largest=40), 3_000
    )
    number = (classes >= 0).sum(axis=1)
    alone, crowded = boxes[number == 1][:, 0, 2], boxes[number == 4][:, :, 2]
    assert alone.min() == crowded.min() == 16 and alone.max() == crowded.max() == 40
    assert crowded.mean() < alone.mean() - 2


def test_without_nuisance_and_clutter_any_digits_are_their_layers() -> None:
    task = AnyDigits(digits="glyphs", nuisance=0.0, clutter=0.0)
    batch = task.batch(range(200), annotations=True)
    assert batch.annotations is not None
    torch.testing.assert_close(batch.images, batch.annotations.layers.sum(1).clamp(max=1))
    assert (batch.images[batch.counts.sum(1) == 0] == 0).all()


def test_clutter_and_nuisance_keep_their_shares() -> None:
    plain, cluttered, changed = (
        AnyDigits(digits="glyphs", clutter=clutter, nuisance=nuisance).batch(range(2_000)).images
        for clutter, nuisance in ((0.0, 0.0), (0.3, 0.0), (0.0, 0.5))
    )
    assert (cluttered != plain).flatten(1).any(1).float().mean() == pytest.approx(0.3, abs=0.04)
    # Of six kinds one at least is on in 63 of 64 images; a pen or a zoom does not show where no digit is.
    assert (changed != plain).flatten(1).any(1).float().mean() == pytest.approx(0.48, abs=0.04)


def test_nuisance_changes_an_image_but_not_what_is_in_it() -> None:
    for kind in (MNIST, MultiMNIST, ClutteredMNIST):
        plain = kind(digits="glyphs").batch(range(60), annotations=True)
        changed = kind(digits="glyphs", nuisance=1.0).batch(range(60), annotations=True)
        assert plain.annotations is not None and changed.annotations is not None
        assert torch.equal(plain.counts, changed.counts)
        assert torch.equal(plain.annotations.classes, changed.annotations.classes)
        assert (plain.images != changed.images).flatten(1).any(1).float().mean() > 0.9
        assert changed.images.min() >= 0 and changed.images.max() <= 1
        sides = changed.annotations.boxes[..., 2]
        assert 22 <= sides.min() < 28 < sides.max() <= 34


def test_shares_that_are_none_are_refused() -> None:
    for settings in ({"nuisance": 1.5}, {"clutter": -0.1}, {"overlapping": "often"}, {"smallest": 50}):
        with pytest.raises(OcraError, match=next(iter(settings)) if "smallest" not in settings else "50"):
            AnyDigits(digits="glyphs", **settings)  # type: ignore[arg-type]


def test_digits_of_another_size_stay_where_they_are_and_are_not_cut() -> None:
    plain, large, small = (
        MultiMNIST(digits="glyphs", split="test", scale=scale, max_shift=0).batch(range(40), annotations=True)
        for scale in (1.0, 1.2, 0.7)
    )
    assert plain.annotations and large.annotations and small.annotations
    assert (large.annotations.boxes[..., 2:] == 34).all() and (small.annotations.boxes[..., 2:] == 20).all()
    middles = [
        parts.boxes[..., :2] + parts.boxes[..., 2:] // 2 for parts in (plain.annotations, large.annotations)
    ]
    assert torch.equal(*middles)
    ink = [
        parts.layers.sum(dim=(2, 3, 4)).mean()
        for parts in (small.annotations, plain.annotations, large.annotations)
    ]
    assert ink[0] / ink[1] == pytest.approx(0.7**2, rel=0.1) and ink[2] / ink[1] == pytest.approx(
        1.2**2, rel=0.1
    )


def test_any_task_can_be_corrupted_and_is_the_same_in_any_batch() -> None:
    for kind in ("gaussian", "glass-blur", "contrast"):
        task = ClutteredMNIST(digits="glyphs", corruption=kind, severity=2)
        whole = task.batch([5, 3, 9])
        assert torch.equal(whole.images[1:2], task.batch([3]).images)
        assert not torch.equal(whole.images, ClutteredMNIST(digits="glyphs").batch([5, 3, 9]).images)
        assert whole.images.min() >= 0 and whole.images.max() <= 1
    for settings in ({"corruption": "rain"}, {"corruption": "blur", "severity": 6}, {"severity": 2}):
        with pytest.raises(UsageError):
            MultiMNIST(digits="glyphs", **settings)  # type: ignore[arg-type]
