"Hidden cases for the exercises of `fedbook.privacy.compress`: each function draws the arguments of one case."

def shortest(g):
    n = int(g.integers(1, 5000))
    return n, int(n * g.choice([0.0, 0.001, 0.01, 0.03, 0.04, 0.2, 0.97, 1.0]))


def rounded(g):
    shape = int(g.integers(1, 5)), int(g.integers(1, 5))
    return g.uniform(-3, 3, shape).round(2), (0.01 * g.integers(0, 100, shape) + 0.003).round(3)


def with_memory(g):
    n = int(g.integers(2, 6))
    return g.integers(-9, 10, (g.integers(1, 5), n)).astype(float), int(g.integers(1, n + 1))
