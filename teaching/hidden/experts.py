"Hidden cases for the exercises of `fedbook.methods.experts`: each function draws the arguments of one case."

def work(g): return (*(int(g.integers(1, top)) for top in (900, 6, 60, 8)), str(g.choice(["gathered", "masked"])))


def top_gate(g):
    n = int(g.integers(2, 8))
    return 3 * g.normal(size=n) + float(g.choice([0, -900, 900])), int(g.integers(1, n + 1))


def capped(g):
    experts = int(g.choice([1, 2, 4]))
    return g.integers(0, experts, g.integers(1, 20)), experts, float(g.choice([1.0, 1.25, 1.5]))
