"""A student's way through an assignment, and ways round it; progress, doctor, slides, syllabus, projects."""
import ast
import csv
import importlib
import importlib.util
import json
import re
import runpy
import shutil
import sys
from functools import cache
from pathlib import Path

import nbformat
import pytest

import fedbook
from conftest import by_day
from fedbook.engine.errors import how_to_install
from fedbook.kit import classroom, command, lab
from fedbook.kit.classroom import (Pupil, _as_varied, _book, _mark, credit, exams, exercises_of,
                                   exported_solutions, grade, hidden_cases, marks_of, slide_cells, solutions_of,
                                   tasks, variation, variations, with_mathml, write_assignment)
from fedbook.kit.command import main
from fedbook.kit.lab import check, progress_file, solved_in
from fedbook.kit.runs import chapters, find, module_name

ROOT = Path(__file__).parent.parent
STACKED = chapters()["engine/stacked"]
SOLVED = {"own_means": """def own_means(losses, lengths):
    import torch
    return torch.stack([row[:n].mean() for row, n in zip(losses, lengths)])""",
          "heights": "def heights(steps): return [sum(own > n for own in steps) for n in range(max(steps))]",
          "groups": """def groups(counts, size):
    from itertools import permutations
    lists, best = -(-len(counts) // size), None
    for order in permutations(range(len(counts))):
        for short in range(lists):
            sizes = [size] * lists
            sizes[short] -= lists * size - len(counts)
            cut = [list(order[sum(sizes[:n]):sum(sizes[:n + 1])]) for n in range(lists)]
            area = sum(max(counts[i] for i in each) * len(each) for each in cut)
            if best is None or area < best[0]: best = area, cut
    return best[1]"""}


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "hw"
    write_assignment("engine/stacked", folder, seed=3)
    return folder


def handed_in(work, name, *functions):
    "The student's notebook with `functions` written into it, each in place of its empty one."
    book = json.loads((work / "stacked.ipynb").read_text())
    for function in functions:
        asked = re.match(r"def (\w+)", function)[1]
        for cell in book["cells"]:
            cell["source"] = re.sub(rf"(?m)^def {asked}\(.*\.\.\.$", lambda _: function, cell["source"])
    (work / f"{name}.ipynb").write_text(json.dumps(book))
    return work / f"{name}.ipynb"


def points(rows): return {row["exercise"]: row["points"] for row in rows}


# A student's way

def test_what_is_handed_out_has_no_answers(work):
    book = json.loads((work / "stacked.ipynb").read_text())
    source = "\n".join(cell["source"] for cell in book["cells"])
    assert all(f"def {name}(" in source and f"compare({name}" in source for name in SOLVED)
    assert "reveal(" not in source and "guess(" not in source and "math.inf" not in source
    assert not any(cell.get("outputs") for cell in book["cells"])
    assert json.loads((work / "grader.json").read_text()) == dict(chapter="engine/stacked", seed=3, hidden=6,
                                                                    students=[])


def test_graded_untouched_then_half_solved_then_solved(work, capsys):
    untouched = grade(work, handed_in(work, "ann"))
    assert {row["said"] for row in untouched} == {"not attempted yet"} and not any(points(untouched).values())
    slow = "def heights(steps): return [len(steps)] * max(steps)"
    half = grade(work, handed_in(work, "ann", SOLVED["groups"], slow))
    assert points(half)["groups"] == 15 and points(half)["own_means"] == 0 and points(half)["heights"] < 2.5
    assert main(["grade", str(work), str(handed_in(work, "ann", *SOLVED.values()))]) == 0
    assert "25 of 25 points" in capsys.readouterr().out
    line, = csv.DictReader((work / "grades.csv").open())
    assert line == {"student": ".", "notebook": "ann.ipynb", "own_means": "5.0", "heights": "5.0", "groups": "15.0",
                    "sum": "25.0", "of": "25"}


def test_marks_of_two_students_with_one_file_name_stay_apart(tmp_path):
    file, rows = tmp_path / "grades.csv", lambda points: [dict(exercise="f", points=points, of=5)]
    marks = lambda: [tuple(line.values()) for line in csv.DictReader(file.open())]
    for student, points in (("../a/hw", 1), ("../b/hw", 2), ("../a/hw", 3)):
        _book(file, student, "hw.ipynb", rows(points))
    assert marks() == [("../b/hw", "hw.ipynb", "2", "2", "5"), ("../a/hw", "hw.ipynb", "3", "3", "5")]
    file.write_text("notebook,f,sum,of\nhw.ipynb,1,1,5\nbob.ipynb,4,4,5\n")     # of an earlier release
    _book(file, ".", "hw.ipynb", rows(5))
    assert marks() == [("", "bob.ipynb", "4", "4", "5"), (".", "hw.ipynb", "5", "5", "5")]


def test_a_student_is_the_folder_of_the_file(work, tmp_path, monkeypatch):
    booked = []
    monkeypatch.setattr(classroom, "_book", lambda *line: booked.append(line[1:3]))
    monkeypatch.setattr(classroom, "marks_of", lambda *_: [])
    for student in ("ann", "bob"):
        (work.parent / student).mkdir()
        grade(work, shutil.move(handed_in(work, "hw"), work.parent / student / "hw.ipynb"))
    assert booked == [("../ann", "hw.ipynb"), ("../bob", "hw.ipynb")]


def test_an_assignment_that_is_there_stays_as_it_is(work, capsys):
    before = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    assert main(["assignment", "engine/stacked", str(work)]) == 2
    err = capsys.readouterr().err
    assert "is there already, and stays as it is" in err and err.count("\n") == 1
    assert before == {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}


def test_a_copy_is_opened_and_filled_where_one_is(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(command.subprocess, "call", lambda line: opened.append(line[-1]) or 0)
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "01"]) == 0
    monkeypatch.chdir(tmp_path / "course" / "engine")
    assert main(["lab", "01"]) == 0 and main(["copy"]) == 0
    name = Path("course") / "01_drift.ipynb"
    assert opened == [str(name), str(tmp_path.resolve() / name)]
    assert not [*(tmp_path / "course").rglob("course")] and "copied into" in capsys.readouterr().out


@pytest.mark.parametrize("line, said", [
    ("assignment nosuch x", "chapter 'nosuch' is unknown"), ("assignment all x", "of one chapter, not"),
    ("assignment wire x --hidden 0", "--hidden 0 must be 1 or more"),
    ("assignment wire x --seed -1", "--seed -1 must be 0 or more"),
    ("assignment evidence/left_open x", "has no exercises"),
    ("grade nowhere a.ipynb", "holds no assignment"),
    ("grade WORK nowhere.ipynb", "is not a notebook"), ("grade WORK x --patience 0", "must be above 0"),
    ("slides nosuch", "chapter 'nosuch' is unknown"), ("slides all", "of one chapter, not of all"),
    ("lab nosuch", "chapter 'nosuch' is unknown"), ("progress --folder nowhere", "is no copy of the")])
def test_a_mistake_is_one_sentence(line, said, work, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(line.replace("WORK", str(work)).split()) == 2
    err = capsys.readouterr().err
    assert said in err and err.startswith("fedbook: ") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


# Ways round it

BY_FILE = Path(fedbook.__file__).parent / "answers" / "stacked.py"
FRAMES = """def heights(*case):
    import gc, sys
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if getattr(value, "__module__", "") == "fedbook.answers.stacked":
                return value(*case)
        frame = frame.f_back
    return [f for f in gc.get_objects() if getattr(f, "__name__", "") == "heights"][0]"""
CHEATS = {
    "imports": ("def own_means(*c): from fedbook.answers import stacked; return stacked.own_means(*c)",
                "def heights(*c):\n    import importlib\n"
                "    return importlib.import_module('fedbook.answers.stacked').heights(*c)",
                f"def groups(*c):\n    import sys; sys.path.insert(0, {str(BY_FILE.parents[2])!r})\n"
                "    for name in [n for n in sys.modules if n.startswith('fedbook')]: del sys.modules[name]\n"
                "    from fedbook.answers import stacked; return stacked.groups(*c)"),
    "files": (f"def own_means(*c):\n    exec(open({str(BY_FILE)!r}).read(), names := {{}})\n"
              "    return names['own_means'](*c)",
              f"def heights(*c):\n    import os; text = os.read(os.open({str(BY_FILE)!r}, 0), 9999)\n"
              "    exec(text, names := {}); return names['heights'](*c)",
              "def groups(*c):\n    import subprocess\n"
              f"    text = subprocess.check_output(['cat', {str(BY_FILE)!r}])\n"
              "    exec(text, names := {}); return names['groups'](*c)"),
    "others": ("def own_means(*c): print('correct on 4 cases'); return ...", FRAMES,
               "def groups(counts, size): return {(5, 60, 58, 6): [[0, 3], [1, 2]], (3, 1, 2): [[0, 1, 2]]}"
               ".get(tuple(counts), [])"),
    "equal to all": ("class Yes(tuple):\n    def __eq__(self, other): return True\n"
                     "def own_means(*c): return Yes()",
                     "class Any(list):\n    def __eq__(self, other): return True\n"
                     "def heights(*c): return Any(['x'])", "def groups(*c): import os; os._exit(0)")}


def with_helpers(work, name, functions):
    "As `handed_in`, for functions that come with a class before them."
    parts = [re.split(r"(?m)^(?=def )", function, maxsplit=1) for function in functions]
    path = handed_in(work, name, *(own for _, own in parts))
    book = json.loads(path.read_text())
    helpers = [dict(cell_type="code", source=before) for before, _ in parts if before]
    path.write_text(json.dumps(book | dict(cells=helpers + book["cells"])))
    return path


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_gets_nothing(name, work):
    rows = grade(work, with_helpers(work, "eve", CHEATS[name]))
    assert [row["said"] for row in rows if row["points"]] == [], rows
    assert not any(row["said"].startswith("correct") for row in rows)


def test_a_near_miss_is_no_solution_and_a_solution_of_another_kind_is_one():
    attempts = loaded(ROOT / "tests" / "attempts" / "stacked.py")
    for named, attempt in vars(attempts).items():
        if "__" not in named.strip("_") or not callable(attempt): continue
        name, kind = re.fullmatch(r"(.+?)__(wrong|right)_.*", named).groups()
        row, = [row for row in marks_of(STACKED, lambda n: renamed(attempt, n), 5) if row["exercise"] == name]
        assert row["points"] == row["of"] if kind == "right" else row["points"] <= row["of"] / 2, (named, row)


def renamed(attempt, name):
    def f(*case): return attempt(*case)
    f.__name__ = name
    return f


def test_a_constant_and_cases_learnt_by_heart_earn_nothing():
    yes_no = [True, False, True, True]
    assert credit([True], [True, False, True, True], yes_no) == 0      # always yes
    assert credit([True, True], [False] * 4, [1, 2, 3, 4]) == 0        # the visible ones by heart
    assert credit([True], [True] * 4, [1, 1, 1, 1]) == 1
    assert 0 < credit([True], [True, True, True, False], [1, 2, 3, 4]) < 0.5
    assert credit([False], [True] * 4, [1, 2, 3, 4]) == 0.5


def test_a_pupil_gives_functions_and_what_it_raised(tmp_path):
    source = ("def made(n): return lambda k: [n, (k, {n: {k}})]\ndef bad(x): x.append(1)\ndef gone(): 1 / 0\n"
              "def endless():\n    while True: pass")
    (tmp_path / "own.ipynb").write_text(json.dumps(dict(cells=[
        dict(cell_type="code", source="this is no Python"), dict(cell_type="code", source="%magic\n" + source)])))
    with Pupil(tmp_path / "own.ipynb") as pupil:
        assert pupil.function("made")(3)(4) == [3, (4, {3: {4}})]
        for name, case, said in (("bad", ([],), "argument number 1 in place"), ("gone", (), "division by zero"),
                                 ("none", (), "name 'none' is not defined")):
            with pytest.raises(Exception, match=said): pupil.function(name)(*case)
        pupil.patience = 1
        for said in ("longer than 1 seconds", "not asked again"):
            with pytest.raises(Exception, match=said): pupil.function("endless")()
        pupil.patience = 30
        assert pupil.function("made")(1)(2) == [1, (2, {1: {2}})], "a new process has begun"


# Every chapter

def test_every_exercise_has_hidden_cases():
    for name, path in chapters().items():
        if not exercises_of(path): continue
        text = (ROOT / "teaching" / "hidden" / f"{module_name(name)}.py").read_text()
        drawn = {each for each in re.findall(r"(?m)^def ([a-z]\w*)", text) if "__" not in each}
        assert drawn == set(exercises_of(path)), name
        assert all(task.sources and task.points for task in tasks(path))


PATH = [each if each == "01_drift" else pytest.param(each, marks=pytest.mark.slow) for each in find("path")]


def unwritten(name):
    def attempt(*case): ...
    attempt.__name__ = name
    return attempt


@pytest.mark.parametrize("chapter", PATH)
def test_what_is_exported_earns_nothing(chapter):
    "Against each variation: the exported solutions, the answer to the text's own form, the other variations' answers."
    path, module = chapters()[chapter], module_name(chapter)
    for exam in exams(path, unwritten):
        extra, asked = hidden_cases(module, exam.name, 7, 6), variations(module, exam.name)
        assert asked, exam.name
        for change in asked:
            varied = _as_varied(exam, change)
            assert len(change.__doc__.split()) > 3
            assert _mark(varied, change, extra)["points"] == exam.points, change
            others = [each for each in asked if each is not change]
            for named in [exam.answer, *map(by_name, exported_solutions(exam)), *others]:
                assert _mark(varied, named, extra)["points"] == 0, (change, named)


def test_students_are_asked_for_different_variations(monkeypatch):
    monkeypatch.setattr(classroom, "_hidden", cache(classroom._hidden))
    students, blanks = [f"student{n}" for n in range(20)], 0
    for module, path in ((module_name(name), path) for name, path in find("path").items()):
        for name in exercises_of(path):
            known = {each.__doc__ for each in variations(module, name)}
            assert len(known) >= 2, f"{module}: {name} has {len(known)} variations"
            assert {variation(module, name, 5, each).__doc__ for each in students} == known, (module, name)
            blanks += 1
    assert blanks > 80


def by_name(dotted):
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("chapter", PATH)
def test_a_hand_out_is_tried_without_answers(chapter, number, tmp_path, capsys, monkeypatch):
    "Its cells run, and say that nothing is attempted, or that what is asked for is right."
    path = chapters()[chapter]
    drawn = lambda module, name, *_: variations(module, name)[number]
    monkeypatch.setattr(classroom, "variation", drawn)
    handed, _ = write_assignment(chapter, tmp_path / "hw", seed=3)
    book = json.loads(handed.read_text())
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    text = "\n".join(cell["source"] for cell in cells)
    imported = {each.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)
                for each in node.names}
    assert not imported & solutions_of(path) and "answers" not in text
    right = {name: renamed(drawn(module_name(chapter), name), name) for name in exercises_of(path)}
    for module in [name for name in sys.modules if name.startswith("fedbook.answers")]:
        monkeypatch.setitem(sys.modules, module, None)       # importing it raises an error
    for written, said in ((False, "not attempted yet"), (True, "correct on")):
        names = {"__name__": "__main__"}
        capsys.readouterr()
        for cell in cells:
            for node in ast.parse(cell["source"]).body:
                exec(compile(ast.Module([node], []), chapter, "exec"), names)
                if written and getattr(node, "name", "") in right: names[node.name] = right[node.name]
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == text.count("\ncompare(") and all(line.startswith(said) for line in lines), lines


@pytest.mark.parametrize("chapter", PATH)
def test_the_right_functions_of_a_chapter_get_all_points_in_the_sandbox(chapter, tmp_path):
    "Without variations (an assignment of an earlier release), and with what the library has of the answers."
    path, module = chapters()[chapter], module_name(chapter)
    kept = dict(chapter=chapter, seed=5, hidden=6)
    (tmp_path / "grader.json").write_text(json.dumps(kept))
    own = (BY_FILE.parent / f"{module}.py").read_text()
    cells = [re.sub(r"(?m)^from \.\.", "from fedbook.", own)]
    for exam in exams(path, unwritten):
        if exam.answer.__module__.startswith("fedbook.answers"): continue
        cells.append(f"from {exam.answer.__module__} import {exam.answer.__name__} as {exam.name}")
    handed = tmp_path / "ann.ipynb"
    handed.write_text(json.dumps(dict(cells=[dict(cell_type="code", source=cell) for cell in cells])))
    assert [row for row in grade(tmp_path, handed) if row["points"] != row["of"]] == []


def test_each_student_is_asked_for_own_variations(tmp_path, capsys):
    line = ["assignment", "01_drift", str(tmp_path / "hw"), "--seed", "5", "--students", "ann", "bob", "cyd"]
    assert main(line) == 0 and capsys.readouterr().out.count("to hand out") == 3
    files = {name: tmp_path / "hw" / name / "01_drift.ipynb" for name in ("ann", "bob", "cyd")}
    texts = {name: file.read_text() for name, file in files.items()}
    yours = {name: re.findall(r"Yours\*\*, for `(\w+)`: ([^\"]+)", text) for name, text in texts.items()}
    asked = exercises_of(chapters()["01_drift"])
    assert all([exercise for exercise, _ in each] == asked for each in yours.values())
    assert len({str(each) for each in yours.values()}) == 3
    nobody = shutil.copy(tmp_path / "hw" / "ann" / "01_drift.ipynb", tmp_path / "eve.ipynb")
    assert main(["grade", str(tmp_path / "hw"), str(nobody)]) == 2
    assert "is of no student of this assignment" in capsys.readouterr().err
    for bad in ("../x", "a b", "ann"):
        assert main(["assignment", "01_drift", str(tmp_path / "no"), "--students", "ann", bad]) == 2
    assert not (tmp_path / "no").exists()


def test_where_nothing_is_varied_what_the_library_solves_is_worth_nothing():
    path = chapters()["datasets/streets"]
    free = marks_of(path, unwritten, 3, student="")
    assert {row["exercise"]: row["of"] for row in free} == {
        exam.name: 0 if exported_solutions(exam) else exam.points for exam in exams(path, unwritten)}


def test_the_syllabus_says_what_the_chapters_say():
    fill = loaded(ROOT / "teaching" / "fill.py")
    text = fill.SYLLABUS.read_text()
    assert fill.refilled(text) == text, "run: python teaching/fill.py"
    plans = text.split("\n# ")[1:]
    assert [plan.partition(":")[0] for plan in plans] == ["A weekend", "In 6 weeks", "In 13 weeks"]
    for plan in plans:
        read = set()
        for stem, before, can in re.findall(r"(?m)^\| \[([\w/]+)\]\(.*?\) \| \d+ \| (.*?) \| (.+) \|$", plan):
            needed = {name for name in before.split(", ")
                      if name in chapters() and not name.startswith("datasets/")}
            assert needed <= read and can.strip(), f"{stem} comes before {needed - read}"
            read.add(stem)
    assert {"10_fedreplay", "11_fedmox", "12_fedklpr", "13_fedcbdr", "14_fedgtea"} <= read
    walked = {name for name in chapters() if not name.startswith("datasets/")}
    assert {name for name in walked if f"[{name}](" not in text} == set(), "neither in a plan nor left out"


PROJECTS = {path.stem: path for path in sorted((ROOT / "teaching" / "projects").glob("*.py"))}

@pytest.mark.slow
@pytest.mark.parametrize("name", by_day(PROJECTS, "absent_small"))
def test_a_project_runs(name, capsys):
    if name == "smaller_steps": pytest.importorskip("dp_accounting")
    path = PROJECTS[name]
    runpy.run_path(str(path))["main"]("smoke")
    assert len(capsys.readouterr().out.splitlines()) >= 2
    assert f"({path.name})" in path.with_name("README.md").read_text()


def test_slides_show_figures_and_formulas_and_no_answers(tmp_path, capsys):
    target = tmp_path / "slides.html"
    assert main(["slides", "engine/wire", "--to", str(target)]) == 0
    page, cells = target.read_text(), slide_cells(chapters()["engine/wire"])
    assert page.count("<section") > 15 and "data:image/png" in page
    assert "from the network" in capsys.readouterr().out
    assert "Exercises" not in "".join(cell.source for cell in cells) and "Answer: <code>" not in page
    assert {cell.metadata["slideshow"]["slide_type"] for cell in cells} == {"slide", "subslide", "notes"}


def test_a_slide_holds_little_and_its_formulas_need_no_network(tmp_path):
    pytest.importorskip("latex2mathml")
    kind = lambda cell: cell.metadata["slideshow"]["slide_type"]
    cells = [cell for cell in slide_cells(chapters()["01_drift"]) if kind(cell) != "notes"]
    shown = "\n".join(cell.source for cell in cells)
    assert all(len(cell.get("outputs", [])) <= 1 for cell in cells)
    assert max(cell.source.count("\n") for cell in cells if cell.cell_type == "markdown") < 25
    assert "minutes)" not in shown and not any(cell.source.startswith("reveal(") for cell in cells)
    assert not any("sizes_table(" in cell.source for cell in slide_cells(chapters()["engine/local"]))
    main(["slides", "01_drift", "--to", str(tmp_path / "slides.html")])
    page = (tmp_path / "slides.html").read_text()
    assert "<math" in page and "mathjax" not in page.lower() and "$$" not in page


@pytest.mark.parametrize("text, wanted", [
    (r"a $x_1$.", "a <math"), (r"`$x$` stays", r"`$x$` stays"), ("```\n$x$\n```", "```\n$x$\n```"),
    (r"\$5 and \$6", r"\$5 and \$6"), (r"$$\hat y = \arg\min_c \big\| x \big\| \tag{2}$$", "argmin"),
    (r"$\Big\lfloor n \Big\rfloor$", "&#x0230A;")])
def test_formulas_become_mathml(text, wanted):
    pytest.importorskip("latex2mathml")
    found = with_mathml(text)
    assert wanted in found and ("<math" in found) == (found != text)
    assert "\\" not in re.sub("<[^>]+>", "", found).replace("\\$", "")


def test_every_formula_of_the_course_becomes_mathml():
    pytest.importorskip("latex2mathml")
    for path in chapters().values():
        for cell in nbformat.read(path, 4).cells:
            found = with_mathml(cell.source) if cell.cell_type == "markdown" else ""
            for formula in re.findall("(?s)<math.*?</math>", found):
                assert "\\" not in re.sub("<[^>]+>", "", formula), (path.name, formula)


# A reader's copy

def test_what_is_solved_is_noted_in_a_readers_copy_alone(tmp_path, monkeypatch, capsys):
    from fedbook.answers import stacked as answers
    (tmp_path / "course" / "engine").mkdir(parents=True)
    (tmp_path / "course" / "00_start.ipynb").write_text("{}")
    names = dict(answers=answers)
    exec(SOLVED["heights"], names)
    def solve(): check(names["heights"], answers.heights, [([1],), ([2, 1],)])

    monkeypatch.chdir(tmp_path / "course")
    solve()
    assert progress_file() is None and not (tmp_path / "course" / lab.PROGRESS).exists()
    Path(lab.PROGRESS).write_text("{}")
    monkeypatch.chdir(tmp_path / "course" / "engine")
    solve()
    assert solved_in(progress_file()) == {"stacked": ["heights"]}
    assert capsys.readouterr().out == "correct on 2 cases\ncorrect on 2 cases, noted in progress.json\n"
    assert main(["progress", "--folder", "elsewhere"]) == 2
    assert "'elsewhere' is no copy" in capsys.readouterr().err
    assert main(["progress"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"engine/stacked +1 of 3 +own_means, groups", out) and "\n1 of " in out
    progress_file().write_text("[]")
    solve()
    assert progress_file().read_text() == "[]" and main(["progress"]) == 2
    assert "delete it, fedbook copy makes a new one" in capsys.readouterr().err


def test_lab_opens_a_chapter_of_the_copy(tmp_path, monkeypatch):
    opened = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "needs", lambda package: None)
    monkeypatch.setattr(command.subprocess, "call", lambda line: opened.append(line[2:]) or 0)
    assert [main(["lab"]), main(["lab", "all"]), main(["lab", "wire"])] == [0, 0, 0]
    assert opened == [["jupyterlab", f"course/{name}.ipynb"]
                      for name in ("00_start", "00_start", "engine/wire")]
    assert solved_in(Path("course", lab.PROGRESS)) == {} and Path("course", "answers").is_dir()
    assert not (ROOT / "nbs" / lab.PROGRESS).exists()


# A machine

def test_the_doctor_names_each_problem_with_its_cure(monkeypatch, capsys):
    assert main(["doctor"]) == 0
    lines = {line[:18].strip(): line[18:] for line in capsys.readouterr().out.splitlines()}
    assert {"Python", "cores", "memory", "free disk", "GPU", "versions", "data and weights", "smoke", "quick",
            "full"} <= lines.keys()
    assert "hours for all" in lines["full"] and "->" not in lines["Python"]
    found = classroom.find_spec
    monkeypatch.setattr(classroom, "find_spec", lambda name: None if name == "flwr" else found(name))
    monkeypatch.setattr(classroom, "memory_here", lambda: 3e9)
    said = {finding.what: finding for ask in (classroom._machine, classroom._packages) for finding in ask()}
    assert said["extra flower"].cure == how_to_install("flower") == f"pip install -e '{ROOT}[flower]'"
    assert "deploy/flower" in said["extra flower"].found and "--at-once 1" in said["memory"].cure
