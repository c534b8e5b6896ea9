"Attempts at the exercises of datasets/split: wrong ones that `check` must catch, right ones written another way."
import numpy as np


def effective_classes__wrong_counts_classes(row): return float(np.count_nonzero(row))


def effective_classes__wrong_inverse_simpson(row):
    p = np.asarray(row) / np.sum(row)
    return float(1 / (p ** 2).sum())


def effective_classes__wrong_logarithm_of_base_two(row):
    p = np.asarray(row)[np.asarray(row) > 0] / np.sum(row)
    return float(np.exp(-(p * np.log2(p)).sum()))


def effective_classes__wrong_keeps_empty_classes(row):
    p = np.asarray(row) / np.sum(row)
    with np.errstate(all="ignore"): return float(np.exp(-(p * np.log(p)).sum()))


def effective_classes__wrong_entropy_itself(row):
    p = np.asarray(row)[np.asarray(row) > 0] / np.sum(row)
    return float(-(p * np.log(p)).sum())


def effective_classes__right_product_of_powers(row):
    p = np.asarray(row) / sum(row)
    return float(np.prod(p ** -p, where=p > 0))


def effective_classes__right_two_to_the_bits(row):
    shares = [n / sum(row) for n in row if n]
    return 2 ** -sum(p * np.log2(p) for p in shares)


def arrival__wrong_number_of_the_task(labels, stream):
    return [next(t for t, task in enumerate(stream) if label in task) for label in labels]


def arrival__wrong_place_within_the_task(labels, stream):
    return [next(task.index(label) for task in stream if label in task) for label in labels]


def arrival__wrong_classes_sorted_within_tasks(labels, stream):
    flat = [c for task in stream for c in sorted(task)]
    return [flat.index(label) for label in labels]


def arrival__wrong_way_round(labels, stream):
    flat = sum(stream, [])
    return [flat[label] if label < len(flat) else -1 for label in labels]


def arrival__right_by_index(labels, stream):
    flat = sum(stream, [])
    return [flat.index(label) for label in labels]


def arrival__right_by_numpy(labels, stream):
    return np.argsort(np.concatenate(stream))[np.asarray(labels, dtype=int)].tolist() if labels else []


def _shares(parts):
    sizes = np.array([len(part) for part in parts])
    return sizes / sizes.sum()


def size_skew__wrong_not_halved(parts): return float(abs(_shares(parts) - 1 / len(parts)).sum())


def size_skew__wrong_largest_distance(parts): return float(abs(_shares(parts) - 1 / len(parts)).max())


def size_skew__wrong_mean_instead_of_sum(parts): return float(abs(_shares(parts) - 1 / len(parts)).mean())


def size_skew__wrong_range(parts): return float(np.ptp(_shares(parts)) / 2)


def size_skew__wrong_leaves_out_empty_clients(parts):
    shares = _shares([part for part in parts if len(part)])
    return float(abs(shares - 1 / len(shares)).sum() / 2)


def size_skew__right_what_must_move(parts):
    n = sum(map(len, parts))
    return sum(max(0, len(part) - n / len(parts)) for part in parts) / n
