"Hidden cases for the blanks of `fedbook.fedreplay`: each function draws the arguments of one case."
from functools import partial

import torch
import torch.nn.functional as F

from fedbook.engine.local import build
from fedbook.methods.heads import ReplayHead

def _normal(g, *shape): return torch.tensor(g.normal(size=shape))

def _labels(g, n, classes): return torch.tensor(g.integers(0, classes, n))


def saved(g):
    def tensors(n):
        small = torch.zeros(int(g.integers(1, n)), dtype=torch.int8)
        return {"a": _normal(g, int(g.integers(1, n))), "b": small}
    return tensors(90), tensors(9)


def donate(g):
    n = int(g.integers(3, 40))
    drawn = torch.Generator().manual_seed(int(g.integers(99)))
    return _normal(g, n, 3), _labels(g, n, 4), float(g.uniform(0.01, 1)), drawn


def mixed_loss(g):
    own, shared = int(g.integers(1, 6)), int(g.integers(1, 6))
    logits = _normal(g, own + shared, 4).requires_grad_()
    return F.multi_margin_loss, logits, _labels(g, own, 4), _labels(g, shared, 4), float(g.uniform(0, 1))


def train_on_pool(g):
    head = build(partial(ReplayHead, 6, 3, 4, layers=1, heads=1, ff=4), int(g.integers(9))).double()
    m = int(g.integers(3, 9))
    return (head, _normal(g, m, 6), _labels(g, m, 3), int(g.integers(1, 4)), int(g.integers(1, 5)),
            torch.Generator().manual_seed(int(g.integers(99))), 0.01, 0.1)


def class_prototypes(g):
    n = int(g.integers(2, 9))
    return _normal(g, n, 3), _labels(g, n, 4) + 2


def expand_rows(g): return _normal(g, 4, 3), _normal(g, 4), _normal(g, int(g.integers(1, 4)), 3) * 5


def row_gated_average(g):
    def rows(): return {"weight": _normal(g, 4, 2), "bias": _normal(g, 4)}
    k = int(g.integers(1, 4))
    return [rows() for _ in range(k)], (g.integers(0, 4, (k, 4)) + [[1, 0, 0, 0]]).tolist(), rows()


def lda_message(g):
    n = int(g.integers(1, 9))
    return _normal(g, n, 3), _labels(g, n, 4), 4


def lda_classifier(g):
    y = torch.arange(20) % 4
    z = _normal(g, 20, 3) + 2 * F.one_hot(y, 4)[:, :3]
    hot = F.one_hot(y, 4).to(z)
    return hot.sum(0), hot.T @ z, z.T @ z, float(g.uniform(0.05, 1))


def replayed_epoch(g):
    head = build(partial(ReplayHead, 6, 3, 4, layers=1, heads=1, ff=4), int(g.integers(9))).double()
    batches = [(_normal(g, 2, 6), _labels(g, 2, 3), _normal(g, 3, 6), _labels(g, 3, 3))
               for _ in range(int(g.integers(1, 4)))]
    return head, batches, float(g.uniform(0.1, 0.4)), 0.01, 0.1
