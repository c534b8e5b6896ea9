"Hidden cases for the exercises of `fedbook.methods.score`: each function draws the arguments of one case."

def _curve(g):
    rounds = (g.permutation(30)[:8] + 1).tolist()
    accuracies = [float(a) if there else None for a, there in zip(g.random(8), g.random(8) < 0.7)]
    return sorted(rounds), [0.1, *accuracies[1:-1], 0.9]


def rounds_to_target(g): return *_curve(g), float(g.uniform(0.2, 1.0))


def mean_height(g): return _curve(g)


def backward_transfer(g):
    t = int(g.integers(2, 6))
    return g.random((t, t)).tolist()


def pooled(g):
    sizes = [7, *g.integers(0, 3, 4).tolist()]
    return [float(g.random()) if n else float("nan") for n in sizes], [n * n * 5 for n in sizes]
