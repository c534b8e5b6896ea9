"""Every notebook, executed at smoke. `make test DEVICE=cuda` runs them on a GPU."""
import json
import os
from pathlib import Path

import nbformat
import pytest

from fedbook.runs import chapters, code_cells, run_chapter

ANSWERS = sorted((Path(__file__).parent.parent / "nbs" / "answers").glob("*.ipynb"))


@pytest.mark.parametrize("name", chapters())
def test_chapter_runs(name, tmp_path):
    ran = run_chapter(chapters()[name], "smoke", os.environ.get("FEDBOOK_DEVICE", "auto"), out=tmp_path)
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
