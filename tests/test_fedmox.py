"""FedMox: the mixture of weights and its order, heads in place of torchvision's, what is frozen and what
crosses, runs that are proven, and the paper's profile on folders."""
import copy
import inspect
import json
import math
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image

import fedbook.fedmox as fedmox
from fedbook.methods import detect
from conftest import bits, by_day, close, copied, equal_bits as equal, normal, seeded
from fedbook.methods.detect import PAPER_LIMITS, SMALL_LIMITS, head_state, losses, trainable
from fedbook.methods.teacher import _box_loss, momentum_at
from fedbook.engine.workers import Checkpoint, prove, trial
from fedbook.methods.experts import halved, learn_mosaic, mixtures, mosaic, mosaic_head, upcycled
from fedbook.engine.federation import Federation, InProcess, Mean, run, weighted_average
import fedbook.evidence.fedmox as lab
from fedbook.evidence.fedmox import (FedMoxLabSizes, MosaicExperiment, MosaicSizes, ShrinkingClient,
                                     ShrinkingServer, equal_width, in_own_process, learn_mosaic_alone,
                                     mosaic_client, mosaic_trial, restored, shrink, upcycled_warm_up)
from fedbook.fedmox import (FedMoxClient, FedMoxExperiment, FedMoxServer, FedMoxSizes, profiles, soft_mixture,
                            street_server, warm_up)
from fedbook.methods import adapt
from fedbook.methods.adapt import (BoxOutputs, MoEBoxHead, MoERPNHead, cosine_rate, detector, encoder_of,
                                   make_detector, make_street, n_parameters, orthogonality, penalty_of, score_weights)
from fedbook.engine.errors import UserError
from fedbook.engine.local import build
from fedbook.engine.sizes import choose
from fedbook.engine.wire import Msg, Refused, pack, unpack

pytestmark = pytest.mark.usefixtures("one_process")

# thresholds so low that an untrained teacher has pseudo-boxes
TINY = replace(profiles["smoke"], weights="random", rounds=2, keep=0.1, rpn=0.15, classes=0.15, variance=10.0,
               clients=3, server_images=4, test_images=2, high=(96, 160), low=(48, 80), jitters=10)

@lru_cache
def first(): return warm_up(TINY, 0)

def street(seed=0, start=lambda: copied(first()), **options):
    "The experiment of `TINY` sizes; options that are sizes change them."
    changes = {name: options.pop(name) for name in list(options) if hasattr(TINY, name)}
    return FedMoxExperiment(replace(TINY, **changes), seed, start=start, **options)

def tried(**options): return trial(street(**options))

def small_messages(kind):
    return dict(wrap=partial(ShrinkingClient, kind=kind), kind=partial(ShrinkingServer, shrinking=kind))

# ---- heads

def maps(channels=8):
    return [normal(2, channels, h, w, seed=h) for h, w in ((12, 20), (6, 10), (3, 5), (2, 3), (1, 2))]

@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("experts", [1, 3])
def test_the_proposal_head_stands_in_for_torchvisions(experts, sparse):
    from torchvision.models.detection.rpn import RPNHead

    ours, theirs = MoERPNHead(8, 3, experts, sparse=sparse), RPNHead(8, 3)
    got, wanted = ours(maps()), theirs(maps())
    assert [[t.shape for t in part] for part in got] == [[t.shape for t in part] for part in wanted]
    assert all(isinstance(part, list) for part in got)
    for expert in ours.moe.experts: expert.load_state_dict(theirs.conv[0][0].state_dict())
    for name in ("cls_logits", "bbox_pred"):
        getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
    for a, b in zip(sum(ours(maps()), []), sum(wanted, []), strict=True): assert close(a, b, 1e-5)

@pytest.mark.parametrize("experts", [1, 3])
def test_the_box_head_stands_in_for_torchvisions(experts):
    """With class-specific boxes, torchvision's numbers for the background's box are never read; ours are
    zeros."""
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead

    head, predictor, x = TwoMLPHead(8 * 49, 16), FastRCNNPredictor(16, 6), normal(7, 8, 7, 7)
    ours, outputs = MoEBoxHead(8, 16, 5, experts), BoxOutputs(5)
    with torch.no_grad():
        for expert in ours.moe.experts:
            for mine, other in ((expert.hidden[1], head.fc6), (expert.hidden[3], head.fc7),
                                (expert.cls_score, predictor.cls_score)):
                mine.load_state_dict(other.state_dict())
            expert.bbox_pred.weight.copy_(predictor.bbox_pred.weight[4:]), expert.bbox_pred.bias.copy_(
                predictor.bbox_pred.bias[4:])
    (logits, boxes), (their_logits, their_boxes) = outputs(ours(x)), predictor(head(x))
    assert ours(x).shape == (7, 1 + 5 * 5) and close(logits, their_logits, 1e-5)
    assert close(boxes[:, 4:], their_boxes[:, 4:], 1e-5) and boxes.shape == their_boxes.shape
    assert (boxes[:, :4] == 0).all() and all(t.shape == (0, n) for t, n in zip(outputs(ours(x[:0])), (6, 24)))

def counts(c=5, k=1, channels=256, dim=1024):
    from torchvision.ops import FeaturePyramidNetwork
    from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

    with torch.device("meta"):
        pyramid = FeaturePyramidNetwork([384] * 4, channels, LastLevelMaxPool())
        parts = MoERPNHead(channels, 3, k), MoEBoxHead(channels, dim, c, k), pyramid
    return [n_parameters(part) for part in parts]

def test_parameters_are_the_papers():
    rpn, box, fpn = counts()
    assert (rpn, box, fpn, rpn + box) == (593_935, 13_922_330, 2_754_560, 14_516_265)
    assert [sum(counts(c)[:2]) for c in (6, 8)] == [14_521_390, 14_531_640]
    assert sum(counts(6, 3)) == 46_349_426

def test_the_width_at_which_one_expert_has_as_many():
    sizes = replace(TINY, experts=3, channels=8, box_dim=8)
    dim, wanted = equal_width(sizes), sum(counts(5, 3, 8, 8)[:2])
    assert sum(counts(5, 1, 8, dim)[:2]) >= wanted > sum(counts(5, 1, 8, dim - 1)[:2])
    assert equal_width(replace(sizes, experts=1)) == 8

@pytest.mark.parametrize("options", [dict(), dict(sparse=True), dict(gate="switch"), dict(experts=1)],
                         ids=str)
def test_one_step_changes_the_head_only(options):
    encoder, data = encoder_of(TINY), make_street(TINY, 0).server
    model = detector(encoder, 5, **{"experts": 2, "channels": 8, "box_dim": 8} | options)
    own, body = copied(head_state(model)), copied(encoder.module.state_dict())
    parts = losses(model, data.images[:2], data.boxes[:2])
    torch.optim.SGD(trainable(model), 0.1).step(lambda: sum(parts.values()).backward())
    changed = {name for name, t in head_state(model).items() if not torch.equal(t, own[name])}
    assert all(torch.isfinite(v) for v in parts.values()) and equal(body, encoder.module.state_dict())
    assert encoder.module is model.backbone.body and not model.backbone.body.training
    assert {"rpn.head.cls_logits.weight", "roi_heads.box_head.moe.experts.0.hidden.1.weight",
            "backbone.fpn.layer_blocks.0.0.weight"} <= changed
    if options.get("experts") != 1:
        assert {"rpn.head.moe.router.map.weight", "roi_heads.box_head.moe.router.weight"} <= changed
    head = (model.backbone.fpn, model.rpn.head, model.roi_heads)
    assert sum(p.numel() for p in trainable(model)) == sum(map(n_parameters, head))
    assert len(mixtures(model)) == 2 and not any(name.startswith("backbone.body") for name in own)

def test_a_detector_depends_on_its_seed_alone():
    a, b, c = (head_state(make_detector(TINY, seed)) for seed in (0, 0, 1))
    assert equal(a, b) and not equal(a, c)
    experts = mixtures(make_detector(TINY, 0))[0].experts
    assert not torch.equal(experts[0].weight, experts[1].weight)

# ---- soft mixture

def state(seed=0):
    return {"w": normal(3, 4, seed=seed), "b": normal(3, seed=seed + 1), "n": torch.tensor(7 + seed)}

def test_the_cards_example():
    mean = weighted_average([{"w": torch.tensor([1.0, 3])}, {"w": torch.tensor([3.0, 7])}], [1, 3])
    assert mean["w"].tolist() == [2.5, 6]
    assert soft_mixture({"w": torch.tensor([10.0, 10])}, mean, 0.25)["w"].tolist() == [4.375, 7]

@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 999), alpha=st.floats(0, 1))
def test_alpha_weighs_the_old_server(seed, alpha):
    old, mean = state(seed), state(seed + 5)
    got, ends = soft_mixture(old, mean, alpha), [soft_mixture(old, mean, end) for end in (0, 1)]
    for name in ("w", "b"):
        assert close(got[name], alpha * old[name] + (1 - alpha) * mean[name], 1e-5)
        assert close(got[name], old[name] + (1 - alpha) * (mean[name] - old[name]), 1e-5)
        assert torch.equal(bits(ends[0][name]), bits(mean[name]))
        assert torch.equal(bits(ends[1][name]), bits(old[name]))
    assert got["n"] == mean["n"] and got["n"].dtype == torch.int64 and equal(old, state(seed))
    assert equal(mean, state(seed + 5))

def test_a_mixture_is_new_memory():
    old, mean = state(), state(1)
    for alpha in (0, 0.5, 1):
        got = soft_mixture(old, mean, alpha)
        for t in got.values(): t.zero_()
    assert equal(old, state()) and equal(mean, state(1))

@pytest.mark.parametrize("change, said", [(dict(alpha=-0.1), "alpha=-0.1"), (dict(alpha=1.1), "alpha=1.1"),
                                          (dict(alpha=math.nan), "alpha=nan"),
                                          (dict(aggregated_state={"w": normal(3, 4)}), "same names"),
                                          (dict(aggregated_state=state() | {"w": normal(4, 3)}),
                                           r"w has \(3, 4\)")])
def test_mixtures_that_cannot_be(change, said):
    with pytest.raises(UserError, match=said) as error:
        soft_mixture(**{"server_state": state(), "aggregated_state": state(), "alpha": 0.5} | change)
    assert "\n" not in str(error.value)

# ---- the order of a round

@pytest.mark.parametrize("clients, share, m", [(3, 0.33, 1), (9, 0.33, 3), (9, 0.67, 6), (9, 0.01, 1),
                                               (9, 1.0, 9), (4, 0.4, 2), (1, 0.33, 1), (9, 0, 0)])
def test_how_many_answer(clients, share, m):
    server = FedMoxServer(mosaic_head(1), None, 5, share, seed=3)
    picks = [server.pick(list(range(clients)), r) for r in range(40)]
    assert all(len(pick) == len(set(pick)) == m and pick == sorted(pick) for pick in picks)
    assert picks == [server.pick(list(range(clients)), r) for r in range(40)]
    if 0 < m < clients:
        assert {id for pick in picks for id in pick} == set(range(clients))
        assert len(set(map(tuple, picks))) > 1
        assert picks != [FedMoxServer(mosaic_head(1), None, 5, share, seed=4).pick(list(range(clients)), r)
                         for r in range(40)]

def watched(monkeypatch):
    "A list of what happens: client, mean, mix, server."
    log = []
    def watch(owner, name, word):
        honest = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **options: (log.append(word),
                                                                   honest(*args, **options))[1])
    for name, word in (("learn_mosaic", "server"), ("learn_mosaic_alone", "client"), ("soft_mixture", "mix"),
                       ("learn_with_labels", "server"), ("learn_without_labels", "client")):
        watch(lab if "mosaic" in name else fedmox, name, word)
    watch(Mean, "value", "mean")
    return log

@pytest.mark.parametrize("clients, share, m", [(3, 0.33, 1), (9, 0.33, 3), (9, 0.67, 6), (3, 0, 0)])
def test_warm_up_once_then_clients_mean_mixture_server(clients, share, m, monkeypatch):
    log = watched(monkeypatch)
    mosaic_trial(0, experts=2, rounds=2, warmup=3, clients=clients, share=share)
    assert log == ["server"] * 3 + (["client"] * m + ["mean", "mix"] * bool(m) + ["server"]) * 2

def test_the_order_on_streets(monkeypatch):
    log = watched(monkeypatch)
    tried(start=None, warmup=2, share=0.67)
    assert log == ["server"] * 2 + (["client"] * 2 + ["mean", "mix", "server"]) * 2

def test_the_mean_is_weighted_by_pictures_and_mixed_with_the_model_that_was_sent():
    model, sent = mosaic_head(1), []
    server = FedMoxServer(model, lambda model, generator, rate: sent.append(copied(head_state(model))), 5,
                          0.5, alpha=0.25)
    old, a, b = (head_state(mosaic_head(1, seed=s)) for s in (0, 1, 2))
    server.merge(iter([(4, Msg(a, {"n": 1})), (7, Msg(b, {"n": 3}))]))
    for name in old:
        assert close(sent[0][name], 0.25 * old[name] + 0.75 * (a[name] + 3 * b[name]) / 4)
        assert torch.equal(server.weights[name], sent[0][name])

def test_the_server_learns_from_the_mixture_whatever_the_model_held_before():
    model = mosaic_head(1)
    server = FedMoxServer(model, lambda model, generator, rate: [p.data.add_(1) for p in model.parameters()],
                          5, 0, seed=0)
    before = copied(server.weights)
    model.load_state_dict(head_state(mosaic_head(1, seed=9)))
    server.merge(iter([]))
    assert all(close(server.weights[name], before[name] + 1) for name in before)
    for p in model.parameters(): p.data.zero_()
    assert all(close(server.weights[name], before[name] + 1)
               for name in before)       # weights are a copy, not the model's

def test_rates_follow_a_cosine_after_the_rise():
    assert [cosine_rate(r, 10) for r in (0, 5)] == pytest.approx([1, 0.5])
    assert cosine_rate(9, 10) == pytest.approx(0.5 + 0.5 * math.cos(0.9 * math.pi))
    assert 0 < cosine_rate(49, 50) < 0.01
    assert [cosine_rate(r, 20, 4) for r in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1])
    assert cosine_rate(12, 20, 4) == pytest.approx(0.5)
    heard = {"server": [], "client": []}
    model = mosaic_head(1)
    server = FedMoxServer(model, lambda m, g, rate: heard["server"].append(rate), 4, 1.0, rise=2)
    make = lambda id: FedMoxClient(id, model, lambda m, t, g, rate, step: heard["client"].append(rate), 5)
    with Federation(InProcess(make), 1) as federation: run(server, federation, 4)
    assert heard == {"server": [cosine_rate(r, 4, 2) for r in range(4)],
                     "client": [cosine_rate(r, 4) for r in range(4)]}

def test_the_servers_randomness_depends_on_seed_and_round_only():
    def drawn(seed, share):
        seen, model = [], mosaic_head(1)
        server = FedMoxServer(model, lambda m, g, rate: seen.append(g.get_state().tolist()), 3, share,
                              seed=seed)
        line = InProcess(lambda id: FedMoxClient(id, model, lambda m, t, g, rate, step: torch.rand(1, generator=g),
                                            5, seed))
        with Federation(line, 3) as federation: run(server, federation, 3)
        return seen
    a, b, c = drawn(0, 0), drawn(0, 1.0), drawn(1, 0)
    assert a == b and len({tuple(s) for s in a + c}) == 6
    states = []
    for phase in (0, 1, 1):
        FedMoxServer(mosaic_head(1), lambda m, g, rate: states.append(g.get_state().tolist()), 3, 0,
                     phase=phase).merge(iter([]))
    assert states[0] != states[1] == states[2]
    assert mosaic_client(0, 0, mosaic_head(1)).generator.get_state().tolist() not in a + states

@pytest.mark.parametrize("experts", [1, 3])
def test_with_alpha_one_the_clients_are_ignored(experts):
    ignored, alone, heard = (mosaic_trial(0, experts=experts, rounds=3, warmup=2, clients=3, threshold=0.3,
                                          **options) for options in (dict(alpha=1.0), dict(share=0),
                                                                     dict(alpha=0.9)))
    assert equal(ignored[0].weights, alone[0].weights) and ignored[1:3] == alone[1:3]
    assert not equal(heard[0].weights, alone[0].weights)
    assert ignored[3].ledger.total() > 0 == alone[3].ledger.total()

def test_with_alpha_one_the_clients_are_ignored_on_streets_too():
    ignored, alone = tried(alpha=1.0), tried(share=0)
    assert equal(ignored[0].weights, alone[0].weights) and not equal(tried()[0].weights, alone[0].weights)
    drop = lambda row: {name: value for name, value in row.items() if name not in ("down", "up")}
    assert list(map(drop, ignored[1].rows)) == list(map(drop, alone[1].rows)) and not alone[2].ledger.entries

# ---- the router's gradient

def fine(experts, seed=0, **options):
    """A detector in float64, its experts all equal (those of a detector with one expert of the same seed), and
    the pictures it is asked about."""
    single = detector(encoder_of(TINY), 5, 1, channels=8, box_dim=8, seed=seed)
    model = detector(encoder_of(TINY), 5, experts, channels=8, box_dim=8, seed=seed + 1, **options)
    model.load_state_dict(upcycled(model, single.state_dict(), noise=0.0))
    return model

def slopes(model, data):
    "The four losses of a batch, and the gradients of all that is not in a mixture, by name."
    torch.manual_seed(3)
    parts = losses(model, data.images[:2], data.boxes[:2])
    named = {name: p for name, p in model.named_parameters() if p.requires_grad and ".moe." not in name}
    grads = torch.autograd.grad(sum(parts.values()), list(named.values()), allow_unused=True)
    return {name: v.detach() for name, v in parts.items()}, dict(zip(named, grads))

def far(a, b): return max(float((a[name] - b[name]).abs().max() / b[name].abs().max().clamp(min=1e-3)) for name in b)

@pytest.mark.parametrize("options", [dict(), dict(detach=True), dict(sparse=True, detach=True)], ids=str)
def test_equal_experts_have_the_losses_and_gradients_of_one(options):
    """Whatever the routing. In float32 here: torchvision's boxes are; the same in float64, to 1e-6 and below,
    is tested of the mixtures alone in test_experts.py."""
    data = make_street(TINY, 0).server
    for seed in (0, 1):
        found, grads = slopes(fine(3, seed, **options), data)
        wanted, single = slopes(fine(1, seed), data)
        assert far(found, wanted) < 1e-5 and far(grads, single) < 1e-4

def test_each_reading_of_the_router_reaches_its_heads():
    on = lambda model: [(len(moe.experts), moe.detach, moe.sparse) for moe in mixtures(model)]
    assert on(make_detector(replace(TINY, detach=True), 0)) == [(2, True, False)] * 2
    assert on(make_detector(replace(TINY, detach=False), 0)) == [(2, False, False)] * 2
    assert on(make_detector(replace(TINY, mixed="proposals"), 0)) == [(2, True, False), (1, True, False)]
    centred = make_detector(replace(TINY, centred=True), 0).roi_heads.box_head.moe
    assert isinstance(centred.router[0], torch.nn.BatchNorm1d) and centred.router[1].out_features == 2

def test_a_centred_router_takes_a_client_with_one_object():
    sizes = replace(TINY, centred=True)
    model = make_detector(sizes, 0).train()
    norm = model.roi_heads.box_head.moe.router[0]
    before = copied(dict(norm.named_buffers()))
    maps = model.backbone(torch.zeros(1, 3, 64, 64))
    boxes, one = [torch.tensor([[4.0, 4, 30, 30]])], [torch.tensor([1])]
    model.roi_heads.select_training_samples = lambda *_: (boxes, None, one, [torch.zeros(1, 4)])
    loss = _box_loss(model, maps, [(64, 64)], [], [])
    assert torch.isfinite(loss) and norm.training and equal(dict(norm.named_buffers()), before)

def test_a_balance_loss_reaches_the_routers_and_no_hook_stays():
    sizes = replace(TINY, share=0, rounds=1)
    plain, balanced = (street_server(replace(sizes, balance=b), 0) for b in (0.0, 5.0))
    for server in (plain, balanced): server.merge(iter([]))
    routers = [name for name in plain.weights if "router" in name]
    assert routers and all(not torch.equal(plain.weights[name], balanced.weights[name]) for name in routers)
    assert not any(moe.router._forward_hooks for moe in mixtures(balanced.model))

def test_one_optimiser_lives_through_a_warm_up_and_travels_with_the_state():
    make = lambda: street_server(replace(TINY, share=0, rounds=3), 0, lasting=True, phase=0)
    whole, cut = make(), make()
    for r in range(3):
        whole.begin([], r), whole.merge(iter([]))
    for r in range(2):
        cut.begin([], r), cut.merge(iter([]))
    other = make()
    other.load(unpack(pack(cut.state())))
    other.begin([], 2), other.merge(iter([]))
    assert equal(other.weights, whole.weights)
    moments = [name for name in cut.state().tensors if name.startswith("optimiser/")]
    assert moments and not any(name.startswith("optimiser/") for name in whole.weights)
    anew = street_server(replace(TINY, share=0, rounds=3), 0, phase=0)
    for r in range(3):
        anew.begin([], r), anew.merge(iter([]))
    assert not equal(anew.weights, whole.weights)

def test_an_upcycled_warm_up_starts_from_one_expert():
    sizes = FedMoxLabSizes(**vars(TINY) | dict(warmup=2, upcycle=0.5))
    weights, single = upcycled_warm_up(sizes, 0), warm_up(replace(TINY, warmup=1, experts=1), 0)
    assert weights.keys() == first().keys() and equal(weights, upcycled_warm_up(sizes, 0))
    assert not equal(weights, upcycled_warm_up(replace(sizes, upcycle=0.0), 0))
    whole = upcycled_warm_up(replace(sizes, warmup=1, upcycle=1.0), 0)
    for name, t in single.items():
        if ".experts." not in name: assert torch.equal(whole[name], t)

def test_one_head_and_a_mixture_share_the_first_part_of_the_warm_up():
    asked, begun = [], warm_up(replace(TINY, warmup=1, experts=1), 0)
    single = lambda its: asked.append((its.experts, its.warmup, its.upcycle)) or begun
    sizes = FedMoxLabSizes(**vars(TINY) | dict(warmup=2, upcycle=0.5))
    one, two = (upcycled_warm_up(replace(sizes, experts=k), 0, single=single) for k in (1, 2))
    assert asked == [(1, 1, 0.0)] * 2 and one.keys() == begun.keys() and not equal(one, begun)
    assert equal(upcycled_warm_up(replace(sizes, experts=1), 0), one)
    assert equal(upcycled_warm_up(sizes, 0), two)
    stopped = upcycled_warm_up(replace(sizes, experts=1, warmup=1, upcycle=1.0), 0, single=single)
    assert equal(stopped, begun)

# ---- what is frozen, what crosses

@pytest.mark.parametrize("options", [dict(), dict(penalty="orthogonal", own_teacher=True),
                                     dict(share=1.0, penalty="proximal")], ids=str)
def test_the_body_stands_still_and_never_travels(options):
    module = encoder_of(TINY).module
    before = copied(module.state_dict())
    server, history, federation = tried(**options)
    assert make_detector(TINY, 0).backbone.body is module is street_server(TINY, 0).model.backbone.body
    assert not any(p.requires_grad for p in module.parameters())
    assert equal(before, module.state_dict()) and encoder_of(TINY).module is module
    assert not any(p.requires_grad or p.grad is not None for p in module.parameters())
    names = head_state(make_detector(TINY, 0)).keys()
    assert federation.ledger.entries
    assert all({name for name, _ in e.tensors} == names and e.verb == "fit"
               for e in federation.ledger.entries)
    assert not any("body" in name for name in names) and server.weights.keys() == names
    assert not federation.ledger.absent
    assert not equal(server.weights, first())

def test_what_crosses_is_a_head_each_way():
    server, history, federation = tried(share=0.67)
    size = sum(t.nbytes for t in first().values())
    for r in (0, 1):
        for way in ("down", "up"):
            assert len(federation.ledger.where(way=way, round=r)) == 2
            assert federation.ledger.payload(way=way, round=r) == pytest.approx(2 * size, rel=0.02)
    assert [("total" in row) for row in history.rows] == [False, True]
    assert set(history.rows[-1]) == {"round", "cloudy", "overcast", "rainy", "snowy", "total", "down", "up"}

def test_a_reply_holds_weights_and_a_number():
    client = street().client(1)
    reply = client.fit(Msg(copied(first()), {"rate": 1.0}))
    assert reply.meta == {"n": TINY.client_images} and reply.tensors.keys() == first().keys()
    assert not equal(reply.tensors, first())
    assert all(torch.isfinite(t).all() for t in reply.tensors.values())

def test_a_client_never_reads_its_boxes(monkeypatch):
    def reply(boxes):
        client = street().client(0)
        data = copy.copy(client.learn.keywords["data"])
        if not boxes: object.__setattr__(data, "boxes", None)
        client.learn = partial(client.learn.func, **client.learn.keywords | {"data": data})
        return client.fit(Msg(copied(first()), {"rate": 1.0})).tensors
    assert equal(reply(True), reply(False))

def test_clients_that_borrow_one_model_do_not_disturb_each_other():
    model, sent = mosaic_head(2), Msg(head_state(mosaic_head(2, seed=5)), {"rate": 1.0})
    def replies(order):
        clients = {id: mosaic_client(id, 0, model, threshold=0.3) for id in order}
        return {id: clients[id].fit(unpack(pack(sent))).tensors for id in order}
    a, b = replies([0, 1]), replies([1, 0])
    assert all(equal(a[id], b[id]) for id in (0, 1)) and not equal(a[0], a[1])

def test_a_reply_is_a_copy():
    model = mosaic_head(2)
    sent = Msg(head_state(model), {"rate": 1.0})
    before = copied(sent.tensors)
    reply = mosaic_client(0, 0, model, threshold=0.3).fit(sent)
    held = copied(reply.tensors)
    for p in model.parameters(): p.data.zero_()
    assert equal(sent.tensors, before) and equal(reply.tensors, held)

# ---- teachers

def teachers(own, rounds=2):
    "The weights of the teacher before and after each round, and those that were sent."
    seen, model = [], mosaic_head(1)
    def learn(model, teacher, generator, rate, step):
        seen.append([copied(teacher.state_dict()), step])
        for p in model.parameters(): p.data.add_(1)
        for p in teacher.parameters(): p.data.add_(0.5)
        seen[-1].append(copied(teacher.state_dict()))
    client = FedMoxClient(0, model, learn, 5, own_teacher=own)
    sent = [head_state(mosaic_head(1, seed=r)) for r in range(rounds)]
    for w in sent: client.fit(Msg(copied(w), {"rate": 1.0}))
    return sent, seen, client

def test_the_teacher_is_what_came():
    sent, seen, client = teachers(own=False)
    for w, (before, step, _) in zip(sent, seen): assert equal(before, w) and step == 0
    assert not client.teacher and client.state().tensors.keys() == {"generator"}

def test_an_own_teacher_is_kept_and_travels_through_state():
    sent, seen, client = teachers(own=True)
    assert equal(seen[0][0], sent[0]) and equal(seen[1][0], seen[0][2]) and equal(client.teacher, seen[1][2])
    assert seen[0][1] == 0 and momentum_at(seen[1][1]) == 0.999
    other = FedMoxClient(0, mosaic_head(1), client.learn, 5, own_teacher=True)
    other.load(unpack(pack(client.state())))
    assert equal(other.teacher, client.teacher) and pack(other.state()) == pack(client.state())
    other.fit(Msg(copied(sent[0]), {"rate": 1.0}))
    assert equal(seen[-1][0], client.teacher) and momentum_at(seen[-1][1]) == 0.999
    fresh = FedMoxClient(0, mosaic_head(1), client.learn, 5, own_teacher=True)
    other.load(unpack(pack(fresh.state())))
    assert not other.teacher

def test_the_teacher_has_no_gradient_and_is_another_model():
    model, seen = mosaic_head(2), []
    FedMoxClient(0, model, lambda m, t, g, rate, step: seen.append((m, t)),
                 5).fit(Msg(head_state(model), {"rate": 1.0}))
    (student, teacher), = seen
    assert student is model is not teacher and not any(p.requires_grad for p in teacher.parameters())
    assert all(p.requires_grad for p in model.parameters())
    def learn(m, t, g, rate, step):
        for k, each in enumerate((m, t), 1): [p.data.fill_(k) for p in each.parameters()]
    reply = FedMoxClient(0, model, learn, 5).fit(Msg(head_state(model), {"rate": 1.0}))
    assert all((t == 1).all() for t in reply.tensors.values())
    assert not {p.data_ptr() for p in teacher.parameters()} & {p.data_ptr() for p in model.parameters()}

@pytest.mark.parametrize("kind", ["mosaic", "streets"])
def test_an_own_teacher_outlives_a_round(kind):
    "A kept teacher far away moves towards the student by 1 - momentum in each step, and not onto it."
    client = mosaic_client(0, 0, mosaic_head(2),
                           own_teacher=True) if kind == "mosaic" else street(own_teacher=True).client(0)
    weights = head_state(client.model)
    client.fit(Msg(copied(weights), {"rate": 1.0}))
    client.teacher = {name: t + 1 if t.is_floating_point() else t for name, t in client.teacher.items()}
    client.fit(Msg(copied(weights), {"rate": 1.0}))
    assert all((client.teacher[name] - weights[name]).mean() > 0.5 for name, t in weights.items()
               if t.is_floating_point())

def test_an_own_teacher_changes_the_run_and_stays_at_home():
    mine, theirs = (mosaic_trial(0, experts=2, rounds=4, warmup=2, clients=2, share=1.0, threshold=0.3,
                                 own_teacher=own) for own in (True, False))
    assert not equal(mine[0].weights, theirs[0].weights) and mine[3].ledger.so_far == theirs[3].ledger.so_far
    assert all({name.split("/")[0] for name in unpack(s).tensors} == {"generator", "teacher"}
               for s in mine[3].states.values())

# ---- runs

def small_mosaic(**options):
    return MosaicExperiment(MosaicSizes(**dict(experts=2, rounds=3, warmup=2, clients=3, share=0.67,
                                               threshold=0.3) | options))

PROVEN = {"mosaic": small_mosaic(), "mosaic, own teachers": small_mosaic(own_teacher=True),
          "mosaic, a head that is given": MosaicExperiment(small_mosaic().sizes, head=mosaic_head(3, seed=4)),
          "mosaic, FedSTO": small_mosaic(alpha=0.0, penalty="orthogonal", own_teacher=True),
          "streets, with the warm-up": street(share=0.67, own_teacher=True, start=None),
          **{f"streets, {kind}": street(share=0.67, own_teacher=True, **small_messages(kind))
             for kind in ("int8", "top")}}

@pytest.mark.slow
@pytest.mark.parametrize("name", by_day(PROVEN, "streets, with the warm-up", "streets, int8"))
def test_a_run_is_a_function_of_its_sizes_and_its_seed(name): prove(PROVEN[name], kills=2)

def test_a_server_alone_is_a_function_of_its_sizes_and_its_seed(): prove(small_mosaic(share=0.0), kinds=())

def test_another_seed_is_another_run():
    weights = [trial(MosaicExperiment(small_mosaic().sizes, seed)).server.weights for seed in (0, 1)]
    assert not equal(*weights) and not equal(tried().server.weights, tried(seed=1).server.weights)

def test_a_warm_up_repeats_and_depends_on_the_seed():
    again, other = (warm_up(TINY, seed) for seed in (0, 1))
    assert equal(again, first()) and not equal(again, other)
    assert not equal(first(), head_state(make_detector(TINY, 0)))
    assert equal(warm_up(replace(TINY, warmup=0), 0), head_state(make_detector(TINY, 0)))

def test_a_warm_up_that_was_killed_resumes_to_the_same_bits(tmp_path, kill):
    job = lambda checkpoint=None: warm_up(replace(TINY, warmup=3), 0, checkpoint=checkpoint)
    kill(lambda: job(Checkpoint(tmp_path / "w.safetensors")), 2)
    assert equal(job(Checkpoint(tmp_path / "w.safetensors")), job())

def test_a_run_without_a_start_begins_after_the_warm_up():
    assert equal(street(start=None).server().weights, first())
    assert equal(street(start=None, own_teacher=True).server().weights, first())

@pytest.mark.parametrize("n", [0, -1, 1.5, None, "many"])
def test_a_reply_without_pictures_is_refused(n):
    with pytest.raises(Refused, match="n="):
        FedMoxServer(mosaic_head(1), None, 1).accept("fit", 0, Msg(head_state(mosaic_head(1)), {"n": n}))

# ---- sizes

def called(monkeypatch, name, work):
    "The arguments, by name, of the first call of `adapt.NAME` while `work()` runs; the call does nothing."
    calls, wanted = [], inspect.signature(getattr(adapt, name))
    monkeypatch.setattr(adapt, name, lambda *args, **options: calls.append(wanted.bind(*args, **options)))
    work()
    bound = calls[0]
    bound.apply_defaults()
    return bound.arguments

def client_call(monkeypatch, **changes):
    client = street(**changes).client(0)
    return called(monkeypatch, "self_training_epoch", lambda: client.fit(Msg(copied(first()), {"rate": 0.5})))

def server_call(monkeypatch, **changes):
    server = street_server(replace(TINY, rounds=3, share=0, **changes), 0)
    return called(monkeypatch, "supervised_epoch", lambda: server.merge(iter([])))

CLIENT = dict(batch=3, weight=2.5, momentum=0.77, decay=0.11, keep=0.21, rpn=0.31, classes=0.41,
              variance=0.51, jitters=7, jitter=0.61)

@pytest.mark.parametrize("name", CLIENT)
def test_each_size_reaches_the_client(name, monkeypatch):
    assert getattr(TINY, name) != CLIENT[name] == client_call(monkeypatch, **{name: CLIENT[name]})[name]

def test_the_clients_rate_is_its_own(monkeypatch):
    call = client_call(monkeypatch, lr=0.9, client_lr=0.02)
    assert call["lr"] == pytest.approx(0.01) and call["step"] == 0

def test_a_lasting_teacher_has_its_momentum_from_the_first_step(monkeypatch):
    assert momentum_at(client_call(monkeypatch, lasting=True)["step"], 0.99) == 0.99

SERVER = dict(batch=3, decay=0.11, scales=(0.7, 0.8))

@pytest.mark.parametrize("name", SERVER)
def test_each_size_reaches_the_server(name, monkeypatch):
    assert getattr(TINY, name) != SERVER[name] == server_call(monkeypatch, **{name: SERVER[name]})[name]

def test_the_servers_rate_is_its_own(monkeypatch):
    call = server_call(monkeypatch, lr=0.9, client_lr=0.02, warm_lr=0.03)
    assert call["lr"] == pytest.approx(0.9) and len(call["data"]) == TINY.server_images

def test_the_warm_up_has_a_rate_of_its_own_and_no_penalty(monkeypatch):
    sizes = replace(TINY, lr=0.9, client_lr=0.02, warm_lr=0.03, warmup=1, penalty="orthogonal")
    call = called(monkeypatch, "supervised_epoch", lambda: warm_up(sizes, 0))
    assert call["optimiser"].param_groups[0]["lr"] == pytest.approx(0.03) and call["penalty"] is None

@pytest.mark.parametrize("name, value", dict(alpha=0.77, share=0.55, rounds=17).items())
def test_each_size_reaches_the_round(name, value):
    assert getattr(TINY, name) != value == getattr(street_server(replace(TINY, **{name: value}), 0), name)

def test_own_teacher_reaches_the_client():
    assert [street(own_teacher=own).client(0).own_teacher for own in (True, False)] == [True, False]

def box_expert(model): return model.roi_heads.box_head.moe.experts[0]

DETECTOR = dict(experts=(3, lambda m: {len(moe.experts) for moe in mixtures(m)} == {3}),
                gate=("switch", lambda m: {moe.gate for moe in mixtures(m)} == {"switch"}),
                sparse=(True, lambda m: {moe.sparse for moe in mixtures(m)} == {True}),
                channels=(16, lambda m: m.backbone.out_channels == 16
                          and m.rpn.head.moe.experts[0].in_channels == 16),
                box_dim=(24, lambda m: box_expert(m).cls_score.in_features == 24),
                anchors=((7, 14, 28, 56, 112), lambda m: m.rpn.anchor_generator.sizes == ((7,), (14,), (28,),
                                                                                          (56,), (112,))),
                limits=("paper", lambda m: (m.rpn._pre_nms_top_n["training"],
                                            m.rpn._post_nms_top_n["testing"],
                                            m.roi_heads.fg_bg_sampler.batch_size_per_image)
                        == (2000, 1000, 512)))

@pytest.mark.parametrize("name", DETECTOR)
def test_each_size_reaches_the_detector(name):
    value, holds = DETECTOR[name]
    assert getattr(TINY, name) != value and holds(make_detector(replace(TINY, **{name: value}), 0))
    assert not holds(make_detector(TINY, 0))

def test_few_views_come_back_and_their_maps_are_looked_up(monkeypatch):
    "A run in which maps are looked up is the run in which they are computed, but for sums of a batch."
    few = dict(views=2, server_images=2, client_images=3)
    known = tried(**few).server.weights
    assert equal(tried(**few).server.weights, known)
    monkeypatch.setattr(detect, "recalled", lambda maps_of, x, body: maps_of(x))
    computed = tried(**few).server.weights
    assert all(torch.allclose(t, known[name], atol=1e-3) for name, t in computed.items())

def test_what_is_kept_of_maps_is_bounded(monkeypatch):
    monkeypatch.setattr(detect, "_known", type(detect._known)())
    monkeypatch.setattr(detect, "_known_bytes", [0])
    monkeypatch.setattr(detect, "RECALL_BYTES", 100)
    asked, x = [], normal(5, 3, 2, 2)
    maps_of = lambda picture: asked.append(1) or [picture.mean((1, 2, 3))[:, None]]
    body = torch.nn.Identity()
    for _ in range(2): assert close(detect.recalled(maps_of, x, body)[0], x.mean((1, 2, 3))[:, None])
    assert len(asked) == 5 and detect._known_bytes == [20]
    monkeypatch.setattr(detect, "RECALL_BYTES", 8)
    detect.recalled(maps_of, normal(3, 3, 2, 2, seed=9), body)
    assert len(detect._known) == 2 and detect._known_bytes == [8]

def test_maps_are_those_of_the_network_that_is_asked(monkeypatch):
    "Neither another network's, nor those of other numbers with the same bytes."
    monkeypatch.setattr(detect, "_known", type(detect._known)())
    monkeypatch.setattr(detect, "_known_bytes", [0])
    asked, bodies = [], [torch.nn.Identity(), torch.nn.Identity()]
    maps_of = lambda picture: asked.append(1) or [picture.flatten(1).double()]
    zeros = torch.zeros(1, 3, 2, 4)
    for x in (zeros, zeros.view(1, 3, 4, 2), zeros.to(torch.int32)):
        for body in bodies: detect.recalled(maps_of, x, body)
    assert len(asked) == 6
    detect.recalled(maps_of, zeros, bodies[0])
    assert len(asked) == 6

def test_views_are_drawn_anew_or_are_few():
    own = torch.Generator().manual_seed(1)
    images = [torch.full((3, 2, 2), k, dtype=torch.uint8) for k in (4, 5)]
    assert detect.view_draws(own, images) == [own, own]
    draw = lambda g: float(torch.rand((), generator=g))
    seen = {draw(g) for _ in range(40) for g in detect.view_draws(own, images, 3)}
    assert len(seen) == 6, "three of each picture, and none in common"

def test_a_picture_of_another_client_or_seed_has_views_of_its_own():
    first_draws = lambda seed, id: [float(torch.rand((), generator=g)) for g in detect.view_draws(
        torch.Generator().manual_seed(1), make_street(TINY, seed).clients[id].images, 1)]
    drawn = [draw for seed in (0, 1) for id in (0, 1) for draw in first_draws(seed, id)]
    assert len(set(drawn)) == len(drawn) == 4 * TINY.client_images

def test_a_clients_memory_is_that_of_a_process_of_its_own():
    tiny = dict(size=(64, 96), experts=2, frozen=True, channels=8, box_dim=8, anchors=(8, 16, 32, 64, 128),
                weights="random")
    found = in_own_process(**tiny)
    assert found["fits"] and found["peak"] >= found["start"] > 10 ** 8
    assert found["state"] < found["network"] * 4
    assert not in_own_process(10 ** 8, **tiny)["fits"]

@pytest.mark.parametrize("most, code, said, expected", [
    (0, 1, "MemoryError: no", UserError), (10 ** 8, 1, "KeyError: 'x'", UserError), (0, 1, "", UserError),
    (10 ** 8, 1, "RuntimeError: can't allocate memory", False), (10 ** 8, -9, "", False)])
def test_only_a_lack_of_memory_is_one(most, code, said, expected, monkeypatch):
    ended = lab.subprocess.CompletedProcess([], code, "", f"Traceback\n{said}\n" if said else "")
    monkeypatch.setattr(lab.subprocess, "run", lambda *args, **options: ended)
    if not expected: assert in_own_process(most) == {"fits": False}
    else:
        with pytest.raises(UserError, match=said or "1$"): in_own_process(most)

IDLE = dict(centred=True, client_images=1, server_images=2, test_images=1)

def test_clients_that_learn_nothing_have_not_walked():
    "Whatever else the state of a head holds: statistics of a batch norm, and a count of its batches."
    def idle(client):
        client.learn = lambda *arguments: None
        return client
    def walked(wrap):
        sizes = FedMoxLabSizes(**vars(TINY) | dict(IDLE, rounds=1))
        start = lambda: {name: 1000 * t if "running" in name or "num" in name else t
                         for name, t in head_state(make_detector(sizes, 0)).items()}
        return trial(lab.WalkedExperiment(sizes, 0, start=start, wrap=wrap)).history.rows[-1]["walked"]
    assert walked(idle) == 0 and walked(None) > 1e-4

def test_a_round_has_as_many_epochs_with_labels_as_the_sizes_say():
    sizes, learnt = FedMoxLabSizes(**vars(TINY) | dict(IDLE, server_epochs=3)), []
    server = lab.WalkedExperiment(sizes, 0, start=lambda: {}).server()
    server.learn = partial(lab._epochs, lambda *what, **more: learnt.append(what), *server.learn.args[1:])
    server.learn(1, 2)
    assert learnt == [(1, 2)] * 3

def test_experts_reach_routers_and_classes_reach_the_boxes():
    model = make_detector(replace(TINY, experts=3), 0)
    assert model.rpn.head.moe.router.map.weight.shape == (3, 8, 1, 1)
    assert model.roi_heads.box_head.moe.router.weight.shape == (3, 8 * 49)
    assert box_expert(model).cls_score.out_features == 6
    assert model.roi_heads.box_predictor.n_classes == model.n_classes == 5
    assert (SMALL_LIMITS["box_batch_size_per_image"], PAPER_LIMITS["box_batch_size_per_image"]) == (128, 512)

STREET = dict(clients=4, server_images=5, client_images=3, test_images=1, high=(64, 96), low=(32, 64))

@pytest.mark.parametrize("name", STREET)
def test_each_size_reaches_the_street(name):
    street = make_street(replace(TINY, **{name: STREET[name]}), 0)
    found = dict(clients=len(street.clients), server_images=len(street.server),
                 client_images=len(street.clients[0]), test_images=len(street.tests["rainy"]),
                 high=tuple(street.server.images.shape[2:]), low=tuple(street.clients[0].images.shape[2:]))
    assert found == {each: getattr(TINY, each) for each in STREET} | {name: STREET[name]}
    assert tuple(street.tests["snowy"].images.shape[2:]) == found["high"]
    assert torch.equal(FedMoxExperiment(TINY, 0).client(1).learn.keywords["data"].images,
                       make_street(TINY, 0).clients[1].images)

def test_at_the_same_resolution_the_server_has_small_pictures():
    data = lambda **changes: street_server(replace(TINY, **changes), 0).learn.keywords["data"]
    assert data(same_resolution=True).images.shape[2:] == TINY.low and data().images.shape[2:] == TINY.high
    assert torch.allclose(data().boxes[0].xyxy / 2, data(same_resolution=True).boxes[0].xyxy)

def test_the_encoder_is_the_one_that_was_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(adapt, "image_encoder", lambda *args: asked.append(args) or len(asked))
    adapt._encoder.cache_clear()
    try:
        got = [encoder_of(replace(TINY, encoder=name, weights=weights))
               for name, weights in (("resnet50", "random"), ("resnet50", "random"), ("dinov2-s", "auto"),
                                     ("dinov2-s", "w.pth"))]
    finally: adapt._encoder.cache_clear()
    assert [args[:2] for args in asked] == [("resnet50", None), ("dinov2-s", "auto"), ("dinov2-s", "w.pth")]
    assert got == [1, 1, 2, 3]

@pytest.mark.parametrize("iou, wanted", [(0.5, 0.5), (0.75, 0.75), (0, None)])
def test_the_overlap_reaches_the_score(iou, wanted, monkeypatch):
    assert called(monkeypatch, "score_domains", lambda: score_weights(make_detector(TINY, 0), first(),
                                                                      make_street(TINY, 0).tests,
                                                                      iou))["iou"] == wanted
    seen = []
    monkeypatch.setattr(fedmox, "score_weights",
                        lambda model, weights, tests, iou: seen.append((copied(weights), list(tests), iou))
                        or {})
    server, *_ = tried(iou=iou, rounds=1)
    (weights, domains, said), = seen
    assert said == iou and equal(weights, server.weights)
    assert domains == ["cloudy", "overcast", "rainy", "snowy"]

def test_the_warm_up_rises(monkeypatch):
    for warmup, rise in ((50, 5), (9, 3), (1, 0)):
        seen = []
        with monkeypatch.context() as patch:
            patch.setattr(fedmox, "learn_with_labels",
                          lambda model, generator, rate, data, sizes, optimiser: seen.append(rate))
            warm_up(replace(TINY, warmup=warmup), 0)
        assert seen == [cosine_rate(r, warmup, rise) for r in range(warmup)]

@pytest.mark.parametrize("penalty, at_client, at_server",
                         [("none", None, None), ("proximal", "proximal", None),
                          ("orthogonal", "orthogonal", "orthogonal")])
def test_the_penalty_reaches_those_it_is_for(penalty, at_client, at_server, monkeypatch):
    model = make_detector(TINY, 0)
    for call, name in ((client_call, at_client), (server_call, at_server)):
        with monkeypatch.context() as patch: extra = call(patch, penalty=penalty, mu=0.3)["penalty"]
        assert (extra is None) == (name is None)
        if name == "orthogonal": assert torch.allclose(extra(model), 0.3 * orthogonality(trainable(model)))
        if name == "proximal":
            start = build(lambda: make_detector(TINY, 0), 0)
            start.load_state_dict(start.state_dict() | first())
            assert extra(start).item() == 0
            with torch.no_grad(): trainable(start)[0].add_(2)
            assert extra(start).item() == pytest.approx(0.3 / 2 * 4 * trainable(start)[0].numel(), rel=1e-4)

def test_the_papers_profile_says_what_the_paper_does():
    s = profiles["paper"]
    assert (s.clients, s.share, s.server_images, s.high, s.low, s.encoder, s.channels, s.box_dim,
            s.experts) == (9, 0.33, 2000, (720, 1280), (360, 640), "dinov2-s", 256, 1024, 4)
    assert (s.warmup, s.rounds, s.batch, s.lr, s.decay, s.limits, s.iou, s.gate) == (50, 50, 2, 1e-4, 0.05,
                                                                                     "paper", 0.5, "ste")
    assert s.client_lr <= s.lr == s.warm_lr and 0.1 <= s.alpha <= 0.3
    assert (s.momentum, s.weight, s.keep, s.rpn, s.classes, s.variance, s.jitters, s.jitter,
            s.mu) == (0.999, 4.0, 0.5, 0.9, 0.9, 0.02, 10, 0.06, 0.001)

BAD = dict(data="kitti", gate="soft", penalty="l2", limits="huge", clients=0, experts=0, server_images=0,
           client_images=0, test_images=0, channels=0, box_dim=0, rounds=0, batch=0, jitters=1,
           mosaic_seeds=0,
           mosaic_warmup=0, mosaic_rounds=0, share=1.1, alpha=1.5, momentum=1.1, keep=2.0, rpn=1.01,
           classes=1.01, iou=1.1, high=(90,), low=(0, 5), anchors=(8, 16), lr=-1.0, client_lr=math.nan,
           warm_lr=-1.0, decay=-0.1,
           warmup=-1, weight=-1.0, variance=-0.1, jitter=-0.1, mu=-1.0, seeds=0, dose_seeds=-1, line_seeds=-1,
           tuning=-1, alone_seeds=-1, long_seeds=-1, views=-1, reruns=-1,
           segment_epochs=0, segment_rounds=0, mixed="boxes", balance=-0.1,
           upcycle=1.5, labels=(0,), counts=(0,), alphas=(1.5,))

@pytest.mark.parametrize("name", BAD)
def test_sizes_that_cannot_be(name):
    with pytest.raises(UserError, match=f"^{name}=") as error: FedMoxLabSizes(**{name: BAD[name]})
    assert "\n" not in str(error.value)

@pytest.mark.parametrize("name, value", [("high", 90), ("low", None), ("high", (96.7, 160)),
                                         ("scales", (0.5,)), ("scales", (2.0, 1.0)), ("scales", ()),
                                         ("scales", (0.0, 1.0)),
                                         ("clients", 2.5)])
def test_sizes_of_a_wrong_kind(name, value):
    with pytest.raises(UserError, match=f"^{name}="): FedMoxSizes(**{name: value})

@pytest.mark.parametrize("job, said", [(lambda: shrink(*changed(), "zip"), "kind='zip'"),
                                       (lambda: penalty_of("l2", 1, mosaic_head(1)), "penalty='l2'"),
                                       (lambda: FedMoxServer(mosaic_head(1), None, 3, alpha=2), "alpha=2"),
                                       (lambda: FedMoxServer(mosaic_head(1), None, 3, share=-0.1),
                                        "share=-0.1")])
def test_bad_arguments(job, said):
    with pytest.raises(UserError, match=said): job()

@pytest.mark.parametrize("experts", [0, -1, 1.5, "two"])
@pytest.mark.parametrize("make", [lambda k: MoERPNHead(8, 3, k), lambda k: MoEBoxHead(8, 8, 5, k),
                                  lambda k: detector(encoder_of(TINY), 5, k, 8, 8)])
def test_experts_are_a_whole_number(make, experts):
    with pytest.raises(UserError, match="^experts="): make(experts)

@pytest.mark.parametrize("options, said",
                         [(dict(n_classes=0), "n_classes=0"), (dict(n_classes=2.0), "n_classes=2.0"),
                          (dict(anchors=(8, 16)), "anchors"), (dict(gate="x"), "gate='x'"),
                          (dict(gate="dense", sparse=True), "sparse")])
def test_detectors_that_cannot_be(options, said):
    with pytest.raises(UserError, match=said):
        detector(encoder_of(TINY), **{"n_classes": 5, "channels": 8, "box_dim": 8} | options)

@pytest.mark.parametrize("state, said", [({}, "missing"), ({"more": torch.ones(1)}, "unknown"),
                                         ({"experts.0.bias": torch.ones(9)}, "shape")])
def test_a_client_that_is_sent_another_head(state, said):
    weights = head_state(mosaic_head(1))
    with pytest.raises(UserError, match=said):
        mosaic_client(0, 0, mosaic_head(1)).fit(Msg(weights | state if state else {}, {"rate": 1.0}))

# ---- penalties

def test_proximal_is_half_mu_times_the_squared_distance():
    model = mosaic_head(2)
    extra = penalty_of("proximal", 0.3, model)
    assert extra(model).item() == 0
    moved = build(lambda: mosaic_head(2, seed=1), 0)
    distance = sum(((a - b) ** 2).sum().item() for a, b in zip(model.parameters(), moved.parameters()))
    assert extra(moved).item() == pytest.approx(0.15 * distance, rel=1e-5)
    assert penalty_of("none", 0.3, model) is None
    grads = torch.autograd.grad(extra(moved), list(moved.parameters()))
    for g, a, b in zip(grads, moved.parameters(), model.parameters()): assert close(g, 0.3 * (a - b))

def spectrum(rows, columns, values, seed=0):
    rng = np.random.default_rng(seed)
    u, v = np.linalg.qr(rng.normal(size=(rows, rows)))[0], np.linalg.qr(rng.normal(size=(columns, columns)))[
        0]
    return torch.tensor(u[:, :len(values)] @ np.diag(values) @ v[:len(values)], dtype=torch.float32)

@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows, columns", [(4, 9), (9, 4), (5, 5)])
def test_orthogonality_by_singular_values(rows, columns, seed):
    "One value far from the others: two steps find it; in any case the estimate is not above the truth."
    values = np.array([3.0] + [1.1] * (min(rows, columns) - 1))
    w = spectrum(rows, columns, values, seed)
    worst = np.abs(np.linalg.svd(w.double().numpy(), compute_uv=False) ** 2 - 1).max()
    assert worst == pytest.approx(8, rel=1e-4) and orthogonality([w]).item() == pytest.approx(worst, rel=0.02)
    any_w = normal(rows, columns, seed=seed)
    limit = np.abs(np.linalg.svd(any_w.double().numpy(), compute_uv=False) ** 2 - 1).max()
    assert 0.5 * limit < orthogonality([any_w]).item() <= limit * 1.0001

def test_orthogonal_matrices_cost_nothing_and_sums_are_over_matrices():
    for rows, columns in ((4, 9), (9, 4), (5, 5)):
        assert orthogonality([spectrum(rows, columns, [1.0] * min(rows, columns))]).item() < 1e-5
    a, b = spectrum(4, 9, [2.0] * 4), spectrum(3, 12, [3.0] * 3).reshape(3, 3, 2, 2)
    assert orthogonality([a, torch.full((7,), 50.0), b]).item() == pytest.approx(3 + 8, rel=1e-3)
    exact = torch.eye(4).requires_grad_()
    assert torch.isfinite(torch.autograd.grad(orthogonality([exact]), exact)[0]).all()

def test_a_step_on_orthogonality_makes_it_smaller():
    w = normal(4, 9).requires_grad_()
    before = orthogonality([w])
    with torch.no_grad(): after = orthogonality([w - 0.01 * torch.autograd.grad(before, w)[0]])
    assert after < before

def moved_by(**options):
    "How far a client moves in an epoch."
    model = mosaic_head(2)
    start = head_state(model)
    end = mosaic_client(0, 0, model, threshold=0.3, **options).fit(Msg(copied(start), {"rate": 1.0})).tensors
    return sum((end[name] - start[name]).abs().sum().item() for name in start), end

def test_penalties_hold_a_client_back():
    (free, _), (held, _), (_, straight) = moved_by(), moved_by(penalty="proximal",
                                                               mu=1e4), moved_by(penalty="orthogonal", mu=1e4)
    assert held < 0.7 * free
    weights = lambda state: [t for name, t in state.items() if "weight" in name]
    assert orthogonality(weights(straight)) < orthogonality(weights(moved_by()[1]))
    assert equal(moved_by(penalty="proximal", mu=0.0)[1], moved_by()[1])

def test_the_servers_penalty_and_balance_reach_its_loss():
    def learned(**options):
        model = mosaic_head(3)
        for r in range(4): learn_mosaic(model, seeded(r), 1.0, mosaic(8), **options)
        return orthogonality(model.parameters())
    assert learned(penalty=penalty_of("orthogonal", 1e3, None)) < learned()
    run = lambda **options: mosaic_trial(0, experts=2, rounds=1, warmup=2, clients=1, **options)[0].weights
    assert not equal(run(), run(penalty="orthogonal")) and not equal(run(), run(balance=1.0))

# ---- the mosaic

def alone(model=None, teacher=None, seed=0, step=0, **options):
    model = model or mosaic_head(2)
    learn_mosaic_alone(model, teacher or copy.deepcopy(model), seeded(seed), 1.0, step,
                       halved(mosaic(8, 1)).x, **options)
    return model

def test_what_the_teacher_is_not_sure_of_is_left_out():
    "Where it is sure of nothing, only the decay is left: each weight shrinks by (1 - lr * decay) a step."
    model, start = alone(threshold=1.0, lr=0.1, batch=4), mosaic_head(2)
    for a, b in zip(model.parameters(), start.parameters()): assert close(a, b * (1 - 0.1 * 0.05) ** 2, 1e-6)
    assert not equal(alone(threshold=0.3).state_dict(), alone(threshold=0.6).state_dict())

def test_the_students_labels_are_the_teachers():
    "A teacher that always says class 2 is followed, and a share of wrong labels spoils that."
    teacher = mosaic_head(1)
    with torch.no_grad():
        for p in teacher.parameters(): p.zero_()
        teacher.experts[0].bias[2] = 20
    def said(wrong):
        model = mosaic_head(1)
        for r in range(20): alone(model, copy.deepcopy(teacher), r, lr=0.05, wrong=wrong, momentum=1.0)
        with torch.no_grad(): return model(halved(mosaic(8, 1)).x).softmax(1).mean((0, 2, 3))
    assert said(0.0)[2] > 0.99 and 0.4 < said(0.5)[2] < 0.9

def test_the_mosaics_teacher_follows():
    model, teacher = mosaic_head(2), mosaic_head(2, seed=3)
    far = copied(teacher.state_dict())
    alone(model, teacher, batch=8)
    assert equal(teacher.state_dict(),
                 model.state_dict())
    assert not equal(far, teacher.state_dict())       # the first step has momentum 0
    model, teacher = mosaic_head(2), mosaic_head(2, seed=3)
    alone(model, teacher, batch=4, momentum=0.5)
    assert not equal(teacher.state_dict(), model.state_dict())
    model, teacher = mosaic_head(2), mosaic_head(2, seed=3)
    alone(model, teacher, batch=8, momentum=0.75, step=9)
    for name, t in teacher.state_dict().items():
        assert close(t, 0.75 * far[name] + 0.25 * model.state_dict()[name])

def test_options_of_a_mosaic_run_reach_it(monkeypatch):
    calls = []
    def client(id, seed, model, own_teacher, world, **options):
        calls.append(dict(options, seed=seed, model=model, own_teacher=own_teacher))
        return FedMoxClient(id, model, lambda *args: None, 5)
    monkeypatch.setattr(lab, "mosaic_client", client)
    server = mosaic_trial(4, experts=3, gate="switch", sparse=True, alpha=0.4, rounds=1, warmup=1, clients=2,
                          share=1.0, client_lr=0.5, threshold=0.6, wrong=0.7, penalty="proximal",
                          own_teacher=True)[0]
    options = calls[0]
    assert (options["seed"], options["lr"], options["threshold"], options["wrong"], options["penalty"],
            options["own_teacher"]) == (4, 0.5, 0.6, 0.7, "proximal", True)
    moe = options["model"]
    assert len(calls) == 2
    assert (len(moe.experts), moe.gate, moe.sparse, server.alpha, server.share, server.rounds,
            server.seed) == (3, "switch", True, 0.4, 1.0, 1, 4)

def test_a_server_of_low_resolution(monkeypatch):
    sizes = []
    monkeypatch.setattr(lab, "learn_mosaic",
                        lambda model, generator, rate, data, **options: sizes.append(tuple(data.x.shape)))
    for low in (True, False): mosaic_trial(0, rounds=1, warmup=1, clients=1, share=0, low_server=low)
    assert set(sizes[:2]) == {(16, 16, 8, 8)} and set(sizes[2:]) == {(16, 16, 16, 16)}

def test_clients_of_the_mosaic_have_a_weather_each():
    clients = [mosaic_client(id, 0, mosaic_head(1)) for id in range(6)]
    for id, client in enumerate(clients):
        assert client.n == 24
        assert torch.equal(client.learn.keywords["x"], halved(mosaic(24, 1 + id % 3, 0, 10 + id)).x)
    assert len({client.learn.keywords["x"].sum().item() for client in clients}) == 6

# ---- smaller messages

def changed(seed=0):
    start = {name: normal(*shape, seed=seed + len(name)) for name, shape in {"w": (30, 7), "bias": (13,),
                                                                             "still": (5,)}.items()}
    return {name: t + 0.1 * normal(*t.shape, seed=seed + 50) * (name != "still")
            for name, t in start.items()}, start

@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 999))
def test_int8_is_off_by_half_a_scale_at_most(seed):
    end, start = changed(seed)
    small = shrink(end, start, "int8")
    back = restored(small, start)
    assert small.keys() == start.keys() | {f"scale/{name}" for name in start} and back.keys() == end.keys()
    for name in start:
        scale = small[f"scale/{name}"].item()
        assert small[name].dtype == torch.int8
        assert scale == pytest.approx((end[name] - start[name]).abs().max().item() / 127, rel=1e-5, abs=1e-30)
        assert (back[name] - end[name]).abs().max().item() <= 0.5 * scale * 1.001 + 1e-6
        assert back[name].shape == end[name].shape and back[name].dtype == torch.float32
    assert torch.equal(back["still"], start["still"]) and small["w"].abs().max() == 127

@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 999), keep=st.floats(0.01, 1))
def test_top_keeps_the_largest_changes(seed, keep):
    end, start = changed(seed)
    small = shrink(end, start, "top", keep)
    back = restored(small, start)
    for name in ("w", "bias"):
        change, n = (end[name] - start[name]).flatten(), math.ceil(keep * end[name].numel())
        sent = torch.zeros(len(change), dtype=torch.bool)
        sent[small[f"where/{name}"].long()] = True
        assert sent.sum() == n == len(small[name])
        assert (n == len(change) or change[sent].abs().min() >= change[~sent].abs().max())
        assert close(back[name].flatten()[sent], end[name].flatten()[sent])
        assert torch.equal(back[name].flatten()[~sent], start[name].flatten()[~sent])

@pytest.mark.parametrize("kind", ["int8", "top"])
def test_shrinking_leaves_its_arguments_alone(kind):
    (end, start), (end_, start_) = changed(), changed()
    restored(shrink(end, start, kind), start)
    assert equal(end, end_) and equal(start, start_)

@pytest.mark.parametrize("kind, share, near", [("int8", 0.25, 0.25), ("top", 0.2, 1.0)])
def test_messages_shrink_and_the_run_goes_on(kind, share, near):
    full = tried(share=1.0)
    small = tried(share=1.0, **small_messages(kind))
    assert not small[2].ledger.absent
    assert small[2].ledger.payload(way="down") == pytest.approx(full[2].ledger.payload(way="down"), rel=0.01)
    assert small[2].ledger.payload(way="up") == pytest.approx(share * full[2].ledger.payload(way="up"),
                                                              rel=0.2)
    distance = lambda a, b: math.sqrt(sum(((a[name] - b[name]) ** 2).sum().item() for name in a))
    assert 0 < distance(small[0].weights, full[0].weights) < near * distance(small[0].weights, first())

def test_a_small_message_that_points_outside_is_refused():
    model = mosaic_head(1)
    server, start = ShrinkingServer(model, None, 1, shrinking="top"), head_state(model)
    small = shrink({name: t + 1 for name, t in start.items()}, start, "top")
    server.accept("fit", 0, Msg(small, {"n": 5}))
    for bad in (small | {"where/experts.0.bias": torch.tensor([99], dtype=torch.int32)},
                small | {"where/experts.0.bias": torch.tensor([-1], dtype=torch.int32)},
                {name: t for name, t in small.items() if name != "experts.0.bias"},
                small | {"experts.0.bias": torch.ones(3)},
                small | {"experts.0.bias": torch.tensor([math.inf])}):
        with pytest.raises(Refused): server.accept("fit", 0, Msg(bad, {"n": 5}))
    with pytest.raises(Refused, match="n="): server.accept("fit", 0, Msg(small, {"n": 0}))

def test_a_small_message_with_more_in_it_is_refused():
    model = mosaic_head(1)
    start = head_state(model)
    with pytest.raises(Refused):
        ShrinkingServer(model, None, 1).accept("fit", 0,
                                               Msg(shrink(start, start, "int8") | {"more": torch.ones(1)},
                                                   {"n": 5}))

# ---- the paper's profile, on folders

def picture(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    grid = np.random.default_rng(seed).integers(0, 255, (12, 20, 3), dtype=np.uint8)
    Image.fromarray(grid.repeat(8, 0).repeat(8, 1)).save(path)

def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))

def bdd(root):
    for part, weathers in (("train", ["partly cloudy"] * 3 + ["overcast", "rainy", "snowy"] * 2),
                           ("val", ["partly cloudy", "overcast", "rainy", "snowy"])):
        box = dict(x1=10.0, y1=20.0, x2=70.0, y2=80.0)
        frames = [dict(name=f"{k}.jpg", attributes=dict(weather=w), labels=[dict(category="car", box2d=box),
                                                                            dict(category="pedestrian",
                                                                                 box2d=box | dict(x1=50.0))])
                  for k, w in enumerate(weathers)]
        for k in range(len(weathers)): picture(root / "BDD100K" / "images" / "100k" / part / f"{k}.jpg", k)
        write(root / "BDD100K" / "labels" / "det_20" / f"det_{part}.json", frames)

def soda(root):
    parts = {"train": ["Clear"] * 3 + ["Overcast", "Rainy"], "val": ["Clear", "Overcast", "Rainy"],
             "unlabeled": ["Overcast"] * 4 + ["Rainy"] * 2}
    for part, weathers in parts.items():
        images = [dict(id=k, file_name=f"{k}.png", height=96, width=160, weather=w)
                  for k, w in enumerate(weathers)]
        found = [] if part == "unlabeled" else [dict(image_id=i["id"], category_id=c,
                                                     bbox=[10 + 30 * c, 20, 40, 50]) for i in images
                                                for c in (1, 2)]
        for k in range(len(weathers)):
            picture(root / "SODA10M" / ("." if part == "unlabeled" else "labeled") / part / f"{k}.png", k)
        write(root / "SODA10M" / "labeled" / "annotations" / f"instance_{part}.json",
              dict(images=images, annotations=found,
                   categories=[dict(id=1, name="Car"), dict(id=2, name="Tram")]))

def city(root):
    for part, cities in (("train", ["aachen", "ulm", "ulm"]),
                         ("train_extra", ["bamberg", "bayreuth", "dortmund"] * 2), ("val", ["lindau"] * 2)):
        kind = "gtCoarse" if part == "train_extra" else "gtFine"
        for k, name in enumerate(cities):
            stem = f"{name}_{k:06d}_000019"
            picture(root / "Cityscapes" / "leftImg8bit" / part / name / f"{stem}_leftImg8bit.png", k)
            objects = [dict(label="car", polygon=[[10, 20], [60, 20], [60, 70]]),
                       dict(label="person", polygon=[[90, 20], [120, 20], [100, 80]])]
            write(root / "Cityscapes" / kind / part / name / f"{stem}_{kind}_polygons.json",
                  dict(imgHeight=96, imgWidth=160, objects=objects))

FOLDERS = {"bdd100k": (bdd, ["cloudy", "overcast", "rainy", "snowy"], 5, [2, 2, 2]),
           "soda10m": (soda, ["clear", "overcast", "rainy"], 6, [2, 2, 2]),
           "cityscapes": (city, ["val"], 8, [2, 2, 2])}

PAPER = replace(profiles["paper"], clients=3, share=0.67, server_images=2, high=(96, 160), low=(48, 80),
                encoder="efficientnet-lite0", weights="random", channels=8, box_dim=8,
                anchors=(8, 16, 32, 64, 128),
                warmup=1, rounds=1, iou=0.5)

@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    detect._street.cache_clear()
    yield tmp_path
    detect._street.cache_clear()

@pytest.mark.parametrize("name", FOLDERS)
def test_the_papers_profile_runs_on_folders(name, folder):
    make, domains, classes, pictures = FOLDERS[name]
    make(folder)
    sizes = replace(PAPER, data=name, experts=4 if name == "bdd100k" else 3, iou=0 if name == "soda10m"
                    else 0.5)
    street, model = make_street(sizes, 0), make_detector(sizes, 0)
    assert len(street.classes) == classes == model.n_classes and [len(c) for c in street.clients] == pictures
    assert len(street.server) == 2
    assert street.server.images[0].shape == (3, 96, 160) and street.clients[0].images[0].shape == (3, 48, 80)
    assert {len(m.experts) for m in mixtures(model)} == {sizes.experts}
    start = warm_up(sizes, 0)
    server, history, federation = trial(FedMoxExperiment(sizes, start=lambda: start))
    row = history.rows[-1]
    assert row.keys() == {"round", "down", "up", "total", *domains}
    assert all(0 <= row[d] <= 1 for d in (*domains, "total")) and not federation.ledger.absent
    assert len(federation.ledger.where(way="up")) == 2 and not equal(server.weights, start)
    assert all(torch.isfinite(t).all() for t in server.weights.values())
    assert row["total"] == pytest.approx(sum(row[d] * len(street.tests[d])
                                             for d in domains) / sum(map(len, street.tests.values())))

def test_the_papers_profile_at_one_resolution(folder):
    bdd(folder)
    sizes = replace(PAPER, data="bdd100k", same_resolution=True)
    data = street_server(sizes, 0).learn.keywords["data"]
    assert data.images[0].shape == (3, 48, 80) and warm_up(sizes, 0)

@pytest.mark.parametrize("name", FOLDERS)
def test_a_set_that_is_not_there(name, folder):
    with pytest.raises(UserError, match="put "): make_street(replace(PAPER, data=name), 0)

# ---- the module

def test_the_smoke_profile_runs():
    sizes = replace(profiles["smoke"], weights="random")
    server, history, federation = trial(FedMoxExperiment(sizes))
    assert len(history.rows) == sizes.rounds and not federation.ledger.absent
    assert 0 <= history.last("total") <= 1


def test_the_profiles_are_of_one_kind():
    assert profiles.keys() == {"smoke", "quick", "full", "open", "paper"}
    assert {type(p) for p in profiles.values()} == {FedMoxSizes}


@pytest.mark.parametrize("name", ["dose_seeds", "memory_seeds"])
def test_rows_that_are_compared_seed_by_seed_need_seeds_that_both_have(name):
    with pytest.raises(UserError, match=f"^{name}=7 must be at most seeds=3"):
        FedMoxLabSizes(seeds=3, **{name: 7})
    assert getattr(FedMoxLabSizes(seeds=7, **{name: 7}), name) == 7


@pytest.mark.parametrize("wanted, setting, experts, iou", [
    ({}, "bdd100k", 4, 0.5), ({"data": "soda10m"}, "soda10m", 3, 0.0), ({"data": "cityscapes"}, "cityscapes", 3, 0.5),
    ({"setting": "soda10m"}, "soda10m", 3, 0.0), ({"data": "photos/"}, "", 4, 0.5),
    ({"data": "soda10m", "experts": "5"}, "soda10m", 5, 0.0)])
def test_the_data_bring_the_experts_and_the_metric_of_the_paper(wanted, setting, experts, iou):
    sizes = choose(fedmox.profiles, "paper", wanted, fedmox.settings)
    assert (sizes.setting, sizes.experts, sizes.iou) == (setting, experts, iou)
    assert sizes.data == wanted.get("data", setting)


def test_the_open_profile_is_as_large_as_the_paper_and_wants_no_set():
    paper, own = fedmox.profiles["paper"], fedmox.profiles["open"]
    same = "high", "low", "channels", "box_dim", "anchors", "limits", "warmup", "rounds", "rpn", "variance"
    assert all(getattr(paper, name) == getattr(own, name) for name in same)
    assert (own.data, own.encoder) == ("rendered", "efficientnet-lite0")
