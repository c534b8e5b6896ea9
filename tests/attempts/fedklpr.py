"Attempts at the blanks of nbs/12_fedklpr.ipynb: see tests/test_exercises.py."
import copy
import math

import torch
from torch.nn import functional as F


def _proxies(features, clusters, cameras, noise=False, camera=True, unit=True):
    found = torch.ones_like(clusters, dtype=torch.bool) if noise else clusters >= 0
    keys = torch.stack([clusters, cameras if camera else 0 * cameras], 1)
    pairs, own = keys[found].unique(dim=0, return_inverse=True)
    member = torch.full_like(clusters, -1)
    member[found] = own
    means = torch.stack([features[found][own == k].mean(0) for k in range(len(pairs))])
    return pairs, F.normalize(means) if unit else means, member

def camera_proxies__wrong_noise_has_one(features, clusters, cameras):
    return _proxies(features, clusters, cameras, noise=True)

def camera_proxies__wrong_one_for_a_cluster(features, clusters, cameras):
    return _proxies(features, clusters, cameras, camera=False)

def camera_proxies__wrong_any_length(features, clusters, cameras):
    return _proxies(features, clusters, cameras, unit=False)

def camera_proxies__right_by_unique(features, clusters, cameras): return _proxies(features, clusters, cameras)


def kl_divergence__wrong_reference_first(features, reference):
    return kl_divergence__right_by_torch(reference, features)

def kl_divergence__wrong_mean_over_entries(features, reference):
    return kl_divergence__right_by_torch(features, reference) / features.shape[1]

def kl_divergence__wrong_softmax_over_pictures(features, reference):
    sent, here = F.log_softmax(reference, 0), F.log_softmax(features, 0)
    return F.kl_div(sent, here, log_target=True, reduction="batchmean")

def kl_divergence__right_by_torch(features, reference):
    return F.kl_div(reference.log_softmax(1), features.log_softmax(1), log_target=True, reduction="batchmean")


def kl_weight__wrong_small_moves_lead(divergences):
    return [1 / len(divergences)] * len(divergences) if not sum(divergences) else [
        (1 - f / sum(divergences)) / max(1, len(divergences) - 1) for f in divergences]

def kl_weight__wrong_nothing_if_all_are_zero(divergences):
    return [f / (sum(divergences) or 1) for f in divergences]

def kl_weight__right_by_a_tensor(divergences):
    f = torch.tensor(divergences, dtype=torch.float64)
    return (f / f.sum() if f.sum() > 0 else torch.full_like(f, 1 / len(f))).tolist()


def pruning_weight__wrong_not_squared(ratios): return kl_weight__right_by_a_tensor(ratios)

def pruning_weight__wrong_over_the_plain_sum(ratios):
    return [p * p / sum(ratios) for p in ratios] if sum(ratios) else [1 / len(ratios)] * len(ratios)

def pruning_weight__wrong_nothing_if_nobody_pruned(ratios):
    return [p * p / (sum(q * q for q in ratios) or 1) for p in ratios]

def pruning_weight__right_by_a_tensor(ratios): return kl_weight__right_by_a_tensor([p ** 2 for p in ratios])


def combine_weights__wrong_swapped(kl, pruning, gamma):
    return combine_weights__right_by_map(pruning, kl, gamma)

def combine_weights__wrong_a_plain_sum(kl, pruning, gamma):
    return [gamma * f + w for f, w in zip(kl, pruning)]

def combine_weights__right_by_map(kl, pruning, gamma):
    return list(map(lambda f, w: w + gamma * (f - w), kl, pruning))


def _mask(weights, mask, step, target, of_all=False, stop=True, signed=False, again=False):
    kept, new = int(mask.sum()), mask.clone()
    count = math.floor(step * (mask.numel() if of_all else kept) + 1e-9)
    if stop: count = min(count, math.floor(target * mask.numel() + 1e-9) - (mask.numel() - kept))
    places = (torch.ones_like(mask) if again else mask).flatten().nonzero().flatten().tolist()
    values = weights.flatten() if signed else weights.flatten().abs()
    by_size = sorted(places, key=lambda k: (float(values[k]), k))
    for place in by_size[:max(0, count)]: new.view(-1)[place] = False
    return new

def magnitude_mask__wrong_a_share_of_the_whole(weights, mask, step, target):
    return _mask(weights, mask, step, target, of_all=True)

def magnitude_mask__wrong_no_target(weights, mask, step, target):
    return _mask(weights, mask, step, target, stop=False)

def magnitude_mask__wrong_most_negative(weights, mask, step, target):
    return _mask(weights, mask, step, target, signed=True)

def magnitude_mask__wrong_pruned_ones_go_again(weights, mask, step, target):
    return _mask(weights, mask, step, target, again=True)

def magnitude_mask__right_by_sorting(weights, mask, step, target): return _mask(weights, mask, step, target)


def sparse_mean__wrong_zeros_count(tensors, masks, shares):
    return sum(share * t * m for t, m, share in zip(tensors, masks, shares)) / sum(shares)

def sparse_mean__wrong_by_value(tensors, masks, shares):
    return sparse_mean__right_stacked(tensors, [t != 0 for t in tensors], shares)

def sparse_mean__wrong_each_keeper_once(tensors, masks, shares):
    return sparse_mean__right_stacked(tensors, masks, [1.0] * len(shares))

def sparse_mean__right_stacked(tensors, masks, shares):
    parts = torch.tensor(shares).to(tensors[0])
    weight = torch.einsum("k...,k->...", torch.stack(masks).to(tensors[0]), parts)
    total = torch.einsum("k...,k->...", torch.stack(tensors) * torch.stack(masks), parts)
    return torch.nan_to_num(total / weight, nan=0.0)


def may_prune__wrong_as_printed(accuracy, before, threshold, fall):
    return before is not None and accuracy >= threshold and accuracy - before <= fall

def may_prune__wrong_the_threshold_is_all(accuracy, before, threshold, fall):
    return before is not None and accuracy >= threshold

def may_prune__wrong_in_the_first_round(accuracy, before, threshold, fall):
    return accuracy >= threshold and (before is None or before - accuracy <= fall + 1e-9)

def may_prune__right_in_two_questions(accuracy, before, threshold, fall):
    if before is None or accuracy < threshold: return False
    return accuracy > before - fall - 1e-9


def try_mask__wrong_as_printed(state, candidate, accuracy, fall, score):
    pruned = {name: t * candidate.get(name, 1) for name, t in state.items()}
    return (pruned, True) if score(pruned) - accuracy <= fall else (state, False)

def try_mask__wrong_never_back(state, candidate, accuracy, fall, score):
    pruned = {name: t * candidate.get(name, 1) for name, t in state.items()}
    return pruned, accuracy - score(pruned) <= fall + 1e-9

def try_mask__wrong_scores_the_whole(state, candidate, accuracy, fall, score):
    pruned = {name: t * candidate.get(name, 1) for name, t in state.items()}
    return (pruned, True) if accuracy - score(state) <= fall + 1e-9 else (state, False)

def try_mask__right_by_filling(state, candidate, accuracy, fall, score):
    cut = {name: t.masked_fill(~candidate[name], 0) if name in candidate else t for name, t in state.items()}
    stays = score(cut) >= accuracy - fall - 1e-9
    return (cut if stays else state), bool(stays)


def _train(model, reference, batches, loss, mask, delta, lr, hold=True, swap=False, own=True):
    model = copy.deepcopy(model) if own else model
    model.train()
    params = dict(model.named_parameters())
    optimiser = torch.optim.Adam(params.values(), lr=lr)
    for x, y in batches:
        out, sent = model(x), reference(x).detach()
        pair = (sent, out) if swap else (out, sent)
        optimiser.zero_grad()
        (loss(out, y) + delta * kl_divergence__right_by_torch(*pair)).backward()
        optimiser.step()
        if hold:
            for name, kept in mask.items(): params[name].data.masked_fill_(~kept, 0)
    return model.state_dict()

def train_pruned__wrong_weights_come_back(*args): return _train(*args, hold=False)

def train_pruned__wrong_reference_first(*args): return _train(*args, swap=True)

def train_pruned__wrong_no_copy(*args): return _train(*args, own=False)

def train_pruned__wrong_without_kl(model, reference, batches, loss, mask, delta, lr):
    return _train(model, reference, batches, loss, mask, 0.0, lr)

def train_pruned__right_by_filling(*args): return _train(*args)


def _next(states, masks, divergences, gamma, klaw=True, praw=True, sparse=True):
    kept = [sum(float(m.sum()) for m in mask.values()) for mask in masks]
    ratios = [1 - k / sum(m.numel() for m in mask.values()) for k, mask in zip(kept, masks)]
    kl, pruning = kl_weight__right_by_a_tensor(divergences), pruning_weight__right_by_a_tensor(ratios)
    shares = combine_weights__right_by_map(kl, pruning, gamma)
    if not praw: shares = kl
    if not klaw: shares = pruning
    whole = [{name: masks[k].get(name, torch.ones_like(t, dtype=torch.bool)) for name, t in state.items()}
             for k, state in enumerate(states)]
    mean = sparse_mean__right_stacked if sparse else sparse_mean__wrong_zeros_count
    return {name: mean([s[name] for s in states], [m[name] for m in whole], shares) for name in states[0]}

def next_model__wrong_only_klaw(*args): return _next(*args, praw=False)

def next_model__wrong_only_praw(*args): return _next(*args, klaw=False)

def next_model__wrong_zeros_count(*args): return _next(*args, sparse=False)

def next_model__right_by_the_parts(*args): return _next(*args)
