"Attempts at the blanks of nbs/14_fedgtea.ipynb: see tests/test_exercises.py."
import torch
from torch.nn import functional as F


def task_embedding__wrong_mean_of_means(cate, batches):
    return torch.stack([cate(x).mean(0) for x in batches]).mean(0)

def task_embedding__wrong_sum(cate, batches): return sum(cate(x).sum(0) for x in batches)

def task_embedding__right_all_at_once(cate, batches): return cate(torch.cat(list(batches))).mean(0)


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

def wasserstein_term__right_triangle(distances, eps):
    return 1 / (distances.triu(1).sum() + eps) if len(distances) > 1 else distances.new_zeros(())


def distillation_term__wrong_student_first(teacher, student, x, old):
    a, b = (F.log_softmax(net(x)[:, :old], 1) for net in (teacher, student))
    return (b.exp() * (b - a)).sum(1).mean()

def distillation_term__wrong_all_classes(teacher, student, x, old):
    target = F.log_softmax(teacher(x)[:, :old], 1)
    log_p = F.log_softmax(student(x), 1)[:, :old]
    return (target.exp() * (target - log_p)).sum(1).mean()

def distillation_term__wrong_sum(teacher, student, x, old):
    return len(x) * distillation_term__right_kl_div(teacher, student, x, old)

def distillation_term__right_kl_div(teacher, student, x, old):
    target = teacher(x)[:, :old].softmax(1)
    return F.kl_div(student(x)[:, :old].log_softmax(1), target, reduction="batchmean")


def anchor_term__wrong_by_tensor(params, anchor): return sum((p - a).norm() for p, a in zip(params, anchor))

def anchor_term__wrong_squared(params, anchor):
    return sum((p - a).square().sum() for p, a in zip(params, anchor))

def anchor_term__right_flat(params, anchor):
    return torch.cat([(p - a).flatten() for p, a in zip(params, anchor)]).norm()


def server_step__wrong_never_cut(theta, terms, rate, weights=(0.3, 0.3, 0.4)):
    params = list(theta.parameters())
    loss = sum(w * term for w, term in zip(weights, terms(theta)))
    return [(p - rate * g).detach() for p, g in zip(params, torch.autograd.grad(loss, params))]

def server_step__wrong_always_length_one(theta, terms, rate, weights=(0.3, 0.3, 0.4)):
    params = list(theta.parameters())
    loss = sum(w * term for w, term in zip(weights, terms(theta)))
    gradients = torch.autograd.grad(loss, params)
    length = torch.cat([g.flatten() for g in gradients]).norm()
    return [(p - rate * g / length).detach() for p, g in zip(params, gradients)]

def server_step__wrong_uphill(theta, terms, rate, weights=(0.3, 0.3, 0.4)):
    return server_step__right_by_torch(theta, terms, -rate, weights)

def server_step__wrong_weights_forgotten(theta, terms, rate, weights=(0.3, 0.3, 0.4)):
    return server_step__right_by_torch(theta, terms, rate, (1, 1, 1))

def server_step__right_by_torch(theta, terms, rate, weights=(0.3, 0.3, 0.4)):
    import copy
    moved = copy.deepcopy(theta)
    sum(w * term for w, term in zip(weights, terms(moved))).backward()
    torch.nn.utils.clip_grad_norm_(moved.parameters(), 1.0)
    return [(p - rate * p.grad).detach() for p in moved.parameters()]
