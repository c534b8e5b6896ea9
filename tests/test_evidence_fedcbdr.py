"""The headline claims of FedCBDR as functions of the rows: order, bounds, and that each word can turn."""
import copy
import math
import random
from pathlib import Path

import pytest

from fedbook.engine.rows import paired
from fedbook.evidence.claims import Results
from fedbook.evidence.fedcbdr import (RATIOS, at_the_test, fedcbdr_attack_claims, fedcbdr_claims,
                                      fedcbdr_streams_claims, ahead_by, reruns_in, settings_with,
                                      unevenness)

KEPT = Path(__file__).parents[1] / "results"
JUDGES = {"evidence.fedcbdr-full-0-*.json": fedcbdr_claims, "evidence.streams-full-0-*.json": fedcbdr_streams_claims,
          "privacy.attack-full-0-*.json": fedcbdr_attack_claims}


def kept(pattern, folder):
    results = Results.read(next(iter(sorted(KEPT.glob(pattern)))))
    results.claims, results.file = [], folder / "judged.json"
    return results


def judged(results, judge):
    results.claims = []
    judge(results)
    return copy.deepcopy(results.claims)


def body(folder, rows, **sizes):
    "Results with made-up `rows`: name to numbers by seed, each a dict or an accuracy."
    usual = {"tasks": 5, "pictures": 500, "digit_rounds": 15, "rounds": 2}
    results = Results("evidence/fedcbdr", "full", usual | sizes, out=folder)
    for what, numbers in rows.items():
        for seed, number in enumerate(numbers):
            one = number if isinstance(number, dict) else {"settled": number, "accuracy": number}
            results.rows.append(dict(what=what, seed=seed, numbers=one, seconds=0.0))
    return results


def test_at_most_eight_claims_in_all(tmp_path):
    claims = [claim for pattern, judge in JUDGES.items() for claim in judged(kept(pattern, tmp_path), judge)]
    texts = {claim["claim"] for claim in claims}
    assert 5 <= len(texts) <= 8, "streams say two sentences of the chapter again"
    assert all(claim["of"] == "FedCBDR" and not claim["own"] and claim["source"] for claim in claims)


@pytest.mark.parametrize("pattern", JUDGES)
def test_shuffled_rows_give_the_same_claims(pattern, tmp_path):
    results = kept(pattern, tmp_path)
    before = judged(results, JUDGES[pattern])
    for s in range(3):
        random.Random(s).shuffle(results.rows)
        assert judged(results, JUDGES[pattern]) == before


@pytest.mark.parametrize("pattern", JUDGES)
def test_each_bound_can_be_reached(pattern, tmp_path):
    for claim in judged(kept(pattern, tmp_path), JUDGES[pattern]):
        if claim["reach"] is None: continue
        best = math.fsum(claim["reach"]) / len(claim["reach"])
        size = claim["effect"] or [0.0]
        if claim["at_most"] is None: assert best > claim["at_least"] and best >= max(size)
        else: assert best < claim["at_most"]


FLAT = {"nothing kept + cross-entropy": [0.19, 0.18, 0.2, 0.19], "Finetune": [0.3, 0.35, 0.4, 0.31],
        "nothing kept + TTS": [0.19, 0.18, 0.2, 0.2], "leverage + cross-entropy": [0.4, 0.42, 0.38, 0.41],
        "Re-Fed": [0.3, 0.33, 0.31, 0.28]}


def words(folder, **rows):
    "The words of claims on accuracy, where FedCBDR has what `rows` say."
    rows = {name.replace("_", " "): values for name, values in rows.items()}
    full = {"leverage + TTS": rows.pop("full")}
    results = body(folder, FLAT | full | rows)
    for row in results.rows: row["numbers"]["by_ratio"] = [row["numbers"]["settled"]] * len(RATIOS)
    for row in results.rows: row["numbers"]["kept"] = row["numbers"].get("kept", [[3] * 10] * 5)
    return {claim["claim"]: claim["verdict"] for claim in judged(results, fedcbdr_claims)}


def test_words_can_turn(tmp_path):
    good = words(tmp_path, full=[0.6, 0.61, 0.62, 0.6])
    bad = words(tmp_path, full=[0.1, 0.09, 0.11, 0.1])
    sentences = [text for text in good if text.startswith(("FedCBDR is more", "With its loss"))]
    assert len(sentences) == 3
    for text in sentences: assert good[text] in ("reproduced", "stronger") and bad[text] == "contradicted"
    alone = next(text for text in good if text.startswith("Its loss alone"))
    assert good[alone] == "undecided", "the paper's own error leaves 2.65 points possible"
    better = {"nothing_kept_+ TTS": [0.29, 0.31, 0.28, 0.3]}
    assert words(tmp_path, full=[0.6] * 4, **better)[alone] == "stronger"


def test_the_buffers_word_can_turn(tmp_path):
    even, odd = [[3] * 10] * 5, [[9, 1] * 5] * 5
    def word(ours, theirs):
        rows = {name: [{"settled": 0.5 + s / 100, "accuracy": 0.5, "kept": kept} for s in range(4)]
                for name, kept in (("leverage + TTS", ours), ("Re-Fed", theirs))}
        claims = judged(body(tmp_path, rows), fedcbdr_claims)
        return next(claim["verdict"] for claim in claims if "buffer" in claim["claim"])
    assert word(even, odd) == "reproduced" and word(odd, even) in ("contradicted", "not testable here")


def test_the_other_chapters_words_can_turn(tmp_path):
    rivals = {name: [0.3, 0.31, 0.29] for name in ("FedEWC", "FedLwF", "TARGET", "LANDER")}
    for ours, word in (([0.5, 0.52, 0.49], "reproduced"), ([0.1, 0.12, 0.09], "contradicted")):
        *_, claim = judged(body(tmp_path, rivals | {"FedCBDR": ours}), fedcbdr_streams_claims)
        assert claim["verdict"] == word
    for found, word in ((0.002, "reproduced"), (0.5, "contradicted")):
        numbers = [{"alone": found + s / 1000, "rate": 0.02, "colluding": 1.0} for s in range(4)]
        rows = {"span: few pictures": numbers}
        claim, = judged(body(tmp_path, rows), fedcbdr_attack_claims)
        assert claim["verdict"] == word


def test_without_rows_no_claim_is_made(tmp_path):
    for judge in JUDGES.values(): assert judged(body(tmp_path, {}), judge) == []


def test_pairs_are_seeds_and_not_places(tmp_path):
    results = body(tmp_path, {"a": [1.0, 2.0, 4.0], "b": [1.0, 1.0]})
    results.rows.reverse()
    assert ahead_by(results, "a", "b") == [0.0, 1.0]
    assert paired({3: 5.0, 1: 2.0}, {1: 1.0, 2: 9.0, 3: 1.0}) == [1.0, 4.0]


def test_helpers(tmp_path):
    rows = {"x": [0.1], "y": [0.2], "features of A: K = 10: x": [0.1], "features of A: K = 10: y": [0.1],
            "rate 0.01: x": [0.1], "rate 0.01: y": [0.1], "not x": [0.3], "digits: x": [0.1],
            "rerun 0, falling rate": [1.0], "rerun 1, falling rate": [2.0], "rerun 0, constant rate": [9.0]}
    results = body(tmp_path, rows)
    assert settings_with(results, "x", "y") == ["", "features of A: K = 10: "]
    assert reruns_in(results) == pytest.approx([math.sqrt(2), 2 * math.sqrt(2)])
    results.rows[0]["numbers"] |= {"by_ratio": [n / 10 for n in range(9)], "kept": [[1, 3, 8], [1, 1, 9]]}
    assert at_the_test(results, "x", 1.0) == {0: 0.5} and at_the_test(results, "x") == {0: 0.3}
    results.facts["sizes"]["tasks"] = 3
    assert unevenness(results, "x") == pytest.approx({0: 1 / 3})
    assert unevenness(results, "x", last=True)[0] > 0.8
