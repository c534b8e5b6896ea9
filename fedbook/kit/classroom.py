"""Tools for learners and teachers: a look at the machine, solved exercises, assignments and their
grader, slides.

The grader calls a student's functions in a process of their own, which has no answers. On Linux 5.13 or
newer the kernel closes the course's folders to it (Landlock); elsewhere Python's audit hooks do, and let
it start no process. Values count, not what is printed. It cannot stop a student who knows the
answers by heart, and the course is public. Where marks matter, change the exercises, or ask about the code."""
import ast
import base64
import copy
import csv
import ctypes
import importlib
import importlib.util
import io
import json
import os
import pickle
import re
import secrets
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn

import fedbook
from fedbook.engine.errors import EXTRAS, needs, UserError
from fedbook.engine.files import locked, write_atomically
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
    else: yield Finding("GPU", "none; only --profile paper wants one")
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
                      f"pip install 'fedbook[{extra}]'")


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
    parameters; with `answers`, also the cells that import the answers."""
    cells = [source for kind, source in _cells(path) if kind == "code"]
    imports = [re.sub(r"^#\|.*\n", "", source, flags=re.M) for source in cells if _imports_only(source)]
    asked = [ast.parse(source) for task in tasks(path) for source in task.sources]
    used = {node.id for tree in asked for node in ast.walk(tree) if isinstance(node, ast.Name)}
    module = exported_to(path)
    own = sorted(name for name in used & _exported(module) if not name.startswith("_"))
    lines = [f"from fedbook.{module} import {name}" for name in own]
    parameters = [source for source in cells if source.startswith("profile = ")][:1]
    seen = [source for source in imports if answers or "fedbook.answers" not in source]
    return "\n".join([*seen, *lines, *parameters])


_TOLD = """# Exercises of {name}

Write your functions in place of `...`. `check` tries each on some cases; the grader tries them on others
as well, in a process that has no answers. All cases right: all points. Otherwise at most half of them, for
hidden cases that are right. Hand in this file. Points are minutes: {points} in all."""


def _student(path: Path) -> dict:
    "The notebook to hand out, as JSON."
    def cell(kind: str, text: str) -> dict:
        code: dict = dict(execution_count=None, outputs=[]) if kind == "code" else {}
        return dict(cell_type=kind, id=secrets.token_hex(4), metadata={}, source=text, **code)
    parts, told = tasks(path), _TOLD.format(name=chapter_name(path), points=sum(t.points for t in tasks(path)))
    cells = [cell("markdown", told), cell("code", setup_of(path))]
    for task in parts:
        text = re.sub(r"\[([^\]]+)\]\([^)]*\.ipynb\)", r"`\1`", task.text)
        sources = [_to_hand_out(source) for source in task.sources]
        cells += [cell("markdown", text), *(cell("code", source) for source in sources if source)]
    kernel = dict(name="python3", display_name="Python 3 (ipykernel)", language="python")
    return dict(cells=cells, metadata=dict(kernelspec=kernel), nbformat=4, nbformat_minor=5)


def write_assignment(name: str, folder: str | Path, seed: int | None = None, hidden: int = 6) -> list[Path]:
    """Write an assignment with the exercises of chapter `name` into the new `folder`: a notebook to
    hand out, without answers, and `grader.json`, which the teacher keeps for `grade`. Return both
    paths. Grading will add `hidden` random test cases to each exercise, drawn by `seed` (None: a
    random seed). Raises `UserError` for an unknown chapter, for `hidden` below 1, and if `folder`
    exists."""
    chapter, path = next(iter(find(name).items()))
    if name in SEVERAL: raise UserError(f"an assignment is of one chapter, not of {name}")
    if hidden < 1: raise UserError(f"--hidden {hidden} must be 1 or more")
    try: Path(folder).mkdir(parents=True)
    except FileExistsError:
        raise UserError(f"{str(folder)!r} is there already, and stays as it is; choose another") from None
    kept = dict(chapter=chapter, seed=secrets.randbits(32) if seed is None else seed, hidden=hidden)
    files = {path.name: _student(path), "grader.json": kept}
    for file, body in files.items(): write_atomically(Path(folder, file), json.dumps(body, indent=1) + "\n")
    return [Path(folder, file) for file in files]


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
    if tensor: value = value.detach().cpu().numpy()
    if not (tensor or value.shape): return value.item()
    if value.dtype.kind not in "biufc": return {"other": f"array of {value.dtype}"}
    data = base64.b64encode(value.tobytes()).decode()
    return {"tensor" if tensor else "array": [str(value.dtype), list(value.shape), data]}


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

    dtype, shape, data = held
    if np.dtype(dtype).kind not in "biufc": raise ValueError(f"no numbers of type {dtype}")
    array = np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
    return _tensor(array) if kind == "tensor" else array


def _tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)


_HANDLED, _READ, _WRITE = 0x1FF6, 0x4, 0x2     # of Landlock: all but executing and listing; reading; writing


def _allow_beside(folder: Path, closed: Sequence[Path], allow: Callable) -> None:
    "Call `allow(path, rights)` to read all that lies in `folder`, but not below one of the folders `closed`."
    with suppress(OSError):
        for path in (Path(entry.path) for entry in os.scandir(folder) if not entry.is_symlink()):
            if path in closed: continue
            if any(path in each.parents for each in closed): _allow_beside(path, closed, allow)
            else: allow(path, _READ)


def close_folders(closed: Sequence[Path], own: Path) -> bool:
    """Forbid this process and its children, from now on, to read files below the folders `closed`
    and to write outside the folder `own`, by Linux's Landlock. It cannot be undone. Return whether
    it worked; it does not on systems other than Linux 5.13 or newer."""
    if sys.platform != "linux": return False
    libc = ctypes.CDLL(None, use_errno=True)
    rules = libc.syscall(444, struct.pack("Q", _HANDLED), 8, 0)
    if rules < 0: return False
    def allow(path, rights):
        with suppress(OSError):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            libc.syscall(445, rules, 1, struct.pack("=Qi", rights, place), 0)
            os.close(place)
    _allow_beside(Path("/"), closed, allow)
    allow(own, _HANDLED)
    allow("/dev", _READ | _WRITE)
    libc.prctl(38, 1, 0, 0, 0)
    return libc.syscall(446, rules, 0) == 0


_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn")


def keep_watch(closed: Sequence[Path], starts: bool) -> None:
    """Make this Python process refuse, from now on, to open files below the folders `closed` or in
    any folder named `answers`, and, unless `starts`, to start processes. What it refuses raises
    `PermissionError`. It cannot be undone (an audit hook)."""
    folders = tuple(f"{each}{os.sep}" for each in closed)
    real, text, divider = os.path.realpath, os.fsdecode, os.sep
    forbidden = () if starts else _STARTS
    def hook(event, args):
        if event in forbidden: raise PermissionError("no process is started while grading")
        if event != "open" or not isinstance(args[0], (str, bytes)): return
        path = real(text(args[0]))
        if path.startswith(folders) or "answers" in path.split(divider):
            raise PermissionError("the answers are closed while grading")
    sys.addaudithook(hook)


def run_cells(notebook: str | Path) -> dict[str, Any]:
    """Execute the code cells of `notebook` in this process and return the variables they leave,
    name to value. Statements that raise an error, calls of `check` and lines that begin with % or !
    are skipped."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for source in code_cells(Path(notebook)):
        with suppress(SyntaxError):
            lines = [line for line in source.split("\n") if not re.match(r"\s*[%!]", line)]
            for node in ast.parse("\n".join(lines)).body:
                if _calls(node, "check"): continue
                with suppress(Exception, SystemExit):
                    exec(compile(ast.Module([node], []), "cell", "exec"), names)
    return names


def _call(f: Callable, arguments: str, functions: list) -> dict:
    "What calling `f` on pickled `arguments` gave, for the grader."
    given, before = (pickle.loads(base64.b64decode(arguments)) for _ in range(2))
    try: return dict(value=_packed(f(*given), functions), changed=overwritten(before, given))
    except (Exception, SystemExit) as error: return dict(raised=[type(error).__name__, str(error)])


def answer_calls() -> None:
    """Serve the functions of a student's notebook to the grader: the main function of the process
    that `Pupil` starts. It executes `notebook.ipynb` in the working folder. Then it reads calls
    from standard input, a line each in JSON, and writes to standard output what each returned or
    raised. The process's arguments are the folders that it must not read."""
    talk, hear = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1): os.dup2(nowhere, number)
    closed = [Path(folder) for folder in sys.argv[1:]]
    keep_watch(closed, starts=close_folders(closed, Path.cwd()))
    names, functions = run_cells("notebook.ipynb"), list[Any]()
    missing = lambda name: lambda *_: eval(name, {})       # says that there is no such name
    for line in hear:
        asked = json.loads(line)
        target = asked["call"]
        f = functions[target] if isinstance(target, int) else names.get(target, missing(target))
        print(json.dumps(_call(f, asked["arguments"], functions)), file=talk, flush=True)


_BEGIN = "from fedbook.kit.classroom import answer_calls; answer_calls()"


class Pupil:
    """A process that holds a student's `notebook`, so that the grader can call its functions out of
    reach of the answers. To be used in a `with` statement:
    `with Pupil(notebook) as pupil: pupil.ask("f", x)`. A call may take `patience` seconds, the
    first one, which also executes the notebook, five times as long. Raises `UserError` if
    cloudpickle is not installed."""

    def __init__(self, notebook: str | Path, patience: float = 30):
        needs("cloudpickle")
        self._folder, self.patience, self._stopped = TemporaryDirectory(), patience, set[Any]()
        self._process: subprocess.Popen | None = None
        package, self.home = Path(fedbook.__file__).parent, Path(self._folder.name).resolve()
        without = shutil.ignore_patterns("answers", "nbs", "teaching", "__pycache__", "_modidx.py")
        shutil.copytree(package, self.home / "fedbook", ignore=without)
        shutil.copy(notebook, self.home / "notebook.ipynb")

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
        if it changes an argument in place."""
        return _ask(self, target, *case)

    def stop(self) -> None:
        "Kill the process; the next call of a function starts a new one."
        if self._process: self._process.kill(); self._process.communicate()
        self._process = None


def _closed() -> list[str]:
    home = notebooks_folder().parent
    folders = [Path(fedbook.__file__).parent, *(home / name for name in ("nbs", "teaching", "tests"))]
    return [str(folder.resolve()) for folder in folders if folder.is_dir()]


def _start(pupil: Pupil) -> subprocess.Popen:
    others = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep)
              if place and not Path(place, "fedbook").is_dir()]
    own = dict(PYTHONPATH=os.pathsep.join([str(pupil.home), *others]), MPLBACKEND="Agg",
               MPLCONFIGDIR=str(pupil.home), TMPDIR=str(pupil.home), OMP_NUM_THREADS="1")
    return subprocess.Popen([sys.executable, "-c", _BEGIN, *_closed()], cwd=pupil.home, env=os.environ | own,
                            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL)


def _said(process: subprocess.Popen, asked: dict, patience: float) -> dict | None:
    "What the process answers, or None if it ends, or says nothing for `patience` seconds."
    assert process.stdin and process.stdout
    timer = threading.Timer(patience, process.kill)
    timer.start()
    try:
        print(json.dumps(asked), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())
    except (OSError, ValueError): return None
    finally: timer.cancel()


def _ask(pupil: Pupil, target: str | int, *case: Any) -> Any:
    "What the pupil's function `target` gives for the arguments `case`; raises what it raised."
    import cloudpickle

    def fail(name: str, why: str) -> NoReturn: raise type(name, (Exception,), {})(why)
    if target in pupil._stopped: fail("Stopped", "it is not asked again")
    patience = pupil.patience * (1 if pupil._process else 5)
    pupil._process = pupil._process or _start(pupil)
    asked = dict(call=target, arguments=base64.b64encode(cloudpickle.dumps(case)).decode())
    reply = _said(pupil._process, asked, patience)
    if reply is None:
        pupil._stopped.add(target)
        pupil.stop()
        fail("Stopped", f"it ended its process, or took longer than {pupil.patience:g} seconds")
    if "raised" in reply: fail(*map(str, reply["raised"]))
    if reply["changed"]: fail("Overwritten", f"it changed its argument number {reply['changed']} in place")
    return _unpacked(reply["value"], pupil.ask)


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


def exams(path: Path, attempt: Callable[[str], Callable]) -> list[Exam]:
    """Return an `Exam` for each exercise of the chapter at `path`: runs the exercises' cells with a
    `check` that only records its arguments. `attempt(name)` must return a function for each
    function that a student has to write; the cells call these functions."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found = list[Exam]()
    def record(f, answer, cases, tolerance=1e-6, holds=None):
        named = cases if isinstance(cases, dict) else {f"case {i}": c for i, c in enumerate(cases, 1)}
        pairs = [(words, _as_case(case)) for words, case in named.items()]
        found.append(Exam(f.__name__, task.points, answer, pairs, tolerance, holds))
    exec(compile(setup_of(path, answers=True), path.stem, "exec"), names)
    names["check"] = record
    for task in tasks(path):
        names |= {name: attempt(name) for name in task.names}
        for source in task.sources:
            body = [node for node in ast.parse(_to_hand_out(source)).body
                    if not (isinstance(node, ast.FunctionDef) and node.name in task.names)]
            exec(compile(ast.Module(body, []), path.stem, "exec"), names)
    return found


def hidden_cases(module: str, name: str, seed: int, count: int) -> list[tuple[str, tuple]]:
    """Return `count` test cases of the exercise `name`, drawn by `seed`, as pairs ("hidden",
    argument tuple). `module` is the chapter's short name; the function `name` in
    `teaching/hidden/MODULE.py` draws them. Raises `UserError` if that file is missing."""
    file = notebooks_folder().parent / "teaching" / "hidden" / f"{module}.py"
    if not file.exists(): raise UserError(f"there are no hidden cases for {module}: {file.name} is missing")
    spec: Any = importlib.util.spec_from_file_location(f"hidden_{module}", file)
    drawers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawers)
    import numpy as np

    draw = getattr(drawers, name)
    return [("hidden", _as_case(draw(np.random.default_rng([seed, i])))) for i in range(count)]


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


def _mark(exam: Exam, attempt: Callable, extra: list[tuple[str, tuple]]) -> dict:
    "The row of one exercise: its points, and what is wrong."
    cases = [*exam.cases, *extra]
    tried = [try_case(attempt, exam.answer, case, exam.tolerance, exam.holds) for _, case in cases]
    right, n = [not wrong for _, wrong in tried], len(exam.cases)
    wanted = [exam.answer(*copy.deepcopy(case)) for _, case in extra] if not exam.holds else []
    share = credit(right[:n], right[n:], wanted) if any(gave for gave, _ in tried) else 0.0
    faults = (f"{words}: {wrong}" for (words, _), (_, wrong) in zip(cases, tried) if wrong)
    first = next(faults, f"correct on {len(tried)} cases")
    said = first if any(gave for gave, _ in tried) else "not attempted yet"
    return dict(exercise=exam.name, points=round(share * exam.points, 1), of=exam.points, said=said)


def marks_of(path: Path, attempt: Callable[[str], Callable], seed: int, hidden: int = 6) -> list[dict]:
    """Grade functions on the exercises of the chapter at `path`; return a dict for each exercise:
    `exercise` (its name), `points` (reached), `of` (to be had) and `said` (the first fault, or that
    all is right). `attempt(name)` returns the function to be graded. It is tried on the chapter's
    cases and on `hidden` ones drawn by `seed` (at most 2 where `check` has a `holds`). Raises
    `UserError` if the chapter has no hidden cases."""
    rows = []
    for exam in exams(path, attempt):
        count = min(hidden, 2) if exam.holds else hidden
        extra = hidden_cases(module_name(path.stem), exam.name, seed, count)
        rows.append(_mark(exam, attempt(exam.name), extra))
    return rows


def grade(folder: str | Path, notebook: str | Path, patience: float = 30) -> list[dict]:
    """Grade a student's `notebook` for the assignment in `folder` (see `write_assignment`): return
    the marks as `marks_of` does, and write them into `grades.csv` there, over an earlier line for this
    file: its name, and the student's folder as seen from the assignment's. A call of the student's code may take `patience` seconds. Raises `UserError`
    if `folder` holds no assignment or the notebook cannot be read."""
    file, notebook = Path(folder, "grader.json"), Path(notebook)
    try: kept = json.loads(file.read_text())
    except (OSError, ValueError):
        raise UserError(f"{str(folder)!r} holds no assignment (no {file.name})") from None
    try: code_cells(notebook)
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{str(notebook)!r} is not a notebook that can be read") from None
    chapter, path = next(iter(find(kept["chapter"]).items()))
    _by_value(module_name(chapter))
    with Pupil(notebook, patience) as pupil: rows = marks_of(path, pupil.function, kept["seed"], kept["hidden"])
    student = Path(os.path.relpath(notebook.resolve().parent, Path(folder).resolve())).as_posix()
    with locked(folder): _book(Path(folder, "grades.csv"), student, notebook.name, rows)
    return rows


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


_SHORT = 14     # lines of code that a slide can hold


def _shown_on_slide(text: str, first: bool) -> tuple[str, str]:
    """A markdown text, parted into what a slide shows and what its speaker says; `first`: it begins with a
    heading."""
    pieces = [piece.strip("\n") for piece in re.findall(r"(?s)```.*?```|(?:(?!\n\n|```).)+", text)]
    shows, says = list[str](), list[str]()
    for piece in filter(str.strip, pieces):
        showy = re.match(r"\$\$|- |\||```|#|>|\d+\. ", piece.lstrip()) is not None
        (shows if showy or first else says).append(piece)
        first = first and showy
    return "\n\n".join(shows), "\n\n".join(says)


def _pictures(outputs: list) -> list:
    "The outputs of a cell that are worth a slide: pictures, tables, quizzes."
    kinds = ("image/png", "text/html", "text/markdown")
    return [output for output in outputs if any(kind in output.get("data", {}) for kind in kinds)]


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
                shows, says = _shown_on_slide(part, first=bool(title))
                if shows: put(new_markdown_cell(shows), "slide" if title else "-")
                if says: put(new_markdown_cell(says), "notes")
        elif section != "Exercises": _put_code(cell, put, new_code_cell)
    return cells


def _put_code(cell: Any, put: Callable, new_code_cell: Callable) -> None:
    source, pictures = re.sub(r"^#\|.*\n", "", cell.source, flags=re.M), _pictures(cell.outputs)
    short = source.count("\n") < _SHORT and re.match(r"(def|class|@)", source)
    if cell.source.startswith("#| export") and short: put(new_code_cell(source), "subslide")
    if pictures: put(new_code_cell(source, outputs=pictures), "subslide", "outputs-only")


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
    body, _ = exporter.from_notebook_node(new_notebook(cells=cells, metadata=dict(title=chapter)))
    file = Path(target or f"slides-{chapter.replace('/', '.')}.html")
    write_atomically(file, body)
    return file
