"Hidden cases for the exercises of `fedbook.methods.exemplars`: each function draws the arguments of one case."

def orphans(g): return (g.integers(0, 9, (3, 5)) * (g.random((3, 5)) < 0.4)).tolist()


def fair_shares(g): return g.integers(0, 12, g.integers(2, 7)).tolist(), int(g.integers(0, 40))


def expected(g): return g.integers(5, 60, g.integers(1, 6)).tolist(), int(g.integers(5, 90))
