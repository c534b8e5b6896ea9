"Attempts at the exercises of nbs/evidence/left_open.ipynb: see tests/test_exercises.py."
import math

import numpy as np


def to_run__wrong_counts_a_name_twice(needs, there):
    flat = [chapter for chapters in needs for chapter in chapters if chapter not in there]
    return sorted(set(flat), key=lambda chapter: (-flat.count(chapter), chapter))


def to_run__wrong_only_by_name(needs, there):
    return sorted({chapter for chapters in needs for chapter in chapters} - set(there))


def to_run__wrong_measured_ones_too(needs, there):
    flat = [chapter for chapters in needs for chapter in set(chapters)]
    return sorted(set(flat), key=lambda chapter: (-flat.count(chapter), chapter))


def to_run__wrong_least_wanted_first(needs, there):
    flat = [chapter for chapters in needs for chapter in set(chapters) if chapter not in there]
    return sorted(set(flat), key=lambda chapter: (flat.count(chapter), chapter))


def to_run__wrong_equals_backwards(needs, there):
    flat = [chapter for chapters in needs for chapter in set(chapters) if chapter not in there]
    return sorted(set(flat), key=lambda chapter: (flat.count(chapter), chapter), reverse=True)


def to_run__right_by_a_loop(needs, there):
    waiting = {}
    for chapters in needs:
        for chapter in dict.fromkeys(chapters):
            if chapter not in there: waiting[chapter] = waiting.get(chapter, 0) + 1
    by_name = sorted(waiting)
    return sorted(by_name, key=waiting.get, reverse=True)


def _interval(values):
    from scipy.stats import t
    error = np.std(values, ddof=1) / len(values) ** 0.5
    return t.interval(0.95, len(values) - 1, np.mean(values), error)


def hinges__wrong_only_those_that_make_it_exclude(values, bound):
    out = lambda some: not _interval(some)[0] <= bound <= _interval(some)[1]
    return [k for k in range(len(values)) if out(values[:k] + values[k + 1:]) and not out(values)]


def hinges__wrong_by_the_sign_of_the_mean(values, bound):
    above = lambda some: np.mean(some) > bound
    return [k for k in range(len(values)) if above(values[:k] + values[k + 1:]) != above(values)]


def hinges__wrong_all_that_exclude(values, bound):
    out = lambda some: not _interval(some)[0] <= bound <= _interval(some)[1]
    return [k for k in range(len(values)) if out(values[:k] + values[k + 1:])]


def hinges__wrong_bound_is_always_zero(values, bound):
    out = lambda some: not _interval(some)[0] <= 0 <= _interval(some)[1]
    return [k for k in range(len(values)) if out(values[:k] + values[k + 1:]) != out(values)]


def hinges__right_by_scipy(values, bound):
    inside = lambda some: _interval(some)[0] <= bound <= _interval(some)[1]
    return [k for k in range(len(values)) if inside(np.delete(values, k)) != inside(values)]


def surprising__wrong_more_than_expected(n, level): return math.floor(n * (1 - level)) + 1


def surprising__wrong_counts_from_above(n, level):
    from scipy.stats import binom
    return next(k for k in range(n + 2) if binom.sf(k, n, 1 - level) < 0.05)


def surprising__wrong_chance_of_exactly_so_many(n, level):
    from scipy.stats import binom
    return next(k for k in range(1, n + 2) if binom.pmf(k, n, 1 - level) < 0.05)


def surprising__wrong_twice_the_expected(n, level): return math.ceil(2 * n * (1 - level)) + 1


def surprising__right_by_scipy(n, level):
    from scipy.stats import binom
    return next(k for k in range(n + 2) if binom.sf(k - 1, n, 1 - level) < 0.05)
