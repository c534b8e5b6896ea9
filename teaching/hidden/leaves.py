"Hidden cases for the exercises of `fedbook.datasets.leaves`: each function draws the arguments of one case."

def hold_out(g):
    identity = g.integers(10, 17, g.integers(3, 15)).tolist()
    return identity, int(g.integers(0, len(set(identity)) + 1))


def eaten(g):
    before = g.random((3, 4)) * (g.random((3, 4)) < 0.7)
    return before.tolist(), (before * (g.random((3, 4)) < 0.6)).tolist()


def head(g): return g.integers(1, 90, g.integers(1, 12)).tolist(), float(g.uniform(0.05, 1))
