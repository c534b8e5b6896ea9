"Attempts at the blanks of 20_beyond: wrong ones that `check` must catch, right ones written another way."
import math

import torch


def read_pictures__right_in_one_division(weight_move, bias_move):
    quotients = weight_move / torch.where(bias_move > 0, bias_move, torch.ones_like(bias_move))[:, None]
    return {int(c): quotients[int(c)] for c in (bias_move > 0).nonzero()}


def read_pictures__wrong_all_that_moved(weight_move, bias_move):
    return {c: weight_move[c] / b for c, b in enumerate(bias_move) if b != 0}


def read_pictures__wrong_not_divided(weight_move, bias_move):
    return {c: weight_move[c] for c, b in enumerate(bias_move) if b > 0}


def read_pictures__wrong_the_largest_only(weight_move, bias_move):
    c = int(bias_move.argmax())
    return {c: weight_move[c] / bias_move[c]}


def summand__right_in_a_comprehension(start, state, n, tau):
    return {name: state[name] / tau - start[name] / tau for name in state}, tau * n


def summand__wrong_states_in_place_of_changes(start, state, n, tau):
    return {name: t / tau for name, t in state.items()}, n * tau


def summand__wrong_not_divided(start, state, n, tau):
    return {name: t - start[name] for name, t in state.items()}, n * tau


def summand__wrong_steps_alone(start, state, n, tau):
    return {name: (t - start[name]) / tau for name, t in state.items()}, tau


def merged__right_one_list(start, summands):
    summands = list(summands)
    n = sum(each[1] for each in summands)
    scale = sum(each[2] for each in summands) / n
    def moved(name): return sum(each[1] / n * each[0][name].double() for each in summands)
    return {name: (w.double() + scale * moved(name)).to(w.dtype) for name, w in start.items()}


def _merged(start, summands, weight=lambda n: n, scale=lambda steps, n, count: steps / n, begin=1):
    summands = list(summands)
    n, whole = sum(each[1] for each in summands), sum(weight(each[1]) for each in summands)
    factor = scale(sum(each[2] for each in summands), n, len(summands))
    return {name: begin * w + factor * sum(weight(m) * d[name] for d, m, _ in summands) / whole
            for name, w in start.items()}


def merged__wrong_sizes_ignored(start, summands): return _merged(start, summands, weight=lambda n: 1)


def merged__wrong_not_multiplied_again(start, summands):
    return _merged(start, summands, scale=lambda steps, n, count: 1.0)


def merged__wrong_without_the_start(start, summands): return _merged(start, summands, begin=0)


def under_masks__right_one_sum(k, x, step, masks):
    signed = [mask if other > k else 2**32 - mask for other, mask in masks.items()]
    return (torch.round(x.to(torch.float64) / step).to(torch.int64) + sum(signed)).remainder(2**32)


def _under(k, x, step, masks, sign=lambda k, other: 1 if other > k else -1, whole=torch.round):
    numbers = whole(x.double() / step).long()
    return (numbers + sum(sign(k, other) * mask for other, mask in masks.items())) % 2**32


def under_masks__wrong_always_added(k, x, step, masks): return _under(k, x, step, masks, lambda k, other: 1)


def under_masks__wrong_the_other_way_round(k, x, step, masks):
    return _under(k, x, step, masks, lambda k, other: 1 if other < k else -1)


def under_masks__wrong_rounded_towards_zero(k, x, step, masks):
    return _under(k, x, step, masks, whole=torch.trunc)


def opened__right_shifted(sent, step):
    total = torch.stack(list(sent)).sum(0)
    return ((total + 2**31) % 2**32 - 2**31).to(torch.float64) * step


def opened__wrong_never_negative(sent, step): return (sum(sent) % 2**32).double() * step


def opened__wrong_no_modulus(sent, step): return sum(sent).double() * step


def opened__wrong_in_steps(sent, step): return ((sum(sent) + 2**31) % 2**32 - 2**31).double()


def clipped__right_one_vector(update, clip):
    norm = float(torch.cat([t.double().flatten() for t in update.values()]).norm())
    return {name: t * min(1.0, clip / max(norm, 1e-30)) for name, t in update.items()}


def clipped__wrong_each_tensor(update, clip):
    return {name: t * min(1.0, clip / max(float(t.norm()), 1e-30)) for name, t in update.items()}


def clipped__wrong_always_as_long(update, clip):
    norm = math.sqrt(sum(float(t.square().sum()) for t in update.values()))
    return {name: t * clip / max(norm, 1e-30) for name, t in update.items()}


def clipped__wrong_each_entry(update, clip):
    return {name: t.clamp(-clip, clip) for name, t in update.items()}


def noisy_step__right_noise_in_the_sum(weights, updates, clip, noise, expected, generator):
    drawn = {name: torch.randn(weights[name].shape, generator=generator, dtype=torch.float64)
             for name in sorted(weights)}
    sums = {name: noise * clip * drawn[name] + sum(each[name].double() for each in updates) for name in drawn}
    return {name: (w.double() + sums[name] / expected).to(w.dtype) for name, w in weights.items()}


def _step(weights, updates, deviation, count, generator):
    new = {}
    for name, w in sorted(weights.items()):
        drawn = torch.randn(w.shape, generator=generator, dtype=torch.float64)
        new[name] = (w + sum(each[name] for each in updates) / count + deviation * drawn).to(w.dtype)
    return new


def noisy_step__wrong_divided_by_those_who_came(weights, updates, clip, noise, expected, generator):
    return _step(weights, updates, noise * clip / expected, max(1, len(updates)), generator)


def noisy_step__wrong_noise_not_divided(weights, updates, clip, noise, expected, generator):
    return _step(weights, updates, noise * clip, expected, generator)


def noisy_step__wrong_without_the_clip(weights, updates, clip, noise, expected, generator):
    return _step(weights, updates, noise / expected, expected, generator)


def matching_loss__right_one_vector(moved, seen):
    mine, theirs = (torch.cat([update[name].flatten() for name in seen]) for update in (moved, seen))
    return 1 - mine @ theirs / (mine.norm() * theirs.norm())


def matching_loss__wrong_a_cosine_for_each_tensor(moved, seen):
    losses = [1 - torch.cosine_similarity(moved[name].flatten(), t.flatten(), 0) for name, t in seen.items()]
    return sum(losses) / len(losses)


def matching_loss__wrong_the_distance(moved, seen):
    return sum((moved[name] - t).square().sum() for name, t in seen.items())


def matching_loss__wrong_detached(moved, seen):
    return matching_loss__right_one_vector({name: t.detach() for name, t in moved.items()}, seen)
