"Attempts at the exercises of 11_fedmox: wrong ones that `check` must catch, right ones written another way."
import math

import numpy as np


def _asked(n, share): return max(1, round(share * n))


def missed__wrong_share_not_rounded(n, share): return (1 - share) ** 5

def missed__wrong_rounds_up(n, share): return (1 - max(1, math.ceil(share * n)) / n) ** 5

def missed__wrong_rounds_down(n, share): return (1 - max(1, int(share * n)) / n) ** 5

def missed__wrong_nobody_may_be_asked(n, share): return (1 - round(share * n) / n) ** 5

def missed__wrong_draws_with_replacement(n, share): return (1 - 1 / n) ** (5 * _asked(n, share))

def missed__wrong_not_in_all_five(n, share): return 1 - (_asked(n, share) / n) ** 5

def missed__wrong_once_in_five(n, share): return 1 - (1 - _asked(n, share) / n) ** 5

def missed__right_counts_the_draws(n, share):
    m = _asked(n, share)
    return math.prod([math.comb(n - 1, m) / math.comb(n, m)] * 5)


def work__wrong_no_router(pixels, kernel, channels, experts, form):
    return pixels * kernel ** 2 * channels ** 2 * (experts if form == "masked" else 1)

def work__wrong_a_router_for_one(pixels, kernel, channels, experts, form):
    return pixels * ((experts if form == "masked" else 1) * kernel ** 2 * channels ** 2 + channels * experts)

def work__wrong_the_router_runs_once(pixels, kernel, channels, experts, form):
    return pixels * (experts if form == "masked" else 1) * kernel ** 2 * channels ** 2 + channels * experts * (experts > 1)

def work__wrong_gathering_needs_no_router(pixels, kernel, channels, experts, form):
    if form == "gathered": return pixels * kernel ** 2 * channels ** 2
    return pixels * (experts * kernel ** 2 * channels ** 2 + channels * experts * (experts > 1))

def work__wrong_kernel_on_a_side(pixels, kernel, channels, experts, form):
    return pixels * ((experts if form == "masked" else 1) * kernel * channels ** 2 + channels * experts * (experts > 1))

def work__wrong_router_with_the_experts_kernel(pixels, kernel, channels, experts, form):
    return pixels * kernel ** 2 * channels * ((experts if form == "masked" else 1) * channels + experts * (experts > 1))

def work__right_pixel_by_pixel(pixels, kernel, channels, experts, form):
    asked = {"gathered": 1, "masked": experts}[form]
    each = sum(channels * kernel * kernel * channels for _ in range(asked))
    if experts != 1: each += sum(channels for _ in range(experts))
    return sum(each for _ in range(pixels))


def anchored__wrong_sizes_ignored(server, states, sizes, n_server):
    return np.mean([server, *states], axis=0)

def anchored__wrong_clients_count_alike(server, states, sizes, n_server):
    alpha = n_server / (n_server + sum(sizes))
    return alpha * server + (1 - alpha) * np.mean(states, axis=0)

def anchored__wrong_half_and_half(server, states, sizes, n_server):
    return (server + np.average(states, axis=0, weights=sizes)) / 2

def anchored__wrong_server_against_the_number_of_clients(server, states, sizes, n_server):
    alpha = n_server / (n_server + len(sizes))
    return alpha * server + (1 - alpha) * np.average(states, axis=0, weights=sizes)

def anchored__wrong_the_other_way_round(server, states, sizes, n_server):
    alpha = sum(sizes) / (n_server + sum(sizes))
    return alpha * server + (1 - alpha) * np.average(states, axis=0, weights=sizes)

def anchored__wrong_overwrites_the_server(server, states, sizes, n_server):
    server *= n_server
    for state, size in zip(states, sizes): server += size * state
    server /= n_server + sum(sizes)
    return server

def anchored__right_soft_mixture(server, states, sizes, n_server):
    n = sum(sizes)
    mean = sum(size * state for state, size in zip(states, sizes)) / n
    return mean + n_server / (n_server + n) * (server - mean)


def top_gate__wrong_softmax_over_all(logits, k):
    p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    return np.where(np.argsort(np.argsort(-logits)) < k, p, 0)

def top_gate__wrong_zeros_take_part(logits, k):
    kept = np.where(np.argsort(np.argsort(-logits)) < k, logits, 0)
    e = np.exp(kept - kept.max())
    return e / e.sum()

def top_gate__wrong_the_smallest(logits, k):
    gate, kept = np.zeros(len(logits)), np.argsort(logits)[:k]
    e = np.exp(logits[kept] - logits[kept].max())
    gate[kept] = e / e.sum()
    return gate

def top_gate__wrong_one_each(logits, k): return (np.argsort(np.argsort(-logits)) < k).astype(float)

def top_gate__wrong_shares_of_logits(logits, k):
    kept = np.where(np.argsort(np.argsort(-logits)) < k, logits, 0)
    return kept / kept.sum()

def top_gate__wrong_only_the_kept(logits, k):
    e = np.exp(np.sort(logits)[::-1][:k] - logits.max())
    return e / e.sum()

def top_gate__wrong_overflows(logits, k):
    with np.errstate(over="ignore", invalid="ignore"):
        e = np.where(np.argsort(np.argsort(-logits)) < k, np.exp(logits), 0)
        return e / e.sum()

def top_gate__right_softmax_with_minus_infinity(logits, k):
    kept = np.where(logits >= np.sort(logits)[-k], logits, -np.inf)
    return np.exp(kept - np.logaddexp.reduce(kept))
