"Hidden cases for the exercises of `fedbook.evidence.streams`: each function draws the arguments of one case."
import numpy as np


def _points(g):
    n, d, classes = (int(g.integers(low, high)) for low, high in ((6, 20), (1, 5), (1, 5)))
    return g.normal(size=(n, d)) + g.normal(size=d), g.integers(0, classes, n), classes


def _sums(z, y, classes):
    sums = np.stack([z[y == c].sum(0) for c in range(classes)])
    return np.bincount(y, minlength=classes), sums, z.T @ z


def within(g):
    z, y, classes = _points(g)
    return _sums(z, y, classes + int(g.integers(0, 2)))


def without(g):
    z, y, classes = _points(g)
    leaves = g.random(len(y)) < 0.4
    return *_sums(z, y, classes), z[leaves], y[leaves]


def rounds_until_cheaper(g): return int(g.integers(1, 10**5)), int(g.integers(1, 600)), int(g.integers(1, 10))
