"""The claims of FedGTEA's lab book: nine with the attack's, from rows in any order, and able to turn."""
import copy
import itertools
import json
import random

import nbformat
import pytest

from fedbook.evidence import fedgtea
from fedbook.evidence.claims import Results, interval
from fedbook.evidence.fedgtea import fedgtea_attack_claims, fedgtea_claims, fedgtea_streams_claims
from fedbook.kit.runs import notebooks_folder

ROOT = notebooks_folder().parent
WHERE = {fedgtea_claims: "evidence.fedgtea-full-0-*.json", fedgtea_attack_claims: "privacy.attack-full-0-*.json",
         fedgtea_streams_claims: "evidence.streams-full-0-*.json"}
WASSERSTEIN = "The Wasserstein loss raises accuracy"


def read(judge):
    [path] = (ROOT / "results").glob(WHERE[judge])
    return json.loads(path.read_text())


def judged(body, folder, judge=fedgtea_claims):
    """The claims of `body`, by their texts."""
    path = folder / "results.json"
    path.write_text(json.dumps(body | dict(claims=[])))
    results = Results.read(path)
    judge(results)
    return {claim["claim"]: claim for claim in results.claims}


def test_nine_and_streams_add_none(tmp_path):
    claims = judged(read(fedgtea_claims), tmp_path)
    claims |= judged(read(fedgtea_attack_claims), tmp_path, fedgtea_attack_claims)
    assert len(claims) == 9
    assert all(c["of"] == "FedGTEA" and not c["own"] and c["paper"] and c["source"] for c in claims.values())
    assert judged(read(fedgtea_streams_claims), tmp_path, fedgtea_streams_claims).keys() < claims.keys()


@pytest.mark.parametrize("judge", WHERE, ids=lambda judge: judge.__name__)
def test_the_order_of_rows_does_not_matter(judge, tmp_path):
    body = read(judge)
    mixed = copy.deepcopy(body)
    random.Random(0).shuffle(mixed["rows"])
    assert mixed["rows"] != body["rows"]
    assert judged(mixed, tmp_path, judge) == judged(body, tmp_path, judge)


@pytest.mark.parametrize("judge", WHERE, ids=lambda judge: judge.__name__)
def test_each_bound_and_size_is_reachable(judge, tmp_path):
    for claim in judged(read(judge), tmp_path, judge).values():
        if claim["reach"] is None: continue
        best = sum(claim["reach"]) / len(claim["reach"])
        if claim["at_most"] is not None: assert best <= claim["at_most"]
        else: assert best >= max(claim["at_least"], *claim["effect"])


def test_sizes_are_of_one_sequence_of_the_paper():
    size = fedgtea._printed(fedgtea._ACCURACY, "FedGTEA", "without anchor")
    assert size["effect"] == pytest.approx(0.069) and size["deviations"] == pytest.approx((0.007, 0.013))
    size = fedgtea._printed(fedgtea._FORGETTING, "FedCIL", "FedGTEA", sequence=1)
    assert size["effect"] == pytest.approx(0.008) and size["deviations"] == pytest.approx((0.012, 0.017))


def apart(body, what, number, gap):
    "`body`, with row `what` behind FedGTEA by about `gap` in `number`, a little more or less with each seed."
    body = copy.deepcopy(body)
    ours = {row["seed"]: row["numbers"][number] for row in body["rows"] if row["what"] == "FedGTEA"}
    for row in body["rows"]:
        if row["what"] == what: row["numbers"][number] = ours[row["seed"]] - gap + (row["seed"] % 3 - 1) / 200
    return body


def test_words_turn_with_the_rows(tmp_path):
    body = read(fedgtea_claims)
    word = lambda gap: judged(apart(body, "without Wasserstein", "late", gap), tmp_path)[WASSERSTEIN]["verdict"]
    assert [word(gap) for gap in (0.03, 0.1, -0.1)] == ["reproduced", "stronger", "contradicted"]


def test_the_part_that_lowers_forgetting_least_decides(tmp_path):
    text = "Each of its parts lowers forgetting: the one that lowers it least"
    body = read(fedgtea_claims)
    parts = "without Wasserstein", "without CATE and Wasserstein", "without anchor", "without distillation"
    for part in parts:
        body = apart(body, part, "late forgetting", -0.2 if part != "without anchor" else 0.05)
    claim = judged(body, tmp_path)[text]
    assert claim["verdict"] == "contradicted" and claim["note"].startswith("without anchor")
    assert sum(claim["values"]) / len(claim["values"]) == pytest.approx(-0.05, abs=0.003)


def test_rows_of_question_streams_are_paired_by_seed(tmp_path):
    body = read(fedgtea_claims)
    def of(method):
        what = f"questions, {method}, real replay"
        return {row["seed"]: row["numbers"] for row in body["rows"] if row["what"] == what}
    named, alone = of("FedGTEA"), of("without tasks")
    gains = [named[s]["in company"] - alone[s]["in company"] for s in sorted(named.keys() & alone.keys())]
    claim = judged(body, tmp_path)["Task embeddings with the Wasserstein loss raise accuracy"]
    [point] = [point for point in claim["curve"] if "question" in point["setting"]]
    mean, half = interval(gains)
    assert (point["low"], point["high"]) == pytest.approx((mean - half, mean + half))


def test_moments_that_tell_nothing_turn_the_word(tmp_path):
    body = read(fedgtea_attack_claims)
    text = "Moments of 500 pictures tell no member from a stranger"
    def word(members):
        for row in body["rows"]:
            if row["what"] == "moments of 500": row["numbers"]["members"] = members
        return judged(body, tmp_path, fedgtea_attack_claims)[text]["verdict"]
    assert word(0.0) == "reproduced" and word(0.5) == "contradicted"


def test_without_rows_there_is_no_claim(tmp_path):
    for judge in WHERE: assert judged(read(judge) | dict(rows=[]), tmp_path, judge) == {}


def test_the_evenings_short_runs_come_in_the_order_of_the_long_ones():
    "Where five seeds at `full` tell two methods apart, 14's table has them in the same order."
    book = nbformat.read(ROOT / "nbs" / "14_fedgtea.ipynb", 4)
    shown = [out["data"]["text/markdown"] for cell in book.cells for out in cell.get("outputs", [])
             if "text/markdown" in out.get("data", {})]
    [table] = [text for text in shown if "| forgetting |" in text]
    short = {line.split(" | ")[0].strip("| "): float(line.split(" | ")[1].split()[0])
             for line in table.splitlines()[2:]}
    [path] = (ROOT / "results").glob(WHERE[fedgtea_claims])
    kept = Results.read(path)
    told = 0
    for one, other in itertools.permutations(short, 2):
        gains = kept.difference(one, other, "accuracy")
        mean, half = interval(gains)
        if mean - half <= 0: continue
        told += 1
        assert short[one] > short[other], f"{one} is ahead of {other} at full"
    assert told >= 3 and len(short) == 4
