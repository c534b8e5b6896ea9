"""What only a GPU can show: each path of the engine against the CPU, and seconds a round of real networks.

    python bench/gpu_paths.py PART [--device cuda] [--tiny]

`equal` trains one small federation by each path and compares the weights: the distance between two results
over the distance that training went. Bounds: 0 where the same bits are promised, else those of `BOUNDS`. The
other parts run rounds of FedAvg with random weights at fp32, tf32 and bf16, and tell the seconds of a round,
what the clients' steps reached in operations a second, and the MB of messages a second of all the rest:
packing, copies, checks, averaging. `--tiny` is the same on small pictures with few steps, for `--device cpu`.
Exit code: 1 where a bound is not kept.
"""
import argparse
import importlib
import os
import statistics
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TQDM_DISABLE", "1")
HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent))

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fedbook.engine.devices import clock, to_device, to_host, torch_device
from fedbook.engine.federation import Client, Federation, InProcess, Server, mean_of, run
from fedbook.engine.local import build, precise, small_cnn
from fedbook.engine.stacked import Stacked
from fedbook.engine.workers import Workers
from fedbook.methods.continual import networks
from fedbook.methods.heads import ReplayHead

PARTS = {"equal": "each path of the engine against the CPU: bits, or a stated tolerance",
         "resnet18": "seconds a round, 32 px", "resnet50": "seconds a round, 224 px",
         "vit-s": "seconds a round, 224 px", "dinov2-s heads": "seconds to encode, and a round of heads"}
BOUNDS = {"the device against the CPU": 1e-3, "stacked against one by one": 1e-3, "tf32": 0.05, "bf16": 0.3,
          "a mean on the device": 1e-6}
PRECISIONS = "fp32", "tf32", "bf16"
CLASSES, TIMED = 30, 3      # classes; rounds that are timed, after one that is not


class Work(NamedTuple):
    "A federation: `clients` that take `steps` of `batch` inputs of `shape` in a round, with a network."
    make: Callable
    shape: tuple
    clients: int
    steps: int
    batch: int


def resnet50():
    from torchvision.models import resnet50
    return resnet50(num_classes=CLASSES)


def vit(side, patch, classes):
    "A ViT-S: 12 layers, 384 wide, 6 heads."
    from torchvision.models import VisionTransformer
    return VisionTransformer(side, patch, 12, 6, 384, 1536, num_classes=classes)


def work(part, tiny=False):
    "The federation of a `part`."
    clients, steps, side = (2, 1, 56) if tiny else (10, 10, 224)
    heads = partial(ReplayHead, in_dim=384, dim=256, heads=8, ff=1024, n_classes=CLASSES, n_tokens=1)
    return {"resnet18": Work(partial(networks["resnet18"], CLASSES, (3, 32, 32)), (3, 32, 32), clients, steps,
                             4 if tiny else 128),
            "resnet50": Work(resnet50, (3, side, side), clients, steps, 4 if tiny else 64),
            "vit-s": Work(partial(vit, side, 14, CLASSES), (3, side, side), clients, steps, 2 if tiny else 64),
            "dinov2-s heads": Work(heads, (384,), clients, steps, 4 if tiny else 64),
            "equal": Work(small_cnn, (1, 28, 28), 4, 2, 16)}[part]


def encoder(tiny): return vit(56 if tiny else 518, 14, CLASSES)


class Cost(NamedTuple):
    "Floating point operations, and calls of kernels."
    flops: float
    calls: int

    def __add__(self, other): return Cost(self.flops + other.flops, self.calls + other.calls)
    def __mul__(self, times): return Cost(self.flops * times, self.calls * times)


class Calls(TorchDispatchMode):
    "Counts what PyTorch calls; views, which start nothing on a GPU, are not told apart."
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def counted(work):
    "The `Cost` of `work()`, on tensors that have a shape and no memory."
    with FlopCounterMode(display=False) as counter: work()
    with Calls() as calls: work()
    return Cost(counter.get_total_flops(), calls.count)


@cache
def cost_of(make, shape, batch, learns=True):
    "The `Cost` of a step (or a look) of `batch` inputs, and parameters."
    with torch.device("meta"): model, x = make(), torch.empty(batch, *shape)
    step = lambda: model(x).sum().backward() if learns else model(x)
    return counted(step), sum(p.numel() for p in model.parameters())


def work_of(part):
    "Cost of all of a `part`, parameters, and replies: three precisions, each with a round that is not timed."
    of = work(part)
    each, parameters = cost_of(of.make, of.shape, of.batch)
    replies = (TIMED + 1) * of.clients * len(PRECISIONS)
    cost = each * (of.steps * replies)
    if part == "dinov2-s heads":
        look, _ = cost_of(partial(encoder, False), (3, 518, 518), of.batch, False)
        cost += look * (of.steps * of.clients * len(PRECISIONS))
    return cost, parameters, replies


# One federation, by any path ------------------------------------------------------------------------------

class Timed(Client):
    "A client that notes the seconds of its rounds in `seconds`."
    seconds: list = []

    def fit(self, msg):
        start = clock()
        reply = super().fit(msg)
        self.seconds.append(clock() - start)
        return reply


def client(id, model, of, kind, x=None):
    draw = torch.Generator().manual_seed(id)
    many = of.steps * of.batch
    if x is None:
        x = torch.rand(many, *of.shape, generator=draw) if len(of.shape) == 1 else \
            torch.randint(0, 256, (many, *of.shape), dtype=torch.uint8, generator=draw)
    y = torch.randint(10, (many,), generator=draw)
    return kind(id, model, x, y, seed=0, batch=of.batch, lr=0.01)


def line_of(of, device, kind, features=None):
    "The network, and a function that makes its clients."
    model = build(of.make, 0).to(device)
    return model, lambda id: client(id, model, of, kind, features and features[id])


@cache
def lent(part, device): return build(work(part).make, 0).to(device)


def made_there(id, part, device): return client(id, lent(part, device), work(part), Client)


def spawned(part, device, rounds=2):
    "Weights after some rounds of two workers that share the device: each a new process, which imports this file."
    if str(HERE.parent) not in sys.path: sys.path.append(str(HERE.parent))    # the new processes get it
    make_client = partial(importlib.import_module(HERE.stem).made_there, part=part, device=device)
    server = Server(build(work(part).make, 0))
    there = Workers(make_client, 2, method="spawn")
    with Federation(there, work(part).clients) as federation: run(server, federation, rounds)
    return server.weights


def trained(of, device, name="fp32", line=InProcess, rounds=2):
    "Weights after some rounds, and the bytes of each message."
    model, make_client = line_of(of, device, Client)
    server = Server(model)
    with precise(name), Federation(line(make_client), of.clients) as federation: run(server, federation, rounds)
    return server.weights, federation.ledger.to_json()


def apart(a, b, start):
    "The distance between the weights `a` and `b`, over how far `a` is from `start`; 0 only for equal bits."
    flat = lambda state: torch.cat([state[name].double().flatten().cpu() for name in sorted(a)])
    if all(torch.equal(a[name].cpu(), b[name].cpu()) for name in a): return 0.0
    return float((flat(a) - flat(b)).norm() / (flat(a) - flat(start)).norm())


def one_by_one(state): return {name: t.cpu() for name, t in state.items()}


def milliseconds(f):
    f()
    seconds = []
    for _ in range(TIMED):
        start = clock()
        f()
        seconds.append(clock() - start)
    return 1000 * statistics.median(seconds)


def equal(device, tiny):
    "Compare the paths; answers whether all bounds are kept."
    of = work("equal")
    start = build(of.make, 0).state_dict()
    here, ledger = trained(of, torch.device("cpu"))
    there, its_ledger = trained(of, device)
    again, _ = trained(of, device)
    side_by_side, _ = trained(of, device, line=partial(Stacked, together=of.clients))
    found = {"the device against the CPU": apart(here, there, start),
             "the device, twice": apart(there, again, start),
             "stacked against one by one": apart(there, side_by_side, start),
             "two spawned workers against one": apart(there, spawned("equal", str(device)), start)}
    for name in PRECISIONS[1:]: found[name] = apart(there, trained(of, device, name)[0], start)
    states = [to_device({name: t * k for name, t in here.items()}, device) for k in (1, 2, 3)]
    means = [mean_of((s, 0.3) for s in each) for each in (states, map(one_by_one, states))]
    found["a mean on the device"] = apart(means[1], means[0], start)
    big = build(work("resnet18").make, 0).to(device).state_dict()
    found["one packed buffer against many copies"] = apart(one_by_one(big), to_host(big), big)
    kept = [line(name, value, BOUNDS.get(name, 0.0)) for name, value in found.items()]
    kept.append(line("bytes of messages that differ", float(ledger != its_ledger), 0.0))
    print(f"ResNet-18 to the host: {milliseconds(lambda: one_by_one(big)):.1f} ms tensor by tensor, "
          f"{milliseconds(lambda: to_host(big)):.1f} ms packed")
    return all(kept)


def line(name, value, bound):
    kept = value <= bound
    print(f"{name}: {value:.2g} (bound {bound:.2g}) {'kept' if kept else 'NOT KEPT'}")
    return kept


def speed(part, device, tiny):
    "Print the seconds of a round at each precision."
    of = work(part, tiny)
    each, parameters = cost_of(of.make, of.shape, of.batch)
    for name in PRECISIONS:
        features = encoded(of, device, name, tiny) if part == "dinov2-s heads" else None
        model, make_client = line_of(of, device, Timed, features)
        server = Server(model)
        with precise(name), Federation(InProcess(make_client), of.clients) as federation:
            run(server, federation, 1)
            rounds, fits = [], []
            for _ in range(TIMED):
                Timed.seconds.clear()
                start = clock()
                run(server, federation, 1)
                rounds.append(clock() - start)
                fits.append(sum(Timed.seconds))
        whole, inside = statistics.median(rounds), statistics.median(fits)
        reached = each.flops * of.steps * of.clients / inside / 1e12
        sent = 4 * parameters * of.clients / max(whole - inside, 1e-9) / 1e6
        print(f"rate {name}: {whole:.3f} s a round of {of.clients} clients with {of.steps} steps of {of.batch}, "
              f"{inside:.3f} s of it in clients; {reached:.3g} TFLOP/s, {sent:.3g} MB/s")
    return True


def encoded(of, device, name, tiny):
    "Each client's features of its pictures by a frozen encoder with random weights, in `name`."
    frozen = build(partial(encoder, tiny), 0).to(device).eval()
    frozen.heads = nn.Identity()
    side, many = frozen.image_size, of.steps * of.batch
    found, start = [], clock()
    with precise(name), torch.no_grad():
        for id in range(of.clients):
            draw = torch.Generator().manual_seed(id)
            chunks = [torch.rand(min(64, many - at), 3, side, side, generator=draw) for at in range(0, many, 64)]
            found.append(torch.cat([frozen(x.to(device)).cpu() for x in chunks]))
    seconds = clock() - start
    print(f"encoded at {name}: {of.clients * many / seconds:.0f} pictures of {side} px a second, copies included")
    return found


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    device = torch_device(args.device)
    named = torch.cuda.get_device_name() if device.type == "cuda" else "the CPU"
    print(f"{args.part} on {named}, torch {torch.__version__}")
    kept = equal(device, args.tiny) if args.part == "equal" else speed(args.part, device, args.tiny)
    return 0 if kept else 1


if __name__ == "__main__": sys.exit(main())
