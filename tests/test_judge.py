"""The kept claims are what today's rules make of the kept rows, in whatever order the rows lie."""
import json
import math
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from fedbook.evidence.claims import Results
from fedbook.kit.report import collect
from tools import judge

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "results").glob("*.json"))
PAPERS = [claim for body in collect(ROOT / "results") for claim in body["claims"] if not claim["own"]]


def kept(path): return json.loads(path.read_text())["claims"]


def judged(path, folder, shuffled=None):
    "The claims of the results file at `path`, judged anew in a copy."
    results = Results.read(shutil.copy(path, folder))
    if shuffled is not None: random.Random(shuffled).shuffle(results.rows)
    judge.judge(results)
    return json.loads(json.dumps(results.claims))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_claims_do_not_depend_on_the_order_of_rows(path, tmp_path):
    assert judged(path, tmp_path, shuffled=1) == kept(path)


def test_another_value_gives_another_claim(tmp_path):
    path = next(path for path in FILES if path.name.startswith("evidence.fedgtea"))
    results = Results.read(shutil.copy(path, tmp_path))
    for row in results.rows:
        if row["what"] == "FedGTEA": row["numbers"]["accuracy"] = row["numbers"]["late"] = 0.0
    judge.judge(results)
    assert json.loads(json.dumps(results.claims)) != kept(path)


def test_a_paper_has_at_most_nine_claims_and_all_have_about_forty():
    counts = Counter(claim["of"] for claim in {(c["of"], c["claim"]): c for c in PAPERS}.values())
    assert set(counts) == {"FedReplay", "FedMox", "FedKLPR", "FedCBDR", "FedGTEA"}
    assert max(counts.values()) <= 9 and sum(counts.values()) <= 40


@pytest.mark.parametrize("claim", PAPERS, ids=lambda claim: f"{claim['of']}: {claim['claim']}")
def test_its_bound_can_be_reached(claim):
    "A bound above what the best method could give is judged not testable here; a share is at most all."
    assert claim["paper"] and claim["source"]
    if claim["verdict"] == "not testable here": return
    for bound, sign in ((claim["at_least"], 1), (claim["at_most"], -1)):
        if bound is None: continue
        if claim["unit"] == "%": assert -1 <= bound <= 1
        if claim["reach"]: assert sign * math.fsum(claim["reach"]) / len(claim["reach"]) >= sign * bound


def test_the_tool_changes_nothing_that_is_judged(tmp_path, capsys):
    copies = [shutil.copy(path, tmp_path) for path in FILES[-3:]]
    assert judge.main([str(tmp_path)]) == 0
    assert [kept(tmp_path / path.name) for path in FILES[-3:]] == [kept(path) for path in FILES[-3:]]
    assert len(capsys.readouterr().out.splitlines()) == len(copies)
    (tmp_path / "gpu-H200.json").write_text("{}")
    assert judge.main([str(tmp_path)]) == 0 and capsys.readouterr().err == ""
    assert judge.main([str(tmp_path / "nowhere")]) == 2 and "no kept results" in capsys.readouterr().err
    (tmp_path / FILES[-1].name).write_text("{}")
    assert judge.main([str(tmp_path)]) == 2
    assert "is not a results.json of fedbook" in capsys.readouterr().err


def test_a_difference_that_was_taken_by_the_order_of_rows():
    "Pairs of one seed, also where rows lie in another order in the file."
    claims = {claim["claim"]: claim for path in FILES for claim in kept(path)}
    found = claims["FedCAPR (dense) minus the start after AdaBN, Rank-1, at least 0"]
    assert [100 * found[end] for end in ("low", "high")] == pytest.approx((19.2, 26.3), abs=0.05)


def test_the_start_is_taken_from_the_same_seed(tmp_path):
    path = next(path for path in FILES if path.name.startswith("evidence.fedklpr"))
    results = Results.read(shutil.copy(path, tmp_path))
    results.rows.sort(key=lambda row: row["seed"] * (-1 if row["what"] == "FedCAPR" else 1))
    [claim] = [claim for claim in results.claims if claim["claim"].startswith("FedCAPR (dense) minus")]
    assert claim["values"] == pytest.approx(results.difference("FedCAPR", "start, AdaBN", "rank1"))
    in_file = lambda what: [row["numbers"]["rank1"] for row in results.rows if row["what"] == what]
    assert claim["values"] != pytest.approx([a - b for a, b in zip(in_file("FedCAPR"), in_file("start, AdaBN"))])
