"Attempts at the exercises of nbs/methods/wasserstein.ipynb: see tests/test_exercises.py."
import math
from itertools import count

import numpy as np


def others__wrong_covariances_subtracted(pooled, mine):
    (mean, cov, n), (my_mean, my_cov, my_n) = pooled, mine
    return (n * mean - my_n * my_mean) / (n - my_n), (n * cov - my_n * my_cov) / (n - my_n)

def others__wrong_pooled_mean_kept(pooled, mine):
    (mean, cov, n), (my_mean, my_cov, my_n) = pooled, mine
    second = n * (cov + np.outer(mean, mean)) - my_n * (my_cov + np.outer(my_mean, my_mean))
    return (n * mean - my_n * my_mean) / (n - my_n), second / (n - my_n) - np.outer(mean, mean)

def others__wrong_divided_by_all(pooled, mine):
    (mean, cov, n), (my_mean, my_cov, my_n) = pooled, mine
    its_mean = (n * mean - my_n * my_mean) / n
    second = n * (cov + np.outer(mean, mean)) - my_n * (my_cov + np.outer(my_mean, my_mean))
    return its_mean, second / n - np.outer(its_mean, its_mean)

def others__wrong_unbiased(pooled, mine):
    (mean, cov, n), (my_mean, my_cov, my_n) = pooled, mine
    rest = n - my_n
    its_mean = (n * mean - my_n * my_mean) / rest
    second = n * (cov + np.outer(mean, mean)) - my_n * (my_cov + np.outer(my_mean, my_mean))
    return its_mean, (second - rest * np.outer(its_mean, its_mean)) / (rest - 1)

def others__right_scatter_between(pooled, mine):
    "n cov is what scatters within both parts, and between them."
    (mean, cov, n), (my_mean, my_cov, my_n) = pooled, mine
    rest = n - my_n
    its_mean = mean + my_n / rest * (mean - my_mean)
    between = my_n * rest / n * np.outer(my_mean - its_mean, my_mean - its_mean)
    return its_mean, (n * cov - my_n * my_cov - between) / rest


def halfway__wrong_mean_of_variances(m1, v1, m2, v2):
    v = (v1 + v2) / 2
    return (m1 + m2) / 2, v, ((m1 - m2) ** 2).sum() / 4 + ((np.sqrt(v1) - np.sqrt(v)) ** 2).sum()

def halfway__wrong_half_of_the_square(m1, v1, m2, v2):
    whole = ((m1 - m2) ** 2).sum() + ((np.sqrt(v1) - np.sqrt(v2)) ** 2).sum()
    return (m1 + m2) / 2, ((np.sqrt(v1) + np.sqrt(v2)) / 2) ** 2, whole / 2

def halfway__wrong_deviations_for_variances(m1, v1, m2, v2):
    whole = ((m1 - m2) ** 2).sum() + ((np.sqrt(v1) - np.sqrt(v2)) ** 2).sum()
    return (m1 + m2) / 2, (np.sqrt(v1) + np.sqrt(v2)) / 2, whole / 4

def halfway__wrong_pooled(m1, v1, m2, v2):
    whole = ((m1 - m2) ** 2).sum() + ((np.sqrt(v1) - np.sqrt(v2)) ** 2).sum()
    return (m1 + m2) / 2, (v1 + v2) / 2 + (m1 - m2) ** 2 / 4, whole / 4

def halfway__right_from_the_result(m1, v1, m2, v2):
    m, s = np.mean([m1, m2], 0), np.mean([v1 ** 0.5, v2 ** 0.5], 0)
    return m, s * s, float(np.sum((m - m1) ** 2 + v1 + s * s - 2 * s * v1 ** 0.5))


def pictures_needed__wrong_sum_of_scatters(m1, c1, m2, c2, sigmas):
    distance2 = ((m1 - m2) ** 2).sum()
    return max(1, math.ceil(sigmas**2 * (np.trace(c1) + np.trace(c2)) / distance2)) if distance2 else math.inf

def pictures_needed__wrong_one_more(m1, c1, m2, c2, sigmas):
    distance2 = ((m1 - m2) ** 2).sum()
    return math.floor(sigmas**2 * max(np.trace(c1), np.trace(c2)) / distance2) + 1 if distance2 else math.inf

def pictures_needed__wrong_sigmas_not_squared(m1, c1, m2, c2, sigmas):
    distance2 = ((m1 - m2) ** 2).sum()
    return max(1, math.ceil(sigmas * max(np.trace(c1), np.trace(c2)) / distance2)) if distance2 else math.inf

def pictures_needed__wrong_none_at_all(m1, c1, m2, c2, sigmas):
    distance2 = ((m1 - m2) ** 2).sum()
    return math.ceil(sigmas**2 * max(np.trace(c1), np.trace(c2)) / distance2) if distance2 else math.inf

def pictures_needed__wrong_first_alone(m1, c1, m2, c2, sigmas):
    distance2 = ((m1 - m2) ** 2).sum()
    return max(1, math.ceil(sigmas**2 * np.trace(c1) / distance2)) if distance2 else math.inf

def pictures_needed__right_search(m1, c1, m2, c2, sigmas):
    apart, wide = float(np.linalg.norm(m1 - m2)), max(np.trace(c1), np.trace(c2))
    return next(b for b in count(1) if apart >= sigmas * math.sqrt(wide / b) - 1e-12) if apart else math.inf
