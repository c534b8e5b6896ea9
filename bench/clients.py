"""How the serial engine grows: seconds a reply, and memory, by clients, parameters, messages and rounds.

    python bench/clients.py [--rounds 20] [--repeats 3] [--most 100000]

The first table: rounds in which 10 of 10, 100, ... 100,000 clients take part, with networks of 68 numbers, of
80 k (the small CNN), 2 M and 20 M (layers of linear units; 20 M for few clients only). Clients train one step
on 8 pictures, so that what shows is the engine. The second: 10, 100 and 1,000 of 1,000 clients. Then a ledger
that counts 10,000, 100,000 and 300,000 messages, and a run of 500 rounds.

Rows of one network alternate, and a ratio is taken within each repeat, against its first row. Seconds are
those of the processor, all work of one thread, so that other programs disturb less. They are told apart by
replies of clients that took part before and of those that were made for this reply, since making one is not
the engine's. Memory is measured in a process of its own for each row: what Python and numpy hold at the end
of a run (tracemalloc), beside it what the clients' own packed states take, and by how much the process grew
at most, weights and all. The bound on what is held beside the states is 1 MB, 20 kB for each of at most 1,000
clients on the pool, and 40 bytes for each client's number. The last lines say whether the bounds are kept.
"""
import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from time import process_time
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from torch import nn

from fedbook.engine.federation import Client, Federation, InProcess, Server, run
from fedbook.engine.local import build, small_cnn
from fedbook.engine.wire import Ledger, Msg, pack

TIME = 1.10                 # bound: seconds a reply against the first row of the network
PLACE, NUMBER = 20e3, 40    # bounds: bytes beside the states, for a client on the pool and for a client's number
FLAT = 1.10                 # bound: bytes after 500 rounds against those after 100
CELLS = 100.0               # bound: bytes of the ledger's JSON for a round, however many messages it had
PICTURES = 8                # of a client: one step


def linear(): return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


def layers(width):
    "A network of three linear layers for pictures of 28 x 28."
    units = nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    return nn.Sequential(nn.Flatten(), *units)


NETWORKS = {"68": linear, "80 k": small_cnn, "2 M": partial(layers, 1070), "20 M": partial(layers, 4100)}
FEWER = {"80 k": 2, "2 M": 4, "20 M": 20}       # so many times fewer rounds, since each takes longer
MOST = {"80 k": 100_000, "2 M": 10_000, "20 M": 100}    # clients


class Row(NamedTuple):
    "A federation: so many `clients`, so many `asked` a round, and the `network`, one of `NETWORKS`."
    clients: int
    asked: int
    network: str = "68"

    def __str__(self): return f"{self.asked:,} of {self.clients:,}, {self.network}"


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
    line, here, server = begun(row)
    run(server, here, rounds)
    return line, here


def begun(row):
    "The line, the federation and the server of `row`, before its first round."
    model, size = build(NETWORKS[row.network], 0), 4 if row.network == "68" else 28
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (PICTURES, 1, size, size), dtype=torch.uint8, generator=draw)
    y = torch.arange(PICTURES) % 4
    line = Stopwatch(lambda id: Client(id, model, x, y, seed=0, batch=PICTURES, lr=0.01))
    return line, Federation(line, row.clients), Server(model, row.asked)


def measured(row, rounds):
    "Microseconds a reply of `row`: over all of the run, and the median of those `again` and `first`."
    start = process_time()
    line, _ = federation(row, rounds)
    whole = (process_time() - start) / (rounds * row.asked)
    seconds = {kind: statistics.median(each) if each else float("nan") for kind, each in line.seconds.items()}
    return {kind: 1e6 * each for kind, each in {"all": whole, **seconds}.items()}


def in_memory(what):
    "Bytes of this process in memory: now (`VmRSS`), or at most since it was last reset (`VmHWM`). Linux tells."
    found = re.search(rf"{what}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1])


def grown_in(work):
    "By how many bytes this process grew at most while it did `work()`; not a number where nothing tells."
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = in_memory("VmRSS")
    except OSError: before = math.nan
    work()
    return before if math.isnan(before) else in_memory("VmHWM") - before


def held(row, rounds):
    """Bytes that a run of `row` holds at its end: in all, and of these the clients' packed states; and by how
    much this process grew at most in another run, before."""
    federation(Row(1, 1), 1)        # what PyTorch loads with its first optimiser counts for no row
    grown = grown_in(lambda: federation(row, rounds))
    tracemalloc.start()
    line, here = federation(row, rounds)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size, sum(map(len, here.states.values())), grown


def held_elsewhere(row, rounds):
    "`held`, in a process of its own."
    line = [sys.executable, __file__, "--held", json.dumps([*row, rounds])]
    return json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)


def rounds_for(row, rounds):
    "So many rounds that every row of a network has about as many replies."
    return max(1 if row.network == "20 M" else 2, rounds * 10 // row.asked // FEWER.get(row.network, 1))


def show_rows(rows, rounds, repeats):
    """Print the table of `rows`, each against the first of its network; answers the worst ratio of seconds, and
    the worst share of the memory bound."""
    print(f"\n{'who takes part, network':26s} {'us a reply':>10s} {'again':>7s} {'first':>7s} {'ratio':>6s} "
          f"{'MB held':>8s} {'states':>7s} {'rest':>7s} {'grown':>8s}")
    worst, full = 0.0, 0.0
    for network in dict.fromkeys(row.network for row in rows):
        alike = [row for row in rows if row.network == network]
        for row in alike: federation(row, 1)
        times = {row: [] for row in alike}
        for _ in range(repeats):
            for row in alike: times[row].append(measured(row, rounds_for(row, rounds)))
        for row in alike:
            ratio, share = show_row(row, times[row], times[alike[0]], rounds_for(row, rounds))
            worst, full = max(worst, ratio), max(full, share)
    return worst, full


def show_row(row, times, base, rounds):
    "Print a line; answers the ratio of seconds to those of `base`, and the share of the memory bound."
    mid = {kind: statistics.median(each[kind] for each in times) for kind in ("all", "again", "first")}
    known = "first" if math.isnan(mid["again"]) else "again"
    ratio = statistics.median(a[known] / b[known] for a, b in zip(times, base) if not math.isnan(b[known]))
    size, states, grown = held_elsewhere(row, rounds)
    rest = size - states
    print(f"{row!s:26s} {mid['all']:10.0f} {mid['again']:7.0f} {mid['first']:7.0f} {ratio:6.2f} "
          f"{size / 1e6:8.2f} {states / 1e6:7.2f} {rest / 1e6:7.2f} {grown / 1e6:8.1f}", flush=True)
    return ratio, rest / (1e6 + PLACE * min(1000, rounds * row.asked) + NUMBER * row.clients)


def show_rounds(rounds=500, early=100, bound=1000):
    """Print what a run of many rounds holds beside the clients' states, and its ledger as JSON, after `early`
    rounds and at its end; the ledger keeps `bound` messages one by one. Answers the ratio of the
    first, and the bytes of JSON that a round adds."""
    federation(Row(1, 1), 1)
    _, here, server = begun(Row(50, 10))
    here.ledger = Ledger(bound)
    found = {}

    def look(_):
        done = here.round + 1
        if done in (early, rounds):
            size = tracemalloc.get_traced_memory()[0] - sum(map(len, here.states.values()))
            found[done] = size, len(here.ledger.to_json())
        return {}

    tracemalloc.start()
    run(server, here, rounds, None, look)
    tracemalloc.stop()
    if here.ledger.messages() != 20 * rounds: raise SystemExit(f"{here.ledger.messages()} messages are counted")
    print(f"\n{'rounds':>10s} {'messages':>9s} {'MB held':>8s} {'MB of JSON':>11s}")
    for done, (size, text) in found.items(): print(f"{done:10,d} {20 * done:9,d} {size / 1e6:8.2f} {text / 1e6:11.3f}")
    (first, short), (last, long) = found[early], found[rounds]
    return last / first, (long - short) / (rounds - early)


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
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--most", type=int, default=100_000)
    parser.add_argument("--held", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.held:
        *row, rounds = json.loads(args.held)
        return print(json.dumps(held(Row(*row), rounds)))
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, medians of {args.repeats}")
    counts = [n for n in (10, 100, 1_000, 10_000, 100_000) if n <= args.most]
    grid = [Row(n, 10, network) for network in NETWORKS for n in counts if n <= MOST.get(network, n)]
    idle, full = show_rows(grid, args.rounds, args.repeats)
    busy, more = show_rows([Row(1000, n) for n in (10, 100, 1000)], 5 * args.rounds, args.repeats)
    grown = show_ledger([10_000, 100_000, 300_000])
    later, text = show_rounds()
    for what, value, bound in (("seconds a reply, 10 take part", idle, TIME),
                               ("seconds a reply, of 1,000 clients", busy, TIME),
                               ("memory beside the states, of its bound", max(full, more), 1.0),
                               ("ledger, 300,000 against 100,000 messages", grown, 1.1),
                               ("memory, 500 against 100 rounds", later, FLAT),
                               ("bytes that a round adds to the ledger's JSON", text, CELLS)):
        print(f"{what}: {value:.2f} (bound {bound:.2f}) {'kept' if value <= bound else 'NOT KEPT'}")


if __name__ == "__main__": main()
