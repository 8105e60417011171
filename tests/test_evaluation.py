"""Scoring anything that turns images into scores."""

import csv
import json

import pytest
import torch
from tiny import tiny_model, tiny_weights
from torch import nn

import ocra
from ocra.cli.main import main
from ocra.errors import UsageError
from ocra.evaluation import count_errors, trials_to_csv


@pytest.fixture(scope="module")
def task():
    return ocra.MultiMNIST(split="test", digits="glyphs")


class Linear(nn.Module):
    """A plain network: scores [batch, classes] and nothing else."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(36 * 36, 10)
        self.dropout = nn.Dropout(0.5)

    def forward(self, images):
        return self.dropout(self.layer(images.flatten(1)))


def test_any_module_can_be_scored(task):
    model = Linear().train()
    result = ocra.evaluate(model, task, images=300)
    assert result.figures["n"] == 300 and 0 < result.exact_error <= 1
    assert result.glimpses is None and "reconstruction_mse" not in result.figures
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["task"] == "multimnist"
    assert model.training  # as it was before; without dropout in between:
    assert ocra.evaluate(model, task, images=300).figures == result.figures


def test_a_function_that_knows_the_truth_makes_no_error(task):
    truth = {image.numpy().tobytes(): counts for image, counts in (task[i] for i in task.sample(40).tolist())}
    result = ocra.evaluate(
        lambda images: torch.stack([truth[i.numpy().tobytes()] for i in images]), task, images=40, trials=True
    )
    assert result.exact_error == 0 and all(trial.correct for trial in result.trials)
    assert all(sorted(trial.truth) == sorted(trial.answer) for trial in result.trials)
    assert [trial.index for trial in result.trials] == sorted(task.sample(40).tolist())


def test_the_scores_of_ocra_alone_give_the_errors_of_ocra(task):
    model = tiny_model()
    whole = ocra.evaluate(model, task, images=256)
    scores = ocra.evaluate(lambda images: model(images).scores, task, images=256)
    assert scores.details["confusion"] == whole.details["confusion"]
    assert ocra.evaluate(lambda images: model(images), task, images=256).figures == whole.figures


def test_scores_of_another_shape_are_refused(task):
    with pytest.raises(UsageError, match=r"scores of shape \[128, 10\] or a Trace, not \[128, 3\]"):
        ocra.evaluate(lambda images: torch.zeros(len(images), 3), task, images=10)


def test_a_model_of_another_kind_has_no_task_and_no_interventions_of_its_own(task):
    with pytest.raises(UsageError, match="say which task"):
        ocra.evaluate(Linear())
    with pytest.raises(UsageError, match="takes no 'lesion'"):
        ocra.evaluate(Linear(), task, lesion=ocra.Lesion(encoder_memory=True))


def test_a_small_sample_is_part_of_a_larger_one(task):
    small, large = task.sample(100), task.sample(1000)
    assert set(small) <= set(large) and len(set(large)) == 1000 and max(large) > 1000


def test_a_task_may_be_a_name_a_config_or_what_the_model_was_trained_on(tmp_path, task):
    weights = tiny_weights(tmp_path / "weights")
    config = ocra.MultiMNIST.Config(digits="glyphs", max_shift=6)
    for given in (
        ocra.evaluate(weights, config, images=64),
        ocra.evaluate(weights, images=64, max_shift=6),
        ocra.evaluate(str(weights), "multimnist", images=64, max_shift=6),
    ):
        assert given.task["max_shift"] == 6 and given.task["digits"] == "glyphs"
        assert given.figures == ocra.evaluate(weights, ocra.MultiMNIST(config, "test"), images=64).figures


def test_settings_that_do_not_fit_are_refused(tmp_path, task):
    weights = tiny_weights(tmp_path / "weights")
    with pytest.raises(UsageError, match="multimnist has no setting 'size'"):
        ocra.evaluate(weights, size=50)
    with pytest.raises(UsageError, match="made already"):
        ocra.evaluate(weights, task, max_shift=6)


def test_windows_can_be_forced_on_every_image(task):
    model = tiny_model()
    windows = ocra.Windows(torch.full((3, 2), 17.5), torch.ones(3), torch.ones(3))
    result = ocra.evaluate(model, task, images=20, windows=windows, trials=True)
    assert all(trial.windows == ((17.5, 17.5, 17.0),) * 3 for trial in result.trials)


def test_no_images_are_no_errors(task):
    counter = count_errors(tiny_model(), task, task.sample(10)[:0], 8)
    assert counter.sums["images"] == 0 and counter.glimpses == 3


def test_class_names_in_a_table_of_trials_are_no_formulas(task):
    (trial,) = ocra.evaluate(tiny_model(), task, images=1, trials=True).trials
    table = trials_to_csv([type(trial)(**{**vars(trial), "truth": ("=1+1",)})])
    assert ",'=1+1," in table.splitlines()[1]


def test_the_table_of_trials_tells_the_stimulus(tmp_path, task):
    result = ocra.evaluate(tiny_model(), task, images=20, trials=True)
    result.save_trials(tmp_path / "trials.csv")
    rows = list(csv.DictReader((tmp_path / "trials.csv").open()))
    assert [int(row["index"]) for row in rows] == sorted(task.sample(20).tolist())
    assert {row["task_max_shift"] for row in rows} == {"4"} and "task_root" not in rows[0]
    for row in rows:
        x, y = (abs(int(row[f"box_1_{axis}"]) - int(row[f"box_2_{axis}"])) for axis in "xy")
        assert float(row["overlap"]) == pytest.approx((28 - x) * (28 - y) / 28**2, abs=1e-4)


def test_a_cue_moves_the_first_window_only(tmp_path):
    weights = str(tiny_weights(tmp_path / "weights"))
    out = tmp_path / "trials.csv"
    words = ["evaluate", weights, "--images", "4", "--out", str(out), "--json", "--cue", "7", "9"]
    assert main(words) == 0
    for row in csv.DictReader(out.open()):
        assert (float(row["window_1_x"]), float(row["window_1_y"])) == (7, 9)
        assert (float(row["window_2_x"]), float(row["window_2_y"])) != (7, 9)
