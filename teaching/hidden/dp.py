"Hidden cases for the exercises of `fedbook.privacy.dp`: each function draws the arguments of one case."

def nodes_with(g):
    steps = int(g.integers(1, 70))
    return int(g.integers(1, steps + 1)), steps


def private_clip(g):
    expected = int(g.integers(1, 12))
    norms = g.uniform(0, 4, g.integers(0, expected + 3)).tolist()
    return (float(g.uniform(0.2, 3)), norms, expected, float(g.normal(0, 2)), float(g.uniform(0.1, 0.9)),
            float(g.uniform(0.1, 1)))


def person(g):
    places = "abcdef"[:int(g.integers(1, 7))]
    return ({place: float(g.uniform(0.1, 8)) for place in places},
            {place: int(g.integers(0, 9)) for place in places if g.random() < 0.7})
