import json
import math
import re
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import gammaln, logsumexp
from scipy.stats import norm
from torch import nn

from conftest import normal

pytest.importorskip("dp_accounting")
pytest.importorskip("opacus")

from fedbook.methods.continual import TaskClient
from fedbook.privacy.dp import (AdaptiveClient, AdaptiveServer, Budget, BudgetSpent, BudgetedExperiment,
                                Clip, DPClient, DPServer, Epsilon, InTurnServer, NarrowExperiment, Noise, NoisyMean,
                                RecordClient, RecordExperiment, SecretNoise, TreeServer, TurnServer, account,
                                audited_epsilon, budgeted, clip_update, count_noise_for, default_delta,
                                dp_experiment, in_turn, least_noise,
                                moved_clip, narrow_cnn, norm_of, poisson_event, profiles, refuse_loss,
                                node_noise, private_experiment, refuse_network, rounds_of_passes,
                                secret_normal, spent,
                                split_noise, tree_event, tree_nodes, tree_noise)
from fedbook.engine.workers import Checkpoint, prove, trial
from fedbook.engine.federation import Client, Experiment, FedProxClient, TooFewReplies, WrappedClient
from fedbook.fedcbdr import FedCBDRClient
from fedbook.methods.heads import ReplayHead
from fedbook.fedreplay import FedReplayClient, FedReplaySizes
from fedbook.engine.errors import Unfit, UserError, how_to_install
from fedbook.engine.sizes import choose
from fedbook.engine.local import build
from fedbook.methods.fedavg import FedAvgSizes
from fedbook.engine.wire import Msg, Refused, pack
from fedbook.privacy.compress import Int8
from fedbook.privacy.robust import Median
from fedbook.privacy.secagg import SecureExperiment


# An epsilon and its unit


def test_an_epsilon_is_a_sentence_with_its_unit():
    assert str(Epsilon(1.736, 1e-5, "client")) == "epsilon 1.74 at delta 1e-05 for one client's whole data"
    assert str(Epsilon(8, 1e-3, "record")).endswith("for one record of one client")


@pytest.mark.parametrize("wrong, word", [
    ((1.0, 1e-5), "unit"), ((1.0, 1e-5, "patient"), "unit"), ((-1.0, 1e-5, "client"), "value"),
    ((math.nan, 1e-5, "client"), "value"), ((1.0, 0.0, "client"), "delta"), ((1.0, 1.0, "record"), "delta")])
def test_an_epsilon_without_a_unit_or_out_of_range_is_refused(wrong, word):
    with pytest.raises(UserError, match=f"{word}="): Epsilon(*wrong)


@given(st.integers(2, 10**9))
@settings(max_examples=60, deadline=None)
def test_delta_is_below_its_bound_and_not_far(n):
    assert default_delta(n) < n**-1.1 and default_delta(n) <= 1e-3
    assert default_delta(n) > min(1e-3, n**-1.1) / 2.01


@pytest.mark.parametrize("n", [0, -3, 2.5, True])
def test_delta_is_for_a_number_of_units(n):
    with pytest.raises(UserError, match="n="): default_delta(n)


# The account


def exact(eps, noise, rounds):
    "Balle and Wang 2018, theorem 8."
    mu = math.sqrt(rounds) / noise
    return norm.cdf(mu / 2 - eps / mu) - math.exp(eps + norm.logcdf(-mu / 2 - eps / mu))


@pytest.mark.parametrize("noise, rounds", [(1.0, 5), (5.0, 10), (10.0, 100)])
def test_without_coins_the_account_is_exact(noise, rounds):
    found = spent(poisson_event(noise, 1.0, rounds), 1e-5, "client").value
    assert exact(found, noise, rounds) <= 1e-5 * (1 + 1e-6) and exact(found - 2e-3, noise, rounds) > 1e-5


@pytest.mark.parametrize("noise, rate", [(1.0, 0.2), (2.0, 0.05)])
def test_a_sum_with_coins_has_the_delta_of_the_integral(noise, rate):
    without = norm(0, noise).pdf
    mixed = lambda v: (1 - rate) * without(v) + rate * norm(1, noise).pdf(v)
    found = spent(poisson_event(noise, rate, 1), 1e-4, "record").value
    def delta(p, q, eps):
        more = lambda v: max(0.0, p(v) - math.exp(eps) * q(v))
        return quad(more, -12 * noise, 12 * noise, limit=400, points=[0, 1, 3])[0]
    worst = lambda eps: max(delta(mixed, without, eps), delta(without, mixed, eps))
    assert worst(found) <= 1.01e-4 and worst(0.98 * found) > 1e-4


@pytest.mark.parametrize("noise, rounds, step", [(0.1, 30, 0.015), (0.01, 30, 1.5), (1.0, 5, 0.01)])
def test_a_coarser_account_is_not_below_the_exact_one(noise, rounds, step):
    found = spent(poisson_event(noise, 1.0, rounds), 1e-5, "client", step).value
    assert exact(found, noise, rounds) <= 1e-5 < exact(0.998 * found, noise, rounds)


def by_integer_orders(noise, rate, rounds, delta, orders=range(2, 200)):
    """Renyi's bound: Mironov, Talwar and Zhang 2019, section 3.3, with the conversion of Canonne, Kamath and
    Steinke 2020, proposition 12."""
    def spent(a):
        k = np.arange(a + 1)
        choose_k = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1)
        rest = (a - k) * math.log(1 - rate) if rate < 1 else np.where(k == a, 0.0, -np.inf)
        renyi = rounds * logsumexp(choose_k + k * math.log(rate) + rest
                                   + k * (k - 1) / (2 * noise**2)) / (a - 1)
        return renyi + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
    return min(map(spent, orders))


@pytest.mark.parametrize("noise, rate, rounds", [(1.79, 0.2, 8), (1.0, 0.01, 100), (5.0, 1.0, 9),
                                                 (2.0, 0.2, 8), (5.0, 0.5, 16), (1.0, 1.0, 5)])
def test_loss_distributions_never_ask_for_more_than_renyi_nor_for_half(noise, rate, rounds):
    bound = by_integer_orders(noise, rate, rounds, 1e-5)
    assert bound / 2 < spent(poisson_event(noise, rate, rounds), 1e-5, "client").value <= bound


def test_no_noise_is_no_privacy():
    assert spent(poisson_event(0.0, 0.2, 8), 1e-5, "client").value == math.inf


@pytest.mark.parametrize("wrong", [dict(noise=-1.0), dict(noise=math.nan), dict(rate=0.0), dict(rate=1.5),
                                   dict(rounds=0), dict(rounds=2.5)])
def test_numbers_out_of_range_are_named(wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))}="):
        poisson_event(**{**dict(noise=1.0, rate=0.2, rounds=8), **wrong})


@pytest.mark.parametrize("value", [0.5, 4.0])
def test_the_least_noise_keeps_the_target_and_hardly_less_would_not(value):
    event, target = lambda z: poisson_event(z, 0.2, 8), Epsilon(value, 1e-5, "client")
    noise = least_noise(event, target)
    value_of = lambda z: spent(event(z), 1e-5, "client").value
    assert value_of(noise) <= value < value_of(0.985 * noise)


def test_targets_that_are_none_are_named():
    with pytest.raises(UserError, match="target="): least_noise(lambda z: poisson_event(z, 0.2, 8), 2.0)
    with pytest.raises(UserError, match="target="):
        least_noise(lambda z: poisson_event(z, 1.0, 8), Epsilon(1e-9, 1e-9, "client"))
    assert least_noise(lambda z: poisson_event(z, 0.5, 1), Epsilon(1e4, 1e-5, "client")) == 0.25


@pytest.mark.parametrize("package", ["dp_accounting", "opacus"])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=re.escape(how_to_install("dp"))):
        poisson_event(1.0, 0.2, 8) if package == "dp_accounting" else refuse_network(nn.Linear(2, 2))


# Small federations


def tiny(): return nn.Linear(3, 2)

def ys(n): return torch.arange(n) % 2

def small(kind, id=0, n=8, seed=0, **options):
    return kind(id, build(tiny, 1), normal(n, 3, seed=id), ys(n), seed=seed, batch=4, lr=0.5, **options)

def start(seed=0): return Msg(build(tiny, seed).state_dict())

class Tiny(Experiment):
    "DP-FedAvg of six clients with noise 2, half of them in a round."
    def client(self, id): return small(DPClient, id, clip=0.5)

    def server(self): return DPServer(build(tiny, 0), per_round=3, seed=self.seed, clip=0.5, noise=2.0)

class Adaptive(Tiny):
    def client(self, id): return small(AdaptiveClient, id)

    def server(self): return AdaptiveServer(build(tiny, 0), 3, self.seed, 0.1, 0.8)

class Tree(Tiny):
    def server(self): return TreeServer(build(tiny, 0), 2, self.seed, 0.5, 2.0, clients=6)

class Plain(Tiny):
    def client(self, id): return small(Client, id)

    def server(self): return TurnServer(build(tiny, 0), 3, self.seed)

def of(kind, rounds=4):
    return kind(choose(profiles, "smoke").narrow(clients=6, per_round=3, rounds=rounds), 3)


# DP-FedAvg


@pytest.mark.parametrize("kind", [Tiny, Adaptive, Tree])
@pytest.mark.parametrize("changes, word", [(dict(aggregate=Median()), "aggregate=.*clipped updates"),
                                           (dict(mods=(Int8(),)), "mods=.*updates")])
def test_a_server_of_clipped_updates_takes_no_other_aggregate_and_no_mod(kind, changes, word):
    with pytest.raises(Unfit, match=word): replace(of(kind), **changes).built_server()


def test_clipped_by_hand():
    update = {"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}
    short = clip_update(update, 1.0)
    assert torch.allclose(short["a"], torch.tensor([0.6]))
    assert torch.allclose(short["b"], torch.tensor([[0.8]]))
    assert all(torch.equal(t, update[name]) for name, t in clip_update(update, 5.0).items())
    assert clip_update({"a": torch.zeros(2)}, 1.0)["a"].tolist() == [0, 0]
    assert [t.tolist() for t in clip_update({"a": torch.tensor([1.0, math.nan]), "b": torch.tensor([2.0])},
                                            1.0).values()] == [[0, 0], [0]]


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_clipping_keeps_the_direction_and_never_lengthens(scale, clip, seed):
    update = {"a": scale * normal(5, seed=seed), "b": scale * normal(2, 3, seed=seed + 1)}
    short = clip_update(update, clip)
    assert norm_of(short) == pytest.approx(min(clip, norm_of(update)), rel=1e-5)
    ratio = norm_of(short) / norm_of(update)
    assert all(torch.allclose(short[name], t * ratio, rtol=1e-4) for name, t in update.items())


@pytest.mark.parametrize("clip", [0, -1.0, math.nan, math.inf])
def test_a_clip_that_is_none_is_named(clip):
    with pytest.raises(UserError, match="clip="): clip_update({}, clip)


def test_whole_numbers_in_an_update_are_named():
    with pytest.raises(UserError, match="steps"): clip_update({"steps": torch.tensor(3)}, 1.0)


def test_a_private_client_answers_its_update_and_nothing_else():
    trained, reply = small(Client, 3).fit(start()).tensors, small(DPClient, 3, clip=1e6).fit(start())
    assert reply.meta == {}
    assert all(torch.equal(reply.tensors[name], trained[name] - t) for name, t in start().tensors.items())
    assert norm_of(small(DPClient, 3, clip=0.01).fit(start()).tensors) == pytest.approx(0.01, rel=1e-5)


def test_the_private_mean_is_over_the_number_expected():
    server = DPServer(build(tiny, 0), per_round=4, noise=0.0)
    before = {name: t.clone() for name, t in server.weights.items()}
    ones = Msg({name: torch.ones_like(t) for name, t in before.items()})
    server.merge(iter([(0, ones), (5, ones)]))
    assert all(torch.allclose(server.weights[name], t + 0.5) for name, t in before.items())
    server.merge(iter([]))
    assert all(torch.allclose(server.weights[name], t + 0.5) for name, t in before.items())


@pytest.mark.parametrize("cohort, std", [(None, 1.5 * 0.2 / 4), (100, 1.5 * 0.2 / 100)])
def test_the_noise_has_the_deviation_that_was_asked(cohort, std):
    server = DPServer(build(lambda: nn.Linear(300, 300), 0), per_round=4, clip=0.2, noise=1.5, cohort=cohort)
    before = server.weights["weight"].clone()
    server.merge(iter([]))
    drawn = server.weights["weight"] - before
    assert float(drawn.std()) == pytest.approx(std, rel=0.02) and abs(float(drawn.mean())) < 5 * std / 300


def test_an_update_longer_than_agreed_is_refused():
    server = DPServer(build(tiny, 0), per_round=1, clip=1.0)
    update = clip_update({name: torch.ones_like(t) for name, t in server.weights.items()}, 1.0)
    server.accept("fit", 0, Msg(update))
    with pytest.raises(Refused, match="norm"):
        server.accept("fit", 0, Msg({name: 1.01 * t for name, t in update.items()}))


def test_every_client_throws_its_own_coin():
    server = DPServer(build(tiny, 0), per_round=5)
    picked = [server.pick(list(range(50)), r) for r in range(400)]
    counts = [len(ids) for ids in picked]
    assert picked[7] == server.pick(list(range(50)), 7)
    assert np.mean(counts) == pytest.approx(5, abs=0.5)
    assert np.var(counts) == pytest.approx(50 * 0.1 * 0.9, rel=0.25)
    assert DPServer(build(tiny, 0), per_round=50).pick(list(range(50)), 0) == list(range(50))


@pytest.mark.parametrize("changes, word",
                         [(dict(per_round=None), "per_round"), (dict(per_round=0), "per_round"),
                          (dict(noise=-1.0), "noise"), (dict(noise=math.nan), "noise"),
                          (dict(clip=0.0), "clip")])
def test_a_private_server_names_what_is_wrong(changes, word):
    with pytest.raises(UserError, match=f"{word}="): DPServer(build(tiny, 0), **{"per_round": 2, **changes})


def test_a_private_run_is_a_function_of_its_seed(): prove(of(Tiny, rounds=3))


def test_a_private_trial_learns_and_sends_as_many_bytes_a_client(one_process):
    sizes = FedAvgSizes(clients=100, per_round=20, rounds=1, batch=10, lr=0.15)
    _, history, federation = trial(dp_experiment(sizes, noise=0.0))
    _, noisy, noisy_federation = trial(dp_experiment(sizes, noise=100.0))
    assert history.last("accuracy") > 0.3 > noisy.last("accuracy")
    assert history.last("down") == noisy.last("down")
    assert len(federation.ledger.where(way="up")) == len(noisy_federation.ledger.where(way="up"))


# A budget


def event(rounds, clients): return poisson_event(2.0, 3 / clients, rounds)

def worth(rounds): return spent(event(rounds, 6), 1e-3, "client")


def test_a_budget_stops_the_run_before_it_is_overspent_and_a_larger_one_goes_on(tmp_path, one_process):
    kept = Checkpoint(tmp_path / "run", "budget")
    with pytest.raises(BudgetSpent, match="after 2 rounds .* is spent"):
        trial(BudgetedExperiment(of(Tiny), worth(2), event), kept)
    before = kept.path.read_bytes()
    with pytest.raises(BudgetSpent): trial(BudgetedExperiment(of(Tiny), worth(2), event), kept)
    assert kept.path.read_bytes() == before

    two, four = trial(of(Tiny, rounds=2)), trial(of(Tiny))
    resumed = trial(BudgetedExperiment(of(Tiny), worth(4), event), kept)
    assert resumed.history.rows[:2] == two.history.rows and resumed.history.rows == four.history.rows
    assert all(torch.equal(t, four.server.weights[name]) for name, t in resumed.server.weights.items())


def test_a_budget_asks_nobody_in_the_round_that_it_refuses(one_process):
    budget = Budget(worth(1), event)
    server = budgeted(of(Tiny).server(), budget)
    assert server.pick(list(range(6)), 0) == of(Tiny).server().pick(list(range(6)), 0)
    weights = {name: t.clone() for name, t in server.weights.items()}
    with pytest.raises(BudgetSpent) as stopped: server.pick(list(range(6)), 1)
    assert "\n" not in str(stopped.value) and "one client's whole data" in str(stopped.value)
    assert all(torch.equal(t, server.weights[name]) for name, t in weights.items())
    assert budget.after(0, 6).value == 0


@pytest.mark.parametrize("total", [2.0, None, "epsilon 2"])
def test_a_budget_without_a_unit_is_refused(total):
    with pytest.raises(UserError, match="total="): Budget(total, event)


# Adaptive clipping


@given(st.floats(0.1, 20), st.integers(1, 1000))
@settings(max_examples=40, deadline=None)
def test_sum_and_count_tell_together_what_the_noise_says(noise, expected):
    count = count_noise_for(noise, expected)
    assert count >= expected / 20 and split_noise(noise, count) <= 1.11 * noise
    assert 1 / split_noise(noise, count)**2 + 0.25 / count**2 == pytest.approx(1 / noise**2, rel=1e-9)


def test_a_count_that_tells_too_much_is_refused():
    with pytest.raises(UserError, match="count_noise="): split_noise(2.0, 1.0)
    assert split_noise(0.0, 0.1) == 0


def ones(server, bit, length=0.0):
    return Msg({name: torch.full_like(t, length) for name, t in server.weights.items()}, {"short": bit})


def test_the_clip_moves_by_hand():
    server = AdaptiveServer(build(tiny, 0), 4, clip=1.0, noise=0.0, wished=0.5, rate=1.0)
    server.merge(iter([(0, ones(server, True)), (1, ones(server, True)), (2, ones(server, False))]))
    assert server.clip == pytest.approx(math.exp(-(0.5 + 0.5 / 4 - 0.5)))
    server = AdaptiveServer(build(tiny, 0), 4, clip=1.0, noise=0.0)
    server.merge(iter([]))
    assert server.clip == 1.0 == moved_clip(1.0, 0.5)


@pytest.mark.parametrize("wished", [0.5, 0.8])
def test_the_adaptive_clip_converges_to_the_quantile(wished):
    norms = np.random.default_rng(0).lognormal(0, 1, 400)
    server = AdaptiveServer(build(tiny, 0), 400, clip=0.01, noise=1.0, wished=wished, rate=0.3)
    for _ in range(120):
        server.merge(iter([(k, ones(server, bool(v <= server.clip))) for k, v in enumerate(norms)]))
    # the count has a deviation of 20 of 400: a twentieth of a share
    low, high = np.quantile(norms, [wished - 0.08, wished + 0.08])
    assert low < server.clip < high


def test_the_noise_on_the_sum_follows_the_clip():
    server = AdaptiveServer(build(lambda: nn.Linear(300, 300), 0), 10, clip=0.1, noise=1.0, rate=2.0)
    server.merge(iter([(k, ones(server, False)) for k in range(10)]))
    before, clip = server.weights["weight"].clone(), server.clip
    assert clip > 0.1
    server.merge(iter([]))
    std = split_noise(1.0, count_noise_for(1.0, 10)) * clip / 10
    assert float((server.weights["weight"] - before).std()) == pytest.approx(std, rel=0.02)


def test_an_adaptive_client_tells_its_update_and_one_bit():
    plain = small(Client, 3).fit(start()).tensors
    update = {name: plain[name] - t for name, t in start().tensors.items()}
    for clip in (0.5 * norm_of(update), 2 * norm_of(update)):
        reply = small(AdaptiveClient, 3).fit(Msg(start().tensors, {"clip": clip}))
        assert reply.meta == {"short": clip > norm_of(update)}
        assert all(torch.equal(t, reply.tensors[name]) for name, t in clip_update(update, clip).items())


@pytest.mark.parametrize("bit", [None, 1, "yes"])
def test_a_bit_that_is_none_is_refused(bit):
    server = AdaptiveServer(build(tiny, 0), 4)
    with pytest.raises(Refused, match="short="): server.accept("fit", 0, ones(server, bit))


def test_an_adaptive_run_is_a_function_of_its_seed(): prove(of(Adaptive), workers=1)


# Trees


@given(st.integers(1, 3000))
@settings(max_examples=60, deadline=None)
def test_the_nodes_cover_each_round_once(t):
    covered = [k * 2**level + 1 + i for level, k in tree_nodes(t) for i in range(2**level)]
    assert covered == list(range(1, t + 1)) and len(tree_nodes(t)) == bin(t).count("1")


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 13])
def test_no_client_is_in_more_nodes_than_are_accounted(steps):
    published = {node for t in range(1, steps + 1) for node in tree_nodes(t)}
    inside = lambda step: sum(k << level < step <= (k + 1) << level for level, k in published)
    held = [inside(step) for step in range(1, steps + 1)]
    assert max(held) == held[0] == steps.bit_length()


@pytest.mark.parametrize("passes", [(1,), (7,), (8, 8), (50, 50, 3)])
def test_the_trees_event_is_that_of_the_package(passes):
    from dp_accounting import ComposedDpEvent, NeighboringRelation, SingleEpochTreeAggregationDpEvent
    from dp_accounting.rdp import RdpAccountant
    theirs = ComposedDpEvent([SingleEpochTreeAggregationDpEvent(6.0, steps) for steps in passes])
    by_renyi = lambda event: RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_SPECIAL).compose(
        event).get_epsilon(1e-5)
    assert by_renyi(tree_event(6.0, passes)) == pytest.approx(by_renyi(theirs), rel=1e-9)
    assert spent(tree_event(6.0, passes), 1e-5, "client").value <= by_renyi(theirs)


@pytest.mark.parametrize("passes", [(), (0,), (2.5,)])
def test_passes_that_are_none_are_named(passes):
    with pytest.raises(UserError, match="passes="): tree_event(1.0, passes)


@pytest.mark.parametrize("t", [1, 7, 8, 12])
def test_the_trees_noise_has_the_variance_that_is_accounted(t):
    like = {"w": torch.zeros(30_000), "v": torch.zeros(2, 3)}
    drawn = tree_noise(t, like, 0.5, partial(node_noise, (1, 2)))
    assert float(drawn["w"].std()) == pytest.approx(0.5 * math.sqrt(bin(t).count("1")), rel=0.03)
    again = tree_noise(t, like, 0.5, partial(node_noise, (1, 2)))
    assert drawn["v"].shape == (2, 3) and torch.equal(drawn["w"], again["w"])
    fresh = tree_noise(t, like, 0.5, partial(node_noise, (1, 3)))["w"]
    assert abs(float((drawn["w"] * fresh).mean())) < 0.03


def test_the_nodes_of_two_rounds_share_their_noise():
    like = {"w": torch.zeros(30_000)}
    six, seven = (tree_noise(t, like, 1.0, partial(node_noise, [5]))["w"] for t in (6, 7))
    assert float((seven - six).std()) == pytest.approx(1.0, rel=0.03)
    assert float((six * seven).mean()) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("kind, variance", [(InTurnServer, int), (TreeServer, lambda t: bin(t).count("1"))])
def test_the_weights_carry_the_noise_of_their_kind(kind, variance):
    server = kind(build(lambda: nn.Linear(200, 200), 0), 5, 1, 0.2, 3.0, clients=35)
    first = server.weights["weight"].clone()
    for r in range(7):
        server.begin([], r)
        server.merge(iter([]))
        carried = float((server.weights["weight"] - first).std()) / (3.0 * 0.2 / 5)
        assert carried == pytest.approx(math.sqrt(variance(r + 1)), rel=0.03)
    server.begin([], 7)
    before = server.weights["weight"].clone()
    server.merge(iter([]))
    assert float((server.weights["weight"] - before).std()) / (3.0 * 0.2 / 5) == pytest.approx(1, rel=0.03)


def test_the_mean_of_updates_is_added():
    server = TreeServer(build(tiny, 0), 2, noise=0.0, clients=4)
    before = {name: t.clone() for name, t in server.weights.items()}
    server.begin([0, 1], 0)
    server.merge(iter([(0, Msg({name: torch.ones_like(t) for name, t in before.items()}))]))
    assert all(torch.allclose(server.weights[name], t + 0.5) for name, t in before.items())


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_in_turn_everybody_comes_once_in_a_pass(n, m, rounds):
    m = min(n, m)
    long = math.ceil(n / m)
    came = [id for r in range(3 * long, 4 * long) for id in in_turn(range(n), m, r)]
    assert came == list(range(n))
    passes = rounds_of_passes(rounds, n, m)
    assert sum(passes) == rounds and all(s == long for s in passes[:-1]) and 1 <= passes[-1] <= long


def test_servers_say_what_their_rounds_tell():
    tree, fresh = (kind(build(tiny, 0), 2, noise=3.0, clients=8) for kind in (TreeServer, InTurnServer))
    same = lambda a, b: spent(a, 1e-3, "client").value == pytest.approx(spent(b, 1e-3, "client").value)
    assert same(tree.event(6, 8), tree_event(3.0, (4, 2)))
    assert same(fresh.event(6, 8), poisson_event(3.0, 1.0, 2))
    assert same(AdaptiveServer(build(tiny, 0), 2, noise=3.0).event(6, 8), poisson_event(3.0, 0.25, 6))


def test_a_tree_for_another_number_of_clients_is_refused():
    server = TreeServer(build(tiny, 0), 2, clients=8)
    with pytest.raises(UserError, match="clients="): server.pick([0, 1, 2], 0)


def test_a_run_with_a_tree_is_a_function_of_its_seed(): prove(of(Tree, rounds=5), workers=1)


# Privacy by record


def private(client, noise=1.0, **options): return RecordClient(client, noise, **options)


def test_a_step_is_the_mean_of_clipped_gradients_of_records():
    client, begin = Client(0, build(tiny, 1), normal(6, 3), ys(6), batch=6, lr=1.0), start()
    reply = private(client, 1e-7, clip=0.3).fit(begin)
    total = {name: torch.zeros_like(t) for name, t in begin.tensors.items()}
    for x, y in zip(normal(6, 3), ys(6)):
        model = build(tiny, 0)
        F.cross_entropy(model(x[None]), y[None]).backward()
        short = clip_update({name: p.grad for name, p in model.named_parameters()}, 0.3)
        for name, t in short.items(): total[name] += t / 6
    moved = {name: t - reply.tensors[name] for name, t in begin.tensors.items()}
    assert all(torch.allclose(moved[name], t, atol=1e-5) for name, t in total.items())
    assert reply.meta == {"n": 6}


def conv(turned=False):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 6)

        def forward(self, x):
            if turned: x = x.contiguous(memory_format=torch.channels_last)
            return self.second(self.first(x).tanh()).flatten(1)
    return Net


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_pictures_may_lie_in_memory_as_they_like(form):
    x, begin = normal(6, 3, 8, 8).contiguous(memory_format=form), build(conv(), 0).state_dict()
    client = Client(0, build(conv(), 1), x, ys(6), batch=6, lr=1.0)
    reply, model = private(client, 1e-8, clip=1e3).fit(Msg(begin)), build(conv(), 0)
    F.cross_entropy(model(x.contiguous()), ys(6)).backward()
    for name, p in model.named_parameters():
        assert torch.allclose(begin[name] - reply.tensors[name], p.grad, atol=1e-4)


def test_a_network_that_turns_its_pictures_around_is_found():
    client = Client(0, build(conv(True), 1), normal(6, 3, 8, 8), ys(6), batch=6)
    with pytest.raises(UserError, match="do not add up"):
        private(client).fit(Msg(build(conv(True), 0).state_dict()))


def test_the_noise_of_a_step_has_the_deviation_that_is_accounted():
    wide = lambda: nn.Linear(300, 100)
    moved = []
    for noise in (1e-6, 2.0):
        client = Client(0, build(wide, 1), normal(10, 300), ys(10), batch=10, lr=1.0)
        begin = build(wide, 0).state_dict()
        moved.append(private(client, noise, clip=0.5).fit(Msg(begin)).tensors["weight"])
    assert float((moved[1] - moved[0]).std()) == pytest.approx(2.0 * 0.5 / 10, rel=0.02)


def test_the_same_seed_gives_the_same_bits_and_another_others():
    fit = lambda seed: private(small(Client, 3), seed=seed).fit(start()).tensors
    assert all(torch.equal(t, fit(5)[name]) for name, t in fit(5).items())
    assert not torch.equal(fit(5)["weight"], fit(6)["weight"])


def test_each_record_comes_by_its_own_coin():
    seen = []
    class Counting(Client):
        def loss(self, x, y):
            if self.model.training and torch.is_grad_enabled(): seen.append(len(y))
            return super().loss(x, y)
    private(Counting(0, build(tiny, 1), normal(40, 3), ys(40), batch=4, epochs=40)).fit(start())
    assert len(seen) == 400 and np.mean(seen) == pytest.approx(4, abs=0.4)
    assert np.var(seen) == pytest.approx(40 * 0.1 * 0.9, rel=0.25) and 0 in seen


def test_the_network_is_given_back_as_it_was_lent():
    client = small(Client)
    known = {name: set(vars(module)) for name, module in client.model.named_modules()}
    private(client).fit(start())
    assert not {"batches", "optimiser", "limit"} & vars(client).keys()
    assert not any(hasattr(p, "grad_sample") for p in client.model.parameters())
    assert not any(module._forward_hooks or module._backward_hooks for module in client.model.modules())
    assert small(Client).fit(start()).meta == client.fit(start()).meta
    assert known.keys() == dict(client.model.named_modules()).keys()


def test_what_was_told_is_booked_and_a_budget_leaves_the_client_out():
    client = private(small(Client), 2.0)
    assert client.spends().value == 0
    for _ in range(3): client.fit(start())
    assert client.told == [[2.0, 0.5, 6]]
    expected = spent(poisson_event(2.0, 0.5, 6), 1e-3, "record")
    assert client.spends() == expected and spent(account(client.told), 1e-3, "record") == expected

    poor = private(small(Client), 2.0, total=expected)
    for _ in range(3): poor.fit(start())
    told = [list(row) for row in poor.told]
    with pytest.raises(BudgetSpent, match="record of one client"): poor.fit(start())
    assert poor.told == told and "batches" not in vars(poor.client)


def test_a_round_goes_on_without_the_client_that_has_spent_its_budget(one_process):
    one = spent(poisson_event(2.0, 0.5, 2), 1e-3, "record")
    assert len(trial(RecordExperiment(of(Plain, rounds=2), 2.0, total=one)).history.rows) == 2
    with pytest.raises(TooFewReplies, match="BudgetSpent"):
        trial(RecordExperiment(of(Plain, rounds=3), 2.0, total=one))


def test_a_federation_private_by_record_is_a_function_of_its_seed():
    prove(RecordExperiment(of(Plain, rounds=3), 1.0), workers=1)


@pytest.mark.parametrize("network, word", [
    (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "BatchNorm"),
    (lambda: ReplayHead(4, 2, 8, 1, 2, 8), "MultiheadAttention|attention")])
def test_networks_that_mix_records_are_refused_in_one_sentence(network, word):
    with pytest.raises(UserError, match=word) as refused: refuse_network(build(network, 0))
    assert str(refused.value).startswith("model=") and "\n" not in str(refused.value)
    refuse_network(build(narrow_cnn, 0))


class Mixing(Client):
    "Its loss pushes the outputs of a batch apart."
    def loss(self, x, y): return super().loss(x, y) - self.model(x).std(0, unbiased=False).sum()

class Alone(Client):
    "Trains by steps of its own."
    def train(self):
        with torch.no_grad(): self.model.weight.add_(1.0)

class Doubling(Client):
    "Its batches hold more than its records."
    def batches(self): return ((torch.cat([x, x]), torch.cat([y, y])) for x, y in super().batches())

class Limiting(Client):
    def limit(self): nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

class Telling(Client):
    def fit(self, msg):
        reply = super().fit(msg)
        return Msg(reply.tensors | {"mean": self.x.mean(0)}, reply.meta)


@pytest.mark.parametrize("kind, word", [
    (Mixing, "mixes the records"), (FedProxClient, "belongs to no record"), (Alone, "without noise"),
    (Doubling, "more than its records"), (Telling, "which no noise covers")])
def test_clients_that_would_train_past_the_noise_are_refused(kind, word):
    client = private(small(kind))
    with pytest.raises(UserError, match=word): client.fit(start())
    assert client.told == []


class Seeing(nn.Module):
    "Keeps a running mean of its inputs, and has no parameter before its last layer."
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        if self.training and len(x): self.mean.mul_(0.9).add_(0.1 * x.mean(0).detach())
        return self.last(x - self.mean)

class Late(Client):
    "Writes the mean of its records into the bias after its last step."
    def train(self):
        super().train()
        with torch.no_grad(): self.model.bias.copy_(self.x.mean(0)[:2])

class Stepping(Client):
    "Takes a plain step after the last noisy one."
    def train(self):
        super().train()
        with torch.no_grad():
            for p in self.model.parameters(): p -= 0.1 * p

class Freezing(Client):
    "Trains its bias alone."
    def train(self):
        self.model.weight.requires_grad_(False)
        super().train()
        self.model.weight.requires_grad_(True)


@pytest.mark.parametrize("kind, network, name", [(Client, Seeing, "mean"), (Late, tiny, "bias"),
                                                 (Stepping, tiny, "weight")])
def test_nothing_leaves_past_the_last_noisy_step(kind, network, name):
    begin = Msg(build(network, 0).state_dict())
    plain = kind(0, build(network, 1), normal(8, 3), ys(8), batch=4, lr=0.5)
    assert not torch.equal(plain.fit(begin).tensors[name], begin.tensors[name]), "it leaks without the wrapper"
    client = private(kind(0, build(network, 1), normal(8, 3), ys(8), batch=4, lr=0.5), 50.0)
    with pytest.raises(UserError, match=f"{name} in the reply of .* would leave"): client.fit(begin)
    assert client.told == []


def test_a_buffer_that_stays_as_it_was_sent_may_leave():
    class Quiet(Seeing):
        def forward(self, x): return self.last(x - self.mean)
    begin = Msg(build(Quiet, 0).state_dict() | {"mean": torch.tensor([0.0, -0.0, 2.0])})
    reply = private(Client(0, build(Quiet, 1), normal(8, 3), ys(8), batch=4, lr=0.5)).fit(begin)
    assert pack(Msg({"mean": reply.tensors["mean"]})) == pack(Msg({"mean": begin.tensors["mean"]}))


# Noise that nobody can draw again


def test_secret_noise_is_normal_and_new_each_time():
    noise = secret_normal((200, 500))
    assert noise.dtype == torch.float64 and noise.shape == (200, 500)
    assert float(noise.mean()) == pytest.approx(0, abs=0.015)
    assert float(noise.std()) == pytest.approx(1, rel=0.01)
    assert float((noise.abs() < 1.959964).double().mean()) == pytest.approx(0.95, abs=0.003)
    assert not torch.equal(noise, secret_normal((200, 500)))
    assert torch.equal(secret_normal((5,), b"k" * 32), secret_normal((5,), b"k" * 32))
    assert secret_normal().shape == ()


@pytest.mark.parametrize("booked", [False, True])
def test_a_client_that_is_put_back_gives_no_noise_twice(booked, tmp_path):
    "Two questions under the same noise: their difference has none. With a book there is no such thing."
    def of(noise, book=None):
        client = Client(0, build(tiny, 1), normal(8, 3), ys(8), batch=8, lr=1.0)
        return private(client, noise, clip=0.5, book=book)
    client = of(4.0, tmp_path / "book" if booked else None)
    before = client.state()
    one = {name: t.clone() for name, t in client.fit(start(0)).tensors.items()}
    client.load(before)
    two = client.fit(start(1)).tensors
    bare = [of(1e-9).fit(start(s)).tensors for s in (0, 1)]
    off = max(float(((one[name] - two[name]) - (bare[0][name] - bare[1][name])).abs().max()) for name in one)
    assert off > 0.05 if booked else off < 1e-5
    assert client.told == [[4.0, 1.0, 2 if booked else 1]]


def test_a_budget_in_the_book_outlives_the_client_and_its_state(tmp_path):
    one = spent(poisson_event(2.0, 0.5, 2), 1e-3, "record")
    new = lambda: private(small(Client), 2.0, total=one, book=tmp_path / "book")
    new().fit(start())
    assert new().spends().value == pytest.approx(one.value)
    with pytest.raises(BudgetSpent): new().fit(start())
    assert json.loads((tmp_path / "book/steps-of-client-0.json").read_text()) == [[2.0, 0.5, 2]]


def serve(kind, secure, rounds=3, **options):
    "The weights after each of so many rounds without updates."
    server, found = kind(build(tiny, 0), 2, 5, noise=1.0, secure=secure, **options), []
    for r in range(rounds):
        server.begin(server.pick(list(range(6)), r), r)
        server.merge([])
        found.append({name: t.clone() for name, t in server.weights.items()})
    return server, found


@pytest.mark.parametrize("kind, options", [(DPServer, {}), (AdaptiveServer, {}), (InTurnServer, {"clients": 6}),
                                           (TreeServer, {"clients": 6})])
def test_a_server_draws_from_the_system_where_it_is_meant(kind, options):
    same = lambda a, b: all(torch.equal(t, b[name]) for name, t in a.items())
    (_, one), (_, two) = serve(kind, False, **options), serve(kind, False, **options)
    assert all(map(same, one, two))
    (_, one), (_, two) = serve(kind, True, **options), serve(kind, True, **options)
    assert not any(map(same, one, two)) and not same(one[0], one[1])


def test_a_secret_tree_has_the_same_node_in_each_of_its_rounds():
    "Round 3 of a tree is node (1, 0) and node (0, 2): what stood in round 2 is in round 3."
    server = TreeServer(build(tiny, 0), 2, 5, noise=1.0, clients=6, secure=True)
    source = partial(server.of_node, 0)
    two, three = (tree_noise(t, server.weights, 1.0, source) for t in (2, 3))
    alone = source((0, 2))
    assert all(torch.allclose(three[name] - two[name], alone(t.shape, name))
               for name, t in server.weights.items())


def test_secret_coins_are_fair_kept_for_a_round_and_not_of_the_seed():
    server = DPServer(build(tiny, 0), 300, 5, secure=True)
    ids = list(range(1000))
    assert server.pick(ids, 0) == server.pick(ids, 0) != server.pick(ids, 1)
    assert len(server.pick(ids, 0)) == pytest.approx(300, abs=60)
    other = DPServer(build(tiny, 0), 300, 5, secure=True)
    assert other.pick(ids, 0) != server.pick(ids, 0)
    other.load(server.state())
    assert other.pick(ids, 0) == server.pick(ids, 0)


def test_mods_and_means_draw_from_the_system_where_they_are_told_to():
    change, client = {"w": torch.zeros(2000)}, small(Client)
    one, two = (Noise(0.5, secure=True).leave(change, client)["w"] for _ in range(2))
    assert float(one.std()) == pytest.approx(0.5, rel=0.08) and not torch.equal(one, two)
    pairs = [({"w": torch.zeros(2000)}, 1.0)] * 2
    one, two = (NoisyMean(1.0, 1.0, None)(pairs, change)["w"] for _ in range(2))
    assert float(one.std()) == pytest.approx(0.5, rel=0.08) and not torch.equal(one, two)


def test_local_noise_on_a_machine_of_its_own_is_not_of_the_seed():
    plain, mods = of(Plain), (Clip(1.0), Noise(0.5))
    experiment = replace(plain, mods=mods, aggregate=NoisyMean(1.0, 0.5))
    here, own = experiment.at(), experiment.own_client(1)
    assert here.mods == own.mods == (Clip(1.0), Noise(0.5, secure=True)) and here.at() is here
    assert here.built_server().aggregate == NoisyMean(1.0, 0.5, seed=None)
    assert experiment.built_client(1).mods == mods and experiment.built_server().aggregate.seed == 0
    assert plain.at() is plain and SecureExperiment(experiment, 3).at().mods == here.mods


def test_noise_is_drawn_by_the_client_inside_a_wrapped_one():
    change, client = {"w": torch.zeros(50)}, small(Client)
    client.mods = (Noise(0.5),)
    expected = client.mods[0].leave(change, small(Client))
    outer = WrappedClient(WrappedClient(client))
    assert torch.equal(outer.mods[0].leave(change, outer)["w"], expected["w"])


def test_mods_act_on_what_a_record_client_answers(one_process):
    pytest.importorskip("opacus")
    inside = of(Plain, rounds=1)
    coded = RecordExperiment(replace(inside, mods=(Int8(),)), 1.0)
    assert coded.built_client(0).mods == (Int8(),)
    one, other = (trial(each).server.weights for each in (RecordExperiment(inside, 1.0), coded))
    moved = norm_of({name: t - start().tensors[name] for name, t in one.items()})
    assert 0 < norm_of({name: t - one[name] for name, t in other.items()}) < 0.02 * moved


def test_secret_noise_finds_the_server_that_adds_it():
    inside = of(Tiny)
    wrapped = SecretNoise(SecureExperiment(inside, 2), secure=True).built_server()
    assert wrapped.server.secure and not hasattr(wrapped, "secure")
    budgeted = BudgetedExperiment(inside, Epsilon(1.0, 1e-3, "client"), len)
    assert SecretNoise(budgeted, secure=True).built_server().secure
    with pytest.raises(Unfit, match="SecretNoise does not fit TurnServer"): SecretNoise(of(Plain)).built_server()


# Audits


def test_an_audit_finds_what_is_there_and_not_more():
    dice = np.random.default_rng(0)
    score = lambda far: dice.normal(far, 1, 4000)
    exact = spent(poisson_event(0.5, 1.0, 1), 1e-3, "record").value  # two deviations apart
    assert 2.5 < audited_epsilon(score(2.0), score(0.0), 1e-3) < exact
    assert 2.5 < audited_epsilon(score(0.0), score(2.0), 1e-3) < exact
    assert audited_epsilon(score(0.0), score(0.0), 1e-3) < 0.3
    assert audited_epsilon(np.ones(4000), np.zeros(4000), 1e-3) == pytest.approx(math.log(2000 / 3), abs=0.01)


# By name, and on machines of their own


@pytest.mark.parametrize("unit", ["client", "record"])
def test_both_kinds_run_by_name(unit, one_process):
    sizes = choose(profiles, "smoke", {"unit": unit, "clients": "4", "rounds": "2", "per_round": "2"})
    ended = trial(private_experiment(sizes, 0))
    assert len(ended.history.rows) == 2


def test_what_is_on_a_machine_of_its_own_is_secret(tmp_path):
    sizes = choose(profiles, "smoke", {"clients": "4", "per_round": "2"})
    central = private_experiment(sizes, 0)
    assert not central.built_server().secure and central.at().built_server().secure
    assert isinstance(central, SecretNoise) and central.own_client(1).id == 1
    local = private_experiment(replace(sizes, unit="record"), 0)
    assert local.built_client(0).book is None
    with pytest.raises(UserError, match="book=.*node-config"): local.own_client(0)
    assert local.own_client(2, book=str(tmp_path)).book == tmp_path / "steps-of-client-2.json"


def test_clients_that_cannot_be_wrapped_are_refused():
    x, y = torch.zeros(4, 1, 8, 8), ys(4)
    with pytest.raises(UserError, match="FedCBDRClient"): private(FedCBDRClient(0, x, y))
    with pytest.raises(UserError, match="Limiting"): private(small(Limiting))


@pytest.mark.parametrize("options, word", [(dict(noise=0.0), "noise"), (dict(noise=math.nan), "noise"),
                                           (dict(clip=0.0), "clip"), (dict(total=3.0), "total"),
                                           (dict(total=Epsilon(1, 1e-5, "client")), "total")])
def test_a_record_client_names_what_is_wrong(options, word):
    with pytest.raises(UserError, match=f"{word}="): private(small(Client), **options)


def test_a_client_without_records_says_so():
    with pytest.raises(UserError, match="no records"): private(small(Client, n=0)).fit(start())


def test_one_record_is_enough():
    reply = private(small(Client, n=1)).fit(start())
    assert all(t.isfinite().all() for t in reply.tensors.values())


def test_a_loss_of_records_is_let_pass(): refuse_loss(small(Client), normal(2, 3), ys(2))


def stream(id=0):
    tasks = [(normal(8, 3, seed=t), ys(8)) for t in range(2)]
    return TaskClient(id, build(tiny, 1), tasks, batch=4, lr=0.5)


def test_a_client_of_tasks_trains_privately_on_each():
    client = private(stream(), 1.5)
    for task in (0, 0, 1):
        asked = Msg({f"model/{name}": t for name, t in start().tensors.items()}, {"task": task, "old": 0})
        reply = client.fit(asked)
        assert reply.tensors.keys() == asked.tensors.keys() and reply.meta["n"] == 8
    assert client.told == [[1.5, 0.5, 6]]
    other = private(stream(), 1.5)
    other.load(client.state())
    assert other.client.task == 1 and other.told == client.told
    theirs = other.fit(asked).tensors
    assert all(torch.equal(t, theirs[name]) for name, t in client.fit(asked).tensors.items())


class LinearHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(3, 2)

    def forward(self, z): return self.classifier(z)

def farm(**changes):
    sizes = replace(FedReplaySizes(), batch=4, rate=0.5, **changes)
    return FedReplayClient(0, build(LinearHead, 1), normal(8, 3), ys(8), sizes)


def test_fedreplays_client_trains_its_head_privately_and_donates_only_when_that_is_open():
    asked = Msg(build(LinearHead, 0).state_dict(), {})
    closed, opened = private(farm()), private(farm(), open=("donate", "pool", "counts"))
    assert closed.fit(asked).meta == {"n": 8} and opened.fit(asked).meta == {"n": 8, "counts": [4, 4]}
    with pytest.raises(AttributeError, match="'donate'"): closed.donate(Msg())
    donated = opened.donate(Msg()).tensors
    assert len(donated["y"]) == 4
    opened.pool(Msg(donated))
    with pytest.raises(UserError, match="more than its records"): opened.fit(asked)


# The chapter's experiment


def test_pictures_held_back_are_with_no_client():
    sizes = choose(profiles, "smoke").narrow(clients=3)
    on_test, on_held = NarrowExperiment(sizes, 0), NarrowExperiment(sizes, 0, on_held=True)
    held, train = on_held.pictures("test"), on_held.pictures("train")
    assert (len(held), len(train)) == (sizes.held, sizes.pictures) and len(on_test.pictures("test")) == 2000
    rows = lambda pictures: {pictures.images[k].numpy().tobytes() for k in range(len(pictures))}
    assert not rows(held) & rows(train)
    with pytest.raises(UserError, match="held="): NarrowExperiment(replace(sizes, held=10_000)).chosen


@pytest.mark.parametrize("changes", [dict(cohorts=(3,)), dict(cohorts=(3, 13))])
def test_cohorts_belong_to_federations(changes):
    with pytest.raises(UserError, match="cohorts="): choose(profiles, "smoke", changes)
