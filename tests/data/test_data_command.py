"""ocra data: fetch, check, show; and files written whole."""

from pathlib import Path

import pytest
from PIL import Image
from svhn_archive import write_archive

from ocra.cli.data import main
from ocra.data import SVHN, ClutteredMNIST, download
from ocra.errors import OcraError, UsageError
from ocra.files import atomic_path, write_json_atomically
from ocra.viz.grid import sample_captions


@pytest.mark.parametrize("task", ["multimnist", "cluttered"])
def test_show_draws_images_with_room_for_their_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    out = tmp_path / "grid.png"
    main(["show", task, "--digits", "glyphs", "--images", "1e1", "--out", str(out)])
    with Image.open(out) as sheet:
        assert sheet.width == 8 * 152 + 8
        assert sheet.height > 2 * 152
    assert "10 train images" in capsys.readouterr().out


def test_show_draws_svhn_and_folders(svhn_root: Path, tmp_path: Path) -> None:
    from test_folder_task import write_folder

    main(["show", "svhn", "--root", str(svhn_root), "--split", "test", "--out", str(tmp_path / "a.png")])
    folder = str(write_folder(tmp_path / "own"))
    main(["show", "folder", "--root", folder, "--channels", "3", "--out", str(tmp_path / "b.png")])
    assert (tmp_path / "a.png").is_file() and (tmp_path / "b.png").is_file()


def test_captions_repeat_classes_and_write_numbers_whole(svhn_root: Path) -> None:
    task = ClutteredMNIST(digits="glyphs")
    batch = task.batch(range(200))
    for caption, counts in zip(sample_captions(batch, task.class_names), batch.counts, strict=True):
        assert [counts[int(name)] for name in caption.split()] == [
            caption.split().count(n) for n in caption.split()
        ]
    numbers = SVHN(root=svhn_root, split="test")
    assert sample_captions(numbers.batch([1]), numbers.class_names) == ["56"]


def test_show_refuses_what_it_cannot_draw(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must end in"):
        main(["show", "multimnist", "--digits", "glyphs", "--out", str(tmp_path / "grid.txt")])
    with pytest.raises(UsageError, match="do not fit"):
        main(["show", "multimnist", "--digits", "glyphs", "--images", "0"])
    with pytest.raises(UsageError, match="no task 'imagenet'"):
        main(["show", "imagenet"])
    with pytest.raises(SystemExit):
        main(["show", "multimnist", "--size", "30"])


def test_check_names_what_is_missing_and_what_is_broken(
    tmp_path: Path, svhn_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OcraError, match="2 broken: svhn train, svhn test"):
        main(["check", "--root", str(svhn_root)])
    said = capsys.readouterr().out
    assert "missing   mnist" in said
    assert "40 whole images with boxes; 33,402 expected" in said


def test_check_reads_what_it_calls_verified(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(download, "SVHN_IMAGES", {"train": 6, "test": 6, "extra": 6})
    for part in ("train", "test", "extra"):
        write_archive(tmp_path, part, "folder", numbers=6)
    main(["check", "--root", str(tmp_path)])
    assert capsys.readouterr().out.count("verified  svhn") == 3
    (tmp_path / "train/3.png").write_bytes(b"")
    (tmp_path / "test/3.png").write_bytes((tmp_path / "test/3.png").read_bytes()[:-200])
    (tmp_path / "extra/digitStruct.mat").write_bytes(b"")
    with pytest.raises(OcraError, match="3 broken: svhn train, svhn test, svhn extra"):
        main(["check", "--root", str(tmp_path)])
    said = capsys.readouterr().out
    assert said.count("5 whole images") == 2 and "digitStruct.mat cannot be read" in said


def test_check_fails_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(OcraError, match="There is no data set"):
        main(["check", "--root", str(tmp_path)])
    with pytest.raises(UsageError, match="is no folder"):
        main(["check", "--root", str(tmp_path / "none")])


def test_check_verifies_the_real_mnist(real_mnist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "--root", str(real_mnist)])
    assert capsys.readouterr().out.count("verified  mnist") == 4


@pytest.mark.parametrize("command", [[], ["fetch"], ["check"], ["show"]])
def test_every_command_has_help_with_an_example(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    assert "Example: ocra data" in capsys.readouterr().out


def test_failed_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json"
    write_json_atomically(path, {"value": 1})
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == '{\n  "value": 1\n}\n'
    assert list(path.parent.iterdir()) == [path]
