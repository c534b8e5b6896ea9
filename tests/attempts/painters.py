"Attempts at the exercises of nbs/methods/painters.ipynb: see tests/test_exercises.py."
from collections import Counter

import numpy as np


def pool__wrong_old_classes_once(old, labels, per_class, classes):
    return [per_class * (1 if c < old else sum(c in own for own in labels)) for c in range(classes)]

def pool__wrong_only_what_is_named(old, labels, per_class, classes):
    return [per_class * sum(c in own for own in labels) for c in range(classes)]

def pool__wrong_everybody_paints_everything(old, labels, per_class, classes):
    return [per_class * len(labels)] * classes

def pool__wrong_clients_are_not_multiplied(old, labels, per_class, classes):
    seen = set().union(*labels)
    return [per_class * (c < old or c in seen) for c in range(classes)]

def pool__right_counts_what_is_drawn(old, labels, per_class, classes):
    drawn = [c for own in labels for c in [*range(old), *own] for _ in range(per_class)]
    return np.bincount(drawn, minlength=classes).tolist()


def chances__wrong_every_picture_alike(labels): return [1 / len(labels)] * len(labels)

def chances__wrong_one_for_each_class(labels): return [1 / labels.count(c) for c in labels]

def chances__wrong_counts_missing_numbers(labels):
    return [1 / ((max(labels) + 1) * labels.count(c)) for c in labels]

def chances__wrong_in_proportion(labels):
    weights = [labels.count(c) for c in labels]
    return [w / sum(weights) for w in weights]

def chances__right_weights_over_their_sum(labels):
    many = Counter(labels)
    weights = np.array([1 / many[c] for c in labels])
    return (weights / weights.sum()).tolist()


def coverage__wrong_share_of_the_painted(painted, real):
    away = ((painted[:, None] - real[None]) ** 2).sum(2)
    return len(np.unique(away.argmin(1))) / len(painted)

def coverage__wrong_nearest_painted_of_each_real(painted, real):
    away = ((painted[:, None] - real[None]) ** 2).sum(2)
    return len(np.unique(away.argmin(0))) / len(real)

def coverage__wrong_counts_every_hit(painted, real): return len(painted) / len(real)

def coverage__wrong_last_of_equals(painted, real):
    away = ((painted[:, None] - real[None, ::-1]) ** 2).sum(2)
    return float(len(set(away.argmin(1).tolist())) == len(real))

def coverage__right_a_loop(painted, real):
    reached = {min(range(len(real)), key=lambda i: np.linalg.norm(p - real[i])) for p in painted}
    return len(reached) / len(real)
