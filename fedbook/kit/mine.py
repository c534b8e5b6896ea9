"""A reader's own functions: read from a notebook, written as a module, tried, run in the library's place."""
import ast
import builtins
import dis
import functools
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from fedbook.engine.errors import Unfit, UserError
from fedbook.engine.files import write_atomically
from fedbook.kit.classroom import Exam, exams, exercises_of
from fedbook.kit.lab import progress_file, tries
from fedbook.kit.runs import chapter_name, chapters, code_cells, find, module_name, out_of_memory, SEVERAL


class OwnError(Unfit):
    """A reader's function raised an error. The message names the function and the error. It stops a run,
    whichever process it comes from."""


def with_headline(name: str) -> Path:
    """Return the path of the chapter `name`, whose notebook exports a `headline`: the run of `fedbook
    mine`. Raises `UserError`, with the choices, for one that exports none, and for an unknown
    chapter."""
    if name in SEVERAL: raise UserError(f"mine goes with one chapter, not with {name}")
    chapter, path = next(iter(find(name).items()))
    if _has_headline(path): return path
    known = [each for each, place in chapters().items() if _has_headline(place)]
    choices = f"choose one of {', '.join(known)}" if known else "no chapter has one yet"
    raise UserError(f"chapter {chapter} has no headline that could run with your functions; {choices}")


def _has_headline(path: Path) -> bool:
    exported = "\n".join(cell for cell in code_cells(path) if cell.startswith("#| export"))
    return re.search(r"^(def headline\(|headline = )", exported, re.M) is not None


def method_of(path: Path) -> str:
    "Return the name of the method of the chapter at `path`: its title up to the colon."
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    texts = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    title = re.search(r"^# ([^:\n]+)", "\n".join(texts), re.M)
    return title[1].strip() if title else module_name(chapter_name(path))


def own_notebook(path: Path, named: str = "") -> Path:
    """Return the path of the reader's copy of the chapter at `path`: the notebook `named`, or the one of
    that chapter in the folder `named`; if empty, the one in the copy of the chapters that the working folder
    belongs to, else in `course`. Raises `UserError` if it is missing or is no notebook."""
    inside = f"{chapter_name(path)}.ipynb"
    progress = progress_file()
    copied = progress.parent if progress else Path("course")
    file = Path(named or copied)
    if not named or file.is_dir(): file = file / inside
    if not file.is_file():
        lab = f"fedbook lab {module_name(chapter_name(path))}"
        raise UserError(f"there is no notebook {str(file)!r} with functions of yours; {lab} makes a copy and "
                        "opens it, --notebook PATH names another")
    try: code_cells(file)
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{str(file)!r} is not a notebook that can be read") from None
    return file


class _Piece(NamedTuple):
    "A statement of a notebook, outside of functions: the number and source of its cell, what it binds."
    cell: int
    source: str
    node: ast.stmt
    names: list[str]

    @property
    def imports(self) -> bool: return isinstance(self.node, (ast.Import, ast.ImportFrom))


def _bound(node: ast.stmt) -> list[str]:
    "The names that a definition, an import or an assignment binds."
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)): return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [_bound_by(alias) for alias in node.names if not _of_answers(node, alias)]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign) and node.value: targets = [node.target]
    parts = (part for target in targets for part in ast.walk(target))
    return [part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]


def _bound_by(alias: ast.alias) -> str: return alias.asname or alias.name.partition(".")[0]


def _of_answers(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    "Whether an import brings the answers."
    base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return f"{base}{alias.name}.".startswith("fedbook.answers.")


def _hollow(node: ast.stmt) -> bool:
    "Whether a function has nothing but a docstring, `...`, `pass` or `raise NotImplementedError`."
    if not isinstance(node, ast.FunctionDef): return False
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    empty = ("...", "pass", "return", "return ...", "return None")
    texts = map(ast.unparse, body)
    return all(text in empty or text.startswith("raise NotImplementedError") for text in texts)


def _pieces(notebook: Path) -> tuple[list[_Piece], dict[str, str]]:
    """What the code cells consist of, in order: of exported cells the imports alone, and no hollow function.
    Also the functions in cells that are not Python: name to what is wrong."""
    pieces, broken = list[_Piece](), dict[str, str]()
    for number, cell in enumerate(code_cells(notebook)):
        source = re.sub(r"^[%!].*$", "", cell, flags=re.M)
        try: body = ast.parse(source).body
        except SyntaxError as error:
            why = f"{error.msg} (line {error.lineno} of its cell)"
            broken |= {name: why for name in re.findall(r"^def (\w+)\(", source, re.M)}
            continue
        exported = re.search(r"^#\|\s*export", source, re.M)
        made = [_Piece(number, source, node, _bound(node)) for node in body if not _hollow(node)]
        pieces += [piece for piece in made if piece.imports or not exported]
    return pieces, broken


def _is_function(piece: _Piece) -> bool:
    value = getattr(piece.node, "value", None)
    return isinstance(piece.node, ast.FunctionDef) or isinstance(value, ast.Lambda)


def _globals_of(code: CodeType) -> set[str]:
    "The global names that `code` reads, functions inside of it among them."
    steps = dis.get_instructions(code)
    names = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return names.union(*map(_globals_of, inner))


def _read_by(piece: _Piece) -> list[str]:
    if piece.imports: return []
    return sorted(_globals_of(compile(ast.Module([piece.node], []), "cell", "exec")))


def _is_literal(node: ast.stmt) -> bool:
    try: ast.literal_eval(getattr(node, "value", None) or "")
    except (ValueError, TypeError, SyntaxError): return False
    return True


def _sources_of(name: str, cell: int, pieces: Iterable[_Piece]) -> list[_Piece]:
    """Where code in the cell number `cell` has `name` from: the last statement up to there that binds it,
    else the first one after it. Of other cells, assignments count only if they assign plain numbers or
    texts."""
    assigns = lambda piece: isinstance(piece.node, (ast.Assign, ast.AnnAssign))
    fits = lambda piece: piece.cell == cell or not assigns(piece) or _is_literal(piece.node)
    found = [piece for piece in pieces if name in piece.names and fits(piece)]
    before = [piece for piece in found if piece.cell <= cell]
    nearest = [*before[-1:], *found[:1]][:1]
    if nearest and nearest[0].imports: return [piece for piece in found if piece.imports]
    return nearest


class Written(NamedTuple):
    """What a reader has written: `names` of the functions, the `text` of a module with them, and the
    functions in cells that are not Python: `broken`, name to what is wrong."""
    names: list[str]
    text: str
    broken: dict[str, str]


def written_in(notebook: Path, path: Path, module: ModuleType) -> Written:
    """Return what the reader of `notebook`, a copy of the chapter at `path`, has written for its blanks, as
    a module: the imports that these functions need, what else of the reader's they call, and the
    functions. What they have from the chapter's `module` is imported from there. Nothing comes from
    the answers."""
    pieces, broken = _pieces(notebook)
    blanks = dict[str, _Piece]()
    for name in exercises_of(path):
        tried = [piece for piece in pieces if name in piece.names and _is_function(piece)]
        blanks |= {name: piece for piece in tried[-1:]}
    others = [piece for piece in pieces if piece.imports or not set(piece.names) & blanks.keys()]
    kept, used, borrowed, todo = list[_Piece](), set[str](), set[str](), [*blanks.values()]
    while todo:
        piece = todo.pop()
        if piece in kept: continue
        kept.append(piece)
        for name in _read_by(piece):
            found = [blanks[name]] if name in blanks else _sources_of(name, piece.cell, others)
            used.add(name)
            todo += found
            if not found and hasattr(module, name) and not hasattr(builtins, name): borrowed.add(name)
    in_order = [piece for piece in pieces if piece in kept]
    from_module = [f"from {module.__name__} import {name}" for name in sorted(borrowed)]
    text = _module_text(notebook, path, in_order, used, from_module)
    return Written([*blanks], text, {name: why for name, why in broken.items() if name not in blanks})


_HEAD = '"""My functions of '


def _module_text(notebook: Path, path: Path, pieces: list[_Piece], used: set[str], borrowed: list) -> str:
    name = chapter_name(path)
    head = (f"{_HEAD}{name}, as `fedbook mine {module_name(name)}` found them in\n{notebook.name}. "
            'The next call writes this file anew."""')
    imports = [_import_text(piece.node, used) for piece in pieces if piece.imports]
    top = "\n".join([head, *dict.fromkeys(imports), *borrowed])
    return "\n\n\n".join([top, *(_text(piece) for piece in pieces if not piece.imports)]) + "\n"


def _import_text(node: Any, used: set[str]) -> str:
    "The import `node` without what nobody uses."
    names = [alias for alias in node.names if _bound_by(alias) in used and not _of_answers(node, alias)]
    same = dict(module=node.module, level=node.level) if isinstance(node, ast.ImportFrom) else {}
    return ast.unparse(type(node)(names=names, **same))


def _text(piece: _Piece) -> str:
    "The statement as it was written, with its decorators and the comment above."
    lines, node = piece.source.split("\n"), piece.node
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    while first > 1 and re.match(r"#(?!\|)", lines[first - 2]): first -= 1
    return "\n".join([*lines[first - 1:node.lineno - 1], ast.get_source_segment(piece.source, node) or ""])


def write_mine(text: str, target: Path, path: Path) -> Path:
    """Write `text`, a module with functions of the chapter at `path`, to the file `target`, or to
    `mine_NAME.py` in the folder `target`. Return the path of the file. Raises `UserError` if it is
    there and was not written by an earlier call."""
    whole = target.suffix == ".py" and not target.is_dir()
    file = target if whole else target / f"mine_{module_name(chapter_name(path))}.py"
    if target.suffix and not whole and not target.is_dir(): raise UserError(f"--out {target} must be a folder, or end in .py")
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and not file.read_text(encoding="utf-8", errors="replace").startswith(_HEAD):
        raise UserError(f"{str(file)!r} is there already, and stays as it is; choose another with --out")
    write_atomically(file, text)
    return file


def load_mine(file: Path, names: Iterable[str]) -> dict[str, Callable]:
    """Execute the module `file` and return its functions `names`, name to function. Raises `UserError` if
    the module raises an error."""
    module = ModuleType(file.stem)
    try: exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), vars(module))
    except Exception as error:
        raise UserError(f"your functions cannot be loaded: {_error_text(error, file)}") from None
    functions = {name: vars(module)[name] for name in names}
    for name, f in functions.items(): f.__name__ = name
    return functions


def _error_text(error: BaseException, file: Path) -> str:
    "The error in words, with the line of `file` where it arose, if it arose there."
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    where = f" (line {lines[-1]} of {file.name})" if lines else ""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}{said and ': '}{said:.300}{where}"


def verdicts(path: Path, functions: dict[str, Callable], broken: dict[str, str],
             called: Iterable[str]) -> dict[str, str]:
    """Try the reader's `functions` (name to function) on the cases of the chapter at `path`. Return what is
    to be said of each blank, name to a line; `broken` says which cannot be read and why, `called` which
    the run calls."""
    with redirect_stdout(StringIO()): asked = exams(path, lambda name: _harmless(name, functions.get(name)))
    said = dict[str, str]()
    for name in exercises_of(path):
        only = "" if name in called else "; only checked, the run does not call it"
        if name in functions: said[name] = f"yours{_fault(name, functions[name], asked)}{only}"
        elif name in broken: said[name] = f"yours, but not Python yet: {broken[name]}{only}"
        else: said[name] = f"not written yet{only}" if only else "still the library's (not written yet)"
    return said


def _harmless(name: str, f: Callable | None) -> Callable:
    "`f` as the cells of an exercise may call it: without a function, or where it fails, it returns None."
    def attempt(*case: Any, **options: Any) -> Any:
        try: return f(*case, **options) if f else None
        except Exception: return None
    attempt.__name__ = name
    return attempt


def _fault(name: str, f: Callable, asked: Iterable[Exam]) -> str:
    "What is wrong with the function `name` in the first case that fails; empty if all are right."
    for exam in (exam for exam in asked if exam.name == name):
        numbered = all(words == f"case {i}" for i, (words, _) in enumerate(exam.cases, 1))
        cases: Any = [case for _, case in exam.cases] if numbered else dict(exam.cases)
        for _, wrong, where in tries(f, exam.answer, cases, exam.tolerance, exam.holds):
            raises = wrong.startswith("raised ")
            if wrong: return f", but {'raises an error' if raises else 'wrong'}: {where} {wrong}"
    return ""


def guarded(name: str, f: Callable, file: Path) -> Callable:
    """Return a function that does what the reader's `f` does, the blank `name` in the module `file`. Where
    `f` raises an error, it raises `OwnError`; a GPU out of memory stays what it is."""
    @functools.wraps(f)
    def own(*args: Any, **options: Any) -> Any:
        try: return f(*args, **options)
        except OwnError: raise
        except Exception as error:
            if type(error).__name__ == "OutOfMemoryError": raise
            raise OwnError(f"your {name} raised {_error_text(error, file)}") from error
    return own


@contextmanager
def in_place(own: dict[Callable, Callable]) -> Iterator[None]:
    """Put functions in the place of others, meanwhile: `own` is a dict from the library's function to the
    one that stands in for it in every module of fedbook that has it as a global. Each stand-in must be
    in use nowhere else. Afterwards the library's are back, also in modules that were imported
    meanwhile."""
    back = {mine: theirs for theirs, mine in own.items()}
    try:
        _exchange(own)
        yield
    finally: _exchange(back)


def _exchange(new: dict[Callable, Callable]) -> None:
    known = {id(old): stands_in for old, stands_in in new.items()}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "fedbook": continue
        for key, value in list(vars(module).items()):
            if id(value) in known: setattr(module, key, known[id(value)])


def shown_path(file: Path) -> str:
    "Return `file` as seen from the working folder, if it lies below it, else as it is."
    seen = os.path.relpath(file)
    return str(file) if seen.startswith(os.pardir) else seen


class Both(NamedTuple):
    """What a chapter's headline measures, numbers from 0 to 1: with the library's functions, and with the
    reader's; there NaN if the run `stopped`, which is a sentence then, else empty."""
    theirs: float
    mine: float
    stopped: str = ""


def both_headlines(module: Any, own: dict[str, Callable], sizes: Any, seed: int, device: Any) -> Both:
    """Run the `headline` of a chapter's `module` with the library's functions, then with `own`, a dict from
    name to function, in their place, both in this process. `sizes`, `seed` and `device` are handed to
    it."""
    try:
        theirs = _headline(module, sizes, seed, device)
        with in_place({getattr(module, name): f for name, f in own.items()}):
            try: return Both(theirs, _headline(module, sizes, seed, device))
            except UserError as error: return Both(theirs, math.nan, str(error))
            except Exception as error:
                said = f"what they return does not fit: {type(error).__name__}: {error}"
                return Both(theirs, math.nan, " ".join(said.split()))
    except KeyboardInterrupt: raise KeyboardInterrupt("interrupted; the same command begins anew") from None


def _headline(module: Any, sizes: Any, seed: int, device: Any) -> float:
    try: return float(module.headline(sizes, seed, device))
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError": raise
        raise UserError(out_of_memory(sizes)) from None
