"Hidden cases for the exercises of `fedbook.start`: each function draws the arguments of one case."
import torch

from fedbook.answers import start as answers

def _state(g):
    w, b = g.normal(size=3), g.normal()
    return {"w": torch.tensor(w, dtype=torch.float32), "b": torch.tensor(b, dtype=torch.float32)}


def weighted(g):
    n = int(g.integers(1, 5))
    return [_state(g) for _ in range(n)], g.integers(1, 90, n).tolist()


def round_bytes(g):
    shapes = {f"t{i}": tuple(g.integers(1, 20, g.integers(0, 4)).tolist()) for i in range(g.integers(1, 5))}
    return shapes, int(g.integers(1, 50))


def central(g):
    n = int(g.integers(5, 80))
    x, y = torch.tensor(g.random((n, 784)), dtype=torch.float32), torch.tensor(g.integers(0, 10, n))
    return x, y, int(g.integers(1, 3)), float(g.uniform(0.01, 0.1))


# Variations: NAME__HOW is the right answer to what its docstring asks for.

def weighted__guest(states, sizes):
    "There is one more client, with 10 pictures, whose weights are all 0."
    return answers.weighted([*states, {name: 0 * t for name, t in states[0].items()}], [*sizes, 10])


def round_bytes__headed(shapes, clients):
    "Each message has a head of 8 bytes as well."
    return answers.round_bytes(shapes, clients) + 2 * clients * 8


def central__change(x, y, passes, rate):
    "Return the weight with the opposite sign."
    return -answers.central(x, y, passes, rate)
