"Attempts at the exercises of methods/reid: wrong ones that `check` must catch, right ones written another way."
import math
from fractions import Fraction


def _precisions(right): return [sum(right[:i]) / i for i in range(1, len(right) + 1)]


def average_precision__wrong_mean_over_all_places(right):
    return sum(_precisions(right)) / len(right) if any(right) else None


def average_precision__wrong_divided_by_the_gallery(right):
    return sum(p for p, hit in zip(_precisions(right), right) if hit) / len(right) if any(right) else None


def average_precision__wrong_none_right_is_zero(right):
    shares = [p for p, hit in zip(_precisions(right), right) if hit]
    return sum(shares) / len(shares) if shares else 0.0


def average_precision__wrong_at_the_first_only(right):
    return 1 / (right.index(True) + 1) if any(right) else None


def average_precision__wrong_at_the_last_only(right):
    return [p for p, hit in zip(_precisions(right), right) if hit][-1] if any(right) else None


def average_precision__wrong_trapezoids(right):
    before, now, shares = 1.0, 0.0, []
    for precision, hit in zip(_precisions(right), right):
        before, now = now or before, precision
        if hit: shares.append((before + now) / 2)
    return sum(shares) / len(shares) if shares else None


def average_precision__right_places_of_the_hits(right):
    places = [i for i, hit in enumerate(right, 1) if hit]
    return sum(n / place for n, place in enumerate(places, 1)) / len(places) if places else None


def by_chance__wrong_put_back(right, gallery, k): return 1 - (1 - right / gallery) ** k


def by_chance__wrong_k_times_the_share(right, gallery, k): return min(1.0, k * right / gallery)


def by_chance__wrong_all_of_them(right, gallery, k): return math.comb(k, right) / math.comb(gallery, right)


def by_chance__wrong_one_of_them(right, gallery, k): return k / gallery if right else 0.0


def by_chance__wrong_none_of_them(right, gallery, k):
    return math.comb(gallery - right, k) / math.comb(gallery, k)


def by_chance__right_one_place_after_the_other(right, gallery, k):
    wrong = Fraction(1)
    for i in range(k): wrong *= Fraction(max(gallery - right - i, 0), gallery - i)
    return float(1 - wrong)


def by_chance__right_where_the_right_ones_lie(right, gallery, k):
    return 1 - math.comb(gallery - k, right) / math.comb(gallery, right)


def grey_world__wrong_zeros_in_the_mean(means):
    middle = sum(means) / len(means)
    return [middle / m if m else 1.0 for m in means]


def grey_world__wrong_up_to_the_brightest(means): return [max(means) / m if m else 1.0 for m in means]


def grey_world__wrong_green_is_the_measure(means): return [means[1] / m if m else 1.0 for m in means]


def grey_world__wrong_upside_down(means):
    lit = [m for m in means if m]
    return [m * len(lit) / sum(lit) if m else 1.0 for m in means]


def grey_world__wrong_a_dark_channel_stays_out(means):
    lit = [m for m in means if m]
    return [sum(lit) / len(lit) / m if m else 0.0 for m in means]


def grey_world__wrong_geometric_mean(means):
    lit = [m for m in means if m]
    return [math.prod(lit) ** (1 / len(lit)) / m if m else 1.0 for m in means]


def grey_world__right_in_steps(means):
    factors = [1.0, 1.0, 1.0]
    lit = [c for c in range(3) if means[c] > 0]
    for c in lit: factors[c] = sum(means) / (len(lit) * means[c])
    return factors
