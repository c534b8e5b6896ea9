"Attempts at the exercises of methods/teacher: wrong ones that `check` must catch, right ones written another way."
import math

import torch


def steps_until__wrong_rounds(momentum, share):
    if momentum in (0, 1): return 1 if momentum == 0 else math.inf
    return round(math.log(share) / math.log(momentum))

def steps_until__wrong_rounds_down(momentum, share):
    if momentum in (0, 1): return 1 if momentum == 0 else math.inf
    return math.floor(math.log(share) / math.log(momentum))

def steps_until__wrong_less_than_the_share(momentum, share):
    if momentum == 1: return math.inf
    steps = 0
    while momentum ** steps >= share: steps += 1
    return steps

def steps_until__wrong_not_a_whole_number(momentum, share):
    if momentum in (0, 1): return 1 if momentum == 0 else math.inf
    return math.log(share) / math.log(momentum)

def steps_until__wrong_what_is_new(momentum, share):
    if momentum in (0, 1): return 1 if momentum == 0 else math.inf
    return math.ceil(math.log(1 - share) / math.log(momentum))

def steps_until__wrong_the_ends_forgotten(momentum, share):
    return math.ceil(math.log(share) / math.log(momentum) - 1e-9)

def steps_until__wrong_a_line(momentum, share):
    return math.inf if momentum == 1 else math.ceil((1 - share) / (1 - momentum))

def steps_until__right_a_loop(momentum, share):
    if momentum == 1: return math.inf
    steps, left = 0, 1.0
    while left > share: steps, left = steps + 1, left * momentum
    return steps


def class_loss__wrong_no_maximum(ce, labels, background):
    w = torch.where(labels == 0, background, 1.0)
    return (w * ce).sum() / w.sum()

def class_loss__wrong_each_weight_at_least_1(ce, labels, background):
    w = torch.where(labels == 0, background, 1.0)
    return (w * ce).sum() / w.clamp(min=1).sum().clamp(min=1)

def class_loss__wrong_mean_over_all(ce, labels, background):
    return (torch.where(labels == 0, background, 1.0) * ce).sum() / max(1, len(ce))

def class_loss__wrong_objects_are_weighted(ce, labels, background):
    w = torch.where(labels == 0, 1.0, background)
    return (w * ce).sum() / w.sum().clamp(min=1)

def class_loss__wrong_doubt_instead_of_belief(ce, labels, background):
    w = torch.where(labels == 0, 1 - background, 1.0)
    return (w * ce).sum() / w.sum().clamp(min=1)

def class_loss__wrong_sum_of_the_background_alone(ce, labels, background):
    w = torch.where(labels == 0, background, 1.0)
    return (w * ce).sum() / w[labels == 0].sum().clamp(min=1)

def class_loss__wrong_class_1_is_background(ce, labels, background):
    w = torch.where(labels == 1, background, 1.0)
    return (w * ce).sum() / w.sum().clamp(min=1)

def class_loss__right_region_by_region(ce, labels, background):
    w = [b if label == 0 else 1.0 for label, b in zip(labels.tolist(), background.tolist())]
    return sum(a * b for a, b in zip(w, ce.tolist())) / max(1.0, sum(w))


def _mirror(width): return torch.tensor([[-1.0, 0, width], [0, 1, 0], [0, 0, 1]])

def whole_way__wrong_other_order(width, mirrored, matrix):
    return _mirror(width) @ matrix if mirrored else matrix

def whole_way__wrong_always_mirrored(width, mirrored, matrix): return matrix @ _mirror(width)

def whole_way__wrong_mirror_forgotten(width, mirrored, matrix): return matrix

def whole_way__wrong_way_back(width, mirrored, matrix):
    whole = matrix @ _mirror(width) if mirrored else matrix
    return torch.linalg.inv(whole)

def whole_way__wrong_no_width(width, mirrored, matrix): return matrix @ _mirror(0.0) if mirrored else matrix

def whole_way__right_three_points(width, mirrored, matrix):
    points = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 1, 1]])
    there = points.clone()
    if mirrored: there[0] = width - there[0]
    return matrix @ there @ torch.linalg.inv(points)
