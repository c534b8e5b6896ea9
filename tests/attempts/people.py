"Attempts at the exercises of w5_people: wrong ones that `check` must catch, right ones written another way."
import math


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


def undone__wrong_cast_first(byte, cast, gamma): return (byte / 255 / cast) ** (1 / gamma)


def undone__wrong_bent_again(byte, cast, gamma): return (byte / 255) ** gamma / cast


def undone__wrong_cast_again(byte, cast, gamma): return (byte / 255) ** (1 / gamma) * cast


def undone__wrong_in_bytes(byte, cast, gamma): return byte ** (1 / gamma) / cast


def undone__right_by_bisection(byte, cast, gamma):
    low, high = 0.0, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        if 255 * (middle * cast) ** gamma < byte: low = middle
        else: high = middle
    return low


def _pairs(identity, camera): return list(zip(identity, camera))


def first_pictures__wrong_of_each_person(identity, camera): return sorted(map(identity.index, set(identity)))


def first_pictures__wrong_last_ones(identity, camera):
    return sorted(dict((pair, k) for k, pair in enumerate(_pairs(identity, camera))).values())


def first_pictures__wrong_new_runs(identity, camera):
    pairs = _pairs(identity, camera)
    return [k for k in range(len(pairs)) if k == 0 or pairs[k] != pairs[k - 1]]


def first_pictures__wrong_order_of_people(identity, camera):
    pairs = _pairs(identity, camera)
    return [pairs.index(pair) for pair in sorted(set(pairs))]


def first_pictures__right_index(identity, camera):
    pairs = _pairs(identity, camera)
    return [k for k, pair in enumerate(pairs) if pairs.index(pair) == k]
