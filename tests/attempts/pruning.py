"Attempts at the exercises of methods/pruning: wrong ones that `check` must catch, right ones written another way."
import math

import numpy as np


def lottery_average__wrong_zero_where_nobody_kept(old, values, masks):
    return (values * masks).sum(0) / np.maximum(masks.sum(0), 1)


def lottery_average__wrong_divides_by_everybody(old, values, masks):
    return np.where(masks.any(0), (values * masks).sum(0) / len(values), old)


def lottery_average__wrong_goes_by_values(old, values, masks):
    kept = values * masks != 0
    return np.where(kept.any(0), (values * kept).sum(0) / np.maximum(kept.sum(0), 1), old)


def lottery_average__wrong_old_for_each_client_that_pruned(old, values, masks):
    return np.where(masks, values, old).mean(0)


def lottery_average__wrong_ignores_the_masks(old, values, masks): return values.mean(0)


def lottery_average__wrong_old_unless_all_kept(old, values, masks):
    return np.where(masks.all(0), (values * masks).sum(0) / np.maximum(masks.sum(0), 1), old)


def lottery_average__wrong_overwrites_old(old, values, masks):
    count = masks.sum(0)
    old[count > 0] = ((values * masks).sum(0) / np.maximum(count, 1))[count > 0]
    return old


def lottery_average__right_position_by_position(old, values, masks):
    found = old.copy()
    for j in range(len(old)):
        kept = [v[j] for v, m in zip(values, masks) if m[j]]
        if kept: found[j] = sum(kept) / len(kept)
    return found


def lottery_average__right_with_a_masked_array(old, values, masks):
    mean = np.ma.array(values, mask=~masks).mean(0)
    return mean.filled(0) * masks.any(0) + old * ~masks.any(0)


def shortest__wrong_half_a_byte_for_a_mask(n, left): return min(4 * n, 4 * left + n / 8, 8 * left)


def shortest__wrong_a_byte_for_each_weight(n, left): return min(4 * n, 4 * left + n, 8 * left)


def shortest__wrong_always_a_mask(n, left): return 4 * left + math.ceil(n / 8)


def shortest__wrong_never_all(n, left): return 4 * left + min(4 * left, math.ceil(n / 8))


def shortest__wrong_never_positions(n, left): return min(4 * n, 4 * left + math.ceil(n / 8))


def shortest__wrong_values_alone(n, left): return 4 * left


def agreement__wrong_equal_positions(a, b): return float((a == b).mean())


def agreement__wrong_of_all_positions(a, b): return float((a & b).mean())


def agreement__wrong_of_the_first(a, b): return float((a & b).sum() / a.sum()) if a.any() else 1.0


def agreement__wrong_of_the_mean_size(a, b):
    return float(2 * (a & b).sum() / (a.sum() + b.sum())) if (a | b).any() else 1.0


def agreement__wrong_nothing_kept_is_no_agreement(a, b):
    return float((a & b).sum() / (a | b).sum()) if (a | b).any() else 0.0


def agreement__right_with_sets(a, b):
    first, second = (set(np.flatnonzero(mask).tolist()) for mask in (a, b))
    return len(first & second) / len(first | second) if first | second else 1.0


def shortest__right_with_arrays(n, left):
    values = np.zeros(left, np.float32)
    mask = np.packbits(np.arange(n) < left)
    return min(4 * n, values.nbytes + mask.nbytes, values.nbytes + np.arange(left, dtype=np.int32).nbytes)
