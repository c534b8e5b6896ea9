"Attempts at the exercises of nbs/methods/penalties.ipynb: see tests/test_exercises.py."
import itertools

import numpy as np


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


def soften__wrong_divides(p, temperature): return p / temperature

def soften__wrong_powers_do_not_add_up(p, temperature): return p ** (1 / temperature)

def soften__wrong_the_other_way_round(p, temperature): return soften__right_through_logarithms(p, 1 / temperature)

def soften__wrong_softmax_of_probabilities(p, temperature):
    powers = np.exp(p / temperature)
    return powers / powers.sum(1, keepdims=True)

def soften__wrong_sum_over_all_rows(p, temperature):
    powers = p ** (1 / temperature)
    return powers / powers.sum()

def soften__right_through_logarithms(p, temperature):
    with np.errstate(divide="ignore"): z = np.log(p) / temperature
    z = z - z.max(1, keepdims=True)
    return np.exp(z) / np.exp(z).sum(1, keepdims=True)


def left__wrong_mu_once(g, basis, mu):
    whole, inside = (g ** 2).sum(), ((g @ basis) ** 2).sum()
    return 1 - mu * inside / whole if whole else 1.0

def left__wrong_not_squared(g, basis, mu):
    whole = np.sqrt((g ** 2).sum())
    return float(np.sqrt(((g - mu * g @ basis @ basis.T) ** 2).sum()) / whole) if whole else 1.0

def left__wrong_the_part_that_is_taken(g, basis, mu):
    whole = (g ** 2).sum()
    return float(((mu * g @ basis) ** 2).sum() / whole) if whole else 1.0

def left__wrong_always_whole(g, basis, mu): return left__right_parts(g, basis, 1.0)

def left__wrong_divides_by_zero(g, basis, mu):
    return float(((g - mu * g @ basis @ basis.T) ** 2).sum() / (g ** 2).sum() if g.any() else 0.0)

def left__right_parts(g, basis, mu):
    whole, inside = (g ** 2).sum(), ((g @ basis) ** 2).sum()
    return float((whole - inside + (1 - mu) ** 2 * inside) / whole) if whole else 1.0
