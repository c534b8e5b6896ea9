"Hidden cases for the blanks of `02_skew`: each function draws the arguments of one case."
import numpy as np
import torch
import torch.nn.functional as F

from fedbook.answers import skew as answers
from fedbook.datasets.split import counts


def _shares(g): return g.dirichlet([1.0] * int(g.integers(2, 6)))


def deal_class(g):
    shares = _shares(g)
    held = g.integers(0, 30, len(shares))
    held[g.permutation(len(shares))[:2]] = 3
    return g.permutation(int(g.integers(20, 60))), shares, held, 10


def label_skew(g):
    labels = np.concatenate([np.arange(4), g.integers(0, 4, 30)])
    cuts = np.sort(g.choice(np.arange(1, len(labels)), int(g.integers(1, 5)), replace=False))
    return np.split(g.permutation(len(labels)), cuts), labels


def quantity_split(g): return g.integers(0, 4, int(g.integers(20, 60))), _shares(g)


def merge(g):
    normal = lambda *shape: torch.tensor(g.normal(size=shape), dtype=torch.float32)
    return [({"w": normal(2, 3), "b": normal()}, int(n) + 1) for n in g.permutation(89)[:int(g.integers(2, 6))]]


def matrix_scores(g):
    t = int(g.integers(2, 6))
    return np.where(np.tri(t) > 0, g.random((t, t)), np.nan)


def soft_distance(g):
    b, old, new = g.integers(1, 5, 3).tolist()
    logits = lambda classes: torch.tensor(g.normal(scale=2, size=(b, classes)), dtype=torch.float32)
    return logits(old + 1), logits(old + new), float(g.uniform(0.5, 5))


def _layer(g):
    layer = torch.nn.utils.skip_init(torch.nn.Linear, 3, 5)
    for weight in layer.parameters(): weight.data = torch.tensor(g.normal(size=weight.shape), dtype=torch.float32)
    return layer


def distilled_step(g):
    b, old = int(g.integers(1, 5)), int(g.integers(0, 5))
    x = torch.tensor(g.normal(size=(b, 3)), dtype=torch.float32)
    y = torch.tensor(g.integers(0, 5, b))
    return _layer(g), _layer(g) if old else None, x, y, old, 0.1, float(g.uniform(0, 10)), float(g.uniform(1, 4))


# Variations: NAME__HOW is the right answer to what its docstring asks for.

def deal_class__last(positions, shares, held=0, limit=np.inf):
    "Deal from the end: turn `positions` round before you cut them."
    return answers.deal_class(positions[::-1], shares, held, limit)


def deal_class__firm(positions, shares, held=0, limit=np.inf):
    "Turn the pieces round after the cut: client 0 gets the last piece, with its positions in falling order."
    return [piece[::-1] for piece in answers.deal_class(positions, shares, held, limit)[::-1]]


def _apart(parts, labels):
    table = counts(parts, labels)
    whole = np.bincount(labels, minlength=table.shape[1]) / len(labels)
    return np.abs(table / table.sum(1, keepdims=True) - whole)


def label_skew__largest(parts, labels):
    "Return the distance of the client that is farthest, in place of the mean over clients."
    return float(_apart(parts, labels).sum(1).max() / 2)


def label_skew__squares(parts, labels):
    "Add up squares in place of absolute values."
    return float((_apart(parts, labels) ** 2).sum(1).mean() / 2)


def quantity_split__turned(labels, shares):
    "The clients' shares stand in reverse order: client 0 gets the last share."
    return answers.quantity_split(labels, np.asarray(shares)[::-1])


def quantity_split__table(labels, shares):
    """In place of positions, return a table of whole numbers (K, number of different classes in `labels`): how many
    pictures of each class each client gets. Its columns are the classes in ascending order."""
    parts = answers.quantity_split(labels, shares)
    return np.array([[(labels[part] == c).sum() for c in np.unique(labels)] for part in parts])


def merge__guest(replies):
    "There is one more client, with 10 pictures, whose weights are all 0."
    state = {name: 0 * w for name, w in replies[0][0].items()}
    return answers.merge([*replies, (state, 10)])


def merge__squares(replies):
    "Each client counts in proportion to the square of its number of pictures."
    return answers.merge([(state, n ** 2) for state, n in replies])


def matrix_scores__percent(matrix):
    "Give all three in percent."
    return {name: 100 * score for name, score in answers.matrix_scores(matrix).items()}


def matrix_scores__sums(matrix):
    "Give the average accuracy over the old tasks alone (all but the last), and the other two as sums."
    found, old = answers.matrix_scores(matrix), len(matrix) - 1
    sums = {name: old * found[name] for name in ("forgetting", "backward transfer")}
    return {"average accuracy": float(np.mean(matrix[-1][:-1])), **sums}


def _logs(teacher, student, temperature):
    old = teacher.shape[1]
    return [F.log_softmax(z / temperature, 1) for z in (teacher, student[:, :old])]


def soft_distance__other_way(teacher_logits, student_logits, temperature):
    "Take the divergence the other way round: student and teacher change places in it."
    teacher, student = _logs(teacher_logits, student_logits, temperature)
    return temperature ** 2 * (student.exp() * (student - teacher)).sum(1).mean()


def soft_distance__cross(teacher_logits, student_logits, temperature):
    "Leave out the teacher's own entropy: take the cross-entropy of the student from the teacher."
    teacher, student = _logs(teacher_logits, student_logits, temperature)
    return -temperature ** 2 * (teacher.exp() * student).sum(1).mean()


def distilled_step__slow(model, teacher, x, y, old, rate, strength, temperature):
    "Go half of the step."
    return answers.distilled_step(model, teacher, x, y, old, rate / 2, strength, temperature)


def distilled_step__decay(model, teacher, x, y, old, rate, strength, temperature):
    "The step has weight decay: before it, add 0.1 times each weight to the weight's gradient."
    before = [weight.detach().clone() for weight in model.parameters()]
    state = answers.distilled_step(model, teacher, x, y, old, rate, strength, temperature)
    with torch.no_grad():
        for weight, start in zip(model.parameters(), before): weight -= rate * 0.1 * start
    return state
