"""The headline claims of FedMox, from the kept rows of its chapter."""

import json
import random
from pathlib import Path

import pytest

from fedbook.evidence.claims import Results
from fedbook.evidence.fedmox import fedmox_claims

FILE = Path(__file__).parents[1] / "results" / "evidence.fedmox-full-0-rendered.json"
AGREE = "Routing maps agree at both resolutions beyond chance (Cohen's κ)"
SOFT = "The soft mixture raises mAP@50 over experts alone"
ALPHA = "An α of .2 beats both ends: 0 (the old model left out) and 1 (the clients left out)"
COUNT = "Three or four experts are better than one and than five"
EXPERTS = "A mixture of experts in the head raises mAP@50 over FedAvg"
WHOLE = "FedMox raises mAP@50 over FedAvg"


def judged(rows, tmp_path, sizes=None):
    "The claims that `rows` give."
    body = json.loads(FILE.read_text())
    path = tmp_path / "results.json"
    path.write_text(json.dumps(body | dict(rows=rows, claims=[], sizes=body["sizes"] | (sizes or {}))))
    results = Results.read(path)
    fedmox_claims(results)
    return results.claims


def kept(): return json.loads(FILE.read_text())["rows"]


def made(totals):
    "Rows of `totals`: row to total, one per seed."
    return [dict(what=what, seed=seed, numbers=dict(total=total, up=1.0), seconds=0.0)
            for what, some in totals.items() for seed, total in enumerate(some)]


def word(claims, text): return next(claim["verdict"] for claim in claims if claim["claim"] == text)


def test_at_most_eight_claims_each_with_figure_and_place(tmp_path):
    claims = judged(kept(), tmp_path)
    assert 0 < len(claims) <= 8 and len({claim["claim"] for claim in claims}) == len(claims)
    assert all(claim["of"] == "FedMox" and claim["paper"] and claim["source"] for claim in claims)


def test_the_order_of_rows_changes_nothing(tmp_path):
    rows, before = kept(), judged(kept(), tmp_path)
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        assert json.dumps(judged(rows, tmp_path)) == json.dumps(before)


def test_each_bound_can_be_reached(tmp_path):
    "With the rivals' scores as they are, a perfect method would be on the right side, by the paper's size."
    ours = "FedMox", "FedAvg + MoE"
    claims = judged([row | dict(numbers=row["numbers"] | dict(total=1.0)) if row["what"] in ours else row
                     for row in kept()], tmp_path)
    for claim in claims:
        if claim["why"] or claim["claim"] in (SOFT, AGREE, ALPHA, COUNT): continue
        assert claim["verdict"] in ("reproduced", "stronger"), claim["claim"]
    assert all(claim["at_least"] <= claim["reach"][0] for claim in claims if claim["reach"])
    alone = [row | dict(numbers=row["numbers"] | dict(total=1.0)) if row["what"] == "FedMox" else row
             for row in kept()]
    assert word(judged(alone, tmp_path), SOFT) in ("reproduced", "stronger")


@pytest.mark.parametrize("gains, expected", [
    ((0.018, 0.019, 0.021, 0.02), "reproduced"), ((0.004, 0.005, 0.006, 0.005), "weaker"),
    ((0.05, 0.06, 0.055, 0.05), "stronger"), ((-0.02, -0.019, -0.021, -0.02), "contradicted"),
    ((-0.002, 0.002, -0.001, 0.001), "not found"), ((-0.05, 0.06, 0.02, -0.01), "undecided")])
def test_words_turn_with_made_up_rows(gains, expected, tmp_path):
    base = (0.5, 0.6, 0.4, 0.55)
    rows = made({"FedAvg": base, "FedAvg + MoE": [a + b for a, b in zip(base, gains)]})
    assert word(judged(rows, tmp_path), EXPERTS) == expected


@pytest.mark.parametrize("same, expected", [
    ((0.9, 0.92, 0.88), "reproduced"), ((0.5, 0.51, 0.52), "contradicted")])
def test_maps_agree_if_they_share_more_than_chance_gives(same, expected, tmp_path):
    rows = [dict(what="agreement", seed=seed, seconds=0.0,
                 numbers=dict(finest=share, luck=0.6, domains={"cloudy": [share, share]}))
            for seed, share in enumerate(same)]
    assert word(judged(rows, tmp_path), AGREE) == expected


@pytest.mark.parametrize("text, first, second", [
    (ALPHA, "FedAvg + MoE", "SCL + MoE"), (COUNT, "FedMox, K = 1", "FedMox, K = 5")])
def test_a_best_inside_needs_both_ends(text, first, second, tmp_path):
    "Better than one end alone is not enough, whichever one it is."
    jitter = 0.0, 0.002, 0.001, -0.001, 0.0005, -0.0005
    for one, other, expected in ((0.50, 0.51, "reproduced"), (0.50, 0.62, "contradicted"),
                                 (0.62, 0.50, "contradicted")):
        levels = {first: one, "FedMox": 0.55, second: other}
        rows = made({what: [level + (1 + k) * j for j in jitter]
                     for k, (what, level) in enumerate(levels.items())})
        assert word(judged(rows, tmp_path), text) == expected
        assert text not in {claim["claim"] for claim in judged(rows[:12], tmp_path)}


def test_two_seeds_of_the_number_of_experts_decide_nothing(tmp_path):
    rows = made({"FedMox, K = 1": (0.5, 0.5), "FedMox": (0.6, 0.61), "FedMox, K = 5": (0.5, 0.51)})
    claim = next(claim for claim in judged(rows, tmp_path) if claim["claim"] == COUNT)
    assert claim["verdict"] == "undecided" and claim["curve"]


def rows_of(text, base, gain, reach):
    "Rows in which what is claimed gains `gain`, and could gain `reach`; each a function of its seeds."
    return {
        EXPERTS: {"FedAvg": base(0), "FedAvg + MoE": base(gain), "ceiling, one head": base(0.1),
                  "ceiling, wide head": base(0.1 + reach), "ceiling, experts": base(0.08 + reach)},
        WHOLE: {"FedAvg": base(0), "FedMox": base(gain), "ceiling, one head": base(0.1),
                "ceiling, experts": base(0.1 + reach), "ceiling, wide head": base(0.08 + reach)}}[text]


@pytest.mark.parametrize("text, size", [(EXPERTS, 0.019), (WHOLE, 0.027)])
@pytest.mark.parametrize("reach, gain, expected", [
    (0.4, 0, "not testable here"), (-1, 0, "not testable here"), (2, 0, "not found"), (2, 1, "reproduced"),
    (0.4, 0.4, "reproduced"), (-1, 1, "reproduced")])
def test_what_cannot_be_reached_is_not_testable(text, size, reach, gain, expected, tmp_path):
    "Where the mechanism gains less than the paper's size at its best, no gain is no answer; a gain is one."
    sway, level = [k * size / 20 for k in (-1, 1, 0, 0.5)], (0.5, 0.6, 0.4, 0.55)
    base = lambda gain: [a + gain + (b if gain else 0) for a, b in zip(level, sway)]
    rows = made(rows_of(text, base, gain * size or 1e-9, reach * size))
    claim = next(claim for claim in judged(rows, tmp_path, {"alphas": [0.5]}) if claim["claim"] == text)
    assert claim["verdict"] == expected
    assert sum(claim["reach"]) / 4 == pytest.approx(max(0, reach * size), abs=size / 10)


def test_other_points_of_the_line_are_no_bound_on_the_soft_mixture(tmp_path):
    rows = made({"FedAvg + MoE": (0.5, 0.6, 0.4), "FedMox": (0.6, 0.7, 0.5), "FedMox, α = 0.5": (0.5, 0.5, 0.5),
                 "SCL + MoE": (0.4, 0.5, 0.3)})
    assert next(c for c in judged(rows, tmp_path) if c["claim"] == SOFT)["reach"] is None


def test_the_sentence_on_baselines_wants_all_of_them(tmp_path):
    totals = {"FedMox": (0.5, 0.6, 0.4), "SCL": (0.4, 0.5, 0.3), "FedAvg": (0.45, 0.55, 0.36)}
    def on_baselines(more): return next(c for c in judged(made(totals | more), tmp_path) if "ahead" in c["claim"])
    first = on_baselines({"FedSTO": (0.44, 0.54, 0.36)})
    assert first["verdict"] == "not testable here" and first["why"].startswith("not run: FedProx,")
    assert on_baselines(dict.fromkeys(("FedProx", "FedSTO"), (0.44, 0.54, 0.36)))["verdict"] == "reproduced"


def test_the_note_says_what_the_mixture_was_worth_before_any_round(tmp_path):
    rows = made({"FedAvg": (0.6, 0.7, 0.5), "FedMox": (0.5, 0.6, 0.4), "head, both mixtures": (0.3, 0.4, 0.2),
                 "head, one expert": (0.45, 0.55, 0.35)})
    note = next(c for c in judged(rows, tmp_path) if c["claim"] == WHOLE)["note"]
    assert "-0.150 from one head; the rounds give FedMox +0.200, FedAvg +0.150" in note


def test_weathers_are_those_that_a_row_names(tmp_path):
    rows = made({"FedAvg": (0.5, 0.6, 0.4), "FedMox": (0.5, 0.6, 0.4)})
    for row in rows: row["numbers"] |= dict(weathers=["foggy"], foggy=0.3, walked=0.1)
    claim, = (c for c in judged(rows, tmp_path) if c["claim"] == WHOLE)
    assert [point["setting"] for point in claim["curve"]] == ["foggy"]


def test_rows_that_lack_give_no_claim(tmp_path):
    told = {claim["claim"] for claim in judged(made({"FedAvg": (0.5, 0.6, 0.4)}), tmp_path)}
    assert EXPERTS not in told and AGREE not in told


def test_unlike_seeds_are_refused(tmp_path):
    rows = [row for row in kept() if (row["what"], row["seed"]) != ("FedAvg", 1)]
    with pytest.raises(Exception, match="FedAvg"): judged(rows, tmp_path)


def test_each_line_of_the_paper_that_was_judged_has_its_word():
    book = json.loads((FILE.parents[1] / "nbs" / "evidence" / "fedmox.ipynb").read_text())
    table = next(str(cell["outputs"]) for cell in book["cells"] if cell["id"] == "60m0i009")
    assert "Fig. 7 right" in table and "not measured at this size" not in table
