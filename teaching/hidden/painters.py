"Hidden cases for the exercises of `fedbook.methods.painters`: each function draws the arguments of one case."

def pool(g):
    old, classes = int(g.integers(0, 4)), int(g.integers(4, 8))
    labels = [sorted(set(g.integers(old, classes, 3).tolist())) for _ in range(g.integers(1, 5))]
    return old, labels, int(g.integers(1, 30)), classes


def chances(g): return g.integers(0, 4, g.integers(1, 12)).tolist()


def coverage(g): return g.normal(size=(g.integers(1, 9), 2)), g.normal(size=(g.integers(1, 9), 2))
