"""A folder of one's own images as a task."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ocra.config import AnswerRule
from ocra.data import FolderTask, make_task
from ocra.errors import OcraError, UsageError


def write_folder(root: Path, table: str | None = None) -> Path:
    """Twenty images of 30 × 20 pixels, and a table that labels them `cat`, `dog dog` and `cat dog`."""
    root.mkdir(parents=True, exist_ok=True)
    rows = ["file,labels,split"]
    for number in range(20):
        pixels = np.full((20, 30, 3), 10 * number + 20, dtype=np.uint8)
        pixels[:, :15, 0] = 255
        Image.fromarray(pixels).save(root / f"{number}.png")
        split = "test" if number >= 15 else "validation" if number >= 12 else "train"
        rows.append(f"{number}.png,{('cat', 'dog dog', 'cat dog')[number % 3]},{split}")
    (root / "labels.csv").write_text(table or "\n".join(rows))
    return root


def test_labels_are_counted_and_classes_sorted(tmp_path: Path) -> None:
    task = FolderTask(root=write_folder(tmp_path), split="validation")
    assert task.class_names == ("cat", "dog")
    assert len(task) == 3
    assert task.batch(range(3)).counts.tolist() == [[1, 0], [0, 2], [1, 1]]


def test_the_table_tells_how_many_objects_there_are_and_whether_they_repeat(tmp_path: Path) -> None:
    mixed = FolderTask(root=write_folder(tmp_path / "mixed"), split="test")
    assert mixed.answer_rule == AnswerRule(None, repeats=True)
    table = "file,labels,split\n0.png,cat,test\n1.png,dog,test"
    single = FolderTask(root=write_folder(tmp_path / "single", table), split="test")
    assert single.answer_rule == AnswerRule(1, repeats=False)
    assert single.answer_rule_for(mixed.answer_rule) == mixed.answer_rule, "labels must not help to answer"


def test_given_classes_keep_their_order(tmp_path: Path) -> None:
    task = FolderTask(root=write_folder(tmp_path), split="test", class_names=("dog", "bird", "cat"))
    assert task.class_names == ("dog", "bird", "cat")
    assert task.batch([0]).counts.tolist() == [[0, 0, 1]]


@pytest.mark.parametrize("channels", [1, 3])
def test_images_keep_their_proportions_on_black(tmp_path: Path, channels: int) -> None:
    task = FolderTask(root=write_folder(tmp_path), split="test", channels=channels, height=36, width=48)
    image, _ = task[0]
    assert image.shape == (channels, 36, 48)
    assert image[:, :2].sum() == 0 and image[:, -2:].sum() == 0
    assert image[:, 2:34].min() > 0.3
    if channels == 3:
        red, green, _ = image
        assert red[18, 10] == 1 and red[18, 40] < 0.8
        assert green[18, 10] < 0.8


def test_training_images_are_varied_afresh_on_every_pass(tmp_path: Path) -> None:
    task = FolderTask(root=write_folder(tmp_path))
    assert len(task) == 12
    first, second = task.batch([4]), task.batch([4 + len(task)])
    assert not torch.equal(first.images, second.images)
    assert torch.equal(first.counts, second.counts)
    plain = FolderTask(root=tmp_path, augment=False)
    assert torch.equal(plain.batch([4]).images, plain.batch([16]).images)


def test_hash_of_the_name_chooses_the_split(tmp_path: Path) -> None:
    write_folder(tmp_path)
    rows = [f"many/{number}.png,cat" for number in range(200)]
    (tmp_path / "many").mkdir()
    for number in range(200):
        (tmp_path / "many" / f"{number}.png").write_bytes((tmp_path / "1.png").read_bytes())
    (tmp_path / "labels.csv").write_text("file,labels\n" + "\n".join(rows))
    splits = {
        split: set(FolderTask(root=tmp_path, split=split).files) for split in ("train", "validation", "test")
    }
    assert sum(map(len, splits.values())) == 200
    assert len(set.union(*splits.values())) == 200
    assert 130 < len(splits["train"]) < 185
    (tmp_path / "labels.csv").write_text("file,labels\n" + "\n".join(rows[:100]))
    assert set(FolderTask(root=tmp_path, split="train").files) <= splits["train"]
    assert (
        FolderTask(root=tmp_path, split="train", seed=9).files
        == FolderTask(root=tmp_path, split="train").files
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1.png", "line 3: 1 cells instead of 2"),
        ("missing.png,cat", "line 3: there is no file 'missing.png'"),
        ("m" * 300 + ".png,cat", "line 3: there is no file 'mmm"),
        (",cat", "line 3: no file"),
        ("0.png,dog", "line 3: '0.png' is on line 2 already"),
        ("1.png,cow", "line 3: 'cow' is not one of the classes cat, dog"),
        ("broken.png,cat", "line 3: .*broken.png"),
    ],
)
def test_bad_row_is_named_with_its_line(tmp_path: Path, row: str, words: str) -> None:
    write_folder(tmp_path, f"file,labels\n0.png,cat\n{row}\n2.png,dog\n")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    with pytest.raises(OcraError, match=words):
        for split in ("train", "validation", "test"):
            FolderTask(root=tmp_path, split=split, class_names=("cat", "dog"))


def test_several_bad_rows_are_named_at_once(tmp_path: Path) -> None:
    rows = "".join(f"none{number}.png,cat\n" for number in range(8))
    with pytest.raises(OcraError, match=r"line 2: .*line 6: .*and 3 more"):
        FolderTask(root=write_folder(tmp_path, "file,labels\n" + rows))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("image,kind\n0.png,cat", "line 1 must be `file,labels`"),
        ("file,labels\n", "lists no images"),
        ("file,labels,split\n0.png,cat,dev", "line 2: 'dev' is not a split"),
        ("file,labels,split\n0.png,cat,test", "No image .* is in the train split"),
    ],
)
def test_unusable_tables_are_refused(tmp_path: Path, table: str, words: str) -> None:
    with pytest.raises(OcraError, match=words):
        FolderTask(root=write_folder(tmp_path, table))


def test_table_in_another_encoding_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "labels.csv").write_bytes("file,labels\n0.png,Mäuse\n".encode("latin-1"))
    with pytest.raises(OcraError, match="UTF-8"):
        FolderTask(root=tmp_path)


def test_a_file_is_the_same_however_its_name_is_spelled(tmp_path: Path) -> None:
    table = "file,labels,split\n0.png,cat,train\n./0.png,dog,test"
    with pytest.raises(OcraError, match=r"line 3: '\./0\.png' is on line 2 already"):
        FolderTask(root=write_folder(tmp_path, table))


@pytest.mark.parametrize("cell", ['"cat,dog"', "cat;dog", '"cat, dog"'])
def test_labels_that_are_not_separated_by_spaces_are_named(tmp_path: Path, cell: str) -> None:
    with pytest.raises(OcraError, match="line 2: labels are separated by spaces"):
        FolderTask(root=write_folder(tmp_path, f"file,labels\n0.png,{cell}"))


def test_an_accent_is_the_same_however_it_is_typed(tmp_path: Path) -> None:
    table = "file,labels,split\n0.png,caf\u00e9,test\n1.png,cafe\u0301,test"
    assert FolderTask(root=write_folder(tmp_path, table), split="test").class_names == ("caf\u00e9",)
    given = FolderTask(root=tmp_path, split="test", class_names=("tea", "cafe\u0301"))
    assert given.batch([0, 1]).counts.tolist() == [[0, 1], [0, 1]]


def test_a_class_that_cannot_be_learned_is_named(tmp_path: Path) -> None:
    table = "file,labels,split\n0.png,cat,train\n1.png,zebra,test"
    with pytest.warns(UserWarning, match="no training image shows zebra"):
        FolderTask(root=write_folder(tmp_path, table))
    with pytest.raises(UsageError, match="name one twice"):
        FolderTask(root=tmp_path, class_names=("cat", "zebra", "cat"))


def test_deep_images_share_one_scale_and_dark_ones_are_named(tmp_path: Path) -> None:
    root = write_folder(
        tmp_path, "file,labels,split\na.png,cat,train\nb.png,cat,train\n0.png,cat,test\n1.png,cat,validation"
    )
    for name, value in (("a", 1000), ("b", 4000)):
        Image.fromarray(np.full((36, 36), value, dtype=np.uint16)).save(root / f"{name}.png")
    with pytest.warns(UserWarning, match="no value above 4095 of 65535"):
        task = FolderTask(root=root, augment=False)
    means = (task.batch([0, 1]).images.mean((1, 2, 3)) * 255).round().tolist()
    assert means == [round(255 * 1000 / 65535), round(255 * 4000 / 65535)]


def test_config_makes_the_folder_task(tmp_path: Path) -> None:
    config = FolderTask.Config(root=write_folder(tmp_path), channels=3, height=20, width=30)
    task = make_task(config, "train", seed=2)
    assert isinstance(task, FolderTask)
    assert task.image_shape == (3, 20, 30)
    assert task.augment and not make_task(config, "test").augment  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="needs its folder"):
        make_task("folder")


def test_an_image_that_has_changed_is_read_again(tmp_path: Path) -> None:
    root = write_folder(tmp_path)
    before = FolderTask(root=root, split="test").batch([0]).images
    Image.new("RGB", (31, 20), (9, 9, 9)).save(root / "15.png")
    assert not torch.equal(FolderTask(root=root, split="test").batch([0]).images, before)


def test_with_contrast_any_background_is_dark(tmp_path: Path) -> None:
    root = write_folder(tmp_path)
    for number, (background, tone) in enumerate(
        [((200, 0, 90), (200, 0, 240)), ((255,) * 3, (105,) * 3)], 15
    ):
        image = Image.new("RGB", (30, 20), background)
        image.paste(tone, (10, 8, 20, 14))
        image.save(root / f"{number}.png")
    grey = FolderTask(root=root, split="test", height=20, width=30, contrast=True)
    images = (255 * grey.batch([0, 1]).images[:, 0]).round()
    assert images[:, 2, 2].tolist() == [0, 0] and images[:, 11, 15].tolist() == [150, 150]
    colour = FolderTask(root=root, split="test", height=20, width=30, channels=3, contrast=True)
    assert (255 * colour.batch([0]).images[0, :, 11, 15]).round().tolist() == [0, 0, 150]
    assert grey.preprocessing.ink == "contrast"


def test_single_objects_are_images_of_one_object(tmp_path: Path) -> None:
    task = FolderTask(root=write_folder(tmp_path))
    assert set(task.batch(range(48), single_objects=1.0).counts.sum(1).tolist()) == {1.0}
    mixed = task.batch(range(200), single_objects=0.5).counts.sum(1)
    assert 0.5 < float((mixed == 1).float().mean()) < 0.85  # half, and a third of the others
    assert torch.equal(task.batch([7]).images, task.batch([7, 8], single_objects=0.0).images[:1])
