"Attempts at the exercises of datasets/leaves: wrong ones that `check` must catch, right ones written another way."
import numpy as np


def hold_out__wrong_last_pictures(identity, plants):
    return [i >= len(identity) - plants for i in range(len(identity))]


def hold_out__wrong_plants_counted_by_picture(identity, plants):
    held = sorted(identity)[len(identity) - plants:]
    return [own in held for own in identity]


def hold_out__wrong_slice_from_zero(identity, plants):
    held = sorted(set(identity))[-plants:]
    return [own in held for own in identity]


def hold_out__wrong_smallest_numbers(identity, plants):
    held = sorted(set(identity))[:plants]
    return [own in held for own in identity]


def hold_out__wrong_one_view_of_each(identity, plants):
    held = sorted(set(identity))[len(set(identity)) - plants:]
    return [own in held and own not in identity[:i] for i, own in enumerate(identity)]


def hold_out__wrong_the_numbers(identity, plants):
    known = sorted(set(identity))
    return known[len(known) - plants:]


def hold_out__right_by_rank(identity, plants):
    _, rank = np.unique(identity, return_inverse=True)
    return (rank >= rank.max() + 1 - plants).tolist()


def hold_out__right_larger_ones_counted(identity, plants):
    return [len({other for other in identity if other > own}) < plants for own in identity]


def eaten__wrong_share_of_the_picture(before, after): return float(np.mean(before) - np.mean(after))


def eaten__wrong_mean_of_the_pixels(before, after):
    before, after = np.array(before, float), np.array(after, float)
    leaf = before > 0
    return float((1 - after[leaf] / before[leaf]).mean()) if leaf.any() else 0.0


def eaten__wrong_pixels_counted(before, after):
    whole = np.count_nonzero(before)
    return 1 - np.count_nonzero(after) / whole if whole else 0.0


def eaten__wrong_half_is_none(before, after):
    whole = np.sum(np.array(before) > 0.5)
    return 1 - np.sum(np.array(after) > 0.5) / whole if whole else 0.0


def eaten__wrong_what_is_left(before, after): return float(np.sum(after)) / (float(np.sum(before)) or 1.0)


def eaten__wrong_an_absent_leaf_is_gone(before, after):
    return 1 - float(np.sum(after)) / (float(np.sum(before)) or 1.0)


def eaten__right_sum_of_the_losses(before, after):
    lost = sum(b - a for row, left in zip(before, after) for b, a in zip(row, left))
    return lost / max(sum(map(sum, before)), 1e-12)


def head__wrong_as_they_come(counts, share):
    return int(np.searchsorted(np.cumsum(counts), share * sum(counts) - 1e-9)) + 1


def head__wrong_smallest_first(counts, share):
    return int(np.searchsorted(np.cumsum(sorted(counts)), share * sum(counts) - 1e-9)) + 1


def head__wrong_more_than_the_share(counts, share):
    sums = np.cumsum(sorted(counts, reverse=True))
    return int(np.searchsorted(sums, share * sums[-1], side="right")) + 1


def head__wrong_share_of_the_classes(counts, share): return max(1, round(share * len(counts)))


def head__wrong_classes_before_it(counts, share):
    return int(np.searchsorted(np.cumsum(sorted(counts, reverse=True)), share * sum(counts) - 1e-9))


def head__right_one_at_a_time(counts, share):
    left, most = list(counts), 0
    while most < share * sum(counts) - 1e-9:
        left.remove(largest := max(left))
        most += largest
    return len(counts) - len(left)
