"""What a mixture of convolutions costs over one convolution, when each pixel meets its own expert only
(sparse) and when every expert runs everywhere (dense).

python bench/moe.py [--experts 1 2 4 8] [--threads 1 and all] [--repeats 5] [--channels 256] [--size 45 80]
[--kernel 3]

One map, a 1x1 router, experts of one shape, top-1. Sparse, dense and one plain `Conv2d` of that shape
alternate in the same run, forward (without a graph) and forward + backward (gradients of the map, the experts
and the router); medians, in ms and as a multiple of the plain one's. The router's own cost is in both.
Routing "random": the map is noise, so that neighbours seldom share an expert; "smooth": the noise is averaged
over 9x9 pixels, so that regions do.

The gate is `switch`, for which sparse and dense are one function with one gradient, the router's included;
outputs and all gradients are compared before anything is timed ("gap"). The bar: sparse at
most 1.3 times plain, forward + backward; where it is not kept, a profile says why. "alike":
the share of pixels whose right neighbour has the same expert. "MB": millions of bytes that the graph holds
for the backward pass
besides the map and the weights. Where there is a GPU, everything runs there, too, without TF32."""
import argparse
import os
import statistics
from time import perf_counter
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from bar import bar
from fedbook.methods.experts import SpatialMoE, SpatialRouter
from fedbook.engine.local import build, generator

ROUTINGS = ("random", "smooth")


class Layers(NamedTuple):
    "One convolution, and two mixtures that share their experts and their router."
    plain: nn.Module
    dense: nn.Module
    sparse: nn.Module


def layers(experts, channels, kernel, device="cpu"):
    def make():
        several = [nn.Conv2d(channels, channels, kernel, padding=kernel // 2) for _ in range(experts)]
        router = SpatialRouter(channels, experts)
        dense, sparse = (SpatialMoE(router, several, "switch", sparse=way) for way in (False, True))
        return nn.ModuleList([nn.Conv2d(channels, channels, kernel, padding=kernel // 2), dense, sparse])
    return Layers(*build(make, 0).to(device))


def feature_map(routing, channels, size, device="cpu"):
    "A map (1, channels, *size) on which a random 1x1 router makes this kind of routing."
    x = torch.randn(1, channels, *size, generator=generator(1))
    if routing == "smooth": x = F.avg_pool2d(x, 9, 1, 4, count_include_pad=False)
    return (x / x.std()).to(device).requires_grad_()


def alike(chosen):
    "The share of pixels whose right neighbour has the same expert; `chosen` (b, h, w)."
    return (chosen[..., 1:] == chosen[..., :-1]).float().mean().item()


def forward(layer, x, pull):
    with torch.no_grad(): return [layer(x)]


def both(layer, x, pull):
    "The output, and the gradients of `x` and of every parameter for the output's gradient `pull`."
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], pull)]


PASSES = {"forward": forward, "forward + backward": both}


def pulls(made, x):
    """The same numbers for each layer, in the layout that its output has, and so the gradient of a layer
    behind it."""
    g = torch.randn(made.plain(x).shape, generator=generator(2)).to(x.device)
    return Layers(*(torch.empty_like(layer(x)).copy_(g) for layer in made))


def gap(ours, wanted):
    "The largest distance of two tensors of the lists, as a share of the largest number in that tensor."
    each = [(a - b).abs().max() / b.abs().max().clamp(min=1e-6) for a, b in zip(ours, wanted, strict=True)]
    return torch.stack(each).max().item()


def compare(made, x, pull):
    "The gap of sparse from dense. Stops everything where it is more than rounding."
    away = gap(both(made.sparse, x, pull.sparse), both(made.dense, x, pull.dense))
    if not away <= 1e-4: raise SystemExit(f"sparse and dense differ by {away:.1e}")
    return away


def saved_bytes(layer, x):
    "What the graph of one forward pass holds besides `x` and the parameters: each storage once."
    kept, known = {}, {t.untyped_storage().data_ptr() for t in (x, *layer.parameters())}

    def keep(t):
        if t.is_mkldnn: kept[id(t)] = t.nelement() * t.element_size()
        elif t.untyped_storage().data_ptr() not in known:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t): y = layer(x)
    del y
    return sum(kept.values())


def seconds(job, layer, x, pull):
    wait = torch.cuda.synchronize if x.is_cuda else lambda: None
    wait()
    start = perf_counter()
    job(layer, x, pull)
    wait()
    return perf_counter() - start


def measure(made, x, pull, repeats):
    "Median seconds by the name of the pass, for each layer; the first turn is not timed."
    turns = [{name: [seconds(job, layer, x, g) for layer, g in zip(made, pull)]
              for name, job in PASSES.items()} for _ in range(repeats + 1)]
    return {name: Layers(*(statistics.median(each) for each in zip(*(turn[name] for turn in turns[1:]))))
            for name in PASSES}


PARTS = {"product": ("mkldnn_linear", "addmm", "mm", "linear"),
         "layout of oneDNN": ("to_mkldnn", "_to_dense"),
         "gather": ("index_select",), "scatter": ("scatter", "index_copy", "index_add"),
         "router": ("convolution", "conv2d", "softmax", "argmax", "sort", "one_hot", "bincount"),
         "copies, sums": ("copy_", "fill_", "zero_", "cat", "add", "mul", "sum", "empty", "clone")}


def shares(layer, x, pull, turns=3):
    "Seconds of forward + backward by the part of the work, and their share: a profile."
    both(layer, x, pull)
    with torch.profiler.profile() as seen:
        for _ in range(turns): both(layer, x, pull)
    spent = dict.fromkeys([*PARTS, "rest"], 0.0)
    for event in seen.key_averages():
        name = event.key.removeprefix("aten::")
        part = next((part for part, names in PARTS.items() if name.startswith(names)), "rest")
        spent[part] += event.self_cpu_time_total / 1e6 / turns
    return {part: (each, each / sum(spent.values())) for part, each in spent.items()}


def show(routing, experts, device, args):
    made, x = layers(experts, args.channels, args.kernel, device), feature_map(routing, args.channels,
                                                                               args.size, device)
    pull, same = pulls(made, x), alike(made.sparse.routing(x))
    away, (dense, sparse) = compare(made, x, pull), [saved_bytes(layer, x) / 1e6
                                                     for layer in (made.dense, made.sparse)]
    for name, times in measure(made, x, pull, args.repeats).items():
        ratios = (times.dense / times.plain, times.sparse / times.plain, times.dense / times.sparse)
        print(f"{routing:7}{same:6.0%}{experts:8}  {name:18}" + "".join(f"{1e3 * each:9.2f}"
                                                                        for each in times)
              + "".join(f"{each:12.2f} x" for each in ratios) + f"{dense:10.1f}{sparse:9.1f}{away:9.0e}",
              flush=True)
    return ratios[1]


def judge(device, args, threads, ratio):
    "Whether the last mixture of `table` keeps the bar; where it does not, where its time goes."
    what = f"gathered top-1 over one expert, forward + backward, threads {threads}"
    if bar(what, ratio, at_most=1.3): return
    made = layers(args.experts[-1], args.channels, args.kernel, device)
    x = feature_map("random", args.channels, args.size, device)
    pull = pulls(made, x)
    (plain, _), *_ = sorted(shares(made.plain, x, pull.plain).values(), reverse=True)
    print(f"where its time goes, against {1e3 * plain:.1f} ms of the plain convolution:")
    for part, (each, share) in shares(made.sparse, x, pull.sparse).items():
        print(f"  {part:17}{1e3 * each:8.2f} ms{share:7.1%}{each / plain:8.2f} x plain")


def table(device, args):
    print(f"{'routing':7}{'alike':>6}{'experts':>8}  "
          f"{'pass':18}{'plain ms':>9}{'dense ms':>9}{'sparse ms':>10}"
          f"{'dense/plain':>13}{'sparse/plain':>14}{'dense/sparse':>14}"
          f"{'dense MB':>10}{'sparse':>9}{'gap':>9}")
    for routing in ROUTINGS:
        for experts in args.experts: ratio = show(routing, experts, device, args)
    return ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("experts", [1, 2, 4, 8]), ("threads", sorted({1, os.cpu_count()}))):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=default)
    parser.add_argument("--size", type=int, nargs=2, default=[45, 80])
    for name, default in (("repeats", 5), ("channels", 256), ("kernel", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    print(f"torch {torch.__version__}; {args.kernel}x{args.kernel} convolutions, {args.channels} channels, "
          f"{args.size[0]}x{args.size[1]} pixels; "
          f"median of {args.repeats}")
    for threads in args.threads:
        torch.set_num_threads(threads)
        print(f"\nCPU, {os.cpu_count()} cores, threads {threads}")
        judge("cpu", args, threads, table("cpu", args))
    if torch.cuda.is_available():
        print(f"\n{torch.cuda.get_device_name()}")
        table("cuda", args)


if __name__ == "__main__": main()
