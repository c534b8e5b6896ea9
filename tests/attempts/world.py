"Attempts at the exercises of nbs/datasets/world.ipynb: see tests/test_exercises.py."
from collections import Counter

import numpy as np
import torch

from fedbook.engine.local import as_float


def _sums(images, dtype):
    n, total, squares = 0, 0, 0
    for image in images:
        x = as_float(image).to(dtype).flatten(1)
        n, total, squares = n + x.shape[1], total + x.sum(1), squares + (x * x).sum(1)
    mean = total / n
    return mean.tolist(), (squares / n - mean ** 2).clamp(min=0).sqrt().tolist()


def running_statistics__wrong_single_precision(images): return _sums(images, torch.float32)

def running_statistics__wrong_everything_in_memory(images):
    x = torch.cat([as_float(image).double().flatten(1) for image in images], 1)
    return x.mean(1).tolist(), x.std(1, correction=0).tolist()

def running_statistics__wrong_all_bytes_in_memory(images): return _sums(list(images), torch.float64)

def running_statistics__wrong_grows_one_tensor(images):
    x = None
    for image in images:
        new = as_float(image).double().flatten(1)
        x = new if x is None else torch.cat([x, new], 1)
    return x.mean(1).tolist(), x.std(1, correction=0).tolist()

def running_statistics__wrong_walks_twice(images):
    n, total = 0, 0
    for image in images: n, total = n + image[0].numel(), total + as_float(image).double().flatten(1).sum(1)
    squares = sum(((as_float(image).double().flatten(1) - (total / n)[:, None]) ** 2).sum(1)
                  for image in images)
    return (total / n).tolist(), (squares / n).sqrt().tolist()

def running_statistics__wrong_mean_of_means(images):
    each = [(as_float(image).double().mean((1, 2)), as_float(image).double().std((1, 2), correction=0))
            for image in images]
    return [torch.stack(column).mean(0).tolist() for column in zip(*each)]

def running_statistics__wrong_sample_deviation(images):
    n, total, squares = 0, torch.zeros(1).double(), torch.zeros(1).double()
    for image in images:
        x = as_float(image).double().flatten(1)
        n, total, squares = n + x.shape[1], total + x.sum(1), squares + (x * x).sum(1)
    mean = total / n
    return mean.tolist(), ((squares - n * mean ** 2).clamp(min=0) / max(n - 1, 1)).sqrt().tolist()

def running_statistics__right_welford(images):
    n, mean, spread = 0, 0.0, 0.0
    for image in images:
        x = as_float(image).numpy().astype(np.float64).reshape(len(image), -1)
        m, shift = x.shape[1], x.mean(1) - mean
        spread = spread + ((x - x.mean(1, keepdims=True)) ** 2).sum(1) + shift ** 2 * n * m / (n + m)
        n, mean = n + m, mean + shift * m / (n + m)
    return mean, np.sqrt(spread / n)


def _pairs(labels, predicted): return [(a, b) for a, b in zip(labels, predicted) if a != b]

def confused_pair__wrong_one_direction(labels, predicted):
    count = Counter(_pairs(labels, predicted))
    return tuple(sorted(min(count, key=lambda pair: (-count[pair], pair))))

def confused_pair__wrong_counts_the_right_ones(labels, predicted):
    count = Counter(tuple(sorted(pair)) for pair in zip(labels, predicted))
    return min(count, key=lambda pair: (-count[pair], pair))

def confused_pair__wrong_larger_pair_on_a_tie(labels, predicted):
    count = Counter(tuple(sorted(pair)) for pair in _pairs(labels, predicted))
    return max(count, key=lambda pair: (count[pair], pair))

def confused_pair__right_matrix(labels, predicted):
    n = max(*labels, *predicted) + 1
    count = np.zeros((n, n), int)
    np.add.at(count, (labels, predicted), 1)
    both = np.triu(count + count.T, 1)
    return [int(i) for i in np.unravel_index(both.argmax(), both.shape)]


def first_of_each__wrong_by_class(labels, k):
    return [i for c in sorted(set(labels)) for i in [j for j, label in enumerate(labels) if label == c][:k]]

def first_of_each__wrong_last_ones(labels, k):
    return sorted(i for c in set(labels) for i in [j for j, label in enumerate(labels) if label == c][-k:])

def first_of_each__wrong_one_too_many(labels, k):
    return [i for i, label in enumerate(labels) if labels[:i].count(label) <= k]

def first_of_each__wrong_only_full_classes(labels, k):
    return [i for i, label in enumerate(labels) if labels[:i].count(label) < k <= labels.count(label)]

def first_of_each__right_numpy(labels, k):
    labels = np.asarray(labels)
    return sorted(int(i) for c in np.unique(labels) for i in np.flatnonzero(labels == c)[:k])
