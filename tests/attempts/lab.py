"Attempts at the exercises of nbs/workshop/w1_lab.ipynb: see tests/test_exercises.py."
import math
import re
import statistics

import numpy as np
from scipy import stats


def _smallest(width, start=3):
    return next(n for n in range(start, 10_000) if width(n))


def seeds_for__wrong_normal_quantile(gap, noise):
    return _smallest(lambda n: 1.96 * noise / n ** 0.5 < gap)

def seeds_for__wrong_degrees_of_freedom(gap, noise):
    return _smallest(lambda n: stats.t.ppf(0.975, n) * noise / n ** 0.5 < gap)

def seeds_for__wrong_one_sided(gap, noise):
    return _smallest(lambda n: stats.t.ppf(0.95, n - 1) * noise / n ** 0.5 < gap)

def seeds_for__wrong_two_seeds_will_do(gap, noise):
    return _smallest(lambda n: stats.t.ppf(0.975, n - 1) * noise / n ** 0.5 < gap, 2)

def seeds_for__wrong_forgets_the_root(gap, noise):
    return _smallest(lambda n: stats.t.ppf(0.975, n - 1) * noise / n < gap)

def seeds_for__right_array(gap, noise):
    n = np.arange(3, 1000)
    return int(n[stats.t.isf(0.025, n - 1) * noise < gap * np.sqrt(n)][0])


def paired_interval__wrong_unpaired(a, b):
    error = math.sqrt(statistics.variance(a) / len(a) + statistics.variance(b) / len(b))
    return statistics.mean(a) - statistics.mean(b), error * stats.t.ppf(0.975, len(a) - 1)

def paired_interval__wrong_way_round(a, b):
    d = np.subtract(b, a)
    return d.mean(), stats.t.ppf(0.975, len(d) - 1) * stats.sem(d)

def paired_interval__wrong_population_deviation(a, b):
    d = np.subtract(a, b)
    return d.mean(), stats.t.ppf(0.975, len(d) - 1) * d.std() / len(d) ** 0.5

def paired_interval__wrong_absolute_difference(a, b):
    d = np.abs(np.subtract(a, b))
    return d.mean(), stats.t.ppf(0.975, len(d) - 1) * stats.sem(d)

def paired_interval__right_scipy(a, b):
    d = np.subtract(a, b)
    low, high = stats.t.interval(0.95, len(d) - 1, loc=d.mean(), scale=stats.sem(d))
    return (low + high) / 2, (high - low) / 2


def parse_bytes__wrong_powers_of_1024(text):
    number, unit = text.split()
    return float(number) * 1024 ** ["B", "kB", "MB", "GB"].index(unit)

def parse_bytes__wrong_capital_k(text):
    number, unit = text.split()
    return float(number) * {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}[unit]

def parse_bytes__wrong_whole_numbers(text):
    number, unit = text.split()
    return int(float(number)) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]

def parse_bytes__right_regular_expression(text):
    number, power = re.fullmatch(r"([\d.]+) ([kMG]?)B", text).groups()
    return float(number) * 10 ** (3 * ["", "k", "M", "G"].index(power))
