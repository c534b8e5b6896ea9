"Hidden cases for the exercises of `fedbook.deploy.scale`: each function draws the arguments of one case."

def surviving(g):
    write = lambda: ("write", int(g.integers(5)), str(g.choice(list("abcdefgh"))))
    return ([("save",) if g.random() < 0.25 else write() for _ in range(int(g.integers(0, 14)))],)


def fewest(g): return int(g.integers(0, 400)), float(g.choice([0.01, 0.1, 1.0])), float(g.uniform(0.1, 30))


def traffic(g):
    return int(g.integers(1, 300)), int(g.integers(1, 40)), int(g.integers(1, 10**6)), int(g.integers(1, 6))
