"Attempts at the exercises of methods/score: wrong ones that `check` must catch, right ones written another way."
import numpy as np


def rounds_to_target__wrong_must_exceed(rounds, accuracies, target):
    return next((r for r, a in zip(rounds, accuracies) if a is not None and a > target), None)


def rounds_to_target__wrong_best_round(rounds, accuracies, target):
    best = max((a, r) for r, a in zip(rounds, accuracies) if a is not None)
    return best[1] if best[0] >= target else None


def rounds_to_target__wrong_stays_above(rounds, accuracies, target):
    known = [(r, a) for r, a in zip(rounds, accuracies) if a is not None]
    return next((r for i, (r, _) in enumerate(known) if all(a >= target for _, a in known[i:])), None)


def rounds_to_target__wrong_place_in_the_list(rounds, accuracies, target):
    return next((i for i, a in enumerate(accuracies) if a is not None and a >= target), None)


def rounds_to_target__wrong_zero_for_never(rounds, accuracies, target):
    return next((r for r, a in zip(rounds, accuracies) if a is not None and a >= target), 0)


def rounds_to_target__wrong_stumbles_over_none(rounds, accuracies, target):
    return next((r for r, a in zip(rounds, accuracies) if a >= target), None)


def rounds_to_target__right_smallest_of_a_list(rounds, accuracies, target):
    there = [r for r, a in zip(rounds, accuracies) if (a or 0) >= target]
    return min(there) if there else None


def _known(rounds, accuracies): return np.array([(r, a) for r, a in zip(rounds, accuracies) if a is not None], dtype=float).T


def mean_height__wrong_plain_mean(rounds, accuracies): return float(_known(rounds, accuracies)[1].mean())


def mean_height__wrong_area_only(rounds, accuracies):
    x, y = _known(rounds, accuracies)
    return float(np.trapezoid(y, x))


def mean_height__wrong_holes_are_zero(rounds, accuracies):
    return float(np.trapezoid([a or 0 for a in accuracies], rounds) / (rounds[-1] - rounds[0]))


def mean_height__wrong_width_of_all_rounds(rounds, accuracies):
    x, y = _known(rounds, accuracies)
    return float(np.trapezoid(y, x) / (rounds[-1] - rounds[0]))


def mean_height__wrong_divided_by_the_last_round(rounds, accuracies):
    x, y = _known(rounds, accuracies)
    return float(np.trapezoid(y, x) / x[-1])


def mean_height__wrong_steps_for_lines(rounds, accuracies):
    x, y = _known(rounds, accuracies)
    return float((np.diff(x) * y[1:]).sum() / (x[-1] - x[0]))


def mean_height__right_by_numpy(rounds, accuracies):
    x, y = _known(rounds, accuracies)
    return float(np.trapezoid(y, x) / np.ptp(x))


def mean_height__right_by_a_fine_grid(rounds, accuracies):
    x, y = _known(rounds, accuracies)
    grid = np.linspace(x[0], x[-1], 7 * 6 * 5 * 4 + 1)
    return float(np.mean((np.interp(grid[1:], x, y) + np.interp(grid[:-1], x, y)) / 2))


def _lower(matrix): return np.tril(np.nan_to_num(np.array(matrix, dtype=float)))


def backward_transfer__wrong_minus_forgetting(matrix):
    a = _lower(matrix)
    return float((a[-1] - a.max(0))[:-1].mean())


def backward_transfer__wrong_with_the_last_task(matrix):
    a = _lower(matrix)
    return float((a[-1] - a.diagonal()).mean())


def backward_transfer__wrong_sign(matrix):
    a = _lower(matrix)
    return float((a.diagonal() - a[-1])[:-1].mean())


def backward_transfer__wrong_sum(matrix):
    a = _lower(matrix)
    return float((a[-1] - a.diagonal())[:-1].sum())


def backward_transfer__wrong_only_one_row_later(matrix):
    a = _lower(matrix)
    return float((a.diagonal(-1) - a.diagonal()[:-1]).mean())


def backward_transfer__right_by_a_loop(matrix):
    tasks = len(matrix)
    return sum(matrix[tasks - 1][j] - matrix[j][j] for j in range(tasks - 1)) / (tasks - 1)


def pooled__wrong_plain_mean(accuracies, sizes): return float(np.nanmean(accuracies))


def pooled__wrong_nan_spoils_it(accuracies, sizes): return float(np.dot(accuracies, sizes) / sum(sizes))


def pooled__wrong_divided_by_clients(accuracies, sizes):
    return sum(a * n for a, n in zip(accuracies, sizes) if n) / len(sizes)


def pooled__wrong_drops_a_bad_client(accuracies, sizes):
    kept = [(a, n) for a, n in zip(accuracies, sizes) if n > 5]
    return sum(a * n for a, n in kept) / sum(n for _, n in kept)


def pooled__right_by_numpy(accuracies, sizes):
    return float(np.average(np.nan_to_num(np.array(accuracies)), weights=sizes))
