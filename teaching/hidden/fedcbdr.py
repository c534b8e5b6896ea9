"Hidden cases for the exercises of `fedbook.fedcbdr`: each function draws the arguments of one case."
import numpy as np

def neutral_omegas(g): return int(g.integers(1, 99)), int(g.integers(1, 99))


def outweighs(g): return *neutral_omegas(g), float(g.uniform(0.2, 5)), float(g.uniform(0.2, 5))


def published_counts(g):
    counts = g.integers(0, 40, (g.integers(1, 5), 3)) * (g.random((1, 3)) < 0.9)
    return np.concatenate([counts, [[1, 2, 0]]]), int(g.integers(1, 60))
