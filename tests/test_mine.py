"""A reader's own functions: found in a notebook, written as a module, tried, run in the library's place."""
import importlib
import inspect
import json
import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fedbook
import fedbook.answers
import fedbook.fedgtea
from fedbook.engine.errors import Unfit
from fedbook.kit import runs
from fedbook.kit.command import main
from fedbook.kit.mine import guarded, in_place, OwnError, own_notebook, written_in
from fedbook.kit.runs import chapter_module, find

LOWER = '''def half(x): return x / 2
'''
DEMO = '''import math
from dataclasses import dataclass

from fedbook.engine.sizes import Count, Profile
from fedbook.lower import half


@dataclass(frozen=True)
class DemoSizes(Profile):
    "Settings."
    scale: Count = 1    # the number is taken so often


profiles = {"smoke": DemoSizes(), "quick": DemoSizes(scale=2)}


def root(x): return math.sqrt(x)


def twice(x): return 2 * x


def headline(sizes, seed, device): return sizes.scale * half(root(0.16)) + seed / 100
'''
ANSWERS = '''import math

def half(x): return x / 2

def root(x): return math.sqrt(x)

def area(a, b): return a * b
'''
STUB = 'def {0}({1}):\n    "The {0}."\n    ...\n'
CHECKS = {"half": 'check(half, answers.half, {"a whole number": 4, "zero": 0.0, "below zero": -3})',
          "root": "check(root, answers.root, [4.0, 9.0])", "area": "check(area, answers.area, [(2, 3)])"}
TAKES = {"half": "x", "root": "x", "area": "a, b"}
STUBS = {name: STUB.format(name, taken) for name, taken in TAKES.items()}
CHECKED = "only checked, the run does not call it"
HALF, ROOT, AREA = ("def half(x):\n    return 0.5 * x\n", "def root(x):\n    return x ** 0.5\n",
                    "def area(a, b):\n    return b * a\n")


def cells(**written):
    "The made-up chapter, with some of its functions `written`."
    yield "markdown", "# Demo: half of a root\n\n> Made up."
    yield "code", "#| default_exp demo"
    yield "code", "from fedbook.answers import demo as answers\nfrom fedbook.kit.lab import check"
    yield "code", "#| export\nimport math, json\nfrom fedbook.lower import half"
    yield "code", 'profile = "quick"\nseed = 0'
    yield from (("code", source) for source in written.pop("before", ()))
    for number, (name, call) in enumerate(CHECKS.items(), 1):
        yield "markdown", f"**{number}. The {name}** (5 minutes). Write it."
        yield "code", f"{written.get(name, STUBS[name])}\n{call}"
    yield "code", "#| export\ndef root(x): return math.sqrt(x)"
    yield "code", "#| export\ndef headline(sizes, seed, device): ..."


def save(path, parts):
    code = dict(outputs=[], execution_count=None)
    book = [dict(cell_type=kind, id=f"c{i}", metadata={}, source=source, **(code if kind == "code" else {}))
            for i, (kind, source) in enumerate(parts)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(cells=book, metadata={}, nbformat=4, nbformat_minor=5)))
    return path


@pytest.fixture
def demo(tmp_path, monkeypatch):
    "A course of a made-up chapter, `98_demo`, with its modules, and one without a headline. Its path."
    for name, text in (("lower", LOWER), ("demo", DEMO), ("answers/demo", ANSWERS)):
        file = tmp_path / "package" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(fedbook, "__path__", [*fedbook.__path__, str(tmp_path / "package")])
    answers = [*fedbook.answers.__path__, str(tmp_path / "package/answers")]
    monkeypatch.setattr(fedbook.answers, "__path__", answers)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    save(tmp_path / "nbs/00_start.ipynb", [("markdown", "# Start")])
    path = save(tmp_path / "nbs/98_demo.ipynb", cells())
    monkeypatch.setattr(runs, "notebooks_folder", lambda: tmp_path / "nbs")
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    importlib.invalidate_caches()
    yield path
    for name in ("lower", "demo", "answers.demo", "late"):
        sys.modules.pop(f"fedbook.{name}", None)
        package, _, last = f"fedbook.{name}".rpartition(".")
        vars(sys.modules[package]).pop(last, None)


def hand_in(**written):
    "A copy of the chapters in the folder `course`, in which the reader has written functions."
    save(Path("course/00_start.ipynb"), [])
    Path("course/progress.json").write_text("{}")
    return save(Path("course/98_demo.ipynb"), cells(**written))


def said(capsys, line="mine demo --device cpu"):
    "The exit code, the lines on standard output, and standard error."
    code = main(line.split())
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def states(lines, names=tuple(TAKES)):
    "What is said of each function, name to text."
    parts = [line.split(None, 1) for line in lines if line.startswith(tuple(names))]
    return {name: state for name, state in parts}


def test_two_of_three_are_written(demo, capsys):
    hand_in(half=HALF, area=AREA)
    code, lines, err = said(capsys)
    assert (code, err) == (0, "") and lines[0] == "written: course/mine_demo.py"
    assert states(lines) == {"half": "yours", "root": "still the library's (not written yet)",
                             "area": f"yours; {CHECKED}"}
    assert lines[-2].endswith("quick, seed 0: with the library's functions, then with yours in place of half")
    assert lines[-1] == "my Demo 40.0 %, the library's 40.0 %"


def test_all_are_written_and_the_run_is_the_one_asked_for(demo, capsys):
    hand_in(half=HALF, root=ROOT, area=AREA)
    code, lines, _ = said(capsys, "mine 98_demo.ipynb --device cpu --profile smoke --seed 7 -p scale=3")
    assert code == 0 and [*states(lines).values()] == ["yours", "yours", f"yours; {CHECKED}"]
    assert lines[-1] == "my Demo 67.0 %, the library's 67.0 %" and "Demo at smoke, seed 7" in lines[-2]


def test_right_ones_that_end_elsewhere_are_told_why(demo, capsys):
    hand_in(half="def half(x):\n    return x / 2 + (x == 0.4) / 1000\n")
    code, lines, _ = said(capsys)
    assert code == 0 and lines[-2] == "my Demo 40.2 %, the library's 40.0 %"
    assert lines[-1].startswith("Your functions are right on all cases.")


def test_a_wrong_one_runs_too(demo, capsys):
    hand_in(half="def half(x):\n    return abs(x) / 4\n", area="def area(a, b): return a + b\n")
    code, lines, _ = said(capsys)
    assert code == 0 and lines[-2] == "my Demo 20.0 %, the library's 40.0 %"
    assert lines[-1] == "Wrong, as the table says: half. The accuracy alone need not show it."
    said_of, wrong = states(lines), "yours, but wrong: case 1 of"
    assert said_of["half"] == f"{wrong} 3 (a whole number): half(4) gave 1.0, expected 2.0"
    assert said_of["area"] == f"{wrong} 1: area(2, 3) gave 5, expected 6; {CHECKED}"


def test_one_that_raises_is_named_and_the_library_has_its_number(demo, capsys):
    hand_in(half="def half(x):\n    return deep(x)\n\ndef deep(x):\n    return 1 / (x - x)\n", root=ROOT)
    code, lines, err = said(capsys)
    assert code == 1 and lines[-1] == "the library's Demo 40.0 %"
    assert re.fullmatch(r"fedbook: the run with your functions stopped: your half raised ZeroDivisionError: "
                        r".*zero \(line \d+ of mine_demo.py\)\n", err)
    line = Path("course/mine_demo.py").read_text().splitlines()[int(re.search(r"line (\d+)", err)[1]) - 1]
    assert line == "    return 1 / (x - x)"
    case = "yours, but raises an error: case 1 of 3 (a whole number): half(4) raised ZeroDivisionError"
    assert states(lines)["half"].startswith(case)
    module = sys.modules["fedbook.demo"]
    assert module.half is sys.modules["fedbook.lower"].half and module.half.__module__ == "fedbook.lower"


def test_what_does_not_fit_where_it_is_called_ends_in_a_sentence(demo, capsys):
    hand_in(half="def half(x): return 'a half'\n")
    code, lines, err = said(capsys)
    assert code == 1 and lines[-1] == "the library's Demo 40.0 %" and err.count("\n") == 1
    assert "what they return does not fit: " in err


@pytest.mark.parametrize("written, why", [
    ({}, "course/98_demo.ipynb has none of your functions yet; write one of half, root, area"),
    (dict(half='def half(x):\n    "Mine."\n    raise NotImplementedError\n'), "none of your functions yet"),
    (dict(area=AREA), "the run calls none of the functions that you wrote; write one of half, root\n"),
    (dict(half="def half(x):\n    return x /\n"), "the run calls none of the functions that you wrote")])
def test_nothing_to_run_is_said(demo, capsys, written, why):
    hand_in(**written)
    code, _, err = said(capsys)
    assert code == 2 and why in err and err.count("\n") == 1


def test_a_function_that_is_not_python_is_said(demo, capsys):
    hand_in(half="def half(x):\n    return x /\n", root=ROOT)
    code, lines, _ = said(capsys)
    assert code == 0
    assert states(lines)["half"] == "yours, but not Python yet: invalid syntax (line 2 of its cell)"


def test_the_module_is_the_functions_with_what_they_need_and_no_answers(demo, capsys):
    before = ["%matplotlib inline\nEPS = 1e-9\nunused = 3",
              "import json\nfrom math import pi, tau\nwaste = json",
              "def shift(x):\n    return x + EPS", "def half(x):\n    return 7  # an earlier try"]
    parts = "# Not the shortest way.\nparts = [0.5]"
    own = "@functools.cache\ndef own(x): return times(parts[0], x)"
    mine = ("# All of it.\ndef half(x, more=tau):\n    'Half.'\n    found = shift(own(x)) - EPS\n"
            "    return found + 0 * root(twice(4))\n")
    half = "\n\n".join(["import functools\nfrom operator import mul as times, add", parts, own, mine])
    book = hand_in(half=half, root=ROOT, before=before)
    written = written_in(book, demo, chapter_module(demo))
    assert written.names == ["half", "root"] and written.broken == {}
    head, _, body = written.text.partition('"""\n')
    imports = ("from math import tau\nimport functools\nfrom operator import mul as times\n"
               "from fedbook.demo import twice")
    assert head.startswith('"""My functions of 98_demo') and body.split("\n\n\n") == [
        imports, "EPS = 1e-9", "def shift(x):\n    return x + EPS", parts, own, mine[:-1], ROOT]
    code, lines, _ = said(capsys)
    assert code == 0 and states(lines)["half"] == "yours" and "my Demo 40.0 %" in lines[-1]


def test_a_name_is_what_it_was_where_the_function_stands(demo):
    before = ["def helper(x): return 1", "def helper(x): return 2\n\nheavy = open('nowhere')"]
    book = hand_in(half="def half(x): return helper(x) + heavy\n", before=before,
                   root=ROOT + "\ndef helper(x): return 3\n")
    text = written_in(book, demo, chapter_module(demo)).text
    assert "return 2" in text and "return 1" not in text and "return 3" not in text and "nowhere" not in text


def test_the_answers_stay_closed(demo, capsys):
    hand_in(half="from fedbook.answers.demo import half as given\nimport fedbook.answers.demo\n\n"
                 "def half(x): return given(x)\n", root="def root(x): return answers.root(x)\n")
    code, lines, err = said(capsys)
    assert code == 1 and "NameError" in err and "import" not in Path("course/mine_demo.py").read_text()
    assert all("raised NameError" in states(lines)[name] for name in ("half", "root"))


def test_the_substitution_is_undone_whatever_happens(demo, tmp_path):
    module, lower = chapter_module(demo), sys.modules["fedbook.lower"]
    theirs = module.half
    (tmp_path / "package/late.py").write_text("from fedbook.lower import half\n")
    for stop in (ValueError, KeyboardInterrupt, SystemExit):
        def mine(x): return 0
        with pytest.raises(stop), in_place({theirs: mine}):
            assert module.half is lower.half is mine
            assert importlib.import_module("fedbook.late").half is mine
            assert module.headline(module.DemoSizes(), 0, 0) == 0
            raise stop
        assert theirs is module.half is lower.half is sys.modules["fedbook.late"].half
        sys.modules.pop("fedbook.late")


def test_ctrl_c_says_what_the_next_call_does(demo, capsys):
    hand_in(half="def half(x):\n    if 0 < x < 1: raise KeyboardInterrupt\n    return x / 2\n")
    code, _, err = said(capsys)
    assert code == 130 and err == "fedbook: interrupted; the same command begins anew\n"
    assert sys.modules["fedbook.demo"].half.__module__ == "fedbook.lower"


def test_an_error_of_the_readers_stops_a_run_from_any_process(tmp_path):
    inner = guarded("inner", lambda: 1 / 0, tmp_path / "mine.py")
    with pytest.raises(OwnError) as raised: guarded("outer", lambda: inner(), tmp_path / "mine.py")()
    error = pickle.loads(pickle.dumps(raised.value))
    assert isinstance(error, Unfit) and str(error) == "your inner raised ZeroDivisionError: division by zero"


def test_the_notebook_is_found_from_inside_the_copy_and_named_elsewhere(demo, capsys, monkeypatch, tmp_path):
    assert said(capsys)[2] == ("fedbook: there is no notebook 'course/98_demo.ipynb' with functions of "
                               "yours; fedbook lab demo makes a copy and opens it, --notebook PATH names another\n")
    book = hand_in(half=HALF).resolve()
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert said(capsys)[0] == 2
    assert said(capsys, f"mine demo --notebook {book} --out .")[1][0] == "written: mine_demo.py"
    assert said(capsys, f"mine demo --notebook {book.parent} --out my.py")[1][0] == "written: my.py"
    monkeypatch.chdir(book.parent)
    assert own_notebook(demo) == book and said(capsys)[1][0] == "written: mine_demo.py"
    Path("mine_demo.py").write_text("precious = 1\n")
    code, _, err = said(capsys)
    assert code == 2 and "is there already, and stays as it is" in err
    assert Path("mine_demo.py").read_text() == "precious = 1\n"
    Path("98_demo.ipynb").write_text("not a notebook")
    assert "is not a notebook that can be read" in said(capsys)[2]


@pytest.mark.parametrize("line, why", [
    ("mine nosuch", "chapter 'nosuch' is unknown; choose one of 00_start, 98_demo"),
    ("mine all", "mine goes with one chapter, not with all"), ("mine start", "choose one of 98_demo\n"),
    ("mine demo --profile full", "profile='full' is unknown; choose one of smoke, quick"),
    ("mine demo --profile huge", "profile='huge' is unknown"), ("mine demo --seed -1", "seed=-1 must be"),
    ("mine demo --device tpu", "device='tpu' is unknown"),
    ("mine demo -p speed=3", "'speed' is not a parameter"),
    ("mine demo --notebook nowhere.ipynb", "there is no notebook 'nowhere.ipynb'"),
    ("mine demo --out notes.txt", "must be a folder, or end in .py"),
    ("mine", "arguments are required: name")])
def test_a_mistake_is_one_sentence(demo, capsys, line, why):
    hand_in(half=HALF)
    code, _, err = said(capsys, line)
    assert code == 2 and why in err and err.startswith("fedbook: ") and err.count("\n") == 1


# The real chapter

def test_two_functions_of_fedgtea(tmp_path, capsys, monkeypatch, one_process):
    from fedbook.answers import fedgtea as answers

    path, = find("fedgtea").values()
    called = [name for name in answers.__all__ if callable(getattr(fedbook.fedgtea, name, None))]
    book, written, count = json.loads(path.read_text()), called[:2], dict.fromkeys(called, 0)
    for cell in book["cells"]:
        source = "".join(cell["source"])
        for name in written:
            if cell["cell_type"] != "code" or source.startswith("#|"): continue
            stub = re.search(rf'(?ms)^def {name}\(.*?^    \.\.\.$', source)
            if stub: cell["source"] = source.replace(stub[0], inspect.getsource(getattr(answers, name)))
    (tmp_path / path.name).write_text(json.dumps(book))
    monkeypatch.chdir(tmp_path)
    code, lines, err = said(capsys, f"mine fedgtea --profile smoke --device cpu --notebook {path.name}")
    assert code == 0 and re.fullmatch(r"my FedGTEA [\d.]+ %, the library's [\d.]+ %", lines[-1]), err
    assert states(lines, written) == dict.fromkeys(written, "yours")

    def counted(name, f):
        def own(*args, **options):
            count[name] += 1
            return f(*args, **options)
        return own
    with in_place({f: counted(name, f) for name in called for f in [getattr(fedbook.fedgtea, name)]}):
        enough = replace(fedbook.fedgtea.profiles["smoke"], pictures=40)  # for moments at each client
        fedbook.fedgtea.headline(enough, 0, "cpu")
    assert all(count.values()), f"the run does not call {[name for name, n in count.items() if not n]}"
