"Hidden cases for the exercises of `fedbook.privacy.secagg`: each function draws the arguments of one case."

def safe_threshold(g):
    n = int(g.integers(2, 60))
    return n, int(g.integers(0, n // 3 + 2))


def lost_piece(g):
    prime, k = int(g.choice([101, 251, 9973])), int(g.integers(1, 6))
    places = g.choice(range(1, 40), k, replace=False).tolist()
    return int(g.integers(0, 40)), {a: int(g.integers(0, prime)) for a in places}, prime


def told_by(g):
    values = g.integers(1, 99, 5)
    groups = [sorted(g.choice(5, g.integers(1, 6), replace=False).tolist()) for _ in range(g.integers(1, 5))]
    return [(ids, int(values[ids].sum())) for ids in groups],
