"Attempts at the exercises of nbs/privacy/attack.ipynb: see tests/test_exercises.py."
import math
from bisect import bisect_left, bisect_right
from collections import Counter

import numpy as np


def alone__wrong_bins_closed_below(brightness, thresholds):
    bins = [bisect_right(sorted(thresholds), b) for b in brightness]
    return [k for k, own in enumerate(bins) if own and bins.count(own) == 1]


def alone__wrong_hears_the_dark(brightness, thresholds):
    bins = [sum(c < b for c in thresholds) for b in brightness]
    return [k for k, own in enumerate(bins) if bins.count(own) == 1]


def alone__wrong_last_bin_closed(brightness, thresholds):
    bins = [sum(c < b for c in thresholds) for b in brightness]
    return [k for k, own in enumerate(bins) if 0 < own < len(thresholds) and bins.count(own) == 1]


def alone__wrong_thresholds_as_they_come(brightness, thresholds):
    bins = [bisect_left(thresholds, b) for b in brightness]
    return [k for k, own in enumerate(bins) if own and bins.count(own) == 1]


def alone__wrong_bins_for_places(brightness, thresholds):
    bins = [sum(c < b for c in thresholds) for b in brightness]
    return sorted(own for own in bins if own and bins.count(own) == 1)


def alone__wrong_first_of_each_bin(brightness, thresholds):
    bins = [sum(c < b for c in thresholds) for b in brightness]
    return [k for k, own in enumerate(bins) if own and own not in bins[:k]]


def alone__right_by_counting_bins(brightness, thresholds):
    ordered = sorted(thresholds)
    bins = [bisect_left(ordered, b) for b in brightness]
    members = Counter(bins)
    return sorted(k for k in range(len(bins)) if bins[k] > 0 and members[bins[k]] < 2)


def false_members__wrong_only_beyond_d(n, d, others): return others if n > d else 0


def false_members__wrong_one_row_too_early(n, d, others): return others if n >= d - 1 else 0


def false_members__wrong_in_proportion(n, d, others): return round(others * min(1, n / d))


def false_members__wrong_counts_the_rows(n, d, others): return n + others if n >= d else 0


def false_members__wrong_never(n, d, others): return 0


def false_members__wrong_way_round(n, d, others): return others if n < d else 0


def false_members__right_by_free_directions(n, d, others):
    left = max(0, d - n)
    return 0 if left else others


def strangers_needed__wrong_rounds_down(fpr, share): return int((1 - fpr) / (fpr * share**2) + 1e-9)


def strangers_needed__wrong_one_more(fpr, share): return int((1 - fpr) / (fpr * share**2) + 1e-9) + 1


def strangers_needed__wrong_poisson(fpr, share): return math.ceil(1 / (fpr * share**2) - 1e-9)


def strangers_needed__wrong_without_the_square(fpr, share): return math.ceil((1 - fpr) / (fpr * share) - 1e-9)


def strangers_needed__wrong_absolute_error(fpr, share): return math.ceil(fpr * (1 - fpr) / share**2 - 1e-9)


def strangers_needed__wrong_one_alarm_is_enough(fpr, share): return math.ceil(1 / fpr - 1e-9)


def strangers_needed__right_tries_each(fpr, share):
    enough = lambda n: math.sqrt(fpr * (1 - fpr) / n) <= share * fpr * (1 + 1e-12)
    low, high = 0, 1
    while not enough(high): low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def pair_from__wrong_smaller_first(mean, cov):
    values, axes = np.linalg.eigh(cov)
    away = math.sqrt(max(values[-1], 0)) * axes[:, -1]
    return np.stack(sorted([mean + away, mean - away], key=lambda point: point[0]))


def pair_from__wrong_sample_covariance(mean, cov):
    values, axes = np.linalg.eigh(cov)
    away = math.sqrt(max(values[-1], 0) / 2) * axes[:, -1]
    return np.stack(sorted([mean + away, mean - away], key=lambda point: -point[0]))


def pair_from__wrong_without_the_root(mean, cov):
    values, axes = np.linalg.eigh(cov)
    away = values[-1] * axes[:, -1]
    return np.stack(sorted([mean + away, mean - away], key=lambda point: -point[0]))


def pair_from__wrong_smallest_axis(mean, cov):
    values, axes = np.linalg.eigh(cov)
    away = math.sqrt(max(values[0], 0)) * axes[:, 0]
    return np.stack(sorted([mean + away, mean - away], key=lambda point: -point[0]))


def pair_from__wrong_entries_apart(mean, cov):
    away = np.sqrt(np.diag(cov))
    return np.stack([mean + away, mean - away])


def pair_from__wrong_longer_first(mean, cov):
    values, axes = np.linalg.eigh(cov)
    away = math.sqrt(max(values[-1], 0)) * axes[:, -1]
    return np.stack(sorted([mean + away, mean - away], key=lambda point: -np.linalg.norm(point)))


def pair_from__right_from_one_column(mean, cov):
    k = int(np.argmax(np.diag(cov)))
    away = cov[:, k] / math.sqrt(cov[k, k]) if cov[k, k] > 0 else np.zeros(len(mean))
    if away[0] < 0: away = -away
    return np.array([mean + away, mean - away])


def strangers_needed__wrong_nearest(fpr, share): return round((1 - fpr) / (fpr * share**2))
