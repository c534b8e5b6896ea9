"Hidden cases for the exercises of `fedbook.methods.leverage`: each function draws the arguments of one case."
import numpy as np

def leverage_if_added(g):
    d = int(g.integers(1, 6))
    rows = g.normal(size=(d + 9, d))
    return rows.T @ rows, g.normal(size=(int(g.integers(1, 6)), d))


def distinct(g): return g.dirichlet(np.ones(g.integers(1, 9))), int(g.integers(1, 12))


def reflect(g):
    n = int(g.integers(2, 7))
    return g.normal(size=(n, 3)), g.normal(size=(g.integers(1, 5), n))
