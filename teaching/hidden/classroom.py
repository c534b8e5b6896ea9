"Hidden cases for the exercises of `fedbook.classroom`: each function draws the arguments of one case."


def best_of(g):
    book = lambda: {name: int(g.integers(0, 11)) for name in "abc" if g.random() < 0.7}
    return [book() for _ in range(g.integers(1, 5))]


def weeks(g): return (10 * g.integers(1, 13, g.integers(1, 9))).tolist(), int(g.choice([60, 90, 100]))
