"Hidden cases for the exercises of `fedbook.methods.reid`: each function draws the arguments of one case."

def average_precision(g): return (g.random(g.integers(1, 12)) < 0.4).tolist()


def by_chance(g):
    gallery = int(g.integers(5, 90))
    return int(g.integers(0, gallery // 2)), gallery, int(g.integers(1, gallery + 1))


def grey_world(g): return (g.uniform(1, 255, 3) * (g.random(3) < 0.8)).tolist()
