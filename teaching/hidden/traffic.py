"Hidden cases for the exercises of `fedbook.datasets.traffic`: each function draws the arguments of one case."

def farthest(g):
    return float(g.uniform(0.5, 4)), float(g.uniform(0.5, 2)), int(g.integers(60, 900)), int(g.integers(2, 40))


def row_of_cover(g):
    low, high = sorted(g.uniform(-0.4, 1.4, 2).tolist())
    return low, high, int(g.integers(1, 9))
