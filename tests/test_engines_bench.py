"""bench/engines.py at toy size: that every engine does the same work, and that its arithmetic is right; no
speed is tested."""
import subprocess
import sys

import psutil
import pytest
import torch

from conftest import by_day

BENCH = "engines"


@pytest.fixture
def sizes(bench):
    "Batches so large that a client takes one step a round, whatever the order of its pictures."
    sizes = bench.Sizes(pictures=600, clients=6, per_round=3, batch=1000, lr=0.1)
    yield sizes
    bench.rivals.world.cache_clear()


def weights_of(play, *args):
    found = []
    play(lambda work: found.append(work(2)), *args)
    return found[0]


@pytest.fixture
def wanted(bench, sizes, one_process): return weights_of(bench.rivals.bare, sizes)


def test_the_work_is_worth_comparing(bench, sizes, wanted):
    assert bench.distance(wanted, bench.initial().state_dict()) > 1e-2
    asked = {id for r in range(2) for id in bench.rivals.chosen(sizes, r)}
    assert len({len(bench.rivals.world(sizes)[2][id]) for id in asked}) > 1
    assert bench.rivals.chosen(sizes, 0) != bench.rivals.chosen(sizes, 1)


def test_our_engine_reaches_the_weights_of_the_bare_loop(bench, sizes, wanted):
    assert bench.distance(weights_of(bench.rivals.in_process, sizes, 1), wanted) < 1e-5


@pytest.mark.parametrize("model, floats", [("cnn", True), ("mlp", False), ("lstm", False), ("head", False)])
def test_our_engine_trains_every_model(bench, sizes, one_process, model, floats):
    sizes = sizes._replace(pictures=60, clients=3, per_round=2, model=model, steps=1, floats=floats)
    wanted = weights_of(bench.rivals.bare, sizes)
    assert bench.distance(wanted, bench.initial(sizes).state_dict()) > 1e-3
    assert bench.distance(weights_of(bench.rivals.in_process, sizes, 1), wanted) < 1e-5


def test_the_bare_pool_reaches_the_weights_of_the_bare_loop(bench, sizes, wanted):
    outcome = bench.measure("pool", sizes, 2)
    assert bench.distance(outcome.weights, wanted) < 1e-5 and outcome.cpu > 0


def test_clients_are_dealt_to_the_share_that_holds_least(bench, sizes):
    held = [len(part) for part in bench.rivals.world(sizes)[2]]
    shares = bench.rivals.dealt(range(6), sizes)
    assert sorted(shares[0] + shares[1]) == list(range(6))
    assert abs(sum(held[i] for i in shares[0]) - sum(held[i] for i in shares[1])) <= max(held)


@pytest.mark.parametrize("steps, pictures", [(0, 60_000), (1, 3200), (18, 57_600)])
def test_steps_decide_how_many_pictures_there_are(bench, steps, pictures):
    assert bench.sizes_of("cnn", steps).pictures == pictures


@pytest.mark.parametrize("steps", [-1, 19])
def test_too_many_steps_are_said(bench, steps):
    with pytest.raises(SystemExit, match="expected 0 to 18"): bench.sizes_of("mlp", steps)


def test_the_two_forms_of_pictures(bench, sizes):
    handed, own = bench.forms_of(sizes, "both").values()
    x, floats = bench.rivals.world(handed)[0], bench.rivals.world(own)[0]
    assert x.dtype == torch.uint8 and floats.dtype == torch.float32 and floats.is_contiguous()
    assert floats.equal(bench.rivals.ready(x))
    lstm = sizes._replace(model="lstm")
    assert list(bench.forms_of(lstm, "both").values()) == [lstm]


def test_cpu_seconds_count_children_living_and_reaped(bench):
    code = "sum(range(6_000_000)); print(flush=True); input()"
    before = bench.cpu_seconds()
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    own = psutil.Process(child.pid).cpu_times()
    living = bench.cpu_seconds()
    child.communicate(b"\n")
    assert min(living, bench.cpu_seconds()) - before >= own.user - 0.02 > 0


@pytest.mark.parametrize("name", by_day(["flower", "pfl-1", "pfl-2", "fedlab-1", "fedlab-2", "blazefl",
                                         "blazefl-2", "fluke"], "flower"))
def test_other_engines_reach_the_weights_of_the_bare_loop(bench, sizes, wanted, name):
    if reason := bench.missing(name): pytest.skip(reason)
    outcome = bench.measure(name, sizes, 2)
    assert bench.distance(outcome.weights, wanted) < 1e-5


def test_a_batch_is_every_picture_once(bench, sizes):
    x, y = (torch.cat(part) for part in zip(*bench.rivals.batches(3, sizes._replace(batch=7))))
    mine = torch.as_tensor(bench.rivals.world(sizes)[2][3])
    assert len(y) == len(mine)
    assert y.bincount(minlength=10).equal(bench.rivals.world(sizes)[1][mine].bincount(minlength=10))
    assert torch.allclose(x.sum(), bench.rivals.as_float(bench.rivals.world(sizes)[0][mine]).sum(), rtol=1e-4)


def outcomes_of(bench, **seconds):
    made = lambda each: bench.Outcome(each, 10 * each, 100 * each, {}, 2 * each)
    return {name.replace("_", "-"): [made(each) for each in values]
            for name, values in seconds.items()}


def test_ratios_by_hand(bench):
    assert bench.over([2.0, 3.0], [4.0, 1.0]) == [0.5, 3.0]
    assert bench.spread([3.0, 1.0, 2.25]) == "2.25 (1.00 to 3.00)" and bench.spread([1.0], 0) == "1 (1 to 1)"
    with pytest.raises(ValueError): bench.over([1.0], [1.0, 2.0])


def test_a_row_sets_each_repeat_against_the_bare_loop_of_the_same(bench):
    row = bench.row(outcomes_of(bench, bare=[1.0, 2.0, 4.0], two=[0.5, 3.0, 2.0]), "two",
                    lambda weights: 0.75)
    assert (row.split() == "fedbook, 2 workers 2.000 0.50 (0.50 to 1.50) 4.000 0.50 (0.50 to 1.50) 20.0 0.50 (0.50 to 1.50) 200 "
            "0.50 (0.50 to 1.50) 75.0%".split())


@pytest.mark.parametrize("one, two, pool, said", [
    ([1.0] * 3, [1.0, 1.1, 0.9], [2.0] * 3, ["0.50 (0.45 to 0.55)", "kept", "1.00 (0.90 to 1.10)", "kept"]),
    ([1.0] * 3, [2.2, 2.4, 2.0], [2.0] * 3, ["1.10 (1.00 to 1.20)", "missed", "2.20 (2.00 to 2.40)", "missed"]),
])
def test_the_contest_by_hand(bench, one, two, pool, said):
    lines = bench.contest(outcomes_of(bench, bare=[0.1] * 3, one=one, two=two, pool=pool, pfl_2=[9.0] * 3,
                                      blazefl=[0.5] * 3)).splitlines()
    assert lines[2] == (f"fedbook, 2 workers, CPU: {said[0]} x the fastest other that packs (bare pool of 2, "
                        f"lower bound); at most 1.0: {said[1]}")
    assert lines[4] == f"two workers against one, CPU: {said[2]}; at most 1.05: {said[3]}"
    assert lines[5].startswith("fedbook, 1 worker, CPU: 2.00 (2.00 to 2.00) x BlazeFL's base trainer")


def test_an_engine_that_packs_nothing_is_no_rival(bench):
    assert bench.fastest(outcomes_of(bench, bare=[0.1], blazefl=[0.1], fluke=[0.1], fedbook_flower=[0.1],
                                     pfl_2=[1.0]), "cpu") == "pfl-2"


def test_no_contest(bench):
    assert bench.contest(outcomes_of(bench, bare=[1.0], flower=[1.0])).startswith("no contest")
    assert bench.contest(outcomes_of(bench, bare=[1.0], two=[1.0])).startswith("no contest")


def test_a_missing_package_is_a_printed_reason(bench, monkeypatch, capsys):
    monkeypatch.setitem(bench.ENGINES, "pfl-2",
                        bench.ENGINES["pfl-2"]._replace(needs={"torch": "torch",
                                                               "no_such_module": "no-such-package"}))
    assert bench.missing("bare") is None
    def measure(name, sizes, rounds):
        return bench.Outcome(1.0, 1.0, 1.0, bench.initial(sizes).state_dict(), 1.0)

    monkeypatch.setattr(bench, "measure", measure)
    words = ["--repeats", "2", "--form", "own", "--only", "two", "pfl-2"]
    monkeypatch.setattr(sys, "argv", ["engines.py", *words])
    bench.main()
    said = capsys.readouterr().out.splitlines()
    assert (said[0] == "pfl, 2 processes: left out, for there is no module 'no_such_module' here (pip "
            "install 'no-such-package')")
    assert [line.split(",")[0] for line in said
            if line.startswith("repeat")] == ["repeat 1"] * 2 + ["repeat 2"] * 2
    assert said[-1].startswith("no contest") and said[-3] == ""
    assert [line[:9] for line in said[-5:-3]] == ["bare loop", "fedbook, "]


def test_engines_alternate_and_one_that_fails_is_left_out(bench, sizes, monkeypatch, capsys):
    asked = []
    def measure(name, *_):
        asked.append(name)
        if name == "two" and len(asked) > 3: raise bench.Failed("out of luck")
        return bench.Outcome(1.0, 1.0, 1.0, {}, 1.0)
    monkeypatch.setattr(bench, "measure", measure)
    assert list(bench.tour(["bare", "two", "one"], {"a form": sizes}, 1, 3)["a form"]) == ["bare", "one"]
    assert asked == ["bare", "two", "one"] * 2 + ["bare", "one"]
    assert "fedbook, 2 workers, a form: left out, for it failed: out of luck" in capsys.readouterr().out


def test_an_engine_that_stops_says_why(bench, sizes):
    with pytest.raises(bench.Failed, match="KeyError: 'warp drive'"): bench.measure("warp drive", sizes, 1)


def test_an_engine_that_stops_names_the_first_cause(bench, sizes, monkeypatch, capfd):
    def fail(race, sizes):
        try: 1 / 0
        except ZeroDivisionError as error: raise RuntimeError("it ended") from error
    def leave(code): raise SystemExit(code)
    monkeypatch.setitem(bench.ENGINES, "bare", bench.ENGINES["bare"]._replace(play=fail))
    monkeypatch.setattr(bench.os, "_exit", leave)
    with pytest.raises(SystemExit): bench.play("bare", sizes, 1, "")
    assert bench.last_line(capfd.readouterr().err) == "ZeroDivisionError: division by zero"


def test_last_line(bench):
    assert bench.last_line("one\ntwo\n\n") == "two" and bench.last_line("\n") == "it said nothing"


def sleeper(): return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])


def test_an_engine_that_hangs_is_stopped(bench, monkeypatch):
    process = sleeper()
    monkeypatch.setattr(bench, "LIMIT", -1)
    with pytest.raises(bench.Failed, match="stopped"): bench.watch(process)
    assert process.returncode != 0


def test_what_is_left_behind_is_stopped(bench):
    process = sleeper()
    left = psutil.Process(process.pid)
    bench.stop({left}, patience=0)
    assert not left.is_running()


def test_memory_is_counted_and_a_process_that_is_gone_counts_nothing(bench):
    me, gone = psutil.Process(), sleeper()
    watched = psutil.Process(gone.pid)
    gone.kill()
    gone.wait()
    assert bench.held(me) > 1e6 and bench.held(watched) == 0 and bench.family(watched) == []
