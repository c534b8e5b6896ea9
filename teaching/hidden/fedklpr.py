"Hidden cases for the blanks of `fedbook.fedklpr`: each function draws the arguments of one case."
import torch
from torch import nn
from torch.nn import functional as F


def _floats(g, *shape): return torch.tensor(g.normal(size=shape))

def _bools(g, *shape): return torch.tensor(g.random(shape) < 0.6)


def camera_proxies(g):
    n = int(g.integers(4, 12))
    clusters = torch.tensor(g.integers(-1, 3, n))
    clusters[0] = 0
    return _floats(g, n, 3), clusters, torch.tensor(g.integers(0, 2, n))


def kl_divergence(g):
    b, d = (int(v) for v in g.integers(1, 6, 2))
    return _floats(g, b, d + 1), _floats(g, b, d + 1)


def kl_weight(g): return (g.uniform(0, 2, int(g.integers(2, 6))).tolist(),)

def pruning_weight(g): return (g.uniform(0, 1, int(g.integers(2, 6))).tolist(),)

def combine_weights(g):
    n = int(g.integers(2, 6))
    return g.dirichlet([1.0] * n).tolist(), g.dirichlet([1.0] * n).tolist(), float(g.uniform())


def magnitude_mask(g):
    shape = tuple(int(v) for v in g.integers(2, 6, 2))
    return _floats(g, *shape), _bools(g, *shape), float(g.uniform(0.1, 0.9)), float(g.uniform(0.3, 1))


def sparse_mean(g):
    n = int(g.integers(2, 5))
    tensors = [_floats(g, 3, 4) for _ in range(n)]
    return tensors, [_bools(g, 3, 4) for _ in range(n)], g.dirichlet([2.0] * n).tolist()


def may_prune(g): return tuple(float(v) for v in g.uniform(0.5, 0.8, 3)) + (float(g.uniform(0, 0.2)),)

def try_mask(g):
    state, mask = {"w": _floats(g, 6), "b": _floats(g, 2)}, {"w": _bools(g, 6)}
    mask["w"][0] = False
    return state, mask, float(g.uniform(1, 4)), float(g.uniform(0, 2)), lambda s: float(s["w"].abs().sum())


def train_pruned(g):
    def net(): return nn.Linear(3, 4).double()
    pair = [net(), net()]
    for model in pair:
        for p in model.parameters(): p.data = _floats(g, *p.shape)
    mask = {"weight": _bools(g, 4, 3)}
    pair[0].weight.data *= mask["weight"]
    batches = [(_floats(g, 5, 3), torch.tensor(g.integers(0, 4, 5))) for _ in range(int(g.integers(1, 4)))]
    return *pair, batches, F.cross_entropy, mask, 0.5, 0.05


def next_model(g):
    n = int(g.integers(2, 4))
    states = [{"w": _floats(g, 3, 4), "b": _floats(g, 3)} for _ in range(n)]
    masks = [{"w": _bools(g, 3, 4)} for _ in range(n)]
    return states, masks, g.uniform(0.1, 1, n).tolist(), float(g.uniform(0.2, 0.8))
