"Hidden cases for the exercises of `fedbook.evidence.left_open`: each function draws the arguments of one case."

def to_run(g):
    names = ["a", "b", "c", "d", "e"]
    needs = [g.choice(names, g.integers(1, 4)).tolist() for _ in range(g.integers(0, 7))]
    return needs, g.choice(names, g.integers(0, 3), replace=False).tolist()


def hinges(g):
    values = g.normal(g.uniform(-1, 1), 1, g.integers(4, 8))
    return values.round(3).tolist(), float(g.choice([0.0, 0.5, -0.5]))


def surprising(g): return int(g.integers(2, 120)), float(g.choice([0.9, 0.95, 0.98, 0.99]))
