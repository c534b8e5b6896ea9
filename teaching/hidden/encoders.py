"Hidden cases for the exercises of `fedbook.datasets.encoders`: each function draws the arguments of one case."
import torch

def _floats(g, *shape): return torch.tensor(g.normal(size=shape), dtype=torch.float32)


def nearest_angle(g):
    d, lengths = int(g.integers(2, 9)), torch.tensor(g.uniform(0.1, 30, (5, 1)), dtype=torch.float32)
    return _floats(g, 6, d), lengths * _floats(g, 5, d)


def hypercolumn(g):
    b = int(g.integers(1, 4))
    return [_floats(g, b, *g.integers(1, 6, 3).tolist()) for _ in range(g.integers(1, 4))]


def break_even(g):
    dim, rounds = int(g.integers(2, 900)), int(g.integers(1, 60))
    return int(g.choice([g.integers(1, 10**6), dim * g.integers(1, 99)])), dim, rounds
