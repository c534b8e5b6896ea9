"""The engine as its user meets it: a round to be read, private state that is declared, proven experiments."""
import copy
import gc
import multiprocessing
import os
import pickle
import random
import tempfile
import warnings
from collections import deque
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import pytest
import torch
from torch import nn

from fedbook.engine import federation as federated
from fedbook.engine import workers as engine
from fedbook.methods import fedavg
from fedbook.engine.workers import (Checkpoint, Faults, Unproven, Workers, kept_row, transport_for, prove, spoil,
                                    trial)
from fedbook.engine.federation import (Call, Client, ClientPool, Experiment, Failure, Federation, FedProxClient,
                                       InProcess, LocalOnly, Mean, Server, Step, run)
from fedbook.methods.fedavg import FedAvgExperiment, FedAvgSizes
from fedbook.evidence.claims import Results
from fedbook.engine.errors import UserError
from fedbook.engine.local import build
from fedbook.privacy.dp import Clip, Noise
from fedbook.engine.wire import Msg, Refused, Undeclared, accept_count, expect, labelled, pack, part, unpack
from test_fedavg import WORKERS, data, equal, net, several


@dataclass(frozen=True)
class Tiny(Experiment):
    "The six clients of test_fedavg, four or three a round."
    kind: object = Client
    server_kind: object = Server

    @cached_property
    def lent(self): return build(net, self.seed)

    def client(self, id): return self.kind(id, self.lent, *data(id), self.seed, batch=8)

    def server(self): return self.server_kind(build(net, self.seed), self.sizes.per_round, self.seed)

    def test(self, server): return {"accuracy": server.score(self.lent, *data(40))}


def tiny(kind=Client, server_kind=Server, rounds=3, per_round=4, seed=3):
    return Tiny(FedAvgSizes(clients=6, per_round=per_round, rounds=rounds), seed, "cpu", kind, server_kind)


# ---- what a client keeps, it declares

class Scaffold(Client):
    keeps, scratch = ("generator", "own"), ("steps", "control")

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.own = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}

    def limit(self):
        self.steps = getattr(self, "steps", 0) + 1
        for name, p in self.model.named_parameters(): p.grad += self.control[name] - self.own[name]

    def fit(self, msg):
        sent, self.control = part(msg.tensors, "model"), part(msg.tensors, "control")
        reply, old = super().fit(Msg(sent)), self.own
        walked = {name: (sent[name] - reply.tensors[name]) / (self.steps * self.lr) for name in old}
        self.own = {name: c - self.control[name] + walked[name] for name, c in old.items()}
        change = {name: self.own[name] - c for name, c in old.items()}
        return Msg(labelled(reply.tensors, "model") | labelled(change, "control"), reply.meta)


class ScaffoldServer(Server):
    keeps = ("weights", "control")

    def __init__(self, model, per_round, seed):
        super().__init__(model, per_round, seed)
        self.control = {name: torch.zeros_like(p) for name, p in model.named_parameters()}

    def send(self, id): return Msg(labelled(self.weights, "model") | labelled(self.control, "control"))

    def accept(self, verb, id, msg):
        expect(msg, self.send(id).tensors)
        accept_count(msg)

    def merge(self, replies):
        weights, change = Mean(), Mean()
        for id, msg in replies:
            weights.add(part(msg.tensors, "model"), 1)
            change.add(part(msg.tensors, "control"), 1)
        self.weights, share = weights.value(), weights.weight / 6
        self.control = {name: c + share * change.value()[name] for name, c in self.control.items()}


class ForgetfulScaffold(Scaffold):
    keeps = ("generator",)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_variate_that_is_not_declared_stops_the_run_and_is_named(workers):
    why = (r"client \d \(ForgetfulScaffold\) changed its attribute 'own' while it answered 'fit'"
           ".*add 'own' to keeps")
    with pytest.raises(Undeclared, match=why):
        trial(tiny(ForgetfulScaffold, ScaffoldServer, rounds=5, per_round=3), workers=workers)


def test_the_declared_one_is_proven():
    shown = prove(tiny(Scaffold, ScaffoldServer, rounds=5, per_round=3))
    assert len(shown) == 11 + (len(WORKERS) > 1)


class Keeper(Client):
    "Changes something of itself, as `how` says, in every round."
    how = None

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.count, self.table, self.names, self.seen = 0, {"a": torch.zeros(2)}, [], {1}
        self.noise, self.array = np.random.default_rng(0), np.zeros(2)
        self.queue, self.dice, self.old_noise = deque(), random.Random(0), np.random.RandomState(0)

    def fit(self, msg):
        type(self).how(self)
        return super().fit(msg)


def grow(client): client.extra = 1
def count(client): client.count += 1
def in_place(client): client.table["a"].add_(1)
def entry(client): client.table["b"] = 2
def append(client): client.names.append("x")
def draw(client): client.noise.random()
def array(client): client.array[0] += 1
def queue(client): client.queue.append(1)
def dice(client): client.dice.random()
def old_noise(client): client.old_noise.rand()
def see(client): client.seen.add(2)
def own_data(client): client.x.mul_(1.01)
def other_data(client): client.y = client.y.clone()
def head(client): client.head = nn.Linear(2, 2)


CHANGES = {grow: "extra", count: "count", in_place: "table", entry: "table", append: "names", draw: "noise",
           array: "array", queue: "queue", dice: "dice", old_noise: "old_noise", see: "seen", own_data: "x",
           other_data: "y", head: "head"}


@pytest.mark.parametrize("how, name", CHANGES.items(), ids=lambda v: v if isinstance(v, str) else v.__name__)
@pytest.mark.parametrize("workers", WORKERS)
def test_whatever_changes_is_noticed_in_the_first_round(how, name, workers):
    kind = type("Keeper", (Keeper,), {"how": how})
    with pytest.raises(Undeclared, match=f"attribute '{name}'"):
        trial(tiny(kind, rounds=2), workers=workers)


def test_scratch_is_forgotten_after_the_answer():
    class Scratch(Client):
        scratch = ("half", "_quarter")

        def fit(self, msg):
            assert not hasattr(self, "half") and not hasattr(self, "_quarter")
            self.half, self._quarter = 0.5, 0.25
            return super().fit(msg)

    ended = trial(tiny(Scratch, rounds=3), workers=1)
    assert equal(ended.server.weights, trial(tiny(rounds=3), workers=1).server.weights)


def test_a_scratch_that_is_read_in_the_next_round_is_an_error_there():
    class Leaky(Client):
        scratch = ("_seen",)

        def fit(self, msg):
            self._seen = self._seen + 1 if msg.meta else 0
            return super().fit(msg)

    class Telling(Server):
        def send(self, id): return Msg(self.weights, {"round": self.round} if self.round else {})

    with pytest.raises(federated.TooFewReplies, match="no attribute '_seen'"):
        trial(tiny(Leaky, Telling, rounds=2, per_round=6), workers=1)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", ["seen", "_seen"])
def test_what_is_counted_from_round_to_round_and_not_declared_stops_the_run_in_the_first(name, workers):
    class Counting(Client):
        def fit(self, message):
            setattr(self, name, getattr(self, name, 0) + 1)
            return super().fit(message)

    said = f"changed its attribute '{name}' while it answered 'fit'.*add '{name}' to keeps.* or to scratch"
    with pytest.raises(Undeclared, match=said): trial(tiny(Counting, rounds=2), workers=workers)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_verb_that_is_not_declared_is_one_sentence_in_the_first_round(workers):
    class Mute(Client):
        verbs = ()

    said = r"\(Mute\) is asked for the verb 'fit', and declares verbs=\(\): add a method fit\(self, msg\)"
    with pytest.raises(Undeclared, match=said): trial(tiny(Mute), workers=workers)


def test_no_method_but_a_verb_is_called_from_afar():
    pool = ClientPool(tiny().client)
    for name in ("load", "state", "train", "loss", "__init__", "model"):
        assert isinstance(pool.serve(Call(0, 0, name, pack(Msg()), None)), Undeclared)


# ---- the pool

class Drawing(Client):
    "Draws from its generator, and fails when it is told to."
    verbs = ("fit", "draw")

    def draw(self, msg):
        value = torch.rand((), generator=self.generator)
        if msg.meta.get("fail"): raise RuntimeError("the disk is full")
        return Msg({"value": value})


def pool_and_ask():
    "A pool of drawing clients, who was made, and a function that asks client 0: the answer and its draw."
    made = []

    def make(id):
        made.append(id)
        return tiny(Drawing).client(id)

    pool = ClientPool(make)

    def ask(state, **meta):
        outcome = pool.serve(Call(0, 0, "draw", pack(Msg(meta=meta)), state))
        return outcome, None if isinstance(outcome, Failure) else unpack(outcome.data).tensors["value"].item()

    return pool, made, ask


def test_a_client_that_fails_half_way_is_made_anew_from_its_last_state():
    pool, made, ask = pool_and_ask()
    first, one = ask(None)
    failed, _ = ask(first.state, fail=True)
    assert failed.reason == "RuntimeError: the disk is full" and "in draw" in failed.trace
    assert not pool.clients
    second, two = ask(first.state)
    assert made == [0, 0]
    whole = tiny(Drawing).client(0).generator
    assert [one, two] == [torch.rand((), generator=whole).item() for _ in range(2)]


def test_a_desk_keeps_those_who_answered_last_and_makes_the_others_anew():
    made, states, draws = [], {}, {id: [] for id in range(4)}
    pool = ClientPool(lambda id: made.append(id) or tiny(Drawing).client(id), places=2)
    for id in (0, 1, 0, 2, 0, 1, 3, 3, 1):
        outcome = pool.serve(Call(0, id, "draw", pack(Msg()), states.get(id)))
        states[id] = outcome.state
        draws[id].append(unpack(outcome.data).tensors["value"].item())
        assert len(pool.clients) <= 2
    assert made == [0, 1, 2, 1, 3] and [*pool.clients] == [3, 1]
    for id, drawn in draws.items():
        whole = tiny(Drawing).client(id).generator
        assert drawn == [torch.rand((), generator=whole).item() for _ in drawn]


def test_a_desk_goes_back_to_the_state_that_a_call_names():
    pool, made, ask = pool_and_ask()
    first, one = ask(None)
    second, two = ask(first.state)
    assert made == [0] and one != two
    assert ask(first.state)[1] == two and made == [0]
    assert ask(None)[1] == one and made == [0, 0]


def test_a_client_that_fails_at_once_takes_part_later_as_if_for_the_first_time():
    pool, made, ask = pool_and_ask()
    ask(None, fail=True)
    whole = tiny(Drawing).client(0).generator
    assert ask(None)[1] == torch.rand((), generator=whole).item() and made == [0, 0]


# ---- proofs

METHODS = {"FedAvg": (Client, Server), "FedProx": (partial(FedProxClient, mu=0.3), Server),
           "local only": (Client, LocalOnly)}


@pytest.mark.parametrize("kind, server_kind", METHODS.values(), ids=METHODS)
def test_the_methods_of_the_chapter_are_proven(kind, server_kind):
    came = [row["what came of it"] for row in prove(tiny(kind, server_kind))]
    assert came.count("same bits") == 3 + (len(WORKERS) > 1)
    assert sum("all refused" in text for text in came) == 7
    assert not any(text.startswith("0 ") for text in came)


def test_a_client_that_draws_from_a_global_generator_is_proven(): prove(tiny(Global), kills=1, kinds=("nan",))


def test_the_chapters_own_experiment_is_proven():
    sizes = replace(fedavg.profiles["smoke"], clients=100, per_round=3, rounds=2, alpha=0.5)
    prove(FedAvgExperiment(sizes, 1), kills=1, kinds=("nan", "silent"))




class Global(Client):
    def loss(self, x, y): return super().loss(x, y) * torch.rand(()) * (np.random.rand() + random.random())


class GlobalServer(Server):
    def pick(self, ids, r): return sorted(random.sample(ids, self.per_round))


class Elsewhere(Client):
    rounds = {}

    def loss(self, x, y):
        self.rounds[self.id] = self.rounds.get(self.id, 0) + 1
        return super().loss(x, y) * (1 + self.rounds[self.id])


class OwnHead(Client):
    "Keeps a network of its own, which no message and no state ever holds."
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.head = build(partial(nn.Linear, 3, 3), 0)

    def loss(self, x, y): return nn.functional.cross_entropy(self.head(self.model(x)), y)

    def optimiser(self): return torch.optim.SGD([*self.model.parameters(), *self.head.parameters()], 0.1)


class Trusting(Server):
    def accept(self, verb, id, msg): accept_count(msg)

    def merge(self, replies):
        for id, msg in replies: pass


class HalfKept(Server):
    "A checkpoint of it lacks the pace that its next merge needs."
    pace = 0

    def merge(self, replies):
        old = self.weights
        super().merge(replies)
        self.pace += 1
        ahead = lambda name, t: t + self.pace * (t - old[name]) if t.is_floating_point() else t
        self.weights = {name: ahead(name, t) for name, t in self.weights.items()}


class Strict(Server):
    "Takes nothing in a round in which it has refused something."
    def begin(self, ids, r): self.round, self.cross = r, False

    def accept(self, verb, id, msg):
        try:
            if self.cross: raise Refused("not now")
            super().accept(verb, id, msg)
        except Refused:
            self.cross = True
            raise


class Flaky(Client):
    def fit(self, msg):
        if self.id == 2: raise RuntimeError("the disk is full")
        return super().fit(msg)


@dataclass(frozen=True)
class Unseeded(Tiny):
    "What it draws once is the same in every run of this object, and another in the next process."
    @cached_property
    def shift(self): return float(np.random.default_rng().random())

    def client(self, id):
        client = super().client(id)
        client.lr += self.shift
        return client


another = "the server's state is another: tensor '"
CHEATS = {"global server": (tiny(server_kind=GlobalServer), "drew from a global generator"),
          "class attribute": (tiny(Elsewhere), f"run once more, {another}"),
          "cached": (Unseeded(tiny().sizes, 3), f"run once more, {another}"),
          "own head": (tiny(OwnHead, per_round=6), f"with clients made anew for every call, {another}"),
          "trusting": (tiny(server_kind=Trusting), r"with (nan|shape|names|dtype) replies of some, that of "
                                                   r"client \d to 'fit' in round \d was struck and taken"),
          "strict": (tiny(server_kind=Strict),
                     r"with nan replies of some, (that of client \d to 'fit' in round \d was sound and "
                     r"refused|others were refused: round \d)"),
          "half kept": (tiny(server_kind=HalfKept), f"killed after checkpoint 1 and resumed, {another}"),
          "flaky": (tiny(Flaky), r"without any fault, client 2 gave no usable reply to 'fit' in round \d "
                                 r"\(RuntimeError: the disk is full\)")}


@pytest.mark.parametrize("experiment, why", CHEATS.values(), ids=CHEATS)
@pytest.mark.filterwarnings("ignore:round")
def test_what_is_no_function_of_its_seed_is_found_and_named(experiment, why):
    with pytest.raises(Unproven, match=why): prove(experiment)


def test_one_client_a_round_leaves_nothing_to_strike():
    with pytest.raises(UserError, match="at least two clients a round"):
        prove(tiny(per_round=1, rounds=12), kills=1)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_proof_in_which_no_client_comes_twice_would_show_nothing(rounds):
    experiment = Tiny(FedAvgSizes(clients=1000, per_round=2, rounds=rounds), 3)
    with pytest.raises(UserError, match="no client of this experiment is asked in two rounds"):
        prove(experiment)


def test_kills_are_checked():
    with pytest.raises(UserError, match="kills=0 must be at least 1"): prove(tiny(), kills=0)


def test_a_warning_of_a_client_is_no_failure():
    class Warning_(Client):
        def fit(self, msg):
            warnings.warn("lr is rather large", UserWarning)
            return super().fit(msg)

    with pytest.warns(UserWarning, match="rather large"): prove(tiny(Warning_), kills=1, kinds=())


def test_what_differs_is_named_beside_what_does_not():
    rows = [{"round": 1, "loss": float("nan")}, {"round": 2, "loss": 0.5}]
    other = [{"round": 1, "loss": float("nan")}, {"round": 2, "loss": 0.25}]
    assert engine._same(rows, [dict(row) for row in rows]) and not engine._same(rows, other)
    assert engine._difference(rows, other).startswith("entry 1: {'round': 2, 'loss': 0.5} against")
    assert engine._difference(rows, rows[:1]) == "2 against 1 entries"
    one, two = (pack(Msg({"a": torch.zeros(2), "b": torch.full((2,), value)})) for value in (1.0, 2.0))
    assert engine._difference(one, two) == "tensor 'b'"
    assert engine._difference(one, None).endswith("against None")


def test_a_fault_is_a_fault_whatever_the_reply_holds():
    half, nothing = {"w": torch.ones(2).half()}, {"e": torch.zeros(0), "w": torch.ones(2)}
    assert unpack(spoil(pack(Msg(half)), "dtype")).tensors["w"].dtype == torch.float32
    assert unpack(spoil(pack(Msg(nothing)), "nan")).tensors["w"].isnan().all()
    for reply in (half, nothing, {"i": torch.ones(2).long()}):
        for kind in ("nan", "shape", "names", "dtype", "garbage"):
            with pytest.raises(Refused): expect(unpack(spoil(pack(Msg(reply)), kind)), reply)


def test_a_fault_of_a_tenth_strikes_a_tenth_and_the_kinds_share_it():
    faults = Faults(5, silent=0.1, nan=0.2)
    struck = [faults.strike(r, "fit", id) for r in range(50) for id in range(100)]
    assert abs(struck.count("silent") / 5000 - 0.1) < 0.02 and abs(struck.count("nan") / 5000 - 0.2) < 0.02
    assert set(struck) == {"silent", "nan", None}


def test_proofs_leave_no_process_and_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    prove(tiny(rounds=2), kills=1, kinds=("nan",))
    assert not list(tmp_path.iterdir()) and not multiprocessing.active_children()


# ---- experiments

def test_an_experiment_travels_as_its_arguments_and_is_built_once_there():
    experiment = FedAvgExperiment(replace(fedavg.profiles["smoke"], alpha=0.5), 4)
    experiment.client(3)
    sent = pickle.dumps(experiment.client)
    assert len(sent) < 2000
    there, again = pickle.loads(sent), pickle.loads(sent)
    assert there.__self__ is again.__self__
    reply, same = (e.client(3).fit(e.server().send(3)) for e in (experiment, there.__self__))
    assert equal(reply.tensors, same.tensors)


def test_client_and_server_that_do_not_fit_are_told_apart_by_what_is_missing():
    with pytest.raises(federated.TooFewReplies, match=r"client \d: .*Missing key.*Unexpected key"):
        trial(tiny(Client, ScaffoldServer), workers=1)
    with pytest.raises(Undeclared, match="asked for the verb 'dance'"):
        trial(tiny(server_kind=Dancing), workers=1)


class Dancing(Server):
    def steps(self, ids, r): return [Step("dance", self.send, ids, self.merge)]


def test_a_line_must_serve():
    with pytest.raises(UserError, match=r"transport=.*does not serve calls; give InProcess\(make_client\)"):
        Federation(tiny().client, 6)


def test_the_line_that_suits(monkeypatch):
    make = tiny().client
    assert type(transport_for(make, 1)) is InProcess and transport_for(make, 1, threads=3).threads == 3
    monkeypatch.setattr(engine, "default_workers", lambda device=None: 1)
    assert type(transport_for(make)) is InProcess
    monkeypatch.setattr(engine, "_can_start", lambda device: True)
    three = transport_for(make, 3)
    assert type(three) is Workers and three.count == 3 and not three.processes
    monkeypatch.setattr(engine, "default_workers", lambda device=None: 4)
    assert transport_for(make).many.count == 4
    with pytest.raises(UserError, match="threads=2 .* use threads=1, or workers=1"): transport_for(make, threads=2)
    monkeypatch.setattr(engine, "_can_start", lambda device: False)
    with pytest.raises(UserError, match="workers=2 needs worker processes"): transport_for(make, 2)


def test_rows_are_kept_and_go_on_where_they_were_killed(tmp_path, monkeypatch, kill):
    monkeypatch.setenv("FEDBOOK_STAMP", "a stamp")
    experiment = tiny(rounds=3)
    numbers = lambda ended: {"accuracy": ended.history.last("accuracy"), "rounds": len(ended.history)}

    def row():
        results = Results("engine", "smoke", experiment.sizes, out=tmp_path)
        return kept_row(results, "FedAvg", experiment, numbers, workers=1)

    kill(row, 2)
    folder = tmp_path / "engine-smoke-0"
    assert len(list(folder.glob("FedAvg-*.safetensors"))) == 1
    assert row()["rounds"] == 3 and not list(folder.glob("*.safetensors"))
    monkeypatch.setattr(engine, "trial", None)
    assert row()["accuracy"] == trial(experiment, workers=1).history.last("accuracy")


@several
def test_a_line_of_workers_starts_again_after_it_was_closed():
    experiment = tiny()
    line = transport_for(experiment.client, 2)
    for _ in range(2):
        with Federation(line, experiment.ids) as federation: run(experiment.server(), federation, 1)
        assert not line.processes


@several
def test_a_line_that_nobody_uses_any_more_ends_its_processes():
    line = Workers(tiny().client, 2)
    line.open()
    processes = list(line.processes.values())
    assert all(process.is_alive() for process in processes)
    del line
    gc.collect()
    assert not any(process.is_alive() for process in processes)


@several
def test_a_line_that_could_not_start_all_its_processes_can_be_closed(monkeypatch):
    line, start = Workers(tiny().client, 2), Workers._start

    def start_one(self):
        if self.processes: raise OSError("no more processes")
        start(self)

    monkeypatch.setattr(Workers, "_start", start_one)
    with pytest.raises(OSError): line.open()
    process, = line.processes.values()
    line.close()
    assert not line.processes and not process.is_alive()


@several
def test_only_the_process_that_started_workers_ends_them():
    line = Workers(tiny().client, 2)
    line.open()
    child = multiprocessing.get_context("fork").Process(target=line.close)
    child.start()
    child.join()
    assert child.exitcode == 0 and all(process.is_alive() for process in line.processes.values())
    line.close()
    assert not line.processes


def test_what_a_checkpoint_is_about_is_a_json_value(tmp_path):
    with pytest.raises(UserError, match="about=.* is no JSON value"):
        Checkpoint(tmp_path / "c", {"ids": {1, 2}})
    assert Checkpoint(tmp_path / "c", ("FedAvg", 3)).about == ["FedAvg", 3]


class Other(Tiny): "Another experiment of the same shape."


@pytest.mark.parametrize("change, said", [
    (lambda e: replace(e, seed=7), "seed=3, this one has seed=7"),
    (lambda e: replace(e, sizes=replace(e.sizes, lr=9.0)), "sizes.lr=0.15, this one has sizes.lr=9.0"),
    (lambda e: replace(e, kind=FedProxClient), "kind=.*Client.*, this one has kind=.*FedProxClient"),
    (lambda e: Other(e.sizes, 3, "cpu", Client, Server), "experiment=Tiny, this one has experiment=Other")])
def test_a_checkpoint_of_another_experiment_is_not_continued(tmp_path, change, said):
    experiment = tiny(rounds=1)
    trial(experiment, Checkpoint(tmp_path / "c"), workers=1)
    before = (tmp_path / "c").read_bytes()
    with pytest.raises(UserError, match=f"{said}.*delete it or choose another path"):
        trial(change(experiment), Checkpoint(tmp_path / "c"), workers=1)
    assert (tmp_path / "c").read_bytes() == before
    longer = replace(experiment, sizes=replace(experiment.sizes, rounds=2))
    assert len(trial(longer, Checkpoint(tmp_path / "c"), workers=1).history) == 2


@dataclass(frozen=True)
class Given(Tiny):
    given: object = None


@pytest.mark.parametrize("one, other", [
    (partial(pow, 2), partial(pow, 3)), ((partial(pow, 2),), (partial(pow, 3),)), (abs, (abs,)),
    (tuple(range(100)), (*range(99), 5)), ({"f": abs, "n": 1}, {"f": abs, "n": 2}),
    (torch.zeros(2000), torch.cat([torch.zeros(1000), torch.ones(1), torch.zeros(999)]))])
def test_a_checkpoint_tells_experiments_apart_by_all_that_they_are_given(one, other):
    facts = [engine.facts_of(Given(tiny().sizes, 3, given=given)) for given in (one, other, copy.deepcopy(one))]
    assert facts[0] != facts[1] and facts[0] == facts[2]


@dataclass(frozen=True)
class Listed(Tiny):
    hidden: list = field(default_factory=lambda: [64, 32])


def test_an_experiment_with_a_list_travels():
    experiment = Listed(tiny().sizes, 3)
    for again in (pickle.loads(pickle.dumps(experiment)), copy.deepcopy(experiment)): assert again == experiment


@pytest.mark.parametrize("mods", [(), (Noise(0.01),), (Clip(1.0), Noise(0.01))], ids=str)
@pytest.mark.parametrize("name, t", [("bias", torch.zeros(5)), ("x/bias", torch.zeros(3)), ("weight", torch.ones(4))])
def test_a_reply_of_another_form_is_refused_with_mods_as_without(mods, name, t):
    class Odd(Client):
        def fit(self, msg):
            reply = super().fit(msg)
            return reply if self.id != 1 else Msg({**reply.tensors, name: t}, reply.meta)

    small, x, y = lambda: build(partial(nn.Linear, 4, 3), 0), torch.randn(9, 4), torch.arange(9) % 3

    def client(id):
        made = Odd(id, small(), x, y)
        made.mods = mods if id != 1 else ()
        return made

    with Federation(InProcess(client), 3, mods=mods) as federation, pytest.warns(UserWarning, match="2 of 3 clients"):
        federated.run(Server(small()), federation, 1)


def test_ids_and_seeds_of_numpy_are_whole_numbers(tmp_path):
    class Dropping(Client):
        def fit(self, msg): return Msg(msg.tensors, {"n": 1, "drawn": float(torch.rand(()))})

    small, x, y = lambda: build(partial(nn.Linear, 4, 3), 0), torch.randn(9, 4), torch.arange(9) % 3
    drawn = []
    for seed in (1, np.int64(1), np.int64(2)):
        client = lambda id: Dropping(id, small(), x, y, seed=seed)
        with Federation(InProcess(client), np.int64(2)) as federation:
            drawn += [msg.meta["drawn"] for id, msg in federation.exchange("fit", Msg(small().state_dict()), [0])]
    assert drawn[0] == drawn[1] != drawn[2]
    with Federation(InProcess(lambda id: Client(id, small(), x, y)), np.arange(2)) as federation:
        federated.run(Server(small()), federation, 1, Checkpoint(tmp_path / "c"))
    assert federation.ids == [0, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_clients_that_move_into_this_process_are_made_from_the_same_draws():
    many = Workers(lambda id: None, 2)
    thrifty = engine.Thrifty(many)
    torch.rand(1)
    thrifty._choose([0.0, 0.0], 5e-3)
    assert thrifty.one.pool.starts == many.starts
    thrifty.close()


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None])
def test_a_seed_that_is_no_seed_is_refused(seed):
    with pytest.raises(UserError, match="seed=.* must be a whole number of at least 0"): tiny(seed=seed)
    assert type(tiny(seed=np.int64(3)).seed) is int


def test_a_checkpoint_holds_all_that_a_run_needs(tmp_path):
    experiment, checkpoint = tiny(), Checkpoint(tmp_path / "c", "a run")
    ended = trial(experiment, checkpoint, workers=1)
    server, federation = experiment.server(), Federation(InProcess(experiment.client), experiment.ids)
    history = federated.History()
    assert checkpoint.restore(server, federation, history) == federated.Position(3)
    assert equal(server.weights, ended.server.weights) and federation.states == ended.federation.states
    assert federation.ledger.entries == ended.federation.ledger.entries and history.rows == ended.history.rows
    assert Checkpoint(tmp_path / "none").restore(server, federation, history) == federated.Position()


def test_a_server_learns_its_round_before_its_steps_and_again_after_a_kill(tmp_path, kill):
    told = []

    class Listening(Server):
        def begin(self, ids, r):
            super().begin(ids, r)
            told.append((r, len(ids)))

        def steps(self, ids, r):
            assert self.round == r
            return super().steps(ids, r)

    experiment = tiny(server_kind=Listening)
    kill(lambda: trial(experiment, engine.Checkpoint(tmp_path / "c"), workers=1), 1)
    trial(experiment, engine.Checkpoint(tmp_path / "c"), workers=1)
    assert told == [(0, 4), (1, 4), (2, 4)]
