"Hidden cases for the exercises of `fedbook.engine.federation`: each function draws the arguments of one case."
import torch

def _states(g, n): return [{"t0": torch.tensor(g.normal(size=3)), "t1": torch.tensor(g.normal(size=(2, 2)))}
                           for _ in range(n)]


def clipped_average(g):
    start, *states = _states(g, int(g.integers(2, 6)))
    states[0] = {name: 9 * t for name, t in states[0].items()}
    return start, states, g.integers(1, 20, len(states)).tolist(), float(g.uniform(1, 6))


def trimmed_mean(g):
    cut = int(g.integers(0, 3))
    return _states(g, 2 * cut + int(g.integers(1, 4))), cut


def median_state(g): return _states(g, int(g.integers(1, 8)))


def pick_by_size(g):
    sizes = g.integers(1, 30, g.integers(3, 6)).tolist()
    return sizes, int(g.integers(1, len(sizes))), int(g.integers(100)), int(g.integers(100))
