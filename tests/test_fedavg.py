import itertools
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import nn

from fedbook.engine import federation as federated
from fedbook.engine import workers as engine
from fedbook.methods import fedavg
from fedbook.engine.workers import Checkpoint, Faults, Workers, transport_for, trial
from fedbook.engine.federation import (Client, Federation, FedProxClient, InProcess, LocalOnly, Server, Step,
                                       TooFewReplies, run, weighted_average)
from fedbook.methods.fedavg import FedAvgExperiment
from fedbook.engine.errors import UserError
from fedbook.engine.local import build, generator
from fedbook.kit.runs import chapters, code_cells
from fedbook.engine.wire import Msg, pack


WORKERS = [1, 2] if engine._can_start(None) else [1]
several = pytest.mark.skipif(len(WORKERS) == 1, reason="workers are forked processes, which PyTorch supports "
                                                       "on Linux without a GPU")


def net(): return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def data(id):
    g, n = generator(7, id), 12 + 5 * (id % 50)
    x = torch.randn(n, 4, generator=g)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def make(id, kind=Client, **options): return kind(id, build(net, 0), *data(id), seed=3, batch=8, **options)


def federate(rounds=3, workers=1, server=None, checkpoint=None, clients=6, kind=Client, options=None, **more):
    server = server or Server(build(net, 0), per_round=4, seed=1)
    line = transport_for(partial(make, kind=kind, **(options or {})), workers)
    with Federation(line, clients, **more) as federation:
        history = run(server, federation, rounds, checkpoint)
    return server, federation, history


def printed_by(script):
    "What a new process prints that runs `script`."
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    return done.stdout


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


# ---- weighted average

SEEDS_AND_WEIGHTS = st.lists(st.tuples(st.integers(0, 2**31), st.floats(0, 1e6)), min_size=1, max_size=6)
TOLERANCE = {"f": 1e-6, "h": 2e-3, "i": 0.5 + 1e-6}


@settings(max_examples=60, deadline=None)
@given(SEEDS_AND_WEIGHTS.filter(lambda drawn: sum(w for _, w in drawn) > 1e-3))
def test_weighted_average_against_numpy(drawn):
    states, weights = [], [w for _, w in drawn]
    for s, _ in drawn:
        rng = np.random.default_rng(s)
        states.append({"f": torch.tensor(rng.normal(size=(2, 3)), dtype=torch.float32),
                       "h": torch.tensor(rng.normal(size=3)).half(),
                       "i": torch.tensor(rng.integers(0, 1000, 2))})
    mean = weighted_average(iter(states), iter(weights))
    for name, t in mean.items():
        want = np.average([s[name].double().numpy() for s in states], axis=0, weights=weights)
        assert t.dtype == states[0][name].dtype
        np.testing.assert_allclose(t.double().numpy(), want, atol=TOLERANCE[name], rtol=1e-6)


@given(st.permutations(range(4)), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_average_of_equal_states_is_the_state(order, scale):
    state = build(net, 0).state_dict()
    assert equal(weighted_average([state] * 4, [scale * (k + 1) for k in order]), dict(state))


def test_weighted_average_refuses_what_is_no_mean():
    state = {"w": torch.ones(2)}
    for weights in ([-1.0], [math.nan], [math.inf], [0.0]):
        with pytest.raises(UserError): weighted_average([state], weights)
    with pytest.raises(UserError, match="names"): weighted_average([state, {"v": torch.ones(2)}], [1, 1])
    with pytest.raises(UserError, match="shapes"): weighted_average([state, {"w": torch.ones(1)}], [1, 1])
    with pytest.raises(ValueError): weighted_average([state, state], [1])
    with pytest.raises(UserError, match="at least one"): weighted_average([], [])


# ---- one round, by hand

def by_hand(server_weights, ids, generators, epochs, lr=0.1, mu=0.0):
    results = []
    for id in ids:
        model, (x, y) = build(net, 0), data(id)
        model.load_state_dict(server_weights)
        model.train()
        for _ in range(epochs):
            order = torch.randperm(len(y), generator=generators[id])
            for start in range(0, len(y) - 1, 8):
                i = order[start:] if start + 9 == len(y) else order[start:start + 8]
                loss = F.cross_entropy(model(x[i]), y[i])
                away = ((p - server_weights[k]).square().sum() for k, p in model.named_parameters())
                if mu: loss = loss + mu / 2 * sum(away)
                grads = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    for p, g in zip(model.parameters(), grads): p -= lr * g
        results.append((len(y), {k: v.clone() for k, v in model.state_dict().items()}))
    total = sum(n for n, _ in results)
    mean = {k: sum(n / total * s[k].double() for n, s in results) for k in server_weights}
    whole = lambda k, v: v if server_weights[k].is_floating_point() else v.round()
    return {k: whole(k, v).to(server_weights[k].dtype) for k, v in mean.items()}


@pytest.mark.parametrize("kind, mu", [(Client, 0.0), (FedProxClient, 0.5)])
def test_rounds_against_a_bare_loop(kind, mu):
    options = dict(epochs=2) | (dict(mu=mu) if mu else {})
    server, federation, _ = federate(rounds=3, kind=kind, options=options)
    weights = {k: v.clone() for k, v in build(net, 0).state_dict().items()}
    generators = {id: generator(3, id) for id in range(6)}
    for r in range(3): weights = by_hand(weights, server.pick(list(range(6)), r), generators, 2, mu=mu)
    for k in weights: torch.testing.assert_close(server.weights[k], weights[k], atol=2e-6, rtol=1e-5)
    assert server.weights["1.num_batches_tracked"].dtype == torch.int64


def test_huge_mu_pins_the_clients():
    far, near = (federate(1, kind=FedProxClient, options=dict(mu=mu, lr=0.001))[0] for mu in (0.0, 500.0))
    start = build(net, 0).state_dict()
    moved = lambda s: sum((s.weights[k] - start[k]).norm() for k, _ in net().named_parameters())
    assert moved(near) < 0.8 * moved(far)


# ---- messages, memory, order

def test_clients_never_share_memory():
    server = Server(build(net, 0), seed=0)
    with Federation(InProcess(make), 2) as federation:
        for id, reply in federation.exchange("fit", server.send, [0, 1], server.accept):
            before = {k: v.clone() for k, v in server.weights.items()}
            for t in reply.tensors.values(): t.fill_(7)
            assert equal(before, server.weights)


def test_every_byte_is_in_the_ledger():
    server, federation, history = federate(rounds=2)
    down = Msg(server.weights).nbytes
    assert federation.ledger.total(way="down") == 2 * 4 * down == history.last("down")
    assert len(federation.ledger.where(way="up", verb="fit")) == 8


@several
@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_bits(workers):
    faults = Faults(seed=6, silent=0.1, crash=0.1, nan=0.1)
    one, many = (federate(4, workers=w, faults=faults) for w in (1, workers))
    assert equal(one[0].weights, many[0].weights)
    assert one[1].ledger.entries == many[1].ledger.entries
    assert one[1].ledger.absent == many[1].ledger.absent and one[1].ledger.absent
    assert one[1].states == many[1].states and one[2].rows == many[2].rows


@several
def test_replies_come_in_the_order_asked_and_no_more_than_the_window_wait():
    class Slow(Client):
        def fit(self, msg):
            time.sleep(0.2 if self.id == 0 else 0)
            open(f"{folder}/{self.id}", "w").close()
            return super().fit(msg)

    import tempfile
    line = Workers(partial(make, kind=Slow), 2)
    with tempfile.TemporaryDirectory() as folder, Federation(line, 40) as federation:
        server, seen = Server(build(net, 0)), []
        for id, _ in federation.exchange("fit", server.send, list(range(40))):
            seen.append(id)
            assert len(os.listdir(folder)) <= len(seen) + 2 * 8
    assert seen == list(range(40))


@several
def test_the_call_that_took_longest_the_last_time_starts_first():
    class Noting(Client):
        def fit(self, msg): return Msg({}, {"begun": time.monotonic()})

    line = Workers(partial(make, kind=Noting), 1)
    with Federation(line, 6) as federation:
        ask = lambda ids: list(federation.exchange("fit", Server(build(net, 0)).send, ids))
        ask([0, 1, 2, 3])
        assert line.took.keys() == {("fit", id) for id in (0, 1, 2, 3)}
        line.took = {("fit", id): seconds for id, seconds in enumerate((2, 4, 1, 3))}
        replies = ask([0, 1, 2, 3, 4, 5])
    assert [id for id, _ in replies] == [0, 1, 2, 3, 4, 5]
    assert sorted(range(6), key=lambda id: replies[id][1].meta["begun"]) == [4, 5, 1, 3, 0, 2]


def test_one_exchange_at_a_time():
    for workers in WORKERS:
        with Federation(transport_for(make, workers), 6) as federation:
            server = Server(build(net, 0))
            replies = federation.exchange("fit", server.send, [0, 1, 2])
            next(replies)
            with pytest.raises(RuntimeError, match="still open"):
                next(federation.exchange("fit", server.send, [5]))
            replies.close()
            assert [id for id, _ in federation.exchange("fit", server.send, [5, 4])] == [5, 4]
            with pytest.raises(UserError, match="names a client twice"):
                next(federation.exchange("fit", server.send, [1, 1]))


@several
def test_a_merge_that_fails_leaves_the_federation_usable():
    class Failing(Server):
        def merge(self, replies):
            for _ in replies: raise ZeroDivisionError

    with Federation(transport_for(make, 2), 6) as federation:
        # `kept` holds the traceback, and so the exchange that was left open
        with pytest.raises(ZeroDivisionError) as kept: run(Failing(build(net, 0)), federation, 1)
        before = len(federation.ledger.where(way="up"))
        run(Server(build(net, 0), seed=1), federation, 1)
    assert kept.tb and [e.client for e in federation.ledger.where(way="up")[before:]] == list(range(6))


def test_a_merge_that_reads_nothing_still_asks_everybody():
    class Deaf(Server):
        def merge(self, replies): pass

    _, federation, _ = federate(1, server=Deaf(build(net, 0)))
    assert len(federation.ledger.where(way="up")) == 6
    with pytest.raises(TooFewReplies): federate(1, server=Deaf(build(net, 0)), faults=Faults(silent=1.0))


@pytest.mark.parametrize("options, why", [
    (dict(workers=0), "workers=0"), (dict(workers=1.5), "workers=1.5"), (dict(threads=0), "threads=0"),
    (dict(workers=2, threads=2), "threads=2|workers=2")])
def test_workers_and_threads_are_checked(options, why):
    with pytest.raises(UserError, match=why): transport_for(make, **options)


@several
def test_a_worker_killed_while_idle_costs_nothing():
    server = Server(build(net, 0))
    with Federation(transport_for(make, 2), 4) as federation:
        list(federation.exchange("fit", server.send, [0, 1]))
        victim = next(iter(federation.transport.processes.values()))
        victim.kill()
        victim.join()
        assert [id for id, _ in federation.exchange("fit", server.send, [0, 1, 2, 3])] == [0, 1, 2, 3]


@several
def test_stopping_in_the_middle_of_an_exchange_leaves_nothing_behind():
    server = Server(build(net, 0))
    with Federation(transport_for(make, 2), 6) as federation:
        for id, _ in federation.exchange("fit", server.send, list(range(6))): break
        replies = [id for id, _ in federation.exchange("fit", server.send, [5, 4])]
    assert replies == [5, 4]


def test_idle_clients_cost_nothing():
    import resource
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    federation = Federation(InProcess(make), 1_000_000)
    assert list(federation.exchange("fit", Server(build(net, 0)).send, [999_999]))[0][0] == 999_999
    assert len(federation.transport.pool.clients) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


# ---- faults

@pytest.mark.parametrize("kind, why", [
    ("silent", "did not answer"), ("crash", "injected crash"), ("nan", "not finite"), ("shape", "has shape"),
    ("names", "wrong names"), ("dtype", "has dtype"), ("garbage", "not a message")])
def test_each_kind_of_bad_reply_is_left_out(kind, why):
    faults = Faults(seed=2, **{kind: 0.5})
    server = Server(build(net, 0), per_round=8, seed=1)
    _, federation, _ = federate(2, faults=faults, clients=8, server=server)
    struck = [(r, id) for r in range(2) for id in range(8) if faults.strike(r, "fit", id) == kind]
    assert 0 < len(struck) < 16
    assert [(row["round"], row["client"]) for row in federation.ledger.absent] == struck
    assert all(why in row["reason"] for row in federation.ledger.absent)
    assert all(torch.isfinite(t).all() for t in server.weights.values())


def test_the_round_averages_exactly_the_rest():
    faults = Faults(seed=2, nan=0.5)
    server, federation, _ = federate(1, faults=faults, server=Server(build(net, 0), seed=1))
    rest = [id for id in range(6) if not faults.strike(0, "fit", id)]
    want = by_hand(build(net, 0).state_dict(), rest, {id: generator(3, id) for id in rest}, 1)
    for k in want: torch.testing.assert_close(server.weights[k], want[k], atol=2e-6, rtol=1e-5)


class Liar(Client):
    def fit(self, msg):
        reply = super().fit(msg)
        reply.meta["n"] = {0: -5, 1: math.nan, 2: 1e308, 3: "many", 4: 10**400}.get(self.id, reply.meta["n"])
        if self.id == 5: raise RuntimeError("the disk is full")
        return reply


@pytest.mark.parametrize("workers", WORKERS)
def test_lies_about_n_and_exceptions_are_left_out(workers):
    with pytest.warns(UserWarning, match="1 of 7 clients gave a usable reply"):
        server, federation, _ = federate(1, clients=7, kind=Liar, workers=workers,
                                         server=Server(build(net, 0)))
    reasons = [row["reason"] for row in federation.ledger.absent]
    assert all("not a positive number" in reason for reason in reasons[:5])
    assert "the disk is full" in reasons[5]
    assert all(torch.isfinite(t).all() for t in server.weights.values())


class Boasting(Client):
    def fit(self, msg):
        reply = super().fit(msg)
        return Msg(reply.tensors, {"n": {1: 201, 2: 200}.get(self.id, reply.meta["n"])})


def test_who_claims_more_pictures_than_a_client_may_is_left_out():
    with pytest.warns(UserWarning, match="n=201 is more than the 200 pictures that a client may claim"):
        _, federation, _ = federate(1, clients=4, kind=Boasting, server=Server(build(net, 0)), most=200)
    assert [row["client"] for row in federation.ledger.absent] == [1]


def test_a_run_that_is_done_begins_no_further_round(tmp_path):
    checkpoint, seen = Checkpoint(tmp_path / "c"), []
    def go_on():
        server = Server(build(net, 0), per_round=4, seed=1)
        with Federation(InProcess(make), 6) as federation:
            return run(server, federation, 5, checkpoint, done=lambda history: seen.append(1) or len(history) == 2)
    assert len(go_on()) == 2 == len(go_on()) and len(seen) == 4


class Mortal(Client):
    def fit(self, msg):
        if self.id == 1: os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(msg)


@several
def test_a_worker_that_dies_costs_one_reply():
    with pytest.warns(UserWarning, match="worker process died"):
        _, federation, _ = federate(2, clients=4, kind=Mortal, workers=2, server=Server(build(net, 0)))
    assert [row["client"] for row in federation.ledger.absent] == [1, 1]


@pytest.mark.parametrize("workers", WORKERS)
def test_too_few_replies_stop_the_run_and_change_nothing(workers, tmp_path):
    checkpoint = Checkpoint(tmp_path / "run.safetensors")
    server, _, _ = federate(1, workers=workers, checkpoint=checkpoint)
    before, kept = {k: v.clone() for k, v in server.weights.items()}, checkpoint.path.read_bytes()
    why = r"round 1, fit: 0 of 4 .* at least 3 are needed \(client \d: .*injected crash"
    with pytest.raises(TooFewReplies, match=why):
        federate(3, workers=workers, server=server, checkpoint=checkpoint, faults=Faults(crash=1.0),
                 min_replies=3)
    assert equal(server.weights, before) and checkpoint.path.read_bytes() == kept
    resumed, _, history = federate(3, workers=workers, checkpoint=checkpoint)
    whole, _, _ = federate(3)
    assert equal(resumed.weights, whole.weights) and len(history) == 3


def test_a_bug_shows_its_traceback():
    class Buggy(Client):
        def loss(self, x, y): return self.no_such_thing

    with pytest.raises(TooFewReplies) as caught: federate(1, kind=Buggy)
    assert "no_such_thing" in str(caught.value) and "in loss" in caught.value.__notes__[0]


# ---- checkpoints

class TwoSteps(Server):
    "A server with a second verb whose replies steer it, so that a run can be stopped between the two."

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.spread = 0.0

    def steps(self, ids, r):
        return [*super().steps(ids, r), Step("norm", lambda id: Msg(self.weights), ids[:2], self.hear)]

    def accept(self, verb, id, msg):
        if verb == "fit": super().accept(verb, id, msg)

    def hear(self, replies):
        norms = [msg.tensors["norm"].item() for _, msg in replies]
        if self.stop_at == len(norms): raise KeyboardInterrupt
        self.spread += sum(norms)
        wider = lambda v: v * (1 + 1e-3 * self.spread) if v.is_floating_point() else v
        self.weights = {k: wider(v) for k, v in self.weights.items()}

    def state(self): return Msg(dict(self.weights), {"spread": self.spread})

    def load(self, msg): self.weights, self.spread = msg.tensors, msg.meta["spread"]

    stop_at = None


class Measuring(Client):
    verbs = ("fit", "norm")

    def norm(self, msg):
        noise = torch.rand((), generator=self.generator)
        return Msg({"norm": sum(t.float().norm() for t in msg.tensors.values()) + noise})


def test_stopped_between_two_steps_it_resumes_bit_exact(tmp_path):
    make_server = lambda: TwoSteps(build(net, 0), per_round=4, seed=1)
    whole, federation, history = federate(3, server=make_server(), kind=Measuring)
    stopped, checkpoint = make_server(), Checkpoint(tmp_path / "c")
    stopped.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        federate(3, server=stopped, kind=Measuring, checkpoint=checkpoint)
    resumed, again, rows = federate(3, server=make_server(), kind=Measuring, checkpoint=checkpoint)
    assert equal(resumed.weights, whole.weights) and resumed.spread == whole.spread
    assert rows.rows == history.rows and again.states == federation.states
    assert [e for e in again.ledger.entries] == federation.ledger.entries


PLACES = {"fit": Client, "merge": Server, "value": federated.Mean, "fsync": os, "replace": os}


def exit_code(workers, path, place=None, count=0):
    """That of a process which federates, and is killed when it, or a worker of it, comes to `place` for the
    `count`-th time."""
    def job():
        main, calls = os.getpid(), itertools.count(1)
        if place:
            go_on = getattr(PLACES[place], place)
            def go_on_or_die(*args, **kwargs):
                if next(calls) == count: os.kill(main, signal.SIGKILL)
                return go_on(*args, **kwargs)
            setattr(PLACES[place], place, go_on_or_die)
        server, _, _ = federate(rounds=12, workers=workers, checkpoint=Checkpoint(path, "killed"))
        torch.save(server.weights, path + ".final")

    process = multiprocessing.get_context("fork").Process(target=job)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("workers", WORKERS)
def test_kill_9_at_any_moment_then_resume_gives_the_same_bits(tmp_path, workers):
    path = str(tmp_path / "run.safetensors")
    for place, count in (("fit", 2 * workers), ("merge", 2), ("replace", 2), ("value", 2), ("fsync", 3)):
        assert exit_code(workers, path, place, count) == -signal.SIGKILL
    assert not os.path.exists(path + ".final") and exit_code(workers, path) == 0
    whole, _, _ = federate(rounds=12, server=Server(build(net, 0), per_round=4, seed=1))
    assert equal(torch.load(path + ".final"), whole.weights)


@several
def test_workers_end_with_their_parent(tmp_path):
    script = f"""
    import sys, os; sys.path.insert(0, {os.path.dirname(__file__)!r})
    from test_fedavg import *
    server = Server(build(net, 0))
    federation = Federation(transport_for(make, 2), 4)
    list(federation.exchange("fit", server.send, [0, 1]))
    print(*[p.pid for p in federation.transport.processes.values()], flush=True)
    os.kill(os.getpid(), 9)
    """
    out = printed_by(script)
    pids = [int(p) for p in out.split()]
    assert len(pids) == 2
    def alive(pid):
        try: return open(f"/proc/{pid}/stat").read().split()[2] != "Z"
        except OSError: return False
    for _ in range(100):
        if not any(map(alive, pids)): break
        time.sleep(0.1)
    assert not any(map(alive, pids))


HARMS = {"cut": lambda b: b[:len(b) // 2], "empty": lambda b: b"",
         "one bit": lambda b: b[:-40] + bytes([b[-40] ^ 1]) + b[-39:],
         "another place": lambda b: b.replace(b'"place": [1, 0', b'"place": [0, 0')}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_damaged_checkpoint_is_one_sentence(tmp_path, harm):
    checkpoint = Checkpoint(tmp_path / "c", {"lr": 0.1})
    federate(1, checkpoint=checkpoint)
    checkpoint.path.write_bytes(harm(checkpoint.path.read_bytes()))
    with pytest.raises(UserError, match="damaged"): federate(1, checkpoint=checkpoint)


def test_a_checkpoint_makes_its_folder(tmp_path):
    federate(1, checkpoint=Checkpoint(tmp_path / "a" / "b" / "c"))
    assert (tmp_path / "a" / "b" / "c").exists()


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    federate(1, checkpoint=Checkpoint(tmp_path / "c", {"lr": 0.1}))
    with pytest.raises(UserError, match="another run"):
        federate(1, checkpoint=Checkpoint(tmp_path / "c", {"lr": 0.2}))


def test_local_only_averages_nothing(tmp_path):
    server = LocalOnly(build(net, 0))
    federate(2, server=server, clients=3, checkpoint=Checkpoint(tmp_path / "c"))
    for id in range(3):
        alone, _, _ = federate(2, clients=[id], server=Server(build(net, 0)))
        assert equal(server.own[id], alone.weights)
    again = LocalOnly(build(net, 0))
    again.load(server.state())
    assert again.own.keys() == server.own.keys() and equal(again.weights, server.weights)
    assert all(equal(again.own[k], server.own[k]) for k in again.own)


# ---- the chapter's own federation

def test_client_and_server_are_functions_of_their_arguments():
    sizes = replace(fedavg.profiles["smoke"], alpha=0.5)
    replies = []
    for _ in range(2):
        experiment = FedAvgExperiment(sizes, 4)
        replies.append(experiment.client(3).fit(experiment.server().send(3)))
    assert equal(replies[0].tensors, replies[1].tensors)
    other = FedAvgExperiment(sizes, 5)
    assert not equal(replies[0].tensors, other.client(3).fit(other.server().send(3)).tensors)


def test_a_second_trial_starts_where_the_first_one_did():
    experiment = FedAvgExperiment(replace(fedavg.profiles["smoke"], rounds=1))
    first, second = (trial(experiment).server.weights for _ in range(2))
    assert equal(first, second)


def test_global_random_state_is_left_alone():
    before = torch.random.get_rng_state()
    federate(1)
    assert torch.equal(before, torch.random.get_rng_state())


@several
def test_workers_share_what_pytorch_imports_late():
    script = f"""
    import sys
    sys.path.append({os.path.dirname(__file__)!r})
    from test_fedavg import *

    class Counting(Client):
        def fit(self, msg):
            before = set(sys.modules)
            reply = super().fit(msg)
            return Msg({{}}, {{"imported": sorted(set(sys.modules) - before), "n": reply.meta["n"]}})

    with Federation(Workers(partial(make, kind=Counting), 2), 2) as federation:
        replies = dict(federation.exchange("fit", Msg(build(net, 0).state_dict()), [0, 1]))
    print([reply.meta["imported"] for reply in replies.values()])
    """
    out = printed_by(script)
    assert out.strip() == "[[], []]"


class Large(Client):
    def train(self): raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("workers", WORKERS)
def test_too_little_memory_here_is_no_missing_client(workers):
    "It would be another result on another machine; the run stops."
    with pytest.raises(torch.OutOfMemoryError): federate(1, workers, kind=Large)


def test_a_pick_is_that_of_the_numbers_themselves():
    for n, count in ((1, 1), (10, 3), (1000, 1000), (20_000, 10), (20_000, 900)):
        server, ids = Server(net(), count, seed=4), list(range(7, n + 7))
        wanted = np.random.default_rng([4, 2]).choice(ids, count, replace=False).tolist()
        picked = server.pick(ids, 2)
        assert picked == sorted(wanted) and {*map(type, picked)} == {int}


# ---- the chapter trains what its sizes say

CONTEST = ("#| hide\nfrom dataclasses", "sizes, device = choose(", "class NovaClient(", "def zeros(", "class Scaffold(",
           "def contest(")


def contest(tmp_path, **changes):
    "The experiments of methods/fedavg by their rows, as its own cells make them at smoke with `changes`."
    rows, names = {}, {**vars(fedavg), "changes": changes, "seed": 0}
    class Rows:
        def __init__(self, *_): pass
        def row(self, what, seed, measure): rows[what] = measure.args[0]
    names |= dict(profile="smoke", device="cpu", out=str(tmp_path))
    cells = [source for source in code_cells(chapters()["methods/fedavg"]) if source.startswith(CONTEST)]
    assert len(cells) == len(CONTEST)
    for source in cells:
        exec(source, names)
        names["Results"] = Rows
    return rows


def after_a_round(experiment):
    server = experiment.server()
    run(server, Federation(InProcess(experiment.client), experiment.ids), 1)
    return pack(server.state())


def test_mu_adds_one_row_to_the_chapter_and_leaves_the_others_as_they_are(tmp_path):
    plain, more = contest(tmp_path), contest(tmp_path, mu="1")
    assert list(more) == [*plain, "FedProx"]
    assert all(after_a_round(more[what]) == after_a_round(plain[what]) for what in plain)
    assert isinstance(more["FedProx"].client(0), FedProxClient)
    assert after_a_round(more["FedProx"]) != after_a_round(more["FedAvg"])


def test_mu_does_not_replace_a_client_that_was_handed_in():
    sizes = replace(fedavg.profiles["smoke"], mu=1.0)
    assert type(FedAvgExperiment(sizes, 0).client(0)) is FedProxClient
    class Own(Client): pass
    assert type(FedAvgExperiment(sizes, 0, client_kind=Own).client(0)) is Own


def test_the_chapter_trains_with_the_lr_the_alpha_and_the_rounds_of_the_command(tmp_path):
    usual, changed = contest(tmp_path), contest(tmp_path, lr="0.2", alpha="5", rounds="4")
    for what, experiment in changed.items():
        assert (experiment.client(0).lr, experiment.rounds) == (0.2, 4)
        assert list(map(len, experiment.parts)) != list(map(len, usual[what].parts))
    assert {(e.client(0).lr, e.sizes.alpha, e.rounds) for e in usual.values()} == {(0.05, 0.1, 2)}
