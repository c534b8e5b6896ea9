"""Tools for learners and teachers: a look at the machine, solved exercises, assignments and their
grader, slides.

The grader calls a student's functions in a process of their own, which sees Python, its packages and its
own folder, has no answers, no network and an empty environment, and is ended whole (`fedbook.kit.sandbox`).
Values count, not what is printed. It cannot stop a student who knows the answers by heart, and the course is
public. Where marks matter, change the exercises, or ask about the code."""
import ast
import base64
import copy
import csv
import hashlib
import importlib
import importlib.util
import io
import json
import os
import pickle
import re
import secrets
import shutil
import site
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn

import fedbook
from fedbook.engine.errors import EXTRAS, how_to_install, needs, UserError
from fedbook.engine.files import locked, write_atomically
from fedbook.kit import sandbox
from fedbook.kit.lab import overwritten, progress_file, same, solved_in, try_case
from fedbook.kit.report import collect
from fedbook.kit.runs import (chapter_name, chapters, code_cells, cores, exported_to, find, module_name,
                              notebooks_folder, SEVERAL, used_modules)


class Finding(NamedTuple):
    """A line in the report of `doctor`: `what` was looked at, what was `found`, and in `cure` what
    to do if something is wrong (else empty)."""
    what: str
    found: str
    cure: str = ""


def memory_here() -> float | None:
    """Return how many bytes of memory this process may use: the machine's, or less if its container
    has a limit; None if the system does not say."""
    try: whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError): return None
    try: allowed = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError): allowed = whole
    return float(min(whole, allowed))


def _machine() -> Iterator[Finding]:
    python, memory, free = sys.version.split()[0], memory_here(), shutil.disk_usage(".").free / 1e9
    old = "" if sys.version_info >= (3, 11) else "fedbook needs Python 3.11 or newer: make PYTHON=python3.11"
    yield Finding("Python", python, old)
    yield Finding("cores", str(cores()))
    little = "run one chapter at a time: fedbook run --at-once 1" if memory and memory < 6e9 else ""
    yield Finding("memory", f"{memory / 1e9:.0f} GB" if memory else "the system does not say", little)
    full = "" if free > 2 else "make room, or choose another disk with --out"
    yield Finding("free disk", f"{free:.0f} GB here", full)


def _torch() -> Iterator[Finding]:
    try: import torch
    except ImportError as error:
        yield Finding("PyTorch", str(error), "pip install torch torchvision")
        return
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 1e9
        yield Finding("GPU", f"{torch.cuda.get_device_name(0)}, {memory:.0f} GB")
    else: yield Finding("GPU", "none; only --profile paper and open want one")
    try: importlib.import_module("torchvision")
    except ModuleNotFoundError: pass  # named with its extra
    except Exception as error:
        yield Finding("torchvision", f"does not fit PyTorch ({str(error).splitlines()[0]:.60})",
                      "install both anew, from one place: pip install --force-reinstall torch torchvision")


def _version(name: str) -> str:
    try: return f"{name} {version(name)}"
    except PackageNotFoundError: return f"{name} not installed"


def _packages() -> Iterator[Finding]:
    names = map(_version, ("torch", "torchvision", "numpy", "flwr", "papermill", "jupyterlab"))
    yield Finding("versions", ", ".join([f"fedbook {fedbook.__version__}", *names]))
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if find_spec(name) is None]
        if not missing: continue
        yield Finding(f"extra {extra}", f"lacks {', '.join(missing)}; without: {_without(missing)}",
                      how_to_install(extra))


def _without(missing: Sequence[str]) -> str:
    "The chapters that use one of the packages `missing`, for a message."
    word = re.compile(rf"(?:^|\s)(?:from|import) (?:{'|'.join(missing)})\b")
    texts = {name: "\n".join([*code_cells(path), *used_modules(path).values()])
             for name, path in chapters().items()}
    hit = [name for name, text in texts.items() if word.search(text)]
    return ", ".join(hit) if len(hit) < 8 else f"{len(hit)} of {len(texts)} chapters, in part"


def _data() -> Iterator[Finding]:
    from fedbook.datasets.world import data_folder, inventory, shown

    try: rows = inventory()
    except UserError as error:
        yield Finding("data", str(error), "set FEDBOOK_DATA to a folder that is there, or unset it")
        return
    states = {state: sum(row["state"] == state for row in rows)
              for state in ("embedded", "found", "can be downloaded", "not found")}
    counted = ", ".join(f"{n} {state}" for state, n in states.items() if n)
    yield Finding("data and weights", f"{counted} (in {shown(data_folder())}); chapters up to full need none")


def booked_minutes() -> dict[str, float]:
    """Return how many minutes each chapter takes at its profile "full", by name: the measuring
    times in the results files in `results/`, added up, as they were on the authors' machine. Runs
    with changed settings do not count; without that folder the dict is empty."""
    folder, minutes = notebooks_folder().parent / "results", dict[str, float]()
    for body in collect(folder) if folder.is_dir() else []:
        if body["profile"] != "full" or body["changes"]: continue
        minutes[body["name"]] = sum(row["seconds"] for row in body["rows"]) / 60
    return minutes


def _times() -> Iterator[Finding]:
    booked = booked_minutes()
    yield Finding("smoke", f"{len(chapters())} chapters, some seconds each")
    yield Finding("quick", "at most about 2 minutes an evening on 2 cores: fedbook run walks the path")
    if not booked: yield Finding("full", "minutes to hours a chapter; nothing is booked here that says more")
    else:
        longest = sorted(booked.items(), key=lambda item: -item[1])[:5]
        told = ", ".join(f"{stem} {minutes:.0f}" for stem, minutes in longest)
        hours = f"{sum(booked.values()) / 60:.0f} hours for all, booked on a CPU"
        yield Finding("full", f"{hours}; in minutes: {told}, the others less")


def doctor() -> list[Finding]:
    """Examine this machine and return what was found: Python, cores, memory, disk, GPU, packages
    and data sets, and how long chapters take."""
    return [finding for ask in (_machine, _torch, _packages, _data, _times) for finding in ask()]


class Task(NamedTuple):
    """An exercise of a chapter: `text` is its Markdown, `sources` are the source texts of its code
    cells."""
    text: str
    sources: list[str]

    @property
    def names(self) -> list[str]:
        """The names of the functions that the learner has to write: those on which the code cells
        call `check`."""
        calls = [node for source in self.sources for node in ast.walk(ast.parse(source))
                 if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check"]
        return [call.args[0].id for call in calls if isinstance(call.args[0], ast.Name)]

    @property
    def points(self) -> int:
        """The points that it is worth: the minutes that its text gives, as in "(15 minutes)", else
        10."""
        found = re.search(r"\((\d+) minutes?(?: each)?\)", self.text)
        return int(found[1]) if found else 10


def _cells(path: Path) -> list[tuple[str, str]]:
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def is_blank(text: str, code: str) -> bool:
    """Return whether the Markdown `text` opens a blank: it has a line that begins with `**1.` or
    `**Blank 1.`, and `code`, the cell after it, calls `check`."""
    return bool(_TITLE.search(text) and re.search(r"^check\(", code, re.M))


_TITLE = re.compile(r"^\*\*(?:Blank )?\d+\.", re.M)


def tasks(path: Path) -> list[Task]:
    """Return the exercises of the chapter at `path` in order: the blanks in its text, and those of
    its section "Exercises" without those whose cells never call `check`."""
    found, inside, blank = list[Task](), False, False
    cells = [*_cells(path), ("markdown", "")]
    for (kind, source), (_, after) in zip(cells, cells[1:]):
        if kind == "code":
            if (inside or blank) and found: found[-1].sources.append(source)
            continue
        before, *titled = re.split(r"^## (.*)$", source, flags=re.M)
        texts = [before] if inside else []
        for title, text in zip(titled[::2], titled[1::2]):
            inside = title.strip() == "Exercises"
            if inside: texts.append(text)
        blank = not inside and is_blank(source, after)
        if blank: texts = [source]
        found += [Task(text.strip(), []) for text in texts if _TITLE.search(text)]
    return [task for task in found if task.names]


def exercises_of(path: Path) -> list[str]:
    """Return the names of the functions that the exercises of the chapter at `path` ask for, in
    order."""
    return [name for task in tasks(path) for name in task.names]


def progress_rows(folder: str | Path = "course") -> list[dict]:
    """Return a dict for each chapter on what a learner has solved in `folder`, a copy of the
    chapters: `chapter` (its name), `solved` (a text such as "2 of 5") and `open` (the names of the
    exercises left, a text). Raises `UserError` if `folder` is no such copy."""
    file = progress_file(folder)
    if not file:
        raise UserError(f"{str(folder)!r} is no copy of the chapters; fedbook copy {folder} makes one")
    solved, rows = solved_in(file), list[dict]()
    for chapter, path in chapters().items():
        names = exercises_of(path)
        open_ = [name for name in names if name not in solved.get(module_name(chapter), [])]
        rows.append(dict(chapter=chapter, solved=f"{len(names) - len(open_)} of {len(names)}",
                         open=", ".join(open_)))
    return rows


def _imports_only(source: str) -> bool:
    "Whether a cell only imports, and perhaps sets the style of figures."
    body = ast.parse(source).body
    style = lambda node: isinstance(node, ast.Expr) and ast.unparse(node) == "style()"
    return bool(body) and all(isinstance(node, (ast.Import, ast.ImportFrom)) or style(node) for node in body)


def _calls(node: ast.stmt, *names: str) -> bool:
    "Whether a statement is nothing but a call of one of `names`."
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and getattr(call.func, "id", "") in names


def _to_hand_out(source: str) -> str:
    "A cell of an exercise without calls that show its answer, and without what comes after its `check`."
    lines, kept, last = source.split("\n"), list[str](), 0
    for node in ast.parse(source).body:
        if not _calls(node, "reveal", "guess"): kept += lines[last:node.end_lineno]
        last = node.end_lineno or last
        if _calls(node, "check"): break
    return "\n".join(kept).strip("\n")


def solutions_of(path: Path) -> set[str]:
    """Return the names that a hand-out of the chapter at `path` must not import from fedbook: those of the
    exercises, and of what `check` compares them with."""
    calls = [node.value for task in tasks(path) for source in task.sources for node in ast.parse(source).body
             if _calls(node, "check") and isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    shown = [getattr(call.args[1], "attr", getattr(call.args[1], "id", "")) for call in calls]
    return {*exercises_of(path), *shown}


def _names_shown(node: ast.AST, solutions: set[str]) -> bool:
    "Whether code mentions the answers, or reads a solution as an attribute of a module."
    return any((isinstance(each, ast.Name) and each.id == "answers")
               or (isinstance(each, ast.Attribute) and each.attr in solutions) for each in ast.walk(node))


def _without_solutions(source: str, solutions: set[str]) -> str:
    "A cell of imports without those of answers and `solutions` from fedbook."
    lines = list[str]()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedbook"):
            if "answers" in (node.module or "").split("."): continue
            node.names = [name for name in node.names if name.name not in solutions | {"answers"}]
            if not node.names: continue
        lines.append(ast.unparse(node))
    return "\n".join(lines)


def _exported(module: str) -> set[str]:
    "The public names that `fedbook.module` defines, without importing it."
    file = Path(fedbook.__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.exists() else ast.Module([], [])
    named = {name.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
             for name in ast.walk(target) if isinstance(name, ast.Name)}
    return named | {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def setup_of(path: Path, answers: bool = False) -> str:
    """Return the source of one code cell that prepares for the exercises of the chapter at `path`:
    its imports, imports of those functions of the chapter that the exercises use, and its
    parameters; without imports of answers and of `solutions_of` the chapter unless `answers`."""
    cells = [source for kind, source in _cells(path) if kind == "code"]
    imports = [re.sub(r"^#\|.*\n", "", source, flags=re.M) for source in cells if _imports_only(source)]
    asked = [ast.parse(source) for task in tasks(path) for source in task.sources]
    used = {node.id for tree in asked for node in ast.walk(tree) if isinstance(node, ast.Name)}
    module, closed = exported_to(path), set() if answers else solutions_of(path)
    own = sorted(name for name in used & _exported(module) - closed if not name.startswith("_"))
    lines = [f"from fedbook.{module} import {name}" for name in own]
    parameters = [source for source in cells if source.startswith("profile = ")][:1]
    seen = imports if answers else [_without_solutions(source, closed) for source in imports]
    return "\n".join([*filter(None, seen), *lines, *parameters])


_TOLD = """# Exercises of {name}

Write your functions in place of `...`. `compare` tries each on some cases, against results that came with this
file; the grader tries them on others as well. All cases right: all points. Otherwise at most half of them, for
hidden cases that are right. A line "Yours" changes what is asked of you there, and there alone: where another
exercise says "your `f`", the text's own form is meant, and so it is in a case's name ("by hand 2.5").
Hand in this file{whose}. Points are minutes: {points} in all."""


def given(text: str) -> Any:
    "Return the value that an assignment gives as `text`: numbers, texts, tensors and containers of these."
    return _unpacked(json.loads(zlib.decompress(base64.b64decode(text))), lambda *_: None)


def _to_give(value: Any) -> str | None:
    "`value` as text for `given`, or None if it holds functions or what cannot be sent."
    functions = list[Any]()
    sent = json.dumps(_packed(value, functions))
    if functions or '{"other": ' in sent: return None
    return base64.b64encode(zlib.compress(sent.encode(), 9)).decode()


def compare(f: Callable, cases: Any, results: str, tolerance: float = 1e-6, overwrites: bool = False) -> None:
    """Try a student's function `f` on `cases`, as `fedbook.kit.lab.check` takes them, and print the first
    fault, or that it is correct: against the `results` (see `given`) that came with an assignment.
    `overwrites`: the function may change its arguments in place."""
    named = cases if isinstance(cases, dict) else {f"case {i}": case for i, case in enumerate(cases, 1)}
    for (words, case), result in zip(named.items(), given(results)):
        def judge(got: Any, *_: Any) -> str:
            return "" if same(got, result, tolerance) else f"gave {got!r:.200}, expected {result!r:.200}"
        tried, fault = try_case(f, None, _as_case(case), tolerance, judge)
        if not tried: return print("not attempted yet")
        if fault and not (overwrites and fault.startswith("changed its argument")): return print(f"not yet: {words}: {fault}")
    print(f"correct on {len(named)} cases")


def _cell_to_hand_out(source: str, solutions: set[str], names: dict[str, Any], exams: dict[str, "Exam"],
                      needed: set[str]) -> str:
    """A cell of an exercise as it is handed out: without answers. What it takes from them is `given`, and
    `check` becomes `compare`; empty if nothing of it is `needed`, names, elsewhere."""
    text, kept = _to_hand_out(source), list[str]()
    body = ast.parse(text).body
    asks = any(_calls(node, "check") or (isinstance(node, ast.FunctionDef) and node.name in exams) for node in body)
    if not asks and any(_names_shown(node, solutions) for node in body):
        body = [node for node in body if isinstance(node, ast.Assign) and _names_shown(node, solutions)]
    lines, last = text.split("\n"), 0
    for node in body:
        between, last = lines[last:node.end_lineno], node.end_lineno or last
        if _calls(node, "check") and isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            exam = exams[ast.unparse(call.args[0])]
            given_cases = [copy.deepcopy(case) for _, case in exam.cases]
            told = _to_give([exam.answer(*case) for case in given_cases])
            changed = any(overwritten(before, after) for (_, before), after in zip(exam.cases, given_cases))
            cases = ast.get_source_segment(text, call.args[2])
            if told and not _names_shown(call.args[2], solutions):
                tolerance = f", tolerance={exam.tolerance:g}" if exam.tolerance != 1e-6 else ""
                more = tolerance + ", overwrites=True" * changed
                kept += ["", f"compare({exam.name}, {cases}, {told!r}{more})"]
            else: kept += ["", f"# {exam.name} is tried by the grader alone"]
        elif not _names_shown(node, solutions):
            kept += between
        elif isinstance(node, ast.Assign):
            made = [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            values = {name: _to_give(names.get(name)) for name in made if name in needed}
            kept += [f"{name} = given({told!r})" for name, told in values.items() if told]
    return "\n".join(kept).strip("\n")


def _student(path: Path, seed: int | None = None, student: str = "") -> dict:
    "The notebook to hand out to `student`, as JSON; with `seed` None nothing is varied."
    def cell(kind: str, text: str) -> dict:
        code: dict = dict(execution_count=None, outputs=[]) if kind == "code" else {}
        return dict(cell_type=kind, id=secrets.token_hex(4), metadata={}, source=text, **code)
    def unwritten(name: str) -> Callable:
        def attempt(*case: Any) -> Any: ...
        attempt.__name__ = name
        return attempt
    names = dict[str, Any]()
    asked = {exam.name: exam for exam in exams(path, unwritten, names)}
    yours = {name: None if seed is None else variation(module_name(path.stem), name, seed, student)
             for name in asked}
    asked = {name: _as_varied(exam, yours[name]) for name, exam in asked.items()}
    whose = f", `{path.name}`, in your folder `{student}`" if student else ""
    parts, solutions = tasks(path), solutions_of(path)
    checking = [tree for task in parts for tree in map(ast.parse, task.sources)
                if any(_calls(node, "check") for node in tree.body)]
    needed = {each.id for tree in checking for each in ast.walk(tree) if isinstance(each, ast.Name)}
    told = _TOLD.format(name=chapter_name(path), points=sum(t.points for t in parts), whose=whose)
    helpers = "\nfrom fedbook.kit.classroom import compare, given"
    cells = [cell("markdown", told), cell("code", setup_of(path) + helpers)]
    for task in parts:
        text = re.sub(r"\[([^\]]+)\]\([^)]*\.ipynb\)", r"`\1`", task.text)
        changes = [f"**Yours**, for `{name}`: {' '.join((change.__doc__ or '').split())}"
                   for name in task.names if (change := yours[name])]
        cells.append(cell("markdown", "\n\n".join([text, *changes])))
        sources = [_cell_to_hand_out(source, solutions, names, asked, needed) for source in task.sources]
        cells += [cell("code", source) for source in sources if source]
    kernel = dict(name="python3", display_name="Python 3 (ipykernel)", language="python")
    return dict(cells=cells, metadata=dict(kernelspec=kernel), nbformat=4, nbformat_minor=5)


def write_assignment(name: str, folder: str | Path, seed: int | None = None, hidden: int = 6,
                     students: Sequence[str] = ()) -> list[Path]:
    """Write an assignment with the exercises of chapter `name` into the new `folder`: a notebook to
    hand out, without answers, and `grader.json`, which the teacher keeps for `grade`. Return the
    paths, that one last. Each exercise that has variations is asked for in one of them, drawn by `seed`
    (None: a random seed); with `students`, names, each has own ones, in a notebook in the folder of this name.
    Grading will add `hidden` random test cases to each exercise, drawn by `seed`. Raises `UserError` for an
    unknown chapter and one without exercises, for `hidden` below 1 and `seed` below 0, for a name of a student that is no name of a folder or comes twice,
    and if `folder` exists."""
    chapter, path = next(iter(find(name).items()))
    if name in SEVERAL: raise UserError(f"an assignment is of one chapter, not of {name}")
    if not tasks(path): raise UserError(f"chapter {chapter} has no exercises, so there is nothing to hand out")
    if hidden < 1: raise UserError(f"--hidden {hidden} must be 1 or more")
    if seed is not None and seed < 0: raise UserError(f"--seed {seed} must be 0 or more")
    for student in students:
        if not re.fullmatch(r"\w[\w.-]*", student) or list(students).count(student) > 1:
            raise UserError(f"--students: {student!r} must be letters, digits, '.', '-' and '_', and come once")
    try: Path(folder).mkdir(parents=True)
    except FileExistsError:
        raise UserError(f"{str(folder)!r} is there already, and stays as it is; choose another") from None
    except OSError as error:
        raise UserError(f"folder={str(folder)!r} cannot be made ({error.strerror}); choose another") from None
    seed = secrets.randbits(32) if seed is None else seed
    kept = dict(chapter=chapter, seed=seed, hidden=hidden, students=list(students))
    files = {f"{student}/{path.name}": _student(path, seed, student) for student in students}
    files = files or {path.name: _student(path, seed)}
    for file, body in (files | {"grader.json": kept}).items():
        Path(folder, file).parent.mkdir(exist_ok=True)
        write_atomically(Path(folder, file), json.dumps(body, indent=1) + "\n")
    return [*(Path(folder, file) for file in files), Path(folder, "grader.json")]


def _packed(value: Any, functions: list) -> Any:
    "`value` as JSON can hold it; a function goes into `functions`, and its number is sent."
    if hasattr(value, "dtype"): return _packed_numbers(value)
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float): return value
    if isinstance(value, (int, float)): return value.real
    for kind in (list, tuple, set):
        if isinstance(value, kind): return {kind.__name__: [_packed(v, functions) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[_packed(v, functions) for v in pair] for pair in value.items()]}
    if isinstance(value, bytes): return {"bytes": value.hex()}
    if value is Ellipsis: return {"ellipsis": 0}
    if not callable(value): return {"other": type(value).__name__}
    functions.append(value)
    return {"function": len(functions) - 1}


def _packed_numbers(value: Any) -> Any:
    tensor = hasattr(value, "detach")
    slope = tensor and value.requires_grad
    if tensor: value = value.detach().cpu().numpy()
    if not (tensor or value.shape): return value.item()
    if value.dtype.kind not in "biufc": return {"other": f"array of {value.dtype}"}
    data = base64.b64encode(value.tobytes()).decode()
    return {"tensor" if tensor else "array": [str(value.dtype), list(value.shape), data, *[1] * slope]}


def _unpacked(sent: Any, ask: Callable) -> Any:
    "The value that `_packed` sent; calls of a function that was sent go through `ask(number, *arguments)`."
    if not isinstance(sent, dict): return sent
    (kind, held), = sent.items()
    if kind in ("list", "tuple", "set"):
        return {"list": list, "tuple": tuple, "set": set}[kind](_unpacked(v, ask) for v in held)
    if kind == "dict": return {_unpacked(k, ask): _unpacked(v, ask) for k, v in held}
    if kind == "bytes": return bytes.fromhex(held)
    if kind == "ellipsis": return ...
    if kind == "function": return lambda *case: ask(held, *case)
    if kind == "other": return f"a {held}, which cannot be sent"
    import numpy as np

    dtype, shape, data, *slope = held
    if np.dtype(dtype).kind not in "biufc": raise ValueError(f"no numbers of type {dtype}")
    array = np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
    if kind == "array": return array
    return _tensor(array).requires_grad_(bool(slope) and array.dtype.kind in "fc")


def _tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)


def run_cells(notebook: str | Path, wanted: Callable[[int], bool] = lambda number: True,
              tell: Callable[[int, Exception], None] = lambda number, error: None) -> dict[str, Any]:
    """Execute the code cells of `notebook` in this process and return the variables they leave,
    name to value. Only cells for whose number, from 1 on, `wanted` returns True are run; it is asked before
    each. Statements that raise an error are left out after `tell(number, error)`, and so are calls of
    `check` and `compare` and lines that begin with % or !."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(code_cells(Path(notebook)), 1):
        if not wanted(number): continue
        lines = [line for line in source.split("\n") if not re.match(r"\s*[%!]", line)]
        try: body = ast.parse("\n".join(lines)).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            tell(number, error)
            continue
        for node in body:
            if _calls(node, "check", "compare"): continue
            try: exec(compile(ast.Module([node], []), "cell", "exec"), names)
            except (Exception, SystemExit) as error:
                tell(number, error if isinstance(error, Exception) else RuntimeError("SystemExit"))
    return names


def _call(f: Callable, arguments: str, functions: list) -> dict:
    "What calling `f` on pickled `arguments` gave, for the grader."
    given, before = (pickle.loads(base64.b64decode(arguments)) for _ in range(2))
    try: return dict(value=_packed(f(*given), functions), changed=overwritten(before, given))
    except (Exception, SystemExit) as error: return dict(raised=[type(error).__name__, str(error)])


def answer_calls() -> None:
    """Serve the functions of a student's notebook to the grader: the main function of the process
    that `Pupil` starts. The process's one argument is a dict in JSON: the folders `home`, which holds
    `notebook.ipynb`, and `own`; the `seconds` of the processor that it may use; whether it has namespaces of
    its own, `spaces`; and the numbers of the cells to `skip`. It confines itself, then runs the other cells.
    Then it reads calls from standard input, a line each in JSON, and writes to standard output what each
    returned or raised."""
    talk, hear = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1): os.dup2(nowhere, number)
    told, me = json.loads(sys.argv[1]), os.getpid()
    os.chdir(told["own"])
    sandbox.confine(Path(told["own"]), Path(told["home"]), told["seconds"], told["spaces"])
    def say(**what: Any) -> None:
        if os.getpid() != me: os._exit(0)       # a copy of this process says nothing
        print(json.dumps(what), file=talk, flush=True)
    def wanted(number: int) -> bool:
        say(cell=number)
        return number not in told["skip"]
    def tell(number: int, error: Exception) -> None:
        with suppress(Exception): say(fault=f"cell {number}: {type(error).__name__}: {error}"[:_LONGEST])
    names, functions = run_cells(Path(told["home"], "notebook.ipynb"), wanted, tell), list[Any]()
    say(ready=True)
    missing = lambda name: lambda *_: eval(name, {})       # says that there is no such name
    for line in hear:
        asked = json.loads(line)
        target = asked["call"]
        f = functions[target] if isinstance(target, int) else names.get(target, missing(target))
        say(number=asked["number"], **_call(f, asked["arguments"], functions))


_BEGIN = "from fedbook.kit.classroom import answer_calls; answer_calls()"
_LONGEST = 300          # characters of what a student's code says


class Pupil:
    """A process that holds a student's `notebook`, so that the grader can call its functions out of
    reach of the answers. To be used in a `with` statement:
    `with Pupil(notebook) as pupil: pupil.ask("f", x)`. A call may take `patience` seconds, all calls of one
    function a third of the time that was left before, a cell a third, and all together `whole` seconds.
    `fedbook.kit.sandbox` says what the process can reach. A cell that ends the process or takes too long is
    left out from then on; after the third such cell those before it count alone. `notes` says so.
    Raises `UserError` if cloudpickle is not installed."""

    def __init__(self, notebook: str | Path, patience: float = 30, whole: float = 50):
        needs("cloudpickle")
        self._folder, self.patience, self._stopped = TemporaryDirectory(), patience, set[Any]()
        self.whole, self._end, self._due = whole, time.monotonic() + whole, dict[str, float]()
        self._process: subprocess.Popen | None = None
        self._before, self._now = set[int](), ""
        self._skip, self._last, self._until, self._number = set[int](), 0, 0, 0
        self.notes = list[str]()
        package, self._rooms = Path(fedbook.__file__).parent, Path(self._folder.name).resolve()
        self.home, *_ = sandbox.rooms(self._rooms)
        without = shutil.ignore_patterns("answers", "nbs", "teaching", "__pycache__", "_modidx.py")
        shutil.copytree(package, self.home / "fedbook", ignore=without)
        shutil.copy(notebook, self.home / "notebook.ipynb")
        self._cells = code_cells(self.home / "notebook.ipynb")

    def __enter__(self) -> "Pupil": return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    def function(self, name: str) -> Callable:
        "Return a function that calls the student's function `name` in the process, as `ask` does."
        def attempt(*case: Any) -> Any: return self.ask(name, *case)
        attempt.__name__ = name
        return attempt

    def ask(self, target: str | int, *case: Any) -> Any:
        """Call a student's function in the process with the arguments `case` and return its value.
        `target` is its name, or the number of a function that an earlier call returned.

        Raises an exception with the name and message of the one that it raised; one named `Stopped`
        if it ends the process or takes too long, also at every later call; one named `Overwritten`
        if it changes an argument in place. A function that ends the process is tried once more after the
        cells up to its own alone, for a later cell may have done it."""
        return _ask(self, target, *case)

    def stop(self) -> None:
        "End the process and all that it started; the next call of a function starts a new one."
        if self._process:
            sandbox.end(self._process, self._before)
            sandbox.adopt(False)
            shutil.rmtree(self.home / "own", ignore_errors=True)
        self._process = None

    def left(self) -> float:
        "Return how many seconds are left for this notebook."
        return self._end - time.monotonic()


class Overwritten(Exception):
    "A student's function changed an argument in place; `value` is what it returned."

    def __init__(self, why: str, value: Any):
        super().__init__(why)
        self.value = value


def _fail(name: str, why: str) -> NoReturn: raise type(name, (Exception,), {})(why)


def _start(pupil: Pupil, skip: set[int]) -> None:
    "Start the pupil's process, which leaves out the cells `skip`."
    command = [sys.executable, "-P", "-c", _BEGIN]
    told = dict(home=str(pupil.home), own=str(pupil.home / "own"), seconds=pupil.whole, spaces=bool(sandbox.way()),
                skip=sorted(skip))
    own = str(pupil.home / "own")
    seen = dict(PATH=sandbox.PATH, LANG="C.UTF-8", HOME=own, TMPDIR=own, USER="student", LOGNAME="student",
                PYTHONPATH=str(pupil.home), PYTHONUSERBASE=site.getuserbase(), MPLBACKEND="Agg", MPLCONFIGDIR=own,
                OMP_NUM_THREADS="1")
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    sandbox.rooms(pupil._rooms)
    pupil._before = sandbox.children()
    line = sandbox.wrapped([*command, json.dumps(told)], pupil._rooms)
    sandbox.adopt(not sandbox.way())
    pupil._process = subprocess.Popen(line, cwd=pupil.home, env=seen | kept, text=True, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
                                      preexec_fn=sandbox.die_with_parent if os.name == "posix" else None)


_MOST = 1 << 26         # letters of an answer


def _said(pupil: Pupil, asked: dict | None, patience: float, number: int = 0) -> tuple[dict | None, bool]:
    """What the process answers to `asked` (None: what it says next), or None if it ends, or has not said it in
    `patience` seconds; and whether the time was over."""
    process = pupil._process
    assert process and process.stdin and process.stdout
    late = threading.Event()
    def over() -> None:
        late.set()
        sandbox.end(process, pupil._before)
    timer = threading.Timer(max(0.0, patience), over)
    timer.start()
    try:
        if asked: print(json.dumps(asked), file=process.stdin, flush=True)
        while True:
            said = json.loads(process.stdout.readline(_MOST))
            if not isinstance(said, dict): return None, False
            if not asked or said.get("number") == number: return said, False
    except (OSError, ValueError, RecursionError): return None, late.is_set()
    finally:
        timer.cancel()
        timer.join()


def _begin(pupil: Pupil, until: int = 0) -> None:
    """Start the process and let it run the cells, those up to number `until` alone unless that is 0; starts again
    without a cell that ends it or takes a third of the time that is left."""
    every = set(range(1, len(pupil._cells) + 1))
    while True:
        if pupil.left() < 1: _fail("Stopped", f"the {pupil.whole:g} seconds for the whole notebook are over")
        last = min(filter(None, (until, pupil._last)), default=len(every))
        _start(pupil, pupil._skip | {number for number in every if number > last})
        cell, faults = 0, list[str]()
        while True:
            said, late = _said(pupil, None, pupil.left() / 3)
            if said is None or said.get("ready"): break
            if "fault" in said: faults = [*faults[:19], f"{said['fault']}"]
            else: cell = said.get("cell", 0)
        if said:
            pupil._until = last
            pupil.notes += [fault for fault in faults if fault not in pupil.notes]
            return
        pupil.stop()
        if cell not in every or cell in pupil._skip: _fail("Stopped", "the notebook's process did not begin")
        pupil._skip.add(cell)
        if len(pupil._skip) == 3: pupil._last = cell
        pupil.notes.append(f"cell {cell} {'took too long' if late else 'ended its process'} and was left out"
                           + ", with all after it: it is the third such cell" * (pupil._last == cell))


def _defined_in(pupil: Pupil, name: str) -> int:
    "The number of the last cell that has a line `def name(`, 0 if none has."
    found = [number for number, source in enumerate(pupil._cells, 1)
             if re.search(rf"^def {re.escape(name)}\b", source, re.M)]
    return max(found, default=0)


def _ask(pupil: Pupil, target: str | int, *case: Any) -> Any:
    "What the pupil's function `target` gives for the arguments `case`; raises what it raised."
    import cloudpickle

    if target in pupil._stopped: _fail("Stopped", "it is not asked again")
    own = _defined_in(pupil, target) if isinstance(target, str) else 0
    if isinstance(target, int) and not pupil._process: _fail("Stopped", "its process has ended")
    if pupil._process and own > pupil._until: pupil.stop()
    if not pupil._process: _begin(pupil)
    packed = base64.b64encode(cloudpickle.dumps(case)).decode()
    while True:
        reply, late = _reply(pupil, target, packed)
        if reply is not None: break
        pupil.stop()
        if isinstance(target, str) and not late and 0 < own < pupil._until: _begin(pupil, own)
        else:
            if isinstance(target, str): pupil._stopped.add(target)
            _fail("Stopped", f"it ended its process, or took longer than {pupil.patience:g} seconds, or all its"
                             " calls a third of the notebook's time")
    if "raised" in reply: _fail(*(f"{text}"[:_LONGEST] for text in reply["raised"]))
    value = _unpacked(reply["value"], pupil.ask)
    if reply["changed"]: raise Overwritten(f"it changed its argument number {reply['changed']} in place", value)
    return value


def _reply(pupil: Pupil, target: str | int, packed: str) -> tuple[dict | None, bool]:
    if isinstance(target, str): pupil._now = target
    due = pupil._due.setdefault(pupil._now, time.monotonic() + pupil.left() / 3)
    pupil._number += 1
    asked = dict(call=target, arguments=packed, number=pupil._number)
    return _said(pupil, asked, min(pupil.patience, due - time.monotonic()), pupil._number)


class Exam(NamedTuple):
    """How one exercise is graded: the `name` of the function that the student writes, the `points`
    to be had, and what the chapter's own call of `check` compares it with. That is the right
    function `answer`, the visible `cases` (pairs of description and argument tuple), the
    `tolerance`, and `holds`, which judges results instead of `answer` unless it is None."""
    name: str
    points: int
    answer: Callable
    cases: list[tuple[str, tuple]]
    tolerance: float
    holds: Callable | None


def _as_case(arguments: Any) -> tuple: return arguments if isinstance(arguments, tuple) else (arguments,)


def exams(path: Path, attempt: Callable[[str], Callable], names: dict[str, Any] | None = None) -> list[Exam]:
    """Return an `Exam` for each exercise of the chapter at `path`: runs the exercises' cells with a
    `check` that only records its arguments. `attempt(name)` must return a function for each
    function that a student has to write; the cells call these functions. What the cells define goes
    into `names` too."""
    names = {} if names is None else names
    names["__name__"] = "__main__"
    found = list[Exam]()
    def record(f, answer, cases, tolerance=1e-6, holds=None):
        named = cases if isinstance(cases, dict) else {f"case {i}": c for i, c in enumerate(cases, 1)}
        pairs = [(words, _as_case(case)) for words, case in named.items()]
        found.append(Exam(f.__name__, task.points, answer, copy.deepcopy(pairs), tolerance, holds))
    exec(compile(setup_of(path, answers=True), path.stem, "exec"), names)
    names["check"] = record
    for task in tasks(path):
        names |= {name: attempt(name) for name in task.names}
        for source in task.sources:
            body = [node for node in ast.parse(_to_hand_out(source)).body
                    if not (isinstance(node, ast.FunctionDef) and node.name in task.names)]
            for node in body:
                try: exec(compile(ast.Module([node], []), path.stem, "exec"), names)
                except Exception:       # a student's function may raise anything
                    called = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                    if not called & set(task.names): raise
    return found


def _hidden(module: str) -> Any:
    "The module `teaching/hidden/MODULE.py`."
    file = notebooks_folder().parent / "teaching" / "hidden" / f"{module}.py"
    if not file.exists(): raise UserError(f"there are no hidden cases for {module}: {file.name} is missing")
    spec: Any = importlib.util.spec_from_file_location(f"hidden_{module}", file)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def hidden_cases(module: str, name: str, seed: int, count: int) -> list[tuple[str, tuple]]:
    """Return `count` test cases of the exercise `name`, drawn by `seed`, as pairs ("hidden",
    argument tuple). `module` is the chapter's short name; the function `name` in
    `teaching/hidden/MODULE.py` draws them. Raises `UserError` if that file is missing."""
    import numpy as np

    draw = getattr(_hidden(module), name)
    return [("hidden", _as_case(draw(np.random.default_rng([seed, i])))) for i in range(count)]


def variations(module: str, name: str) -> list[Callable]:
    """Return the variations of the exercise `name` of the chapter with the short name `module`, functions: the
    functions `NAME__HOW` in `teaching/hidden/MODULE.py`, by HOW. Each is the right answer to what its
    docstring asks for in place of the text's. Raises `UserError` if that file is missing."""
    return [f for named, f in sorted(vars(_hidden(module)).items()) if named.startswith(f"{name}__")]


def variation(module: str, name: str, seed: int, student: str) -> Callable | None:
    """Return the one of `variations` that `student` is asked for in the assignment with this `seed`, None if
    the exercise has none. Raises `UserError` as `variations` does."""
    drawn = hashlib.sha256(json.dumps([seed, student, name]).encode()).digest()
    known = variations(module, name)
    return known[int.from_bytes(drawn[:8], "big") % len(known)] if known else None


def exported_solutions(exam: Exam) -> list[str]:
    """Return the public functions of fedbook, outside of the answers, that solve an exercise: those with its
    name, and what `check` compares it with, as far as they are right on its visible cases."""
    package, found = Path(fedbook.__file__).parent, dict[str, Callable]()
    own = exam.answer
    if own.__module__.startswith("fedbook.") and not own.__module__.startswith("fedbook.answers"):
        found[f"{own.__module__}.{own.__name__}"] = own
    for file in package.rglob("*.py"):
        place = ".".join(file.relative_to(package.parent).with_suffix("").parts)
        if "answers" in file.parts or not re.search(rf"^def {exam.name}\b", file.read_text(encoding="utf-8"), re.M):
            continue
        with suppress(ImportError): found[f"{place}.{exam.name}"] = getattr(importlib.import_module(place), exam.name)
    solves = lambda f: not any(try_case(f, exam.answer, case, exam.tolerance, exam.holds)[1] for _, case in exam.cases)
    return [name for name, f in found.items() if solves(f)]


def _as_varied(exam: Exam, change: Callable | None) -> Exam:
    return exam._replace(answer=change, holds=None) if change else exam


def credit(visible: Sequence[bool], hidden: Sequence[bool], wanted: Sequence = ()) -> float:
    """Return the share, from 0 to 1, of an exercise's points that a student gets. `visible` and
    `hidden` say for each test case whether the result was right; `wanted` are the right results of
    the hidden cases (empty: not known). It is 1 if all are right, else half of max(0, (h - c) / (1
    - c)), where h is the share of hidden cases that are right, and c the share that a function with
    a constant result could get right (0 if c is 1)."""
    if all([*visible, *hidden]): return 1.0
    alike = max((sum(same(a, b) for a in wanted) for b in wanted), default=0) / max(1, len(wanted))
    if alike == 1: return 0.0
    return max(0.0, (sum(hidden) / len(hidden) - alike) / (1 - alike)) / 2


def _allowed_to_overwrite(attempt: Callable, answer: Callable) -> Callable:
    "`attempt`, which may change its arguments in place in cases where the right function `answer` does."
    def tried(*case: Any) -> Any:
        given = copy.deepcopy(case)
        try: return attempt(*case)
        except Overwritten as error:
            before = copy.deepcopy(given)
            answer(*given)
            if overwritten(before, given): return error.value
            raise
    return tried


def _mark(exam: Exam, attempt: Callable, extra: list[tuple[str, tuple]]) -> dict:
    "The row of one exercise: its points, and what is wrong."
    cases = [*exam.cases, *extra]
    tried = [try_case(attempt, exam.answer, case, exam.tolerance, exam.holds) for _, case in cases]
    right, n = [not wrong for _, wrong in tried], len(exam.cases)
    wanted = [exam.answer(*copy.deepcopy(case)) for _, case in extra] if not exam.holds else []
    share = credit(right[:n], right[n:], wanted) if any(gave for gave, _ in tried) else 0.0
    faults = (f"{words}: {wrong}" for (words, _), (_, wrong) in zip(cases, tried) if wrong)
    first = next(faults, f"correct on {len(tried)} cases")
    said = _printable(first if any(gave for gave, _ in tried) else "not attempted yet")
    return dict(exercise=exam.name, points=round(share * exam.points, 1), of=exam.points, said=said)


def marks_of(path: Path, attempt: Callable[[str], Callable], seed: int, hidden: int = 6,
             student: str | None = None) -> list[dict]:
    """Grade functions on the exercises of the chapter at `path`; return a dict for each exercise:
    `exercise` (its name), `points` (reached), `of` (to be had) and `said` (the first fault, or that
    all is right). `attempt(name)` returns the function to be graded. It is tried on the chapter's
    cases and on `hidden` ones drawn by `seed` (at most 2 where `check` has a `holds`). Unless `student` is
    None, exercises are asked for as `variation` says, and one without is worth nothing if one of
    `exported_solutions` solves it. Raises `UserError` if the chapter has no hidden cases."""
    rows, module = [], module_name(path.stem)
    for exam in exams(path, attempt):
        count = min(hidden, 2) if exam.holds else hidden
        if student is not None:
            change = variation(module, exam.name, seed, student)
            if not change and exported_solutions(exam): exam = exam._replace(points=0)
            exam = _as_varied(exam, change)
        extra = hidden_cases(module, exam.name, seed, count)
        rows.append(_mark(exam, _allowed_to_overwrite(attempt(exam.name), exam.answer), extra))
    return rows


_LARGEST = 20_000_000      # bytes of a notebook that is handed in


def kept_in(folder: str | Path) -> dict:
    "Return what `grader.json` in `folder` holds. Raises `UserError` if `folder` holds no assignment."
    try: return json.loads(Path(folder, "grader.json").read_text())
    except (OSError, ValueError):
        raise UserError(f"{str(folder)!r} holds no assignment (no grader.json)") from None


def _refuse_notebook(notebook: Path) -> None:
    "Raise `UserError` unless `notebook` is a file of its own that can be read as a notebook."
    if notebook.is_symlink(): raise UserError(f"{str(notebook)!r} is a link; hand in the file itself")
    try:
        if not notebook.is_file() or notebook.stat().st_size > _LARGEST: raise ValueError
        code_cells(notebook)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{str(notebook)!r} is not a notebook that can be read (of at most"
                        f" {_LARGEST // 1_000_000} MB)") from None


def grade(folder: str | Path, notebook: str | Path, patience: float = 30, whole: float = 50) -> list[dict]:
    """Grade a student's `notebook` for the assignment in `folder` (see `write_assignment`): return
    the marks as `marks_of` does, and write them into `grades.csv` there, over an earlier line for this
    file: its name, and the student's folder as seen from the assignment's. Write the reasons into a file
    for the student below `feedback/` (see `feedback_file`). A call of the student's code may take `patience`
    seconds, all of it `whole`. Raises `UserError` if `folder` holds no assignment, and if the notebook cannot
    be read or is a link."""
    kept, notebook = kept_in(folder), Path(notebook)
    _refuse_notebook(notebook)
    _who(kept, notebook)
    chapter, path = next(iter(find(kept["chapter"]).items()))
    _by_value(module_name(chapter))
    with Pupil(notebook, patience, whole) as pupil:
        rows = marks_of(path, pupil.function, kept["seed"], kept["hidden"], _who(kept, notebook))
        notes = pupil.notes
    student = Path(os.path.relpath(notebook.resolve().parent, Path(folder).resolve())).as_posix()
    with locked(folder): _book(Path(folder, "grades.csv"), student, notebook.name, rows)
    file = feedback_file(folder, notebook)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, _feedback(chapter, notebook.name, rows, notes))
    return rows


def _who(kept: dict, notebook: Path) -> str | None:
    """The student whose variations a notebook is graded by: the one of the assignment `kept` whom its folder, or
    else its own name, names; "" where it names no students, None where nothing is varied (of an earlier release)."""
    if not kept.get("students"): return "" if "students" in kept else None
    named = [name for name in (notebook.resolve().parent.name, notebook.stem) if name in kept["students"]]
    if named: return named[0]
    raise UserError(f"{str(notebook)!r} is of no student of this assignment: neither its folder nor its own name is"
                    f" one of {', '.join(kept['students'])}")


def feedback_file(folder: str | Path, notebook: str | Path) -> Path:
    """Return the path of the file with the reasons for the marks of `notebook`, below `feedback/` in the
    assignment's `folder`: in folders named as the student's own is seen from there, `up` for "..", and
    named after the notebook."""
    seen = Path(os.path.relpath(Path(notebook).resolve().parent, Path(folder).resolve()))
    parts = ["up" if part == ".." else part for part in seen.parts]
    return Path(folder, "feedback", *parts, f"{Path(notebook).stem}.md")


def _printable(text: str) -> str:
    "What a student's code said, as one short line."
    return "".join(letter if letter.isprintable() else " " for letter in text[:2 * _LONGEST])


def _plain(text: str) -> str: return f"`{_printable(text).replace('`', ' ')}`"


def _feedback(chapter: str, notebook: str, rows: list[dict], notes: list[str]) -> str:
    got, of = (sum(row[key] for row in rows) for key in ("points", "of"))
    lines = [f"- {row['exercise']}: {row['points']:g} of {row['of']}. {_plain(row['said'])}" for row in rows]
    cells = ["", "Cells that did not run to their end:", *(f"- {_plain(note)}" for note in notes)] if notes else []
    return "\n".join([f"# {_plain(notebook)[1:-1]}: {chapter}", "", f"{got:g} of {of:g} points.", "", *lines, *cells,
                      "", sandbox.held(), ""])


def _by_value(module: str) -> None:
    "Arguments made by the answers' helpers travel with their code: the pupil has no such module."
    needs("cloudpickle")
    import cloudpickle

    cloudpickle.register_pickle_by_value(importlib.import_module(f"fedbook.answers.{module}"))


def _book(file: Path, student: str, notebook: str, rows: list[dict]) -> None:
    line = {"student": student, "notebook": notebook, **{row["exercise"]: row["points"] for row in rows},
            "sum": round(sum(row["points"] for row in rows), 1), "of": sum(row["of"] for row in rows)}
    booked = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))) if file.exists() else []
    other = lambda each: (each.get("student", student), each["notebook"]) != (student, notebook)
    lines = [*filter(other, booked), line]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(line), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_atomically(file, text.getvalue())


_SHORT = 14     # lines of a function that a slide can hold
_LINES = 20     # lines of any other text
_EXERCISE = re.compile(r"(\d+\. |- )?\*\*[^*]+\*\* \(\d+ minutes?")


def _shown_on_slide(text: str, first: bool) -> tuple[list[str], str]:
    """A markdown text, parted into the pieces that a slide shows and what its speaker says; `first`: it begins
    with a heading."""
    pieces = [piece.strip("\n") for piece in re.findall(r"(?s)```.*?```|(?:(?!\n\n|```).)+", text)]
    shows, says = list[str](), list[str]()
    for piece in filter(str.strip, pieces):
        if _EXERCISE.match(piece.lstrip()): break
        showy = re.match(r"\$\$|- |\||```|#|>|\d+\. ", piece.lstrip()) is not None
        (shows if (showy or first) and piece.count("\n") < _LINES else says).append(piece)
        first = first and piece.startswith("#")
    return shows, "\n\n".join(says)


def _screens(pieces: list[str]) -> list[str]:
    "Pieces of a text as screens: code of many lines has one of its own."
    screens = [list[str]()]
    for piece in pieces:
        if piece.startswith("```") and piece.count("\n") > _LINES // 3: screens += [[piece], []]
        else: screens[-1].append(piece)
    return ["\n\n".join(screen) for screen in screens if screen]


_ROWS = 12      # rows of a table that it can hold


def _pictures(source: str, outputs: list) -> list:
    "The outputs of a cell that are worth a slide: pictures, short tables, quizzes; never a table of sizes."
    kinds = ("image/png", "text/html", "text/markdown")
    if "sizes_table(" in source or source.startswith("reveal("): return []
    worth = lambda data: any(kind in data for kind in kinds) and _fits(data)
    return [output for output in outputs if worth(output.get("data", {}))]


def _fits(data: dict) -> bool:
    text = "".join(data.get("text/markdown", "")) + "".join(data.get("text/html", ""))
    return max(text.count("\n|"), text.count("<tr")) <= _ROWS + 2


# What the converter to MathML does not know, in words that it knows.
_SPELT = {r"\\tag\{(.*?)\}": r"\\qquad (\1)", r"\\arg\s*\\(max|min)": r"\\operatorname{arg\1}",
          r"\\[bB]igg?[lrm]?\s*(\\[|lr])": r"\1"}


def with_mathml(text: str) -> str:
    """Return the Markdown `text` with its formulas, $...$ and $$...$$, as MathML, which a browser
    shows without the network. Code stays as it is."""
    needs("latex2mathml")
    from latex2mathml.converter import convert

    def formula(found: re.Match) -> str:
        if found["code"]: return found[0]
        latex = found["block"] or found["line"]
        for other, known in _SPELT.items(): latex = re.sub(other, known, latex)
        return convert(latex.strip(), display="block" if found["block"] else "inline")

    code, block, line = r"(?P<code>```.*?```|`[^`\n]+`)", r"\$\$(?P<block>.+?)\$\$", r"(?<!\\)\$(?P<line>[^$\n]+?)\$"
    return re.sub(f"{code}|{block}|{line}", formula, text, flags=re.S)


def slide_cells(path: Path) -> list:
    """Return the cells of the chapter at `path` that a lecture shows, as nbformat cells with a
    `slide_type` in their metadata: headings, formulas, lists, short functions and figures; prose
    becomes speaker notes, exercises are left out. A cell tagged "slide" is always shown, one tagged
    "skip" never."""
    needs("nbformat")
    from nbformat import read
    from nbformat.v4 import new_code_cell, new_markdown_cell

    cells, section = list[Any](), ""
    def put(cell: Any, kind: str, *tags: str) -> None:
        cell.metadata = dict(slideshow=dict(slide_type=kind), tags=list(tags))
        cells.append(cell)
    for cell in read(path, 4).cells:
        tags = cell.metadata.get("tags", [])
        if "skip" in tags: continue
        if "slide" in tags: put(cell, "slide")
        elif cell.cell_type == "markdown":
            for part in filter(str.strip, re.split(r"(?m)^(?=##? )", cell.source)):
                title = re.match(r"##? (.*)", part)
                section = title[1].strip() if title else section
                if section == "Exercises": continue
                if part.startswith("# "): part = "\n\n".join(re.findall(r"(?m)^(?:# |> ).*", part))
                shows, says = _shown_on_slide(part, first=bool(title))
                for n, screen in enumerate(_screens(shows)):
                    put(new_markdown_cell(screen), "slide" if title and not n else "subslide")
                if says: put(new_markdown_cell(says), "notes")
        elif section != "Exercises": _put_code(cell, put, new_code_cell)
    return cells


def _put_code(cell: Any, put: Callable, new_code_cell: Callable) -> None:
    source, pictures = re.sub(r"^#\|.*\n", "", cell.source, flags=re.M), _pictures(cell.source, cell.outputs)
    short = source.count("\n") < _SHORT and re.match(r"(def|class|@)", source)
    if cell.source.startswith("#| export") and short: put(new_code_cell(source), "subslide")
    for picture in pictures: put(new_code_cell(source, outputs=[picture]), "subslide", "outputs-only")


_SLIDE_STYLE = """
.reveal h1 { font-size: 40px; }
.reveal h2 { font-size: 34px; }
.reveal img { max-width: 100%; max-height: 75vh; }
.reveal pre, .reveal pre code { font-size: 14px; line-height: 1.3; white-space: pre-wrap; }
.reveal table { font-size: 18px; }
.reveal p, .reveal li { font-size: 26px; line-height: 1.35; }
"""


def write_slides(name: str, target: str | Path = "", reveal: str = "") -> Path:
    """Write chapter `name` as slides into the HTML file `target` (empty: slides-NAME.html) and
    return its path. `reveal` is the address from which the page loads reveal.js (empty: nbconvert's
    default). Raises `UserError` for an unknown chapter, and for one without outputs, which has no
    figures."""
    chapter, path = next(iter(find(name).items()))
    if name in SEVERAL: raise UserError(f"slides are made of one chapter, not of {name}")
    needs("nbconvert")
    from nbconvert import SlidesExporter
    from nbformat.v4 import new_notebook
    from traitlets.config import Config

    cells = slide_cells(path)
    if not any(cell.get("outputs") for cell in cells):
        raise UserError(f"chapter {chapter} has no outputs here, so no figures; run it, or take a checkout's")
    exporter = SlidesExporter(reveal_scroll=True, exclude_input_prompt=True, exclude_output_prompt=True,
                              config=Config(TagRemovePreprocessor=dict(remove_input_tags={"outputs-only"})))
    if reveal: exporter.reveal_url_prefix = reveal
    for cell in cells:
        if cell.cell_type == "markdown": cell.source = with_mathml(cell.source)
    body, _ = exporter.from_notebook_node(new_notebook(cells=cells, metadata=dict(title=chapter)))
    file = Path(target or f"slides-{chapter.replace('/', '.')}.html")
    for mathjax in (r"<!-- Load mathjax -->.*?<!-- End of mathjax configuration -->", r"if\s*\(MathJax\.Hub.*?\}"):
        body = re.sub(mathjax, "", body, flags=re.S)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, body.replace("</head>", f"<style>{_SLIDE_STYLE}</style>\n</head>", 1))
    return file
