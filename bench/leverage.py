"""Leverage scores of 50,000 samples with 512 features: ours against squared row norms of
`numpy.linalg.svd(full_matrices=False)`.

    python bench/leverage.py [--rows 50000] [--columns 512] [--condition 1e4]
                              [--repeats 3] [--threads all cores]

Features are random with singular values from 1 down to 1 / condition, spaced evenly on a logarithmic scale,
in directions of no special kind. Jobs alternate in the same run, with as many threads each; prints medians
and ratios. Errors are the largest relative ones of any score, against numpy's SVD of the same numbers in
float64, cut at the same rank: ours, and what the Gram matrix would have answered without the switch. Peak
memory is that of a fresh process above what it held before the input, input included.
"""
import argparse
import os
import statistics
import subprocess
import sys
from functools import partial
from time import perf_counter

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from bar import bar
from fedbook.methods.leverage import RANK_CUT, leverage_scores, random_orthogonal, whitening


def features(rows, columns, condition, dtype, dead=0):
    """(rows, columns) of this condition number, the last `dead` columns 0; filled 2,048 rows at a time, to
    need no other memory."""
    g = torch.Generator().manual_seed(0)
    alive = columns - dead
    turn = (torch.logspace(0, -np.log10(condition), alive, dtype=torch.float64)[:, None]
            * random_orthogonal(alive, g))
    x = torch.zeros(rows, columns, dtype=dtype)
    for part in x.split(2048):
        part[:, :alive] = torch.randn(len(part), alive, generator=g, dtype=torch.float64) @ turn
    return x


def by_svd(x):
    "What one would write with numpy."
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    return (u[:, s > RANK_CUT * s[0]] ** 2).sum(1)


def by_gram(x):
    "The Gram matrix alone, in float64, cut at the same rank."
    x = x.double()
    values, axes = torch.linalg.eigh(x.mT @ x)
    s = values.clamp_min(0).sqrt()
    kept = s > RANK_CUT * s.max()
    return (x @ (axes[:, kept] / s[kept])).square().sum(1)


def seconds(job, x):
    start = perf_counter()
    job(x)
    return perf_counter() - start


def alternate(jobs, x, repeats):
    "Seconds per job on `x`, a list of `repeats` each, after a warm-up on a tenth of the rows."
    for job in jobs.values(): job(x[:len(x) // 10])
    rounds = [{what: seconds(job, x) for what, job in jobs.items()} for _ in range(repeats)]
    return {what: [each[what] for each in rounds] for what in jobs}


def ratio(slow, fast):
    each = [a / b for a, b in zip(slow, fast)]
    return f"{statistics.median(each):.1f} x ({min(each):.1f} to {max(each):.1f})"


def middle(slow, fast): return statistics.median(a / b for a, b in zip(slow, fast))


def error(value, wanted): return np.abs(np.asarray(value) / wanted - 1).max()


def time_both(args, dtype):
    x = features(args.rows, args.columns, args.condition, dtype)
    jobs = {"numpy svd": lambda x: by_svd(x.numpy()), "ours": leverage_scores,
            "ours, qr": partial(leverage_scores, method="qr")}
    times = alternate(jobs, x, args.repeats)
    for what, each in times.items():
        print(f"{dtype}, {what:9s} {statistics.median(each):7.3f} s (median of {args.repeats}, "
              f"{min(each):.3f} to {max(each):.3f})")
    print(f"{dtype}: ours {ratio(times['numpy svd'], times['ours'])} numpy's SVD (goal 4); by QR, beyond "
          f"the switch, {ratio(times['numpy svd'], times['ours, qr'])}", flush=True)
    bar(f"{dtype}, ours as fast as numpy's SVD", middle(times["numpy svd"], times["ours"]), at_least=2.5)


def show_errors(args, condition, dtype, dead=0):
    x = features(args.rows, args.columns, condition, dtype, dead)
    wanted = by_svd(x.double().numpy())
    w, how = whitening([x])
    what = f"{dtype}, condition {condition:.0e}, {dead} dead features"
    print(f"{what}: {how}, rank {w.shape[1]}, relative error of the Gram matrix alone "
          f"{error(by_gram(x), wanted):.1e}", flush=True)
    bar(f"{what}, relative error", error(leverage_scores(x), wanted), at_most=1e-6, unit="")


def memory(which):
    "This process's memory in bytes, `which` VmRSS (now) or VmHWM (at its peak). Linux only."
    with open("/proc/self/status") as status:
        return 1024 * int(next(line for line in status if line.startswith(which)).split()[1])


def show_peak(rows, columns, condition, dtype):
    "Runs in a process of its own."
    leverage_scores(features(5000, columns, condition, dtype))     # so that libraries hold their buffers
    before, top = memory("VmRSS"), memory("VmHWM")
    x = features(rows, columns, condition, dtype)
    leverage_scores(x)
    peak = memory("VmHWM")
    if peak == top: raise SystemExit("the input is too small to see its memory")
    size = x.numel() * x.element_size()
    bar(f"{dtype}, {whitening([x])[1]}: peak memory over the input of {size / 2**20:.0f} MB",
        (peak - before) / size, at_most=2.5)


def in_fresh_process(args, condition, dtype):
    job = (f"import torch, leverage; torch.set_num_threads({args.threads}); "
           f"leverage.show_peak({args.rows}, {args.columns}, {condition}, {dtype})")
    here = os.path.dirname(os.path.abspath(__file__))
    subprocess.run([sys.executable, "-c", job], check=True, timeout=300,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])})


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 50_000), ("columns", 512), ("condition", 1e4), ("repeats", 3),
                          ("threads", os.cpu_count())):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{args.rows} x {args.columns}, condition {args.condition:.0e}; torch {torch.__version__}, numpy "
          f"{np.__version__}, {args.threads} threads, " f"{os.cpu_count()} cores", flush=True)
    dtypes = torch.float32, torch.float64
    with threadpool_limits(args.threads):
        for dtype in dtypes: time_both(args, dtype)
        for dtype in dtypes: show_errors(args, 1e4, dtype)
        for condition in (1e2, 1e5, 9e5, 1e8): show_errors(args, condition, torch.float64)
        show_errors(args, 1e3, torch.float32, dead=args.columns // 8)
    for condition in (1e3, 1e5):
        for dtype in dtypes: in_fresh_process(args, condition, dtype)


if __name__ == "__main__": main()
