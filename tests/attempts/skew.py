"Attempts at the blanks of 02_skew: wrong ones that `check` must catch, right ones written another way."
import numpy as np
import torch


def _allowed(shares, held, fair):
    allowed = np.where(np.asarray(held) < fair, shares, 0)
    return allowed / allowed.sum()


def deal_class__wrong_rounds_each_share(positions, shares, held=0, fair=np.inf):
    sizes = np.rint(_allowed(shares, held, fair) * len(positions)).astype(int)
    return np.split(positions, np.cumsum(sizes)[:-1])


def deal_class__wrong_rounds_down(positions, shares, held=0, fair=np.inf):
    cuts = np.cumsum(_allowed(shares, held, fair))[:-1] * len(positions)
    return np.split(positions, cuts.astype(int))


def deal_class__wrong_without_the_balance_rule(positions, shares, held=0, fair=np.inf):
    return np.split(positions, np.rint(np.cumsum(shares)[:-1] * len(positions)).astype(int))


def deal_class__wrong_the_share_of_a_full_client_goes_to_the_last(positions, shares, held=0, fair=np.inf):
    allowed = np.where(np.asarray(held) < fair, shares, 0)
    return np.split(positions, np.rint(np.cumsum(allowed)[:-1] * len(positions)).astype(int))


def deal_class__wrong_full_means_more_than_fair(positions, shares, held=0, fair=np.inf):
    allowed = np.where(np.asarray(held) <= fair, shares, 0)
    cuts = np.cumsum(allowed / allowed.sum())[:-1] * len(positions)
    return np.split(positions, np.rint(cuts).astype(int))


def deal_class__right_by_slices(positions, shares, held=0, fair=np.inf):
    n, own = len(positions), list(shares)
    for k, has in enumerate(np.broadcast_to(held, len(own))):
        if has >= fair: own[k] = 0.0
    ends = [0, *(int(np.floor(sum(own[:k + 1]) / sum(own) * n + 0.5)) for k in range(len(own)))]
    return [positions[start:end] for start, end in zip(ends, ends[1:])]


def label_skew__wrong_not_halved(parts, labels):
    whole = np.bincount(labels) / len(labels)
    own = [np.bincount(labels[part], minlength=len(whole)) / len(part) for part in parts]
    return float(np.mean([abs(p - whole).sum() for p in own]))


def label_skew__wrong_large_clients_count_more(parts, labels):
    whole = np.bincount(labels) / len(labels)
    own = [np.bincount(labels[part], minlength=len(whole)) / len(part) for part in parts]
    return float(np.average([abs(p - whole).sum() / 2 for p in own], weights=[len(part) for part in parts]))


def label_skew__wrong_from_equal_classes(parts, labels):
    classes = labels.max() + 1
    own = [np.bincount(labels[part], minlength=classes) / len(part) for part in parts]
    return float(np.mean([abs(p - 1 / classes).sum() / 2 for p in own]))


def label_skew__wrong_from_the_mean_of_the_clients(parts, labels):
    own = np.stack([np.bincount(labels[part], minlength=labels.max() + 1) / len(part) for part in parts])
    return float(abs(own - own.mean(0)).sum(1).mean() / 2)


def label_skew__right_what_is_too_much(parts, labels):
    found = 0.0
    for part in parts:
        for c in set(labels.tolist()):
            found += max(0.0, (labels[part] == c).mean() - (labels == c).mean())
    return found / len(parts)


def quantity_split__wrong_cuts_all_at_once(labels, shares):
    cuts = np.rint(np.cumsum(shares)[:-1] * len(labels)).astype(int)
    return np.split(np.arange(len(labels)), cuts)


def quantity_split__wrong_not_sorted(labels, shares):
    parts = [[] for _ in shares]
    for c in np.unique(labels):
        own = np.flatnonzero(labels == c)
        pieces = np.split(own, np.rint(np.cumsum(shares)[:-1] * len(own)).astype(int))
        for part, piece in zip(parts, pieces): part.extend(piece.tolist())
    return [np.array(part, dtype=int) for part in parts]


def quantity_split__wrong_equal_amounts(labels, shares):
    return [np.arange(len(labels))[k::len(shares)] for k in range(len(shares))]


def quantity_split__right_an_owner_for_each_picture(labels, shares):
    owner = np.zeros(len(labels), dtype=int)
    for c in set(labels.tolist()):
        own = np.flatnonzero(labels == c)
        cuts = np.rint(np.cumsum(shares)[:-1] * len(own))
        owner[own] = [int((cuts <= i).sum()) for i in range(len(own))]
    return [np.flatnonzero(owner == k) for k in range(len(shares))]


def merge__wrong_plain_mean(replies):
    names = replies[0][0]
    return {name: sum(state[name] for state, _ in replies) / len(replies) for name in names}


def merge__wrong_divided_by_clients(replies):
    names = replies[0][0]
    return {name: sum(n * state[name] for state, n in replies) / len(replies) for name in names}


def merge__wrong_adds_into_the_first_reply(replies):
    total = sum(n for _, n in replies)
    first, n = replies[0]
    for name in first:
        first[name] *= n / total
        for state, m in replies[1:]: first[name] += m / total * state[name]
    return first


def merge__right_stacked(replies):
    n = torch.tensor([float(n) for _, n in replies])
    shares = n / n.sum()
    return {name: torch.tensordot(shares, torch.stack([state[name] for state, _ in replies]), 1)
            for name in replies[0][0]}


def _scores(final, lost, moved):
    return {"average accuracy": float(final), "forgetting": float(lost), "backward transfer": float(moved)}


def matrix_scores__wrong_last_task_is_forgotten_too(matrix):
    a = np.nan_to_num(matrix)
    return _scores(a[-1].mean(), (a.max(0) - a[-1]).mean(), (a[-1] - a.diagonal()).mean())


def matrix_scores__wrong_forgetting_from_the_diagonal(matrix):
    a = np.nan_to_num(matrix)
    moved = (a[-1] - a.diagonal())[:-1].mean()
    return _scores(a[-1].mean(), -moved, moved)


def matrix_scores__wrong_best_without_the_last_row(matrix):
    a = np.nan_to_num(matrix)
    return _scores(a[-1].mean(), (a[:-1].max(0) - a[-1])[:-1].mean(), (a[-1] - a.diagonal())[:-1].mean())


def matrix_scores__wrong_average_of_all_entries(matrix):
    a = np.nan_to_num(matrix)
    return _scores(np.nanmean(matrix), (a.max(0) - a[-1])[:-1].mean(), (a[-1] - a.diagonal())[:-1].mean())


def matrix_scores__right_by_columns(matrix):
    columns = [[row[j] for row in matrix[j:]] for j in range(len(matrix))]
    lost = [max(column) - column[-1] for column in columns[:-1]]
    moved = [column[-1] - column[0] for column in columns[:-1]]
    return _scores(np.mean([column[-1] for column in columns]), np.mean(lost), np.mean(moved))


def soft_distance__wrong_without_the_square(teacher_logits, student_logits, temperature):
    teacher = (teacher_logits / temperature).log_softmax(1)
    student = (student_logits[:, :teacher.shape[1]] / temperature).log_softmax(1)
    return (teacher.exp() * (teacher - student)).sum(1).mean()


def soft_distance__wrong_way_round(teacher_logits, student_logits, temperature):
    teacher = (teacher_logits / temperature).log_softmax(1)
    student = (student_logits[:, :teacher.shape[1]] / temperature).log_softmax(1)
    return temperature ** 2 * (student.exp() * (student - teacher)).sum(1).mean()


def soft_distance__wrong_cut_after_the_softmax(teacher_logits, student_logits, temperature):
    teacher = (teacher_logits / temperature).log_softmax(1)
    student = (student_logits / temperature).log_softmax(1)[:, :teacher.shape[1]]
    return temperature ** 2 * (teacher.exp() * (teacher - student)).sum(1).mean()


def soft_distance__wrong_mean_over_classes(teacher_logits, student_logits, temperature):
    teacher = (teacher_logits / temperature).log_softmax(1)
    student = (student_logits[:, :teacher.shape[1]] / temperature).log_softmax(1)
    return temperature ** 2 * (teacher.exp() * (teacher - student)).mean()


def soft_distance__right_cross_entropy_minus_entropy(teacher_logits, student_logits, temperature):
    p = (teacher_logits / temperature).softmax(1)
    q = (student_logits[:, :p.shape[1]] / temperature).softmax(1)
    cross = -(p * q.log()).sum(1)
    entropy = -(p * p.log()).sum(1)
    return temperature ** 2 * (cross - entropy).mean()


def _stepped(model, loss, rate):
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for weight, gradient in zip(model.parameters(), gradients): weight.data -= rate * gradient
    return model.state_dict()


def _apart(target, z, temperature):
    p = (target / temperature).softmax(1)
    return temperature ** 2 * (p * (p.log() - (z / temperature).log_softmax(1))).sum(1).mean()


def distilled_step__wrong_teacher_knows_all_classes(model, teacher, x, y, old, rate, strength, temperature):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    if teacher: loss = loss + strength * _apart(teacher(x).detach(), model(x), temperature)
    return _stepped(model, loss, rate)


def distilled_step__wrong_without_strength(model, teacher, x, y, old, rate, strength, temperature):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    if old: loss = loss + _apart(teacher(x).detach()[:, :old], model(x)[:, :old], temperature)
    return _stepped(model, loss, rate)


def distilled_step__wrong_adds_the_gradient(model, teacher, x, y, old, rate, strength, temperature):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    if old: loss = loss + strength * _apart(teacher(x).detach()[:, :old], model(x)[:, :old], temperature)
    return _stepped(model, loss, -rate)


def distilled_step__wrong_needs_a_teacher(model, teacher, x, y, old, rate, strength, temperature):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss = loss + strength * _apart(teacher(x).detach()[:, :old], model(x)[:, :old], temperature)
    return _stepped(model, loss, rate)


def distilled_step__wrong_gradients_not_cleared(model, teacher, x, y, old, rate, strength, temperature):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    if old: loss = loss + strength * _apart(teacher(x).detach()[:, :old], model(x)[:, :old], temperature)
    loss.backward()
    for weight in model.parameters(): weight.data -= rate * weight.grad
    return model.state_dict()


def distilled_step__right_with_an_optimiser(model, teacher, x, y, old, rate, strength, temperature):
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    z = model(x)
    loss = -z.log_softmax(1)[range(len(y)), y].mean()
    if old: loss += strength * _apart(teacher(x).detach()[:, :old], z[:, :old], temperature)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return model.state_dict()
