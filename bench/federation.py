"""FedAvg on Fashion-MNIST: our engine with one and two workers against a bare hand-written loop, and two of these side by side, in the same run, alternating.

    python bench/federation.py [--rounds 20] [--repeats 5]

100 clients, Dirichlet 0.5, 10 a round, batch 32, 1 epoch, a CNN of two 5x5 convolutions (16 and 32 channels) and two linear layers (128 and 10), on
60,000 pictures: the full set where it is at hand, else the shipped subset tiled. One torch thread each. Prints medians, ratios and peak memory.
"""
import argparse
import math
import multiprocessing
import os
import resource
import statistics
from time import perf_counter

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""   # all engines compute on the CPU, and workers cannot be forked beside a GPU

import numpy as np
import torch
import torch.nn.functional as F

from fedbook.engine.workers import transport_for
from fedbook.engine.federation import Client, Federation, Server, run
from fedbook.engine.local import build, predict, small_cnn
from fedbook.methods.score import accuracy
from fedbook.datasets.split import dirichlet
from fedbook.engine.local import as_float
from fedbook.datasets.world import fashion_mnist_small, inventory
from fedbook.datasets.folders import fashion_mnist

CLIENTS, PER_ROUND, BATCH, LR = 100, 10, 32, 0.1


def sixty_thousand():
    at_hand = {row["name"] for row in inventory() if row["state"] == "found"}
    train, name = (fashion_mnist("train"), "full Fashion-MNIST") if "fashion_mnist" in at_hand else (fashion_mnist_small("train"), "shipped subset, tiled")
    x, y = train.tensors()
    times = math.ceil(60_000 / len(y))
    return x.repeat(times, 1, 1, 1)[:60_000].contiguous(), y.repeat(times)[:60_000].contiguous(), name


def bare(x, y, parts, rounds):
    "What one would write by hand, without messages, byte counts, checks or states."
    model = build(small_cnn, 0)
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    shuffle = torch.Generator().manual_seed(0)
    held = {}
    for r in range(rounds):
        chosen = sorted(np.random.default_rng([0, r]).choice(CLIENTS, PER_ROUND, replace=False).tolist())
        total, n = {k: torch.zeros_like(v) for k, v in weights.items()}, 0
        for id in chosen:
            if id not in held: held[id] = x[parts[id]], y[parts[id]]
            own_x, own_y = held[id]
            model.load_state_dict(weights)
            optimiser = torch.optim.SGD(model.parameters(), lr=LR)
            for i in torch.randperm(len(own_y), generator=shuffle).split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(model(as_float(own_x[i])), own_y[i]).backward()
                optimiser.step()
            for k, v in model.state_dict().items(): total[k].add_(v, alpha=len(own_y))
            n += len(own_y)
        weights = {k: v / n for k, v in total.items()}
    return weights


def engine(x, y, parts, rounds, workers, clients=CLIENTS, per_round=PER_ROUND):
    model = build(small_cnn, 0)
    make_client = lambda id: Client(id, model, x[parts[id % CLIENTS]], y[parts[id % CLIENTS]], seed=0, batch=BATCH, lr=LR)
    server = Server(model, per_round, seed=0)
    with Federation(transport_for(make_client, workers), clients) as federation: run(server, federation, rounds)
    return server.weights


def two_bare(x, y, parts, rounds):
    "Two bare loops side by side in processes of their own: what the two cores allow, with nothing exchanged."
    processes = [multiprocessing.get_context("fork").Process(target=bare, args=(x, y, parts, rounds))
                 for _ in range(2)]
    for process in processes: process.start()
    for process in processes: process.join()


def peak_megabytes(job):
    "Peak resident memory of a fresh process that runs `job`, and of the largest of its workers."
    def child(pipe):
        job()
        pipe.send([resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)])

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
    process.start()
    peaks = ours.recv()
    process.join()
    return peaks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    x, y, name = sixty_thousand()
    parts = dirichlet(y, CLIENTS, 0.5, seed=0)
    jobs = {"bare loop": lambda rounds=args.rounds: bare(x, y, parts, rounds),
            "engine, 1 worker": lambda rounds=args.rounds: engine(x, y, parts, rounds, 1),
            "engine, 2 workers": lambda rounds=args.rounds: engine(x, y, parts, rounds, 2),
            "two bare loops": lambda rounds=args.rounds: two_bare(x, y, parts, rounds)}
    print(f"{name}: {len(y):,} pictures, {CLIENTS} clients, {PER_ROUND} a round, {args.rounds} rounds; torch {torch.__version__}, {os.cpu_count()} cores")

    for job in jobs.values(): job(rounds=1)
    seconds = {what: [] for what in jobs}
    final = {}
    for _ in range(args.repeats):
        for what, job in jobs.items():
            start = perf_counter()
            final[what] = job()
            seconds[what].append(perf_counter() - start)
    for what, times in seconds.items():
        if what == "two bare loops": times = [t / 2 for t in times]
        ratios = [b / t for b, t in zip(seconds["bare loop"], times)]
        print(f"{what:18s} {statistics.median(times) / args.rounds:.3f} s a round (median of {args.repeats}), throughput {statistics.median(ratios):.2f} x the bare loop "
              f"({min(ratios):.2f} to {max(ratios):.2f})")
    over = [e / b - 1 for e, b in zip(seconds["engine, 1 worker"], seconds["bare loop"])]
    pair = [a / b for a, b in zip(seconds["engine, 1 worker"], seconds["engine, 2 workers"])]
    reached = [two / 2 / ours for two, ours in zip(seconds["two bare loops"], seconds["engine, 2 workers"])]
    print(f"two workers reach {statistics.median(reached):.0%} of two bare loops side by side (goal 97 %)")
    print(f"overhead with one worker: {statistics.median(over):+.1%} (bound +3%); two workers against one: {statistics.median(pair):.2f} x (bound 1.4, goal 1.7)")
    same = all(torch.equal(final["engine, 1 worker"][k], final["engine, 2 workers"][k]) for k in final["bare loop"])
    final.pop("two bare loops")
    test = fashion_mnist_small("test")
    scores = {what: accuracy(predict(build(small_cnn, 0), weights, test.images), test.labels) for what, weights in final.items()}
    print(f"one and two workers end with the same bits: {same}; accuracy after {args.rounds} rounds: " + ", ".join(f"{what} {score:.1%}" for what, score in scores.items()))

    jobs.pop("two bare loops")
    for what, job in jobs.items():
        own, worker = peak_megabytes(lambda: job(rounds=2))
        print(f"peak memory, {what}: {own:.0f} MB" + (f", largest worker {worker:.0f} MB (shared pages included)" if worker else ""))
    few = peak_megabytes(lambda: engine(x, y, parts, 2, 1))[0]
    many = peak_megabytes(lambda: engine(x, y, parts, 2, 1, clients=CLIENTS + 1000))[0]
    replies = peak_megabytes(lambda: engine(x, y, parts, 1, 1, per_round=100))[0]
    print(f"1,000 idle clients more: {many - few:+.1f} MB (bound +10); 100 replies a round instead of 10: {replies - few:+.1f} MB, their data included")


if __name__ == "__main__": main()
