"""The page of open questions says what results/ say, and nothing else; each answer has a cell that runs; and
bad data are refused in a sentence."""
import ast
import json
import math
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest

from fedbook.engine.errors import UserError
from fedbook.evidence.claims import OWN_VERDICTS, VERDICTS, judged_claim
from fedbook.kit.questions import (NOT_YET, Evidence, Question, Settled, answer_figure, answer_text, answered,
                                   cell_link, difference, further_evidence, in_words, kept_results,
                                   quotient, read_questions, shifted, step_change, turning, would_turn)
from fedbook.kit.runs import chapters

ROOT = Path(__file__).parent.parent
FILE = ROOT / "nbs/evidence/questions.toml"
QUESTIONS = read_questions()
BODIES = kept_results()
THERE = {body["name"] for body in BODIES}
PAGE = chapters()["evidence/left_open"]
LEFT_TO_A_GPU = [QUESTIONS["transformers"]]    # its rows are not among the kept ones
each = pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)


def claim_of(*values, **more): return judged_claim("a gain", values, **({"at_least": 0.0} | more))


def body_of(name="x", rows=(), claims=(), changes=None):
    rows = [dict(what=what, seed=seed, numbers=numbers) for what, seed, numbers in rows]
    return dict(name=name, changes=changes or {}, rows=rows, claims=list(claims))


def question_of(*rests):
    return Question("a paper", "Is it?", "abc", "A context.", "It is, by {size}.", "It is not: {signed}.",
                    "Who knows: {signed}.", "A farm.", rests)


def found_in(body, text, kind="claim", read=(), **bounds):
    "The claim that a piece of evidence of chapter x finds in a body."
    return answered(question_of(Evidence("x", text, kind, read, bounds)), [body]).found[0]


# ---- sixteen questions

def test_there_are_sixteen_of_five_papers():
    assert len(QUESTIONS) == len({question.asked for question in QUESTIONS.values()}) == 16
    papers = [question.paper for question in QUESTIONS.values()]
    assert list(dict.fromkeys(papers)) == ["FedReplay", "FedMox", "FedKLPR", "FedCBDR", "FedGTEA"]
    page = "\n".join(cell.source for cell in nbformat.read(PAGE, 4).cells)
    shown = re.findall(r'^show\("(\w+)"\)$', page, re.M)
    assert shown == list(QUESTIONS), "the page shows each, in the order of the file"


@each
def test_a_chapter_with_results_answers_its_question(question):
    answer, left = answered(question, BODIES), question in LEFT_TO_A_GPU
    for evidence, claim in zip(question.rests, answer.found):
        there = evidence.chapter in THERE and not left
        assert (claim is not None) == there, "a claim or row was renamed"


@each
def test_figures_verdict_and_seeds_are_those_of_the_files(question):
    "Read anew from the JSON, without the functions of the module."
    claim = answered(question, BODIES).found[0]
    if claim is None: return
    mean = math.fsum(claim["values"]) / len(claim["values"])
    scale = 100 if claim["unit"] == "%" else 1
    text = answer_text(answered(question, BODIES))
    assert f"{abs(scale * mean):.3g}" in in_words(answered(question, BODIES))
    assert f", {len(claim['values'])} seeds" in text
    assert f"**Verdict** {claim['verdict']}" in text
    assert claim["verdict"] in (*VERDICTS, *OWN_VERDICTS)
    stem = question.rests[0].chapter.replace("/", ".")
    bodies = [json.loads(f.read_text()) for f in (ROOT / "results").glob(f"{stem}-full-*.json")]
    body, = (body for body in bodies if not body["changes"])
    kept = [c for c in body["claims"] if c["claim"] == claim["claim"]]
    if kept: assert kept[0]["values"] == claim["values"] and kept[0]["verdict"] == claim["verdict"]
    else: assert len(claim["values"]) <= max(len([r for r in body["rows"] if r["what"] == row["what"]])
                                             for row in body["rows"])


def test_rows_that_are_no_claims_are_judged_like_scipy():
    "The differences, counted by hand from the file, and Student's interval by scipy."
    from scipy.stats import t
    claim = answered(QUESTIONS["how_many_experts"], BODIES).found[0]
    body = next(body for body in BODIES if body["name"] == "evidence/fedmox")
    totals = {what: [row["numbers"]["total"] for row in body["rows"] if row["what"] == f"mosaic, {what}"]
              for what in ("grown", "swept, K = 6")}
    gains = np.subtract(*totals.values())
    low, high = t.interval(0.95, len(gains) - 1, gains.mean(), gains.std(ddof=1) / len(gains) ** 0.5)
    assert np.allclose([claim["low"], claim["high"]], [low, high])


@each
def test_the_sentence_is_the_verdicts(question):
    for values, said in (((0.5, 0.51, 0.52), question.holds), ((-0.5, -0.51, -0.52), question.fails),
                         ((-0.5, 0.5, 0.1), question.undecided)):
        answer = Settled(question, (claim_of(*values),) * len(question.rests))
        mean = math.fsum(values) / len(values)
        assert in_words(answer) == said.format(size=f"{abs(mean):.3g}", signed=f"{mean:+.3g}")
    assert len({question.holds, question.fails, question.undecided}) == 3
    assert question.context.count(".") <= 2
    for text in (question.holds, question.fails, question.undecided):
        assert text.endswith(".") and text.count(".") == 1 and "  " not in text, "a sentence"
        assert not re.search(r"\d\.\d", text), "a figure that no result filled in"


@each
def test_a_result_that_is_taken_away_takes_its_answer_along(question):
    without = [body for body in BODIES if body["name"] != question.rests[0].chapter]
    answer = answered(question, without)
    assert answer.found[0] is None and in_words(answer) == "Not measured yet."
    assert f"**Verdict** {NOT_YET}." in answer_text(answer)
    others = [q for q in QUESTIONS.values() if q.rests[0].chapter != question.rests[0].chapter]
    assert [answered(q, without).found[0] for q in others] == [answered(q, BODIES).found[0] for q in others]
    assert answer_figure(answered(question, [])) is None


@each
def test_the_link_lands_on_a_code_cell(question):
    file, _, cell = cell_link(question).partition("#cell-id=")
    found, = (each for each in nbformat.read(ROOT / file, 4).cells if each.id == cell)
    assert found.cell_type == "code" and ast.parse(found.source).body, "nothing to run"
    link, = re.findall(r"\*\*Cell\*\* \[.*?\]\((.*?)\)", answer_text(answered(question, BODIES)))
    path, _, beside = link.partition("#cell-id=")
    assert (PAGE.parent / path).resolve() == (ROOT / file).resolve() and beside == cell


@each
def test_its_figure_is_drawn_from_the_same_values(question):
    answer = answered(question, BODIES)
    claim = answer.found[0]
    if not claim: return
    figure = answer_figure(answer)
    drawn = [float(line.get_xdata()[0]) for ax in figure.axes for line in ax.lines
             if len(line.get_xdata()) == 1 and line.get_markersize() == 7]
    mean = (100 if claim["unit"] == "%" else 1) * math.fsum(claim["values"]) / len(claim["values"])
    assert any(math.isclose(mean, x, rel_tol=1e-9, abs_tol=1e-12) for x in drawn)
    if question.share:
        assert all(0 <= x <= 100 for line in figure.axes[0].lines[1:2] for x in line.get_xdata())


def test_the_notebook_shows_what_results_say_now():
    "The committed outputs. If results have changed since: python tools/book.py evidence/left_open (seconds)."
    outputs = [o for cell in nbformat.read(PAGE, 4).cells for o in cell.get("outputs", []) if "data" in o]
    shown = "\n".join("".join(output["data"].get("text/markdown", "")) for output in outputs)
    for name, question in QUESTIONS.items(): assert answer_text(answered(question, BODIES)) in shown, name


# ---- its parts

def test_claims_are_found_by_text_with_a_star_for_sizes():
    claim = claim_of(1.0, 2.0, 3.0) | {"claim": "30 farms (10 %): a gain"}
    body = body_of(claims=[claim])
    for text in ("* farms (10 %): a gain", "30 farms (* %): *", "30 farms (10 %): a gain"):
        assert found_in(body, text) is claim
    for text in ("farms", "* farms", "30 farms (10 %): a gain!", "* farms .10 %.: a gain"):
        assert found_in(body, text) is None


def test_results_with_changes_are_passed_over():
    question = question_of(Evidence("x", "a gain"))
    changed, own = (body_of(claims=[claim_of(*values)], changes=changes)
                    for values, changes in (((9.0, 9.1, 9.2), {"data": "y"}), ((1.0, 1.1, 1.2), {})))
    assert answered(question, [changed, own]).found[0]["values"] == [1.0, 1.1, 1.2]
    assert answered(question, [changed]).found[0] is None


def test_differences_pair_seeds():
    rows = (("a", 2, 5.0), ("b", 0, 1.0), ("a", 0, 4.0), ("b", 2, 3.0), ("a", 1, 9.0))
    body = body_of(rows=[(what, seed, {"n": n}) for what, seed, n in rows])
    assert difference(body, "a", "b", "n") == [3.0, 2.0]
    assert difference(body, "a", "c", "n") == [] and difference(body, "c", "a", "n") == []
    assert difference(body, "a", "b", "m") == [] and quotient(body, "a", "n", "m") == []
    assert quotient(body, "a", "n", "n") == [1.0, 1.0, 1.0]
    assert found_in(body, "t", "difference", ("a", "c", "n")) is None
    found = found_in(body, "t", "difference", ("a", "b", "n"), unit="s")
    assert found["verdict"] == "measured" and found["unit"] == "s" and found["values"] == [3.0, 2.0]


def test_quotients_are_seed_by_seed():
    body = body_of(rows=[("a", seed, {"n": n, "m": m}) for seed, n, m in ((0, 1.0, 4.0), (1, 3.0, 2.0))])
    assert quotient(body, "a", "n", "m") == [0.25, 1.5]
    assert found_in(body, "t", "quotient", ("a", "n", "m"))["values"] == [0.25, 1.5]


def test_steps_are_means_over_tasks():
    tasks = [{"looks": {"a": {"all": a}, "b": {"all": 0.25}}} for a in (0.5, 1.0)]
    body = body_of(rows=[("microscope", 0, {"tasks": tasks}), ("other", 0, {"tasks": tasks})])
    assert step_change(body, "a", "b", "all") == [0.5]
    assert step_change(body, "a", "c", "all") == step_change(body, "a", "b", "new") == []
    assert found_in(body, "t", "step_change", ("b", "a", "all"))["values"] == [-0.5]


@pytest.mark.parametrize("bounds", [dict(at_least=0.0), dict(at_most=0.1), dict(at_least=-0.01, at_most=0.01),
                                    dict(at_least=0.0, reach=[0.2, 0.2]),
                                    dict(at_least=0.0, effect=(0.1, 0.2), of="a paper", source="a table")])
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
    question = question_of(Evidence("x", "a gain"))
    for claim in (None, claim_of(1.0, 2.0)): assert would_turn(Settled(question, (claim,))) == "A farm."
    assert re.fullmatch(r"A farm\. Or all 3 seeds moved by -\d.* points\.",
                        would_turn(Settled(question, (claim_of(0.2, 0.21, 0.22, unit="%"),))))


def test_second_evidence_may_be_missing():
    question = question_of(Evidence("x", "a gain"), Evidence("y", "a gain"))
    answer = answered(question, [body_of(claims=[claim_of(1.0, 1.1, 1.2)])])
    assert in_words(answer) == "It is, by 1.1." and len(list(further_evidence([answer]))) == 0


def test_folders(tmp_path):
    assert kept_results(tmp_path) == [] and kept_results(tmp_path / "none") == []
    (tmp_path / "11_fedmox-full-0-x.json").write_text("{}")
    with pytest.raises(UserError, match="is not a results.json"): kept_results(tmp_path)


# ---- its data

GOOD = """
[[question]]
name = "ahead"
paper = "a paper"
asked = "Is it ahead?"
cell = "abc"
context = "A context."
holds = "It is, by {size}."
fails = "It is not: {signed}."
undecided = "Who knows: {signed}."
change = "A farm."

[[question.rests]]
chapter = "privacy/attack"
claim = "* farms: a gain"

[[question.rests]]
chapter = "14_fedgtea"
text = "one less another"
difference = ["a", "b", "accuracy"]
at_least = 0
effect = [0.1, 0.2]
unit = "%"
"""


@pytest.fixture
def file(tmp_path): return tmp_path / "some.toml"


def test_a_file_becomes_questions(file):
    file.write_text(GOOD)
    rests = (Evidence("privacy/attack", "* farms: a gain"),
             Evidence("14_fedgtea", "one less another", "difference", ("a", "b", "accuracy"),
                      dict(at_least=0, effect=[0.1, 0.2], unit="%")))
    assert read_questions(file) == dict(ahead=question_of(*rests)._replace(
        asked="Is it ahead?"))


def test_the_courses_own_file_is_read_where_none_is_named(): assert read_questions(FILE) == read_questions()


KINDS = "expected chapter and just one of claim, difference, quotient, step_change"


@pytest.mark.parametrize("old, new, where, sentence", [
    ('holds = "It is, by {size}."', "", "", "no holds came, expected a text"),
    ('holds = "It is, by {size}."', "holds = 3", "", "holds=3 came, expected a text"),
    ('holds = "It is, by {size}."', 'holds = ""', "", "holds='' came, expected a text"),
    ('change = "A farm."', 'change = "A farm."\nchanges = "A"', "", "field 'changes' came, expected name, "
     "paper, asked, cell, context, holds, fails, undecided, change, rests, share and no other"),
    ("It is, by {size}.", "It is, by {0}.", "", "holds with {0} came, expected just one of {size}, {signed}"),
    ("It is, by {size}.", "By a lot.", "",
     "holds with no place came, expected just one of {size}, {signed}"),
    ("privacy/attack", "attack", ", evidence 0", "chapter='attack' came, expected a notebook in nbs/, "
     "such as 10_fedreplay or privacy/attack"),
    ("difference = ", "ratio = ", ", evidence 1",
     f"chapter, text, ratio, at_least, effect, unit came, {KINDS}"),
    ('claim = "* farms: a gain"', 'claim = "x"\nquotient = ["a", "b", "c"]', ", evidence 0",
     f"chapter, claim, quotient came, {KINDS}"),
    ('["a", "b", "accuracy"]', '["a", "b"]', ", evidence 1",
     "difference=['a', 'b'] came, expected three texts"),
    ('text = "one less another"', "", ", evidence 1", "no text came, expected a text"),
    ("at_least = 0", "at_least = true", ", evidence 1", "at_least=True came, expected a number"),
    ("at_least = 0", "at_least = nan", ", evidence 1", "at_least=nan came, expected a number"),
    ("[0.1, 0.2]", "[0.1]", ", evidence 1", "effect=[0.1] came, expected a number or two"),
    ('claim = "* farms: a gain"', 'claim = "x"\nat_least = 0', ", evidence 0",
     "field 'at_least' came, expected chapter, claim and no other")])
def test_bad_data_are_refused_in_a_sentence(file, old, new, where, sentence):
    assert GOOD.count(old) == 1
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(UserError) as refused: read_questions(file)
    assert str(refused.value) == f"file {str(file)!r}, question 'ahead'{where}: {sentence}"


def test_a_question_without_a_name_goes_by_its_number(file):
    file.write_text(GOOD.replace('name = "ahead"', ""))
    with pytest.raises(UserError, match="question 1: no name came, expected a text"): read_questions(file)


@pytest.mark.parametrize("text, sentence", [
    ("", "holds no list of questions, expected tables [[question]]"),
    ("question = 3", "holds no list of questions, expected tables [[question]]"),
    (GOOD + GOOD, ", question 'ahead': this name came twice, expected another"),
    (GOOD.partition("[[question.rests]]")[0],
     ", question 'ahead': no rests came, expected tables [[question.rests]]"),
    ("question = [", "is not TOML: ")])
def test_a_file_that_holds_something_else_is_refused(file, text, sentence):
    file.write_text(text)
    with pytest.raises(UserError) as refused: read_questions(file)
    assert str(refused.value).removeprefix(f"file {str(file)!r}").lstrip().startswith(sentence)


def test_a_file_that_is_not_there_is_refused(file):
    with pytest.raises(UserError, match="some.toml' cannot be read .No such file"): read_questions(file)
