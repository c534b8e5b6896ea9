"""Verdicts: against simulations, against scipy, and at their edges."""
import math

import numpy as np
import pytest
import torch
from conftest import equal
from scipy import stats

from fedbook.evidence import (VERDICTS_OF_PAPERS, Judgement, holm, judge, looks, own_word, p_value,
                              seeds_needed, shaken, verdict)
from fedbook.lab import UserError


@pytest.mark.parametrize("values, effect, expected", [
    ([2.1, 3.2, 3.9, 2.8], 3.0, "reproduced"),
    ([2.1, 3.2, 3.9, 2.8], None, "reproduced"),
    ([0.8, 1.1, 1.3, 0.9], 3.0, "smaller than the paper's"),
    ([0.8, 1.1, 1.3, 0.9], (1.0, 5.0), "reproduced"),
    ([5.8, 6.4, 6.1, 5.7], 3.0, "larger than the paper's"),
    ([0.9, -0.8, 0.6, -0.4], 3.0, "smaller, sign open"),
    ([0.9, -0.8, 0.6, -0.4], None, "open"),
    ([4.2, -1.5, 2.8, 0.4], 3.0, "open"),
    ([-1.9, -2.4, -1.2, -2.0], 3.0, "contradicted"),
    ([1.0, 1.2], 3.0, "open")])
def test_verdict_and_its_mirror_image(values, effect, expected):
    assert judge(values, at_least=0, effect=effect).verdict == expected
    mirrored = tuple(-e for e in reversed(effect)) if isinstance(effect, tuple) else effect and -effect
    assert judge([-v for v in values], at_most=0, effect=mirrored).verdict == expected
    assert expected in VERDICTS_OF_PAPERS


def test_without_effect_it_says_what_lab_says():
    words = {"reproduced": "reproduced", "contradicted": "not reproduced", "open": "too noisy to say"}
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.normal(rng.normal(), 1, 4).tolist()
        assert words[judge(values, at_least=0).verdict] == verdict(values, at_least=0)


def test_interval_is_scipys():
    values = [0.3, 1.4, -0.2, 0.9]
    found = judge(values, at_least=0)
    wanted = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert np.allclose([found.low, found.high], wanted)


def test_reruns_keep_it_open_and_seeds_do_not_help():
    near = [0.5, 0.6, 0.55]
    assert judge(near, at_least=0, reruns=1.0) == judge(near, at_least=0)._replace(verdict="open")
    assert judge([5.5, 5.6, 5.55], at_least=0, reruns=1.0).verdict == "reproduced"
    assert judge([-0.5, -0.6, -0.55], at_least=0, reruns=1.0).seeds is None


def test_two_bounds_and_none():
    assert judge([0.2, -0.3, 0.1, 0.0], at_least=-1, at_most=1).verdict == "reproduced"
    assert judge([2.2, 2.3, 2.1], at_least=-1, at_most=1).verdict == "contradicted"
    assert judge([0.9, 1.0, 0.7], at_least=-1, at_most=1).verdict == "open"
    assert judge([1.0, 2.0, 3.0]).verdict == "measured"


def test_one_value_has_no_interval():
    assert judge([1.0], at_least=0) == Judgement("open", -math.inf, math.inf, 3)


def test_seeds_needed_is_the_power_of_the_t_test():
    for effect in (0.4, 0.8, 1.5, 3.0):
        spread = math.sqrt(2 / 2)
        values = [effect - spread, effect, effect + spread]
        n = seeds_needed(values, 0)
        rng = np.random.default_rng(1)
        decided = []
        for count in (n - 1, n):
            draws = rng.normal(effect, 1, (20_000, count))
            test = stats.ttest_1samp(draws, 0, axis=1)
            decided.append(np.mean((test.pvalue < 0.05) & (test.statistic > 0)))
        assert decided[0] < 0.815 and decided[1] > 0.785


def test_seeds_needed_at_its_edges():
    assert seeds_needed([1.0, -1.0, 0.01], 0) is None
    assert seeds_needed([1.0, 1.0, 1.0], 0) == 3 and seeds_needed([1.0, 1.0, 1.0], 1) is None
    with pytest.raises(UserError, match=r"values=\[1.0\] has 1 entries, expected at least 2"):
        seeds_needed([1.0], 0)


def test_holm_by_its_definition():
    rng = np.random.default_rng(2)
    for m in (1, 2, 5, 9):
        p = rng.uniform(0, 0.2, m).tolist()
        order, corrected = sorted(p), holm(p)
        for value, found in zip(p, corrected):
            steps = [min(1, (m - j) * order[j]) for j in range(order.index(value) + 1)]
            assert math.isclose(found, max(steps))
    assert holm([]) == []


def test_p_value_and_interval_agree():
    rng = np.random.default_rng(3)
    for _ in range(50):
        values = rng.normal(0.7, 1, 5).tolist()
        found = judge(values, at_least=0)
        assert (p_value(values, 0) < 0.05) == (not found.low <= 0 <= found.high)
    with pytest.raises(UserError, match="expected at least 2"): p_value([1.0], 0)


@pytest.mark.parametrize("most", [3, 4, 8, 32])
def test_looks_spend_alpha_and_no_more(most):
    plan = looks(most)
    counts = [n for n, _ in plan]
    assert counts[0] == 3 and counts[-1] == most and counts == sorted(set(counts))
    assert math.isclose(sum(1 - level for _, level in plan), 0.05)


def test_looks_are_wrong_rarely():
    draws, decided = np.random.default_rng(4).normal(size=(20_000, 16)), np.zeros(20_000, bool)
    for n, level in looks(16): decided |= stats.ttest_1samp(draws[:, :n], 0, axis=1).pvalue < 1 - level
    assert decided.mean() < 0.05


def test_looks_refuses_a_first_look_that_is_too_early_or_late():
    with pytest.raises(UserError, match="first=2 must be from 3 to most=8"): looks(8, first=2)
    with pytest.raises(UserError, match="first=9 must be from 3 to most=8"): looks(8, first=9)


def test_shaken_is_a_function_of_its_seed_and_changes_floats_only():
    weights = {"a": torch.linspace(-1, 1, 50), "n": torch.tensor(7), "h": torch.ones(3, dtype=torch.float64)}
    one, again, other = shaken(weights, 1), shaken(weights, 1), shaken(weights, 2)
    assert equal(one, again) and not equal(one, other) and one["n"] == 7
    ratio = one["a"][weights["a"] != 0] / weights["a"][weights["a"] != 0] - 1
    assert 0 < ratio.abs().max() < 1e-5 and one["h"].dtype == torch.float64


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match="must all be finite"): judge([1.0, math.nan, 2.0], at_least=0)


def test_own_words():
    words = {"reproduced": "yes", "contradicted": "no", "open": "open", "measured": "measured"}
    assert {verdict: own_word(verdict) for verdict in words} == words
