"""The claims of FedReplay's lab book: at most eight, from rows in any order, and able to turn."""
import copy
import json
import random

import pytest

from fedbook.evidence.claims import Results
from fedbook.evidence.fedreplay import fedreplay_attack_claims, fedreplay_claims
from fedbook.kit.runs import notebooks_folder

ROOT = notebooks_folder().parent
FILES = sorted((ROOT / "results").glob("evidence.fedreplay-full-0-*.json"))
ATTACKS = sorted((ROOT / "results").glob("privacy.attack-full-0-*.json"))
FOUR = "FedReplay has more than four times the accuracy of standard FL"
LATE = "When a farm joins late, the old classes dip and recover"


def judged(body, folder, judge=fedreplay_claims):
    """The claims of `body`, by their texts."""
    path = folder / "results.json"
    path.write_text(json.dumps(body | dict(claims=[])))
    results = Results.read(path)
    judge(results)
    return {claim["claim"]: claim for claim in results.claims}


def read(path): return json.loads(path.read_text())


def leaves(): return next(read(path) for path in FILES if read(path)["sizes"]["data"] == "leaves")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem[-12:])
def test_at_most_eight_with_place_and_figure(path, tmp_path):
    claims = judged(read(path), tmp_path) | judged(read(ATTACKS[0]), tmp_path, fedreplay_attack_claims)
    assert 1 < len(claims) <= 8
    assert all(c["of"] == "FedReplay" and not c["own"] and c["paper"] and c["source"] for c in claims.values())


@pytest.mark.parametrize("path, judge", [*((path, fedreplay_claims) for path in FILES),
                                         *((path, fedreplay_attack_claims) for path in ATTACKS)])
def test_the_order_of_rows_does_not_matter(path, judge, tmp_path):
    body = read(path)
    mixed = copy.deepcopy(body)
    random.Random(0).shuffle(mixed["rows"])
    assert mixed["rows"] != body["rows"]
    assert judged(mixed, tmp_path, judge) == judged(body, tmp_path, judge)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem[-12:])
def test_a_bound_is_reachable_or_the_word_says_so(path, tmp_path):
    for claim in judged(read(path), tmp_path).values():
        if claim["reach"] is None: continue
        best = sum(claim["reach"]) / len(claim["reach"])
        assert (claim["verdict"] == "not testable here") == (best < claim["at_least"])


def with_std(level, ours=None, setting=""):
    "The leaves, with StdFed of `setting` at `level` in every round, and FedReplay at `ours`."
    body = leaves()
    for row in body["rows"]:
        if row["what"] == setting + "StdFed": row["numbers"]["curve"] = [level] * 20
        if ours and row["what"] == setting + "FedReplay 1%": row["numbers"]["curve"] = [ours] * 20
    return body


def many_farms(level, ours=None): return with_std(level, ours, "30 farms, own rates: ")


@pytest.mark.parametrize("body, word", [
    (leaves(), "undecided"), (many_farms(0.4), "not testable here"), (many_farms(0.05), "reproduced"),
    (many_farms(0.1, 0.3), "contradicted")])
def test_four_times_turns_with_the_rows_and_only_where_it_can_be_reached(body, word, tmp_path):
    assert judged(body, tmp_path)[FOUR]["verdict"] == word


def test_one_percent_turns_with_the_rows(tmp_path):
    text = "Sharing 1 % of the features raises accuracy over sharing none"
    assert judged(leaves(), tmp_path)[text]["verdict"] == "reproduced"
    assert judged(with_std(0.5, 0.1), tmp_path)[text]["verdict"] == "contradicted"


def test_dips_and_recovers_needs_both(tmp_path):
    body = leaves()
    join, rounds = body["sizes"]["late_join"], body["sizes"]["late_rounds"]
    for row in body["rows"]:
        if row["what"] == "late: prototypes, KD, gate":
            noise = row["seed"] / 1000
            row["numbers"]["old"] = [0.8] * join + [0.6 - noise] * (rounds - join)
    values = judged(body, tmp_path)[LATE]["values"]
    assert values == pytest.approx([0.0] * len(values)), "the recovery, which is none, decides, and not the dip"
    for row in body["rows"]:
        if row["what"] == "late: prototypes, KD, gate":
            row["numbers"]["old"][-5:] = [0.5] * 5
    assert judged(body, tmp_path)[LATE]["verdict"] == "contradicted"


def test_a_feature_that_tells_nothing_turns_the_word(tmp_path):
    body = read(ATTACKS[0])
    text = "Shared features do not lead back to their pictures, SSIM"
    assert judged(body, tmp_path, fedreplay_attack_claims)[text]["verdict"] == "contradicted"
    for row in body["rows"]:
        if row["what"] == "pool decoded":
            row["numbers"]["decoder"] = dict(row["numbers"]["another"], ssim=0.05)
    assert judged(body, tmp_path, fedreplay_attack_claims)[text]["verdict"] == "reproduced"


def test_without_rows_there_is_no_claim(tmp_path):
    assert judged(leaves() | dict(rows=[]), tmp_path) == {}
