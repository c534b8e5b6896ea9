"""bench/gpu.py: what it runs, when it stops, how it goes on. Nothing here needs a GPU."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = "gpu"
ROOT = Path(__file__).parent.parent


@pytest.fixture
def tour(bench, monkeypatch, tmp_path):
    """`tour(came, *options)` runs three pieces that do nothing: `came` maps a piece's name to what comes of
    it. Returns the exit code, the names of those that ran, and the results file's entries."""
    three = [bench.Piece(size, ROOT / f"nbs/{stem}.ipynb") for size, stem in
             (("smoke", "00_start"), ("smoke", "methods/score"), ("quick", "14_fedgtea"))]
    monkeypatch.setattr(bench, "pieces", lambda: three)
    forget = bench.stamp_of.cache_clear
    forget()

    def run(came, *options):
        ran = []
        def started(piece, device, out, seconds):
            ran.append(piece.name)
            what = came.get(piece.name, dict(state="ok"))
            if isinstance(what, BaseException): raise what
            return dict(what, seconds=1.0)
        monkeypatch.setattr(bench, "started", started)
        code = bench.main(["--device", "cpu", "--out", str(tmp_path), "--results", str(tmp_path), *options])
        file = tmp_path / "gpu-cpu.json"
        entries = json.loads(file.read_text())["pieces"] if file.exists() else []
        return code, ran, {entry["piece"]: entry for entry in entries}
    yield run
    forget()


ALL = ["smoke 00_start", "smoke methods/score", "quick 14_fedgtea"]


def test_every_notebook_the_papers_and_the_benches_that_use_a_gpu(bench):
    names = [piece.name for piece in bench.pieces()]
    assert len(set(names)) == len(names) and all(piece.path.exists() for piece in bench.pieces())
    assert {"smoke engine/wire", "smoke methods/fedavg", "quick 10_fedreplay", "bench moe"} <= set(names)
    uses_gpu = {path.stem for path in (ROOT / "bench").glob("*.py") if "cuda.synchronize" in path.read_text()}
    assert set(bench.BENCHES) == uses_gpu - {"gpu"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(bench, capsys):
    assert bench.main([]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("make gpu: PyTorch finds no GPU here") and err.count("\n") == 1


def test_what_is_done_is_not_run_again(bench, tour):
    assert tour({})[:2] == (0, ALL)
    assert tour({})[:2] == (0, [])


def test_a_piece_runs_again_when_its_code_changes(bench, tour, monkeypatch):
    tour({})
    stamp = bench.stamp_of
    monkeypatch.setattr(bench, "stamp_of", lambda name: "new" if name == ALL[1] else stamp(name))
    assert tour({})[:2] == (0, [ALL[1]])


def test_one_that_fails_does_not_stop_the_others(tour, capsys):
    failed = {ALL[0]: dict(state="error", error=f"Traceback: {ROOT}/fedbook/x.py\nValueError: no\nluck")}
    code, ran, entries = tour(failed)
    assert code == 1 and ran == ALL and [entries[name]["state"] for name in ALL] == ["error", "ok", "ok"]
    assert str(ROOT) not in entries[ALL[0]]["error"]
    out, err = capsys.readouterr()
    assert "smoke 00_start failed: luck" in err and "3 of 3 pieces are done, 1 of them failed" in out
    assert tour(failed)[:2] == (1, [ALL[0]])
    assert tour({})[:2] == (0, [ALL[0]])


def test_what_failed_before_comes_last(tour):
    tour({ALL[0]: dict(state="error", error="no"), ALL[1]: dict(state="stopped")})
    assert tour({})[1] == [ALL[1], ALL[0]]


def test_what_is_left_out_is_no_failure(tour):
    assert tour({ALL[1]: dict(state="left out", error="flwr is not installed")})[0] == 0


def test_nothing_begins_when_the_time_is_up(tour, capsys):
    assert tour({}, "--minutes", "0.4")[:2] == (0, [])
    said = capsys.readouterr().out
    assert "0 of 3 pieces are done, 0 of them failed; 3 are to come: the same command goes on" in said


def test_ctrl_c_keeps_what_was_done(tour):
    code, ran, entries = tour({ALL[1]: KeyboardInterrupt()})
    assert (code, ran, list(entries)) == (130, ALL[:2], ALL[:1])
    assert tour({})[1] == ALL[1:]


def test_numbers_and_rows_of_a_paper_are_written_short(tour, tmp_path):
    file = tmp_path / "14_fedgtea-quick-0" / "results.json"
    file.parent.mkdir()
    row = dict(what="a", seed=0, numbers={"v": 1.5, "curve": [1, 2], "text": "long"}, seconds=2)
    facts = dict(name="14_fedgtea", profile="quick", seed=0, sizes={}, scale="toy", device="cpu", changes={})
    file.write_text(json.dumps(dict(facts, claims=[], headline="all well", rows=[row])))
    found = tour({})[2][ALL[2]]
    assert found["headline"] == "all well" and found["rows"] == [dict(row, numbers={"v": 1.5})]


def test_an_error_names_no_folder_of_this_machine(bench, tmp_path):
    paths = [tmp_path / "a", ROOT / "fedbook/kit/lab.py", Path.home() / "b", Path(sys.prefix) / "c"]
    text = "\n".join(["cell 3 failed: \x1b[31mOSError\x1b[0m", *map(str, paths)])
    assert bench.plain(text, tmp_path) == "cell 3 failed: OSError\nOUT/a\n./fedbook/kit/lab.py\n~/b\nPYTHON/c"
    assert bench.plain("", tmp_path) == "no reason given"
    assert len(bench.plain("\n".join(["x" * 999] * 50), tmp_path).splitlines()) == 9


CHILD = """import sys
from pathlib import Path
sys.path[:0] = {paths}
import gpu
gpu.pieces = lambda: [gpu.Piece("bench", Path({path!r}))]
sys.exit(gpu.main(sys.argv[1:]))"""


@pytest.fixture
def ran(bench, monkeypatch, tmp_path):
    "`ran(source, seconds)` runs a bench of this source in a process of its own: what came of it."
    def run(source, seconds=60):
        path, start = tmp_path / "piece.py", subprocess.Popen
        path.write_text(source)
        child = CHILD.format(paths=[str(ROOT), str(ROOT / "bench")], path=str(path))
        piece, command = bench.Piece("bench", path), [sys.executable, "-c", child]
        monkeypatch.setattr(bench.subprocess, "Popen", lambda line, **how: start([*command, *line[2:]], **how))
        return bench.started(piece, "cpu", tmp_path, seconds)
    return run


def test_a_bench_leaves_what_it_printed(ran):
    came = ran("print('fast: 3 x')")
    assert came["state"] == "ok" and came["printed"] == ["fast: 3 x"]


@pytest.mark.parametrize("source, state, said", [
    ("raise ValueError('no')", "error", "ValueError: no"),
    ("import nosuchpackage", "left out", "nosuchpackage"),
    ("from fedbook.kit.lab import nosuchname", "error", "cannot import name"),
    ("import fedbook.nosuchmodule", "error", "No module named"),
    ("import os; os._exit(9)", "error", "its process ended with code 9"),
    ("import torch; raise torch.OutOfMemoryError('CUDA out of memory')", "error", "memory is too small")])
def test_what_goes_wrong_in_a_piece(ran, source, state, said):
    came = ran(source)
    assert came["state"] == state and said in came["error"]


def test_a_piece_is_stopped_when_its_time_is_up(ran):
    came = ran("import time; print('begun', flush=True); time.sleep(100)", 12)
    assert came["state"] == "stopped" and came["seconds"] < 60 and came["printed"][:1] == ["begun"]


def test_a_notebook_without_jupyter(bench, tmp_path):
    "A chapter with parameters, figures, sliders and `display`, where none of Jupyter's packages is there."
    for name in ("papermill", "IPython", "ipywidgets", "nbclient", "nbformat"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    line = [sys.executable, str(ROOT / "bench/gpu.py"), "--piece", "smoke methods/score", "--device", "cpu",
            "--out", str(tmp_path), "--outcome", str(tmp_path / "outcome")]
    subprocess.run(line, check=True, env=os.environ | dict(PYTHONPATH=paths, MPLBACKEND="agg"))
    assert json.loads((tmp_path / "outcome").read_text()) == dict(state="ok")
    results = json.loads((tmp_path / "methods.score-smoke-0" / "results.json").read_text())
    assert results["profile"] == "smoke" and results["headline"]
