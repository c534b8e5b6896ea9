import base64
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, logsumexp
from scipy.stats import norm
from torch import nn

from conftest import AT_NIGHT, normal

pytest.importorskip("flwr")

from fedbook.engine.workers import prove, trial
from fedbook.engine.federation import Client, Experiment, weighted_average
from fedbook.methods.fedavg import FedAvgExperiment
from fedbook.engine.errors import UserError
from fedbook.engine.sizes import choose
from fedbook.engine.local import build, generator, predict
from fedbook.privacy.private import (DPClient, DPServer, Job, clip_update, dp_experiment, epsilon,
                                     find_seeds, first_words, folded_seed, guess_labels, key_seed, mask_of,
                                     mask_vectors, mean_of, noise_for, norm_of, peel, profiles, secagg_round,
                                     secagg_runs, whole_numbers)
from fedbook.methods.score import accuracy
from fedbook.engine.wire import Msg, Refused


# What an update tells


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_one_step_on_few_pictures_names_their_classes(labels, seed):
    logits = (0.3 * normal(len(labels), 10, seed=seed)).requires_grad_()
    nn.functional.cross_entropy(logits, torch.tensor(labels)).backward()
    moves = -logits.grad.sum(0)
    expected = np.bincount(labels, minlength=10) - logits.detach().softmax(1).sum(0).numpy()
    assert np.allclose(len(labels) * moves, expected, atol=1e-5)
    assert guess_labels(moves) == np.flatnonzero(expected > 0).tolist()


# Secure aggregation


def test_whole_numbers_by_hand():
    assert whole_numbers(np.array([-9.0, -1.0, 0.0, 0.5, 9.0]), clip=1.0,
                         levels=4).tolist() == [0, 0, 2, 3, 4]


@given(st.integers(1, 6), st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_masks_cancel_in_the_sum_to_the_last_bit(n, seed):
    x = np.random.default_rng(seed).normal(size=(n, 50))
    whole = whole_numbers(x)
    total = mask_vectors(whole, seed).sum(0) % 2**32
    assert (total == whole.sum(0)).all()
    assert np.abs(mean_of(total, n) - x.mean(0)).max() <= 16 / 2**22


def test_a_masked_upload_looks_uniform():
    uploads = mask_vectors(np.zeros((3, 10000), np.int64), 0)
    counts = np.array([np.bincount(row >> 28, minlength=16) for row in uploads])
    assert counts.min() > 450 and counts.max() < 800


def test_no_seed_of_a_mask_has_more_than_28_bits():
    flower = pytest.importorskip("flwr.common.secure_aggregation.secaggplus_utils")
    draw = np.random.default_rng(0)
    for _ in range(20):
        key = base64.urlsafe_b64encode(draw.bytes(32))
        seed, shapes = folded_seed(key), [(1,), (2, 3)]
        assert seed & 0x80808080 == 0
        assert all((a == b).all() for a, b in zip(flower.pseudo_rand_gen(key, 2**32, shapes),
                                                  mask_of(seed, shapes), strict=True))


def test_flower_makes_its_pairwise_keys_in_base64():
    keys = secagg_round([np.zeros(1), np.zeros(1)], [1, 1])["keys"]
    assert keys[1, 2] == keys[2, 1] and len(base64.urlsafe_b64decode(keys[1, 2])) == 32


def test_key_seeds_are_all_different_and_only_those_without_top_bits():
    some = key_seed(np.arange(0, 2**28, 997))
    assert len(set(some.tolist())) == len(some) and not (some & 0x80808080).any()
    assert key_seed(2**28 - 1) == 0x7F7F7F7F


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
@settings(max_examples=20, deadline=None)
def test_first_words_are_those_of_numpys_generator(seeds):
    words = [np.random.RandomState(seed).randint(0, 2**32, dtype=np.uint64) for seed in seeds]
    assert first_words(np.array(seeds, np.uint32)).tolist() == words


@pytest.mark.parametrize("at", [1000, 1234, 4999])
def test_a_seed_is_found_where_it_lies_and_not_beside(at):
    word = first_words(key_seed([at]))[0]
    assert int(key_seed(at)) in find_seeds(word, 1000, 5000, chunk=700)[0]
    beside = find_seeds(word, 1000, at, chunk=700)[0] + find_seeds(word, at + 1, 5000, chunk=700)[0]
    assert int(key_seed(at)) not in beside


def test_the_server_learns_the_sum_and_with_one_seed_each_summand():
    vectors, counts = [normal(40, seed=k).numpy() for k in range(3)], [300, 500, 200]
    seen = secagg_round(vectors, counts)
    left = {id: peel(seen["masked"][id], folded_seed(seen["own"][id]), 1) for id in seen["masked"]}
    shares = [round(count / 500 * 2**22) for count in counts]
    assert sum(vector[0][0] for vector in left.values()) % 2**32 == sum(shares)

    first = peel(left[1], folded_seed(seen["keys"][1, 3]), -1)
    missing = folded_seed(seen["keys"][1, 2])
    assert first_words(np.array([missing]))[0] == (shares[0] - first[0][0]) % 2**32
    bare = peel(first, missing, -1)
    assert bare[0][0] == shares[0]
    assert np.abs((bare[1] * 16 / 2**22 - 8) * 2**22 / shares[0] - vectors[0]).max() < 2 * 16 / 2**22
    assert peel(first, missing ^ 1, -1)[0][0] != shares[0]


def few():
    sizes = choose(profiles, "smoke")
    return replace(sizes, clients=sizes.secagg_clients, per_round=sizes.secagg_clients, batch=100, lr=0.05)

def averaged(sizes, ids):
    "Accuracy of FedAvg's model after one round with clients `ids`, computed here."
    experiment, replies = FedAvgExperiment(sizes), []
    for id in ids:
        client = experiment.client(id)
        client.generator = generator(0, id, 1)
        msg = client.fit(Msg(experiment.network().state_dict()))
        replies.append(({name: t.clone() for name, t in msg.tensors.items()}, msg.meta["n"]))
    x, y = experiment.pictures("test").tensors()
    return accuracy(predict(experiment.network(), weighted_average(*zip(*replies)), x), y)


@pytest.fixture(scope="module")
def secagg():
    "One round of each kind, all in one simulation."
    pytest.importorskip("ray")
    jobs = {"secure": Job(), "plain": Job(secure=False),
            "leaves late": Job(threshold=2, leaving=("collect_masked_vectors", [0])),
            "leaves early": Job(threshold=2, leaving=("share_keys", [0]))}
    return {name: history.rows[0] for name, history in zip(jobs, secagg_runs(few(), list(jobs.values())))}


@AT_NIGHT
def test_secure_aggregation_gives_fedavgs_model_in_four_exchanges(secagg):
    sizes, row, plain = few(), secagg["secure"], secagg["plain"]
    assert row["moved"] and row["failed"] == plain["failed"] == 0
    assert (row["exchanges"], plain["exchanges"]) == (4, 1)
    alone = averaged(sizes, range(sizes.clients))
    assert abs(row["accuracy"] - alone) < 0.005 and abs(plain["accuracy"] - alone) < 0.005
    weights = sizes.clients * sum(t.numel() for t in FedAvgExperiment(sizes).network().parameters())
    assert 8 * weights < row["up"] < 1.03 * 8 * weights and 4 * weights < plain["up"] < 1.03 * 4 * weights


@AT_NIGHT
def test_a_client_that_leaves_after_sharing_its_keys_is_left_out(secagg):
    row, sizes = secagg["leaves late"], few()
    assert row["moved"] and row["failed"] == 1
    assert abs(row["accuracy"] - averaged(sizes, range(1, sizes.clients))) < 0.005


@AT_NIGHT
def test_a_client_that_leaves_before_it_shares_its_keys_costs_the_round(secagg):
    assert not secagg["leaves early"]["moved"] and secagg["leaves early"]["failed"] > 1


# Differential privacy


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


def tiny(): return nn.Linear(3, 2)

def dp_client(id, clip=1.0, lr=0.5):
    return DPClient(id, build(tiny, 1), normal(8, 3, seed=id), torch.arange(8) % 2, seed=0, batch=4, lr=lr,
                    clip=clip)


def test_a_private_client_answers_its_update_and_nothing_else():
    start = build(tiny, 0).state_dict()
    plain = Client(3, build(tiny, 1), normal(8, 3, seed=3), torch.arange(8) % 2, seed=0, batch=4, lr=0.5)
    trained, reply = plain.fit(Msg(start)).tensors, dp_client(3, clip=1e6).fit(Msg(start))
    assert reply.meta == {}
    assert all(torch.equal(reply.tensors[name], trained[name] - t) for name, t in start.items())
    assert norm_of(dp_client(3, clip=0.01).fit(Msg(start)).tensors) == pytest.approx(0.01, rel=1e-5)


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
                          (dict(noise=-1.0), "noise"),
                                           (dict(noise=math.nan), "noise"), (dict(clip=0.0), "clip")])
def test_a_private_server_names_what_is_wrong(changes, word):
    with pytest.raises(UserError, match=f"{word}="): DPServer(build(tiny, 0), **{"per_round": 2, **changes})


class Tiny(Experiment):
    def client(self, id): return dp_client(id, clip=0.5)

    def server(self): return DPServer(build(tiny, 0), per_round=3, seed=self.seed, clip=0.5, noise=0.7)


def test_a_private_run_is_a_function_of_its_seed():
    prove(Tiny(replace(choose(profiles, "smoke"), clients=6, rounds=3), 3))


def test_a_private_trial_learns_and_sends_as_many_bytes_a_client(one_process):
    sizes = replace(choose(profiles, "smoke"), clients=100, per_round=20, rounds=1)
    _, history, federation = trial(dp_experiment(sizes, noise=0.0))
    _, noisy, noisy_federation = trial(dp_experiment(sizes, noise=100.0))
    assert history.last("accuracy") > 0.3 > noisy.last("accuracy")
    assert history.last("down") == noisy.last("down")
    assert len(federation.ledger.where(way="up")) == len(noisy_federation.ledger.where(way="up"))


# The accountant


def by_integer_orders(noise, rate, rounds, delta, orders=range(2, 200)):
    """Mironov, Talwar and Zhang 2019, section 3.3, with the conversion of Canonne, Kamath and Steinke 2020,
    proposition 12."""
    def spent(a):
        k = np.arange(a + 1)
        choose_k = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1)
        rest = (a - k) * math.log(1 - rate) if rate < 1 else np.where(k == a, 0.0, -np.inf)
        renyi = rounds * logsumexp(choose_k + k * math.log(rate) + rest
                                   + k * (k - 1) / (2 * noise**2)) / (a - 1)
        return renyi + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
    return min(map(spent, orders))

def exact_without_sampling(noise, rounds, delta):
    "Balle and Wang 2018, theorem 8: the least epsilon of `rounds` Gaussian sums, by bisection."
    mu, low, high = math.sqrt(rounds) / noise, 0.0, 1000.0
    spent = lambda e: norm.cdf(mu / 2 - e / mu) - math.exp(e + norm.logcdf(-mu / 2 - e / mu))
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("noise, rate, rounds", [(1.0, 0.01, 1000), (2.0, 0.2, 8), (5.0, 0.5, 16),
                                                 (1.0, 1.0, 5)])
def test_epsilon_agrees_with_the_formula_for_integer_orders(noise, rate, rounds):
    pytest.importorskip("dp_accounting")
    ours, theirs = by_integer_orders(noise, rate, rounds, 1e-5), epsilon(noise, rate, rounds, 1e-5)
    assert 0.97 * ours <= theirs <= ours * (1 + 1e-6)


@pytest.mark.parametrize("noise, rounds", [(1.0, 5), (5.0, 10), (10.0, 100)])
def test_epsilon_is_above_the_exact_one_and_near_it(noise, rounds):
    pytest.importorskip("dp_accounting")
    exact = exact_without_sampling(noise, rounds, 1e-5)
    assert exact <= epsilon(noise, 1.0, rounds, 1e-5) <= 1.15 * exact


def test_noise_for_is_the_least_that_keeps_the_target():
    pytest.importorskip("dp_accounting")
    noise = noise_for(2.0, 0.2, 8, 1e-5)
    assert epsilon(noise, 0.2, 8, 1e-5) <= 2.0 < epsilon(noise * 0.998, 0.2, 8, 1e-5)


def test_no_noise_is_no_privacy():
    pytest.importorskip("dp_accounting")
    assert epsilon(0.0, 0.2, 8, 1e-5) == math.inf


def test_a_missing_accountant_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"fedbook\[dp\]"): epsilon(1.0, 0.2, 8, 1e-5)


@pytest.mark.parametrize("wrong", [dict(noise=-1), dict(rate=0), dict(rate=1.5), dict(rounds=0),
                                   dict(rounds=2.5), dict(delta=0), dict(delta=1)])
def test_numbers_out_of_range_are_named(wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))}="):
        epsilon(**{**dict(noise=1.0, rate=0.2, rounds=8, delta=1e-5), **wrong})
