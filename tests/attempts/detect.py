"Attempts at the exercises of 09_detect: wrong ones that `check` must catch, right ones written another way."
import math

import torch
from torchvision.ops import box_iou, nms


def _order(scores): return scores.argsort(descending=True).tolist()


def suppress__wrong_touching_is_too_much(xyxy, scores, iou):
    overlap, kept = box_iou(xyxy, xyxy), []
    for k in _order(scores):
        if all(overlap[k, j] < iou for j in kept): kept.append(k)
    return kept

def suppress__wrong_dropped_boxes_drop_others(xyxy, scores, iou):
    overlap, order = box_iou(xyxy, xyxy), _order(scores)
    return [k for n, k in enumerate(order) if all(overlap[k, j] <= iou for j in order[:n])]

def suppress__wrong_asks_the_last_kept_only(xyxy, scores, iou):
    overlap, kept = box_iou(xyxy, xyxy), []
    for k in _order(scores):
        if not kept or overlap[k, kept[-1]] <= iou: kept.append(k)
    return kept

def suppress__wrong_asks_the_best_only(xyxy, scores, iou):
    overlap, order = box_iou(xyxy, xyxy), _order(scores)
    return [k for k in order if k == order[0] or overlap[k, order[0]] <= iou]

def suppress__wrong_in_order_of_position(xyxy, scores, iou): return sorted(nms(xyxy, scores, iou).tolist())

def suppress__wrong_from_the_worst_down(xyxy, scores, iou): return nms(xyxy, -scores, iou).tolist()

def suppress__wrong_share_of_the_smaller_box(xyxy, scores, iou):
    low, high = torch.maximum(xyxy[:, None, :2], xyxy[:, :2]), torch.minimum(xyxy[:, None, 2:], xyxy[:, 2:])
    area, kept = (xyxy[:, 2:] - xyxy[:, :2]).prod(1), []
    overlap = (high - low).clamp(min=0).prod(2) / torch.minimum(area[:, None], area)
    for k in _order(scores):
        if all(overlap[k, j] <= iou for j in kept): kept.append(k)
    return kept

def suppress__right_torchvision(xyxy, scores, iou): return nms(xyxy, scores, iou).tolist()

def suppress__right_strikes_out(xyxy, scores, iou):
    left, kept, overlap = _order(scores), [], box_iou(xyxy, xyxy)
    while left:
        kept.append(left[0])
        left = [k for k in left[1:] if not overlap[kept[-1], k] > iou]
    return kept


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
