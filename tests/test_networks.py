"""Networks as people bring them: whatever they read, in any precision, with what they hold and draw."""
import multiprocessing
import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedbook.engine.errors import UserError
from fedbook.engine.federation import Client, Experiment, Federation, InProcess, Server, run
from fedbook.engine.local import (as_float, as_input, batches, build, class_ids, generator, global_draws,
                                  global_starts, outputs, passes, predict, reads_channels_last, share_right,
                                  small_cnn, snapshot)
from fedbook.engine.rows import Rows
from fedbook.engine.show import say_once
from fedbook.engine.stacked import Stacked
from fedbook.engine.wire import Msg
from fedbook.engine.workers import Workers, prove, transport_for, trial
from fedbook.methods.fedavg import FedAvgSizes
from fedbook.methods.continual import (Expandable, FedAvg, TaskClient, expandable_cnn, make_stream, networks,
                                       run_stream)
from fedbook.methods.exemplars import DER, GLFC, ExemplarSizes, ICaRL, ReFed
from fedbook.methods.painters import LANDER, TARGET
from fedbook.methods.penalties import CGoFed, FedEWC, FedLwF, FLwF2T
from fedbook.methods.pruning import MaskedClient, PruningSizes
from fedbook.methods.score import accuracy
from fedbook.privacy.dp import RecordClient
from test_fedavg import equal, several


class Quickstart(nn.Module):
    "The form of Flower's own quickstart, and of most tutorials: two convolutions, flattened by view."
    def __init__(self, channels=3):
        super().__init__()
        self.conv1, self.pool, self.conv2 = nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2, 2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Words(nn.Module):
    "A reader of words, whose last layer is tied to the first where it `ties`."
    def __init__(self, reader, ties=False):
        super().__init__()
        self.embed, self.reader, self.out = nn.Embedding(20, 8), reader(), nn.Linear(8, 20)
        if ties: self.out.weight = self.embed.weight

    def forward(self, words):
        read = self.reader(self.embed(words))
        return self.out((read[0] if isinstance(read, tuple) else read)[:, -1])


def frozen_below():
    network = small_cnn()
    for p in network[0].parameters(): p.requires_grad_(False)
    return network


def vision(name, **options):
    import torchvision.models as models
    return lambda: getattr(models, name)(weights=None, num_classes=10, **options)


def vit():
    from torchvision.models import VisionTransformer
    return VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=10)


def dropping():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(),
                         nn.Linear(8 * 30 * 30, 10))


lstm = partial(nn.LSTM, 8, 8, batch_first=True)
encoder = partial(nn.TransformerEncoderLayer, 8, 2, 16, batch_first=True)
PRUNING = PruningSizes(epochs=1, batch=3)
FEW = FedAvgSizes(clients=3, per_round=2, rounds=3)
COLOUR, GREY, WORDS = (3, 32, 32), (1, 28, 28), (7,)
NETWORKS = {
    "quickstart": (Quickstart, COLOUR), "quickstart, grey": (partial(Quickstart, 1), (1, 32, 32)),
    "resnet18": (vision("resnet18"), COLOUR), "squeezenet": (vision("squeezenet1_1"), COLOUR),
    "mobilenet": (vision("mobilenet_v3_small"), COLOUR), "shufflenet": (vision("shufflenet_v2_x0_5"), COLOUR),
    "vit": (vit, COLOUR), "frozen": (frozen_below, GREY), "dropout": (dropping, COLOUR),
    "lstm": (partial(Words, lstm), WORDS), "transformer": (partial(Words, encoder), WORDS),
    "tied": (partial(Words, lstm, True), WORDS),
    "float64": (lambda: small_cnn().double(), GREY), "bfloat16": (lambda: small_cnn().bfloat16(), GREY),
    "view in float64": (lambda: Quickstart().double(), COLOUR)}


def holding(shape, n=6, seed=0):
    "Pictures or words of that shape, with labels."
    g, words = generator(seed), len(shape) == 1
    x = torch.randint(0, 20 if words else 256, (n, *shape), generator=g)
    return x if words else x.byte(), torch.randint(0, 10, (n,), generator=g)


@pytest.mark.parametrize("make, shape", NETWORKS.values(), ids=NETWORKS)
def test_it_trains_for_a_round_and_is_scored(make, shape):
    network, (x, y) = build(make, 0), holding(shape)
    server = Server(network)
    with Federation(InProcess(lambda id: Client(id, network, x, y, id, batch=3, lr=0.01)), 2) as federation:
        run(server, federation, 1)
    before, moved = snapshot(build(make, 0)), Counter()
    for name, p in network.named_parameters():
        moved[p.requires_grad] += not torch.equal(server.weights[name], before[name])
        assert server.weights[name].dtype == p.dtype
    assert moved[True] and not moved[False] and not federation.ledger.absent
    assert 0 <= server.score(network, x, y) <= 1


@dataclass(frozen=True)
class Brought(Experiment):
    make: object = dropping
    shape: tuple = COLOUR

    def client(self, id):
        return Client(id, build(self.make, 0), *holding(self.shape, 6, id), self.seed, batch=3, lr=0.01)

    def server(self): return Server(build(self.make, self.seed), self.sizes.per_round, self.seed)


# ---- what a network reads

def test_a_network_that_flattens_by_view_gets_rows_and_says_so_once(capsys):
    network, x = build(Quickstart, 0), holding(COLOUR)[0]
    assert not reads_channels_last(network, as_float(x)) and as_input(network, x).is_contiguous()
    as_input(network, x), as_input(build(Quickstart, 1), x)
    said = capsys.readouterr().out.splitlines()
    assert len(said) <= 1 and all("Quickstart gets its pictures channel after" in line for line in said)
    assert outputs(network, x).shape == (6, 10)


@several
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_says_once_how_a_network_gets_its_pictures_and_its_results_keep_it(workers, capfd, tmp_path):
    said = f"Seen by {workers}"
    network = build(type(said, (Quickstart,), {}), 0)
    make = lambda id: Client(id, network, *holding(COLOUR, 6, id), batch=3, lr=0.01)

    def measure():
        with Federation(transport_for(make, workers), 4) as federation:
            run(server := Server(network), federation, 2)
        return {"score": server.score(network, *holding(COLOUR))}

    results = Rows("said", "smoke", out=tmp_path)
    assert said not in results.made_with.get("networks", "")
    results.row("quickstart", 0, measure), results.row("quickstart", 1, measure)
    lines = [line for line in capfd.readouterr().out.splitlines() if said in line]
    assert len(lines) == 1 and lines[0].startswith(f"{said} gets its pictures channel after channel in memory; with")
    kept = Rows.read(results.file).made_with["networks"].split("; ")
    assert f"{said} gets its pictures channel after channel" in kept and sorted(set(kept)) == kept


def test_rows_that_are_not_measured_again_keep_what_was_said_of_their_networks(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_STAMP", "kept")
    first = Rows("said", "smoke", out=tmp_path)
    first.row("a", 0, dict)
    first.made_with["networks"] = "Long Ago gets its pictures channel after channel"
    first.save()
    again = Rows("said", "smoke", out=tmp_path)
    again.row("a", 0, dict), again.row("b", 0, dict)
    assert "Long Ago gets" in Rows.read(again.file).made_with["networks"]


def test_what_processes_want_to_say_at_the_same_time_is_said_by_one(capfd):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    speakers = [context.Process(target=_say_together, args=(barrier,)) for _ in range(4)]
    for speaker in speakers: speaker.start()
    for speaker in speakers: speaker.join()
    _say_together(None)
    assert sorted(capfd.readouterr().out.split()) == sorted(f"said-{k}" for k in range(50))


def _say_together(barrier):
    for k in range(50):
        if barrier: barrier.wait()
        say_once(f"said-{k}")


def test_the_courses_networks_keep_the_channels_last_and_their_bits():
    network, x = build(small_cnn, 0), holding(GREY)[0]
    given, wanted = as_input(network, x), as_float(x)
    assert torch.equal(given, wanted) and given.stride() == wanted.stride()
    colour = holding(COLOUR)[0]
    assert as_input(build(dropping, 0), colour).is_contiguous(memory_format=torch.channels_last)


def test_a_trial_leaves_the_network_and_the_generators_alone():
    network, x = build(dropping, 0).train(), holding(COLOUR)[0]
    before, starts = snapshot(network), global_starts()
    as_input(network, x)
    assert equal(before, snapshot(network)) and network.training and global_starts() == starts


def test_a_network_that_fails_in_any_case_shows_its_own_error():
    network = nn.Sequential(nn.Flatten(), nn.Linear(5, 2))
    pictures = as_float(holding(COLOUR)[0])
    rows = pictures.contiguous()
    assert reads_channels_last(network, pictures) is None
    assert as_input(network, pictures) is pictures and as_input(network, rows) is rows
    with pytest.raises(RuntimeError, match="mat1 and mat2"): outputs(network, holding(COLOUR)[0])


@pytest.mark.parametrize("shape, make", [(GREY, small_cnn), (COLOUR, partial(small_cnn, 10, 3, 32))])
def test_float_pictures_get_the_layout_of_pixels(shape, make):
    pixels = holding(shape)[0]
    wanted, rows = as_float(pixels), as_float(pixels).clone(memory_format=torch.contiguous_format)
    assert rows.stride() != wanted.stride()
    given = as_input(build(make, 0), rows)
    assert torch.equal(given, wanted) and given.stride() == wanted.stride() and given is not rows
    assert as_input(build(make, 0), wanted) is wanted
    ends = []
    for x in (pixels, rows, wanted):
        client = Client(0, build(make, 0), x, holding(shape)[1], batch=3)
        ends.append(client.fit(Msg(snapshot(client.model))).tensors)
    assert equal(ends[0], ends[1]) and equal(ends[0], ends[2])


def test_float_pictures_of_a_network_that_flattens_by_view_stay_and_gradients_pass():
    rows = torch.rand(3, *COLOUR, requires_grad=True)
    network = build(Quickstart, 0)
    assert as_input(network, rows) is rows
    assert reads_channels_last(network, rows) is False
    network = build(dropping, 0)
    network(as_input(network, rows)).sum().backward()
    assert rows.grad is not None and rows.grad.abs().sum() > 0


def test_floats_get_the_precision_of_the_weights_and_whole_numbers_stay():
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        network = nn.Linear(4, 2).to(dtype)
        for x in (torch.rand(3, 4), torch.rand(3, 4).double(), torch.zeros(3, 4).byte()):
            assert as_input(network, x).dtype == dtype
        for whole in (torch.int64, torch.int32, torch.int16, torch.bool):
            assert as_input(network, torch.zeros(3, 4, dtype=whole)).dtype == whole


def test_the_default_device_and_dtype_of_a_user_have_no_say():
    wanted = snapshot(build(small_cnn, 5))
    try:
        torch.set_default_device("meta")
        assert equal(snapshot(build(small_cnn, 5)), wanted)
        assert [part.device.type for part in batches(4, 2, generator(0))] == ["cpu", "cpu"]
    finally:
        torch.set_default_device(None)


def test_a_state_that_is_no_tensor_is_named():
    class Counting(nn.Linear):
        def get_extra_state(self): return {"calls": 1}

    for take in (Server, snapshot):
        with pytest.raises(UserError, match="Counting holds '_extra_state'.*a dict, expected tensors"):
            take(Counting(2, 2))


class Read(nn.Module):
    "Reads words, without memory or dropout."
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 10)

    def forward(self, words): return self.out(self.embed(words).mean(1))


def ended(transport, make):
    with Federation(transport, 3) as federation: run(server := Server(build(make, 0)), federation, 2)
    return server.weights


def side_by_side(make, shape):
    "The weights after two rounds, with clients one by one and together."
    network = build(make, 0)
    client = lambda id: Client(id, network, *holding(shape, 6, id), batch=3, lr=0.01)
    return ended(InProcess(client), make), ended(Stacked(client, 3), make)


TOGETHER = {"read": (Read, WORDS), "read in float64": (lambda: Read().double(), WORDS),
            **{name: NETWORKS[name] for name in ("quickstart", "float64", "bfloat16", "view in float64")}}


@pytest.mark.filterwarnings("error:these clients train one by one")
@pytest.mark.parametrize("make, shape", TOGETHER.values(), ids=TOGETHER)
def test_clients_with_it_train_together(make, shape):
    alone, together = side_by_side(make, shape)
    assert not equal(alone, snapshot(build(make, 0)))
    for name, t in alone.items():
        assert t.dtype == together[name].dtype
        torch.testing.assert_close(together[name], t, rtol=1e-5, atol=1e-2 if t.dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize("name", ["lstm", "transformer", "tied"])
def test_clients_with_one_that_cannot_be_stacked_train_alone_with_the_same_bits(name):
    with pytest.warns(UserWarning, match="these clients train one by one"):
        assert equal(*side_by_side(*NETWORKS[name]))


def viewing(classes, shape):
    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.out = nn.Conv2d(shape[0], 4, 3, stride=2), nn.LazyLinear(16)

        def forward(self, x): return F.relu(self.out(F.relu(self.conv(x)).view(len(x), -1)))

    network = Expandable(Body(), 16, classes, shape)
    network(torch.zeros(1, *shape))
    return network


def in_double(classes, shape): return expandable_cnn(classes, shape).double()


METHODS = (FedAvg, FedLwF, FLwF2T, FedEWC, CGoFed, ICaRL, DER, ReFed, GLFC, TARGET, LANDER)


@dataclass(frozen=True)
class StreamSizes(ExemplarSizes):
    synthetic: int = 4


@pytest.mark.parametrize("method", METHODS, ids=[method.name for method in METHODS])
@pytest.mark.parametrize("make", [viewing, in_double])
def test_every_method_against_forgetting_trains_it(make, method, monkeypatch):
    monkeypatch.setitem(networks, "cnn", make)
    sizes = StreamSizes(clients=2, tasks=2, pictures=8, test_pictures=4, rounds=1, epochs=1, memory=12,
                        proxy_steps=1)
    outcome = run_stream(method, make_stream(sizes, 0), sizes, 0, workers=1)
    assert not outcome.federation.ledger.absent and outcome.server.network().head.out_features > 2
    wanted = torch.float64 if make is in_double else torch.float32
    assert {t.dtype for t in outcome.server.weights.values()} == {wanted}


def test_methods_give_the_courses_network_the_same_bits_as_before():
    client = TaskClient(0, build(partial(expandable_cnn, 2), 0), [holding(GREY)], batch=3)
    client.task = 0
    plain = passes(*holding(GREY), 1, 3, generator(0, 0))
    for (x, y), (wanted, labels) in zip(client.batches(), plain, strict=True):
        assert torch.equal(x, wanted) and x.stride() == wanted.stride() and torch.equal(y, labels)


@pytest.mark.parametrize("make", [partial(Quickstart, 1), lambda: Quickstart(1).double()])
def test_it_is_pruned(make):
    client = MaskedClient(0, build(make, 0), SimpleNamespace(**dict(zip("xy", holding((1, 32, 32))))), PRUNING)
    client.train()
    assert not equal(snapshot(client.model), snapshot(build(make, 0)))


PRIVATE = {"read": (Read, WORDS), "read in float64": (lambda: Read().double(), WORDS),
           **{name: NETWORKS[name] for name in ("quickstart", "float64", "view in float64", "frozen")}}


@pytest.mark.parametrize("make, shape", PRIVATE.values(), ids=PRIVATE)
def test_it_is_trained_privately_by_record(make, shape):
    weights = snapshot(build(make, 0))
    private = RecordClient(Client(0, build(make, 0), *holding(shape), batch=3, lr=0.01), noise=1.0)
    answer = private.fit(Msg(weights)).tensors
    assert not equal(answer, weights) and {t.dtype for t in answer.values()} == {t.dtype for t in weights.values()}


def test_half_precision_is_refused_where_privacy_is_promised():
    client = Client(0, build(lambda: small_cnn().bfloat16(), 0), *holding(GREY))
    with pytest.raises(UserError, match=r"Sequential has weights in bfloat16.*use model.float\(\)"):
        RecordClient(client, noise=1.0)


# ---- what it draws and holds

@pytest.mark.parametrize("shape, make", [(COLOUR, dropping), (WORDS, partial(Words, encoder))])
def test_a_network_with_dropout_is_proven(shape, make):
    prove(Brought(FEW, 3, make=make, shape=shape), kills=1, kinds=("nan",))


class Draws(Client):
    "Answers what the three global generators draw."
    def fit(self, msg):
        drawn = [torch.rand(2), torch.from_numpy(np.random.rand(2)), torch.tensor([random.random()])]
        return Msg(msg.tensors, {"n": 1, "drawn": torch.cat(drawn).tolist()})


def drawn(workers, seed=0, rounds=2):
    "What clients 0 to 3 draw in each round."
    network = build(partial(nn.Linear, 2, 2), 0)
    make = lambda id: Draws(id, network, torch.zeros(1, 2), torch.zeros(1).long(), seed)
    found = []
    with Federation(transport_for(make, workers), 4) as federation:
        for federation.round in range(rounds):
            replies = list(federation.exchange("fit", Msg(network.state_dict()), federation.ids))
            found += [tuple(msg.meta["drawn"]) for _, msg in replies]
    return found


@several
def test_draws_follow_seed_round_and_client_with_any_number_of_workers():
    before = global_starts()
    alone = drawn(1)
    assert len({number for numbers in alone for number in numbers}) == 8 * 5
    with global_draws(7): assert drawn(1) == drawn(2) == drawn(3) == alone
    assert not set(alone) & set(drawn(1, seed=1)) and global_starts() == before


@several
def test_clients_whose_data_are_drawn_when_they_are_made_differ_alike_with_any_number_of_workers():
    def data(workers):
        make = lambda id: Client(id, nn.Linear(2, 2), torch.rand(4, 2), torch.randint(0, 2, (4,)))
        with Federation(transport_for(make, workers), 3) as federation:
            run(server := Server(build(partial(nn.Linear, 2, 2), 0)), federation, 1)
        return server.weights

    with global_draws(1): one, two = data(1), data(2)
    with global_draws(2): other = data(1)
    assert equal(one, two) and not equal(one, other)


def test_the_callers_generators_stay_even_with_a_normal_number_in_store_and_after_an_error():
    with global_draws(3):
        np.random.normal()
        kept, state = np.random.get_state(), random.getstate()
        with pytest.raises(KeyError), global_draws(4):
            np.random.normal(), random.gauss(0, 1)
            with global_draws(5): inner = np.random.rand(), random.random()
            after = np.random.rand(), random.random()
            raise KeyError
        assert str(np.random.get_state()) == str(kept) and random.getstate() == state and kept[3] == 1
    with global_draws(4):
        np.random.normal(), random.gauss(0, 1)
        assert (np.random.rand(), random.random()) == after
    with global_draws(5): assert (np.random.rand(), random.random()) == inner


class Loose(nn.Module):
    "Counts its batches in a buffer that no state dict holds, and answers with the count."
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 10)
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.seen = self.seen + 1
        return self.layer(x.float()) * self.seen


@dataclass(frozen=True)
class Counted(Brought):
    lent, kind = build(Loose, 0), Client

    def client(self, id): return self.kind(id, self.lent, *holding((4,), 6, id), self.seed, batch=3, lr=0.01)


def test_what_a_network_holds_beside_its_state_does_not_pass_to_the_next_client():
    prove(Counted(FEW, 3, make=Loose, shape=(4,)), kills=1, kinds=("nan",))
    assert Counted.lent.seen.item() == 0


class Holding(nn.Module):
    "Has all that a network can hold: a batch norm's buffers, dropout, a mean of its own, and a cache from none on."
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout()
        self.last = nn.Linear(8, 10)
        self.register_buffer("level", torch.zeros(8), persistent=False)
        self.register_buffer("cache", None, persistent=False)

    def forward(self, x):
        z = self.norm(self.first(x.float()))
        self.cache = z.detach().mean(0) if self.cache is None else self.cache / 2
        if self.training: self.level.lerp_(self.cache, 0.5)
        return self.last(self.drop(F.relu(z + self.level + self.cache)))


@dataclass(frozen=True)
class Lending(Brought):
    "All clients borrow one network."
    lent = build(Holding, 0)

    def client(self, id): return Client(id, self.lent, *holding((4,), 6, id), self.seed, batch=3, lr=0.01)


def test_a_network_with_all_kinds_of_buffers_is_proven_lent_or_owned():
    owned, lent = (kind(FEW, 3, make=Holding, shape=(4,)) for kind in (Brought, Lending))
    for experiment in (owned, lent): prove(experiment, kills=1, kinds=("nan",))
    assert equal(trial(owned, workers=1).server.weights, trial(lent, workers=1).server.weights)
    assert trial(lent, workers=1).server.weights["norm.num_batches_tracked"].item() > 0
    assert Lending.lent.cache is None and not Lending.lent.level.any()


class Caching(nn.Module):
    "Adds what it saw last, and counts, in attributes that are neither its state nor its buffers."
    def __init__(self):
        super().__init__()
        self.layer, self.last, self.seen, self.memory = nn.Linear(4, 10), None, 0, torch.zeros(1)

    def forward(self, x):
        h = self.layer(x.float() + (0 if self.last is None else self.last.mean()) + self.seen + self.memory)
        self.last, self.seen = h.detach(), self.seen + 1
        self.memory += 0.1
        self.fresh = getattr(self, "fresh", 0) + 1
        return h * self.fresh


@dataclass(frozen=True)
class Cached(Counted):
    lent = build(Caching, 0)


def test_what_a_network_remembers_does_not_pass_to_the_next_client_either():
    prove(Cached(FEW, 3, make=Caching, shape=(4,)), kills=1, kinds=("nan",))
    lent = Cached.lent
    assert lent.last is None and lent.seen == 0 and lent.memory.item() == 0
    assert not hasattr(lent, "fresh")


def weights_after(make, workers=1, kind=Client):
    "What three rounds make of a network that three clients share."
    lent, clients = build(make, 0), 3
    def make_client(id): return kind(id, lent, *holding((4,), 6, id), batch=3, lr=0.1)
    server = Server(build(make, 0))
    with Federation(transport_for(make_client, workers), clients) as federation: run(server, federation, 3)
    assert not federation.ledger.absent
    return server.weights


class Tied(nn.Module):
    "Its second layer is the first one, turned: a view of its weights, taken once or in every pass."
    def __init__(self, once):
        super().__init__()
        self.a, self.once, self.out = nn.Linear(4, 4), once, nn.Linear(4, 10)
        if once: self.turned = self.a.weight.t()

    def forward(self, x):
        turned = self.turned if self.once else self.a.weight.t()
        return self.out(F.relu(self.a(x.float()) / 20) @ turned)


def test_a_view_of_a_weight_is_no_cache():
    assert equal(weights_after(partial(Tied, True)), weights_after(partial(Tied, False)))


class Listing(nn.Module):
    "Remembers in groups: a list that grows, a dict, a pair that is made in the first pass."
    def __init__(self):
        super().__init__()
        self.layer, self.seen, self.by = nn.Linear(4, 10), [], {"sum": torch.zeros(1)}

    def forward(self, x):
        self.seen.append(len(x))
        self.by["sum"] += 1
        self.pair = tuple(getattr(self, "pair", (torch.ones(1), 0)))[0] + 1, len(self.seen)
        return self.layer(x.float()) * len(self.seen) + self.by["sum"] * self.pair[0]


@several
def test_what_is_remembered_in_groups_does_not_pass_to_the_next_client():
    assert equal(weights_after(Listing, 1), weights_after(Listing, 2))


class Sparse(nn.Module):
    "A graph's neighbours, in forms that cannot be compared number by number."
    def __init__(self):
        super().__init__()
        self.layer, self.near = nn.Linear(4, 10), torch.eye(4).to_sparse()
        self.register_buffer("far", torch.eye(4).to_sparse_csr(), persistent=False)
        self.shape_of = torch.empty(2, device="meta")

    def forward(self, x): return self.layer((self.near @ x.float().T / 20).T)


def test_attributes_that_cannot_be_compared_are_left_alone():
    assert all(torch.isfinite(t).all() for t in weights_after(Sparse).values())


class Stepping(Client):
    "Carries a number of its own in the network: its private state has it."
    keeps = ("generator", "steps")
    steps = 0

    def load(self, msg):
        super().load(msg)
        self.model.steps = self.steps

    def fit(self, msg):
        self.model.steps += 1
        self.steps = self.model.steps
        reply = super().fit(msg)
        return Msg({name: t * self.model.steps for name, t in reply.tensors.items()}, reply.meta)


class Stepped(nn.Linear):
    def __init__(self):
        super().__init__(4, 10)
        self.steps = 0

    def forward(self, x): return super().forward(x.float() / 20)


@dataclass(frozen=True)
class Steps(Counted):
    lent, kind = build(Stepped, 0), Stepping


def test_what_load_puts_into_a_network_is_there_in_the_next_call():
    prove(Steps(FEW, 3, make=Stepped, shape=(4,)), kills=1, kinds=("nan",))


class Growing(Client):
    "Its network gets a row more in its first call, in place."
    def fit(self, msg):
        head = self.model
        if head.out_features == 10:
            head.weight = nn.Parameter(torch.cat([head.weight.data, torch.zeros(1, 4)]))
            head.bias = nn.Parameter(torch.zeros(11))
            head.out_features += 1
        self.model.load_state_dict({"weight": torch.zeros(11, 4), "bias": torch.zeros(11)})
        return Msg({}, {"n": 1, "rows": head.out_features})


def test_a_head_that_grew_stays_as_large_as_its_weights():
    lent = nn.Linear(4, 10)
    line = InProcess(lambda id: Growing(id, lent, *holding((4,))))
    with Federation(line, 2) as federation:
        for _ in range(2):
            rows = [msg.meta["rows"] for _, msg in federation.exchange("fit", Msg(), [0, 1])]
            assert rows == [11, 11] and lent.weight.shape == (11, 4)


class Around:
    "A client that passes on what the one inside answers."
    keeps = ("client",)
    verbs = ("fit",)
    def __init__(self, client): self.client = client
    def fit(self, msg): return self.client.fit(msg)
    def state(self): return self.client.state()
    def load(self, msg): self.client.load(msg)


@several
def test_a_client_inside_of_another_is_no_exception():
    def around(*args, **options): return Around(Client(*args, **options))
    assert equal(weights_after(Listing, 1, around), weights_after(Listing, 2, around))
    network = build(partial(nn.Linear, 2, 2), 0)
    def first(seed):
        line = InProcess(lambda id: Around(Draws(id, network, torch.zeros(1, 2), torch.zeros(1).long(), seed)))
        with Federation(line, 1) as federation:
            [(_, msg)] = federation.exchange("fit", Msg(network.state_dict()), [0])
        return msg.meta["drawn"]
    assert first(1) != first(2) and first(1) == first(1)


def test_an_experiment_in_a_process_of_a_pool_takes_one_worker():
    one_round = FedAvgSizes(clients=2, per_round=2, rounds=1)
    experiment = Brought(one_round, 3, make=partial(Words, lstm), shape=WORDS)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        rounds, refusal = pool.apply(_in_a_pool, (experiment,))
    assert rounds == 1 and "workers=2 needs worker processes" in refusal


def _in_a_pool(experiment):
    try: Workers(experiment.client, 2)
    except UserError as error: refusal = str(error)
    return len(trial(experiment).history.rows), refusal


# ---- answers and labels

@pytest.mark.parametrize("labels", [[[0], [1], [2]], [0], [0, 1], [], [0.0, 1.0, 2.0], [0, 1, -1]])
def test_labels_that_do_not_fit_the_answers_are_refused_by_each_score(labels):
    network, labels = build(partial(nn.Linear, 3, 3), 0), torch.tensor(labels)
    for score in (lambda: share_right(network, network.state_dict(), torch.eye(3), labels),
                  lambda: accuracy(torch.eye(3), labels)):
        with pytest.raises(UserError, match="labels|predictions have shape"): score()


def test_one_output_for_two_classes_is_refused_and_the_cure_works():
    z, y = torch.tensor([[3.0], [-3.0], [4.0]]), torch.tensor([1, 0, 1])
    with pytest.raises(UserError, match=r"at least two classes.*\(-z, z\)"): class_ids(z, y)
    with pytest.raises(UserError, match="at least two classes"):
        predict(one := nn.Linear(2, 1), one.state_dict(), torch.zeros(3, 2))
    assert accuracy(torch.cat([-z, z], 1), y) == 1


def test_an_answer_that_is_no_number_is_wrong_and_no_class():
    network = nn.Linear(2, 2)
    weights = {"weight": torch.full((2, 2), torch.nan), "bias": torch.zeros(2)}
    assert predict(network, weights, torch.ones(3, 2)).tolist() == [-1] * 3
    assert share_right(network, weights, torch.ones(3, 2), torch.zeros(3).long()) == 0


def test_pictures_without_labels_do_not_train():
    x, y = holding(GREY)
    for labels in (y[:1], y[:0]):
        for use in (lambda: Client(0, small_cnn(), x, labels),
                    lambda: next(passes(x, labels, 1, 2, generator(0)))):
            with pytest.raises(UserError, match="x has 6 pictures and y has . labels, expected one"): use()


# ---- who is asked

@pytest.mark.parametrize("per_round", [0, -1, 0.5, True, "3"])
def test_a_number_of_clients_that_is_none_is_refused(per_round):
    with pytest.raises(UserError, match=f"per_round={per_round!r} must be a whole number"):
        Server(nn.Linear(2, 2), per_round)


def test_a_round_that_asks_nobody_brings_no_news():
    class Night(Server):
        def pick(self, ids, r): return [] if r == 1 else super().pick(ids, r)

    x, y = holding(WORDS)
    network = build(partial(Words, lstm), 0)
    ends = []
    with Federation(InProcess(lambda id: Client(id, network, x, y)), 2) as federation:
        server = Night(network)
        history = run(server, federation, 3, test=lambda server: ends.append(server.weights) or {})
    assert len(history.rows) == 3 and equal(ends[0], ends[1]) and not equal(ends[1], ends[2])
    assert not federation.ledger.where(round=1)


def test_who_listens_to_a_network_hears_no_trial_of_its_layout():
    network, heard = build(partial(nn.Conv2d, 3, 4, 3), 0), []
    network.register_forward_hook(lambda part, args, answer: heard.append(len(answer)))
    outputs(network, torch.rand(5, 3, 8, 8))
    assert heard == [5]
