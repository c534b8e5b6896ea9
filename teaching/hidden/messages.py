"Hidden cases for the blanks of 03_messages: each function draws the arguments of one case."
import torch
from torch import nn

from fedbook.answers import messages as answers
from fedbook.engine.local import build
from fedbook.privacy.compress import only_largest


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
    return g.integers(300, 3000, g.integers(1, 8)).tolist(), int(g.integers(1, 300)), int(g.integers(1, 5))


def train_and_count(g):
    model = build(lambda: nn.Linear(4, 3), 0)
    weights = {"weight": _tensor(g, 3, 4), "bias": _tensor(g, 3)}
    batches = [(_tensor(g, n, 4), torch.tensor(g.integers(0, 3, n))) for n in g.integers(1, 6, g.integers(0, 5)).tolist()]
    return model, weights, batches, float(g.uniform(0.05, 0.5))


def normalised_average(g):
    count = int(g.integers(1, 6))
    states = [_state(g, 5.0) for _ in range(count)]
    return _state(g), states, g.integers(1, 900, count).tolist(), g.integers(3, 40, count).tolist()


def only_the_largest(g): return _state(g), float(g.uniform(0.02, 1))


# Variations: NAME__HOW is the right answer to what its docstring asks for.

def payload__headed(layout):
    "Each tensor has a head of 8 bytes as well."
    return answers.payload(layout) + 8 * len(layout)


def payload__twice(layout):
    "Count both ways: all of it up, and down again without the bools, and one byte more for the verb."
    whole = {name: held for name, held in layout.items() if held[1] != "bool"}
    return answers.payload(layout) + answers.payload(whole) + 1


def fewest_bytes__saved(t):
    "Return how many bytes the shorter form saves, compared with all entries."
    return t.numel() * t.element_size() - answers.fewest_bytes(t)


def fewest_bytes__bits(t):
    "Return the number of bits in place of bytes: 8 for each byte of a value, and n for the mask, not rounded up."
    bits, n = 8 * t.element_size(), t.numel()
    return min(n * bits, n + int(t.count_nonzero()) * bits)


def fault__number(tensors, n, like):
    "Return the number of the fault in place of its name: 1 to 5 in this order, and 0 for a reply that can be used."
    names = ["", "names", "shape", "dtype", "not finite", "count"]
    return names.index(answers.fault(tensors, n, like))


def fault__tensors(tensors, n, like):
    """Return a sorted list of the names of all tensors with a fault: those that are missing, those that are not
    expected, and those with another shape, another dtype or an entry that is not finite. `n` is not looked at."""
    def sound(name):
        if name not in tensors or name not in like: return False
        alike = tensors[name].shape == like[name].shape and tensors[name].dtype == like[name].dtype
        return alike and bool(torch.isfinite(tensors[name]).all())
    return sorted(name for name in {*tensors, *like} if not sound(name))


def pull__others(sizes, batch, epochs):
    "Return for each client the share of all the others together."
    return [1 - share for share in answers.pull(sizes, batch, epochs)]


def pull__absolute(sizes, batch, epochs):
    "Divide each product $n_k \\tau_k$ by the number of all pictures, in place of the sum of the products."
    return [n * epochs * -(-n // batch) / sum(sizes) for n in sizes]


def train_and_count__change(model, weights, batches, lr):
    "Return by how much each weight has changed, in place of the new state."
    start = {name: t.clone() for name, t in weights.items()}
    state, tau = answers.train_and_count(model, weights, batches, lr)
    return {name: t - start[name] for name, t in state.items()}, tau


def train_and_count__losses(model, weights, batches, lr):
    "In place of $\\tau$, return a list of floats: the loss of each batch, before the step on this batch."
    losses = []
    model.load_state_dict(weights)
    for batch in batches:
        losses.append(torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).item())
        answers.train_and_count(model, {name: t.clone() for name, t in model.state_dict().items()}, [batch], lr)
    return {name: t.clone() for name, t in model.state_dict().items()}, losses


def normalised_average__half(start, states, n, tau):
    "The server goes half of the way to FedNova's new weights."
    new = answers.normalised_average(start, states, n, tau)
    return {name: (w + start[name]) / 2 for name, w in new.items()}


def normalised_average__one_step(start, states, n, tau):
    "Leave the factor $\\bar\\tau$ out of (2), as if it were 1."
    mean = sum(n_k * tau_k for n_k, tau_k in zip(n, tau)) / sum(n)
    return {name: start[name] + (w - start[name]) / mean
            for name, w in answers.normalised_average(start, states, n, tau).items()}


def only_the_largest__rest(change, keep):
    "Return what is left behind: the entries that are not kept, and zeros in place of the kept ones."
    return {name: change[name] - t for name, t in only_largest(change, keep).items()}


def only_the_largest__signs(change, keep):
    "In place of each entry that is kept, put its sign: 1 if it is positive, -1 if it is negative."
    return {name: t.sign() for name, t in only_largest(change, keep).items()}
