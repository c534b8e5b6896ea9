"Attempts at the exercises of nbs/engine/stacked.ipynb: see tests/test_exercises.py."
from itertools import permutations

import torch


def own_means__wrong_padding_counts(losses, lengths): return losses.mean(1)


def own_means__wrong_divides_by_the_longest(losses, lengths):
    return torch.stack([row[:n].sum() / losses.shape[1] for row, n in zip(losses, lengths)])


def own_means__wrong_one_mean_for_all(losses, lengths):
    own = torch.cat([row[:n] for row, n in zip(losses, lengths)])
    return own.mean().expand(len(losses))


def own_means__right_row_by_row(losses, lengths):
    return torch.stack([row[:n].mean() for row, n in zip(losses, lengths)])


def heights__wrong_counts_one_step_too_many(steps):
    return [sum(own >= n for own in steps) for n in range(max(steps) + 1)]


def heights__wrong_the_steps_sorted(steps): return sorted(steps, reverse=True)


def heights__wrong_all_to_the_end(steps): return [len(steps)] * max(steps)


def heights__right_cut_from_behind(steps):
    left, found = sorted(steps), []
    for n in range(max(steps)):
        while left[0] <= n: left.pop(0)
        found.append(len(left))
    return found


def _in_order(order, size): return [order[i:i + size] for i in range(0, len(order), size)]


def groups__wrong_in_the_order_asked(counts, size): return _in_order(list(range(len(counts))), size)


def groups__wrong_the_short_list_holds_the_smallest(counts, size):
    return _in_order(sorted(range(len(counts)), key=lambda i: -counts[i]), size)


def groups__wrong_the_short_list_holds_the_largest(counts, size):
    return _in_order(sorted(range(len(counts)), key=lambda i: counts[i]), size)


def groups__wrong_large_beside_small(counts, size):
    order = sorted(range(len(counts)), key=lambda i: counts[i])
    return _in_order([order.pop(0 if n % 2 else -1) for n in range(len(counts))], size)


def groups__wrong_everybody_alone(counts, size): return [[i] for i in range(len(counts))]


def groups__right_all_orders(counts, size):
    lists, best = -(-len(counts) // size), None
    for order in permutations(range(len(counts))):
        for short in range(lists):
            sizes = [size] * lists
            sizes[short] -= lists * size - len(counts)
            cut = [list(order[sum(sizes[:n]):sum(sizes[:n + 1])]) for n in range(lists)]
            area = sum(max(counts[i] for i in each) * len(each) for each in cut)
            if best is None or area < best[0]: best = area, cut
    return best[1]
