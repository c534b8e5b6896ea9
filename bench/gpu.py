"""What a machine with a GPU can say about fedbook in half an hour, in pieces of ten minutes.

    python bench/gpu.py [--minutes 30] [--only WORDS] [--out FOLDER] [--results results]

The pieces: every notebook at `smoke`, the papers' chapters at `quick` (their headline rows), and those files
of bench/ that compute on a GPU. Each runs in a process of its own, so one that fails or dies ends alone. What
came of it stands in `results/gpu-DEVICE.json` as soon as it ends: seconds, ok or the error, and its numbers.

No piece runs on past the `--minutes`; one that must stop keeps the rows that it has finished in `--out`, and
the next call goes on there. A piece that ended well with the same code and the same PyTorch is not run again,
one that failed is, after all others. A piece that needs a package or data that are not here is left out, with
the sentence that says what. The results file alone is enough to go on with the next piece on another machine;
rows of a piece that was stopped move with the folder.

Notebooks run through papermill; where it is missing, their code cells run one after the other in a process
of Python, without IPython and sliders. Exit code: 0, 1 if a piece failed, 2 without a GPU.
"""
import argparse
import contextlib
import hashlib
import io
import json
import linecache
import os
import re
import runpy
import signal
import subprocess
import sys
import traceback
import types
from functools import cache
from pathlib import Path
from time import monotonic
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch

from fedbook.kit import lab
from fedbook.kit.runs import (chapter_module, chapter_name, chapters, check_needs, code_cells, find, out_of_memory,
                              run_chapter, run_stamp, sizes_of)
from fedbook.engine.errors import UserError, needs
from fedbook.engine.files import run_name, write_atomically
from fedbook.kit.report import read_results

PAPERS = ("fedreplay", "fedmox", "fedklpr", "fedcbdr", "fedgtea")
BENCHES = ("heads", "moe", "wasserstein")
PATIENCE = 15      # seconds that a piece has to end when its time is up


class Piece(NamedTuple):
    "A thing to run: its `size` (smoke, quick, or bench) and the notebook or file at `path`."
    size: str
    path: Path

    @property
    def name(self): return f"{self.size} {chapter_name(self.path)}"


@cache
def pieces():
    "All of them, in the order in which they run."
    papers = [next(iter(find(name).values())) for name in PAPERS]
    files = [ROOT / "bench" / f"{name}.py" for name in BENCHES]
    paths = dict(smoke=chapters().values(), quick=papers, bench=files)
    return [Piece(size, path) for size in paths for path in paths[size]]


@cache
def stamp_of(name):
    "Hash of the code that the piece called `name` runs and of PyTorch's version; empty for no piece."
    piece = next((piece for piece in pieces() if piece.name == name), None)
    if not piece: return ""
    files = [piece.path, *sorted((ROOT / "fedbook").glob("*.py"))] if piece.size == "bench" else []
    texts = [path.read_text(encoding="utf-8") for path in files] or [run_stamp(piece.path)]
    return hashlib.sha256("\0".join([torch.__version__, *texts]).encode()).hexdigest()[:16]


def facts_of(device):
    "The machine, for the reader of the file."
    facts = dict(device="cpu", memory_gb=None, cuda=None)
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        facts = dict(device=card.name, memory_gb=round(card.total_memory / 1e9, 1), cuda=torch.version.cuda)
    return facts | dict(torch=torch.__version__, python=sys.version.split()[0], cores=os.cpu_count())


# In the process of a piece --------------------------------------------------------------------------------

def drawn_once(f, **knobs):
    "What stands for `lab.play` where there are no sliders: the picture that it starts with, drawn."
    import matplotlib.pyplot as plt

    f(**{name: knob[0] if isinstance(knob, list) else (*knob, knob[0])[3] for name, knob in knobs.items()})
    plt.close("all")


def without_jupyter():
    "Let code cells run in plain Python: `display` shows nothing, and sliders are drawn once."
    try: needs("IPython")
    except UserError:
        shown = types.SimpleNamespace(display=lambda *_, **__: None, Markdown=str)
        asked = dict(get_ipython=lambda: None, version_info=(9, 0), display=shown)   # by matplotlib
        sys.modules |= {"IPython": types.SimpleNamespace(**asked), "IPython.display": shown}
    try: needs("ipywidgets")
    except UserError: lab.play = drawn_once


def tagged(path):
    "The number of the code cell that the parameters replace, -1 if there is none."
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    tags = [cell["metadata"].get("tags", ()) for cell in cells if cell["cell_type"] == "code"]
    return next((i for i, held in enumerate(tags) if "parameters" in held), -1)


def run_cells(path, parameters):
    "Run the code cells of the notebook at `path` here. What they raise comes through."
    from IPython.display import display

    names, at = {"__name__": "__main__", "display": display}, tagged(path)
    os.environ["FEDBOOK_STAMP"] = run_stamp(path)
    for i, source in enumerate(code_cells(path)):
        cell = f"<{path.stem}, code cell {i + 1}>"
        linecache.cache[cell] = (len(source), None, source.splitlines(True), cell)
        with contextlib.redirect_stdout(io.StringIO()): exec(compile(source, cell, "exec"), names)
        if i == at: names.update(parameters)


def left_out(error):
    "Whether `error` (an exception, or a sentence) says that something is not installed here, or not at hand."
    words = "(is|are) not installed|comes with the extra|is not at hand|could not be downloaded"
    if isinstance(error, ModuleNotFoundError): return not (error.name or "").startswith("fedbook")
    return (told(error) or isinstance(error, (ImportError, str))) and bool(re.search(words, str(error)))


def told(error):
    "Whether `error` is a sentence for the user; by its name, for the lab's notebook makes that class anew."
    return type(error).__name__ == UserError.__name__


def run_notebook(piece, device, out):
    "The outcome of a notebook: its state, and what is wrong."
    try:
        sizes = sizes_of(piece.path, piece.size)
        if sizes: check_needs(chapter_module(piece.path), sizes)
        try: needs("papermill")
        except UserError:
            without_jupyter()
            parameters = dict(profile=piece.size, device=device, seed=0, engine="local", out=str(out))
            error = run_cells(piece.path, parameters | dict(changes={}))
        else: error = run_chapter(piece.path, piece.size, device, out=out)["error"]
    except torch.OutOfMemoryError: return dict(state="error", error=out_of_memory(sizes))
    except Exception as error:
        if left_out(error): return dict(state="left out", error=str(error))
        return dict(state="error", error=str(error) if told(error) else traceback.format_exc())
    if not error: return dict(state="ok")
    return dict(state="left out" if left_out(error.splitlines()[0]) else "error", error=error)


def run_bench(piece):
    sys.argv = [str(piece.path)]
    try: runpy.run_path(str(piece.path), run_name="__main__")
    except torch.OutOfMemoryError: return dict(state="error", error=out_of_memory())
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code: return dict(state="ok")
        return dict(state="left out" if left_out(error) else "error", error=traceback.format_exc())
    return dict(state="ok")


def work(piece, device, out, outcome):
    "Run one piece here, and write what came of it to the file `outcome`."
    came = run_bench(piece) if piece.size == "bench" else run_notebook(piece, device, out)
    if torch.cuda.is_initialized(): came["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
    write_atomically(outcome, json.dumps(came))
    return 0


# In the process that starts them --------------------------------------------------------------------------

def started(piece, device, out, seconds):
    "Run `piece` in its own process for at most `seconds`. Returns what came of it."
    out.mkdir(parents=True, exist_ok=True)
    outcome, log = (out / f"{piece.name.replace(' ', '-')}.{end}" for end in ("outcome", "log"))
    outcome.unlink(missing_ok=True)
    line = [sys.executable, __file__, "--piece", piece.name, "--device", device, "--out", out,
            "--outcome", outcome]
    quiet = dict(MPLBACKEND="agg", TQDM_DISABLE="1", PYTHONUNBUFFERED="1")
    begun = monotonic()
    with open(log, "w") as file:
        process = subprocess.Popen(list(map(str, line)), stdout=file, stderr=file, start_new_session=True,
                                   env=os.environ | quiet)
        try: process.wait(seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as stop:
            ended(process)
            if isinstance(stop, KeyboardInterrupt): raise
    came = json.loads(outcome.read_text()) if outcome.exists() else None
    last = log.read_text(errors="replace").strip().splitlines()
    if came is None and monotonic() - begun >= seconds: came = dict(state="stopped")
    elif came is None:
        why = "\n".join([f"its process ended with code {process.returncode}", *last[-5:]])
        came = dict(state="error", error=why)
    if piece.size == "bench": came["printed"] = last
    return came | dict(seconds=round(monotonic() - begun, 1))


def ended(process):
    "Ask a piece to stop, as Ctrl-C would; end it with its whole group after `PATIENCE` seconds."
    process.send_signal(signal.SIGINT)
    try: process.wait(PATIENCE)
    except subprocess.TimeoutExpired: os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def numbers_of(piece, out):
    "Headline and rows of a notebook's results, without lists and texts of many letters."
    try: body = read_results(out / run_name(chapter_name(piece.path), piece.size, 0) / "results.json")
    except (UserError, OSError): return {}
    short = lambda numbers: {k: v for k, v in numbers.items() if isinstance(v, (int, float))}
    rows = [dict(row, numbers=short(row["numbers"])) for row in body["rows"]] if piece.size == "quick" else []
    return dict(headline=body["headline"]) | (dict(rows=rows) if rows else {})


def plain(text, out):
    "An error as the results file keeps it: no colours, no folders of this machine, the sentence and its end."
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    for folder, name in ((out, "OUT"), (sys.prefix, "PYTHON"), (sys.base_prefix, "PYTHON"), (ROOT, "."),
                         (Path.home(), "~")): text = text.replace(str(folder), name)
    first, *rest = text.strip().splitlines() or ["no reason given"]
    return "\n".join([first[:300], *rest[-8:]])


def entry_of(piece, came, out):
    "What the results file says about a piece."
    entry = dict(piece=piece.name, stamp=stamp_of(piece.name), **came)
    if "error" in entry: entry["error"] = plain(entry["error"], out)
    if piece.size != "bench" and came["state"] == "ok": entry |= numbers_of(piece, out)
    return entry


def in_state(wanted, entries, *states):
    "Those of the pieces whose last run of the present code ended in one of `states`; None: there was none."
    known = {name: entry["state"] for name, entry in entries.items() if entry["stamp"] == stamp_of(name)}
    return [piece for piece in wanted if known.get(piece.name) in states]


def plan(wanted, entries):
    "The pieces still to run: those that failed before come last."
    return in_state(wanted, entries, None, "stopped") + in_state(wanted, entries, "error")


def said(entry):
    "One line about a piece."
    why = entry.get("error", "").splitlines()[-1:] or entry.get("printed", [])[-1:]
    tail = entry.get("headline") or "".join(why)
    return f"{entry['piece']:22} {entry['state']:9} {entry['seconds']:7.1f} s  {tail[:110]}".rstrip()


def tour(todo, entries, file, facts, args):
    "Run the pieces `todo` until the time is up. Each is written to `file` when it ends."
    end = monotonic() + 60 * args.minutes - PATIENCE
    for piece in todo:
        if (left := end - monotonic()) < PATIENCE: return
        entries[piece.name] = entry_of(piece, started(piece, args.device, args.out, left), args.out)
        body = facts | dict(pieces=[entries[piece.name] for piece in pieces() if piece.name in entries])
        write_atomically(file, json.dumps(body, indent=1) + "\n")
        print(said(entries[piece.name]), flush=True)


def read_args(argv):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="how long, all in all (30)")
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="pieces with such a word in their name")
    parser.add_argument("--out", type=Path, help="folder for runs and logs (runs/gpu-DEVICE)")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder of the results file")
    for name in ("--device", "--piece", "--outcome"):
        parser.add_argument(name, help=argparse.SUPPRESS, default="cuda" if name == "--device" else None)
    return parser.parse_args(argv)


def main(argv=None):
    args = read_args(argv)
    if args.piece:
        piece = next(piece for piece in pieces() if piece.name == args.piece)
        return work(piece, args.device, args.out, args.outcome)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("make gpu: PyTorch finds no GPU here; `make test` and `make bench` need none", file=sys.stderr)
        return 2
    facts = facts_of(args.device)
    file = args.results / f"gpu-{re.sub(r'[^A-Za-z0-9]+', '-', facts['device']).strip('-')}.json"
    args.out = (args.out or ROOT / "runs" / file.stem).resolve()
    known = json.loads(file.read_text())["pieces"] if file.exists() else []
    entries = {entry["piece"]: entry for entry in known}
    wanted = [piece for piece in pieces() if not args.only or any(word in piece.name for word in args.only)]
    try: tour(plan(wanted, entries), entries, file, facts, args)
    except KeyboardInterrupt:
        print("make gpu: interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return 130
    return summary(wanted, entries, file)


def summary(wanted, entries, file):
    "The last lines; returns the exit code."
    failed = [piece.name for piece in in_state(wanted, entries, "error")]
    for name in failed:
        print(f"make gpu: {name} failed: {entries[name]['error'].splitlines()[-1]}", file=sys.stderr)
    left = len(in_state(wanted, entries, None, "stopped"))
    more = f"; {left} are to come: the same command goes on" if left else ""
    print(f"\n{len(wanted) - left} of {len(wanted)} pieces are done, {len(failed)} of them failed{more}\n"
          f"written: {file}")
    return 1 if failed else 0


if __name__ == "__main__": sys.exit(main())
