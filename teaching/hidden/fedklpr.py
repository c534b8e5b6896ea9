"Hidden cases for the blanks of `fedbook.fedklpr`: each function draws the arguments of one case."
import copy

import torch
from torch import nn
from torch.nn import functional as F

from fedbook.answers import fedklpr as answers


def _floats(g, *shape): return torch.tensor(g.normal(size=shape))

def _bools(g, *shape): return torch.tensor(g.random(shape) < 0.6)


def camera_proxies(g):
    n = int(g.integers(4, 12))
    clusters = torch.tensor(g.integers(-1, 3, n))
    clusters[0] = 0
    return _floats(g, n, 3), clusters, torch.tensor(g.integers(0, 2, n))


def kl_divergence(g):
    b, d = (int(v) for v in g.integers(1, 6, 2))
    return _floats(g, b, d + 1), _floats(g, b, d + 1)


def kl_weight(g): return (g.uniform(0, 2, int(g.integers(2, 6))).tolist(),)

def pruning_weight(g): return (g.uniform(0, 1, int(g.integers(2, 6))).tolist(),)

def combine_weights(g):
    n = int(g.integers(2, 6))
    return g.dirichlet([1.0] * n).tolist(), g.dirichlet([1.0] * n).tolist(), float(g.uniform())


def magnitude_mask(g):
    shape = tuple(int(v) for v in g.integers(2, 6, 2))
    mask = _bools(g, *shape)
    mask[0, 0] = True
    return _floats(g, *shape), mask, float(g.uniform(0.1, 0.9)), float(g.uniform(0.3, 1))


def sparse_mean(g):
    n = int(g.integers(2, 5))
    tensors = [_floats(g, 3, 4) for _ in range(n)]
    masks = [_bools(g, 3, 4) for _ in range(n)]
    for mask in masks: mask[0, 0] = True
    return tensors, masks, g.dirichlet([2.0] * n).tolist()


def may_prune(g): return tuple(float(v) for v in g.uniform(0.5, 0.8, 3)) + (float(g.uniform(0, 0.2)),)

def try_mask(g):
    state, mask = {"w": _floats(g, 6), "b": _floats(g, 2)}, {"w": _bools(g, 6)}
    mask["w"][:2] = torch.tensor([False, True])
    return state, mask, float(g.uniform(1, 4)), float(g.uniform(0, 2)), lambda s: float(s["w"].abs().sum())


def train_pruned(g):
    def net(): return nn.Linear(3, 4).double()
    pair = [net(), net()]
    for model in pair:
        for p in model.parameters(): p.data = _floats(g, *p.shape)
    mask = {"weight": _bools(g, 4, 3)}
    pair[0].weight.data *= mask["weight"]
    batches = [(_floats(g, 5, 3), torch.tensor(g.integers(0, 4, 5))) for _ in range(int(g.integers(1, 4)))]
    return *pair, batches, F.cross_entropy, mask, 0.5, 0.05


def next_model(g):
    n = int(g.integers(2, 4))
    states = [{"w": _floats(g, 3, 4), "b": _floats(g, 3)} for _ in range(n)]
    masks = [{"w": _bools(g, 3, 4)} for _ in range(n)]
    return states, masks, g.uniform(0.1, 1, n).tolist(), float(g.uniform(0.2, 0.8))


# Variations: NAME__HOW is the right answer to what its docstring asks for.

def camera_proxies__plain(features, clusters, cameras):
    "A proxy is the sum of its features, and is not scaled to length 1."
    pairs, proxies, member = answers.camera_proxies(features, clusters, cameras)
    return pairs, torch.stack([features[member == i].sum(0) for i in range(len(pairs))]), member


def camera_proxies__sum_of_one(features, clusters, cameras):
    "Scale each proxy so that the absolute values of its entries add up to 1, in place of scaling it to length 1."
    pairs, proxies, member = answers.camera_proxies(features, clusters, cameras)
    return pairs, F.normalize(proxies, p=1, dim=1), member


def kl_divergence__other_way(features, reference):
    "Take the divergence the other way round: that of `reference` from `features`."
    return answers.kl_divergence(reference, features)


def kl_divergence__squares(features, reference):
    "In place of the divergence, take the squared distance of the two softmaxes, the mean over b."
    return (features.softmax(1) - reference.softmax(1)).square().sum(1).mean()


def kl_weight__squares(divergences):
    "Take shares in the sum of the squares of the divergences."
    return answers.kl_weight([f ** 2 for f in divergences])


def kl_weight__softmax(divergences):
    "Take the softmax of the divergences: the shares in the sum of all $e^{f_j}$."
    return torch.tensor(divergences, dtype=torch.float64).softmax(0).tolist()


def pruning_weight__kept(ratios):
    "Take the share of weights that a client keeps, in place of its pruning ratio."
    return answers.pruning_weight([1 - ratio for ratio in ratios])


def pruning_weight__cubes(ratios):
    "Take third powers in place of squares, above and below the fraction's line."
    return answers.kl_weight([ratio ** 3 for ratio in ratios])


def combine_weights__turned(kl, pruning, gamma):
    "`gamma` counts for the weights `pruning`, and 1 - `gamma` for `kl`."
    return answers.combine_weights(kl, pruning, 1 - gamma)


def combine_weights__product(kl, pruning, gamma):
    """Multiply in place of adding: `kl` to the power `gamma`, times `pruning` to the power 1 - `gamma`, for each
    client. Then divide each product by the sum of all products."""
    return answers.kl_weight([f ** gamma * w ** (1 - gamma) for f, w in zip(kl, pruning)])


def magnitude_mask__taken(weights, mask, step, target):
    "Return the mask of what is pruned anew: True where a weight was kept and is so no longer."
    return mask & ~answers.magnitude_mask(weights, mask, step, target)


def magnitude_mask__weights(weights, mask, step, target):
    "In place of the new mask, return `weights` with 0 in all places that the new mask does not keep."
    return weights * answers.magnitude_mask(weights, mask, step, target)


def sparse_mean__whole(tensors, masks, shares):
    "Divide by the sum of all `shares`, whether a mask keeps the position or not."
    return sum(share * t * mask for t, mask, share in zip(tensors, masks, shares)) / sum(shares)


def sparse_mean__plain(tensors, masks, shares):
    "All clients that keep a position count the same there: `shares` are not used. It is 0 if nobody keeps it."
    return answers.sparse_mean(tensors, masks, [1.0] * len(tensors))


def may_prune__waits(accuracy, before, threshold, fall):
    "Return whether a client has to wait: the opposite."
    return not answers.may_prune(accuracy, before, threshold, fall)


def may_prune__why(accuracy, before, threshold, fall):
    """Return a text in place of True or False: "first" if `before` is None, else "low" if the accuracy is below
    `threshold`, else "fallen" if it has fallen by more than `fall`, else "yes"."""
    if before is None: return "first"
    if accuracy < threshold: return "low"
    return "yes" if answers.may_prune(accuracy, before, threshold, fall) else "fallen"


def try_mask__scored(state, candidate, accuracy, fall, score):
    "In place of True or False return the accuracy of the weights that were tried, a float."
    found, _ = answers.try_mask(state, candidate, accuracy, fall, score)
    tried = {name: t * candidate[name] if name in candidate else t for name, t in state.items()}
    return found, score(tried) + 0.0


def try_mask__always(state, candidate, accuracy, fall, score):
    "Return the pruned weights in both cases. The bool says the opposite: True if the step costs too much."
    passed = answers.try_mask(state, candidate, accuracy, fall, score)[1]
    return {name: t * candidate[name] if name in candidate else t for name, t in state.items()}, not passed


def train_pruned__free(model, reference, batches, loss, mask, delta, lr):
    "Leave out the divergence: only the loss counts. Train with half of the rate `lr`."
    return answers.train_pruned(model, reference, batches, loss, mask, 0.0, lr / 2)


def train_pruned__decay(model, reference, batches, loss, mask, delta, lr):
    "Train with `torch.optim.AdamW` and `weight_decay=0.1`, in place of Adam."
    model = copy.deepcopy(model).train()
    descent = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.1)
    for x, y in batches:
        out = model(x)
        descent.zero_grad()
        (loss(out, y) + delta * answers.kl_divergence(out, reference(x).detach())).backward()
        descent.step()
        for name, p in model.named_parameters(): p.data *= mask.get(name, 1)
    return model.state_dict()


def next_model__turned(states, masks, divergences, gamma):
    "`gamma` counts for the weights by pruning, and 1 - `gamma` for those by divergence."
    return answers.next_model(states, masks, divergences, 1 - gamma)


def next_model__plain(states, masks, divergences, gamma):
    "In a layer without a mask all clients count the same. Layers with masks stay as in the text."
    def mean(name): return sum(state[name] for state in states) / len(states)
    new = answers.next_model(states, masks, divergences, gamma)
    return {name: t if name in masks[0] else mean(name) for name, t in new.items()}
