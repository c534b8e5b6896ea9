"""Secure aggregation: bytes and seconds of a round in the clear, under the masks of `fedbook.privacy.secagg`, and of
Flower's SecAgg+, whose own functions are called without a network.

    python bench/secagg.py                      # 10 clients and 80,000 weights, all three
    python bench/secagg.py --clients 100 --alone    # without Flower's, which takes very long
    python bench/secagg.py --clients 100 --alone --workers 2

Clients do not train: they answer what they hold, so that the seconds are those of the protocol. Bytes are
those of our ledger, and for Flower those of the serialised records that its `Grid` would send. Seconds are
by the clock, and of the processor (all processes). Everybody is everybody's neighbour, in both.
"""
import argparse
import resource
from importlib import import_module
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from bar import bar
from fedbook.engine.workers import transport_for
from fedbook.engine.federation import Failure, Federation, Server, run
from fedbook.privacy.secagg import Additive, SecureClient, SecureServer
from fedbook.engine.wire import Msg


class Cost(NamedTuple):
    "Of one round: bytes each way, seconds, how many clients were in the mean, and how far it is off."
    down: int
    up: int
    clock: float
    processor: float
    included: int
    away: float


class Flat(nn.Module):
    "A model that is one vector of `d` weights, none of them 0: the wire leaves zeros out."
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(held(0, d))


class Holder:
    "A client that answers the vector of `d` weights that it holds."
    verbs = ("fit",)

    def __init__(self, id, d): self.id, self.d = id, d

    def fit(self, msg): return Msg({"weight": held(self.id, self.d)}, {"n": 600})

    def state(self): return Msg()

    def load(self, msg): "It keeps nothing."


def held(id, d): return torch.from_numpy(np.random.default_rng(id).normal(size=d).astype(np.float32))


class Gone:
    "The first `count` clients do not answer `masked`."
    def __init__(self, count): self.count = count

    def harm(self, call, outcome):
        return Failure("is gone") if call.verb == "masked" and call.id < self.count else outcome


def processor():
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in of)


def a_round(server, make, n, d, gone=0, workers=1):
    "The `Cost` of one round of `server` with the clients that `make(id)` makes, the first `gone` silent."
    begin, used = perf_counter(), processor()
    with Federation(transport_for(make, workers), n, faults=Gone(gone)) as federation: run(server, federation, 1)
    clock, used = perf_counter() - begin, processor() - used
    mean = torch.stack([held(id, d).double() for id in range(gone, n)]).mean(0)
    got, sent = getattr(server, "server", server).weights["weight"], federation.ledger.so_far
    return Cost(sent["down"], sent["up"], clock, used, n - gone, float((got - mean).abs().max()))


def clear(n, d, workers=1): return a_round(Server(Flat(d)), lambda id: Holder(id, d), n, d, 0, workers)


def masked(n, d, gone=0, workers=1):
    threshold, how = 2 * n // 3 + 1, Additive(most=600 * n)
    make = lambda id: SecureClient(Holder(id, d), threshold, how)
    return a_round(SecureServer(Server(Flat(d)), threshold, how), make, n, d, gone, workers)


def flower(n, d):
    "The `Cost` of a round of Flower's SecAgg+, whose clients all stay, by its own functions."
    from flwr.app import ConfigRecord, RecordDict
    from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares
    from flwr.common.secure_aggregation.quantization import dequantize
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
    from flwr.common.serde import recorddict_to_proto

    theirs = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    ids, threshold, sent = range(1, n + 1), 2 * n // 3 + 1, dict(down=0, up=0)

    def send(way, record):
        sent[way] += recorddict_to_proto(RecordDict({"secaggplus_configs": ConfigRecord(record)})).ByteSize()
        return record

    begin, used = perf_counter(), processor()
    states = {id: theirs.SecAggPlusState(nid=id) for id in ids}
    sizes = dict(sample_num=n, share_num=n, threshold=threshold, clipping_range=8.0, target_range=2**22,
                 mod_range=2**32, max_weight=600.0)
    setup = {id: send("up", theirs._setup(states[id], send("down", sizes))) for id in ids}
    public = {str(id): [keys["pk1"], keys["pk2"]] for id, keys in setup.items()}
    flat = {f"{id} {k}": key for id, keys in public.items() for k, key in enumerate(keys)}
    shared, inbox, total, pieces = {}, {id: [] for id in ids}, 0, {id: [] for id in ids}
    for id in ids:
        send("down", flat)
        shared[id] = send("up", theirs._share_keys(states[id], public))
        for to, text in zip(shared[id]["dsts"], shared[id]["ctxts"]): inbox[to].append((id, text))
    for id in ids:
        sources, texts = map(list, zip(*inbox[id]))
        model = ndarrays_to_parameters([np.zeros(d, np.float32)])
        sent["down"] += sum(map(len, model.tensors))
        vector = ndarrays_to_parameters([held(id - 1, d).numpy()])
        letters = send("down", {"srcs": sources, "ctxts": texts})
        answer = theirs._collect_masked_vectors(states[id], letters, 600, vector)
        total = total + bytes_to_ndarray(send("up", answer)["masked_params"][1])
    for id in ids:
        asked = send("down", {"active_nids": list(ids), "dead_nids": []})
        reply = send("up", theirs._unmask(states[id], asked))
        for owner, piece in zip(reply["nids"], reply["shares"]): pieces[owner].append(piece)
    for id in ids: total = total - pseudo_rand_gen(combine_shares(pieces[id]), 2**32, [(1,), (d,)])[1]
    mean = dequantize([total % 2**32 / n], 8.0, 2**22)[0]
    clock, used = perf_counter() - begin, processor() - used
    wanted = np.mean([held(id - 1, d).numpy() for id in ids], axis=0)
    return Cost(sent["down"], sent["up"], clock, used, n, float(np.abs(mean - wanted).max()))


def show(name, cost):
    print(f"{name:24}{cost.down / 1e6:9.3f}{cost.up / 1e6:9.3f}{cost.clock:9.2f}{cost.processor:11.2f}"
          f"{cost.included:9}{cost.away:11.1e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("clients", 10), ("weights", 80_000), ("gone", 1), ("workers", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--alone", action="store_true", help="without Flower's")
    args = parser.parse_args()
    torch.set_num_threads(1)
    n, d = args.clients, args.weights
    print(f"{n} clients, {d:,} weights, threshold {2 * n // 3 + 1}, {args.workers} process(es)")
    print(f"{'':24}{'MB down':>9}{'MB up':>9}{'clock s':>9}{'cpu s':>11}{'in it':>9}{'off by':>11}")
    plainly, ours = clear(n, d), masked(n, d, 0, args.workers)
    show("in the clear", plainly)
    show("fedbook.privacy.secagg", ours)
    if args.gone: show(f"the same, {args.gone} gone", masked(n, d, args.gone, args.workers))
    times = (ours.down + ours.up) / (plainly.down + plainly.up)
    bar(f"bytes of {n} clients under masks over those in the clear", times, at_most=3)
    bar(f"seconds of a round of {n} clients under masks", ours.clock, at_most=10, unit=" s")
    if args.alone: return
    theirs = flower(n, d)
    show("Flower's SecAgg+", theirs)
    bar("bytes over Flower's", (ours.down + ours.up) / (theirs.down + theirs.up), at_most=1)
    bar("processor seconds over Flower's", ours.processor / theirs.processor, at_most=1)


if __name__ == "__main__": main()
