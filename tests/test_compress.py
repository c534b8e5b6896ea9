"Shorter answers against numpy, and around FedMox's own client and server on the mosaic."
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedbook.evidence.compress import CompressSizes, profiles
from fedbook.privacy.compress import (Coded, Int8, LowRank, TopK, UsedExperts, UsedExpertsClient, accept_change,
                                      asked, idle, in_factors, in_int8, only_largest, read_change, without)
from fedbook.engine.workers import prove, trial
from fedbook.methods.experts import RoIMoE, SpatialMoE, SpatialRouter, mosaic_head
from fedbook.methods.fedavg import FedAvgExperiment, FedAvgSizes
from fedbook.evidence.fedmox import MosaicExperiment, MosaicSizes
from fedbook.fedmox import FedMoxSizes
from fedbook.engine.errors import UserError
from fedbook.engine.local import generator
from fedbook.engine.mods import arriving
from fedbook.engine.wire import Msg, Refused, pack, unpack
from test_engine import tiny

LIKE = {"matrix": torch.zeros(30, 40), "convolution": torch.zeros(8, 6, 3, 3), "vector": torch.zeros(9),
        "number": torch.zeros(())}
CODES = {"int8": in_int8, "largest": partial(only_largest, keep=0.1), "factors": partial(in_factors, rank=2),
         "whole": dict}
SIZES = MosaicSizes(experts=3, maps=4, rounds=2, warmup=2, clients=4, share=0.5)


def change(seed=0, size=1.0):
    g = generator(seed)
    return {name: size * torch.randn(t.shape, generator=g) for name, t in LIKE.items()}


def crossed(tensors): return unpack(pack(Msg(tensors))).tensors


def bytes_of(tensors): return len(pack(Msg(tensors)))


# ---- forms

@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_int8_is_at_most_half_a_step_off(size):
    for name, t in read_change(crossed(in_int8(change(size=size))), LIKE).items():
        true = change(size=size)[name].numpy()
        step = np.abs(true).max() / 127
        assert np.abs(t.numpy() - true).max() <= 0.501 * step
        assert np.allclose(t.numpy(), np.round(true / step) * step, atol=0.01 * step)


def test_int8_of_nothing_is_nothing():
    told = read_change(in_int8({name: torch.zeros_like(t) for name, t in LIKE.items()}), LIKE)
    assert not any(t.any() for t in told.values())


@pytest.mark.parametrize("keep", [1.0, 0.3, 0.01])
def test_the_largest_are_those_of_a_sort(keep):
    told = read_change(crossed(only_largest(change(), keep)), LIKE)
    for name, t in change().items():
        flat = np.sort(np.abs(t.numpy()).ravel())[::-1]
        count = math.ceil(keep * t.numel())
        assert int((told[name] != 0).sum()) == count
        assert np.allclose(np.sort(told[name][told[name] != 0].abs().numpy())[::-1], flat[:count])
        assert torch.equal(told[name][told[name] != 0], t[told[name] != 0])


def test_factors_lose_what_eckart_and_young_say():
    sent = crossed(in_factors(change(), 2))
    assert {"left/matrix", "right/matrix", "left/convolution", "vector", "number"} <= sent.keys()
    told = read_change(sent, LIKE)
    for name in ("matrix", "convolution"):
        values = np.linalg.svd(change()[name].flatten(1).numpy(), compute_uv=False)
        off = float((told[name] - change()[name]).norm())
        assert off == pytest.approx(np.sqrt((values[2:] ** 2).sum()), rel=1e-4)
    low = {"matrix": torch.outer(torch.arange(30.0), torch.arange(40.0))}
    assert torch.allclose(read_change(in_factors(low, 1), low)["matrix"], low["matrix"], rtol=1e-4, atol=0.01)
    assert in_factors({"small": torch.ones(2, 2)}, 1).keys() == {"small"}, "no shorter, so as it is"


def test_fewer_bytes():
    large = {"w": torch.randn(400, 300, generator=generator(1))}
    whole = bytes_of(large)
    assert bytes_of(in_int8(large)) == pytest.approx(whole / 4, rel=0.01)
    assert bytes_of(only_largest(large, 0.01)) == pytest.approx(whole * (0.01 + 1 / 32), rel=0.02)
    assert bytes_of(in_factors(large, 4)) == pytest.approx(whole * 4 * 700 / 120_000, rel=0.05)


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_what_is_missing_has_not_changed(code):
    told = read_change(code({"matrix": change()["matrix"]}), LIKE)
    assert told.keys() == LIKE.keys() and told["matrix"].any()
    assert not any(told[name].any() for name in ("convolution", "vector", "number"))


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_a_change_in_any_form_is_accepted(code): accept_change(Msg(crossed(code(change()))), LIKE)


SMALL, LEFT = torch.ones(30, 40, dtype=torch.int8), torch.ones(30, 2)
BAD = {"unknown": ({"other": torch.ones(3)}, r"unexpected \['other'\]"),
       "shape": ({"matrix": torch.ones(3)}, "has shape"), "dtype": ({"matrix": SMALL}, "has dtype"),
       "nan": ({"matrix": torch.full((30, 40), math.nan)}, "not finite"),
       "no number": ({"scale/matrix": torch.ones(1)}, r"missing \['matrix'\]"),
       "two forms": ({**in_int8({"vector": torch.ones(9)}), "left/vector": torch.ones(9, 1)},
                     r"unexpected \['left/vector'\]"),
       "half of two factors": ({"left/matrix": LEFT}, r"missing \['right/matrix'\]"),
       "ranks": ({"left/matrix": LEFT, "right/matrix": torch.ones(3, 40)}, "have ranks 2 and 3"),
       "an endless scale": ({"matrix": SMALL, "scale/matrix": torch.tensor([math.inf])}, "not finite")}


@pytest.mark.parametrize("told, said", BAD.values(), ids=BAD)
def test_what_is_no_change_is_refused(told, said):
    with pytest.raises(Refused, match=said): accept_change(Msg(told), LIKE)


def test_wishes_that_make_no_form():
    for keep in (0, -0.1, 1.5):
        with pytest.raises(UserError, match=f"keep={keep} must be above 0"): only_largest(change(), keep)
    for rank in (0, 1.5):
        with pytest.raises(UserError, match=f"rank={rank} must be a whole number"): in_factors(change(), rank)


# ---- experts that were used

class Net(nn.Module):
    "Two mixtures, one of them without a router, and a layer of their own."

    def __init__(self):
        super().__init__()
        self.head = mosaic_head(3, seed=0)
        self.boxes = RoIMoE(nn.Linear(4, 2), [nn.Linear(4, 1), nn.Linear(4, 1)])
        self.single = SpatialMoE(None, [nn.Conv2d(16, 4, 1)])
        self.own = nn.Linear(2, 2)


def test_places_are_counted_as_the_router_chose_them():
    net, g = Net(), generator(3)
    x, rows = torch.randn(2, 16, 5, 6, generator=g), torch.randn(7, 4, generator=g)
    with asked(net) as counts:
        net.train()
        for _ in range(2): net.head(x), net.boxes(rows), net.single(x)
        net.eval()
        net.head(x)
    net.train()
    net.head(x)
    assert torch.equal(counts[0], 2 * torch.bincount(net.head.routing(x).flatten(), minlength=3))
    assert torch.equal(counts[1], 2 * torch.bincount(net.boxes.routing(rows), minlength=2))
    assert counts[2].tolist() == [0]
    assert not net.head.router._forward_hooks and not net.boxes.router._forward_hooks


def test_idle_experts_by_share():
    net = Net()
    counts = [torch.tensor([96, 4, 0]), torch.tensor([1, 1]), torch.tensor([0])]
    assert idle(net, counts) == ["head.experts.2."]
    assert idle(net, counts, 0.04) == ["head.experts.1.", "head.experts.2."]
    assert idle(net, [torch.zeros(3, dtype=torch.int64), *counts[1:]]) == [], "nobody counted: nothing stays"
    state = dict(net.state_dict())
    left = without(state, idle(net, counts))
    assert state.keys() - left.keys() == {"head.experts.2.weight", "head.experts.2.bias"}
    assert without(state, []) == state


def test_ten_experts_have_ten_names():
    net = SpatialMoE(SpatialRouter(16, 11), [nn.Conv2d(16, 4, 1) for _ in range(11)])
    wrap = nn.Sequential(net)
    counts = torch.ones(11, dtype=torch.int64)
    counts[1] = 0
    assert without(dict(wrap.state_dict()), idle(wrap, [counts])).keys() >= {"0.experts.10.weight"}


def test_a_mixture_may_be_the_whole_model():
    net = mosaic_head(3, seed=0)
    left = without(dict(net.state_dict()), idle(net, [torch.tensor([5, 0, 1])]))
    assert net.state_dict().keys() - left.keys() == {"experts.1.weight", "experts.1.bias"}


def test_an_expert_that_nobody_asked_stays_as_it_is():
    "The router of the mosaic's head is made to send all to expert 0."
    made = MosaicExperiment(SIZES, 0)
    begun = dict(made.server().weights)
    bias = next(name for name in begun if name.endswith("router.map.bias"))
    begun[bias] = torch.tensor([100.0, 0.0, 0.0])
    client = UsedExpertsClient(made.client(0), least=0.0)
    answer = client.fit(Msg(begun, {"rate": 1.0}))
    assert not [name for name in answer.tensors if ".1." in name or ".2." in name]
    assert (answer.tensors["experts.0.weight"] != begun["experts.0.weight"]).any()
    whole = MosaicExperiment(SIZES, 0).client(0).fit(Msg(begun, {"rate": 1.0}))
    moved = (whole.tensors["experts.1.weight"] - begun["experts.1.weight"]).abs().max()
    assert moved <= 0.05 * 8e-3 * 3 * begun["experts.1.weight"].abs().max(), "weight decay alone"


# ---- client and server

def test_whole_changes_are_the_same_run_to_rounding():
    made = FedAvgExperiment(FedAvgSizes(clients=100, per_round=2, rounds=1), 0)
    plain, short = trial(made), trial(replace(made, mods=(Coded(dict),)))
    for name, t in plain.server.weights.items():
        assert torch.allclose(short.server.weights[name], t, atol=1e-6)
    assert short.history.rows[-1].keys() == plain.history.rows[-1].keys()


def shorter(made, code, least=None):
    coded = replace(made, mods=(Coded(code, fills=True),))
    return coded if least is None else UsedExperts(coded, least)


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_a_run_on_the_mosaic_counts_fewer_bytes_up(code):
    made = MosaicExperiment(SIZES, 0)
    whole, short = (trial(shorter(made, form, least)).federation.ledger
                    for form, least in ((dict, None), (code, 0.0)))
    assert short.so_far["down"] == whole.so_far["down"]
    if code is not dict: assert short.so_far["up"] != whole.so_far["up"]
    assert not short.missed


def test_the_server_reads_what_the_client_wrote():
    made = replace(MosaicExperiment(SIZES, 0), mods=(Coded(in_int8, fills=True),))
    server = made.built_server()
    sent = server.send(0)
    told = Msg(in_int8({"experts.0.weight": torch.ones_like(server.weights["experts.0.weight"])}), {"n": 3})
    whole = arriving(made.mods, sent, told)
    server.accept("fit", 0, whole)
    assert torch.allclose(whole.tensors["experts.0.weight"], server.weights["experts.0.weight"] + 1)
    assert torch.equal(whole.tensors["experts.1.weight"], server.weights["experts.1.weight"])
    strange = arriving(made.mods, sent, Msg({**told.tensors, "strange": torch.ones(2)}, {"n": 3}))
    with pytest.raises(Refused): server.accept("fit", 0, strange)


@pytest.mark.parametrize("mods", [(Int8(),), (TopK(0.3),), (LowRank(2),), (TopK(0.3), Int8())],
                         ids=["int8", "top-k", "low rank", "top-k, then int8"])
def test_a_mod_on_fedavg_is_a_function_of_sizes_and_seed(mods):
    small = replace(tiny(rounds=2), mods=mods)
    prove(small, kills=1, kinds=("nan", "shape", "names", "dtype", "garbage"))


def test_a_run_is_a_function_of_sizes_and_seed():
    prove(shorter(MosaicExperiment(replace(SIZES, clients=3), 0), in_int8, 0.0), kills=2)


def test_nobody_asked_is_the_labels_alone():
    made = shorter(MosaicExperiment(replace(SIZES, share=0.0), 0), in_int8)
    ended = trial(made)
    alone = trial(MosaicExperiment(replace(SIZES, share=0.0), 0))
    assert not ended.federation.ledger.so_far.get("up", 0)
    for name, t in alone.server.weights.items(): assert torch.equal(ended.server.weights[name], t)


def test_sizes_are_those_of_fedmox():
    own = {"seeds", "keep", "rank", "least"}
    for sizes in profiles.values():
        same = {name: value for name, value in vars(sizes).items() if name not in own}
        assert set(same) <= set(vars(FedMoxSizes()))
        FedMoxSizes(**same)
    full, theirs = CompressSizes(), FedMoxSizes()
    for name in ("warmup", "server_images", "client_images", "high", "low", "channels", "box_dim", "experts"):
        assert getattr(full, name) == getattr(theirs, name)
