"Hidden cases for the exercises of `fedbook.deploy.flower`: each function draws the arguments of one case."

def longest_absence(g):
    rows = [dict(round=int(r), client=int(c)) for r, c in zip(g.integers(0, 9, 20), g.integers(0, 3, 20))]
    return rows, int(g.integers(0, 3))


def timeout_for(g):
    clients = int(g.choice([4, 8, 10]))
    return g.uniform(1, 60, (g.integers(1, 6), clients)), float(g.choice([0.15, 0.3, 0.5, 0.8, 0.95]))


def crossings(g):
    items = [bytes([i]) * int(g.integers(1, 30)) for i in range(4)]
    return [[items[i] for i in g.integers(0, 4, g.integers(1, 4))] for _ in range(g.integers(1, 5))]
