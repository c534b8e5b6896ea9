"Hidden cases for the exercises of `fedbook.privacy.private`: each function draws the arguments of one case."

def repaired(g):
    n, modulus = int(g.integers(2, 6)), int(g.choice([2**32, 1000]))
    masks = {(a, b): int(g.integers(0, modulus)) for a in range(n) for b in range(a + 1, n)}
    return int(g.integers(0, modulus)), int(g.integers(0, n)), masks, modulus


def next_clip(g): return (float(g.uniform(0.2, 4)), g.uniform(0, 5, g.integers(1, 9)).tolist(),
                          float(g.uniform(0.1, 0.9)), float(g.uniform(0.1, 1)))


def clients_needed(g): return float(g.uniform(0.3, 4)), int(g.integers(10, 10**6)), float(g.uniform(0.05, 1))


def counts_in(g):
    counts, lr = g.integers(0, 12, g.integers(2, 8)), float(g.uniform(0.05, 0.5))
    n = int(counts.sum()) + 1
    counts[0] += 1
    return (lr * (counts / n - 1 / len(counts))).tolist(), lr, n
