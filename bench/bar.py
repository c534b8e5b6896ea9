"""One line for each promise of a bench, in the same words everywhere."""


def bar(what, value, at_least=None, at_most=None, unit=" x"):
    "Print `what` was promised, what came, and whether the bar is kept. Returns whether it is."
    kept = value >= at_least if at_most is None else value <= at_most
    wanted = f"at least {at_least:g}" if at_most is None else f"at most {at_most:g}"
    print(f"bar: {what}, {wanted}{unit}: {value:.3g}{unit}, {'kept' if kept else 'not kept'}", flush=True)
    return kept
