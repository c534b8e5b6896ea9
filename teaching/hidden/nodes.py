"Hidden cases for the exercises of `fedbook.deploy.nodes`: each function draws the arguments of one case."

def believes(g):
    shown = dict(issuer=str(g.choice(["us", "them"], p=[0.7, 0.3])), names=["a.example", "b.example"],
                 begin=100, end=int(g.integers(101, 200)))
    return shown, ["other", "us"], str(g.choice(["a.example", "b.example", "b"])), int(g.integers(95, 205))


def gaps(g):
    beats = g.integers(0, 100, g.integers(1, 8)).tolist()
    return beats, int(g.integers(5, 25)), max(beats) + int(g.integers(1, 40))


def family(g):
    ids = (g.permutation(40)[:9] + 2).tolist()
    parents = {child: int(g.choice([1, *ids[:i]])) for i, child in enumerate(ids)}
    order = g.permutation(9)
    return {ids[i]: parents[ids[i]] for i in order}, int(g.choice(ids[:4]))
