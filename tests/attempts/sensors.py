"Attempts at the exercises of nbs/datasets/sensors.ipynb: see tests/test_exercises.py."
import math

import numpy as np


def filled__wrong_last_reading_held(line, most):
    line, known = list(line), [i for i, value in enumerate(line) if value is not None]
    for a, b in zip(known, known[1:]):
        if b - a - 1 <= most: line[a:b] = [line[a]] * (b - a)
    return line


def filled__wrong_long_gaps_too(line, most):
    known = [i for i, value in enumerate(line) if value is not None]
    if not known: return list(line)
    inside = np.interp(range(len(line)), known, [line[i] for i in known]).tolist()
    return [v if known[0] <= i <= known[-1] else None for i, v in enumerate(inside)]


def filled__wrong_ends_too(line, most):
    known = [i for i, value in enumerate(line) if value is not None]
    if not known: return list(line)
    inside = np.interp(range(len(line)), known, [line[i] for i in known]).tolist()
    return [inside[i] if min(abs(i - k) for k in known) <= most else None for i in range(len(line))]


def filled__wrong_one_step_too_far(line, most):
    line, known = list(line), [i for i, value in enumerate(line) if value is not None]
    for a, b in zip(known, known[1:]):
        if b - a <= most:
            for i in range(a + 1, b): line[i] = line[a] + (line[b] - line[a]) * (i - a) / (b - a)
    return line


def filled__wrong_in_the_middle(line, most):
    line, known = list(line), [i for i, value in enumerate(line) if value is not None]
    for a, b in zip(known, known[1:]):
        if b - a - 1 <= most: line[a + 1:b] = [(line[a] + line[b]) / 2] * (b - a - 1)
    return line


def filled__right_by_interpolation(line, most):
    found, start = list(line), None
    for i, value in enumerate(line):
        if value is None: continue
        if start is not None and 1 < i - start <= most + 1:
            found[start:i + 1] = np.interp(range(start, i + 1), [start, i], [line[start], value]).tolist()
        start = i
    return found


def windows__wrong_last_one_left_out(n, steps, hop): return [(a, a + steps) for a in range(0, n - steps, hop)]


def windows__wrong_behind_the_end(n, steps, hop): return [(a, a + steps) for a in range(0, n, hop)]


def windows__wrong_cut_at_the_end(n, steps, hop): return [(a, min(n, a + steps)) for a in range(0, n, hop)]


def windows__wrong_hop_behind_the_end(n, steps, hop):
    return [(a, a + steps) for a in range(0, n - steps + 1, steps + hop)]


def windows__wrong_end_included(n, steps, hop): return [(a, a + steps - 1) for a in range(0, n - steps + 1, hop)]


def windows__right_counted(n, steps, hop):
    many = max(0, math.floor((n - steps) / hop) + 1)
    return [(k * hop, k * hop + steps) for k in range(many)]


def kept_apart__wrong_series_not_units(unit, share):
    most = int(share * len(unit))
    chosen = sorted(range(len(unit)), key=lambda i: unit[i])[:most]
    return [i in chosen for i in range(len(unit))]


def kept_apart__wrong_share_of_units(unit, share):
    known = sorted(set(unit))
    return [own in known[:int(share * len(known))] for own in unit]


def kept_apart__wrong_small_ones_behind(unit, share):
    inside, chosen = 0, set()
    for own in sorted(set(unit)):
        if inside + unit.count(own) <= share * len(unit):
            inside += unit.count(own)
            chosen.add(own)
    return [own in chosen for own in unit]


def kept_apart__wrong_one_over(unit, share):
    inside, chosen = 0, set()
    for own in sorted(set(unit)):
        if inside >= share * len(unit): break
        inside += unit.count(own)
        chosen.add(own)
    return [own in chosen for own in unit]


def kept_apart__wrong_in_order_of_appearance(unit, share):
    inside, chosen = 0, set()
    for own in dict.fromkeys(unit):
        inside += unit.count(own)
        if inside > share * len(unit): break
        chosen.add(own)
    return [own in chosen for own in unit]


def kept_apart__right_by_running_sums(unit, share):
    known, sizes = np.unique(unit, return_counts=True)
    fits = np.cumsum(sizes) <= share * len(unit)
    return [bool(fits[list(known).index(own)]) for own in unit]
