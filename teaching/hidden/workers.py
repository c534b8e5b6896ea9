"Hidden cases for the exercises of `fedbook.engine.workers`: each function draws the arguments of one case."

def in_order(g): return g.permutation(g.integers(1, 9)).tolist()


def computed(g): return int(g.integers(3, 25)), int(g.integers(1, 5)), int(g.integers(2, 9))


def flaky(g): return int(g.integers(1000)), float(g.uniform(0.2, 0.8))
