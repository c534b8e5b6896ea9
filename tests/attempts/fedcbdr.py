"Attempts at the blanks of nbs/13_fedcbdr.ipynb: see tests/test_exercises.py."
import copy
import math

import torch
from torch.nn import functional as F


def _normal(n, generator): return torch.randn(n, n, generator=generator, dtype=torch.float64)

def rotation__wrong_signs_left(n, generator): return torch.linalg.qr(_normal(n, generator))[0]

def rotation__wrong_not_orthogonal(n, generator): return _normal(n, generator)

def rotation__wrong_rows_for_columns(n, generator):
    q, r = torch.linalg.qr(_normal(n, generator))
    return q * r.diagonal().sign()[:, None]

def rotation__right_by_a_diagonal_matrix(n, generator):
    q, r = torch.linalg.qr(_normal(n, generator))
    return q @ torch.diag(r.diagonal().sign())


def left_vectors__wrong_full_size(parts):
    u = torch.linalg.svd(torch.cat(parts).double(), full_matrices=True).U
    return list(u.split([len(x) for x in parts]))

def left_vectors__wrong_each_client_alone(parts):
    return [torch.linalg.svd(x.double(), full_matrices=False).U for x in parts]

def left_vectors__wrong_rounding_kept(parts):
    u = torch.linalg.svd(torch.cat(parts).double(), full_matrices=False).U
    return list(u.split([len(x) for x in parts]))

def left_vectors__right_by_the_gram_matrix(parts):
    x = torch.cat(parts).double()
    squares, axes = torch.linalg.eigh(x.T @ x)
    strong = squares > 1e-9 * squares.max()
    u = x @ axes[:, strong] / squares[strong].sqrt()
    return list(u.split([len(part) for part in parts]))


def own_scores__wrong_mask_not_undone(u, P): return u.square().sum(1).clamp(max=1)

def own_scores__wrong_masked_again(u, P): return (P @ u).square().sum(1).clamp(max=1)

def own_scores__wrong_lengths(u, P): return (P.mT @ u).norm(dim=1)

def own_scores__right_diagonal(u, P): return (P.mT @ u @ u.mT @ P).diagonal().clamp(max=1)


def chances__wrong_each_client_alone(scores): return [each / each.sum() for each in scores]

def chances__wrong_clients_alike(scores): return [each / each.sum() / len(scores) for each in scores]

def chances__wrong_nothing_for_zeros(scores): return [each / torch.cat(scores).sum() for each in scores]

def chances__right_all_in_one(scores):
    together = torch.cat(scores)
    if not together.any(): together = torch.ones_like(together)
    return list((together / together.sum()).split([len(each) for each in scores]))


def to_clients__wrong_positions_of_all(picks, sizes):
    ends = torch.tensor(sizes).cumsum(0)
    return [picks[(picks < end) & (picks >= end - size)].sort().values for end, size in zip(ends, sizes)]

def to_clients__wrong_as_drawn(picks, sizes):
    ends = torch.tensor(sizes).cumsum(0)
    return [picks[(picks < end) & (picks >= end - size)] - (end - size) for end, size in zip(ends, sizes)]

def to_clients__wrong_copies_lost(picks, sizes):
    ends = torch.tensor(sizes).cumsum(0)
    spans = [(end - size, end) for end, size in zip(ends, sizes)]
    return [picks[(picks < end) & (picks >= first)].unique() - first for first, end in spans]

def to_clients__right_by_owner(picks, sizes):
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    place = torch.cat([torch.arange(size) for size in sizes])
    return [place[picks[owner[picks] == k]].sort().values for k in range(len(sizes))]


def _trained(model, x, y, orders, loss, sgd):
    model = copy.deepcopy(model).train()
    optimiser = sgd(model.parameters())
    for i in orders:
        optimiser.zero_grad()
        loss(model, x[i], y[i]).backward()
        optimiser.step()
    return model.state_dict()

def _both(new, kept): return torch.cat([new[0], kept[0]]), torch.cat([new[1], kept[1]])

def train_on_both__wrong_one_order_for_all(model, new, kept, loss, epochs, batch, sgd, generator):
    x, y = _both(new, kept)
    order = torch.randperm(len(y), generator=generator)
    return _trained(model, x, y, epochs * list(order.split(batch)), loss, sgd)

def train_on_both__wrong_kept_left_out(model, new, kept, loss, epochs, batch, sgd, generator):
    orders = [i for _ in range(epochs) for i in torch.randperm(len(new[1]), generator=generator).split(batch)]
    return _trained(model, *new, orders, loss, sgd)

def train_on_both__wrong_a_batch_of_one(model, new, kept, loss, epochs, batch, sgd, generator):
    x, y = _both(new, kept)
    orders = [i for _ in range(epochs) for i in torch.randperm(len(y), generator=generator).split(batch)]
    return _trained(model, x, y, orders, loss, sgd)

def train_on_both__wrong_kept_first(model, new, kept, loss, epochs, batch, sgd, generator):
    return train_on_both__right_by_ends(model, kept, new, loss, epochs, batch, sgd, generator)

def train_on_both__right_by_ends(model, new, kept, loss, epochs, batch, sgd, generator):
    x, y = _both(new, kept)
    starts = [start for start in range(0, len(y), batch) if start == 0 or start < len(y) - 1]
    orders = []
    for _ in range(epochs):
        order = torch.randperm(len(y), generator=generator)
        orders += [order[a:b] for a, b in zip(starts, [*starts[1:], len(y)])]
    return _trained(model, x, y, orders, loss, sgd)


def two_group_loss__wrong_one_mean(z, y, old, tau_old, tau_new, omega_old, omega_new):
    scaled = torch.cat([z[:, :old] / tau_old, z[:, old:] / tau_new], 1)
    weights = torch.where(y < old, omega_old, omega_new)
    return (weights * F.cross_entropy(scaled, y, reduction="none")).mean()

def two_group_loss__wrong_temperature_by_label(z, y, old, tau_old, tau_new, omega_old, omega_new):
    each = F.cross_entropy(z / torch.where(y < old, tau_old, tau_new)[:, None], y, reduction="none")
    groups = (omega_old, y < old), (omega_new, y >= old)
    return sum(w * each[group].mean() for w, group in groups if group.any())

def two_group_loss__wrong_multiplied(z, y, old, tau_old, tau_new, omega_old, omega_new):
    scaled = torch.cat([z[:, :old] * tau_old, z[:, old:] * tau_new], 1)
    each = F.cross_entropy(scaled, y, reduction="none")
    groups = (omega_old, y < old), (omega_new, y >= old)
    return sum(w * each[group].mean() for w, group in groups if group.any())

def two_group_loss__wrong_no_number_without_old(z, y, old, tau_old, tau_new, omega_old, omega_new):
    scaled = torch.cat([z[:, :old] / tau_old, z[:, old:] / tau_new], 1)
    each = F.cross_entropy(scaled, y, reduction="none")
    return omega_old * each[y < old].mean() + omega_new * each[y >= old].mean()

def two_group_loss__right_by_weights(z, y, old, tau_old, tau_new, omega_old, omega_new):
    taus = torch.cat([torch.full((old,), tau_old), torch.full((z.shape[1] - old,), tau_new)]).to(z)
    log_p = F.log_softmax(z / taus, 1)[torch.arange(len(y)), y]
    is_old = (y < old).to(z)
    of_old = omega_old * is_old / is_old.sum().clamp(min=1)
    of_new = omega_new * (1 - is_old) / (1 - is_old).sum().clamp(min=1)
    return -((of_old + of_new) * log_p).sum()


def _shares(kept, classes):
    counts = torch.cat(kept).bincount(minlength=classes)
    return counts / counts.sum()

def evenness__wrong_not_divided(kept, classes): return float(torch.special.entr(_shares(kept, classes)).sum())

def evenness__wrong_mean_over_clients(kept, classes):
    return sum(evenness__right_by_entr([y], classes) for y in kept) / len(kept)

def evenness__wrong_classes_that_are_there(kept, classes):
    shares = _shares(kept, classes)
    return float(torch.special.entr(shares).sum() / math.log(max(2, int((shares > 0).sum()))))

def evenness__right_by_entr(kept, classes):
    return float(torch.special.entr(_shares(kept, classes)).sum() / math.log(classes))
