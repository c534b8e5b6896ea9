"Hidden cases for the exercises of `fedbook.fedmox`: each function draws the arguments of one case."

def missed(g):
    while True:
        n, share = int(g.integers(1, 60)), round(float(g.uniform(0.02, 1)), 2)
        if abs(share * n % 1 - 0.5) > 0.01: return n, share


def anchored(g):
    k = int(g.integers(1, 6))
    return g.normal(size=4), g.normal(size=(k, 4)), g.integers(1, 50, k).tolist(), int(g.integers(1, 60))


def answer_bytes(g):
    shapes = [tuple(g.integers(1, 12, g.integers(0, 4)).tolist()) for _ in range(g.integers(1, 5))]
    return shapes, str(g.choice(["whole", "int8", "top"])), float(g.choice([0.125, 0.25, 0.5]))
