"""The size of the rooms, and the signs on their doors."""
import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from books import book

ROOT = Path(__file__).parent.parent
MODULES = sorted(path for path in (ROOT / "fedbook").rglob("*.py")
                 if not path.stem.startswith("_") and path.parent.name != "answers")
EACH_CHAPTER = {"headline", "profiles", "settings", "experiment"}
module = pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.stem}")


def tree(path): return ast.parse(path.read_text())


def defined(path):
    "The names that a module defines at its top level."
    for node in tree(path).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)): yield node.name
        targets = (node.targets if isinstance(node, ast.Assign) else [node.target]
                   if isinstance(node, ast.AnnAssign) else [])
        for target in targets:
            yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def public(path): return {name for name in defined(path) if not name.startswith("_")} - {"__all__"}


def test_no_public_name_stands_in_two_modules():
    where = defaultdict(list)
    for path in MODULES:
        for name in public(path) - EACH_CHAPTER: where[name].append(path)
    assert not {name: rooms for name, rooms in where.items() if len(rooms) > 1}


@module
def test_private_names_stay_at_home(path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("fedbook")):
            assert not [alias.name for alias in node.names if alias.name.startswith("_")]


@module
def test_public_functions_and_methods_carry_hints(path):
    def check(node, where):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg,
                     node.args.kwarg]
        bare = [a.arg for a in arguments if a and a.annotation is None and a.arg not in ("self", "cls")]
        assert not bare and node.returns is not None, f"{where}{node.name} lacks hints: {bare or 'what it returns'}"

    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"): check(node, "")
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                    check(method, f"{node.name}.")


def test_mypy_is_silent():
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


def ruff(*words, source=None):
    "What the linter finds, and its exit code."
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--output-format", "concise", *words], cwd=ROOT,
                          capture_output=True, text=True, input=source)
    return done.stdout, done.returncode


def test_ruff_is_silent():
    found, code = ruff()
    assert code == 0, found[-3000:]


@pytest.mark.parametrize("rule, planted", [
    ("F811", "def test_a(): assert f()\n\ndef test_a(): assert g()\n"), ("F401", "import math\n"),
    ("F631", "assert (1 == 2, 'never')\n"), ("B015", "1 == 2\n"), ("F841", "def f():\n    x = 1\n"),
    ("F821", "y = unknown\n")])
def test_what_a_test_cannot_say_of_itself_is_found(rule, planted):
    found, code = ruff("--stdin-filename", "tests/test_planted.py", "-", source=planted)
    assert code == 1 and f": {rule} " in found


def texts():
    for path in (ROOT / "nbs").rglob("*.ipynb"):
        if ".ipynb_checkpoints" in path.parts: continue
        yield path.name, "\n".join(cell.source for cell in book(path).cells if cell.cell_type
                                   == "code")
    for path in (ROOT / "tests").rglob("*.py"): yield path.name, path.read_text()


@pytest.mark.parametrize("name, text", [pytest.param(*each, id=each[0]) for each in texts()])
def test_lines_fit_the_screen(name, text):
    widths = [len(line) for line in text.splitlines()]
    assert max(widths, default=0) <= 130
    assert sum(width > 110 for width in widths) <= 1 + 0.01 * len(widths)
