"Attempts at the exercises of nbs/privacy/private.ipynb: see tests/test_exercises.py."
import math

import numpy as np


def repaired__wrong_way_round(total, gone, masks, modulus=2**32):
    for (a, b), mask in masks.items():
        if b == gone: total += mask
        if a == gone: total -= mask
    return total % modulus


def repaired__wrong_takes_all_away(total, gone, masks, modulus=2**32):
    return (total - sum(mask for pair, mask in masks.items() if gone in pair)) % modulus


def repaired__wrong_masks_of_others_too(total, gone, masks, modulus=2**32):
    for (a, b), mask in masks.items(): total += mask if a == gone else -mask
    return total % modulus


def repaired__wrong_without_the_modulus(total, gone, masks, modulus=2**32):
    for (a, b), mask in masks.items(): total += mask * ((a == gone) - (b == gone))
    return total


def repaired__wrong_own_modulus(total, gone, masks, modulus=2**32):
    for (a, b), mask in masks.items(): total += mask * ((a == gone) - (b == gone))
    return total % 2**32


def repaired__wrong_half_of_it(total, gone, masks, modulus=2**32):
    return (total - sum(mask for (_, b), mask in masks.items() if b == gone)) % modulus


def repaired__right_by_two_sums(total, gone, masks, modulus=2**32):
    added = sum(masks[pair] for pair in masks if pair[1] == gone)
    taken = sum(masks[pair] for pair in masks if pair[0] == gone)
    return (total + taken - added + len(masks) * modulus) % modulus


def next_clip__wrong_sign(clip, norms, wished=0.5, rate=0.2):
    return clip * math.exp(rate * (np.mean(np.array(norms) <= clip) - wished))


def next_clip__wrong_strictly_shorter(clip, norms, wished=0.5, rate=0.2):
    return clip * math.exp(-rate * (np.mean(np.array(norms) < clip) - wished))


def next_clip__wrong_first_order(clip, norms, wished=0.5, rate=0.2):
    return clip * (1 - rate * (np.mean(np.array(norms) <= clip) - wished))


def next_clip__wrong_a_count_for_a_share(clip, norms, wished=0.5, rate=0.2):
    return clip * math.exp(-rate * (np.sum(np.array(norms) <= clip) - wished))


def next_clip__wrong_always_half(clip, norms, wished=0.5, rate=0.2):
    return clip * math.exp(-rate * (np.mean(np.array(norms) <= clip) - 0.5))


def next_clip__wrong_adds(clip, norms, wished=0.5, rate=0.2):
    return clip - rate * (np.mean(np.array(norms) <= clip) - wished)


def next_clip__right_in_logarithms(clip, norms, wished=0.5, rate=0.2):
    long = sum(1 for norm in norms if norm > clip) / len(norms)
    return math.exp(math.log(clip) + rate * (wished - 1 + long))


def clients_needed__wrong_nearest(noise, weights, share): return round(noise * math.sqrt(weights) / share)


def clients_needed__wrong_rounds_down(noise, weights, share): return int(noise * math.sqrt(weights) / share)


def clients_needed__wrong_one_more(noise, weights, share): return int(noise * math.sqrt(weights) / share) + 1


def clients_needed__wrong_without_the_root(noise, weights, share): return math.ceil(noise * weights / share)


def clients_needed__wrong_noise_of_each(noise, weights, share):
    return math.ceil((noise / share) ** 2 * weights)


def clients_needed__wrong_forgets_the_noise(noise, weights, share):
    return math.ceil(math.sqrt(weights) / share)


def clients_needed__right_tries_each(noise, weights, share):
    return next(n for n in range(1, 10**6) if noise * math.sqrt(weights) <= share * n + 1e-9)


def counts_in__wrong_unrounded(moves, lr, n): return [n * (move / lr + 1 / len(moves)) for move in moves]


def counts_in__wrong_truncates(moves, lr, n): return [int(n * (move / lr + 1 / len(moves))) for move in moves]


def counts_in__wrong_ten_classes(moves, lr, n): return [round(n * (move / lr + 0.1)) for move in moves]


def counts_in__wrong_forgets_what_the_network_gave(moves, lr, n):
    return [round(n * move / lr) for move in moves]


def counts_in__wrong_forgets_the_rate(moves, lr, n):
    return [round(n * (move + 1 / len(moves))) for move in moves]


def counts_in__wrong_sign(moves, lr, n): return [round(n * (1 / len(moves) - move / lr)) for move in moves]


def counts_in__right_with_numpy(moves, lr, n):
    return np.rint(np.array(moves) * n / lr + n / len(moves)).astype(int).tolist()
