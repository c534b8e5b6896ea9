"""The engines of bench/engines.py, each as a function that trains the same thing: what they train, a bare
loop, a bare pool, fedbook, Flower, pfl, FedLab, BlazeFL and fluke.

What was changed so that all do the same work:

- Everywhere the picks of a round and the weights of the mean (pictures) are those of fedbook's server.
- BlazeFL 3.0.0 asks for Python 3.14. Before that two of its files are changed as they are loaded
  (`Changed`): `core/utils.py` loses the type parameters of two signatures (`def f[T](`), and it and
  `reproducibility/snapshot.py` begin with `from __future__ import annotations`. Python 3.14 starts the
  processes of a pool by a server, 3.11 forks them, which is faster. Its free-threaded mode takes Python 3.14t
  and cannot be measured here. Its process trainer opens a new pool each round, whose workers each import
  what torch's first optimiser needs; [blazefl-2-warm] makes one optimiser before, as fedbook does.
- fluke's clients are not persistent, as its documentation has it for clients without a state; it evaluates
  nothing, and its last round, which only evaluates, is left out.
- FedLab's FedAvg weighs clients alike, so a subclass weighs them by pictures.
- Flower's FedAvg picks nodes by chance and cannot be seeded, so a subclass picks; for that each node is asked
  once whom it serves (part of "start").
- ResNet-18 has group norm: pfl averages trainable weights alone, and FedLab and BlazeFL each treat the
  running statistics of a batch norm in a way of their own.
"""
import itertools
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from functools import lru_cache, partial
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from time import sleep
from typing import Callable, NamedTuple

QUIET = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "FLWR_TELEMETRY_ENABLED": "0",
         "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0", "GLOO_SOCKET_IFNAME": "lo"}
for name, value in QUIET.items(): os.environ.setdefault(name, value)
os.environ["CUDA_VISIBLE_DEVICES"] = ""   # all engines compute on the CPU
HERE = str(Path(__file__).resolve().parent)
sys.path += [folder for folder in (HERE, os.environ.get("ENGINES_PACKAGES", "")) if folder
             and folder not in sys.path]

import torch
import torch.nn.functional as F
from torch import nn

import federation
from fedbook.datasets.split import dirichlet, iid
from fedbook.datasets.world import fashion_mnist_small
from fedbook.engine.federation import Client, Federation, Server, run
from fedbook.engine.local import as_float, build, small_cnn
from fedbook.engine.workers import transport_for

CORES = 2
START = f"import json, sys; sys.path.append({HERE!r}); import engines; engines.play(*json.loads(sys.argv[1]))"


class Sizes(NamedTuple):
    """`steps` 0: one epoch of `pictures`, dealt unevenly (Dirichlet 0.5); else each client holds `steps`
    batches. `floats`: pictures come as float, channels first, and not as uint8."""
    pictures: int = 60_000
    clients: int = federation.CLIENTS
    per_round: int = federation.PER_ROUND
    batch: int = federation.BATCH
    lr: float = federation.LR
    model: str = "cnn"
    steps: int = 0
    floats: bool = False


def start(name, sizes, rounds, out, **options):
    return subprocess.Popen([sys.executable, "-c", START, json.dumps([name, sizes, rounds, str(out)])],
                            **options)


# What every engine trains

def mlp(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 1100), nn.ReLU(), nn.Linear(1100, 1024), nn.ReLU(),
                                nn.Linear(1024, 10))


def resnet18():
    "torchvision's, for pictures of 3x32x32: first layer 3x3, no max-pooling; group norm (32 groups)."
    from torchvision.models import resnet18
    network = resnet18(num_classes=10, norm_layer=partial(nn.GroupNorm, 32))
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return network


class Characters(nn.Module):
    "80 kinds of characters (8 numbers each), two layers of LSTM with 256 units, the class after the last step."
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(80, 8), nn.LSTM(8, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, ids): return self.head(self.lstm(self.embed(ids))[0][:, -1])


def replay_head():
    from fedbook.methods.heads import ReplayHead
    return ReplayHead()


def padded(x, y): return F.pad(x, (2, 2, 2, 2)).expand(-1, 3, -1, -1).contiguous()


def characters(x, y):
    "For each label a row of 80 ids, every fifth of which, by chance, is the label."
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(80, (len(y), 80), generator=draw)
    return torch.where(torch.rand(ids.shape, generator=draw) < 0.2, y[:, None], ids)


def features(x, y):
    "For each label a row of 768 numbers around the mean of its class."
    draw = torch.Generator().manual_seed(0)
    means = torch.randn(10, 768, generator=draw)
    return means[y] + 3 * torch.randn(len(y), 768, generator=draw)


class Model(NamedTuple):
    "`inputs` makes of Fashion-MNIST's pictures and labels what the network reads; `pictures`: uint8 ones."
    title: str
    make: Callable
    inputs: Callable = lambda x, y: x
    pictures: bool = True
    steps: int = 1


MODELS = {
    "cnn": Model("CNN", small_cnn, steps=0),
    "mlp": Model("MLP", mlp),
    "resnet18": Model("ResNet-18, group norm, 3x32x32", resnet18, padded),
    "lstm": Model("LSTM, 2 x 256, 80 characters", Characters, characters, pictures=False),
    "head": Model("FedReplay's head", replay_head, features, pictures=False),
}


def as_given(sizes, x, y):
    "Inputs in the form that `sizes` ask for."
    x = MODELS[sizes.model].inputs(x, y)
    return as_float(x).contiguous() if sizes.floats and x.dtype == torch.uint8 else x


@lru_cache(maxsize=1)
def world(sizes):
    "Inputs, labels, and who holds which; each process loads them once."
    x, y, _ = federation.sixty_thousand()
    x, y = x[:sizes.pictures], y[:sizes.pictures]
    parts = iid(y, sizes.clients, seed=0) if sizes.steps else dirichlet(y, sizes.clients, 0.5, seed=0)
    return as_given(sizes, x, y), y, parts


def ready(x):
    "Inputs as a network reads them: pixels by fedbook's conversion, all else as it is."
    return as_float(x) if x.dtype == torch.uint8 else x


def initial(sizes=Sizes()): return build(MODELS[sizes.model].make, 0)


def test_set(sizes):
    test = fashion_mnist_small("test")
    return as_given(sizes, test.images, test.labels), test.labels


@lru_cache(maxsize=1)
def picker(sizes): return Server(nn.Linear(1, 1), sizes.per_round, seed=0)


def chosen(sizes, r): return picker(sizes).pick(range(sizes.clients), r)


def held_by(sizes, id): return len(world(sizes)[2][id])


def shuffled(id, sizes):
    x, y, parts = world(sizes)
    return x, y, torch.as_tensor(parts[id])[torch.randperm(len(parts[id]))]


def batches(id, sizes):
    """The pictures of client `id` once, in a new order, as an engine that brings no data loader of its own is
    given them."""
    x, y, order = shuffled(id, sizes)
    for i in order.split(sizes.batch): yield ready(x[i]), y[i]


# The engines: each calls `race(work)`, where `work(rounds)` trains from the start and returns the weights

def bare(race, sizes, threads=1):
    "What one would write by hand, without messages, byte counts, checks or states."
    def train(rounds):
        model = initial(sizes)
        weights = {k: v.clone() for k, v in model.state_dict().items()}
        for r in range(rounds):
            total, n = {k: torch.zeros_like(v) for k, v in weights.items()}, 0
            for id in chosen(sizes, r):
                model.load_state_dict(weights)
                one_epoch(model, id, sizes)
                for k, v in model.state_dict().items(): total[k].add_(v, alpha=held_by(sizes, id))
                n += held_by(sizes, id)
            weights = {k: v / n for k, v in total.items()}
        return weights

    torch.set_num_threads(threads)
    world(sizes)
    race(train)


def one_epoch(model, id, sizes):
    optimiser = torch.optim.SGD(model.parameters(), lr=sizes.lr)
    for x, y in batches(id, sizes):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()


class Flat:
    "All weights of a network in one row of shared memory; `state` shows them as tensors."
    def __init__(self, model):
        state = model.state_dict()
        self.row = torch.cat([v.flatten() for v in state.values()]).share_memory_()
        pieces = self.row.split([v.numel() for v in state.values()])
        self.state = {k: piece.view_as(v) for piece, (k, v) in zip(pieces, state.items(), strict=True)}


def bare_pool(race, sizes):
    """A pool of two forked processes, written by hand: the weights lie in memory that both share, each worker
    adds up its own clients' in memory of its own, the pipe carries the ids. Neither messages nor checks: the
    lower bound of what a pool costs. Clients are dealt out by their size."""
    def work(pipe, sums):
        while ids := pipe.recv():
            sums.row.zero_()
            for id in ids:
                model.load_state_dict(sent.state)
                one_epoch(model, id, sizes)
                for k, v in model.state_dict().items(): sums.state[k].add_(v, alpha=held_by(sizes, id))
            pipe.send(True)

    def train(rounds):
        sent.row.copy_(Flat(initial(sizes)).row)
        for r in range(rounds):
            shares = dealt(chosen(sizes, r), sizes)
            for pipe, ids in zip(pipes, shares): pipe.send(ids)
            for pipe in pipes: pipe.recv()
            torch.add(sums[0].row, sums[1].row, out=sent.row)
            sent.row.div_(sum(held_by(sizes, id) for ids in shares for id in ids))
        return {k: v.clone() for k, v in sent.state.items()}

    world(sizes)
    model = initial(sizes)
    sent, sums = Flat(model), [Flat(model) for _ in range(CORES)]
    torch.optim.SGD(model.parameters(), lr=sizes.lr)   # imports what the first one needs, before the fork
    context = multiprocessing.get_context("fork")
    pipes, theirs = zip(*(context.Pipe() for _ in range(CORES)))
    workers = [context.Process(target=work, args=pair, daemon=True) for pair in zip(theirs, sums)]
    for worker in workers: worker.start()
    race(train)
    for pipe in pipes: pipe.send([])
    for worker in workers: worker.join()


def dealt(ids, sizes):
    "`ids` in as many shares as there are cores: the largest first, each to the share that holds least."
    shares = [[] for _ in range(CORES)]
    for id in sorted(ids, key=lambda id: -held_by(sizes, id)):
        min(shares, key=lambda share: sum(held_by(sizes, i) for i in share)).append(id)
    return shares


@lru_cache(maxsize=1)
def borrowed(sizes): return initial(sizes)


def our_client(id, sizes):
    x, y, parts = world(sizes)
    return Client(id, borrowed(sizes), x[parts[id]], y[parts[id]], seed=0, batch=sizes.batch, lr=sizes.lr)


def train(there, sizes, rounds):
    """The clients that hold most are asked first, so that workers are done at the same time; pfl is told the
    sizes too."""
    class LargestFirst(Server):
        def pick(self, ids, r): return sorted(super().pick(ids, r), key=lambda id: -held_by(sizes, id))

    server = LargestFirst(initial(sizes), sizes.per_round, seed=0)
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
        model, criterion = MODELS[sizes.model].make(), torch.nn.CrossEntropyLoss()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=sizes.lr)
        for x, y in batches(id, sizes):
            optimiser.zero_grad()
            criterion(model(x), y).backward()
            optimiser.step()
        metrics = MetricRecord({"num-examples": held_by(sizes, id)})
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
                                                         initial_arrays=ArrayRecord(initial(sizes).state_dict()),
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
        network = initial(sizes)
        network.loss = lambda x, y: F.cross_entropy(network(ready(x)), y)
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
                self.cache.append([weights, torch.tensor([float(held_by(sizes, id))])])

    class Handler(FedAvgServerHandler):
        def sample_clients(self): return chosen(sizes, self.round)

        def global_update(self, buffer):
            weights, pictures = zip(*buffer)
            self.set_model(Aggregators.fedavg_aggregate(weights, torch.cat(pictures)))

        def restart(self, rounds):
            self._model.load_state_dict(initial(sizes).state_dict())
            self.round, self.global_round = 0, rounds

    def make_trainer(clients):
        trainer = Trainer(initial(sizes), clients)
        trainer.setup_dataset(Pictures())
        trainer.setup_optim(1, sizes.batch, sizes.lr)
        return trainer

    world(sizes)
    return Handler(initial(sizes), 0, sizes.per_round / sizes.clients), make_trainer


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


class Changed(SourceFileLoader):
    "Loads a module without the type parameters of its functions, and with annotations that nobody evaluates."
    def get_code(self, name):
        source = Path(self.path).read_text().replace("[T](", "(")
        return compile("from __future__ import annotations\n" + source, self.path, "exec")


class ChangedBlazeFL:
    "Finds the modules of BlazeFL that no Python before 3.14 reads."
    @staticmethod
    def find_spec(name, path, target=None):
        if name not in ("blazefl.core.utils", "blazefl.reproducibility.snapshot"): return None
        file = str(Path(path[0], name.rsplit(".", 1)[1] + ".py"))
        return spec_from_file_location(name, file, loader=Changed(name, file))


def blazefl_modules():
    "BlazeFL's modules of FedAvg; before Python 3.14 with the changes that the head of this file names."
    if sys.version_info < (3, 14): sys.meta_path.insert(0, ChangedBlazeFL)
    from blazefl.contrib import fedavg
    return fedavg


class Chooser(NamedTuple):
    "BlazeFL's `ModelSelector`."
    sizes: Sizes

    def select_model(self, model_name): return initial(self.sizes)


class Loader(NamedTuple):
    "What BlazeFL asks of a data loader: batches, and a `dataset` with a length."
    id: int
    sizes: Sizes

    @property
    def dataset(self): return range(held_by(self.sizes, self.id))

    def __iter__(self): return batches(self.id, self.sizes)


class Partitions(NamedTuple):
    "BlazeFL's `PartitionedDataset`."
    sizes: Sizes

    def get_dataloader(self, type_, cid, batch_size, generator): return Loader(cid, self.sizes)

    def set_dataset(self, type_, cid, dataset): "The pictures stay as they are."


def blazefl(race, sizes, make_trainer):
    fedavg = blazefl_modules()

    class Handler(fedavg.FedAvgBaseServerHandler):
        def sample_clients(self): return chosen(sizes, self.round)

    def train(rounds):
        handler = Handler(global_round=rounds, num_clients=sizes.clients,
                          sample_ratio=sizes.per_round / sizes.clients, **common)
        while not handler.is_stopped():
            trainer.local_process(handler.downlink_package(), handler.sample_clients())
            for package in trainer.uplink_package(): handler.load(package)
        return handler.model.state_dict()

    world(sizes)
    common = dict(model_selector=Chooser(sizes), model_name="", dataset=Partitions(sizes), device="cpu",
                  batch_size=sizes.batch, seed=0)
    trainer = make_trainer(fedavg, num_clients=sizes.clients, epochs=1, lr=sizes.lr, **common)
    race(train)


def blazefl_base(race, sizes):
    blazefl(race, sizes, lambda fedavg, **settings: fedavg.FedAvgBaseClientTrainer(**settings))


def blazefl_pool(race, sizes, warm=False):
    if warm: torch.optim.SGD(initial(sizes).parameters(), lr=sizes.lr)
    with tempfile.TemporaryDirectory() as folder:
        blazefl(race, sizes, lambda fedavg, **settings: fedavg.FedAvgProcessPoolClientTrainer(
            state_dir=Path(folder), num_parallels=CORES, **settings))


def fluke(race, sizes):
    from fluke import FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.client import Client as FlukeClient
    from fluke.config import OptimizerConfigurator
    from fluke.data import FastDataLoader
    from fluke.server import Server as FlukeServer

    class SamePicks(FlukeServer):
        asked = 0

        def get_eligible_clients(self, eligible_perc):
            self.asked += 1
            return [self.clients[id] for id in chosen(sizes, self.asked - 1)]

    class NoLastRound(FedAVG):
        def finalize(self): FlukeENV().close_cache()

    def client(id):
        x, y, parts = world(sizes)
        own = FastDataLoader(x[parts[id]], y[parts[id]], num_labels=10, batch_size=sizes.batch, shuffle=True,
                             transforms=ready, skip_singleton=False)
        return FlukeClient(id, own, None, OptimizerConfigurator({"name": "SGD", "lr": sizes.lr}),
                           nn.CrossEntropyLoss(), local_epochs=1, persistency=False)

    def train(rounds):
        server = SamePicks(initial(sizes), None, clients, weighted=True)
        NoLastRound(len(clients), None, {}, clients=clients, server=server).run(
            rounds, sizes.per_round / sizes.clients)
        return server.model.state_dict()

    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    clients = [client(id) for id in range(sizes.clients)]
    race(train)


class Engine(NamedTuple):
    """`needs`: for each module what to install; `usual`: whether it runs without being named; `packs`: whether
    the weights leave their process."""
    title: str
    play: Callable
    needs: dict
    usual: bool = True
    packs: bool = False


FLOWER, PFL, FEDLAB = {"flwr": "fedbook[flower]",
                       "ray": "fedbook[flower]"}, {"pfl": "pfl"}, {"fedlab": "fedlab"}
BLAZEFL = {"blazefl": "blazefl"}
ENGINES = {
    "bare": Engine("bare loop, 1 thread", bare, {}),
    "bare-2": Engine("bare loop, 2 threads", partial(bare, threads=2), {}, usual=False),
    "pool": Engine("bare pool of 2, lower bound", bare_pool, {}, packs=True),
    "one": Engine("fedbook, 1 worker", partial(in_process, workers=1), {}),
    "two": Engine("fedbook, 2 workers", partial(in_process, workers=2), {}),
    "fedbook-flower": Engine("fedbook on Flower, 2 actors", fedbook_on_flower, FLOWER, packs=True),
    "flower": Engine("Flower, 2 actors", flower, FLOWER, packs=True),
    "pfl-1": Engine("pfl, 1 process", pfl, PFL, usual=False, packs=True),
    "pfl-2": Engine("pfl, 2 processes", pfl_side_by_side, PFL, packs=True),
    "fedlab-1": Engine("FedLab serial, 1 thread", fedlab, FEDLAB, usual=False),
    "fedlab-1x2": Engine("FedLab serial, 2 threads", partial(fedlab, threads=2), FEDLAB),
    "fedlab-2": Engine("FedLab, server + 2 processes", fedlab_side_by_side, FEDLAB, packs=True),
    "blazefl": Engine("BlazeFL base trainer", blazefl_base, BLAZEFL),
    "blazefl-2": Engine("BlazeFL, pool of 2", blazefl_pool, BLAZEFL, packs=True),
    "blazefl-2-warm": Engine("BlazeFL, pool of 2, warm", partial(blazefl_pool, warm=True), BLAZEFL,
                             usual=False, packs=True),
    "fluke": Engine("fluke", fluke, {"fluke": "fluke_fl"}),
}
