"""All pairs of squared 2-Wasserstein distances between 50 task Gaussians of dimension 128: ours against a
loop over POT's function.

    python bench/wasserstein.py [--tasks 50] [--dim 128] [--rank 16] [--repeats 5] [--threads all cores]

Covariances are those of samples from more samples than dimensions (2 per dimension), of low-rank-plus-noise
structure: 12 axes of standard deviation about 11 and noise of 0.5 on every axis, different axes per task. The
loop calls POT's `bures_wasserstein_distance` on numpy and on torch tensors, and squares. Jobs alternate in
the same run; prints medians, ratios, errors against float64 singular values of Cholesky factors. Where there
is a GPU, ours runs there once more.
"""
import argparse
import os
import statistics
from functools import partial
from time import perf_counter

import torch
from ot.gaussian import bures_wasserstein_distance

from bar import bar
from fedbook.methods.wasserstein import low_rank_factors, pairwise_wasserstein2, pairwise_wasserstein2_factors


def gaussians(tasks, dim, axes=12, noise=0.5):
    "Means (T, d) and sample covariances (T, d, d), float64."
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = normal(tasks, 2 * dim, axes) @ normal(tasks, axes, dim) + noise * normal(tasks, 2 * dim, dim)
    x = x - x.mean(1, keepdim=True)
    return normal(tasks, dim), x.mT @ x / x.shape[1]


def pot_loop(means, covs):
    "What one would write with POT: the pairs i < j in two loops."
    return [bures_wasserstein_distance(means[i], means[j], covs[i], covs[j]) ** 2
            for i in range(len(means)) for j in range(i + 1, len(means))]


def low_rank(rank, means, covs): return pairwise_wasserstein2_factors(means, low_rank_factors(covs, rank))


def reference(means, covs):
    "Distances (pairs,) by singular values of L_i^T L_j, Cholesky factors, float64."
    i, j = torch.triu_indices(len(means), len(means), 1)
    root, trace = torch.linalg.cholesky(covs), covs.diagonal(dim1=1, dim2=2).sum(-1)
    return ((means[i] - means[j]).square().sum(-1) + trace[i] + trace[j] - 2
            * torch.linalg.svdvals(root[i].mT @ root[j]).sum(-1))


def upper(square): return square[tuple(torch.triu_indices(len(square), len(square), 1))]


def with_gradient(distances, means, covs):
    covs = covs.clone().requires_grad_()
    answer = distances(means, covs)
    (torch.stack(answer).sum() if isinstance(answer, list) else upper(answer).sum()).backward()
    return covs.grad


def seconds(job):
    start = perf_counter()
    answer = job()
    if torch.cuda.is_available(): torch.cuda.synchronize()
    return perf_counter() - start, answer


def alternate(jobs, repeats):
    "Seconds per job, a list of `repeats` each, one warm-up before, and the last answers."
    times, answers = {what: [] for what in jobs}, {}
    for what, job in jobs.items(): job()
    for _ in range(repeats):
        for what, job in jobs.items():
            took, answers[what] = seconds(job)
            times[what].append(took)
    return times, answers


def ratio(times, slow, fast):
    each = [a / b for a, b in zip(times[slow], times[fast])]
    return f"{statistics.median(each):.1f} x ({min(each):.1f} to {max(each):.1f})"


def middle(times, slow, fast): return statistics.median(a / b for a, b in zip(times[slow], times[fast]))


def error(value, wanted): return ((value - wanted).abs() / wanted.abs()).max().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tasks", 50), ("dim", 128), ("rank", 16), ("repeats", 5),
                          ("threads", os.cpu_count())):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    means, covs = gaussians(args.tasks, args.dim)
    forms = {"exact": pairwise_wasserstein2, "low rank": partial(low_rank, args.rank)}
    jobs = {"POT loop, numpy": lambda: pot_loop(means.numpy(), covs.numpy()),
            "POT loop, torch": lambda: pot_loop(means, covs),
            **{what: partial(form, means, covs) for what, form in forms.items()},
            **{f"{what}, gradient": partial(with_gradient, form, means, covs)
               for what, form in {"POT loop": pot_loop, **forms}.items()}}
    print(f"{args.tasks} Gaussians, dimension {args.dim}, {args.tasks * (args.tasks - 1) // 2} pairs, low "
          f"rank {args.rank}; torch {torch.__version__}, " f"{args.threads} threads, {os.cpu_count()} cores")

    torch.set_num_threads(args.threads)
    times, answers = alternate(jobs, args.repeats)
    for what, each in times.items():
        print(f"{what:20s} {statistics.median(each):7.3f} s (median of {args.repeats}, {min(each):.3f} to "
              f"{max(each):.3f})")
    wanted = reference(means, covs)
    exact, near = upper(answers["exact"]), upper(answers["low rank"])
    bend = answers["POT loop, gradient"]
    print(f"exact: {ratio(times, 'POT loop, numpy', 'exact')} the loop on numpy (goal 8), "
          f"{ratio(times, 'POT loop, torch', 'exact')} the loop on torch; "
          f"relative error at most {error(exact, wanted):.1e}, POT's "
          f"{error(torch.tensor(answers['POT loop, numpy']), wanted):.1e}")
    print(f"low rank {args.rank}: {ratio(times, 'POT loop, numpy', 'low rank')} the loop on numpy, "
          f"{ratio(times, 'POT loop, torch', 'low rank')} the loop "
          f"on torch; relative error at most {error(near, wanted):.1%}, median "
          f"{((near - wanted).abs() / wanted).median():.1%}")
    print(f"with gradient: exact {ratio(times, 'POT loop, gradient', 'exact, gradient')}, low rank "
          f"{ratio(times, 'POT loop, gradient', 'low rank, gradient')} the loop "
          "on torch; exact gradient against POT's: "
          f"{(answers['exact, gradient'] - bend).norm() / bend.norm():.1e} of its norm")
    bar("exact as fast as POT's loop on numpy", middle(times, "POT loop, numpy", "exact"), at_least=4)
    bar("exact, relative error", error(exact, wanted), at_most=1e-10, unit="")
    bar("low rank as fast as POT's loop on numpy", middle(times, "POT loop, numpy", "low rank"), at_least=20)
    if not torch.cuda.is_available(): return

    there = [x.cuda() for x in (means, covs)]
    on_gpu = {what: partial(form, *there) for what, form in forms.items()}
    on_gpu |= {f"{what}, gradient": partial(with_gradient, form, *there) for what, form in forms.items()}
    for what, (each, answer) in {what: (t, a)
                                 for what, t, a in zip(on_gpu,
                                                       *(d.values()
                                                         for d in alternate(on_gpu, args.repeats)))}.items():
        gap = (answer.cpu() - answers[what]).norm() / answers[what].norm()
        print(f"{torch.cuda.get_device_name()}, {what:20s} {statistics.median(each):.3f} s; differs from the "
              f"CPU's by {gap:.1e} of its norm")
    print(f"peak on the GPU: {torch.cuda.max_memory_allocated() / 2**20:.0f} MB")


if __name__ == "__main__": main()
