"Hidden cases for the exercises of `fedbook.datasets.people`: each function draws the arguments of one case."

def dressed_alike(g): return g.integers(0, 7, g.integers(1, 7)).tolist()


def undone(g): return int(g.integers(0, 256)), float(g.uniform(0.7, 1.3)), float(g.uniform(0.6, 1.6))


def first_pictures(g):
    n = int(g.integers(1, 20))
    return g.integers(0, 4, n).tolist(), g.integers(0, 3, n).tolist()
