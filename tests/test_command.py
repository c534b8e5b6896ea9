import contextlib
import errno
import io
import json
import os
import re
import signal
import shlex
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
import torch
import tqdm
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from fedbook import __version__
from fedbook.engine import files
from fedbook.kit import command, runs
from fedbook.kit.command import OPEN, main
from fedbook.engine.errors import UserError
from fedbook.evidence.claims import interval, judged_claim, looks, measured_on
from fedbook.kit.report import collect, failed_runs, keep
from fedbook.kit.runs import find, notebook_stamp, run_chapter, run_stamp

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
    monkeypatch.setattr(runs, "execute", execute_here)


ROWS = """from fedbook.evidence.claims import Results
results = Results("99_demo", profile, {"data": "toy"}, seed, out, scale="toy")
for s in range(3): results.row("a", s, lambda: open("LOG", "a").write("x") and {"v": s})
results.claim("a is at least 0", results.values("a", "v"), at_least=-5)
"""


MISTAKES = [
    ("run nosuch", "chapter 'nosuch' is unknown; choose one of 00_start"),
    ("run methods/fedavg -p lr=abc", "lr='abc' must be a number, such as 0.05"),
    ("run fedavg -p speed=3", "'speed' is not a parameter"),
    ("run methods/fedavg -p lr", "not of the form NAME=VALUE"),
    ("run datasets/world -p lr=3", "has no parameters"),
    ("run all -p lr=1", "-p goes with one chapter, not with all"),
    ("run -p lr=1", "-p goes with one chapter, not with path"),
    ("run engine/wire --profile huge",
     "profile='huge' is unknown; choose one of smoke, quick, full, open, paper"),
    ("run wire --device tpu", "device='tpu' is unknown"), ("run wire --seed x", "invalid int value"),
    *([] if torch.cuda.is_available() else [("run fedavg --device cuda", "PyTorch finds no GPU here; use")]),
    ("run engine/wire --seed -1", "seed=-1 must be"),
    ("run all --at-once 0", "--at-once 0 must be 1 or more"),
    ("run wire --engine warp", "engine='warp' is unknown"),
    ("run fedavg -p lr=nan", "lr=nan must be above 0, and finite"),
    ("run fedavg -p lr=inf", "lr=inf must be above 0, and finite"),
    ("run fedavg -p alpha=0", "alpha=0.0 must be above 0"), ("run fedavg -p rounds=-3", "rounds=-3 must be"),
    ("run fedavg -p seeds=0", "seeds=0 must be at least 1"),
    ("run fedavg -p per_round=999", "per_round=999 must be at most clients=20"),
    ("run fedavg -p data=nope", "data='nope' is neither a data set nor a folder in"),
    ("run fedavg -p data=cwd30", "data='cwd30' is not at hand; put the folders"),
    ("run fedcbdr -p setting=nonsense", "setting='nonsense' is unknown; choose one of cifar10-3"),
    ("run fedreplay -p encoder=foo", "encoder='foo' is unknown; choose one of efficientnet-lite0"),
    ("run fedreplay -p weights=nowhere.pth", "weights='nowhere.pth' is neither auto, random, nor a file"),
    ("run fedreplay --profile paper", "data='cwd30' is not at hand"),
    ("run fedklpr --profile paper", "is not at hand; put the folders"),
    ("run fedmox --profile paper", "data='bdd100k' is not at hand"),
    ("run nosuch --help", "chapter 'nosuch' is unknown"),
    ("run engine/wire --out /dev/null/runs", "out='/dev/null/runs' cannot be written"),
    ("report /nowhere/at/all", "folder='/nowhere/at/all' is not there"),
    ("dance", "'dance' is no command; choose one of run"),
    ("rnu", "'rnu' is no command; did you mean run?"), ("run fedavg -p clinets=3", "did you mean clients"),
    ("run fedavg -p lr = 3", "arguments: = 3; a size is changed with -p NAME=VALUE, without spaces"),
    ("flower-keys keys --host here --nodes 0", "--nodes 0 must be 1 or more"),
    ("assignment fedavg /dev/null/work", "folder='/dev/null/work' cannot be made (Not a directory)"),
    ("", "required")]


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
    from fedbook.methods import fedavg
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
                                        ("report /nowhere", 2)])
def test_help_and_mistakes_do_not_wait_for_pytorch(args, code):
    done = fedbook(*args.split())
    assert done.returncode == code and done.stdout.endswith("\nlight\n") and "Traceback" not in done.stderr


@pytest.mark.parametrize("line", ["run fedavg --help", "run --help fedavg", "run --profile full -h fedavg"])
def test_help_of_a_chapter_shows_its_sizes_wherever_it_stands(capsys, line):
    assert main(line.split()) == 0
    text = capsys.readouterr().out
    assert "--profile" in text
    assert "fedbook run methods/fedavg -p data=photos/" in " ".join(text.split())
    header, *rows = text[text.index("\nsize ") + 1:].splitlines()
    assert header.split() == ["size", "smoke", "quick", "full", "paper", "limits", "meaning"]
    batch = next(row for row in rows if row.startswith("batch"))
    assert "at least 1" in batch and "pictures in a step" in batch


def test_help_names_the_rows_of_a_paper_and_a_chapter_without_sizes(capsys):
    assert main("run fedgtea --help".split()) == 0
    assert "-p setting=NAME" in capsys.readouterr().out
    assert main("run datasets/world --help".split()) == 0
    assert "has no sizes" in capsys.readouterr().out


@pytest.mark.parametrize("typed, meant", [
    ("fedvag", "methods/fedavg"), ("FedAvg", "methods/fedavg"), ("4_fedavg", "methods/fedavg"),
    ("klpr", "12_fedklpr or evidence/fedklpr"), ("evidence", "evidence/claims or evidence/fedreplay")])
def test_a_mistyped_chapter_is_answered_by_the_nearest(capsys, typed, meant):
    assert main(["run", typed]) == 2
    said = capsys.readouterr().err
    assert f"did you mean {meant}" in said and len(said) < 120


def through(line, more="", **env):
    "What the command line `fedbook LINE MORE` prints in a shell, and its exit code."
    shell = f"set -o pipefail; {shlex.quote(sys.executable)} -m fedbook {line} {more}"
    return subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=os.environ | env)


def test_a_reader_that_has_enough_is_no_error():
    done = through("report results", "| head -1")
    assert done.stdout.count("\n") == 1 and done.stderr == "" and done.returncode in (0, 141)


def test_a_plain_locale_costs_signs_and_not_the_answer():
    done = through("report results", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.returncode == 0 and done.stderr == "" and "fedgtea" in done.stdout and done.stdout.isascii()


def test_tab_completes_commands_and_chapters():
    pytest.importorskip("shtab")
    asked = """source <(%s -m fedbook --print-completion bash)
    COMP_WORDS=(fedbook $1 $2); COMP_CWORD=$3; _shtab_fedbook; echo "${COMPREPLY[@]}"
    """ % shlex.quote(sys.executable)
    def tab(*words):
        done = subprocess.run(["bash", "-c", asked, "-", *words], capture_output=True, text=True)
        return done.stdout.split()
    assert tab("rep", "", "1") == ["report"]
    assert tab("run", "fedg", "2") == ["fedgtea"]


def test_python_m_fedbook_exits_with_the_code():
    done = subprocess.run([sys.executable, "-m", "fedbook", "run", "nosuch"], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_data_lists_every_set(capsys):
    assert main(["data"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("fashion_mnist_small", "cifar10", "cifar100", "efficientnet-lite2",
                                         "market1501", "ilids"))
    assert all(f"fedbook run {name} --profile open" in said for name in OPEN)
    assert [name for name in ("fedreplay", "fedmox", "fedklpr", "fedcbdr", "fedgtea")
            if "open" in import_module(f"fedbook.{name}").profiles] == list(OPEN)


def test_find_takes_notebook_and_module_names():
    assert find("methods/fedavg") == find("fedavg") == find("methods/fedavg.ipynb")
    assert find("engine/wire") == find("wire") and find("wire")["engine/wire"].parent.name == "engine"
    assert find("14") == find("nbs/14_fedgtea.ipynb") == find("14_fedgtea")
    assert len(find("all")) >= 8


@pytest.mark.parametrize("name, profile, runs_there", [
    ("fedgtea", "full", "evidence/fedgtea"), ("14_fedgtea", "full", "evidence/fedgtea"),
    ("fedgtea", "quick", "14_fedgtea"), ("evidence/fedgtea", "full", "evidence/fedgtea"),
    ("fedcbdr", "quick", "13_fedcbdr"), ("fedavg", "full", "methods/fedavg")])
def test_long_runs_of_an_evening_go_to_its_lab_book(name, profile, runs_there, monkeypatch, capsys, tmp_path):
    asked = []
    monkeypatch.setattr(command, "run_chapters", lambda paths, *_, **options: asked.extend(paths) or [])
    main(["run", name, "--profile", profile, "--out", str(tmp_path)])
    assert [runs.chapter_name(path) for path in asked] == [runs_there]
    moved = f"fedbook: 14_fedgtea is for an evening; evidence/fedgtea has its runs at {profile}, and runs now\n"
    assert (moved in capsys.readouterr().out) == (runs_there != runs.chapter_name(*find(name).values()))


def test_the_path_comes_first_then_the_wings():
    names = list(find("all"))
    wings = [name.partition("/")[0] if "/" in name else "" for name in names]
    assert list(dict.fromkeys(wings)) == ["", *runs.WINGS] and names[0] == "00_start"
    path = [name for name in names if "/" not in name]
    assert path == sorted(path)
    assert names == path + [f"{wing}/{each}" for wing, listed in runs.WINGS.items() for each in listed]
    assert {runs.exported_to(path) for path in find("all").values()} > {"", "fedgtea", "engine.wire"}


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
    assert "cell [4] failed" in ran["error"] and "ZeroDivisionError" in ran["error"]
    assert ran["measured"] == "FAILED"
    partial = nbformat.read(ran["notebook"], 4)
    assert any(o.output_type == "error" for c in partial.cells for o in c.get("outputs", []))
    assert main(["report", str(tmp_path / "runs")]) == 0
    assert "not complete:\n  99_demo-smoke-0: a cell failed: ZeroDivisionError" in capsys.readouterr().out
    assert len(collect(tmp_path / "runs")[0]["rows"]) == 3


def test_too_little_memory_is_one_sentence(tmp_path):
    full = 'import torch\nraise torch.OutOfMemoryError("CUDA out of memory")'
    path = chapter(tmp_path, "#| default_exp methods.fedavg", full)
    ran = run_chapter(path, "smoke", out=tmp_path / "runs", changes={"batch": "12"})
    assert ran["measured"] == "FAILED" and "\n" not in ran["error"]
    assert "cell [4] failed: UserError: the GPU's memory is too small for this run; lower -p batch=6 " \
           "(now 12)" in ran["error"] and "-p per_round=1 (now 2)" in ran["error"]


def test_with_device_cpu_a_gpu_is_hidden(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    seen = []
    monkeypatch.setattr(runs, "run_chapter", lambda *_, **__: seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
                        or dict(chapter="x", measured="", seconds=0, notebook="", error=None))
    assert [main(f"run wire --device {name} --out {tmp_path}".split()) for name in ("auto", "cpu")] == [0, 0]
    assert seen == ["0", ""]


def test_exit_code_and_last_line_of_a_failed_run(tmp_path, monkeypatch, capsys):
    raises = "from fedbook.engine.errors import UserError\nraise UserError('lr=-1 must be positive')"
    path = chapter(tmp_path, raises)
    monkeypatch.setattr(runs, "chapters", lambda: {"99_demo": path})
    assert main(["run", "99_demo", "--profile", "smoke", "--out", str(tmp_path / "runs")]) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last == "fedbook: 99_demo: cell [3] failed: UserError: lr=-1 must be positive"


def test_a_run_means_this_python_whatever_is_called_python3(tmp_path, monkeypatch):
    spec = tmp_path / "kernels" / "python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps(dict(argv=["false"], display_name="", language="python")))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    path = chapter(tmp_path, f"import sys; assert sys.executable == {sys.executable!r}")
    assert run_chapter(path, "smoke", out=tmp_path / "runs")["error"] is None


def test_the_same_command_twice_at_once_is_refused(tmp_path, in_process):
    path = chapter(tmp_path, "raise SystemError('ran')")
    folder = files.run_dir("99_demo", "smoke", 0, tmp_path / "runs")
    (folder / "kept").touch()
    why = "another process is at work in .*99_demo-smoke-0"
    with files.locked(folder), pytest.raises(UserError, match=why):
        run_chapter(path, "smoke", out=tmp_path / "runs", fresh=True)
    assert (folder / "kept").exists()
    assert "ran" in run_chapter(path, "smoke", out=tmp_path / "runs", fresh=True)["error"]
    assert not (folder / "kept").exists()


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
                        **k: read(self, *a, **k) + ("# changed" if self.name == "errors.py" else ""))
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
    readme.write_text("| [demo](results/README.md#feddemo) | old |\n")
    assert main(["report", "--keep", "--readme", "README.md"]) == 0
    said = capsys.readouterr().out
    assert "99_demo on toy: own checks: 1 yes" in said and "no claims:\n  98_mute-smoke-0-toy" in said
    assert "not complete" not in said
    assert readme.read_text() == "| [demo](results/README.md#feddemo) | nothing claimed yet |\n"
    assert [path.name for path in sorted(tmp_path.glob("results/*.json"))] == ["99_demo-smoke-0-toy.json"]
    for page in ("README.md", "report.html"): assert "a is at least 0" in (tmp_path / "runs" / page).read_text()
    assert "| smoke, toy | 1 yes |" in (tmp_path / "results" / "README.md").read_text()
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
    lines = {line.split()[3]: line for line in out.splitlines() if " s  " in line}
    assert code == 1 and lines.keys() == {"97_slow", "98_fast", "99_bad"}
    assert [line.split()[:3] for line in lines.values()] == [[str(n), "of", "3"] for n in (1, 2, 3)]
    assert lines["98_fast"].split()[-1] == "3" and lines["97_slow"].endswith("slow")
    assert "FAILED: cell [3] failed: ZeroDivisionError" in lines["99_bad"]
    assert "fedbook: 99_bad: cell [3] failed" in err and "chapters:" not in err
    assert out.splitlines()[-1].startswith("open next: ") and "97_slow.ipynb" in out.splitlines()[-1]
    assert out.splitlines()[-1].endswith(f": {command._lab()}")


def test_the_next_line_to_type_works_where_it_is_typed(tmp_path, monkeypatch):
    (tmp_path / "nbs").mkdir()
    monkeypatch.setattr(command, "notebooks_folder", lambda: tmp_path / "nbs")
    monkeypatch.chdir(tmp_path)
    assert command._lab() == "fedbook lab", "nothing was made here"
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "installed").touch()
    assert command._lab() == "make lab"
    monkeypatch.chdir(tmp_path / "nbs")
    assert command._lab() == "fedbook lab"


def test_without_a_terminal_no_bars_are_drawn(tmp_path, capsys):
    path = chapter(tmp_path, "import sys; print('a bar of its own', file=sys.stderr)")
    assert run_chapter(path, "smoke", out=tmp_path / "runs")["error"] is None
    assert capsys.readouterr().err == ""


def test_without_a_terminal_a_long_run_says_each_minute_how_far_it_is(capsys):
    bar = runs._bar("my chapter")
    assert bar["mininterval"] == bar["delay"] == 60
    with tqdm.tqdm(total=9, **{**bar, "mininterval": 0, "delay": 0}) as shown: shown.update(4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("my chapter: cell 4 of 9 after ") and "\r" not in "".join(lines)


def test_a_long_run_at_full_says_how_long_it_took(monkeypatch, capsys):
    monkeypatch.setattr(command, "booked_minutes", lambda: {"engine/local": 3.0, "evidence/fedgtea": 180.0})
    for names, said in (("engine/local", ""), ("engine/local evidence/fedgtea", "3.0 hours of measuring")):
        command._forecast(dict.fromkeys(names.split()))
        out = capsys.readouterr().out
        assert said in out and bool(said) == bool(out)


def test_names_in_any_order_come_back_in_that_of_the_course():
    known = list(runs.chapters())
    assert runs.in_order(reversed(known)) == known
    late = ["engine/zebra", "20_beyond", "answers/wire", "engine/stacked", "engine/local", "engine/ant"]
    known = ["20_beyond", "engine/local", "engine/stacked", "engine/ant", "engine/zebra", "answers/wire"]
    assert runs.in_order(late) == known


@pytest.mark.parametrize("words", ["run", "run path", "run all", "run --profile quick"])
def test_a_run_without_a_name_walks_the_path_in_the_order_of_the_course(words, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(command, "run_chapters", lambda paths, *_, **options: asked.extend(paths) or [])
    main([*words.split(), "--out", str(tmp_path)])
    every = list(runs.chapters().values())
    assert asked == (every if "all" in words else [path for path in every if path.parent.name == "nbs"])
    assert 9 <= len(find("path")) <= 10 and next(iter(find("path"))) == "00_start"


def test_make_without_a_name_walks_the_path():
    text = (runs.notebooks_folder().parent / "Makefile").read_text()
    assert re.search(r"^NAME +\?= path$", text, re.M)


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
    mine, gone = course / "methods/fedavg.ipynb", course / "answers/fedavg.ipynb"
    mine.write_text("my work")
    gone.unlink()
    assert command.copy_chapters(course) == (1, len(list(course.rglob("*.ipynb"))) - 1)
    assert mine.read_text() == "my work"
    assert gone.read_bytes() == (runs.notebooks_folder() / "answers" / gone.name).read_bytes()
    assert str(course) in capsys.readouterr().out


# Seeds until it is decided

GROWS = """#| default_exp methods.fedavg
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
results.claim("b beats a", results.values("gain", "gain"), at_least=0, of="a paper", paper="better")
results.claim("of our own, never decided", [1.0, -1.0, 0.1] * 2, at_least=0)
"""


def growing(tmp_path, shift=1.0):
    cells = GROWS.replace("LOG", str(tmp_path / "log")).replace("SHIFT", str(shift))
    return chapter(tmp_path, cells, 'results.finish("done")')


@pytest.mark.usefixtures("in_process")
def test_seeds_are_added_at_fixed_looks_until_it_is_decided(tmp_path):
    path, plan = growing(tmp_path), looks(16)
    first = next(command.until_decided(path, 3600, 16, "smoke", out=tmp_path / "runs", device="cpu"))
    assert first["error"] is None and first["measured"].startswith("3 seeds at 99.8%, 1 claims undecided: done")
    ran = list(command.until_decided(path, 3600, 16, "smoke", out=tmp_path / "runs", device="cpu"))
    asked = [int(r["measured"].split()[0]) for r in ran]
    assert asked == [n for n, _ in plan][:len(ran)] and 3 < asked[-1] < 16, asked
    assert ran[-1]["measured"].endswith("0 claims undecided, decided: done")
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
    assert ran["measured"].startswith("5 seeds") and "1 claims undecided, no more seeds" in ran["measured"]


@pytest.mark.usefixtures("in_process")
def test_looks_end_where_more_seeds_add_nothing_to_what_is_undecided(tmp_path):
    path = chapter(tmp_path, GROWS.replace("LOG", str(tmp_path / "log")).replace("SHIFT", "0").replace(
        'results.values("gain", "gain")', 'results.values("gain", "gain")[:2]'), 'results.finish("done")')
    [ran] = command.until_decided(path, 3600, 16, "smoke", out=tmp_path / "runs", device="cpu")
    assert "1 claims undecided, their rows have a number of seeds of their own" in ran["measured"]


def test_pictures_that_change_at_their_place_are_other_data(tmp_path):
    path, photos = next(iter(find("methods/fedavg").values())), tmp_path / "photos"
    photos.mkdir()
    (photos / "a.jpg").write_bytes(b"1")
    def stamp(): return runs.data_stamp(path, {"data": str(photos)})
    before = stamp()
    assert before == stamp() and before.startswith(run_stamp(path))
    (photos / "a.jpg").write_bytes(b"12")
    assert stamp() != before and runs.data_stamp(path) == run_stamp(path)


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
    ("--until-decided --budget 2h", "--until-decided does not go with path"),
    ("fedavg --until-decided --budget 2h -p seeds=4", "--until-decided does not go with -p seeds"),
    ("fedavg --until-decided --budget 2h --engine flower", "does not go with --engine flower"),
    ("fedavg --until-decided --budget 2h --fresh", "--until-decided does not go with --fresh"),
    ("fedavg --until-decided --budget 2h --most-seeds 2", "--most-seeds 2 must be 3 or more"),
    ("00_start --until-decided --budget 2h", "has no number of seeds that could grow")])
def test_what_does_not_go_with_looks_is_said(line, said, capsys):
    assert main(["run", *line.split(), "--profile", "smoke"]) == 2
    assert said in capsys.readouterr().err


def test_every_undecided_claim_of_a_paper_is_waited_for():
    claim = lambda values, **facts: judged_claim("a", values, at_least=0, **facts)
    noisy, sure = [0.5, -0.6, 0.3], [1.0, 1.1, 1.2]
    assert command.undecided([claim(noisy), claim(sure, of="x")]) == []
    assert len(command.undecided([claim(noisy, of="x"), claim(sure, of="x")])) == 1
    assert len(command.undecided([claim(noisy), claim(sure)])) == 1
    hopeless = claim([1.0, -1.0, 0.01], of="x")
    assert hopeless["seeds"] is None and command.undecided([hopeless]) == [hopeless], "undecided is undecided"
    assert command.undecided([claim(sure, of="x", reruns=[5.0, -5.0, 4.0, 0.0])]) == []
