import math

import hypothesis.strategies as st
import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays
from sklearn.metrics import accuracy_score, balanced_accuracy_score, recall_score

from fedbook.answers import score as answers
from fedbook.engine.errors import UserError
from fedbook.methods.score import (accuracy, average_incremental, class_accuracy, final_accuracy, forgetting,
                                   plot_matrix)

matplotlib.use("Agg")
HAND = [[0.9, math.nan, math.nan], [0.7, 0.6, math.nan], [0.5, 0.8, 0.7]]
scored = st.integers(2, 6).flatmap(lambda classes: st.integers(1, 40).flatmap(lambda n: st.tuples(
    st.just(classes), arrays(np.int64, n, elements=st.integers(0, classes - 1)),
    arrays(np.int64, n, elements=st.integers(0, classes - 1)))))
squares = st.integers(1, 6).flatmap(lambda t: arrays(np.float64, (t, t), elements=st.floats(0, 1)))


@settings(deadline=None)
@given(scored)
def test_accuracies_agree_with_scikit_learn(case):
    classes, p, y = case
    assert math.isclose(accuracy(p, y), accuracy_score(y, p))
    assert (accuracy(torch.from_numpy(p), torch.from_numpy(y)) == accuracy(p.tolist(), y.tolist())
            == accuracy(np.eye(classes)[p], y))
    per_class = class_accuracy(p, y, classes)
    assert per_class.shape == (classes,) and per_class.dtype == np.float64
    present = np.unique(y)
    assert np.isnan(np.delete(per_class, present)).all()
    assert np.allclose(per_class[present], recall_score(y, p, labels=present, average=None, zero_division=0))
    reference = balanced_accuracy_score(y, p) if len(present) > 1 else per_class[present[0]]
    assert np.isclose(np.nanmean(per_class), reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_logits_of_any_float_type_and_with_gradients(dtype):
    logits = torch.eye(4, dtype=dtype, requires_grad=True)
    assert accuracy(logits, torch.tensor([0, 1, 2, 0])) == 0.75
    assert accuracy(torch.full((3, 2), torch.nan, dtype=dtype), [0, 0, 1]) == 0


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int32, np.uint64])
def test_class_ids_of_any_whole_type(dtype):
    p, y = np.array([0, 1, 1], dtype), np.array([0, 1, 0], dtype)
    assert accuracy(p, y) == 2 / 3 and class_accuracy(p, y, 2).tolist() == [0.5, 1.0]


@pytest.mark.parametrize("p, y", [([], []), ([0, 1], [0]), (np.zeros((2, 3)), [[0], [1]]),
                                  (np.zeros((2, 3)), [0, 1, 2]), ([0.5, 0.6], [0, 1]), ([0, 0], [0, -1]),
                                  (np.zeros((2, 3, 4)), [0, 1]), ([0, 1], [0.0, 1.0]),
                                  (np.zeros((2, 0)), [0, 1]), (np.ones((2, 1)), [0, 1]),
                                  (["a", "b"], [0, 1]), ([[0, 1], [0]], [0, 1]),
                                  (0, 0)])
def test_what_cannot_be_scored_is_refused_in_one_sentence(p, y):
    for call in (lambda: accuracy(p, y), lambda: class_accuracy(p, y, 10)):
        with pytest.raises(UserError) as error: call()
        assert "\n" not in str(error.value)


def test_a_label_without_a_class_is_refused():
    with pytest.raises(UserError, match="classes=2"): class_accuracy([0, 2], [0, 2], 2)
    assert class_accuracy([0, 7], [0, 1], 2).tolist() == [1, 0]


def test_hand_made_matrix():
    assert math.isclose(forgetting(HAND), 0.2)
    assert math.isclose(average_incremental(HAND), (0.9 + 0.65 + 2 / 3) / 3)
    assert math.isclose(final_accuracy(HAND), 2 / 3)
    assert math.isclose(final_accuracy(HAND, [2, 1, 1]), (1.0 + 0.8 + 0.7) / 4)
    assert math.isclose(average_incremental(HAND, [2, 1, 1]), (0.9 + (1.4 + 0.6) / 3 + 0.625) / 3)
    assert forgetting([[0.3]]) == 0.0 and average_incremental([[0.3]]) == final_accuracy([[0.3]], [7]) == 0.3


@settings(deadline=None)
@given(squares, st.data())
def test_matrix_measures_against_loops(a, data):
    t = len(a)
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=t, max_size=t))
    lost = [max(a[i][j] for i in range(j, t)) - a[t - 1][j] for j in range(t - 1)]
    f = forgetting(a)
    assert 0 <= f <= 1 and math.isclose(f, sum(lost) / len(lost) if lost else 0.0, abs_tol=1e-12)
    rows = [sum(a[i][j] * sizes[j] for j in range(i + 1)) / sum(sizes[:i + 1]) for i in range(t)]
    assert math.isclose(average_incremental(a, sizes), sum(rows) / t, abs_tol=1e-12)
    assert math.isclose(final_accuracy(a, sizes), rows[-1], abs_tol=1e-12)
    assert math.isclose(average_incremental(a), average_incremental(a, [3] * t), abs_tol=1e-12)
    cut = np.where(np.tri(t, dtype=bool), a, np.nan)
    assert forgetting(cut) == f
    assert average_incremental(torch.from_numpy(cut), sizes) == average_incremental(a, sizes)


@settings(deadline=None)
@given(squares)
def test_forgetting_is_at_least_minus_backward_transfer(a):
    if len(a) > 1: assert forgetting(a) >= -answers.backward_transfer(a) - 1e-12


def test_the_matrix_is_not_changed():
    a = np.random.default_rng(0).random((3, 3))
    before = a.copy()
    forgetting(a), average_incremental(a), final_accuracy(a), plot_matrix(a)
    assert np.array_equal(a, before)


@pytest.mark.parametrize("a", [[], [[]], [0.1], HAND[:2], [[0.1, 0.2], [math.nan, 0.3]],
                               [[0.1, 0], [math.inf, 0]], [["a"]], [[0.1], [0.2, 0.3]], np.zeros((2, 2, 2))])
def test_what_is_no_task_matrix_is_refused(a):
    for measure in (forgetting, average_incremental, final_accuracy, plot_matrix):
        with pytest.raises(UserError): measure(a)


@pytest.mark.parametrize("sizes", [[1, 2], [1, 2, 0], [1, 2, -1], [1, 2, math.nan], 3])
def test_sizes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(UserError, match="sizes="): average_incremental(HAND, sizes)


def test_matrix_figure_has_a_number_in_every_cell_that_counts():
    fig = plot_matrix(HAND, ["a", "b", "c"], title="hand")
    assert sorted(t.get_text() for t in fig.axes[0].texts) == ["0.50", "0.60", "0.70", "0.70", "0.80", "0.90"]
    assert fig.axes[0].get_title() == "hand"
    assert [t.get_text() for t in fig.axes[0].get_xticklabels()] == ["a", "b", "c"]
    with pytest.raises(UserError, match="names"): plot_matrix(HAND, ["a"])


def test_answers():
    assert answers.rounds_to_target([1, 2], [None, 0.4], 0.5) is None
    assert math.isclose(answers.mean_height([0, 1, 3], [0, 1, 1]), 2.5 / 3)
    assert math.isclose(answers.backward_transfer(HAND), (-0.4 + 0.2) / 2)
    assert math.isclose(answers.pooled([0.5, 1.0, math.nan], [4, 4, 0]), 0.75)
