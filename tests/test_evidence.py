"""Verdicts: against simulations, against scipy, and at their edges."""
import math

import numpy as np
import pytest
import torch
from conftest import equal
from scipy import stats

from fedbook.evidence.claims import (OWN_VERDICTS, VERDICTS, Judgement, chance_note, claims_table,
                                     headline_p_values, holds_if, holm, interval, interval_text, judge,
                                     judged_claim, looks, own_word, p_value, seeds_needed, shaken,
                                     verdict_counts, verdict_of)
from fedbook.engine.errors import UserError


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
    assert expected in VERDICTS


def test_without_effect_it_is_where_the_interval_lies():
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.normal(rng.normal(), 1, 4).tolist()
        mean, half = interval(values)
        word = "reproduced" if mean - half >= 0 else "contradicted" if mean + half < 0 else "open"
        assert judge(values, at_least=0).verdict == word


def test_a_cost_is_larger_if_it_is_further_from_nothing():
    "A claim such as: costs at most 10 points, the paper has 7."
    assert judge([2.0, 2.1, 2.2], at_most=10, effect=7).verdict == "smaller than the paper's"
    assert judge([8.5, 8.6, 8.7], at_most=10, effect=7).verdict == "larger than the paper's"
    assert judge([9.5, 9.0, 10.8], at_most=10, effect=7).verdict == "open", "not smaller"


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
    assert set(OWN_VERDICTS) == set(words.values())


# Claims as they are kept and shown

BETTER = dict(at_least=0, paper="61.2 - 58.2 %", source="Table 9", unit="%")


def test_a_claim_answers_to_the_size_that_its_paper_prints():
    small = judged_claim("a", [0.012, 0.011, 0.013], **BETTER)
    assert small["effect"] == pytest.approx([0.03, 0.03]) and small["verdict"] == "smaller than the paper's"
    assert judged_claim("a", [0.012, 0.011, 0.013], **BETTER, effect=(0.005, 0.02))["verdict"] == "reproduced"
    points = judged_claim("a", [1.2, 1.1, 1.3], at_least=0, paper="about 1.2")
    assert points["effect"] == [1.2, 1.2] and points["verdict"] == "reproduced"


def test_a_claim_of_nobody_is_a_check_of_our_own():
    own = judged_claim("a", [0.2, 0.3, 0.25], at_least=0)
    assert own["own"] and own["verdict"] == "yes"
    assert not judged_claim("a", [0.2], source="Table 1")["own"]
    assert judged_claim("a", [-0.2, -0.3, -0.25], at_least=0)["verdict"] == "no"


def test_the_table_prints_the_interval_that_the_verdict_used():
    claim = judged_claim("a", [0.02, 0.03, 0.025], **BETTER)
    mean, half = interval(claim["values"])
    assert interval_text(claim) == f"2.5 [{100 * (mean - half):.3g}, {100 * (mean + half):.3g}] % (3 seeds)"
    assert interval_text(judged_claim("a", [2.0], unit="s")) == "2 s (1 seed)"
    assert "reruns ± 1.5" in interval_text(judged_claim("a", [0.02, 0.03, 0.025], reruns=0.015, unit="%"))
    assert "at 98.0%" in interval_text(judged_claim("a", [0.02, 0.03, 0.025], level=0.98))


@pytest.mark.parametrize("bounds, want", [
    (dict(at_least=0.2), "at least 20 %"), (dict(at_most=0.05, our_bound=True), "at most 5 % (our bound)"),
    (dict(at_least=-0.02, at_most=0.02), "at least -2 and at most 2 %"), ({}, "")])
def test_the_bound_in_words(bounds, want):
    assert holds_if(judged_claim("a", [0.1], unit="%", paper="x", **bounds)) == want


def test_our_own_checks_do_not_name_their_bounds_as_ours():
    assert holds_if(judged_claim("a", [0.1], at_least=1, our_bound=True)) == "at least 1"


def test_an_open_claim_says_what_it_lacks():
    noisy = judged_claim("a", [0.5, -0.2, 0.4], at_least=0)
    assert verdict_of(noisy) == f"open, about {noisy['seeds']} seeds needed" and noisy["seeds"] > 3
    assert verdict_of(judged_claim("a", [1.0, -1.0, 0.01], at_least=0)) == "open, more than 1000 seeds needed"
    near = judged_claim("a", [0.05, 0.06, 0.055], at_least=0, reruns=1.0)
    assert verdict_of(near) == "open, within the spread of reruns"
    assert verdict_of(judged_claim("a", [5.0], at_least=0)) == "open, about 3 seeds needed"
    assert verdict_of(judged_claim("a", [1.0, 2.0, 1.5], at_least=0) | dict(older=True)) == "yes †"


def test_headline_claims_carry_their_corrected_p_values():
    values = ([2.0, 3.0, 2.5], [0.5, 1.5, 0.2], [1.0, 1.0, 1.0])
    claims = [judged_claim(f"claim {i}", v, at_least=0, paper="x", headline=True)
              for i, v in enumerate(values)]
    claims += [judged_claim("aside", values[0], at_least=0, paper="x"),
               judged_claim("too few", [1.0], at_least=0, paper="x", headline=True)]
    found = headline_p_values(claims)
    assert list(found) == ["claim 0", "claim 1", "claim 2"]
    assert list(found.values()) == holm([p_value(v, 0) for v in values]) and found["claim 2"] == 0
    lines = claims_table(claims).splitlines()
    assert f"Holm: p = {found['claim 1']:.2g}" in lines[3] and "Holm" not in "".join(lines[5:])


def test_papers_and_our_own_stand_in_two_tables_and_notes_beside_them():
    claims = [judged_claim("b", [0.2, 0.3, 0.25], at_least=0, source="Table 1"),
              judged_claim("c", [0.2, 0.3, 0.25], at_least=0, note="2 % of the gradient")]
    first, second = claims_table(claims).split("\n\n")
    assert "| b | at least 0 | (Table 1) | 0.25 [0.126, 0.374] (3 seeds) | reproduced | - |" in first
    assert "| c | at least 0 | 0.25 [0.126, 0.374] (3 seeds) | yes | 2 % of the gradient |" in second
    alone = claims_table(claims[:1])
    assert "does it act?" not in alone and "check of our own" not in alone
    assert verdict_counts(claims) == "1 reproduced; own checks: 1 yes"
    assert claims_table([]) == "" and verdict_counts([]) == "no claims"


def test_how_many_come_out_by_chance():
    claims = [judged_claim(str(i), [1.0, 2.0, 1.5], at_least=0) for i in range(40)]
    assert chance_note(claims).startswith("40 of these") and "about 2.0 of them" in chance_note(claims)
    assert chance_note(claims[:2]) == "" == chance_note([judged_claim("a", [1.0])] * 5)
