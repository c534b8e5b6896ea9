"Hidden cases for the blanks of `fedbook.fedmox`: each function draws the arguments of one case."
import copy
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import box_iou

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
    (b, h, w), k = _size(g), int(g.integers(2, 6))
    experts = [build(partial(nn.Conv2d, 3, 2, 1), int(g.integers(1000))) for _ in range(k)]
    return _normal(g, b, 3, h, w), _normal(g, b, k, h, w).softmax(1), experts

def gathered(g):
    (b, h, w), k = g.integers(2, 6, 3).tolist(), int(g.integers(1, 5))
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

def mean_of(g): return ([(_state(g), int(n) + 1) for n in g.permutation(49)[:int(g.integers(2, 5))]],)

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


def route__unit(x, weight, bias):
    "First scale the features of each pixel, the `c` numbers at its place in `x`, to length 1."
    return answers.route(F.normalize(x, dim=1), weight, bias)


def gate_mask__twice(logits, gate="ste", training=True):
    "The mask is 2 where an expert has the largest logit, and its gradient is twice that of the softmax."
    return 2 * answers.gate_mask(logits, gate, training)


def gate_mask__others(logits, gate="ste", training=True):
    """The mask is 0 where an expert has the largest logit, and 1 elsewhere. Its gradient is that of 1 minus the
    softmax."""
    return 1 - answers.gate_mask(logits, gate, training)


def masked_sum__others(x, mask, experts):
    "An expert counts with 1 - $m_k$ in place of $m_k$."
    return answers.masked_sum(x, 1 - mask, experts)


def masked_sum__inputs(x, mask, experts):
    "The mask multiplies an expert's input in place of its output: add up $E_k(m_k(x) \\, x)$."
    return sum(expert(mask[:, k:k + 1] * x) for k, expert in enumerate(experts))


def gathered__signs(x, chosen, weights):
    "The output of a pixel that chose expert number 0, 2, 4, ... has the opposite sign, and counts start at 1."
    signs = torch.tensor([-1.0 if k % 2 == 0 else 1.0 for k in range(len(weights))])
    y, counts = answers.gathered(x, chosen, weights * signs[:, None, None])
    return y, counts + 1


def gathered__usage(x, chosen, weights):
    """Set outputs below 0 to 0. In place of the number of pixels, return each expert's share of all pixels, a float
    tensor (K,)."""
    y, counts = answers.gathered(x, chosen, weights)
    return y.relu(), counts / chosen.numel()


def suppress__dropped(xyxy, scores, iou):
    "Return the indices of the boxes that are not kept, in order of their scores, the highest first."
    kept = set(answers.suppress(xyxy, scores, iou).tolist())
    order = [i for i in scores.argsort(descending=True).tolist() if i not in kept]
    return torch.tensor(order, dtype=torch.int64)


def suppress__by(xyxy, scores, iou):
    """Return a tensor (m,), int64, with an entry for each box, in the order of `xyxy`: -1 if the box is kept, else
    the index of the kept box that drops it. If several kept boxes overlap it by more than `iou`, take the one with
    the highest score."""
    overlap, by = box_iou(xyxy, xyxy), torch.full((len(xyxy),), -1)
    for i in answers.suppress(xyxy, scores, iou).flip(0).tolist():
        by[overlap[i] > iou] = i
    by[answers.suppress(xyxy, scores, iou)] = -1
    return by


def filters__unsteady(pseudo, rpn, classes, variance):
    "Each mask is true for what does not pass: where a score is not above, or a variance not below, its threshold."
    return {name: ~mask for name, mask in answers.filters(pseudo, rpn, classes, variance).items()}


def filters__weights(pseudo, rpn, classes, variance):
    "In place of bools return floats: the score of a box where it passes the filter, and 0 where it does not."
    return {name: pseudo.scores * mask for name, mask in answers.filters(pseudo, rpn, classes, variance).items()}


def ema_update__fast(teacher, student, momentum):
    "The square of `momentum` takes its place."
    return answers.ema_update(teacher, student, momentum ** 2)


def ema_update__biases(teacher, student, momentum):
    """Of the parameters that the student trains, those with a single dimension (biases) become equal to the student's.
    The others follow by (2)."""
    answers.ema_update(teacher, student, momentum)
    for mine, theirs in zip(teacher.parameters(), student.parameters()):
        if theirs.dim() == 1 and theirs.requires_grad: mine.data.copy_(theirs.data)
    return teacher.state_dict()


def student_epoch__slow(student, views, least, momentum, lr):
    "Train with half of the rate `lr`, and return each weight minus that of `student` before."
    start = {name: t.clone() for name, t in student.state_dict().items()}
    new = answers.student_epoch(student, views, least, momentum, lr / 2)
    return {name: t - start[name] for name, t in new.items()}


def student_epoch__soft(student, views, least, momentum, lr):
    """All inputs count: `least` is not used. The student learns the teacher's probabilities in place of its labels:
    give them to `F.cross_entropy` as the target."""
    student, teacher = copy.deepcopy(student), copy.deepcopy(student)
    descent = torch.optim.SGD(student.parameters(), lr)
    for weak, strong in views:
        descent.zero_grad()
        F.cross_entropy(student(strong), teacher(weak).detach().softmax(1)).backward()
        descent.step()
        answers.ema_update(teacher, student, momentum)
    return student.state_dict()


def soft_mixture__root(server_state, aggregated_state, alpha):
    "The square of `alpha` takes its place."
    return {name: alpha ** 2 * server_state[name] + (1 - alpha ** 2) * mean for name, mean in aggregated_state.items()}


def soft_mixture__turned(server_state, aggregated_state, alpha):
    "`alpha` is the weight of the clients' mean, and 1 - `alpha` that of the server's old model."
    return answers.soft_mixture(server_state, aggregated_state, 1 - alpha)


def mean_of__guest(replies):
    "There is one more reply, of 10 pictures, whose weights are all 0."
    state = {name: 0 * t for name, t in replies[0][0].items()}
    return answers.mean_of([*replies, (state, 10)])


def mean_of__plain(replies):
    "All replies count the same, whatever their numbers of pictures."
    return answers.mean_of([(state, 1) for state, _ in replies])


def server_round__late(state, replies, alpha, supervise):
    "Call `supervise` on the mean, and mix its result with the old `state` afterwards."
    if not replies: return supervise(state)
    return answers.soft_mixture(state, supervise(answers.mean_of(replies)), alpha)


def server_round__early(state, replies, alpha, supervise):
    """First call `supervise` on the old `state`. Then mix its result, in place of the old state, with the mean, and
    return the mixture. If there are no replies, return the result of `supervise`."""
    return answers.server_round(supervise(state), replies, alpha, lambda mixed: mixed)


def crossing__turned(state, frozen):
    "Return the bytes that stay first, then those that are sent."
    return answers.crossing(state, frozen)[::-1]


def crossing__numbers(state, frozen):
    "Count the numbers in the tensors, in place of bytes."
    sizes = [(name.startswith(frozen), t.numel()) for name, t in state.items()]
    return sum(n for stays, n in sizes if not stays), sum(n for stays, n in sizes if stays)
