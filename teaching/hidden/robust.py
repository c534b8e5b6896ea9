"Hidden cases for the exercises of `fedbook.privacy.robust`: each function draws the arguments of one case."

def most_liars(g): return int(g.integers(1, 60)), str(g.choice(["median", "trimmed", "krum"]))


def boost_needed(g):
    n = int(g.integers(2, 40))
    return n, int(g.integers(1, n + 1)), float(g.uniform(-3, 3))


def bucketed_median(g): return g.normal(size=(g.integers(1, 12), 3)), int(g.integers(1, 6))
