"Hidden cases for the exercises of `fedbook.engine.local`: each function draws the arguments of one case."
import numpy as np
import torch

def prox_point(g):
    k, d = g.integers(2, 5), g.integers(1, 4)
    roots = g.normal(size=(k, d, d)) / 3
    hessians = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(d)
    return hessians, g.normal(size=(k, d)), int(g.integers(1, 15)), 0.2, float(g.uniform(0, 1))


def local_steps(g): return int(g.integers(1, 60)), int(g.integers(1, 20)), int(g.integers(1, 5))


def full_gradient(g):
    n, float32 = int(g.integers(2, 12)), torch.float32
    x, y = torch.tensor(g.normal(size=(n, 4)), dtype=float32), torch.tensor(g.integers(0, 3, n))
    weights = {"weight": torch.tensor(g.normal(size=(3, 4)), dtype=float32),
               "bias": torch.tensor(g.normal(size=3), dtype=float32)}
    size = int(g.integers(1, n + 1))
    return weights, list(zip(x.split(size), y.split(size)))
