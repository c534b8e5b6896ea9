"Hidden cases for the blanks of `fedbook.fedcbdr`: each function draws the arguments of one case."
import torch

def _normal(g, *shape): return torch.tensor(g.normal(size=shape))

def _orthogonal(g, n): return torch.linalg.qr(_normal(g, n, n))[0]


def rotation(g): return int(g.integers(1, 7)), torch.Generator().manual_seed(int(g.integers(999)))


def left_vectors(g):
    x = [_normal(g, int(n), 4) for n in g.integers(2, 9, int(g.integers(2, 5)))]
    return [torch.cat([part, part[:, :1]], 1) for part in x],


def own_scores(g):
    n = int(g.integers(2, 8))
    P = _orthogonal(g, n)
    return P @ _orthogonal(g, n + 3)[:n, :2], P


def chances(g):
    factor = int(g.random() > 0.2)
    return [factor * torch.tensor(g.random(int(n))) for n in g.integers(1, 6, int(g.integers(2, 5)))],


def to_clients(g):
    sizes = g.integers(0, 7, int(g.integers(2, 5))).tolist() + [3]
    return torch.tensor(g.integers(0, sum(sizes), int(g.integers(1, 9)))), sizes


def train_on_both(g):
    new, kept = int(g.integers(2, 12)), int(g.integers(0, 6))
    pair = lambda n: (_normal(g, n, 3), torch.tensor(g.integers(0, 4, n)))
    model = torch.nn.Linear(3, 4).double()
    model.load_state_dict({"weight": _normal(g, 4, 3), "bias": _normal(g, 4)})
    loss = lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y)
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5)
    dice = torch.Generator().manual_seed(int(g.integers(999)))
    return model, pair(new), pair(kept), loss, int(g.integers(1, 3)), int(g.integers(2, 6)), sgd, dice


def two_group_loss(g):
    old, classes = int(g.integers(1, 4)), int(g.integers(4, 7))
    y = torch.tensor(g.integers(0, classes, int(g.integers(1, 9))))
    return (_normal(g, len(y), classes).requires_grad_(), y, old, *(float(v) for v in g.uniform(0.4, 2.5, 4)))


def evenness(g):
    classes, sizes = int(g.integers(2, 7)), g.integers(1, 9, int(g.integers(1, 4)))
    return [torch.tensor(g.integers(0, classes, int(n))) for n in sizes], classes
