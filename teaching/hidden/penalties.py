"Hidden cases for the exercises of `fedbook.methods.penalties`: each function draws the arguments of one case."
import numpy as np

def strengths(g):
    lost = g.uniform(0, 0.5, g.integers(1, 8)) * (g.random() < 0.9)
    return lost.tolist(), float(g.uniform(0.3, 0.95)), float(g.uniform(0.1, 0.4))


def soften(g): return g.dirichlet(np.ones(4), int(g.integers(1, 4))), float(g.uniform(0.5, 5))


def left(g):
    basis = np.linalg.qr(g.normal(size=(5, 5)))[0][:, :g.integers(0, 6)]
    return g.normal(size=(g.integers(1, 4), 5)), basis, float(g.uniform(0.1, 1))
