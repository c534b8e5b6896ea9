"Hidden cases for the exercises of `fedbook.methods.continual`: each function draws the arguments of one case."
import torch

def arrival(g):
    classes, cut = g.permutation(9).tolist(), int(g.integers(1, 9))
    return [classes[:cut], classes[cut:]], g.integers(0, 9, 10).tolist()


def rounds_with_memo(g):
    rounds = int(g.integers(1, 4))
    return (g.random(rounds * int(g.integers(2, 5))) < 0.4).tolist(), rounds


def calibrate(g):
    recent = int(g.integers(1, 3))
    z = torch.tensor(g.normal(size=(20, 5)))
    z[:, -recent:] += 2
    return z, torch.tensor(g.integers(0, 5, 20)), recent, g.permutation([0.0, 0.7, 1.4, 2.1, 2.8, 6.5]).tolist()
