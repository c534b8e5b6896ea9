"Hidden cases for the exercises of `fedbook.datasets.sensors`: each function draws the arguments of one case."


def filled(g):
    line = [None if g.random() < 0.5 else float(g.integers(0, 9)) for _ in range(g.integers(2, 14))]
    return line, int(g.integers(0, 4))


def windows(g): return int(g.integers(1, 40)), int(g.integers(1, 12)), int(g.integers(1, 9))


def kept_apart(g): return g.integers(0, 5, g.integers(1, 15)).tolist(), float(g.choice([0.0, 0.25, 0.5, 0.75, 1.0]))
