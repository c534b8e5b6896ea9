"Attempts at the exercises of nbs/privacy/compress.ipynb: see tests/test_exercises.py."
import numpy as np


def shortest__wrong_a_list_always(n, k): return min(8 * k, 4 * n)


def shortest__wrong_a_mask_always(n, k): return min((n + 7) // 8 + 4 * k, 4 * n)


def shortest__wrong_bits_round_down(n, k): return min(n // 8 + 4 * k, 8 * k, 4 * n)


def shortest__wrong_never_all(n, k): return min((n + 7) // 8 + 4 * k, 8 * k)


def shortest__right_by_cases(n, k):
    mask = -(-n // 8)
    return min(4 * n, 4 * k + min(mask, 4 * k))


def rounded__wrong_nearest(x, u): return np.round(x)


def rounded__wrong_away_from_zero(x, u): return np.sign(x) * np.floor(np.abs(x) + u)


def rounded__wrong_other_way_round(x, u): return np.floor(x) + (x - np.floor(x) < u)


def rounded__wrong_towards_zero(x, u): return np.trunc(x + u)


def rounded__right_by_the_rest(x, u):
    low = np.floor(x)
    return low + (u >= 1 - (x - low))


def with_memory__wrong_nothing_is_kept(changes, k):
    sent = np.zeros(changes.shape)
    for r, change in enumerate(changes):
        places = np.argsort(-abs(change), kind="stable")[:k]
        sent[r, places] = change[places]
    return sent


def with_memory__wrong_sent_stays(changes, k):
    kept, sent = np.zeros(changes.shape[1]), np.zeros(changes.shape)
    for r, change in enumerate(changes):
        kept = kept + change
        places = np.argsort(-abs(kept), kind="stable")[:k]
        sent[r, places] = kept[places]
    return sent


def with_memory__wrong_without_signs(changes, k):
    kept, sent = np.zeros(changes.shape[1]), np.zeros(changes.shape)
    for r, change in enumerate(changes):
        kept = kept + change
        places = np.argsort(-kept, kind="stable")[:k]
        sent[r, places] = kept[places]
        kept[places] = 0
    return sent


def with_memory__wrong_chosen_by_the_change_alone(changes, k):
    kept, sent = np.zeros(changes.shape[1]), np.zeros(changes.shape)
    for r, change in enumerate(changes):
        kept = kept + change
        places = np.argsort(-abs(change), kind="stable")[:k]
        sent[r, places] = kept[places]
        kept[places] = 0
    return sent


def with_memory__right_as_a_difference_of_sums(changes, k):
    sent = np.zeros(changes.shape)
    for r in range(len(changes)):
        owed = changes[:r + 1].sum(0) - sent[:r].sum(0)
        order = sorted(range(len(owed)), key=lambda i: (-abs(owed[i]), i))[:k]
        sent[r, order] = owed[order]
    return sent
