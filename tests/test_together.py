"The heads of many clients trained side by side: the same as one after the other."
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import copied, normal
from fedbook.engine import stacked as module
from fedbook.engine.workers import Checkpoint, Faults
from fedbook.engine.federation import Client, Federation, FedProxClient, InProcess, Server, run
from fedbook.methods.heads import ReplayHead, ReplayPool, cross_entropy, fedprox, logits_stacked
from fedbook.fedreplay import FedReplayClient, FedReplayServer, FedReplaySizes
from fedbook.engine.errors import UserError
from fedbook.engine.local import batches, build, generator, precise, small_cnn
from fedbook.engine.stacked import (Stacked, batch_stacked, default_stacked, entropy_stacked,
                                    mean_stacked, together_for, train_stacked)
from fedbook.engine.wire import Msg, unpack

# one step, several, a last batch of one that joins the one before it, a single picture
ROWS = (5, 33, 70, 12, 64, 1, 17)


def small_head(tokens=1, classes=5): return build(lambda: ReplayHead(20, classes, 16, 2, 4, 32, tokens), 0)


def features(n, tokens, g, dtype=torch.float32):
    return torch.randn(*((n, 20) if tokens == 1 else (n, tokens, 20)), generator=g, dtype=dtype)


def clients(dtype, tokens=1, mu=0.0, lam=0.5, pool=True, epochs=2):
    """Clients that hold what a fit message gave them: weights of their own each, and perhaps a pool with a
    teacher of fewer classes."""
    head, g, made = small_head(tokens).to(dtype), generator(1), []
    z, y, teacher = features(11, tokens, g, dtype), torch.randint(5, (11,),
                                                                  generator=g), torch.randn(11, 3,
                                                                                            generator=g,
                                                                                            dtype=dtype)
    for id, n in enumerate(ROWS):
        sizes = FedReplaySizes(epochs=epochs, batch=16, lr=1e-2, weight_decay=1e-3, lam=lam)
        z_own, y_own = features(n, tokens, g, dtype), torch.randint(5, (n,), generator=g)
        client = FedReplayClient(id, head, z_own, y_own, sizes, 3)
        client._start = {name: t.clone() * (1 + 0.1 * id) for name, t in head.state_dict().items()}
        if pool: client.replay, client.teacher, client._mu = ReplayPool([(z, y)]), teacher, mu
        made.append(client)
    return made


def one_after_the_other(made):
    states = []
    for client in made:
        client.model.load_state_dict(client.start)
        client.train()
        states.append({name: t.clone() for name, t in client.model.state_dict().items()})
    return states


def worst(a, b, keys=True):
    """The largest distance of two states. Without `keys`: leaving out the attention's biases of keys, which
    change no output, so that their gradient is rounding and AdamW makes steps of it."""
    dim, far = len(a["token"]), 0.0
    for name in a:
        apart = (a[name] - b[name]).abs()
        if not keys and name.endswith("in_proj_bias"): apart = torch.cat([apart[:dim], apart[2 * dim:]])
        far = max(far, apart.max().item())
    return far


@pytest.mark.parametrize("tokens", (1, 3))
def test_logits_of_many_heads(tokens):
    heads = [build(lambda: ReplayHead(20, 5, 16, 2, 4, 32, tokens), seed).double() for seed in range(3)]
    for head in heads:
        for p in head.parameters():
            p.data += 0.1 * torch.randn(p.shape, generator=generator(2), dtype=p.dtype)
    z = features(12, tokens, generator(0), torch.float64).reshape(3, 4,
                                                                  *([20] if tokens == 1 else [tokens, 20]))
    stacked = {name: torch.stack([head.state_dict()[name] for head in heads])
               for name in heads[0].state_dict()}
    together = logits_stacked(heads[0], stacked, z)
    assert together.shape == (3, 4, 5)
    torch.testing.assert_close(together, torch.stack([head(rows) for head, rows in zip(heads, z)]), rtol=0,
                               atol=1e-12)


@pytest.mark.parametrize("tokens, mu, lam, pool, group",
                         [(1, 0.7, 0.3, True, 1), (1, 0.7, 0.3, True, 2), (1, 0.7, 0.3, True, 7),
                          (1, 0.0, 0.5, True, 7), (3, 0.7, 0.5, True, 7),
                          (3, 0.0, 0.5, False, 7), (1, 0.7, 0.0, True, 7)])
def test_training_together_is_training_alone_in_float64(tokens, mu, lam, pool, group):
    ours, theirs = (clients(torch.float64, tokens, mu, lam, pool) for _ in range(2))
    states = [state for n in range(0, len(ours), group) for state in train_stacked(ours[n:n + group])]
    for state, wanted, one, other in zip(states, one_after_the_other(theirs), ours, theirs, strict=True):
        assert worst(state, wanted, keys=False) < 1e-10
        assert worst(state, wanted) < 1e-7
        assert torch.equal(one.generator.get_state(), other.generator.get_state())
        assert worst(state, one.start) > 1e-3


def test_training_together_in_float32():
    ours, theirs = (clients(torch.float32, mu=0.7) for _ in range(2))
    for state, wanted in zip(train_stacked(ours), one_after_the_other(theirs), strict=True):
        assert worst(state, wanted, keys=False) < 2e-2
    z = features(50, 1, generator(5))
    for state, wanted in zip(train_stacked(clients(torch.float32)),
                             one_after_the_other(clients(torch.float32)), strict=True):
        seen = []
        for each in (state, wanted):
            theirs[0].model.load_state_dict(each)
            seen.append(theirs[0].model(z).detach())
        torch.testing.assert_close(*seen, rtol=0, atol=5e-3)


def test_a_plan_draws_an_order_then_a_batch_of_the_pool_for_each_step():
    client, g = clients(torch.float32)[2], clients(torch.float32)[2].generator
    wanted = [(own, client.replay.draw(len(own), g)) for _ in range(client.epochs)
              for own in batches(len(client.y), client.batch, g)]
    assert all(map(torch.equal, sum(client.plan(), ()), sum(wanted, ())))
    assert torch.equal(client.generator.get_state(), g.get_state())


def test_a_mean_leaves_padding_out():
    g = generator(3)
    logits, y = torch.randn(3, 4, 5, generator=g), torch.randint(5, (3, 4), generator=g)
    share = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4])
    wanted = torch.stack([F.cross_entropy(logits[k, :n], y[k, :n]) for k, n in enumerate((1, 2, 4))])
    torch.testing.assert_close(entropy_stacked(share, logits, y), wanted)
    each = torch.where(share > 0, 2.0, 1e9)
    assert mean_stacked(share, each.flatten()).tolist() == [2.0, 2.0, 2.0]


def test_a_batch_is_padded_and_says_what_counts():
    made = clients(torch.float64, mu=0.3)[:3]
    steps = [client.plan()[0] for client in made]
    share, x, y, *pool = batch_stacked(made, steps)
    longest = max(len(own) for own, _ in steps)
    assert x.shape == (3, longest, 20) and y.shape == (3, longest) and len(pool) == 3
    for k, (client, (own, shared)) in enumerate(zip(made, steps)):
        n = len(own)
        assert torch.equal(x[k, :n], client.x[own]) and not x[k, n:].any() and not share[k, n:].any()
        assert share[k].sum().item() == pytest.approx(1) and torch.equal(pool[2][k, :n], client.teacher[shared])


class Bare(Client):
    "Has no method that training together asks for."


class OwnProx(FedProxClient): pass


@pytest.mark.parametrize("kind", [Bare, OwnProx])
def test_a_client_that_cannot_say_so_trains_alone(kind, stacked):
    def made(id):
        y = torch.randint(3, (ROWS[id],), generator=generator(9, id))
        return kind(id, _head, features(len(y), 1, generator(9, id)), y, 3)
    say, results = Server(small_head(classes=3)).send(0), []
    for line in (Stacked(made, 4), InProcess(made)):
        with Federation(line, 5) as federation: results.append(dict(federation.exchange("fit", say, range(5))))
    assert all(worst(results[0][id].tensors, results[1][id].tensors) == 0 for id in range(5)) and not stacked


# ---- the engine

@pytest.fixture
def stacked(monkeypatch):
    "How many clients each call of `train_stacked` trained at once."
    sizes = []
    def counting(made):
        trained = train_stacked(made)
        sizes.append(len(made))
        return trained
    monkeypatch.setattr(module, "train_stacked", counting)
    return sizes


def make(id, kind=FedReplayClient, bad=None, lam=0.5, local_loss=cross_entropy):
    g = generator(9, id)
    y = torch.randint(3, (ROWS[id],), generator=g) + (2 if id == 6 else 0)
    if bad == id: y = y + 90
    sizes = FedReplaySizes(batch=16, lr=1e-3, rate=0.2, lam=lam)
    return kind(id, _head, features(len(y), 1, g), y, sizes, 3, local_loss)


_head = small_head(classes=3)


def federate(line, rounds=3, checkpoint=None, replay=True, late=2, faults=None, **options):
    joins = {id: late if id == 6 else 0 for id in range(len(ROWS))}
    server = FedReplayServer(small_head(classes=3), joins,
                             FedReplaySizes(lr=1e-3, warm_steps=3,
                                            mu=0.5)) if replay else Server(small_head())
    with Federation(line(partial(make, **options)), len(ROWS), faults=faults) as federation:
        history = run(server, federation, rounds, checkpoint)
    return server, federation, history


def together(count): return partial(Stacked, together=count)


@pytest.mark.parametrize("count", (3, 7))
@pytest.mark.parametrize("replay", (True, False))
def test_a_federation_side_by_side(count, replay, stacked):
    for rounds, bound in ((1, 2e-4), (5, 1e-3)):
        runs = [federate(line, rounds, replay=replay) for line in (together(count), InProcess)]
        (server, ours, _), (wanted, theirs, _) = runs
        assert ours.ledger.to_json() == theirs.ledger.to_json() and ours.states.keys() == theirs.states.keys()
        assert worst(server.weights, wanted.weights, keys=False) < bound
        z = features(50, 1, generator(5))
        seen = []
        for weights in (server.weights, wanted.weights):
            _head.load_state_dict(weights)
            seen.append(_head(z).detach())
        torch.testing.assert_close(*seen, rtol=0, atol=bound)
        for id, state in ours.states.items():
            assert torch.equal(unpack(state).tensors["generator"],
                               unpack(theirs.states[id]).tensors["generator"])
    assert max(stacked) >= 3, "no stack was trained"


def test_one_at_a_time_is_the_plain_federation():
    (server, ours, _), (wanted, theirs, _) = federate(together(1)), federate(InProcess)
    assert worst(server.weights, wanted.weights) == 0 and ours.states == theirs.states


def test_another_local_loss_trains_alone_to_the_bit(stacked):
    (server, ours, _), (wanted, theirs, _) = (federate(line, local_loss=fedprox)
                                              for line in (together(4), InProcess))
    assert worst(server.weights, wanted.weights) == 0 and ours.states == theirs.states and not stacked


class Apart(FedReplayClient):
    "A client of another kind, that raises when it trains."
    def train(self): raise RuntimeError("no")


@pytest.mark.filterwarnings("ignore:round")
@pytest.mark.parametrize("kind, bad", [(FedReplayClient, 4), (Apart, None)])
def test_a_failing_client_does_not_sink_its_group(kind, bad, stacked):
    def made(id): return make(id, kind if id == 4 else FedReplayClient, bad)
    results = []
    for line in (Stacked(made, 7), InProcess(made)):
        head, federation = small_head(classes=3), Federation(line, 7)
        replies = dict(federation.exchange("fit", Server(head).send(0), [3, 4, 1, 0, 5]))
        results.append((replies, federation))
    (ours, one), (theirs, other) = results
    assert list(ours) == list(theirs) and 4 not in ours and len(ours) == 4
    assert one.ledger.to_json() == other.ledger.to_json() and 4 not in one.states
    assert all(ours[id].meta == theirs[id].meta and worst(ours[id].tensors, theirs[id].tensors, keys=False)
               < 2e-3 for id in ours)
    assert {id: one.states[id] == other.states[id] for id in ours} == dict.fromkeys(ours, True)
    assert stacked == [4], "the others train together"


def test_a_group_that_fails_trains_one_by_one_and_says_so(monkeypatch):
    def broken(made): raise RuntimeError("no room")
    monkeypatch.setattr(module, "train_stacked", broken)
    with pytest.warns(UserWarning, match="one by one: RuntimeError: no room"):
        server, _, _ = federate(together(3), 1)
    assert worst(server.weights, federate(InProcess, 1)[0].weights) == 0


def test_a_stack_that_does_not_fit_is_halved(monkeypatch):
    heights, train = [], module.train_stacked
    def small(group):
        heights.append(len(group))
        if len(group) > 2: raise torch.OutOfMemoryError("CUDA out of memory")
        return train(group)
    monkeypatch.setattr(module, "train_stacked", small)
    server, federation, _ = federate(together(5), 1)
    assert heights == [5, 2, 3, 1, 2, 1]
    monkeypatch.undo()
    other, once, _ = federate(together(2), 1)
    assert worst(server.weights, other.weights) < 1e-3
    assert federation.states == once.states


def test_a_client_that_does_not_fit_alone_stops_the_run(monkeypatch):
    def none(group): raise torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(module, "train_stacked", none)
    monkeypatch.setattr(FedReplayClient, "train", none)
    with pytest.raises(torch.OutOfMemoryError): federate(together(3), 1)


def test_replies_come_in_the_order_asked():
    federation, say = Federation(Stacked(make, 4), 6), Server(small_head(classes=3)).send(0)
    assert [id for id, _ in federation.exchange("fit", say, [5, 0, 3, 1, 4])] == [5, 0, 3, 1, 4]


def test_not_more_than_a_group_is_asked_ahead():
    said = []
    federation, msg = Federation(Stacked(lambda id: make(id % 6), 2), 12), Server(small_head(classes=3)).send(0)
    replies = federation.exchange("fit", lambda id: said.append(id) or msg, range(12))
    next(replies)
    assert said == [0, 1, 2, 3, 4, 5]
    for _ in range(5): next(replies)
    assert len(said) == 6
    next(replies)
    assert len(said) == 8
    replies.close()


def test_an_exchange_given_up_leaves_no_trace():
    say, results = Server(small_head(classes=3)).send(0), []
    for give_up in (True, False):
        federation = Federation(Stacked(make, 4), 6)
        list(federation.exchange("fit", say, range(6)))
        if give_up:
            replies = federation.exchange("fit", say, range(6))
            next(replies)
            replies.close()
        results.append(([msg.tensors for _, msg in federation.exchange("fit", say, [1, 2, 3])],
                        [federation.states[id] for id in (1, 2, 3)]))
    assert results[0][1] == results[1][1]
    assert all(worst(a, b) == 0 for a, b in zip(results[0][0], results[1][0], strict=True))


@pytest.mark.filterwarnings("ignore:round")
def test_the_same_faults_strike():
    faults = Faults(seed=4, silent=0.1, nan=0.1, crash=0.1)
    ledgers = [federate(line, 3, faults=faults)[1].ledger.to_json() for line in (together(3), InProcess)]
    assert ledgers[0] == ledgers[1]


@pytest.mark.parametrize("stop", (1, 5))
def test_a_killed_run_ends_with_the_same_bits(stop, tmp_path, kill, stacked):
    job = lambda path: federate(together(3), 4, Checkpoint(tmp_path / path))
    server, federation, history = job("whole")
    kill(lambda: job("cut"), stop)
    again, resumed, rows = job("cut")
    assert worst(server.weights, again.weights) == 0
    assert federation.states == resumed.states
    assert history.rows == rows.rows
    assert max(stacked) == 3


def test_what_does_not_go():
    with pytest.raises(UserError, match="together=0"): Stacked(make, 0)
    with pytest.raises(UserError, match="threads=0"): Stacked(make, 2, threads=0)


def test_alike():
    first, second = clients(torch.float32)[:2]
    assert first.alike() == second.alike() is not None
    second._mu = 0.3
    assert first.alike() != second.alike()
    second.local_loss = fedprox
    assert second.alike() is None


def test_how_many_at_once(monkeypatch):
    for name, held in dict(memory_reserved=30, memory_allocated=10).items():
        monkeypatch.setattr(torch.cuda, name, lambda device, held=held: held)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (980, 2000))
    cases = [("cpu", 4), ("cpu", 100), ("cuda", 100), ("cuda", 100, 10), ("cuda", 100, 7), ("cuda", 3, 9999)]
    assert [default_stacked(*where) for where in cases] == [4, 10, 100, 50, 71, 1]


def test_the_bytes_of_a_client_in_a_stack():
    "By hand: a linear layer keeps its input, and ReLU its output."
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    weights, x = 4 * (5 * 3 + 3 + 3 * 2 + 2), torch.zeros(7, 5)
    kept = module.bytes_stacked(model, x) - 4 * weights
    assert 2 * 4 * (7 * 5 + 7 * 3) <= kept <= 2 * (4 * (7 * 5 + 7 * 3) + weights)


# FedAvg's and FedProx's clients ---------------------------------------------------------------------------

def cnn(): return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                                      torch.nn.Flatten(), torch.nn.Linear(36, 5))

def pictures_of(id, dtype):
    g, n = generator(9, id), ROWS[id]
    x = torch.randint(256, (n, 1, 8, 8), generator=g).to(torch.uint8)
    return (x if dtype == torch.uint8 else x.to(dtype) / 255), torch.randint(5, (n,), generator=g)

def ones_like(kind, dtype=torch.float64, network=cnn, **options):
    "A function from id to a client of this kind; its network is float64 unless the pictures are uint8."
    lent = build(network, 0).to(torch.float32 if dtype == torch.uint8 else dtype)
    make = lambda id: kind(id, lent, *pictures_of(id, dtype), 3, 2, 16, 0.05, **options)
    make.start = copied(lent.state_dict())
    return make

def three_rounds(make, line):
    server = Server(make(0).model, 4, 1)
    server.weights = copied(make.start)
    with Federation(line(make), 5) as federation: run(server, federation, 3)
    return server.weights, federation

def farthest(a, b): return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.uint8, 1e-4)])
@pytest.mark.parametrize("kind, options", [(Client, {}), (Client, dict(momentum=0.9)),
                                           (FedProxClient, dict(mu=0.5)),
                                           (FedProxClient, dict(mu=0.5, momentum=0.9))])
def test_plain_clients_side_by_side(kind, options, dtype, tolerance, stacked):
    make = ones_like(kind, dtype, **options)
    (alone, one), (beside, other) = (three_rounds(make, line) for line in (InProcess, together_of(3)))
    assert max(stacked) == 3
    assert 0 <= farthest(alone, beside) < tolerance
    assert one.ledger.to_json() == other.ledger.to_json() and one.states == other.states

def together_of(k): return lambda make: Stacked(make, k)


def test_fedprox_pulls_each_client_to_its_own_start():
    make, alone, sides = ones_like(FedProxClient, mu=2.0), [], []
    starts = [{name: t * (1 + id) for name, t in build(cnn, id).double().state_dict().items()} for id in range(4)]
    for id, start in enumerate(starts):
        sides.append(module.StackedClients(make(id)))
        sides[-1].read(Msg(start))
        alone.append({name: t.clone() for name, t in make(id).fit(Msg(start)).tensors.items()})
    for one, other in zip(alone, train_stacked(sides), strict=True): assert farthest(one, other) < 1e-12


class Other(Client):
    def loss(self, x, y): return super().loss(x, y) * 2

def normed(): return torch.nn.Sequential(*cnn(), torch.nn.BatchNorm1d(5))

def frozen():
    net = cnn()
    net[0].weight.requires_grad_(False)
    return net


@pytest.mark.parametrize("kind, network", [(Other, cnn), (Client, normed), (Client, frozen)])
def test_who_trains_alone(kind, network, stacked):
    make = ones_like(kind, network=network)
    (alone, _), (beside, _) = (three_rounds(make, line) for line in (InProcess, together_of(3)))
    assert not stacked and farthest(alone, beside) == 0


def test_who_is_not_alike_does_not_stand_together():
    first, second, third = (module.StackedClients(ones_like(Client, **more)(0)) for more in
                            ({}, dict(momentum=0.5), dict(dtype=torch.uint8)))
    assert len({side.alike() for side in (first, second, third)}) == 3
    assert first.alike() == module.StackedClients(ones_like(Client)(1)).alike() is not None


# ---- how many, where nobody says it

class Widened(Client):
    "A class of its own."


@pytest.mark.parametrize("network, kind, many", [
    (small_cnn, Client, 16), (small_cnn, FedProxClient, 16), (small_cnn, Widened, 1),
    (lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10)), Client, 1),
    (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 6000), nn.Linear(6000, 10)), Client, 1)])
def test_how_many_train_together_depends_on_the_client_alone(network, kind, many):
    model, made = build(network, 0), []

    def make(id):
        made.append(id)
        return kind(id, model, normal(4, 1, 28, 28), torch.arange(4), batch=2)

    assert together_for(make(0)) == many
    line, sent = Stacked(make), Server(model).send(0)
    federation = Federation(line, 5)
    replies = dict(federation.exchange("fit", sent, federation.ids))
    assert line.together == many and sorted(replies) == [0, 1, 2, 3, 4] and not federation.ledger.absent
    other = Federation(InProcess(make), 5)
    for id, reply in other.exchange("fit", sent, other.ids):
        for name, t in reply.tensors.items(): assert torch.allclose(t, replies[id].tensors[name], atol=1e-4)


def test_where_no_client_can_be_made_the_reason_comes_through():
    def make(id): raise UserError("no data")
    with pytest.raises(UserError, match="client 0 cannot be made: no data"):
        federation = Federation(Stacked(make), 2)
        list(federation.exchange("fit", Server(build(small_cnn, 0)).send(0), [0, 1]))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_stacked_heads_compute_in_the_precision_of_heads(precision):
    head = small_head(classes=3)
    weights = {name: torch.stack([t, t]) for name, t in head.state_dict().items()}
    z = normal(2, 4, head.n_tokens * head.in_dim)
    exact = logits_stacked(head, weights, z)
    with precise(precision):
        stacked = logits_stacked(head, weights, z)
        alone = torch.stack([head(part) for part in z])
    assert stacked.dtype == torch.float32 and torch.allclose(stacked, alone, atol=0.05)
    assert torch.equal(stacked, exact) == (precision == "fp32")
