"Hidden cases for the exercises of `fedbook.methods.pruning`: each function draws the arguments of one case."

def lottery_average(g):
    k, n = g.integers(1, 6), g.integers(1, 12)
    return g.normal(size=n), g.normal(size=(k, n)), g.random((k, n)) < 0.5


def shortest(g):
    n = int(g.integers(1, 3000))
    return n, int(g.choice([g.integers(0, n + 1), n // 40, n - n // 40]))


def agreement(g):
    n, share = g.integers(1, 40), g.uniform(0.1, 0.9)
    return g.random(n) < share, g.random(n) < share
