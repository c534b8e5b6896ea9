"""Clients that hang, die, boast or flood: the run goes on, alike with one and two workers, and says why."""
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest
import torch

from fedbook.engine.errors import UserError
from fedbook.engine.federation import Answer, Client, Federation, InProcess, Server, TooFewReplies, run
from fedbook.engine.local import build
from fedbook.engine.show import one_line
from fedbook.engine.wire import Ledger, Msg, Refused, pack, unpack
from fedbook.engine.workers import Workers, transport_for, trial
from test_engine import tiny
from test_fedavg import WORKERS, equal, make, net, several

both = pytest.mark.parametrize("workers", WORKERS)


class Unruly(Client):
    "Its client 1 does `what`, a function, in place of an answer."
    what = None

    def fit(self, msg):
        if self.id != 1: return super().fit(msg)
        return type(self).what(super().fit(msg))


def doing(act): return type("Doing", (Unruly,), {"what": staticmethod(act)})


def served(kind, workers=1, patience=3600.0, rounds=1, **options):
    "Server and federation after `rounds` with the clients 0 to 3 of `kind`, and how long they took."
    server, begun = Server(build(net, 0)), time.monotonic()
    line = transport_for(lambda id: make(id, kind), workers, patience=patience)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Federation(line, 4, **options) as federation: run(server, federation, rounds)
    return server, federation, time.monotonic() - begun


def until(true, seconds=60.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def reasons(federation): return [(row["client"], row["reason"]) for row in federation.ledger.absent]


# ---- those that hang

def stop_itself(reply): os.kill(os.getpid(), signal.SIGSTOP)


@several
@pytest.mark.parametrize("act", [lambda reply: time.sleep(600), stop_itself], ids=["sleeps", "is stopped"])
def test_a_client_that_hangs_is_given_up_with_its_worker(act):
    server, federation, took = served(doing(act), 2, patience=3.0, rounds=1)
    assert reasons(federation) == [(1, "no answer within 3 s, so its worker process was ended")]
    left, _, _ = served(doing(lambda reply: 1 / 0), 1)
    assert equal(server.weights, left.weights) and took < 60


@several
def test_a_worker_that_was_stopped_takes_no_call_and_is_closed():
    line = Workers(make, 2, patience=0.3)
    with Federation(line, 4) as federation:
        run(Server(build(net, 0)), federation, 1)
        for process in line.processes.values(): os.kill(process.pid, signal.SIGSTOP)
        large = Msg({"w": torch.rand(10**6)})
        with pytest.raises(TooFewReplies, match="no answer within 0.3 s"):
            list(federation.exchange("fit", large, [0, 1]))
        run(Server(build(net, 0)), federation, 1)
        for process in line.processes.values(): os.kill(process.pid, signal.SIGSTOP)
        begun = time.monotonic()
    assert not line.processes and time.monotonic() - begun < 60


def test_in_this_process_a_warning_names_who_hangs():
    def about_one(): return [w for w in said if "client 1" in str(w.message)]

    def hang(reply):
        until(about_one)
        return reply

    match = "round 0: client 1 has been at 'fit' for 0.1 s .* interrupt the run"
    with pytest.warns(UserWarning, match=match) as said:
        with Federation(InProcess(lambda id: make(id, doing(hang)), patience=0.1), 4) as federation:
            run(Server(build(net, 0)), federation, 1)
    assert len(about_one()) == 1 and not federation.ledger.absent
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        served(Client, patience=600.0)


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from test_unruly import *
from fedbook.engine.workers import Checkpoint

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it

def late(reply):
    open({mark!r}, "a").close()
    time.sleep(600)

class Late(doing(late)):
    rounds = 0
    keeps = ("generator", "rounds")
    def fit(self, msg):
        self.rounds += 1
        return super().fit(msg) if self.rounds == 2 else Client.fit(self, msg)

print("up", flush=True)
line = transport_for(lambda id: make(id, Late), {workers})
with Federation(line, 4) as federation:
    run(Server(build(net, 0)), federation, 3, Checkpoint({path!r}))
"""


@both
def test_an_interrupt_ends_a_run_that_hangs_and_leaves_a_checkpoint(workers, tmp_path):
    from fedbook.engine.workers import Checkpoint
    mark, path = tmp_path / "mark", tmp_path / "c.safetensors"
    script = textwrap.dedent(SCRIPT).format(tests=os.path.dirname(__file__), mark=str(mark), workers=workers,
                                            path=str(path))
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    until(mark.exists)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1] and process.returncode
    kept, whole = Checkpoint(path), Server(build(net, 0))
    with Federation(InProcess(make), 4) as federation: run(whole, federation, 1)
    server = Server(build(net, 0))
    with Federation(InProcess(make), 4) as federation: run(server, federation, 1, kept)
    assert equal(server.weights, whole.weights)


@several
def test_a_worker_ends_with_a_parent_that_is_killed_while_a_client_hangs(tmp_path):
    mark = tmp_path / "mark"
    script = textwrap.dedent(SCRIPT).format(tests=os.path.dirname(__file__), mark=str(mark), workers=2,
                                            path=str(tmp_path / "c"))
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    until(mark.exists)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.kill()
    process.wait()
    until(lambda: not any(Path("/proc", child, "cmdline").exists() and Path("/proc", child, "cmdline").read_bytes()
                          for child in children))


@several
def test_any_length_of_patience_will_do():
    for patience in (math.inf, 1e300, sys.maxsize, 10):
        _, federation, _ = served(Client, 2, patience=patience)
        assert not federation.ledger.absent


@pytest.mark.parametrize("patience", [0, -1, "long", None, math.nan])
def test_patience_is_a_number_of_seconds(patience):
    for kind in (InProcess, Workers)[:len(WORKERS)]:
        with pytest.raises(UserError, match="patience=.* must be a number of seconds above 0"):
            kind(make, patience=patience)


# ---- those that die

class Unprintable(Exception):
    def __str__(self): raise RuntimeError


def raising(error):
    def act(reply): raise error
    return doing(act)


@both
@pytest.mark.parametrize("error, reason", [
    (SystemExit(3), "SystemExit: 3"), (GeneratorExit(), "GeneratorExit"),
    (Unprintable(), "Unprintable: (a Unprintable that cannot be printed)"),
    (ValueError("x" * 10**6), f"ValueError: {'x' * 499}…"[:499] + "…"),
    (ValueError("red \x1b[31m and \ud800"), "ValueError: red ?[31m and ?")], ids=range(5))
def test_whatever_a_client_raises_costs_its_reply_alone(error, reason, workers):
    _, federation, _ = served(raising(error), workers)
    assert reasons(federation) == [(1, reason)]
    json.loads(federation.ledger.to_json())


@both
def test_what_is_no_message_is_said(workers):
    _, federation, _ = served(doing(lambda reply: {}), workers)
    assert reasons(federation) == [(1, "UserError: 'fit' of Doing answered a dict, expected a Msg")]


@several
@pytest.mark.parametrize("act, reason", [
    (lambda reply: os._exit(3), "its worker process died with exit code 3"),
    (lambda reply: os.kill(os.getpid(), signal.SIGTERM), "its worker process died of SIGTERM"),
    (lambda reply: os.kill(os.getpid(), signal.SIGKILL), "its worker process died of SIGKILL (out of memory?)"),
    (lambda reply: os.kill(os.getpid(), 36), "its worker process died of signal 36")],
    ids=["exit", "SIGTERM", "SIGKILL", "36"])
def test_a_death_is_a_refusal_that_says_how(act, reason):
    _, federation, _ = served(doing(act), 2)
    assert reasons(federation) == [(1, reason)]


@both
def test_a_client_that_cannot_be_made_ends_the_run_with_the_sentence_of_its_maker(workers):
    def make_none(id): raise UserError(f"clients={id} are too many")
    with Federation(transport_for(make_none, workers), 4) as federation:
        with pytest.raises(UserError, match="^client 0 cannot be made: clients=0 are too many$"):
            run(Server(build(net, 0)), federation, 1)


def test_any_text_becomes_one_short_line():
    assert one_line("a\n b\t\x00c") == "a b ?c"
    assert [len(one_line("x" * n)) for n in (499, 500, 501)] == [499, 500, 500]


# ---- those that boast

def claiming(n): return doing(lambda reply: Msg(reply.tensors, {"n": n}))


@both
def test_nobody_counts_for_more_than_ten_times_the_median(workers):
    server = Server(build(net, 0))
    line = transport_for(lambda id: make(id, claiming(10**6)), workers)
    with Federation(line, 6) as federation:
        with pytest.warns(UserWarning, match="client 1 claims 1,000,000 and counts for 270") as said:
            run(server, federation, 1)
    assert len(said) == 1 and "outweigh=10 times the median" in str(said[0].message)
    with Federation(InProcess(lambda id: make(id, claiming(270))), 6) as federation:
        run(honest := Server(build(net, 0)), federation, 1)
    assert equal(server.weights, honest.weights)


def heard(claims, outweigh=10.0):
    "How many pictures each of the clients counts for that make these `claims`."
    class Line:
        def serve(self, calls):
            for call in calls:
                yield call, Answer(pack(Msg(meta={"n": claims[call.id]})), b"")
        def close(self): pass

    with warnings.catch_warnings(record=True):
        with Federation(Line(), len(claims), outweigh=outweigh) as federation:
            return [msg.meta["n"] for _, msg in federation.exchange("fit", Msg(), federation.ids)]


def test_honest_sizes_stay_and_the_place_of_a_liar_does_not_matter():
    for claims in ([5, 90], [20, 30, 250], [1] * 3 + [9, 10], list(range(1, 40)), []):
        assert heard(claims) == claims
    for place in range(9):
        claims = [40, 60] * 4
        claims.insert(place, 10**6)
        assert heard(claims, math.inf) == claims
        counted = heard(claims)
        assert 400 <= counted.pop(place) <= 600 and counted == [40, 60] * 4
    assert heard([0, True, 50, "many", 10**6, 50])[:4] == [0, True, 50, "many"]


def test_what_belongs_to_a_boast_is_cut_with_it():
    from fedbook.methods.heads import owned
    assert owned({"n": 50, "counts": [20, 30]}) == [20, 30]
    assert owned({"n": 50, "claimed": 10**6, "counts": [10**6, 0]}) == [50, 0]
    reply = lambda reply: Msg(reply.tensors, {"n": 30, "claimed": 3})
    with Federation(InProcess(lambda id: make(id, doing(reply))), 2) as federation:
        assert all("claimed" not in msg.meta for _, msg in federation.exchange("fit", Msg(net().state_dict()), [0, 1]))


@pytest.mark.parametrize("outweigh", [0, 0.5, -1, "all", math.nan])
def test_outweigh_is_a_number_of_at_least_one(outweigh):
    with pytest.raises(UserError, match="outweigh=.* must be a number of at least 1"):
        Federation(InProcess(make), 4, outweigh=outweigh)


def test_a_trial_hands_both_on():
    boast = tiny(claiming(10**6), per_round=6, rounds=1)
    with pytest.warns(UserWarning, match="counts for"): capped = trial(boast, workers=1)
    believed = trial(boast, workers=1, outweigh=math.inf)
    assert not equal(capped.server.weights, believed.server.weights)


# ---- those that flood

def test_a_mask_of_zeros_is_refused_before_it_becomes_tensors():
    small = pack(Msg({"w": torch.zeros(10**6)}))
    assert unpack(small).tensors["w"].numel() == 10**6
    with pytest.raises(Refused, match="would take 4 MB, more than the 3 MB allowed"): unpack(small, 3e6)
    bits = pack(Msg({"w": torch.zeros(10**6, dtype=torch.bool)}))
    assert unpack(bits, 1e6) and pytest.raises(Refused, unpack, bits, 1e6 - 1)
    dense = pack(Msg({"w": torch.rand(1000)}))
    assert unpack(dense, 4000) and pytest.raises(Refused, unpack, dense, 3999)


@both
def test_a_reply_may_be_four_times_the_question_and_no_bomb(workers):
    many = 40 * 10**6
    bomb = doing(lambda reply: Msg({"zeros": torch.zeros(many)}, {"n": 1}))
    _, federation, _ = served(bomb, workers)
    (id, reason), = reasons(federation)
    assert id == 1 and "its tensors would take 160 MB" in reason
    line = transport_for(lambda id: make(id, bomb), workers)
    with Federation(line, 2) as federation:
        exchange = federation.exchange("fit", Msg({"zeros": torch.zeros(many // 4)}), [1])
        with pytest.raises(TooFewReplies): list(exchange)


def test_room_is_what_a_federation_says():
    masks = doing(lambda reply: Msg({"masks": torch.zeros(90 * 10**6, dtype=torch.bool)}, {"n": 1}))
    for room, refused in ((2**26, 1), (2 * 10**8, 0)):
        with warnings.catch_warnings(action="ignore"), Federation(InProcess(lambda id: make(id, masks)), 2, room=room) as one:
            list(one.exchange("fit", Msg(make(1).model.state_dict()), [0, 1]))
        assert len(one.ledger.absent) == refused
        assert all("Federation(room=...) allows more" in row["reason"] for row in one.ledger.absent)


def test_invented_names_and_long_reasons_leave_no_trace_in_the_ledger():
    names = iter(range(10**6))
    flood = doing(lambda reply: Msg({f"no{next(names)}": torch.zeros(1) for _ in range(2000)}, {"n": 1}))
    server = Server(build(net, 0))
    line = InProcess(lambda id: make(id, flood))
    with warnings.catch_warnings(action="ignore"), Federation(line, 4) as federation:
        federation.ledger = Ledger(bound=30)
        run(server, federation, 5)
    ledger = federation.ledger
    assert len(ledger.to_json()) < 20_000
    rows = ledger.table("way", "tensor")
    refused = {row["way"]: row for row in rows if row["tensor"] == "refused"}
    assert refused.keys() == {"up"} and refused["up"]["messages"] == 5 and refused["up"]["bytes"] == 5 * 8000
    assert len(rows) == 2 * len(server.weights) + 1
    assert ledger.total(way="up") == ledger.so_far["up"]
