"Attempts at the exercises of nbs/14_fedgtea.ipynb: see tests/test_exercises.py."
import numpy as np


def anchor_by_part__wrong_by_tensor(weights, anchor):
    return sum((t - anchor[name]).norm() for name, t in weights.items())

def anchor_by_part__wrong_one_norm(weights, anchor):
    return sum((t - anchor[name]).square().sum() for name, t in weights.items()).sqrt()

def anchor_by_part__wrong_last_dot(weights, anchor):
    squares = {}
    for name, t in weights.items():
        key = name.rsplit(".", 1)[0]
        squares[key] = squares.get(key, 0.0) + (t - anchor[name]).square().sum()
    return sum((s + 1e-12).sqrt() for s in squares.values())

def anchor_by_part__wrong_no_root(weights, anchor):
    return sum((t - anchor[name]).square().sum() for name, t in weights.items())

def anchor_by_part__right_flat(weights, anchor):
    import torch
    parts = sorted({name.partition(".")[0] for name in weights})
    of = lambda part: (name for name in weights if name.partition(".")[0] == part)
    flat = lambda part: torch.cat([(weights[name] - anchor[name]).flatten() for name in of(part)])
    return sum(torch.linalg.vector_norm(flat(part)) for part in parts)


def means_of_others__wrong_own_included(z, groups):
    member = (groups[:, None] == groups[None]).astype(float)
    return member @ z / member.sum(1, keepdims=True)

def means_of_others__wrong_all_others(z, groups): return (z.sum(0) - z) / (len(z) - 1)

def means_of_others__wrong_zero_when_alone(z, groups):
    others = (groups[:, None] == groups[None]).astype(float) - np.eye(len(z))
    return others @ z / np.maximum(others.sum(1, keepdims=True), 1)

def means_of_others__wrong_divided_by_group(z, groups):
    member = (groups[:, None] == groups[None]).astype(float)
    others = member - np.eye(len(z))
    return np.where(others.sum(1, keepdims=True) > 0, others @ z / member.sum(1, keepdims=True), z)

def means_of_others__right_row_by_row(z, groups):
    rows = []
    for k, own in enumerate(z):
        near = [other for i, other in enumerate(z) if i != k and groups[i] == groups[k]]
        rows.append(np.mean(near, 0) if near else own)
    return np.stack(rows)


def server_walks__wrong_first_task_too(tasks, rounds, every): return tasks * -(-rounds // every)

def server_walks__wrong_last_round_forgotten(tasks, rounds, every): return (tasks - 1) * (rounds // every)

def server_walks__wrong_last_round_twice(tasks, rounds, every): return (tasks - 1) * (rounds // every + 1)

def server_walks__wrong_whole_run_at_once(tasks, rounds, every): return -(-(tasks - 1) * rounds // every)

def server_walks__right_counted(tasks, rounds, every):
    walks = lambda r: (r + 1) % every == 0 or r == rounds - 1
    return sum(walks(r) for t in range(1, tasks) for r in range(rounds))
