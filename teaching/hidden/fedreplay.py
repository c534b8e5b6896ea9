"Hidden cases for the blanks of `fedbook.fedreplay`: each function draws the arguments of one case."
import copy
from functools import partial

import torch
import torch.nn.functional as F

from fedbook.answers import fedreplay as answers
from fedbook.engine.local import build
from fedbook.methods.heads import ReplayHead

def _normal(g, *shape): return torch.tensor(g.normal(size=shape))

def _labels(g, n, classes): return torch.tensor(g.integers(0, classes, n))


def saved(g):
    def tensors(n):
        small = torch.zeros(int(g.integers(1, n)), dtype=torch.int8)
        return {"a": _normal(g, int(g.integers(1, n))), "b": small}
    return tensors(90), tensors(9)


def donate(g):
    n = int(g.integers(3, 40))
    drawn = torch.Generator().manual_seed(int(g.integers(99)))
    return _normal(g, n, 3), _labels(g, n, 4), float(g.uniform(0.01, 1)), drawn


def mixed_loss(g):
    own, shared = int(g.integers(1, 6)), int(g.integers(1, 6))
    logits = _normal(g, own + shared, 4).requires_grad_()
    return F.multi_margin_loss, logits, _labels(g, own, 4), _labels(g, shared, 4), float(g.uniform(0, 1))


def train_on_pool(g):
    head = build(partial(ReplayHead, 6, 3, 4, layers=1, heads=1, ff=4), int(g.integers(9))).double()
    m = int(g.integers(3, 9))
    return (head, _normal(g, m, 6), _labels(g, m, 3), int(g.integers(1, 4)), int(g.integers(1, 5)),
            torch.Generator().manual_seed(int(g.integers(99))), 0.01, 0.1)


def class_prototypes(g):
    n = int(g.integers(2, 9))
    return _normal(g, n, 3), _labels(g, n, 4) + 2


def expand_rows(g): return _normal(g, 4, 3), _normal(g, 4), _normal(g, int(g.integers(1, 4)), 3) * 5


def row_gated_average(g):
    def rows(): return {"weight": _normal(g, 4, 2), "bias": _normal(g, 4)}
    k = int(g.integers(1, 4))
    return [rows() for _ in range(k)], (g.integers(0, 4, (k, 4)) + [[1, 0, 0, 0]]).tolist(), rows()


def lda_message(g):
    n = int(g.integers(1, 9))
    return _normal(g, n, 3), _labels(g, n, 4), 4


def lda_classifier(g):
    y = torch.arange(20) % 4
    z = _normal(g, 20, 3) + 2 * F.one_hot(y, 4)[:, :3]
    hot = F.one_hot(y, 4).to(z)
    return hot.sum(0), hot.T @ z, z.T @ z, float(g.uniform(0.05, 1))


def replayed_epoch(g):
    head = build(partial(ReplayHead, 6, 3, 4, layers=1, heads=1, ff=4), int(g.integers(9))).double()
    batches = [(_normal(g, 2, 6), _labels(g, 2, 3), _normal(g, 3, 6), _labels(g, 3, 3))
               for _ in range(int(g.integers(1, 4)))]
    return head, batches, float(g.uniform(0.1, 0.4)), 0.01, 0.1


# Variations: NAME__HOW is the right answer to what its docstring asks for.

def saved__left(full, head):
    "Return the share of bytes that is still sent."
    return 1 - answers.saved(full, head)


def saved__entries(full, head):
    "Count entries in place of bytes."
    return 1 - sum(t.numel() for t in head.values()) / sum(t.numel() for t in full.values())


def donate__doubled(features, labels, rate, generator):
    "Donate the features times 2."
    z, y = answers.donate(features, labels, rate, generator)
    return 2 * z, y


def donate__stays(features, labels, rate, generator):
    "Draw as the text says, but return the other features, which are not given, and their labels, in their order."
    place = torch.arange(len(labels))
    given, _ = answers.donate(place, labels, rate, generator)
    left = ~torch.isin(place, given)
    return features[left], labels[left]


def mixed_loss__turned(local, logits, y, pool_y, lam):
    "`lam` counts for the own pictures, and 1 - `lam` for the pool."
    return answers.mixed_loss(local, logits, y, pool_y, 1 - lam)


def mixed_loss__more(local, logits, y, pool_y, lam):
    "The loss on the own pictures counts whole, in place of 1 - `lam`."
    own, shared = logits.split([len(y), len(pool_y)])
    return local(own, y) + lam * F.cross_entropy(shared, pool_y)


def train_on_pool__slow(head, z, y, steps, batch, generator, lr, weight_decay):
    "Train with half of the rate `lr`."
    return answers.train_on_pool(head, z, y, steps, batch, generator, lr / 2, weight_decay)


def train_on_pool__plain(head, z, y, steps, batch, generator, lr, weight_decay):
    "Take the steps with `torch.optim.SGD` in place of AdamW, with the same `lr` and `weight_decay`."
    head = copy.deepcopy(head).train()
    descent = torch.optim.SGD(head.parameters(), lr, weight_decay=weight_decay)
    for _ in range(steps):
        i = torch.randint(len(y), (batch,), generator=generator)
        descent.zero_grad()
        F.cross_entropy(head(z[i]), y[i]).backward()
        descent.step()
    return head.state_dict()


def replayed_epoch__slow(head, batches, lam, lr, weight_decay):
    "Train with half of the rate `lr`."
    return answers.replayed_epoch(head, batches, lam, lr / 2, weight_decay)


def replayed_epoch__apart(head, batches, lam, lr, weight_decay):
    """For each of `batches` take two steps in place of one: first a step on the cross-entropy of `(z, y)` alone,
    then a step on the cross-entropy of `(pool_z, pool_y)` alone. `lam` is not used."""
    head = copy.deepcopy(head).train()
    descent = torch.optim.AdamW(head.parameters(), lr, weight_decay=weight_decay)
    for z, y, pool_z, pool_y in batches:
        for inputs, labels in ((z, y), (pool_z, pool_y)):
            descent.zero_grad()
            F.cross_entropy(head(inputs), labels).backward()
            descent.step()
    return head.state_dict()


def class_prototypes__unit(h, y):
    "Scale each mean to length 1."
    return F.normalize(answers.class_prototypes(h, y), dim=1)


def class_prototypes__centred(h, y):
    "Subtract the mean of all rows of `h` from each class's mean."
    return answers.class_prototypes(h, y) - h.mean(0)


def expand_rows__longest(weight, bias, prototypes):
    "New rows are as long as the longest old row, and their biases are the smallest old bias."
    rows = weight.norm(dim=1).max() * F.normalize(prototypes, dim=1)
    return torch.cat([weight, rows]), torch.cat([bias, bias.min().expand(len(rows))])


def expand_rows__root(weight, bias, prototypes):
    "A new row is as long as the root of the mean of the old rows' squared lengths, in place of their mean length."
    rows = weight.square().sum(1).mean().sqrt() * F.normalize(prototypes, dim=1)
    return torch.cat([weight, rows]), torch.cat([bias, bias.mean().expand(len(rows))])


def row_gated_average__half(states, counts, previous):
    "A class's new row is halfway between the one before and the average of its owners."
    new = answers.row_gated_average(states, counts, previous)
    return {name: (t + previous[name]) / 2 for name, t in new.items()}


def row_gated_average__guest(states, counts, previous):
    "Besides the farms, `previous` counts like one more farm that has 10 pictures of every class."
    return answers.row_gated_average([*states, previous], [*counts, [10] * len(previous["bias"])], previous)


def lda_message__centred(z, y, classes):
    "The third is the sum of $z z^T$ after the mean of all `z` is subtracted from each."
    counts, sums, _ = answers.lda_message(z, y, classes)
    away = z - z.mean(0)
    return counts, sums, away.T @ away


def lda_message__diagonal(z, y, classes):
    "In place of the matrix (D, D) return only its diagonal (D,): the sum of the squares of each feature."
    counts, sums, second = answers.lda_message(z, y, classes)
    return counts, sums, second.diagonal()


def lda_classifier__prior(counts, sums, second, shrink):
    "Add the logarithm of its share of all pictures to the bias of each class."
    weight, bias = answers.lda_classifier(counts, sums, second, shrink)
    return weight, bias + (counts / counts.sum()).log()


def lda_classifier__diagonal(counts, sums, second, shrink):
    "Keep only the diagonal of $S$: set all its other entries to 0 before you compute $S'$."
    means = sums / counts[:, None]
    variances = (second.diagonal() - (counts[:, None] * means.square()).sum(0)) / counts.sum()
    weight = means / ((1 - shrink) * variances + shrink * variances.mean())
    return weight, -0.5 * (weight * means).sum(1)
