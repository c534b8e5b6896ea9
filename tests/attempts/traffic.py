"Attempts at the exercises of datasets/traffic: wrong ones that `check` must catch, right ones written another way."
import numpy as np


def farthest__wrong_without_focal(tall, focal, rows, pixels): return tall * rows / pixels


def farthest__wrong_half_the_rows(tall, focal, rows, pixels): return focal * tall * (rows / 2) / pixels


def farthest__wrong_focal_in_pixels(tall, focal, rows, pixels): return focal * tall / pixels


def farthest__wrong_upside_down(tall, focal, rows, pixels): return pixels / (focal * tall * rows)


def farthest__wrong_whole_metres(tall, focal, rows, pixels): return focal * tall * rows // pixels


def farthest__right_share_of_the_picture(tall, focal, rows, pixels):
    seen = pixels / rows
    return tall / (seen / focal)


def row_of_cover__wrong_middles(low, high, n): return [float(low <= (k + 0.5) / n < high) for k in range(n)]


def row_of_cover__wrong_in_lengths(low, high, n):
    return [max(min((k + 1) / n, high) - max(k / n, low), 0) for k in range(n)]


def row_of_cover__wrong_below_zero(low, high, n):
    return [(min((k + 1) / n, high) - max(k / n, low)) * n for k in range(n)]


def row_of_cover__wrong_ends_are_whole(low, high, n):
    return [float(min((k + 1) / n, high) > max(k / n, low)) for k in range(n)]


def row_of_cover__wrong_start_is_ignored(low, high, n):
    return [min(max((high - k / n) * n, 0), 1) for k in range(n)]


def row_of_cover__right_difference_of_two(low, high, n):
    up_to = lambda at: np.clip(at * n - np.arange(n), 0, 1)
    return (up_to(high) - up_to(low)).tolist()
