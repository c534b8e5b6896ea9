"""Exemplars: herding, samples and scores against independent computations, and pictures rebuilt from
gradients."""
import itertools
import math
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import equal

from fedbook.methods.continual import (Finetune, Stream, StreamExperiment, expandable_cnn, logits,
                                       make_stream, run_stream, unit_features)
from fedbook.engine.local import frozen
from fedbook.engine.workers import prove, trial
from fedbook.methods.exemplars import (DER, DERClient, ExemplarSizes, GLFC, GLFCClient, ICaRL, ICaRLClient,
                                       ReFed, add_exemplars, annealed, compensation, expect_room,
                                       gradient_network, herding, importance, rebuild)
from fedbook.engine.local import annealed_rate
from fedbook.engine.federation import Client
from fedbook.engine.errors import UserError
from fedbook.engine.local import build, generator, picture_gradients
from fedbook.engine.wire import Msg, Refused, unpack
from fedbook.engine.local import as_float

SMOKE = ExemplarSizes(pictures=40, test_pictures=20, tasks=3, clients=3, rounds=1, epochs=1, memory=12,
                      proxy_steps=3, judge_epochs=1, tries=1)


@pytest.fixture(scope="module")
def stream(): return make_stream(SMOKE, 0)


def test_herding_against_brute_force():
    f = torch.randn(9, 3, generator=generator(7), dtype=torch.float64)
    mean, chosen = f.mean(0), []
    for _ in range(5):
        rest = [i for i in range(9) if i not in chosen]
        chosen.append(min(rest, key=lambda i: float((f[[*chosen, i]].mean(0) - mean).norm())))
    assert herding(f, 5) == chosen
    away = lambda some: float((f[list(some)].mean(0) - mean).norm())
    all_of_three = [away(c) for c in itertools.combinations(range(9), 3)]
    assert away(herding(f, 1)) == min(away((i,))
                                      for i in range(9)) and away(herding(f, 3)) < np.median(all_of_three)
    assert sorted(herding(f, 100)) == list(range(9))


def test_exemplars_share_the_memory_and_keep_the_best():
    x, y = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1), torch.tensor([0] * 5 + [1] * 5)
    last_first = lambda pictures, count: list(range(len(pictures)))[::-1][:count]
    held = add_exemplars(None, x, y, last_first, 6)
    assert held["x"].flatten().tolist() == [4, 3, 2, 9, 8, 7] and held["y"].tolist() == [0, 0, 0, 1, 1, 1]
    held = add_exemplars(held, x + 10, y * 0 + 2, last_first, 6)
    assert held["x"].flatten().tolist() == [4, 3, 9, 8, 19, 18] and held["y"].tolist() == [0, 0, 1, 1, 2, 2]


def test_der_keeps_a_uniform_sample_with_logits():
    def pictures(t): return torch.randint(256, (60, 1, 28, 28), generator=generator(t), dtype=torch.uint8)
    tasks = [(pictures(t), torch.full((60,), t)) for t in range(2)]
    shares = []
    for seed in range(30):
        client = DERClient(0, build(partial(expandable_cnn, 2), 0), tasks, seed=seed, memory=20)
        client.task = 0
        client.on_task_end(2)
        first = client.store["buffer"]["x"].clone()
        client.model.widen(1, generator(0))
        client.task = 1
        client.on_task_end(3)
        buffer = client.store["buffer"]
        assert buffer["z"].shape == (20, 3) and len(first) == 20
        old = buffer["z"][:, 2].isnan()
        shares.append(old.float().mean())
        now = logits(client.model, buffer["x"][old])[:, :2]
        torch.testing.assert_close(now, buffer["z"][old, :2], atol=1e-5, rtol=1e-5)
    assert abs(np.mean(shares) - 0.5) < 0.1


def test_importance_against_a_loop():
    linear = build(lambda: nn.Linear(12, 4), 0)
    model, random = nn.Sequential(nn.Flatten(), linear).double(), generator(9)
    x = torch.randn(40, 1, 3, 4, generator=random, dtype=torch.float64)
    y = torch.randint(4, (40,), generator=random)
    v, want = frozen(model).requires_grad_(True), np.zeros(40)
    for p in (1, 2):
        for part_of in torch.arange(40).split(32):
            total = [torch.zeros_like(q) for q in v.parameters()]
            for i in part_of.tolist():
                grads = torch.autograd.grad(F.cross_entropy(v(x[i:i + 1]), y[i:i + 1]), list(v.parameters()))
                want[i] += float(torch.cat([g.flatten() for g in grads]).norm()) / p
                for t, g in zip(total, grads): t += g / len(part_of)
            with torch.no_grad():
                for q, t, w in zip(v.parameters(), total, model.parameters()): q -= 0.1 * (t + 1.5 * (q - w))
    np.testing.assert_allclose(importance(model, x, y, lr=0.1, mix=0.25, passes=2), want, rtol=1e-6)


def test_compensation_has_mean_one_among_old_and_among_new():
    p, old = torch.rand(40, generator=generator(1)), torch.arange(40) % 3 == 0
    w = compensation(p, old)
    assert w[old].mean() == pytest.approx(1, abs=1e-5) and w[~old].mean() == pytest.approx(1, abs=1e-5)
    assert torch.isfinite(compensation(torch.ones(4), torch.tensor([True, True, False, False]))).all()


def test_glfc_with_sigmoids_is_the_published_loss():
    client = GLFCClient(0, build(partial(expandable_cnn, 4), 0), [], kind="bce")
    z, y = torch.randn(5, 4, generator=generator(0)), torch.tensor([0, 1, 2, 3, 3])
    hard = F.one_hot(y, 4).float()
    torch.testing.assert_close(client.miss(z, hard).mean(), F.binary_cross_entropy(torch.sigmoid(z), hard))
    with pytest.raises(UserError, match="kind='mse'"): GLFCClient(0, client.model, [], kind="mse")


def test_pictures_are_rebuilt_from_their_gradients():
    network = build(partial(gradient_network, 3, (1, 28, 28)), 0)
    x, y = as_float(make_stream(SMOKE, 0).test[0][0][::20]), torch.tensor([0, 1, 2])
    back = rebuild(network, picture_gradients(network, x, y), y, (1, 28, 28), 150, generator(0))
    assert (back - x).square().mean() < 0.05 < (torch.zeros_like(x) - x).square().mean()


def test_prototypes_must_be_gradients_of_new_classes():
    experiment = StreamExperiment(SMOKE, 0, method=GLFC)
    server, client = experiment.server(), experiment.client(0)
    server.begin_task(1)
    good = client.prototypes(server.ask(0))
    server.accept("prototypes", 0, good)
    assert set(good.meta["labels"]) <= {3, 4, 5}
    for labels in ([0], [3, 3], "3", [3.0], []):
        with pytest.raises(Refused): server.accept("prototypes", 0, Msg(good.tensors, {"labels": labels}))
    no_numbers = {**good.tensors, "0.bias": good.tensors["0.bias"] * math.nan}
    with pytest.raises(Refused): server.accept("prototypes", 0, Msg(no_numbers, good.meta))


def test_icarl_names_the_class_with_the_nearest_mean(stream):
    outcome = run_stream(ICaRL, stream, SMOKE, 0, workers=1)
    server, x = outcome.server, stream.test[0][0]
    f = unit_features(server.network(), x)
    want = torch.stack([(f - mean).norm(dim=1) for mean in server.means], 1).argmin(1)
    assert torch.equal(server.classify(x), want)


def test_memory_is_never_exceeded(stream):
    for method in (ICaRL, GLFC, ReFed, DER):
        states = run_stream(method, stream, SMOKE, 0, workers=1).federation.states
        for state in states.values():
            tensors = unpack(state).tensors
            sizes = [len(t) for name, t in tensors.items() if name in ("exemplars/y", "buffer/key")]
            assert sizes and sizes[0] <= SMOKE.memory


def test_a_memory_too_small_is_refused():
    with pytest.raises(UserError, match="memory=1"):
        add_exemplars(None, torch.zeros(4, 1, 2, 2), torch.tensor([0, 0, 1, 1]), lambda x, count: [0], 1)


def test_icarl_distils_beside_the_cross_entropy_by_hand():
    net, teacher = (build(partial(expandable_cnn, 6), s) for s in (0, 1))
    client, y = ICaRLClient(0, net, []), torch.tensor([4, 5, 4, 0, 5])
    x = torch.randn(5, 1, 28, 28, generator=generator(1))
    client.old, client._teacher = 4, frozen(teacher)
    z = net(x)
    log_p, log_q = (F.log_softmax(logits[:, :4] / 2, 1) for logits in (teacher(x), z))
    want = F.cross_entropy(z, y) + (log_p.exp() * (log_p - log_q)).sum(1).mean()
    torch.testing.assert_close(client.loss(x, y), want)


def test_hostile_replies_are_refused():
    of_icarl, of_glfc = (StreamExperiment(SMOKE, method=method) for method in (ICaRL, GLFC))
    icarl, glfc = of_icarl.server(), of_glfc.server()
    reply = of_icarl.client(0).means(icarl.send(0))
    icarl.accept("means", 0, reply)
    for name, t in (("counts", -reply.tensors["counts"]), ("sums", reply.tensors["sums"] * 1e9)):
        with pytest.raises(Refused, match="features"):
            icarl.accept("means", 0, Msg({**reply.tensors, name: t}, reply.meta))
    reply = of_glfc.client(0).prototypes(glfc.ask(0))
    huge = {name: t * 0 + 1e30 for name, t in reply.tensors.items()}
    with pytest.raises(Refused, match="larger"): glfc.accept("prototypes", 0, Msg(huge, reply.meta))


def test_a_memory_must_hold_one_picture_of_each_class_of_a_client():
    def has(*labels): return [(torch.zeros(len(labels), 1, 4, 4), torch.tensor(labels))]
    stream = Stream([["a", "b", "c"]], [has(0, 0, 1), has(2)], has(0, 1, 2), "made up")
    expect_room(2, stream)
    with pytest.raises(UserError, match="^memory=1 must be at least 2, the classes that a client has$"):
        expect_room(1, stream)


@dataclass(frozen=True)
class FallingSizes(ExemplarSizes):
    lr_end: float = 0.01

FALLING = FallingSizes(**{**asdict(SMOKE), "rounds": 3, "lr": 0.05})

def test_the_rate_falls_by_a_cosine_and_never_rises():
    rates = [annealed_rate(0.05, 0.01, done) for done in (0, 0.5, 1, 3)]
    assert rates == pytest.approx([0.05, 0.03, 0.01, 0.01])
    assert annealed_rate(0.001, 0.01, 0.7) == 0.001


@pytest.mark.parametrize("method", [Finetune, ICaRL, GLFC, ReFed], ids=lambda m: m.name)
def test_an_annealed_method_trains_at_the_rate_of_the_round(method, monkeypatch):
    rates, optimiser = [], Client.optimiser
    def look(self):
        rates.append(self.lr)
        return optimiser(self)
    monkeypatch.setattr(Client, "optimiser", look)
    experiment = StreamExperiment(FALLING, method=annealed(method))
    trial(experiment, workers=1)
    assert rates == pytest.approx([r for r in (0.05, 0.04, 0.02) for _ in range(3)] * 3)
    assert experiment.client(0).lr == 0.05


def test_an_annealed_method_at_a_constant_rate_is_the_method(stream):
    constant = replace(FALLING, lr_end=FALLING.lr)
    one, other = (trial(StreamExperiment(constant, method=m), workers=1) for m in (ICaRL, annealed(ICaRL)))
    assert equal(one.server.weights, other.server.weights)
    assert one.federation.states == other.federation.states


def test_an_annealed_method_is_proven():
    prove(StreamExperiment(replace(FALLING, rounds=1), method=annealed(ICaRL)), kills=4, kinds=("silent",))
