"""FedKLPR: its equations against slow versions, recovery bit for bit, what crosses the wire, runs that lose
replies, and the paper's profile on folders."""
import copy
import itertools
import math
import pickle
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

import fedbook.fedklpr
import fedbook.methods.reid
from conftest import AT_NIGHT, Strike, bits, by_day, close, copied, equal_bits as equal, normal
from fedbook.engine.sizes import choose
from fedbook.engine.local import snapshot
from fedbook.engine.workers import Checkpoint, prove, trial
from fedbook.engine.federation import Federation, InProcess, LocalOnly, TooFewReplies, run, weighted_average
from fedbook.evidence.fedklpr import (DIGIT_SIZES, METHODS, DigitsExperiment, FedKLPRLabExperiment, FedKLPRLabSizes,
                                      LabClient, LotteryFLClient, SubFedAvgClient, adapt_norms,
                                      drop_channels, profiles)
from fedbook.fedklpr import FedKLPRClient, FedKLPRServer
from fedbook.methods.recovery import (CrossRoundRecovery, combine_weights, cosine_change, kl_regularization, kl_weight,
                                      last_rounds, make_sites, may_prune, pace_of, pruning_weight, world_of)
from fedbook.engine.errors import UserError
from fedbook.engine.local import build, outputs
from fedbook.methods.pruning import (compress, magnitude_prune, masked, prunable, pruning_ratio, restore,
                                     sparse_average)
from fedbook.methods.reid import ReIDNet, embed, first_network, remember, small_net, start_of
from fedbook.engine.wire import Msg, Refused, pack, unpack
from fedbook.engine.local import as_float

pytestmark = pytest.mark.usefixtures("one_process")

TINY = replace(profiles["smoke"], height=16, width=8, clients=2, largest=32, smallest=32, test_identities=2,
               batch=8, steps=2, rounds=4, pretrain_identities=24, pretrain_cameras=3)
ONE = replace(TINY, warmup=1, lr=1e-3, rounds=20, lr_drop=1000, step=0.1)

def world(clients=2): return world_of(replace(TINY, clients=clients), 0)

def first(): return start_of(TINY, 0)

def queries(share):
    "How many control queries make up this share of accuracy."
    return share * len(world()[0].data.x_val)

def tiny(pruned=0.0, **changes): return FedKLPRLabExperiment(replace(TINY, **changes), 0, pruned=pruned)

def tried(checkpoint=None, faults=None, **changes): return trial(tiny(**changes), checkpoint, faults=faults)

def federated(sizes=TINY, faults=None, client=FedKLPRLabExperiment.client):
    """A run whose clients and rounds can be looked at: server, clients by id, federation, and (weights, masks,
    reports) after each round."""
    experiment, clients, seen = FedKLPRLabExperiment(sizes, 0), {}, []
    def make(id): return clients.setdefault(id, client(experiment, id))
    def look(server):
        masks = {id: copied(mask) for id, mask in server.masks.items()}
        seen.append((copied(server.weights), masks, server.reports))
        return {}
    server, federation = experiment.server(), Federation(InProcess(make), experiment.ids, faults=faults)
    run(server, federation, sizes.rounds, test=look)
    return server, clients, federation, seen

def net(): return build(partial(small_net, 4), 0)

def client_of(id=0, kind=FedKLPRClient, **changes):
    return kind(id, net(), net(), world()[id].data, replace(ONE, **changes), 0)

def sent(mask=None): return Msg(compress(snapshot(first()), mask or {}), {"masks": False})

def mask_at(share, state=None, step=None):
    return magnitude_prune(state or snapshot(first()), {}, share if step is None else step, share)

# ---- KL, and the weights of clients

def kl_by_hand(p, q, temperature):
    p, q = (np.exp(v.double().numpy() / temperature) for v in (p, q))
    p, q = (v / v.sum(1, keepdims=True) for v in (p, q))
    return (p * np.log(p / q)).sum(1).mean()

@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_kl_by_hand_and_in_its_direction(temperature):
    current, frozen = normal(6, 9), 2 * normal(6, 9, seed=1)
    got = kl_regularization(current, frozen, temperature).item()
    assert got == pytest.approx(kl_by_hand(current, frozen, temperature), rel=1e-5)
    assert abs(got - kl_by_hand(frozen, current, temperature)) > 1e-3

def test_gaussian_kl_is_torchs():
    current, frozen = 1 + 0.5 * normal(12, 5), 2 * normal(12, 5, seed=1)
    of = lambda f: torch.distributions.Normal(f.double().mean(0),
                                              (f.double().var(0, correction=0) + 1e-5).sqrt())
    got = kl_regularization(current, frozen, kind="gaussian").item()
    assert got == pytest.approx(torch.distributions.kl_divergence(of(current), of(frozen)).mean().item(),
                                rel=1e-5)
    assert abs(got - torch.distributions.kl_divergence(of(frozen), of(current)).mean().item()) > 1e-2

@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), scale=st.floats(0.01, 20), temperature=st.floats(0.05, 20),
       kind=st.sampled_from(["softmax", "gaussian"]))
def test_kl_is_not_negative_and_zero_for_equals(seed, scale, temperature, kind):
    a, b = scale * normal(4, 7, seed=seed), scale * normal(4, 7, seed=seed + 1)
    assert kl_regularization(a, b, temperature, kind) >= -1e-6
    assert kl_regularization(a, a.clone(), temperature, kind) == 0

def test_kl_teaches_the_current_model():
    a = normal(4, 7).requires_grad_()
    for kind in ("softmax", "gaussian"):
        assert torch.autograd.grad(kl_regularization(a, normal(4, 7, seed=1), kind=kind),
                                   a)[0].abs().sum() > 0

def test_on_features_of_length_one_the_softmax_is_flat():
    a, b = normal(8, 512), normal(8, 512, seed=1)
    assert kl_regularization(F.normalize(a), F.normalize(b)) < 0.01 < 0.1 < kl_regularization(a, b)

def test_bad_arguments_of_kl():
    for wanted, options in (("one shape", dict(reference=normal(4, 6))),
                            ("temperature=0", dict(temperature=0)),
                            ("temperature=nan", dict(temperature=math.nan)), ("kind='js'", dict(kind="js"))):
        with pytest.raises(UserError, match=wanted):
            kl_regularization(normal(4, 7), **{"reference": normal(4, 7)} | options)

def test_cosine_change_by_hand():
    a, b = torch.tensor([[1.0, 0], [0, 2]]), torch.tensor([[2.0, 0], [1, 0]])
    assert cosine_change(a, b).item() == pytest.approx(0.5)
    assert cosine_change(a, a).item() == pytest.approx(0, abs=1e-6)

NUMBERS = st.lists(st.floats(0, 1e6), min_size=1, max_size=8)

@settings(deadline=None, max_examples=60)
@given(kl=NUMBERS, gamma=st.floats(0, 1), seed=st.integers(0, 99))
def test_weights_sum_to_one(kl, gamma, seed):
    ratios = np.random.default_rng(seed).choice([0, 0.1, 0.5, 0.7, 1.0], len(kl)).tolist()
    parts = kl_weight(kl), pruning_weight(ratios), combine_weights(kl_weight(kl), pruning_weight(ratios),
                                                                   gamma)
    for weights in parts: assert sum(weights) == pytest.approx(1, abs=1e-9) and min(weights) >= 0
    for f, p, both in zip(*parts): assert both == pytest.approx(gamma * f + (1 - gamma) * p, abs=1e-9)

def test_klaw_by_hand():
    assert kl_weight([1, 3]) == [0.25, 0.75] and kl_weight([0, 0, 0, 0]) == [0.25] * 4
    assert kl_weight([0, 2]) == [0, 1]

@pytest.mark.parametrize("ratios, wanted",
                         [([0.3] * 4, [0.25] * 4), ([0, 0, 0, 0.7], [0, 0, 0, 1]), ([0] * 4, [0.25] * 4),
                          ([0.1, 0.3], [0.1, 0.9])])
def test_praw_by_hand(ratios, wanted): assert pruning_weight(ratios) == pytest.approx(wanted)

@pytest.mark.parametrize("job, field",
                         [(lambda: kl_weight([]), "divergences"), (lambda: kl_weight([1, -1]), "divergences"),
                          (lambda: kl_weight([math.nan]), "divergences"),
                          (lambda: kl_weight([math.inf, 1]), "divergences"),
                          (lambda: pruning_weight([1.1]), "ratios"),
                          (lambda: pruning_weight([-0.1]), "ratios"),
                          (lambda: combine_weights([1], [1], 1.5), "gamma"),
                          (lambda: combine_weights([1], [1], math.nan), "gamma"),
                          (lambda: combine_weights([1], [0.5, 0.5], 0.5), "kl")])
def test_bad_weights(job, field):
    with pytest.raises(UserError, match=field): job()

@pytest.mark.parametrize("kl", [1e308, 10**400], ids=["1e308", "10**400"])
def test_one_client_cannot_stop_a_run_with_a_huge_number(kl):
    server = tiny().server()
    replies = [(id, Msg(snapshot(first()), dict(n=9, kl=kl, cosine=0.1, masks=False))) for id in (0, 1)]
    try: [server.accept("fit", id, msg) for id, msg in replies]
    except Refused: return
    server.merge(iter(replies), [0, 1])
    assert sum(said["share"] for said in server.reports.values()) == pytest.approx(1)

# ---- masks

@pytest.mark.parametrize("regulariser", ["kl", "none"])
def test_pruned_weights_stay_exactly_zero_while_training(regulariser):
    client = client_of(steps=6, epochs=2, weight_decay=0.1, lr=0.05, regulariser=regulariser, pruning="never")
    client.mask = mask_at(0.5)
    reply = client.fit(sent(client.mask))
    for name, m in client.mask.items():
        assert (bits(client.model.state_dict()[name])[~m] == 0).all()
        assert not torch.equal(reply.tensors[name], sent(client.mask).tensors[name])

def test_without_holding_them_they_would_come_back(monkeypatch):
    "What the test above guards against does happen."
    client = client_of(steps=6, weight_decay=0.1, lr=0.05, pruning="never")
    client.mask = mask_at(0.5)
    monkeypatch.setattr(client, "holes", list)
    client.fit(sent(client.mask))
    assert any((client.model.state_dict()[name][~m] != 0).any() for name, m in client.mask.items())

def test_masks_only_lose_weights_in_a_run():
    sizes = replace(TINY, rounds=5, pruning="always", step=0.2, target=0.5)
    _, clients, _, seen = federated(sizes)
    for id in clients:
        ratios = [pruning_ratio(masks[id]) for _, masks, _ in seen]
        assert ratios[0] == 0 and all(a < b <= 0.5 for a, b in zip(ratios, ratios[1:4]))
        assert max(ratios) <= 0.5
        for (_, old, _), (_, new, _) in zip(seen[1:], seen[2:]):
            assert not any((new[id][name] & ~m).any() for name, m in old[id].items())

# ---- CRR

def attempted(accuracy, before, pruned, threshold=0.5, **options):
    model = net()
    state, mask = snapshot(model), {}
    candidate = mask_at(0.5, state)
    result, event = CrossRoundRecovery(threshold, **options).attempt(model, mask, candidate, accuracy, before,
                                                                     lambda: pruned)
    assert result is (candidate if event == "accepted" else mask)
    # bit for bit
    assert equal(snapshot(model), masked(state, candidate) if event == "accepted" else state)
    return event

@pytest.mark.parametrize("accuracy, before, pruned, event",
                         [ (0.9, 0.9, 0.2, "rolled back"), (0.9, 0.9, 0.95, "accepted"),
                          (0.9, 0.9, 0.89, "accepted"), (0.9, 0.9, 0.88, "rolled back"),
                          (0.4, 0.4, 0.9, "waits"), (0.9, None, 0.9, "waits"), (0.9, 0.93, 0.9, "waits"),
                          (0.9, 0.92, 0.9, "accepted"), (0.9, 0.6, 0.9, "accepted"),
                          (0.5, 0.5, 0.5, "accepted")])
def test_recovery_bounds_what_is_lost(accuracy, before, pruned, event):
    assert attempted(accuracy, before, pruned) == event

@pytest.mark.parametrize("mode, collapse, jump, gain, drop",
                         [("drop", "rolled back", "accepted", "accepted", "waits"),
                          ("abs", "rolled back", "waits", "rolled back", "waits"),
                          ("printed", "accepted", "waits", "rolled back", "accepted")])
def test_the_three_readings_of_the_inequalities(mode, collapse, jump, gain, drop):
    "As printed a collapse is ACCEPTED, and nothing is pruned after a jump up: the reason for `drop`."
    got = [attempted(*case, mode=mode)
           for case in ((0.9, 0.9, 0.01), (0.9, 0.6, 0.9), (0.9, 0.9, 0.99), (0.6, 0.9, 0.6))]
    assert got == [collapse, jump, gain, drop]

def test_an_accuracy_right_at_the_threshold_may_prune():
    "Two queries of n below the best: in floats a share of n may lie a hair below the difference of two shares."
    for n, right in itertools.product((20, 40, 53), range(2, 20)):
        assert may_prune((right - 2) / n, (right - 2) / n, right / n - 2.0 * (1 / n), 0)
    assert not may_prune(0.3 - 1e-6, 0.3, 0.3, 0.1)

@pytest.mark.parametrize("mode", ["drop", "abs", "printed"])
def test_below_the_threshold_or_in_the_first_round_nothing_is_tried(mode):
    score = lambda: pytest.fail("nothing was to be tried")
    for accuracy, before in ((0.49, 0.49), (0.9, None)):
        assert CrossRoundRecovery(0.5, mode=mode).attempt(net(), {}, mask_at(0.5), accuracy, before,
                                                          score) == ({}, "waits")

def test_an_unknown_reading():
    with pytest.raises(UserError, match="mode='rise'"): CrossRoundRecovery(0.5, mode="rise")

@pytest.mark.parametrize("name", ["threshold", "delta_rd", "delta_ep"])
def test_a_gate_without_a_threshold(name):
    with pytest.raises(UserError, match=f"{name}=nan must be a number"):
        CrossRoundRecovery(**{"threshold": 0.5, name: math.nan})
    assert not CrossRoundRecovery(0.5).ready(math.nan, 0.9)

def test_a_client_with_spoilt_weights_has_not_stayed_where_it_was():
    client = client_of()
    client.receive(sent())
    client.reference.load_state_dict(client.model.state_dict())
    assert max(client.moves().values()) < 1e-6
    with torch.no_grad(): client.model.body[0].weight.fill_(math.nan)
    with pytest.raises(UserError, match="features are not finite after training.*lower the learning rate"):
        client.moves()

@pytest.mark.parametrize("mode, kept_back", [("drop", True), ("printed", False)])
def test_a_client_takes_a_collapse_back(mode, kept_back):
    client = client_of(mode=mode)
    client.receive(sent())
    client.rounds, client.before, client.validate = 2, 0.9, lambda: 0.0
    state = snapshot(client.model)
    assert client.prune(0.9) == ("rolled back" if kept_back else "accepted")
    assert equal(snapshot(client.model), state) == kept_back and bool(client.mask) != kept_back

def test_a_clients_threshold_is_its_best_of_the_warm_up_less_the_margin():
    client, scores = client_of(warmup=2, margin=queries(0.1), target=0), iter([0.3, 0.6, 0.95])
    client.validate = lambda: next(scores)
    for wanted in (0.2, 0.5, 0.5):
        client.fit(sent())
        assert client.threshold == pytest.approx(wanted)
    assert client.before == 0.95

# ---- the loss

# ---- clusters

def test_a_client_whose_every_picture_is_noise_trains_all_the_same():
    server, history, federation = tried(rounds=2, eps=1e-9, min_samples=4)
    assert not federation.ledger.absent and 0 <= history.last("rank1") <= 1
    client = client_of(eps=1e-9)
    client.receive(sent())
    assert len(remember(client.model, client.data, client.sizes)) == len(client.data.x)

# ---- what is held

def test_the_world_has_the_sizes_that_were_asked_for():
    sizes = replace(TINY, clients=3, largest=64, smallest=32, cameras=2, per_camera=4, test_identities=3,
                    height=20, width=12, validation=0.5)
    for holding, n in zip(make_sites(sizes, 0), (64, 48, 32), strict=True):
        assert len(holding.data.x) == n and len(holding.data.x_val) == 2 * 8
        assert len(holding.data.val_ids.unique()) == 2
    sizes = replace(sizes, control_identities=0)
    holdings = make_sites(sizes, 0)
    assert [len(h.data.x) + len(h.data.x_val) for h in holdings] == [64, 48, 32]
    assert [len(h.data.val_ids.unique()) for h in holdings] == [4, 3, 2]
    for h in holdings:
        assert h.data.x.shape[1:] == (3, 20, 12) and len(h.query[0]) == 3 * 2
        assert len(h.gallery[0]) == 3 * 2 * 3 and h.data.x.dtype == torch.uint8
    assert torch.equal(make_sites(sizes, 0)[1].data.x, holdings[1].data.x)
    assert not torch.equal(make_sites(sizes, 1)[1].data.x, holdings[1].data.x)

# ---- what a client says

def test_what_a_reply_holds():
    client = client_of()
    reply = client.fit(sent())
    assert reply.tensors.keys() == sent().tensors.keys()
    assert reply.meta.keys() == {"n", "kl", "cosine", "accuracy", "event", "masks"}
    assert reply.meta["n"] == len(client.data.x) and reply.meta["event"] == "warm-up" and reply.meta["kl"] > 0
    assert reply.meta["cosine"] > 0 and not reply.meta["masks"]

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
    assert reply.meta["kl"] == pytest.approx(kl_regularization(a, b, 2.0).item(), abs=1e-6)
    assert reply.meta["cosine"] == pytest.approx(cosine_change(a, b).item(), abs=1e-6)
    assert reply.meta["accuracy"] == found_among_all(now, client.data)

def found_among_all(network, data):
    "Rank-1 of the control pictures, query by query, in all pictures of the site; train pictures are strangers."
    control, others = embed(network, data.x_val), embed(network, data.x)
    right = []
    for f, who, camera in zip(control, data.val_ids, data.val_cameras):
        elsewhere = (data.val_ids != who) | (data.val_cameras != camera)
        if not (elsewhere & (data.val_ids == who)).any(): continue
        best = (control[elsewhere] @ f).argmax()
        right.append(bool(data.val_ids[elsewhere][best] == who
                          and (control[elsewhere] @ f).max() >= (others @ f).max()))
    return sum(right) / len(right)

def test_a_stranger_who_looks_like_a_control_person_is_a_mistake():
    client, data = client_of(), world()[0].data
    client.data = data._replace(x=data.x[:1], cameras=data.cameras[:1])
    alone = client.validate()
    twin = data.x_val.clone()
    client.data = data._replace(x=twin, cameras=1 - data.val_cameras)
    assert alone > client.validate() == 0

def test_the_rate_drops_and_the_last_round_is_longer(monkeypatch):
    rates, passes, adam = [], [], torch.optim.Adam
    monkeypatch.setattr(torch.optim, "Adam", lambda p, lr,
                        **options: rates.append((lr, options["weight_decay"])) or adam(p, lr, **options))
    client = client_of(rounds=3, epochs=2, last_epochs=4, lr=0.01, lr_drop=1, weight_decay=0.5, steps=1,
                       pruning="never")
    monkeypatch.setattr(fedbook.methods.reid, "remember", lambda *args: passes.append(client.rounds)
                        or remember(*args))
    for _ in range(3): client.fit(sent())
    assert rates == [(0.01, 0.5)] + [(pytest.approx(0.001), 0.5)] * 2
    assert Counter(passes) == {0: 2, 1: 2, 2: 4}
    client.rounds, client.sizes = 2, replace(client.sizes, last_epochs=0)
    client.fit(sent())
    assert Counter(passes)[2] == 4 + 2

def test_the_rate_falls_by_a_cosine():
    client = client_of(lr_drop=0, rounds=4)
    paces = []
    for client._round in range(4): paces.append(pace_of(client.sizes, client._round))
    half = lambda share: 0.02 + 0.98 * (1 + math.cos(math.pi * share)) / 2
    assert paces == pytest.approx([half(r / 4) for r in range(4)]) and paces[0] == 1

@pytest.mark.parametrize("norms, near", [("alike", True), ("apart", False)])
def test_equal_networks_have_no_kl_if_their_norms_are_alike(norms, near):
    client = client_of(norms=norms, pruning="never")
    client.fit(sent())
    assert client.reference.training == (norms == "alike") or client.rounds
    client.receive(sent())
    client.reference.train(norms == "alike")
    stats = snapshot(client.reference)
    x = as_float(client.data.x[:8])
    with torch.no_grad(): kl = client.regularise(x, client.model.train()(x))
    assert (abs(float(kl)) < 1e-6) == near
    same = {name: t for name, t in stats.items() if "num_batches" not in name}
    assert all(torch.equal(t, client.reference.state_dict()[name]) for name, t in same.items())

def test_nothing_is_pruned_in_the_last_rounds():
    rows = tried(rounds=4, pruning="always", step=0.2, rest=2)[1].rows
    events = [[client["event"] for client in row["clients"]] for row in rows]
    assert events == [["warm-up"] * 2, ["accepted"] * 2, ["rest"] * 2, ["rest"] * 2]

@pytest.mark.parametrize("regulariser, distance",
                         [("kl", kl_regularization), ("cosine", cosine_change), ("none", lambda *_: 0.0)])
def test_the_regulariser_acts_from_the_second_round_on(regulariser, distance):
    client = client_of(regulariser=regulariser, delta=0.3)
    client.receive(sent())
    x = as_float(client.data.x[:8])
    out = client.model.train()(x).detach()
    client.reference.eval()
    assert client.regularise(x, out) == 0
    client.rounds = 1
    with torch.no_grad(): frozen = client.reference(x)
    assert float(client.regularise(x, out)) == pytest.approx(0.3 * float(distance(out, frozen)), rel=1e-5)

# ---- LotteryFL and Sub-FedAvg

def test_lotteryfl_goes_back_to_the_first_weights():
    client = client_of(kind=LotteryFLClient, step=0.3, warmup=1, margin=queries(1))
    client.fit(sent())
    client.train = lambda: None
    moved = Msg({name: t + 1 if t.is_floating_point() else t for name, t in sent().tensors.items()},
                {"masks": False})
    reply = client.fit(moved)
    assert pruning_ratio(client.mask) == pytest.approx(0.3, abs=0.02) and reply.meta["masks"]
    assert reply.meta["event"] == "accepted"
    assert equal(restore({name: t for name, t in reply.tensors.items() if not name.startswith("mask/")},
                         client.mask), masked(sent().tensors, client.mask))
    candidate = magnitude_prune(moved.tensors, {}, 0.3, 0.7)
    # the mask is made from the weights that came
    assert equal(client.mask, candidate)

@pytest.mark.parametrize("rounds, accuracy, pruned", [(0, 1.0, False), (1, 0.49, False), (1, 0.5, True)])
def test_lotteryfl_prunes_after_the_warm_up_and_only_a_good_model(rounds, accuracy, pruned):
    client = client_of(kind=LotteryFLClient, warmup=1, margin=queries(0.1))
    client.rounds, client.best, client.validate = rounds, 0.6, lambda: accuracy
    client.fit(sent())
    assert bool(client.mask) == pruned

@pytest.mark.parametrize("pruned, event", [(0.49, "rolled back"), (0.5, "accepted"), (0.9, "accepted")])
def test_subfedavg_prunes_while_accuracy_stays_above_its_threshold(pruned, event):
    client = client_of(kind=SubFedAvgClient, margin=queries(0.1))
    client.receive(sent())
    client.rounds, client.best, client.validate = 1, 0.6, lambda: pruned
    client.prepare()
    client.train()
    state = snapshot(client.model)
    assert client.prune(0.7) == event and bool(client.mask) == (event == "accepted")
    assert equal(snapshot(client.model), masked(state, client.mask))

def test_subfedavg_waits_where_training_does_not_change_the_mask():
    client = client_of(kind=SubFedAvgClient, margin=queries(1))
    client.receive(sent())
    client.prepare()
    assert client.prune(0.7) == "warm-up"
    client.rounds = 1
    assert client.prune(0.7) == "waits" and client.mask == {}

# ---- the server

ANSWERS = [dict(n=10, kl=1.0, cosine=0.3, accuracy=0.5, event="never"),
           dict(n=30, kl=3.0, cosine=0.1, accuracy=0.6, event="accepted")]

@pytest.mark.parametrize("weighting, wanted",
                         [("uniform", [0.5, 0.5]), ("size", [0.25, 0.75]), ("klaw", [0.25, 0.75]),
                          ("cdw", [0.75, 0.25]), ("klpwa", [0.3 * 0.25 + 0.7 * 0.9, 0.3 * 0.75 + 0.7 * 0.1])])
def test_the_weights_of_clients(weighting, wanted):
    assert FedKLPRServer(first(), weighting=weighting, gamma=0.3).shares(ANSWERS,
                                                                         [0.3, 0.1]) == pytest.approx(wanted)

@pytest.mark.parametrize("average", ["sparse", "plain"])
def test_a_merge_by_hand(average):
    server, masks = FedKLPRServer(first(), weighting="size", average=average), [mask_at(0.3), mask_at(0.5)]
    states = [masked({name: t + k + 1 if t.is_floating_point() else t
                      for name, t in snapshot(first()).items()}, mask) for k, mask in enumerate(masks)]
    replies = [(id, Msg({**compress(state, mask), **{f"mask/{name}": m for name, m in mask.items()}},
                        {**ANSWERS[id], "masks": True}))
               for id, (state, mask) in enumerate(zip(states, masks))]
    for id, msg in replies: server.accept("fit", id, msg)
    server.merge(iter(replies), [0, 1])
    wanted = sparse_average(states, masks, [1, 3]) if average == "sparse" else weighted_average(states,
                                                                                                [1, 3])
    assert all(close(server.weights[name], t) for name, t in wanted.items())
    assert all(equal(server.own[id], states[id]) and equal(server.masks[id], masks[id]) for id in (0, 1))
    for id in (0, 1):
        assert equal(server.personal(id), masked(server.weights, masks[id]))
        assert equal(server.send(id).tensors, compress(server.weights, masks[id]))

def test_a_client_whose_reply_was_lost_is_sent_its_mask_until_it_answers():
    server, state = tiny().server(), snapshot(first())
    for asked, answered, resend in (([0, 1], [1], {0}), ([1], [1], {0}), ([0, 1], [0, 1], set())):
        server.merge(iter([(id, Msg(state, ANSWERS[id])) for id in answered]), asked)
        assert server.resend == resend and server.send(0).meta["masks"] == (0 in resend)

def test_merging_assigns_only_after_the_last_reply():
    server = tiny().server()
    before = pack(server.state())
    def half():
        yield 0, Msg({name: t + 1 if t.is_floating_point() else t for name, t in snapshot(first()).items()},
                     ANSWERS[0])
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
    (server or tiny().server()).accept("fit", 0,
                                       Msg(kept_tensors,
                                           {k: v for k, v in {**msg.meta, **(meta or {})}.items()
                                            if k not in drop}))

NAME = "body.0.weight"

def test_a_good_reply_is_accepted():
    judged()
    server = tiny().server()
    server.masks[0] = mask_at(0.2)
    with pytest.raises(Refused, match="brings back"):
        judged({f"mask/{name}": torch.ones_like(m) for name, m in server.masks[0].items()}
               | snapshot(first()), server=server)

BAD_TENSORS = { "a mask of another shape": {f"mask/{NAME}": torch.ones(4, dtype=torch.bool)},
               "a mask of floats": {f"mask/{NAME}": torch.ones(4, 3, 3, 3)},
               "a mask with another name": {"mask/nothing": torch.ones(4, dtype=torch.bool)},
               "one value too many": {NAME: torch.ones(400)},
               "values that are dense": {NAME: torch.ones(4, 3, 3, 3)},
               "float64": {NAME: torch.ones(65, dtype=torch.float64)},
               "another tensor": {"more": torch.ones(1)},
               "a mask that keeps all, values that do not": {f"mask/{NAME}": torch.ones(4, 3, 3, 3,
                                                                                        dtype=torch.bool)}, }

@pytest.mark.parametrize("name", BAD_TENSORS)
def test_refused_tensors(name):
    with pytest.raises(Refused): judged(BAD_TENSORS[name])

@pytest.mark.parametrize("name", ["neck.running_var", "neck.weight", NAME])
def test_refused_is_a_mask_of_anything_but_all_that_can_be_pruned(name):
    "One layer alone, all of it gone, would pass for a client that pruned everything, and take all of PRAW."
    state = snapshot(first())
    mask = {name: torch.zeros_like(state[name], dtype=torch.bool)}
    with pytest.raises(Refused):
        tiny().server().accept("fit", 0,
                               Msg({**compress(state, mask), f"mask/{name}": mask[name]},
                                   {**ANSWERS[0], "masks": True}))

def test_refused_numbers_that_are_not_finite():
    for value in (math.nan, math.inf):
        with pytest.raises(Refused, match="finite"):
            judged({NAME: torch.full_like(good().tensors[NAME], value)})

def test_refused_is_a_reply_that_leaves_something_out():
    with pytest.raises(Refused): judged(drop=[NAME])
    with pytest.raises(Refused): judged(drop=[f"mask/{NAME}"])
    with pytest.raises(Refused):
        judged(drop=["masks"])                         # the values do not fit the mask that the server knows
    server = tiny().server()
    server.masks[0] = mask_at(0.1)
    state = snapshot(first())
    with pytest.raises(Refused, match="brings back"):
        server.accept("fit", 0, Msg(state, {**good().meta, "masks": True}))

@pytest.mark.parametrize("field, values",
                         [("n", (0, -3, 2.5, None, True, "9", 2**31, math.nan)),
                          ("kl", (-0.1, math.nan, math.inf, None, "1", True, [1])),
                          ("cosine", (-1e-3, math.nan, math.inf, None, "1"))])
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
            if lie == "mask":
                reply.tensors |= {"mask/body.0.weight": torch.zeros(2, dtype=torch.bool)}
                reply.meta["masks"] = True
            if lie == "values": reply.tensors[NAME] = reply.tensors[NAME].flatten()[1:]
            return reply
    def make(experiment, id):
        if not id: return experiment.client(id)
        return Liar(id, *experiment.lent, world()[id].data, replace(experiment.sizes, steps=1), 0)
    server, _, federation, seen = federated(replace(TINY, rounds=2), client=make)
    assert {miss["client"] for miss in federation.ledger.absent} == {1} and len(seen) == 2
    assert set(server.own) == {0} and server.resend == {1}

@pytest.mark.parametrize("options, name",
                         [({"weighting": "fair"}, "weighting"), ({"average": "median"}, "average"),
                          ({"gamma": 1.2}, "gamma")])
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
            # the wire writes the neck's shift, all zeros, in fewer bytes
            spared = 2 * (4 * theta + buffers) - payload
            assert 0 <= spared <= 2 * 4 * first().neck.num_features
            assert 0 < federation.ledger.total(way=way, round=r) - payload < 2 * 120 * len(snapshot(first()))
            for entry in federation.ledger.where(way=way, round=r):
                sizes = dict(entry.tensors)
                assert sizes.keys() == snapshot(first()).keys()
                assert all(sizes[name] == 4 * snapshot(first())[name].numel()
                           for name in prunable(snapshot(first())))

def test_bytes_fall_with_the_ratio():
    state, spent = snapshot(first()), []
    for ratio in (0, 0.1, 0.35, 0.7, 1.0):
        mask = mask_at(ratio, step=1.0)
        small = compress(state, mask)
        assert all(small[name].nbytes == 4 * int(m.sum()) for name, m in mask.items())
        assert all(small[name] is state[name] for name in state.keys() - mask.keys())
        spent.append(size(small))
    assert all(a > b for a, b in zip(spent, spent[1:]))

def names(entry): return {name for name, _ in entry.tensors}

def has_mask(entry): return any(name.startswith("mask/") for name in names(entry))

def test_a_mask_travels_once_and_only_when_it_changed():
    _, _, federation, seen = federated(replace(TINY, rounds=5, pruning="always", warmup=1, step=0.3,
                                               target=0.5))
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
        sizes = replace(experiment.sizes, pruning="always", step=0.2 + 0.2 * id)
        return Listening(id, *experiment.lent, world()[id].data, sizes, 0)
    _, _, _, seen = federated(client=make)
    assert not equal(*seen[1][1].values())
    for r, (weights, masks, _) in enumerate(seen[:-1]):
        for id in (0, 1):
            assert equal(heard[r + 1, id].tensors, compress(weights, masks[id]))
            if r:
                assert all(heard[r + 1, id].tensors[name].shape == (int(m.sum()),)
                           for name, m in masks[id].items())
    assert not any(msg.meta["masks"] for msg in heard.values())

def test_what_crosses_holds_no_picture_and_no_identity():
    _, _, federation = tried(rounds=2)
    state = snapshot(first()).keys()
    assert {name.removeprefix("mask/") for e in federation.ledger.entries for name in names(e)} <= state
    assert {e.verb for e in federation.ledger.entries} == {"fit"}

# ---- lost replies

LOST = dict(rounds=5, pruning="always", step=0.2, target=0.7, warmup=1)

@pytest.mark.parametrize("kind", ["silent", "nan"])
@pytest.mark.parametrize("r", [1, 2])
def test_a_mask_whose_reply_was_lost_is_put_back(kind, r):
    "Client 0 prunes in round r, its reply is lost: the server sends the mask that it knows, which is taken."
    server, clients, federation, seen = federated(replace(TINY, **LOST), faults=Strike({(r, 0): kind}))
    assert [(miss["round"], miss["client"]) for miss in federation.ledger.absent] == [(r, 0)]
    assert len(seen) == 5 and not server.resend
    again = [(e.round, e.client) for e in federation.ledger.where(way="down") if has_mask(e)]
    # in round 1 the server knows of no mask yet, and says so without one
    assert again == ([(r + 1, 0)] if r > 1 else [])
    steps = [len({pruning_ratio(masks.get(id, {})) for _, masks, _ in seen}) for id in (0, 1)]
    assert steps == [4, 5]
    for id in (0, 1): assert equal(clients[id].mask, server.masks[id])

def test_a_client_lost_twice_gets_its_mask_twice():
    server, clients, federation, _ = federated(replace(TINY, **LOST),
                                               faults=Strike({(2, 0): "silent", (3, 0): "nan"}))
    assert [(e.round, e.client) for e in federation.ledger.where(way="down") if has_mask(e)] == [(3, 0),
                                                                                                 (4, 0)]
    assert not server.resend and equal(clients[0].mask, server.masks[0])

# ---- runs

@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs(method):
    sizes = replace(TINY, clients=3, rounds=2, margin=queries(1), **METHODS[method])
    server, history, federation = trial(FedKLPRLabExperiment(sizes, 0))
    row = history.rows[-1]
    assert not federation.ledger.absent and len(history.rows) == 2
    assert all(0 <= row[name] <= 1 for name in ("rank1", "mAP", "shared", "ratio"))
    assert [client["id"] for client in row["clients"]] == [0, 1, 2]
    assert row["up"] == federation.ledger.total(way="up")
    assert row["rank1"] == pytest.approx(np.mean([client["rank1"] for client in row["clients"]]))
    dense = METHODS[method].get("pruning") == "never"
    assert (row["ratio"] == 0) == dense and isinstance(server, LocalOnly) == (method == "local only")
    if METHODS[method].get("pruning") == "always": assert row["ratio"] == pytest.approx(sizes.step, abs=0.03)
    if not isinstance(server, LocalOnly):
        assert sum(client["share"] for client in row["clients"]) == pytest.approx(1)

def test_the_smoke_profile_runs():
    sizes = profiles["smoke"]
    server, history, federation = trial(FedKLPRLabExperiment(sizes, 0))
    assert len(history.rows) == sizes.rounds and not federation.ledger.absent
    assert 0 <= history.last("rank1") <= 1

def test_methods_differ_where_they_should():
    "Each row of the ablation changes what is learned."
    weights = {name: tried(rounds=3, margin=queries(1), **METHODS[name])[0].weights
               for name in METHODS if name != "local only"}
    digests = {name: b"".join(t.numpy().tobytes() for t in state.values()) for name, state in weights.items()}
    twins = [(a, b) for a in digests for b in digests if a < b and digests[a] == digests[b]]
    # CRR changes nothing where it accepts all
    assert not [pair for pair in twins if not any("CRR" in name or name == "FedKLPR" for name in pair)], twins

def test_test_every_so_many_rounds_and_in_the_last():
    rows = tried(rounds=5, test_every=2)[1].rows
    assert ["rank1" in row for row in rows] == [False, True, False, True, True]
    assert [last_rounds(n) for n in (1, 15, 16, 24, 99)] == [1, 1, 2, 3, 3]
    assert all(len(row["clients"]) == 2 for row in rows)

def test_a_run_depends_on_the_seed():
    a, b = (trial(FedKLPRLabExperiment(replace(TINY, rounds=1), seed)).server.weights for seed in (0, 1))
    assert not equal(a, b)

PROVEN = {"FedKLPR": {}, "always": dict(pruning="always"), "begun pruned": dict(pruned=0.5),
          "local only": METHODS["local only"],
          **{name: dict(margin=queries(1), **METHODS[name]) for name in ("LotteryFL", "Sub-FedAvg")}}

@pytest.mark.slow
@pytest.mark.parametrize("name", by_day(PROVEN, "always", "local only", "LotteryFL", "Sub-FedAvg"))
def test_a_run_is_a_function_of_sizes_and_seed(name):
    experiment = tiny(**PROVEN[name])
    prove(experiment, kills=2)
    if name == "local only": return
    masks = trial(experiment).server.masks
    assert all(0 < pruning_ratio(masks[id]) for id in (0, 1)), "nothing was pruned: the test would be idle"

@AT_NIGHT
def test_so_is_one_of_a_vit_whose_positions_are_never_pruned():
    sizes = replace(TINY, network="vit", blocks=1, rounds=2, warmup=0, steps=1, pruning="always")
    prove(FedKLPRLabExperiment(sizes, 0), kills=1)
    server = trial(FedKLPRLabExperiment(sizes, 0)).server
    for mask in server.masks.values():
        assert 0 < pruning_ratio(mask) and {"body.0.cls_token", "body.0.pos_embed"}.isdisjoint(mask)
        assert "body.0.blocks.0.attn.qkv.weight" in mask

def test_so_is_one_on_digits():
    prove(DigitsExperiment(replace(DIGIT_SIZES, rounds=3, warmup=1, pruning="always"), 0), kills=2)

def ended(done): return pack(done.server.state()), done.history.rows, done.federation.states

@pytest.mark.parametrize("begun", [{}, dict(pruned=0.5)], ids=["pruned on the way", "pruned from the start"])
def test_a_lost_mask_is_remembered_across_a_kill(begun, tmp_path, kill):
    path, lost = tmp_path / "run.safetensors", {(0, 1): "silent",
                                                (1, 1): "silent"} if begun else {(2, 0): "silent"}
    job = lambda *checkpoint: tried(*checkpoint, faults=Strike(lost), **LOST, **begun)
    kill(lambda: job(Checkpoint(path)), max(r for r, _ in lost) + 1)
    assert ended(job(Checkpoint(path))) == ended(job())

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
    experiment = FedKLPRLabExperiment(replace(TINY, clients=3, rounds=1), 0, sites=(0, 2))
    other = pickle.loads(pickle.dumps(experiment))
    assert other == experiment and other.ids == [0, 1]
    assert all(torch.equal(other.world[id].data.x, world(3)[site].data.x) for id, site in ((0, 0), (1, 2)))
    assert ended(trial(other)) == ended(trial(experiment))

@pytest.mark.parametrize("kind, sizes", [(FedKLPRLabExperiment, replace(TINY, clients=3)),
                                         (DigitsExperiment, replace(DIGIT_SIZES, clients=3))])
def test_on_some_sites_a_client_has_its_own_sites_baseline(kind, sizes):
    sizes = replace(sizes, baselines=(0.9, 0.5, 0.1))
    some, every = kind(sizes, 0, sites=(1, 2)), kind(sizes, 0)
    assert [some.client(id).baseline for id in some.ids] == [0.5, 0.1]
    assert [every.client(id).baseline for id in every.ids] == [0.9, 0.5, 0.1]
    for id, site in ((0, 1), (1, 2)): assert torch.equal(some.client(id).data.x, every.client(site).data.x)

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
        count = len(sums) // 2
        out = sums.argsort()[:count]
        assert small.main[0].out_channels == small.main[1].num_features == small.main[3].in_channels == count
        assert small.main[0].weight.shape[0] == count
        with torch.no_grad(): full.main[3].weight[:, out] = 0
    assert close(thin(x), model(x), 1e-5) and equal(snapshot(drop_channels(first(), 0.0)), before)
    assert sum(p.numel() for p in thin.parameters()) < 0.7 * sum(p.numel() for p in first().parameters())

def test_at_least_one_channel_stays():
    assert {block.main[0].out_channels for block in drop_channels(first(), 1.0).body[3:]} == {1}

def test_a_thin_network_is_trained_by_the_same_federation():
    thin = drop_channels(first(), 0.5)
    sizes = replace(TINY, rounds=2, pruning="never")
    server, history, federation = trial(FedKLPRLabExperiment(sizes, 0, start=thin))
    assert server.weights.keys() == snapshot(thin).keys() and not federation.ledger.absent
    assert federation.ledger.total() < 0.7 * tried(rounds=2, pruning="never")[2].ledger.total()

# ---- a mask to begin with

def test_a_run_may_begin_with_one_mask_for_all():
    server, history, federation = tried(pruned=0.5, rounds=3, pruning="never", test_every=1)
    assert all(equal(server.masks[id], mask_at(0.5)) for id in (0, 1))
    assert [row["ratio"] for row in history.rows] == [pruning_ratio(mask_at(0.5))] * 3
    assert [(e.round, e.client) for e in federation.ledger.where(way="down") if has_mask(e)] == [(0, 0),
                                                                                                 (0, 1)]
    assert not any(map(has_mask, federation.ledger.where(way="up")))
    for name, m in mask_at(0.5).items(): assert (server.weights[name][~m] == 0).all()

# ---- sizes

SERVER = dict(weighting="cdw", average="plain", gamma=0.9)

def made(name, value):
    experiment = tiny(**{name: value})
    return experiment.client(1), experiment.server()

@pytest.mark.parametrize("name", SERVER)
def test_each_size_reaches_the_server(name):
    assert getattr(TINY, name) != getattr(made(name, SERVER[name])[1], name) == SERVER[name]

def test_the_rest_of_the_sizes_reaches_client_and_server():
    client = made("rounds", 17)[0]
    assert client.sizes.rounds == 17 and client.id == 1 and torch.equal(client.data.x, world()[1].data.x)
    kinds = {"lottery": LotteryFLClient, "subfedavg": SubFedAvgClient,
             **dict.fromkeys(("recover", "always", "never"), LabClient)}
    for pruning, kind in kinds.items(): assert type(made("pruning", pruning)[0]) is kind
    assert type(tiny(weighting="alone", pruning="never").server()) is LocalOnly
    assert equal(made("gamma", 0.2)[1].weights, snapshot(first()))

def test_the_gate_has_the_clients_threshold_and_sizes(monkeypatch):
    client, seen = client_of(warmup=0, delta_rd=queries(0.3), delta_ep=queries(0.2), mode="abs",
                             margin=queries(0.1)), []
    def gate(*args):
        seen.append(args)
        return CrossRoundRecovery(*args)
    monkeypatch.setattr(fedbook.fedklpr, "CrossRoundRecovery", gate)
    client.best = 0.6
    client.prune(0.5)
    assert seen == [(pytest.approx(0.5), pytest.approx(0.3), pytest.approx(0.2), "abs")]

BAD = dict(data="cifar", network="vgg", regulariser="l2", kind="laplace", pruning="sometimes",
           weighting="fair", average="median", mode="rise", clients=0, cameras=0, per_camera=0, rounds=0,
           epochs=0, steps=0, batch=0, k1=0, k2=0, min_samples=0, test_every=0, digits_seeds=0,
           digits_rounds=0, crowd=0, validation=1.5, step=1.01, target=2.0, gamma=-0.1, temperature=0.0,
           lr=-1.0, delta=math.nan, seeds=0, weight_decay=-1e-4, eps=0.0, channels=0)

@pytest.mark.parametrize("name", BAD)
def test_sizes_that_cannot_be(name):
    with pytest.raises(UserError, match=f"^{name}=") as error: FedKLPRLabSizes(**{name: BAD[name]})
    assert "\n" not in str(error.value)

@pytest.mark.parametrize("name, sizes", {"rounds": dict(rounds=7, warmup=2, rest=6),
                                         "clients": dict(data="reid", sets=("duke", "viper"), clients=3),
                                         "sets": dict(sets=("duke", "viper"))}.items())
def test_sizes_that_do_not_go_together(name, sizes):
    with pytest.raises(UserError, match=f"^{name}=") as error: FedKLPRLabSizes(**sizes)
    assert "\n" not in str(error.value)

def test_a_dense_run_may_be_as_short_as_it_likes():
    assert FedKLPRLabSizes(rounds=5, rest=6, pruning="never").rounds == 5

def test_pruning_without_a_server_is_refused_or_runs():
    try: federation = tried(weighting="alone", pruning="always", rounds=3)[2]
    except UserError: return
    assert not federation.ledger.absent

@pytest.mark.parametrize("options", [dict(smallest=65, largest=64), dict(per_camera=1), dict(height=4)])
def test_worlds_that_cannot_be(options):
    with pytest.raises(UserError) as error: make_sites(replace(TINY, **options), 0)
    assert "\n" not in str(error.value)

# ---- the paper's profile, on folders

PARTS = {"Market-1501-tiny": ("bounding_box_train", "query", "bounding_box_test"),
         "viper": ("train_all", "query", "gallery")}

def draw(folder, name, who, camera):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([who, camera, len(name)])
    clothes = np.random.default_rng(who).integers(40, 200, (5, 3, 3)).repeat(4, 0).repeat(4, 1)[:20, :10]
    picture = clothes + 20 * camera + rng.integers(-15, 15, (20, 10, 3))
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(folder / name)

@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for k, (name, (train, query, gallery)) in enumerate(PARTS.items()):
        for who in range(1, 7):
            for camera in (1, 2):
                for shot in range(3):
                    draw(root / name / train, f"{who:04d}_c{camera}s1_{shot:06d}_00.jpg", 10 * k + who,
                         camera)
        for who in (11, 12, 13):
            draw(root / name / query, f"{who:04d}_c1s1_000000_00.jpg", 10 * k + who, 1)
            for shot in range(2):
                draw(root / name / gallery, f"{who:04d}_c2s1_{shot:06d}_00.jpg", 10 * k + who, 2)
    return root

PAPER = replace(profiles["paper"], sets=("market1501", "viper"), clients=2, network="resnet34", weights="",
                height=32, width=16, rounds=2, epochs=1, steps=1, last_epochs=0, batch=8, validation=0.34,
                k1=4, k2=2, warmup=0, rest=0, pruning="always", test_every=1)

def test_the_papers_profile_says_what_the_paper_does():
    sizes = profiles["paper"]
    assert (sizes.clients, sizes.rounds, sizes.epochs, sizes.target) == (8, 20, 5, 0.7)
    assert (sizes.network, len(sizes.sets)) == ("resnet50", 8)
    assert (sizes.k1, sizes.k2, sizes.eps, sizes.min_samples, sizes.batch, sizes.lr, sizes.weight_decay,
            sizes.delta, sizes.height, sizes.width) == (20, 6, 0.5, 4, 32, 3.5e-4, 5e-4, 0.13, 256, 128)

def test_the_papers_profile_runs_on_folders(folders, monkeypatch):
    "With one block in each stage in place of three to six, for speed."
    models = pytest.importorskip("torchvision.models")
    monkeypatch.setattr(models, "resnet34", lambda: models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1]))
    monkeypatch.setenv("FEDBOOK_DATA", str(folders))
    held, begin = world_of(PAPER, 0), start_of(PAPER, 0)
    assert [h.name for h in held] == ["Market-1501", "VIPeR"]
    for h in held:
        assert h.data.x.shape == (24, 3, 32, 16) and len(h.data.val_ids.unique()) == 2
        assert len(h.query[0]) == 3 and len(h.gallery[0]) == 6
    want = trial(FedKLPRLabExperiment(PAPER, 0))
    assert all("rank1" in row for row in want[1].rows) and not want[2].ledger.absent
    assert "body.7.0.conv2.weight" in want[0].masks[0]
    assert all(pruning_ratio(want[0].masks[id]) == pytest.approx(1 - (1 - PAPER.step)**2, abs=0.01)
               for id in (0, 1))
    down = [want[2].ledger.payload(way="down", round=r) for r in (0, 1)]
    assert down[0] == pytest.approx(2 * 4 * sum(p.numel() for p in begin.parameters()), rel=0.01)
    assert down[1] == pytest.approx((1 - PAPER.step) * down[0], rel=0.01)

def test_a_set_that_is_not_there(folders, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(folders))
    with pytest.raises(UserError, match="DukeMTMC-reID is missing; put the folders"):
        make_sites(replace(PAPER, sets=("duke",), clients=1), 0)
    with pytest.raises(UserError, match="'msmt17' is unknown"):
        make_sites(replace(PAPER, sets=("msmt17",), clients=1), 0)

@pytest.mark.parametrize("what, wanted",
                         [("other names", "holiday.jpg, expected names like 0002_c1s1"),
                          ("empty gallery", "no pictures"), ("one camera", "seen by two cameras")])
def test_folders_that_will_not_do(what, wanted, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    root = tmp_path / "Market"
    for who in range(1, 5):
        for camera in (1, 2):
            for part in ("bounding_box_train", "query", "bounding_box_test"):
                draw(root / part, f"{who:04d}_c{1 if what == 'one camera' else camera}s1_{camera:06d}_00.jpg",
                     who, camera)
    if what == "other names": draw(root / "bounding_box_train", "holiday.jpg", 1, 1)
    if what == "empty gallery":
        for f in (root / "bounding_box_test").iterdir(): f.unlink()
    with pytest.raises(UserError, match=wanted) as error:
        make_sites(replace(PAPER, sets=("market1501",), clients=1), 0)
    assert "\n" not in str(error.value)

# ---- what reviews found

def test_what_only_an_absent_client_kept_is_not_lost():
    server, masks = FedKLPRServer(first(), weighting="uniform"), [mask_at(0.5),
                                                                  {name: ~m
                                                                   for name, m in mask_at(0.5).items()}]
    state = {name: t + 1 if t.is_floating_point() else t for name, t in snapshot(first()).items()}
    server.masks, server.weights = dict(enumerate(masks)), state
    reply = Msg(compress({name: 2 * t for name, t in state.items()}, masks[1]), ANSWERS[1])
    server.merge(iter([(1, reply)]), [0, 1])
    for name, m in masks[0].items():
        assert torch.equal(server.weights[name][m], state[name][m])
        assert torch.equal(server.weights[name][~m], 2 * state[name][~m])

def test_what_nobody_keeps_is_zero_even_if_somebody_is_absent():
    server, mask = FedKLPRServer(first(), weighting="uniform"), mask_at(0.5)
    server.masks = {0: mask, 1: mask}
    server.merge(iter([(1, Msg(compress(snapshot(first()), mask), ANSWERS[1]))]), [0, 1])
    for name, m in mask.items():
        assert (server.weights[name][~m] == 0).all() and (server.weights[name][m] != 0).any()

def test_the_fixed_batch_is_of_all_control_identities(monkeypatch):
    client, seen = client_of(pruning="never", steps=1), []
    data = client.data
    numbered = torch.arange(100, dtype=torch.uint8)[:, None, None, None].expand(100, *data.x_val.shape[1:])
    client.data = data._replace(x_val=numbered, val_ids=torch.arange(100), val_cameras=torch.arange(100) % 2)
    def look(network, x):
        seen.append(x[:, 0, 0, 0].tolist())
        return torch.ones(len(x), 3)
    monkeypatch.setattr("fedbook.methods.recovery.outputs", look)
    client.moves()
    assert seen[0] == seen[1] and len(seen[0]) == 32 and seen[0][0] == 0 and seen[0][-1] == 99

@pytest.mark.parametrize("event", [None, "", {"a": 1}, "maybe", 3])
def test_refused_is_an_event_that_is_none(event):
    with pytest.raises(Refused, match="event"): judged(meta={"event": event})

def test_baselines_may_be_texts_and_must_be_numbers_one_for_each_client():
    asked = dict(baselines=",".join(["0.5"] * TINY.clients))
    assert choose({"tiny": TINY}, "tiny", asked).baselines == (0.5,) * TINY.clients
    for wrong in (("high",) * TINY.clients, (0.5,) * (TINY.clients + 1)):
        with pytest.raises(UserError, match="baselines"): replace(TINY, baselines=wrong)
    assert made("baselines", (0.1, 0.9, 0.3)[:TINY.clients])[0].threshold == pytest.approx(
        0.9 - TINY.margin / len(world()[0].data.x_val))

@pytest.mark.parametrize("network, share",
                         [(lambda: net(), 1.5), (lambda: net(), -0.1),
                          (lambda: ReIDNet(nn.Sequential(nn.Conv2d(3, 4, 1)), 4), 0.5)])
def test_channels_that_cannot_be_dropped(network, share):
    with pytest.raises(UserError): drop_channels(network(), share)

# ---- batch norm at home

def test_adapted_statistics_are_those_of_the_sites_own_pictures():
    network, pictures = net(), world()[0].data.x
    adapt_norms(network, pictures)
    seen = []
    network.body[0].register_forward_hook(lambda part, given, out: seen.append(out))
    with torch.no_grad(): network.train()(as_float(pictures))
    adapt_norms(network, pictures)
    assert close(network.body[1].running_mean, seen[0].mean((0, 2, 3)), 1e-5)
    assert not network.training and network.body[1].momentum == 0.1

def test_few_pictures_are_drawn_from_all_and_count_alike():
    "The first half of the pictures is black, and the last batch is no smaller than the others by more than one."
    seen, network = [], net()
    pictures = torch.cat([torch.zeros(100, 3, 32, 16, dtype=torch.uint8), torch.full((100, 3, 32, 16), 255, dtype=torch.uint8)])
    network.register_forward_pre_hook(lambda part, given: seen.append(given[0]))
    adapt_norms(network, pictures, most=100)
    sizes = [len(batch) for batch in seen]
    assert sum(sizes) == 100 and max(sizes) - min(sizes) <= 1
    assert 30 < sum(int(batch.flatten(1).mean(1).gt(batch.mean()).sum()) for batch in seen) < 70

def test_a_client_with_adabn_that_learns_nothing_has_no_weight():
    "Model and reference adapt alike, before training and after it, so that KLAW is 0 where nothing was learned."
    client = client_of(kind=LabClient, warmup=1, adabn=True, lr=1e-12)
    reply = client.fit(sent())
    assert reply.meta["kl"] < 1e-6 and reply.meta["cosine"] < 1e-6

@pytest.mark.parametrize("name", ("FedKLPR", "LotteryFL", "Sub-FedAvg"))
def test_runs_with_adabn(name):
    sizes = replace(TINY, rounds=2, margin=queries(1), adabn=True, **METHODS[name])
    server, history, federation = trial(FedKLPRLabExperiment(sizes, 0))
    assert not federation.ledger.absent and 0 <= history.last("rank1") <= 1

def test_each_client_may_have_a_target_of_its_own():
    sizes = replace(TINY, rounds=4, rest=0, warmup=1, step=0.9, **METHODS["+ SAS"])
    sizes = replace(sizes, targets=tuple(0.1 + 0.4 * k for k in range(sizes.clients)))
    _, history, _ = trial(FedKLPRLabExperiment(sizes, 0))
    ratios = [client["ratio"] for client in history.rows[-1]["clients"]]
    assert ratios == pytest.approx(sizes.targets, abs=0.05)
    with pytest.raises(UserError, match="targets"): replace(sizes, targets=(0.1,))
