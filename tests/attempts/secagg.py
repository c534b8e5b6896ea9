"Attempts at the exercises of nbs/privacy/secagg.ipynb: see tests/test_exercises.py."


def safe_threshold__wrong_half_of_all(n, bad):
    threshold = n // 2 + 1
    return threshold if threshold <= n - bad else None


def safe_threshold__wrong_bad_ones_counted_twice(n, bad):
    threshold = (n + 2 * bad) // 2 + 1
    return threshold if threshold <= n - bad else None


def safe_threshold__wrong_two_thirds(n, bad):
    threshold = 2 * n // 3 + 1
    return threshold if threshold <= n - bad else None


def safe_threshold__wrong_never_none(n, bad): return (n + bad) // 2 + 1


def safe_threshold__wrong_rounded_up(n, bad):
    threshold = -(-(n + bad) // 2)
    return threshold if threshold <= n - bad else None


def safe_threshold__right_by_trying(n, bad):
    return next((t for t in range(1, n - bad + 1) if 2 * t > (n - bad) + 2 * bad), None)


def lost_piece__wrong_at_zero(x, pieces, prime):
    total = 0
    for a, value in pieces.items():
        for b in pieces:
            if b != a: value = value * b * pow(b - a, -1, prime)
        total += value
    return total % prime


def lost_piece__wrong_plain_division(x, pieces, prime):
    total = 0
    for a, value in pieces.items():
        for b in pieces:
            if b != a: value = value * (x - b) // (a - b)
        total += value
    return total % prime


def lost_piece__wrong_without_the_modulus(x, pieces, prime):
    total = 0
    for a, value in pieces.items():
        for b in pieces:
            if b != a: value = value * (x - b) * pow(a - b, -1, prime)
        total += value
    return total


def lost_piece__wrong_first_two_only(x, pieces, prime):
    (a, f), (b, g) = list(pieces.items())[:2]
    return (f + (g - f) * (x - a) * pow(b - a, -1, prime)) % prime


def lost_piece__right_by_newton(x, pieces, prime):
    "Divided differences, and the nested form."
    points, table = list(pieces), list(pieces.values())
    for k in range(1, len(points)):
        for i in reversed(range(k, len(points))):
            table[i] = (table[i] - table[i - 1]) * pow(points[i] - points[i - k], -1, prime) % prime
    value = 0
    for point, a in zip(reversed(points), reversed(table)): value = (value * (x - point) + a) % prime
    return value


def told_by__wrong_sizes_alone(sums):
    told = {}
    for ids, total in [*sums, ([], 0)]:
        for others, rest in [*sums, ([], 0)]:
            if len(ids) == len(others) + 1: told[min(set(ids) - set(others))] = total - rest
    return told


def told_by__wrong_one_of_two(sums):
    told = {}
    for ids, total in [*sums, ([], 0)]:
        for others, rest in [*sums, ([], 0)]:
            more = set(ids) - set(others)
            if len(more) == 1: told[more.pop()] = total - rest
    return told


def told_by__wrong_neighbours_in_the_list_only(sums):
    told = {}
    for (ids, total), (others, rest) in zip(sums, sums[1:]):
        more = set(ids) - set(others)
        if set(others) < set(ids) and len(more) == 1: told[more.pop()] = total - rest
    return told


def told_by__wrong_without_sums_of_one(sums):
    told = {}
    for ids, total in sums:
        for others, rest in sums:
            more = set(ids) - set(others)
            if set(others) < set(ids) and len(more) == 1: told[more.pop()] = total - rest
    return told


def told_by__right_client_by_client(sums):
    totals = {frozenset(ids): total for ids, total in sums} | {frozenset(): 0}
    return {id: totals[ids] - totals[ids - {id}] for ids in totals for id in ids if ids - {id} in totals}
