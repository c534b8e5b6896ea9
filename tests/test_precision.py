"""In which precision networks compute: a context, a field of the sizes, and what a client was built with."""
import copy
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

from conftest import normal
from fedbook.engine import devices
from fedbook.engine.devices import check_precision, to_device, to_host, usable_cores
from fedbook.engine.errors import UserError
from fedbook.engine.federation import Call, Client, ClientPool, Experiment, Server, Wrapped
from fedbook.engine.local import build, precise, small_cnn
from fedbook.engine.sizes import Count, Precision, Profile
from fedbook.engine.wire import pack
from fedbook.engine.workers import Checkpoint, facts_of, trial
from test_fedavg import equal, several


@pytest.fixture
def everywhere(monkeypatch):
    "Every processor has instructions for bf16; this one may lack them, and is slow then."
    monkeypatch.setattr(devices, "_knows_bf16", lambda kind: True)


def network(): return build(small_cnn, 0)


def pictures(): return normal(6, 1, 28, 28)


# ---- the context

def test_bf16_rounds_what_networks_do_and_nothing_else():
    model, x = network(), pictures()
    exact, seen = model(x), []
    model[0].register_forward_hook(lambda layer, args, out: seen.append(out.dtype))
    with precise("bf16"):
        rounded = model(x)
        assert rounded.dtype == torch.float32 and (x.flatten(1) @ x.flatten(1).T).dtype == torch.float32
        F.cross_entropy(rounded, torch.arange(6)).backward()
    assert seen == [torch.bfloat16] and 0 < (rounded - exact).abs().max() < 0.05
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
    assert torch.equal(model(x), exact)


def test_the_innermost_context_counts():
    model, x = network(), pictures()
    exact = model(x)
    with precise("bf16"):
        with precise(): assert torch.equal(model(x), exact)
        assert not torch.equal(model(x), exact)
        with precise("tf32"):
            assert torch.equal(model(x), exact) and torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32 and not torch.equal(model(x), exact)
    assert torch.equal(model(x), exact)


@pytest.mark.parametrize("before", [False, True])
def test_tf32_is_allowed_inside_alone(before):
    units = torch.backends.cuda.matmul, torch.backends.cudnn
    kept = [unit.allow_tf32 for unit in units]
    try:
        for unit in units: unit.allow_tf32 = before
        with precise("tf32"): assert all(unit.allow_tf32 for unit in units)
        assert all(unit.allow_tf32 == before for unit in units)
        with precise(): assert all(unit.allow_tf32 == before for unit in units)
    finally:
        for unit, allowed in zip(units, kept): unit.allow_tf32 = allowed


class Failing(nn.Linear):
    def forward(self, x): raise ValueError("no")


def test_a_network_that_fails_leaves_no_autocast_behind():
    model, x = nn.Sequential(nn.Linear(3, 3), Failing(3, 3)), normal(2, 3)
    with precise("bf16"):
        for _ in range(2):
            with pytest.raises(ValueError, match="no"): model(x)
            assert not torch.is_autocast_enabled("cpu")
        assert (x @ x.T).dtype == torch.float32
        exact = F.linear(x, *model[0].parameters())
        assert model[0](x).dtype == torch.float32 and not torch.equal(model[0](x), exact)


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        y = self.layer(x)
        return {"y": y, "pair": (y, [y]), "n": 3}


def test_answers_of_any_shape_are_float32():
    with precise("bf16"): answer = build(Many, 0)(normal(2, 3))
    assert {t.dtype for t in (answer["y"], answer["pair"][0], answer["pair"][1][0])} == {torch.float32}
    assert answer["n"] == 3


def test_networks_of_other_types_compute_in_theirs():
    for dtype in (torch.float64, torch.bfloat16):
        model, x = build(lambda: nn.Linear(3, 2), 0).to(dtype), normal(2, 3).to(dtype)
        with precise("bf16"): assert torch.equal(model(x), F.linear(x, *model.parameters()))


def test_copies_and_stacks_of_networks_compute_so_too():
    model, x = build(lambda: nn.Linear(4, 2), 0), normal(3, 2, 4)
    weights = {name: torch.stack([t, t, t]) for name, t in model.state_dict().items()}
    with precise("bf16"):
        one = [model(part) for part in x]
        stacked = vmap(lambda w, part: functional_call(model, w, (part,)))(weights, x)
        twin = copy.deepcopy(model)(x[0])
    assert torch.equal(twin, one[0]) and torch.allclose(stacked, torch.stack(one), atol=0.02)
    assert not torch.equal(one[0], model(x[0]))


@pytest.mark.parametrize("precision, device, why", [
    ("half", "cpu", "precision='half' is unknown; choose one of fp32, tf32, bf16"),
    ("tf32", "cpu", "a mode of GPUs and changes nothing on a CPU"),
    ("bf16", "cpu", "slower than fp32 on this processor"), ("bf16", "cuda:0", "slower than fp32 on this GPU")])
def test_what_a_device_cannot_do(monkeypatch, precision, device, why):
    known = {"avx2": True, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    with pytest.raises(UserError, match=why): check_precision(precision, device)
    check_precision("fp32", device), check_precision("bf16"), check_precision("tf32", "cuda")


def test_a_processor_with_instructions_for_bf16(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    check_precision("bf16", "cpu")


# ---- the field

@dataclass(frozen=True)
class Sizes(Profile):
    clients: Count = 4
    per_round: Count = 2
    rounds: Count = 2
    precision: Precision = "fp32"


class Warmed(Server):
    "A server that trains its network before the first round, and after each merge looks at it."
    looked = 0.0

    def __init__(self, model, *args):
        super().__init__(model, *args)
        self.model = model
        self.first = float(model(pictures()).detach().sum())

    def merge(self, replies):
        super().merge(replies)
        self.model.load_state_dict(self.weights)
        self.looked = float(self.model(pictures()).detach().sum())


@dataclass(frozen=True)
class Small(Experiment):
    def client(self, id):
        return Client(id, network(), pictures(), torch.arange(6), self.seed, batch=2, lr=0.01)

    def server(self): return Warmed(network(), self.sizes.per_round, self.seed)

    def test(self, server):
        return {"sum": float(network()(pictures()).detach().sum()), "looked": server.looked}


@dataclass(frozen=True)
class Plain(Profile):
    "Sizes without the field."
    clients: Count = 4
    per_round: Count = 2
    rounds: Count = 2


def test_fp32_is_the_default_and_sets_nothing():
    plain, named = trial(Small(Plain())), trial(Small(Sizes()))
    assert equal(plain.server.weights, named.server.weights)
    assert not hasattr(Small(Sizes()).built_client(0), "precision")
    assert Small(Plain()).precision == "fp32"


def test_the_server_is_made_in_the_precision(everywhere):
    first = [Small(Sizes(precision=p)).built_server().first for p in ("fp32", "bf16")]
    assert first[0] != first[1] and first[0] == pytest.approx(first[1], abs=0.5)
    assert Small(Sizes(precision="bf16")).built_client(0).precision == "bf16"


@several
@pytest.mark.parametrize("workers", [1, 2])
def test_all_of_a_run_computes_so(everywhere, workers):
    exact, rounded = (trial(Small(Sizes(precision=p)), workers=workers) for p in ("fp32", "bf16"))
    seen = [(run.server.first, run.history.last("sum"), run.history.last("looked"))
            for run in (exact, rounded)]
    for a, b in zip(*seen):
        assert a != b and a == pytest.approx(b, abs=0.5)
    assert not equal(exact.server.weights, rounded.server.weights)
    for name, t in exact.server.weights.items():
        assert t.dtype == rounded.server.weights[name].dtype == torch.float32
        assert torch.allclose(t, rounded.server.weights[name], atol=0.01)
    again = trial(Small(Sizes(precision="bf16")), workers=1)
    assert equal(again.server.weights, rounded.server.weights) and again.history.rows == rounded.history.rows


def test_a_pool_of_another_process_knows_the_precision(everywhere):
    ends = []
    for kind in (lambda e: e, Wrapped):
        for precision in ("fp32", "bf16"):
            experiment = kind(Small(Sizes(precision=precision)))
            data = pack(experiment.built_server().send(0))
            asked = Call(0, 0, "fit", data, None)
            ends.append(ClientPool(experiment.built_client).answer(asked).data)
    assert ends[0] == ends[2] != ends[1] == ends[3]


def test_the_precision_is_part_of_what_a_run_is(everywhere, tmp_path):
    assert facts_of(Small(Sizes(precision="bf16")))["sizes.precision"] == "'bf16'"
    path = tmp_path / "run"
    trial(Small(Sizes(rounds=1)), Checkpoint(path))
    with pytest.raises(UserError, match="precision"): trial(Small(Sizes(precision="bf16")), Checkpoint(path))


def test_an_experiment_refuses_what_its_device_cannot(monkeypatch):
    with pytest.raises(UserError, match="changes nothing on a CPU"): Small(Sizes(precision="tf32"))
    with pytest.raises(UserError, match="changes nothing on a CPU"):
        replace(Small(Sizes(precision="tf32"), 0, "cuda")).at(device="cpu")
    assert Wrapped(Small(Sizes(precision="tf32"), 0, "cuda")).precision == "tf32"


# ---- weights on their way to a device

def mixed():
    "Tensors of many types, shapes and layouts, some of which share memory."
    whole = normal(4, 6)
    last = normal(2, 3, 4, 4).to(memory_format=torch.channels_last)
    return {"w": whole, "t": whole.T, "cut": whole[1:3, ::2], "last": last, "bool": torch.tensor([True, False, True]),
            "n": torch.tensor(7), "none": torch.empty(0, 3),
            "half": normal(3).bfloat16(), "double": normal(5).double(), "byte": torch.arange(3, dtype=torch.uint8)}


def test_nothing_moves_where_all_is_there():
    tensors = mixed()
    assert to_device(tensors, "cpu") is tensors and to_host(tensors) is tensors


def test_usable_cores(monkeypatch):
    monkeypatch.setenv("FEDBOOK_CORES", "3")
    assert usable_cores() == 3
    monkeypatch.delenv("FEDBOOK_CORES")
    assert usable_cores() >= 1
