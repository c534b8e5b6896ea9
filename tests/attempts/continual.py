"Attempts at the exercises of nbs/09_continual.ipynb: see tests/test_exercises.py."
import itertools

import numpy as np


def orphans__wrong_some_client_lacks_it(memory):
    return np.flatnonzero(np.asarray(memory).min(0) == 0).tolist()

def orphans__wrong_clients_for_classes(memory): return np.flatnonzero(np.asarray(memory).sum(1) == 0).tolist()

def orphans__wrong_a_single_picture_counts_as_none(memory):
    return np.flatnonzero(np.asarray(memory).sum(0) <= 1).tolist()

def orphans__wrong_first_client_alone(memory): return [c for c, count in enumerate(memory[0]) if not count]

def orphans__right_columns(memory): return [c for c, column in enumerate(zip(*memory)) if not any(column)]


def fair_shares__wrong_one_pass(counts, memory):
    return [min(count, memory // len(counts)) for count in counts]

def fair_shares__wrong_the_rest_to_the_last(counts, memory):
    shares = [0] * len(counts)
    while memory and shares != list(counts):
        for c in reversed(range(len(counts))):
            if memory and shares[c] < counts[c]: shares[c], memory = shares[c] + 1, memory - 1
    return shares

def fair_shares__wrong_the_rest_to_the_largest(counts, memory):
    shares = [0] * len(counts)
    for _ in range(min(memory, sum(counts))):
        open_ = [c for c in range(len(counts)) if shares[c] < counts[c]]
        c = min(open_, key=lambda c: (shares[c], -counts[c]))
        shares[c] += 1
    return shares

def fair_shares__wrong_in_proportion(counts, memory):
    return [min(count, memory * count // sum(counts)) for count in counts]

def fair_shares__wrong_what_is_over_is_lost(counts, memory):
    share, rest = divmod(memory, len(counts))
    return [min(count, share + (c < rest)) for c, count in enumerate(counts)]

def fair_shares__right_water_level(counts, memory):
    memory = min(memory, sum(counts))
    level = max(k for k in range(max(counts) + 1) if sum(min(count, k) for count in counts) <= memory)
    shares = [min(count, level) for count in counts]
    for c in [c for c, count in enumerate(counts) if count > level][:memory - sum(shares)]: shares[c] += 1
    return shares


def strengths__wrong_resets_after(lost, alpha, threshold):
    since, found = 0, []
    for t, share in enumerate(lost, 1):
        found.append(alpha ** (t - since))
        if share > threshold: since = t
    return found

def strengths__wrong_at_the_threshold_too(lost, alpha, threshold):
    since, found = 0, []
    for t, share in enumerate(lost, 1):
        if share >= threshold: since = t
        found.append(alpha ** (t - since))
    return found

def strengths__wrong_counts_tasks_from_0(lost, alpha, threshold):
    since, found = 0, []
    for t, share in enumerate(lost):
        if share > threshold: since = t
        found.append(alpha ** (t - since))
    return found

def strengths__wrong_resets_once(lost, alpha, threshold):
    since = next((t for t, share in enumerate(lost, 1) if share > threshold), 0)
    return [alpha ** (t - since if t >= since else t) for t, _ in enumerate(lost, 1)]

def strengths__right_runs(lost, alpha, threshold):
    step = lambda mu, share: 1.0 if share > threshold else mu * alpha
    return list(itertools.accumulate(lost, step, initial=1.0))[1:]


def calibrate__wrong_largest_of_equals(z, y, recent, grid):
    import torch
    lowered = lambda b: torch.cat([z[:, :-recent], z[:, -recent:] - b], 1)
    return max(sorted(grid, reverse=True), key=lambda b: int((lowered(b).argmax(1) == y).sum()))

def calibrate__wrong_order_of_the_grid(z, y, recent, grid):
    import torch
    lowered = lambda b: torch.cat([z[:, :-recent], z[:, -recent:] - b], 1)
    return max(grid, key=lambda b: int((lowered(b).argmax(1) == y).sum()))

def calibrate__wrong_last_class_only(z, y, recent, grid):
    import torch
    lowered = lambda b: torch.cat([z[:, :-1], z[:, -1:] - b], 1)
    return max(sorted(grid), key=lambda b: int((lowered(b).argmax(1) == y).sum()))

def calibrate__wrong_first_classes(z, y, recent, grid):
    import torch
    lowered = lambda b: torch.cat([z[:, :recent] - b, z[:, recent:]], 1)
    return max(sorted(grid), key=lambda b: int((lowered(b).argmax(1) == y).sum()))

def calibrate__wrong_in_place(z, y, recent, grid):
    best, most = None, -1
    for b in sorted(grid):
        z[:, -recent:] -= b
        right = int((z.argmax(1) == y).sum())
        z[:, -recent:] += b
        if right > most: best, most = b, right
        z[0, -1] += 1e-3
    return best

def calibrate__right_one_table(z, y, recent, grid):
    grid = sorted(grid)
    taken = np.zeros((len(grid), 1, z.shape[1]))
    taken[:, 0, -recent:] = np.asarray(grid)[:, None]
    right = ((z.numpy()[None] - taken).argmax(2) == y.numpy()).sum(1)
    return grid[int(right.argmax())]
