"Hidden cases for the blanks of `fedbook.fedcbdr`: each function draws the arguments of one case."
import torch

from fedbook.answers import fedcbdr as answers

def _normal(g, *shape): return torch.tensor(g.normal(size=shape))

def _orthogonal(g, n): return torch.linalg.qr(_normal(g, n, n))[0]


def rotation(g): return int(g.integers(2, 7)), torch.Generator().manual_seed(int(g.integers(999)))


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
    return [torch.tensor([0, 1, *g.integers(0, classes, int(n))]) for n in sizes], classes


# Variations: NAME__HOW is the right answer to what its docstring asks for.

def rotation__mirrored(n, generator):
    "Return the matrix with the opposite sign."
    return -answers.rotation(n, generator)


def rotation__two(n, generator):
    "Draw two such matrices, one after the other, and return their product: the first times the second."
    first = answers.rotation(n, generator)
    return first @ answers.rotation(n, generator)


def left_vectors__products(parts):
    "Return for each matrix the products of its rows of U with each other: $U_k U_k^T$ (n_k, n_k)."
    return [u @ u.mT for u in answers.left_vectors(parts)]


def left_vectors__rank_one(parts):
    """Return for each matrix its rows (n_k, d) of the best approximation of the stacked matrix by one of rank 1:
    $s_1 u_1 v_1^T$, with the largest singular value and its two singular vectors."""
    u, s, v = torch.linalg.svd(torch.cat(parts).double(), full_matrices=False)
    return list((s[0] * torch.outer(u[:, 0], v[0])).split([len(x) for x in parts]))


def own_scores__roots(u, P):
    "Return the square root of each score."
    return answers.own_scores(u, P).sqrt()


def own_scores__largest(u, P):
    "The score of a picture is the largest squared entry of its row, in place of the squared length."
    return (P.mT @ u).square().amax(1).clamp(max=1)


def chances__passed(scores):
    "Return the probability of each picture not to be the one that is picked."
    return [1 - each for each in answers.chances(scores)]


def chances__twice(scores):
    "Return the chance of each picture to be picked at least once in two draws: 1 - (1 - p)^2, with p from (4)."
    return [1 - (1 - each) ** 2 for each in answers.chances(scores)]


def to_clients__from_one(picks, sizes):
    "Each client counts its own positions from 1."
    return [each + 1 for each in answers.to_clients(picks, sizes)]


def to_clients__counts(picks, sizes):
    """In place of positions, return for each client a tensor with one whole number for each of its pictures: how
    often this picture is drawn."""
    return [torch.bincount(own, minlength=size) for own, size in zip(answers.to_clients(picks, sizes), sizes)]


def train_on_both__twice(model, new, kept, loss, epochs, batch, sgd, generator):
    "Each step is on twice the loss."
    def doubled(*case): return 2 * loss(*case)
    return answers.train_on_both(model, new, kept, doubled, epochs, batch, sgd, generator)


def train_on_both__decay(model, new, kept, loss, epochs, batch, sgd, generator):
    "Each step is on the loss plus 0.1 times the sum of the squares of all parameters."
    def heavier(model, x, y): return loss(model, x, y) + 0.1 * sum(p.square().sum() for p in model.parameters())
    return answers.train_on_both(model, new, kept, heavier, epochs, batch, sgd, generator)


def two_group_loss__turned(z, y, old, tau_old, tau_new, omega_old, omega_new):
    "`omega_new` weighs the old classes' pictures, and `omega_old` the new ones'; the temperatures stay."
    return answers.two_group_loss(z, y, old, tau_old, tau_new, omega_new, omega_old)


def two_group_loss__rows(z, y, old, tau_old, tau_new, omega_old, omega_new):
    """The label decides the temperature: all logits of a picture with an old label are divided by `tau_old`, all
    logits of one with a new label by `tau_new`."""
    rows = torch.where(y < old, tau_old, tau_new).to(z)
    return answers.two_group_loss(z / rows[:, None], y, old, 1.0, 1.0, omega_old, omega_new)


def evenness__lack(kept, classes):
    "Return what is missing to 1."
    return 1 - answers.evenness(kept, classes)


def evenness__effective(kept, classes):
    """Return $e^H$, the effective number of classes, in place of $H / \\log C$. Here $H = -\\sum_c s_c \\log s_c$ is the
    entropy."""
    return classes ** answers.evenness(kept, classes)
