"""Training on a folder of one's own: the recipe comes from the images, trouble is told in a sentence."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import ocra
from ocra.baselines import SmallCNN
from ocra.cli.main import main
from ocra.data.folder import FolderTask
from ocra.data.labels import read_labels
from ocra.errors import OcraError
from ocra.experiment import Experiment
from ocra.training.own_images import (
    cnn_experiment,
    copies_across_splits,
    folder_experiment,
    summarise_folder,
    tone_is_free,
    train_folder,
    warn_of_trouble,
)


def write_folder(
    root: Path, labels: list[str], size: tuple[int, int] = (30, 24), colour: bool = False, same: bool = False
) -> Path:
    """An image for each cell of labels, all different unless they are to be the same."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    rows = ["file,labels"]
    for number, cell in enumerate(labels):
        shape = (size[1], size[0], 3 if colour else 1)
        pixels = np.full(shape, 90) if same else rng.integers(0, 256, shape)
        Image.fromarray(np.broadcast_to(pixels, (size[1], size[0], 3)).astype(np.uint8)).save(
            root / f"{number}.png"
        )
        rows.append(f"{number}.png,{cell}")
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
    return root


def small(experiment: Experiment) -> Experiment:
    """The same recipe with a network that is trained in a second."""
    model = replace(experiment.model, hidden=16, filters=4, primary_capsules=4, glimpse_size=8, write_size=8)
    return replace(experiment, model=model, run=replace(experiment.run, compile=False)).scaled(256)


@pytest.mark.parametrize(
    ("size", "colour", "shape"),
    [((30, 24), False, (1, 24, 30)), ((30, 24), True, (3, 24, 30)), ((400, 200), False, (1, 64, 128))],
)
def test_images_keep_their_size_up_to_a_limit_and_their_colour(
    tmp_path: Path, size: tuple[int, int], colour: bool, shape: tuple[int, int, int]
) -> None:
    summary = summarise_folder(write_folder(tmp_path, ["cat", "dog"] * 5, size, colour))
    assert summary.image_shape == shape
    assert summary.largest == summary.smallest == size
    assert folder_experiment(summary).model.image_shape == shape


def test_given_settings_win(tmp_path: Path) -> None:
    root = write_folder(tmp_path, ["cat", "dog"] * 5, colour=True)
    experiment = folder_experiment(root, channels=1, height=20, width=20, flip=True, seed=3, images=500)
    assert experiment.model.image_shape == (1, 20, 20) and experiment.seed == 3
    assert experiment.stages[0].images == 500
    assert experiment.task.to_dict()["flip"] and not folder_experiment(root).task.to_dict()["flip"]


@pytest.mark.parametrize(("most", "glimpses"), [(1, 3), (4, 5), (20, 10)])
def test_more_objects_get_more_glimpses(tmp_path: Path, most: int, glimpses: int) -> None:
    root = write_folder(tmp_path, ["", " ".join(["cat"] * most)] * 5)
    assert folder_experiment(root).model.glimpses == glimpses


def test_the_recipe_counts_and_varies_the_images(tmp_path: Path) -> None:
    experiment = folder_experiment(write_folder(tmp_path, ["cat", "cat cat", ""] * 4))
    assert experiment.check() and experiment.fitted() == experiment
    assert experiment.stages[0].over_count == 1.0 and experiment.loss.over_count_from < 0.5
    assert experiment.task.to_dict()["augment"]


def test_images_of_one_object_come_first_where_there_are_classes_to_learn(tmp_path: Path) -> None:
    pairs = folder_experiment(write_folder(tmp_path / "pairs", ["cat", "dog", "cat dog"] * 6))
    assert pairs.stages[0].single_objects == (0.8, 0.0)
    counted = folder_experiment(write_folder(tmp_path / "counted", ["cat", "cat cat"] * 6))
    alone = folder_experiment(write_folder(tmp_path / "alone", ["cat", "dog"] * 6))
    assert counted.stages[0].single_objects == alone.stages[0].single_objects == 0.0


def draw_discs(root: Path, tones: dict[str, list[int]], background: int = 120) -> Path:
    """Eighty images of a disc on an even background, of a tone that its class may have."""
    root.mkdir()
    rng, rows = np.random.default_rng(0), ["file,labels"]
    for number in range(80):
        name = str(rng.choice(sorted(tones)))
        image = Image.new("RGB", (32, 32), (background,) * 3)
        x, y = rng.integers(2, 18, 2).tolist()
        ImageDraw.Draw(image).ellipse((x, y, x + 10, y + 10), fill=(int(rng.choice(tones[name])),) * 3)
        image.save(root / f"{number}.png")
        rows.append(f"{number}.png,{name}")
    (root / "labels.csv").write_text("\n".join(rows))
    return root


def test_the_background_is_removed_unless_the_tone_tells_the_class(tmp_path: Path) -> None:
    either = summarise_folder(draw_discs(tmp_path / "either", {"sun": [10, 250], "moon": [10, 250]}))
    assert either.contrast and folder_experiment(either).task.to_dict()["contrast"]
    assert not summarise_folder(draw_discs(tmp_path / "told", {"sun": [250], "moon": [10]})).contrast
    assert not summarise_folder(tmp_path / "either", contrast=False).contrast


def draw_counted(root: Path, sides: tuple[int, int] = (8, 12), most: int = 3) -> Path:
    """Images of one to three squares or none, dark on light."""
    root.mkdir()
    rng, rows = np.random.default_rng(0), ["file,labels"]
    for number in range(90):
        image = Image.new("L", (64, 64), 220)
        names = [str(rng.choice(["box", "ring"])) for _ in range(number % (most + 1))]
        for place, name in enumerate(names):
            side = int(rng.integers(*sides))
            x, y = 20 * place + int(rng.integers(0, 4)), int(rng.integers(0, 64 - side))
            box = (x, y, x + side, y + side)
            ImageDraw.Draw(image).rectangle(box, fill=20 if name == "box" else 220, outline=20, width=3)
        image.save(root / f"{number}.png")
        rows.append(f"{number}.png,{' '.join(names)}")
    (root / "labels.csv").write_text("\n".join(rows))
    return root


def test_images_are_put_together_of_single_objects(tmp_path: Path) -> None:
    experiment = folder_experiment(draw_counted(tmp_path / "counted"))
    assert experiment.task.to_dict()["compose"] > 0
    task = FolderTask(replace(experiment.task, compose=1.0, contrast=True), "train")
    batch = task.batch(range(200), annotations=True)
    objects = batch.counts.sum(1)
    assert set(objects.tolist()) <= {1.0, 2.0, 3.0} and (objects > 1).float().mean() > 0.9
    assert batch.annotations is not None
    assert ((batch.annotations.classes >= 0).sum(1) == objects).all()
    assert torch.equal(task.batch([7]).images[0], task.batch(range(10)).images[7])


def test_only_training_images_are_put_together(tmp_path: Path) -> None:
    root = draw_counted(tmp_path / "counted")
    config = folder_experiment(root).task
    plain = FolderTask(replace(config, compose=0.0), "validation").batch(range(5))
    assert torch.equal(FolderTask(config, "validation").batch(range(5)).images, plain.images)


def test_a_class_that_never_repeats_is_not_added_twice(tmp_path: Path) -> None:
    root = draw_counted(tmp_path / "pairs", most=2)
    table = (root / "labels.csv").read_text().replace("box box", "box ring").replace("ring ring", "box ring")
    (root / "labels.csv").write_text(table)
    task = FolderTask(replace(folder_experiment(root).task, compose=1.0), "train")
    assert not task.answer_rule.repeats and task.batch(range(200)).counts.max() == 1


def test_objects_that_fill_the_image_are_not_put_together(tmp_path: Path) -> None:
    root = draw_counted(tmp_path / "large", sides=(58, 62))
    assert FolderTask(folder_experiment(root).task, "train").compose == 0


def test_an_image_without_a_background_is_left_as_it_is(tmp_path: Path) -> None:
    summary = summarise_folder(write_folder(tmp_path, ["cat", "dog", "cat dog"] * 20))
    assert not summary.contrast and folder_experiment(summary).task.to_dict()["compose"] == 0


def test_too_few_images_cannot_tell_whether_the_tone_matters() -> None:
    tones, counts = np.zeros((6, 3)), np.eye(2)[[0, 1] * 3]
    assert not tone_is_free(tones, counts)
    assert tone_is_free(np.tile(tones, (10, 1)), np.tile(counts, (10, 1)))


def test_the_cnn_gets_the_same_images_and_can_count_as_far(tmp_path: Path) -> None:
    summary = summarise_folder(write_folder(tmp_path, ["cat", "cat cat cat dog", ""] * 8, size=(20, 16)))
    own = folder_experiment(summary)
    cnn = cnn_experiment(own, summary, cpu_seconds=1.0)
    assert cnn.task == own.task and cnn.model.image_shape == own.model.image_shape
    assert cnn.model.to_dict()["most"] == 3 and cnn.check()
    assert cnn_experiment(own, summary, cpu_seconds=100.0).images > 10 * cnn.images


def test_a_larger_folder_is_trained_longer(tmp_path: Path) -> None:
    few = summarise_folder(write_folder(tmp_path, ["cat", "dog"] * 5))
    many = replace(few, images={**few.images, "train": 50_000})
    assert folder_experiment(few).images < folder_experiment(many).images


def test_more_classes_and_objects_are_trained_longer(tmp_path: Path) -> None:
    few = summarise_folder(write_folder(tmp_path, ["cat", "dog"] * 5))
    more = replace(few, classes=dict.fromkeys("abcdefgh", 9), objects={1: 5, 3: 5})
    assert folder_experiment(few).images < folder_experiment(more).images


def test_training_says_what_it_sees_and_how_it_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_folder(tmp_path / "pets", ["cat", "dog dog", ""] * 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = train_folder(root, tmp_path / "run", experiment=small(folder_experiment(root)), processes=1)
    said = capsys.readouterr().out
    assert "24 × 30" not in said and "30 × 24 pixels, kept; grey" in said and "plan " in said
    assert "images wrong" in said and "d′" in said and "by number of objects" in said
    assert result.cnn is not None and "a plain small CNN" in said
    assert SmallCNN.from_pretrained(tmp_path / "run/cnn").info.class_names == ("cat", "dog")
    assert result.test.figures["n"] == sum(image.split == "test" for image in read_labels(root))
    model = ocra.OCRA.from_pretrained(result.weights)
    assert model.info.class_names == ("cat", "dog") and model.info.answer == ocra.AnswerRule(
        None, repeats=True
    )


def test_the_command_line_trains_a_folder(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "pets", ["cat", "dog"] * 10)
    words = [
        "train",
        str(root),
        "--images",
        "128",
        "--model.hidden",
        "16",
        "--run.no-compile",
        "--task.height",
        "20",
    ]
    words += ["--stages.0.over-count", "0.5", "--no-compare"]
    assert main([*words, "--out", str(tmp_path / "run"), "--processes", "1", "--quiet"]) == 0
    assert not (tmp_path / "run/cnn").exists()
    assert ocra.OCRA.from_pretrained(tmp_path / "run/weights/best").config.image_shape == (1, 20, 30)


def test_a_name_that_is_neither_preset_nor_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(tmp_path / "gone")]) == 2
    assert "no folder of images of that name" in capsys.readouterr().err


def test_a_folder_needs_no_task_and_no_other_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_folder(tmp_path, ["cat", "dog"] * 5)
    assert main(["train", str(root), "--task", "multimnist"]) == 2
    assert "leave out --task" in capsys.readouterr().err
    assert main(["train", str(root), "--recipe", "paper"]) == 2
    assert "chosen from its images" in capsys.readouterr().err


@pytest.mark.parametrize("cell", ["cat", ""])
def test_images_that_are_all_labelled_alike_are_refused(tmp_path: Path, cell: str) -> None:
    with pytest.raises(OcraError, match="nothing to tell apart"):
        summarise_folder(write_folder(tmp_path, [cell] * 10))


def test_one_class_that_may_be_missing_is_learnt(tmp_path: Path) -> None:
    summary = summarise_folder(write_folder(tmp_path, ["cat", ""] * 10))
    assert summary.objects == {0: 10, 1: 10} and folder_experiment(summary).model.classes == 1


def test_classes_with_few_images_are_named(tmp_path: Path) -> None:
    summary = summarise_folder(write_folder(tmp_path, [f"class{number % 50}" for number in range(150)]))
    assert len(summary.classes) == 50 and all(summary.images.values())
    with pytest.warns(UserWarning, match=r"fewer than 20 objects of class0, .* and 45 more"):
        warn_of_trouble(summary)


def test_few_images_to_test_with_are_told(tmp_path: Path) -> None:
    summary = summarise_folder(write_folder(tmp_path, ["cat", "dog"] * 50))
    with pytest.warns(UserWarning, match="for validation and .* for test: an error on so few images"):
        warn_of_trouble(summary)


def test_copies_of_training_images_are_told(tmp_path: Path) -> None:
    different = summarise_folder(write_folder(tmp_path / "different", ["cat", "dog"] * 10))
    assert copies_across_splits(different) == 0
    same = summarise_folder(write_folder(tmp_path / "same", ["cat", "dog"] * 10, same=True))
    assert copies_across_splits(same) == same.images["validation"] + same.images["test"]
    with pytest.warns(UserWarning, match="are the same as training images"):
        warn_of_trouble(same)


def test_unreadable_images_are_named_all_at_once(tmp_path: Path) -> None:
    root = write_folder(tmp_path, ["cat", "dog"] * 5)
    for number in (3, 4):
        (root / f"{number}.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(OcraError) as refused:
        summarise_folder(root)
    for number in (3, 4):
        assert f"labels.csv line {number + 2}: {number}.png is not an image" in str(refused.value)
