"Hidden cases for the exercises of `fedbook.report`: each function draws the arguments of one case."

_VERDICTS = ["reproduced", "contradicted", "open", "measured"]


def _claims(g, names): return {"claims": [dict(claim=str(c), verdict=str(g.choice(_VERDICTS))) for c in names]}


def tally(g): return [_claims(g, range(g.integers(0, 5))) for _ in range(g.integers(0, 4))]


def slowest(g):
    seconds = g.permutation(50)[:g.integers(0, 6)]
    return {"rows": [dict(what=f"row {i}", seed=0, numbers={"seconds": float(-s)}, seconds=float(s))
                     for i, s in enumerate(seconds)]}


def changed(g): return _claims(g, g.permutation(6)[:4]), _claims(g, g.permutation(6)[:4])
