"Hidden cases for the exercises of `fedbook.datasets.streets`: each function draws the arguments of one case."

def _box(g):
    corner, side = g.integers(0, 9, 2), g.integers(1, 12, 2)
    return [*corner.tolist(), *(corner + side).tolist()]


def overlap(g): return _box(g), _box(g)


def shifted(g): return int(g.integers(1, 40)), int(g.integers(0, 50))
