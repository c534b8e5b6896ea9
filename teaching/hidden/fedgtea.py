"Hidden cases for the blanks of `fedbook.fedgtea`: each function draws the arguments of one case."
import copy
from functools import partial

import torch
import torch.nn.functional as F

from fedbook.answers import fedgtea as answers
from fedbook.fedgtea import GTEA
from fedbook.methods.painters import discriminator_loss, generator_loss

def _normal(g, *shape): return torch.tensor(g.normal(size=shape))

def _variable(g, *shape): return _normal(g, *shape).requires_grad_()

def _linear(g, inputs, outputs):
    layer = torch.nn.Linear(inputs, outputs).double()
    layer.load_state_dict({"weight": _normal(g, outputs, inputs), "bias": _normal(g, outputs)})
    return layer

def _cov(g, d):
    a = _normal(g, d, d)
    return a @ a.T + 0.1 * torch.eye(d).double()


def task_of(g):
    classes = g.integers(2, 6, int(g.integers(1, 5))).tolist()
    return torch.tensor(g.integers(0, sum(classes), 6)), classes


def group_means(g):
    n = int(g.integers(2, 9))
    return _variable(g, n, 3), torch.tensor(g.integers(0, 3, n))


def batch_gaussian(g): return _normal(g, int(g.integers(2, 9)), 3), int(g.integers(2, 65))


def pool(g):
    k = int(g.integers(2, 5))
    return _normal(g, k, 2), torch.stack([_cov(g, 2) for _ in range(k)]), torch.tensor(g.integers(3, 50, k)).double()


def w2_squared(g): return _normal(g, 2), _cov(g, 2), _normal(g, 2), _cov(g, 2)


def wasserstein_term(g):
    means = _normal(g, int(g.integers(1, 6)), 3)
    return (means[:, None] - means).square().sum(2).requires_grad_(), 0.01


def distillation_term(g):
    old = int(g.integers(2, 5))
    return _variable(g, 4, old), _variable(g, 4, old + int(g.integers(0, 3)))


def anchor_term(g):
    draw = lambda: [_variable(g, 2, 3), _variable(g, 3)]
    return draw(), draw()


def server_walk(g):
    size = float(g.choice([0.05, 5.0]))
    def terms(theta):
        p = theta.weight
        return size * (p - 1).square().sum(), size * theta.bias.square().sum(), (p.square().sum() + 1e-12).sqrt()
    return _linear(g, 2, 2), terms, (0.3, 0.3, 0.4), int(g.integers(1, 9)), 0.1


def _model(g):
    torch.manual_seed(int(g.integers(2 ** 31)))
    return GTEA(4, (1, 8, 8), dim=4, hidden=(8,))


def paint_old(g):
    random = torch.Generator().manual_seed(int(g.integers(2 ** 31)))
    return _model(g).generator, int(g.integers(2, 5)), int(g.integers(1, 4)), int(g.integers(1, 5)), random


def train_rivals(g):
    groups = [None, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1])]
    batches = [(_normal(g, 4, 1, 8, 8).clamp(-1, 1), torch.tensor(g.integers(0, 4, 4)), groups[g.integers(3)],
                _normal(g, 4, 100)) for _ in range(int(g.integers(1, 4)))]
    return _model(g).double().eval(), batches, 1e-3, 2e-3


# Variations: NAME__HOW is the right answer to what its docstring asks for.

def task_of__from_one(y, classes):
    "Count the tasks from 1."
    return answers.task_of(y, classes) + 1


def task_of__known(y, classes):
    """In place of its task, return for each label how many classes are known once its task has come: the sum of
    `classes` up to and including its task."""
    return torch.tensor(classes).cumsum(0)[answers.task_of(y, classes)]


def group_means__away(z, groups):
    "Return how far each row is from the mean of its group: row minus mean."
    return z - answers.group_means(z, groups)


def group_means__unit(z, groups):
    "Scale each mean to length 1."
    return F.normalize(answers.group_means(z, groups), dim=1)


def batch_gaussian__unbiased(z, b):
    "Divide by n - 1 in place of n in the covariance."
    mean, cov = answers.batch_gaussian(z, b)
    return mean, cov * len(z) / (len(z) - 1)


def batch_gaussian__deviations(z, b):
    "In place of the covariance $\\Sigma$, return the standard deviations (d,): the roots of its diagonal."
    mean, cov = answers.batch_gaussian(z, b)
    return mean, cov.diagonal().sqrt()


def pool__within(means, covs, counts):
    "Leave out how far the clients' means are from the common one."
    mean, _ = answers.pool(means, covs, counts)
    shares = counts / counts.sum()
    return mean, sum(share * cov for share, cov in zip(shares, covs))


def pool__between(means, covs, counts):
    "Leave the clients' own covariances $C_k$ out: only how far their means are from the common one counts for $C$."
    return answers.pool(means, 0 * covs, counts)


def w2_squared__shapes(mean_1, cov_1, mean_2, cov_2):
    "Leave out the means: the distance of the two covariances alone."
    return answers.w2_squared(0 * mean_1, cov_1, 0 * mean_2, cov_2)


def w2_squared__axes(mean_1, cov_1, mean_2, cov_2):
    "First set the entries off the diagonal to 0 in both covariances."
    apart = cov_1.diagonal().sqrt() - cov_2.diagonal().sqrt()
    return (mean_1 - mean_2).square().sum() + apart.square().sum()


def wasserstein_term__logarithm(distances, eps):
    "Return minus the logarithm of the sum plus `eps`, also for a single task."
    tasks = len(distances)
    return -(sum(distances[i, j] for i in range(tasks) for j in range(i + 1, tasks)) + distances.new_tensor(eps)).log()


def wasserstein_term__one(distances, eps):
    "Return $1 / (1 + S)$, also for a single task, where it is 1. `eps` is not used."
    return 1 / (1 + distances.triu(1).sum())


def distillation_term__other_way(teacher_logits, logits):
    "Take the divergence the other way round: of the student from the teacher. The teacher still has no gradient."
    old = teacher_logits.shape[1]
    target, log_p = teacher_logits.detach().log_softmax(1), logits[:, :old].log_softmax(1)
    return (log_p.exp() * (log_p - target)).sum(1).mean()


def distillation_term__variation(teacher_logits, logits):
    """In place of the KL divergence, take half the sum over the old classes of the absolute differences of $\\hat p$
    and $p$, and again the mean over the batch. The teacher still has no gradient."""
    old = teacher_logits.shape[1]
    apart = teacher_logits.detach().softmax(1) - logits[:, :old].softmax(1)
    return apart.abs().sum(1).mean() / 2


def anchor_term__absolute(params, anchor):
    "Add up the absolute differences, in place of the Euclidean distance."
    return sum((p - a).abs().sum() for p, a in zip(params, anchor))


def anchor_term__each(params, anchor):
    "Take the norm for each tensor on its own, with $10^{-12}$ under each root, and add these norms up."
    return sum(((p - a).square().sum() + 1e-12).sqrt() for p, a in zip(params, anchor))


def server_walk__slow(theta, terms, weights, steps, rate):
    "Walk with half of the rate throughout."
    return answers.server_walk(theta, terms, weights, steps, rate / 2)


def server_walk__plain(theta, terms, weights, steps, rate):
    "Take the steps with `torch.optim.SGD` without momentum, in place of Adam. Clipping and the falling rate stay."
    theta = copy.deepcopy(theta)
    params = list(theta.parameters())
    for k in range(steps):
        loss = sum(weight * term for weight, term in zip(weights, terms(theta)))
        slopes = torch.autograd.grad(loss, params, allow_unused=True)
        slopes = [torch.zeros_like(p) if slope is None else slope for p, slope in zip(params, slopes)]
        short = min(1.0, 1 / (sum(slope.square().sum() for slope in slopes).sqrt().item() + 1e-6))
        for p, slope in zip(params, slopes): p.data -= rate * (1 - k / steps) * short * slope
    return [p.detach() for p in params]


def paint_old__negative(painter, old, steps, batch, generator):
    "Return the negatives of the pictures: all values with the opposite sign."
    x, y = answers.paint_old(painter, old, steps, batch, generator)
    return -x, y


def paint_old__round(painter, old, steps, batch, generator):
    "Do not draw the labels: they run 0, 1, ..., `old` - 1, and again from 0, over all `steps * batch` pictures."
    y = torch.arange(steps * batch) % old
    x = painter.sample(y, generator)
    return x.reshape(steps, batch, *x.shape[1:]), y.reshape(steps, batch)


def train_rivals__slow(model, batches, critic_lr, generator_lr):
    "Both sides train with half of their rates."
    return answers.train_rivals(model, batches, critic_lr / 2, generator_lr / 2)


def train_rivals__twice(model, batches, critic_lr, generator_lr):
    "On each batch, discriminator and CATE take two steps in a row on the same `fake`, and then the generator one."
    model = copy.deepcopy(model).train()
    painter = list(model.generator.parameters())
    critic = [p for name, p in model.named_parameters() if not name.startswith("generator.")]
    first = torch.optim.Adam(critic, critic_lr, betas=(0.5, 0.999))
    second = torch.optim.Adam(painter, generator_lr, betas=(0.5, 0.999))
    for x, y, groups, noise in batches:
        judge, fake = partial(model.judge, groups=groups), model.generator(noise, y)
        for _ in range(2):
            first.zero_grad()
            discriminator_loss(judge, x, y, fake).backward()
            first.step()
        second.zero_grad()
        generator_loss(judge, fake, y).backward()
        second.step()
    return model.state_dict()
