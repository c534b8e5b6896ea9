"""Penalties: teachers, Fisher information and projections against independent computations."""
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import equal

from fedbook.methods.continual import Finetune, StreamExperiment, expandable_cnn, make_stream, run_stream
from fedbook.engine.local import frozen, snapshot
from fedbook.engine.local import build, generator, picture_gradients
from fedbook.methods.penalties import (FLwF2TClient, FedEWC, FedEWCClient, FedLwF, FedLwFClient,
                                       extend_basis, fisher_diagonal, layer_gradient, layer_inputs, profiles,
                                       project_gradient)
from fedbook.engine.wire import Msg, Refused
from fedbook.engine.local import as_float

SMOKE = replace(profiles["smoke"], pictures=40, test_pictures=20)


def linear_model(dim=12, classes=4):
    return nn.Sequential(nn.Flatten(), build(lambda: nn.Linear(dim, classes), 0)).double()


def test_fisher_against_a_float64_loop():
    model, random = linear_model(), generator(5)
    x = torch.randn(70, 1, 3, 4, generator=random, dtype=torch.float64)
    y = torch.randint(4, (70,), generator=random)
    want = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for i in range(70):
        model.zero_grad()
        F.cross_entropy(model(x[i:i + 1]), y[i:i + 1]).backward()
        for name, p in model.named_parameters(): want[name] += p.grad**2 / 70
    got = fisher_diagonal(model, x, y)
    for name in want: torch.testing.assert_close(got[name], want[name], rtol=1e-10, atol=1e-14)
    p = F.softmax(model(x), 1) - F.one_hot(y, 4)
    torch.testing.assert_close(got["1.weight"], p.square().T @ x.flatten(1).square() / 70)


def test_ewc_ties_weights_to_the_old_ones_in_proportion():
    net = build(partial(expandable_cnn, 4), 0)
    client = FedEWCClient(0, net, [], strength=10.0, clip=0.5)
    anchor = snapshot(net)
    old = {name: p[:2] if name.startswith("head") else p for name, p in net.named_parameters()}
    fisher = {name: torch.full_like(p, 2.0 if name == "head.bias" else 0.25).detach()
              for name, p in old.items()}
    client.store = {"fisher": fisher, "anchor": anchor}
    with torch.no_grad():
        net.head.bias += 3.0
        net.body[0].bias += 2.0
    assert client.tension().item() == pytest.approx(2 * 0.5 * 9 + 16 * 0.25 * 4, rel=1e-5)


def test_projected_gradient_is_orthogonal_to_the_kept_basis():
    net = build(partial(expandable_cnn, 4), 0)
    x, y = torch.randn(20, 1, 28, 28, generator=generator(1)), torch.arange(20) % 4
    bases = {name: extend_basis(None, a, 0.9) for name, a in layer_inputs(net, x).items()}
    F.cross_entropy(net(torch.randn(20, 1, 28, 28, generator=generator(2))), y).backward()
    for name, layer in net.named_modules():
        if name not in bases: continue
        before = layer_gradient(layer).clone()
        project_gradient(layer, bases[name], 0.5)
        torch.testing.assert_close(layer_gradient(layer) @ bases[name], before @ bases[name] / 2, atol=1e-5,
                                   rtol=1e-3)
        project_gradient(layer, bases[name], 1.0)
        after = layer_gradient(layer)
        assert (after @ bases[name]).norm() < 1e-5 * (1 + before.norm()) and after.norm() > 0


def test_a_projected_step_leaves_old_outputs_as_they_are():
    layer = build(lambda: nn.Linear(30, 5), 0)
    old = torch.randn(8, 30, generator=generator(1))
    basis = extend_basis(None, F.pad(old, (0, 1), value=1.0).T, 1.0 - 1e-12)
    layer(torch.randn(16, 30, generator=generator(2))).square().sum().backward()
    before = layer(old).detach()
    project_gradient(layer, basis)
    with torch.no_grad():
        for p in layer.parameters(): p -= p.grad
    torch.testing.assert_close(layer(old), before, atol=1e-4, rtol=1e-4)


def test_a_basis_grows_by_the_fewest_directions():
    random = generator(3)
    first, second = torch.randn(20, 6, generator=random), torch.randn(20, 40, generator=random)
    one = extend_basis(None, first, 0.8)
    s = torch.linalg.svdvals(first.double()).square()
    assert one.shape[1] == int((s.cumsum(0) / s.sum() < 0.8).sum()) + 1
    two = extend_basis(one, second, 0.9)
    torch.testing.assert_close(two.T @ two, torch.eye(two.shape[1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(two @ (two.T @ one), one, atol=1e-5, rtol=0)
    held = lambda b: float((b.T @ second).square().sum() / second.square().sum())
    assert held(two) >= 0.9 - 1e-6 and extend_basis(two, second, 0.9).shape == two.shape


def test_a_memo_comes_with_the_first_message_that_is_answered():
    experiment = StreamExperiment(replace(SMOKE, rounds=2), 0, method=FedEWC)
    server, client = experiment.server(), experiment.client(1)
    server.merge([(1, client.fit(server.send(1)))])
    server.merge_fisher([(1, client.fisher(server.send(1)))])
    server.begin([0, 1, 2], 2)
    has_memo = lambda id: any(name.startswith("memo/") for name in server.send(id).tensors)
    assert server.task == 1 and has_memo(0) and has_memo(1)
    server.merge([(1, client.fit(server.send(1)))])
    assert has_memo(0) and not has_memo(1)


def test_without_strength_lwf_and_ewc_are_finetune():
    stream = make_stream(SMOKE, 0)
    weights = lambda method: run_stream(method, stream, SMOKE, 0, workers=1).server.weights
    want = weights(Finetune)
    for method, client in ((FedLwF, FedLwFClient), (FedEWC, FedEWCClient)):
        assert equal(weights(method._replace(client=partial(client, strength=0.0))), want)


@pytest.mark.parametrize("kind", [FedLwFClient, FLwF2TClient], ids=lambda k: k.__name__)
def test_losses_with_a_teacher_by_hand(kind):
    net = build(partial(expandable_cnn, 6), 0)
    one, two = (frozen(build(partial(expandable_cnn, 6), s)) for s in (1, 2))
    client, y = kind(0, net, []), torch.tensor([4, 5, 4, 4, 5])
    x = torch.randn(5, 1, 28, 28, generator=generator(1))
    client.old, client._teacher, client._teachers = 4, one, [one, two]
    z = net(x)
    def soft(teacher):
        log_p, log_q = (F.log_softmax(logits[:, :4] / 2, 1) for logits in (teacher(x), z))
        return (log_p.exp() * (log_p - log_q)).sum(1).mean()
    new, seen = F.cross_entropy(z[:, 4:], y - 4), F.cross_entropy(z, y)
    want = new + 3 * soft(one) if kind is FedLwFClient else (seen + soft(one) + soft(two)) / 3
    torch.testing.assert_close(client.loss(x, y), want)


def test_a_latecomer_looks_back_at_the_weights_from_before_the_task():
    experiment = StreamExperiment(replace(SMOKE, rounds=2), 0, method=FedLwF)
    server, early, late = experiment.server(), experiment.client(0), experiment.client(1)
    for client in (early, late): server.merge([(client.id, client.fit(server.send(client.id)))])
    server.begin([0, 1], 2)
    opened = dict(server.weights)
    server.merge([(0, early.fit(server.send(0)))])
    reply = late.fit(server.send(1))
    assert equal(late.store["teacher"], opened) and equal(early.store["teacher"], opened)
    assert not equal(server.weights, opened)
    server.merge([(1, reply)])
    assert not any(name.startswith("before/") for id in (0, 1) for name in server.send(id).tensors)


def test_a_negative_fisher_information_is_refused():
    experiment = StreamExperiment(SMOKE, method=FedEWC)
    server = experiment.server()
    reply = experiment.client(0).fisher(server.send(0))
    server.accept("fisher", 0, reply)
    negative = {**reply.tensors, "head.bias": -reply.tensors["head.bias"] - 1}
    with pytest.raises(Refused, match="negative"): server.accept("fisher", 0, Msg(negative, reply.meta))


def test_directions_that_are_few_fill_a_basis_from_either_side():
    """A tall matrix goes through a singular value decomposition, a wide one through its squares: both find
    the same space."""
    random = generator(5)
    wide = torch.randn(12, 3, generator=random) @ torch.randn(3, 40, generator=random)
    tall = wide[:, :8]
    for a in (wide, tall):
        basis = extend_basis(None, a, 1 - 1e-9)
        assert basis.shape == (12, 3)
        torch.testing.assert_close(basis @ (basis.T @ a), a, atol=1e-4, rtol=1e-4)


def test_the_gradients_of_pictures_have_the_mean_that_a_batch_has():
    net, (x, y) = build(partial(expandable_cnn, 10), 0), make_stream(SMOKE, 0).test[0]
    F.cross_entropy(net(as_float(x)), y).backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(picture_gradients(net, as_float(x), y)[name].mean(0), p.grad, atol=1e-5,
                                   rtol=1e-3)
