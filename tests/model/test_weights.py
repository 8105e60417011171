"""Weights on disk: what is saved is what is loaded, and what is wrong is named."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import ocra
from ocra.config import AnswerRule, ModelConfig, Preprocessing
from ocra.errors import OcraError
from ocra.model.ocra import OCRA
from ocra.model.weights import SHIPPED, ModelInfo, content_hash, read_config, resolve, shipped

SMALL = ModelConfig(
    classes=2, height=20, width=24, glimpses=2, filters=4, hidden=16, primary_capsules=4, glimpse_size=8
)

SMALL_DIGITS = dataclasses.replace(SMALL, classes=10)
PETS = ModelInfo(
    name="pets",
    task={"name": "folder"},
    class_names=("cat", "dog"),
    answer=AnswerRule(1, repeats=False),
    glimpses=2,
    record={"test": {"n": 3}},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    OCRA(SMALL).save_pretrained(tmp_path / "weights", PETS)
    return tmp_path / "weights"


def test_a_saved_model_gives_the_same_answers(tmp_path: Path) -> None:
    model, images = OCRA(SMALL), torch.rand(3, 1, 20, 24)
    model.save_pretrained(tmp_path)
    assert torch.equal(OCRA.from_pretrained(tmp_path)(images).scores, model(images).scores)


def test_half_precision_is_loaded_as_single_precision(tmp_path: Path) -> None:
    model = OCRA(SMALL)
    model.save_pretrained(tmp_path, storage="float16")
    assert load_file(tmp_path / "model.safetensors")["primary.weight"].dtype == torch.float16
    loaded = OCRA.from_pretrained(tmp_path)
    assert loaded.primary.weight.dtype == torch.float32
    assert torch.allclose(loaded.primary.weight, model.primary.weight, atol=1e-3)


def test_what_is_known_of_a_model_is_saved_and_loaded_with_it(folder: Path) -> None:
    assert OCRA.from_pretrained(folder).info == PETS
    assert read_config(folder) == (SMALL, PETS)
    written = json.loads((folder / "config.json").read_text())
    assert written["task"] == {"name": "folder"} and written["test"] == {"n": 3}


def test_what_answers_mean_survives_being_saved_again_and_old_figures_do_not(
    folder: Path, tmp_path: Path
) -> None:
    OCRA.from_pretrained(folder).save_pretrained(tmp_path / "b")
    assert OCRA.from_pretrained(tmp_path / "b").info == dataclasses.replace(PETS, record={})


def test_weights_of_version_0_1_load_with_all_that_was_saved_with_them(tmp_path: Path) -> None:
    shutil.copy(SHIPPED / "multimnist-3" / "model.safetensors", tmp_path)
    shutil.copy(Path(__file__).parent / "config-0.1.json", tmp_path / "config.json")
    old, new = OCRA.from_pretrained(tmp_path), OCRA.from_pretrained("multimnist-3")
    assert old.config == new.config and old.info.answer == new.info.answer == AnswerRule(2, repeats=False)
    for name in ("name", "class_names", "glimpses", "masked"):
        assert getattr(old.info, name) == getattr(new.info, name)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert old.info.record == {name: saved[name] for name in old.info.record}
    assert old.info.record.keys() >= {"loss", "training", "result", "test", "validation_error", "versions"}


def test_softmax_couplings_of_version_0_1_are_refused(folder: Path) -> None:
    values = {"model": {**dataclasses.asdict(SMALL), "coupling": "softmax"}}
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(OcraError, match="couplings are max-min"):
        OCRA.from_pretrained(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage": "float64"}, "storage must be float32 or float16, not 'float64'"),
        ({"info": dataclasses.replace(PETS, record={"model": {}})}, "'model' in config.json has a meaning"),
        ({"info": dataclasses.replace(PETS, record={"note": torch.ones(1)})}, "must be JSON values"),
        ({"info": dataclasses.replace(PETS, class_names=("cat",))}, "2 classes, but 1 class names"),
    ],
)
def test_what_cannot_be_saved_is_told_and_leaves_nothing(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(OcraError, match=message):
        OCRA(SMALL).save_pretrained(tmp_path / "weights", **options)
    assert not (tmp_path / "weights").exists()


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OcraError, match=r"The weights could not be written to .*file"):
        OCRA(SMALL).save_pretrained(tmp_path / "file")


def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(folder: Path, tmp_path: Path) -> None:
    model = OCRA(SMALL)
    model.primary.bias.data[0] = 1e6
    with pytest.raises(
        OcraError, match=r"stored as float16, .* primary\.bias holds numbers that are not finite"
    ):
        model.save_pretrained(tmp_path / "half", storage="float16")
    tensors = load_file(folder / "model.safetensors")
    tensors["primary.bias"][0] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        OcraError, match=r"model\.safetensors .* primary\.bias holds numbers that are not finite"
    ):
        OCRA.from_pretrained(folder)


def test_shipped_names_come_before_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in shipped():
        OCRA(SMALL).save_pretrained(name)
        assert ocra.OCRA.from_pretrained(name).config != SMALL
        assert ocra.OCRA.from_pretrained(f"./{name}").config == SMALL


def test_missing_weights_are_named_with_what_there_is() -> None:
    with pytest.raises(OcraError, match=r"There are no weights 'nothing-like-it'.*shipped:"):
        OCRA.from_pretrained("nothing-like-it")


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(OcraError, match=r"holds no weights.*config.json and model.safetensors"):
        OCRA.from_pretrained(tmp_path)


def test_a_hub_name_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(OcraError, match=r"pip install 'ocra-vision\[hub\]'"):
        OCRA.from_pretrained("somebody/ocra-multimnist")


def test_a_hub_name_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        @staticmethod
        def snapshot_download(name: str, allow_patterns: list[str]) -> str:
            if name != "somebody/ocra":
                raise RuntimeError("404: no such repository\nand more")
            return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub)  # type: ignore[arg-type]
    assert OCRA.from_pretrained("somebody/ocra").config == SMALL
    with pytest.raises(OcraError, match=r"could not be fetched from the hub: 404: no such repository$"):
        OCRA.from_pretrained("nobody/ocra")


def test_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(OcraError, match=r"model.safetensors is broken"):
        OCRA.from_pretrained(folder)
    path.unlink()
    with pytest.raises(OcraError, match=r"model.safetensors is missing"):
        OCRA.from_pretrained(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "describes no model"),
        ('{"model": {"glimpsez": 3}}', "glimpsez"),
        ('{"model": {"glimpses": 0}}', "model.glimpses"),
    ],
)
def test_a_bad_config_is_named(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(OcraError, match=message):
        OCRA.from_pretrained(folder)


def test_weights_of_another_config_are_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "primary.bias": torch.zeros(3)}, path)
    with pytest.raises(OcraError, match=r"does not fit its config\.json: primary\.bias is \[3\], not"):
        OCRA.from_pretrained(folder)
    save_file({**tensors, "surplus": torch.zeros(3)}, path)
    with pytest.raises(OcraError, match="surplus is not part of the network"):
        OCRA.from_pretrained(folder)
    del tensors["primary.bias"]
    save_file(tensors, path)
    with pytest.raises(OcraError, match=r"primary\.bias is missing"):
        OCRA.from_pretrained(folder)


def test_the_folder_of_a_run_stands_for_its_best_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"name": "a run"}')
    OCRA(SMALL).save_pretrained(tmp_path / "weights" / "best")
    assert OCRA.from_pretrained(tmp_path).config == SMALL


@pytest.mark.parametrize(
    "values",
    [
        {"task": 7}, {"class_names": 5}, {"loss": 3}, {"answer": 2}, {"answer": {"objects": "two"}},
        {"answer": {"objects": 2, "again": True}}, {"answer": {"objects": 20, "repeats": False}},
        {"answer": {"objects": 2, "repeats": "no"}}, {"preprocessing": {"colour": 1}}, {"glimpses": True},
        {"masked": "no"}, {"name": 3},
    ],
)  # fmt: skip
def test_saved_words_that_cannot_be_used_are_named(values: dict) -> None:
    with pytest.raises(OcraError, match=f"'{next(iter(values))}' that cannot be used"):
        ModelInfo.from_dict(values, SMALL)


def test_class_names_may_be_numbers() -> None:
    assert ModelInfo.from_dict({"class_names": [7, 8]}, SMALL).class_names == ("7", "8")


def test_a_model_that_nothing_was_saved_with_answers_as_in_the_paper() -> None:
    assert OCRA().info.answer == AnswerRule(2, repeats=False) and not OCRA().info.masked
    cluttered = OCRA(dataclasses.replace(SMALL_DIGITS, background_capsules=1)).info
    assert cluttered.answer == AnswerRule(2) and cluttered.masked
    assert OCRA(SMALL).info.answer == AnswerRule(None)


def test_preprocessing_is_saved_and_loaded(folder: Path) -> None:
    info = dataclasses.replace(PETS, preprocessing=Preprocessing(fit="stretch"))
    OCRA(SMALL).save_pretrained(folder, info)
    assert OCRA.from_pretrained(folder).info == info


def test_weights_are_known_by_their_content(folder: Path, tmp_path: Path) -> None:
    model = OCRA.from_pretrained(folder)
    content = content_hash(folder)
    model.save_pretrained(tmp_path / "copy")  # another config.json
    assert len(content) == 12 and content_hash(tmp_path / "copy") == content
    assert resolve(f"{folder}@{content}") == resolve(f"{folder}@{content[:8]}") == folder
    model.primary.bias.data[0] += 1
    model.save_pretrained(folder)
    with pytest.raises(OcraError, match=f"are others than those asked for: .* not {content}"):
        OCRA.from_pretrained(f"{folder}@{content}")
    model.save_pretrained(folder, storage="float16")
    assert content_hash(folder) not in (content, content_hash(tmp_path / "copy"))


def test_a_folder_may_have_an_at_sign_in_its_name(tmp_path: Path) -> None:
    OCRA(SMALL).save_pretrained(tmp_path / "mine@123456")
    assert resolve(tmp_path / "mine@123456") == tmp_path / "mine@123456"


def test_shipped_weights_are_found_by_name_and_content() -> None:
    folder = SHIPPED / "multimnist-3"
    assert resolve(f"multimnist-3@{content_hash(folder)}") == resolve("multimnist-3") == folder
