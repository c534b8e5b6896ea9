"""What a pruned ResNet-50 costs on the wire and how fast it is packed, and how fast SAS averages eight of
them.

    python bench/sparse_wire.py [--sparsities 0 0.35 0.7] [--clients 8] [--repeats 3] [--positions 20000]
                                [--threads N]

The network is the re-identification one, without a classifier, at random weights (their bits deflate about
as badly as trained ones'), pruned by magnitude. Ways: the dense tensors in one safetensors file, the unit
of all shares and speeds; `pack` of the dense tensors, which looks for zeros itself; `pack` of the kept
values alone, the mask being known, and with the mask aboard; scipy's CSR of each weight matrix (out, rest),
float32 values with int32 indices; zlib's deflate of the dense file. Ways alternate in the same run, every
answer is checked bit for bit; medians, deflate timed once. MB are millions of bytes, MB/s are those of the
dense file, whatever the way makes of it.

SAS: `sparse_average` of clients that kept from all to 30 % of their weights, against a stack of all clients
in float64, tensor by tensor, and against a Python loop over positions, timed on `--positions` of them and
scaled up to all.
"""
import argparse
import os
import statistics
import zlib
from functools import partial
from time import perf_counter
from typing import Callable, NamedTuple

import numpy as np
import torch
from safetensors.torch import load, save
from scipy.sparse import csr_array

from bar import bar
from fedbook.engine.wire import Msg, labelled, pack, part, unpack
from fedbook.engine.local import snapshot
from fedbook.engine.local import build, generator
from fedbook.methods.pruning import (compress, magnitude_prune, masked, prunable, pruning_ratio, restore,
                                     sparse_average)
from fedbook.methods.reid import resnet


class Way(NamedTuple):
    "`pack()` makes bytes, `unpack(bytes)` the whole state; `slow` ones are timed once."
    name: str
    pack: Callable
    unpack: Callable
    slow: bool = False


def to_csr(state):
    "One safetensors file: three vectors for each weight matrix, the rest as it is."
    tensors = dict(state)
    for name in prunable(state):
        matrix = csr_array(tensors.pop(name).flatten(1).numpy())
        for kind in ("data", "indices", "indptr"):
            tensors[f"{name}/{kind}"] = torch.from_numpy(getattr(matrix, kind))
    return save(tensors)


def from_csr(data, shapes):
    "Undo `to_csr`; `shapes`: name to shape of each weight matrix, which the receiver knows."
    tensors = load(data)
    for name, shape in shapes.items():
        three = [tensors.pop(f"{name}/{kind}").numpy() for kind in ("data", "indices", "indptr")]
        tensors[name] = torch.from_numpy(csr_array(tuple(three),
                                                   shape=(shape[0], shape[1:].numel())).toarray()).view(shape)
    return tensors


def with_mask(state, mask): return Msg({**compress(state, mask), **labelled(mask, "mask")})


def from_msg(msg):
    "Undo `with_mask`."
    return restore({name: t for name, t in msg.tensors.items() if not name.startswith("mask/")},
                   part(msg.tensors, "mask"))


def ways(state, mask):
    "All ways to send `state`, whose numbers are 0 where `mask` is False."
    shapes = {name: state[name].shape for name in prunable(state)}
    yield Way("dense, safetensors", lambda: save(state), load)
    yield Way("dense, pack", lambda: pack(Msg(state)), lambda data: unpack(data).tensors)
    yield Way("kept values, pack", lambda: pack(Msg(compress(state, mask))),
              lambda data: restore(unpack(data).tensors, mask))
    yield Way("kept values and mask, pack", lambda: pack(with_mask(state, mask)),
              lambda data: from_msg(unpack(data)))
    yield Way("scipy CSR", lambda: to_csr(state), partial(from_csr, shapes=shapes))
    for level in (1, 6):
        yield Way(f"deflate, level {level}", partial(deflate, state, level),
                  lambda data: load(zlib.decompress(data)), slow=True)


def deflate(state, level): return zlib.compress(save(state), level)


def identical(a, b):
    "The same names, and the same dtype, shape and bits under each."
    same = lambda s, t: (s.dtype, s.shape, s.numpy().tobytes()) == (t.dtype, t.shape, t.numpy().tobytes())
    return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)


def seconds(job, *args):
    start = perf_counter()
    answer = job(*args)
    return perf_counter() - start, answer


def there_and_back(way, state):
    "(bytes, seconds to pack, seconds to unpack). Stops everything where `state` does not come back."
    packing, data = seconds(way.pack)
    unpacking, got = seconds(way.unpack, data)
    if not identical(got, state): raise SystemExit(f"{way.name}: the state does not come back bit for bit")
    return len(data), packing, unpacking


def measure(state, mask, repeats):
    "Medians of `there_and_back` by the name of the way."
    tried = {}
    for turn in range(repeats):
        for way in ways(state, mask):
            if turn == 0 or not way.slow: tried.setdefault(way.name, []).append(there_and_back(way, state))
    return {name: [statistics.median(each) for each in zip(*rows)] for name, rows in tried.items()}


def show_wire(whole, sparsities, repeats):
    print(f"{'sparsity':>8}  {'way':27}{'MB':>8}{'of dense':>10}{'pack MB/s':>11}{'unpack MB/s':>13}")
    for sparsity in sparsities:
        mask = magnitude_prune(whole, {}, sparsity, sparsity)
        rows = measure(masked(whole, mask), mask, repeats)
        dense = rows["dense, safetensors"][0]
        for name, (size, *times) in rows.items():
            packing, unpacking = (dense / 1e6 / each for each in times)
            print(f"{pruning_ratio(mask):8.1%}  {name:27}{size / 1e6:8.2f}{size / dense:10.1%}{packing:11.0f}"
                  f"{unpacking:13.0f}")
        ours = rows["kept values and mask, pack"]
        shares = (f"{ours[0] / rows[name][0]:.1%} of {name}"
                  for name in ("dense, safetensors", "scipy CSR", "deflate, level 6"))
        print(f"          kept values and mask: {'; '.join(shares)}", flush=True)
        bar(f"bytes of kept values and mask over scipy CSR's at {pruning_ratio(mask):.0%}",
            ours[0] / rows["scipy CSR"][0], at_most=1)


def federation(whole, count):
    "Models, masks and weights of `count` clients; the first kept everything, the last 30 %."
    g, states, masks = generator(1), [], []
    noise = lambda t: t + 0.01 * torch.randn(t.shape, generator=g) if t.is_floating_point() else t
    for share in np.linspace(1, 0.3, count):
        masks.append({name: torch.rand(whole[name].shape, generator=g) < share for name in prunable(whole)})
        states.append(masked({name: noise(t) for name, t in whole.items()}, masks[-1]))
    return states, masks, torch.rand(count, generator=g, dtype=torch.float64).tolist()


def by_stack(states, masks, weights):
    "What one would write: for each tensor sums over a stack of all clients, in float64."
    mean, weights = {}, torch.tensor(weights, dtype=torch.float64)
    for name, first in states[0].items():
        value = torch.stack([state[name] for state in states]).double()
        kept = torch.stack([mask.get(name, torch.ones_like(first)) for mask in masks]).double()
        kept *= weights.view(-1, *[1] * first.dim())
        total, weight = (kept * value).sum(0), kept.sum(0)
        mean[name] = torch.where(weight > 0, total / weight, 0).to(first.dtype)
    return mean


def by_position(values, masks, weights):
    "The same for lists of numbers, one position after the other."
    mean = []
    for j in range(len(values[0])):
        total = weight = 0.0
        for value, mask, share in zip(values, masks, weights):
            if mask[j]: total, weight = total + share * value[j], weight + share
        mean.append(total / weight if weight else 0.0)
    return mean


def slices(states, masks, name, positions):
    "The first `positions` numbers of tensor `name` and of its masks, as lists, and not timed."
    return [[each[name].flatten()[:positions].tolist() for each in many] for many in (states, masks)]


def gap(a, b): return max((a[name].double() - b[name].double()).abs().max().item() for name in a)


def ratio(slow, fast):
    each = [a / b for a, b in zip(slow, fast)]
    return f"{statistics.median(each):.1f} x ({min(each):.1f} to {max(each):.1f})"


def show_average(whole, clients, repeats, positions):
    states, masks, weights = federation(whole, clients)
    name, count = max(prunable(whole), key=lambda name: whole[name].numel()), sum(t.numel()
                                                                                  for t in whole.values())
    values, kept = slices(states, masks, name, positions)
    ours, stack, loop = [], [], []
    for _ in range(repeats):
        (a, mean), (b, wanted) = (seconds(job, states, masks, weights) for job in (sparse_average, by_stack))
        c, numbers = seconds(by_position, values, kept, weights)
        away = max(gap(mean, wanted),
                   gap({"": mean[name].flatten()[:positions]}, {"": torch.tensor(numbers)}))
        if not away <= 1e-6: raise SystemExit(f"averages differ by {away:.1e}")
        for times, each in ((ours, a), (stack, b), (loop, c * count / len(numbers))): times.append(each)
    print(f"\nSAS over {clients} clients of {count:,} numbers: sparse_average "
          f"{statistics.median(ours):.3f} s, a stack per tensor {statistics.median(stack):.3f} s, "
          f"a loop over positions {statistics.median(loop):.1f} s (scaled up from {len(numbers):,})")
    print(f"sparse_average is {ratio(stack, ours)} as fast as the stack, "
          f"{ratio(loop, ours)} as fast as the loop; results at most {away:.1e} apart")
    bar("sparse_average as fast as the stack", statistics.median(a / b for a, b in zip(stack, ours)),
        at_least=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sparsities", type=float, nargs="+", default=[0, 0.35, 0.7])
    for name, default in (("clients", 8), ("repeats", 3), ("positions", 20_000),
                          ("threads", torch.get_num_threads())):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    whole = snapshot(build(partial(resnet, "resnet50"), 0))
    print(f"ResNet-50, {sum(t.numel() for t in whole.values()):,} numbers; "
          f"torch {torch.__version__}, numpy {np.__version__}, zlib {zlib.ZLIB_RUNTIME_VERSION}; "
          f"{args.threads} threads, {os.cpu_count()} cores; median of {args.repeats}", flush=True)
    show_wire(whole, args.sparsities, args.repeats)
    show_average(whole, args.clients, args.repeats, args.positions)


if __name__ == "__main__": main()
