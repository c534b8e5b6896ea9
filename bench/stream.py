"""What the number of replies costs a server on Flower in memory: taken as they come, or all at once.

    python bench/stream.py [--mb 20] [--clients 10 100 300] [--at-once 10 100]

One exchange of FedAvg's `fit` with so many clients, whose replies of `--mb` megabytes all lie ready at once,
the worst case. The grid stands for Flower's: it makes a reply when it is asked for it, and keeps nothing. So
what grows is what `FlowerTransport`, `Federation` and `Mean` hold. Each row is a process of its own; its memory is
the most that it ever had resident, less what it had before the exchange. The rows of `--at-once` are the transport
as it was before: Flower's `send_and_receive`, which answers with a list. The last line says whether the bound
is kept.
"""
import argparse
import math
import os
import resource
import subprocess
import sys
import tempfile
from functools import partial
from time import monotonic, process_time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from torch import nn

from fedbook.engine.federation import Federation, Server
from fedbook.deploy.flower import FlowerTransport, to_array
from fedbook.engine.local import build
from fedbook.engine.wire import Msg, pack
from bar import bar

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity


class ReadyGrid:
    "A grid of `count` nodes, each of which has answered `data` (bytes) when it is first looked at."

    def __init__(self, count, data):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.count, self.data, self.letters, self.pushed = count, data, {}, 0

    def get_node_ids(self): return range(1, self.count + 1)

    def push_messages(self, messages):
        for message in messages:
            self.pushed += 1
            message.metadata.__dict__["_message_id"] = str(self.pushed)
            self.letters[str(self.pushed)] = message
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, ids):
        return [self.answer(self.letters.pop(id)) for id in ids if id in self.letters]

    def answer(self, letter):
        note, more = ConfigRecord({"state": "0" * 64}), {}
        if letter.metadata.message_type == "query.hello":
            note = ConfigRecord({"id": letter.metadata.dst_node_id - 1})
        else: more = {"msg": ArrayRecord({"msg": to_array(bytes(bytearray(self.data)))})}
        return Message(RecordDict({"fedbook": note, **more}), reply_to=letter)


class AtOnce(FlowerTransport):
    "The transport as it was: all letters by one `send_and_receive`, all replies as a list."

    def serve(self, calls):
        calls = list(calls)
        self.find([call.id for call in calls], calls[0].round)
        letters = [self.message_for(call, ArrayRecord({"msg": to_array(call.data)})) for call in calls]
        replies = self.grid.pull_messages(self.grid.push_messages(letters))
        for call, reply in zip(calls, replies, strict=True): yield call, self.outcome(reply, 0)


def server_of(megabytes):
    "FedAvg's server with one layer of weights of so many megabytes."
    return Server(build(partial(nn.Linear, math.ceil(1e6 * megabytes / 4), 1, bias=False), 0))


def exchange(count, megabytes, transport=FlowerTransport, folder=None):
    "One exchange with `count` clients. Returns the server after it, and the federation."
    server = server_of(megabytes)
    grid = ReadyGrid(count, pack(Msg(server.weights, {"n": 10})))
    federation = Federation(transport(grid, range(count), folder=folder), count)
    server.merge(federation.exchange("fit", server.send, list(range(count)), server.accept))
    return server, federation


def resident(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def row(count, megabytes, transport):
    "Bytes that an exchange adds to the most that was resident, its seconds, and those of the processor."
    exchange(1, megabytes, transport)
    before, begin, worked = resident(), monotonic(), process_time()
    _, federation = exchange(count, megabytes, transport)
    assert not federation.ledger.absent and federation.ledger.messages(way="up") == count
    return resident() - before, monotonic() - begin, process_time() - worked


def measured(count, megabytes, kind):
    "`row` in a process of its own."
    words = [sys.executable, __file__, "--mb", str(megabytes), "--row", kind, str(count)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return tuple(map(float, done.stdout.split()))


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--mb", type=float, default=20)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 300])
    parser.add_argument("--at-once", type=int, nargs="*", default=[10, 100])
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.row:
        kind, count = args.row
        print(*row(int(count), args.mb, AtOnce if kind == "at-once" else FlowerTransport))
        return
    print(f"torch {torch.__version__}, replies of {args.mb:g} MB, files in {tempfile.gettempdir()}")
    print(f"{'replies':>8s} {'taken':>14s} {'MB added':>9s} {'seconds':>8s} {'of the CPU':>10s}", flush=True)
    added = {}
    for kind, counts in (("as they come", args.clients), ("at-once", args.at_once)):
        for count in counts:
            size, seconds, cpu = measured(count, args.mb, kind)
            added[kind, count] = size
            print(f"{count:8d} {kind:>14s} {size / 1e6:9.0f} {seconds:8.1f} {cpu:10.1f}", flush=True)
    most, least = max(args.clients), min(args.clients)
    grown = added["as they come", most] - added["as they come", least]
    beyond = grown / (1e6 * args.mb)
    bar(f"memory of {most} replies beyond that of {least}", beyond, at_most=2, unit=" replies")


if __name__ == "__main__": main()
