"""Exercises, and blanks in the text, cannot be fooled. `tests/attempts/MODULE.py` holds, for every exercise
NAME of a chapter, at least two wrong attempts (`NAME__wrong_<why>`), which `check` must catch, and one right
attempt, written another way than the answer (`NAME__right_<how>`).

Each is tried in the chapter's own exercise cell, after the chapter's import cells and nothing else: so
exercises also run without the chapter's training before them."""
import ast
import contextlib
import importlib
import importlib.util
import io
import re
import types
from functools import cache
from pathlib import Path

import matplotlib
import matplotlib.pyplot
import pytest

from books import book
from fedbook.kit.classroom import exercises_of, is_blank
from fedbook.kit.runs import chapters, code_cells, exported_to, module_name

matplotlib.use("Agg")
ATTEMPTS = Path(__file__).parent / "attempts"
# Chapters whose attempts are still to be written. An entry here that has become unnecessary fails.
PENDING = set()


def has_exercises(path): return headed(path) or bool(exercises_of(path))


def headed(path): return any(re.search("^## Exercises", cell.source, re.M) for cell in book(path).cells)


CHAPTERS = {module_name(name): path for name, path in chapters().items() if has_exercises(path)}


def is_import_cell(source):
    "Whether a cell only imports and sets the style of figures."
    body = ast.parse(source).body
    styles = lambda node: isinstance(node, ast.Expr) and ast.unparse(node) == "style()"
    return bool(body) and all(isinstance(node, (ast.Import, ast.ImportFrom)) or styles(node) for node in body)


@cache
def exercise_cells(module):
    "The sources of the code cells of the section `## Exercises`, and of the blanks before it."
    inside, blank, sources, cells = False, False, [], book(CHAPTERS[module]).cells
    for cell, after in zip(cells, [*cells[1:], cells[0]]):
        if cell.cell_type == "markdown":
            for heading in re.findall(r"^## (.*)", cell.source, re.M): inside = heading.strip() == "Exercises"
            blank = is_blank(cell.source, after.source)
        elif inside or blank: sources.append(cell.source)
    return sources


def checked(source):
    "The names that are passed first to `check` in a cell."
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.args[0].id for call in calls if isinstance(call.func, ast.Name) and call.func.id == "check"]


def stubs(source):
    "Name to line numbers (first, last) of the functions in a cell that the reader is to write."
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    hollow = lambda f: [ast.unparse(node) for node in f.body
                        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                                and isinstance(node.value.value, str))] == ["..."]
    return {f.name: (f.lineno, f.end_lineno) for f in functions if hollow(f)}


@cache
def names_before(module):
    """What the reader has who ran the import cells (and the parameters) only, and the exported names of the
    chapter's module."""
    names = {"__name__": "__main__"}
    if exported_to(CHAPTERS[module]):
        exported = importlib.import_module(f"fedbook.{exported_to(CHAPTERS[module])}")
        names |= {k: v for k, v in vars(exported).items()
                  if not k.startswith("__")}
    with matplotlib.rc_context():
        for cell in book(CHAPTERS[module]).cells:
            if cell.cell_type == "code" and (is_import_cell(cell.source)
                                             or "parameters" in cell.metadata.get("tags", [])):
                exec(compile(cell.source, CHAPTERS[module].name, "exec"), names)
    return names


@cache
def exercises(module):
    "Exercise name to (names before its cells, sources from the empty function to the `check`)."
    names, sources, found, written = dict(names_before(module)), exercise_cells(module), {}, {}
    for i, source in enumerate(sources):
        before = dict(names)
        for name in stubs(source): written[name] = (i, before)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, f"{module}: exercise cell {i}", "exec"), names)
        for name in checked(source):
            first, early = written.get(name, (i, before))
            found.setdefault(name, (early, sources[first:i + 1]))
    matplotlib.pyplot.close("all")
    return found


def attempts(module):
    "Name to function of the attempts that are written for a chapter."
    file = ATTEMPTS / f"{module}.py"
    if not file.exists(): return {}
    spec = importlib.util.spec_from_file_location(f"attempts_{module}", file)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return {name: f for name, f in vars(loaded).items() if callable(f)
            and re.search("__(wrong|right)_", name)}


def without(source, name):
    "`source` with the empty function `name` taken out, and a call that puts the attempt there."
    if name not in stubs(source): return source
    first, last = stubs(source)[name]
    lines = source.split("\n")
    return "\n".join([*lines[:first - 1], f"{name} = __place__()", *lines[last:]])


def said_to(module, name, attempt):
    "What the exercise `name` prints when the reader has written `attempt`."
    before, sources = exercises(module)[name]
    names = dict(before)
    def place():
        f = types.FunctionType(attempt.__code__, {**names, **attempt.__globals__}, name, attempt.__defaults__,
                               attempt.__closure__)
        f.__kwdefaults__ = attempt.__kwdefaults__
        return f
    names["__place__"] = place
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for source in sources: exec(compile(without(source, name), module, "exec"), names)
    matplotlib.pyplot.close("all")
    return out.getvalue()


WRITTEN = {module: attempts(module) for module in CHAPTERS}
TRIED = [(module, name) for module, found in WRITTEN.items() for name in found]


@pytest.mark.parametrize("module, named", TRIED, ids=lambda v: v)
def test_attempt(module, named):
    name, kind = re.fullmatch(r"(.+?)__(wrong|right)_.*", named).groups()
    assert name in exercises(module), f"{CHAPTERS[module].name} has no exercise {name}"
    said = said_to(module, name, WRITTEN[module][named])
    if kind == "right": assert "correct on" in said and "not yet:" not in said, said
    else: assert "not yet:" in said, said or "nothing was said"


@pytest.mark.parametrize("module", [pytest.param(m, marks=[pytest.mark.xfail(strict=True)] if m in PENDING
                                                 else []) for m in CHAPTERS])
def test_every_exercise_has_near_misses(module):
    names = {name for source in exercise_cells(module) for name in checked(source)}
    assert len(names) >= (2 if CHAPTERS[module].parent.name in ("datasets", "evidence") else 3)
    count = lambda name, kind: sum(tried.startswith(f"{name}__{kind}_") for tried in WRITTEN[module])
    short = {name: (count(name, "wrong"), count(name, "right")) for name in names if count(name, "wrong") < 2
             or count(name, "right") < 1}
    what = f"fewer than two wrong attempts or no right one in tests/attempts/{module}.py"
    assert not short, f"{CHAPTERS[module].name}: {what}: {short}"


@pytest.mark.parametrize("module", [m for m in CHAPTERS if m not in PENDING])
def test_exercises_run_alone_and_come_unsolved(module):
    assert exercises(module)
    for name, (before, sources) in exercises(module).items():
        names = dict(before)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for source in sources: exec(compile(source, module, "exec"), names)
        assert "not attempted yet" in out.getvalue(), name


@pytest.mark.parametrize("module", [m for m in CHAPTERS if m not in PENDING])
def test_one_exercise_is_guess_then_run(module):
    path = CHAPTERS[module]
    sources = exercise_cells(module) if headed(path) else code_cells(path)
    assert any(re.search(r"^guess\(", source, re.M) for source in sources), "no guess(...) in the exercises"
