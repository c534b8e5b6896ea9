"""FedKLPR: its equations against slow versions, masks and recovery bit for bit, what crosses the wire, runs that lose
replies, and the paper's profile on folders."""
import copy
import math
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest
import sklearn.cluster  # noqa: F401  imported once here, so that not every forked worker has to
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from PIL import Image
from torch import nn
from torch.nn.utils import prune

from conftest import normal, seeded
import fedbook.fedklpr
from fedbook.continual import snapshot
from fedbook.engine import Checkpoint, Faults, prove, trial
from fedbook.fedavg import Federation, Here, LocalOnly, TooFewReplies, run, weighted_average
from fedbook.fedklpr import (DIGIT_SIZES, METHODS, CrossRoundRecovery, DigitsExperiment, FedKLPRClient,
                             FedKLPRExperiment, FedKLPRServer, FedKLPRSizes, LotteryFLClient, SubFedAvgClient,
                             combine_weights, cosine_change, drop_channels, kl_regularization, kl_weight,
                             make_world, profiles, pruning_weight, world_of)
from fedbook.reid import (ProxyMemory, ReIDNet, augment, camera_contrastive_loss, cluster, cmc_map, embed,
                          first_network, hold_out, make_network, proxy_batches, rank_all, reranked_distance,
                          resnet, small_net, start_of)
from fedbook.pruning import (compress, magnitude_prune, mask_distance, masked, prunable, pruning_ratio,
                             restore, sparse_average)
from fedbook.lab import UserError
from fedbook.local import build, outputs
from fedbook.wire import Msg, Refused, pack, unpack


pytestmark = pytest.mark.usefixtures("one_process")

def unit(*shape, seed=0): return F.normalize(normal(*shape, seed=seed))

def bits(t): return t.contiguous().view(torch.int32 if t.dtype == torch.float32 else t.dtype)

def equal(a, b): return a.keys() == b.keys() and all(torch.equal(bits(a[name]), bits(b[name])) for name in a)

def copied(state): return {name: t.clone() for name, t in state.items()}

def close(a, b, tol=1e-6): return torch.allclose(a, b, rtol=0, atol=tol)

class Strike(Faults):
    "Faults at chosen places: (round, client) to the kind of fault."
    def __init__(self, hits): object.__setattr__(self, "hits", hits)

    def strike(self, round, verb, id): return self.hits.get((round, id))

TINY = replace(profiles["smoke"], height=16, width=8, clients=2, largest=32, smallest=32, test_identities=2, batch=8, rounds=4)

def world(clients=2): return world_of(replace(TINY, clients=clients), 0)

def first(): return start_of(TINY, 0)

def tiny(pruned=0.0, **changes): return FedKLPRExperiment(replace(TINY, **changes), 0, pruned=pruned)

def tried(checkpoint=None, faults=None, **changes): return trial(tiny(**changes), checkpoint, faults=faults)

def federated(sizes=TINY, faults=None, client=FedKLPRExperiment.client):
    "A run whose clients and rounds can be looked at: server, clients by id, federation, and (weights, masks, said) after each round."
    experiment, clients, seen = FedKLPRExperiment(sizes, 0), {}, []
    def make(id): return clients.setdefault(id, client(experiment, id))
    def look(server):
        seen.append((copied(server.weights), {id: copied(mask) for id, mask in server.masks.items()}, server.said))
        return {}
    server, federation = experiment.server(), Federation(Here(make), experiment.ids, faults=faults)
    run(server, federation, sizes.rounds, test=look)
    return server, clients, federation, seen

def net(): return build(partial(small_net, 4), 0)

def client_of(id=0, kind=FedKLPRClient, **options):
    return kind(id, net(), net(), world()[id].data, 0, **{"steps": 2, "batch": 8, "k1": 4, "k2": 2, "warmup": 1, "lr": 1e-3} | options)

def sent(mask=None): return Msg(compress(snapshot(first()), mask or {}), {"masks": False})

def held_at(share, state=None, step=None): return magnitude_prune(state or snapshot(first()), {}, share if step is None else step, share)

# ---- SAS

TOY = [torch.tensor(row) for row in ([1.0, 0, 3, 0], [2.0, 4, 0, 0], [3.0, 8, 0, 0])]
TOY_MASKS = [torch.tensor(row, dtype=torch.bool) for row in ([1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0])]

def average(states, masks, weights): return sparse_average([{"w": t} for t in states], [{"w": m} for m in masks], weights)["w"]

def test_the_toy_case():
    assert close(average(TOY, TOY_MASKS, [0.5, 0.3, 0.2]), torch.tensor([1.7, 5.6, 3.0, 0.0]))
    assert close(weighted_average([{"w": t} for t in TOY], [0.5, 0.3, 0.2])["w"], torch.tensor([1.7, 2.8, 1.5, 0.0]))

def several(seed, clients=3, n=24, keep=0.5):
    states = [normal(n, seed=seed + 50 * k) for k in range(clients)]
    return states, [torch.rand(n, generator=seeded(seed + 50 * k + 7)) < keep for k in range(clients)]

WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e3)), min_size=1, max_size=5)

@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS, seed=st.integers(0, 999), keep=st.floats(0, 1))
def test_the_mean_of_those_who_kept_it_position_by_position(weights, seed, keep):
    "Against a loop over positions: by hand, with the plain mean where every keeper has weight 0, and 0 without keepers."
    states, masks = several(seed, len(weights), keep=keep)
    got = average([masked({"w": t}, {"w": m})["w"] for t, m in zip(states, masks)], masks, weights)
    shares = weights if any(weights) else [1.0] * len(weights)
    for j, value in enumerate(got.tolist()):
        kept = [(w, t[j].item()) for t, m, w in zip(states, masks, shares) if m[j]]
        if not any(w for w, _ in kept): kept = [(1.0, v) for _, v in kept]
        wanted = sum(w * v for w, v in kept) / sum(w for w, _ in kept) if kept else 0.0
        assert value == pytest.approx(wanted, abs=1e-6)
        if kept: assert min(v for _, v in kept) - 1e-6 <= value <= max(v for _, v in kept) + 1e-6

def test_a_position_kept_by_one_is_bit_for_bit_the_keepers():
    states, _ = several(0)
    owner = torch.arange(24) % 3
    got = average(states, [owner == k for k in range(3)], [0.7, 0.2, 0.1])
    assert torch.equal(got, torch.stack(states).gather(0, owner[None])[0])

@pytest.mark.parametrize("weights", [[1, 1, 1], [0.1, 0.2, 0.7], [0, 0, 5]])
def test_identical_models_give_that_model(weights):
    same, (_, masks) = normal(24), several(3)
    kept = torch.stack(masks).any(0)
    assert torch.equal(average([same] * 3, masks, weights), same.masked_fill(~kept, 0))

def test_with_masks_of_ones_or_none_it_is_the_weighted_average():
    states, _ = several(1)
    plain = weighted_average([{"w": t} for t in states], [0.5, 0.3, 0.2])
    assert close(average(states, [torch.ones(24, dtype=torch.bool)] * 3, [0.5, 0.3, 0.2]), plain["w"], 1e-7)
    assert equal(sparse_average([{"w": t} for t in states], [{}] * 3, [0.5, 0.3, 0.2]), plain)

@pytest.mark.parametrize("scale", [1e-12, 3, 1e12])
def test_the_scale_of_the_weights_does_not_matter(scale):
    states, masks = several(2)
    assert close(average(states, masks, [0.5, 0.3, 0.2]), average(states, masks, [scale * w for w in (0.5, 0.3, 0.2)]))

def test_what_nobody_kept_is_zero_and_nothing_is_nan():
    states, masks = several(4, keep=0.2)
    nobody = ~torch.stack(masks).any(0)
    got = average(states, masks, [1, 0, 0])
    assert nobody.any() and (got[nobody] == 0).all() and torch.isfinite(got).all() and (got[~nobody] != 0).all()

def test_keepers_of_weight_zero_give_their_plain_mean():
    keepers = [torch.tensor([m]) for m in (False, True, True)]
    assert average([torch.tensor([v]) for v in (9.0, 1.0, 3.0)], keepers, [1, 0, 0]).item() == 2.0

def test_the_mask_counts_and_not_the_value():
    ones = torch.ones(1, dtype=torch.bool)
    assert average([torch.zeros(1), torch.full((1,), 2.0)], [ones, ones], [1, 1]).item() == 1.0
    assert average([torch.full((1,), 5.0), torch.full((1,), 2.0)], [~ones, ones], [1, 1]).item() == 2.0     # a value under a mask is not looked at

def test_averaging_leaves_its_arguments_alone():
    states, masks = several(5)
    before = [t.clone() for t in states + masks]
    average(states, masks, [0.0, 1.0, 2.0])
    assert all(map(torch.equal, before, states + masks))

def test_tensors_without_a_mask_are_averaged_plainly_and_keep_their_dtype():
    states = [{"w": torch.ones(2, 2), "bn": torch.tensor([float(k)]), "count": torch.tensor(3 * k)} for k in (1, 2)]
    masks = [{"w": torch.tensor([[True, False], [True, False]])}, {}]
    got = sparse_average(states, masks, [3, 1])
    assert got["bn"].item() == 1.25 and got["count"].item() == 4 and got["count"].dtype == torch.int64 and torch.equal(got["w"], torch.ones(2, 2))

# ---- KL, and the weights of clients

def kl_by_hand(p, q, temperature):
    p, q = (np.exp(v.double().numpy() / temperature) for v in (p, q))
    p, q = (v / v.sum(1, keepdims=True) for v in (p, q))
    return (p * np.log(p / q)).sum(1).mean()

@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_kl_by_hand_and_in_its_direction(temperature):
    current, frozen = normal(6, 9), 2 * normal(6, 9, seed=1)
    got = kl_regularization(current, frozen, temperature).item()
    assert got == pytest.approx(kl_by_hand(current, frozen, temperature), rel=1e-5) and abs(got - kl_by_hand(frozen, current, temperature)) > 1e-3

def test_gaussian_kl_is_torchs():
    current, frozen = 1 + 0.5 * normal(12, 5), 2 * normal(12, 5, seed=1)
    of = lambda f: torch.distributions.Normal(f.double().mean(0), (f.double().var(0, correction=0) + 1e-5).sqrt())
    got = kl_regularization(current, frozen, kind="gaussian").item()
    assert got == pytest.approx(torch.distributions.kl_divergence(of(current), of(frozen)).mean().item(), rel=1e-5)
    assert abs(got - torch.distributions.kl_divergence(of(frozen), of(current)).mean().item()) > 1e-2

@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), scale=st.floats(0.01, 20), temperature=st.floats(0.05, 20), kind=st.sampled_from(["softmax", "gaussian"]))
def test_kl_is_not_negative_and_zero_for_equals(seed, scale, temperature, kind):
    a, b = scale * normal(4, 7, seed=seed), scale * normal(4, 7, seed=seed + 1)
    assert kl_regularization(a, b, temperature, kind) >= -1e-6 and kl_regularization(a, a.clone(), temperature, kind) == 0

def test_kl_teaches_the_current_model():
    a = normal(4, 7).requires_grad_()
    for kind in ("softmax", "gaussian"): assert torch.autograd.grad(kl_regularization(a, normal(4, 7, seed=1), kind=kind), a)[0].abs().sum() > 0

def test_on_features_of_length_one_the_softmax_is_flat():
    a, b = normal(8, 512), normal(8, 512, seed=1)
    assert kl_regularization(F.normalize(a), F.normalize(b)) < 0.01 < 0.1 < kl_regularization(a, b)

def test_bad_arguments_of_kl():
    for wanted, options in (("one shape", dict(reference=normal(4, 6))), ("temperature=0", dict(temperature=0)), ("temperature=nan", dict(temperature=math.nan)), ("kind='js'", dict(kind="js"))):
        with pytest.raises(UserError, match=wanted): kl_regularization(normal(4, 7), **{"reference": normal(4, 7)} | options)

def test_cosine_change_by_hand():
    a, b = torch.tensor([[1.0, 0], [0, 2]]), torch.tensor([[2.0, 0], [1, 0]])
    assert cosine_change(a, b).item() == pytest.approx(0.5) and cosine_change(a, a).item() == pytest.approx(0, abs=1e-6)

NUMBERS = st.lists(st.floats(0, 1e6), min_size=1, max_size=8)

@settings(deadline=None, max_examples=60)
@given(kl=NUMBERS, gamma=st.floats(0, 1), seed=st.integers(0, 99))
def test_weights_sum_to_one(kl, gamma, seed):
    ratios = np.random.default_rng(seed).choice([0, 0.1, 0.5, 0.7, 1.0], len(kl)).tolist()
    parts = kl_weight(kl), pruning_weight(ratios), combine_weights(kl_weight(kl), pruning_weight(ratios), gamma)
    for weights in parts: assert sum(weights) == pytest.approx(1, abs=1e-9) and min(weights) >= 0
    for f, p, both in zip(*parts): assert both == pytest.approx(gamma * f + (1 - gamma) * p, abs=1e-9)

def test_klaw_by_hand():
    assert kl_weight([1, 3]) == [0.25, 0.75] and kl_weight([0, 0, 0, 0]) == [0.25] * 4 and kl_weight([0, 2]) == [0, 1]

@pytest.mark.parametrize("ratios, wanted", [([0.3] * 4, [0.25] * 4), ([0, 0, 0, 0.7], [0, 0, 0, 1]), ([0] * 4, [0.25] * 4), ([0.1, 0.3], [0.1, 0.9])])
def test_praw_by_hand(ratios, wanted): assert pruning_weight(ratios) == pytest.approx(wanted)

@pytest.mark.parametrize("job, field", [(lambda: kl_weight([]), "divergences"), (lambda: kl_weight([1, -1]), "divergences"), (lambda: kl_weight([math.nan]), "divergences"),
                                        (lambda: kl_weight([math.inf, 1]), "divergences"), (lambda: pruning_weight([1.1]), "ratios"), (lambda: pruning_weight([-0.1]), "ratios"),
                                        (lambda: combine_weights([1], [1], 1.5), "gamma"), (lambda: combine_weights([1], [1], math.nan), "gamma"), (lambda: combine_weights([1], [0.5, 0.5], 0.5), "kl")])
def test_bad_weights(job, field):
    with pytest.raises(UserError, match=field): job()

@pytest.mark.parametrize("kl", [1e308, 10**400], ids=["1e308", "10**400"])
def test_one_client_cannot_stop_a_run_with_a_huge_number(kl):
    server = tiny().server()
    replies = [(id, Msg(snapshot(first()), dict(n=9, kl=kl, cosine=0.1, masks=False))) for id in (0, 1)]
    try: [server.accept("fit", id, msg) for id, msg in replies]
    except Refused: return
    server.merge(iter(replies), [0, 1])
    assert sum(said["share"] for said in server.said.values()) == pytest.approx(1)

# ---- masks

def layers(seed=0): return {"a.weight": normal(8, 6, seed=seed), "a.bias": normal(8, seed=seed), "b.weight": normal(5, 3, 3, 3, seed=seed + 1), "count": torch.tensor(4)}

def kept(mask): return {name: int(m.sum()) for name, m in mask.items()}

def test_what_can_be_pruned():
    assert prunable(layers()) == ["a.weight", "b.weight"]
    assert prunable(net().state_dict()) and not any("neck" in name or "num_batches" in name for name in prunable(net().state_dict()))

@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 99), step=st.floats(0, 1), target=st.floats(0, 1))
def test_each_step_takes_the_floor_and_never_brings_back(seed, step, target):
    state, mask = layers(seed), {}
    for _ in range(5):
        now = magnitude_prune(state, mask, step, target)
        for name, m in now.items():
            old = mask.get(name, torch.ones_like(m))
            alive, n = int(old.sum()), m.numel()
            assert not (m & ~old).any()
            assert alive - int(m.sum()) == max(0, min(math.floor(step * alive + 1e-9), math.floor(target * n + 1e-9) - (n - alive)))
            out, left = state[name].abs()[old & ~m], state[name].abs()[m]
            assert not len(out) or not len(left) or out.max() <= left.min()
        mask = now

@pytest.mark.parametrize("step", [0.1, 0.37])
def test_the_same_weights_go_as_with_torchs_pruning(step):
    layer = nn.Conv2d(3, 5, 3, bias=False)
    layer.weight.data, mask, state = normal(5, 3, 3, 3), {}, {"w": normal(5, 3, 3, 3)}
    for _ in range(4):
        alive = int(mask["w"].sum()) if mask else 135
        prune.l1_unstructured(layer, "weight", amount=math.floor(step * alive))
        mask = magnitude_prune(state, mask, step, 1)
        assert torch.equal(mask["w"], layer.weight_mask.bool())

@pytest.mark.parametrize("step, target", [(0.1, 0.7), (0.15, 0.7), (0.3, 0.9), (1.0, 0.5)])
def test_the_target_is_met_and_not_passed(step, target):
    state, mask, ratios = {"a": normal(40, 25), "b": normal(20, 30, seed=1)}, {}, [0.0]
    while not mask or pruning_ratio(mask) > ratios[-1]:
        if mask: ratios.append(pruning_ratio(mask))
        mask = magnitude_prune(state, mask, step, target)
    assert kept(mask) == {name: t.numel() - math.floor(target * t.numel() + 1e-9) for name, t in state.items()} and ratios[-1] == pytest.approx(target) and max(ratios) <= target
    assert math.isclose(ratios[1], min(step, target), abs_tol=2e-3)

def test_ties_go_in_their_order():
    mask = magnitude_prune({"w": torch.ones(4, 5) * torch.tensor([1.0, -1, 1, -1, 1])}, {}, 0.4, 1)["w"]
    assert mask.flatten().tolist() == [False] * 8 + [True] * 12

def test_a_weight_that_is_out_stays_out_even_if_it_were_large():
    state = {"w": torch.arange(1.0, 11)[None]}
    mask = magnitude_prune(state, {}, 0.2, 1)
    later = magnitude_prune({"w": state["w"].flip(1)}, mask, 0.25, 1)
    assert later["w"].flatten().tolist() == [False] * 2 + [True] * 6 + [False] * 2

def test_ratio_of_a_mask():
    assert pruning_ratio({}) == 0 and pruning_ratio({"a": torch.tensor([True, False, False, False]), "b": torch.tensor([True] * 4)}) == 3 / 8

def test_masked_has_exact_zeros_and_the_rest_bit_for_bit():
    state = layers()
    mask = magnitude_prune(state, {}, 0.5, 1)
    got = masked(state, mask)
    for name, m in mask.items(): assert (bits(got[name])[~m] == 0).all() and torch.equal(got[name][m], state[name][m]) and (~m).any()
    assert got["a.bias"] is state["a.bias"] and equal(state, layers())

def test_distance_of_masks():
    mask = magnitude_prune(layers(), {}, 0.5, 1)
    assert mask_distance(mask, mask) == 0 and mask_distance(mask, {name: ~m for name, m in mask.items()}) == 1

MISFITS = {"another shape": {"a.weight": torch.ones(6, 8, dtype=torch.bool)}, "no bool": {"a.weight": torch.ones(8, 6)}, "another name": {"c.weight": torch.ones(8, 6, dtype=torch.bool)}}

@pytest.mark.parametrize("name", MISFITS)
def test_masks_that_do_not_fit(name):
    state, mask = layers(), MISFITS[name]
    for job in (lambda: masked(state, mask), lambda: magnitude_prune(state, mask, 0.1, 0.7), lambda: compress(state, mask), lambda: sparse_average([state], [mask], [1])):
        with pytest.raises(UserError, match=next(iter(mask))) as error: job()
        assert "\n" not in str(error.value)

def test_bad_arguments_of_averaging_and_pruning():
    with pytest.raises(UserError, match="2 states, 1 masks"): sparse_average([layers()] * 2, [{}], [1, 1])
    with pytest.raises(UserError, match="names"): sparse_average([layers(), {"a.weight": normal(8, 6)}], [{}, {}], [1, 1])
    with pytest.raises(UserError, match="weights"): sparse_average([layers()], [{}], [-1])
    for options, name in (((1.2, 0.7), "step"), ((0.1, -0.1), "target"), ((math.nan, 0.7), "step")):
        with pytest.raises(UserError, match=name): magnitude_prune(layers(), {}, *options)

def test_compressed_and_restored_bit_for_bit():
    state = layers()
    state["a.weight"][0, :3] = torch.tensor([-0.0, 0.0, -0.0])
    mask = magnitude_prune(state, {}, 0.5, 1)
    mask["a.weight"][0, :3] = True
    small = unpack(pack(Msg(compress(state, mask)))).tensors
    back = restore(small, mask)
    assert small["a.weight"].shape == (int(mask["a.weight"].sum()),) and equal(back, masked(state, mask))
    assert torch.signbit(back["a.weight"][0, :3]).tolist() == [True, False, True] and equal(restore(compress(state, {}), {}), state)

@pytest.mark.parametrize("wrong", [lambda t: t[1:], lambda t: torch.cat([t, t]), lambda t: t[None], lambda t: t[:0]])
def test_values_that_do_not_fit_a_mask(wrong):
    mask = magnitude_prune(layers(), {}, 0.5, 1)
    small = compress(layers(), mask)
    with pytest.raises(Refused, match="a.weight"): restore(small | {"a.weight": wrong(small["a.weight"])}, mask)

@pytest.mark.parametrize("regulariser", ["kl", "none"])
def test_pruned_weights_stay_exactly_zero_while_training(regulariser):
    client = client_of(steps=6, epochs=2, weight_decay=0.1, lr=0.05, regulariser=regulariser, pruning="never")
    client.mask = held_at(0.5)
    reply = client.fit(sent(client.mask))
    for name, m in client.mask.items(): assert (bits(client.model.state_dict()[name])[~m] == 0).all() and not torch.equal(reply.tensors[name], sent(client.mask).tensors[name])

def test_without_holding_them_they_would_come_back(monkeypatch):
    "What the test above guards against does happen."
    client = client_of(steps=6, weight_decay=0.1, lr=0.05, pruning="never")
    client.mask = held_at(0.5)
    monkeypatch.setattr(client, "holes", list)
    client.fit(sent(client.mask))
    assert any((client.model.state_dict()[name][~m] != 0).any() for name, m in client.mask.items())

def test_masks_only_lose_weights_in_a_run():
    sizes = replace(TINY, rounds=5, pruning="always", step=0.2, target=0.5)
    _, clients, _, seen = federated(sizes)
    for id in clients:
        ratios = [pruning_ratio(masks[id]) for _, masks, _ in seen]
        assert ratios[0] == 0 and all(a < b <= 0.5 for a, b in zip(ratios, ratios[1:4])) and max(ratios) <= 0.5
        for (_, old, _), (_, new, _) in zip(seen[1:], seen[2:]): assert not any((new[id][name] & ~m).any() for name, m in old[id].items())

# ---- CRR

def attempted(accuracy, before, pruned, threshold=0.5, **options):
    model = net()
    state, mask = snapshot(model), {}
    candidate = held_at(0.5, state)
    result, event = CrossRoundRecovery(threshold, **options).attempt(model, mask, candidate, accuracy, before, lambda: pruned)
    assert result is (candidate if event == "accepted" else mask)
    assert equal(snapshot(model), masked(state, candidate) if event == "accepted" else state)         # bit for bit
    return event

@pytest.mark.parametrize("accuracy, before, pruned, event", [
    (0.9, 0.9, 0.2, "rolled back"), (0.9, 0.9, 0.95, "accepted"), (0.9, 0.9, 0.89, "accepted"), (0.9, 0.9, 0.88, "rolled back"), (0.4, 0.4, 0.9, "waits"), (0.9, None, 0.9, "waits"),
    (0.9, 0.93, 0.9, "waits"), (0.9, 0.92, 0.9, "accepted"), (0.9, 0.6, 0.9, "accepted"), (0.5, 0.5, 0.5, "accepted")])
def test_recovery_bounds_what_is_lost(accuracy, before, pruned, event): assert attempted(accuracy, before, pruned) == event

@pytest.mark.parametrize("mode, collapse, jump, gain, drop", [("drop", "rolled back", "accepted", "accepted", "waits"), ("abs", "rolled back", "waits", "rolled back", "waits"),
                                                              ("printed", "accepted", "waits", "rolled back", "accepted")])
def test_the_three_readings_of_the_inequalities(mode, collapse, jump, gain, drop):
    "As printed a collapse is ACCEPTED, and nothing is pruned after a jump up: the reason for `drop`."
    got = [attempted(*case, mode=mode) for case in ((0.9, 0.9, 0.01), (0.9, 0.6, 0.9), (0.9, 0.9, 0.99), (0.6, 0.9, 0.6))]
    assert got == [collapse, jump, gain, drop]

@pytest.mark.parametrize("mode", ["drop", "abs", "printed"])
def test_below_the_threshold_or_in_the_first_round_nothing_is_tried(mode):
    score = lambda: pytest.fail("nothing was to be tried")
    for accuracy, before in ((0.49, 0.49), (0.9, None)):
        assert CrossRoundRecovery(0.5, mode=mode).attempt(net(), {}, held_at(0.5), accuracy, before, score) == ({}, "waits")

def test_an_unknown_reading():
    with pytest.raises(UserError, match="mode='rise'"): CrossRoundRecovery(0.5, mode="rise")

@pytest.mark.parametrize("mode, kept_back", [("drop", True), ("printed", False)])
def test_a_client_takes_a_collapse_back(mode, kept_back):
    client = client_of(mode=mode)
    client.receive(sent())
    client.rounds, client.before, client.validate = 2, 0.9, lambda: 0.0
    state = snapshot(client.model)
    assert client.prune(0.9) == ("rolled back" if kept_back else "accepted")
    assert equal(snapshot(client.model), state) == kept_back and bool(client.mask) != kept_back

def test_a_clients_threshold_is_its_best_of_the_warm_up_less_the_margin():
    client, scores = client_of(warmup=2, margin=0.1, target=0), iter([0.3, 0.6, 0.95])
    client.validate = lambda: next(scores)
    for wanted in (0.2, 0.5, 0.5):
        client.fit(sent())
        assert client.threshold == pytest.approx(wanted)
    assert client.before == 0.95

# ---- proxies and batches

CLUSTERS, CAMERAS = torch.tensor([0, 0, 1, 1, -1, 0, 2, 2, -1, 1]), torch.tensor([0, 1, 0, 0, 0, 1, 1, 1, 1, 0])

def memory_of(features=None, clusters=CLUSTERS, cameras=CAMERAS): return ProxyMemory(unit(len(clusters), 6) if features is None else features, clusters, cameras)

def test_a_proxy_is_the_mean_of_a_cluster_in_a_camera():
    features, memory = unit(10, 6), memory_of()
    pairs = list(zip(memory.cluster.tolist(), memory.camera.tolist()))
    assert pairs == [(0, 0), (0, 1), (1, 0), (2, 1)] and len(memory) == 4
    for p, pair in enumerate(pairs):
        mine = (CLUSTERS == pair[0]) & (CAMERAS == pair[1])
        assert close(memory.proxies[p], F.normalize(features[mine].mean(0), dim=0)) and (memory.member[mine] == p).all()
    assert close(memory.proxies.norm(dim=1), torch.ones(4)) and ((memory.member == -1) == (CLUSTERS == -1)).all()

@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), n=st.integers(1, 30))
def test_proxies_of_any_clusters(seed, n):
    clusters, cameras = torch.randint(-1, 5, (n,), generator=seeded(seed)), torch.randint(3, (n,), generator=seeded(seed + 1))
    if (clusters < 0).all():
        with pytest.raises(UserError, match="noise"): memory_of(unit(n, 4), clusters, cameras)
        return
    memory = memory_of(unit(n, 4), clusters, cameras)
    assert len(memory) == len({pair for pair in zip(clusters.tolist(), cameras.tolist()) if pair[0] >= 0})
    own = memory.member >= 0                                                    # the positives of a picture are those of its cluster; its own is one
    assert torch.equal(memory.cluster[memory.member[own]], clusters[own]) and torch.equal(memory.camera[memory.member[own]], cameras[own])

def test_an_update_keeps_a_fifth_and_goes_one_by_one():
    memory, f = memory_of(), unit(2, 6, seed=5)
    before = memory.proxies.clone()
    once = F.normalize(0.2 * before[2] + 0.8 * f[0], dim=0)
    memory.update(f, torch.tensor([2, 2]))
    assert close(memory.proxies[2], F.normalize(0.2 * once + 0.8 * f[1], dim=0)) and torch.equal(memory.proxies[[0, 1, 3]], before[[0, 1, 3]])

def many(proxies, each): return memory_of(unit(proxies * each, 4), torch.arange(proxies).repeat_interleave(each), torch.arange(proxies).repeat_interleave(each) % 2)

@pytest.mark.parametrize("proxies, each", [(24, 6), (10, 6), (9, 1), (11, 3), (8, 4), (3, 5), (1, 2)])
def test_batches_hold_four_of_each_of_eight_proxies(proxies, each):
    for seed in range(5):
        memory, seen = many(proxies, each), Counter({p: 0 for p in range(proxies)})
        for batch in proxy_batches(memory, 12, seeded(seed)):
            counts = Counter(memory.member[batch].tolist())
            assert set(counts.values()) == {4} and len(counts) == min(8, proxies)
            repeated = Counter(batch.tolist()).values()
            assert max(repeated) <= -(-4 // each)                                 # pictures come twice only where there are too few
            seen.update(counts.keys())
            assert max(seen.values()) - min(seen.values()) <= 1, seen             # all proxies before any comes again

def test_batches_are_a_function_of_their_generator():
    a, b, c = (torch.cat(list(proxy_batches(many(24, 6), 5, seeded(s)))) for s in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)

def test_batches_leave_out_noise():
    assert not (CLUSTERS[torch.cat(list(proxy_batches(memory_of(), 20, seeded())))] < 0).any()

# ---- the loss

def slow_loss(features, proxies, memory, temperature, intra, inter, hard):
    "CAP's two losses camera by camera and picture by picture."
    total, cameras = 0.0, [memory.camera[p].item() for p in proxies]
    for c in set(cameras):
        rows = [i for i in range(len(proxies)) if cameras[i] == c]
        for i in rows:
            logit = [float(features[i].double() @ memory.proxies[p].double()) / temperature for p in range(len(memory))]
            mine = int(proxies[i])
            here = [p for p in range(len(memory)) if memory.camera[p] == c]
            positives = [p for p in range(len(memory)) if memory.cluster[p] == memory.cluster[mine]]
            rivals = sorted((p for p in range(len(memory)) if p not in positives), key=lambda p: -logit[p])[:hard]
            lse = lambda who: math.log(sum(math.exp(logit[p]) for p in who))
            own = lse(here) - logit[mine]
            across = -sum(logit[p] - lse(positives + rivals) for p in positives) / len(positives)
            total += (intra * own + inter * across) / len(rows)
    return total

def scattered(seed=0, n=40, clusters=6, cameras=3, dim=5):
    y, c = torch.arange(n) % clusters, torch.randint(cameras, (n,), generator=seeded(seed))
    features = F.normalize(normal(clusters, dim, seed=seed)[y] + 0.7 * normal(n, dim, seed=seed + 1))
    return features, ProxyMemory(features, y, c)

@pytest.mark.parametrize("hard", [1, 3, 50])
@pytest.mark.parametrize("seed", range(3))
def test_the_loss_against_a_slow_loop(hard, seed):
    features, memory = scattered(seed)
    i = torch.randperm(40, generator=seeded(seed))[:16]
    got = camera_contrastive_loss(features[i], memory.member[i], memory, 0.1, 0.6, 0.7, hard)
    assert got.item() == pytest.approx(slow_loss(features[i], memory.member[i], memory, 0.1, 0.6, 0.7, hard), rel=1e-4)

def test_the_number_of_hard_negatives_matters():
    features, memory = scattered()
    losses = [camera_contrastive_loss(features, memory.member, memory, 0.2, 0, 1, hard).item() for hard in (1, 3, 50)]
    assert losses[0] < losses[1] < losses[2]

def test_with_one_camera_each_picture_has_one_positive_and_both_parts_are_the_full_softmax():
    features, memory = scattered(cameras=1)
    assert len(memory) == 6
    full = F.cross_entropy(features @ memory.proxies.T / 0.07, memory.member)
    for weights in ((1, 0), (0, 1), (0.6, 0.4)): assert close(camera_contrastive_loss(features, memory.member, memory, 0.07, *weights), full, 1e-5)

def test_inter_is_minus_the_log_softmax_of_a_single_positive():
    "Clusters that each live in one camera, two cameras: the rivals are those of both."
    y = torch.arange(24) % 6
    features = unit(24, 5)
    memory = ProxyMemory(features, y, y % 2)
    mine = features @ memory.proxies.T / 0.07
    wanted = -mine.log_softmax(1).gather(1, memory.member[:, None])[:, 0]
    assert close(camera_contrastive_loss(features, memory.member, memory, 0.07, 0, 1), wanted[y % 2 == 0].mean() + wanted[y % 2 == 1].mean(), 1e-5)

@pytest.mark.parametrize("weights", [(1, 0), (0, 1), (0.6, 0.7)])
def test_the_loss_falls_when_a_picture_moves_to_its_proxy(weights):
    features, y = unit(12, 8), torch.arange(12) % 4
    memory = ProxyMemory(features, y, torch.zeros(12, dtype=torch.int64))
    losses = [camera_contrastive_loss(F.normalize((1 - share) * features[:1] + share * memory.proxies[memory.member[:1]]), memory.member[:1], memory, 0.2, *weights).item() for share in (0, 0.3, 0.6, 1)]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1] + 1e-3

def test_a_clients_loss_has_the_regulariser_from_its_second_round_on():
    for regulariser, distance in (("kl", kl_regularization), ("cosine", cosine_change), ("none", lambda *_: 0)):
        client = client_of(regulariser=regulariser, delta=0.3)
        client.receive(sent())
        memory = client.memory()
        i = next(proxy_batches(memory, 1, seeded(), 2))
        x, proxies = client.data.x[i].float() / 127.5 - 1, memory.member[i]
        client.model.train(), client.reference.eval()
        client._memory, out = memory, client.model(x)
        plain = camera_contrastive_loss(F.normalize(out), proxies, memory)
        assert torch.equal(client.loss(x, proxies), plain)
        client.rounds = 1
        with torch.no_grad(): frozen = client.reference(x)
        assert close(client.loss(x, proxies), plain + 0.3 * distance(out, frozen), 1e-5)

# ---- clusters

def slow_jaccard(f, k1, k2):
    "Zhong et al. 2017 as in CAP, from sets and lists."
    f, n = f.double().numpy(), len(f)
    d = [[max(0.0, 2 - 2 * float(f[i] @ f[j])) for j in range(n)] for i in range(n)]
    order = [sorted(range(n), key=lambda j: d[i][j]) for i in range(n)]
    def mutual(i, k): return {j for j in order[i][:k + 1] if i in order[j][:k + 1]}
    rows = []
    for i in range(n):
        own = mutual(i, k1)
        wide = set(own)
        for j in own:
            half = mutual(j, round(k1 / 2))
            if 3 * len(half & own) > 2 * len(half): wide |= half
        total = sum(math.exp(-d[i][j]) for j in wide)
        rows.append([math.exp(-d[i][j]) / total if j in wide else 0.0 for j in range(n)])
    if k2 > 1: rows = [[sum(rows[m][j] for m in order[i][:k2]) / len(order[i][:k2]) for j in range(n)] for i in range(n)]
    return np.array([[1 - sum(map(min, a, b)) / sum(map(max, a, b)) for b in rows] for a in rows])

def blobs(groups, each, noise, seed=0, dim=16):
    return F.normalize(normal(groups, dim, seed=seed).repeat_interleave(each, 0) + noise * normal(groups * each, dim, seed=seed + 1))

@pytest.mark.parametrize("k1, k2", [(20, 6), (8, 3), (5, 1), (7, 2), (60, 6)])
@pytest.mark.parametrize("seed", [0, 1])
def test_reranked_distance_against_a_slow_version(k1, k2, seed):
    f = blobs(6, 8, 0.8, seed)
    got = reranked_distance(f, k1, k2)
    assert got.shape == (48, 48) and np.abs(got - slow_jaccard(f, k1, k2)).max() < 1e-5

def test_neighbours_of_neighbours_and_of_the_query_do_matter(monkeypatch):
    "Else the comparison above would not see them."
    f = blobs(6, 8, 0.8)
    assert np.abs(reranked_distance(f, 8, 3) - reranked_distance(f, 8, 1)).max() > 0.05
    narrow = reranked_distance(f, 8, 1)
    monkeypatch.setattr(fedbook.fedklpr, "expanded", lambda distance, k1: fedbook.fedklpr.reciprocal(distance, k1).tocoo())
    assert np.abs(narrow - reranked_distance(f, 8, 1)).max() > 0.01

@settings(deadline=None, max_examples=30)
@given(n=st.integers(2, 30), seed=st.integers(0, 99), k1=st.integers(1, 25), k2=st.integers(1, 8), twins=st.booleans())
def test_reranked_distance_is_a_symmetric_dissimilarity(n, seed, k1, k2, twins):
    f = unit(n, 4, seed=seed)
    if twins: f = f[torch.arange(n) // 2]
    d = reranked_distance(f, k1, k2)
    assert d.shape == (n, n) and np.isfinite(d).all() and d.min() >= 0 and d.max() <= 1 and (np.diag(d) == 0).all() and np.abs(d - d.T).max() < 1e-5

def test_too_few_pictures_to_rerank():
    for wrong in (unit(1, 4), unit(2, 4)[0]):
        with pytest.raises(UserError, match="features"): reranked_distance(wrong)

def test_clusters_are_those_that_were_put_in():
    labels = cluster(blobs(5, 10, 0.05), 8, 3)
    assert labels.dtype == torch.int64 and len(labels.unique()) == 5 and all(len(group.unique()) == 1 for group in labels.split(10))

def test_noise_is_minus_one_and_all_noise_is_a_cluster_for_each():
    f = torch.cat([blobs(3, 10, 0.05), blobs(1, 3, 0.05, seed=9)])              # three are one too few
    assert cluster(f, 8, 3)[-3:].tolist() == [-1] * 3 and len(cluster(f, 8, 3).unique()) == 4 and cluster(f, 8, 3, min_samples=3).min() == 0
    assert cluster(torch.eye(6), 4, 2, eps=1e-6).tolist() == list(range(6))
    assert cluster(unit(1, 4)).tolist() == [0] and cluster(torch.zeros(0, 4)).tolist() == []

def test_a_client_whose_every_picture_is_noise_trains_all_the_same():
    server, history, federation = tried(rounds=2, eps=1e-9, min_samples=4)
    assert not federation.ledger.absent and 0 <= history.last("rank1") <= 1
    client = client_of(eps=1e-9)
    client.receive(sent())
    assert len(client.memory()) == len(client.data.x)

# ---- pictures and networks

def test_augment_is_a_function_of_its_generator():
    x = 2 * torch.rand(16, 3, 50, 24, generator=seeded()) - 1
    before = x.clone()
    a, b, c = (augment(x, seeded(s)) for s in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c) and torch.equal(x, before)
    assert a.shape == x.shape and a.dtype == x.dtype and a.min() >= -1 and a.max() <= 1

def test_augment_mirrors_moves_and_erases():
    x = torch.ones(400, 1, 50, 24) * torch.linspace(0.1, 1, 24)
    y = augment(x, seeded(), erase=0)
    mirrored = y[:, 0, 25, 20] < y[:, 0, 25, 3]
    assert 0.4 < mirrored.float().mean() < 0.6
    assert (y == 0).float().mean((1, 2, 3)).max() < 0.15                        # the rim of at most two pixels
    covered = (augment(torch.ones(400, 1, 50, 50), seeded(), erase=1)[:, 0, 2:-2, 2:-2] == 0).float().mean((1, 2))
    assert covered.max() < 0.5 and covered.mean() > 0.1 and (augment(torch.ones(400, 1, 50, 50), seeded(), erase=0)[:, 0, 2:-2, 2:-2] == 1).all()
    assert 0.35 < (augment(torch.ones(400, 1, 50, 50), seeded())[:, 0, 2:-2, 2:-2] == 0).any(2).any(1).float().mean() < 0.65

def test_the_small_networks_features():
    model = net().eval()
    x = torch.randint(256, (5, 3, 16, 8), generator=seeded(), dtype=torch.uint8)
    assert outputs(model, x).shape == (5, 16) and close(embed(model, x).norm(dim=1), torch.ones(5)) and close(outputs(model, x, 2), outputs(model, x), 1e-5)
    assert not model.neck.bias.requires_grad and (model.neck.bias == 0).all()

@pytest.mark.parametrize("name, dim, million", [("resnet34", 512, 21.284672), ("resnet50", 2048, 23.508032)])
def test_resnets_keep_the_resolution_of_the_last_stage(name, dim, million):
    with torch.device("meta"): model = resnet(name)
    assert sum(p.numel() for p in model.body.parameters()) == round(1e6 * million) and model.neck.num_features == dim
    assert {m.stride for m in model.body[-1].modules() if isinstance(m, nn.Conv2d)} == {(1, 1)}
    with torch.device("meta"): assert model.body(torch.zeros(1, 3, 64, 32)).shape == (1, dim, 4, 2)

def test_resnets_that_cannot_be():
    with pytest.raises(UserError, match="resnet18"): resnet("resnet18")
    with pytest.raises(UserError, match="weights do not fit resnet34"): resnet("resnet34", {"conv1.weight": torch.zeros(1)})

# ---- what is held

IDENTITY, CAMERA = torch.arange(6).repeat_interleave(4), torch.tensor([0, 0, 1, 1]).repeat(6)

def test_held_out_are_whole_identities_seen_by_two_cameras():
    camera = CAMERA.clone()
    camera[:8] = 0                                                              # identities 0 and 1 by one camera only
    for share, count in ((0.0, 2), (0.3, 2), (0.5, 3), (1.0, 3)):
        train, val = hold_out(IDENTITY, camera, share, 0)
        assert sorted(train.tolist() + val.tolist()) == list(range(24)) and len(IDENTITY[val].unique()) == count
        assert not set(IDENTITY[train].tolist()) & set(IDENTITY[val].tolist()) and IDENTITY[val].min() >= 2
    draws = {tuple(hold_out(IDENTITY, camera, 0, seed)[1].tolist()) for seed in (0, 0, *range(1, 9))}
    assert 2 <= len(draws) <= 6 and torch.equal(hold_out(IDENTITY, camera, 0, 3)[1], hold_out(IDENTITY, camera, 0, 3)[1])

def test_identities_seen_by_one_camera_only():
    one = torch.zeros_like(CAMERA)
    with pytest.raises(UserError, match="identity has 0 identities seen by two cameras"): hold_out(IDENTITY, one, 0.5, 0)
    with pytest.raises(UserError, match="one camera only"): rank_all(unit(24, 4), IDENTITY, one)
    with pytest.raises(UserError, match="one camera only"): cmc_map(unit(2, 4), unit(2, 4), [1, 2], [1, 2], [0, 0], [0, 0])

def test_an_empty_gallery():
    with pytest.raises(UserError, match="gallery"): cmc_map(unit(2, 4), torch.zeros(0, 4), [1, 2], [], [0, 0], [])

def test_the_world_has_the_sizes_that_were_asked_for():
    sizes = replace(TINY, clients=3, largest=64, smallest=32, cameras=2, per_camera=4, test_identities=3, height=20, width=12, validation=0.5)
    holdings = make_world(sizes, 0)
    assert [len(h.data.x) + len(h.data.x_val) for h in holdings] == [64, 48, 32] and [len(h.data.val_ids.unique()) for h in holdings] == [4, 3, 2]
    for h in holdings: assert h.data.x.shape[1:] == (3, 20, 12) and len(h.query[0]) == 3 * 2 and len(h.gallery[0]) == 3 * 2 * 3 and h.data.x.dtype == torch.uint8
    assert torch.equal(make_world(sizes, 0)[1].data.x, holdings[1].data.x) and not torch.equal(make_world(sizes, 1)[1].data.x, holdings[1].data.x)

def test_the_start_is_pretrained_and_a_function_of_the_seed():
    raw, a, b, c = make_network(TINY, 0), first_network(TINY, 0), first_network(TINY, 0), first_network(TINY, 1)
    assert equal(snapshot(a), snapshot(b)) and not equal(snapshot(a), snapshot(c)) and not equal(snapshot(a), snapshot(raw))
    assert equal(snapshot(first_network(replace(TINY, pretrain_steps=0), 0)), snapshot(raw)) and (a.neck.bias == 0).all()

# ---- what a client says

def test_what_a_reply_holds():
    client = client_of()
    reply = client.fit(sent())
    assert reply.tensors.keys() == sent().tensors.keys() and reply.meta.keys() == {"n", "kl", "cosine", "accuracy", "event", "masks"}
    assert reply.meta["n"] == len(client.data.x) and reply.meta["event"] == "warm-up" and reply.meta["kl"] > 0 and reply.meta["cosine"] > 0 and not reply.meta["masks"]

def test_a_model_that_did_not_move_has_no_weight():
    client = client_of(pruning="never")
    client.train = lambda: None
    said = client.fit(sent()).meta
    assert said["kl"] == 0 and said["cosine"] < 1e-6

def test_kl_and_cosine_of_a_reply_by_hand():
    client = client_of(temperature=2.0)
    reply = client.fit(sent())
    now, then = (build(partial(small_net, 4), 0) for _ in range(2))
    now.load_state_dict(reply.tensors), then.load_state_dict(sent().tensors)
    a, b = (outputs(network, client.data.x_val[:32]) for network in (now, then))
    assert reply.meta["kl"] == pytest.approx(kl_regularization(a, b, 2.0).item(), abs=1e-6) and reply.meta["cosine"] == pytest.approx(cosine_change(a, b).item(), abs=1e-6)
    assert reply.meta["accuracy"] == rank_all(embed(now, client.data.x_val), client.data.val_ids, client.data.val_cameras)["rank1"]

def test_the_rate_drops_and_the_last_round_is_longer(monkeypatch):
    rates, passes, adam = [], [], torch.optim.Adam
    monkeypatch.setattr(torch.optim, "Adam", lambda p, lr, **options: rates.append((lr, options["weight_decay"])) or adam(p, lr, **options))
    client = client_of(rounds=3, epochs=2, last_epochs=4, lr=0.01, lr_drop=1, weight_decay=0.5, steps=1, pruning="never")
    memory = client.memory
    client.memory = lambda: passes.append(client.rounds) or memory()
    for _ in range(3): client.fit(sent())
    assert rates == [(0.01, 0.5)] + [(pytest.approx(0.001), 0.5)] * 2 and Counter(passes) == {0: 2, 1: 2, 2: 4}
    client.rounds, client.last_epochs = 2, 0
    client.fit(sent())
    assert Counter(passes)[2] == 4 + 2

# ---- LotteryFL and Sub-FedAvg

def test_lotteryfl_goes_back_to_the_first_weights():
    client = client_of(kind=LotteryFLClient, step=0.3, warmup=1, margin=1.0)
    client.fit(sent())
    client.train = lambda: None
    moved = Msg({name: t + 1 if t.is_floating_point() else t for name, t in sent().tensors.items()}, {"masks": False})
    reply = client.fit(moved)
    assert pruning_ratio(client.mask) == pytest.approx(0.3, abs=0.02) and reply.meta["masks"] and reply.meta["event"] == "accepted"
    assert equal(restore({name: t for name, t in reply.tensors.items() if not name.startswith("mask/")}, client.mask), masked(sent().tensors, client.mask))
    candidate = magnitude_prune(moved.tensors, {}, 0.3, 0.7)
    assert equal(client.mask, candidate)                                        # the mask is made from the weights that came

@pytest.mark.parametrize("rounds, accuracy, pruned", [(0, 1.0, False), (1, 0.49, False), (1, 0.5, True)])
def test_lotteryfl_prunes_after_the_warm_up_and_only_a_good_model(rounds, accuracy, pruned):
    client = client_of(kind=LotteryFLClient, warmup=1, margin=0.1)
    client.rounds, client.best, client.validate = rounds, 0.6, lambda: accuracy
    client.fit(sent())
    assert bool(client.mask) == pruned

@pytest.mark.parametrize("pruned, event", [(0.49, "rolled back"), (0.5, "accepted"), (0.9, "accepted")])
def test_subfedavg_prunes_while_accuracy_stays_above_its_threshold(pruned, event):
    client = client_of(kind=SubFedAvgClient, margin=0.1)
    client.receive(sent())
    client.rounds, client.best, client.validate = 1, 0.6, lambda: pruned
    client.prepare()
    client.train()
    state = snapshot(client.model)
    assert client.prune(0.7) == event and bool(client.mask) == (event == "accepted") and equal(snapshot(client.model), masked(state, client.mask))

def test_subfedavg_waits_where_training_does_not_change_the_mask():
    client = client_of(kind=SubFedAvgClient, margin=1.0)
    client.receive(sent())
    client.prepare()
    assert client.prune(0.7) == "warm-up"
    client.rounds = 1
    assert client.prune(0.7) == "waits" and client.mask == {}

# ---- the server

SAID = [dict(n=10, kl=1.0, cosine=0.3, accuracy=0.5, event="never"), dict(n=30, kl=3.0, cosine=0.1, accuracy=0.6, event="accepted")]

@pytest.mark.parametrize("weighting, wanted", [("uniform", [0.5, 0.5]), ("size", [0.25, 0.75]), ("klaw", [0.25, 0.75]), ("cdw", [0.75, 0.25]), ("klpwa", [0.3 * 0.25 + 0.7 * 0.9, 0.3 * 0.75 + 0.7 * 0.1])])
def test_the_weights_of_clients(weighting, wanted):
    assert FedKLPRServer(first(), weighting=weighting, gamma=0.3).shares(SAID, [0.3, 0.1]) == pytest.approx(wanted)

@pytest.mark.parametrize("average", ["sparse", "plain"])
def test_a_merge_by_hand(average):
    server, masks = FedKLPRServer(first(), weighting="size", average=average), [held_at(0.3), held_at(0.5)]
    states = [masked({name: t + k + 1 if t.is_floating_point() else t for name, t in snapshot(first()).items()}, mask) for k, mask in enumerate(masks)]
    replies = [(id, Msg({**compress(state, mask), **{f"mask/{name}": m for name, m in mask.items()}}, {**SAID[id], "masks": True})) for id, (state, mask) in enumerate(zip(states, masks))]
    for id, msg in replies: server.accept("fit", id, msg)
    server.merge(iter(replies), [0, 1])
    wanted = sparse_average(states, masks, [1, 3]) if average == "sparse" else weighted_average(states, [1, 3])
    assert all(close(server.weights[name], t) for name, t in wanted.items()) and all(equal(server.own[id], states[id]) and equal(server.masks[id], masks[id]) for id in (0, 1))
    for id in (0, 1): assert equal(server.personal(id), masked(server.weights, masks[id])) and equal(server.send(id).tensors, compress(server.weights, masks[id]))

def test_a_client_that_was_lost_stays_unsure_until_it_answers():
    server, state = tiny().server(), snapshot(first())
    for asked, told, unsure in (([0, 1], [1], {0}), ([1], [1], {0}), ([0, 1], [0, 1], set())):
        server.merge(iter([(id, Msg(state, SAID[id])) for id in told]), asked)
        assert server.unsure == unsure and server.send(0).meta["masks"] == (0 in unsure)

def test_merging_assigns_only_after_the_last_reply():
    server = tiny().server()
    before = pack(server.state())
    def half():
        yield 0, Msg({name: t + 1 if t.is_floating_point() else t for name, t in snapshot(first()).items()}, SAID[0])
        raise TooFewReplies
    with pytest.raises(TooFewReplies): server.merge(half(), [0, 1])
    assert pack(server.state()) == before

@lru_cache
def good():
    "A reply with a mask that is new, and its client."
    client = client_of(pruning="always", warmup=0, step=0.4)
    return unpack(pack(client.fit(sent())))

def judged(tensors=None, meta=None, server=None, drop=()):
    msg = good()
    kept_tensors = {name: t for name, t in {**msg.tensors, **(tensors or {})}.items() if name not in drop}
    (server or tiny().server()).accept("fit", 0, Msg(kept_tensors, {k: v for k, v in {**msg.meta, **(meta or {})}.items() if k not in drop}))

NAME = "body.0.weight"

def test_a_good_reply_is_accepted():
    judged()
    server = tiny().server()
    server.masks[0] = held_at(0.2)
    with pytest.raises(Refused, match="brings back"): judged({f"mask/{name}": torch.ones_like(m) for name, m in server.masks[0].items()} | snapshot(first()), server=server)

BAD_TENSORS = {
    "a mask of another shape": {f"mask/{NAME}": torch.ones(4, dtype=torch.bool)}, "a mask of floats": {f"mask/{NAME}": torch.ones(4, 3, 3, 3)},
    "a mask with another name": {"mask/nothing": torch.ones(4, dtype=torch.bool)}, "one value too many": {NAME: torch.ones(400)}, "values that are dense": {NAME: torch.ones(4, 3, 3, 3)},
    "float64": {NAME: torch.ones(65, dtype=torch.float64)}, "another tensor": {"more": torch.ones(1)}, "a mask that keeps all, values that do not": {f"mask/{NAME}": torch.ones(4, 3, 3, 3, dtype=torch.bool)},
}

@pytest.mark.parametrize("name", BAD_TENSORS)
def test_refused_tensors(name):
    with pytest.raises(Refused): judged(BAD_TENSORS[name])

@pytest.mark.parametrize("name", ["neck.running_var", "neck.weight", NAME])
def test_refused_is_a_mask_of_anything_but_all_that_can_be_pruned(name):
    "One layer alone, all of it gone, would pass for a client that pruned everything, and take PRAW's whole weight."
    state = snapshot(first())
    mask = {name: torch.zeros_like(state[name], dtype=torch.bool)}
    with pytest.raises(Refused): tiny().server().accept("fit", 0, Msg({**compress(state, mask), f"mask/{name}": mask[name]}, {**SAID[0], "masks": True}))

def test_refused_numbers_that_are_not_finite():
    for value in (math.nan, math.inf):
        with pytest.raises(Refused, match="finite"): judged({NAME: torch.full_like(good().tensors[NAME], value)})

def test_refused_is_a_reply_that_leaves_something_out():
    with pytest.raises(Refused): judged(drop=[NAME])
    with pytest.raises(Refused): judged(drop=[f"mask/{NAME}"])
    with pytest.raises(Refused): judged(drop=["masks"])                         # the values do not fit the mask that the server knows
    server = tiny().server()
    server.masks[0] = held_at(0.1)
    state = snapshot(first())
    with pytest.raises(Refused, match="brings back"): server.accept("fit", 0, Msg(state, {**good().meta, "masks": True}))

@pytest.mark.parametrize("field, values", [("n", (0, -3, 2.5, None, True, "9", 2**31, math.nan)), ("kl", (-0.1, math.nan, math.inf, None, "1", True, [1])), ("cosine", (-1e-3, math.nan, math.inf, None, "1"))])
def test_refused_numbers(field, values):
    for value in values:
        with pytest.raises(Refused, match=field): judged(meta={field: value})
    with pytest.raises(Refused, match=field): judged(drop=[field])

@pytest.mark.filterwarnings("ignore:round")
@pytest.mark.parametrize("lie", ["kl", "mask", "values"])
def test_a_run_goes_on_without_a_client_that_answers_nonsense(lie):
    class Liar(FedKLPRClient):
        def fit(self, msg):
            reply = super().fit(msg)
            if lie == "kl": reply.meta["kl"] = math.nan
            if lie == "mask": reply.tensors, reply.meta["masks"] = reply.tensors | {"mask/body.0.weight": torch.zeros(2, dtype=torch.bool)}, True
            if lie == "values": reply.tensors[NAME] = reply.tensors[NAME].flatten()[1:]
            return reply
    def make(experiment, id):
        if not id: return experiment.client(id)
        return Liar(id, *experiment.lent, world()[id].data, 0, steps=1, batch=8, k1=4, k2=2)
    server, _, federation, seen = federated(replace(TINY, rounds=2), client=make)
    assert {miss["client"] for miss in federation.ledger.absent} == {1} and len(seen) == 2 and set(server.own) == {0} and server.unsure == {1}

@pytest.mark.parametrize("options, name", [({"weighting": "fair"}, "weighting"), ({"average": "median"}, "average"), ({"gamma": 1.2}, "gamma")])
def test_bad_options_of_the_server(options, name):
    with pytest.raises(UserError, match=name): FedKLPRServer(first(), **options)

# ---- bytes

def size(state): return sum(t.nbytes for t in state.values())

def test_a_dense_round_is_four_bytes_a_weight_each_way():
    server, _, federation = tried(rounds=2, pruning="never")
    theta, buffers = sum(p.numel() for p in first().parameters()), sum(b.nbytes for b in first().buffers())
    for way in ("down", "up"):
        for r in (0, 1):
            payload = federation.ledger.payload(way=way, round=r)
            spared = 2 * (4 * theta + buffers) - payload                        # the wire writes the neck's shift, all zeros, in fewer bytes
            assert 0 <= spared <= 2 * 4 * first().neck.num_features and 0 < federation.ledger.total(way=way, round=r) - payload < 2 * 120 * len(snapshot(first()))
            for entry in federation.ledger.where(way=way, round=r):
                sizes = dict(entry.tensors)
                assert sizes.keys() == snapshot(first()).keys() and all(sizes[name] == 4 * snapshot(first())[name].numel() for name in prunable(snapshot(first())))

def test_bytes_fall_with_the_ratio():
    state, spent = snapshot(first()), []
    for ratio in (0, 0.1, 0.35, 0.7, 1.0):
        mask = held_at(ratio, step=1.0)
        small = compress(state, mask)
        assert all(small[name].nbytes == 4 * int(m.sum()) for name, m in mask.items()) and all(small[name] is state[name] for name in state.keys() - mask.keys())
        spent.append(size(small))
    assert all(a > b for a, b in zip(spent, spent[1:]))

def names(entry): return {name for name, _ in entry.tensors}

def has_mask(entry): return any(name.startswith("mask/") for name in names(entry))

def test_a_mask_travels_once_and_only_when_it_changed():
    _, _, federation, seen = federated(replace(TINY, rounds=5, pruning="always", warmup=1, step=0.3, target=0.5))
    for r, (_, masks, said) in enumerate(seen):
        for entry in federation.ledger.where(way="up", round=r):
            assert has_mask(entry) == (said[entry.client]["event"] == "accepted") == (r in (1, 2, 3))
            sizes = dict(entry.tensors)
            for name, m in masks[entry.client].items():
                assert sizes[name] == 4 * int(m.sum())
                if r in (1, 2, 3): assert sizes[f"mask/{name}"] == -(-m.numel() // 8)
    assert not any(map(has_mask, federation.ledger.where(way="down")))
    down = [federation.ledger.payload(way="down", round=r) for r in range(5)]
    assert down[0] == pytest.approx(down[1], abs=200) and down[1] > down[2] > down[3] > 0

def test_each_client_is_sent_its_own_masked_model():
    heard = {}
    class Listening(FedKLPRClient):
        def fit(self, msg):
            heard[self.rounds, self.id] = Msg(copied(msg.tensors), dict(msg.meta))
            return super().fit(msg)
    def make(experiment, id):
        options = dict(steps=2, batch=8, k1=4, k2=2, pruning="always", warmup=1, step=0.2 + 0.2 * id, target=0.7)
        return Listening(id, *experiment.lent, world()[id].data, 0, **options)
    _, _, _, seen = federated(client=make)
    assert not equal(*seen[1][1].values())
    for r, (weights, masks, _) in enumerate(seen[:-1]):
        for id in (0, 1):
            assert equal(heard[r + 1, id].tensors, compress(weights, masks[id]))
            if r: assert all(heard[r + 1, id].tensors[name].shape == (int(m.sum()),) for name, m in masks[id].items())
    assert not any(msg.meta["masks"] for msg in heard.values())

def test_what_crosses_holds_no_picture_and_no_identity():
    _, _, federation = tried(rounds=2)
    state = snapshot(first()).keys()
    assert {name.removeprefix("mask/") for e in federation.ledger.entries for name in names(e)} <= state and {e.verb for e in federation.ledger.entries} == {"fit"}

# ---- lost replies

LOST = dict(rounds=5, pruning="always", step=0.2, target=0.7, warmup=1)

@pytest.mark.parametrize("kind", ["silent", "nan"])
@pytest.mark.parametrize("r", [1, 2])
def test_a_mask_whose_reply_was_lost_is_put_back(kind, r):
    "Client 0 prunes in round r, its reply is lost: the server sends the mask that it knows, and the client takes that."
    server, clients, federation, seen = federated(replace(TINY, **LOST), faults=Strike({(r, 0): kind}))
    assert [(miss["round"], miss["client"]) for miss in federation.ledger.absent] == [(r, 0)] and len(seen) == 5 and not server.unsure
    again = [(e.round, e.client) for e in federation.ledger.where(way="down") if has_mask(e)]
    assert again == ([(r + 1, 0)] if r > 1 else [])                             # in round 1 the server knows of no mask yet, and says so without one
    steps = [len({pruning_ratio(masks.get(id, {})) for _, masks, _ in seen}) for id in (0, 1)]
    assert steps == [4, 5]
    for id in (0, 1): assert equal(clients[id].mask, server.masks[id])

def test_a_client_lost_twice_gets_its_mask_twice():
    server, clients, federation, _ = federated(replace(TINY, **LOST), faults=Strike({(2, 0): "silent", (3, 0): "nan"}))
    assert [(e.round, e.client) for e in federation.ledger.where(way="down") if has_mask(e)] == [(3, 0), (4, 0)] and not server.unsure and equal(clients[0].mask, server.masks[0])

# ---- runs

@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs(method):
    sizes = replace(TINY, clients=3, rounds=2, margin=1.0, **METHODS[method])
    server, history, federation = trial(FedKLPRExperiment(sizes, 0))
    row = history.rows[-1]
    assert not federation.ledger.absent and len(history.rows) == 2 and all(0 <= row[name] <= 1 for name in ("rank1", "mAP", "shared", "ratio"))
    assert [client["id"] for client in row["clients"]] == [0, 1, 2] and row["up"] == federation.ledger.total(way="up") and row["rank1"] == pytest.approx(np.mean([client["rank1"] for client in row["clients"]]))
    dense = METHODS[method].get("pruning") == "never"
    assert (row["ratio"] == 0) == dense and isinstance(server, LocalOnly) == (method == "local only")
    if METHODS[method].get("pruning") == "always": assert row["ratio"] == pytest.approx(sizes.step, abs=0.03)
    if not isinstance(server, LocalOnly): assert sum(client["share"] for client in row["clients"]) == pytest.approx(1)

def test_the_smoke_profile_runs():
    sizes = profiles["smoke"]
    server, history, federation = trial(FedKLPRExperiment(sizes, 0))
    assert len(history.rows) == sizes.rounds and not federation.ledger.absent and 0 <= history.last("rank1") <= 1

def test_methods_differ_where_they_should():
    "Each row of the ablation changes what is learned."
    weights = {name: tried(rounds=3, margin=1.0, **METHODS[name])[0].weights for name in METHODS if name != "local only"}
    digests = {name: b"".join(t.numpy().tobytes() for t in state.values()) for name, state in weights.items()}
    twins = [(a, b) for a in digests for b in digests if a < b and digests[a] == digests[b]]
    assert not [pair for pair in twins if not any("CRR" in name or name == "FedKLPR" for name in pair)], twins      # CRR changes nothing where it accepts all

def test_test_every_so_many_rounds_and_in_the_last():
    rows = tried(rounds=5, test_every=2)[1].rows
    assert ["rank1" in row for row in rows] == [False, True, False, True, True] and all(len(row["clients"]) == 2 for row in rows)

def test_a_run_depends_on_the_seed():
    a, b = (trial(FedKLPRExperiment(replace(TINY, rounds=1), seed)).server.weights for seed in (0, 1))
    assert not equal(a, b)

PROVEN = {"FedKLPR": {}, "always": dict(pruning="always"), "begun pruned": dict(pruned=0.5),
          "local only": METHODS["local only"],
          **{name: dict(margin=1.0, **METHODS[name]) for name in ("LotteryFL", "Sub-FedAvg")}}

@pytest.mark.parametrize("name", PROVEN)
def test_a_run_is_a_function_of_sizes_and_seed(name):
    experiment = tiny(**PROVEN[name])
    prove(experiment, kills=2)
    if name == "local only": return
    masks = trial(experiment).server.masks
    assert all(0 < pruning_ratio(masks[id]) for id in (0, 1)), "nothing was pruned: the test would be idle"

def test_so_is_one_on_digits():
    prove(DigitsExperiment(replace(DIGIT_SIZES, rounds=3, warmup=1, pruning="always"), 0), kills=2)

def ended(done): return pack(done.server.state()), done.history.rows, done.federation.states

@pytest.mark.parametrize("begun", [{}, dict(pruned=0.5)], ids=["pruned on the way", "pruned from the start"])
def test_a_lost_mask_is_remembered_across_a_kill(begun, tmp_path, kill):
    path, lost = tmp_path / "run.safetensors", {(0, 1): "silent", (1, 1): "silent"} if begun else {(2, 0): "silent"}
    job = lambda *checkpoint: tried(*checkpoint, faults=Strike(lost), **LOST, **begun)
    kill(lambda: job(Checkpoint(path)), max(r for r, _ in lost) + 1)
    assert ended(job(Checkpoint(path))) == ended(job())

USES = {"the start": lambda: first_network(TINY, 0), "the world": lambda: make_world(TINY, 3),
        "augment": lambda: augment(torch.ones(4, 3, 16, 8), seeded())}

@pytest.mark.parametrize("name", USES)
def test_the_global_generators_stay_as_they_were(name):
    torch.manual_seed(5)
    before, of_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    USES[name]()
    assert torch.equal(before, torch.get_rng_state()) and np.array_equal(of_numpy, np.random.get_state()[1])

def test_what_differs_in_training_alone_has_one_world_and_one_start():
    trained_otherwise = replace(TINY, steps=9, **METHODS["FedCAPR"])
    assert world_of(TINY, 0) is world_of(trained_otherwise, 0) is not world_of(TINY, 1)
    assert start_of(TINY, 0) is start_of(replace(trained_otherwise, clients=3), 0)
    assert start_of(TINY, 0) is not start_of(replace(TINY, channels=2), 0)
    assert equal(snapshot(start_of(TINY, 0)), snapshot(first_network(TINY, 0)))

def test_a_run_leaves_the_start_alone():
    before = snapshot(first())
    tried(rounds=1)
    assert equal(snapshot(first()), before)

def test_an_experiment_travels_and_may_be_on_some_sites_only():
    experiment = FedKLPRExperiment(replace(TINY, clients=3, rounds=1), 0, sites=(0, 2))
    other = pickle.loads(pickle.dumps(experiment))
    assert other == experiment and other.ids == [0, 1]
    assert all(torch.equal(other.world[id].data.x, world(3)[site].data.x) for id, site in ((0, 0), (1, 2)))
    assert ended(trial(other)) == ended(trial(experiment))

def test_training_makes_the_loss_fall():
    client, labels = client_of(steps=20, epochs=4, batch=16, lr=3e-3, pruning="never"), torch.arange(16) // 8
    client.receive(sent())
    client.clusters = lambda features: labels                                   # as if the clusters were the two identities
    def now():
        kept_state = snapshot(client.model)
        with torch.no_grad(): features = F.normalize(client.model.train()(client.data.x.float() / 127.5 - 1))
        client.model.load_state_dict(kept_state)
        memory = ProxyMemory(features, labels, client.data.cameras)
        return camera_contrastive_loss(features, memory.member, memory).item()
    before = now()
    client.train()
    assert now() < 0.8 * before

def on_digits(**changes): return trial(DigitsExperiment(replace(DIGIT_SIZES, rounds=3, **changes), 0))

def test_digits_prune():
    done, dense = on_digits(pruning="always", warmup=1, step=0.3), on_digits(pruning="never")
    assert 0.5 < done.history.last("accuracy") <= 1 and 0 <= done.history.last("next") <= 1
    assert done.history.last("ratio") == pytest.approx(1 - 0.7**2, abs=0.01)
    assert not done.federation.ledger.absent
    assert dense.history.last("ratio") == 0 and done.history.rows[0]["events"] == ["warm-up"] * 4

# ---- channels

def test_dropped_channels_are_those_of_the_smallest_sum_and_the_rest_answers_as_before():
    "A channel that is left out is one whose outgoing weights are zero."
    model, before, x = copy.deepcopy(first()).eval(), snapshot(first()), normal(4, 3, 16, 8)
    thin = drop_channels(model, 0.5).eval()
    assert equal(snapshot(model), before)
    for full, small in zip(model.body[3:], thin.body[3:]):
        sums = full.main[0].weight.abs().sum((1, 2, 3))
        out = sums.argsort()[:len(sums) // 2]
        assert small.main[0].out_channels == small.main[1].num_features == small.main[3].in_channels == len(sums) // 2 and small.main[0].weight.shape[0] == len(sums) // 2
        with torch.no_grad(): full.main[3].weight[:, out] = 0
    assert close(thin(x), model(x), 1e-5) and equal(snapshot(drop_channels(first(), 0.0)), before)
    assert sum(p.numel() for p in thin.parameters()) < 0.7 * sum(p.numel() for p in first().parameters())

def test_at_least_one_channel_stays(): assert {block.main[0].out_channels for block in drop_channels(first(), 1.0).body[3:]} == {1}

def test_a_thin_network_is_trained_by_the_same_federation():
    thin = drop_channels(first(), 0.5)
    sizes = replace(TINY, rounds=2, pruning="never")
    server, history, federation = trial(FedKLPRExperiment(sizes, 0, start=thin))
    assert server.weights.keys() == snapshot(thin).keys() and not federation.ledger.absent and federation.ledger.total() < 0.7 * tried(rounds=2, pruning="never")[2].ledger.total()

# ---- a mask to begin with

def test_a_run_may_begin_with_one_mask_for_all():
    server, history, federation = tried(pruned=0.5, rounds=3, pruning="never")
    assert all(equal(server.masks[id], held_at(0.5)) for id in (0, 1)) and [row["ratio"] for row in history.rows] == [pruning_ratio(held_at(0.5))] * 3
    assert [(e.round, e.client) for e in federation.ledger.where(way="down") if has_mask(e)] == [(0, 0), (0, 1)] and not any(map(has_mask, federation.ledger.where(way="up")))
    for name, m in held_at(0.5).items(): assert (server.weights[name][~m] == 0).all()

# ---- sizes

CLIENT = dict(epochs=3, steps=7, batch=16, last_epochs=9, lr=0.5, lr_drop=3, weight_decay=0.3, delta=0.4, temperature=3.0, kind="gaussian", kl_input="unit", pruning="always", step=0.33, target=0.44, warmup=5, margin=0.05)
PARTIAL = {"clusters": dict(k1=5, k2=1, eps=0.3, min_samples=2), "recovery": dict(delta_rd=0.3, delta_ep=0.2, mode="abs")}
SERVER = dict(weighting="cdw", average="plain", gamma=0.9)

def made(name, value):
    experiment = tiny(**{name: value})
    return experiment.client(1), experiment.server()

@pytest.mark.parametrize("name", CLIENT)
def test_each_size_reaches_the_client(name): assert getattr(TINY, name) != getattr(made(name, CLIENT[name])[0], name) == CLIENT[name]

@pytest.mark.parametrize("where, name", [(where, name) for where, changes in PARTIAL.items() for name in changes])
def test_each_size_reaches_the_part_of_the_client_that_uses_it(where, name):
    value = PARTIAL[where][name]
    assert getattr(TINY, name) != getattr(made(name, value)[0], where).keywords[name] == value

@pytest.mark.parametrize("name", SERVER)
def test_each_size_reaches_the_server(name): assert getattr(TINY, name) != getattr(made(name, SERVER[name])[1], name) == SERVER[name]

def test_the_rest_of_the_sizes_reaches_client_and_server():
    assert made("rounds", 17)[0].last_round == 16
    assert [made("regulariser", kind)[0].regulariser for kind in ("cosine", "none")] == [cosine_change, None]
    kl = made("regulariser", "kl")[0]
    assert kl.regulariser == kl.divergence and kl.id == 1 and torch.equal(kl.data.x, world()[1].data.x)
    assert [type(made("pruning", kind)[0]) for kind in ("lottery", "subfedavg", "recover", "always", "never")] == [LotteryFLClient, SubFedAvgClient] + [FedKLPRClient] * 3
    assert type(tiny(weighting="alone", pruning="never").server()) is LocalOnly and equal(made("gamma", 0.2)[1].weights, snapshot(first()))
    crr = kl.recovery(0.5)
    assert (crr.threshold, crr.delta_rd, crr.delta_ep) == (0.5, TINY.delta_rd, TINY.delta_ep)

def test_the_network_has_the_channels_that_were_asked_for():
    assert make_network(replace(TINY, channels=6), 0).neck.num_features == 24 and not equal(snapshot(make_network(TINY, 0)), snapshot(make_network(TINY, 1)))

BAD = dict(data="cifar", network="vgg", regulariser="l2", kind="laplace", pruning="sometimes", weighting="fair", average="median", mode="rise", clients=0, cameras=0, per_camera=0, rounds=0, epochs=0,
           steps=0, batch=0, k1=0, k2=0, min_samples=0, test_every=0, digits_seeds=0, digits_rounds=0, crowd=0, validation=1.5, step=1.01, target=2.0, gamma=-0.1, temperature=0.0, lr=-1.0, delta=math.nan,
           seeds=0, weight_decay=-1e-4, eps=0.0, channels=0)

@pytest.mark.parametrize("name", BAD)
def test_sizes_that_cannot_be(name):
    with pytest.raises(UserError, match=f"^{name}=") as error: FedKLPRSizes(**{name: BAD[name]})
    assert "\n" not in str(error.value)

def test_pruning_without_a_server_is_refused_or_runs():
    try: federation = tried(weighting="alone", pruning="always", rounds=3)[2]
    except UserError: return
    assert not federation.ledger.absent

def test_a_batch_is_of_fours():
    with pytest.raises(UserError, match="batch=30"): FedKLPRSizes(batch=30)

@pytest.mark.parametrize("options", [dict(smallest=65, largest=64), dict(per_camera=1), dict(height=4)])
def test_worlds_that_cannot_be(options):
    with pytest.raises(UserError) as error: make_world(replace(TINY, **options), 0)
    assert "\n" not in str(error.value)

# ---- the paper's profile, on folders

PARTS = {"Market-1501-tiny": ("bounding_box_train", "query", "bounding_box_test"), "viper": ("train_all", "query", "gallery")}

def draw(folder, name, who, camera):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([who, camera, len(name)])
    picture = np.random.default_rng(who).integers(40, 200, (5, 3, 3)).repeat(4, 0).repeat(4, 1)[:20, :10] + 20 * camera + rng.integers(-15, 15, (20, 10, 3))
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(folder / name)

@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for k, (name, (train, query, gallery)) in enumerate(PARTS.items()):
        for who in range(1, 7):
            for camera in (1, 2):
                for shot in range(3): draw(root / name / train, f"{who:04d}_c{camera}s1_{shot:06d}_00.jpg", 10 * k + who, camera)
        for who in (11, 12, 13):
            draw(root / name / query, f"{who:04d}_c1s1_000000_00.jpg", 10 * k + who, 1)
            for shot in range(2): draw(root / name / gallery, f"{who:04d}_c2s1_{shot:06d}_00.jpg", 10 * k + who, 2)
    return root

PAPER = replace(profiles["paper"], sets=("market1501", "viper"), clients=2, network="resnet34", weights="", height=32, width=16, rounds=2, epochs=1, steps=1, last_epochs=0, batch=8,
                validation=0.34, k1=4, k2=2, warmup=0, pruning="always")

def test_the_papers_profile_says_what_the_paper_does():
    sizes = profiles["paper"]
    assert (sizes.clients, sizes.rounds, sizes.epochs, sizes.target, sizes.network, len(sizes.sets)) == (8, 20, 5, 0.7, "resnet50", 8)
    assert (sizes.k1, sizes.k2, sizes.eps, sizes.min_samples, sizes.batch, sizes.lr, sizes.weight_decay, sizes.delta, sizes.height, sizes.width) == (20, 6, 0.5, 4, 32, 3.5e-4, 5e-4, 0.13, 256, 128)

def test_the_papers_profile_runs_on_folders(folders, monkeypatch):
    "With one block in each stage in place of three to six, for speed."
    models = pytest.importorskip("torchvision.models")
    monkeypatch.setattr(models, "resnet34", lambda: models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1]))
    monkeypatch.setenv("FEDBOOK_DATA", str(folders))
    held, begin = world_of(PAPER, 0), start_of(PAPER, 0)
    assert [h.name for h in held] == ["Market-1501", "VIPeR"]
    for h in held: assert h.data.x.shape == (24, 3, 32, 16) and len(h.data.val_ids.unique()) == 2 and len(h.query[0]) == 3 and len(h.gallery[0]) == 6
    want = trial(FedKLPRExperiment(PAPER, 0))
    assert [("rank1" in row) for row in want[1].rows] == [False, True] and not want[2].ledger.absent and "body.7.0.conv2.weight" in want[0].masks[0]
    assert all(pruning_ratio(want[0].masks[id]) == pytest.approx(1 - (1 - PAPER.step)**2, abs=0.01) for id in (0, 1))
    down = [want[2].ledger.payload(way="down", round=r) for r in (0, 1)]
    assert down[0] == pytest.approx(2 * 4 * sum(p.numel() for p in begin.parameters()), rel=0.01) and down[1] == pytest.approx((1 - PAPER.step) * down[0], rel=0.01)

def test_a_set_that_is_not_there(folders, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(folders))
    with pytest.raises(UserError, match="DukeMTMC-reID is not there; put the folders"): make_world(replace(PAPER, sets=("duke",), clients=1), 0)
    with pytest.raises(UserError, match="'msmt17' is unknown"): make_world(replace(PAPER, sets=("msmt17",), clients=1), 0)

@pytest.mark.parametrize("what, wanted", [("other names", "holiday.jpg, expected names like 0002_c1s1"), ("empty gallery", "no pictures"), ("one camera", "seen by two cameras")])
def test_folders_that_will_not_do(what, wanted, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    root = tmp_path / "Market"
    for who in range(1, 5):
        for camera in (1, 2):
            for part in ("bounding_box_train", "query", "bounding_box_test"):
                draw(root / part, f"{who:04d}_c{1 if what == 'one camera' else camera}s1_{camera:06d}_00.jpg", who, camera)
    if what == "other names": draw(root / "bounding_box_train", "holiday.jpg", 1, 1)
    if what == "empty gallery":
        for f in (root / "bounding_box_test").iterdir(): f.unlink()
    with pytest.raises(UserError, match=wanted) as error: make_world(replace(PAPER, sets=("market1501",), clients=1), 0)
    assert "\n" not in str(error.value)

# ---- the module

def test_importing_it_imports_little():
    heavy = ["matplotlib", "ipywidgets", "torchvision", "open_clip", "timm", "sklearn", "torchmetrics", "papermill", "flwr", "nbdev"]
    code = f"import sys, fedbook.fedklpr; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"

# ---- what reviews found

def test_what_only_an_absent_client_kept_is_not_lost():
    server, masks = FedKLPRServer(first(), weighting="uniform"), [held_at(0.5), {name: ~m for name, m in held_at(0.5).items()}]
    state = {name: t + 1 if t.is_floating_point() else t for name, t in snapshot(first()).items()}
    server.masks, server.weights = dict(enumerate(masks)), state
    reply = Msg(compress({name: 2 * t for name, t in state.items()}, masks[1]), SAID[1])
    server.merge(iter([(1, reply)]), [0, 1])
    for name, m in masks[0].items(): assert torch.equal(server.weights[name][m], state[name][m]) and torch.equal(server.weights[name][~m], 2 * state[name][~m])

def test_what_nobody_keeps_is_zero_even_if_somebody_is_absent():
    server, mask = FedKLPRServer(first(), weighting="uniform"), held_at(0.5)
    server.masks = {0: mask, 1: mask}
    server.merge(iter([(1, Msg(compress(snapshot(first()), mask), SAID[1]))]), [0, 1])
    for name, m in mask.items(): assert (server.weights[name][~m] == 0).all() and (server.weights[name][m] != 0).any()

def test_the_start_does_not_depend_on_the_number_of_threads():
    before = torch.get_num_threads()
    try:
        states = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            states.append(snapshot(first_network(replace(TINY, pretrain_steps=2), 0)))
    finally: torch.set_num_threads(before)
    assert equal(*states)

def test_the_fixed_batch_is_of_all_control_identities(monkeypatch):
    client, seen = client_of(pruning="never", steps=1), []
    data = client.data
    client.data = data._replace(x_val=torch.arange(100, dtype=torch.uint8)[:, None, None, None].expand(100, *data.x_val.shape[1:]), val_ids=torch.arange(100), val_cameras=torch.arange(100) % 2)
    monkeypatch.setattr("fedbook.fedklpr.outputs", lambda network, x, *_: seen.append(x[:, 0, 0, 0].tolist()) or torch.ones(len(x), 3))
    client.reply(0.5, "never", False)
    assert seen[0] == seen[1] and len(seen[0]) == 32 and seen[0][0] == 0 and seen[0][-1] == 99

@pytest.mark.parametrize("event", [None, "", {"a": 1}, "maybe", 3])
def test_refused_is_an_event_that_is_none(event):
    with pytest.raises(Refused, match="event"): judged(meta={"event": event})

@pytest.mark.parametrize("changes, named", [(dict(network="resnet34", weights="auto"), "weights"), (dict(network="small", weights="x.pth"), "weights")])
def test_weights_that_cannot_be_had(changes, named):
    with pytest.raises(UserError, match=named): make_network(replace(TINY, **changes), 0)

def test_goals_may_be_texts_and_must_be_numbers():
    assert replace(TINY, goals=tuple("0.5" for _ in range(TINY.clients))).goals == (0.5,) * TINY.clients
    with pytest.raises(UserError, match="goals"): replace(TINY, goals=("high",) * TINY.clients)
    assert made("goals", (0.1, 0.9, 0.3)[:TINY.clients])[0].threshold == pytest.approx(0.9 - TINY.margin)

@pytest.mark.parametrize("network, share", [(lambda: net(), 1.5), (lambda: net(), -0.1), (lambda: ReIDNet(nn.Sequential(nn.Conv2d(3, 4, 1)), 4), 0.5)])
def test_channels_that_cannot_be_dropped(network, share):
    with pytest.raises(UserError): drop_channels(network(), share)

@pytest.mark.parametrize("option", ["regulariser", "kind", "kl_input", "pruning", "mode"])
def test_a_client_knows_its_choices(option):
    with pytest.raises(UserError, match=option): FedKLPRClient(0, net(), net(), world()[0].data, **{option: "sometimes"})

def test_large_divergences_still_give_weights(): assert kl_weight([1e308, 1e308, 0]) == [0.5, 0.5, 0]
