"Clients out of the seed, states that outlive a kill at any moment, two levels, the law of a round's cost."
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedbook.engine.workers import Checkpoint, Faults, trial
from fedbook.engine.federation import Client, Federation, InProcess, Mean, Position, Server, run
from fedbook.engine.errors import UserError
from fedbook.engine.history import History
from fedbook.deploy.scale import (CostLaw, CrowdExperiment, FolderCheckpoint, InstantReplies, CrowdSizes,
                                  StateFolder, TwoLevel, alike_groups, crowd_round, drawn_part, fit_law, forecast,
                                  mixed_groups, on_disk, peak_memory, server_seconds)
from fedbook.engine.wire import Msg, gather, pack

SIZES = CrowdSizes(clients=12, per_round=5, rounds=4, pictures=8, tests=40)
LABELS = np.arange(600) % 10
BY_CLASS = [np.flatnonzero(LABELS == c) for c in range(10)]


@pytest.fixture(scope="module")
def whole(): return trial(CrowdExperiment(SIZES, 0), workers=1)


def same_run(a, b):
    assert all(torch.equal(t, b.server.weights[name]) for name, t in a.server.weights.items())
    assert dict(a.federation.states) == dict(b.federation.states)
    assert a.federation.ledger.entries == b.federation.ledger.entries and a.history.rows == b.history.rows


# -- clients out of the seed ---------------------------------------------------------------------------------
def test_a_part_depends_on_seed_and_client_alone():
    part = drawn_part(BY_CLASS, 7, 1, 30, 0.5)
    assert np.array_equal(part, drawn_part(BY_CLASS, 7, 1, 30, 0.5)) and len(part) == 30
    assert part.min() >= 0 and part.max() < 600
    others = [drawn_part(BY_CLASS, id, seed, 30, 0.5) for id, seed in ((8, 1), (7, 2))]
    assert not any(np.array_equal(part, other) for other in others)


@pytest.mark.parametrize("alpha", [0.1, 1.0, math.inf])
def test_shares_are_dirichlet(alpha):
    counts = np.array([np.bincount(LABELS[drawn_part(BY_CLASS, id, 0, 50, alpha)], minlength=10)
                       for id in range(1000)])
    spread = 0.09 / (10 * alpha + 1) if alpha < math.inf else 0.0
    assert np.allclose(counts.mean(0), 5, atol=1.0)
    assert (counts / 50).var() == pytest.approx(spread + (0.09 - spread) / 50, rel=0.1)


def test_a_part_says_what_is_wrong():
    with pytest.raises(UserError, match="count=0 must be a whole number of at least 1"): drawn_part(BY_CLASS, 0, 0, 0, 1.0)


def test_a_client_is_the_same_in_a_crowd_of_any_size():
    few, many = (CrowdExperiment(replace(SIZES, clients=n), 0).client(3) for n in (12, 10**6))
    assert torch.equal(few.x, many.x) and torch.equal(few.y, many.y)
    assert torch.equal(few.generator.get_state(), many.generator.get_state())


# -- states on disk ------------------------------------------------------------------------------------------
def test_a_folder_is_a_dict(tmp_path):
    states, plain, draws = StateFolder(tmp_path), {}, np.random.default_rng(0)
    for step in range(300):
        id, what = int(draws.integers(0, 3000, 1)[0] // 300 * 300), draws.random()
        if what < 0.6: states[id] = plain[id] = b"state %d" % step
        elif what < 0.75 and id in plain: del states[id], plain[id]
        elif what < 0.85: states.commit(Position(step))
        assert (id in states) == (id in plain) and states.get(id) == plain.get(id)
    assert dict(states) == plain and list(states) == sorted(plain) and len(states) == len(plain)
    with pytest.raises(KeyError): states[77]
    with pytest.raises(KeyError): del states[77]


def test_a_client_without_state_has_no_file(tmp_path):
    states = StateFolder(tmp_path)
    class Plain: pass
    for nothing in (pack(Msg()), pack(gather(Plain(), ()))): states[3] = nothing
    assert 3 not in states and not [path for path in tmp_path.rglob("*") if path.is_file()]
    states[3] = b"something"
    states[3] = pack(Msg())
    assert states[3] == pack(Msg()), "what was remembered is forgotten"


def test_a_run_that_begins_anew_finds_no_states(tmp_path):
    experiment = CrowdExperiment(SIZES, 0)
    whole = on_disk(experiment, tmp_path, workers=1)
    assert len(whole.federation.states)
    (tmp_path / "run.safetensors").unlink()
    again = on_disk(experiment, tmp_path, workers=1)
    assert dict(again.federation.states) == dict(whole.federation.states)
    assert all(torch.equal(t, again.server.weights[name]) for name, t in whole.server.weights.items())


def test_what_was_written_after_the_checkpoint_goes(tmp_path):
    states = StateFolder(tmp_path)
    states[1] = b"first"
    states.commit(Position(1))
    states[1], states[2] = b"second", b"new"
    again = StateFolder(tmp_path)
    again.commit(Position(1))
    assert dict(again) == {1: b"first"}


def test_what_was_written_before_the_checkpoint_counts_even_if_nobody_moved_it(tmp_path):
    states = StateFolder(tmp_path)
    states.commit(Position(1))
    states[1] = b"second"
    again = StateFolder(tmp_path)
    again.commit(Position(2))
    assert dict(again) == {1: b"second"}


def test_a_draft_is_no_state(tmp_path):
    states = StateFolder(tmp_path)
    states[1] = b"whole"
    (tmp_path / "after-0-0" / ".2").write_bytes(b"ha")
    assert dict(StateFolder(tmp_path)) == {1: b"whole"}
    states.commit(Position(1))
    assert dict(states) == {1: b"whole"} and not list(tmp_path.glob("after-*"))


def test_files_are_spread_over_folders(tmp_path):
    states = StateFolder(tmp_path)
    for id in (5, 1005, 99_999): states[id] = b"x"
    states.commit(Position(1))
    assert sorted(path.parent.name for path in tmp_path.glob("kept/*/*")) == ["0", "1", "99"]
    assert list(states) == [5, 1005, 99_999]


def test_a_run_on_disk_is_the_run_in_memory(tmp_path, whole):
    ended = on_disk(CrowdExperiment(SIZES, 0), tmp_path, workers=1)
    same_run(whole, ended)
    assert isinstance(ended.federation.states, StateFolder)
    once_more = on_disk(CrowdExperiment(SIZES, 0), tmp_path, workers=1)
    same_run(whole, once_more)


def test_a_run_on_disk_with_faults_is_that_in_memory(tmp_path):
    experiment, faults = CrowdExperiment(SIZES, 1), Faults(1, silent=0.4)
    same_run(trial(experiment, workers=1, faults=faults), on_disk(experiment, tmp_path, faults, workers=1))


class Plug(BaseException): pass


class Dying(InProcess):
    "A line that dies before its answer number `last`."
    def __init__(self, make_client, last):
        super().__init__(make_client)
        self.left = last

    def serve(self, calls):
        for call, outcome in super().serve(calls):
            if not self.left: raise Plug
            self.left -= 1
            yield call, outcome


@pytest.mark.parametrize("answers", range(0, 20, 3))
def test_a_kill_within_a_round_loses_nothing(tmp_path, whole, answers):
    experiment = CrowdExperiment(SIZES, 0)
    with Federation(Dying(experiment.client, answers), experiment.ids) as federation:
        federation.states = StateFolder(tmp_path / "clients")
        with pytest.raises(Plug):
            checkpoint = FolderCheckpoint(tmp_path / "run.safetensors")
            run(experiment.server(), federation, 4, checkpoint, experiment.test)
    same_run(whole, on_disk(experiment, tmp_path, workers=1))


@pytest.mark.parametrize("moved, save", itertools.product((False, True), (1, 2, 4)))
def test_a_kill_around_a_checkpoint_loses_nothing(tmp_path, whole, monkeypatch, moved, save):
    experiment, settle, saves = CrowdExperiment(SIZES, 0), StateFolder.commit, itertools.count()
    def stop_at(self, place):
        last = next(saves) == save       # the first call is the restore's
        if not last or moved: settle(self, place)
        if last: raise Plug
    with monkeypatch.context() as patch:
        patch.setattr(StateFolder, "commit", stop_at)
        with pytest.raises(Plug): on_disk(experiment, tmp_path, workers=1)
    same_run(whole, on_disk(experiment, tmp_path, workers=1))


def test_a_checkpoint_does_not_grow_with_the_clients(tmp_path):
    state = pack(Client(0, nn.Linear(1, 1), torch.zeros(1, 1), torch.zeros(1)).state())
    sizes = []
    for count in (1, 50):
        server, federation = Server(nn.Linear(4, 4)), Federation(InProcess(None), 50)
        federation.states = StateFolder(tmp_path / str(count))
        for id in range(count): federation.states[id] = state
        FolderCheckpoint(tmp_path / f"run{count}").save(Position(1), server, federation, History())
        sizes.append((tmp_path / f"run{count}").stat().st_size)
        assert len(federation.states) == count
    assert sizes[0] == sizes[1]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    on_disk(CrowdExperiment(SIZES, 0), tmp_path, workers=1, about="one")
    with pytest.raises(UserError, match="belongs to another run"):
        on_disk(CrowdExperiment(SIZES, 0), tmp_path, workers=1, about="other")


# -- two levels ----------------------------------------------------------------------------------------------
def leveled(groups, inner, rounds=2, checkpoint=None):
    experiment = CrowdExperiment(replace(SIZES, rounds=rounds), 0)
    server = TwoLevel(experiment.server(), groups, inner)
    with Federation(InProcess(experiment.client), experiment.ids) as federation:
        run(server, federation, rounds, checkpoint)
    return server, federation


def test_one_group_that_averages_twice_is_two_rounds_of_fedavg():
    "All clients in one group, all asked: inner averages are rounds."
    experiment = CrowdExperiment(replace(SIZES, per_round=12), 0)
    two = TwoLevel(experiment.server(), [0] * 12, 2)
    with Federation(InProcess(experiment.client), 12) as federation: run(two, federation, 1)
    one = experiment.server()
    with Federation(InProcess(experiment.client), 12) as federation: run(one, federation, 2)
    assert all(torch.equal(t, two.weights[name]) for name, t in one.weights.items())


def test_groups_average_apart_before_they_meet():
    experiment = CrowdExperiment(replace(SIZES, per_round=4), 0)
    server = TwoLevel(experiment.server(), [0, 0, 1, 1] + [2] * 8, 2)
    start = server.weights
    replies = {id: experiment.client(id).fit(Msg(start)) for id in range(4)}
    server.average(iter([*replies.items()]))
    for group, (a, b) in enumerate([(0, 1), (2, 3)]):
        mean = Mean()
        for id in (a, b): mean.add(replies[id].tensors, replies[id].meta["n"])
        for name, t in mean.value().items(): assert torch.equal(server.send(a).tensors[name], t)
    assert all(torch.equal(server.send(7).tensors[name], t) for name, t in start.items())
    server.meet(iter([*replies.items()]))
    assert not server.inside


def test_whole_groups_are_asked():
    groups = mixed_groups([id % 3 for id in range(12)], 4)
    server = TwoLevel(CrowdExperiment(SIZES, 0).server(), groups, 2)
    seen = set()
    for r in range(20):
        ids = server.pick(list(range(12)), r)
        assert len(ids) == 6 and ids == server.pick(list(range(12)), r)
        assert all(set(ids) >= {id for id in range(12) if groups[id] == groups[one]} for one in ids)
        seen |= set(ids)
    assert seen == set(range(12))


def test_two_levels_go_on_between_two_averages(tmp_path, kill):
    groups = [id // 3 for id in range(12)]
    whole, book = leveled(groups, 3)
    kill(lambda: leveled(groups, 3, checkpoint=Checkpoint(tmp_path / "run")), 2)
    resumed, other = leveled(groups, 3, checkpoint=Checkpoint(tmp_path / "run"))
    assert all(torch.equal(t, resumed.weights[name]) for name, t in whole.weights.items())
    assert book.ledger.entries == other.ledger.entries


def test_groups_are_even_and_mixed_or_alike():
    kinds = np.random.default_rng(0).integers(0, 10, 95).tolist()
    for deal in (mixed_groups, alike_groups):
        sizes = np.bincount(deal(kinds, 10))
        assert len(sizes) == 10 and sizes.max() - sizes.min() <= 1
    def kinds_in(deal):
        groups = deal(kinds, 10)
        return np.mean([len({k for k, g in zip(kinds, groups) if g == one}) for one in range(10)])
    assert kinds_in(mixed_groups) > 8 and kinds_in(alike_groups) < 3.5
    for deal in (mixed_groups, alike_groups):
        with pytest.raises(UserError, match="groups=3 must be from 1 to 2 clients"): deal([1, 2], 3)


def test_two_levels_say_what_is_wrong():
    with pytest.raises(UserError, match="inner=0 must be a whole number of at least 1"): TwoLevel(None, [0], 0)
    with pytest.raises(AttributeError): TwoLevel(Server(nn.Linear(1, 1)), [0], 1).nonsense


# -- the law -------------------------------------------------------------------------------------------------
def test_a_ready_line_answers_every_call():
    server = Server(nn.Linear(3, 1), 4)
    federation = Federation(InstantReplies(pack(Msg(server.weights, {"n": 2}))), 9)
    before = {name: t.clone() for name, t in server.weights.items()}
    run(server, federation, 2)
    assert federation.ledger.messages(way="up") == 8
    assert all(torch.allclose(t, before[name]) for name, t in server.weights.items())


def test_server_seconds_are_of_a_round_that_happens(): assert server_seconds(50, 5, 0.001, rounds=1) > 0


@pytest.mark.parametrize("law", [CostLaw(1e-3, 2e-4, 5e-4, 1e-8), CostLaw(0.0, 1e-4, 0.0, 0.0),
                                 CostLaw(2e-3, 0.0, 1e-3, 0.0)])
def test_a_law_is_found_again(law):
    grid = list(itertools.product((1000, 10**5), (10, 100, 1000), (0.01, 0.5, 5.0)))
    found = fit_law([(*point, law.seconds(*point)) for point in grid])
    for point in grid: assert found.seconds(*point) == pytest.approx(law.seconds(*point), rel=1e-6)


def test_no_constant_is_below_zero_and_small_rounds_count():
    rows = [(1000, m, P, 1e-3 * m * (1 + 0.2 * (-1) ** m) + 1e-5) for m, P in
            itertools.product((1, 2, 10, 101, 1000), (0.1, 1.0))]
    law = fit_law(rows)
    assert min(law) >= 0 and law.seconds(1000, 1, 0.1) == pytest.approx(1e-3, rel=0.5)
    with pytest.raises(UserError, match="rows has 3 entries, expected at least 4"): fit_law(rows[:3])


def test_forecast_by_hand():
    law = CostLaw(1.0, 0.01, 0.1, 1e-6)
    found = forecast(law, 100_000, 0.01, 2.0, wait=60.0, line=100.0, state_kb=4.0)
    assert found.replies == 1000 and found.bytes == 2 * 1000 * 2e6 and found.states == 4e8
    assert found.work == pytest.approx(1 + 1000 * (0.01 + 0.2) + 0.1) and found.wire == 40
    assert found.servers == math.ceil(found.work / 60) == 4
    assert found.seconds == pytest.approx(60 + found.work / 4 + 1 + 4 * 0.21)
    alone = forecast(law, 100, 0.1, 2.0)
    assert alone.servers == 1 and alone.seconds == pytest.approx(60 + alone.work)


@pytest.mark.parametrize("wrong, sentence", [
    (dict(share=0.0), "share=0.0 must be above 0"), (dict(share=1.1), "share=1.1 must be"),
    (dict(wait=0.0), "wait=0.0"), (dict(megabytes=-1.0), "megabytes=-1.0")])
def test_forecast_says_what_is_wrong(wrong, sentence):
    with pytest.raises(UserError, match=sentence):
        forecast(**{**dict(law=CostLaw(0, 0, 0, 0), clients=10, share=0.1, megabytes=1.0), **wrong})


def test_peak_memory_sees_what_is_gone_again():
    assert peak_memory(lambda: np.ones(10**6).sum()) >= 8e6 > peak_memory(lambda: None)


def test_a_round_holds_no_more_in_a_larger_crowd(tmp_path):
    held = [crowd_round(CrowdExperiment(replace(SIZES, clients=n, per_round=3), 0), tmp_path / str(n), 1)[1]
            for n in (20, 100_000)]
    assert held[1] < 1.1 * held[0]
