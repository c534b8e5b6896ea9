"Hidden cases for the exercises of `fedbook.fedgtea`: each function draws the arguments of one case."
import torch

def anchor_by_part(g):
    names = [f"{part}.{i}.weight" for part in ("cate", "generator", "head")[:g.integers(1, 4)]
             for i in range(g.integers(1, 4))]
    draw = lambda: {name: torch.tensor(g.normal(size=3), dtype=torch.float32) for name in names}
    return draw(), draw()


def means_of_others(g):
    n = int(g.integers(1, 9))
    return g.normal(size=(n, 3)), g.integers(0, 4, n)


def server_walks(g): return int(g.integers(1, 9)), int(g.integers(1, 15)), int(g.integers(1, 7))
