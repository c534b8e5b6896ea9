"""What a round of the same size costs in ever larger crowds, with states on disk: ratios of time and memory.

    python bench/scale.py [--asked 100] [--clients 1000 10000 100000] [--repeats 5] [--rounds 3]

A round of FedAvg asks `--asked` of so many clients; each is made anew, trains an epoch of the small CNN on 20
pictures, and its private state goes to disk. Each measurement is a process of its own, and the crowds take
turns, so that what else the machine does strikes all alike. Seconds are those of the processor. Memory is twice
looked at: the most that Python and numpy held in a round beyond what they held before it, and what the process
had resident at most. Ratios are against the first crowd, within each turn. The last lines say whether the bounds
are kept: 1.1 times the seconds, and 1.1 times the memory.
"""
import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch

from fedbook.deploy.scale import CrowdExperiment, CrowdSizes, crowd_round
from bar import bar


def row(clients, asked, rounds):
    "Seconds of a round, bytes held in it, and bytes resident at most."
    torch.set_num_threads(1)
    experiment = CrowdExperiment(CrowdSizes(clients=clients, per_round=asked))
    with tempfile.TemporaryDirectory() as folder: seconds, held = crowd_round(experiment, folder, rounds)
    return seconds, held, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measured(clients, asked, rounds):
    "`row` in a process of its own."
    words = [sys.executable, __file__, "--asked", str(asked), "--rounds", str(rounds), "--row", str(clients)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return tuple(map(float, done.stdout.split()))


def show(crowds, asked, rounds, repeats):
    "Print the table; answers the worst median ratios against the first crowd: seconds, held, resident."
    turns = [[measured(clients, asked, rounds) for clients in crowds] for _ in range(repeats)]
    print(f"{'clients':>9s} {'s a round':>10s} {'ratio':>6s} {'MB held':>8s} {'ratio':>6s} {'MB resident':>12s} "
          f"{'ratio':>6s}")
    worst = [0.0] * 3
    for place, clients in enumerate(crowds):
        middle = [statistics.median(turn[place][i] for turn in turns) for i in range(3)]
        ratios = [statistics.median(turn[place][i] / turn[0][i] for turn in turns) for i in range(3)]
        worst = [max(pair) for pair in zip(worst, ratios)]
        print(f"{clients:9,d} {middle[0]:10.3f} {ratios[0]:6.2f} {middle[1] / 1e6:8.2f} {ratios[1]:6.2f} "
              f"{middle[2] / 1e6:12.0f} {ratios[2]:6.2f}", flush=True)
    return worst


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--asked", type=int, default=100)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row: return print(*row(args.row, args.asked, args.rounds))
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {args.asked} clients a round, medians of "
          f"{args.repeats}")
    seconds, held, resident = show(args.clients, args.asked, args.rounds, args.repeats)
    what = f"{max(args.clients):,} clients against {min(args.clients):,}"
    bar(f"seconds of a round, {what}", seconds, at_most=1.1)
    bar(f"memory of a round, {what}", max(held, resident), at_most=1.1)


if __name__ == "__main__": main()
