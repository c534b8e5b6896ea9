"""The five papers in one table: what each claims, its figure, ours of a run just made, and ours as kept."""
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedbook.engine.errors import UserError
from fedbook.evidence.claims import interval_text, judged_claim
from fedbook.kit.report import headlines, read_results


def gain(method: float, baseline: float) -> float:
    "Return by how much the number of `method` exceeds that of `baseline`."
    return method - baseline


def ratio(method: float, baseline: float) -> float:
    "Return how many times the number of `baseline` that of `method` is."
    return method / baseline


def saving(method: float, baseline: float) -> float:
    "Return the share of the number of `baseline`, such as bytes, that `method` does without."
    return 1 - method / baseline


class Paper(NamedTuple):
    """A paper and how its first claim is read off the rows of a run. `compare` takes a number of the row that is
    named as the paper's method, and the same number of a baseline: the first of `baselines` that the run has.
    (The claim names the first of all.) `numbers` are the names that a row may have for that number. Names joined
    by "+" are added up."""
    name: str
    chapter: str
    compare: Callable[[float, float], float]
    numbers: tuple[str, ...]
    baselines: tuple[str, ...]


PAPERS = (
    Paper("FedReplay", "10_fedreplay", ratio, ("accuracy",), ("StdFed", "FedAvg")),
    Paper("FedMox", "11_fedmox", gain, ("total", "map50", "mAP50", "mAP@50", "mAP"), ("FedAvg",)),
    Paper("FedKLPR", "12_fedklpr", saving, ("bytes", "down+up"), ("FedCAPR", "FedAvg")),
    Paper("FedCBDR", "13_fedcbdr", gain, ("accuracy",), ("Finetune", "FedAvg")),
    Paper("FedGTEA", "14_fedgtea", gain, ("accuracy",), ("FedCIL", "AC-GAN + FedAvg", "FedAvg")),
)


def _number(numbers: dict, name: str) -> float | None:
    "The sum of what `numbers`, those of a row, have under the names that `name` joins; None if one is missing."
    parts = [numbers.get(part) for part in name.split("+")]
    if not all(isinstance(part, (int, float)) for part in parts): return None
    return float(sum(part for part in parts if part is not None))


def _by_seed(rows: Iterable[dict], what: str, name: str) -> dict[int, float]:
    read = {row["seed"]: _number(row["numbers"], name) for row in rows if row["what"] == what}
    return {seed: number for seed, number in read.items() if number is not None}


def compared(paper: Paper, rows: Sequence[dict]) -> tuple[list[float], str]:
    """Return what `paper.compare` gives in the `rows` of a run, by rising seed, and the name of the baseline: a
    number for each seed that both the paper's method and that baseline have. Both are empty if the run has no
    such seed."""
    for baseline in paper.baselines:
        for name in paper.numbers:
            method, other = (_by_seed(rows, what, name) for what in (paper.name, baseline))
            seeds = sorted(seed for seed in method.keys() & other.keys()
                           if paper.compare is gain or other[seed])
            if seeds: return [paper.compare(method[seed], other[seed]) for seed in seeds], baseline
    return [], ""


def _now(paper: Paper, claim: dict, ran: dict | None) -> str:
    "What the run `ran` (a dict from `run_chapter`) of the paper's chapter gave, in words."
    if not ran: return "not run"
    if ran["error"]: return "the run failed"
    try: body = read_results(Path(ran["notebook"]).with_name("results.json"))
    except (UserError, OSError): return "not measured"
    values, baseline = compared(paper, body["rows"])
    if not values: return f"not measured at {body['profile']}"
    judged = judged_claim(claim["claim"], values, at_least=claim["at_least"], unit=claim["unit"])
    return f"{interval_text(judged)}, against {baseline}"


def papers_figure(claim: dict) -> str:
    """Return the size that the paper of `claim` (a dict from `judged_claim`) prints, or its range, with its
    unit. Where it prints none, return its own words."""
    if not claim["effect"]: return claim["paper"]
    scale = 100 if claim["unit"] == "%" else 1
    sizes = dict.fromkeys(f"{scale * size:.3g}" for size in claim["effect"])
    return f"{' to '.join(sizes)} {claim['unit']}".strip()


def papers_rows(ran: Sequence[dict], kept: Sequence[dict]) -> list[dict[str, str]]:
    """Return a row for each of `PAPERS`, column to text: the paper, what it claims, its figure, ours now, from
    `ran` (dicts from `run_chapter`), ours `kept` (results files as dicts), and what to open. A paper of which no
    claim is kept has no row."""
    claims = {name: several[0].claim for name, several in headlines(kept).items()}
    runs, rows = {run["chapter"]: run for run in ran}, []
    for paper in PAPERS:
        claim = claims.get(paper.name)
        if not claim: continue
        lab = f"evidence/{paper.chapter.partition('_')[2]}"
        rows.append({"paper": paper.name, "it claims": claim["claim"], "its figure": papers_figure(claim),
                     "ours now": _now(paper, claim, runs.get(paper.chapter)),
                     "ours kept": f"{interval_text(claim)}, {claim['verdict']}",
                     "open": f"{paper.chapter} {lab}"})
    return rows


WIDTHS = {"paper": 9, "it claims": 27, "its figure": 17, "ours now": 23, "ours kept": 23, "open": 18}


def papers_table(ran: Sequence[dict], kept: Sequence[dict]) -> str:
    """Return `papers_rows` as text for a terminal of 128 columns, long cells on several lines. The text is empty
    if there is no row."""
    rows = papers_rows(ran, kept)
    if not rows: return ""
    lines = _lines(dict(zip(WIDTHS, WIDTHS)))
    for row in rows: lines += ["", *_lines(row)]
    return "\n".join(lines)


def _lines(row: dict[str, str]) -> list[str]:
    cells = [textwrap.wrap(row[name], width, break_on_hyphens=False) for name, width in WIDTHS.items()]
    height = max(map(len, cells))
    padded = [cell + [""] * (height - len(cell)) for cell in cells]
    return ["  ".join(part.ljust(width) for part, width in zip(line, WIDTHS.values())).rstrip()
            for line in zip(*padded)]
