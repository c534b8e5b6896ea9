"Attempts at the blanks of 11_fedmox: wrong ones that `check` must catch, right ones written another way."
import copy

import torch
import torch.nn.functional as F
from torchvision.ops import box_iou, nms

from fedbook.answers.fedmox import ema_update, mean_of, soft_mixture

def route__wrong_smallest(x, weight, bias):
    logits = torch.einsum("bchw,kc->bkhw", x, weight)
    logits = logits + bias[:, None, None]
    return logits, logits.argmin(1)

def route__wrong_no_bias(x, weight, bias):
    logits = torch.einsum("bchw,kc->bkhw", x, weight)
    return logits, logits.argmax(1)

def route__right_convolution(x, weight, bias):
    logits = F.conv2d(x, weight[:, :, None, None], bias)
    return logits, logits.max(1).indices

def gate_mask__wrong_no_gradient(logits, gate="ste", training=True):
    share = logits.softmax(1)
    hard = F.one_hot(logits.argmax(1), logits.shape[1])
    hard = hard.movedim(-1, 1).to(share.dtype)
    if not training: return hard
    return hard

def gate_mask__wrong_scaled(logits, gate="ste", training=True):
    share = logits.softmax(1)
    hard = F.one_hot(logits.argmax(1), logits.shape[1])
    hard = hard.movedim(-1, 1).to(share.dtype)
    if not training: return hard
    return hard * share

def gate_mask__right_scattered(logits, gate="ste", training=True):
    share = logits.softmax(1)
    hard = torch.zeros_like(share).scatter(1, logits.argmax(1, keepdim=True), 1.0).detach()
    return hard + (share - share.detach()) if training else hard

def masked_sum__wrong_mean(x, mask, experts):
    total = 0
    for k, expert in enumerate(experts):
        total = total + mask[:, k:k + 1] * expert(x)
    return total / len(experts)

def masked_sum__wrong_masked_input(x, mask, experts):
    total = 0
    for k, expert in enumerate(experts):
        total = total + expert(mask[:, k:k + 1] * x)
    return total

def masked_sum__right_stacked(x, mask, experts):
    each = torch.stack([expert(x) for expert in experts], 1)
    return (mask[:, :, None] * each).sum(1)

def gathered__wrong_all_experts(x, chosen, weights):
    pixels = x.movedim(1, -1)
    y = x.new_zeros(*chosen.shape, weights.shape[1])
    counts = torch.zeros(len(weights), dtype=torch.int64)
    for k, weight in enumerate(weights):
        mine = chosen == k
        y += pixels @ weight.T
        counts[k] = mine.sum()
    return y.movedim(-1, 1), counts

def gathered__wrong_counts_of_all(x, chosen, weights):
    pixels = x.movedim(1, -1)
    y = x.new_zeros(*chosen.shape, weights.shape[1])
    counts = torch.zeros(len(weights), dtype=torch.int64)
    for k, weight in enumerate(weights):
        mine = chosen == k
        y[mine] = pixels[mine] @ weight.T
        counts[k] = mine.numel()
    return y.movedim(-1, 1), counts

def gathered__right_one_product(x, chosen, weights):
    mask = F.one_hot(chosen, len(weights)).to(x.dtype)
    y = torch.einsum("bchw,kdc,bhwk->bdhw", x, weights, mask)
    return y, mask.sum((0, 1, 2)).long()

def suppress__wrong_dropped_ones_suppress(xyxy, scores, iou):
    overlap = box_iou(xyxy, xyxy)
    kept = []
    for i in scores.argsort(descending=True).tolist():
        free = all(overlap[i, j] <= iou for j in range(len(scores)) if scores[j] > scores[i])
        if free: kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)

def suppress__wrong_least_sure_first(xyxy, scores, iou):
    overlap = box_iou(xyxy, xyxy)
    kept = []
    for i in scores.argsort(descending=False).tolist():
        free = all(overlap[i, j] <= iou for j in kept)
        if free: kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)

def suppress__right_torchvision(xyxy, scores, iou):
    return nms(xyxy, scores, iou)

def filters__wrong_one_threshold(pseudo, rpn, classes, variance):
    sure = pseudo.scores
    found = {"rpn": sure > rpn, "classes": sure > rpn}
    found["variance"] = pseudo.variances < variance
    return found

def filters__wrong_unsteady_kept(pseudo, rpn, classes, variance):
    sure = pseudo.scores
    found = {"rpn": sure > rpn, "classes": sure > classes}
    found["variance"] = pseudo.variances > variance
    return found

def filters__right_one_dict(pseudo, rpn, classes, variance):
    return dict(rpn=pseudo.scores > rpn, variance=variance > pseudo.variances, classes=pseudo.scores > classes)

def ema_update__wrong_roles(teacher, student, momentum):
    own = dict(teacher.named_parameters())
    for name, p in student.named_parameters():
        if not p.requires_grad: continue
        t = own[name].data
        t.copy_((1 - momentum) * t + momentum * p.data)
    return teacher.state_dict()

def ema_update__wrong_student_moves(teacher, student, momentum):
    own = dict(teacher.named_parameters())
    for name, p in student.named_parameters():
        if not p.requires_grad: continue
        t = own[name].data
        p.data.copy_(momentum * t + (1 - momentum) * p.data)
    return teacher.state_dict()

def ema_update__right_lerp(teacher, student, momentum):
    for t, p in zip(teacher.parameters(), student.parameters()):
        if p.requires_grad: t.data.lerp_(p.data, 1 - momentum)
    return teacher.state_dict()

def student_epoch__wrong_weak_view_learnt(student, views, least, momentum, lr):
    student = copy.deepcopy(student)
    teacher = copy.deepcopy(student)
    descent = torch.optim.SGD(student.parameters(), lr)
    for weak, strong in views:
        with torch.no_grad(): belief, label = teacher(weak).softmax(1).max(1)
        sure = belief > least
        if not sure.any(): continue
        loss = F.cross_entropy(student(weak[sure]), label[sure])
        descent.zero_grad()
        loss.backward()
        descent.step()
        ema_update(teacher, student, momentum)
    return student.state_dict()

def student_epoch__wrong_unsure_ones_too(student, views, least, momentum, lr):
    student = copy.deepcopy(student)
    teacher = copy.deepcopy(student)
    descent = torch.optim.SGD(student.parameters(), lr)
    for weak, strong in views:
        with torch.no_grad(): belief, label = teacher(weak).softmax(1).max(1)
        sure = belief > 0
        if not sure.any(): continue
        loss = F.cross_entropy(student(strong[sure]), label[sure])
        descent.zero_grad()
        loss.backward()
        descent.step()
        ema_update(teacher, student, momentum)
    return student.state_dict()

def student_epoch__right_weighted(student, views, least, momentum, lr):
    student, teacher = copy.deepcopy(student), copy.deepcopy(student)
    for weak, strong in views:
        belief, label = teacher(weak).detach().softmax(1).max(1)
        taken = (belief > least).float()
        if taken.sum() == 0: continue
        each = F.cross_entropy(student(strong), label, reduction="none")
        ((taken * each).sum() / taken.sum()).backward()
        for p in student.parameters():
            p.data -= lr * p.grad
            p.grad = None
        ema_update(teacher, student, momentum)
    return student.state_dict()

def soft_mixture__wrong_roles(server_state, aggregated_state, alpha):
    mixed = {}
    for name, mean in aggregated_state.items():
        mixed[name] = (1 - alpha) * server_state[name] + alpha * mean
    return mixed

def soft_mixture__wrong_sum(server_state, aggregated_state, alpha):
    mixed = {}
    for name, mean in aggregated_state.items():
        mixed[name] = alpha * server_state[name] + mean
    return mixed

def soft_mixture__right_step(server_state, aggregated_state, alpha):
    step = {name: aggregated_state[name] - old for name, old in server_state.items()}
    return {name: old + (1 - alpha) * step[name] for name, old in server_state.items()}

def mean_of__wrong_sizes_ignored(replies):
    names = replies[0][0].keys()
    mean = {}
    for name in names:
        mean[name] = sum(state[name] / len(replies) for state, n in replies)
    return mean

def mean_of__wrong_sum(replies):
    names = replies[0][0].keys()
    mean = {}
    for name in names:
        mean[name] = sum(n * state[name] for state, n in replies)
    return mean

def mean_of__right_stacked(replies):
    sizes = torch.tensor([float(n) for _, n in replies])
    shares = sizes / sizes.sum()
    return {name: torch.tensordot(shares, torch.stack([state[name] for state, _ in replies]), 1)
            for name in replies[0][0]}

def server_round__wrong_no_mixture(state, replies, alpha, supervise):
    start = state
    if replies:
        mean = mean_of(replies)
        start = mean
    return supervise(start)

def server_round__wrong_trains_before_mixing(state, replies, alpha, supervise):
    start = state
    if replies:
        mean = mean_of(replies)
        return soft_mixture(supervise(state), mean, alpha)
    return supervise(start)

def server_round__right_in_one_sum(state, replies, alpha, supervise):
    start = state
    if replies:
        sizes = [n for _, n in replies]
        start = {name: alpha * old + (1 - alpha) * sum(n * s[name] for s, n in replies) / sum(sizes)
                 for name, old in state.items()}
    return supervise(start)

def crossing__wrong_four_bytes(state, frozen):
    sent = kept = 0
    for name, t in state.items():
        size = 4 * t.numel()
        if name.startswith(frozen): kept += size
        else: sent += size
    return sent, kept

def crossing__wrong_swapped(state, frozen):
    sent = kept = 0
    for name, t in state.items():
        size = t.numel() * t.element_size()
        if name.startswith(frozen): kept += size
        else: sent += size
    return kept, sent

def crossing__right_nbytes(state, frozen):
    kept = sum(t.nbytes for name, t in state.items() if name.startswith(frozen))
    return sum(t.nbytes for t in state.values()) - kept, kept
