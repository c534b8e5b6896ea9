"Attempts at the blanks of 03_messages: wrong ones that `check` must catch, right ones written another way."
import math

import torch
from torch.nn.functional import cross_entropy

BITS = {"float32": 32, "float16": 16, "int64": 64, "bool": 1}


def payload__right_in_bits(layout):
    return sum(-(-math.prod(shape) * BITS[dtype] // 8) for shape, dtype in layout.values())


def payload__wrong_all_masks_share_bytes(layout):
    return math.ceil(sum(math.prod(shape) * BITS[dtype] for shape, dtype in layout.values()) / 8)


def payload__wrong_a_byte_for_each_boolean(layout):
    return sum(math.prod(shape) * max(1, BITS[dtype] // 8) for shape, dtype in layout.values())


def payload__wrong_every_entry_takes_four(layout):
    return sum(math.ceil(math.prod(shape) / 8) if dtype == "bool" else 4 * math.prod(shape)
               for shape, dtype in layout.values())


def payload__wrong_no_shape_no_entry(layout):
    return sum(-(-math.prod(shape) * BITS[dtype] // 8) for shape, dtype in layout.values() if shape)


def fewest_bytes__right_flags(t):
    flags = [value != 0 for value in t.flatten().tolist()]
    masked = (len(flags) + 7) // 8 + sum(flags) * t.element_size()
    return masked if masked < t.nbytes else t.nbytes


def fewest_bytes__wrong_always_the_mask(t):
    return math.ceil(t.numel() / 8) + int(t.count_nonzero()) * t.element_size()


def fewest_bytes__wrong_mask_rounded_down(t):
    return min(t.nbytes, t.numel() // 8 + int(t.count_nonzero()) * t.element_size())


def fewest_bytes__wrong_four_bytes_for_all(t):
    return min(4 * t.numel(), math.ceil(t.numel() / 8) + 4 * int(t.count_nonzero()))


def fewest_bytes__wrong_no_mask(t): return int(t.count_nonzero()) * t.element_size()


def fault__right_one_question_after_the_other(tensors, n, like):
    if set(tensors) ^ set(like): return "names"
    for name in like:
        questions = {"shape": list(tensors[name].shape) == list(like[name].shape),
                     "dtype": tensors[name].dtype is like[name].dtype,
                     "not finite": bool((tensors[name] - tensors[name] == 0).all())}
        for word, fine in questions.items():
            if not fine: return word
    return "" if isinstance(n, int) and n > 0 else "count"


def _faults(tensors, n, like, shape=lambda t: t.shape, dtype=lambda t: t.dtype, names=None, least=1):
    if tensors.keys() != like.keys(): return "names"
    for name in names or like:
        if shape(tensors[name]) != shape(like[name]): return "shape"
        if dtype(tensors[name]) != dtype(like[name]): return "dtype"
        if not torch.isfinite(tensors[name]).all(): return "not finite"
    return "" if n >= least and n == int(n) else "count"


def fault__wrong_counts_entries(tensors, n, like): return _faults(tensors, n, like, shape=torch.Tensor.numel)


def fault__wrong_no_look_at_the_dtype(tensors, n, like): return _faults(tensors, n, like, dtype=type)


def fault__wrong_only_the_first_tensor(tensors, n, like): return _faults(tensors, n, like, names=list(like)[:1])


def fault__wrong_zero_pictures_pass(tensors, n, like): return _faults(tensors, n, like, least=0)


def fault__wrong_missing_names_pass(tensors, n, like):
    return _faults(like | tensors, n, like)


def pull__right_tensor(sizes, batch, epochs):
    n = torch.tensor(sizes, dtype=torch.float64)
    product = n * (n / batch).ceil() * epochs
    return (product / product.sum()).tolist()


def pull__wrong_full_batches_only(sizes, batch, epochs):
    products = [n * epochs * (n // batch) for n in sizes]
    return [p / sum(products) for p in products]


def pull__wrong_pictures_alone(sizes, batch, epochs): return [n / sum(sizes) for n in sizes]


def pull__wrong_steps_alone(sizes, batch, epochs):
    tau = [epochs * math.ceil(n / batch) for n in sizes]
    return [t / sum(tau) for t in tau]


def train_and_count__right_by_autograd(model, weights, batches, lr):
    model.load_state_dict(weights)
    parameters, tau = dict(model.named_parameters()), 0
    for tau, (x, y) in enumerate(batches, 1):
        gradients = torch.autograd.grad(cross_entropy(model(x), y), list(parameters.values()))
        with torch.no_grad():
            for p, g in zip(parameters.values(), gradients): p -= lr * g
    return {name: p.detach().clone() for name, p in parameters.items()}, tau


def train_and_count__wrong_gradients_add_up(model, weights, batches, lr):
    model.load_state_dict(weights)
    optimiser, tau = torch.optim.SGD(model.parameters(), lr), 0
    for x, y in batches:
        cross_entropy(model(x), y).backward()
        optimiser.step()
        tau += 1
    return {name: t.clone() for name, t in model.state_dict().items()}, tau


def train_and_count__wrong_starts_from_its_own_weights(model, weights, batches, lr):
    optimiser, tau = torch.optim.SGD(model.parameters(), lr), 0
    for x, y in batches:
        optimiser.zero_grad()
        cross_entropy(model(x), y).backward()
        optimiser.step()
        tau += 1
    return {name: t.clone() for name, t in model.state_dict().items()}, tau


def train_and_count__wrong_counts_pictures(model, weights, batches, lr):
    model.load_state_dict(weights)
    optimiser, tau = torch.optim.SGD(model.parameters(), lr), 0
    for x, y in batches:
        optimiser.zero_grad()
        cross_entropy(model(x), y).backward()
        optimiser.step()
        tau += len(y)
    return {name: t.clone() for name, t in model.state_dict().items()}, tau


def train_and_count__wrong_one_big_batch(model, weights, batches, lr):
    model.load_state_dict(weights)
    optimiser = torch.optim.SGD(model.parameters(), lr)
    if batches:
        x, y = (torch.cat(part) for part in zip(*batches))
        cross_entropy(model(x), y).backward()
        optimiser.step()
    return {name: t.clone() for name, t in model.state_dict().items()}, len(batches)


def normalised_average__right_one_weight_a_client(start, states, n, tau):
    p = [each / sum(n) for each in n]
    mean_tau = sum(share * t for share, t in zip(p, tau))
    a = [mean_tau * share / t for share, t in zip(p, tau)]
    rest = 1 - sum(a)
    return {name: rest * start[name] + sum(w * s[name] for w, s in zip(a, states)) for name in start}


def normalised_average__wrong_plain_mean_of_steps(start, states, n, tau):
    total, mean_tau = sum(n), sum(tau) / len(tau)
    return {name: w + mean_tau * sum(k / total * (s[name] - w) / t for s, k, t in zip(states, n, tau))
            for name, w in start.items()}


def normalised_average__wrong_not_multiplied_again(start, states, n, tau):
    return {name: w + sum(k / sum(n) * (s[name] - w) / t for s, k, t in zip(states, n, tau))
            for name, w in start.items()}


def normalised_average__wrong_states_in_place_of_changes(start, states, n, tau):
    mean_tau = sum(k * t for k, t in zip(n, tau)) / sum(n)
    return {name: mean_tau * sum(k / sum(n) * s[name] / t for s, k, t in zip(states, n, tau)) for name in start}


def normalised_average__wrong_sizes_ignored(start, states, n, tau):
    mean_tau = sum(tau) / len(tau)
    return {name: w + mean_tau * sum((s[name] - w) / t for s, t in zip(states, tau)) / len(states)
            for name, w in start.items()}


def normalised_average__wrong_this_is_fedavg(start, states, n, tau):
    return {name: sum(k * s[name] for s, k in zip(states, n)) / sum(n) for name in start}


def only_the_largest__right_by_threshold(change, keep):
    sent = {}
    for name, t in change.items():
        least = t.abs().flatten().sort(descending=True).values[math.ceil(keep * t.numel()) - 1]
        sent[name] = torch.where(t.abs() >= least, t, torch.zeros_like(t))
    return sent


def only_the_largest__wrong_by_value(change, keep):
    sent = {}
    for name, t in change.items():
        least = t.flatten().sort(descending=True).values[math.ceil(keep * t.numel()) - 1]
        sent[name] = torch.where(t >= least, t, torch.zeros_like(t))
    return sent


def only_the_largest__wrong_rounded_down(change, keep):
    sent = {}
    for name, t in change.items():
        count = int(keep * t.numel())
        sizes = t.abs().flatten().sort(descending=True).values
        least = sizes[count - 1] if count else math.inf
        sent[name] = torch.where(t.abs() >= least, t, torch.zeros_like(t))
    return sent


def only_the_largest__wrong_all_tensors_together(change, keep):
    sizes = torch.cat([t.abs().flatten() for t in change.values()]).sort(descending=True).values
    least = sizes[math.ceil(keep * len(sizes)) - 1]
    return {name: torch.where(t.abs() >= least, t, torch.zeros_like(t)) for name, t in change.items()}


def only_the_largest__wrong_loses_the_sign(change, keep):
    return {name: t.abs() for name, t in only_the_largest__right_by_threshold(change, keep).items()}
