"Attempts at the exercises of methods/experts: wrong ones that `check` must catch, right ones written another way."
import math

import numpy as np


def work__wrong_no_router(pixels, kernel, channels, experts, form):
    return pixels * kernel ** 2 * channels ** 2 * (experts if form == "masked" else 1)

def work__wrong_a_router_for_one(pixels, kernel, channels, experts, form):
    return pixels * ((experts if form == "masked" else 1) * kernel ** 2 * channels ** 2 + channels * experts)

def work__wrong_the_router_runs_once(pixels, kernel, channels, experts, form):
    return pixels * (experts if form == "masked"
                     else 1) * kernel ** 2 * channels ** 2 + channels * experts * (experts > 1)

def work__wrong_gathering_needs_no_router(pixels, kernel, channels, experts, form):
    if form == "gathered": return pixels * kernel ** 2 * channels ** 2
    return pixels * (experts * kernel ** 2 * channels ** 2 + channels * experts * (experts > 1))

def work__wrong_kernel_on_a_side(pixels, kernel, channels, experts, form):
    return pixels * ((experts if form == "masked" else 1) * kernel * channels ** 2
                     + channels * experts * (experts > 1))

def work__wrong_router_with_the_experts_kernel(pixels, kernel, channels, experts, form):
    return pixels * kernel ** 2 * channels * ((experts if form == "masked" else 1) * channels
                                              + experts * (experts > 1))

def work__right_pixel_by_pixel(pixels, kernel, channels, experts, form):
    asked = {"gathered": 1, "masked": experts}[form]
    each = sum(channels * kernel * kernel * channels for _ in range(asked))
    if experts != 1: each += sum(channels for _ in range(experts))
    return sum(each for _ in range(pixels))


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


def capped__wrong_rounds_down(chosen, experts, factor):
    capacity = int(factor * len(chosen) / experts)
    return np.array([(chosen[:i] == k).sum() < capacity for i, k in enumerate(chosen)])

def capped__wrong_one_more(chosen, experts, factor):
    capacity = math.ceil(factor * len(chosen) / experts)
    return np.array([(chosen[:i] == k).sum() <= capacity for i, k in enumerate(chosen)])

def capped__wrong_the_first_are_dropped(chosen, experts, factor):
    capacity = math.ceil(factor * len(chosen) / experts)
    return np.array([(chosen[i + 1:] == k).sum() < capacity for i, k in enumerate(chosen)])

def capped__wrong_factor_forgotten(chosen, experts, factor):
    capacity = math.ceil(len(chosen) / experts)
    return np.array([(chosen[:i] == k).sum() < capacity for i, k in enumerate(chosen)])

def capped__wrong_all_of_an_expert(chosen, experts, factor):
    counts = np.bincount(chosen, minlength=experts)
    return counts[chosen] <= math.ceil(factor * len(chosen) / experts)

def capped__right_sorts_by_expert(chosen, experts, factor):
    room = np.zeros(len(chosen), bool)
    for k in range(experts):
        room[np.flatnonzero(chosen == k)[:math.ceil(factor * len(chosen) / experts)]] = True
    return room
