"Attempts at the exercises of datasets/people: wrong ones that `check` must catch, right ones written another way."
import itertools


def dressed_alike__wrong_a_person_with_herself(counts):
    n = sum(counts)
    return sum((c / n) ** 2 for c in counts) if n > 1 else None


def dressed_alike__wrong_all_colours_equally_liked(counts):
    return 1 / sum(c > 0 for c in counts) if sum(counts) > 1 else None


def dressed_alike__wrong_zero_for_no_two(counts):
    n = sum(counts)
    return sum(c * (c - 1) for c in counts) / max(1, n * (n - 1))


def dressed_alike__right_by_pairs(counts):
    wears = [colour for colour, c in enumerate(counts) for _ in range(c)]
    pairs = list(itertools.combinations(wears, 2))
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None


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
