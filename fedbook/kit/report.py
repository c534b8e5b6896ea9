"""Results files of runs, and reports on their claims: tables, figures and a page."""
import hashlib
import html
import json
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from fedbook.engine.errors import needs, UserError
from fedbook.engine.files import run_name, write_atomically
from fedbook.engine.rows import results_text
from fedbook.engine.show import COLOURS, style
from fedbook.evidence.claims import (chance_note, claims_figure, claims_table, measured_on, message,
                                     older_note, OWN_VERDICTS, run_label, verdict_counts, VERDICTS)


SIZES = ("smoke", "quick", "full", "paper")


def _sound_claim(claim: dict) -> bool:
    number = lambda v: isinstance(v, (int, float))
    texts, values = ("claim", "paper", "source", "unit", "verdict", "note"), claim["values"]
    maybe = (claim[key] for key in ("at_least", "at_most", "low", "high", "seeds"))
    if not all(isinstance(claim[key], str) for key in texts): return False
    if claim["verdict"] not in (OWN_VERDICTS if claim["own"] else VERDICTS): return False
    facts = [v for v in maybe if v is not None] + [*claim["effect"], claim["reruns"], claim["level"]]
    return isinstance(values, list) and values != [] and all(map(number, values + facts))


def read_results(path: str | Path) -> dict:
    """Read a results file, the `results.json` of a run, and return it as a dict: the settings of
    the run, its measured `rows`, and its `claims` with their verdicts. Raises `UserError` for a
    file with other content, and `OSError` if it cannot be opened."""
    try:
        body = json.loads(Path(path).read_text())
        facts = {"name", "seed", "sizes", "scale", "device", "changes"}
        known = facts <= body.keys() and body["profile"] in SIZES
        if known and all(map(_sound_claim, body["claims"])): return body
    except (ValueError, AttributeError, KeyError, TypeError): pass
    raise UserError(f"file {str(path)!r} is not a results.json of fedbook; delete it or run its chapter again")


def collect(folder: str | Path) -> list[dict]:
    """Read all results files in `folder`: those of runs, `*/results.json`, and copies named as by
    `result_name`. Return them as dicts (see `read_results`), sorted by chapter name, profile and
    seed, without those of dry runs, which use made-up data. Raises `UserError` for a damaged
    file."""
    files = [*Path(folder).glob("*/results.json"),
             *(f for f in Path(folder).glob("*.json") if re.search(rf"-({'|'.join(SIZES)})-\d", f.name))]
    bodies = [body for body in map(read_results, sorted(files)) if not body.get("dry")]
    order = lambda b: (b["name"], SIZES.index(b["profile"]), b["seed"], len(b["changes"]), result_name(b))
    return sorted(bodies, key=order)


def result_name(body: dict) -> str:
    """Return the name, without suffix, under which the result `body` (a results file as a dict) is
    stored in `results/`: `NAME-PROFILE-SEED-DATA`, with changed settings, if any, before DATA."""
    run = run_name(body["name"], body["profile"], body["seed"], body["changes"])
    return f"{run}-{body['sizes'].get('data', 'none')}"


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


def overview_figure(bodies: Sequence[dict]) -> Any:
    """Return a matplotlib figure that counts verdicts: for each of `bodies` (results files as
    dicts) a bar of its claims from papers on the left, and one of the course's own checks on the
    right."""
    needs("matplotlib")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    claims = [claim for body in bodies for claim in body["claims"]]
    with mpl.rc_context():
        style()
        fig = Figure(figsize=(9.5, 0.3 * len(bodies) + 1.9))
        axes = fig.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for ax, own, order in zip(axes, (False, True), (VERDICTS, OWN_VERDICTS)):
            _stack(ax, [[c["verdict"] for c in body["claims"] if c["own"] == own] for body in bodies], order)
        axes[0].set(yticks=range(len(bodies)), yticklabels=[run_label(body) for body in bodies],
                    ylim=(len(bodies) - 0.4, -0.6), xlabel="claims of papers")
        axes[1].set(xlabel="checks of our own")
        fig.suptitle(textwrap.fill(f"{len(claims)} claims: {verdict_counts(claims)}", 110), x=0.01, ha="left",
                     fontsize=11)
    return fig


def _stack(ax: Any, found: list[list[str]], order: Sequence[str]) -> None:
    "A bar for each list of words in `found`, in parts of the `order`, with a legend below."
    left = [0] * len(found)
    for word in order:
        widths = [words.count(word) for words in found]
        if not any(widths): continue
        bars = ax.barh(range(len(found)), widths, left=left, color=_BARS[word], label=word)
        colour = "black" if word in ("open", "smaller, sign open") else "white"
        ax.bar_label(bars, [w or "" for w in widths], label_type="center", color=colour)
        left = [a + b for a, b in zip(left, widths)]
    ax.xaxis.get_major_locator().set_params(integer=True)
    if ax.containers: ax.legend(loc="upper left", bbox_to_anchor=(0, -1.9 / max(len(found), 4)), ncols=2)


_BARS = {"reproduced": COLOURS[0], "smaller than the paper's": "#3f8fc4",
         "larger than the paper's": "#00507f", "smaller, sign open": "#a8a8a8", "contradicted": COLOURS[1],
         "open": "#dadada", "measured": "#404040", "yes": COLOURS[0], "no": COLOURS[1]}


_HOW_TO_READ = """A claim has a bound, and values, one per seed; the interval is that of their mean (95 %,
Student's t). A claim of a paper answers to two things. Its sign: does the whole interval lie on the right
side of the bound? Its size: is the effect that the paper prints inside? *Reproduced*: right side, and the
size is inside or not known; *smaller* or *larger than the paper's*: right side, and the size is excluded;
*smaller, sign open*: the bound is inside, and the size excluded; *contradicted*: the wrong side; *open*:
neither says anything yet, with about how many seeds would decide it (four times of five, with the spread
seen), or a mean closer to the bound than reruns of one seed are to each other. Our own checks are answered
with *yes*, *no* or *open*. *Measured*: there is no bound.

In the figures a bar is the interval; the black line is the bound, with an arrow to the side where the claim
holds; the star is the size of effect that the paper prints, where it prints one. The papers ran at another
scale, with other data. How a verdict comes about is taught in `nbs/evidence/claims.ipynb`."""


def page(bodies: Sequence[dict], folder: str | Path = "results") -> str:
    """Return a report on `bodies` (results files as dicts) as Markdown text: counts of verdicts,
    then for each chapter a figure and a table of its claims. `folder` is where the report will lie;
    only its name is used."""
    claiming = [body for body in bodies if body["claims"]]
    first = f"Written by `fedbook report {Path(folder).name}` from the files here; do not edit it."
    claims = [claim for body in claiming for claim in body["claims"]]
    every = verdict_counts(claims)
    figure = f"![All claims: {every}](figures/overview.png)" if claiming else "Nothing is claimed."
    blocks = ["# Results", first, _HOW_TO_READ, f"All in all: {every}.", chance_note(claims), figure,
              _overview(claiming)]
    for name in dict.fromkeys(body["name"] for body in claiming):
        blocks += [f"## {name}", *(_section(body) for body in claiming if body["name"] == name)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _overview(bodies: Sequence[dict]) -> str:
    lines = ["| chapter | run | verdicts |", "|---|---|---|"]
    for body in bodies:
        run = ", ".join(filter(None, [body["profile"], body["sizes"].get("data")]))
        lines.append(f"| [{body['name']}](#{body['name'].replace('/', '')}) | {run} | {verdict_counts(body['claims'])} |")
    return "\n".join(lines)


def _section(body: dict) -> str:
    headline = f"{body['headline'].rstrip('.')}." if body.get("headline") else ""
    figure = f"![{message(body)}](figures/{result_name(body)}.png)"
    parts = [headline, f"Measured on: {measured_on(body)}.", figure, claims_table(body["claims"]),
             older_note(body)]
    return "\n\n".join(filter(None, parts))


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
    claiming = [body for body in bodies if body["claims"]]
    stamp = digest([[message(body), body["claims"]] for body in claiming])
    figures: dict[str, tuple[str, Callable[[], Any]]] = {}
    if claiming: figures["overview.png"] = (stamp, partial(overview_figure, claiming))
    for body in claiming:
        stamp = digest([message(body), body["claims"]])
        figures[f"{result_name(body)}.png"] = (stamp, partial(claims_figure, body))
    return figures


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
    """Write counts of verdicts into a table of the Markdown file `readme`, in place. In each row
    with a link to `results/README.md#NAME`, the last cell becomes the counts for the claims of
    chapter NAME in `bodies` (results files as dicts). Raises `UserError` if there is no such
    row."""
    text = Path(readme).read_text(encoding="utf-8")
    def filled(match: re.Match) -> str:
        claims = [claim for body in bodies if body["name"] == match[2] for claim in body["claims"]]
        return f"{match[1]} {verdict_counts(claims)} |"
    text, rows = re.subn(r"^(\|.*\(results/README\.md#(\w+)\).*\|)[^|\n]*\|$", filled, text, flags=re.M)
    if not rows:
        raise UserError(f"file {str(readme)!r} has no table row with a link to results/README.md#CHAPTER")
    write_atomically(readme, text)
