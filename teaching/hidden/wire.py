"Hidden cases for the exercises of `fedbook.engine.wire`: each function draws the arguments of one case."
import torch

from fedbook.engine.wire import Ledger, Msg, pack

def pays(g):
    n, b = int(g.integers(1, 200)), int(g.choice([1, 2, 4, 8]))
    border = n - (n + 7) // 8 / b
    return n, int(min(n, max(0, border + g.integers(-2, 3)))), b


def delta(g):
    old = {name: torch.tensor(g.normal(size=6) * 10 ** g.integers(0, 3)) for name in "wb"}
    return old, {name: t + torch.tensor(g.normal(size=6) ** 3 * 10 ** g.integers(0, 3)) for name, t in old.items()}


def costliest(g):
    ledger, sizes = Ledger(), g.integers(1, 1000, (2, 4))
    for n in range(6):
        for row, way in zip(sizes.tolist(), ("up", "down")):
            tensors = {f"t{i}": torch.ones(row[i]) for i in g.permutation(4)[:2]}
            ledger.record(0, way, 0, "fit", pack(Msg(tensors)))
    return ledger, str(g.choice(["up", "down"]))
