"""The headline claims of FedMox, from the kept rows of its chapter."""

import json
import random
from pathlib import Path

import pytest

from fedbook.evidence.claims import Results
from fedbook.evidence.fedmox import fedmox_claims

FILE = Path(__file__).parents[1] / "results" / "evidence.fedmox-full-0-rendered.json"
AGREE = ("Routing maps agree at both resolutions: on more places than chance gives, as a share of what chance "
         "leaves")
SOFT = "The soft mixture raises mAP@50 over experts alone"
EXPERTS = "A mixture of experts in the head raises mAP@50 over FedAvg"


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
    ours = ("FedMox", "FedAvg + MoE", "mosaic, α = 0.2, own rate")
    claims = judged([row | dict(numbers=row["numbers"] | dict(total=1.0)) if row["what"] in ours else row
                     for row in kept()], tmp_path)
    for claim in claims:
        if claim["why"] or claim["claim"] in (SOFT, AGREE): continue
        assert claim["verdict"] in ("reproduced", "stronger"), claim["claim"]
    assert all(claim["at_least"] < claim["reach"][0] for claim in claims if claim["reach"])
    alone = [row | dict(numbers=row["numbers"] | dict(total=1.0)) if row["what"] == "FedMox" else row for row in kept()]
    assert word(judged(alone, tmp_path), SOFT) == "stronger"


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


def test_alpha_needs_both_ends(tmp_path):
    "Better than one end alone is not enough, whichever one it is."
    name = "mosaic, α = {:g}, own rate".format
    text = "A soft mixture with α = .2 is better than without clients and than without the old model"
    jitter = (0.0, 0.002, 0.001, -0.001)
    for none, every, expected in ((0.50, 0.51, "reproduced"), (0.50, 0.62, "contradicted"),
                                  (0.62, 0.50, "contradicted")):
        levels = {0: none, 0.2: 0.55, 1: every}
        rows = made({name(a): [level + (1 + a) * j for j in jitter] for a, level in levels.items()})
        assert word(judged(rows, tmp_path), text) == expected


def test_rows_that_lack_give_no_claim(tmp_path):
    told = {claim["claim"] for claim in judged(made({"FedAvg": (0.5, 0.6, 0.4)}), tmp_path)}
    assert EXPERTS not in told and AGREE not in told


def test_unlike_seeds_are_refused(tmp_path):
    rows = [row for row in kept() if (row["what"], row["seed"]) != ("FedAvg", 1)]
    with pytest.raises(Exception, match="FedAvg"): judged(rows, tmp_path)
