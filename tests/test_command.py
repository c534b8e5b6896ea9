import contextlib
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from fedbook import __version__
from fedbook.kit import command, runs
from fedbook.kit.command import copy_outputs, main
from fedbook.engine.errors import UserError
from fedbook.evidence.claims import interval, judged_claim, looks, measured_on, verdict_of
from fedbook.kit.report import collect, drawn_from, failed_runs, keep
from fedbook.kit.runs import execute, find, notebook_stamp, run_chapter, run_stamp

PARAMETERS = 'profile = "quick"\ndevice = "auto"\nseed = 0\nengine = "local"\nout = "runs"\nchanges = {}'


KERNEL = dict(name="python3", display_name="python3", language="python")


def chapter(folder, *cells, name="99_demo"):
    first = [new_markdown_cell("# Demo\n\n> A demo."),
             new_code_cell(PARAMETERS, metadata=dict(tags=["parameters"]))]
    path = Path(folder) / f"{name}.ipynb"
    book = new_notebook(cells=[*first, *map(new_code_cell, cells)], metadata=dict(kernelspec=KERNEL))
    nbformat.write(book, path)
    return path


def execute_here(path, target, parameters, title="", stop=None, **names):
    "Stands for `execute`, where a kernel is not the point: the cells run in this process, and only print."
    book, known = nbformat.read(path, 4), {}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items(): patch.setenv(name, value)
        for number, cell in enumerate(book.cells, 1):
            if cell.cell_type != "code": continue
            printed = io.StringIO()
            try:
                with contextlib.redirect_stdout(printed): exec(compile(cell.source, path.name, "exec"), known)
            except Exception as error: return f"cell {number} failed: {type(error).__name__}: {error}"
            if "parameters" in cell.metadata.get("tags", ()): known |= parameters
            if printed.getvalue(): cell.outputs = [new_output("stream", text=printed.getvalue())]
    nbformat.write(book, target)


@pytest.fixture
def in_process(monkeypatch):
    "Chapters run without kernels."
    for module in (command, runs): monkeypatch.setattr(module, "execute", execute_here)


ROWS = """from fedbook.evidence.claims import Results
results = Results("99_demo", profile, {"data": "toy"}, seed, out, scale="toy")
for s in range(3): results.row("a", s, lambda: open("LOG", "a").write("x") and {"v": s})
results.claim("a is at least 0", results.values("a", "v"), at_least=-5)
"""


MISTAKES = [
    ("run nosuch", "chapter 'nosuch' is unknown; choose one of 00_start"),
    ("run methods/fedavg -p lr=abc", "lr='abc' is not a valid float"),
    ("run fedavg -p speed=3", "'speed' is not a parameter"),
    ("run methods/fedavg -p lr", "not of the form NAME=VALUE"),
    ("run datasets/world -p lr=3", "has no parameters"), ("run all -p lr=1", "-p goes with one chapter"),
    ("run kit/lab --profile huge", "profile='huge' is unknown; choose one of smoke, quick, full, paper"),
    ("run kit/lab --device tpu", "device='tpu' is unknown"), ("run kit/lab --seed x", "invalid int value"),
    *([] if torch.cuda.is_available() else [("run fedavg --device cuda", "PyTorch finds no GPU here; use")]),
    ("run kit/lab --seed -1", "seed=-1 must be"),
    ("run all --at-once 0", "--at-once 0 must be 1 or more"), ("run kit/lab --engine warp", "engine='warp' is unknown"),
    ("run fedavg -p lr=nan", "lr=nan must be above 0, and finite"),
    ("run fedavg -p lr=inf", "lr=inf must be above 0, and finite"),
    ("run fedavg -p alpha=0", "alpha=0.0 must be above 0"), ("run fedavg -p rounds=-3", "rounds=-3 must be"),
    ("run fedavg -p seeds=0", "seeds=0 must be at least 1"),
    ("run fedavg -p per_round=999", "per_round=999 must be at most clients=20"),
    ("run fedavg -p data=nope", "data='nope' is neither a data set nor a folder; choose one of"),
    ("run fedavg -p data=cwd30", "data='cwd30' is not at hand; put the folders"),
    ("run fedcbdr -p setting=nonsense", "setting='nonsense' is unknown; choose one of cifar10-3"),
    ("run fedreplay -p encoder=foo", "encoder='foo' is unknown; choose one of efficientnet-lite0"),
    ("run fedreplay -p weights=nowhere.pth", "weights='nowhere.pth' is neither auto, random, nor a file"),
    ("run fedreplay --profile paper", "data='cwd30' is not at hand"),
    ("run fedklpr --profile paper", "is not at hand; put the folders"),
    ("run fedmox --profile paper", "data='bdd100k' is not at hand"),
    ("run nosuch --help", "chapter 'nosuch' is unknown"),
    ("book fedavg --rows-from x.json", "--rows-from goes with --keep-rows"),
    ("book all --keep-rows", "--keep-rows goes with one chapter"),
    ("book all --old-rows", "--old-rows goes with one chapter"),
    ("book fedavg --as-before x --profile quick", "books the outputs of full"),
    ("book fedavg --as-before /nowhere/at/all", "0 runs *_fedavg-quick-0 lie in"),
    ("book fedavg --keep-rows --as-before x", "not allowed with"),
    ("book lab --keep-rows", "0 files of kept results fit *_lab-full-0-*.json"),
    ("run kit/lab --out /dev/null/runs", "out='/dev/null/runs' cannot be written"),
    ("report /nowhere/at/all", "holds no results.json"), ("dance", "invalid choice"), ("", "required")]


@pytest.mark.parametrize("line, said", MISTAKES)
def test_a_mistake_is_one_sentence_before_a_kernel_starts(line, said, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    def started(*_, **__): raise AssertionError("a kernel was started")
    monkeypatch.setattr(runs, "execute", started)
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert said in err and err.startswith("fedbook: ") and err.count("\n") == 1


def test_data_that_cannot_be_fetched_is_said_before_a_kernel_starts(capsys, monkeypatch, tmp_path):
    def offline(*_, **__): raise OSError("no network")
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", offline)
    monkeypatch.setattr(runs, "execute", offline)
    assert main("run fedcbdr --profile paper".split()) == 2
    err = capsys.readouterr().err
    assert "could not be downloaded (no network); put cifar-10" in err and err.count("\n") == 1


def test_every_profile_of_every_chapter_passes_but_for_what_is_not_at_hand(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "_check_data", lambda *_: None)
    monkeypatch.setattr(runs, "_check_encoder", lambda *_: None)
    for path in runs.chapters().values():
        try: profiles = getattr(runs.chapter_module(path), "profiles", {})
        except UserError as error:
            assert "is not installed" in str(error)
            continue
        assert [command._refusal(path, profile, {})
                for profile in profiles] == [""] * len(profiles), path.stem


def test_a_folder_of_your_own_is_data(tmp_path):
    from fedbook.engine import federation as fedavg
    runs.check_needs(fedavg, fedavg.FedAvgSizes(data=str(tmp_path)))
    with pytest.raises(UserError, match="neither a data set nor a folder"):
        runs.check_needs(fedavg, fedavg.FedAvgSizes(data=str(tmp_path / "none")))


@pytest.mark.usefixtures("in_process")
def test_one_chapter_that_cannot_run_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    good = chapter(tmp_path, "print('hello')", name="98_good")
    bad = chapter(tmp_path, "#| default_exp no_such_module", name="99_bad")
    monkeypatch.setattr(runs, "chapters", lambda: {"98_good": good, "99_bad": bad})
    assert main(["run", "all", "--profile", "smoke", "--out", str(tmp_path / "runs")]) == 1
    out, err = capsys.readouterr()
    assert "fedbook: 99_bad: No module named" in err and "98_good" in out
    assert not (tmp_path / "runs" / "99_bad-smoke-0").exists()
    assert main(["run", "99_bad", "--out", str(tmp_path / "runs")]) == 2


def test_a_refusal_leaves_no_folder_behind(tmp_path, capsys):
    assert main(["run", "fedavg", "-p", "data=nope", "--out", str(tmp_path / "runs")]) == 2
    assert not list(tmp_path.iterdir())


def test_wrong_data_folder_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setenv("FEDBOOK_DATA", "/no/such/folder")
    assert main(["data"]) == 2 and "FEDBOOK_DATA" in capsys.readouterr().err


def fedbook(*args):
    "A `fedbook` command in a process of its own, which says at its end whether it has imported PyTorch."
    ending = ("import atexit, sys; atexit.register(lambda: print('\\ntorch' if 'torch' in sys.modules else "
              "'\\nlight'))")
    line = f"{ending}; from fedbook.kit.command import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", line, *args], capture_output=True, text=True)


@pytest.mark.parametrize("args, code", [("--help", 0), ("--version", 0), ("run --help", 0), ("run nosuch", 2),
                                        ("dance", 2), ("run fedavg --profile huge", 2),
                                        ("run fedavg --device tpu", 2), ("run all -p x=1", 2),
                                        ("report /nowhere", 2), ("book all --keep-rows", 2)])
def test_help_and_mistakes_do_not_wait_for_pytorch(args, code):
    done = fedbook(*args.split())
    assert done.returncode == code and done.stdout.endswith("\nlight\n") and "Traceback" not in done.stderr


def test_help_of_a_chapter_shows_its_sizes(capsys):
    with pytest.raises(SystemExit) as done: main("run fedavg --help".split())
    text = capsys.readouterr().out
    assert done.value.code == 0 and "--profile" in text
    header, *rows = text[text.index("\nsize ") + 1:].splitlines()
    assert header.split() == ["size", "smoke", "quick", "full", "paper", "limits", "meaning"]
    batch = next(row for row in rows if row.startswith("batch"))
    assert "at least 1" in batch and "pictures in a step" in batch
    with pytest.raises(SystemExit): main("run fedgtea --help".split())
    assert "-p setting=NAME" in capsys.readouterr().out
    with pytest.raises(SystemExit): main("run datasets/world --help".split())
    assert "has no sizes" in capsys.readouterr().out


def test_python_m_fedbook_exits_with_the_code():
    done = subprocess.run([sys.executable, "-m", "fedbook", "run", "nosuch"], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_data_lists_every_set(capsys):
    assert main(["data"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("fashion_mnist_small", "cifar10", "cifar100", "EfficientNet",
                                         "market1501", "ilids"))


def test_find_takes_notebook_and_module_names():
    assert find("methods/fedavg") == find("fedavg") == find("methods/fedavg.ipynb")
    assert find("kit/lab") == find("lab") and find("kit/lab")["kit/lab"].parent.name == "workshop"
    assert len(find("all")) >= 8


def test_the_course_comes_first_then_the_workshop():
    stems = list(find("all"))
    wings = ["workshop" if stem.startswith("w") else "course" for stem in stems]
    assert wings == sorted(wings) and {"course", "workshop"} == set(wings)
    number = lambda stem: int(stem.partition("_")[0].removeprefix("w"))
    for wing in set(wings):
        part = [s for s, w in zip(stems, wings) if w == wing]
        assert part == sorted(part, key=lambda stem: (number(stem), stem))
    assert all(runs.answers_of(path).exists() for path in find("all").values())


def test_version(capsys):
    with pytest.raises(SystemExit) as done: main(["--version"])
    assert done.value.code == 0 and capsys.readouterr().out == f"fedbook {__version__}\n"


@pytest.mark.usefixtures("in_process")
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


@pytest.mark.usefixtures("in_process")
def test_changed_numbers_get_a_folder_of_their_own(tmp_path):
    run = lambda **changes: run_chapter(path, "smoke", out=tmp_path / "runs", changes=changes)
    path = chapter(tmp_path,
                   ROWS.replace("LOG", str(tmp_path / "log")).replace('scale="toy"',
                                                                      'scale="toy", changes=changes'))
    run(), run(lr="0.05")
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["99_demo-smoke-0",
                                                                     "99_demo-smoke-0-lr=0.05"]
    plain, changed = map(measured_on, collect(tmp_path / "runs"))
    assert "lr=0.05" in changed and "lr" not in plain and len(keep(tmp_path / "runs", tmp_path / "kept")) == 2


@pytest.mark.usefixtures("in_process")
def test_a_missing_readme_is_one_sentence(tmp_path, capsys):
    run_chapter(chapter(tmp_path, ROWS.replace("LOG", str(tmp_path / "log"))), "smoke", out=tmp_path / "runs")
    assert main(["report", str(tmp_path / "runs"), "--readme", str(tmp_path / "none.md")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_failed_run_says_which_cell_and_keeps_what_was_done(tmp_path, capsys):
    log = tmp_path / "log"
    path = chapter(tmp_path, ROWS.replace("LOG", str(log)), "1 / 0", "print('never')")
    ran = run_chapter(path, "smoke", out=tmp_path / "runs")
    assert "cell 5 failed" in ran["error"] and "ZeroDivisionError" in ran["error"]
    assert ran["measured"] == "FAILED"
    partial = nbformat.read(ran["notebook"], 4)
    assert any(o.output_type == "error" for c in partial.cells for o in c.get("outputs", []))
    assert main(["report", str(tmp_path / "runs")]) == 0
    assert "not complete:\n  99_demo-smoke-0: a cell failed: ZeroDivisionError" in capsys.readouterr().out
    assert len(collect(tmp_path / "runs")[0]["rows"]) == 3


def test_too_little_memory_is_one_sentence(tmp_path):
    full = 'import torch\nraise torch.OutOfMemoryError("CUDA out of memory")'
    path = chapter(tmp_path, "#| default_exp fedavg", full)
    ran = run_chapter(path, "smoke", out=tmp_path / "runs", changes={"batch": "12"})
    assert ran["measured"] == "FAILED" and "\n" not in ran["error"]
    assert "cell 5 failed: UserError: the GPU's memory is too small for this run; lower -p batch=6 (now 12)" \
        in ran["error"] and "-p per_round=1 (now 2)" in ran["error"]


def test_with_device_cpu_a_gpu_is_hidden(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    seen = []
    monkeypatch.setattr(runs, "run_chapter", lambda *_, **__: seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
                        or dict(chapter="x", measured="", seconds=0, notebook="", error=None))
    assert [main(f"run kit/lab --device {name} --out {tmp_path}".split()) for name in ("auto", "cpu")] == [0, 0]
    assert seen == ["0", ""]


def test_exit_code_and_last_line_of_a_failed_run(tmp_path, monkeypatch, capsys):
    path = chapter(tmp_path, "from fedbook.engine.errors import UserError\nraise UserError('lr=-1 must be positive')")
    monkeypatch.setattr(runs, "chapters", lambda: {"99_demo": path})
    assert main(["run", "99_demo", "--profile", "smoke", "--out", str(tmp_path / "runs")]) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last == "fedbook: 99_demo: cell 4 failed: UserError: lr=-1 must be positive"


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
    path = chapter(tmp_path, "from fedbook.engine.wire import Msg")
    plain = chapter(tmp_path, "x = 1", name="98_plain")
    before, read = (run_stamp(path), run_stamp(plain)), Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, *a,
                        **k: read(self, *a, **k) + ("# changed" if self.name == "lab.py" else ""))
    assert run_stamp(path) != before[0] and run_stamp(plain) == before[1]


@pytest.mark.usefixtures("in_process")
def test_report_keep_and_fill(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_chapter(chapter(tmp_path, ROWS.replace("LOG", str(tmp_path / "log")), "results.finish('done')"),
                "smoke")
    mute = ROWS.replace("99_demo", "98_mute").replace("LOG",
                                                      str(tmp_path / "log")).partition("results.claim")[0]
    run_chapter(chapter(tmp_path, mute, "results.finish('nothing claimed')", name="98_mute"), "smoke")
    readme = tmp_path / "README.md"
    readme.write_text("| [demo](results/README.md#99_demo) | old |\n")
    assert main(["report", "--keep", "--readme", "README.md"]) == 0
    said = capsys.readouterr().out
    assert "99_demo on toy: own checks: 1 yes" in said and "no claims:\n  98_mute-smoke-0-toy" in said
    assert "not complete" not in said
    assert readme.read_text() == "| [demo](results/README.md#99_demo) | own checks: 1 yes |\n"
    assert [path.name for path in sorted(tmp_path.glob("results/*.json"))] == ["99_demo-smoke-0-toy.json"]
    for folder in (tmp_path / "runs", tmp_path / "results"):
        assert "a is at least 0" in (folder / "README.md").read_text()
        assert "a is at least 0" in (folder / "report.html").read_text()
        assert drawn_from(folder / "figures" / "99_demo-smoke-0-toy.png")
    assert main(["report", "results"]) == 0
    assert collect("results") == [body for body in collect("runs") if body["claims"]]


def test_a_report_of_nothing_but_failures_says_so(tmp_path, capsys):
    run_chapter(chapter(tmp_path, "1 / 0"), "smoke", out=tmp_path / "runs")
    assert main(["report", str(tmp_path / "runs")]) == 0
    assert "99_demo-smoke-0: a cell failed: ZeroDivisionError" in capsys.readouterr().out


def test_a_full_disk_is_named_and_no_half_notebook_stays(tmp_path, monkeypatch, capsys):
    path = chapter(tmp_path, "print('x')")
    monkeypatch.setattr(runs, "chapters", lambda: {"99_demo": path})
    def full(*_): raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", full)
    assert main(["run", "99_demo", "--profile", "smoke", "--out", str(tmp_path / "runs")]) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("fedbook: 99_demo: the disk is full") and str(tmp_path / "runs") in last
    assert "--out" in last
    assert not list((tmp_path / "runs" / "99_demo-smoke-0").iterdir())


SLEEPER = """import multiprocessing, time
workers = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)) for _ in range(2)]
for worker in workers: worker.start()
open("READY", "w").close()
time.sleep(600)
"""
DEAF = """import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
open("READY", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize("cell, times", [(SLEEPER, 1), (DEAF, 2)], ids=["with workers", "does not listen"])
def test_ctrl_c_is_one_sentence(cell, times, tmp_path):
    ready = tmp_path / "ready"
    path = chapter(tmp_path, cell.replace("READY", str(ready)))
    code = (f"from pathlib import Path; from fedbook.kit import command, runs; import sys; "
            f"runs.chapters = lambda: {{'99_demo': Path({str(path)!r})}}; sys.exit(command.main())")
    run = subprocess.Popen([sys.executable, "-c", code, "run", "99_demo", "--profile", "smoke", "--out",
                            str(tmp_path / "runs")],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not ready.exists() and run.poll() is None: time.sleep(0.05)
    for _ in range(times):
        run.send_signal(signal.SIGINT)
        time.sleep(0.2)   # two signals at once are one
    out, err = run.communicate()
    said = [line for line in err.splitlines() if line.strip() and not line.startswith("99_demo:")]
    assert said == ["fedbook: interrupted; the same command goes on where this one stopped"] and out == ""
    assert run.returncode == 130
    assert nbformat.read(tmp_path / "runs" / "99_demo-smoke-0" / "99_demo.ipynb",
                         4).cells, "the partial notebook is whole"
    assert failed_runs(tmp_path / "runs") == {"99_demo-smoke-0": "stopped before its end"}


def lives(group):
    "Whether a process of the group is alive; one that has ended and was not yet asked for its end is not."
    import psutil

    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE: return True
    return False


@pytest.mark.parametrize("cell, times", [(SLEEPER, 1), (DEAF, 2)], ids=["with workers", "does not listen"])
def test_ctrl_c_stops_two_chapters_side_by_side(cell, times, tmp_path):
    ready = [tmp_path / name for name in ("one", "two", "three")]
    pids = [tmp_path / f"pid{i}" for i in range(3)]
    tells = [f"import os; open({str(pid)!r}, 'w').write(str(os.getpid()))" for pid in pids]
    paths = {f"9{i}_demo": chapter(tmp_path, tells[i], cell.replace("READY", str(mark)), name=f"9{i}_demo")
             for i, mark in enumerate(ready)}
    code = (f"from pathlib import Path; from fedbook.kit import command, runs; import sys; runs.chapters = lambda: "
            f"{{name: Path(path) for name, path in {dict(zip(paths, map(str, paths.values())))}.items()}}; "
            "sys.exit(command.main())")
    run = subprocess.Popen([sys.executable, "-c", code, "run", "all", "--profile", "smoke", "--at-once", "2",
                            "--out", str(tmp_path / "runs")],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (ready[0].exists() and ready[1].exists()) and run.poll() is None: time.sleep(0.05)
    for _ in range(times):
        run.send_signal(signal.SIGINT)
        time.sleep(0.2)
    out, err = run.communicate()
    assert err.strip() == "fedbook: interrupted; the same command goes on where this one stopped" and out == ""
    assert run.returncode == 130 and not ready[2].exists()
    assert not any(map(lives, (int(pid.read_text()) for pid in pids[:2])))


def test_chapters_side_by_side_are_told_of_when_they_end(tmp_path, monkeypatch, capsys):
    """The first waits for the second, which can only be if they run together, and ends after it; the third
    fails, which is said at once and again at the end."""
    mark = tmp_path / "mark"
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    finish = ("from fedbook.evidence.claims import Results\n"
              "Results('NAME', profile, None, seed, out, scale='toy').finish(HEADLINE)")
    ends = lambda name, headline: finish.replace("NAME", name).replace("HEADLINE", headline)
    threads = "__import__('os').environ['OMP_NUM_THREADS']"
    paths = [chapter(tmp_path, f"import os, time\nfor _ in range(2000):\n"
                     f"    if os.path.exists({str(mark)!r}): break\n    time.sleep(0.05)\nelse: raise TimeoutError",
                     ends("97_slow", "'slow'"), name="97_slow"),
             chapter(tmp_path, ends("98_fast", threads), f"open({str(mark)!r}, 'w').close()", name="98_fast"),
             chapter(tmp_path, "1 / 0", name="99_bad")]
    monkeypatch.setattr(runs, "chapters", lambda: {path.stem: path for path in paths})
    monkeypatch.setattr(runs, "cores", lambda: 6)
    code = main(["run", "all", "--profile", "smoke", "--at-once", "2", "--device", "cpu", "--out",
                 str(tmp_path / "runs")])
    out, err = capsys.readouterr()
    lines = {line.split()[0]: line for line in out.splitlines() if " s  " in line}
    assert code == 1 and lines.keys() == {"97_slow", "98_fast", "99_bad"}
    assert lines["98_fast"].split()[-1] == "3" and lines["97_slow"].endswith("slow")
    assert "FAILED: cell 4 failed: ZeroDivisionError" in lines["99_bad"]
    assert "fedbook: 99_bad: cell 4 failed" in err and "chapters:" not in err
    assert out.splitlines()[-1].startswith("open next: ") and "97_slow.ipynb" in out.splitlines()[-1]
    assert "make lab" in out.splitlines()[-1]


def test_without_a_terminal_no_bars_are_drawn(tmp_path, capsys):
    path = chapter(tmp_path, "import sys; print('a bar of its own', file=sys.stderr)")
    assert run_chapter(path, "smoke", out=tmp_path / "runs")["error"] is None
    assert capsys.readouterr().err == ""


def test_all_chapters_begin_with_the_start_and_the_papers():
    order = runs.in_order(runs.chapters())
    papers = [stem for stem in sorted(order) if stem.startswith("1")]
    assert {"10_fedreplay", "11_fedmox", "12_fedklpr", "13_fedcbdr", "14_fedgtea"} <= set(papers)
    assert order[:2] + papers + ["engine/local", "datasets/split"] == order[:len(papers) + 4]
    assert order[:2] == ["00_start", "methods/fedavg"] and sorted(order) == sorted(runs.chapters())


def test_what_a_dying_kernel_writes_is_said(tmp_path):
    path = chapter(tmp_path, "import os; os.write(2, b'last words'); os._exit(1)")
    assert "kernel died" in run_chapter(path, "smoke", out=tmp_path / "runs")["error"]


def test_a_copy_to_work_in_is_never_written_over(tmp_path, capsys):
    course = tmp_path / "course"
    assert main(["copy", str(course)]) == 0
    books = {path.relative_to(runs.notebooks_folder())
             for path in runs.notebooks_folder().rglob("*.ipynb")}
    visible = {book for book in books if ".ipynb_checkpoints" not in book.parts}
    assert {path.relative_to(course) for path in course.rglob("*.ipynb")} == visible
    mine, gone = course / "methods/fedavg.ipynb", course / "answers" / "methods/fedavg.ipynb"
    mine.write_text("my work")
    gone.unlink()
    assert command.copy_chapters(course) == (1, len(list(course.rglob("*.ipynb"))) - 1)
    assert mine.read_text() == "my work"
    assert gone.read_bytes() == (runs.notebooks_folder() / "answers" / gone.name).read_bytes()
    assert str(course) in capsys.readouterr().out


def test_outputs_are_copied_back_by_cell_id(tmp_path):
    path = chapter(tmp_path, "print('first', profile)", "import sys; print('bar', file=sys.stderr)", "2 + 2")
    target = tmp_path / "done.ipynb"
    assert execute(path, target, dict(profile="smoke")) is None
    copy_outputs(target, path, "profile `smoke`, seed 0")
    book = nbformat.read(path, 4)
    assert book.cells[2].outputs[0].text == "first smoke\n" and book.cells[3].outputs == []
    assert book.cells[4].outputs[0].data["text/plain"] == "4"
    assert book.cells[0].source.endswith("*Outputs: profile `smoke`, seed 0.*")
    assert book.metadata.fedbook.stamp == notebook_stamp(path) and len(book.cells) == 5
    copy_outputs(target, path, "profile `full`, seed 0")
    assert nbformat.read(path, 4).cells[0].source.count("*Outputs:") == 1


def test_pictures_are_booked_in_few_colours_and_booked_ones_stay():
    from base64 import b64decode, b64encode
    from io import BytesIO
    from PIL import Image
    data = BytesIO()
    Image.radial_gradient("L").convert("RGBA").save(data, "PNG")
    png = b64encode(data.getvalue()).decode()
    shown = lambda png: [dict(output_type="display_data", metadata={}, data={
        "image/png": png, "text/plain": "<Figure>", "application/vnd.jupyter.widget-view+json": {}})]
    (once,) = command._tidy(shown(png))
    assert set(once["data"]) == {"image/png", "text/plain"} and once["data"]["text/plain"] == "<Figure>"
    with Image.open(BytesIO(b64decode(once["data"]["image/png"]))) as few:
        assert few.mode == "P" and few.size == (256, 256)
    assert command._tidy(shown(once["data"]["image/png"])) == [once]


@pytest.mark.parametrize("source, want", [
    ("#| hide\nimport os", True), ("#|hide", True), ("#| hidden", False),
    ('quiz("a", ("b", True, "c"))\nquiz("d")', True), ('quiz("a")\nx = 1', False), ("x = quiz('a')", False),
    ("", False), ("%%time\nquiz('a')", False), ("#| export\nimport os", False)])
def test_what_is_folded(source, want): assert command.to_fold(source) is want


def test_booking_folds_cells_and_cleaning_keeps_the_folds(tmp_path):
    path = chapter(tmp_path, "#| hide\nimport os", "2 + 2")
    target = tmp_path / "done.ipynb"
    execute(path, target, {})
    copy_outputs(target, path, "")
    read = lambda: [cell.metadata for cell in nbformat.read(path, 4).cells]
    assert read() == [{}, {"tags": ["parameters"]}, {"jupyter": {"source_hidden": True}}, {}]
    from nbdev.clean import clean_nb
    from execnb.nbio import read_nb, write_nb
    book = read_nb(path)
    clean_nb(book, allowed_metadata_keys=["fedbook"],
             allowed_cell_metadata_keys=settings("allowed_cell_metadata_keys").split())
    write_nb(book, path)
    assert read() == [{}, {"tags": ["parameters"]}, {"jupyter": {"source_hidden": True}}, {}]


def settings(name):
    lines = (Path(__file__).parent.parent / "settings.ini").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith(f"{name} ="))


# what is measured follows from VALUE; each measurement leaves a letter in LOG, and `took` is a clock
MOVED = """from fedbook.evidence.claims import Results
from time import perf_counter
results = Results("NAME", profile, {"data": "toy"}, seed, out, scale="toy", clock=["took"])
def measure(what, s):
    open("LOG", "a").write(what[0])
    return {"score": (VALUE) * (s + 1), "nested": [{"deep": VALUE}], "took": perf_counter()}
for what in ("a", "a, twice", "b: one"):
    for s in range(3): results.row(what, s, lambda: measure(what, s))
pairs = zip(results.values("a", "score"), results.values("b: one", "score"))
results.claim("a pairs with b", [p - q for p, q in pairs], at_least=-1)
print(profile, results.values("a", "score"))
"""


def moved(folder, log, name="98_demo", value="2.5", more=()):
    folder.mkdir(exist_ok=True)
    return chapter(folder, MOVED.replace("LOG", str(log)).replace("NAME", name).replace("VALUE", value),
                   'results.finish("done")', *more, name=name)


def booked(tmp_path):
    "A chapter under an old number that ran at full, with its results kept."
    old = moved(tmp_path / "old", tmp_path / "log")
    run_chapter(old, "full", out=tmp_path / "runs")
    return keep(tmp_path / "runs", tmp_path / "results")[0]


def test_keep_rows_measures_one_row_of_each_method_again(tmp_path):
    file, log = booked(tmp_path), tmp_path / "log"
    before = json.loads(file.read_text())
    assert log.read_text() == "aaaaaabbb"
    new = moved(tmp_path / "new", log, "99_demo", more=["# the code has moved"])
    ran = command.keep_rows(new, out=tmp_path / "runs", results=tmp_path / "results")
    assert ran["error"] is None and ran["measured"] == "9 rows, 2 of them measured again: done"
    assert log.read_text() == "aaaaaabbb" + "ab"
    done = json.loads((tmp_path / "runs" / "99_demo-full-0" / "results.json").read_text())
    assert sorted(done["recomputed"]) == sorted(map(list, command.to_recompute(before["rows"])))
    assert [(r["what"], r["seed"]) for r in done["rows"]] == [(r["what"], r["seed"]) for r in before["rows"]]
    assert not any("again" in row for row in done["rows"])
    assert done["claims"] == before["claims"] and done["name"] == "99_demo"
    assert not (tmp_path / "runs" / "kept-rows" / "99_demo-full-0").exists()
    assert nbformat.read(new, 4).metadata.fedbook.stamp == notebook_stamp(new)
    assert any("recomputed" in json.loads(kept.read_text())
               for kept in keep(tmp_path / "runs", tmp_path / "kept"))


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("value, name, said", [("2.5 if s < 0 else 2.5 + 1e-12", "99_demo", "and is"),
                                               ("float('nan')", "99_demo", "and is nan")])
def test_keep_rows_changes_nothing_if_a_number_differs(value, name, said, tmp_path):
    booked(tmp_path)
    new = moved(tmp_path / "new", tmp_path / "log", name, value)
    before = new.read_bytes()
    ran = command.keep_rows(new, out=tmp_path / "runs", results=tmp_path / "results")
    assert said in ran["error"] and "row 'a" in ran["error"] and "nothing is changed" in ran["error"]
    assert new.read_bytes() == before and not (tmp_path / "runs" / "99_demo-full-0").exists()
    assert not list((tmp_path / "runs"
                     / "kept-rows").glob("*/results.json")), "rows of two programs must not lie about"


@pytest.mark.usefixtures("in_process")
def test_keep_rows_says_when_settings_differ_or_a_row_is_gone(tmp_path):
    file, log = booked(tmp_path), tmp_path / "log"
    source = nbformat.read(moved(tmp_path / "new", log, "99_demo"), 4).cells[2].source
    for old, other, said in (('"toy", clock', '"other", clock',
                              "the kept rows are of scale='toy', this run has 'other'"),
                             ('"b: one"', '"b: two"', "row 'b: one', seed")):
        other = chapter(tmp_path / "new", source.replace(old, other), name="99_demo")
        ran = command.keep_rows(other, file, out=tmp_path / "runs")
        assert said in ran["error"], ran["error"]


@pytest.mark.usefixtures("in_process")
def test_old_rows_are_taken_as_they_are_and_marked(tmp_path, monkeypatch, capsys):
    file, log = booked(tmp_path), tmp_path / "log"
    body = json.loads(file.read_text())
    gone = body["rows"].pop()
    file.write_text(json.dumps(body))
    new = moved(tmp_path / "new", log, "99_demo", "3.5")
    log.write_text("")
    ran = command.old_rows(new, out=tmp_path / "runs", results=tmp_path / "results")
    assert ran["error"] is None and ran["measured"] == "9 rows, 8 of earlier code: done"
    assert log.read_text() == "b"
    done = json.loads((tmp_path / "runs" / "99_demo-full-0" / "results.json").read_text())
    assert [row.pop("older", None) for row in done["rows"]] == [body["stamp"]] * 8 + [None]
    assert done["rows"][:8] == body["rows"]
    assert done["rows"][8]["numbers"]["score"] != gone["numbers"]["score"]
    assert done["stamp"] == run_stamp(new) and done["claims"][0]["older"] is True
    assert nbformat.read(new, 4).cells[0].source.endswith(", rows measured with earlier code.*")
    capsys.readouterr()
    assert main(["report", str(tmp_path / "runs")]) == 0
    said, pages = capsys.readouterr().out, (tmp_path / "runs" / "README.md").read_text()
    for text in (said, pages): assert "† 8 of 9 rows were measured with earlier code." in text
    word = verdict_of(done["claims"][0])
    assert word.endswith(" †") and any(line.startswith(word) for line in said.splitlines())
    assert f"| {word} |" in pages

    shutil.rmtree(tmp_path / "results")
    keep(tmp_path / "runs", tmp_path / "kept")
    kept = next((tmp_path / "kept").glob("99_demo*.json"))
    newer = moved(tmp_path / "new", log, "99_demo", "4.5")
    command.old_rows(newer, kept, tmp_path / "runs")
    again = json.loads((tmp_path / "runs" / "99_demo-full-0" / "results.json").read_text())
    assert {row["older"] for row in again["rows"][:8]} == {body["stamp"]}, "the stamp of who measured it stays"
    assert again["rows"][8]["older"] == done["stamp"]


def test_old_rows_of_the_same_code_are_not_old(tmp_path):
    file, log = booked(tmp_path), tmp_path / "log"
    same = moved(tmp_path / "old", log)
    ran = command.old_rows(same, file, tmp_path / "runs")
    assert ran["measured"] == "9 rows, 0 of earlier code: done"
    done = json.loads((tmp_path / "runs" / "98_demo-full-0" / "results.json").read_text())
    assert "older" not in done["claims"][0] and "earlier" not in nbformat.read(same, 4).cells[0].source


@pytest.mark.parametrize("old, new, want", [
    ("f(1, 2)", "f(1,\n  2)  # why", True), ("x = 1", "x = 2", False), (None, "x = 1", False),
    ("%matplotlib inline", "%matplotlib inline", True), ("%time x", "%time y", False),
    ("'a'", "\"a\"", True), ("f(a=1, b=2)", "f(b=2, a=1)", False)])
def test_the_same_code_may_look_otherwise(old, new, want): assert command.same_code(old, new) is want


@pytest.mark.usefixtures("in_process")
def test_as_before_takes_what_does_not_depend_on_the_size(tmp_path):
    log, cell = tmp_path / "log", lambda source, id: new_code_cell(source, id=id)
    def write(folder, *cells):
        path = moved(folder, log, more=["0"] * len(cells))
        book = nbformat.read(path, 4)
        for i, cell_ in enumerate(book.cells): cell_["id"] = f"cell{i}"
        book.cells[4:] = cells
        nbformat.write(book, path)
        return path
    old = write(tmp_path / "old", cell("print('size', profile)", "size"), cell("print('quiz')", "quiz"),
                cell("print('changed', profile)", "changed"),
                cell("if profile == 'full': print('nodes')", "nodes"))
    run_chapter(old, "quick", out=tmp_path / "base")
    new = write(tmp_path / "new", cell("print('size', profile)", "size"),
                cell("print('better quiz')", "quiz"), cell("print('changed', f'{profile}')", "changed"),
                cell("if profile == 'full': print('nodes')", "nodes"), cell("print('new')", "new"))
    run_chapter(new, "full", out=tmp_path / "full")
    copy_outputs(tmp_path / "full" / "98_demo-full-0" / "98_demo.ipynb", new, "profile `full`, seed 0")
    book = nbformat.read(new, 4)
    for i, text in ((-4, "quiz\n"),
                    (-3, "committed, full\n")): book.cells[i]["outputs"] = [nbformat.v4.new_output("stream",
                                                                                                   text=text)]
    book.cells[-1]["outputs"] = []
    book.metadata.fedbook.stamp = "old"
    nbformat.write(book, new)
    ran = command.as_before(new, tmp_path / "base", out=tmp_path / "runs")
    assert ran["error"] is None and ran["measured"] == "as before: 9 rows at quick", ran
    texts = {c.id: "".join(o.get("text", "") for o in c.get("outputs", []))
             for c in nbformat.read(new, 4).cells}
    assert texts["size"] == "size full\n" and texts["quiz"] == "better quiz\n"
    assert texts["changed"] == "committed, full\n" and texts["new"] == "new\n" and texts["nodes"] == "nodes\n"
    assert texts["cell2"].startswith("full [")
    assert nbformat.read(new, 4).metadata.fedbook.stamp == notebook_stamp(new)
    assert "profile `full`" in nbformat.read(new, 4).cells[0].source

    book = nbformat.read(new, 4)
    book.cells.append(cell("print('new and of a size:', profile)", "newer"))
    nbformat.write(book, new)
    before = new.read_bytes()
    wanted = "cell 10 .* is new or changed, and its outputs depend on the size"
    with pytest.raises(UserError, match=wanted):
        command.as_before(new, tmp_path / "base", out=tmp_path / "runs")
    assert new.read_bytes() == before


def test_as_before_compares_all_rows(tmp_path):
    run_chapter(moved(tmp_path / "old", tmp_path / "log"), "quick", out=tmp_path / "base")
    new = moved(tmp_path / "new", tmp_path / "log", "99_demo", "2.5 + 1e-12 * (s == 2)")
    before = new.read_bytes()
    ran = command.as_before(new, tmp_path / "base", out=tmp_path / "runs")
    assert "row 'a', seed 2: score was 7.5 and is" in ran["error"] and ran["measured"] == "FAILED"
    assert new.read_bytes() == before


# Seeds until it is decided

GROWS = """#| default_exp fedavg
import numpy as np
from fedbook.evidence.claims import Results
from fedbook.methods.fedavg import profiles
from fedbook.engine.sizes import choose
sizes = choose(profiles, profile, changes)
results = Results("99_demo", profile, sizes, seed, out, scale=f"{sizes.seeds} seeds", changes=changes)
def measure(s):
    open("LOG", "a").write(f"{s} ")
    return {"gain": SHIFT + float(np.random.default_rng(s).normal())}
for s in range(sizes.seeds): results.row("gain", s, lambda: measure(s))
results.claim("b beats a", results.values("gain", "gain"), at_least=0, paper="better")
results.claim("of our own, never decided", [1.0, -1.0, 0.1] * 2, at_least=0)
"""


def growing(tmp_path, shift=1.0):
    cells = GROWS.replace("LOG", str(tmp_path / "log")).replace("SHIFT", str(shift))
    return chapter(tmp_path, cells, 'results.finish("done")')


@pytest.mark.usefixtures("in_process")
def test_seeds_are_added_at_fixed_looks_until_it_is_decided(tmp_path):
    path, plan = growing(tmp_path), looks(16)
    first = next(command.until_decided(path, 3600, 16, "smoke", out=tmp_path / "runs", device="cpu"))
    assert first["error"] is None and first["measured"].startswith("3 seeds at 99.8%, 1 claims open: done")
    ran = list(command.until_decided(path, 3600, 16, "smoke", out=tmp_path / "runs", device="cpu"))
    asked = [int(r["measured"].split()[0]) for r in ran]
    assert asked == [n for n, _ in plan][:len(ran)] and 3 < asked[-1] < 16, asked
    assert ran[-1]["measured"].endswith("0 claims open, decided: done")
    body = json.loads(Path(ran[-1]["notebook"]).with_name("results.json").read_text())
    assert (tmp_path / "log").read_text().split() == [str(s) for s in range(asked[-1])], "each seed once"
    level = dict(plan)[asked[-1]]
    assert body["claims"][0]["level"] == level and body["scale"] == f"{asked[-1]} seeds"
    mean, half = interval(body["claims"][0]["values"], level)
    assert 0 < mean - half == body["claims"][0]["low"]


@pytest.mark.usefixtures("in_process")
def test_looks_end_with_the_budget_or_with_the_seeds(tmp_path):
    path, out = growing(tmp_path, shift=0.0), tmp_path / "runs"
    [ran] = command.until_decided(path, 0.001, 16, "smoke", out=out, device="cpu")
    assert "exceed the budget" in ran["measured"]
    *_, ran = command.until_decided(path, 3600, 5, "smoke", out=out, device="cpu")
    assert ran["measured"].startswith("5 seeds") and "1 claims open, no more seeds" in ran["measured"]


def test_a_look_that_fails_is_the_last_one(tmp_path):
    path = chapter(tmp_path, GROWS.replace("LOG", "/"), name="98_demo")
    [ran] = command.until_decided(path, 60, 16, "smoke", out=tmp_path / "runs", device="cpu")
    assert "IsADirectoryError" in ran["error"] and ran["measured"] == "FAILED"


@pytest.mark.parametrize("line, said", [
    ("fedavg --until-decided", "--until-decided needs a --budget such as 2h"),
    ("fedavg --budget 2h", "--budget goes with --until-decided"),
    ("fedavg --until-decided --budget 2", "--budget 2 must be a time such as 2h, 90m or 45s"),
    ("fedavg --until-decided --budget 0h", "--budget 0h must be a time"),
    ("all --until-decided --budget 2h", "--until-decided does not go with all"),
    ("fedavg --until-decided --budget 2h -p seeds=4", "--until-decided does not go with -p seeds"),
    ("fedavg --until-decided --budget 2h --engine flower", "does not go with --engine flower"),
    ("fedavg --until-decided --budget 2h --fresh", "--until-decided does not go with --fresh"),
    ("fedavg --until-decided --budget 2h --most-seeds 2", "--most-seeds 2 must be 3 or more"),
    ("00_start --until-decided --budget 2h", "has no number of seeds that could grow")])
def test_what_does_not_go_with_looks_is_said(line, said, capsys):
    assert main(["run", *line.split(), "--profile", "smoke"]) == 2
    assert said in capsys.readouterr().err


def test_only_the_headline_or_the_papers_claims_are_waited_for():
    claim = lambda values, **facts: judged_claim("a", values, at_least=0, **facts)
    noisy, sure = [0.5, -0.6, 0.3], [1.0, 1.1, 1.2]
    assert command.undecided([claim(noisy), claim(sure, paper="x")]) == []
    assert len(command.undecided([claim(noisy, paper="x"), claim(sure, paper="x")])) == 1
    assert command.undecided([claim(noisy, paper="x"), claim(sure, paper="x", headline=True)]) == []
    assert command.undecided([claim(sure, paper="x", reruns=5.0)]) == [], "more seeds would not help"
