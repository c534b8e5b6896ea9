"Attempts at the exercises of datasets/streets: wrong ones that `check` must catch, right ones written another way."
import numpy as np


def _area(box): return (box[2] - box[0]) * (box[3] - box[1])


def _common(a, b): return min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])


def overlap__wrong_negative_sides(a, b):
    wide, tall = _common(a, b)
    return wide * tall / (_area(a) + _area(b) - wide * tall)


def overlap__wrong_negative_area_only(a, b):
    wide, tall = _common(a, b)
    common = max(wide * tall, 0)
    return common / (_area(a) + _area(b) - common)


def overlap__wrong_width_alone_is_cut(a, b):
    wide, tall = _common(a, b)
    common = max(wide, 0) * tall
    return common / (_area(a) + _area(b) - common)


def overlap__wrong_height_alone_is_cut(a, b):
    wide, tall = _common(a, b)
    common = wide * max(tall, 0)
    return common / (_area(a) + _area(b) - common)


def overlap__wrong_common_counted_twice(a, b):
    wide, tall = _common(a, b)
    return max(wide, 0) * max(tall, 0) / (_area(a) + _area(b))


def overlap__wrong_of_the_smaller(a, b):
    wide, tall = _common(a, b)
    return max(wide, 0) * max(tall, 0) / min(_area(a), _area(b))


def overlap__wrong_last_pixel_counts(a, b):
    wide, tall = (max(side + 1, 0) for side in _common(a, b))
    whole = sum((box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (a, b))
    return wide * tall / (whole - wide * tall)


def overlap__wrong_first_box_is_left(a, b):
    common = max(a[2] - b[0], 0) * max(a[3] - b[1], 0)
    return common / (_area(a) + _area(b) - common)


def overlap__right_cells_painted(a, b):
    canvas = np.zeros((20, 20), int)
    for left, top, right, bottom in (a, b): canvas[top:bottom, left:right] += 1
    return float((canvas == 2).sum() / (canvas > 0).sum())


def overlap__right_with_numpy(a, b):
    a, b = np.array(a, float).reshape(2, 2), np.array(b, float).reshape(2, 2)
    common = np.prod(np.clip(np.minimum(a[1], b[1]) - np.maximum(a[0], b[0]), 0, None))
    return common / (np.prod(a[1] - a[0]) + np.prod(b[1] - b[0]) - common)


def shifted__wrong_share_of_the_box(side, pixels): return max(side - pixels, 0) / side


def shifted__wrong_may_be_negative(side, pixels): return (side - pixels) / (side + pixels)


def shifted__wrong_both_ways(side, pixels):
    common = max(side - pixels, 0) ** 2
    return common / (2 * side**2 - common)


def shifted__wrong_union_of_both_areas(side, pixels): return max(side - pixels, 0) / (2 * side)


def shifted__wrong_always_one_pixel(side, pixels): return max(side - 1, 0) / (side + 1)


def shifted__right_rows_counted(side, pixels):
    ours, theirs = set(range(side)), set(range(pixels, side + pixels))
    return len(ours & theirs) / len(ours | theirs)
