"Attempts at the exercises of nbs/privacy/robust.ipynb: see tests/test_exercises.py."
import math

import numpy as np


def most_liars__wrong_half_may_lie(n, how): return max(0, (n - 3) // 2) if how == "krum" else n // 2


def most_liars__wrong_krum_without_strictly(n, how): return max(0, (n - (2 if how == "krum" else 1)) // 2)


def most_liars__wrong_below_nobody(n, how): return (n - (3 if how == "krum" else 1)) // 2


def most_liars__wrong_rounds_to_the_nearest(n, how):
    return max(0, round((n - 3) / 2)) if how == "krum" else (n - 1) // 2


def most_liars__wrong_trimmed_takes_both_ends_of_all(n, how):
    return max(0, {"median": (n - 1) // 2, "trimmed": (n - 1) // 4, "krum": (n - 3) // 2}[how])


def most_liars__wrong_a_third(n, how): return (n - 1) // 3 if how == "krum" else (n - 1) // 2


def most_liars__right_tries_each(n, how):
    holds = (lambda f: n > 2 * f + 2) if how == "krum" else (lambda f: 2 * f < n)
    return max((f for f in range(n) if holds(f)), default=0)


def boost_needed__wrong_honest_ones_forgotten(n, liars, wanted): return n * wanted / liars


def boost_needed__wrong_all_are_honest(n, liars, wanted): return (n * wanted - n) / liars


def boost_needed__wrong_one_liar_does_it_all(n, liars, wanted): return n * wanted - (n - liars)


def boost_needed__wrong_length_without_direction(n, liars, wanted):
    return abs(n * wanted - (n - liars)) / liars


def boost_needed__wrong_sum_for_mean(n, liars, wanted): return (wanted - (n - liars)) / liars


def boost_needed__wrong_whole_numbers(n, liars, wanted): return (n * wanted - (n - liars)) // liars


def boost_needed__right_from_what_is_missing(n, liars, wanted): return 1 + n / liars * (wanted - 1)


def bucketed_median__wrong_as_many_buckets(x, size):
    return np.median([part.mean(0) for part in np.array_split(x, size)], axis=0)


def bucketed_median__wrong_rest_is_dropped(x, size):
    size = min(size, len(x))
    whole = len(x) // size * size
    return np.median(x[:whole].reshape(-1, size, x.shape[1]).mean(1), axis=0)


def bucketed_median__wrong_median_inside(x, size):
    return np.mean([np.median(x[k:k + size], axis=0) for k in range(0, len(x), size)], axis=0)


def bucketed_median__wrong_mean_of_means(x, size):
    return np.mean([x[k:k + size].mean(0) for k in range(0, len(x), size)], axis=0)


def bucketed_median__wrong_one_number(x, size):
    return np.median([x[k:k + size].mean(0) for k in range(0, len(x), size)])


def bucketed_median__wrong_upper_middle(x, size):
    means = sorted([x[k:k + size].mean(0).tolist() for k in range(0, len(x), size)])
    return np.sort(np.array(means), axis=0)[len(means) // 2]


def bucketed_median__wrong_last_bucket_over_size(x, size):
    return np.median([x[k:k + size].sum(0) / size for k in range(0, len(x), size)], axis=0)


def bucketed_median__wrong_every_size_th(x, size):
    buckets = math.ceil(len(x) / size)
    return np.median([x[k::buckets].mean(0) for k in range(buckets)], axis=0)


def bucketed_median__right_by_sums(x, size):
    starts = np.arange(0, len(x), size)
    lengths = np.diff([*starts, len(x)])
    ordered = np.sort(np.add.reduceat(x, starts, axis=0) / lengths[:, None], axis=0)
    return (ordered[(len(starts) - 1) // 2] + ordered[len(starts) // 2]) / 2
