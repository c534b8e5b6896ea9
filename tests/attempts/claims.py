"""Wrong and right attempts at the exercises of evidence/claims."""
import math

from scipy.stats import t


def shrink__wrong_root_only(n, m): return math.sqrt(n / m)


def shrink__wrong_way_round(n, m):
    width = lambda k: t.ppf(0.975, k - 1) / math.sqrt(k)
    return width(n) / width(m)


def shrink__right_by_interval(n, m):
    high = lambda k: t.interval(0.95, k - 1, scale=1 / math.sqrt(k))[1]
    return high(m) / high(n)


def together__wrong_bonferroni(p_values, alpha):
    return [i for i, p in enumerate(p_values) if p < alpha / len(p_values)]


def together__wrong_goes_on_after_a_failure(p_values, alpha):
    order = sorted(range(len(p_values)), key=lambda i: p_values[i], reverse=True)
    return sorted(i for rank, i in enumerate(order, 1) if p_values[i] < alpha / rank)


def together__right_by_corrected(p_values, alpha):
    from fedbook.evidence.claims import holm
    return [i for i, p in enumerate(holm(p_values)) if p < alpha]


def tolerance_acts__wrong_in_percent(tolerance, pictures): return tolerance >= 100 / pictures


def tolerance_acts__wrong_strictly_more(tolerance, pictures): return tolerance * pictures > 1 + 1e-9


def tolerance_acts__right_by_rounding(tolerance, pictures): return round(tolerance * pictures, 6) >= 1
