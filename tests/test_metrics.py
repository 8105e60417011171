"""From scores to answers: the paper's rule, ties, house numbers, intervals."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ocra.config import AnswerRule, ModelConfig
from ocra.data import FolderTask, MultiMNIST, make_task
from ocra.data.task import Batch
from ocra.errors import OcraError, UsageError
from ocra.evaluation import evaluate
from ocra.metrics import (
    ErrorCounter,
    predicted_counts,
    wilson_interval,
    wrong_answers,
    wrong_digits,
)
from ocra.model.ocra import OCRA
from ocra.model.trace import Trace
from ocra.model.weights import ModelInfo

TWO_DIFFERENT = AnswerRule(2, repeats=False)
TWO = AnswerRule(2)


def answer(scores: list[float], rule: AnswerRule) -> list[int]:
    return predicted_counts(torch.tensor([scores]), rule)[0].int().tolist()


def test_two_highest_scores_are_the_answer() -> None:
    assert answer([0.9, 0.1, 1.7, 0.8], TWO) == [1, 0, 1, 0]


def test_a_score_of_1_8_means_two_of_that_class() -> None:
    assert answer([0.9, 0.1, 1.8, 0.8], TWO) == [0, 0, 2, 0]
    assert answer([1.85, 0.1, 1.9, 0.8], TWO) == [0, 0, 2, 0]
    assert answer([0.9, 0.1, 2.9, 0.8], TWO) == [0, 0, 2, 0]


def test_classes_never_repeat_where_the_task_says_so() -> None:
    assert answer([0.9, 0.1, 2.9, 0.8], TWO_DIFFERENT) == [1, 0, 1, 0]


def test_a_class_picked_by_chance_is_no_answer() -> None:
    assert answer([0.9, 0.5, 0.5, 0.1], TWO) == [1, 0, 0, 0]
    assert answer([0.5, 0.5, 0.1, 0.1], TWO) == [1, 1, 0, 0]
    assert answer([1.9, 1.9, 0.1, 0.1], TWO) == [0, 0, 0, 0]
    assert answer([0.0, 0.0, 0.0, 0.0], TWO) == [0, 0, 0, 0]


def test_three_objects_and_fewer_classes_than_objects() -> None:
    assert answer([1.9, 0.8, 0.7, 0.1], AnswerRule(3)) == [2, 1, 0, 0]
    assert answer([0.7, 0.4], AnswerRule(3)) == [1, 1]
    assert answer([2.9], AnswerRule(3)) == [3]


def test_scores_are_rounded_where_the_number_of_objects_is_unknown() -> None:
    assert answer([0.4, 0.6, 1.6, 0.0], AnswerRule(None)) == [0, 1, 2, 0]


@given(st.lists(st.floats(0, 3, width=32), min_size=2, max_size=12))
def test_an_answer_never_names_more_than_the_objects_there_are(scores: list[float]) -> None:
    predicted = predicted_counts(torch.tensor([scores]), TWO)
    assert predicted.sum() in (0, 1, 2)
    chosen = torch.tensor(scores)[predicted[0] > 0]
    others = torch.tensor(scores)[predicted[0] == 0]
    if predicted.sum() == 2 and len(others):
        assert chosen.min() > others.max()


@given(
    st.permutations(range(5)),
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.2, 1.8, 2.0, 2.9]), min_size=5, max_size=5),
    st.sampled_from([AnswerRule(n, repeats) for n in (1, 2, 3, 4, 7, None) for repeats in (True, False)]),
)
def test_an_answer_does_not_depend_on_the_order_of_classes(
    order: list[int], values: list[float], rule: AnswerRule
) -> None:
    scores = torch.tensor([values])
    assert torch.equal(predicted_counts(scores, rule)[:, order], predicted_counts(scores[:, order], rule))


def test_classes_of_one_score_are_not_told_apart() -> None:
    assert answer([2.0, 2.0, 0.1], AnswerRule(3)) == [0, 0, 0]
    assert answer([2.0, 2.0, 0.1], AnswerRule(4)) == [2, 2, 0]
    assert answer([2.9, 2.9, 0.1], AnswerRule(4)) == [0, 0, 0]


def test_a_folder_is_answered_for_as_was_saved_with_the_weights(tmp_path: Path) -> None:
    """What its labels say of the number of objects must not help: pictures without labels are answered alike."""
    rows = ["file,labels,split"]
    for number in range(4):
        Image.new("L", (36, 36), 60 * number).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,a b,test")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    task = FolderTask.Config(root=str(tmp_path))
    model = OCRA(ModelConfig(classes=2, hidden=16, primary_capsules=4, filters=4))
    assert evaluate(model, task).to_dict()["answer"] == {"objects": 2, "repeats": False}
    assert evaluate(model, task).exact_error == 0  # two of two classes
    saved = {"task": "folder", "answer": {"objects": None, "repeats": False}}
    model.info = ModelInfo.from_dict(saved, model.config)
    assert evaluate(model, task).to_dict()["answer"] == {"objects": None, "repeats": False}
    assert evaluate(model, task).exact_error == 1  # an untrained network rounds to nothing


@pytest.mark.parametrize("options", [{"glimpses": -1}, {"glimpses": 0}, {"batch": 0}, {"threads": -3}])
def test_impossible_evaluations_are_refused(options: dict[str, int]) -> None:
    model = OCRA(ModelConfig(hidden=16, primary_capsules=4, filters=4))
    with pytest.raises(UsageError):
        evaluate(model, MultiMNIST.Config(digits="glyphs"), images=8, **options)  # type: ignore[arg-type]


def test_an_image_is_wrong_if_any_object_is() -> None:
    images, lengths = torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 3)
    trace = Trace(torch.tensor([[0.9, 0.1, 0.8], [1.9, 0.1, 0.8]]), images, lengths)
    batch = Batch(images, torch.tensor([[1.0, 1.0, 0.0], [2.0, 0.0, 0.0]]))
    assert wrong_answers(trace, batch, AnswerRule(2)).tolist() == [True, False]


def test_digits_of_a_number_are_wrong_if_tied_or_not_highest() -> None:
    readout = torch.zeros(1, 3, 11)
    readout[0, 0, 4] = 1
    readout[0, 1, [2, 3]] = 1
    readout[0, 2, 10] = 0.5
    assert wrong_digits(readout, torch.tensor([[4, 2, 10]])).tolist() == [[False, True, False]]
    assert wrong_digits(torch.zeros(1, 1, 11), torch.tensor([[10]])).tolist() == [[True]]


def test_wilson_interval_against_published_values() -> None:
    low, high = wilson_interval(81, 263)  # Newcombe 1998, table I
    assert math.isclose(low, 0.2553, abs_tol=5e-4) and math.isclose(high, 0.3662, abs_tol=5e-4)
    assert wilson_interval(0, 20)[0] == 0
    assert math.isclose(wilson_interval(0, 20)[1], 0.1611, abs_tol=5e-4)
    assert wilson_interval(20, 20)[1] == 1


def counter_of(scores: list[list[float]], counts: list[list[float]], rule: AnswerRule = TWO) -> ErrorCounter:
    trace = Trace(torch.tensor(scores), torch.zeros(len(scores), 1, 2, 2), torch.zeros(len(scores), 2, 3))
    trace.capsule_lengths[:, 1, 2] = torch.linspace(0.4, 0.6, len(scores))
    batch = Batch(torch.ones(len(scores), 1, 2, 2), torch.tensor(counts))
    counter = ErrorCounter(("a", "b", "c"), glimpses=2)
    counter.add(trace, batch, rule)
    return counter


def test_the_counter_counts_images_objects_and_confusions() -> None:
    counter = counter_of(
        [[0.9, 0.8, 0.1], [0.9, 0.1, 0.8], [1.9, 0.0, 0.1]], [[1, 1, 0], [1, 1, 0], [0.0, 0.0, 2.0]]
    )
    figures, details = counter.figures(), counter.details()
    assert figures["n"] == 3
    assert figures["exact_error"] == pytest.approx(2 / 3)
    assert figures["object_error"] == pytest.approx(3 / 6)
    assert figures["reconstruction_mse"] == 1
    assert details["longest_capsules"] == pytest.approx([0, 0.5]) and counter.silent_glimpses == 1
    assert details["confusion"]["counts"] == [[2, 0, 0, 0], [0, 1, 1, 0], [2, 0, 0, 0]]
    assert details["pairs"] == {"a b": {"n": 2, "error": 0.5}, "c c": {"n": 1, "error": 1.0}}
    assert details["classes"]["b"] == {"n": 2, "error": 0.5}


def test_a_missed_object_with_nothing_named_instead_is_answered_with_none() -> None:
    counter = counter_of([[0.9, 0.5, 0.5]], [[1, 1, 0]])
    assert counter.details()["confusion"]["counts"][1] == [0, 0, 0, 1]


def test_counters_add_up() -> None:
    one, other = counter_of([[0.9, 0.8, 0.1]], [[1, 1, 0]]), counter_of([[0.9, 0.1, 0.8]], [[1, 1, 0]])
    assert (one + other).figures()["exact_error"] == 0.5
    assert one.combined(lambda vector: 2 * vector).figures()["n"] == 2


def test_house_numbers_are_counted_by_length() -> None:
    sequence = torch.tensor([[1, 2, 10, 10, 10], [7, 10, 10, 10, 10]])
    readout = torch.nn.functional.one_hot(sequence, 11).float()
    readout[0, 1] = torch.nn.functional.one_hot(torch.tensor(9), 11).float()
    trace = Trace(torch.zeros(2, 14), torch.zeros(2, 1, 2, 2), torch.zeros(2, 12, 14), readout)
    batch = Batch(torch.zeros(2, 1, 2, 2), torch.zeros(2, 14), sequence)
    assert wrong_answers(trace, batch, AnswerRule(None)).tolist() == [True, False]
    counter = ErrorCounter(tuple("0123456789"), glimpses=12, digits=5)
    counter.add(trace, batch, AnswerRule(None))
    details = counter.details()
    assert details["lengths"]["2"] == {"n": 1, "exact_error": 1.0, "digit_error": 0.5}
    assert details["lengths"]["1"] == {"n": 1, "exact_error": 0.0, "digit_error": 0.0}
    assert details["output_error"] == pytest.approx(1 / 10)
    assert details["confusion"]["counts"][2][9] == 1
    assert counter.object_error == pytest.approx(1 / 3)
    figures = counter.figures()
    assert (figures["objects"], figures["misses"], figures["false_alarms"]) == (3, 1, 1)


def test_a_digit_read_where_there_is_none_is_a_false_alarm() -> None:
    sequence = torch.tensor([[4, 10, 10]])
    readout = torch.nn.functional.one_hot(torch.tensor([[4, 7, 10]]), 11).float()
    trace = Trace(torch.zeros(1, 10), torch.zeros(1, 1, 2, 2), torch.zeros(1, 2, 10), readout)
    counter = ErrorCounter(tuple("0123456789"), glimpses=2, digits=3)
    counter.add(trace, Batch(torch.zeros(1, 1, 2, 2), torch.zeros(1, 10), sequence), AnswerRule(None))
    figures = counter.figures()
    assert (figures["misses"], figures["false_alarms"]) == (0, 1)
    assert (figures["precision"], figures["recall"]) == (0.5, 1.0)


def test_misses_and_false_alarms_are_counted_apart() -> None:
    scores, counts = [[0.9, 0.8, 0.1], [0.1, 0.1, 0.1], [0.0, 2.2, 0.0]], [[1, 0, 0], [1, 1, 0], [0, 1.0, 0]]
    figures = counter_of(scores, counts, AnswerRule(None)).figures()
    assert (figures["objects"], figures["misses"], figures["false_alarms"]) == (4, 2, 2)
    assert (figures["precision"], figures["recall"]) == (0.5, 0.5)
    nothing = counter_of([[0.1, 0.1, 0.1]], [[0.0, 0.0, 0.0]], AnswerRule(None)).figures()
    assert (nothing["misses"], nothing["false_alarms"], nothing["exact_error"]) == (0, 0, 0)


def test_the_counter_of_a_model_with_readouts_names_digits_alone() -> None:
    counter = ErrorCounter((*"0123456789", "<5", "<4", "<3", "<2"), glimpses=12, digits=5)
    assert counter.class_names == tuple("0123456789")


def test_where_no_class_repeats_a_high_score_is_still_one_object() -> None:
    scores = torch.tensor([[2.7, 0.1, 0.6]])
    assert predicted_counts(scores, AnswerRule(None, repeats=False)).tolist() == [[1, 0, 1]]
    assert predicted_counts(scores, AnswerRule(None, repeats=True)).tolist() == [[3, 0, 1]]


def test_evaluate_takes_tasks_configs_and_names_and_refuses_nonsense(tmp_path: Path) -> None:
    model = OCRA(ModelConfig(filters=4, hidden=16, primary_capsules=4))
    config = MultiMNIST.Config(digits="glyphs")
    one = evaluate(model, config, images=64, seed=3)
    other = evaluate(model, make_task(config, "test", 3), images=64, batch_size=20, threads=2)
    lengths = [result.details.pop("longest_capsules") for result in (one, other)]
    assert lengths[0] == pytest.approx(lengths[1]) and len(lengths[0]) == 3 and min(lengths[0]) > 0
    assert one.exact_error == other.exact_error and one.details == other.details and one.seed == 3
    assert one.figures["reconstruction_mse"] == pytest.approx(other.figures["reconstruction_mse"])
    assert model.training
    model.save_pretrained(tmp_path / "saved")
    assert evaluate(tmp_path / "saved", config, images=64, seed=3).figures == one.figures
    with pytest.raises(UsageError, match="no task 'emnist'"):
        evaluate(model, "emnist")
    with pytest.raises(UsageError, match="at least 1 image"):
        evaluate(model, config, images=0)
    with pytest.raises(OcraError, match="10 classes, but the model has 4"):
        evaluate(OCRA(ModelConfig(classes=4, filters=4, hidden=16)), config)


def test_errors_are_told_apart_by_the_number_of_objects() -> None:
    counter = counter_of([[0.1, 0.0, 0.6], [0.9, 0.8, 0.1], [0.9, 2.1, 0.1]], [[0, 0, 0], [1, 1, 0], [1, 2.0, 0]],
                         AnswerRule(None))  # fmt: skip
    assert counter.details()["objects_in_image"] == {
        "0": {"n": 1, "exact_error": 1.0}, "2": {"n": 1, "exact_error": 0.0}, "3": {"n": 1, "exact_error": 0.0},
    }  # fmt: skip


def test_d_prime_is_zero_by_chance_and_finite_without_errors() -> None:
    chance = counter_of([[0.9, 0.9, 0.0]] * 2, [[1.0, 0, 0], [0, 1.0, 0]], AnswerRule(None))
    blind = counter_of([[0.9, 0.9, 0.9]] * 2, [[1.0, 0, 0], [0, 1.0, 1.0]], AnswerRule(None))
    right = counter_of([[0.9, 0.1, 0.1]], [[1.0, 0, 0]], AnswerRule(None))
    assert blind.d_prime == pytest.approx(0)
    assert chance.d_prime > blind.d_prime
    assert right.d_prime == pytest.approx(0.6745 + 0.9674, abs=1e-3)  # z(1.5 / 2) − z(0.5 / 3)
