"Hidden cases for the exercises of `fedbook.privacy.attack`: each function draws the arguments of one case."
import numpy as np

def alone(g): return (g.integers(-3, 12, g.integers(1, 9)) / 10).tolist(), (g.permutation(8)[:4] / 10).tolist()


def false_members(g):
    d = int(g.integers(2, 200))
    return int(d + g.integers(-3, 4)), d, int(g.integers(0, 900))


def strangers_needed(g): return float(g.choice([0.001, 0.01, 0.07, 0.4])), float(g.uniform(0.05, 1))


def pair_from(g):
    x = g.normal(size=(2, g.integers(1, 6)))
    return x.mean(0), np.atleast_2d(np.cov(x.T, bias=True))
