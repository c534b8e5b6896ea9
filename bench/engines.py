"""FedAvg of bench/federation.py on several engines, fedbook's own, Flower's simulation, Apple's pfl and
FedLab, against a bare hand-written loop.

    python bench/engines.py [--rounds 20] [--repeats 5] [--only NAMES] [--packages FOLDER]

The same pictures, clients, picks, network, steps and weights of the mean everywhere;
tests/test_engines_bench.py holds the weights that an engine ends with against the bare loop's. Nobody
evaluates while it trains. Every run is a new process, or several; one round warms up, then `--rounds` are
timed. "start" is all that passes from the launch to the first timed round (imports, data, Ray, connections,
the warm-up), less one round. The engines alternate; each number stands beside its multiple of the bare loop's
of the same repeat: median (least to most). "MB" is the most that the processes of a run held together: PSS,
in which a shared page counts once; to look costs at most 1 % of one core.

The engines by name, each torch with one thread unless said otherwise; those in brackets are other settings,
which run only if they are named:

    bare            the loop of bench/federation.py; [bare-2] with two threads
    one, two        fedbook's engine in process, with one and two workers; its server, and that of the next,
                    asks the largest clients first
    fedbook-flower  fedbook's client and server on Flower's simulation (`fedbook.deploy.flower.simulate`), one CPU a
                    client: two Ray actors
    flower          an app as Flower's documentation writes one: `@app.train`, strategy FedAvg,
                    `run_simulation`; two actors. FedAvg picks nodes by chance and cannot be seeded, so a
                    subclass picks; for that, each node is asked once whom it serves (part of "start")
    pfl-2           `SimulatedBackend` in two processes over torch.distributed (gloo), as pfl's documentation
                    has it, users dealt out by their size; [pfl-1] in one process
    fedlab-1x2      FedLab's standalone pipeline in one process with two threads; [fedlab-1] with one
    fedlab-2        FedLab's cross-process mode: a server and two processes of serial trainers, 50 clients
                    each. FedLab's FedAvg weighs clients alike, so here a subclass weighs them by pictures

Flower and FedLab clients cut their batches from tensors, which is faster than the `DataLoader` of their
examples; pfl cuts its own.

pfl and FedLab may stand in a folder of their own, behind what is installed:

    pip install --no-deps --target FOLDER pfl==0.6.0 fedlab==1.3.0 multiprocess dill nvidia-ml-py \\
        'dp-accounting<0.6' prv-accountant absl-py pandas
"""
import argparse
import importlib.util
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import traceback
from functools import lru_cache, partial
from pathlib import Path
from time import monotonic, sleep, thread_time
from typing import Callable, NamedTuple

QUIET = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "FLWR_TELEMETRY_ENABLED": "0",
         "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0", "GLOO_SOCKET_IFNAME": "lo"}
for name, value in QUIET.items(): os.environ.setdefault(name, value)
os.environ["CUDA_VISIBLE_DEVICES"] = ""   # all engines compute on the CPU
HERE = str(Path(__file__).resolve().parent)
sys.path += [folder for folder in (HERE, os.environ.get("ENGINES_PACKAGES", "")) if folder
             and folder not in sys.path]

import psutil
import torch
import torch.nn.functional as F

import federation
from fedbook.engine.workers import transport_for
from fedbook.engine.federation import Client, Federation, Server, run
from fedbook.engine.local import build, predict, small_cnn
from fedbook.methods.score import accuracy
from fedbook.datasets.split import dirichlet
from fedbook.engine.wire import Msg, pack, unpack
from fedbook.engine.local import as_float
from fedbook.datasets.world import fashion_mnist_small

CORES, LIMIT = 2, 1800
START = f"import json, sys; sys.path.append({HERE!r}); import engines; engines.play(*json.loads(sys.argv[1]))"


class Sizes(NamedTuple):
    pictures: int = 60_000
    clients: int = federation.CLIENTS
    per_round: int = federation.PER_ROUND
    batch: int = federation.BATCH
    lr: float = federation.LR


# What every engine trains

@lru_cache(maxsize=1)
def world(sizes):
    "Pictures, labels, and who holds which; each process loads them once."
    x, y, _ = federation.sixty_thousand()
    x, y = x[:sizes.pictures], y[:sizes.pictures]
    return x, y, dirichlet(y, sizes.clients, 0.5, seed=0)


def initial(): return build(small_cnn, 0)


@lru_cache(maxsize=1)
def picker(sizes): return Server(initial(), sizes.per_round, seed=0)


def chosen(sizes, r): return picker(sizes).pick(range(sizes.clients), r)


def shuffled(id, sizes):
    x, y, parts = world(sizes)
    return x, y, torch.as_tensor(parts[id])[torch.randperm(len(parts[id]))]


def batches(id, sizes):
    """The pictures of client `id` once, in a new order, as an engine that brings no data loader of its own is
    given them."""
    x, y, order = shuffled(id, sizes)
    for i in order.split(sizes.batch): yield as_float(x[i]), y[i]


# The engines: each calls `race(work)`, where `work(rounds)` trains from the start and returns the weights

def bare(race, sizes, threads=1):
    torch.set_num_threads(threads)
    race(partial(federation.bare, *world(sizes)))


@lru_cache(maxsize=1)
def borrowed(): return initial()


def our_client(id, sizes):
    x, y, parts = world(sizes)
    return Client(id, borrowed(), x[parts[id]], y[parts[id]], seed=0, batch=sizes.batch, lr=sizes.lr)


def train(there, sizes, rounds):
    """The clients that hold most are asked first, so that workers are done at the same time; pfl is told the
    sizes too."""
    class LargestFirst(Server):
        def pick(self, ids, r): return sorted(super().pick(ids, r), key=lambda id: -len(world(sizes)[2][id]))

    server = LargestFirst(initial(), sizes.per_round, seed=0)
    run(server, there, rounds)
    return server.weights


def in_process(race, sizes, workers):
    world(sizes)
    line = transport_for(partial(our_client, sizes=sizes), workers)
    with Federation(line, sizes.clients) as here: race(partial(train, here, sizes))


def fedbook_on_flower(race, sizes):
    from fedbook.deploy.flower import simulate
    simulate(lambda there: race(partial(train, there, sizes)), partial(our_client, sizes=sizes),
             range(sizes.clients), side_by_side=CORES)


def flower_client(sizes):
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message, context):
        id = context.node_config["partition-id"]
        model, criterion = small_cnn(), torch.nn.CrossEntropyLoss()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=sizes.lr)
        for x, y in batches(id, sizes):
            optimiser.zero_grad()
            criterion(model(x), y).backward()
            optimiser.step()
        metrics = MetricRecord({"num-examples": len(world(sizes)[2][id])})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
                       reply_to=message)

    @app.query()
    def who(message, context):
        return Message(RecordDict({"who": ConfigRecord({"id": context.node_config["partition-id"]})}),
                       reply_to=message)

    return app


def flower_strategy(sizes, nodes):
    from flwr.serverapp.strategy import FedAvg

    class SamePicks(FedAvg):
        """Flower's FedAvg, but the clients of a round are those that the other engines ask; `nodes` says
        which node serves which client."""
        def configure_train(self, server_round, *args, **kwargs):
            asked = {nodes[id] for id in chosen(sizes, server_round - 1)}
            return [message for message in super().configure_train(server_round, *args, **kwargs)
                    if message.metadata.dst_node_id in asked]

    return SamePicks(fraction_train=1.0, fraction_evaluate=0.0)


def flower(race, sizes):
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    app = ServerApp()

    @app.main()
    def main(grid, context):
        while len(list(grid.get_node_ids())) < sizes.clients: sleep(0.1)
        replies = grid.send_and_receive([Message(RecordDict(), node, "query")
                                         for node in grid.get_node_ids()])
        nodes = {reply.content["who"]["id"]: reply.metadata.src_node_id for reply in replies}

        def train(rounds):
            result = flower_strategy(sizes, nodes).start(grid=grid,
                                                         initial_arrays=ArrayRecord(initial().state_dict()),
                                                         num_rounds=rounds)
            return result.arrays.to_torch_state_dict()

        race(train)

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0},
               "init_args": {"num_cpus": CORES, "_node_ip_address": "127.0.0.1"}}
    run_simulation(app, flower_client(sizes), sizes.clients, backend_config=backend)


def pfl(race, sizes):
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    def make_dataset(id):
        x, y, order = shuffled(id, sizes)
        return Dataset((x[order], y[order]), user_id=id)

    def train(rounds):
        network = initial()
        network.loss = lambda x, y: F.cross_entropy(network(as_float(x)), y)
        network.metrics = lambda x, y: {}
        FederatedAveraging().run(
            NNAlgorithmParams(central_num_iterations=rounds, evaluation_frequency=rounds + 1,
                              train_cohort_size=sizes.per_round, val_cohort_size=0),
            SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
            PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)),
            NNTrainHyperParams(local_batch_size=sizes.batch, local_num_epochs=1,
                               local_learning_rate=sizes.lr))
        return network.state_dict()

    warm_up_and_race = itertools.chain([0], itertools.count())
    next_user = itertools.chain.from_iterable(chosen(sizes, r) for r in warm_up_and_race).__next__
    users = FederatedDataset(make_dataset, next_user,
                             user_id_to_weight={id: len(part) for id, part in enumerate(world(sizes)[2])})
    race(train)


def pfl_side_by_side(race, sizes):
    store, ranks = meeting_point(CORES)
    others = [start("pfl-1", sizes, race.rounds, "", env=os.environ | rank) for rank in ranks[1:]]
    os.environ.update(ranks[0])
    pfl(race, sizes)
    for other in others: other.wait()


def meeting_point(processes):
    """A store of torch.distributed that listens on this machine only, and for each process the environment in
    which it finds the store."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    store = torch.distributed.TCPStore(host, port, is_master=True, wait_for_workers=False,
                                       master_listen_fd=listener.detach(), use_libuv=False)
    found_here = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
                  "TORCHELASTIC_RUN_ID": "engines"}
    return store, [{**found_here, "WORLD_SIZE": str(processes), "RANK": str(rank), "LOCAL_RANK": str(rank)}
                   for rank in range(processes)]


def fedlab_parts(sizes):
    """A server handler and a maker of trainers, as FedLab's own FedAvg, but weighted by pictures and with the
    picks of the other engines."""
    from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
    from fedlab.contrib.dataset.basic_dataset import FedDataset
    from fedlab.utils import Aggregators

    class Pictures(FedDataset):
        def get_dataloader(self, id, batch_size, type="train"): return batches(id, sizes)

    class Trainer(FedAvgSerialClientTrainer):
        def local_process(self, payload, id_list):
            for id in id_list:
                weights, = self.train(payload[0], self.dataset.get_dataloader(id, self.batch_size))
                self.cache.append([weights, torch.tensor([float(len(world(sizes)[2][id]))])])

    class Handler(FedAvgServerHandler):
        def sample_clients(self): return chosen(sizes, self.round)

        def global_update(self, buffer):
            weights, pictures = zip(*buffer)
            self.set_model(Aggregators.fedavg_aggregate(weights, torch.cat(pictures)))

        def restart(self, rounds):
            self._model.load_state_dict(initial().state_dict())
            self.round, self.global_round = 0, rounds

    def make_trainer(clients):
        trainer = Trainer(initial(), clients)
        trainer.setup_dataset(Pictures())
        trainer.setup_optim(1, sizes.batch, sizes.lr)
        return trainer

    world(sizes)
    return Handler(initial(), 0, sizes.per_round / sizes.clients), make_trainer


def fedlab(race, sizes, threads=1):
    from fedlab.core.standalone import StandalonePipeline

    class Pipeline(StandalonePipeline):
        def evaluate(self): "No engine is asked to evaluate."

    def train(rounds):
        handler.restart(rounds)
        Pipeline(handler, trainer).main()
        return handler.model.state_dict()

    torch.set_num_threads(threads)
    handler, make_trainer = fedlab_parts(sizes)
    trainer = make_trainer(sizes.clients)
    race(train)


def fedlab_side_by_side(race, sizes):
    """FedLab's cross-process mode: a server, and as many processes of clients as there are cores, each with
    its share of the clients."""
    from fedlab.core.client.manager import PassiveClientManager
    from fedlab.core.network import DistNetwork
    from fedlab.core.server.manager import SynchronousServerManager

    def train(rounds):
        handler.restart(rounds)
        server.main_loop()
        return handler.model.state_dict()

    store, ranks = meeting_point(CORES + 1)
    os.environ.update(ranks[0])
    network = partial(DistNetwork, (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]), CORES + 1)
    handler, make_trainer = fedlab_parts(sizes)
    shares = [len(range(share, sizes.clients, CORES)) for share in range(CORES)]
    clients = [PassiveClientManager(network(rank), make_trainer(share))
               for rank, share in enumerate(shares, 1)]
    for client in clients: client.start()
    server = SynchronousServerManager(network(0), handler, mode="GLOBAL")
    server.setup()
    race(train)
    server.shutdown()
    for client in clients: client.join()


class Engine(NamedTuple):
    "`needs`: for each module what to install; `usual`: whether it runs without being named."
    title: str
    play: Callable
    needs: dict
    usual: bool = True


FLOWER, PFL, FEDLAB = {"flwr": "fedbook[flower]",
                       "ray": "fedbook[flower]"}, {"pfl": "pfl"}, {"fedlab": "fedlab"}
ENGINES = {
    "bare": Engine("bare loop, 1 thread", bare, {}),
    "bare-2": Engine("bare loop, 2 threads", partial(bare, threads=2), {}, usual=False),
    "one": Engine("in process, 1 worker", partial(in_process, workers=1), {}),
    "two": Engine("in process, 2 workers", partial(in_process, workers=2), {}),
    "fedbook-flower": Engine("fedbook on Flower, 2 actors", fedbook_on_flower, FLOWER),
    "flower": Engine("Flower, 2 actors", flower, FLOWER),
    "pfl-1": Engine("pfl, 1 process", pfl, PFL, usual=False),
    "pfl-2": Engine("pfl, 2 processes", pfl_side_by_side, PFL),
    "fedlab-1": Engine("FedLab serial, 1 thread", fedlab, FEDLAB, usual=False),
    "fedlab-1x2": Engine("FedLab serial, 2 threads", partial(fedlab, threads=2), FEDLAB),
    "fedlab-2": Engine("FedLab, server + 2 processes", fedlab_side_by_side, FEDLAB),
}
BARE, OURS = {"bare", "bare-2"}, {"one", "two"}


# One engine, in processes of its own

class Race(NamedTuple):
    """One round to warm up, and then the `rounds` that are timed. Weights and times go to the file `out`, if
    there is one."""
    rounds: int
    out: str

    def __call__(self, work):
        work(1)
        begin = monotonic()
        weights = work(self.rounds)
        end = monotonic()
        if self.out: Path(self.out).write_bytes(pack(Msg(weights, {"begin": begin, "end": end})))


class Outcome(NamedTuple):
    seconds: float
    startup: float
    megabytes: float
    weights: dict


class Failed(Exception): pass


def start(name, sizes, rounds, out, **options):
    return subprocess.Popen([sys.executable, "-c", START, json.dumps([name, sizes, rounds, str(out)])],
                            **options)


def settle(sizes): federation.CLIENTS, federation.PER_ROUND, federation.BATCH, federation.LR = sizes[1:]


def play(name, sizes, rounds, out):
    "What the new process does. It ends at an error, even if a thread of the engine would wait on."
    sizes = Sizes(*sizes)
    settle(sizes)
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
    return Outcome(each, msg.meta["begin"] - launched - each, peak / 1e6, msg.tensors)


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


def tour(names, sizes, rounds, repeats):
    """For each of `names` its outcomes, one a repeat; the engines alternate. One that fails is left out from
    then on, with its reason."""
    outcomes = {name: [] for name in names}
    for repeat in range(1, repeats + 1):
        for name in list(outcomes):
            try: outcomes[name].append(measure(name, sizes, rounds))
            except Failed as reason:
                print(f"{ENGINES[name].title}: left out, for it failed: {reason}", flush=True)
                del outcomes[name]
            else:
                print(f"repeat {repeat}, {ENGINES[name].title}: {outcomes[name][-1].seconds:.3f} s a round",
                      flush=True)
    return outcomes


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def over(ours, others): return [a / b for a, b in zip(ours, others, strict=True)]


def column(outcomes, name, field): return [getattr(outcome, field) for outcome in outcomes[name]]


def row(outcomes, name, score):
    cells = [f"{ENGINES[name].title:28}"]
    for field, digits in (("seconds", 3), ("startup", 1), ("megabytes", 0)):
        values = column(outcomes, name, field)
        multiple = "  " + spread(over(values, column(outcomes, "bare", field)))
        cells.append(f"{statistics.median(values):8.{digits}f}{multiple:24}")
    return "".join(cells) + f"{score(outcomes[name][-1].weights):8.1%}"


def contest(outcomes):
    "The last line: our engine in process against the fastest of the others."
    medians = {name: statistics.median(column(outcomes, name, "seconds")) for name in outcomes}
    ours = min(OURS & medians.keys(), key=medians.get, default=None)
    other = min(medians.keys() - OURS - BARE, key=medians.get, default=None)
    if not (ours and other): return "no contest: it takes one of our engines in process and one other"
    faster = over(column(outcomes, other, "seconds"), column(outcomes, ours, "seconds"))
    bound, goal = ("kept" if max(faster) >= 1 else "missed", "reached" if statistics.median(faster) >= 1.2
                   else "not reached")
    return (f"{ENGINES[ours].title}, against the fastest other engine ({ENGINES[other].title}): "
            f"{spread(faster)} x as fast; bound, not slower beyond the spread: {bound}; goal, 1.2 x: "
            f"{goal}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=ENGINES, metavar="NAMES",
                        help=f"of {', '.join(ENGINES)}; the bare loop always runs")
    parser.add_argument("--packages", default="", help="a folder with further packages, which stand behind "
                        "the installed ones")
    args = parser.parse_args()
    if args.packages:
        os.environ["ENGINES_PACKAGES"] = str(Path(args.packages).resolve())
        sys.path.append(os.environ["ENGINES_PACKAGES"])
    asked = [name for name in ENGINES if name == "bare" or (name in args.only if args.only
                                                            else ENGINES[name].usual)]
    for name in asked:
        if missing(name): print(missing(name))
    sizes, test = Sizes(), fashion_mnist_small("test")
    print(f"{federation.sixty_thousand()[2]}: {sizes.pictures:,} pictures, {sizes.clients} clients, "
          f"{sizes.per_round} a round, batch {sizes.batch}; "
          f"{args.rounds} rounds, {args.repeats} repeats; torch {torch.__version__}, {os.cpu_count()} cores",
          flush=True)
    outcomes = tour([name for name in asked if not missing(name)], sizes, args.rounds, args.repeats)

    print(f"\n{'':28}{'s/round':>8}  {'x the bare loop':22}{'start':>8}  {'x':22}{'MB':>8}  "
          f"{'x':22}{'accuracy':>8}")
    for name in outcomes:
        print(row(outcomes, name, lambda weights: accuracy(predict(initial(), weights, test.images),
                                                           test.labels)))
    print(contest(outcomes))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    main()
