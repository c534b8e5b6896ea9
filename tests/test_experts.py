"""Mixtures of experts: gates, routing, both ways to compute them, maps of any size, and the mosaic with its
claims."""
import copy
import math
from functools import lru_cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import nn

import fedbook.methods.experts as experts
from conftest import bits, close, copied as copied_state, equal_bits as equal, normal, seeded
from fedbook.methods.experts import (GATES, MOSAIC_WEATHERS, ExpertsSizes, Mosaic, RoIMoE, SpatialMoE,
                                     SpatialRouter, add_experts, balance_loss, gate_mask,
                                     gathered_convolution, grow_experts, halved, heard, learn_mosaic,
                                     mixtures, mosaic, mosaic_head, on_pixels, patch_rows, plain_head,
                                     prune_experts, routing_agreement, score_mosaic, upcycled, usage)
from fedbook.engine.errors import UserError
from fedbook.engine.local import build, generator, precise

pytestmark = pytest.mark.usefixtures("one_process")

# ---- gates

@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 999), k=st.integers(1, 5), scale=st.floats(0.01, 50), gate=st.sampled_from(GATES),
       training=st.booleans())
def test_a_mask_sums_to_one_and_its_winner_is_the_largest_logit(seed, k, scale, gate, training):
    logits = scale * normal(2, k, 3, 4, seed=seed)
    mask, p = gate_mask(logits, gate, training), logits.softmax(1)
    assert mask.shape == logits.shape and torch.equal(mask.argmax(1), logits.argmax(1))
    if gate == "dense": assert torch.equal(mask, p)
    elif gate == "switch": assert torch.equal(mask.sum(1), p.max(1).values) and ((mask > 0).sum(1) == 1).all()
    else: assert (mask.sum(1) == 1).all() and ((mask == 0) | (mask == 1)).all()

@pytest.mark.parametrize("gate", GATES)
def test_gates_by_hand(gate):
    mask = gate_mask(torch.tensor([[0.0, math.log(3)]]), gate)
    assert torch.allclose(mask, torch.tensor({"hard": [[0.0, 1]], "ste": [[0.0, 1]], "switch": [[0, 0.75]],
                                              "dense": [[0.25, 0.75]]}[gate]))

@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 999), scale=st.floats(0.01, 50))
def test_straight_through_is_the_hard_mask_bit_for_bit_with_the_gradient_of_the_softmax(seed, scale):
    logits, pull = (scale * normal(2, 4, 5, 6, seed=seed)).requires_grad_(), normal(2, 4, 5, 6, seed=seed + 1)
    assert torch.equal(bits(gate_mask(logits, "ste", True).detach()), bits(gate_mask(logits, "hard", True)))
    (ste,), (soft,) = (torch.autograd.grad((gate_mask(logits, gate, True) * pull).sum(), logits)
                       for gate in ("ste", "dense"))
    assert torch.equal(ste, soft) and not gate_mask(logits, "hard").requires_grad
    assert not gate_mask(logits, "ste", False).requires_grad

def test_the_load_is_one_at_balance_and_k_at_collapse():
    for k in (2, 3, 5):
        assert balance_loss(40 * torch.eye(k)).item() == pytest.approx(1)
        assert balance_loss(torch.tensor([[40.0] + [0] * (k - 1)] * 7)).item() == pytest.approx(k)
    logits = normal(2, 3, 4, 5)
    p, f = logits.softmax(1).double().numpy(), np.bincount(logits.argmax(1).flatten().numpy(),
                                                           minlength=3) / 40
    assert balance_loss(logits).item() == pytest.approx(3 * sum(f[k] * p[:, k].mean() for k in range(3)),
                                                        rel=1e-5)

def test_the_load_pulls_towards_the_expert_that_has_less():
    logits = torch.tensor([[1.0, 0], [1, 0], [0, 1]]).requires_grad_()
    grad = torch.autograd.grad(balance_loss(logits), logits)[0]
    assert (grad[:, 0] > 0).all() and (grad[:, 1] < 0).all()

# ---- the spatial mixture

def convolutions(k, kernel=3, inside=4, outside=5, bias=True):
    sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    return [nn.Conv2d(inside, outside, sides, padding=tuple(side // 2 for side in sides), bias=bias)
            for _ in range(k)]

def spatial(k=3, gate="ste", sparse=False, kernel=3, seed=0, **options):
    "A mixture whose router has an opinion."
    def make():
        router = SpatialRouter(4, k)
        nn.init.normal_(router.map.weight)
        return SpatialMoE(router, convolutions(k, kernel, **options), gate, sparse)
    return build(make, seed)

def roi(k=3, gate="ste", sparse=False, seed=0):
    return build(lambda: RoIMoE(nn.Linear(24, k),
                                [nn.Sequential(nn.Flatten(), nn.Linear(24, 5)) for _ in range(k)], gate,
                                sparse), seed)

MIXED = {"spatial": (spatial, lambda seed=0, n=2: normal(n, 4, 6, 7, seed=seed)),
         "roi": (roi, lambda seed=0, n=40: normal(n, 6, 2, 2, seed=seed))}

def picked(outs, chosen):
    return torch.stack(outs).gather(0, chosen[:, None][None].expand_as(outs[0][None]))[0]

@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("gate", ["ste", "hard"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", MIXED)
def test_each_place_goes_through_the_expert_with_the_largest_logit(kind, sparse, gate, training):
    make, data = MIXED[kind]
    moe, x = make(gate=gate, sparse=sparse).train(training), data()
    logits = moe.router(x if kind == "spatial" else x.flatten(1))
    wanted = picked([expert(x) for expert in moe.experts], logits.argmax(1))
    assert torch.equal(moe.routing(x), logits.argmax(1)) and len(moe.routing(x).unique()) == 3
    assert (torch.allclose(moe(x), wanted, atol=1e-5) if sparse or training else torch.equal(moe(x), wanted))

def test_sparse_experts_train_in_bf16_as_dense_ones_do():
    x, outputs = MIXED["spatial"][1](), []
    for sparse in (False, True):
        moe = spatial(sparse=sparse, outside=120)
        with precise("bf16"): outputs.append(moe(x))
        outputs[-1].sum().backward()
        assert all(expert.weight.grad.any() for expert in moe.experts)
    assert close(*outputs, 0.05)

@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", MIXED)
def test_switch_and_dense_scale_the_output(kind, training):
    make, data = MIXED[kind]
    x = data()
    for sparse in (False, True):
        moe = make(gate="switch", sparse=sparse).train(training)
        p = moe.router(x if kind == "spatial" else x.flatten(1)).softmax(1)
        assert close(moe(x), p.max(1, keepdim=True).values * picked([e(x) for e in moe.experts], p.argmax(1)),
                     1e-5)
    moe = make(gate="dense").train(training)
    assert close(moe(x), sum(p[:, k, None] * e(x) for k, e in enumerate(moe.experts)), 1e-5)

@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("kind", MIXED)
def test_one_expert_is_the_plain_layer(kind, gate):
    make, data = MIXED[kind]
    expert, x = make(1).experts[0], data()
    for sparse in (False, True)[:1 + (gate != "dense")]:
        plain = (SpatialMoE if kind == "spatial" else RoIMoE)(None, [expert], gate, sparse)
        assert torch.equal(plain(x), expert(x)) and not plain.routing(x).any()
        assert plain.routing(x).shape == (x[:, 0].shape if kind == "spatial" else x.shape[:1])
        assert close((SpatialMoE if kind == "spatial" else RoIMoE)(make(1).router, [expert], gate, sparse)(x),
                     expert(x))

@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", MIXED)
def test_identical_experts_make_the_router_irrelevant(kind, sparse):
    make, data = MIXED[kind]
    one, x = make(1).experts[0], data()
    outs = []
    for seed in (1, 2):
        moe = make(sparse=sparse, seed=seed)
        for expert in moe.experts: expert.load_state_dict(one.state_dict())
        assert len(moe.routing(x).unique()) > 1
        outs.append(moe(x))
    assert close(outs[0], outs[1], 1e-5) and close(outs[0], one(x), 1e-5)

def flat(moe, x, gate, router=True):
    "Output and gradients of input and parameters of a mixture in training, for a fixed pull."
    x = x.clone().requires_grad_()
    y = moe.train()(x)
    names = {name: p for name, p in moe.named_parameters() if router or not name.startswith("router")}
    grads = torch.autograd.grad((y * normal(*y.shape, seed=99).to(y.dtype)).sum(), [x, *names.values()],
                                allow_unused=True)
    return [y.detach(), *(torch.zeros(()) if g is None else g for g in grads)]

class Fixed(nn.Module):
    "A router whose logits do not depend on where the input came from."
    def __init__(self, router):
        super().__init__()
        self.router = router

    def forward(self, x): return self.router(x.detach()).detach()

@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 999), k=st.integers(1, 4), shape=st.tuples(st.integers(1, 2), st.just(4),
                                                                      st.integers(1, 7), st.integers(1, 7)),
       kernel=st.sampled_from([1, 3, 5, (3, 1), (1, 5)]),
       bias=st.booleans(), gate=st.sampled_from(["hard", "switch", "ste"]))
def test_masked_and_gathered_agree_in_output_and_gradients(seed, k, shape, kernel, bias, gate):
    """With `ste` the gathered router hears of the chosen expert only, so there the gradients of input and
    experts are compared for a router without one."""
    masked = spatial(k, gate, kernel=kernel, bias=bias, seed=seed).double()
    if gate == "ste": masked.router = Fixed(masked.router)
    gathered = SpatialMoE(masked.router, masked.experts, gate, sparse=True)
    x = normal(*shape, seed=seed).double()
    for a, b in zip(flat(masked, x, gate), flat(gathered, x, gate), strict=True):
        assert a.shape == b.shape and close(a, b, 1e-12)

@pytest.mark.parametrize("gate", ["hard", "switch"])
def test_masked_and_gathered_agree_for_rois(gate):
    masked = roi(gate=gate).double()
    gathered = RoIMoE(masked.router, masked.experts, gate, sparse=True)
    for a, b in zip(flat(masked, MIXED["roi"][1]().double(), gate), flat(gathered, MIXED["roi"][1]().double(),
                                                                         gate), strict=True):
        assert close(a, b, 1e-12)

@pytest.mark.parametrize("kind", MIXED)
def test_with_straight_through_the_experts_learn_the_same_both_ways(kind):
    make, data = MIXED[kind]
    masked = make().double()
    gathered = type(masked)(masked.router, masked.experts, "ste", sparse=True)
    a, b = (flat(moe, data().double(), "ste", router=False) for moe in (masked, gathered))
    assert close(a[0], b[0], 1e-12) and all(close(s, t, 1e-12) for s, t in zip(a[2:], b[2:], strict=True))

def test_padding_may_be_called_same():
    experts = [nn.Conv2d(4, 5, 3, padding="same") for _ in range(2)]
    router = spatial(2).router
    assert close(SpatialMoE(router, experts, sparse=True)(normal(2, 4, 5, 6)),
                 SpatialMoE(router, experts)(normal(2, 4, 5, 6)), 1e-5)

def test_channels_last_gives_the_same():
    moe, x = spatial(sparse=True).eval(), normal(2, 4, 6, 7)
    assert close(moe(x.contiguous(memory_format=torch.channels_last)), moe(x), 1e-6)

@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("empty", [False, True])
def test_each_expert_is_called_on_its_own_pixels_only(empty, kernel, monkeypatch):
    calls, moe, x = [], spatial(sparse=True, kernel=kernel), normal(2, 4, 6, 7)
    if empty: moe.router.map.bias.data[1] = -1e3
    monkeypatch.setattr(experts, "on_pixels", lambda expert, patches: calls.append((expert, *patches.shape))
                        or on_pixels(expert, patches))
    moe(x)
    counts = torch.bincount(moe.routing(x).flatten(), minlength=3).tolist()
    assert (counts[1] == 0) == empty and sum(counts) == 2 * 6 * 7
    assert [n for expert, n, _ in calls] == counts
    assert all(expert is mine for (expert, *_), mine in zip(calls, moe.experts))
    assert {size for *_, size in calls} == {kernel**2 * 4}

def test_each_box_expert_is_called_on_its_own_rows_only():
    calls, moe, x = [], roi(sparse=True), MIXED["roi"][1]()
    for expert in moe.experts:
        expert.register_forward_hook(lambda module, inputs, out: calls.append((module, len(inputs[0]))))
    moe(x)
    counts = torch.bincount(moe.routing(x), minlength=3).tolist()
    assert [n for _, n in calls] == counts and sum(counts) == 40
    assert all(a is b for (a, _), b in zip(calls, moe.experts))

@pytest.mark.parametrize("gate", ["ste", "hard", "switch"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", MIXED)
def test_an_expert_without_a_place_is_no_trouble(kind, sparse, gate):
    make, data = MIXED[kind]
    moe, x = make(gate=gate, sparse=sparse), data()
    (moe.router.map if kind == "spatial" else moe.router).bias.data[1] = -1e3
    for training in (True, False):
        moe.train(training).zero_grad()
        y = moe(x)
        y.square().sum().backward()
        assert 1 not in moe.routing(x) and torch.isfinite(y).all()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in moe.parameters())
        assert all(p.grad is None or not p.grad.any() for p in moe.experts[1].parameters())
        assert all(p.grad.any() for p in moe.experts[0].parameters())

def test_rois_may_be_none_at_all():
    for sparse in (False, True): assert roi(sparse=sparse)(torch.zeros(0, 6, 2, 2)).shape == (0, 5)

def test_maps_may_be_none_at_all():
    for sparse in (False, True): assert spatial(sparse=sparse)(torch.zeros(0, 4, 5, 6)).shape == (0, 5, 5, 6)

@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("kind", MIXED)
def test_who_hears_of_the_loss(kind, gate, sparse):
    make, data = MIXED[kind]
    if sparse and gate == "dense": return
    moe, x = make(gate=gate, sparse=sparse).train(), data()
    moe(x).square().sum().backward()
    heard = [p.grad for p in moe.router.parameters()]
    if gate == "hard": assert all(g is None or not g.any() for g in heard)
    else: assert all(g is not None and g.any() for g in heard)

def test_patches_by_unfold():
    x = normal(2, 4, 5, 6)
    for kernel in ((1, 1), (3, 3), (3, 1), (1, 5)):
        rows, corner, offsets = patch_rows(x, kernel)
        got = rows[corner[:, None] + offsets].reshape(2, 30, *kernel, 4)
        wanted = F.unfold(x, kernel, padding=[k // 2 for k in kernel]).reshape(2, 4, *kernel, 30)
        assert torch.equal(got, wanted.permute(0, 4, 2, 3, 1))

def test_a_convolution_on_pixels_is_the_convolution():
    conv, x = build(lambda: nn.Conv2d(4, 5, 3, padding=1), 0), normal(1, 4, 5, 6)
    rows, corner, offsets = patch_rows(x, (3, 3))
    assert close(on_pixels(conv, rows[corner[:, None] + offsets].flatten(1)).T.reshape(1, 5, 5, 6), conv(x),
                 1e-5)
    chosen = torch.zeros(1, 5, 6, dtype=torch.int64)
    assert close(gathered_convolution(x, chosen, [conv, conv]), conv(x), 1e-5)

def test_experts_of_many_weights_are_the_same_function():
    "Their product is oneDNN's: output and gradients as the convolution has them."
    conv = build(lambda: nn.Conv2d(32, 32, 3, padding=1), 0)
    x, pull = normal(2, 32, 5, 6), normal(2, 32, 5, 6)
    x.requires_grad_()
    chosen = torch.arange(60).view(2, 5, 6) % 2
    many = [torch.autograd.grad(y, [x, *conv.parameters()], pull)
            for y in (conv(x), gathered_convolution(x, chosen, [conv, conv]))]
    assert all(close(a, b, 1e-4) for a, b in zip(*many, strict=True))
    assert close(conv(x), gathered_convolution(x, chosen, [conv, conv]), 1e-5)

# ---- resolution

def doubled(t): return t.repeat_interleave(2, -1).repeat_interleave(2, -2)

@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 3), (16, 9)])
def test_a_mixture_takes_maps_of_any_size(size, sparse):
    moe, x = spatial(sparse=sparse), normal(2, 4, *size)
    assert moe(x).shape == (2, 5, *size) and moe.routing(x).shape == (2, *size)

@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), h=st.integers(1, 6), w=st.integers(1, 6))
def test_routing_commutes_with_nearest_doubling(seed, h, w):
    moe, x = spatial(seed=seed), normal(2, 4, h, w, seed=seed)
    assert torch.equal(moe.routing(doubled(x)), doubled(moe.routing(x)))
    assert routing_agreement(moe.routing(doubled(x))[0], moe.routing(x)[0]) == 1

@pytest.mark.parametrize("sparse", [False, True])
def test_experts_of_one_pixel_commute_with_doubling_and_larger_ones_do_not(sparse):
    x = normal(2, 4, 6, 7)
    moe = spatial(kernel=1, sparse=sparse).eval()
    assert close(moe(doubled(x)), doubled(moe(x)), 1e-6)
    moe = spatial(kernel=3, sparse=sparse).eval()
    assert (moe(doubled(x)) - doubled(moe(x))).abs().max() > 0.1

def test_agreement_by_hand():
    fine = torch.tensor([[0, 0, 1, 1], [0, 2, 1, 1]])
    assert routing_agreement(fine, torch.tensor([[0, 1]])) == 7 / 8 and routing_agreement(fine, fine) == 1
    assert routing_agreement(fine, torch.tensor([[2]])) == 1 / 8
    assert routing_agreement(torch.tensor([[0, 0, 1], [0, 0, 1], [2, 2, 1]]),
                             torch.tensor([[0, 1], [2, 1]])) == 1

def test_usage_by_hand():
    assert usage(torch.tensor([[0, 2], [2, 2]]), 4).tolist() == [0.25, 0, 0.75, 0]
    assert usage(torch.zeros(0, dtype=torch.int64), 2).tolist() == [0, 0]

# ---- bad input

def layer(**options): return nn.Conv2d(4, 4, **{"kernel_size": 3, "padding": 1} | options)

NO_MIXTURE = {"no expert": (dict(experts=[]), "experts"), "a gate": (dict(gate="noisy"), "gate='noisy'"),
              "no router": (dict(router=None), "router=None"), "dense": (dict(gate="dense", sparse=True),
                                                                         "gate='dense'"),
              **{name: (dict(experts=[layer(), other], sparse=True), "sparse=True") for name, other in
                 {"linear": nn.Linear(4, 4), "stride": layer(stride=2), "groups": layer(groups=2),
                  "dilation": layer(dilation=2, padding=2), "even": nn.Conv2d(4, 4, 2),
                  "valid": layer(padding=0),
                  "reflect": layer(padding_mode="reflect"),
                  "two layers": nn.Sequential(layer(), nn.ReLU())}.items()}}

@pytest.mark.parametrize("name", NO_MIXTURE)
def test_mixtures_of_experts_that_cannot_be(name):
    change, said = NO_MIXTURE[name]
    with pytest.raises(UserError, match=said) as error:
        SpatialMoE(**{"router": SpatialRouter(4, 2), "experts": [layer(), layer()]} | change)
    assert "\n" not in str(error.value)

@pytest.mark.parametrize("change, said", [(dict(experts=[]), "experts"), (dict(gate="noisy"), "gate='noisy'"),
                                          (dict(router=None), "router=None"),
                                          (dict(gate="dense", sparse=True), "gate='dense'")])
def test_mixtures_of_box_experts_that_cannot_be(change, said):
    with pytest.raises(UserError, match=said):
        RoIMoE(**{"router": nn.Linear(4, 2), "experts": [nn.Linear(4, 4), nn.Linear(4, 4)]} | change)

@pytest.mark.parametrize("other", [dict(kernel_size=1, padding=0), dict(kernel_size=5, padding=2)], ids=str)
def test_sparse_experts_are_of_one_shape(other):
    with pytest.raises(UserError, match="sparse=True"):
        SpatialMoE(SpatialRouter(4, 2), [layer(), layer(**other)], sparse=True)

@pytest.mark.parametrize("kind, router", [(SpatialMoE, SpatialRouter(4, 3)), (SpatialMoE, nn.Conv2d(4, 1, 1)),
                                          (RoIMoE, nn.Linear(4, 3))])
def test_a_router_has_a_logit_for_each_expert(kind, router):
    with pytest.raises(UserError, match="router"): kind(router, [layer(), layer()])

# ---- the mosaic

def cells(data):
    """Mean feature of each (look, regime), look by the rule, and what is left of each pixel: (4, 3, 16), (n,
    h, w, 16)."""
    look, x = (data.y - data.regime) % 4, data.x.permute(0, 2, 3, 1)
    means = torch.stack([torch.stack([x[(look == l) & (data.regime == r)].mean(0) for r in range(3)])
                         for l in range(4)])
    return means, x - means[look, data.regime]

@pytest.mark.parametrize("seed", [0, 1])
def test_the_class_is_look_plus_regime_modulo_four(seed):
    """Features are a look's vector plus a regime's plus noise: only under the rule do looks and regimes add
    up."""
    data = mosaic(120, seed=seed)
    means, rest = cells(data)
    assert data.x.shape == (120, 16, 16, 16) and data.y.shape == data.regime.shape == (120, 16, 16)
    assert set(data.y.unique().tolist()) == {0, 1, 2, 3} and set(data.regime.unique().tolist()) == {0, 1, 2}
    assert rest.std().item() == pytest.approx(0.7, abs=0.01)
    cross = means - means.mean(0, keepdim=True) - means.mean(1, keepdim=True) + means.mean((0, 1))
    assert cross.abs().max() < 0.1 and (means[:, 0] - means[:, 1]).norm(dim=1).min() > 2
    assert (means[0] - means[1]).norm(dim=1).min() > 2

def test_regimes_lie_in_blocks_of_four_and_looks_in_blocks_of_two():
    data = mosaic(6)
    look = (data.y - data.regime) % 4
    assert torch.equal(data.regime, data.regime[:, ::4, ::4].repeat_interleave(4, 1).repeat_interleave(4, 2))
    assert torch.equal(look, doubled(look[:, ::2, ::2]))
    assert not torch.equal(look, look[:, ::4, ::4].repeat_interleave(4, 1).repeat_interleave(4, 2))

def test_a_mosaic_is_a_function_of_its_arguments():
    same_ = lambda a, b: all(torch.equal(s, t) for s, t in zip(a, b))
    assert same_(mosaic(3, 1, 2, 4), mosaic(3, 1, 2, 4))
    for other in (dict(seed=1), dict(domain=1), dict(part=1)):
        assert not torch.equal(mosaic(3, **other).y, mosaic(3).y)
    assert mosaic(2, size=32).x.shape == (2, 16, 32, 32)

def test_domains_shift_features_along_one_vector_each_and_leave_the_rule():
    directions = []
    for domain in range(4):
        home, data = mosaic(150), mosaic(150, domain, part=3)
        means, _ = cells(home)
        look = (data.y - data.regime) % 4
        shift = (data.x.permute(0, 2, 3, 1) - means[look, data.regime]).mean((1, 2))
        if domain == 0: assert shift.norm(dim=1).max() < 0.5
        else:
            lengths = shift.norm(dim=1)
            assert 0.55 * 3.5 < lengths.min() < 0.75 * 3.5 and 1.25 * 3.5 < lengths.max() < 1.45 * 3.5
            assert F.cosine_similarity(shift, shift[:1]).min() > 0.95
            directions.append(F.normalize(shift.mean(0), dim=0))
    assert max((a @ b).abs() for i, a in enumerate(directions) for b in directions[:i]) < 0.9

def test_halves_keep_their_labels():
    data = mosaic(4)
    half = halved(data)
    assert half.x.shape == (4, 16, 8, 8) and torch.equal(doubled(half.y), data.y)
    assert torch.equal(doubled(half.regime), data.regime)
    assert close(half.x,
                 (data.x[..., ::2, ::2] + data.x[..., 1::2, ::2] + data.x[..., ::2, 1::2]
                  + data.x[..., 1::2, 1::2]) / 4)
    assert isinstance(half, Mosaic)

@lru_cache
def learned(seed, experts=3, gate="ste", sparse=False, epochs=60):
    "A head after `epochs` with labels, and its scores."
    model, data = mosaic_head(experts, gate, sparse, seed), mosaic(16, 0, seed)
    for r in range(epochs): learn_mosaic(model, seeded(r), 1 - r / epochs, data)
    return model, score_mosaic(model, seed)

SEEDS = (0, 1, 2)

def total(**options): return np.mean([learned(seed, **options)[1]["total"] for seed in SEEDS])

def test_three_experts_beat_one(): assert total() - total(experts=1) >= 0.2

def test_a_router_must_hear_of_the_loss(): assert total() - total(gate="hard") >= 0.1

def test_gathered_experts_learn_as_well(): assert total(sparse=True) - total(experts=1) >= 0.2

def test_experts_agree_at_both_resolutions():
    model, data = learned(0)[0], mosaic(8, 0, 0, part=1)
    fine, coarse = model.routing(data.x), model.routing(halved(data).x)
    assert np.mean([routing_agreement(a, b) for a, b in zip(fine, coarse)]) > 0.9

def test_the_total_is_weighted_by_pictures():
    (model, got), each = learned(0), {}
    assert list(got) == [*MOSAIC_WEATHERS, "total"]
    for domain, (name, n) in enumerate(zip(MOSAIC_WEATHERS, (40, 80, 40, 40))):
        data = mosaic(n, domain, 0, 1)
        with torch.no_grad(): each[name] = (model(data.x).argmax(1) == data.y).float().mean().item()
    assert {name: got[name] for name in each} == pytest.approx(each)
    assert got["total"] == pytest.approx((sum(each.values()) + each["overcast"]) / 5)

def test_rate_and_lr_multiply():
    def after(rate, lr):
        model = mosaic_head(2)
        learn_mosaic(model, seeded(), rate, mosaic(4), lr=lr)
        return model.state_dict()
    assert equal(after(0.5, 0.02), after(1.0, 0.01)) and not equal(after(1.0, 0.02), after(1.0, 0.01))

# ---- growing and pruning

@lru_cache
def _learned(k):
    model, data = mosaic_head(k, seed=0), mosaic(16)
    for r in range(60): learn_mosaic(model, seeded(r), 1 - r / 60, data)
    return model.eval()

def trained(k=3): return copy.deepcopy(_learned(k))

@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("k", [1, 3])
def test_a_new_expert_changes_nothing_where_it_is_not_chosen(k, sparse):
    moe, x = trained(k), mosaic(6, part=1).x
    moe.sparse = sparse
    before = copied_state(moe.state_dict())
    larger = add_experts(moe, 1, 7).eval()
    assert len(larger.experts) == k + 1 and (larger.gate, larger.sparse) == (moe.gate, moe.sparse)
    kept = larger.routing(x) == moe.routing(x)
    assert kept.float().mean() > 0.1 and (larger.routing(x)[~kept] == k).all()
    with torch.no_grad(): a, b = larger(x), moe(x)
    assert close(a.movedim(1, -1)[kept], b.movedim(1, -1)[kept], 1e-6)
    with torch.no_grad():
        for p in larger.parameters(): p.zero_()
    assert equal(moe.state_dict(), before)
    if k > 1:
        assert torch.equal(add_experts(moe, 1, 7).router.map.weight[:k], moe.router.map.weight)
        assert torch.equal(add_experts(moe, 1, 7).router.map.bias[:k], moe.router.map.bias)
    assert equal(add_experts(moe, 1, 7).state_dict(), add_experts(moe, 1, 7).state_dict())
    assert not equal(add_experts(moe, 1, 7).state_dict(), add_experts(moe, 1, 8).state_dict())

@pytest.mark.parametrize("kind", ["map", "rows"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_overflowed_expert_that_nobody_chose_does_not_count(kind, value):
    x = normal(3, 16, 5, 5) if kind == "map" else normal(7, 16)
    layer = (lambda: nn.Conv2d(16, 4, 1)) if kind == "map" else (lambda: nn.Linear(16, 4))
    router = nn.Conv2d(16, 3, 1) if kind == "map" else nn.Linear(16, 3)
    router.bias.data[1] = -1e3
    mixture = (SpatialMoE if kind == "map" else RoIMoE)
    masked = mixture(router, [layer() for _ in range(3)]).eval()
    gathered = mixture(router, masked.experts, sparse=True).eval()
    with torch.no_grad():
        sound = masked(x)
        masked.experts[1].weight.fill_(value)
        assert torch.equal(masked(x), sound) and close(gathered(x), sound, 1e-5)

@pytest.mark.parametrize("dead", [0, 1, 2])
def test_without_an_unused_expert_the_answers_stay(dead):
    moe, x = trained(), mosaic(6, part=1).x
    moe.router.map.bias.data[dead] = -1e3
    before = copied_state(moe.state_dict())
    smaller = prune_experts(moe, x).eval()
    left = [k for k in range(3) if k != dead]
    with torch.no_grad(): assert torch.equal(smaller(x), moe(x))
    assert torch.equal(torch.tensor(left)[smaller.routing(x)], moe.routing(x)) and len(smaller.experts) == 2
    assert equal(moe.state_dict(), before)
    with torch.no_grad():
        for p in smaller.parameters(): p.zero_()
    assert equal(moe.state_dict(), before)

def test_pruning_by_share():
    moe, x = trained(), mosaic(6, part=1).x
    shares = usage(moe.routing(x), 3)
    assert len(prune_experts(moe, x, least=0.0).experts) == 3
    one = prune_experts(moe, x, least=shares.max().item())
    with torch.no_grad():
        assert len(one.experts) == 1 and one.router is None
        assert torch.equal(one(x), moe.experts[int(shares.argmax())](x))
    order = shares.sort().values
    assert len(prune_experts(moe, x, least=order[1].item()).experts) == 2
    assert len(prune_experts(mosaic_head(1), x).experts) == 1

def test_growing_keeps_the_smallest_number_that_is_enough(monkeypatch):
    head, losses_ = grow_experts(0, epochs=50, most=4)
    enough = next(k for k, loss in enumerate(losses_, 1) if loss <= 1.05 * min(losses_))
    assert len(losses_) == 4 and min(losses_[1:]) < 0.9 * losses_[0] and 1 < len(head.experts) <= enough
    again = grow_experts(0, epochs=50, most=4)
    assert again[1] == losses_ and equal(again[0].state_dict(), head.state_dict())
    assert len(grow_experts(0, epochs=2, most=3, gain=100.0)[0].experts) == 1

def test_while_growing_every_number_has_as_many_epochs(monkeypatch):
    seen = []
    monkeypatch.setattr(experts, "learn_mosaic", lambda model, *rest: seen.append(len(model.experts)))
    grow_experts(0, epochs=7, most=3)
    assert seen == [1] * 3 + [1] * 4 + [2] * 4 + [3] * 4

@pytest.mark.parametrize("sparse, detach, same", [(False, False, True), (False, True, True), (True, True, True),
                                                  (True, False, False)])
@pytest.mark.parametrize("kind", ["spatial", "rois"])
def test_equal_experts_give_the_features_the_gradient_of_one(kind, sparse, detach, same):
    """To 1e-12, in float64, whatever the routing: losses and gradients, those of the experts summed. Gathered
    and not detached it does not hold: there the router's gradient is left over."""
    if kind == "spatial":
        made = lambda: SpatialMoE(SpatialRouter(6, 3), [nn.Conv2d(6, 5, 3, padding=1) for _ in range(3)],
                                  sparse=sparse, detach=detach)
        x = normal(2, 6, 7, 9)
    else:
        made = lambda: RoIMoE(nn.Linear(12, 3), [nn.Linear(12, 5) for _ in range(3)], sparse=sparse, detach=detach)
        x = normal(11, 12)
    moe, x = build(made, 4).double(), x.double()
    for expert in moe.experts: expert.load_state_dict(moe.experts[0].state_dict())
    router = moe.router.map if kind == "spatial" else moe.router
    for scale in (1.0, 300.0):
        router.weight.data *= scale
        ours, one = x.clone().requires_grad_(), x.clone().requires_grad_()
        aim = normal(*moe.experts[0](x).shape, seed=5).double()
        losses_ = [((f(z) - aim) ** 2).sum() for f, z in ((moe, ours), (moe.experts[0], one))]
        assert losses_[0].item() == pytest.approx(losses_[1].item(), rel=1e-12)
        grad, *own = torch.autograd.grad(losses_[0], [ours, *(e.weight for e in moe.experts)], allow_unused=True)
        wanted, single = torch.autograd.grad(losses_[1], [one, moe.experts[0].weight])
        if scale == 1.0 or same: assert close(grad, wanted, 1e-9) == same
        assert close(sum(g for g in own if g is not None), single, 1e-9)

@pytest.mark.parametrize("detach", [False, True])
def test_a_detached_router_still_learns(detach):
    moe = build(lambda: SpatialMoE(SpatialRouter(6, 3), [nn.Conv2d(6, 5, 1) for _ in range(3)], detach=detach), 0)
    moe(normal(2, 6, 7, 9)).square().sum().backward()
    assert moe.router.map.weight.grad.abs().sum() > 0

def test_copies_of_one_expert_answer_as_one():
    single, x = trained(1), mosaic(4, part=1).x
    many = mosaic_head(4, seed=9)
    many.load_state_dict(upcycled(many, single.state_dict(), noise=0.0))
    with torch.no_grad(): assert close(many.eval()(x), single(x), 1e-5)
    a, b, c = (upcycled(many, single.state_dict(), seed=s) for s in (1, 1, 2))
    assert equal(a, b) and not equal(a, c) and torch.equal(a["router.map.weight"], many.router.map.weight)
    weights = [a[f"experts.{k}.weight"] for k in range(4)]
    assert all(0 < (w - single.experts[0].weight).abs().max() < 0.3 * single.experts[0].weight.std() for w in weights)
    assert not torch.equal(weights[0], weights[1])
    with pytest.raises(UserError, match="^state="): upcycled(many, {}, seed=0)

def test_routers_are_heard_as_rows_and_no_hook_stays():
    moe, x = mosaic_head(3), mosaic(2).x
    with heard(moe) as notes:
        moe(x), moe(x[:1])
    assert [rows.shape for rows in notes[0]] == [(512, 3), (256, 3)] and not moe.router._forward_hooks
    assert torch.equal(notes[0][0].argmax(1), moe.routing(x).flatten())
    with heard(mosaic_head(1)) as notes: pass
    assert notes == [[]] and mixtures(moe) == [moe]

def test_systematic_weather_points_from_regime_to_regime():
    calm, odd = mosaic(6, 2, 3), mosaic(6, 2, 3, systematic=1.0)
    assert torch.equal(calm.y, odd.y) and not torch.equal(calm.x, odd.x)
    assert torch.equal(mosaic(6, 0, 3).x, mosaic(6, 0, 3, systematic=1.0, length=9.0).x)
    regimes = 4.0 * F.normalize(_vectors(3)[1], dim=1)
    step = F.normalize(regimes[2] - regimes[1], dim=0)
    shift = (odd.x - _still(6, 2, 3).x).movedim(1, -1).flatten(0, -2)
    assert close(F.normalize(shift, dim=1), step.expand_as(shift), 1e-3)
    with pytest.raises(UserError, match="systematic="): mosaic(1, systematic=1.5)

def _vectors(seed):
    world = generator(seed)
    return torch.randn(4, 16, generator=world), torch.randn(3, 16, generator=world)

def _still(n, domain, seed): return mosaic(n, domain, seed, length=1e-9)

@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_a_plain_head_has_at_least_as_many_parameters(k, kernel):
    count = lambda model: sum(p.numel() for p in model.parameters())
    wanted, plain = count(mosaic_head(k, kernel=kernel)), plain_head(k, kernel=kernel)
    assert wanted <= count(plain) <= wanted + 16 * kernel ** 2 + 5
    assert plain(mosaic(2).x).shape == (2, 4, 16, 16)

USES = {"growing": lambda: grow_experts(0, epochs=2, most=2),
        "more experts": lambda: add_experts(mosaic_head(2), 1, 1),
        "copies": lambda: upcycled(mosaic_head(2), mosaic_head(1).state_dict()),
        "pruning": lambda: prune_experts(mosaic_head(2), mosaic(2).x, 0)}

@pytest.mark.parametrize("name", USES)
def test_the_global_generators_stay_as_they_were(name):
    torch.manual_seed(5)
    before, of_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    USES[name]()
    assert torch.equal(before, torch.get_rng_state()) and np.array_equal(of_numpy, np.random.get_state()[1])

# ---- the module

@pytest.mark.parametrize("job, words", [(lambda: mosaic(1, size=10), "size=10"),
                                        (lambda: mosaic(1, 4), "domain=4")])
def test_mosaics_that_cannot_be(job, words):
    with pytest.raises(UserError, match=words): job()

@pytest.mark.parametrize("experts", [0, -1, 1.5, "two"])
@pytest.mark.parametrize("make", [lambda k: SpatialRouter(4, k), mosaic_head])
def test_experts_are_a_whole_number(make, experts):
    with pytest.raises(UserError, match="^experts="): make(experts)

def test_a_balance_term_evens_the_load_and_one_expert_has_none():
    def shares(balance):
        model = mosaic_head(3)
        model.router.map.bias.data[1] = 0.5
        for r in range(4): learn_mosaic(model, seeded(r), 1.0, mosaic(8), balance=balance)
        return balance_loss(model.router(mosaic(8).x)).item()
    assert shares(50.0) < 0.9 * shares(0.0)
    learn_mosaic(mosaic_head(1), seeded(), 1.0, mosaic(8), balance=50.0)

@pytest.mark.parametrize("job", [lambda: mosaic_head(3, seed=4), lambda: mosaic(2, 1, 5)])
def test_the_mosaic_leaves_the_global_generators_as_they_were(job):
    torch.manual_seed(5)
    before, of_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    job()
    assert torch.equal(before, torch.get_rng_state()) and np.array_equal(of_numpy, np.random.get_state()[1])

@pytest.mark.parametrize("name", ["maps", "epochs", "most"])
def test_sizes_are_at_least_one(name):
    with pytest.raises(UserError, match=f"^{name}=0 must be at least 1"): ExpertsSizes(**{name: 0})
