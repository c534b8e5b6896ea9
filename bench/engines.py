"""FedAvg on several engines: fedbook's own, Flower's simulation, Apple's pfl, FedLab, BlazeFL and fluke, against
a bare hand-written loop and a bare pool of two processes.

    python bench/engines.py [--model NAMES] [--steps N] [--rounds 20] [--repeats 5] [--only NAMES]
        [--form both] [--packages FOLDER]
    python bench/engines.py --equal [--model NAMES] [--only NAMES] [--packages FOLDER]

The same inputs, clients, picks, network, steps and weights of the mean everywhere (rivals.py says what was
changed for that); `--equal` trains two rounds at toy size and prints the largest difference of a weight to
the bare loop's, and tests/test_engines_bench.py holds it. Nobody evaluates while it trains. Every run is a new
process, or several; one round warms up, then `--rounds` are timed. The engines alternate; each number stands
beside its multiple of the bare loop's of the same repeat: median (least to most).

The models: cnn (80 k parameters), mlp (2.0 M), resnet18 (11.2 M, on Fashion-MNIST padded to 3x32x32), lstm
(2 layers of 256 units over 80 characters made up), head (FedReplay's, 1.8 M, on features made up). 100
clients, 10 a round, batch 32. With `--steps N` each client holds N batches and takes N steps a round; with
`--steps 0` one epoch of 60,000 pictures, dealt by Dirichlet 0.5. Left out: 0 for cnn, 1 for the others.

Two tables for models of pictures. "handed fedbook's conversion": pictures are uint8, and all engines call
fedbook's `as_float`, which lays the channels last in memory. "as its own users write it": pictures lie there as
float, channels first, as tutorials load them, and each engine does with them what it does.

Columns. "s/round": wall. "CPU/round": user and system seconds of the whole tree of processes over the timed
rounds: the process that races, its reaped children (Linux adds them, and theirs, to their parent), and the
living descendants with the children that they reaped, each to 0.01 s; so BlazeFL's pools, new in each round,
count as reaped ones, Ray's actors and pfl's second process as living ones. "start": all that
passes from the launch to the first timed round (imports, data, Ray, connections, the warm-up), less one
round. "MB": the most that the processes of a run held together: PSS, in which a shared page counts once; to
look costs at most 1 % of one core, which is not in "CPU/round".

The engines by name, each torch with one thread unless said otherwise; those in brackets are other settings,
which run only if they are named:

    bare            a loop written by hand; [bare-2] with two threads
    pool            a pool of two forked processes written by hand, weights in shared memory, no messages or
                    checks: the lower bound of what a pool costs
    one, two        fedbook's engine in process, with one and two workers; its server, and that of the next,
                    asks the largest clients first
    fedbook-flower  fedbook's client and server on Flower's simulation (`fedbook.deploy.flower.simulate`), one CPU a
                    client: two Ray actors
    flower          an app as Flower's documentation writes one: `@app.train`, strategy FedAvg,
                    `run_simulation`; two actors
    pfl-2           `SimulatedBackend` in two processes over torch.distributed (gloo), as pfl's documentation
                    has it, users dealt out by their size; [pfl-1] in one process
    fedlab-1x2      FedLab's standalone pipeline in one process with two threads; [fedlab-1] with one
    fedlab-2        FedLab's cross-process mode: a server and two processes of serial trainers, 50 clients each
    blazefl         BlazeFL's base trainer: one process, nothing is packed: the bound to approach
    blazefl-2       BlazeFL's process pool of two; [blazefl-2-warm] after an optimiser was made. Its
                    free-threaded mode takes Python 3.14t and is not measured
    fluke           fluke's FedAVG, one process

Flower, FedLab and BlazeFL clients cut their batches from tensors, which is faster than the `DataLoader` of their
examples; pfl and fluke cut their own.

pfl, FedLab, BlazeFL and fluke may stand in a folder of their own, behind what is installed:

    pip install --no-deps --ignore-requires-python --target FOLDER pfl==0.6.0 fedlab==1.3.0 blazefl==3.0.0 \\
        fluke_fl==0.8.1 multiprocess dill nvidia-ml-py 'dp-accounting<0.6' prv-accountant absl-py pandas \\
        cerberus clearml datasets pyarrow xxhash aiohttp diskcache hydra-core omegaconf \\
        antlr4-python3-runtime==4.9.3 seaborn tensorboard wandb tzdata pytz
"""
import argparse
import importlib.util
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from time import monotonic, thread_time
from typing import NamedTuple

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path: sys.path.append(HERE)

from rivals import ENGINES, MODELS, Sizes, initial, start, test_set   # first: it sets the environment

import psutil
import torch

import federation
import rivals  # noqa: F401  (tests reach the engines through this module)
from fedbook.engine.local import predict
from fedbook.engine.wire import Msg, pack, unpack
from fedbook.methods.score import accuracy

LIMIT = 1800
HANDED, OWN = "handed fedbook's conversion", "as its own users write it (pictures as float, channels first)"
BOUND = 1.05   # two workers against one, CPU
PYTHON = ("BlazeFL before Python 3.14: two signatures and two `from __future__` changed at "
          "import; its free-threaded mode takes 3.14t and is not measured")


# One engine, in processes of its own

class Race(NamedTuple):
    """One round to warm up, and then the `rounds` that are timed. Weights and times go to the file `out`, if
    there is one."""
    rounds: int
    out: str

    def __call__(self, work):
        work(1)
        used, begin = cpu_seconds(), monotonic()
        weights = work(self.rounds)
        end, used = monotonic(), cpu_seconds() - used
        if self.out: Path(self.out).write_bytes(pack(Msg(weights, {"begin": begin, "end": end, "cpu": used})))


def cpu_seconds():
    """User and system seconds of this process, its living descendants, and all that these and it have reaped."""
    spent = 0.0
    for process in psutil.Process().children(recursive=True):
        try: spent += sum(process.cpu_times()[:4])
        except psutil.Error: pass
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        spent += usage.ru_utime + usage.ru_stime
    return spent


class Outcome(NamedTuple):
    "`seconds` and `cpu` are of one round."
    seconds: float
    startup: float
    megabytes: float
    weights: dict
    cpu: float


class Failed(Exception): pass


def play(name, sizes, rounds, out):
    "What the new process does. It ends at an error, even if a thread of the engine would wait on."
    sizes = Sizes(*sizes)
    torch.set_num_threads(1)
    try: ENGINES[name].play(Race(rounds, out), sizes)
    except BaseException as error:
        traceback.print_exc()
        while error.__cause__: error = error.__cause__
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def measure(name, sizes, rounds):
    "The `Outcome` of engine `name` over `rounds` rounds. Raises `Failed` with the last line that it said."
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        out, log, launched = Path(folder, "weights"), Path(folder, "log"), monotonic()
        with open(log, "w") as said:
            process = start(name, sizes, rounds, out, cwd=folder, env=os.environ | {"FLWR_HOME": folder},
                            stdout=said, stderr=said)
            peak = watch(process)
        if process.returncode: raise Failed(last_line(log.read_text(errors="replace")))
        msg = unpack(out.read_bytes())
    each = (msg.meta["end"] - msg.meta["begin"]) / rounds
    return Outcome(each, msg.meta["begin"] - launched - each, peak / 1e6, msg.tensors,
                   msg.meta["cpu"] / rounds)


def last_line(text):
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def watch(process):
    """Wait until `process` has ended. Returns the most bytes that it and its descendants held together; none
    of them is left behind. It looks as often as costs 1 % of one core."""
    root, seen, peak, end = psutil.Process(process.pid), set(), 0, monotonic() + LIMIT
    try:
        while process.poll() is None:
            if monotonic() > end: raise Failed(f"it was stopped after {LIMIT} s")
            there, before = family(root), thread_time()
            seen.update(there)
            peak = max(peak, sum(map(held, there)))
            try: process.wait(max(0.2, 100 * (thread_time() - before)))
            except subprocess.TimeoutExpired: pass
    finally:
        if process.poll() is None: process.kill()
        process.wait()
        stop(seen)
    return peak


def family(root):
    try: return [root, *root.children(recursive=True)]
    except psutil.Error: return []


def held(process):
    """Bytes of one process: PSS, in which a page that several share counts once over all of them; USS, its
    own pages, where there is no PSS."""
    try: memory = process.memory_full_info()
    except psutil.Error: return 0
    return getattr(memory, "pss", memory.uss)


def stop(processes, patience=10):
    _, left = psutil.wait_procs(processes, patience)
    for process in left:
        try: process.kill()
        except psutil.Error: pass
    psutil.wait_procs(left, 10)


# All engines in turn

def missing(name):
    "Why the engine `name` cannot run here, or None."
    for module, package in ENGINES[name].needs.items():
        if importlib.util.find_spec(module) is None:
            return (f"{ENGINES[name].title}: left out, for there is no module {module!r} here (pip install "
                    f"'{package}')")


def tour(names, forms, rounds, repeats):
    """For each of `forms` (title: sizes) and each of `names` its outcomes, one a repeat; engines and forms
    alternate. One that fails is left out of that form from then on, with its reason."""
    outcomes = {form: {name: [] for name in names} for form in forms}
    for repeat in range(1, repeats + 1):
        for name in names:
            for form, sizes in forms.items():
                if name not in outcomes[form]: continue
                try: outcome = measure(name, sizes, rounds)
                except Failed as reason:
                    print(f"{ENGINES[name].title}, {form}: left out, for it failed: {reason}", flush=True)
                    del outcomes[form][name]
                else:
                    outcomes[form][name].append(outcome)
                    print(f"repeat {repeat}, {ENGINES[name].title}, {form}: {outcome.seconds:.3f} s and "
                          f"{outcome.cpu:.3f} CPU s a round", flush=True)
    return outcomes


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def over(ours, others): return [a / b for a, b in zip(ours, others, strict=True)]


def column(outcomes, name, field): return [getattr(outcome, field) for outcome in outcomes[name]]


COLUMNS = {"seconds": ("s/round", 3), "cpu": ("CPU/round", 3), "startup": ("start", 1), "megabytes": ("MB", 0)}


def row(outcomes, name, score):
    cells = [f"{ENGINES[name].title:28}"]
    for field, (_, digits) in COLUMNS.items():
        values = column(outcomes, name, field)
        multiple = "  " + spread(over(values, column(outcomes, "bare", field)))
        cells.append(f"{statistics.median(values):9.{digits}f}{multiple:22}")
    return "".join(cells) + f"{score(outcomes[name][-1].weights):8.1%}"


def table(form, outcomes, sizes):
    inputs, labels = test_set(sizes)
    def score(weights): return accuracy(predict(initial(sizes), weights, inputs), labels)
    print(f"\n{MODELS[sizes.model].title}, {form}; x: multiple of the bare loop's")
    print(f"{'':28}" + "".join(f"{title:>9}  {'x':20}" for title, _ in COLUMNS.values()) + f"{'accuracy':>8}")
    for name in outcomes: print(row(outcomes, name, score))


def fastest(outcomes, field):
    "The name of the other engine that packs its messages and has the least median of `field`, or None."
    others = [name for name in outcomes if ENGINES[name].packs and name != "fedbook-flower"]
    return min(others, key=lambda name: statistics.median(column(outcomes, name, field)), default=None)


def ratio(outcomes, ours, other, field): return over(*(column(outcomes, name, field) for name in (ours, other)))


def kept(ratios, bound): return f"at most {bound}: {'kept' if statistics.median(ratios) <= bound else 'missed'}"


def contest(outcomes):
    """The last lines: what fedbook takes beside the fastest of the others that pack their messages, two workers
    beside one, and the bound to approach."""
    ours = [name for name in ("one", "two") if name in outcomes]
    lines = []
    for name in ours:
        for field, what in (("cpu", "CPU"), ("seconds", "wall")):
            if other := fastest(outcomes, field):
                ratios = ratio(outcomes, name, other, field)
                lines.append(f"{ENGINES[name].title}, {what}: {spread(ratios)} x the fastest other that packs "
                             f"({ENGINES[other].title}); {kept(ratios, 1.0)}")
    if len(ours) == 2:
        ratios = ratio(outcomes, "two", "one", "cpu")
        lines.append(f"two workers against one, CPU: {spread(ratios)}; {kept(ratios, BOUND)}")
    if "blazefl" in outcomes:
        lines += [f"{ENGINES[name].title}, CPU: {spread(ratio(outcomes, name, 'blazefl', 'cpu'))} x BlazeFL's base "
                  "trainer, which packs nothing (the bound to approach)" for name in ours]
    return "\n".join(lines) or "no contest: it takes one of our engines in process and one other"


# The command

def sizes_of(model, steps):
    "The `Sizes` of a run. Raises `SystemExit` where there are too few pictures."
    sizes = Sizes(model=model, steps=MODELS[model].steps if steps is None else steps)
    pictures = sizes.steps * sizes.batch * sizes.clients or sizes.pictures
    if not 0 < pictures <= sizes.pictures:
        raise SystemExit(f"--steps {steps}: expected 0 to {sizes.pictures // (sizes.batch * sizes.clients)}, for "
                         f"there are {sizes.pictures:,} pictures")
    return sizes._replace(pictures=pictures)


def forms_of(sizes, form):
    forms = {HANDED: sizes, OWN: sizes._replace(floats=True)}
    if not MODELS[sizes.model].pictures: return {"inputs as all have them": sizes}
    return forms if form == "both" else {HANDED: sizes} if form == "handed" else {OWN: forms[OWN]}


def toy(model):
    pictures = 60 if model == "resnet18" else 240   # a picture costs much there
    return Sizes(pictures=pictures, clients=6, per_round=3, batch=1000, lr=0.1, model=model)


def equal(names, model):
    "Print how far each engine's weights are from the bare loop's after two rounds at toy size."
    print(f"{MODELS[model].title}: two rounds at toy size, largest difference of a weight to the bare loop's")
    wanted = measure("bare", toy(model), 2).weights
    moved = distance(wanted, initial(toy(model)).state_dict())
    print(f"{'(the bare loop itself moved by)':34}{moved:9.1e}", flush=True)
    for name in names:
        if name == "bare": continue
        try: print(f"{ENGINES[name].title:34}{distance(measure(name, toy(model), 2).weights, wanted):9.1e}", flush=True)
        except Failed as reason: print(f"{ENGINES[name].title}: it failed: {reason}", flush=True)


def distance(a, b): return max((a[name] - b[name]).abs().max().item() for name in a)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["cnn"], metavar="NAMES",
                        help=f"of {', '.join(MODELS)}")
    parser.add_argument("--steps", type=int, help="batches that a client holds; 0: one epoch of all pictures")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--form", choices=["both", "handed", "own"], default="both",
                        help="of pictures: handed fedbook's conversion, as the engine's own users write it")
    parser.add_argument("--only", nargs="+", choices=ENGINES, metavar="NAMES",
                        help=f"of {', '.join(ENGINES)}; the bare loop always runs")
    parser.add_argument("--equal", action="store_true", help="only compare the weights, at toy size")
    parser.add_argument("--packages", default="", help="a folder with further packages, which stand behind "
                        "the installed ones")
    return parser.parse_args()


def main():
    args = arguments()
    if args.packages:
        os.environ["ENGINES_PACKAGES"] = str(Path(args.packages).resolve())
        sys.path.append(os.environ["ENGINES_PACKAGES"])
    asked = [name for name in ENGINES if name == "bare" or (name in args.only if args.only
                                                            else ENGINES[name].usual)]
    for name in asked:
        if missing(name): print(missing(name))
    names = [name for name in asked if not missing(name)]
    if sys.version_info < (3, 14) and any(name.startswith("blazefl") for name in names): print(PYTHON)
    for model in args.model:
        if args.equal: equal(names, model)
        else: compare(names, forms_of(sizes_of(model, args.steps), args.form), args.rounds, args.repeats)


def compare(names, forms, rounds, repeats):
    sizes = next(iter(forms.values()))
    count = sum(p.numel() for p in initial(sizes).parameters())
    print(f"\n{MODELS[sizes.model].title}, {count:,} parameters; {federation.sixty_thousand()[2]}: "
          f"{sizes.pictures:,} pictures, {sizes.clients} clients, {sizes.per_round} a round, batch {sizes.batch}, "
          f"{f'{sizes.steps} steps' if sizes.steps else 'one epoch'}; {rounds} rounds, {repeats} repeats; torch "
          f"{torch.__version__}, {os.cpu_count()} cores", flush=True)
    outcomes = tour(names, forms, rounds, repeats)
    for form, sizes in forms.items(): table(form, outcomes[form], sizes)
    for form in forms: print(f"\n{MODELS[sizes.model].title}, {form}:\n{contest(outcomes[form])}", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    main()
