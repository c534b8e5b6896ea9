"Hidden cases for the blanks of 20_beyond: each function draws the arguments of one case."
import torch

from fedbook.answers import beyond as answers


def _tensor(g, *shape): return torch.tensor(g.normal(size=shape)).float()


def _state(g, size=1.0): return {"w": size * _tensor(g, 2, 3), "b": size * _tensor(g, 3)}


def _whole(g, n): return torch.tensor(g.integers(0, 2**32, n))


def read_pictures(g):
    classes = int(g.integers(2, 8))
    return _tensor(g, classes, int(g.integers(1, 9))), _tensor(g, classes)


def summand(g): return _state(g), _state(g), int(g.integers(2, 900)), int(g.integers(1, 40))


def merged(g):
    sizes = [(int(g.integers(1, 900)), int(tau) + 1) for tau in g.permutation(39)[:int(g.integers(2, 7))]]
    return _state(g), [(_state(g, 0.1), n, n * tau) for n, tau in sizes]


def under_masks(g):
    d, k = int(g.integers(1, 9)), int(g.integers(0, 6))
    others = [int(id) for id in g.permutation(6)[:int(g.integers(2, 6))] if id != k]
    x = _tensor(g, d)
    return k, 5 * x + x.sign(), float(g.choice([0.5, 0.25, 0.125])), {id: _whole(g, d) for id in others}


def opened(g):
    d = int(g.integers(1, 9))
    return [_whole(g, d) for _ in range(int(g.integers(2, 7)))], float(g.choice([0.5, 0.25, 0.125]))


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


def read_pictures__rows(weight_move, bias_move):
    """Return a tensor (classes, d) in place of a dict: row c is the picture of class c if its bias went up, and
    zeros if not."""
    rows = torch.zeros_like(weight_move)
    for c, picture in answers.read_pictures(weight_move, bias_move).items(): rows[c] = picture
    return rows


def summand__root(start, state, n, tau):
    "Give the work as n times tau plus 1, and the direction with the opposite sign."
    direction, work = answers.summand(start, state, n, tau)
    return {name: -t for name, t in direction.items()}, work + 1


def summand__ready(start, state, n, tau):
    "Return $n_k d_k$ in place of $d_k$, ready to be added up. The work stays as it is."
    direction, work = answers.summand(start, state, n, tau)
    return {name: n * t for name, t in direction.items()}, work


def merged__half(start, summands):
    "The server goes half of the way."
    return {name: (t + start[name]) / 2 for name, t in answers.merged(start, summands).items()}


def merged__longest(start, summands):
    """The first fraction of (2), the mean number of steps, is replaced by the largest number of steps of a client.
    The number of steps of a client is its work over its $n_k$."""
    summands = list(summands)
    pictures, steps = sum(n for _, n, _ in summands), max(work / n for _, n, work in summands)
    total = {name: sum(n * d[name].double() for d, n, _ in summands) for name in start}
    return {name: (w + steps * total[name] / pictures).to(w.dtype) for name, w in start.items()}


def under_masks__negative(k, x, step, masks):
    "Send all with the opposite sign, numbers and masks, modulo 2**32 as before."
    return -answers.under_masks(k, x, step, masks) % 2**32


def under_masks__turned(k, x, step, masks):
    "Client `k` subtracts the masks that it shares with larger ids, and adds those that it shares with smaller ids."
    return answers.under_masks(k, x, step, {other: -mask for other, mask in masks.items()})


def opened__steps(sent, step):
    "Return the sum in whole steps, not multiplied by `step`."
    return answers.opened(sent, step) / step


def opened__mean(sent, step):
    "Return the mean over the clients, in place of the sum."
    return answers.opened(sent, step) / len(sent)


def clipped__cut(update, clip):
    "Return what is cut off: the update minus the clipped one."
    return {name: update[name] - t for name, t in answers.clipped(update, clip).items()}


def clipped__smooth(update, clip):
    "Scale each update, a shorter one too, by `clip` / (`clip` + its norm)."
    norm = sum(float(t.double().square().sum()) for t in update.values()) ** 0.5
    return {name: t * (clip / (clip + norm)) for name, t in update.items()}


def noisy_step__loud(weights, updates, clip, noise, expected, generator):
    "The noise has twice the deviation."
    return answers.noisy_step(weights, updates, clip, 2 * noise, expected, generator)


def noisy_step__move(weights, updates, clip, noise, expected, generator):
    "Return only what (4) adds to the old weights $w$, in the dtypes of `weights`, and not $w$ plus that."
    still = {name: torch.zeros_like(w) for name, w in weights.items()}
    return answers.noisy_step(still, updates, clip, noise, expected, generator)


def matching_loss__cosine(moved, seen):
    "Return the cosine itself."
    return 1 - answers.matching_loss(moved, seen)


def matching_loss__each(moved, seen):
    "Compute one minus the cosine for each tensor on its own, and return the mean over the tensors."
    losses = [answers.matching_loss({name: moved[name]}, {name: seen[name]}) for name in seen]
    return sum(losses) / len(losses)
