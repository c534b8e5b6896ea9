"""Pruning: masks and their average against slow versions, what crosses the wire bit for bit, clients and
servers whose masks stay in step."""
import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.utils import prune

from conftest import bits, close, equal_bits as equal, normal, seeded
from fedbook.engine.local import snapshot
from fedbook.datasets.encoders import mobilenet_body, vit_body
from fedbook.engine.workers import Faults, prove, trial
from fedbook.engine.federation import weighted_average
from fedbook.engine.errors import UserError
from fedbook.engine.local import build, outputs
from fedbook.methods.pruning import (MaskedClient, MaskedServer, PruningExperiment, PruningSizes,
                                     class_attention, compress, digits_net, digits_world, drop_heads,
                                     drop_hidden, keep_for, magnitude_prune, mask_distance, masked, profiles,
                                     prunable, pruning_ratio, restore, sparse_average, to_shares,
                                     with_fewer_tokens)
from fedbook.methods.reid import ReIDNet, small_net
from fedbook.engine.wire import Msg, Refused, pack, unpack

pytestmark = pytest.mark.usefixtures("one_process")

SIZES = replace(profiles["smoke"], clients=2, rounds=4, batch=16, step=0.3)

# ---- SAS

TOY = [torch.tensor(row) for row in ([1.0, 0, 3, 0], [2.0, 4, 0, 0], [3.0, 8, 0, 0])]

TOY_MASKS = [torch.tensor(row, dtype=torch.bool) for row in ([1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0])]

def average(states, masks, weights):
    return sparse_average([{"w": t} for t in states], [{"w": m} for m in masks], weights)["w"]

def test_the_toy_case():
    assert close(average(TOY, TOY_MASKS, [0.5, 0.3, 0.2]), torch.tensor([1.7, 5.6, 3.0, 0.0]))
    assert close(weighted_average([{"w": t} for t in TOY], [0.5, 0.3, 0.2])["w"],
                 torch.tensor([1.7, 2.8, 1.5, 0.0]))

def several(seed, clients=3, n=24, keep=0.5):
    states = [normal(n, seed=seed + 50 * k) for k in range(clients)]
    return states, [torch.rand(n, generator=seeded(seed + 50 * k + 7)) < keep for k in range(clients)]

WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e3)), min_size=1, max_size=5)

@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS, seed=st.integers(0, 999), keep=st.floats(0, 1))
def test_the_mean_of_those_who_kept_it_position_by_position(weights, seed, keep):
    "Against a loop over positions; the plain mean where every keeper has weight 0, and 0 without keepers."
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
    assert close(average(states, masks, [0.5, 0.3, 0.2]),
                 average(states, masks, [scale * w for w in (0.5, 0.3, 0.2)]))

def test_what_nobody_kept_is_zero_and_nothing_is_nan():
    states, masks = several(4, keep=0.2)
    nobody = ~torch.stack(masks).any(0)
    got = average(states, masks, [1, 0, 0])
    assert nobody.any() and (got[nobody] == 0).all() and torch.isfinite(got).all()
    assert (got[~nobody] != 0).all()

def test_keepers_of_weight_zero_give_their_plain_mean():
    keepers = [torch.tensor([m]) for m in (False, True, True)]
    assert average([torch.tensor([v]) for v in (9.0, 1.0, 3.0)], keepers, [1, 0, 0]).item() == 2.0

def test_the_mask_counts_and_not_the_value():
    ones = torch.ones(1, dtype=torch.bool)
    assert average([torch.zeros(1), torch.full((1,), 2.0)], [ones, ones], [1, 1]).item() == 1.0
    # a value under a mask is not looked at
    assert average([torch.full((1,), 5.0), torch.full((1,), 2.0)], [~ones, ones], [1, 1]).item() == 2.0

def test_averaging_leaves_its_arguments_alone():
    states, masks = several(5)
    before = [t.clone() for t in states + masks]
    average(states, masks, [0.0, 1.0, 2.0])
    assert all(map(torch.equal, before, states + masks))

def test_tensors_without_a_mask_are_averaged_plainly_and_keep_their_dtype():
    states = [{"w": torch.ones(2, 2), "bn": torch.tensor([float(k)]), "count": torch.tensor(3 * k)}
              for k in (1, 2)]
    masks = [{"w": torch.tensor([[True, False], [True, False]])}, {}]
    got = sparse_average(states, masks, [3, 1])
    assert got["bn"].item() == 1.25 and got["count"].item() == 4 and got["count"].dtype == torch.int64
    assert torch.equal(got["w"], torch.ones(2, 2))

# ---- masks

def layers(seed=0):
    return {"a.weight": normal(8, 6, seed=seed), "a.bias": normal(8, seed=seed),
            "b.weight": normal(5, 3, 3, 3, seed=seed + 1), "count": torch.tensor(4)}

def kept(mask): return {name: int(m.sum()) for name, m in mask.items()}

def test_what_can_be_pruned():
    assert prunable(layers()) == ["a.weight", "b.weight"]
    names = prunable(build(partial(small_net, 4), 0).state_dict())
    assert names and not any("neck" in name or "num_batches" in name for name in names)

SIZE = (32, 16)
PICTURES = torch.rand(5, 3, *SIZE, generator=seeded(3))

def a_vit(seed=0, blocks=2):
    "A small ViT whose biases and tokens are not at zero, as after training."
    network = build(lambda: ReIDNet(*vit_body(SIZE, 8, blocks)), seed).eval()
    return shaken(network, seed)

def a_mobilenet(seed=0): return shaken(build(lambda: ReIDNet(*mobilenet_body()), seed).eval(), seed)

def shaken(network, seed):
    g = seeded(seed + 1)
    for name, t in [*network.named_parameters(), *network.named_buffers()]:
        if t.is_floating_point() and t.dim() == 1: t.data += 0.2 * torch.rand(t.shape, generator=g)
    return network

def blocks_of(network): return network.body[0].blocks

def weights_of(network): return sum(p.numel() for p in network.parameters())

def test_tokens_and_positions_are_not_pruned():
    "They have dimensions enough; so have the weights of a fused attention and of a recurrent layer."
    vit, mobilenet = a_vit(), a_mobilenet()
    matrices = {f"{name}.weight" for network in (vit, mobilenet) for name, m in network.named_modules()
                if isinstance(m, (nn.Linear, nn.Conv2d))}
    assert {*prunable(vit.state_dict()), *prunable(mobilenet.state_dict())} == matrices
    assert {"body.0.cls_token", "body.0.pos_embed"} <= vit.state_dict().keys()
    assert prunable(nn.MultiheadAttention(4, 2).state_dict()) == ["in_proj_weight", "out_proj.weight"]
    assert prunable(nn.GRU(3, 4).state_dict()) == ["weight_ih_l0", "weight_hh_l0"]
    assert prunable({"weight.table": torch.ones(2, 2), "a.weight": torch.ones(2, 2, dtype=torch.int64)}) == []

# ---- whole parts

@pytest.mark.parametrize("share, left", [(0, 6), (0.05, 6), (1 / 3, 4), (0.5, 3), (0.9, 1), (1, 1)])
def test_heads_left_out_are_heads_at_zero(share, left):
    whole = a_vit()
    before = copy.deepcopy(whole)
    thin, zeroed = drop_heads(whole, share), copy.deepcopy(whole)
    for block in blocks_of(zeroed):
        norms = [block.attn.proj.weight[:, 32 * h:32 * h + 32].norm().item() for h in range(6)]
        for h in sorted(range(6), key=norms.__getitem__)[:6 - left]:
            block.attn.proj.weight.data[:, 32 * h:32 * h + 32] = 0
    assert [block.attn.num_heads for block in blocks_of(thin)] == [left] * 2
    assert close(outputs(thin, PICTURES), outputs(zeroed, PICTURES), 1e-5)
    assert weights_of(thin) == weights_of(whole) - 2 * (6 - left) * 32 * (4 * 192 + 3)
    assert equal(snapshot(whole), snapshot(before))
    if left == 6: assert torch.equal(outputs(thin, PICTURES), outputs(whole, PICTURES))
    else: assert not close(outputs(thin, PICTURES), outputs(whole, PICTURES), 1e-3)
    # without fused attention too
    for block in [*blocks_of(thin), *blocks_of(zeroed)]: block.attn.fused_attn = False
    assert close(outputs(thin, PICTURES), outputs(zeroed, PICTURES), 1e-5)

def test_not_the_heads_with_the_largest_projection():
    "A near miss: the wrong end of the order gives other features."
    whole = a_vit()
    wrong = copy.deepcopy(whole)
    for block in blocks_of(wrong):
        parts = block.attn.proj.weight.data.unflatten(1, (6, 32))
        parts[:, parts.norm(dim=(0, 2)).argsort()[3:]] = 0
    assert not close(outputs(drop_heads(whole, 0.5), PICTURES), outputs(wrong, PICTURES), 1e-3)

@pytest.mark.parametrize("share", [0, 0.3, 0.5, 1])
def test_hidden_channels_left_out_are_channels_that_nobody_reads(share):
    for whole in (a_vit(), a_mobilenet()):
        thin, unread = drop_hidden(whole, share), copy.deepcopy(whole)
        gone = 0
        for block in unread.modules():
            mobile = hasattr(block, "conv_pwl")
            if not mobile and not hasattr(block, "fc2"): continue
            first, last = (block.conv_pw, block.conv_pwl) if mobile else (block.fc1, block.fc2)
            sizes = first.weight.abs().flatten(1).sum(1)
            out = sizes.argsort()[:min(round(share * len(sizes)), len(sizes) - 1)]
            last.weight.data[:, out] = 0
            if mobile and hasattr(block.se, "conv_reduce"): block.se.conv_reduce.weight.data[:, out] = 0
            gone += len(out)
        assert close(outputs(thin, PICTURES), outputs(unread, PICTURES), 1e-5)
        assert (weights_of(thin) < weights_of(whole)) == (gone > 0)
        assert torch.equal(outputs(thin, PICTURES), outputs(whole, PICTURES)) == (share == 0)

@pytest.mark.parametrize("thin", [partial(drop_heads, share=0.5), partial(drop_hidden, share=0.5),
                                  partial(with_fewer_tokens, share=0.5)])
def test_a_thin_vit_trains_and_can_be_thinned_again(thin):
    network = thin(drop_hidden(drop_heads(a_vit(), 0.34), 0.2)).train()
    before = snapshot(network)
    optimiser = torch.optim.SGD(network.parameters(), 0.1)
    network(PICTURES).square().mean().backward()
    optimiser.step()
    moved = [name for name, t in snapshot(network).items() if not torch.equal(t, before[name])]
    assert {name for name, p in network.named_parameters() if p.requires_grad} - set(moved) <= {
        f"body.0.blocks.{k}.attn.qkv.bias" for k in range(2)}
    mask = magnitude_prune(snapshot(network), {}, 0.5, 0.5)
    network.load_state_dict(restore(compress(snapshot(network), mask), mask))

# ---- tokens

def seen_by_hand(block, x):
    "The class token's row of the attention, head by head, in float64."
    attention, d = block.attn, block.attn.head_dim
    rows = (block.norm1(x) @ attention.qkv.weight.T + attention.qkv.bias).double()
    q, k, _ = rows.split(attention.attn_dim, 2)
    heads = [((q[:, :1, i:i + d] * k[..., i:i + d]).sum(2) / d ** 0.5).softmax(1)
             for i in range(0, attention.attn_dim, d)]
    return torch.stack(heads).mean(0)

def tokens_before(network, k):
    "What goes into block `k`."
    seen = []
    handle = blocks_of(network)[k].register_forward_pre_hook(lambda block, args: seen.append(args[0]))
    outputs(network, PICTURES)
    handle.remove()
    return seen[0]

def test_the_class_tokens_attention():
    for network in (a_vit(), drop_heads(a_vit(), 0.5)):
        for k, block in enumerate(blocks_of(network)):
            x = tokens_before(network, k)
            with torch.no_grad(): got, wanted = class_attention(block, x), seen_by_hand(block, x)
            assert got.shape == (5, 9) and close(got.double(), wanted)
            assert close(got.sum(1), torch.ones(5), 1e-5)

@pytest.mark.parametrize("share, left", [(0.25, 6), (0.5, 4), (0.9, 1), (1, 0)])
def test_tokens_that_the_class_token_heeds_least_are_dropped(share, left):
    network = a_vit()
    x, after = tokens_before(network, 0), tokens_before(network, 1)
    with torch.no_grad(): order = seen_by_hand(blocks_of(network)[0], x)[:, 1:].argsort(1, descending=True)
    kept = [[0, *sorted((row[:left] + 1).tolist())] for row in order]
    got = tokens_before(with_fewer_tokens(network, share), 1)
    assert torch.equal(got, torch.stack([row[places] for row, places in zip(after, kept)]))
    # the patches heeded most differ: a near miss
    assert left in (0,) or not torch.equal(got[:, 1:], torch.stack(
        [row[sorted((places[-left:] + 1).tolist())] for row, places in zip(after, order)]))

def test_no_tokens_dropped_is_the_same_bit_for_bit():
    network = a_vit()
    for share in (0, 0.05):
        same = with_fewer_tokens(network, share, 1)
        assert torch.equal(outputs(same, PICTURES), outputs(network, PICTURES))

def test_dropping_tokens_leaves_weights_and_the_network_alone_and_can_be_repeated():
    network = a_vit(blocks=3)
    before = outputs(network, PICTURES)
    fewer = with_fewer_tokens(with_fewer_tokens(network, 0.5, 0), 0.5, 1)
    assert equal(snapshot(fewer), snapshot(network)) and torch.equal(outputs(network, PICTURES), before)
    assert [tokens_before(fewer, k).shape[1] for k in range(3)] == [9, 5, 3]
    assert not torch.equal(outputs(fewer, PICTURES), before)
    assert torch.equal(outputs(copy.deepcopy(fewer), PICTURES), outputs(fewer, PICTURES))
    assert close(outputs(fewer, PICTURES[:1]), outputs(fewer, PICTURES)[:1], 1e-5)

def test_dropped_behind_the_last_block_the_class_token_does_not_notice():
    network = a_vit()
    assert close(outputs(with_fewer_tokens(network, 1, 1), PICTURES), outputs(network, PICTURES), 1e-5)

@pytest.mark.parametrize("job, text",
                         [(lambda: drop_heads(a_vit(), 1.2), "share=1.2"),
                          (lambda: drop_hidden(a_vit(), -0.1), "share=-0.1"),
                          (lambda: with_fewer_tokens(a_vit(), 2), "share=2"),
                          (lambda: with_fewer_tokens(a_vit(), 0.5, 2), "after_block=2 must be from 0 to 1"),
                          (lambda: with_fewer_tokens(a_vit(), 0.5, -1), "after_block=-1"),
                          (lambda: with_fewer_tokens(with_fewer_tokens(a_vit(), 0.5), 0.5), "drops tokens"),
                          (lambda: drop_heads(a_mobilenet(), 0.5), "no attention heads"),
                          (lambda: with_fewer_tokens(digits_net(), 0.5), "no attention heads"),
                          (lambda: drop_hidden(build(partial(small_net, 4), 0), 0.5), "no hidden channels")])
def test_parts_that_cannot_go(job, text):
    with pytest.raises(UserError, match=text): job()

# ---- steps of pruning

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
            assert alive - int(m.sum()) == max(0,
                                               min(math.floor(step * alive + 1e-9),
                                                   math.floor(target * n + 1e-9) - (n - alive)))
            out, left = state[name].abs()[old & ~m], state[name].abs()[m]
            assert not len(out) or not len(left) or out.max() <= left.min()
        mask = now

@pytest.mark.parametrize("step", [0.1, 0.37])
def test_the_same_weights_go_as_with_torchs_pruning(step):
    layer = nn.Conv2d(3, 5, 3, bias=False)
    layer.weight.data, mask, state = normal(5, 3, 3, 3), {}, {"weight": normal(5, 3, 3, 3)}
    for _ in range(4):
        alive = int(mask["weight"].sum()) if mask else 135
        prune.l1_unstructured(layer, "weight", amount=math.floor(step * alive))
        mask = magnitude_prune(state, mask, step, 1)
        assert torch.equal(mask["weight"], layer.weight_mask.bool())

@pytest.mark.parametrize("step, target", [(0.1, 0.7), (0.15, 0.7), (0.3, 0.9), (1.0, 0.5)])
def test_the_target_is_met_and_not_passed(step, target):
    state, mask, ratios = {"a.weight": normal(40, 25), "b.weight": normal(20, 30, seed=1)}, {}, [0.0]
    while not mask or pruning_ratio(mask) > ratios[-1]:
        if mask: ratios.append(pruning_ratio(mask))
        mask = magnitude_prune(state, mask, step, target)
    assert kept(mask) == {name: t.numel() - math.floor(target * t.numel() + 1e-9)
                          for name, t in state.items()}
    assert ratios[-1] == pytest.approx(target) and max(ratios) <= target
    assert math.isclose(ratios[1], min(step, target), abs_tol=2e-3)

def test_ties_go_in_their_order():
    state = {"weight": torch.ones(4, 5) * torch.tensor([1.0, -1, 1, -1, 1])}
    mask = magnitude_prune(state, {}, 0.4, 1)["weight"]
    assert mask.flatten().tolist() == [False] * 8 + [True] * 12

def test_a_weight_that_is_out_stays_out_even_if_it_were_large():
    state = {"weight": torch.arange(1.0, 11)[None]}
    mask = magnitude_prune(state, {}, 0.2, 1)
    later = magnitude_prune({"weight": state["weight"].flip(1)}, mask, 0.25, 1)
    assert later["weight"].flatten().tolist() == [False] * 2 + [True] * 6 + [False] * 2

def test_ratio_of_a_mask():
    assert pruning_ratio({}) == 0
    assert pruning_ratio({"a": torch.tensor([True, False, False, False]),
                          "b": torch.tensor([True] * 4)}) == 3 / 8

def test_masked_has_exact_zeros_and_the_rest_bit_for_bit():
    state = layers()
    mask = magnitude_prune(state, {}, 0.5, 1)
    got = masked(state, mask)
    for name, m in mask.items():
        assert (bits(got[name])[~m] == 0).all() and torch.equal(got[name][m], state[name][m]) and (~m).any()
    assert got["a.bias"] is state["a.bias"] and equal(state, layers())

def test_distance_of_masks():
    mask = magnitude_prune(layers(), {}, 0.5, 1)
    assert mask_distance(mask, mask) == 0 and mask_distance(mask, {name: ~m for name, m in mask.items()}) == 1

def test_a_mask_that_lacks_a_layer_has_nothing_pruned_there():
    mask = magnitude_prune(layers(), {}, 0.5, 1)
    assert mask_distance({}, {}) == 0
    assert mask_distance({}, mask) == mask_distance(mask, {}) == pruning_ratio(mask) > 0
    first, *_ = mask
    assert 0 < mask_distance({first: mask[first]}, mask) < pruning_ratio(mask)

MISFITS = {"another shape": {"a.weight": torch.ones(6, 8, dtype=torch.bool)},
           "no bool": {"a.weight": torch.ones(8, 6)},
           "another name": {"c.weight": torch.ones(8, 6, dtype=torch.bool)}}

@pytest.mark.parametrize("name", MISFITS)
def test_masks_that_do_not_fit(name):
    state, mask = layers(), MISFITS[name]
    for job in (lambda: masked(state, mask), lambda: magnitude_prune(state, mask, 0.1, 0.7),
                lambda: compress(state, mask), lambda: sparse_average([state], [mask], [1])):
        with pytest.raises(UserError, match=next(iter(mask))) as error: job()
        assert "\n" not in str(error.value)

def test_bad_arguments_of_averaging_and_pruning():
    with pytest.raises(UserError, match="2 states, 1 masks"): sparse_average([layers()] * 2, [{}], [1, 1])
    with pytest.raises(UserError, match="names"):
        sparse_average([layers(), {"a.weight": normal(8, 6)}], [{}, {}], [1, 1])
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
    assert torch.signbit(back["a.weight"][0, :3]).tolist() == [True, False, True]
    assert equal(restore(compress(state, {}), {}), state)

@pytest.mark.parametrize("wrong", [lambda t: t[1:], lambda t: torch.cat([t, t]), lambda t: t[None],
                                   lambda t: t[:0]])
def test_values_that_do_not_fit_a_mask(wrong):
    mask = magnitude_prune(layers(), {}, 0.5, 1)
    small = compress(layers(), mask)
    with pytest.raises(Refused, match="a.weight"):
        restore(small | {"a.weight": wrong(small["a.weight"])}, mask)

# ---- client and server

def client_of(**changes):
    return MaskedClient(0, build(digits_net, 0), digits_world(0, 2)[0], replace(SIZES, **changes), 0)

def sent(mask=None): return Msg(compress(build(digits_net, 0).state_dict(), mask or {}), {"masks": False})

def test_a_client_prunes_after_the_warm_up_and_says_so_once():
    client, new = client_of(warmup=2, step=0.5, target=0.5), []
    for _ in range(4): new.append(client.fit(sent(client.mask)).meta["masks"])
    assert new == [False, False, True, False] and pruning_ratio(client.mask) == pytest.approx(0.5)

def test_a_client_takes_the_mask_that_is_sent():
    client, mask = client_of(warmup=9), magnitude_prune(sent().tensors, {}, 0.5, 0.5)
    message = Msg({**sent(mask).tensors, **{f"mask/{name}": m for name, m in mask.items()}}, {"masks": True})
    reply = client.fit(message)
    assert equal(client.mask, mask) and reply.meta == {"n": len(client.data.x), "masks": False}
    for name, m in mask.items(): assert (client.model.state_dict()[name][~m] == 0).all()

def test_average_is_by_number_of_pictures():
    server, ones = MaskedServer(build(digits_net, 0)), build(digits_net, 0).state_dict()
    replies = [(id, Msg({name: torch.full_like(t, id) for name, t in ones.items()}, dict(n=n)))
               for id, n in ((0, 30), (1, 10))]
    server.merge(iter(replies), [0, 1])
    assert all(close(t, torch.full_like(t, 0.25)) for t in server.weights.values())
    assert {id: report["share"] for id, report in server.reports.items()} == {0: 0.75, 1: 0.25}

def test_what_an_absent_client_alone_kept_stays():
    a, b = torch.tensor([True, False, False]), torch.tensor([False, True, False])
    full = keep_for([{"w": a}], {"w": torch.full((3,), 7.0)}, {"w": torch.tensor([0.0, 2.0, 0.0])},
                    [{"w": b}])
    assert full["w"].tolist() == [7.0, 2.0, 0.0]

def test_an_unknown_average():
    with pytest.raises(UserError, match="average='median'"):
        MaskedServer(build(digits_net, 0), average="median")

@pytest.mark.parametrize("values", [[], [1, -1], [math.nan], [math.inf, 1]])
def test_numbers_that_make_no_shares(values):
    with pytest.raises(UserError, match="lots"): to_shares("lots", values)

def test_shares_sum_to_one_however_large_the_numbers_are():
    assert to_shares("n", [1, 3]) == [0.25, 0.75] and to_shares("n", [0, 0]) == [0.5, 0.5]
    assert to_shares("n", [1e308, 1e308, 0]) == [0.5, 0.5, 0]

@pytest.mark.slow
@pytest.mark.parametrize("name, changes",
                         {"always": {}, "plain": {}, "dense": dict(step=0.0)}.items())
def test_a_run_is_a_function_of_sizes_and_seed(name, changes):
    average = "plain" if name == "plain" else "sparse"
    experiment = PruningExperiment(replace(SIZES, **changes), 0, average=average)
    prove(experiment, kills=2)
    done = trial(experiment)
    assert not done.federation.ledger.absent and 0.5 < done.history.last("accuracy") <= 1
    assert done.history.last("ratio") == pytest.approx(0 if name == "dense" else 1 - 0.7**3, abs=0.01)

def test_a_run_may_begin_with_one_mask_for_all():
    done = trial(PruningExperiment(replace(SIZES, step=0.0), 0, pruned=0.5))
    assert done.history.last("ratio") == pytest.approx(0.5) and equal(*done.server.masks.values())

def test_masks_stay_in_step_when_replies_are_lost():
    class Lost(Faults):
        def strike(self, round, verb, id): return "silent" if (round, id) == (2, 0) else None
    server = trial(PruningExperiment(replace(SIZES, rounds=4), 0), faults=Lost()).server
    assert pruning_ratio(server.masks[0]) < pruning_ratio(server.masks[1]) and not server.resend

def test_bad_sizes():
    for name, value in (("clients", 0), ("step", 1.1), ("target", -0.1), ("lr", 0.0)):
        with pytest.raises(UserError, match=f"^{name}="): PruningSizes(**{name: value})
