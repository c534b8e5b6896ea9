"Attempts at the exercises of 00_start: wrong ones that `check` must catch, right ones written another way."
import math

import torch
from torch.nn.functional import cross_entropy, one_hot


def weighted__wrong_plain_mean(states, sizes):
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def weighted__wrong_weights_do_not_add_up_to_one(states, sizes):
    return {name: sum(size / len(states) * state[name] for size, state in zip(sizes, states))
            for name in states[0]}


def weighted__wrong_small_clients_count_more(states, sizes):
    shares = [1 / size / sum(1 / s for s in sizes) for size in sizes]
    return {name: sum(share * state[name] for share, state in zip(shares, states)) for name in states[0]}


def weighted__wrong_forgets_the_third(states, sizes):
    pairs = list(zip(states, sizes))[:2]
    return {name: sum(n * state[name] for state, n in pairs) / sum(n for _, n in pairs) for name in states[0]}


def weighted__wrong_overwrites_its_inputs(states, sizes):
    for state, size in zip(states, sizes):
        for t in state.values(): t.mul_(size / sum(sizes))
    for state in states[1:]:
        for name, t in state.items(): states[0][name].add_(t)
    return states[0]


def weighted__right_by_a_matrix_product(states, sizes):
    shares = torch.tensor(sizes, dtype=torch.float32) / sum(sizes)
    return {name: torch.tensordot(shares, torch.stack([state[name] for state in states]), 1)
            for name in states[0]}


def weighted__right_as_a_running_mean(states, sizes):
    mean, seen = {name: t.clone() for name, t in states[0].items()}, sizes[0]
    for state, size in zip(states[1:], sizes[1:]):
        seen += size
        for name in mean: mean[name] += (state[name] - mean[name]) * size / seen
    return mean


def round_bytes__wrong_one_way(shapes, clients):
    return clients * 4 * sum(math.prod(shape) for shape in shapes.values())


def round_bytes__wrong_sizes_added(shapes, clients):
    return 2 * clients * 4 * sum(sum(shape) for shape in shapes.values())


def round_bytes__wrong_single_numbers_left_out(shapes, clients):
    return 2 * clients * 4 * sum(math.prod(shape) for shape in shapes.values() if shape)


def round_bytes__wrong_double_precision(shapes, clients):
    return 2 * clients * 8 * sum(math.prod(shape) for shape in shapes.values())


def round_bytes__wrong_one_client(shapes, clients):
    return 2 * 4 * sum(math.prod(shape) for shape in shapes.values())


def round_bytes__right_by_tensors(shapes, clients):
    return sum(2 * clients * torch.empty(shape).nbytes for shape in shapes.values())


def _sgd(x, y, batches, rate):
    "Weight after one step on each of `batches` (slices), by hand."
    w, bias = torch.zeros(10, 784), torch.zeros(10)
    for i in batches:
        wrong = (x[i] @ w.T + bias).softmax(1) - one_hot(y[i], 10)
        w, bias = w - rate * wrong.T @ x[i] / len(x[i]), bias - rate * wrong.mean(0)
    return w


def _slices(n, size=32): return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def central__wrong_drops_the_last_batch(x, y, passes, rate):
    return _sgd(x, y, passes * [s for s in _slices(len(x)) if s.stop - s.start == 32 or len(x) < 32], rate)


def central__wrong_one_pass(x, y, passes, rate): return _sgd(x, y, _slices(len(x)), rate)


def central__wrong_all_at_once(x, y, passes, rate): return _sgd(x, y, passes * [slice(0, len(x))], rate)


def central__wrong_shuffles(x, y, passes, rate):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    return _sgd(x[order], y[order], passes * _slices(len(x)), rate)


def central__wrong_fixed_rate(x, y, passes, rate): return _sgd(x, y, passes * _slices(len(x)), 0.02)


def central__wrong_starts_anew_in_each_pass(x, y, passes, rate): return _sgd(x, y, _slices(len(x)), rate)


def central__wrong_momentum(x, y, passes, rate):
    model = torch.nn.Linear(784, 10)
    for p in model.parameters(): torch.nn.init.zeros_(p)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for s in passes * _slices(len(x)):
        optimiser.zero_grad()
        cross_entropy(model(x[s]), y[s]).backward()
        optimiser.step()
    return model.weight


def central__right_gradient_by_hand(x, y, passes, rate): return _sgd(x, y, passes * _slices(len(x)), rate)


def central__right_one_optimiser(x, y, passes, rate):
    model = torch.nn.Linear(784, 10)
    for p in model.parameters(): torch.nn.init.zeros_(p)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(passes):
        for xb, yb in zip(x.split(32), y.split(32)):
            optimiser.zero_grad()
            cross_entropy(model(xb), yb).backward()
            optimiser.step()
    return model.weight
