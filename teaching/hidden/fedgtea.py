"Hidden cases for the blanks of `fedbook.fedgtea`: each function draws the arguments of one case."
import torch

def _normal(g, *shape): return torch.tensor(g.normal(size=shape))

def _linear(g, inputs, outputs):
    layer = torch.nn.Linear(inputs, outputs).double()
    layer.load_state_dict({"weight": _normal(g, outputs, inputs), "bias": _normal(g, outputs)})
    return layer

def _cov(g, d):
    a = _normal(g, d, d)
    return a @ a.T + 0.1 * torch.eye(d).double()


def task_embedding(g):
    return _linear(g, 3, 2), [_normal(g, n, 3) for n in g.integers(1, 6, g.integers(2, 5))]


def batch_gaussian(g): return _normal(g, int(g.integers(2, 9)), 3), int(g.integers(2, 65))


def pool(g):
    k = int(g.integers(2, 5))
    return _normal(g, k, 2), torch.stack([_cov(g, 2) for _ in range(k)]), torch.tensor(g.integers(3, 50, k)).double()


def w2_squared(g): return _normal(g, 2), _cov(g, 2), _normal(g, 2), _cov(g, 2)


def wasserstein_term(g):
    means = _normal(g, int(g.integers(1, 6)), 3)
    return (means[:, None] - means).square().sum(2), 0.01


def distillation_term(g):
    old = int(g.integers(2, 5))
    return _linear(g, 3, old), _linear(g, 3, old + 2), _normal(g, 4, 3), old


def anchor_term(g):
    draw = lambda: [_normal(g, 2, 3), _normal(g, 3)]
    return draw(), draw()


def server_step(g):
    size = float(g.choice([0.05, 5.0]))
    def terms(theta):
        p = theta.weight
        return size * (p - 1).square().sum(), size * theta.bias.square().sum(), (p.square().sum() + 1e-12).sqrt()
    return _linear(g, 2, 2), terms, 0.1
