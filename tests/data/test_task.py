"""What makes a task: its settings, its name, and where it is found."""

import pickle
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ocra.config import AnswerRule, ModelConfig
from ocra.data import (
    SVHN,
    Batch,
    ClutteredMNIST,
    FolderTask,
    MultiMNIST,
    Task,
    TaskConfig,
    get_task,
    likely_task,
    make_task,
    register_task,
    task_config,
    task_names,
    task_of_model,
)
from ocra.errors import OcraError, UsageError
from ocra.evaluation import evaluate
from ocra.model.ocra import OCRA

EXAMPLES = Path(__file__).parents[2] / "examples"
OLD = {
    "name": "multimnist", "digits": "glyphs", "root": None, "download": False, "max_shift": 6, "size": 100,
    "objects": 2, "distractors": 6, "distractor_size": 8, "channels": 1, "augment": True, "extra": False, "height": 36,
    "width": 36, "class_names": None,
}  # fmt: skip
"""A task as version 0.1 saved it: the settings of all tasks in one object."""


class Dots(Task):
    """Images of one class, as small as can be."""

    @dataclass(frozen=True)
    class Config(TaskConfig):
        """The settings of Dots."""

        side: int = 8

    config: Config
    class_names, image_shape = ("dot",), (1, 8, 8)

    def __len__(self) -> int:
        return 10

    def make(self, indices: Any, **options: Any) -> Batch:
        return Batch(torch.ones(len(indices), *self.image_shape), torch.ones(len(indices), 1))


class MoreDots(Dots):
    """The same with settings of its own."""


def test_a_task_is_made_from_its_name_its_settings_or_each_setting() -> None:
    tasks = [
        make_task(task_config({"name": "multimnist", "digits": "glyphs", "max_shift": 6}), "test", 3),
        MultiMNIST(MultiMNIST.Config(digits="glyphs", max_shift=6), "test", 3),
        MultiMNIST(digits="glyphs", max_shift=6, split="test", seed=3),
    ]
    for task in tasks:
        assert (task.name, task.split, task.seed) == ("multimnist", "test", 3)
        assert torch.equal(task.batch([5]).images, tasks[0].batch([5]).images)


def test_settings_survive_being_saved() -> None:
    for name in ("multimnist", "cluttered", "svhn", "folder"):
        config = task_config(name)
        assert config.name == name and task_config(config.to_dict()) == config
        assert pickle.loads(pickle.dumps(config)) == config
    named = FolderTask.Config(root=Path("here"), class_names=["b", "a"])  # type: ignore[arg-type]
    assert named.to_dict()["root"] == "here" and hash(named) == hash(task_config(named.to_dict()))


def test_settings_of_version_0_1_load_and_unknown_ones_are_refused() -> None:
    assert task_config(OLD) == MultiMNIST.Config(digits="glyphs", max_shift=6)
    with pytest.raises(OcraError, match=r"no option task\.max_shfit; did you mean task\.max_shift\?"):
        task_config({"name": "multimnist", "max_shfit": 6})
    with pytest.raises(OcraError, match="a name, or an object with a name"):
        task_config({"name": 3})
    for values in ({"name": "svhn", "augment": "off"}, {"name": "cluttered", "size": "large"}):
        with pytest.raises(OcraError, match=r"task\.\w+ must be"):
            task_config(values)


def test_other_settings_are_refused_where_a_task_has_none_of_the_name() -> None:
    assert MultiMNIST.Config().with_settings(max_shift=6, root=None) == MultiMNIST.Config(max_shift=6)
    with pytest.raises(UsageError, match="svhn has no setting 'digits'; it has corruption, severity, root"):
        SVHN.Config().with_settings(digits="glyphs")
    with pytest.raises(UsageError, match="The task multimnist has no setting 'size'"):
        MultiMNIST(size=30)
    with pytest.raises(UsageError, match="takes a MultiMNISTConfig"):
        MultiMNIST(ClutteredMNIST.Config())  # type: ignore[arg-type]


def test_a_task_of_ones_own_is_known_by_its_place() -> None:
    config = Dots.Config(side=5)
    assert config.name == f"{__name__}:Dots" and get_task(config.name) is Dots
    assert isinstance(make_task(task_config(config.to_dict())), Dots)
    assert MoreDots.Config.task is MoreDots and Dots.Config.task is Dots
    assert pickle.loads(pickle.dumps(MoreDots.Config(side=4))).task is MoreDots
    assert Dots().answer_rule == AnswerRule(None) and Dots().config.side == 8


def test_no_module_is_imported_because_weights_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = OCRA(ModelConfig(hidden=8, filters=2))
    model.save_pretrained("weights", info=replace(model.info, task={"name": "stranger:Task"}))
    model = OCRA.from_pretrained("weights")
    with pytest.raises(UsageError, match="stranger:Task is not imported because weights name it"):
        evaluate(model, images=1)
    with pytest.raises(UsageError, match="is not imported"):
        evaluate("weights", images=1)
    with pytest.raises(UsageError, match="is not imported"):
        task_of_model({"name": "stranger.py:Task"}, model.config)
    assert "stranger" not in sys.modules
    with pytest.raises(SystemExit, match="imported"):  # what the user names is
        evaluate(model, "stranger:Task", images=1)
    own = {"name": Dots.Config().name, "side": 5}
    assert task_of_model(own, model.config) == Dots.Config(side=5), "a class that is there needs no import"


def test_a_name_belongs_to_one_task() -> None:
    with pytest.raises(OcraError, match="two tasks named 'multimnist'"):
        register_task("multimnist")(Dots)
    assert get_task("multimnist") is MultiMNIST and Dots.name.endswith(":Dots")
    assert set(task_names()) >= {"multimnist", "cluttered", "svhn", "folder"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("imagenet", "no task 'imagenet'; choose mnist, multimnist, cluttered"),
        ("nowhere.at_all:Task", "cannot be imported"),
        ("ocra.data.task:Nothing", "cannot be imported"),
        ("ocra.data.task:Batch", r"not a subclass of ocra\.Task"),
    ],
)
def test_what_is_no_task_is_named(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        get_task(name)


def test_the_example_of_a_new_task_is_found_in_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    task = make_task("new_task:Strokes", "test", seed=1)
    batch = task.batch([4, 9, 4])
    assert batch.images.shape == (3, 1, 20, 20) and (batch.counts.sum(1) == 2).all()
    assert torch.equal(batch.images[0], task.batch([4]).images[0])
    assert not torch.equal(
        batch.images[0], make_task("new_task:Strokes", "train", seed=1).batch([4]).images[0]
    )


def test_the_task_of_a_model_is_the_one_saved_or_the_likely_one() -> None:
    usual, colour = ModelConfig(), ModelConfig(channels=3, height=50, width=40, classes=3)
    assert task_of_model({**OLD, "newer": 1}, usual) == MultiMNIST.Config(digits="glyphs", max_shift=6)
    assert task_of_model(OLD, usual, "cluttered") == ClutteredMNIST.Config()
    assert task_of_model({}, colour) == FolderTask.Config(channels=3, height=50, width=40)
    kinds = [ModelConfig(background_capsules=1), ModelConfig(glimpses=12, readout_digits=5), usual]
    assert [likely_task(config) for config in kinds] == [ClutteredMNIST, SVHN, MultiMNIST]


def test_a_card_can_say_what_a_task_is() -> None:
    shifted = MultiMNIST.Config(max_shift=6)
    assert "up to 6 pixels" in shifted.about and shifted.source.licence == "cc-by-sa-3.0"
    offline = shifted.offline()
    assert offline.source.licence == "mit" and offline.max_shift == 6
    assert "and the extra set" in SVHN.Config(extra=True).source.splits and SVHN.Config().offline() is None
    for name in ("multimnist", "cluttered", "svhn", "folder"):
        config = task_config(name)
        assert config.about and config.source.terms and config.task.limits and config.task.title


def test_bad_splits_and_seeds_are_refused() -> None:
    for options, words in (
        ({"split": "dev"}, "no split 'dev'"),
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
    ):
        with pytest.raises(UsageError, match=words):
            Dots(**options)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        Dots()[10]
    assert np.isclose(Dots()[-1][0].mean(), 1)
