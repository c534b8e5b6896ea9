"""One round of 100 clients that train FedReplay's head: side by side in stacks of several sizes against one
after the other, in this process and in two workers.

    python bench/heads.py [--clients 100] [--repeats 3] [--seconds 1.2] [--threads 1 2] [--groups 5 10 25 50
    100]

A round is a whole exchange: messages, training, replies, states. Clients hold 8 to 64 pictures each and the
same pool of 30, batches of 32. Heads: that of the chapter's quick profile (dim 64, on 1,280 features), and
one of the paper's size (dim 256, on 768); one token and 16. Where the loop needs more than `--seconds` for a
round, fewer clients take part (`--seconds 0`: always all). Variants alternate in the same run; after the
first round, which is not timed, their replies are checked against the loop's. Where there is a GPU,
everything runs there, without workers. Last, forward and backward of ten stacked heads by hand-written
batched products against `torch.func.vmap`. """
import argparse
import os
import statistics
from contextlib import ExitStack
from functools import partial
from time import perf_counter

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))

import torch
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from bar import bar
from fedbook.engine.workers import transport_for
from fedbook.engine.federation import Federation, Server
from fedbook.methods.heads import ReplayHead, logits_stacked
from fedbook.fedreplay import FedReplayClient, FedReplaySizes
from fedbook.engine.local import build, generator
from fedbook.engine.stacked import Stacked
from fedbook.engine.wire import Msg

CLASSES, BATCH, POOL = 30, 32, 30
HEADS = {"small": dict(in_dim=1280, dim=64, heads=4, ff=256),
         "paper's": dict(in_dim=768, dim=256, heads=8, ff=1024)}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def new_head(options, tokens):
    return build(partial(ReplayHead, n_classes=CLASSES, n_tokens=tokens, **options), 0)


def features(n, head, g):
    return torch.randn(*((n, head.in_dim) if head.n_tokens == 1 else (n, head.n_tokens, head.in_dim)),
                       generator=g)


def clients_of(head, count):
    "Each client's features and labels."
    g = generator(0)
    sizes = torch.randint(8, 65, (count,), generator=g).tolist()
    return [(features(n, head, g), torch.randint(CLASSES, (n,), generator=g)) for n in sizes]


SIZES = FedReplaySizes(batch=BATCH, lr=2e-3)


def make_client(id, head, data): return FedReplayClient(id, head, *data[id], SIZES)


def federation(head, data, line):
    "A federation whose clients have the pool already."
    made, g = Federation(line(partial(make_client, head=head, data=data)), len(data)), generator(1)
    pool = Msg({"z": features(POOL, head, g), "y": torch.randint(CLASSES, (POOL,), generator=g)})
    for _ in made.exchange("pool", pool, made.ids): pass
    return made


def one_round(federation, say):
    start = perf_counter()
    replies = [msg for _, msg in federation.exchange("fit", say, federation.ids)]
    return perf_counter() - start, replies


def logits(head, reply, z):
    head.load_state_dict(reply.tensors)
    with torch.no_grad(): return head(z.to(DEVICE)).cpu()


def distance(head, replies, wanted):
    "The largest distance of any client's logits on the same features from those of the loop's client."
    z = features(16, head, generator(2))
    if [msg.meta for msg in replies] != [msg.meta for msg in wanted]:
        raise SystemExit("replies differ in more than weights")
    return max((logits(head, one, z) - logits(head, other, z)).abs().max().item()
               for one, other in zip(replies, wanted, strict=True))


def affordable(head, data, say, seconds):
    "How many of the clients the loop trains in about this time, and at least 5."
    some = federation(head, data[:5], partial(transport_for, workers=1))
    one_round(some, say)
    each = min(one_round(some, say)[0] for _ in range(2)) / 5
    return max(5, min(len(data), int(seconds / each))) if seconds else len(data)


def variants(args, count):
    sizes = sorted({min(size, count) for size in args.groups})
    for threads in args.threads:
        yield f"loop, threads {threads}", partial(transport_for, workers=1, threads=threads)
    if DEVICE == "cpu": yield "loop, workers 2", partial(transport_for, workers=2)
    for threads in args.threads:
        for size in sizes:
            if size > 1:
                yield f"stacks of {size}, threads {threads}", partial(Stacked, together=size,
                                                                      threads=threads)


def compare(name, options, tokens, args):
    head = new_head(options, tokens).to(DEVICE)
    say, data = Server(new_head(options, tokens)).send(0), clients_of(head, args.clients)
    count = affordable(head, data, say, args.seconds)
    print(f"\n{name} head, {sum(p.numel() for p in head.parameters()):,} parameters, tokens {tokens}: "
          f"{count} of {args.clients} clients", flush=True)
    with ExitStack() as stack:
        made = {what: stack.enter_context(federation(head, data[:count], line))
                for what, line in variants(args, count)}
        firsts = {what: one_round(each, say)[1] for what, each in made.items()}
        wanted = next(iter(firsts.values()))
        gap = max(distance(head, replies, wanted) for replies in firsts.values())
        rounds = [{what: one_round(each, say)[0] for what, each in made.items()} for _ in range(args.repeats)]
        if len({tuple(each.states.values()) for each in made.values()}) > 1: raise SystemExit("states differ")
    if gap > 5e-3: raise SystemExit(f"logits differ by {gap:.1e}")
    show(rounds, count, gap)


def show(rounds, count, gap):
    first, *_ = rounds[0]
    middle = {what: statistics.median(each[what] for each in rounds) for what in rounds[0]}
    for what in middle:
        times = [each[first] / each[what] for each in rounds]
        print(f"  {what:27s} {middle[what]:7.3f} s a round, {1e3 * middle[what] / count:7.2f} ms a client, "
              f"{statistics.median(times):5.2f} x {first} ({min(times):.2f} to {max(times):.2f})")
    print(f"  fastest: {min(middle, key=middle.get)}; logits of all variants at most {gap:.1e} apart",
          flush=True)
    loops, stacks = ([t for what, t in middle.items() if what.startswith(kind)]
                     for kind in ("loop", "stacks"))
    if stacks: bar("best stacks as fast as the best loop", min(loops) / min(stacks), at_least=1)


def by_vmap(head, weights, z):
    "What one would write with torch.func; its attention has no batching rule in its fast form on the CPU."
    with sdpa_kernel(SDPBackend.MATH):
        return vmap(lambda weights, z: functional_call(head, weights, (z,)), randomness="same")(weights, z)


def seconds_of(forward, head, weights, z):
    start = perf_counter()
    torch.autograd.grad(forward(head, weights, z).square().mean(), list(weights.values()))
    if DEVICE == "cuda": torch.cuda.synchronize()
    return perf_counter() - start


def compare_forms(name, options, tokens, args, count=10):
    head = new_head(options, tokens).to(DEVICE).train()
    weights = {key: t.detach().expand(count, *t.shape).clone().requires_grad_()
               for key, t in head.named_parameters()}
    z = torch.stack([features(2 * BATCH, head, generator(3))] * count).to(DEVICE)
    torch.testing.assert_close(logits_stacked(head, weights, z), by_vmap(head, weights, z), rtol=0,
                               atol=1e-3)
    ratios = [seconds_of(by_vmap, head, weights, z) / seconds_of(logits_stacked, head, weights, z)
              for _ in range(1 + 2 * args.repeats)][1:]
    print(f"{name} head, tokens {tokens}: by hand {statistics.median(ratios):.2f} x vmap ({min(ratios):.2f} "
          f"to {max(ratios):.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("clients", 100), ("repeats", 3), ("seconds", 1.2)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2] if DEVICE == "cpu" else [1])
    parser.add_argument("--groups", type=int, nargs="+", default=[5, 10, 25, 50, 100])
    args = parser.parse_args()
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else f"CPU, {os.cpu_count()} cores"
    print(f"{where}; torch {torch.__version__}, median of {args.repeats} rounds after one that is not timed")
    cases = [(name, options, tokens) for name, options in HEADS.items() for tokens in (1, 16)]
    for case in cases: compare(*case, args)
    torch.set_num_threads(1)
    print("\nforward and backward of ten stacked heads:")
    for case in cases[:3]: compare_forms(*case, args)


if __name__ == "__main__": main()
