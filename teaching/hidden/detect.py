"Hidden cases for the exercises of `fedbook.methods.detect`: each function draws the arguments of one case."
import numpy as np
import torch

def _boxes(g, n):
    corner, side = g.uniform(0, 12, (n, 2)), g.uniform(4, 15, (n, 2))
    return torch.tensor(np.hstack([corner, corner + side]), dtype=torch.float32)


def _scores(g, n): return torch.tensor(g.permutation(99)[:n] / 100, dtype=torch.float32)


def suppress(g):
    n = int(g.integers(3, 9))
    return _boxes(g, n), _scores(g, n), float(g.uniform(0.1, 0.6))


def boxes_from(g):
    n = int(g.integers(1, 5))
    return torch.tensor(g.normal(size=(n, 4)) / 2, dtype=torch.float32), _boxes(g, n)


def recall_at(g):
    n = int(g.integers(2, 10))
    right = torch.tensor(g.random(n) < 0.6)
    return right, _scores(g, n), int(right.sum()) + int(g.integers(1, 4)), float(g.uniform(0.3, 0.9))
