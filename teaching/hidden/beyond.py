"Hidden cases for the blanks of 20_beyond: each function draws the arguments of one case."
import torch


def _tensor(g, *shape): return torch.tensor(g.normal(size=shape)).float()


def _state(g, size=1.0): return {"w": size * _tensor(g, 2, 3), "b": size * _tensor(g, 3)}


def _whole(g, n): return torch.tensor(g.integers(0, 2**32, n))


def read_pictures(g):
    classes = int(g.integers(2, 8))
    return _tensor(g, classes, int(g.integers(1, 9))), _tensor(g, classes)


def summand(g): return _state(g), _state(g), int(g.integers(1, 900)), int(g.integers(1, 40))


def merged(g):
    sizes = [(int(g.integers(1, 900)), int(g.integers(1, 40))) for _ in range(int(g.integers(1, 6)))]
    return _state(g), [(_state(g, 0.1), n, n * tau) for n, tau in sizes]


def under_masks(g):
    d, k = int(g.integers(1, 9)), int(g.integers(0, 6))
    others = [int(id) for id in g.permutation(6)[:int(g.integers(0, 5))] if id != k]
    return k, 5 * _tensor(g, d), float(g.choice([0.5, 0.25, 0.125])), {id: _whole(g, d) for id in others}


def opened(g):
    d = int(g.integers(1, 9))
    return [_whole(g, d) for _ in range(int(g.integers(1, 6)))], float(g.choice([0.5, 0.25, 0.125]))


def clipped(g): return _state(g, float(g.choice([0.01, 1.0, 10.0]))), float(g.uniform(0.1, 3))


def noisy_step(g):
    updates = [_state(g) for _ in range(int(g.integers(1, 6)))]
    dice = torch.Generator().manual_seed(int(g.integers(1000)))
    return _state(g), updates, float(g.uniform(0.1, 2)), float(g.uniform(0.3, 2)), int(g.integers(2, 9)), dice


def matching_loss(g):
    return {name: t.requires_grad_(True) for name, t in _state(g).items()}, _state(g)
