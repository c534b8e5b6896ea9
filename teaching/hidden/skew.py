"Hidden cases for the blanks of `02_skew`: each function draws the arguments of one case."
import numpy as np
import torch


def _shares(g): return g.dirichlet([1.0] * int(g.integers(2, 6)))


def deal_class(g):
    shares = _shares(g)
    held = g.integers(0, 30, len(shares))
    held[g.integers(len(shares))] = 3
    return g.permutation(int(g.integers(3, 60))), shares, held, 10


def label_skew(g):
    labels = np.concatenate([np.arange(4), g.integers(0, 4, 30)])
    cuts = np.sort(g.choice(np.arange(1, len(labels)), int(g.integers(1, 5)), replace=False))
    return np.split(g.permutation(len(labels)), cuts), labels


def quantity_split(g): return g.integers(0, 4, int(g.integers(5, 60))), _shares(g)


def merge(g):
    normal = lambda *shape: torch.tensor(g.normal(size=shape), dtype=torch.float32)
    return [({"w": normal(2, 3), "b": normal()}, int(n)) for n in g.integers(1, 90, int(g.integers(1, 5)))]


def matrix_scores(g):
    t = int(g.integers(2, 6))
    return np.where(np.tri(t) > 0, g.random((t, t)), np.nan)


def soft_distance(g):
    b, old, new = g.integers(1, 5, 3).tolist()
    logits = lambda classes: torch.tensor(g.normal(scale=2, size=(b, classes)), dtype=torch.float32)
    return logits(old + 1), logits(old + new), float(g.uniform(0.5, 5))


def _layer(g):
    layer = torch.nn.utils.skip_init(torch.nn.Linear, 3, 5)
    for weight in layer.parameters(): weight.data = torch.tensor(g.normal(size=weight.shape), dtype=torch.float32)
    return layer


def distilled_step(g):
    b, old = int(g.integers(1, 5)), int(g.integers(0, 5))
    x = torch.tensor(g.normal(size=(b, 3)), dtype=torch.float32)
    y = torch.tensor(g.integers(0, 5, b))
    return _layer(g), _layer(g) if old else None, x, y, old, 0.1, float(g.uniform(0, 10)), float(g.uniform(1, 4))
