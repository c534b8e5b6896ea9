"Hidden cases for the blanks of `fedbook.fedmox`: each function draws the arguments of one case."
from functools import partial

import torch
from torch import nn

from fedbook.engine.local import build
from fedbook.methods.teacher import Pseudo


def _normal(g, *shape): return torch.tensor(g.normal(size=shape)).float()

def _size(g): return tuple(g.integers(1, 6, 3).tolist())

def _boxes(g, m):
    corner, sides = g.uniform(0, 20, (m, 2)), g.uniform(1, 20, (m, 2))
    return torch.tensor([[*a, *(a + b)] for a, b in zip(corner, sides)]).float()

def _scores(g, m): return torch.tensor(g.permutation(m) + 1).float() / (m + 1)

def _state(g): return {"w": _normal(g, 2, 3), "b": _normal(g, 2)}

def _layer(g, *shape): return build(partial(nn.Linear, *shape), int(g.integers(1000)))

def _half(state): return {name: t / 2 for name, t in state.items()}


def route(g):
    (b, h, w), k = _size(g), int(g.integers(1, 5))
    return _normal(g, b, 3, h, w), _normal(g, k, 3), _normal(g, k)

def gate_mask(g):
    b, h, w = _size(g)
    return (_normal(g, b, int(g.integers(1, 5)), h, w).requires_grad_(),)

def masked_sum(g):
    (b, h, w), k = _size(g), int(g.integers(1, 5))
    experts = [build(partial(nn.Conv2d, 3, 2, 1), int(g.integers(1000))) for _ in range(k)]
    return _normal(g, b, 3, h, w), _normal(g, b, k, h, w).softmax(1), experts

def gathered(g):
    (b, h, w), k = _size(g), int(g.integers(1, 5))
    return _normal(g, b, 3, h, w), torch.tensor(g.integers(0, k, (b, h, w))), _normal(g, k, 2, 3)

def suppress(g):
    m = int(g.integers(3, 12))
    return _boxes(g, m), _scores(g, m), float(g.uniform(0.1, 0.7))

def filters(g):
    m = int(g.integers(3, 12))
    pseudo = Pseudo(_boxes(g, m), torch.ones(m, dtype=torch.int64), _scores(g, m), _scores(g, m))
    return pseudo, *g.uniform(0.2, 0.8, 3).tolist()

def ema_update(g): return _layer(g, 3, 2), _layer(g, 3, 2), float(g.uniform(0.5, 0.999))

def student_epoch(g):
    views = [(_normal(g, 5, 3), _normal(g, 5, 3)) for _ in range(int(g.integers(1, 4)))]
    return _layer(g, 3, 4), views, float(g.uniform(0.26, 0.5)), 0.9, float(g.uniform(0.1, 1))

def soft_mixture(g): return _state(g), _state(g), float(g.uniform(0, 1))

def mean_of(g): return ([(_state(g), int(g.integers(1, 50))) for _ in range(int(g.integers(1, 4)))],)

def server_round(g):
    replies = [(_state(g), int(g.integers(1, 50))) for _ in range(int(g.integers(1, 4)))]
    return _state(g), replies, float(g.uniform(0.1, 0.9)), _half

def crossing(g):
    kinds = (torch.float32, torch.float16, torch.int64)
    names = ["body.a", "body.b", "head.a", "head.b"][:int(g.integers(1, 5))]
    return {name: torch.zeros(int(g.integers(1, 9)), dtype=kinds[g.integers(3)]) for name in names}, "body."
