"Hidden cases for the exercises of `fedbook.methods.wasserstein`: each function draws the arguments of one case."
import numpy as np

def _moments(x): return x.mean(0), np.atleast_2d(np.cov(x.T, bias=True)), len(x)


def others(g):
    n, mine, d = g.integers(8, 30), g.integers(3, 6), g.integers(2, 4)
    x = g.normal(size=(n, d)) + np.arange(n)[:, None] / 3
    return _moments(x), _moments(x[:mine])


def halfway(g):
    d = g.integers(1, 5)
    return tuple(draw(size=d) for draw in (g.normal, g.random, g.normal, g.random))


def pictures_needed(g):
    d, roots = int(g.integers(1, 4)), g.normal(size=(2, 3, 3))
    c1, c2 = (r[:d] @ r[:d].T for r in roots)
    return g.normal(size=d), c1, g.normal(size=d), c2, float(g.uniform(0.5, 9))
