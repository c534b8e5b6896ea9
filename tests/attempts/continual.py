"Attempts at the exercises of nbs/methods/continual.ipynb: see tests/test_exercises.py."
import itertools

import numpy as np
import torch


def arrival__wrong_in_rising_order(tasks, labels):
    known = sorted(sum(tasks, []))
    return [known.index(c) for c in labels]

def arrival__wrong_number_of_the_task(tasks, labels):
    return [next(t for t, classes in enumerate(tasks) if c in classes) for c in labels]

def arrival__wrong_sorted_within_a_task(tasks, labels):
    order = sum(map(sorted, tasks), [])
    return [order.index(c) for c in labels]

def arrival__wrong_the_other_way_round(tasks, labels):
    order = sum(tasks, [])
    return [order[c % len(order)] for c in labels]

def arrival__right_inverse_permutation(tasks, labels):
    order = np.array(sum(tasks, []))
    place = np.zeros(order.max() + 1, dtype=int)
    place[order] = np.arange(len(order))
    return place[np.array(labels, dtype=int)].tolist()


def rounds_with_memo__wrong_first_task_too(answers, rounds):
    ready, found = False, []
    for r, answered in enumerate(answers):
        if r % rounds == 0: ready = False
        if not ready: found.append(r)
        ready = ready or answered
    return found

def rounds_with_memo__wrong_first_round_alone(answers, rounds):
    return [r for r in range(rounds, len(answers)) if r % rounds == 0]

def rounds_with_memo__wrong_lost_rounds_alone(answers, rounds):
    return [r for r in range(rounds, len(answers)) if r % rounds == 0 or not answers[r]]

def rounds_with_memo__wrong_never_again_once_answered(answers, rounds):
    later = answers[rounds:]
    until = later.index(True) + 1 if True in later else len(later)
    return [rounds + r for r in range(until)]

def rounds_with_memo__right_task_by_task(answers, rounds):
    found = []
    for first in range(rounds, len(answers), rounds):
        lost = itertools.takewhile(lambda r: not answers[r], range(first, min(first + rounds, len(answers))))
        misses = len(list(lost))
        found += range(first, min(first + misses + 1, first + rounds, len(answers)))
    return found


def calibrate__wrong_largest_of_equals(z, y, recent, grid):
    lowered = lambda b: torch.cat([z[:, :-recent], z[:, -recent:] - b], 1)
    return max(sorted(grid, reverse=True), key=lambda b: int((lowered(b).argmax(1) == y).sum()))

def calibrate__wrong_order_of_the_grid(z, y, recent, grid):
    lowered = lambda b: torch.cat([z[:, :-recent], z[:, -recent:] - b], 1)
    return max(grid, key=lambda b: int((lowered(b).argmax(1) == y).sum()))

def calibrate__wrong_last_class_only(z, y, recent, grid):
    lowered = lambda b: torch.cat([z[:, :-1], z[:, -1:] - b], 1)
    return max(sorted(grid), key=lambda b: int((lowered(b).argmax(1) == y).sum()))

def calibrate__wrong_first_classes(z, y, recent, grid):
    lowered = lambda b: torch.cat([z[:, :recent] - b, z[:, recent:]], 1)
    return max(sorted(grid), key=lambda b: int((lowered(b).argmax(1) == y).sum()))

def calibrate__wrong_in_place(z, y, recent, grid):
    best, most = None, -1
    for b in sorted(grid):
        z[:, -recent:] -= b
        right = int((z.argmax(1) == y).sum())
        z[:, -recent:] += b
        if right > most: best, most = b, right
        z[0, -1] += 1e-3
    return best

def calibrate__right_one_table(z, y, recent, grid):
    grid = sorted(grid)
    taken = np.zeros((len(grid), 1, z.shape[1]))
    taken[:, 0, -recent:] = np.asarray(grid)[:, None]
    right = ((z.numpy()[None] - taken).argmax(2) == y.numpy()).sum(1)
    return grid[int(right.argmax())]
