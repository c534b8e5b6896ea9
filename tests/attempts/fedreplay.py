"Attempts at the blanks of nbs/10_fedreplay.ipynb: see tests/test_exercises.py."
import copy

import torch
import torch.nn.functional as F


def _numbers(tensors): return sum(t.numel() for t in tensors.values())

def saved__wrong_numbers_in_place_of_bytes(full, head): return 1 - _numbers(head) / _numbers(full)

def saved__wrong_what_is_sent(full, head):
    return sum(t.nbytes for t in head.values()) / sum(t.nbytes for t in full.values())

def saved__right_by_difference(full, head):
    whole, small = (sum(t.nbytes for t in tensors.values()) for tensors in (full, head))
    return (whole - small) / whole


def _drawn(labels, quota, generator):
    picks = []
    for c in labels.unique():
        own = torch.where(labels == c)[0]
        picks += own[torch.randperm(len(own), generator=generator)][:quota(len(own))].tolist()
    return sorted(picks)

def donate__wrong_rare_classes_give_nothing(features, labels, rate, generator):
    chosen = _drawn(labels, lambda n: round(rate * n), generator)
    return features[chosen], labels[chosen]

def donate__wrong_share_of_all(features, labels, rate, generator):
    many = max(1, round(rate * len(labels)))
    chosen = torch.randperm(len(labels), generator=generator)[:many].sort().values
    return features[chosen], labels[chosen]

def donate__wrong_the_first_ones(features, labels, rate, generator):
    chosen = sorted(i for c in labels.unique() for i in torch.where(labels == c)[0]
                    [:max(1, round(rate * int((labels == c).sum())))].tolist())
    return features[chosen], labels[chosen]

def donate__right_by_lists(features, labels, rate, generator):
    chosen = _drawn(labels, lambda n: max(1, round(rate * n)), generator)
    return features[chosen], labels[chosen]


def mixed_loss__wrong_weights_exchanged(local, logits, y, pool_y, lam):
    return mixed_loss__right_by_slices(local, logits, y, pool_y, 1 - lam)

def mixed_loss__wrong_one_mean_over_both(local, logits, y, pool_y, lam):
    return F.cross_entropy(logits, torch.cat([y, pool_y]))

def mixed_loss__wrong_sum(local, logits, y, pool_y, lam):
    return local(logits[:len(y)], y) + lam * F.cross_entropy(logits[len(y):], pool_y)

def mixed_loss__wrong_own_loss_on_the_pool(local, logits, y, pool_y, lam):
    return (1 - lam) * local(logits[:len(y)], y) + lam * local(logits[len(y):], pool_y)

@torch.no_grad()
def mixed_loss__wrong_without_gradient(local, logits, y, pool_y, lam):
    return mixed_loss__right_by_slices(local, logits, y, pool_y, lam)

def mixed_loss__right_by_slices(local, logits, y, pool_y, lam):
    mine = local(logits[:len(y)], y)
    return mine + lam * (F.nll_loss(logits[len(y):].log_softmax(1), pool_y) - mine)


def _trained(head, z, y, steps, batch, generator, optimiser_of, once=False):
    head = copy.deepcopy(head)
    optimiser = optimiser_of(head.parameters())
    i = torch.randint(len(y), (batch,), generator=generator)
    for k in range(steps):
        if k and not once: i = torch.randint(len(y), (batch,), generator=generator)
        head.zero_grad()
        F.nll_loss(F.log_softmax(head(z[i]), 1), y[i]).backward()
        optimiser.step()
    return head.state_dict()

def train_on_pool__wrong_sgd(head, z, y, steps, batch, generator, lr, weight_decay):
    return _trained(head, z, y, steps, batch, generator, lambda p: torch.optim.SGD(p, lr))

def train_on_pool__wrong_without_decay(head, z, y, steps, batch, generator, lr, weight_decay):
    return _trained(head, z, y, steps, batch, generator, lambda p: torch.optim.AdamW(p, lr, weight_decay=0.0))

def train_on_pool__wrong_one_batch_for_all(head, z, y, steps, batch, generator, lr, weight_decay):
    adam = lambda p: torch.optim.AdamW(p, lr, weight_decay=weight_decay)
    return _trained(head, z, y, steps, batch, generator, adam, once=True)

def train_on_pool__wrong_in_place(head, z, y, steps, batch, generator, lr, weight_decay):
    trained = train_on_pool__right_by_log_softmax(head, z, y, steps, batch, generator, lr, weight_decay)
    head.load_state_dict(trained)
    return head.state_dict()

def train_on_pool__right_by_log_softmax(head, z, y, steps, batch, generator, lr, weight_decay):
    adam = lambda p: torch.optim.AdamW(p, lr=lr, weight_decay=weight_decay)
    return _trained(head, z, y, steps, batch, generator, adam)


def class_prototypes__wrong_sums(h, y): return torch.stack([h[y == c].sum(0) for c in y.unique()])

def class_prototypes__wrong_a_row_for_every_label(h, y):
    rows = h.new_zeros(int(y.max()) + 1, h.shape[1])
    for c in y.unique(): rows[c] = h[y == c].mean(0)
    return rows

def class_prototypes__wrong_order_of_arrival(h, y):
    return torch.stack([h[y == c].mean(0) for c in dict.fromkeys(y.tolist())])

def class_prototypes__right_by_a_matrix(h, y):
    alike = (y.unique()[:, None] == y).to(h)
    return alike @ h / alike.sum(1, keepdim=True)


def expand_rows__wrong_raw_prototypes(weight, bias, prototypes):
    return torch.cat([weight, prototypes]), torch.cat([bias, bias.mean().expand(len(prototypes))])

def expand_rows__wrong_bias_zero(weight, bias, prototypes):
    rows = expand_rows__right_by_a_loop(weight, bias, prototypes)[0]
    return rows, torch.cat([bias, bias.new_zeros(len(prototypes))])

def expand_rows__wrong_length_of_the_mean_row(weight, bias, prototypes):
    rows = F.normalize(prototypes, dim=1) * weight.mean(0).norm()
    return torch.cat([weight, rows]), torch.cat([bias, bias.mean().expand(len(rows))])

def expand_rows__wrong_unit_length(weight, bias, prototypes):
    rows = F.normalize(prototypes, dim=1)
    return torch.cat([weight, rows]), torch.cat([bias, bias.mean().expand(len(rows))])

def expand_rows__right_by_a_loop(weight, bias, prototypes):
    length = sum(float(row.norm()) for row in weight) / len(weight)
    rows = [row * length / row.norm() for row in prototypes]
    return torch.stack([*weight, *rows]), torch.cat([bias, torch.stack([bias.mean()] * len(rows))])


def row_gated_average__wrong_plain_average(states, counts, previous):
    n = [sum(own) for own in counts]
    return {name: sum(k * s[name] for k, s in zip(n, states)) / sum(n) for name in previous}

def row_gated_average__wrong_zero_without_owner(states, counts, previous):
    shares = torch.tensor(counts, dtype=torch.float64)
    shares = shares / shares.sum(0).clamp(min=1)
    def averaged(name, old):
        return sum(share.view(-1, *[1] * (old.dim() - 1)) * s[name] for share, s in zip(shares, states)).to(old)
    return {name: averaged(name, old) for name, old in previous.items()}

def row_gated_average__wrong_owners_alike(states, counts, previous):
    return row_gated_average__right_by_shares(states, [[int(n > 0) for n in own] for own in counts], previous)

def row_gated_average__wrong_bias_not_gated(states, counts, previous):
    gated = row_gated_average__right_by_shares(states, counts, previous)
    return gated | {"bias": row_gated_average__wrong_plain_average(states, counts, previous)["bias"]}

def row_gated_average__right_by_shares(states, counts, previous):
    found = row_gated_average__wrong_zero_without_owner(states, counts, previous)
    nobody = torch.tensor(counts).sum(0) == 0
    for name in found: found[name][nobody] = previous[name][nobody]
    return found


def lda_message__wrong_means(z, y, classes):
    counts, sums, second = lda_message__right_by_one_hot(z, y, classes)
    return counts, sums / counts.clamp(min=1)[:, None], second

def lda_message__wrong_centred(z, y, classes):
    counts, sums, _ = lda_message__right_by_one_hot(z, y, classes)
    return counts, sums, (z - z.mean(0)).T @ (z - z.mean(0))

def lda_message__wrong_only_classes_present(z, y, classes):
    return lda_message__right_by_one_hot(z, y.unique(return_inverse=True)[1], len(y.unique()))

def lda_message__right_by_one_hot(z, y, classes):
    hot = F.one_hot(y, classes).to(z)
    return hot.sum(0), hot.T @ z, torch.einsum("ni,nj->ij", z, z)


def _lda(counts, sums, second, shrink, of=lambda w: w.diagonal().mean(), centre=True):
    means = sums / counts[:, None]
    w = (second - (sums.T @ means if centre else 0)) / counts.sum()
    w = (1 - shrink) * w + shrink * of(w) * torch.eye(len(w), dtype=w.dtype)
    weight = means @ torch.linalg.inv(w)
    return weight, -torch.einsum("cd,cd->c", weight, means) / 2

def lda_classifier__wrong_means_not_taken_off(counts, sums, second, shrink):
    return _lda(counts, sums, second, shrink, centre=False)

def lda_classifier__wrong_identity_not_scaled(counts, sums, second, shrink):
    return _lda(counts, sums, second, shrink, lambda w: 1.0)

def lda_classifier__wrong_bias_not_halved(counts, sums, second, shrink):
    weight, bias = _lda(counts, sums, second, shrink)
    return weight, 2 * bias

def lda_classifier__right_by_the_inverse(counts, sums, second, shrink):
    return _lda(counts, sums, second, shrink)


def _epoch(head, batches, lam, optimiser_of):
    head = copy.deepcopy(head)
    optimiser = optimiser_of(head.parameters())
    for z, y, pool_z, pool_y in batches:
        optimiser.zero_grad()
        ((1 - lam) * F.cross_entropy(head(z), y) + lam * F.cross_entropy(head(pool_z), pool_y)).backward()
        optimiser.step()
    return head.state_dict()

def replayed_epoch__wrong_weights_exchanged(head, batches, lam, lr, weight_decay):
    return replayed_epoch__right_in_two_passes(head, batches, 1 - lam, lr, weight_decay)

def replayed_epoch__wrong_sgd(head, batches, lam, lr, weight_decay):
    return _epoch(head, batches, lam, lambda p: torch.optim.SGD(p, lr, weight_decay=weight_decay))

def replayed_epoch__wrong_without_decay(head, batches, lam, lr, weight_decay):
    return _epoch(head, batches, lam, lambda p: torch.optim.AdamW(p, lr, weight_decay=0.0))

def replayed_epoch__wrong_in_place(head, batches, lam, lr, weight_decay):
    head.load_state_dict(replayed_epoch__right_in_two_passes(head, batches, lam, lr, weight_decay))
    return head.state_dict()

def replayed_epoch__right_in_two_passes(head, batches, lam, lr, weight_decay):
    return _epoch(head, batches, lam, lambda p: torch.optim.AdamW(p, lr, weight_decay=weight_decay))
