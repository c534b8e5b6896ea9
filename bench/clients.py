"""What the number of clients and of messages costs: seconds a reply, and memory, of the serial engine.

    python bench/clients.py [--rounds 20] [--repeats 5] [--most 100000]

Three tables. Rounds in which 10 clients take part, of 10, 100, ... clients; rounds in which 10, 100 and 1,000 of
1,000 take part; and a ledger that counts 10,000, 100,000 and 300,000 messages. The clients train one step of a
linear layer on 8 tiny pictures, so that what shows is the engine; one row trains the small CNN on 100 pictures
each instead. The rows alternate, and a ratio is taken within each repeat. Seconds are those of
the processor, all work of one thread, so that other programs disturb less. They are told apart by replies of
clients that took part before and of those that were made for this reply, since making one is not the engine's.
Memory is what Python and numpy hold at the end of a run, and at most (tracemalloc); beside it, what the clients'
own packed states take. The bound on the rest is 1 MB, 20 kB for each of at most 1,000 clients on the pool, and
40 bytes for each client's number. The last lines say whether the bounds are kept.
"""
import argparse
import math
import os
import statistics
import tracemalloc
from time import process_time
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from torch import nn

from fedbook.engine.federation import Client, Federation, InProcess, Server, run
from fedbook.engine.local import build, small_cnn
from fedbook.engine.wire import Ledger, Msg, pack

TIME = 1.10                 # bound: seconds a reply against the first row
PLACE, NUMBER = 20e3, 40    # bounds: bytes beside the states, for a client on the pool and for a client's number


class Row(NamedTuple):
    "A federation: so many `clients`, so many `asked` a round, and whether they train for `real`."
    clients: int
    asked: int
    real: bool = False

    def __str__(self):
        return f"{self.asked:,} of {self.clients:,}" + (", small CNN" if self.real else "")


def linear(): return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


class Stopwatch(InProcess):
    "A line that notes the seconds of each reply, engine and all, by whether the client took part before."

    def __init__(self, make_client):
        super().__init__(make_client)
        self.seconds = {"again": [], "first": []}

    def serve(self, calls):
        start = process_time()
        for call, outcome in super().serve(calls):
            yield call, outcome
            now = process_time()
            self.seconds["first" if call.state is None else "again"].append(now - start)
            start = now


def federation(row, rounds):
    "Run `row` for `rounds` rounds; answers the line and the federation."
    model = build(small_cnn if row.real else linear, 0)
    size, count = (28, 100) if row.real else (4, 8)
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 1, size, size), dtype=torch.uint8, generator=draw)
    y = torch.arange(count) % 4
    line = Stopwatch(lambda id: Client(id, model, x, y, seed=0, batch=32))
    here = Federation(line, row.clients)
    run(Server(model, row.asked), here, rounds)
    return line, here


def measured(row, rounds):
    "Microseconds a reply of `row`: over all of the run, and the median of those `again` and `first`."
    start = process_time()
    line, _ = federation(row, rounds)
    whole = (process_time() - start) / (rounds * row.asked)
    seconds = {kind: statistics.median(each) if each else float("nan") for kind, each in line.seconds.items()}
    return {kind: 1e6 * each for kind, each in {"all": whole, **seconds}.items()}


def held(row, rounds):
    "Bytes that a run of `row` holds at its end: in all, and of these the clients' packed states; and the peak."
    tracemalloc.start()
    line, here = federation(row, rounds)
    size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size, sum(map(len, here.states.values())), peak


def rounds_for(row, rounds):
    "So many rounds that every row has about as many replies, and at least two."
    return max(2, rounds * 10 // row.asked)


def show_rows(rows, rounds, repeats):
    """Print the table of `rows`, each against the first of them; answers the worst ratio of seconds, and the
    worst share of the memory bound."""
    for row in rows: federation(row, 1)
    times = {row: [] for row in rows}
    for _ in range(repeats):
        for row in rows: times[row].append(measured(row, rounds_for(row, rounds)))
    print(f"\n{'who takes part':26s} {'rounds/s':>9s} {'us a reply':>10s} {'again':>7s} {'first':>7s} {'ratio':>6s} "
          f"{'MB held':>8s} {'states':>7s} {'rest':>7s} {'peak':>7s}")
    worst, full, base = 0.0, 0.0, rows[0]
    for row in rows:
        many = rounds_for(row, rounds)
        mid = {kind: statistics.median(each[kind] for each in times[row]) for kind in ("all", "again", "first")}
        known = "first" if math.isnan(mid["again"]) else "again"
        ratio = statistics.median(a[known] / b[known] for a, b in zip(times[row], times[base]))
        size, states, peak = held(row, many)
        rest = size - states
        worst = max(worst, ratio)
        full = max(full, rest / (1e6 + PLACE * min(1000, many * row.asked) + NUMBER * row.clients))
        print(f"{row!s:26s} {1e6 / mid['all'] / row.asked:9.1f} {mid['all']:10.0f} {mid['again']:7.0f} "
              f"{mid['first']:7.0f} {ratio:6.2f} {size / 1e6:8.2f} {states / 1e6:7.2f} {rest / 1e6:7.2f} "
              f"{peak / 1e6:7.2f}")
    return worst, full


def show_ledger(counts, bound=100_000):
    "Print what a ledger holds after so many messages as `counts` says, all with one layout and with many."
    print(f"\n{'messages':>10s} {'layouts':>9s} {'us a message':>13s} {'MB held':>8s} {'MB of JSON':>11s}")
    sizes = {}
    for many in (False, True):
        data = [pack(Msg({"w": torch.ones(n + 1)})) for n in range(97 if many else 1)]
        for count in counts:
            tracemalloc.start()
            ledger = Ledger(bound)
            for i in range(count): ledger.record(i // 2000, "up", i % 1000, "fit", data[i % len(data)])
            sizes[many, count], _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            if ledger.messages() != count: raise SystemExit(f"{ledger.messages()} of {count} messages are counted")
            start, timed = process_time(), Ledger(bound)
            for i in range(count): timed.record(i // 2000, "up", i % 1000, "fit", data[i % len(data)])
            print(f"{count:10,d} {len(data):9,d} {(process_time() - start) / count * 1e6:13.1f} "
                  f"{sizes[many, count] / 1e6:8.2f} {len(ledger.to_json()) / 1e6:11.2f}")
    return max(sizes[many, max(counts)] / sizes[many, sorted(counts)[-2]] for many in (False, True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=int, default=100_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, medians of {args.repeats}")
    clients = [n for n in (10, 100, 1_000, 10_000, 100_000) if n <= args.most]
    idle, full = show_rows([Row(n, 10) for n in clients], args.rounds, args.repeats)
    show_rows([Row(clients[0], 10, True), Row(clients[-1], 10, True)], args.rounds // 4, args.repeats)
    busy, more = show_rows([Row(1000, n) for n in (10, 100, 1000)], 5 * args.rounds, args.repeats)
    grown = show_ledger([10_000, 100_000, 300_000])
    for what, value, bound in (("seconds a reply, 10 take part", idle, TIME),
                               ("seconds a reply, of 1,000 clients", busy, TIME),
                               ("memory beside the states, of its bound", max(full, more), 1.0),
                               ("ledger, 300,000 against 100,000 messages", grown, 1.1)):
        print(f"{what}: {value:.2f} (bound {bound:.2f}) {'kept' if value <= bound else 'NOT KEPT'}")


if __name__ == "__main__": main()
