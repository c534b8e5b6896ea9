"Hidden cases for the blanks of 01_drift: each function draws the arguments of one case."
from functools import partial

import numpy as np
import torch


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
