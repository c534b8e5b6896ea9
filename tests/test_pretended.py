"""The pretended accelerator is as strict as CUDA, and computes the CPU's bits; every chapter runs on it."""
import argparse
import copy
import functools
import importlib
import json
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pretended
from conftest import by_day, close, normal, seeded
from fedbook.engine.files import run_dir
from fedbook.kit.classroom import exercises_of
from fedbook.kit.runs import chapters
from fedbook.kit.command import plan_of
from fedbook.engine.devices import to_device, to_host
from fedbook.engine.federation import Client, Federation, InProcess
from fedbook.engine.sizes import choose
from fedbook.engine.local import small_cnn, train
from fedbook.engine.wire import Msg, pack, unpack
from pretended import Count, aside, install
from test_precision import mixed

pytestmark = pytest.mark.skipif(bool(pretended.MISSING), reason=pretended.MISSING)


def on_the_device(test):
    "The test runs in a process of its own, which has the pretended device."
    @functools.wraps(test)
    def run(): aside(with_device, test.__name__)
    del run.__wrapped__
    run.test = test
    return run

def with_device(name): globals()[name].test(install())


def refuses(words): return pytest.raises((RuntimeError, TypeError), match=words)


# What CUDA refuses

@on_the_device
def test_two_devices_in_one_operator(device):
    x, w = normal(3, 4), normal(4, 4)
    for work in (lambda a, b: a @ b, lambda a, b: a[:, :1] + b[0], lambda a, b: torch.cat([a, b]), F.linear,
                 lambda a, b: F.embedding(a.abs().long(), b), lambda a, b: F.mse_loss(a, b[:3])):
        with refuses("same device"): work(x.to(device), w)
        with refuses("same device"): work(x, w.to(device))
    with refuses("same device"): x.to(device).add_(x)


@on_the_device
def test_a_network_and_its_pictures_apart(device):
    model, x = small_cnn(), normal(2, 1, 28, 28)
    with refuses("should be the same"): small_cnn().to(device)(x)
    with refuses("same device|should be the same"): model(x.to(device))
    with refuses("same device"): F.cross_entropy(normal(2, 3).to(device), torch.tensor([0, 1]))


@on_the_device
def test_an_optimiser_with_a_gradient_from_elsewhere(device):
    p = nn.Parameter(normal(3).to(device))
    with refuses(""): p.grad = normal(3)


@on_the_device
def test_numpy(device):
    with refuses("numpy"): normal(3).to(device).numpy()
    assert (normal(3).to(device).cpu().numpy() == normal(3).numpy()).all()


@on_the_device
def test_a_generator_of_the_cpu(device):
    for draw in (torch.rand, torch.randn):
        with refuses("generator"): draw(3, generator=seeded(), device=device)
    with refuses("generator"): torch.randperm(3, generator=seeded(), device=device)
    with refuses("generator"): normal(3).to(device).bernoulli_(0.5, generator=seeded())


@on_the_device
def test_pinning_the_memory_of_the_device(device):
    with refuses("pin"): normal(3).to(device).pin_memory()


@on_the_device
def test_what_cuda_allows(device):
    x = normal(3, 4).to(device)
    assert (x * torch.tensor(2.0)).device.type == "sham"          # a number from the CPU
    assert torch.equal(x[torch.tensor([2, 0])].cpu(), normal(3, 4)[[2, 0]])     # an index from the CPU
    x[torch.tensor([0])] = 1.0
    assert (x[0] == 1).all() and str(x.device) == "sham:0"


# The bits of the CPU

def same(a, b): return torch.equal(a.detach().cpu(), b.detach().cpu())


@on_the_device
def test_forward_backward_and_steps(device):
    "The loss before the first step to the bit; gradients and weights but for products chosen by strides."
    x, y = normal(6, 1, 28, 28), torch.arange(6)
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        before, ends = [], []
        for where in ("cpu", device):
            torch.manual_seed(0)
            model = small_cnn().to(where)
            before.append(model(x.to(where)))
            train(model, [(x.to(where), y.to(where))] * 3, lambda x, y: F.cross_entropy(model(x), y),
                  kind(model.parameters(), 0.001))
            ends.append([*model.state_dict().values(), *(p.grad for p in model.parameters())])
        assert same(*before) and len(ends[0]) == 16
        assert all(close(a.cpu(), b.cpu(), 1e-5) for a, b in zip(*ends, strict=True))


@on_the_device
def test_views_share_their_numbers(device):
    x = torch.zeros(3, 4, device=device)
    x[1].add_(1)
    x.T[0, 2] = 5
    x.view(-1)[3:4].copy_(torch.tensor([7.0]))
    assert x.cpu().tolist() == [[0, 0, 0, 7], [1, 1, 1, 1], [5, 0, 0, 0]]


@on_the_device
def test_copies_of_a_network_are_its_own(device):
    model = small_cnn().to(device)
    twin, other = copy.deepcopy(model), small_cnn().to(device)
    other.load_state_dict({name: t.cpu() for name, t in model.state_dict().items()})
    kept = model[0].weight.detach().cpu().clone()
    with torch.no_grad(): model[0].weight.add_(1)
    assert same(twin[0].weight, kept) and same(other[0].weight, kept) and not same(model[0].weight, kept)
    assert isinstance(twin[0].weight, nn.Parameter) and twin[0].weight.requires_grad


# What is counted

@on_the_device
def test_operators_and_copies_are_counted(device):
    x = normal(3, 4)
    with Count() as count: there = x.to(device)
    assert [copy[:2] for copy in count.copies] == [("in", 12)]
    with Count() as count: (there @ there.T).relu().sum()
    assert count.operators >= 3 and not count.copies
    with Count() as count: there.cpu(), there.sum().item(), float(there[0, 0]), bool((there > 9).any())
    assert [copy[:2] for copy in count.copies] == [("out", 12), ("out", 1), ("out", 1), ("out", 1)]
    with Count() as count: there[torch.tensor([1, 0])], there[there[:, 0] > 0]
    assert [copy[:2] for copy in count.copies] == [("in", 2), ("out", 1)]
    with Count() as count: there.clone(), there.to(device), there.double()
    assert not count.copies


def test_the_device_stays_aside():
    aside(makes_it)
    with pytest.raises(RuntimeError): torch.zeros(1, device="sham")
    with pytest.raises(AssertionError, match="ValueError: at home"): aside(fails)

def makes_it(): install()

def fails(): raise ValueError("at home")


# Copies of a client's training

# A pass over the data may bring its order (one copy). These bring more in each step, or ask for a number:
PER_STEP = {
    "11_fedmox": "in: pictures, whose views are made on the CPU, and constants of torchvision's and of ours; "
                 "out: how many boxes there are, after each choice among them, and the losses of the step",
}
# From one place, in two steps (of FedMox: in one, and it chooses boxes in each picture for each of three losses):
MOST = {"11_fedmox": 24}
# What makes a round longer, else epochs:
LONGER = {"11_fedmox": "client_images", "12_fedklpr": "steps", "14_fedgtea": "iterations"}


def fit_count(name, change, method, rounds):
    "What a client's last answer of `rounds` rounds with it alone brought and took, by place."
    device = pretended.install_in_fedbook()
    experiment = plan_of(name, "smoke", 0, change, device).experiment
    if method:
        module = importlib.import_module(method[0])
        experiment = replace(experiment, sizes=choose(module.profiles, "smoke", change),
                             method=getattr(module, method[1]))
    server, client = experiment.server(), experiment.client(0)
    last, counted = rounds and getattr(server, "rounds", 1) * rounds, Count()
    for r in range(last + 1):
        server.begin([0], r)
        for step in server.steps([0], r):
            say = unpack(pack(step.say(0) if callable(step.say) else step.say))
            if r == last and step.verb == "fit":
                with counted: client.fit(say)
                return counted.operators, Counter(copy[::2] for copy in counted.copies)
            step.merge(iter([(0, unpack(pack(getattr(client, step.verb)(say))))]))


def fit_counts(name, size, method, rounds):
    return [fit_count(name, {size: n}, method, rounds) for n in ("2", "4")]


@pytest.mark.parametrize("name, method, task", [
    ("methods/fedavg", None, 0), ("methods/continual", None, 0), ("methods/pruning", None, 0),
    ("10_fedreplay", None, 0),
    ("11_fedmox", None, 0), ("12_fedklpr", None, 1), ("13_fedcbdr", None, 0), ("13_fedcbdr", None, 1),
    ("14_fedgtea", None, 0), ("14_fedgtea", None, 1),
    *(("methods/continual", ("fedbook.methods.penalties", m), 1)
      for m in ("FedLwF", "FLwF2T", "FedEWC", "CGoFed")),
    *(("methods/continual", ("fedbook.methods.exemplars", m), 1) for m in ("ICaRL", "DER", "GLFC"))],
    ids=lambda v: v[1] if isinstance(v, tuple) else v)
def test_a_step_copies_nothing(name, method, task):
    few, many = aside(fit_counts, name, LONGER.get(name, "epochs"), method, task)
    assert many[0] > 1.3 * few[0], "the longer round must have had more to do"
    more = many[1] - few[1]
    most = MOST.get(name, 16)
    if (method[1] if method else name) in PER_STEP: assert more and all(n <= most for n in more.values()), more
    else: assert {way for way, _ in more} <= {"in"} and sum(more.values()) <= 2, more


# Weights on their way to a device and back

@on_the_device
def test_weights_cross_in_one_copy_each_way(device):
    tensors = mixed()
    with Count() as count: there = to_device(tensors, device)
    assert [copy[0] for copy in count.copies] == ["in"]
    assert count.copies[0][1] < sum(t.nbytes for t in tensors.values()) + 16 * len(tensors)
    with Count() as count: back = to_host(there)
    assert [copy[0] for copy in count.copies] == ["out"]
    for name, t in tensors.items():
        assert there[name].device.type == "sham" and back[name].device.type == "cpu", name
        assert there[name].dtype == back[name].dtype == t.dtype and torch.equal(back[name], t), name
    assert to_device(there, device) is there
    with Count() as count: again = to_device({**there, "new": normal(3)}, device)
    assert [copy[:2] for copy in count.copies] == [("in", 12)] and again["w"] is there["w"]


@on_the_device
def test_a_client_gets_its_weights_in_one_copy(device):
    model, x = small_cnn().to(device), normal(4, 1, 28, 28)
    client = Client(0, model, x, torch.arange(4), epochs=1)
    sent = Msg({name: t.cpu() for name, t in model.state_dict().items()})
    with Count() as count: client.fit(sent)
    of_weights = [copy for copy in count.ways("in") if "to_device" in copy[2] or "_in_one_copy" in copy[2]]
    assert len(of_weights) == 1 and len(sent.tensors) == 8
    assert not [copy for copy in count.copies if "load_state_dict" in copy[2]]


# Chapters

LOOPS = 5       # of the calibration, which a chapter at smoke may take; above is a warning, above twice that red

# By day, test_notebooks.py runs this one in a kernel.
@pytest.mark.parametrize("name", by_day(chapters(), "deploy/flower"))
def test_chapter_runs_on_the_device(name, tmp_path):
    ran = aside(pretended.run_chapter, chapters()[name], tmp_path)
    assert not ran.failures, "\n".join(ran.failures)
    asked = exercises_of(chapters()[name])
    assert ran.printed.count("not attempted yet") >= min(3, len(asked)), "exercises come unsolved"
    results = json.loads((run_dir(name, "smoke", 0, tmp_path) / "results.json").read_text())
    assert results["profile"] == "smoke" and results["headline"]
    assert not ran.unread, f"nobody reads these sizes of {name}: {ran.unread}"
    assert not ran.drawn, f"{name} draws from the global generators of {ran.drawn}"
    if ran.loops > LOOPS: warnings.warn(f"{name} at smoke takes {ran.loops:.1f} loops, more than {LOOPS}")
    assert ran.loops <= 2 * LOOPS, f"{name} takes {ran.loops:.1f} loops: smaller numbers in its smoke profile"


# Answers, benchmarks, and Flower

ANSWERS = sorted((Path(__file__).parent.parent / "nbs" / "answers").glob("*.ipynb"))

def run_answers(paths):
    "What failed of each of these notebooks, one after the other."
    return {path.stem: failures for path in paths if (failures := pretended.run_cells(path).failures)}


def test_answers_run_on_the_device(): assert aside(run_answers, ANSWERS) == {}


def bench_of(name):
    "A file of bench/ as a module, with all of fedbook on the device."
    sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
    module = importlib.import_module(name)
    return module, pretended.install_in_fedbook()

def bench_moe():
    moe, device = bench_of("moe")
    ratio = moe.show("random", 3, device, argparse.Namespace(channels=6, kernel=3, size=(10, 12), repeats=1))
    assert ratio > 0

def bench_heads():
    heads, heads.DEVICE = bench_of("heads")
    args = argparse.Namespace(clients=5, seconds=0, threads=[1], groups=[2, 5], repeats=1)
    head = dict(in_dim=12, dim=8, heads=2, ff=8)
    heads.compare("tiny", head, 1, args)
    heads.compare_forms("tiny", head, 1, args, count=2)


# The others take no device: clients.py, engines.py, federation.py and sparse_wire.py time the CPU's side of a
# round (processes, messages, memory), leverage.py the memory of a process; wasserstein.py and gpu.py ask for
# CUDA by name, and what they time there, the chapters run here.
@pytest.mark.parametrize("job", [bench_moe, bench_heads])
def test_bench_runs_on_the_device(job): aside(job)


def on_flower(name, out):
    """The numbers of a chapter's training with Flower's client app, called in this process without Ray; which
    replies are missing; and the numbers of the same training without Flower."""
    test_flower = importlib.import_module("test_flower")
    device = pretended.install_in_fedbook()
    plan = plan_of(name, "smoke", 0, {}, device)
    experiment = plan.experiment
    federation = test_flower.over(test_flower.grid_of(experiment), experiment.ids)
    numbers = test_flower.flower.train_plan(plan, federation, out)
    line = Federation(InProcess(experiment.client), experiment.ids)
    server, _ = test_flower.trained(experiment, line)
    return numbers, federation.ledger.absent, experiment.test(server)


@pytest.mark.parametrize("name", ["methods/fedavg", "10_fedreplay", "11_fedmox", "12_fedklpr"])
def test_flower_runs_on_the_device(name, tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed here")
    numbers, absent, wanted = aside(on_flower, name, tmp_path)
    assert not absent and wanted and {key: numbers[key] for key in wanted} == wanted
