"""The chapters of the path in numbers: they keep their limits, and say their minutes as they are counted."""
import importlib.util
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("evenings", ROOT / "tools" / "evenings.py")
evenings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(evenings)

WRITTEN = ["00_start", "01_drift", "02_skew", "03_messages"]  # the chapters that are evenings by now


@pytest.fixture(scope="module", params=WRITTEN)
def evening(request): return evenings.measured(ROOT / "nbs" / f"{request.param}.ipynb")


def test_an_evening_is_no_longer_than_an_evening(evening):
    assert evening.words <= 2500 and evening.lines <= 500 and evening.minutes <= 150
    assert 0 < evening.figure <= 40
    assert all(3 <= blank.lines <= 20 for blank in evening.blanks if evening.name != "00_start")


def test_the_first_cell_says_the_minutes_that_were_counted(evening):
    first = nbformat.read(ROOT / "nbs" / f"{evening.name}.ipynb", 4).cells[0].source
    assert evening.time() in first, f"python tools/evenings.py --write {evening.name}"


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
