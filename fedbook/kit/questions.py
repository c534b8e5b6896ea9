"""Questions that papers left open: read from a file, and answered from the results in `results/`."""
import math
import re
import textwrap
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedbook.engine.errors import UserError
from fedbook.engine.show import Table
from fedbook.evidence.claims import interval_text, judged_again, judged_claim, verdict_of
from fedbook.kit.report import collect
from fedbook.kit.runs import chapters, notebooks_folder


NOT_YET = "not measured yet"


class Evidence(NamedTuple):
    """What the answer to a question rests on, in the results file of a `chapter`. With the `kind`
    "claim" it is the chapter's own claim whose wording is `text`, where * stands for any text.

    With another `kind`, the name of a function in this module ("difference", "quotient" or
    "step_change"), that function computes values, one per seed, from the results file and the
    arguments `read`. They are judged as a claim `text`; `bounds` are further arguments of
    `judged_claim`."""
    chapter: str
    text: str
    kind: str = "claim"
    read: tuple[str, ...] = ()
    bounds: dict[str, Any] = {}


class Question(NamedTuple):
    """A question that a `paper` left open, `asked` in words. `context` says what was measured. The
    verdict on the first piece of evidence in `rests` picks the answer: `holds`, `fails` or
    `undecided`. In it {size} stands for the measured number without its sign, {signed} for the
    number with its sign. `share`: the number is a share, and its interval is cut at 0 and 100 %.

    `cell` is the id of the notebook cell that measures or judges the first piece of evidence;
    `change` says what would change the answer."""
    paper: str
    asked: str
    cell: str
    context: str
    holds: str
    fails: str
    undecided: str
    change: str
    rests: tuple[Evidence, ...]
    share: bool = False


class Settled(NamedTuple):
    """An answered `question`: for each piece of its evidence, `found` holds the judged claim (a
    dict from `judged_claim`), or None where it was not measured."""
    question: Question
    found: tuple[dict | None, ...]


def difference(body: dict, what: str, minus: str, number: str) -> list[float]:
    """Return the `number` of row `what` minus that of row `minus`, for each seed that both have, in
    ascending order. `body` is a results file as a dict; each of its rows holds the numbers of one
    method or setting with one seed."""
    having = [row for row in body["rows"] if number in row["numbers"]]
    rows = {(row["what"], row["seed"]): row["numbers"][number] for row in having}
    both = sorted(seed for name, seed in rows if name == what and (minus, seed) in rows)
    return [rows[what, seed] - rows[minus, seed] for seed in both]


def quotient(body: dict, what: str, number: str, by: str) -> list[float]:
    """Return the number called `number` of row `what`, divided by the one called `by`, for each
    seed. `body` is a results file as a dict."""
    rows = [row["numbers"] for row in body["rows"] if row["what"] == what]
    return [numbers[number] / numbers[by] for numbers in rows if {number, by} <= numbers.keys()]


def step_change(body: dict, what: str, minus: str, number: str) -> list[float]:
    """Return, for each seed, how much more the setting `what` changes a `number` in one step of the
    server than the setting `minus` does from the same weights: the mean over tasks. `body` is the
    results file of evidence/fedgtea as a dict."""
    looks = lambda task, setting: task["looks"].get(setting, {})
    seen = lambda task: number in looks(task, what) and number in looks(task, minus)
    change = lambda task: looks(task, what)[number] - looks(task, minus)[number]
    slides = [row["numbers"]["tasks"] for row in body["rows"] if row["what"] == "microscope"]
    return [math.fsum(map(change, tasks)) / len(tasks) for tasks in slides if all(map(seen, tasks))]


_READERS: dict[str, Callable[..., list[float]]] = dict(difference=difference, quotient=quotient,
                                                       step_change=step_change)
_KINDS = ("claim", *_READERS)
_BOUNDS = dict(at_least="a number", at_most="a number", effect="a number or two", unit="a text",
               paper="a text", source="a text")


def _text(value: Any) -> bool: return isinstance(value, str) and value != ""


def _number(value: Any) -> bool: return type(value) in (int, float) and math.isfinite(value)


def _table(value: Any) -> bool: return isinstance(value, dict)


def _list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


_FITS: dict[str, Callable[[Any], bool]] = {
    "a text": _text, "a number": _number,
    "true or false": lambda value: isinstance(value, bool),
    "a number or two": lambda value: _number(value) or _list(value, _number) and len(value) == 2,
    "three texts": lambda value: _list(value, _text) and len(value) == 3,
    "tables [[question.rests]]": lambda value: _list(value, _table) and value != []}


def read_questions(path: str | Path = "") -> dict[str, Question]:
    """Read questions from the TOML file `path` (empty: the course's own,
    `nbs/evidence/questions.toml`) and return them by name. Raises `UserError` if the file is
    missing, is no TOML, or has other fields than expected."""
    path = Path(path or notebooks_folder() / "evidence" / "questions.toml")
    place = f"file {str(path)!r}"
    try: tables = tomllib.loads(path.read_text(encoding="utf-8")).get("question", "none")
    except OSError as error: raise UserError(f"{place} cannot be read ({error.strerror})") from None
    except ValueError as error: raise UserError(f"{place} is not TOML: {error}") from None
    if not _list(tables, _table):
        raise UserError(f"{place} holds no list of questions, expected tables [[question]]")
    questions: dict[str, Question] = {}
    for number, table in enumerate(tables, 1):
        where = f"{place}, question {table.get('name', number)!r}"
        question = _question(table, where)
        if table["name"] in questions: raise UserError(f"{where}: this name came twice, expected another")
        questions[table["name"]] = question
    return questions


def _check(table: dict, needed: dict[str, str], where: str, optional: dict[str, str] | None = None) -> None:
    "Raises `UserError` unless `table` has the fields `needed`, perhaps `optional` ones, and no others."
    known = needed | (optional or {})
    for field in needed:
        if field not in table: raise UserError(f"{where}: no {field} came, expected {needed[field]}")
    for field, value in table.items():
        if field not in known:
            raise UserError(f"{where}: field {field!r} came, expected {', '.join(known)} and no other")
        if not _FITS[known[field]](value):
            raise UserError(f"{where}: {field}={value!r} came, expected {known[field]}")


def _question(table: dict, where: str) -> Question:
    texts = [field for field in Question._fields if field not in ("rests", "share")]
    needed = dict.fromkeys(["name", *texts], "a text") | {"rests": "tables [[question.rests]]"}
    _check(table, needed, where, optional=dict(share="true or false"))
    rests = [_evidence(each, f"{where}, evidence {number}") for number, each in enumerate(table["rests"])]
    for field in ("holds", "fails", "undecided"):
        places = re.findall(r"\{.*?\}", table[field])
        if places not in (["{size}"], ["{signed}"]):
            raise UserError(f"{where}: {field} with {', '.join(places) or 'no place'} came, expected just "
                            "one of {size}, {signed}")
    return Question(**{field: table[field] for field in texts}, rests=tuple(rests),
                    share=table.get("share", False))


def _evidence(table: dict, where: str) -> Evidence:
    kinds = [kind for kind in _KINDS if kind in table]
    if len(kinds) != 1:
        came = ", ".join(table) or "nothing"
        raise UserError(f"{where}: {came} came, expected chapter and just one of {', '.join(_KINDS)}")
    kind = kinds[0]
    if kind == "claim": _check(table, dict(chapter="a text", claim="a text"), where)
    else: _check(table, {"chapter": "a text", "text": "a text", kind: "three texts"}, where, optional=_BOUNDS)
    if table["chapter"] not in chapters():
        raise UserError(f"{where}: chapter={table['chapter']!r} came, expected a notebook in nbs/, such as "
                        "10_fedreplay or privacy/attack")
    if kind == "claim": return Evidence(table["chapter"], table["claim"])
    bounds = {field: table[field] for field in _BOUNDS if field in table}
    return Evidence(table["chapter"], table["text"], kind, tuple(table[kind]), bounds)


def kept_results(folder: str | Path = "") -> list[dict]:
    """Return the results files in `folder` (empty: the course's own, `results/`) as dicts; an empty
    list if there is no such folder."""
    return collect(folder or notebooks_folder().parent / "results")


def verdicts_of(book: str, also: Sequence[str] = (), data: str = "") -> Table:
    """Return a table of what the paper of the lab book `book`, such as "evidence/fedgtea", claims, and what
    the kept rows say: claim, the paper's size, ours with its interval, verdict. `also` are the texts of own
    checks that belong to it; `data` names the set of pictures, where rows of several are kept. Empty if nothing
    is kept."""
    kept = [body for body in kept_results() if body["name"] == book]
    claims = [claim for body in kept if not data or body["sizes"]["data"] == data for claim in body["claims"]]
    shown = [claim for claim in claims if not claim["own"] or claim["claim"] in also]
    return Table({"claim": claim["claim"], "paper": _size_text(claim), "here": interval_text(claim),
                  "verdict": claim["verdict"]} for claim in shown)


def _size_text(claim: dict) -> str:
    "The size that the paper of a `claim` prints, or its range."
    percent = claim["unit"] == "%"
    texts = [f"{100 * size:.1f}" if percent else f"{size:.3g}" for size in claim["effect"] or []]
    sizes = " to ".join(dict.fromkeys(texts))
    return f"{sizes} {claim['unit']}".strip() if sizes else "-"


def _find(evidence: Evidence, body: dict) -> dict | None:
    "The judged claim that `evidence` means in the results `body`, or None."
    if evidence.kind != "claim":
        values = _READERS[evidence.kind](body, *evidence.read)
        return judged_claim(evidence.text, values, **evidence.bounds) if values else None
    form = re.compile(".*".join(map(re.escape, evidence.text.split("*"))))
    return next((claim for claim in body["claims"] if form.fullmatch(claim["claim"])), None)


def answered(question: Question, bodies: Sequence[dict]) -> Settled:
    """Find the evidence for `question` in `bodies` (results files as dicts) and return both as a
    `Settled`. Results of runs with changed settings are ignored."""
    own = [body for body in bodies if not body["changes"]]
    def found(evidence: Evidence) -> dict | None:
        judged = (_find(evidence, body) for body in own if body["name"] == evidence.chapter)
        return next(filter(None, judged), None)
    return Settled(question, tuple(map(found, question.rests)))


_HOLDS = ("reproduced", "weaker", "stronger", "yes")
_FAILS = ("contradicted", "not found", "no")


def _scaled(claim: dict) -> float:
    "The mean of a claim's values, in per cent where its unit is %."
    return (100 if claim["unit"] == "%" else 1) * math.fsum(claim["values"]) / len(claim["values"])


def in_words(answer: Settled) -> str:
    """Return the answer in one sentence with one number, or "Not measured yet." if the first piece
    of evidence is missing."""
    question, claim = answer.question, answer.found[0]
    if claim is None: return f"{NOT_YET.capitalize()}."
    mean = _scaled(claim)
    sentence = question.undecided
    if claim["verdict"] in _HOLDS: sentence = question.holds
    if claim["verdict"] in _FAILS: sentence = question.fails
    return sentence.format(size=f"{abs(mean):.3g}", signed=f"{mean:+.3g}")


def shifted(claim: dict, by: float) -> dict:
    """Return `claim` (a dict from `judged_claim`), judged again with each of its values larger by
    `by`."""
    return judged_again(claim, [value + by for value in claim["values"]])


def turning(claim: dict) -> float | None:
    """Return the smallest shift of all values of `claim` (a dict from `judged_claim`) that gives it
    another verdict; None if no shift does, the claim has no bound, or there are fewer than three
    values.

    A shift d moves the confidence interval from l to h and keeps its width. So the verdict can only
    change at d = m - l or m - h, where m is a bound or an end of the paper's effect."""
    bounds = [bound for bound in (claim["at_least"], claim["at_most"]) if bound is not None]
    if not bounds or len(claim["values"]) < 3 or claim["low"] is None: return None
    shifts = [mark - end for mark in bounds + claim["effect"] for end in (claim["low"], claim["high"])]
    beyond = (shift + side * 1e-6 * (1 + abs(shift)) for shift in sorted(shifts, key=abs) for side in (-1, 1))
    return next((by for by in beyond if shifted(claim, by)["verdict"] != claim["verdict"]), None)


def would_turn(answer: Settled) -> str:
    """Return what would change the answer, in words: the question's own sentence and, where it can
    be computed (see `turning`), by how much all seeds would have to move."""
    claim = answer.found[0]
    by = turning(claim) if claim else None
    if claim is None or by is None: return answer.question.change
    size = f"{(100 if claim['unit'] == '%' else 1) * by:+.2g}"
    unit = {"%": " points", "": ""}.get(claim["unit"], f" {claim['unit']}")
    return f"{answer.question.change} Or all {len(claim['values'])} seeds moved by {size}{unit}."


def cell_link(question: Question) -> str:
    """Return a link to the notebook cell that measured the answer:
    `nbs/CHAPTER.ipynb#cell-id=CELL`. The site scrolls to that cell, and so does JupyterLab if the
    notebook is open; otherwise, and on GitHub, the link opens the notebook."""
    return f"nbs/{question.rests[0].chapter}.ipynb#cell-id={question.cell}"


def answer_text(answer: Settled) -> str:
    """Return the answer as Markdown: question, context, one sentence with one number, verdict and
    number of seeds, what would change it, and a link to the notebook cell that measured it. The
    link is right in a notebook in a folder of nbs/."""
    claim, place = answer.found[0], cell_link(answer.question)
    seeds = "" if claim is None else f", {len(claim['values'])} seeds"
    if claim: seeds += f", on the claim \u201c{claim['claim']}\u201d"
    return (f"### {answer.question.asked}\n\n{answer.question.context}\n\n**Answer** {in_words(answer)}\n\n"
            f"**Verdict** {verdict_of(claim) if claim else NOT_YET}{seeds}. "
            f"**What would change our mind** {would_turn(answer)} "
            f"**Cell** [{place}]({place.replace('nbs', '..', 1)})")


def answer_figure(answer: Settled) -> Any:
    """Return a small matplotlib figure of the claim that decides: its seeds, mean, interval and
    bound; None if it is not measured."""
    import matplotlib.pyplot as plt
    claim = answer.found[0]
    if claim is None: return None
    scale = 100 if claim["unit"] == "%" else 1
    figure, ax = plt.subplots(figsize=(7.0, 1.8), layout="constrained")
    ax.plot([scale * value for value in claim["values"]], [0.0] * len(claim["values"]), "o", color="0.6",
            markersize=5, label="seeds")
    if claim["low"] is not None:
        ends = [scale * claim["low"], scale * claim["high"]]
        if answer.question.share: ends = [min(max(end, 0.0), float(scale)) for end in ends]
        ax.plot(ends, [0.5, 0.5], color="#0072B2", linewidth=3, label="95 % interval")
    ax.plot([_scaled(claim)], [0.5], "o", color="#0072B2", markersize=7, label="mean")
    for bound in (claim["at_least"], claim["at_most"]):
        if bound is not None: ax.axvline(scale * bound, color="#D55E00", linestyle="--", label="bound")
    ax.set_yticks([])
    ax.set_ylim(-0.5, 1.0)
    title = textwrap.fill(claim["claim"].replace(" %", "\u00a0%"), 90, break_on_hyphens=False)
    ax.set_title(f"{title}\nVerdict: {verdict_of(claim)}", fontsize=10)
    ax.set_xlabel(f"measured, in {claim['unit']}" if claim["unit"] else "measured", fontsize=9)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False)
    plt.close(figure)
    return figure


def further_evidence(answers: Sequence[Settled]) -> Table:
    """Return a table of the evidence in `answers` that stands beside what decides: question, what was
    measured, its mean, number of seeds and verdict."""
    pairs = [(answer.question.asked, claim) for answer in answers for claim in answer.found[1:] if claim]
    return Table({"question": asked, "measured": claim["claim"],
                  "mean": f"{_scaled(claim):.3g} {claim['unit']}".strip(), "seeds": len(claim["values"]),
                  "verdict": claim["verdict"]} for asked, claim in pairs)
