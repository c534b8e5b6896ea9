"""bench/gpu.py: what it runs, when it stops, how it goes on. Nothing here needs a GPU."""
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from fedbook.kit.report import read_results

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
    sizes = list(dict.fromkeys(piece.size for piece in bench.pieces()))
    assert sizes == ["paths", "rows", "smoke", "quick", "bench"], "in the order of what they are worth"
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


def test_what_used_up_its_ten_minutes_goes_on_at_once(bench, tour, tmp_path, monkeypatch):
    ran, took = [], iter([bench.LONGEST, bench.LONGEST, 30.0, 1.0, 1.0])
    def started(piece, device, out, seconds):
        assert seconds <= bench.LONGEST
        ran.append(piece.name)
        now = next(took)
        return dict(state="stopped" if now > 1 else "ok", seconds=now)
    monkeypatch.setattr(bench, "started", started)
    assert bench.main(["--device", "cpu", "--out", str(tmp_path), "--results", str(tmp_path)]) == 0
    assert ran == [ALL[0]] * 3 + ALL[1:]


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
        popen = lambda line, **how: start([*command, *line[2:]], **how)
        monkeypatch.setattr(bench.subprocess, "Popen", popen)
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


# The plan -------------------------------------------------------------------------------------------------

def test_the_plan_needs_no_gpu_and_says_what_is_done(bench, tmp_path, capsys):
    row = "rows fedcbdr embedded: Re-Fed, seed 2"
    entries = [dict(piece=name, stamp=bench.stamp_of(name, "9.9"), state=state, seconds=66.0)
               for name, state in ((row, "ok"), ("smoke 00_start", "stopped"), ("bench moe", "error"))]
    (tmp_path / "gpu-X.json").write_text(json.dumps(dict(device="X", torch="9.9", pieces=entries)))
    assert bench.main(["--plan", "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if any(piece.name in line for piece in bench.pieces())]
    assert len(lines) == len(bench.pieces()) and out.count("needs half of CIFAR-10") == 2
    [done] = [line for line in lines if row in line]
    assert done.endswith(": ok on X") and sum(": ok on X" in line for line in lines) == 1
    assert next(line for line in lines if "smoke 00_start" in line).split()[1] == "1.1"
    assert next(line for line in lines if "bench moe" in line).endswith(": error on X")
    assert list(tmp_path.iterdir()) == [tmp_path / "gpu-X.json"]


def test_minutes_of_a_row_are_computed(bench, monkeypatch):
    row = lambda title, name: bench.Piece("rows", bench.SERIES[title].path, title, name, 0)
    small, large = (row(title, "Finetune") for title in ("fedcbdr embedded", "fedcbdr half cifar10"))
    assert 0 < bench.minutes_of(small, {}) < bench.minutes_of(large, {})
    assert bench.minutes_of(row(small.part, "Re-Fed"), {}) > bench.minutes_of(small, {}), "it trains on more"
    printed = ["rate fp32: 1 s a round; 350 TFLOP/s, 3100 MB/s", "rate tf32: 1 s; 900 TFLOP/s, 9 MB/s"]
    measured = {"paths resnet18": dict(piece="paths resnet18", printed=printed)}
    assert bench.rates_in(measured) == [350, 3100] and bench.rates_in({}) == [bench.TFLOPS, bench.WIRE]
    assert bench.minutes_of(large, measured) < bench.minutes_of(large, {})
    assert bench.minutes_of(bench.Piece("smoke", large.path), {}) is None


def test_a_step_is_counted_as_by_hand(bench):
    from torch import nn
    paths = bench.gpu_paths
    cost, parameters = paths.cost_of(lambda: nn.Linear(10, 3, bias=False), (10,), 4)
    forward = 2 * 4 * 10 * 3                                   # the input needs no gradient
    assert cost.flops == 2 * forward and parameters == 30 and cost.calls > 2
    assert (cost * 3).flops == 3 * cost.flops and (cost + cost).calls == 2 * cost.calls


DRY = dict(network="cnn", data="fashion_mnist_small", rounds=1, pictures=20, test_pictures=6, epochs=1,
           batch=16, buffer_size=4, clients=2, tasks=2, iterations=1, gan_batch=2, server_steps=1,
           server_batch=4, painted=4)


def test_rows_are_measured_by_their_notebooks_code(bench, tmp_path, monkeypatch):
    "Two rows of one notebook in pieces of their own, on a CPU and tiny: one results.json, no row twice."
    monkeypatch.setenv("FEDBOOK_DRY", json.dumps(DRY))
    wanted = ["fedcbdr embedded: Finetune, seed 1", "fedcbdr embedded: leverage + TTS, seed 0"]
    run = lambda: bench.main(["--device", "cpu", "--out", str(tmp_path), "--results", str(tmp_path / "r"),
                              "--only", *wanted])
    assert run() == 0
    entries = json.loads((tmp_path / "r" / "gpu-cpu.json").read_text())["pieces"]
    assert {entry["piece"] for entry in entries} == {f"rows {name}" for name in wanted}
    for entry in entries:
        [row] = entry["rows"]
        assert entry["piece"].endswith(f"{row['what']}, seed {row['seed']}")
        assert 0 <= row["numbers"]["settled"] <= 1
    [file] = tmp_path.glob("evidence.fedcbdr-paper-0-*/results.json")
    body = read_results(file)
    assert {(row["what"], row["seed"]) for row in body["rows"]} == {("Finetune", 1), ("leverage + TTS", 0)}
    path = bench.SERIES["fedcbdr embedded"].path
    assert body["stamp"] == bench.run_stamp(path), "as a run of the notebook has"
    before = file.stat().st_mtime_ns
    assert run() == 0 and file.stat().st_mtime_ns == before


@pytest.mark.parametrize("title", ["fedcbdr half cifar10", "fedgtea half cifar10", "fedmox at full", "fedklpr at full"])
def test_every_row_can_be_cut_out_of_its_notebook(bench, title):
    series = bench.SERIES[title]
    cells = bench.code_cells(series.path)
    for expression in series.rows.values():
        source = "\n".join(bench.needed(cells, expression, given="s"))
        assert "Results(" in source and "subplots" not in source and "for name in MAIN" not in source


def test_what_an_expression_needs(bench):
    cells = ["import math\nimport json", "a = 1\nb = a + 1\nprint(b)", "d = {}\nd['k'] = b\nunrelated = 5",
             "for s in range(3): f(s)", "def f(x):\n    return math.sqrt(x) + g(x)", "def g(x): return d['k']"]
    found = bench.needed(cells, "f(s)", given="s")
    assert found == ["import math", "a = 1\nb = a + 1", "d = {}\nd['k'] = b",
                     "def f(x):\n    return math.sqrt(x) + g(x)", "def g(x):\n    return d['k']"]
    assert bench.needed(["s = 1", "t = s", "t += 1"], "t") == ["s = 1", "t = s", "t += 1"]
    assert "for s in range(3):\n    f(s)" in bench.needed(cells, "s")
    own = ["d = {}\nprint(d)", "def f():\n    d = {}\n    d['k'] = 1\n    return d"]
    assert bench.needed(own, "f()") == own[1:], "a name of the function's own"


def test_half_of_cifar10(bench, tmp_path, monkeypatch, capsys):
    source, folder = tmp_path / "all", tmp_path / "half"
    source.mkdir()
    names = [f"{split}/{label}/{i:04d}.jpg" for split in ("train", "test") for label in "ab"
             for i in range(4)]
    with zipfile.ZipFile(source / "cifar10-jpg.zip", "w") as file:
        for name in names: file.writestr(name, name)
    monkeypatch.setattr(bench, "HALF", dict(pictures=3, test_pictures=1))
    monkeypatch.setenv("FEDBOOK_DATA", str(source))
    assert bench.main(["--halve", str(folder)]) == 0
    with zipfile.ZipFile(folder / "cifar10-jpg.zip") as file:
        kept = [name for name in names if int(name[-8:-4]) < (1 if "test" in name else 3)]
        assert sorted(file.namelist()) == sorted(kept)
        assert file.read("train/a/0002.jpg") == b"train/a/0002.jpg"
    assert bench.main(["--halve", str(folder)]) == 2 and "exists" in capsys.readouterr().err
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    assert bench.main(["--halve", str(tmp_path / "new")]) == 2 and "is not there" in capsys.readouterr().err


# What only a GPU can show, on a CPU -----------------------------------------------------------------------

def test_the_paths_are_compared(bench, monkeypatch, capsys):
    paths = bench.gpu_paths
    assert paths.main(["equal", "--device", "cpu", "--tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith(" kept") for line in lines) == 9 and lines[-1].startswith("ResNet-18 to the host")
    found = {line.partition(":")[0]: float(line.split(": ")[1].split()[0]) for line in lines[1:-1]}
    assert found["the device against the CPU"] == found["the device, twice"] == 0
    assert found["two spawned workers against one"] == 0
    assert 0 < found["stacked against one by one"] < 1e-3 and 1e-4 < found["bf16"] < 0.3
    monkeypatch.setitem(paths.BOUNDS, "bf16", 1e-6)
    assert paths.main(["equal", "--device", "cpu", "--tiny"]) == 1 and "NOT KEPT" in capsys.readouterr().out


@pytest.mark.parametrize("part", ["resnet18", "dinov2-s heads"])
def test_seconds_a_round_are_told(bench, part, monkeypatch, capsys):
    paths = bench.gpu_paths
    monkeypatch.setattr(paths, "PRECISIONS", ("fp32",))
    assert paths.main([part, "--device", "cpu", "--tiny"]) == 0
    assert bench.rates_in({"paths resnet18": dict(printed=capsys.readouterr().out.splitlines())}) != [35, 310]
