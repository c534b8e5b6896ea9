"Hidden cases for the exercises of `fedbook.evidence.claims`: each function draws the arguments of one case."

def shrink(g): return int(g.integers(2, 20)), int(g.integers(2, 60))


def together(g): return (g.random(g.integers(1, 7)) ** 4).tolist(), float(g.choice([0.01, 0.05, 0.1]))


def tolerance_acts(g):
    pictures = int(g.integers(1, 500))
    return float(g.choice([1, 0.6, 1.7, 0.9]) / pictures), pictures
