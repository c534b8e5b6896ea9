"""Verdicts: against simulations, against scipy, and at their edges."""
import math

import numpy as np
import pytest
import torch
from conftest import equal
from scipy import stats

from fedbook.evidence.claims import (OWN_VERDICTS, VERDICTS, Judgement, chance_note, claims_table,
                                     headline_p_values, holds_if, holm, interval, interval_text, judge,
                                     judged_claim, looks, own_word, p_value, Results, seeds_needed,
                                     shaken, size_half,
                                     verdict_counts, verdict_of)
from fedbook.engine.errors import UserError


@pytest.mark.parametrize("values, effect, expected", [
    ([2.1, 3.2, 3.9, 2.8], 3.0, "reproduced"),
    ([2.1, 3.2, 3.9, 2.8], None, "reproduced"),
    ([0.8, 1.1, 1.3, 0.9], 3.0, "weaker"),
    ([0.8, 1.1, 1.3, 0.9], (1.0, 5.0), "reproduced"),
    ([5.8, 6.4, 6.1, 5.7], 3.0, "stronger"),
    ([0.9, -0.8, 0.6, -0.4], 3.0, "not found"),
    ([0.9, -0.8, 0.6, -0.4], None, "undecided"),
    ([4.2, -1.5, 2.8, 0.4], 3.0, "undecided"),
    ([-1.9, -2.4, -1.2, -2.0], 3.0, "contradicted"),
    ([1.0, 1.2], 3.0, "undecided")])
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
        word = "reproduced" if mean - half >= 0 else "contradicted" if mean + half < 0 else "undecided"
        assert judge(values, at_least=0).verdict == word


def test_a_lower_cost_is_stronger():
    "A claim such as: costs at most 10 points, the paper has 7."
    assert judge([2.0, 2.1, 2.2], at_most=10, effect=7).verdict == "stronger"
    assert judge([8.5, 8.6, 8.7], at_most=10, effect=7).verdict == "weaker"
    word = judge([9.5, 9.0, 10.8], at_most=10, effect=7).verdict
    assert word == "not found", "7 is excluded, and not the bound"


def test_interval_is_scipys():
    values = [0.3, 1.4, -0.2, 0.9]
    found = judge(values, at_least=0)
    wanted = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert np.allclose([found.low, found.high], wanted)


def test_reruns_are_printed_and_decide_nothing():
    near = [0.5, 0.6, 0.55]
    plain, noisy = (judged_claim("a", near, at_least=0, reruns=some) for some in ((), (3.0, 1.0, -2.0, 2.0)))
    assert plain["verdict"] == noisy["verdict"] == "yes" and plain["reruns"] is None
    assert math.isclose(noisy["reruns"], np.std([3.0, 1.0, -2.0, 2.0], ddof=1))
    assert judged_claim("a", near, at_least=0, reruns=(3.0, 1.0, -2.0))["reruns"] is None, "four or none"


@pytest.mark.parametrize("ratio", [1 / 3, 1, 3, 10])
@pytest.mark.parametrize("n", [3, 5, 20])
def test_the_plain_interval_covers_the_truth_however_noisy_reruns_are(ratio, n):
    rng = np.random.default_rng(n)
    values = 0.5 + rng.normal(size=(4000, n)) + ratio * rng.normal(size=(4000, n))
    mean, half = values.mean(1), stats.t.ppf(0.975, n - 1) * values.std(1, ddof=1) / math.sqrt(n)
    assert abs(np.mean(np.abs(mean - 0.5) < half) - 0.95) < 0.015


@pytest.mark.parametrize("n", [3, 5, 20])
@pytest.mark.parametrize("truth, wrong", [
    (0.0, ("reproduced", "weaker", "stronger")), (0.0, ("contradicted",)), (3.0, ("not found",)), (3.0, ("weaker",)),
    (3.0, ("stronger",)), (-1.0, ("reproduced", "weaker", "stronger")), (1.0, ("contradicted",))])
def test_no_word_is_wrong_more_often_than_it_may(truth, wrong, n):
    draws = np.random.default_rng(7).normal(truth, 2, (1500, n))
    words = [judge(values.tolist(), at_least=0, effect=3.0).verdict for values in draws]
    assert sum(word in wrong for word in words) / len(words) < 0.025 + 0.013


def test_the_detectable_effect_is_found_four_times_of_five():
    rng = np.random.default_rng(5)
    for n in (3, 5, 12):
        values = rng.normal(0, 2, n).tolist()
        least, deviation = judge(values, at_least=0).detectable, np.std(values, ddof=1)
        test = stats.ttest_1samp(rng.normal(least, deviation, (20_000, n)), 0, axis=1)
        assert abs(np.mean((test.pvalue < 0.05) & (test.statistic > 0)) - 0.8) < 0.015
    assert judge([1.0], at_least=0).detectable is None and judge([1.0] * 3, at_least=0).detectable == 0


@pytest.mark.parametrize("values, bounds, reach, word", [
    ([1.2, 1.3, 1.1], dict(at_least=4.0), [1.8, 1.9, 1.7], "not testable here"),
    ([1.2, 1.3, 1.1], dict(at_least=1.5), [1.8, 1.9, 1.7], "contradicted"),
    ([1.2, 1.3, 1.1], dict(at_least=0.9, effect=4.0), [1.8, 1.9, 1.7], "reproduced"),
    ([1.2, 1.3, 1.1], dict(at_least=0.9, effect=4.0), [5.0, 5.0, 5.0], "weaker"),
    ([-1.2, -1.3, -1.1], dict(at_least=0.0, effect=4.0), [1.8, 1.9, 1.7], "not testable here"),
    ([-1.2, -1.3, -1.1], dict(at_least=0.0, effect=1.0), [1.8, 1.9, 1.7], "contradicted"),
    ([-0.1, 0.2, 0.0], dict(at_least=0.0, effect=4.0), [1.8, 1.9, 1.7], "not testable here")])
def test_what_no_method_could_show_is_not_contradicted(values, bounds, reach, word):
    assert judge(values, reach=reach, **bounds).verdict == word
    swapped = {"at_most" if name == "at_least" else name: -value for name, value in bounds.items()}
    assert judge([-v for v in values], reach=[-v for v in reach], **swapped).verdict == word


def test_a_reason_makes_a_claim_untestable_even_without_a_run():
    claim = judged_claim("a", [], at_least=0, of="a paper", why="no row")
    assert claim["verdict"] == "not testable here" and claim["low"] is None
    assert verdict_of(claim) == "not testable here: no row" and interval_text(claim) == "no run"
    assert judged_claim("a", [1.0, 1.1, 1.2], at_least=0, of="p", why="no")["verdict"] == "not testable here"


def test_not_found_says_what_is_excluded():
    far = judged_claim("a", [0.9, -0.8, 0.6, -0.4], at_least=0, effect=3.0, of="p")
    within = "equivalent within the paper's size"
    assert verdict_of(far) == f"not found, an effect above {far['high']:.3g} is excluded; {within}"
    near = judged_claim("a", [-2.9, 0.8, -0.6, 0.4], at_least=0, effect=3.0, of="p")
    assert near["low"] < -3 and "equivalent" not in verdict_of(near) and near["verdict"] == "not found"
    down = judged_claim("a", [-0.9, 0.8, -0.6, 0.4], at_most=0, effect=-3.0, of="p")
    assert verdict_of(down) == f"not found, an effect below {down['low']:.3g} is excluded; {within}"


def test_two_bounds_and_none():
    assert judge([0.2, -0.3, 0.1, 0.0], at_least=-1, at_most=1).verdict == "reproduced"
    assert judge([2.2, 2.3, 2.1], at_least=-1, at_most=1).verdict == "contradicted"
    assert judge([0.9, 1.0, 0.7], at_least=-1, at_most=1).verdict == "undecided"
    assert judge([1.0, 2.0, 3.0]).verdict == "measured"


def test_one_value_has_no_interval():
    assert judge([1.0], at_least=0) == Judgement("undecided", -math.inf, math.inf, 3, None)


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
    words = {"reproduced": "yes", "contradicted": "no", "undecided": "undecided", "measured": "measured",
             "not testable here": "not testable here"}
    assert {verdict: own_word(verdict) for verdict in words} == words
    assert set(OWN_VERDICTS) == set(words.values())


# Claims as they are kept and shown

BETTER = dict(at_least=0, paper="61.2 minus 58.2 %", source="Table 9", unit="%", of="a paper", effect=0.03)


def test_a_claim_answers_to_the_size_that_its_paper_prints():
    small = judged_claim("a", [0.012, 0.011, 0.013], **BETTER)
    assert small["effect"] == [0.03, 0.03] and small["verdict"] == "weaker"
    ranged = BETTER | dict(effect=(0.005, 0.02))
    assert judged_claim("a", [0.012, 0.011, 0.013], **ranged)["verdict"] == "reproduced"


def test_a_claim_of_nobody_is_a_check_of_our_own():
    own = judged_claim("a", [0.2, 0.3, 0.25], at_least=0, source="Table 1", effect=0.9)
    assert own["own"] and own["verdict"] == "yes", "a check has no size to answer to"
    assert not judged_claim("a", [0.2], of="a paper")["own"]
    assert judged_claim("a", [-0.2, -0.3, -0.25], at_least=0)["verdict"] == "no"


def test_a_curve_is_part_of_its_claim():
    curve = [("30 farms", [0.5, 0.7, 0.6]), ("one", [1.0])]
    claim = judged_claim("a", [0.2, 0.3, 0.25], at_least=0, of="p", curve=curve)
    mean, half = interval([0.5, 0.7, 0.6])
    ends = dict(low=mean - half, high=mean + half)
    assert claim["curve"] == [dict(setting="30 farms", values=[0.5, 0.7, 0.6], **ends),
                              dict(setting="one", values=[1.0], low=None, high=None)]


def test_the_table_prints_the_interval_that_the_verdict_used():
    claim = judged_claim("a", [0.02, 0.03, 0.025], **BETTER)
    mean, half = interval(claim["values"])
    assert interval_text(claim) == f"2.5 [{100 * (mean - half):.3g}, {100 * (mean + half):.3g}] % (3 seeds)"
    assert interval_text(judged_claim("a", [2.0], unit="s")) == "2 s (1 seed)"
    again = judged_claim("a", [0.02, 0.03, 0.025], reruns=[0.0, 0.01, 0.0, 0.01], unit="%")
    assert "reruns ± 0.577" in interval_text(again)
    assert "at 98.0%" in interval_text(judged_claim("a", [0.02, 0.03, 0.025], level=0.98))


@pytest.mark.parametrize("bounds, want", [
    (dict(at_least=0.2), "at least 20 %"), (dict(at_most=0.05), "at most 5 %"),
    (dict(at_least=-0.02, at_most=0.02), "at least -2 and at most 2 %"), ({}, "")])
def test_the_bound_in_words(bounds, want):
    assert holds_if(judged_claim("a", [0.1], unit="%", paper="x", **bounds)) == want


def test_an_undecided_claim_says_what_it_lacks():
    noisy = judged_claim("a", [0.5, -0.2, 0.4], at_least=0)
    assert verdict_of(noisy) == f"undecided, about {noisy['seeds']} seeds needed" and noisy["seeds"] > 3
    far_off = judged_claim("a", [1.0, -1.0, 0.01], at_least=0)
    assert verdict_of(far_off) == "undecided, more than 1000 seeds needed"
    assert verdict_of(judged_claim("a", [5.0], at_least=0)) == "undecided, about 3 seeds needed"
    assert verdict_of(judged_claim("a", [1.0, 2.0, 1.5], at_least=0) | dict(older=True)) == "yes †"


def test_an_undecided_claim_is_decided_by_the_sign_or_by_the_size():
    values, far = [0.4, -0.6, 0.3, 0.2], dict(at_least=0, effect=0.5)
    sign, either = judge(values, at_least=0), judge(values, **far)
    assert sign.verdict == either.verdict == "undecided" and either.seeds < sign.seeds
    assert either.seeds == seeds_needed(values, 0.5)
    down = judge([-v for v in values], at_most=0, effect=-0.5)
    assert (down.verdict, down.seeds) == (either.verdict, either.seeds)
    beyond = judge([2.0, -1.0, 1.5, 0.9], **far)
    assert beyond.seeds == seeds_needed([2.0, -1.0, 1.5, 0.9], 0), "the mean is not short of the size"


def test_headline_claims_carry_their_corrected_p_values():
    values = ([2.0, 3.0, 2.5], [0.5, 1.5, 0.2])
    claims = [judged_claim(f"claim {i}", v, at_least=0, of="p")
              for i, v in enumerate(values)]
    claims += [judged_claim("aside", values[0], at_least=0),
               judged_claim("too few", [1.0], at_least=0, of="p"),
               judged_claim("a count, the same for each seed", [1.0, 1.0, 1.0], at_least=0, of="p")]
    found = headline_p_values(claims)
    assert list(found) == ["claim 0", "claim 1"]
    assert list(found.values()) == holm([p_value(v, 0) for v in values])
    lines = claims_table(claims).splitlines()
    assert f"Holm: p = {found['claim 1']:.2g}" in lines[3] and "Holm" not in "".join(lines[5:])
    beyond = judged_claim("out of reach", [1.0, 1.1, 1.2], at_least=4, of="p", reach=[2.0] * 3)
    assert headline_p_values([*claims, beyond]) == found, "what cannot be tested takes no part"


def test_papers_and_our_own_stand_in_two_tables_and_notes_beside_them():
    claims = [judged_claim("b", [0.2, 0.3, 0.25], at_least=0, source="Table 1", of="a paper"),
              judged_claim("c", [0.2, 0.3, 0.25], at_least=0, note="2 % of the gradient", source="Holm 1979")]
    first, second = claims_table(claims).split("\n\n")
    assert "| b | (Table 1) | 0.25 [0.126, 0.374] (3 seeds) | 0.163 | reproduced (Holm: p = 0.013) | - |" in first
    assert "| c (Holm 1979) | at least 0 | 0.25 [0.126, 0.374] (3 seeds) | yes | 2 % of the gradient |" in second
    alone = claims_table(claims[:1])
    assert "what it does" not in alone and "check of our own" not in alone
    assert verdict_counts(claims) == "1 reproduced; own checks: 1 yes"
    assert claims_table([]) == "" and verdict_counts([]) == "no claims"


def test_how_many_come_out_by_chance():
    claims = [judged_claim(str(i), [1.0, 2.0, 1.5], at_least=0) for i in range(40)]
    assert chance_note(claims).startswith("40 of these") and "about 2.0 of them" in chance_note(claims)
    assert chance_note(claims[:2]) == "" == chance_note([judged_claim("a", [1.0])] * 5)


# Pairing by seed

def rows_of(folder, order):
    "Results with the rows a and b: b is 3 points above a, whatever the seed; a's seeds in `order`."
    results = Results("pairs", "full", out=folder)
    for seed in (0, 1, 2, 3): results.row("b", seed, lambda: dict(score=20.0 * seed + 3 + 0.5 * seed))
    for seed in order: results.row("a", seed, lambda: dict(score=20.0 * seed))
    return results


def test_differences_are_paired_by_seed_whatever_the_order_of_the_rows(tmp_path):
    results = rows_of(tmp_path, (0, 1, 3, 2))
    assert results.difference("b", "a", "score") == [3.0, 3.5, 4.0, 4.5]
    assert results.values("a", "score") == [0.0, 20.0, 40.0, 60.0]
    score = [row["numbers"]["score"] for row in results.rows]
    by_order = [b - a for b, a in zip(score[:4], score[4:])]
    assert interval(by_order)[1] > 10 * interval(results.difference("b", "a", "score"))[1], "the fault"


def test_unlike_seeds_are_refused_and_no_rows_are_no_values(tmp_path):
    results = rows_of(tmp_path, (0, 1))
    with pytest.raises(UserError, match=r"row 'b' has the seeds \[0, 1, 2, 3\] and row 'a' \[0, 1\], expected equal"):
        results.difference("b", "a", "score")
    assert results.difference("x", "y", "score") == [] and results.claim("nothing", []) == ""
    assert results.gain("a", "x", "score") == results.gain("x", "a", "score") == []
    with pytest.raises(UserError, match="expected equal"): results.gain("b", "a", "score")
    assert results.claims == [] and results.claim("told", [], of="p", why="no row") == "not testable here"


def test_a_results_file_says_what_it_was_made_with_and_can_be_read_again(tmp_path):
    results = rows_of(tmp_path, (0, 1, 2, 3))
    results.claim("b beats a", results.difference("b", "a", "score"), at_least=0)
    results.save()
    kept = Results.read(results.file)
    assert kept.claims == results.claims and kept.rows == results.rows and kept.facts == results.facts
    assert set(kept.made_with) - {"networks"} == {"python", "torch", "numpy", "processor"}
    assert all(kept.made_with.values())
    before = results.file.read_text()
    kept.save()
    assert results.file.read_text() == before


# The paper's error, and runs that collapse


def test_the_interval_of_a_difference_is_welchs():
    ours, theirs = [0.3, 1.4, -0.2, 0.9, 0.5], [2.0, 2.6, 3.1]
    found = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    half = size_half(ours, [np.std(theirs, ddof=1)])
    assert 2 * half == pytest.approx(found.high - found.low)
    assert size_half(ours) == pytest.approx(interval(ours)[1])


def test_a_size_that_the_papers_own_error_leaves_possible_is_not_excluded():
    values = [0.010, 0.012, 0.008, 0.011, 0.009]
    assert judge(values, at_least=0, effect=0.02).verdict == "weaker"
    assert judge(values, at_least=0, effect=0.02, deviations=(0.013, 0.031)).verdict == "reproduced"
    assert judge(values, at_least=0, effect=0.2, deviations=(0.013, 0.031)).verdict == "weaker"
    none = [value - 0.010 for value in values]
    open_ = judged_claim("a", none, at_least=0, effect=0.0265, of="a paper", deviations=(0.024, 0.023))
    assert open_["verdict"] == "undecided" and "own error" in verdict_of(open_)
    assert judge(none, at_least=0, effect=0.0265).verdict == "not found"


def test_a_seed_that_strays_asks_for_signs():
    assert judge([9.0, 8.8, 9.1, 8.9, 30.0], at_least=5).signs == 0.0625
    assert judge([5.1, 5.2, 5.0, 5.3, 9.0], at_least=3).verdict == "undecided", "t and five signs"
    many = [5.1, 5.2, 5.0, 5.3, 5.15, 5.25, 5.05, 9.0]
    assert judge(many, at_least=3).verdict == "reproduced"
    assert judge([5.1, 5.2, 5.0], at_least=4.5, collapses=True).seeds == 6
    assert judge([5.1, 5.2, 5.0], at_least=4.5).verdict == "reproduced"


def test_a_share_ends_at_0_and_1():
    kept = judged_claim("a", [1.0, 1.0, 0.75], at_least=0.5, unit="%", share=True)
    assert kept["high"] == 1.0 and kept["low"] > 0.3
    assert judged_claim("a", [1.0, 1.0, 0.75], at_least=0.5, unit="%")["high"] > 1
