"""The headline claims of FedKLPR, from the kept rows of its lab book."""

import json
import random
from pathlib import Path

import pytest

from fedbook.evidence.claims import Results
from fedbook.evidence.fedklpr import fedklpr_claims

FILE = Path(__file__).parents[1] / "results" / "evidence.fedklpr-full-0-people.json"
GATE = "CRR keeps accuracy: Rank-1 with the gate minus as much pruning without"
SAS = "SAS undoes dilution: Rank-1 of FedKLPR minus as much pruning with a plain average"
COSTS = "Pruning without SAS, PRAW and CRR costs the smaller sites Rank-1"


def judged(rows, tmp_path):
    "The claims that `rows` give."
    path = tmp_path / "results.json"
    path.write_text(json.dumps(json.loads(FILE.read_text()) | dict(rows=rows, claims=[])))
    results = Results.read(path)
    fedklpr_claims(results)
    return results.claims


def kept(): return json.loads(FILE.read_text())["rows"]


def with_numbers(rows, what, **numbers):
    "`rows` with other `numbers` in the row `what`."
    return [row | dict(numbers=row["numbers"] | numbers) if row["what"] == what else row for row in rows]


def word(claims, text): return next(claim["verdict"] for claim in claims if claim["claim"] == text)


def test_at_most_eight_claims_each_with_figure_and_place(tmp_path):
    claims = judged(kept(), tmp_path)
    assert 0 < len(claims) <= 8 and len({claim["claim"] for claim in claims}) == len(claims)
    assert all(claim["of"] == "FedKLPR" and claim["paper"] and claim["source"] for claim in claims)


def test_the_order_of_rows_changes_nothing(tmp_path):
    rows, before = kept(), judged(kept(), tmp_path)
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        assert json.dumps(judged(rows, tmp_path)) == json.dumps(before)


def test_a_difference_is_paired_by_seed(tmp_path):
    "Two rows that lie in another order than their seeds: the fault that this claim once had."
    path = tmp_path / "results.json"
    rows = [dict(what=what, seed=seed, seconds=0.0, numbers=dict(rank1=start + 0.1 * seed))
            for what, start, order in (("FedCAPR", 0.5, range(4)), ("start", 0.2, reversed(range(4))))
            for seed in order]
    path.write_text(json.dumps(json.loads(FILE.read_text()) | dict(rows=rows, claims=[])))
    gains = Results.read(path).difference("FedCAPR", "start", "rank1")
    assert gains == pytest.approx([0.3] * 4)


def test_a_dose_that_is_too_short_is_said_beside_each_verdict(tmp_path):
    "The rule of the book: more than a point from three times as many rounds, for sure."
    rounds = 3 * json.loads(FILE.read_text())["sizes"]["rounds"]
    dense = [row for row in kept() if row["what"] == "FedCAPR"]
    for gain, said in ((0.05, True), (0.005, False)):
        longer = [row | dict(what=f"FedCAPR, {rounds} rounds",
                             numbers=row["numbers"] | dict(rank1=row["numbers"]["rank1"] + gain)) for row in dense]
        rows = [row for row in kept() if row["what"] != f"FedCAPR, {rounds} rounds"]
        notes = [claim["note"] for claim in judged(rows + longer, tmp_path)]
        assert all(("dose too short" in note) == said for note in notes)


def test_weights_are_not_testable_without_room(tmp_path):
    "Pooled training that is hardly ahead of each site alone, at as many steps."
    rows = copied_as(kept(), "FedCAPR", "pooled", rank1=0.6)
    rows = copied_as(rows, "FedCAPR", "local only, the steps of all", rank1=0.58)
    claim = next(c for c in judged(rows, tmp_path) if c["claim"] == "KLL and KLAW raise Rank-1 over FedCAPR")
    assert claim["verdict"] == "not testable here" and "room is missing" in claim["why"]


def test_each_bound_can_be_reached(tmp_path):
    rows = kept()
    for what in ("FedKLPR", "+ SAS + CRR", "+ KLL + KLAW", "+ SAS"):
        rows = with_numbers(rows, what, rank1=1.0)
    rows = with_numbers(rows, "FedKLPR", up=0, down=0)
    for claim in judged(rows, tmp_path):
        if claim["why"]: assert min(claim["values"]) > claim["at_least"], claim["claim"]
        else: assert claim["verdict"] in ("reproduced", "stronger"), claim["claim"]


def test_the_gate_is_compared_with_as_much_pruning(tmp_path):
    "A row without gate that prunes twice as much decides nothing; the one that prunes as much does."
    rows = kept()
    before = word(judged(rows, tmp_path), GATE)
    assert word(judged(with_numbers(rows, "+ SAS", rank1=0.0), tmp_path), GATE) == before
    fallen = with_numbers(rows, "+ SAS, to CRR's share", rank1=0.3)
    assert word(judged(fallen, tmp_path), GATE) == "reproduced"
    ahead = with_numbers(rows, "+ SAS, to CRR's share", rank1=0.99)
    assert word(judged(ahead, tmp_path), GATE) == "not testable here"    # pruning has lost nothing
    room = with_numbers(ahead, "+ KLL + KLAW", rank1=1.0)
    assert word(judged(room, tmp_path), GATE) == "contradicted"


def test_sas_is_not_testable_where_nothing_is_lost(tmp_path):
    "The most that SAS can give is what a plain average has lost."
    rows = with_numbers(kept(), "+ KLL + KLAW", rank1=0.0)
    assert word(judged(rows, tmp_path), SAS) == "not testable here"
    assert word(judged(with_numbers(kept(), "FedKLPR, plain average, to its share", rank1=0.1), tmp_path), SAS) == "reproduced"


@pytest.mark.parametrize("cost, expected", [
    (0.09, "reproduced"), (0.02, "weaker"), (0.3, "stronger"), (-0.1, "contradicted")])
def test_words_turn_with_made_up_rows(cost, expected, tmp_path):
    same, rows = dict(ratio=0.7, rank1=0.6, shared=0.6, overlap=1.0), []
    for seed in range(4):
        lost = 2 * cost + 0.004 * (seed - 1.5)
        for what, less in (("+ KLL + KLAW", 0.0), ("plain pruning", lost)):
            numbers = dict(clients=[0.7, 0.7, 0.6 + seed / 100, 0.5 - less], **same)
            rows.append(dict(what=what, seed=seed, seconds=0.0, numbers=numbers))
    assert word(judged(rows, tmp_path), COSTS) == expected


def test_unlike_seeds_are_refused(tmp_path):
    rows = [row for row in kept() if (row["what"], row["seed"]) != ("FedCAPR", 1)]
    with pytest.raises(Exception, match="FedCAPR"): judged(rows, tmp_path)


def copied_as(rows, what, new, **numbers):
    "`rows`, and the rows `what` once more as `new`, with other `numbers`."
    found = [row for row in rows if row["what"] == what]
    return rows + [row | dict(what=new, numbers=row["numbers"] | numbers) for row in found]


def test_kll_is_not_testable_under_a_low_ceiling(tmp_path):
    "Where the pictures of all sites together give no more than FedCAPR has, nothing can."
    text, known = "KLL and KLAW raise Rank-1 over FedCAPR", "pooled"
    assert word(judged(copied_as(kept(), "FedCAPR", known, rank1=0.1), tmp_path), text) == "not testable here"
    high = with_numbers(kept(), "+ KLL + KLAW", rank1=0.95)
    assert word(judged(copied_as(high, "FedCAPR", known, rank1=0.99), tmp_path), text) == "stronger"


def test_curves_take_the_rows_of_the_plan(tmp_path):
    rows = kept()
    for new in ("gate: 0 since the round before, 2 by the step", "Acc_th: dense run +5 points",
                "weights: PRAW", "weights: size", "KLL off", "KLL, delta 1.3"):
        rows = copied_as(rows, "FedKLPR", new)
    points = {point["setting"] for claim in judged(rows, tmp_path) for point in claim["curve"]}
    assert {"gate: 0 since the round before, 2 by the step", "Acc_th: dense run +5 points",
            "PRAW, minus weights by size", "KLPWA, gamma 0.5, minus weights by size",
            "KLL, delta 1.3, minus none"} <= points
