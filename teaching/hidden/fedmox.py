"Hidden cases for the blanks of `fedbook.fedmox`: each function draws the arguments of one case."
from functools import partial

import torch
from torch import nn

from fedbook.answers import fedmox as answers
from fedbook.engine.local import build
from fedbook.methods.teacher import Pseudo


def _normal(g, *shape): return torch.tensor(g.normal(size=shape)).float()

def _size(g): return tuple(g.integers(1, 6, 3).tolist())

def _boxes(g, m):
    corner, sides = g.uniform(0, 20, (m, 2)), g.uniform(1, 20, (m, 2))
    return torch.tensor([[*a, *(a + b)] for a, b in zip(corner, sides)]).float()

def _scores(g, m): return torch.tensor(g.permutation(m) + 1).float() / (m + 1)

def _state(g): return {"w": _normal(g, 2, 3), "b": _normal(g, 2)}

def _layer(g, *shape): return build(partial(nn.Linear, *shape), int(g.integers(1000)))

def _half(state): return {name: t / 2 for name, t in state.items()}


def route(g):
    (b, h, w), k = _size(g), int(g.integers(1, 5))
    return _normal(g, b, 3, h, w), _normal(g, k, 3), _normal(g, k)

def gate_mask(g):
    b, h, w = _size(g)
    return (_normal(g, b, int(g.integers(1, 5)), h, w).requires_grad_(),)

def masked_sum(g):
    (b, h, w), k = _size(g), int(g.integers(1, 5))
    experts = [build(partial(nn.Conv2d, 3, 2, 1), int(g.integers(1000))) for _ in range(k)]
    return _normal(g, b, 3, h, w), _normal(g, b, k, h, w).softmax(1), experts

def gathered(g):
    (b, h, w), k = _size(g), int(g.integers(1, 5))
    return _normal(g, b, 3, h, w), torch.tensor(g.integers(0, k, (b, h, w))), _normal(g, k, 2, 3)

def suppress(g):
    m = int(g.integers(3, 12))
    return _boxes(g, m), _scores(g, m), float(g.uniform(0.1, 0.7))

def filters(g):
    m = int(g.integers(3, 12))
    pseudo = Pseudo(_boxes(g, m), torch.ones(m, dtype=torch.int64), _scores(g, m), _scores(g, m))
    return pseudo, *g.uniform(0.2, 0.8, 3).tolist()

def ema_update(g): return _layer(g, 3, 2), _layer(g, 3, 2), float(g.uniform(0.5, 0.999))

def student_epoch(g):
    views = [(_normal(g, 5, 3), _normal(g, 5, 3)) for _ in range(int(g.integers(1, 4)))]
    return _layer(g, 3, 4), views, float(g.uniform(0.26, 0.5)), 0.9, float(g.uniform(0.1, 1))

def soft_mixture(g): return _state(g), _state(g), float(g.uniform(0, 1))

def mean_of(g): return ([(_state(g), int(g.integers(1, 50))) for _ in range(int(g.integers(1, 4)))],)

def server_round(g):
    replies = [(_state(g), int(g.integers(1, 50))) for _ in range(int(g.integers(1, 4)))]
    return _state(g), replies, float(g.uniform(0.1, 0.9)), _half

def crossing(g):
    kinds = (torch.float32, torch.float16, torch.int64)
    names = ["body.a", "body.b", "head.a", "head.b"][:int(g.integers(1, 5))]
    return {name: torch.zeros(int(g.integers(1, 9)), dtype=kinds[g.integers(3)]) for name in names}, "body."


# Variations: NAME__HOW is the right answer to what its docstring asks for.

def route__less(x, weight, bias):
    "Subtract the bias in place of adding it."
    return answers.route(x, weight, -bias)


def gate_mask__twice(logits, gate="ste", training=True):
    "The mask is 2 where an expert has the largest logit, and its gradient is twice that of the softmax."
    return 2 * answers.gate_mask(logits, gate, training)


def masked_sum__others(x, mask, experts):
    "An expert counts with 1 - $m_k$ in place of $m_k$."
    return answers.masked_sum(x, 1 - mask, experts)


def gathered__signs(x, chosen, weights):
    "The output of a pixel that chose expert number 0, 2, 4, ... has the opposite sign, and counts start at 1."
    signs = torch.tensor([-1.0 if k % 2 == 0 else 1.0 for k in range(len(weights))])
    y, counts = answers.gathered(x, chosen, weights * signs[:, None, None])
    return y, counts + 1


def suppress__dropped(xyxy, scores, iou):
    "Return the indices of the boxes that are not kept, in order of their scores, the highest first."
    kept = set(answers.suppress(xyxy, scores, iou).tolist())
    order = [i for i in scores.argsort(descending=True).tolist() if i not in kept]
    return torch.tensor(order, dtype=torch.int64)


def filters__unsteady(pseudo, rpn, classes, variance):
    "Each mask is true for what does not pass: where a score is not above, or a variance not below, its threshold."
    return {name: ~mask for name, mask in answers.filters(pseudo, rpn, classes, variance).items()}


def ema_update__fast(teacher, student, momentum):
    "The square of `momentum` takes its place."
    return answers.ema_update(teacher, student, momentum ** 2)


def student_epoch__slow(student, views, least, momentum, lr):
    "Train with half of the rate `lr`, and return each weight minus that of `student` before."
    start = {name: t.clone() for name, t in student.state_dict().items()}
    new = answers.student_epoch(student, views, least, momentum, lr / 2)
    return {name: t - start[name] for name, t in new.items()}


def soft_mixture__root(server_state, aggregated_state, alpha):
    "The square of `alpha` takes its place."
    return {name: alpha ** 2 * server_state[name] + (1 - alpha ** 2) * mean for name, mean in aggregated_state.items()}


def mean_of__guest(replies):
    "There is one more reply, of 10 pictures, whose weights are all 0."
    state = {name: 0 * t for name, t in replies[0][0].items()}
    return answers.mean_of([*replies, (state, 10)])


def server_round__late(state, replies, alpha, supervise):
    "Call `supervise` on the mean, and mix its result with the old `state` afterwards."
    if not replies: return supervise(state)
    return answers.soft_mixture(state, supervise(answers.mean_of(replies)), alpha)


def crossing__turned(state, frozen):
    "Return the bytes that stay first, then those that are sent."
    return answers.crossing(state, frozen)[::-1]
