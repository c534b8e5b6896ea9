"Hidden cases for the exercises of `fedbook.datasets.split`: each function draws the arguments of one case."

def effective_classes(g): return [int(g.integers(1, 50)), *(g.integers(0, 3, 5) * g.integers(1, 99, 5)).tolist()]


def arrival(g):
    classes, cut = g.permutation(6).tolist(), int(g.integers(1, 6))
    return g.integers(0, 6, 12).tolist(), [classes[:cut], classes[cut:]]


def size_skew(g):
    sizes = [3, *g.integers(0, 9, g.integers(1, 6)).tolist()]
    return [list(range(10 * i, 10 * i + n)) for i, n in enumerate(sizes)]
