"The page of open questions says what results/ say, and nothing else; each answer has a cell that runs."
import ast
import json
import math
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest

from fedbook.evidence.claims import OWN_VERDICTS, VERDICTS, judged_claim
from fedbook.evidence.left_open import (NOT_YET, OPEN_QUESTIONS, Evidence, Settled, Question, answer_figure,
                                        answer_text, answered, cell_link, claimed, compared, difference,
                                        in_words, kept_results, quotient, shifted, step_change, turning,
                                        would_turn)
from fedbook.engine.errors import UserError
from fedbook.kit.runs import chapters

ROOT = Path(__file__).parent.parent
BODIES = kept_results()
THERE = {body["name"] for body in BODIES}
PAGE = chapters()["evidence/left_open"]
each = pytest.mark.parametrize("question", OPEN_QUESTIONS, ids=lambda question: question.asked)


def claim_of(*values, **more): return judged_claim("a gain", values, **({"at_least": 0.0} | more))


def body_of(name="x", rows=(), claims=(), changes=None):
    rows = [dict(what=what, seed=seed, numbers=numbers) for what, seed, numbers in rows]
    return dict(name=name, changes=changes or {}, rows=rows, claims=list(claims))


def question_of(*rests):
    return Question("a paper", "Is it?", rests, "abc", "It is.", "It is not.", "Who knows.", "By {0}.",
                    "A farm.")


# ---- sixteen questions

def test_there_are_sixteen_of_five_papers():
    assert len(OPEN_QUESTIONS) == len({question.asked for question in OPEN_QUESTIONS}) == 16
    assert {q.paper for q in OPEN_QUESTIONS} == {"FedReplay", "FedMox", "FedKLPR", "FedCBDR", "FedGTEA"}
    exported = [c.source for c in nbformat.read(PAGE, 4).cells if "= Question(" in c.source]
    assert sum(source.count("= Question(") for source in exported) == 17, "sixteen, and one that is made up"


@each
def test_a_chapter_with_results_answers_its_question(question):
    answer = answered(question, BODIES)
    for evidence, claim in zip(question.rests, answer.found):
        assert (claim is not None) == (evidence.chapter in THERE), "a claim or row was renamed"


@each
def test_figures_verdict_and_seeds_are_those_of_the_files(question):
    "Read anew from the JSON, without the functions of the page."
    claim = answered(question, BODIES).found[0]
    if claim is None: return
    mean = math.fsum(claim["values"]) / len(claim["values"])
    scale = 100 if claim["unit"] == "%" else 1
    text = answer_text(answered(question, BODIES))
    assert f"{scale * mean:.3g} [" in text and f", {len(claim['values'])} seeds" in text
    assert f"**Verdict** {claim['verdict']}" in text
    assert claim["verdict"] in (*VERDICTS, *OWN_VERDICTS)
    file, = (f for f in (ROOT / "results").glob(f"{question.rests[0].chapter}-full-*.json")
             if not json.loads(f.read_text())["changes"])
    body = json.loads(file.read_text())
    kept = [c for c in body["claims"] if c["claim"] == claim["claim"]]
    if kept: assert kept[0]["values"] == claim["values"] and kept[0]["verdict"] == claim["verdict"]
    else: assert len(claim["values"]) <= max(len([r for r in body["rows"] if r["what"] == row["what"]])
                                             for row in body["rows"])


def test_rows_that_are_no_claims_are_judged_like_scipy():
    "The differences, counted by hand from the file, and Student's interval by scipy."
    from scipy.stats import t
    question, = (q for q in OPEN_QUESTIONS if q.asked == "Do the experts help another dense task?")
    claim = answered(question, BODIES).found[0]
    body = next(body for body in BODIES if body["name"] == "11_fedmox")
    totals = {what: [row["numbers"]["total"] for row in body["rows"] if row["what"] == f"segments, {what}"]
              for what in ("FedMox", "FedAvg")}
    gains = np.subtract(*totals.values())
    low, high = t.interval(0.95, len(gains) - 1, gains.mean(), gains.std(ddof=1) / len(gains) ** 0.5)
    assert np.allclose([claim["low"], claim["high"]], [low, high])


@each
def test_the_sentence_is_the_verdicts(question):
    for values, said in (((0.5, 0.51, 0.52), question.holds), ((-0.5, -0.51, -0.52), question.fails),
                         ((-0.5, 0.5, 0.1), question.undecided)):
        answer = Settled(question, (claim_of(*values),) * len(question.rests))
        assert in_words(answer).startswith(said) and "{" not in in_words(answer)
    assert len({question.holds, question.fails, question.undecided}) == 3
    numbers = set(re.findall(r"\{(\d)\}", question.figures))
    assert numbers == set(map(str, range(len(question.rests)))), "a piece of evidence is not shown"
    for text in (question.holds, question.fails, question.undecided, question.figures):
        assert text.endswith(".") and text.count(".") == 1, "a sentence"
        assert not re.search(r"\d\.\d", text), "a figure that no result filled in"


@each
def test_a_result_that_is_taken_away_takes_its_answer_along(question):
    without = [body for body in BODIES if body["name"] != question.rests[0].chapter]
    answer = answered(question, without)
    assert answer.found[0] is None and in_words(answer) == "Not measured yet."
    assert f"**Verdict** {NOT_YET}." in answer_text(answer)
    others = [q for q in OPEN_QUESTIONS if q.rests[0].chapter != question.rests[0].chapter]
    assert [answered(q, without).found[0] for q in others] == [answered(q, BODIES).found[0] for q in others]
    assert answer_figure(answered(question, [])) is None


@each
def test_the_link_lands_on_a_code_cell(question):
    file, _, cell = cell_link(question).partition("#cell-id=")
    if not (ROOT / file).exists():
        assert question.rests[0].chapter not in THERE, "measured by a notebook that is not here"
        assert f"`{cell_link(question)}`" in answer_text(answered(question, BODIES))
        return
    found, = (each for each in nbformat.read(ROOT / file, 4).cells if each.id == cell)
    assert found.cell_type == "code" and ast.parse(found.source).body, "nothing to run"
    assert f"({cell_link(question).removeprefix('nbs/')})" in answer_text(answered(question, BODIES))


@each
def test_its_figure_is_drawn_from_the_same_values(question):
    answer = answered(question, BODIES)
    claims = [claim for claim in answer.found if claim]
    if not claims: return
    figure = answer_figure(answer)
    drawn = [float(line.get_xdata()[0]) for ax in figure.axes for line in ax.lines
             if len(line.get_xdata()) == 1 and line.get_markersize() == 7]
    for claim in claims:
        mean = (100 if claim["unit"] == "%" else 1) * math.fsum(claim["values"]) / len(claim["values"])
        assert any(math.isclose(mean, x, rel_tol=1e-9, abs_tol=1e-12) for x in drawn)


def test_the_notebook_shows_what_results_say_now():
    "The committed outputs. If results have changed since: fedbook book evidence/left_open (seconds)."
    outputs = [o for cell in nbformat.read(PAGE, 4).cells for o in cell.get("outputs", []) if "data" in o]
    shown = "\n".join("".join(output["data"].get("text/markdown", "")) for output in outputs)
    for question in OPEN_QUESTIONS: assert answer_text(answered(question, BODIES)) in shown, question.asked


# ---- its parts

def test_claims_are_found_by_text_with_a_star_for_sizes():
    claim = claim_of(1.0, 2.0, 3.0) | {"claim": "30 farms (10 %): a gain"}
    body = body_of(claims=[claim])
    for text in ("* farms (10 %): a gain", "30 farms (* %): *", "30 farms (10 %): a gain"):
        assert claimed("x", text).find(body) is claim
    for text in ("farms", "* farms", "30 farms (10 %): a gain!", "* farms .10 %.: a gain"):
        assert claimed("x", text).find(body) is None


def test_results_with_changes_are_passed_over():
    rests = claimed("x", "a gain")
    changed, own = (body_of(claims=[claim_of(*values)], changes=changes)
                    for values, changes in (((9.0, 9.1, 9.2), {"data": "y"}), ((1.0, 1.1, 1.2), {})))
    assert answered(question_of(rests), [changed, own]).found[0]["values"] == [1.0, 1.1, 1.2]
    assert answered(question_of(rests), [changed]).found[0] is None


def test_differences_pair_seeds():
    rows = (("a", 2, 5.0), ("b", 0, 1.0), ("a", 0, 4.0), ("b", 2, 3.0), ("a", 1, 9.0))
    body = body_of(rows=[(what, seed, {"n": n}) for what, seed, n in rows])
    assert difference("a", "b", "n")(body) == [3.0, 2.0]
    assert difference("a", "c", "n")(body) == [] and difference("c", "a", "n")(body) == []
    assert quotient("a", "n", "n")(body) == [1.0, 1.0, 1.0]
    assert compared("x", "t", difference("a", "c", "n")).find(body) is None
    found = compared("x", "t", difference("a", "b", "n"), unit="", at_least=None).find(body)
    assert found["verdict"] == "measured" and found["unit"] == ""


def test_steps_are_means_over_tasks():
    tasks = [{"looks": {"a": {"all": a}, "b": {"all": 0.25}}} for a in (0.5, 1.0)]
    body = body_of(rows=[("microscope", 0, {"tasks": tasks}), ("other", 0, {"tasks": tasks})])
    assert step_change("a", "b")(body) == [0.5]
    assert step_change("a", "c")(body) == []


@pytest.mark.parametrize("bounds", [dict(at_least=0.0), dict(at_most=0.1), dict(at_least=-0.01, at_most=0.01),
                                    dict(at_least=0.0, reruns=0.03),
                                    dict(at_least=0.0, effect=(0.1, 0.2), source="a table")])
def test_turning_is_the_least_shift_that_a_slow_search_finds(bounds):
    draws = np.random.default_rng(1)
    for _ in range(4):
        claim = claim_of(*draws.normal(0.03, 0.06, 4), **bounds)
        by = turning(claim)
        assert shifted(claim, by)["verdict"] != claim["verdict"]
        slow = next(d for k in range(1, 1000) for d in (k * 2e-3, -k * 2e-3)
                    if shifted(claim, d)["verdict"] != claim["verdict"])
        assert abs(abs(slow) - abs(by)) <= 2.1e-3


def test_what_has_no_bound_or_few_seeds_does_not_turn():
    assert turning(claim_of(1.0, 2.0, 3.0, at_least=None)) is None and turning(claim_of(1.0, 2.0)) is None
    question = question_of(claimed("x", "a gain"))
    for claim in (None, claim_of(1.0, 2.0)): assert would_turn(Settled(question, (claim,))) == "A farm."
    assert re.fullmatch(r"A farm\. Or all 3 seeds moved by -\d.* points\.",
                        would_turn(Settled(question, (claim_of(0.2, 0.21, 0.22, unit="%"),))))


def test_second_evidence_may_be_missing():
    question = question_of(claimed("x", "a gain"), Evidence("y", lambda body: None))
    answer = answered(question._replace(figures="{0}, {1}."), [body_of(claims=[claim_of(1.0, 1.1, 1.2)])])
    assert in_words(answer) == "It is. 1.1 [0.852, 1.35] (3 seeds), not measured yet."


def test_folders(tmp_path):
    assert kept_results(tmp_path) == [] and kept_results(tmp_path / "none") == []
    (tmp_path / "11_fedmox-full-0-x.json").write_text("{}")
    with pytest.raises(UserError, match="is not a results.json"): kept_results(tmp_path)
