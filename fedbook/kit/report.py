"""Results files of runs, and reports on their claims: tables, figures and a page."""
import hashlib
import html
import json
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from fedbook.engine.errors import needs, UserError
from fedbook.engine.files import run_name, write_atomically
from fedbook.engine.rows import results_body, results_text
from fedbook.engine.show import COLOURS, style
from fedbook.evidence.claims import (chance_note, claims_table, interval, interval_text, mean_of_claim, measured_on,
                                     older_note, OWN_VERDICTS, run_label, verdict_counts, verdict_of, VERDICTS)


SIZES = ("smoke", "quick", "full", "open", "paper")


def _sound_claim(claim: dict) -> bool:
    number = lambda v: isinstance(v, (int, float))
    texts, values = ("claim", "of", "paper", "source", "unit", "verdict", "note", "why"), claim["values"]
    maybe = (claim[key] for key in ("at_least", "at_most", "low", "high", "seeds", "detectable", "reruns"))
    if not all(isinstance(claim[key], str) for key in texts): return False
    if claim["verdict"] not in (OWN_VERDICTS if claim["own"] else VERDICTS): return False
    facts = [v for v in maybe if v is not None] + [*claim["effect"], *(claim["reach"] or ()), claim["level"]]
    points = all({"setting", "values", "low", "high"} <= point.keys() for point in claim["curve"])
    sound = isinstance(values, list) and (values != [] or claim["why"] != "")
    return sound and points and all(map(number, values + facts))


def read_results(path: str | Path) -> dict:
    """Read a results file, the `results.json` of a run (with its journal, while it goes on), and return it
    as a dict: the settings of the run, its measured `rows`, and its `claims` with their verdicts. Raises `UserError` for a
    file with other content, and `OSError` if it cannot be opened."""
    try:
        body = results_body(path)
        facts = {"name", "seed", "sizes", "scale", "device", "changes"}
        known = facts <= body.keys() and body["profile"] in SIZES
        if known and all(map(_sound_claim, body["claims"])): return body
    except (ValueError, AttributeError, KeyError, TypeError): pass
    raise UserError(f"file {str(path)!r} is not a results.json of fedbook; delete it or run its chapter again")


def results_files(folder: str | Path) -> list[Path]:
    "Return the sorted copies of results in `folder`, which are named as by `result_name`."
    return sorted(f for f in Path(folder).glob("*.json") if re.search(rf"-({'|'.join(SIZES)})-\d", f.name))


def collect(folder: str | Path) -> list[dict]:
    """Read all results files in `folder`: those of runs, `*/results.json`, and copies named as by
    `result_name`. Return them as dicts (see `read_results`), sorted by chapter name, profile and
    seed, without those of dry runs, which use made-up data. Raises `UserError` for a damaged
    file."""
    files = [*Path(folder).glob("*/results.json"), *results_files(folder)]
    bodies = [body for body in map(read_results, sorted(files)) if not body.get("dry")]
    order = lambda b: (b["name"], SIZES.index(b["profile"]), b["seed"], len(b["changes"]), result_name(b))
    return sorted(bodies, key=order)


def result_name(body: dict) -> str:
    """Return the name, without suffix, under which the result `body` (a results file as a dict) is
    stored in `results/`: `NAME-PROFILE-SEED-DATA`, with changed settings, if any, before DATA, which is
    "own" where it is a path."""
    run = run_name(body["name"], body["profile"], body["seed"], body["changes"])
    data = body["sizes"].get("data", "none")
    return f"{run}-own" if re.search(r"[/\\]", data) else f"{run}-{data}"


def failed_runs(folder: str | Path) -> dict[str, str]:
    """Return the runs in `folder` that did not finish: name of the run's folder to the reason, such
    as the error in a cell, or "stopped before its end"."""
    found = {run.name: _failure(run) for run in sorted(Path(folder).glob("*")) if run.is_dir()}
    return {name: why for name, why in found.items() if why}


def _failure(run: Path) -> str:
    books = [path for path in run.glob("*.ipynb") if re.match(rf"(\w+\.)?{re.escape(path.stem)}-", run.name)]
    try: errors = [error for path in books for error in _errors(json.loads(path.read_text()))]
    except (ValueError, KeyError): errors = []
    if errors and errors[-1] != "KeyboardInterrupt": return f"a cell failed: {errors[-1]}"
    try: ended = bool(json.loads((run / "results.json").read_text()).get("headline"))
    except (OSError, ValueError, AttributeError): ended = not books
    return "" if ended else "stopped before its end"


def _errors(book: dict) -> list[str]:
    "The names of the errors among the outputs of a notebook that papermill has marked."
    if not book["metadata"].get("papermill", {}).get("exception"): return []
    return [o["ename"] for cell in book["cells"] for o in cell.get("outputs", []) if o["output_type"] == "error"]


def keep(folder: str | Path, results: str | Path = "results") -> list[Path]:
    """Copy every results file in `folder` that has claims into the folder `results`, as
    `NAME-PROFILE-SEED-DATA.json` (see `result_name`), over an older copy. Return the paths of the
    copies."""
    Path(results).mkdir(exist_ok=True)
    claiming = {Path(results) / f"{result_name(body)}.json": body for body in collect(folder) if body["claims"]}
    for path, body in claiming.items(): write_atomically(path, results_text(body))
    return list(claiming)


def _difference(old: Any, new: Any, where: str = "") -> str:
    "The first place where two JSON values differ, with both values, as a text; empty if there is none."
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        pairs = [(f"{where} {key}".strip(), old[key], new[key]) for key in old]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(old, new))]
    elif json.dumps(old) == json.dumps(new): return ""
    else: return f"{where} was {old!r:.80} and is {new!r:.80}".strip()
    return next(filter(None, (_difference(a, b, place) for place, a, b in pairs)), "")


def _timeless(value: Any, clock: Sequence[str]) -> Any:
    "`value` without the entries, at any depth, that `clock` names."
    if isinstance(value, list): return [_timeless(item, clock) for item in value]
    if not isinstance(value, dict): return value
    return {name: _timeless(item, clock) for name, item in value.items() if name not in clock}


def row_difference(old: list[dict], new: list[dict], clock: Sequence[str] = ()) -> str:
    """Return a sentence on the first difference between the rows `old` and `new` of two results
    files, or an empty text if they are equal. A row is a dict with `what` (a method or setting),
    `seed` and `numbers`. Rows and numbers whose names are in `clock`, such as times, may differ."""
    named = lambda rows: {(row["what"], row["seed"]): _timeless(row["numbers"], clock)
                          for row in rows if row["what"] not in clock}
    olds, news = named(old), named(new)
    for what, seed in [*olds, *news]:
        sides = ["before" if (what, seed) in olds else "", "now" if (what, seed) in news else ""]
        if not all(sides): return f"row {what!r}, seed {seed}, is there only {''.join(sides)}"
        unlike = _difference(olds[what, seed], news[what, seed])
        if unlike: return f"row {what!r}, seed {seed}: {unlike}"
    return ""


class Headline(NamedTuple):
    """A paper's own sentence, as a `claim` (a dict from `judged_claim`), and what it was `measured`
    on. Where another run looked at the same sentence, what it found stands in the claim's `curve`."""
    claim: dict
    measured: str


def headlines(bodies: Sequence[dict]) -> dict[str, list[Headline]]:
    """Return the claims of each paper in `bodies` (results files as dicts), by the paper's name. One
    sentence is one claim: the first chapter that has it gives the verdict, by its run of the largest profile (of two,
    the one with fewer changed sizes beside seeds, then with more seeds); what others found joins its curve."""
    papers = (claim["of"] for body in bodies for claim in body["claims"] if not claim["own"])
    found: dict[str, dict[str, Headline]] = {paper: {} for paper in papers}
    for body in sorted(bodies, key=_place):
        for claim in body["claims"]:
            if claim["own"]: continue
            known = found[claim["of"]]
            if claim["claim"] in known: known[claim["claim"]].claim["curve"].extend(_points(claim, body))
            else: known[claim["claim"]] = Headline(claim | dict(curve=list(claim["curve"])), measured_on(body))
    return {paper: list(several.values()) for paper, several in found.items()}


def _place(body: dict) -> tuple[str, int, int, int]:
    "Where a run stands among those with the same claim: the one that gives the verdict is first."
    changed = len(body["changes"].keys() - {"seeds"})
    return body["name"], -SIZES.index(body["profile"]), changed, -body["sizes"].get("seeds", 0)


def _points(claim: dict, body: dict) -> list[dict]:
    "What the `claim` of another run says, as points of a curve."
    where = body["sizes"].get("data", run_label(body))
    first = dict(setting=where, values=claim["values"], low=claim["low"], high=claim["high"])
    points = [point | dict(setting=f"{where}, {point['setting']}") for point in claim["curve"]]
    return points if any(point["values"] == claim["values"] for point in points) else [first, *points]


def main_claims(bodies: Sequence[dict]) -> list[dict]:
    """Return the main claim of each paper in `bodies` (results files as dicts): its first one that was measured
    and has a size (see `paper_sizes`)."""
    found = ((h.claim for h in several) for several in headlines(bodies).values())
    firsts = (next((c for c in claims if c["low"] is not None and paper_sizes(c)), None) for claims in found)
    return [claim for claim in firsts if claim]


def _nothing(claim: dict) -> float:
    "The value of `claim` at which there is no effect: 1 for a ratio, else 0."
    return 1.0 if claim["unit"] == "times" else 0.0


def paper_sizes(claim: dict) -> list[float]:
    """Return the size that the paper of `claim` prints, or both ends of its range; where it prints none, the
    claim's bound, if that is not where there is no effect. Else the list is empty."""
    bounds = [bound for bound in (claim["at_least"], claim["at_most"]) if bound is not None]
    sizes = claim["effect"] or bounds
    return [size for size in sizes if size != _nothing(claim)]


def overview_figure(bodies: Sequence[dict]) -> Any:
    """Return a matplotlib figure of the `main_claims` of `bodies` (results files as dicts): for each paper a bar
    for the effect that it claims, which is 100 %, and a bar for ours with its interval."""
    needs("matplotlib")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    claims = main_claims(bodies)
    with mpl.rc_context():
        style()
        fig = Figure(figsize=(11, 0.85 * len(claims) + 1.3))
        ax = fig.subplots()
        for row, claim in enumerate(claims): _draw_main(ax, row, claim)
        sentences = [textwrap.fill(claim["claim"], 34) for claim in claims]
        ax.set(yticks=range(len(claims)), yticklabels=sentences, ylim=(len(claims) - 0.45, -0.55), xlim=_INSIDE,
               xlabel="effect, as a share of the one that the paper claims (0: none)")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        ax.tick_params(axis="both", labelsize=10)
        ax.tick_params(axis="y", length=0)
        ax.axvline(0, color="black", lw=1)
        title = f"The main claims of {len(claims)} papers in our small runs: {verdict_counts(claims)}"
        fig.suptitle(textwrap.fill(title, 110), x=0.01, ha="left", fontsize=11)
    return fig


_COLOUR = {"reproduced": COLOURS[0], "weaker": COLOURS[0], "stronger": COLOURS[0], "not found": COLOURS[1],
           "contradicted": COLOURS[1]}
_INSIDE = (-2.5, 1.5)


def _draw_main(ax: Any, row: int, claim: dict) -> None:
    "A paper's bar and ours, and on the right both in words."
    zero, sizes = _nothing(claim), paper_sizes(claim)
    unit = math.fsum(sizes) / len(sizes) - zero
    mean, low, high = ((end - zero) / unit for end in (mean_of_claim(claim), claim["low"], claim["high"]))
    colour, [shown] = _COLOUR.get(claim["verdict"], "#767676"), _clipped(mean)
    ax.barh(row - 0.18, 1, 0.32, color="white", edgecolor="black", hatch="////", lw=0.8)
    ax.barh(row + 0.18, shown, 0.32, color=colour)
    ax.plot(_clipped(low, high), [row + 0.18] * 2, "-|", color="black", lw=1.4, ms=7)
    beside = dict(transform=ax.get_yaxis_transform(), va="center", fontsize=10)
    scale = 100 if claim["unit"] == "%" else 1
    ends = " to ".join(dict.fromkeys(f"{scale * size:.3g}" for size in sizes))
    least = "" if claim["effect"] else "at least " if claim["at_most"] is None else "at most "
    ax.text(1.02, row - 0.18, f"paper: {least}{ends} {claim['unit']}".rstrip(), **beside)
    ours = interval_text(claim | dict(reruns=None)).partition(" (")[0]
    ax.text(1.02, row + 0.18, f"here: {ours}, {claim['verdict']}", color=colour, **beside)


def _clipped(*values: float) -> list[float]:
    "`values`, moved into what the figure shows."
    return [min(max(value, _INSIDE[0]), _INSIDE[1]) for value in values]


def draw_curves(fig: Any, claims: Sequence[dict]) -> None:
    """Draw into the matplotlib figure `fig` what the sentences of `claims` (dicts from `judged_claim`) give at
    other settings: a panel for each that has a curve, with 95 % intervals. The claim is a diamond, its bound a
    black line, the paper's size a star."""
    curved = [claim for claim in claims if claim["curve"]]
    if not curved: return
    heights = [len(claim["curve"]) + 1 for claim in curved]
    fig.set_size_inches(9, 0.26 * sum(heights) + 0.62 * len(curved))
    axes = fig.subplots(len(curved), 1, height_ratios=heights, squeeze=False)[:, 0]
    for ax, claim in zip(axes, curved): _draw_curve(ax, claim)


def _draw_curve(ax: Any, claim: dict) -> None:
    "One claim, and below it the points of its curve."
    scale = 100 if claim["unit"] == "%" else 1
    own = [claim | dict(setting="the claim")] if claim["values"] else []
    points = own + claim["curve"]
    for row, point in enumerate(points):
        mean, half = interval(point["values"])
        ax.errorbar(scale * mean, row, xerr=scale * half if math.isfinite(half) else 0, capsize=3,
                    fmt="D" if "claim" in point else "o", color=COLOURS["claim" not in point])
    ax.axvline(0, color="#bbbbbb", lw=1, zorder=0)
    if own:
        bound = claim["at_most"] if claim["at_least"] is None else claim["at_least"]
        ax.axvline(scale * bound, color="black", lw=1.2, zorder=1)
        sizes = [scale * size for size in claim["effect"]]
        ax.plot(sizes, [0] * len(sizes), "*", ms=10, mfc="white", mec="black", zorder=4)
    ax.set(yticks=range(len(points)), yticklabels=[point["setting"] for point in points],
           ylim=(len(points) - 0.5, -0.5))
    unit = f", {claim['unit']}" if claim["unit"] else ""
    ax.set_title(textwrap.fill(claim["claim"] + unit, 90), fontsize=10, loc="left", x=-0.3)


_HOW_TO_READ = """A claim is one sentence of a paper, with its place and its figure, judged once. Its values are one for each
seed, and differences are paired by seed; the interval is that of their mean (95 %, Student's t). It answers
to the claim's bound and to the size that the paper prints. *Reproduced*: the interval is on the right side,
and the paper's size is inside, or the paper gives none; *weaker*, *stronger*: the right side, but the paper's
size is excluded; *not found*: the sign is undecided, and the paper's size is excluded; *contradicted*: the
wrong side; *undecided*: none of these, with about how many seeds would decide it with 80 % power; *not
testable here*: no method could show the effect at this scale, or nothing here runs it. The least detectable
effect is what the seeds find with 80 % power. Holm: the p-value corrected for the claims of one paper. What
the sentence gives at other settings is a curve of the claim, and no further claim.

The figure shows the main claim of each paper. The hatched bar is the effect that the paper claims, 100 %, and the
bar below it is ours, with its interval. The papers ran at another scale, with other data. How a
verdict comes about is taught in `nbs/evidence/claims.ipynb`. Checks of our own (answered with yes, no or
undecided) are a table apart."""


def page(bodies: Sequence[dict], folder: str | Path = "results") -> str:
    """Return a report on `bodies` (results files as dicts) as Markdown text: all claims of papers, by
    paper, each with its figure and its curve; then the checks of our own. `folder` is where the report
    will lie; only its name is used: in `results` the checks are counted, beside links to the lab
    books that show them."""
    claiming, found = [body for body in bodies if body["claims"]], headlines(bodies)
    first = f"Written by `fedbook report {Path(folder).name}` from the files here; do not edit it."
    every = [headline.claim for several in found.values() for headline in several]
    said = f"All claims of papers: {verdict_counts(every)}." if every else "Nothing of a paper is claimed."
    shown = "What each paper claims first, and what our runs gave"
    figure = f"![{shown}](figures/overview.png)" if main_claims(bodies) else ""
    blocks = ["# Results", first, _HOW_TO_READ, said, chance_note(every), figure]
    for paper, several in found.items(): blocks += [f"## {paper}", *_section(paper, several)]
    if Path(folder).name == "results": blocks += ["## Lab books", _lab_books(claiming)]
    else: blocks += _checks(claiming)
    return "\n\n".join(filter(None, blocks)) + "\n"


def _section(paper: str, several: list[Headline]) -> list[str]:
    "The claims of one paper: the main one in a sentence, table, curves, and what it was measured on."
    claims = [headline.claim for headline in several]
    scales = dict.fromkeys(headline.measured for headline in several)
    return [sentence(several), claims_table(claims), _curves(claims), f"Measured on: {'; '.join(scales)}."]


def _curves(claims: list[dict]) -> str:
    "What the same sentences give at other settings, as a table; empty if nothing else was measured."
    lines = ["| claim | at another setting | mean [interval] |", "|---|---|---|"]
    for claim in claims:
        others = [point for point in claim["curve"] if point["values"] != claim["values"]]
        for k, point in enumerate(others):
            there = claim | point | dict(reruns=None)
            lines.append(f"| {'' if k else claim['claim']} | {point['setting']} | {interval_text(there)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def sentence(several: Sequence[Headline]) -> str:
    """Return one line on the claims of a paper (see `headlines`): the first one with the paper's figure, ours,
    its note and what it was measured on, then how many there are of each verdict."""
    if not several: return "nothing claimed yet"
    claim, measured = several[0]
    figure = f" (paper: {claim['paper']})" if claim["paper"] else ""
    counted = verdict_counts([headline.claim for headline in several])
    word = verdict_of(claim).replace(claim["verdict"], f"*{claim['verdict']}*", 1)
    dose = f"; {claim['note']}" if claim["note"] else ""
    return (f"{claim['claim']}{figure}: here {interval_text(claim)}, {word}{dose}. Measured, where nothing else is "
            f"said, on {measured}. All {len(several)} claims: {counted}")


def _lab_books(bodies: Sequence[dict]) -> str:
    "The lab books and how their own checks came out, as a table."
    lines = ["| lab book | run | own checks |", "|---|---|---|"]
    for body in bodies:
        run = ", ".join(filter(None, [body["profile"], body["sizes"].get("data")]))
        own = [claim for claim in body["claims"] if claim["own"]]
        counted = verdict_counts(own).removeprefix("own checks: ")
        lines.append(f"| [{body['name']}](../nbs/{body['name']}.ipynb) | {run} | {counted} |")
    return "\n".join(lines)


def _checks(bodies: list[dict]) -> list[str]:
    "The own checks of each run, as a heading and a table."
    blocks = []
    for body in bodies:
        own = [claim for claim in body["claims"] if claim["own"]]
        if not own: continue
        blocks += [f"## {result_name(body)}", claims_table(own), older_note(body)]
        blocks.append(f"Measured on: {measured_on(body)}.")
    return blocks


def digest(what: Any) -> str:
    "Return a hash of `what`, a value that JSON can hold: 16 hexadecimal digits of SHA-256."
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def few_colours(png: bytes) -> bytes:
    """Return the PNG file `png` (its bytes) with a palette of 32 to 256 colours, the fewest that
    show no visible difference; where 256 show one, the picture is dithered. A picture of another
    kind than RGB or RGBA, or that is transparent anywhere, or would not become smaller, is returned
    as it came. Raises `UserError` if Pillow is not installed."""
    needs("PIL")
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    texts, data = PngInfo(), BytesIO()
    with Image.open(BytesIO(png)) as picture:
        if picture.mode not in ("RGB", "RGBA"): return png
        if picture.convert("RGBA").getextrema()[3][0] < 255: return png
        for name, text in picture.text.items(): texts.add_text(name, text)  # type: ignore[attr-defined]
        _palette(picture.convert("RGB")).save(data, "PNG", optimize=True, pnginfo=texts)
    return min(png, data.getvalue(), key=len)


def _palette(whole: Any) -> Any:
    "The RGB picture `whole` in 32 to 256 colours."
    from PIL import Image, ImageChops, ImageStat

    for colours in (32, 64, 128, 256):
        few = whole.quantize(colours, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
        apart = ImageChops.difference(few.convert("RGB"), whole)
        most, mean = max(high for _, high in apart.getextrema()), max(ImageStat.Stat(apart).mean)
        if most <= 12 and mean <= 0.5: return few
    return whole.quantize(palette=few, dither=Image.Dither.FLOYDSTEINBERG) if mean > 0.8 else few


def drawn_from(path: str | Path) -> str:
    """Return the `digest` of the claims that the PNG figure at `path` was drawn from, which
    `write_report` stores inside it; an empty text if the file is missing or holds none."""
    needs("PIL")
    from PIL import Image

    try:
        with Image.open(path) as picture: return getattr(picture, "text", {}).get("claims", "")
    except (OSError, SyntaxError): return ""


def figures_of(bodies: Sequence[dict]) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Return the figures that a report on `bodies` (results files as dicts) has: file name to a
    pair of the `digest` of its claims, and a function without arguments that returns it as a
    matplotlib figure."""
    claims = main_claims(bodies)
    return {"overview.png": (digest(claims), partial(overview_figure, bodies))} if claims else {}


def write_report(folder: str | Path, bodies: Sequence[dict]) -> list[Path]:
    """Write a report on `bodies` (results files as dicts) into `folder`: `README.md`, `report.html`
    and `figures/*.png`. A figure is drawn only if its claims have changed; figures of results that
    are gone are deleted. Return the paths of the two pages."""
    folder, text = Path(folder), page(bodies, folder)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for name, (stamp, draw) in figures_of(bodies).items():
        data = BytesIO()
        if drawn_from(folder / "figures" / name) == stamp: continue
        draw().savefig(data, format="png", dpi=90, metadata={"Software": None, "claims": stamp})
        write_atomically(folder / "figures" / name, few_colours(data.getvalue()))
    for old in (folder / "figures").glob("*.png"):
        if old.name not in figures_of(bodies) and drawn_from(old): old.unlink()
    write_atomically(folder / "README.md", text)
    write_atomically(folder / "report.html", as_html(text))
    return [folder / "README.md", folder / "report.html"]


def as_html(markdown: str) -> str:
    """Return a report, the Markdown text that `page` returns, as an HTML page. Only headings,
    tables, pictures and paragraphs are converted."""
    look = ("body{font:15px sans-serif;margin:2em;max-width:70em}img{max-width:100%}"
            "td,th{padding:.3em .8em;text-align:left}")
    head = f"<!doctype html><meta charset='utf-8'><title>fedbook results</title><style>{look}</style>"
    return "\n".join([head, *map(_block, markdown.strip().split("\n\n"))]) + "\n"


def _block(block: str) -> str:
    heading, picture = re.fullmatch(r"(#+) (.*)", block), re.fullmatch(r"!\[(.*)\]\((.*)\)", block)
    if heading:
        level, text = len(heading[1]), html.escape(heading[2])
        return f"<h{level} id='{text}'>{text}</h{level}>"
    if picture: return f"<img alt='{html.escape(picture[1])}' src='{html.escape(picture[2])}'>"
    if not block.startswith("| "): return f"<p>{html.escape(block)}</p>"
    rows = [row_cells(line) for line in block.splitlines() if not line.startswith("|---")]
    line = lambda row, tag: "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"
    return "<table>" + line(rows[0], "th") + "\n".join(line(row, "td") for row in rows[1:]) + "</table>"


def row_cells(line: str) -> list[str]:
    "Return the texts of the cells in `line`, one row of a Markdown table."
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def fill(readme: str | Path, bodies: Sequence[dict]) -> None:
    """Write what was found into a table of the Markdown file `readme`, in place. In each row with a
    link to `results/README.md#PAPER`, the last cell becomes one sentence on the claims of PAPER in
    `bodies` (results files as dicts). Raises `UserError` if there is no such row."""
    text = Path(readme).read_text(encoding="utf-8")
    found = {paper.lower(): several for paper, several in headlines(bodies).items()}
    filled = lambda match: f"{match[1]} {sentence(found.get(match[2], []))} |"
    text, rows = re.subn(r"^(\|.*\(results/README\.md#(\w+)\).*\|)[^|\n]*\|$", filled, text, flags=re.M)
    if not rows:
        raise UserError(f"file {str(readme)!r} has no table row with a link to results/README.md#PAPER")
    write_atomically(readme, text)
