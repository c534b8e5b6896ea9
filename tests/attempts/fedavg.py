"""Attempts at the exercises of methods/fedavg."""
import math

import numpy as np
import torch

from fedbook.engine.federation import Mean


def _clip(start, state, bound, norm):
    change = {name: state[name] - start[name] for name in start}
    return {name: start[name] + t * min(1.0, bound / max(norm(change)[name], 1e-12))
            for name, t in change.items()}


def _mean(states, weights):
    total = sum(weights)
    return {name: sum(w * s[name] for s, w in zip(states, weights)) / total for name in states[0]}


def clipped_average__right_one_long_vector(start, states, weights, bound):
    names, mean = list(start), Mean()
    flat = lambda state: torch.cat([state[name].flatten() for name in names])
    for state, weight in zip(states, weights):
        change = flat(state) - flat(start)
        norm = torch.linalg.vector_norm(change)
        mean.add({"all": flat(start) + (change * (bound / norm) if norm > bound else change)}, weight)
    parts = mean.value()["all"].split([start[name].numel() for name in names])
    return {name: part.reshape(start[name].shape) for name, part in zip(names, parts)}


def clipped_average__wrong_each_tensor_apart(start, states, weights, bound):
    return _mean([_clip(start, s, bound, lambda u: {n: t.norm().item() for n, t in u.items()})
                  for s in states], weights)


def clipped_average__wrong_the_mean_is_clipped(start, states, weights, bound):
    mean = _mean(states, weights)
    norm = math.sqrt(sum((mean[n] - start[n]).square().sum().item() for n in start))
    return {n: start[n] + (mean[n] - start[n]) * min(1.0, bound / max(norm, 1e-12)) for n in start}


def clipped_average__wrong_always_scaled_to_the_bound(start, states, weights, bound):
    def to_bound(state):
        norm = math.sqrt(sum((state[n] - start[n]).square().sum().item() for n in start))
        return {n: start[n] + (state[n] - start[n]) * bound / max(norm, 1e-12) for n in start}
    return _mean([to_bound(s) for s in states], weights)


def clipped_average__wrong_weights_ignored(start, states, weights, bound):
    def norm(u):
        whole = math.sqrt(sum(t.square().sum().item() for t in u.values()))
        return dict.fromkeys(u, whole)
    return _mean([_clip(start, s, bound, norm) for s in states], [1] * len(states))


def trimmed_mean__right_by_taking_out_one_after_the_other(states, cut):
    def mean(tensors):
        rows = torch.stack(tensors).reshape(len(tensors), -1)
        kept = []
        for column in rows.T:
            values = sorted(column.tolist())
            for _ in range(cut): values = values[1:-1]
            kept.append(sum(values) / len(values))
        return torch.tensor(kept).reshape(tensors[0].shape)
    return {name: mean([s[name] for s in states]) for name in states[0]}


def trimmed_mean__wrong_whole_clients_go(states, cut):
    size = lambda s: sum(t.square().sum().item() for t in s.values())
    left = sorted(states, key=size)[cut:len(states) - cut]
    return {name: torch.stack([s[name] for s in left]).mean(0) for name in states[0]}


def trimmed_mean__wrong_only_the_largest(states, cut):
    return {name: torch.stack([s[name] for s in states]).sort(0).values[:len(states) - cut].mean(0)
            for name in states[0]}


def trimmed_mean__wrong_divided_by_all(states, cut):
    return {name: torch.stack([s[name] for s in states]).sort(0).values[cut:len(states) - cut].sum(0)
            / len(states) for name in states[0]}


def trimmed_mean__wrong_first_and_last_client(states, cut):
    left = states[cut:len(states) - cut]
    return {name: torch.stack([s[name] for s in left]).mean(0) for name in states[0]}


def median_state__right_by_sorting(states):
    def middle(tensors):
        ordered = torch.stack(tensors).sort(0).values
        n = len(tensors)
        return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return {name: middle([s[name] for s in states]) for name in states[0]}


def median_state__wrong_torch_median(states):
    return {name: torch.stack([s[name] for s in states]).median(0).values for name in states[0]}


def median_state__wrong_mean(states):
    return {name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]}


def median_state__wrong_one_number_for_a_tensor(states):
    return {name: torch.quantile(torch.stack([s[name] for s in states]), 0.5).expand_as(states[0][name])
            for name in states[0]}


def pick_by_size__right_gumbel(sizes, count, seed, r):
    noise = np.random.default_rng([7, seed, r]).gumbel(size=len(sizes))
    return sorted(np.argsort(-(np.log(sizes) + noise))[:count].tolist())


def pick_by_size__right_one_after_the_other(sizes, count, seed, r):
    rng, left, chosen = np.random.default_rng([seed, r, 1]), dict(enumerate(sizes)), []
    for _ in range(count):
        ids = list(left)
        weights = np.array([left[i] for i in ids], dtype=float)
        chosen.append(int(rng.choice(ids, p=weights / weights.sum())))
        del left[chosen[-1]]
    return sorted(chosen)


def pick_by_size__wrong_squared(sizes, count, seed, r):
    p = np.square(np.asarray(sizes, dtype=float))
    return sorted(np.random.default_rng([seed, r]).choice(len(sizes), count, replace=False,
                                                          p=p / p.sum()).tolist())


def pick_by_size__wrong_uniform(sizes, count, seed, r):
    return sorted(np.random.default_rng([seed, r]).choice(len(sizes), count, replace=False).tolist())


def pick_by_size__wrong_with_replacement(sizes, count, seed, r):
    p = np.asarray(sizes, dtype=float)
    return sorted(np.random.default_rng([seed, r]).choice(len(sizes), count, p=p / p.sum()).tolist())


def pick_by_size__wrong_global_generator(sizes, count, seed, r):
    p = np.asarray(sizes, dtype=float)
    return sorted(np.random.default_rng().choice(len(sizes), count, replace=False, p=p / p.sum()).tolist())


def pick_by_size__wrong_the_largest(sizes, count, seed, r):
    return sorted(np.argsort(-np.asarray(sizes), kind="stable")[:count].tolist())
