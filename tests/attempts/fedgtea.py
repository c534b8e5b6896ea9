"Attempts at the blanks of nbs/14_fedgtea.ipynb: see tests/test_exercises.py."
import copy
from functools import partial

import torch
from torch.nn import functional as F

from fedbook.methods.painters import discriminator_loss, generator_loss


def task_of__wrong_as_many_in_each(y, classes): return y // classes[0]

def task_of__wrong_one_late(y, classes): return torch.bucketize(y, torch.tensor(classes).cumsum(0))

def task_of__right_by_bucketize(y, classes): return torch.bucketize(y, torch.tensor(classes).cumsum(0), right=True)


def group_means__wrong_over_all(z, groups): return z.mean(0).expand_as(z)

def group_means__wrong_sum(z, groups):
    return torch.stack([z[groups == g].sum(0) for g in groups])

def group_means__wrong_one_row_a_task(z, groups):
    return torch.stack([z[groups == g].mean(0) for g in groups.unique()])

@torch.no_grad()
def group_means__wrong_without_gradient(z, groups): return group_means__right_by_a_matrix(z, groups)

def group_means__right_by_a_matrix(z, groups):
    alike = (groups[:, None] == groups).to(z)
    return alike @ z / alike.sum(1, keepdim=True)


def batch_gaussian__wrong_single_pictures(z, b): return z.mean(0), torch.cov(z.T, correction=0)

def batch_gaussian__wrong_one_less(z, b): return z.mean(0), torch.cov(z.T) / b

def batch_gaussian__wrong_root(z, b): return z.mean(0), torch.cov(z.T, correction=0) / b ** 0.5

def batch_gaussian__right_by_moments(z, b):
    second = torch.einsum("ni,nj->ij", z, z) / len(z)
    return z.mean(0), (second - torch.outer(z.mean(0), z.mean(0))) / b


def pool__wrong_scatter_between_missing(means, covs, counts):
    shares = counts / counts.sum()
    return shares @ means, torch.tensordot(shares, covs, 1)

def pool__wrong_each_client_once(means, covs, counts):
    mean = means.mean(0)
    away = means - mean
    return mean, covs.mean(0) + away.T @ away / len(means)

def pool__right_second_moments(means, covs, counts):
    shares = counts / counts.sum()
    second = torch.tensordot(shares, covs + means[:, :, None] * means[:, None], 1)
    mean = shares @ means
    return mean, second - torch.outer(mean, mean)


def w2_squared__wrong_means_only(mean_1, cov_1, mean_2, cov_2): return (mean_1 - mean_2).square().sum()

def w2_squared__wrong_diagonal(mean_1, cov_1, mean_2, cov_2):
    shapes = (cov_1.diagonal().sqrt() - cov_2.diagonal().sqrt()).square().sum()
    return (mean_1 - mean_2).square().sum() + shapes

def w2_squared__wrong_not_squared(mean_1, cov_1, mean_2, cov_2):
    return w2_squared__right_by_roots(mean_1, cov_1, mean_2, cov_2).sqrt()

def w2_squared__right_by_roots(mean_1, cov_1, mean_2, cov_2):
    values, axes = torch.linalg.eigh(cov_1)
    root = axes @ torch.diag(values.clamp_min(0).sqrt()) @ axes.T
    cross = torch.linalg.eigvalsh(root @ cov_2 @ root).clamp_min(0).sqrt().sum()
    return (mean_1 - mean_2).square().sum() + cov_1.trace() + cov_2.trace() - 2 * cross


def wasserstein_term__wrong_pairs_twice(distances, eps):
    return 1 / (distances.sum() + eps) if len(distances) > 1 else distances.new_zeros(())

def wasserstein_term__wrong_sum_of_inverses(distances, eps):
    i, j = torch.triu_indices(len(distances), len(distances), 1)
    return (1 / (distances[i, j] + eps)).sum()

def wasserstein_term__wrong_one_task(distances, eps): return 1 / (distances.triu(1).sum() + eps)

def wasserstein_term__wrong_a_plain_number(distances, eps):
    return wasserstein_term__right_triangle(distances, eps).item()

def wasserstein_term__right_triangle(distances, eps):
    return 1 / (distances.triu(1).sum() + eps) if len(distances) > 1 else distances.new_zeros(())


def distillation_term__wrong_student_first(teacher_logits, logits):
    a, b = F.log_softmax(teacher_logits, 1), F.log_softmax(logits[:, :teacher_logits.shape[1]], 1)
    return (b.exp() * (b - a)).sum(1).mean()

def distillation_term__wrong_all_classes(teacher_logits, logits):
    target = F.log_softmax(teacher_logits, 1)
    log_p = F.log_softmax(logits, 1)[:, :teacher_logits.shape[1]]
    return (target.exp() * (target - log_p)).sum(1).mean()

def distillation_term__wrong_sum(teacher_logits, logits):
    return len(logits) * distillation_term__right_kl_div(teacher_logits, logits)

def distillation_term__wrong_mean_over_entries(teacher_logits, logits):
    return distillation_term__right_kl_div(teacher_logits, logits) / teacher_logits.shape[1]

def distillation_term__right_kl_div(teacher_logits, logits):
    student = logits[:, :teacher_logits.shape[1]].log_softmax(1)
    return F.kl_div(student, teacher_logits.detach().softmax(1), reduction="batchmean")

def distillation_term__wrong_the_teacher_learns(teacher_logits, logits):
    student = logits[:, :teacher_logits.shape[1]].log_softmax(1)
    return F.kl_div(student, teacher_logits.softmax(1), reduction="batchmean")


def anchor_term__wrong_by_tensor(params, anchor): return sum((p - a).norm() for p, a in zip(params, anchor))

def anchor_term__wrong_squared(params, anchor):
    return sum((p - a).square().sum() for p, a in zip(params, anchor))

def anchor_term__wrong_small_number_outside(params, anchor):
    return sum((p - a).square().sum() for p, a in zip(params, anchor)).sqrt() + 1e-12

def anchor_term__right_flat(params, anchor):
    return torch.cat([(p - a).flatten() for p, a in zip(params, anchor)]).norm()


def _walk(theta, terms, weights, steps, rate, falls=True, most=1.0, make=torch.optim.Adam, own=True, **options):
    theta = copy.deepcopy(theta) if own else theta
    params = list(theta.parameters())
    adam = make(params, lr=rate, **(options or {"betas": (0.5, 0.999)}))
    for k in range(steps):
        if falls: adam.param_groups[0]["lr"] = rate * (1 - k / steps)
        adam.zero_grad()
        sum(w * term for w, term in zip(weights, terms(theta))).backward()
        if most: torch.nn.utils.clip_grad_norm_(params, most)
        adam.step()
    return [p.detach() for p in params]

def server_walk__wrong_rate_stays(theta, terms, weights, steps, rate):
    return _walk(theta, terms, weights, steps, rate, falls=False)

def server_walk__wrong_never_cut(theta, terms, weights, steps, rate):
    return _walk(theta, terms, weights, steps, rate, most=None)

def server_walk__wrong_adam_as_it_comes(theta, terms, weights, steps, rate):
    return _walk(theta, terms, weights, steps, rate, betas=(0.9, 0.999))

def server_walk__wrong_plain_sgd(theta, terms, weights, steps, rate):
    return _walk(theta, terms, weights, steps, rate, make=torch.optim.SGD, momentum=0.0)

def server_walk__wrong_weights_forgotten(theta, terms, weights, steps, rate):
    return _walk(theta, terms, (1, 1, 1), steps, rate)

def server_walk__wrong_no_copy(theta, terms, weights, steps, rate):
    return _walk(theta, terms, weights, steps, rate, own=False)

def server_walk__right_by_a_schedule(theta, terms, weights, steps, rate):
    moved = copy.deepcopy(theta)
    adam = torch.optim.Adam(moved.parameters(), lr=rate, betas=(0.5, 0.999))
    falls = torch.optim.lr_scheduler.LambdaLR(adam, lambda k: 1 - k / steps)
    for _ in range(steps):
        adam.zero_grad()
        first, second, third = terms(moved)
        (weights[0] * first + weights[1] * second + weights[2] * third).backward()
        torch.nn.utils.clip_grad_norm_(moved.parameters(), 1.0)
        adam.step()
        falls.step()
    return [p.detach().clone() for p in moved.parameters()]


def paint_old__wrong_every_class_in_turn(painter, old, steps, batch, generator):
    y = torch.arange(steps * batch) % old
    return painter.sample(y, generator).unflatten(0, (steps, batch)), y.view(steps, batch)

def paint_old__wrong_flat(painter, old, steps, batch, generator):
    y = torch.randint(old, (steps * batch,), generator=generator)
    return painter.sample(y, generator), y

def paint_old__wrong_one_class_more(painter, old, steps, batch, generator):
    return paint_old__right_by_views(painter, old + 1, steps, batch, generator)

def paint_old__wrong_tuples(painter, old, steps, batch, generator):
    x, y = paint_old__right_by_views(painter, old, steps, batch, generator)
    return tuple(x), tuple(y)

def paint_old__right_by_views(painter, old, steps, batch, generator):
    y = torch.randint(0, old, (steps * batch,), generator=generator)
    x = painter.sample(y, generator)
    return torch.stack(x.split(batch)), torch.stack(y.split(batch))


def _rivals(model, batches, critic_lr, generator_lr, train=True, betas=(0.5, 0.999), both=True, cate=True, own=True):
    model = copy.deepcopy(model) if own else model
    model.train(train)
    sides = {"generator": [], "critic": []}
    for name, p in model.named_parameters():
        if name.startswith("generator."): sides["generator"].append(p)
        elif cate or not name.startswith("cate."): sides["critic"].append(p)
    critic = torch.optim.Adam(sides["critic"], critic_lr, betas=betas)
    painter = torch.optim.Adam(sides["generator"], generator_lr, betas=betas)
    for x, y, groups, noise in batches:
        judge = partial(model.judge, groups=groups)
        fake = model.generator(noise, y)
        losses = [(critic, lambda: discriminator_loss(judge, x, y, fake))]
        if both: losses.append((painter, lambda: generator_loss(judge, fake, y)))
        for optimiser, loss in losses:
            optimiser.zero_grad()
            loss().backward()
            optimiser.step()
    return model.state_dict()

def train_rivals__wrong_rates_swapped(model, batches, critic_lr, generator_lr):
    return _rivals(model, batches, generator_lr, critic_lr)

def train_rivals__wrong_without_cate(model, batches, critic_lr, generator_lr):
    return _rivals(model, batches, critic_lr, generator_lr, cate=False)

def train_rivals__wrong_adam_as_it_comes(model, batches, critic_lr, generator_lr):
    return _rivals(model, batches, critic_lr, generator_lr, betas=(0.9, 0.999))

def train_rivals__wrong_generator_left(model, batches, critic_lr, generator_lr):
    return _rivals(model, batches, critic_lr, generator_lr, both=False)

def train_rivals__wrong_each_picture_alone(model, batches, critic_lr, generator_lr):
    return _rivals(model, [(x, y, None, noise) for x, y, _, noise in batches], critic_lr, generator_lr)

def train_rivals__wrong_no_copy(model, batches, critic_lr, generator_lr):
    return _rivals(model, batches, critic_lr, generator_lr, own=False)

def train_rivals__wrong_not_in_training_mode(model, batches, critic_lr, generator_lr):
    return _rivals(model, batches, critic_lr, generator_lr, train=False)

def train_rivals__right_in_a_loop(model, batches, critic_lr, generator_lr):
    return _rivals(model, batches, critic_lr, generator_lr)
