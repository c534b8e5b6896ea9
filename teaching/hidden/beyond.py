"Hidden cases for the blanks of 20_beyond: each function draws the arguments of one case."
import torch

from fedbook.answers import beyond as answers


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


# Variations: NAME__HOW is the right answer to what its docstring asks for.

def read_pictures__down(weight_move, bias_move):
    "Read the classes whose bias went down, in place of up."
    return answers.read_pictures(-weight_move, -bias_move)


def summand__root(start, state, n, tau):
    "Give the work as n times tau plus 1, and the direction with the opposite sign."
    direction, work = answers.summand(start, state, n, tau)
    return {name: -t for name, t in direction.items()}, work + 1


def merged__half(start, summands):
    "The server goes half of the way."
    return {name: (t + start[name]) / 2 for name, t in answers.merged(start, summands).items()}


def under_masks__negative(k, x, step, masks):
    "Send all with the opposite sign, numbers and masks, modulo 2**32 as before."
    return -answers.under_masks(k, x, step, masks) % 2**32


def opened__steps(sent, step):
    "Return the sum in whole steps, not multiplied by `step`."
    return answers.opened(sent, step) / step


def clipped__cut(update, clip):
    "Return what is cut off: the update minus the clipped one."
    return {name: update[name] - t for name, t in answers.clipped(update, clip).items()}


def noisy_step__loud(weights, updates, clip, noise, expected, generator):
    "The noise has twice the deviation."
    return answers.noisy_step(weights, updates, clip, 2 * noise, expected, generator)


def matching_loss__cosine(moved, seen):
    "Return the cosine itself."
    return 1 - answers.matching_loss(moved, seen)
