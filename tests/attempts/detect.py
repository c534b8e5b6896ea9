"Attempts at the exercises of methods/detect: wrong ones that `check` must catch, right ones written another way."
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


def _corners(centres, sides): return torch.cat([centres - sides / 2, centres + sides / 2], 1)

def _parts(anchors): return (anchors[:, 2:] + anchors[:, :2]) / 2, anchors[:, 2:] - anchors[:, :2]

def boxes_from__wrong_no_exponential(offsets, anchors):
    centres, sides = _parts(anchors)
    return _corners(centres + offsets[:, :2] * sides, sides * (1 + offsets[:, 2:]))

def boxes_from__wrong_shift_in_pixels(offsets, anchors):
    centres, sides = _parts(anchors)
    return _corners(centres + offsets[:, :2], sides * offsets[:, 2:].exp())

def boxes_from__wrong_corner_for_centre(offsets, anchors):
    _, sides = _parts(anchors)
    corner = anchors[:, :2] + offsets[:, :2] * sides
    return torch.cat([corner, corner + sides * offsets[:, 2:].exp()], 1)

def boxes_from__wrong_shift_in_new_sides(offsets, anchors):
    centres, sides = _parts(anchors)
    new = sides * offsets[:, 2:].exp()
    return _corners(centres + offsets[:, :2] * new, new)

def boxes_from__wrong_centre_and_sides(offsets, anchors):
    centres, sides = _parts(anchors)
    return torch.cat([centres + offsets[:, :2] * sides, sides * offsets[:, 2:].exp()], 1)

def boxes_from__right_number_by_number(offsets, anchors):
    boxes = torch.zeros(len(anchors), 4)
    for n, ((x1, y1, x2, y2), (a, b, c, d)) in enumerate(zip(anchors.tolist(), offsets.exp().tolist())):
        x, y = (x1 + x2) / 2 + offsets[n, 0] * (x2 - x1), (y1 + y2) / 2 + offsets[n, 1] * (y2 - y1)
        boxes[n] = torch.stack([x - c * (x2 - x1) / 2, y - d * (y2 - y1) / 2,
                                x + c * (x2 - x1) / 2, y + d * (y2 - y1) / 2])
    return boxes


def recall_at__wrong_stops_at_the_first_dip(right, scores, objects, least):
    found, best = 0, 0.0
    for k, n in enumerate(scores.argsort(descending=True).tolist(), 1):
        found += int(right[n])
        if found / k < least: break
        best = found / objects
    return best

def recall_at__wrong_in_order_of_position(right, scores, objects, least):
    hits = right.cumsum(0).tolist()
    return max([n / objects for k, n in enumerate(hits, 1) if n / k >= least], default=0.0)

def recall_at__wrong_more_than_asked(right, scores, objects, least):
    hits = right[scores.argsort(descending=True)].cumsum(0).tolist()
    return max([n / objects for k, n in enumerate(hits, 1) if n / k > least], default=0.0)

def recall_at__wrong_share_of_the_hits(right, scores, objects, least):
    hits = right[scores.argsort(descending=True)].cumsum(0).tolist()
    return max([n / max(hits[-1], 1) for k, n in enumerate(hits, 1) if n / k >= least], default=0.0)

def recall_at__wrong_all_boxes(right, scores, objects, least):
    return float(right.sum()) / objects if len(right) and float(right.float().mean()) >= least else 0.0

def recall_at__right_every_threshold(right, scores, objects, least):
    best = 0.0
    for t in scores.tolist():
        above = right[scores >= t]
        if above.float().mean() >= least - 1e-9: best = max(best, float(above.sum()) / objects)
    return best
