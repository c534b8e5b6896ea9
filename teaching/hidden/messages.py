"Hidden cases for the blanks of 03_messages: each function draws the arguments of one case."
import torch
from torch import nn

from fedbook.engine.local import build


def _tensor(g, *shape): return torch.tensor(g.normal(size=shape)).float()


def _state(g, size=1.0): return {"w": size * _tensor(g, 2, 3), "b": size * _tensor(g, 3)}


def payload(g):
    dtypes = ("float32", "float16", "int64", "bool")
    count = int(g.integers(1, 6))
    return {f"t{i}": (tuple(g.integers(1, 12, g.integers(0, 4)).tolist()), dtypes[g.integers(4)])
            for i in range(count)},


def fewest_bytes(g):
    t = _tensor(g, int(g.integers(1, 30)), int(g.integers(1, 30)))
    t[torch.tensor(g.random(tuple(t.shape)) < g.choice([0.0, 0.5, 0.97]))] = 0
    return t.to((torch.float32, torch.float16, torch.float64)[g.integers(3)]),


def fault(g):
    like, sent = _state(g), _state(g)
    kind, name = int(g.integers(7)), ("w", "b")[g.integers(2)]
    if kind == 1: del sent[name]
    if kind == 2: sent["more"] = torch.zeros(1)
    if kind == 3: sent[name] = sent[name].reshape(1, -1)
    if kind == 4: sent[name] = sent[name].double()
    if kind == 5: sent[name].view(-1)[g.integers(sent[name].numel())] = (torch.nan, torch.inf)[g.integers(2)]
    return sent, (int(g.integers(1, 900)), (0, -3, 2.0, None)[g.integers(4)])[kind == 6], like


def pull(g):
    return g.integers(1, 3000, g.integers(1, 8)).tolist(), int(g.integers(1, 300)), int(g.integers(1, 5))


def train_and_count(g):
    model = build(lambda: nn.Linear(4, 3), 0)
    weights = {"weight": _tensor(g, 3, 4), "bias": _tensor(g, 3)}
    batches = [(_tensor(g, n, 4), torch.tensor(g.integers(0, 3, n))) for n in g.integers(1, 6, g.integers(0, 5)).tolist()]
    return model, weights, batches, float(g.uniform(0.05, 0.5))


def normalised_average(g):
    count = int(g.integers(1, 6))
    states = [_state(g, 5.0) for _ in range(count)]
    return _state(g), states, g.integers(1, 900, count).tolist(), g.integers(1, 40, count).tolist()


def only_the_largest(g): return _state(g), float(g.uniform(0.02, 1))
