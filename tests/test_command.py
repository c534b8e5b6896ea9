import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from fedbook import command
from fedbook.command import as_html, collect, copy_outputs, execute, fill, find, keep, main, notebook_stamp, run_chapter, run_stamp
from fedbook.lab import UserError

PARAMETERS = 'profile = "quick"\ndevice = "auto"\nseed = 0\nengine = "local"\nout = "runs"\nchanges = {}'


def chapter(folder, *cells, name="99_demo"):
    cells = [new_markdown_cell("# Demo\n\n> A demo."), new_code_cell(PARAMETERS, metadata=dict(tags=["parameters"])), *map(new_code_cell, cells)]
    path = Path(folder) / f"{name}.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata=dict(kernelspec=dict(name="python3", display_name="python3", language="python"))), path)
    return path


ROWS = """from fedbook.lab import Results
results = Results("99_demo", profile, {"data": "toy"}, seed, out, scale="toy")
for s in range(3): results.row("a", s, lambda: open("LOG", "a").write("x") and {"v": s})
results.claim("a is at least 0", results.values("a", "v"), at_least=-5)
"""


@pytest.mark.parametrize("line, said", [
    ("run nosuch", "chapter 'nosuch' is unknown; choose one of 00_start"), ("run 06_fedavg -p lr=abc", "lr='abc' is not a valid float"), ("run fedavg -p speed=3", "'speed' is not a parameter"),
    ("run 06_fedavg -p lr", "not of the form NAME=VALUE"), ("run 02_world -p lr=3", "has no parameters"), ("run all -p lr=1", "-p goes with one chapter"), ("run 01_lab --profile huge", "profile='huge' is unknown; choose one of smoke, quick, full, paper"),
    ("run 01_lab --device tpu", "device='tpu' is unknown"), ("run 01_lab --seed x", "invalid int value"), ("run 01_lab --seed -1", "seed=-1 must be"), ("run fedavg -p lr=nan", "lr=nan must be 0 or more"), ("run fedavg -p rounds=-3", "rounds=-3 must be"), ("run fedavg -p seeds=0", "seeds=0 must be at least 1"), ("run 01_lab --engine warp", "engine='warp' is unknown"),
    ("run 01_lab --out /dev/null/runs", "out='/dev/null/runs' cannot be written"), ("report /nowhere/at/all", "holds no results.json"), ("dance", "invalid choice"), ("", "required")])
def test_a_mistake_is_one_sentence(line, said, capsys):
    assert main(line.split()) != 0
    err = capsys.readouterr().err
    assert said in err and err.startswith("fedbook: ") and err.count("\n") == 1


def test_wrong_data_folder_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setenv("FEDBOOK_DATA", "/no/such/folder")
    assert main(["data"]) == 1 and "FEDBOOK_DATA" in capsys.readouterr().err


def test_python_m_fedbook_exits_with_the_code():
    done = subprocess.run([sys.executable, "-m", "fedbook", "run", "nosuch"], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr


def test_data_lists_every_set(capsys):
    assert main(["data"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("fashion_mnist_small", "cifar10", "cifar100", "EfficientNet", "market1501", "ilids"))


def test_find_takes_notebook_and_module_names():
    assert find("06_fedavg") == find("fedavg") == find("06_fedavg.ipynb")
    assert len(find("all")) >= 8


def test_rows_are_kept_until_the_code_changes(tmp_path):
    log = tmp_path / "log"
    path = chapter(tmp_path, ROWS.replace("LOG", str(log)), 'results.finish("done")')
    ran = run_chapter(path, "smoke", out=tmp_path / "runs")
    assert ran["error"] is None and ran["measured"] == "done" and log.read_text() == "xxx"
    run_chapter(path, "smoke", out=tmp_path / "runs")
    assert log.read_text() == "xxx"
    run_chapter(path, "smoke", out=tmp_path / "runs", fresh=True)
    assert log.read_text() == "xxxxxx"
    path = chapter(tmp_path, ROWS.replace("LOG", str(log)) + "\n# another program", 'results.finish("done")')
    run_chapter(path, "smoke", out=tmp_path / "runs")
    assert log.read_text() == "x" * 9


def test_changed_numbers_get_a_folder_of_their_own(tmp_path):
    run = lambda **changes: run_chapter(path, "smoke", out=tmp_path / "runs", changes=changes)
    path = chapter(tmp_path, ROWS.replace("LOG", str(tmp_path / "log")).replace('scale="toy"', 'scale="toy", changes=changes'))
    run(), run(lr="0.05")
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["99_demo-smoke-0", "99_demo-smoke-0-lr=0.05"]
    plain, changed = sorted(command.claims_table(collect(tmp_path / "runs")).splitlines()[2:], key=len)
    assert "lr=0.05" in changed and "lr" not in plain and len(keep(tmp_path / "runs", tmp_path / "kept")) == 2


@pytest.mark.parametrize("text", ["{", "{}", "[]", "3"])
def test_a_broken_results_file_is_one_sentence(text, tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "results.json").write_text(text)
    assert main(["report", str(tmp_path)]) == 1 and "is not a results.json" in capsys.readouterr().err


def test_a_missing_readme_is_one_sentence(tmp_path, capsys):
    run_chapter(chapter(tmp_path, ROWS.replace("LOG", str(tmp_path / "log"))), "smoke", out=tmp_path / "runs")
    assert main(["report", str(tmp_path / "runs"), "--readme", str(tmp_path / "none.md")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_failed_run_says_which_cell_and_keeps_what_was_done(tmp_path):
    log = tmp_path / "log"
    path = chapter(tmp_path, ROWS.replace("LOG", str(log)), "1 / 0", "print('never')")
    ran = run_chapter(path, "smoke", out=tmp_path / "runs")
    assert "cell 5 failed" in ran["error"] and "ZeroDivisionError" in ran["error"] and ran["measured"] == "FAILED"
    partial = nbformat.read(ran["notebook"], 4)
    assert any(o.output_type == "error" for c in partial.cells for o in c.get("outputs", []))
    assert len(collect(tmp_path / "runs")[0]["rows"]) == 3


def test_exit_code_and_last_line_of_a_failed_run(tmp_path, monkeypatch, capsys):
    path = chapter(tmp_path, "from fedbook.lab import UserError\nraise UserError('lr=-1 must be positive')")
    monkeypatch.setattr(command, "chapters", lambda: {"99_demo": path})
    assert main(["run", "99_demo", "--profile", "smoke", "--out", str(tmp_path / "runs")]) == 1
    assert capsys.readouterr().err.strip().splitlines()[-1] == "fedbook: 99_demo: cell 4 failed: UserError: lr=-1 must be positive"


def test_a_dead_kernel_is_reported(tmp_path):
    path = chapter(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "kernel died" in run_chapter(path, "smoke", out=tmp_path / "runs")["error"]


def test_stamps_see_code_and_not_prose(tmp_path):
    one = chapter(tmp_path, "x = 1")
    before = notebook_stamp(one), run_stamp(one)
    book = nbformat.read(one, 4)
    book.cells[0].source += " More prose."
    book.cells[2].outputs = [nbformat.v4.new_output("stream", text="hello")]
    nbformat.write(book, one)
    assert (notebook_stamp(one), run_stamp(one)) == before
    assert notebook_stamp(chapter(tmp_path, "x = 2")) != before[0]


def test_run_stamp_follows_imports(tmp_path, monkeypatch):
    path = chapter(tmp_path, "from fedbook.wire import Msg")
    plain = chapter(tmp_path, "x = 1", name="98_plain")
    before, read = (run_stamp(path), run_stamp(plain)), Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, *a, **k: read(self, *a, **k) + ("# changed" if self.name == "lab.py" else ""))
    assert run_stamp(path) != before[0] and run_stamp(plain) == before[1]


def test_report_keep_and_fill(tmp_path, capsys):
    path = chapter(tmp_path, ROWS.replace("LOG", str(tmp_path / "log")))
    run_chapter(path, "smoke", out=tmp_path / "runs")
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- results -->\nold\n<!-- /results -->\nafter\n")
    assert main(["report", str(tmp_path / "runs"), "--readme", str(readme)]) == 0
    table = (tmp_path / "runs" / "report.md").read_text().strip()
    assert table in capsys.readouterr().out and f"before\n<!-- results -->\n{table}\n<!-- /results -->\nafter" in readme.read_text()
    assert (tmp_path / "runs" / "report.html").read_text().count("<tr>") == 2
    kept = keep(tmp_path / "runs", tmp_path / "results")
    assert [k.name for k in kept] == ["99_demo-smoke-0-toy.json"] and collect(tmp_path / "results") == collect(tmp_path / "runs")
    readme.write_text("no markers")
    with pytest.raises(UserError, match="markers|has no lines"): fill(readme, table)


def test_html_is_escaped(): assert "&lt;b&gt;" in as_html("| a |\n|---|\n| <b> |") and "<b>" not in as_html("| a |\n|---|\n| <b> |")


def test_outputs_are_copied_back_by_cell_id(tmp_path):
    path = chapter(tmp_path, "print('first', profile)", "import sys; print('bar', file=sys.stderr)", "2 + 2")
    target = tmp_path / "done.ipynb"
    assert execute(path, target, dict(profile="smoke")) is None
    copy_outputs(target, path, "profile `smoke`, seed 0")
    book = nbformat.read(path, 4)
    assert book.cells[2].outputs[0].text == "first smoke\n" and book.cells[3].outputs == [] and book.cells[4].outputs[0].data["text/plain"] == "4"
    assert book.cells[0].source.endswith("*Outputs: profile `smoke`, seed 0.*") and book.metadata.fedbook.stamp == notebook_stamp(path) and len(book.cells) == 5
    copy_outputs(target, path, "profile `full`, seed 0")
    assert nbformat.read(path, 4).cells[0].source.count("*Outputs:") == 1
