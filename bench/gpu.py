"""What a machine with a GPU can say about fedbook, as a plan in pieces of at most ten minutes.

    python bench/gpu.py [--plan] [--minutes 30] [--only WORDS] [--out FOLDER] [--results results]
    python bench/gpu.py --halve FOLDER

The pieces, in the order of what they are worth: what only a GPU can show (bench/gpu_paths.py: each path of the
engine against the CPU, and seconds a round of four networks); rows of papers (below); every notebook at
`smoke`, the papers' chapters at `quick` (their headline rows), and those files of bench/ that compute on a
GPU. `--plan` prints them with minutes, what they show and need, and which of them are done; it needs no GPU.
Each piece runs in a process of its own, so one that fails or dies ends alone. What came of it stands in
`results/gpu-DEVICE.json` as soon as it ends: seconds, ok or the error, and its numbers.

A row is one method with one seed in the settings of `SERIES` (FedMox's are those of `full` that its lab book
leaves to a GPU), measured by the code of the paper's notebook in evidence/: it lands in an ordinary
results.json, in `--out`, where a run of that notebook with these settings finds it. Of CIFAR-10 half is used;
`--halve FOLDER` writes it (30 MB) from the copy in FEDBOOK_DATA, and
FEDBOOK_DATA=FOLDER finds it there. A run without it leaves these rows out.

No piece runs longer than ten minutes, or on past the `--minutes`. A row or notebook that must stop keeps its
rounds or rows in `--out` and goes on there in the next piece. A piece that ended well with the same code and
the same PyTorch is not run again, one that failed is, after all others. A piece that needs a package or data
that are not here is left out, with the sentence that says what. The results file alone is enough to go on with
the next piece on another machine; rows of a piece that was stopped move with the folder.

Minutes of a row are computed: its FLOPs, counted on tensors without memory, through a rate (or its calls of
kernels, if they take longer), and the bytes of its messages through another. Both rates are those that a GPU's
file in `--results` measured, else `TFLOPS` and `WIRE`, which are taken. Minutes of the other pieces are those of their last run, where there was one.

Notebooks run through papermill; where it is missing, their code cells run one after the other in a process
of Python, without IPython and sliders. Exit code: 0, 1 if a piece failed, 2 without a GPU.
"""
import argparse
import collections
import contextlib
import hashlib
import io
import json
import linecache
import math
import os
import re
import runpy
import signal
import subprocess
import sys
import traceback
import types
import typing
import zipfile
from functools import cache, partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import gpu_paths
import torch
from slices import needed

from fedbook.datasets.world import data_folder
from fedbook.kit import lab
from fedbook.kit.runs import (chapter_module, chapter_name, chapters, check_needs, code_cells, find, out_of_memory,
                              run_chapter, run_stamp, sizes_of)
from fedbook.engine.errors import UserError, needs
from fedbook.engine.files import run_name, write_atomically
from fedbook.fedgtea import gtea
from fedbook.methods.continual import networks
from fedbook.methods.painters import ac_gan, discriminator_loss, generator_loss
from fedbook.kit.report import read_results

PAPERS = ("fedreplay", "fedmox", "fedklpr", "fedcbdr", "fedgtea")
BENCHES = ("heads", "moe", "wasserstein")
PATIENCE = 15      # seconds that a piece has to end when its time is up
LONGEST = 600      # seconds of a piece
START = 25         # seconds that a piece takes to begin, taken
TFLOPS = 35.0      # 10^12 operations a second on an H100 in float32 without TF32: about half of its 67, taken
CALL = 1e-5        # seconds between two calls of kernels, taken: small networks wait for these
WIRE = 310.0       # MB of messages a second, packed, unpacked, checked and averaged by one core
HALF = dict(pictures=2500, test_pictures=500)   # pictures of a class of CIFAR-10


class Series(NamedTuple):
    """Rows of the notebook `path` at its `profile` with `changes`: `rows` maps a method to the expression
    that measures it with seed `s`. `cost` counts a row's operations, calls and parameters, from the sizes."""
    path: Path
    changes: dict
    rows: dict[str, str]
    seeds: int
    cost: typing.Callable | None
    shows: str
    needs: str = ""
    profile: str = "paper"


class Piece(NamedTuple):
    """A thing to run: its `size` (paths, rows, smoke, quick, or bench) and the notebook or file at `path`. Of
    paths `part` says which; of rows it is one of `SERIES`, with the `row` and the `seed`."""
    size: str
    path: Path
    part: str = ""
    row: str = ""
    seed: int = 0

    @property
    def name(self):
        if self.size == "rows": return f"rows {self.part}: {self.row}, seed {self.seed}"
        return f"{self.size} {self.part or chapter_name(self.path)}"


def shape_of(sizes): return (3, 32, 32) if sizes.data == "cifar10" else (1, 28, 28)


def classes_of_a_task(sizes): return 10 // sizes.tasks


@cache
def body_of(network, classes, shape): return partial(networks[network], classes, shape)


def replay_cost(sizes, row):
    "Cost and parameters of a row of FedCBDR's tables: training with what is kept, and a test each round."
    make = body_of(sizes.network, classes_of_a_task(sizes), shape_of(sizes))
    step, parameters = gpu_paths.cost_of(make, shape_of(sizes), sizes.batch)
    task = classes_of_a_task(sizes) * sizes.pictures
    kept = 0 if "nothing kept" in row or row == "Finetune" else sizes.buffer_size
    trained = sum(task + t * kept for t in range(sizes.tasks)) * sizes.rounds * sizes.epochs
    seen = sum(range(1, sizes.tasks + 1)) * classes_of_a_task(sizes) * sizes.test_pictures * sizes.rounds
    return step * ((trained + seen / 3) / sizes.batch), parameters


def painter_cost(sizes, row):
    """Cost and parameters of a row of FedGTEA's: the steps of the clients' AC-GANs, on twice as many pictures
    from the second task on. Optimisers, what the server does, and the tests, are not counted."""
    classes, shape = classes_of_a_task(sizes), shape_of(sizes)
    plain = row.startswith("AC-GAN")
    with torch.device("meta"):
        model = (ac_gan if plain else gtea)(networks[sizes.network], classes, shape)
        judge = model.discriminator if plain else model.judge
        def step(many):
            x, y = torch.empty(many, *shape), torch.zeros(many, dtype=torch.int64)
            fake = model.generator(torch.empty(many, model.generator.noise), y)
            discriminator_loss(judge, x, y, fake).backward()
            generator_loss(judge, fake, y).backward()
        first, later = (gpu_paths.counted(partial(step, many)) for many in (sizes.gan_batch, 2 * sizes.gan_batch))
    steps = sizes.clients * sizes.rounds * sizes.iterations
    return (first + later * (sizes.tasks - 1)) * steps, sum(p.numel() for p in model.parameters())


def six_rows():
    "FedCBDR, what it is made of, and what its paper compares it with first."
    names = ("leverage + TTS", "leverage + cross-entropy", "Finetune", "Re-Fed", "nothing kept + cross-entropy",
             "nothing kept + TTS")
    return {name: f"row({name!r}, s)" for name in names}


# Rates and filters as they were found at `full`: FedAvg's for one head, FedMox's for experts.
FOUND = dict(tuning=0, client_lr=1e-3, rpn=0.7, classes=0.7, variance=0.04)


def left_to_a_gpu():
    "Rows of FedMox that its lab book does not have at `full`, and the two that they are compared with."
    changed = {"": "", ", clients at high resolution": ", low=sizes.high",
               ", 3 clients": ", **fewer(3)", ", 6 clients": ", **fewer(6)",
               ", running-mean teacher": ", lasting=False, momentum=0.999"}
    rows = {what: f"row({what!r}, s)" for what in ("FedProx", "FedSTO")}
    rows |= {f"{what}{end}": f"row({what!r}, s, {what + end!r}{change}{rate})" for end, change in changed.items()
             for what, rate in (("FedAvg", ""), ("FedMox", ", client_lr=3e-4"))}
    rows["FedMox, low-resolution server"] = "row('FedMox, low-resolution server', s, client_lr=3e-4)"
    rows |= {f"backbone, {kind}": f"backbone_row({kind!r}, s, '', sizes.warm_lr)"
             for kind in ("frozen", "trained")}
    routers = ("gradient runs on", "not centred", "not centred, balanced", "from scratch")
    heads = ["both mixtures", *(f"both mixtures, {router}" for router in routers)]
    return rows | {f"head, {what}": f"head_row({what!r}, s)" for what in heads}


def other_networks():
    "Rows of FedKLPR on networks that its lab book leaves to a GPU."
    return {f"{network}, {what}": f"run_on({network!r}, {what!r}, s)"
            for network in ("mobilenet", "vit", "resnet34", "resnet50")
            for what in ("start, AdaBN", "FedCAPR", "+ KLL + KLAW", "plain pruning 70%", "FedKLPR 70%")}


SERIES = {
    "fedcbdr embedded": Series(
        ROOT / "nbs/evidence/fedcbdr.ipynb", dict(
            setting="", data="fashion_mnist_small", buffer_size=60, pictures=1000, test_pictures=200),
        six_rows(), 3, replay_cost, "FedCBDR's claims with ResNet-18 and 100 rounds a task"),
    "fedcbdr half cifar10": Series(
        ROOT / "nbs/evidence/fedcbdr.ipynb", dict(setting="cifar10-5", buffer_size=150, **HALF), six_rows(), 3,
        replay_cost, "FedCBDR's claims by the paper's protocol: 5 tasks, 100 rounds each",
        "half of CIFAR-10 (--halve)"),
    "fedgtea half cifar10": Series(
        ROOT / "nbs/evidence/fedgtea.ipynb", dict(setting="cifar10-5x2", tries=0, **HALF),
        {"FedGTEA": "row(FedGTEA, s, look_inside)", "without Wasserstein": "row(NoWasserstein, s, look_inside)",
         "AC-GAN + FedAvg": "row(ACGANFedAvg, s)"}, 1, painter_cost,
        "FedGTEA's first sequence: 60 rounds a task", "half of CIFAR-10 (--halve)"),
    "fedmox at full": Series(
        ROOT / "nbs/evidence/fedmox.ipynb", FOUND, left_to_a_gpu(), 3, None,
        "FedMox's rivals, resolutions, numbers of clients, teacher, backbone and routers, on rendered streets",
        profile="full"),
    "fedklpr at full": Series(
        ROOT / "nbs/evidence/fedklpr.ipynb", {}, other_networks(), 3, None,
        "FedKLPR on a MobileNet, a vision transformer, ResNet-34 and ResNet-50, on rendered people", profile="full"),
}


@cache
def pieces():
    "All of them, in the order in which they run."
    paths = [Piece("paths", ROOT / "bench/gpu_paths.py", part) for part in gpu_paths.PARTS]
    rows = [Piece("rows", series.path, title, row, seed) for title, series in SERIES.items()
            for seed in range(series.seeds) for row in series.rows]
    papers = [next(iter(find(name).values())) for name in PAPERS]
    files = [ROOT / "bench" / f"{name}.py" for name in BENCHES]
    rest = dict(smoke=chapters().values(), quick=papers, bench=files)
    return paths + rows + [Piece(size, path) for size in rest for path in rest[size]]


@cache
def stamp_of(name, version=torch.__version__):
    "Hash of the code that the piece called `name` runs and of PyTorch's `version`; empty for no piece."
    piece = next((piece for piece in pieces() if piece.name == name), None)
    if not piece: return ""
    files = [piece.path, *sorted((ROOT / "fedbook").rglob("*.py"))] if piece.path.suffix == ".py" else []
    texts = [path.read_text(encoding="utf-8") for path in files] or [run_stamp(piece.path)]
    if piece.size == "rows": texts += map(json.dumps, settings_of(piece))
    return hashlib.sha256("\0".join([version, *texts]).encode()).hexdigest()[:16]


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


def run_row(piece, device, out):
    "Measure one row with the code of its notebook, as far as the row needs it."
    series = SERIES[piece.part]
    profile, changes = settings_of(piece)
    parameters = dict(profile=profile, device=device, seed=0, engine="local", out=str(out), changes=changes)
    os.environ["FEDBOOK_STAMP"] = run_stamp(piece.path)
    cells = code_cells(piece.path)
    before = [source for i, source in enumerate(cells) if i <= tagged(piece.path)]
    names = {"__name__": "__main__"}
    for i, source in enumerate(needed([*before, *(f"{k} = {v!r}" for k, v in parameters.items()),
                                       *cells[len(before):]], series.rows[piece.row], given="s")):
        cell = f"<{piece.path.stem}, what a row needs {i + 1}>"
        linecache.cache[cell] = (len(source), None, source.splitlines(True), cell)
        exec(compile(source, cell, "exec"), names)
    eval(series.rows[piece.row], names | dict(s=piece.seed))


def left_out(error):
    "Whether `error` (an exception, or a sentence) says that something is not installed here, or not at hand."
    words = "(is|are) not installed|comes with the extra|is not at hand|could not be downloaded"
    if isinstance(error, ModuleNotFoundError): return not (error.name or "").startswith("fedbook")
    return (told(error) or isinstance(error, (ImportError, str))) and bool(re.search(words, str(error)))


def told(error):
    "Whether `error` is a sentence for the user; by its name, for the lab's notebook makes that class anew."
    return type(error).__name__ == UserError.__name__


def settings_of(piece):
    "The profile of a notebook or a row, and the changes of its sizes."
    if piece.size != "rows": return piece.size, {}
    series = SERIES[piece.part]
    return series.profile, series.changes


def sizes_of_piece(piece): return sizes_of(piece.path, *settings_of(piece))


def run_notebook(piece, device, out):
    "The outcome of a notebook: its state, and what is wrong."
    try:
        sizes = sizes_of_piece(piece)
        if sizes: check_needs(chapter_module(piece.path), sizes)
        if piece.size == "rows":
            run_row(piece, device, out)
            return dict(state="ok")
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


def run_bench(piece, device):
    sys.argv = [str(piece.path), *([piece.part, "--device", device] if piece.part else [])]
    try: runpy.run_path(str(piece.path), run_name="__main__")
    except torch.OutOfMemoryError: return dict(state="error", error=out_of_memory())
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code: return dict(state="ok")
        return dict(state="left out" if left_out(error) else "error", error=traceback.format_exc())
    return dict(state="ok")


def work(piece, device, out, outcome):
    "Run one piece here, and write what came of it to the file `outcome`."
    came = (run_bench if piece.path.suffix == ".py" else partial(run_notebook, out=out))(piece, device)
    if torch.cuda.is_initialized(): came["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
    write_atomically(outcome, json.dumps(came))
    return 0


# In the process that starts them --------------------------------------------------------------------------

def started(piece, device, out, seconds):
    "Run `piece` in its own process for at most `seconds`. Returns what came of it."
    out.mkdir(parents=True, exist_ok=True)
    plainly = re.sub(r"[^A-Za-z0-9.]+", "-", piece.name)
    outcome, log = (out / f"{plainly}.{end}" for end in ("outcome", "log"))
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
    if piece.path.suffix == ".py": came["printed"] = last
    return came | dict(seconds=round(monotonic() - begun, 1))


def ended(process):
    "Ask a piece to stop, as Ctrl-C would; end it with its whole group after `PATIENCE` seconds."
    process.send_signal(signal.SIGINT)
    try: process.wait(PATIENCE)
    except subprocess.TimeoutExpired: os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def numbers_of(piece, out):
    "Headline and rows of a notebook's results, without lists and texts of many letters; of a row only itself."
    short = lambda numbers: {k: v for k, v in numbers.items() if isinstance(v, (int, float))}
    profile, changes = settings_of(piece)
    try: body = read_results(out / run_name(chapter_name(piece.path), profile, 0, changes) / "results.json")
    except (UserError, OSError): return {}
    if piece.size == "rows":
        return dict(rows=[dict(row, numbers=short(row["numbers"])) for row in body["rows"]
                          if (row["what"], row["seed"]) == (piece.row, piece.seed)])
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
    if piece.path.suffix != ".py" and came["state"] == "ok": entry |= numbers_of(piece, out)
    return entry


def in_state(wanted, entries, *states):
    "Those of the pieces whose last run of the present code ended in one of `states`; None: there was none."
    known = {name: entry["state"] for name, entry in entries.items() if entry["stamp"] == stamp_of(name)}
    return [piece for piece in wanted if known.get(piece.name) in states]


def to_run(wanted, entries):
    "The pieces still to run: those that failed before come last."
    return in_state(wanted, entries, None, "stopped") + in_state(wanted, entries, "error")


def goes_on(piece, entry):
    "Whether the `piece` used up its ten minutes and has kept what it had: then the next ten are its own, too."
    whole = entry["seconds"] > LONGEST - 2 * PATIENCE
    return entry["state"] == "stopped" and whole and piece.path.suffix != ".py"


def said(entry):
    "One line about a piece."
    why = entry.get("error", "").splitlines()[-1:] or entry.get("printed", [])[-1:]
    tail = entry.get("headline") or "".join(why)
    return f"{entry['piece']:22} {entry['state']:9} {entry['seconds']:7.1f} s  {tail[:110]}".rstrip()


def tour(todo, entries, file, facts, args):
    "Run the pieces `todo` until the time is up. Each is written to `file` when it ends."
    end = monotonic() + 60 * args.minutes - PATIENCE
    while todo and (left := end - monotonic()) >= PATIENCE:
        piece = todo.pop(0)
        came = started(piece, args.device, args.out, min(left, LONGEST - PATIENCE))
        entry = entries[piece.name] = entry_of(piece, came, args.out)
        body = facts | dict(pieces=[entries[piece.name] for piece in pieces() if piece.name in entries])
        write_atomically(file, json.dumps(body, indent=1) + "\n")
        print(said(entry), flush=True)
        if goes_on(piece, entry): todo.insert(0, piece)


# The plan -------------------------------------------------------------------------------------------------

def rates_in(entries):
    "What a GPU reached with ResNet-18: 10^12 operations a second, and MB of messages; else what is taken."
    printed = "\n".join(entries.get("paths resnet18", {}).get("printed", []))
    found = {name: re.search(rf"rate fp32: .*?([\d.]+) {name}", printed) for name in ("TFLOP/s", "MB/s")}
    return [float(m[1]) if m else taken for m, taken in zip(found.values(), (TFLOPS, WIRE))]


@cache
def work_of(title, row):
    "Cost, parameters and replies of a row of `SERIES`."
    series = SERIES[title]
    sizes = sizes_of(series.path, series.profile, series.changes)
    return *series.cost(sizes, row), sizes.tasks * sizes.rounds * sizes.clients


def minutes_of(piece, entries):
    "How long a `piece` takes on one GPU, in minutes; None where nothing tells."
    tflops, wire = rates_in(entries)
    if piece.size == "rows" and SERIES[piece.part].cost: cost, parameters, replies = work_of(piece.part, piece.row)
    elif piece.size == "paths": cost, parameters, replies = gpu_paths.work_of(piece.part)
    elif piece.name in entries: return entries[piece.name]["seconds"] / 60
    else: return None
    steps = max(cost.flops / tflops / 1e12, cost.calls * CALL)
    return (START + steps + 4 * parameters * replies / wire / 1e6) / 60


def shows(piece):
    "What the pieces of a kind show, and what they need that may not be here."
    series = SERIES.get(piece.part)
    if series: return series.shows + (series.needs and f"; needs {series.needs}")
    return dict(paths="What only a GPU can show: the engine's paths against the CPU, seconds a round of networks",
                smoke="That every notebook runs on a GPU", quick="The papers' headline rows",
                bench="Kernels on a GPU")[piece.size]


def state_of(piece, files):
    "Where in `files` (results files of GPUs, read) a piece ended well with the present code; empty if nowhere."
    for facts in files:
        for entry in facts["pieces"]:
            if entry["piece"] != piece.name or entry["stamp"] != stamp_of(piece.name, facts["torch"]): continue
            if entry["state"] != "stopped": return f"{entry['state']} on {facts['device']}"
    return ""


def show_plan(wanted, files):
    "Print the pieces in order: in which ten minutes they fall, their minutes, what they show and need."
    entries = {entry["piece"]: entry for facts in files for entry in facts["pieces"]}
    tflops, wire = rates_in(entries)
    print(f"Minutes on one GPU at {tflops:g} TFLOP/s and {wire:g} MB of messages a second; '?': nothing tells, "
          f"at most {LONGEST // 60}.\nThe first column: which ten minutes.")
    spent, shown = 0.0, None
    for piece in wanted:
        if shown != (shown := (piece.size, piece.part if piece.size == "rows" else "")): print(f"\n{shows(piece)}")
        done, minutes = state_of(piece, files), minutes_of(piece, entries)
        first, spent = spent, spent + (0 if done else minutes or 0)
        slots = sorted({int(first // 10) + 1, max(int(first // 10) + 1, math.ceil(spent / 10))})
        print(f"{'' if done else '-'.join(map(str, slots)):>7s} {'?' if minutes is None else f'{minutes:.1f}':>6s}  "
              f"{piece.name}{done and ': ' + done}")
    left = sum(not state_of(piece, files) for piece in wanted)
    print(f"\n{len(wanted)} pieces, {len(wanted) - left} done; the others take {spent:.0f} minutes and those with "
          "'?'. `make gpu MINUTES=10` runs what fits into ten, and goes on the next time")
    return 0


def halve(folder):
    "Write half of CIFAR-10's JPEG copy, the first pictures of each class, into `folder`. Returns the exit code."
    source, there = data_folder() / "cifar10-jpg.zip", Path(folder) / "cifar10-jpg.zip"
    if not source.is_file(): raise UserError(f"{source} is not there; let FEDBOOK_DATA name a folder with it")
    if there.exists(): raise UserError(f"{there} exists; choose another folder")
    there.parent.mkdir(parents=True, exist_ok=True)
    most, seen = dict(train=HALF["pictures"], test=HALF["test_pictures"]), collections.Counter()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(there, "w") as new:
        for name in sorted(n for n in old.namelist() if n.endswith(".jpg")):
            split, label = name.split("/")[:2]
            seen[split, label] += 1
            if seen[split, label] <= most[split]: new.writestr(name, old.read(name))
    print(f"{there}: {there.stat().st_size / 1e6:.0f} MB; `FEDBOOK_DATA={folder} make gpu` reads it")
    return 0


def read_args(argv):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="how long, all in all (30)")
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="pieces with such a word in their name")
    parser.add_argument("--out", type=Path, help="folder for runs and logs (runs/gpu-DEVICE)")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder of the results file")
    parser.add_argument("--plan", action="store_true", help="print the pieces and end; needs no GPU")
    parser.add_argument("--halve", metavar="FOLDER", help="write half of CIFAR-10 there and end")
    for name in ("--device", "--piece", "--outcome"):
        parser.add_argument(name, help=argparse.SUPPRESS, default="cuda" if name == "--device" else None)
    return parser.parse_args(argv)


def main(argv=None):
    args = read_args(argv)
    if args.piece:
        piece = next(piece for piece in pieces() if piece.name == args.piece)
        return work(piece, args.device, args.out, args.outcome)
    wanted = [piece for piece in pieces() if not args.only or any(word in piece.name for word in args.only)]
    if args.plan:
        files = [json.loads(file.read_text()) for file in sorted(args.results.glob("gpu-*.json"))]
        return show_plan(wanted, files)
    if args.halve:
        try: return halve(args.halve)
        except UserError as error: return print(f"make gpu: {error}", file=sys.stderr) or 2
    if args.device == "cuda" and not torch.cuda.is_available():
        print("make gpu: PyTorch finds no GPU here; `make test` and `make bench` need none", file=sys.stderr)
        return 2
    facts = facts_of(args.device)
    file = args.results / f"gpu-{re.sub(r'[^A-Za-z0-9]+', '-', facts['device']).strip('-')}.json"
    args.out = (args.out or ROOT / "runs" / file.stem).resolve()
    args.results.mkdir(parents=True, exist_ok=True)
    known = json.loads(file.read_text())["pieces"] if file.exists() else []
    entries = {entry["piece"]: entry for entry in known}
    try: tour(to_run(wanted, entries), entries, file, facts, args)
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
