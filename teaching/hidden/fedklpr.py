"Hidden cases for the exercises of `fedbook.fedklpr`: each function draws the arguments of one case."

def ramp(g):
    accepted = (g.random(g.integers(1, 15)) < 0.6).tolist()
    return accepted, float(g.uniform(0.05, 0.5)), float(g.uniform(0.3, 0.9))


def luck(g):
    queries, gallery = int(g.integers(1, 5)), int(g.integers(4, 12))
    draw = lambda n, top: g.integers(0, top, n).tolist()
    return [0, *draw(queries, 3)], [0, *draw(gallery, 3)], [0, *draw(queries, 3)], [1, *draw(gallery, 3)]


def moved(g):
    d = int(g.integers(1, 6))
    return g.normal(size=d), g.uniform(0.2, 3, d), g.normal(size=d), g.uniform(0.2, 3, d)
