"Hidden cases for the exercises of `fedbook.engine.stacked`: each function draws the arguments of one case."
import torch

def own_means(g):
    k, n = int(g.integers(1, 5)), int(g.integers(1, 7))
    return torch.tensor(g.normal(size=(k, n)), dtype=torch.float32), g.integers(1, n + 1, k).tolist()


def heights(g): return g.integers(1, 7, g.integers(1, 8)).tolist()


def groups(g): return g.integers(1, 100, g.integers(2, 8)).tolist(), int(g.integers(1, 5))
