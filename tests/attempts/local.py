"""Attempts at the exercises of engine/local."""
import numpy as np
import torch
import torch.nn.functional as F

from fedbook.engine.local import batches, fixed_point, generator


# ---- where FedProx rests

def prox_point__wrong_forgets_the_proximal_term(hessians, lows, steps, lr, mu):
    return fixed_point(hessians, lows, steps, lr)


def prox_point__wrong_rope_as_curvature(hessians, lows, steps, lr, mu):
    return fixed_point(hessians + mu * np.eye(lows.shape[1]), lows, steps, lr)


def prox_point__wrong_after_endless_steps(hessians, lows, steps, lr, mu):
    pulls = [np.linalg.inv(A + (mu + 1e-9) * np.eye(len(A))) @ A for A in hessians]
    return np.linalg.solve(sum(pulls), sum(p @ low for p, low in zip(pulls, lows)))


def prox_point__wrong_mean_of_lowest_points(hessians, lows, steps, lr, mu):
    return lows.mean(0)


def prox_point__wrong_for_two_weights_only(hessians, lows, steps, lr, mu):
    powers = lambda M: sum(np.linalg.matrix_power(M, j) for j in range(steps))
    pulls = [powers(np.eye(2) - lr * (A[:2, :2] + mu * np.eye(2))) @ A[:2, :2] for A in hessians]
    return np.linalg.solve(sum(pulls), sum(p @ low[:2] for p, low in zip(pulls, lows)))


def prox_point__right_by_running(hessians, lows, steps, lr, mu):
    w = lows.mean(0)
    for _ in range(3000):
        ends = []
        for A, low in zip(hessians, lows):
            end = w
            for _ in range(steps): end = end - lr * (A @ (end - low) + mu * (end - w))
            ends.append(end)
        w = np.mean(ends, axis=0)
    return w


def prox_point__right_by_targets(hessians, lows, steps, lr, mu):
    eye, left, right = np.eye(lows.shape[1]), 0, 0
    for A, low in zip(hessians, lows):
        held = A + mu * eye
        gone = eye - np.linalg.matrix_power(eye - lr * held, steps)
        left, right = left + gone @ (eye - mu
                                     * np.linalg.inv(held)), right + gone @ np.linalg.inv(held) @ A @ low
    return np.linalg.solve(left, right)


# ---- counting steps

def local_steps__wrong_rounds_up(n, size, epochs): return epochs * -(-n // size)


def local_steps__wrong_rounds_down(n, size, epochs): return epochs * max(1, n // size)


def local_steps__wrong_drops_every_remainder_of_one(n, size, epochs):
    return epochs * (-(-n // size) - (n % size == 1))


def local_steps__wrong_forgets_batches_of_one(n, size, epochs):
    return epochs * max(1, -(-n // size) - (n % size == 1))


def local_steps__wrong_over_all_passes(n, size, epochs):
    return max(1, -(-n * epochs // size) - (n * epochs % size == 1))


def local_steps__right_by_counting(n, size, epochs):
    return sum(len(batches(n, size, generator(0))) for _ in range(epochs))


def local_steps__right_by_lengths(n, size, epochs):
    lengths = [min(size, n - at) for at in range(0, n, size)]
    if len(lengths) > 1 and lengths[-1] == 1: lengths.pop()
    return epochs * len(lengths)


# ---- the full gradient

def _slopes(weights, x, y, reduction="mean"):
    own = {name: t.clone().requires_grad_() for name, t in weights.items()}
    F.cross_entropy(x @ own["weight"].T + own["bias"], y, reduction=reduction).backward()
    return {name: t.grad for name, t in own.items()}


def _all(batches): return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def full_gradient__wrong_mean_of_the_batches_means(weights, batches):
    parts = [_slopes(weights, x, y) for x, y in batches]
    return {name: torch.stack([p[name] for p in parts]).mean(0) for name in weights}


def full_gradient__wrong_sum_not_mean(weights, batches): return _slopes(weights, *_all(batches), "sum")


def full_gradient__wrong_first_batch_only(weights, batches): return _slopes(weights, *batches[0])


def full_gradient__wrong_walks_on_the_way(weights, batches):
    n, total = sum(len(y) for _, y in batches), {name: torch.zeros_like(t) for name, t in weights.items()}
    for x, y in batches:
        for name, t in _slopes(weights, x, y, "sum").items(): total[name] += t / n
        weights = {name: t - 0.1 * total[name] for name, t in weights.items()}
    return total


def full_gradient__wrong_forgets_the_bias(weights, batches):
    return _slopes(weights, *_all(batches)) | {"bias": torch.zeros_like(weights["bias"])}


def full_gradient__wrong_overwrites_the_weights(weights, batches):
    found = _slopes(weights, *_all(batches))
    for name, t in weights.items(): t -= 0.1 * found[name]
    return found


def full_gradient__right_by_formula(weights, batches):
    n, total = sum(len(y) for _, y in batches), {name: torch.zeros_like(t) for name, t in weights.items()}
    for x, y in batches:
        off = torch.softmax(x @ weights["weight"].T + weights["bias"], 1) - F.one_hot(y, len(weights["bias"]))
        total["weight"] += off.T @ x / n
        total["bias"] += off.sum(0) / n
    return total


def full_gradient__right_weighted_means(weights, batches):
    parts, n = [(len(y), _slopes(weights, x, y)) for x, y in batches], sum(len(y) for _, y in batches)
    return {name: sum(size * p[name] for size, p in parts) / n for name in weights}


def full_gradient__right_all_at_once(weights, batches): return _slopes(weights, *_all(batches))
