"""The chapters of the path in numbers: they keep their limits, and say their minutes as they are counted."""
import ast
import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

from fedbook.kit.classroom import exams
from fedbook.kit.runs import code_cells

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("evenings", ROOT / "tools" / "evenings.py")
evenings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(evenings)

WRITTEN = ["00_start", "01_drift", "02_skew", "03_messages", "10_fedreplay", "11_fedmox", "12_fedklpr", "13_fedcbdr",
           "14_fedgtea", "20_beyond"]


@pytest.fixture(scope="module", params=WRITTEN)
def evening(request): return evenings.measured(ROOT / "nbs" / f"{request.param}.ipynb")


def test_an_evening_is_no_longer_than_an_evening(evening):
    assert evening.words <= 2500 and evening.lines <= 500 and evening.minutes <= 150
    assert 0 < evening.figure <= 40
    assert evening.share >= 0.2 or evening.name == "00_start"
    assert all(3 <= blank.lines <= 20 for blank in evening.blanks if evening.name != "00_start")


def test_the_first_cell_says_the_minutes_that_were_counted(evening):
    first = nbformat.read(ROOT / "nbs" / f"{evening.name}.ipynb", 4).cells[0].source
    assert evening.time() in first, f"python tools/evenings.py --write {evening.name}"


def test_the_first_cell_names_the_chapters_on_which_it_stands(evening):
    unsaid = set(evening.needs) - set(evening.said)
    assert not unsaid, f"{evening.name} imports or links to {sorted(unsaid)}: say so behind **Before this**"
    assert all(name < evening.name for name in evening.said)
    more = set(evening.said) - {"00_start", "01_drift"}
    assert len(more) <= 1, f"an evening stands on 00, 01 and one more chapter, not on {sorted(more)}"


V4 = nbformat.v4
BEFORE = "**Before this** [00_start](00_start.ipynb).\n\nSee [02_skew](02_skew.ipynb)."


def needs(path, first, *cells):
    nbformat.write(V4.new_notebook(cells=[V4.new_markdown_cell(f"# One\n\n{first}"), *cells]), path)
    found = evenings.measured(path)
    return found.needs, found.said, evenings.needs_text(found)


@pytest.mark.parametrize("line", [
    "import fedbook.fedgtea", "from fedbook.fedgtea import CATE", "from fedbook import fedgtea",
    "import fedbook.fedgtea as paper", "from fedbook.answers import fedgtea as answers",
    "def late():\n    from fedbook.answers.fedgtea import pooled"])
def test_an_import_that_the_first_cell_does_not_say_is_reported(tmp_path, line):
    cell = V4.new_code_cell(f"#| hide\n{line}")
    found = needs(tmp_path / "03_messages.ipynb", BEFORE.partition("See")[0], cell)
    assert found == (["00_start", "14_fedgtea"], ["00_start"], "00 (14)")


def test_a_link_to_an_earlier_chapter_is_a_need_but_not_one_to_a_wing_a_later_one_or_a_paper(tmp_path):
    wings = V4.new_code_cell("import fedbook.evidence.fedgtea\nfrom fedbook.datasets.split import skew\n"
                             "from fedbook.engine.local import drift\nfrom fedbook.answers import messages")
    linked = V4.new_markdown_cell("[next](10_fedreplay.ipynb), [a wing](engine/wire.ipynb), "
                                  "[a site](https://a.b/01_drift.ipynb)")
    found = needs(tmp_path / "03_messages.ipynb", BEFORE, wings, linked)
    assert found == (["00_start", "02_skew"], ["00_start"], "00 (02)")
    paper = V4.new_markdown_cell("[10](10_fedreplay.ipynb)")
    assert needs(tmp_path / "11_fedmox.ipynb", "No need.", paper) == ([], [], "-")


LIBRARY = r"fedbook\.(?!answers|kit|evidence|engine\.(show|sizes))"
NOT_IN_THE_LIBRARY = {"pull", "suppress"}  # asserted all the same, without it


def compared(path):
    """The blanks of the chapter at `path` whose answer is no function of the library, to whether a cell
    behind the blank asserts something of that answer and names what comes from the library."""
    sources = ["\n".join(evenings.lines_of(source)) for source in code_cells(path)]
    trees = [ast.parse(source) for source in sources]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    library = {node.name for node in nodes if isinstance(node, ast.ClassDef) and node.bases}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and re.match(LIBRARY, node.module):
            library |= {alias.asname or alias.name for alias in node.names}
    found = {}
    for exam in exams(path, evenings._unsolved):
        if not exam.answer.__module__.startswith("fedbook.answers"): continue
        [blank] = [i for i, source in enumerate(sources) if f"check({exam.name}," in source]
        asserts = [i for i, source in enumerate(sources) if i > blank and "assert" in source
                   and re.search(rf"answers\.{exam.answer.__name__}\(", source)]
        own = exam.name in NOT_IN_THE_LIBRARY
        found[exam.name] = any(own or library & set(re.findall(r"\w+", sources[i])) for i in asserts)
    return found


@pytest.mark.parametrize("name", WRITTEN[1:])
def test_what_the_reader_writes_is_asserted_to_agree_with_the_library(name):
    path = ROOT / "nbs" / f"{name}.ipynb"
    found = compared(path)
    assert found and all(found.values()), [blank for blank, there in found.items() if not there]


def test_a_blank_that_no_cell_compares_is_found(tmp_path):
    book = nbformat.read(ROOT / "nbs" / "02_skew.ipynb", 4)
    for cell in book.cells:
        if "answers.merge(replies)" in cell.source: cell.source = cell.source.replace("assert ", "_ = ")
        if "stepped = answers" in cell.source: cell.source = ""
    nbformat.write(book, tmp_path / "02_skew.ipynb")
    assert [blank for blank, there in compared(tmp_path / "02_skew.ipynb").items() if not there] == [
        "merge", "distilled_step"]


def test_the_doors_of_the_first_evening_say_the_minutes_of_each_chapter_as_counted():
    start = nbformat.read(ROOT / "nbs" / "00_start.ipynb", 4)
    linked = [name for cell in start.cells for name in evenings.LINKED_TIME.findall(cell.source)]
    others = [path.stem for path in sorted((ROOT / "nbs").glob("[0-9]*.ipynb")) if path.stem != "00_start"]
    assert linked == others, "a door leads to each chapter of the path, in its order"
    told = [cell.source for cell in start.cells]
    assert evenings.with_minutes(start, ROOT / "nbs") == told, "python tools/evenings.py --write 00_start"


def test_the_readme_says_minutes_and_hours_as_counted():
    text = evenings.README.read_text()
    linked = evenings.LINKED_TIME.findall(text)
    assert linked == [path.stem for path in sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))]
    assert evenings.ALL_HOURS.search(text) and evenings.ONE_PAPER.search(text)
    assert evenings.readme_with_minutes(text, ROOT / "nbs") == text, "python tools/evenings.py --write"


SYLLABUS = (ROOT / "teaching" / "syllabus.md").read_text()


def syllabus_rows(text): return re.findall(r"(?m)^\| \[([\w/]+)\]\(.*?\) \| (\d+) \|", text)


def test_the_syllabus_says_the_minutes_that_were_counted(evening):
    told = {minutes for name, minutes in syllabus_rows(SYLLABUS) if name == evening.name}
    assert told == {str(evening.minutes)}, "python tools/evenings.py --write"


def test_every_week_of_a_plan_is_the_sum_of_its_chapters_and_no_longer_than_five_hours():
    weeks = re.findall(r"(?ms)^## ([^\n]*?), (\d+) minutes: [^\n]*\n(.*?)(?=^#|\Z)", SYLLABUS)
    assert len(weeks) == 2 + 6 + 13
    for title, total, rows in weeks:
        assert int(total) == sum(int(minutes) for _, minutes in syllabus_rows(rows)) <= 300, title


def test_a_paper_from_zero_is_itself_and_all_on_which_it_stands():
    book = lambda name, minutes, needs, said: evenings.Evening(
        name, 200 * minutes, 0, 0, 0, 0, 0.0, [], needs, said)
    path = [book("00_start", 50, [], []), book("01_drift", 100, ["00_start"], []),
            book("02_skew", 120, [], ["01_drift"]),
            book("13_fedcbdr", 140, ["01_drift"], ["02_skew"]), book("14_fedgtea", 10, [], ["99_gone"])]
    assert evenings.from_zero(path) == {"13_fedcbdr": 50 + 100 + 120 + 140, "14_fedgtea": 10}


def test_minutes_behind_a_link_are_filled_in(tmp_path):
    drift = "[01_drift](01_drift.ipynb) (999 minutes)"
    rest = ", [02_skew](02_skew.ipynb) (7 minutes), (8 minutes)"
    cells = [V4.new_markdown_cell("# One\n\n**Time** 3 minutes."), V4.new_code_cell(f"# {drift}"),
             V4.new_markdown_cell(drift + rest)]
    nbformat.write(V4.new_notebook(cells=cells), tmp_path / "00_start.ipynb")
    nbformat.write(V4.new_notebook(cells=[V4.new_markdown_cell("word " * 2000)]), tmp_path / "01_drift.ipynb")
    assert evenings.write_time(tmp_path / "00_start.ipynb")
    _, kept, said = nbformat.read(tmp_path / "00_start.ipynb", 4).cells
    assert kept.source == cells[1].source
    assert said.source == drift.replace("999", "10") + rest


def test_what_is_counted(tmp_path):
    v4, path = nbformat.v4, tmp_path / "01_drift.ipynb"
    cells = [v4.new_markdown_cell("# One two\n\n**Time** 3 minutes.\n`code` $x$ [three](four.md)"),
             v4.new_code_cell("#| hide\nimport math\nfrom math import (pi,\n    tau)\n\nx = 1"),
             v4.new_code_cell("y = 2\nz = 3", outputs=[v4.new_output("display_data", {"image/png": "AA=="})]),
             v4.new_markdown_cell("## Exercises\n**1.** Write (10 minutes)."),
             v4.new_code_cell("from textwrap import dedent\ndef f(text):\n    'Doc.'\n    ...\n\ncheck(f, dedent, [])")]
    notebook = v4.new_notebook(cells=cells)
    nbformat.write(notebook, path)
    found = evenings.measured(path)
    assert (found.words, found.lines, found.figure, found.method) == (8, 11, 3, 0)
    [blank] = found.blanks
    assert (blank.name, blank.minutes) == ("f", 10) and blank.lines > 10
    assert found.share == pytest.approx(blank.lines / 6) and found.minutes == 10
    assert evenings.write_time(path) and not evenings.write_time(path)
    assert "**Time** 10 minutes, 10 of them for the function" in nbformat.read(path, 4).cells[0].source
