"Merges against references written plainly, lies against their sentence, and what each does to a federation."
import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from conftest import by_day
from fedbook.engine.workers import prove, trial
from fedbook.engine.federation import Client, Federation, InProcess, Server, TooFewReplies, run
from fedbook.engine.errors import Unfit, UserError
from fedbook.engine.local import generator
from fedbook.privacy.robust import (Capped, ClippedMean, GeometricMedian, Krum, LyingExperiment, Median,
                                    RobustSizes, TrimmedMean, TrustServer, alie_attack, alie_z, backdoor,
                                    capped, coordinate_median, flat_updates, flipped_labels, fltrust,
                                    geometric_median, krum, many_pictures, marked, moved_by, sign_flip,
                                    stretched, trimmed_mean)
from fedbook.engine.wire import Msg

SIZES = RobustSizes(clients=8, per_round=8, pictures=240, rounds=4, liars=2, lr=0.2)


def matrix(n=9, d=6, seed=0): return torch.randn(n, d, generator=generator(seed), dtype=torch.float64)


def plain_krum(x, f, m=1):
    "Krum as the paper writes it, with loops."
    n, scores = len(x), []
    for i in range(n):
        far = sorted(sum((a - b) ** 2 for a, b in zip(x[i], x[j])) for j in range(n) if j != i)
        scores.append(sum(far[:n - f - 2]))
    best = sorted(range(n), key=lambda i: scores[i])[:m]
    return np.mean([x[i] for i in best], axis=0)


@pytest.mark.parametrize("seed, f, m", [(0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 2, 4), (4, 1, 8)])
def test_krum_is_the_plain_one(seed, f, m):
    x = matrix(seed=seed)
    assert np.allclose(krum(x, f, m).numpy(), plain_krum(x.tolist(), f, m))


@pytest.mark.parametrize("n, f", [(4, 1), (6, 2), (8, 3), (3, 1)])
def test_krum_asks_for_enough_clients(n, f):
    sentence = f"liars={f} is too large for Krum: n={n} must exceed"
    with pytest.raises(UserError, match=sentence): krum(matrix(n), f)
    assert krum(matrix(2 * f + 3), f).shape == (6,)


def test_krum_takes_between_one_and_all_honest():
    for many, why in ((0, "a whole number of at least 1"), (8, "from 1 to n - f = 7")):
        with pytest.raises(UserError, match=f"many={many} must be {why}"): krum(matrix(), 2, many)


@pytest.mark.parametrize("n", [5, 8])
def test_the_median_is_numpys(n):
    x = matrix(n)
    assert np.allclose(coordinate_median(x).numpy(), np.median(x.numpy(), axis=0))
    wide = torch.randn(n, 2**18, generator=generator(1), dtype=torch.float64)
    assert np.allclose(coordinate_median(wide).numpy(), np.median(wide.numpy(), axis=0))


def test_the_trimmed_mean_is_scipys():
    from scipy.stats import trim_mean
    x = matrix(10)
    assert np.allclose(trimmed_mean(x, 2).numpy(), trim_mean(x.numpy(), 0.2))
    with pytest.raises(UserError, match="liars=5 must be fewer than half of the 10"): trimmed_mean(x, 5)
    with pytest.raises(UserError): trimmed_mean(x, -1)


def test_the_geometric_median_is_where_distances_are_least():
    from scipy.optimize import minimize
    x = matrix(8, 3)
    x[0] = 50.0
    weights = torch.tensor([1.0, 2, 1, 1, 3, 1, 1, 1])
    for w in (None, weights):
        by = np.ones(8) if w is None else w.numpy()
        best = minimize(lambda v: by @ np.linalg.norm(x.numpy() - v, axis=1), np.zeros(3), tol=1e-12).x
        assert np.allclose(geometric_median(x, w, steps=500).numpy(), best, atol=1e-3)


def test_fltrust_by_hand():
    root = torch.tensor([2.0, 0.0])
    assert fltrust(torch.tensor([[7.0, 0.0], [-5.0, 0.0]]), root).tolist() == [2, 0]
    both = fltrust(torch.tensor([[1.0, 0.0], [3.0, 3.0]]), root)
    a, b = 1.0, 1 / math.sqrt(2)
    assert both.tolist() == pytest.approx([2 * (a + b * b) / (a + b), 2 * b * b / (a + b)], abs=1e-5)
    assert not fltrust(-root[None], root).any()


def test_counts_are_capped_at_twice_the_median():
    assert capped(torch.tensor([10.0, 20, 30, 1e6]), 2.0).tolist() == [10, 20, 30, 40]
    with pytest.raises(UserError, match="cap=-1 must be above 0"): capped(torch.ones(2), -1)


def test_flat_updates_and_back():
    weights = {"a": torch.ones(2, 2), "b": torch.zeros(3)}
    new = {"a": torch.full((2, 2), 3.0), "b": torch.arange(3.0)}
    x, counts = flat_updates(iter([(new, 7)]), weights)
    assert x.tolist() == [[2, 2, 2, 2, 0, 1, 2]] and counts.tolist() == [7]
    back = moved_by(weights, x[0])
    assert all(torch.equal(back[name], t) and back[name].dtype == t.dtype for name, t in new.items())
    with pytest.raises(UserError, match="pairs is empty"): flat_updates(iter([]), weights)


def test_whole_numbers_stay_whole():
    moved = moved_by({"seen": torch.tensor(3)}, torch.tensor([1.7], dtype=torch.float64))
    assert moved["seen"] == 5 and moved["seen"].dtype == torch.int64


# -- lies ----------------------------------------------------------------------------------------------------
@pytest.fixture
def client(): return LyingExperiment(SIZES, 0).client(0)


@pytest.fixture
def sent(): return Msg(LyingExperiment(SIZES, 0).server().weights)


def test_a_lie_leaves_the_client_as_it_was(client, sent):
    x, y = client.x.clone(), client.y.clone()
    for lie in (flipped_labels, backdoor, sign_flip, many_pictures):
        lie(client, sent, client.fit(sent))
        assert torch.equal(client.x, x) and torch.equal(client.y, y)


def test_stretching_and_turning_back(client, sent):
    reply = client.fit(sent)
    assert stretched({"w": torch.ones(1)}, {"w": torch.full((1,), 3.0)}, -2.0)["w"] == -3
    back = sign_flip(client, sent, reply, boost=2.0)
    for name, t in sent.tensors.items():
        assert torch.allclose(back.tensors[name] - t, -2 * (reply.tensors[name] - t), atol=1e-5)
    assert back.meta == reply.meta


def test_many_pictures_takes_the_mean(client, sent):
    told = many_pictures(client, sent, client.fit(sent))
    server = LyingExperiment(SIZES, 0).server()
    server.merge([(0, told), (1, client.fit(sent))])
    assert all(torch.allclose(server.weights[name], t, atol=1e-3) for name, t in told.tensors.items())


def test_n_over_f_replaces_the_model(sent):
    "One liar among four, the others stand still: the mean is what the liar trained."
    trained, told = (backdoor(LyingExperiment(SIZES, 0).client(0), sent, Msg({}, {"n": 30}), boost=boost)
                     for boost in (1.0, 4.0))
    server = LyingExperiment(SIZES, 0).server()
    server.merge([(0, told), *((id, Msg(sent.tensors, {"n": 30})) for id in (1, 2, 3))])
    assert all(torch.allclose(server.weights[name], t, atol=1e-5) for name, t in trained.tensors.items())
    assert not all(torch.equal(t, sent.tensors[name]) for name, t in trained.tensors.items())


def test_the_papers_z():
    assert alie_z(50, 24) == pytest.approx(1.43, abs=0.01) and alie_z(7, 0) == 0
    with pytest.raises(UserError, match="liars=-1 must be a whole number of at least 0"): alie_z(4, -1)
    for n, liars in ((10, 6), (10, 5)):
        with pytest.raises(UserError, match=f"liars={liars} of n={n} leave no z; expected fewer than half"):
            alie_z(n, liars)


@pytest.mark.parametrize("z", [0.0, 1.5, None])
def test_a_little_is_the_mean_less_z_deviations_from_every_liar(sent, z):
    experiment = LyingExperiment(SIZES, 0, liars=3)
    updates, team = [], [partial(experiment.client, id) for id in range(3)]
    def remembered(make):
        client = make()
        fit = client.fit
        def spied(msg):
            reply = fit(msg)
            updates.append({name: reply.tensors[name] - t for name, t in msg.tensors.items()})
            return reply
        client.fit = spied
        return client
    heard = [partial(remembered, make) for make in team]
    first = alie_attack(experiment.client(0), sent, Msg({}, {"n": 7}), heard, 8, z)
    assert first.meta == {"n": 7} and len(updates) == 3
    for name, t in sent.tensors.items():
        rows = np.stack([update[name].numpy() for update in updates])
        wanted = rows.mean(0) - (alie_z(8, 3) if z is None else z) * rows.std(0)
        assert np.allclose((first.tensors[name] - t).numpy(), wanted, atol=1e-6)
    other = alie_attack(experiment.client(2), sent, Msg({}, {"n": 9}), team, 8, z)
    assert all(torch.equal(other.tensors[name], t) for name, t in first.tensors.items())


def test_marks():
    x = torch.zeros(2, 1, 18, 18, dtype=torch.uint8)
    assert (marked(x) == 255).sum() == 2 * 4 and not x.any() and marked(x.float()).max() == 1


# -- federations ---------------------------------------------------------------------------------------------
def trust(experiment):
    x, y = experiment.pictures("test").take(np.arange(40)).tensors()
    return partial(TrustServer, root=Client(99, experiment.network(), x, y, 0, 1, 16, 0.2))


def test_a_server_with_a_root_takes_no_other_aggregate():
    experiment = LyingExperiment(SIZES, 0, aggregate=Median())
    with pytest.raises(Unfit, match="aggregate=.* TrustServer: FLTrust is its aggregate"):
        replace(experiment, server_kind=trust(experiment)).built_server()


KINDS = {"cap": Capped(), "clipping": ClippedMean(), "median": Median(), "trimmed": TrimmedMean(2),
         "krum": Krum(2), "multi": Krum(2, None), "rfa": GeometricMedian(), "trust": None}


def with_aggregate(network, aggregate):
    server = Server(network)
    if aggregate: server.aggregate = aggregate
    return server


@pytest.mark.parametrize("name", KINDS)
def test_each_merge_of_equal_updates_is_that_update(name):
    experiment = LyingExperiment(SIZES, 0)
    network = experiment.network()
    server = with_aggregate(network, KINDS[name]) if KINDS[name] else trust(experiment)(network)
    start = {n: t.clone() for n, t in server.weights.items()}
    client = server.root if name == "trust" else experiment.client(1)
    client.generator = generator(0, 0, 22)
    new = {n: t.clone() for n, t in client.fit(Msg(start)).tensors.items()}
    server.merge((id, Msg(new, {"n": 5})) for id in range(7))
    assert all(torch.allclose(server.weights[n], t, atol=1e-4) for n, t in new.items())


def merged(aggregate, moves, counts):
    "How far a server's only weight moves, for replies that moved it by `moves`."
    server = with_aggregate(nn.Linear(1, 1, bias=False), aggregate)
    start = server.weights["weight"].clone()
    pairs = enumerate(zip(moves, counts))
    server.merge((id, Msg({"weight": start + move}, {"n": n})) for id, (move, n) in pairs)
    return float(server.weights["weight"] - start)


def test_what_one_client_may_weigh_and_how_far_it_may_move():
    million = [10, 10, 10, 10, 10**6]
    assert merged(None, [0, 0, 0, 0, 1], million) == pytest.approx(1, abs=1e-3)
    assert merged(Capped(), [0, 0, 0, 0, 1], million) == pytest.approx(20 / 60, abs=1e-5)
    assert merged(Capped(1.0), [0, 0, 0, 0, 1], million) == pytest.approx(1 / 5, abs=1e-5)
    assert merged(ClippedMean(), [1, 1, 1, -100], [7] * 4) == pytest.approx(0.5, abs=1e-5)
    assert merged(GeometricMedian(), [0, 0, 0, 9], [10, 10, 10, 10**6]) == pytest.approx(0, abs=0.01)


class Mute:
    verbs = ("fit",)
    def fit(self, msg): raise ConnectionError("gone")
    def state(self): return Msg()
    def load(self, msg): pass


@pytest.mark.parametrize("aggregate, needed", [(Krum(3), 9), (TrimmedMean(4), 9)])
def test_a_federation_can_stop_before_too_few_are_merged(aggregate, needed):
    experiment = LyingExperiment(replace(SIZES, clients=10, per_round=10), 0)
    make = lambda id: experiment.client(id) if id < 8 else Mute()
    server = with_aggregate(experiment.network(), aggregate)
    before = {name: t.clone() for name, t in server.weights.items()}
    with Federation(InProcess(make), 10, min_replies=needed) as federation, pytest.raises(TooFewReplies):
        run(server, federation, 1)
    with Federation(InProcess(make), 10) as federation, pytest.warns(UserWarning, match="8 of 10"):
        with pytest.raises(UserError, match="liars="): run(server, federation, 1)
    assert all(torch.equal(server.weights[name], t) for name, t in before.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", by_day(["median", "trimmed", "multi", "rfa", "trust"], "trimmed", "rfa"))
def test_robust_merges_outlive_updates_that_go_backwards(name):
    honest = trial(LyingExperiment(SIZES, 0), workers=1).history.last("accuracy")
    lying = LyingExperiment(SIZES, 0, liars=2, lie=partial(sign_flip, boost=20.0))
    broken = trial(lying, workers=1).history.last("accuracy")
    way = dict(aggregate=KINDS[name]) if KINDS[name] else dict(server_kind=trust(lying))
    kept = trial(replace(lying, **way), workers=1).history.last("accuracy")
    assert honest > broken + 0.1 and kept > broken + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name, lie", [("mean", backdoor), ("krum", sign_flip), ("rfa", many_pictures),
                                       ("trust", sign_flip)])
def test_a_federation_with_liars_is_a_function_of_its_seed(name, lie):
    small = LyingExperiment(replace(SIZES, clients=10, per_round=10, rounds=2, liars=1, pictures=60), 0)
    ways = {"mean": {}, "krum": dict(aggregate=Krum(1)), "rfa": dict(aggregate=GeometricMedian()),
            "trust": dict(server_kind=trust(small))}
    prove(replace(small, **ways[name], liars=1, lie=lie), kills=1, kinds=("nan",))


def test_sizes_say_what_is_wrong():
    with pytest.raises(UserError, match="liars=8 must be fewer than clients=8"): replace(SIZES, liars=8)


def test_a_steady_client_answers_what_it_got_where_its_training_overflows():
    steady, plain = LyingExperiment(SIZES, 0), LyingExperiment(SIZES, 0, client_kind=Client)
    sent = Msg(steady.server().weights)
    huge = Msg({name: t * 1e18 for name, t in sent.tensors.items()})
    assert not all(t.isfinite().all() for t in plain.client(0).fit(huge).tensors.values())
    assert all(torch.equal(t, huge.tensors[name]) for name, t in steady.client(0).fit(huge).tensors.items())
    theirs = plain.client(1).fit(sent).tensors
    assert all(torch.equal(t, theirs[name]) for name, t in steady.client(1).fit(sent).tensors.items())


def test_all_lies_are_told_by_a_liar_alone():
    experiment = LyingExperiment(SIZES, 0, liars=2, lie=sign_flip)
    kinds = [type(experiment.client(id)).__name__ for id in range(4)]
    assert kinds == ["Liar", "Liar", "SteadyClient", "SteadyClient"]
    assert len(experiment.pictures("train")) == 240 and list(itertools.islice(experiment.ids, 2)) == [0, 1]
