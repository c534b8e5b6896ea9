"""The evenings in numbers: words, lines, minutes and what the reader writes.

`python tools/evenings.py [--write] [NAME ...]`: a table of the chapters on the path, or of those named; with
`--write` their first cells say the minutes, and so do links with minutes behind them, the README's path and
teaching/syllabus.md. A minute is 200 words or 15
lines of code, and a blank takes what its text says, as in "(10 minutes)". Needs in brackets are not said."""
import argparse
import ast
import inspect
import re
import runpy
import textwrap
from base64 import b64decode
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

from fedbook.kit.classroom import exams

ROOT = Path(__file__).resolve().parents[1] / "nbs"
PART_I = ("00_start", "01_drift", "02_skew", "03_messages")
PATH = (*PART_I, "10_fedreplay", "11_fedmox", "12_fedklpr", "13_fedcbdr", "14_fedgtea", "20_beyond")
WORDS_A_MINUTE, SECONDS_A_LINE = 200, 4
PICTURES = ("image/png", "image/svg+xml", "image/webp", "image/jpeg")
README, FILL = ROOT.parent / "README.md", ROOT.parent / "teaching" / "fill.py"
LINKED_TIME = re.compile(r"\[(\d\d_\w+)\]\((?:nbs/)?\1\.ipynb\) \(\d+ minutes\)")
ALL_HOURS = re.compile(r"In all [\d.]+ hours")
ONE_PAPER = re.compile(r"One paper from zero takes [\d.]+(?: to [\d.]+)? hours")
TIME = re.compile(r"\*\*Time\*\* [^\n]*?minutes?[^.\n]*\.")


class Blank(NamedTuple):
    "A function that the reader writes, the lines of the solution's body, and the minutes that its text gives."
    name: str
    lines: int
    minutes: int


class Evening(NamedTuple):
    """A chapter in numbers. `figure` and `method`: lines of code, without imports and the parameters, up to the first
    picture and to the cell tagged `method` (0: none). `share`: lines of the solutions' bodies over all but imports,
    neither with docstrings and comments. `needs`: the chapters of the path on which it stands. `said`: those that its
    first cell names."""
    name: str
    words: int
    lines: int
    longest: int
    figure: int
    method: int
    share: float
    blanks: list[Blank]
    needs: list[str]
    said: list[str]

    @property
    def own(self) -> int:
        "Minutes for what the reader writes."
        return sum(blank.minutes for blank in self.blanks)

    @property
    def minutes(self) -> int:
        "Minutes in all, in steps of five."
        reading = self.words / WORDS_A_MINUTE + self.lines * SECONDS_A_LINE / 60
        return 5 * round((reading + self.own) / 5)

    def time(self) -> str:
        "What the first cell says."
        count = len(self.blanks)
        what = "the function" if count == 1 else f"the {count} functions"
        written = f", {self.own} of them for {what} that you write" if count else ""
        return f"**Time** {self.minutes} minutes{written}."


def words_of(text: str) -> int:
    "Words of a markdown cell: no code, no formula, no address, no tag."
    for pattern in (r"```.*?```", r"\$\$.*?\$\$", r"\$[^$\n]*\$", r"`[^`\n]*`", r"<[^>]+>", r"\]\([^)]*\)"):
        text = re.sub(pattern, " ", text, flags=re.S)
    return len(re.findall(r"[A-Za-z][\w'’-]*", text))


def lines_of(source: str) -> list[str]:
    "The lines of a code cell that are not empty, nor orders to nbdev."
    return [line for line in source.splitlines() if line.strip() and not line.startswith(("#|", "%"))]


def import_lines(source: str) -> int:
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return sum(node.end_lineno - node.lineno + 1 for node in nodes)


def told_lines(source: str) -> int:
    "Lines of docstrings, and lines with nothing but a comment."
    documented = (ast.FunctionDef, ast.ClassDef, ast.Module)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented) and ast.get_docstring(node)]
    strings = sum(len([line for line in ast.get_docstring(node, clean=False).splitlines() if line.strip()]) for node in nodes)
    return strings + sum(line.lstrip().startswith("#") for line in source.splitlines())


def solution_lines(answer: Any) -> int:
    "Lines of code in the body of `answer`, a function, without its docstring; 1 for a lambda."
    if answer.__name__ == "<lambda>": return 1
    text = textwrap.dedent(inspect.getsource(answer))
    function = ast.parse(text).body[0]
    body = function.body[1:] if ast.get_docstring(function) else function.body
    if not body: return 0
    return sum(bool(line.split("#")[0].strip()) for line in text.splitlines()[body[0].lineno - 1:body[-1].end_lineno])


def needs_of(notebook: nbformat.NotebookNode, own: str) -> list[str]:
    """The chapters of the path on which the notebook of the chapter `own` stands: those whose modules or answers
    it imports, and the earlier ones of Part I to which it links. (The papers may be read in any order, so a link
    to one of them is no need.)"""
    stems = {name.partition("_")[2]: name for name in PATH}
    found = set()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            source = "\n".join(line for line in lines_of(cell.source) if not line.startswith("!"))
            named = (re.fullmatch(r"fedbook\.(?:answers\.)?(\w+)", module) for module in imported(source))
            found |= {stems[match[1]] for match in named if match and match[1] in stems}
        else:
            linked = re.findall(r"\]\((?:\./)?(\w+)\.ipynb", cell.source)
            found |= {name for name in linked if name in PART_I and name < own}
    return sorted(found - {own})


def imported(source: str) -> set[str]:
    "The full names of the modules that `source` imports; `from a import b` counts as `a` and as `a.b`."
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import): found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def said_needs(notebook: nbformat.NotebookNode) -> list[str]:
    "The chapters of the path that the first cell names behind **Before this**."
    text = notebook.cells[0].source.partition("**Before this**")[2].partition("\n\n")[0]
    return sorted({name for name in re.findall(r"\]\((\w+)\.ipynb", text) if name in PATH})


def measured(path: Path) -> Evening:
    "The numbers of the chapter at `path`."
    notebook = nbformat.read(path, 4)
    cells = notebook.cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    sources = ["\n".join(lines_of(cell.source)) for cell in code]
    counts = [len(lines_of(cell.source)) for cell in code]
    blanks = [Blank(exam.name, solution_lines(exam.answer), exam.points) for exam in exams(path, _unsolved)]
    without = sum(map(import_lines, sources)) + sum(map(told_lines, sources))
    share = sum(blank.lines for blank in blanks) / max(1, sum(counts) - without)
    words = sum(words_of(cell.source) for cell in cells if cell.cell_type == "markdown")
    longest = max((n for n, source in zip(counts, sources) if "\nclass " not in f"\n{source}"), default=0)
    own = [0 if "parameters" in cell.metadata.get("tags", []) else n - import_lines(source)
           for cell, n, source in zip(code, counts, sources)]
    figure, method = _up_to(code, own, _shows_picture), _up_to(code, own, _is_method)
    return Evening(path.stem, words, sum(counts), longest, figure, method, share, blanks, needs_of(notebook, path.stem), said_needs(notebook))


def _unsolved(name):
    "A stand-in for the function `name` that the reader has not written yet."
    def unsolved(*args, **options): ...
    unsolved.__name__ = name
    return unsolved


def _up_to(code, counts, wanted):
    for k, cell in enumerate(code):
        if wanted(cell): return sum(counts[:k + 1])
    return 0


def _shows_picture(cell): return any(set(out.get("data", {})) & set(PICTURES) for out in cell.outputs)


def _is_method(cell): return "method" in cell.metadata.get("tags", [])


def needs_text(evening: Evening) -> str:
    "The numbers of the chapters on which `evening` stands; those in brackets are not said in its first cell."
    number = lambda name: name.partition("_")[0]
    numbers = [number(name) if name in evening.said else f"({number(name)})"
               for name in sorted({*evening.needs, *evening.said})]
    return " ".join(numbers) or "-"


def table(evenings: list[Evening]) -> str:
    "The numbers as text."
    head = ("chapter", "words", "lines", "longest cell", "to a figure", "to the method", "blanks", "their lines",
            "share", "minutes", "needs")
    rows = [(e.name, f"{e.words:,}", e.lines, e.longest, e.figure or "-", e.method or "-", len(e.blanks),
             sum(b.lines for b in e.blanks), f"{e.share:.0%}", e.minutes, needs_text(e)) for e in evenings]
    total = sum(e.minutes for e in evenings)
    lines = [" | ".join(map(str, row)) for row in (head, *rows)]
    return "\n".join([*lines, f"in all {total / 60:.1f} hours"])


def with_minutes(notebook: nbformat.NotebookNode, folder: Path) -> list[str]:
    """The texts of the cells. Minutes in brackets behind a link to a chapter of the path, which lies in `folder`,
    are those that were counted there."""
    return [cell.source if cell.cell_type == "code" else text_with_minutes(cell.source, folder)
            for cell in notebook.cells]


def text_with_minutes(text: str, folder: Path) -> str:
    "The Markdown `text` with the minutes that were counted behind its links to the chapters in `folder`."
    def counted(match):
        path = folder / f"{match[1]}.ipynb"
        if not path.exists(): return match[0]
        return f"{match[0].rpartition('(')[0]}({measured(path).minutes} minutes)"
    return LINKED_TIME.sub(counted, text)


def from_zero(evenings: list[Evening]) -> dict[str, int]:
    "The minutes of each paper in `evenings`, with those of all chapters on which it stands."
    known = {evening.name: evening for evening in evenings}

    def below(name):
        named = {*known[name].needs, *known[name].said} & known.keys()
        return {name}.union(*map(below, named))
    return {name: sum(known[each].minutes for each in below(name)) for name in known if name.startswith("1")}


def hours(minutes: float) -> str: return f"{round(2 * minutes / 60) / 2:g}"


def readme_with_minutes(text: str, folder: Path) -> str:
    "The README's `text` with what was counted: minutes behind links, hours in all, and hours of one paper."
    evenings = [measured(path) for path in (folder / f"{name}.ipynb" for name in PATH) if path.exists()]
    ends = sorted(from_zero(evenings).values())
    whole = " to ".join(dict.fromkeys(hours(end) for end in (ends[0], ends[-1])))
    total = hours(sum(evening.minutes for evening in evenings))
    text = ALL_HOURS.sub(f"In all {total} hours", text_with_minutes(text, folder))
    return ONE_PAPER.sub(f"One paper from zero takes {whole} hours", text)


def write_time(path: Path) -> bool:
    """Let the first cell of the chapter say its minutes, and each cell those of the chapters to which it links
    with minutes in brackets. Whether a text changed."""
    notebook = nbformat.read(path, 4)
    before = [cell.source for cell in notebook.cells]
    for cell, text in zip(notebook.cells, with_minutes(notebook, path.parent)): cell.source = text
    first = notebook.cells[0]
    first.source = TIME.sub(lambda _: measured(path).time(), first.source, count=1)
    if [cell.source for cell in notebook.cells] == before: return False
    nbformat.write(notebook, path)
    return True


def write_first_picture() -> None:
    "The README's first picture is that of the first chapter: one round of federated learning."
    book = nbformat.read(ROOT / "00_start.ipynb", as_version=4)
    outputs = next(cell.outputs for cell in book.cells if cell.id == "90b6cc89")
    png = next(out["data"]["image/png"] for out in outputs if "image/png" in out.get("data", {}))
    (ROOT.parent / "site" / "static" / "one_round.png").write_bytes(b64decode(png))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=PATH)
    parser.add_argument("--write", action="store_true", help="let first cells, README and syllabus say the minutes")
    args = parser.parse_args()
    paths = [path for path in (ROOT / f"{name}.ipynb" for name in args.names) if path.exists()]
    if args.write:
        for path in paths:
            if write_time(path): print("written:", path.name)
        README.write_text(readme_with_minutes(README.read_text(encoding="utf-8"), ROOT), encoding="utf-8")
        write_first_picture()
        runpy.run_path(str(FILL), run_name="__main__")
    print(table([measured(path) for path in paths]))


if __name__ == "__main__": main()
