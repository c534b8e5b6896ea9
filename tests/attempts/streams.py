"Attempts at the exercises of nbs/evidence/streams.ipynb: see tests/test_exercises.py."
import math

import numpy as np


def within__wrong_over_pictures_less_classes(counts, sums, second):
    there = counts > 0
    means = sums[there] / counts[there][:, None]
    inner = second - (counts[there][:, None] * means).T @ means
    return inner / max(1, counts.sum() - there.sum())


def within__wrong_means_count_alike(counts, sums, second):
    there = counts > 0
    means = sums[there] / counts[there][:, None]
    return (second - means.T @ means) / counts.sum()


def within__wrong_not_divided(counts, sums, second):
    there = counts > 0
    return second - (sums[there] / counts[there][:, None]).T @ sums[there]


def within__wrong_one_mean_for_all(counts, sums, second):
    mean = sums.sum(0) / counts.sum()
    return second / counts.sum() - np.outer(mean, mean)


def within__wrong_empty_class_is_nan(counts, sums, second):
    with np.errstate(invalid="ignore"): means = sums / counts[:, None]
    return (second - (counts[:, None] * means).T @ means) / counts.sum()


def within__wrong_diagonal_only(counts, sums, second):
    there = counts > 0
    return np.diag(np.diag(second - (sums[there] / counts[there][:, None]).T @ sums[there])) / counts.sum()


def within__right_class_by_class(counts, sums, second):
    inner = np.array(second, dtype=float)
    for n, s in zip(counts, sums):
        if n: inner -= np.outer(s, s) / n
    return inner / counts.sum()


def without__wrong_repeated_labels_once(counts, sums, second, z, y):
    sums = sums.copy()
    sums[y] -= z
    return counts - np.bincount(y, minlength=len(counts)), sums, second - z.T @ z


def without__wrong_outer_of_the_sum(counts, sums, second, z, y):
    sums = sums.copy()
    np.subtract.at(sums, y, z)
    return counts - np.bincount(y, minlength=len(counts)), sums, second - np.outer(z.sum(0), z.sum(0))


def without__wrong_counts_stay(counts, sums, second, z, y):
    sums = sums.copy()
    np.subtract.at(sums, y, z)
    return counts, sums, second - z.T @ z


def without__wrong_added(counts, sums, second, z, y):
    sums = sums.copy()
    np.add.at(sums, y, z)
    return counts + np.bincount(y, minlength=len(counts)), sums, second + z.T @ z


def without__wrong_one_count_for_each_label(counts, sums, second, z, y):
    left, sums = counts.copy(), sums.copy()
    left[np.unique(y)] -= 1
    np.subtract.at(sums, y, z)
    return left, sums, second - z.T @ z


def without__wrong_in_place(counts, sums, second, z, y):
    np.subtract.at(sums, y, z)
    return counts - np.bincount(y, minlength=len(counts)), sums, second - z.T @ z


def without__right_by_one_hot(counts, sums, second, z, y):
    member = (y[:, None] == np.arange(len(counts))).astype(float)
    return counts - member.sum(0).astype(int), sums - member.T @ z, second - np.einsum("ni,nj->ij", z, z)


def rounds_until_cheaper__wrong_one_way(weights, dim, new):
    return 8 * (new * (dim + 1) + dim * (dim + 1) // 2) // (4 * weights) + 1


def rounds_until_cheaper__wrong_whole_matrix(weights, dim, new):
    return 8 * (new * (dim + 1) + dim * dim) // (8 * weights) + 1


def rounds_until_cheaper__wrong_as_few_is_fewer(weights, dim, new):
    return math.ceil((new * (dim + 1) + dim * (dim + 1) // 2) / weights)


def rounds_until_cheaper__wrong_counts_forgotten(weights, dim, new):
    return 8 * (new * dim + dim * (dim + 1) // 2) // (8 * weights) + 1


def rounds_until_cheaper__wrong_singles(weights, dim, new):
    return 4 * (new * (dim + 1) + dim * (dim + 1) // 2) // (8 * weights) + 1


def rounds_until_cheaper__wrong_a_fraction(weights, dim, new):
    return (new * (dim + 1) + dim * (dim + 1) / 2) / weights


def rounds_until_cheaper__right_counts_up(weights, dim, new):
    numbers = new * (dim + 1) + sum(range(1, dim + 1))
    rounds = 1
    while rounds * weights <= numbers: rounds = max(rounds + 1, numbers // weights)
    return rounds
