"Attempts at the exercises of nbs/13_fedcbdr.ipynb: see tests/test_exercises.py."
import numpy as np


def neutral_omegas__wrong_halves(n_old, n_new): return 0.5, 0.5

def neutral_omegas__wrong_way_round(n_old, n_new): return n_new / (n_old + n_new), n_old / (n_old + n_new)

def neutral_omegas__wrong_counts(n_old, n_new): return float(n_old), float(n_new)

def neutral_omegas__wrong_inverse(n_old, n_new): return 1 / n_old, 1 / n_new

def neutral_omegas__right_complement(n_old, n_new):
    old = 1 / (1 + n_new / n_old)
    return old, 1 - old


def outweighs__wrong_weights_only(n_old, n_new, omega_old, omega_new): return omega_old / omega_new

def outweighs__wrong_numbers_only(n_old, n_new, omega_old, omega_new): return n_new / n_old

def outweighs__wrong_way_round(n_old, n_new, omega_old, omega_new):
    return omega_new * n_old / (omega_old * n_new)

def outweighs__wrong_all_old_together(n_old, n_new, omega_old, omega_new):
    return omega_old / omega_new * n_new

def outweighs__right_share_of_each(n_old, n_new, omega_old, omega_new):
    one_old, one_new = omega_old / n_old, omega_new / n_new
    return one_old / one_new


def published_counts__wrong_all_pictures_alike(counts, m): return m * counts.sum(0) / counts.sum()

def published_counts__wrong_empty_clients_count(counts, m):
    return sum(m / len(counts) * row / max(1, row.sum()) for row in counts)

def published_counts__wrong_each_client_gives_m(counts, m):
    return sum(m * row / row.sum() for row in counts if row.sum())

def published_counts__wrong_classes_alike(counts, m): return np.full(counts.shape[1], m / counts.shape[1])

def published_counts__right_client_by_client(counts, m):
    kept, holders = np.zeros(counts.shape[1]), np.flatnonzero(counts.any(axis=1))
    for k in holders: kept += m / len(holders) * counts[k] / counts[k].sum()
    return kept
