import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import nn

from fedbook.engine.local import (batches, build, control_update, drift, fixed_point, generator,
                                  momentum_step, outputs, passes, predict, proximal, share_right, small_cnn,
                                  torch_threads, train)


def net(): return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

def some(n=11, seed=7):
    x = torch.randn(n, 4, generator=generator(seed))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()

def copied(model): return {name: t.detach().clone() for name, t in model.state_dict().items()}


# ---- where FedAvg rests

@st.composite
def clients(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    d, count = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    turns = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(count)]
    return np.stack([q @ np.diag(rng.uniform(0.2, 1, d)) @ q.T for q in turns]), rng.normal(size=(count, d))


@settings(max_examples=30, deadline=None)
@given(clients(), st.integers(1, 12), st.sampled_from([0.1, 0.5, 0.9]))
def test_the_fixed_point_is_where_the_loop_rests(found, steps, lr):
    hessians, lows = found
    w = np.zeros(lows.shape[1])
    for _ in range(2000):
        ends = np.repeat(w[None], len(lows), 0)
        for _ in range(steps): ends = ends - lr * np.einsum("kij,kj->ki", hessians, ends - lows)
        w = ends.mean(0)
    np.testing.assert_allclose(fixed_point(hessians, lows, steps, lr), w, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(clients(), st.integers(1, 50))
def test_the_fixed_point_at_its_ends(found, steps):
    hessians, lows = found
    best = np.linalg.solve(hessians.sum(0), np.einsum("kij,kj->i", hessians, lows))
    np.testing.assert_allclose(fixed_point(hessians, lows, 1, 0.5), best, atol=1e-8)
    np.testing.assert_allclose(fixed_point(hessians, lows, 5000, 0.5), lows.mean(0), atol=1e-8)
    same_shape = np.repeat(hessians[:1], len(lows), 0)
    np.testing.assert_allclose(fixed_point(same_shape, lows, steps, 0.5), lows.mean(0), atol=1e-7)


# ---- seeds, networks, threads

def test_generators_of_different_seeds_differ():
    drawn = {tuple(torch.rand(3, generator=generator(*seeds)).tolist())
             for seeds in ((), (0,), (0, 0), (5,), (5, 0), (0, 5))}
    assert len(drawn) == 6


def test_generators_do_not_touch_the_global_ones():
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    assert torch.equal(torch.rand(3, generator=generator(1, 2)), torch.rand(3, generator=generator(1, 2)))
    build(net, 3)
    batches(10, 3, generator(0))
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()


def test_build_depends_on_the_seed_alone():
    torch.rand(5)
    one = build(net, 3)
    torch.rand(5)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), build(net, 3).parameters()))
    assert not torch.equal(one[0].weight, build(net, 4)[0].weight)


def test_build_puts_the_global_generator_back_after_an_error():
    before = torch.random.get_rng_state()
    def fails(): raise KeyError(torch.rand(1))
    with pytest.raises(KeyError): build(fails, 0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_threads_are_put_back_even_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), torch_threads(1):
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == before


def test_small_cnn_for_other_pictures():
    for classes, channels, size in ((10, 1, 28), (7, 3, 32), (2, 1, 16)):
        assert small_cnn(classes, channels, size)(torch.zeros(2, channels, size, size)).shape == (2, classes)


# ---- batches and passes

@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_batches_hold_everything_once_and_none_is_alone(n, size, seed):
    parts = batches(n, size, generator(seed))
    assert sorted(torch.cat(parts).tolist()) == list(range(n))
    assert all(len(part) == size for part in parts[:-1])
    if n > 1: assert len(parts[-1]) > 1 or size == 1 and len(parts) > 1 and len(parts[-1]) == 2
    else: assert [len(part) for part in parts] == [1]
    assert torch.equal(torch.cat(parts), torch.randperm(n, generator=generator(seed)))


def test_passes_go_over_everything_each_in_a_new_order():
    x, y = torch.arange(7, dtype=torch.uint8).reshape(7, 1, 1, 1) * 30, torch.arange(7)
    seen = list(passes(x, y, 2, 4, generator(1)))
    first, second = (torch.cat([label for _, label in seen[i:i + 2]]) for i in (0, 2))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(7))
    assert not torch.equal(first, second)
    for pictures, labels in seen:
        assert pictures.dtype == torch.float32 and labels.dtype == torch.int64
        torch.testing.assert_close(pictures.flatten(), labels * 30 / 127.5 - 1)
    assert list(passes(x, y, 0, 4, generator(1))) == []


# ---- train

@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_train_against_autograd_by_hand(momentum):
    x, y = some()
    model, by_hand, velocity = build(net, 0), build(net, 0), [0.0] * 4
    train(model, passes(x, y, 3, 4, generator(2)), lambda x, y: F.cross_entropy(model(x), y),
          torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum))
    draw = generator(2)
    for _ in range(3):
        for i in batches(len(y), 4, draw):
            gradients = torch.autograd.grad(F.cross_entropy(by_hand(x[i]), y[i]), list(by_hand.parameters()))
            velocity = [momentum * v + g for v, g in zip(velocity, gradients)]
            with torch.no_grad():
                for p, v in zip(by_hand.parameters(), velocity): p -= 0.1 * v
    for p, q in zip(model.parameters(), by_hand.parameters()): torch.testing.assert_close(p, q)


def test_the_hooks_of_train_are_called_in_order():
    x, y = some()
    model, order = build(net, 0), []
    class Told(torch.optim.SGD):
        def zero_grad(self, *args): order.append("zero"); super().zero_grad(*args)
        def step(self, *args): order.append("step"); super().step(*args)
    def loss(x, y):
        order.append("loss")
        assert model.training
        return F.cross_entropy(model(x), y)
    def limit(): order.append("limit"); assert all(p.grad is not None for p in model.parameters())
    model.eval()
    train(model, passes(x, y, 1, 6, generator(0)), loss, Told(model.parameters(), lr=0.1), limit,
          lambda: order.append("after"))
    assert order == ["zero", "loss", "limit", "step", "after"] * 2


def test_after_has_the_last_word_on_the_weights():
    x, y = some()
    model = build(net, 0)
    def clamp():
        with torch.no_grad():
            for p in model.parameters(): p.clamp_(-0.01, 0.01)
    train(model, passes(x, y, 1, 4, generator(0)), lambda x, y: F.cross_entropy(model(x), y),
          torch.optim.SGD(model.parameters(), lr=1.0), after=clamp)
    assert max(float(p.detach().abs().max()) for p in model.parameters()) <= 0.01


def test_batches_may_hold_more_than_two_things():
    model, met = build(net, 0), []
    def loss(*batch): met.append(len(batch)); return model(batch[0]).square().mean()
    x, _ = some()
    train(model, [(x, 1, 2), (x,)], loss, torch.optim.SGD(model.parameters(), lr=0.1))
    assert met == [3, 1]


def test_a_client_with_a_single_picture_trains():
    x, y = some(1)
    model = build(net, 0)
    before = copied(model)
    train(model, passes(x, y, 1, 4, generator(0)), lambda x, y: F.cross_entropy(model(x), y),
          torch.optim.SGD(model.parameters(), lr=0.1))
    assert not all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_a_last_batch_of_one_and_a_batch_norm():
    x, y = some(9)
    model = build(lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), 0)
    train(model, passes(x, y, 1, 4, generator(0)), lambda x, y: F.cross_entropy(model(x), y),
          torch.optim.SGD(model.parameters(), lr=0.1))
    assert int(model[1].num_batches_tracked) == 2


# ---- looking

@given(st.integers(1, 15), st.integers(1, 20))
@settings(max_examples=20, deadline=None)
def test_outputs_do_not_depend_on_the_batch(n, batch):
    model = build(lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)),
                  0)
    x, _ = some(n)
    found = outputs(model, x, batch)
    torch.testing.assert_close(found, model.eval()(x).detach())
    assert found.device.type == "cpu" and not found.requires_grad and not model.training


def test_outputs_of_pictures_and_of_another_function():
    model, pictures = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.tensor([[0, 255, 51, 102]] * 3,
                                                                                 dtype=torch.uint8).reshape(3,
                                                                                                            1,
                                                                                                            2,
                                                                                                            2)
    floats = pictures.flatten(1) / 127.5 - 1
    torch.testing.assert_close(outputs(model, pictures, 2), model[1](floats).detach())
    torch.testing.assert_close(outputs(model, pictures, 2, of=model[0]), floats)


def test_outputs_keep_the_device_and_the_weights_of_the_model():
    model = build(net, 0)
    before = copied(model)
    outputs(model, some()[0])
    assert all(torch.equal(before[name], t) and t.device.type == "cpu"
               for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_predict_and_share_right():
    model, other, x = build(net, 0), build(net, 1), some()[0]
    said = predict(model, other.state_dict(), x, batch=3)
    assert said.dtype == torch.int64 and said.tolist() == [int(row.argmax()) for row in other(x)]
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters()))
    assert share_right(model, other.state_dict(), x, said) == 1.0
    wrong = said.clone()
    wrong[:4] = (wrong[:4] + 1) % 3
    assert share_right(model, other.state_dict(), x, wrong) == pytest.approx(7 / 11)


# ---- remedies, and what they are for

def test_proximal():
    p, a = [torch.tensor([3.0, 0.0], requires_grad=True)], [torch.tensor([1.0, 1.0])]
    term = proximal(p, a, 0.4)
    term.backward()
    assert term.item() == pytest.approx(0.2 * 5) and torch.allclose(p[0].grad, 0.4 * (p[0] - a[0]))


def test_proximal_over_several_tensors_and_not_for_unequal_numbers():
    p, a = [torch.ones(2), torch.full((2, 2), 3.0)], [torch.zeros(2), torch.ones(2, 2)]
    assert float(proximal(p, a, 2.0)) == pytest.approx(2 + 16)
    with pytest.raises(ValueError): proximal(p, a[:1], 2.0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 3), st.sampled_from([0.01, 0.2]))
def test_the_control_variate_is_the_mean_gradient_of_the_way(seed, epochs, lr):
    x, y = some(seed=seed)
    model, met, draw = build(net, 0), [], generator(seed)
    start = copied(model)
    own, shared = ({name: torch.randn(t.shape, generator=draw) for name, t in start.items()}
                   for _ in range(2))
    def correct():
        met.append({name: p.grad.clone() for name, p in model.named_parameters()})
        for name, p in model.named_parameters(): p.grad += shared[name] - own[name]
    train(model, passes(x, y, epochs, 4, draw), lambda x, y: F.cross_entropy(model(x), y),
          torch.optim.SGD(model.parameters(), lr=lr), limit=correct)
    new = control_update(own, shared, start, copied(model), len(met), lr)
    for name in start:
        torch.testing.assert_close(new[name], torch.stack([g[name] for g in met]).mean(0), atol=2e-3,
                                   rtol=1e-3)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8), st.floats(0, 0.99))
def test_momentum_step_against_torch(steps, beta):
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([p], lr=1.0, momentum=beta)
    state = velocity = {"w": torch.zeros(1, dtype=torch.float64)}
    for step in steps:
        p.grad = torch.full((1,), -step, dtype=torch.float64)
        optimiser.step()
        state, velocity = momentum_step(state, {"w": state["w"] + step}, velocity, beta)
    torch.testing.assert_close(state["w"], p.detach())


def test_momentum_step_leaves_its_arguments_alone():
    state, mean, velocity = ({"w": torch.tensor([v])} for v in (1.0, 3.0, 0.5))
    new, speed = momentum_step(state, mean, velocity, 0.5)
    assert (state["w"].item(), mean["w"].item(), velocity["w"].item()) == (1.0, 3.0, 0.5)
    assert speed["w"].item() == pytest.approx(0.25 - 2) and new["w"].item() == pytest.approx(2.75)
    assert momentum_step(state, mean, velocity, 0.0)[0]["w"].item() == pytest.approx(3.0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 5), st.floats(0.1, 10), st.floats(-5, 5))
def test_drift_does_not_change_with_scale_and_place(seed, count, scale, shift):
    rng = np.random.default_rng(seed)
    state = lambda: {"a": torch.tensor(rng.normal(size=(2, 3))), "b": torch.tensor(rng.normal(size=2))}
    start, ends, shares = state(), [state() for _ in range(count)], rng.uniform(1, 5, count)
    moved = lambda s: {name: scale * t + shift for name, t in s.items()}
    flat = lambda s: np.concatenate([s["a"].numpy().ravel(), s["b"].numpy()])
    points, weights = np.stack(list(map(flat, ends))), shares / shares.sum()
    mean = weights @ points
    want = weights @ np.linalg.norm(points - mean, axis=1) / np.linalg.norm(mean - flat(start))
    assert drift(start, ends, shares.tolist()) == pytest.approx(want)
    assert drift(moved(start), list(map(moved, ends)), shares.tolist()) == pytest.approx(want, rel=1e-6)
    reordered = [dict(reversed(end.items())) for end in ends]
    assert drift(start, reordered, shares.tolist()) == pytest.approx(want)


def test_drift_of_clients_that_agree_is_nothing():
    end = {"w": torch.tensor([1.0, 2.0])}
    assert drift({"w": torch.zeros(2)}, [end, end], [1, 3]) < 1e-12
    assert math.isclose(drift({"w": torch.zeros(2)}, [{"w": torch.tensor([1.0, 0])},
                                                      {"w": torch.tensor([0, 1.0])}], [1, 1]), 1.0)
