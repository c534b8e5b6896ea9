"Hidden cases for the blanks of 01_drift: each function draws the arguments of one case."
from functools import partial

import numpy as np
import torch

from fedbook.answers import drift as answers
from fedbook.engine import local


def _slope(A, low, w): return A @ (w - low)


def _gradient(g, d):
    half = g.normal(size=(d, d))
    return partial(_slope, half @ half.T / d + 0.1 * np.eye(d), g.normal(size=d))


def _state(g): return {"a": torch.tensor(g.normal(size=3)), "b": torch.tensor(g.normal(size=(2, 2)))}


def _tensors(g): return list(_state(g).values())


def walk(g):
    d = int(g.integers(1, 4))
    return g.normal(size=d), _gradient(g, d), int(g.integers(1, 9)), float(g.uniform(0.05, 0.3))


def fedavg_round(g):
    d = int(g.integers(1, 4))
    gradients = [_gradient(g, d) for _ in range(int(g.integers(2, 5)))]
    return g.normal(size=d), gradients, int(g.integers(2, 9)), float(g.uniform(0.05, 0.3))


def drift(g):
    count = int(g.integers(2, 5))
    return _state(g), [_state(g) for _ in range(count)], g.integers(1, 20, count).tolist()


def proximal(g):
    parameters = [t.requires_grad_() for t in _tensors(g)]
    return parameters, _tensors(g), float(g.uniform(0.01, 3))


def scaffold_fit(g):
    model = torch.nn.Linear(3, 4).double()
    batches = [(torch.tensor(g.normal(size=(n, 3))), torch.tensor(g.integers(0, 4, n))) for n in (2, 5)]
    state = lambda: {name: torch.tensor(g.normal(size=p.shape)) for name, p in model.named_parameters()}
    return model, batches, state(), state(), state(), float(g.uniform(0.05, 0.5))


def control_update(g):
    return _state(g), _state(g), _state(g), _state(g), int(g.integers(2, 20)), float(g.uniform(0.01, 0.5))


def momentum_step(g): return _state(g), _state(g), _state(g), float(g.uniform(0.1, 0.95))


def remedied_round(g):
    d = int(g.integers(1, 4))
    count = int(g.integers(2, 5))
    gradients = [_gradient(g, d) for _ in range(count)]
    knobs = float(g.uniform(0.05, 0.3)), float(g.uniform(0.1, 1)), float(g.uniform(0.1, 0.95))
    return g.normal(size=d), g.normal(size=(count, d)), g.normal(size=d), gradients, int(g.integers(2, 9)), *knobs


# Variations: NAME__HOW is the right answer to what its docstring asks for.

def walk__slower(w, gradient, steps, rate):
    "Step number i, counted from 0, has the rate `rate / (2 + i)`."
    points = [w]
    for i in range(steps): points.append(points[-1] - rate / (2 + i) * gradient(points[-1]))
    return np.stack(points)


def walk__signs(w, gradient, steps, rate):
    "Each step goes by `rate` times the signs of the gradient's entries, in place of the gradient."
    points = [w]
    for _ in range(steps): points.append(points[-1] - rate * np.sign(gradient(points[-1])))
    return np.stack(points)


def fedavg_round__half(w, gradients, steps, rate):
    "The server goes half of the way from `w` to the mean of the ends."
    return (w + answers.fedavg_round(w, gradients, steps, rate)) / 2


def fedavg_round__longer(w, gradients, steps, rate):
    "Client number k, counted from 0, takes `steps + k` steps."
    return np.mean([answers.walk(w, f, steps + k, rate)[-1] for k, f in enumerate(gradients)], axis=0)


def _ends(start, states, counts):
    flat = lambda state: torch.cat([state[name].double().flatten() for name in start])
    ends, shares = torch.stack([flat(each) for each in states]), torch.tensor(counts).double() / sum(counts)
    mean = shares @ ends
    return (ends - mean).norm(dim=1), shares, (mean - flat(start)).norm()


def drift__squares(start, states, counts):
    "Take the weighted mean of the squared distances, divided by the squared distance from $w^r$ to the mean."
    apart, shares, way = _ends(start, states, counts)
    return float(shares @ apart.square() / way.square())


def drift__sum(start, states, counts):
    "Divide by the distance from $w^r$ to the mean plus 1."
    apart, shares, way = _ends(start, states, counts)
    return float(shares @ apart / (way + 1))


def proximal__absolute(parameters, anchor, mu):
    "Write `mu` times the sum of the absolute differences, in place of half of `mu` times that of squares."
    return mu * sum((p - a).abs().sum() for p, a in zip(parameters, anchor))


def proximal__mean(parameters, anchor, mu):
    "Take the mean of the squared differences of each tensor, in place of their sum, and add these means up."
    return mu / 2 * sum((p - a).square().mean() for p, a in zip(parameters, anchor))


def control_update__half(own, shared, start, end, steps, lr):
    "$c$ counts half: subtract half of it."
    return local.control_update(own, {name: t / 2 for name, t in shared.items()}, start, end, steps, lr)


def control_update__slow(own, shared, start, end, steps, lr):
    "Return the mean of the old $c_k$ and the new one."
    new = local.control_update(own, shared, start, end, steps, lr)
    return {name: (t + own[name]) / 2 for name, t in new.items()}


def scaffold_fit__twice(model, batches, start, own, shared, lr):
    "$c$ counts double, in (6) and in (7)."
    return answers.scaffold_fit(model, batches, start, own, {name: 2 * t for name, t in shared.items()}, lr)


def scaffold_fit__slow(model, batches, start, own, shared, lr):
    "The steps have half of the rate `lr`, while (7) is computed with `lr` as it is."
    end, _ = answers.scaffold_fit(model, batches, start, own, shared, lr / 2)
    return end, local.control_update(own, shared, start, end, len(batches), lr)


def momentum_step__ahead(weights, mean, velocity, beta):
    "After the step, the weights go once more by `beta` times the new velocity, in the same direction."
    moved, velocity = local.momentum_step(weights, mean, velocity, beta)
    return {name: w - beta * velocity[name] for name, w in moved.items()}, velocity


def momentum_step__damped(weights, mean, velocity, beta):
    "What is added to `beta` times the old velocity counts 1 - `beta`."
    velocity = {name: beta * velocity[name] + (1 - beta) * (w - mean[name]) for name, w in weights.items()}
    return {name: w - velocity[name] for name, w in weights.items()}, velocity


def remedied_round__damped(w, own, velocity, gradients, steps, rate, mu, beta):
    "In (8), what is added to `beta` times the old velocity counts half."
    plain, renewed, _ = answers.remedied_round(w, own, 0 * velocity, gradients, steps, rate, mu, beta)
    velocity = beta * velocity + (w - plain) / 2
    return w - velocity, renewed, velocity


def remedied_round__without(w, own, velocity, gradients, steps, rate, mu, beta):
    "Leave $c$ out of (9) and (7): neither is it added to the gradients, nor subtracted from $c_k$."
    ends = []
    for gradient, c in zip(gradients, own):
        end = w
        for _ in range(steps): end = end - rate * (gradient(end) + mu * (end - w) - c)
        ends.append(end)
    velocity = beta * velocity + w - np.mean(ends, axis=0)
    return w - velocity, own + (w - np.stack(ends)) / (steps * rate), velocity
