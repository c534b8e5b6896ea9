"Hidden cases for the exercises of `fedbook.fedreplay`: each function draws the arguments of one case."
import torch

def break_even(g):
    return tuple(int(g.integers(*span)) for span in ((100, 10**6), (8, 2000), (10**4, 10**7), (1, 200), (2, 40)))


def quota(g): return g.integers(0, 15, g.integers(1, 6)).tolist(), int(g.integers(0, 50))


def _floats(g, *shape): return torch.tensor(g.normal(size=shape), dtype=torch.float32)


def masked_gradient(g):
    classes = int(g.integers(1, 6))
    return _floats(g, classes, int(g.integers(1, 6))), torch.tensor(g.integers(0, 3, classes))


def centred_rows(g):
    d = int(g.integers(2, 7))
    return _floats(g, 3, d) + 2, _floats(g, int(g.integers(1, 9)), d), float(g.uniform(0.2, 5))
