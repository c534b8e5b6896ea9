"""Notebooks executed at smoke, in kernels, as a reader has them: the first chapter, and Flower's, which starts
processes of its own, as a GPU does not allow. `make test-all`, and `make test DEVICE=cuda` on a GPU, run
all of them so, and the answers; otherwise test_pretended.py runs each once, on a pretended GPU."""
import json
import os
from pathlib import Path

import nbformat
import pytest

from conftest import ALL
from fedbook.engine.files import run_dir
from fedbook.kit.classroom import exercises_of
from fedbook.kit.runs import chapters, code_cells, run_chapter
from pretended import MISSING

ANSWERS = sorted((Path(__file__).parent.parent / "nbs" / "answers").glob("*.ipynb"))
DEVICE = os.environ.get("FEDBOOK_DEVICE", "auto")
EVERY = ALL or bool(MISSING) or DEVICE != "auto"


@pytest.mark.parametrize("name", chapters() if EVERY else ("00_start", "deploy/flower"))
def test_chapter_runs(name, tmp_path):
    ran = run_chapter(chapters()[name], "smoke", DEVICE, out=tmp_path)
    assert ran["error"] is None, ran["error"]
    assert ran["measured"]
    results = run_dir(name, "smoke", 0, tmp_path) / "results.json"
    assert json.loads(results.read_text())["profile"] == "smoke"
    text = "".join(o.get("text", "") for c in nbformat.read(ran["notebook"], 4).cells
                   for o in c.get("outputs", []))
    asked = exercises_of(chapters()[name])
    assert text.count("not attempted yet") >= min(3, len(asked)), "exercises come unsolved"


@pytest.mark.parametrize("path", ANSWERS if EVERY else (), ids=lambda p: p.stem)
def test_answers_run(path):
    names = {}
    for source in code_cells(path): exec(compile(source, path.name, "exec"), names)
