"""Notebooks executed at smoke, in kernels, as a reader has them. `make test DEVICE=cuda` runs all of them
on a GPU.

Otherwise test_pretended.py runs every chapter, on a pretended GPU; here are those that start processes of
their own, which a GPU does not allow, and a few others. Where there is no pretended GPU, all chapters run here."""
import json
import os
from pathlib import Path

import nbformat
import pytest

from fedbook.runs import chapters, code_cells, run_chapter
from pretended import MISSING

ANSWERS = sorted((Path(__file__).parent.parent / "nbs" / "answers").glob("*.ipynb"))
DEVICE = os.environ.get("FEDBOOK_DEVICE", "auto")
HERE = ("00_start", "06_engine", "13_fedcbdr", "20_flower", "20_nodes", "30_command", "w1_lab", "w10_runs",
        "w11_classroom")


@pytest.mark.parametrize("name", chapters() if MISSING or DEVICE != "auto" else HERE)
def test_chapter_runs(name, tmp_path):
    ran = run_chapter(chapters()[name], "smoke", DEVICE, out=tmp_path)
    assert ran["error"] is None, ran["error"]
    assert ran["measured"]
    assert json.loads((tmp_path / f"{name}-smoke-0" / "results.json").read_text())["profile"] == "smoke"
    text = "".join(o.get("text", "") for c in nbformat.read(ran["notebook"], 4).cells
                   for o in c.get("outputs", []))
    assert text.count("not attempted yet") >= 3, "exercises come unsolved"


@pytest.mark.parametrize("path", ANSWERS, ids=lambda p: p.stem)
def test_answers_run(path):
    names = {}
    for source in code_cells(path): exec(compile(source, path.name, "exec"), names)
