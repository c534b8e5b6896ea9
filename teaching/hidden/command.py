"Hidden cases for the exercises of `fedbook.command`: each function draws the arguments of one case."

def engine_of(g):
    name = str(g.choice(["local", "flower", "Flower", "flower:", "flower:0", "local:3", "flower:x", "flower:n"]))
    return name.replace("n", str(g.integers(1, 300))) if name == "flower:n" else name


def left(g):
    order = [f"{i:02}_x" for i in g.permutation(7)]
    return order, {name: int(g.choice([0, 0, 1, 2, 130])) for name in order if g.random() < 0.6}


def makespan(g): return g.integers(1, 20, g.integers(0, 9)).tolist(), int(g.integers(1, 5))
