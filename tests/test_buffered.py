"Lines with a clock against plain simulations, FedBuff's step by hand, kills with letters under way."
import heapq
import math
from dataclasses import replace
from functools import partial
from time import sleep
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from conftest import AT_NIGHT, Strike
from fedbook.deploy.buffered import (Buffered, BufferedServer, TimedSizes, OnNodes, Speeds, Synchronous,
                                     TimedExperiment, Updates, first_to_come, staleness_weight, stepped)
from fedbook.engine.workers import Checkpoint, Faults, prove, trial
from fedbook.engine.federation import Answer, Call, Client, Failure, Federation, InProcess, run
from fedbook.engine.errors import Unfit, UserError
from fedbook.privacy.compress import Int8
from fedbook.engine.wire import Msg, pack, unpack

SIZES = TimedSizes(clients=10, per_round=6, pictures=100, tests=40, rounds=6, times=3.0)


class Clerk:
    "A line that answers each call with its number, and keeps what it served."
    def __init__(self): self.served, self.closed = [], False

    def serve(self, calls):
        for call in calls:
            self.served.append(call)
            yield call, Answer(b"%d" % call.id, b"")

    def close(self): self.closed = True


def call(id, round=0, state=None): return Call(round, id, "fit", b"letter %d" % round, state)


# -- the clock -----------------------------------------------------------------------------------------------
def test_speeds_depend_on_the_seed_and_the_client_alone():
    speeds = Speeds(3)
    assert [speeds.usual(id) for id in (5, 2, 5)] == [Speeds(3).usual(id) for id in (5, 2, 5)]
    assert speeds(5, 0) == speeds(5, 7) == speeds.usual(5) != Speeds(4).usual(5)


def test_speeds_are_log_normal_and_a_tenth_is_ten_times_slower():
    speeds, even = Speeds(1, spread=0.5), Speeds(1, spread=0.5, slow=0.0)
    ids = range(4000)
    logs = np.log([even.usual(id) for id in ids])
    assert abs(logs.mean()) < 0.03 and abs(logs.std() - 0.5) < 0.02
    slow = [id for id in ids if speeds.is_slow(id)]
    assert abs(len(slow) / 4000 - 0.1) < 0.015
    factor = lambda id: 10 if speeds.is_slow(id) else 1
    assert all(speeds.usual(id) == pytest.approx(factor(id) * even.usual(id)) for id in ids)


def test_lost_answers_never_come_and_others_take_as_long_as_before():
    leaky, sound = Speeds(2, lost=0.3), Speeds(2)
    times = [leaky(id, r) for id in range(100) for r in range(20)]
    assert abs(np.mean(np.isinf(times)) - 0.3) < 0.03
    assert all(leaky(id, 3) in (math.inf, sound(id, 3)) for id in range(100))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("over", [1.0, 1.3, 2.0, 5.0])
def test_first_to_come_takes_the_fastest(seed, over):
    times = np.random.default_rng(seed).exponential(size=13).tolist()
    taken, took = first_to_come(times, over)
    wanted = math.ceil(13 / over)
    assert sorted(times[i] for i in taken) == sorted(times)[:wanted]
    assert took == sorted(times)[wanted - 1] and taken == sorted(taken)


def test_first_to_come_and_deadlines():
    assert first_to_come([4.0, 1.0, math.inf], deadline=3.0) == ([1], 3.0)
    assert first_to_come([math.inf, 2.0], over=2.0) == ([1], 2.0)
    assert first_to_come([]) == ([], 0.0)
    with pytest.raises(UserError, match="of 2 answers 1 come, 2 are waited for"):
        first_to_come([1.0, math.inf])


# -- lines ---------------------------------------------------------------------------------------------------
def test_a_synchronous_line_serves_the_first_in_their_order_and_fails_the_rest():
    clerk = Clerk()
    line = Synchronous(clerk, lambda id, round: [9.0, 1.0, 2.0, 3.0][id], over=4 / 3)
    out = list(line.serve(map(call, range(4))))
    assert [c.id for c, _ in out] == [0, 1, 2, 3] and [c.id for c in clerk.served] == [1, 2, 3]
    assert isinstance(out[0][1], Failure) and "not waited for" in out[0][1].reason
    assert line.now == 3.0 and list(line.serve(map(call, [1]))) and line.times == [3.0, 4.0]
    line.close()
    assert clerk.closed


def test_a_clock_is_put_back():
    line = Synchronous(Clerk(), lambda id, round: 1.5)
    list(line.serve([call(0)]))
    again = Synchronous(Clerk(), lambda id, round: 1.5)
    again.load(unpack(pack(line.state())))
    assert (again.now, again.times) == (1.5, [1.5])


def plain_buffered(seconds, asked, size):
    "Who lands in each exchange and when, by a heap of events."
    now, heap, landed = 0.0, [], []
    for r, ids in enumerate(asked):
        for id in ids: heapq.heappush(heap, (now + seconds(id, r), id, r))
        events = [heapq.heappop(heap) for _ in range(min(size, len(heap)))]
        now = max([now, *(done for done, *_ in events)])
        landed.append((now, [(id, r) for _, id, r in events]))
    return landed


@pytest.mark.parametrize("seed", range(4))
def test_a_buffered_line_lands_whoever_is_first(seed):
    speeds, clerk = Speeds(seed), Clerk()
    line, draws = Buffered(clerk, speeds, 3), np.random.default_rng(seed)
    idle, asked, got = set(range(20)), [], []
    for r in range(30):
        ids = sorted(draws.choice(sorted(idle), min(len(idle), 7 if not r else 3), False).tolist())
        asked.append(ids)
        out = list(line.serve(call(id, r) for id in ids))
        idle = idle - set(ids) | {c.id for c, _ in out}
        got.append((line.now, [(c.id, c.round) for c, _ in out]))
    assert got == plain_buffered(speeds, asked, 3)
    assert all(c.data == b"letter %d" % c.round for c in clerk.served)


def test_a_new_letter_replaces_one_that_is_under_way():
    line = Buffered(Clerk(), lambda id, round: math.inf if round == 0 and id == 1 else 1.0, 2)
    assert [c.id for c, _ in line.serve([call(0), call(1)])] == [0]
    (old, failure), (new, answer) = line.serve([call(1, 5)])
    assert old.round == 0 and "given up: asked in round 0" in failure.reason
    assert new.round == 5 and answer.data == b"1" and not line.flights


def test_a_line_on_which_nothing_can_land_stands_still():
    line = Buffered(Clerk(), lambda id, round: math.inf, 2)
    assert not list(line.serve([call(0), call(1)])) and not list(line.serve([]))
    assert line.now == 0 and len(line.flights) == 2


def test_letters_under_way_are_put_back():
    speeds = Speeds(0, lost=0.2)
    line, again = Buffered(Clerk(), speeds, 2), Buffered(Clerk(), speeds, 2)
    list(line.serve([call(0), call(1, state=b"mine"), call(2), call(3), call(4)]))
    list(line.serve([call(5, 1), call(6, 1)]))
    state = line.state()
    assert len([name for name in state.tensors if name.startswith("letter/")]) == len(
        {flight.call.data for flight in line.flights.values()})
    again.load(unpack(pack(state)))
    assert again.flights == line.flights and (again.now, again.times) == (line.now, line.times)
    assert [c for c, _ in again.serve([])] == [c for c, _ in line.serve([])]


def test_lines_say_what_is_wrong():
    with pytest.raises(UserError, match="over=0.9 must be a number of at least 1"):
        Synchronous(None, None, 0.9)
    for size in (0, 1.5, True):
        with pytest.raises(UserError, match="must be a whole number of at least 1"):
            Buffered(None, None, size)


# -- the server ----------------------------------------------------------------------------------------------
def test_staleness_weight_by_hand():
    assert [staleness_weight(t) for t in (0, 1, 3)] == pytest.approx([1, 2 ** -0.5, 0.5])
    assert staleness_weight(3, 1.0) == 0.25 and staleness_weight(7, 0.0) == 1
    with pytest.raises(UserError, match="stale=-1 must be 0 or more"): staleness_weight(-1)


def test_stepped_keeps_dtypes():
    moved = stepped({"w": torch.ones(2, dtype=torch.half), "n": torch.tensor(3)},
                    {"w": torch.full((2,), 4.0), "n": torch.tensor(3)}, 0.5)
    assert moved["w"].tolist() == [3, 3] and moved["w"].dtype == torch.half
    assert moved["n"] == 4 and moved["n"].dtype == torch.int64


@pytest.mark.parametrize("exponent", [0.0, 0.5, 2.0])
def test_a_merge_is_the_papers_step(exponent):
    server = BufferedServer(nn.Linear(2, 1), 9, step=0.7, exponent=exponent)
    start = {name: t.clone() for name, t in server.weights.items()}
    draws = np.random.default_rng(0)
    moves = [{name: torch.tensor(draws.normal(size=t.shape), dtype=torch.float32) for name, t in start.items()}
             for _ in range(3)]
    server.out, server.round = {4: 1, 5: 6}, 6
    server.merge(iter((id, Msg(move, {"n": 1 + id})) for id, move in zip((4, 8, 5), moves)), asked=[8, 9])
    for name, t in start.items():
        wanted = t + 0.7 * (moves[0][name] / 6 ** exponent + moves[1][name] + moves[2][name]) / 3
        assert torch.allclose(server.weights[name], wanted, atol=1e-6)
    assert server.out == {9: 6}


def test_an_empty_buffer_changes_nothing_but_the_book():
    server = BufferedServer(nn.Linear(1, 1), 2)
    before = {name: t.clone() for name, t in server.weights.items()}
    server.merge(iter([]), asked=[3, 4])
    assert all(torch.equal(t, before[name]) for name, t in server.weights.items())
    assert server.out == {3: 0, 4: 0}


def test_who_is_picked():
    server = BufferedServer(nn.Linear(1, 1), 4, patience=3)
    assert len(server.pick(list(range(9)), 0)) == 4
    server.out = {0: 5, 1: 4, 2: 1}
    found = server.pick(list(range(9)), 6)
    assert len(found) == 2 and not {0, 1} & set(found)
    assert server.pick(list(range(9)), 6) == found
    server.out = {id: 6 for id in range(4)}
    assert server.pick(list(range(9)), 6) == [] and server.pick([0, 1], 6) == []
    assert len({id for r in range(40) for id in server.pick([0, 1, 2], r + 99)}) == 3


def test_an_answer_that_is_known_to_be_lost_holds_no_place():
    server = BufferedServer(nn.Linear(1, 1), 2)
    server.out = {0: 1, 1: 4, 2: 4}
    server.unheard([{"client": 0, "round": 1}, {"client": 1, "round": 2}])
    assert server.out == {1: 4, 2: 4}, "client 1 was asked again since"
    broken = TimedExperiment(replace(SIZES, rounds=5), 0, way=partial(Buffered, size=2), every=5)
    ended = trial(broken, workers=1, faults=Strike({(r, "fit", id): "silent" for r in range(2) for id in range(20)}),
                  min_replies=0)
    assert ended.federation.ledger.messages(way="up") and len(ended.server.out) <= SIZES.per_round
    assert {row["client"] for row in ended.federation.ledger.absent}


def test_no_mod_takes_an_update_for_weights():
    with pytest.raises(Unfit, match="mods=.* BufferedServer: its clients answer updates"):
        TimedExperiment(SIZES, 0, mods=(Int8(),)).built_server()


def test_updates_are_what_training_changed():
    experiment = TimedExperiment(SIZES, 0)
    sent = Msg(experiment.server().weights)
    plain, updates = Client.fit(experiment.client(2).client, sent), experiment.client(2).fit(sent)
    assert updates.meta == plain.meta
    for name, t in sent.tensors.items():
        assert torch.allclose(t + updates.tensors[name], plain.tensors[name], atol=1e-6)


# -- runs ----------------------------------------------------------------------------------------------------
def test_synchronous_rounds_of_all_are_fedavg():
    "Equal counts, nobody late: the buffered server's run is FedAvg's."
    from fedbook.engine.federation import Server, run
    sizes = replace(SIZES, rounds=2)
    experiment = TimedExperiment(sizes, 0, server_kind=partial(BufferedServer, patience=1))
    timed = trial(experiment, workers=1)
    server = Server(experiment.network(), sizes.per_round, 0)
    with Federation(InProcess(lambda id: experiment.client(id).client), sizes.clients) as federation:
        run(server, federation, 2)
    for name, t in server.weights.items(): assert torch.allclose(timed.server.weights[name], t, atol=1e-5)
    speeds = experiment.speeds
    asked = [[e.client for e in timed.federation.ledger.where(way="up", round=r)] for r in range(2)]
    ends = np.cumsum([max(map(speeds.usual, ids)) for ids in asked])
    assert timed.federation.transport.times == pytest.approx(ends)


def test_a_buffered_run_is_a_function_of_its_seed():
    shown = prove(TimedExperiment(SIZES, 0, way=partial(Buffered, size=3), every=6), kinds=("nan",))
    assert any("killed after 6 of 6 checkpoints" in row["what was done"] for row in shown)


def test_a_kill_with_letters_under_way_keeps_the_clock(tmp_path, kill):
    experiment = TimedExperiment(SIZES, 1, way=partial(Buffered, size=2), every=6)
    whole = trial(experiment, workers=1)
    kill(lambda: trial(experiment, Checkpoint(tmp_path / "run"), workers=1), 3)
    resumed = trial(experiment, Checkpoint(tmp_path / "run"), workers=1)
    assert resumed.federation.transport.times == whole.federation.transport.times
    assert resumed.federation.transport.flights == whole.federation.transport.flights
    assert resumed.federation.ledger.entries == whole.federation.ledger.entries


def test_lost_answers_are_replaced_and_named():
    experiment = TimedExperiment(replace(SIZES, rounds=12), 0, way=partial(Buffered, size=2), lost=0.4,
                                 every=12, server_kind=partial(BufferedServer, patience=3))
    ended = trial(experiment, workers=1, faults=Faults(), min_replies=0)
    reasons = {row["reason"] for row in ended.federation.ledger.absent}
    assert reasons and all("given up" in reason for reason in reasons)
    assert ended.federation.ledger.messages(way="up") > 12


def test_over_selection_counts_the_letters_of_those_it_does_not_wait_for():
    experiment = TimedExperiment(SIZES, 0, way=partial(Synchronous, over=1.5), every=6,
                                 server_kind=partial(BufferedServer, patience=1))
    ended = trial(experiment, workers=1, faults=Faults())
    ledger = ended.federation.ledger
    assert ledger.messages(way="down") == 36 and ledger.messages(way="up") == 24 and ledger.missed == 12


def test_the_server_is_tested_every_so_many_rounds():
    ended = trial(TimedExperiment(SIZES, 0, every=3), workers=1)
    tested = [value is not None for value in ended.history.column("accuracy")]
    assert tested == [False, False, True, False, False, True]


# -- real nodes ----------------------------------------------------------------------------------------------
class Held(Updates):
    "A client that answers when the file `gate` is there (None: at once)."
    def __init__(self, client, gate): self.client, self.gate = client, gate

    def fit(self, msg):
        while self.gate and not self.gate.exists(): sleep(0.05)
        return super().fit(msg)


class Stopped(BaseException): pass


@AT_NIGHT
def test_on_flowers_nodes_nobody_waits_and_a_killed_server_gets_what_was_under_way(tmp_path):
    flower = pytest.importorskip("fedbook.deploy.flower", reason="Flower is not installed: pip install 'fedbook[flower]'")
    experiment, gate = TimedExperiment(replace(SIZES, clients=6, per_round=4), 0), tmp_path / "gate"
    server = lambda: BufferedServer(experiment.network(), 4, 0)
    held = server().pick(experiment.ids, 0)[0]

    def job(federation):
        def stop(server):
            if server.round == 2: raise Stopped
            return {}

        def opened(server):
            gate.touch()
            return {}

        flights = []
        for test in (stop, opened):
            own = Federation(OnNodes(federation.transport, 2), experiment.ids)
            try: run(server(), own, 40, Checkpoint(tmp_path / "run"), test, done=lambda _: gate.exists() and landed(own))
            except Stopped: flights.append({call.id for _, call in own.transport.flights.values()})
        return own.ledger.where(way="up"), flights

    def landed(federation): return any(e.client == held for e in federation.ledger.where(way="up"))

    make = lambda id: Held(experiment.client(id), gate if id == held else None)
    up, flights = flower.simulate(job, make, experiment.ids, side_by_side=4)
    assert held in flights[0] and len(flights[0]) == 2
    place = [e.client for e in up].index(held)
    assert up[place].round == 0 and place >= 6
    assert all(e.client != held for e in up[:place])


def test_on_nodes_refuses_a_buffer_of_nothing():
    with pytest.raises(UserError, match="size=0"): OnNodes(None, 0)


def test_letters_under_way_survive_a_checkpoint():
    line = OnNodes(SimpleNamespace(), 2)
    line.flights = {"a": (7, call(3, 1, b"mark")), "b": (8, call(4, 1)), "c": (9, call(5, 2))}
    line.times = [1.5]
    other = OnNodes(SimpleNamespace(), 2)
    other.load(unpack(pack(line.state())))
    assert other.flights == line.flights and other.times == [1.5]
