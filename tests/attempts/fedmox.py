"Attempts at the exercises of 11_fedmox: wrong ones that `check` must catch, right ones written another way."
import math

import numpy as np


def _asked(n, share): return max(1, round(share * n))


def missed__wrong_share_not_rounded(n, share): return (1 - share) ** 5

def missed__wrong_rounds_up(n, share): return (1 - max(1, math.ceil(share * n)) / n) ** 5

def missed__wrong_rounds_down(n, share): return (1 - max(1, int(share * n)) / n) ** 5

def missed__wrong_nobody_may_be_asked(n, share): return (1 - round(share * n) / n) ** 5

def missed__wrong_draws_with_replacement(n, share): return (1 - 1 / n) ** (5 * _asked(n, share))

def missed__wrong_not_in_all_five(n, share): return 1 - (_asked(n, share) / n) ** 5

def missed__wrong_once_in_five(n, share): return 1 - (1 - _asked(n, share) / n) ** 5

def missed__right_counts_the_draws(n, share):
    m = _asked(n, share)
    return math.prod([math.comb(n - 1, m) / math.comb(n, m)] * 5)


def anchored__wrong_sizes_ignored(server, states, sizes, n_server):
    return np.mean([server, *states], axis=0)

def anchored__wrong_clients_count_alike(server, states, sizes, n_server):
    alpha = n_server / (n_server + sum(sizes))
    return alpha * server + (1 - alpha) * np.mean(states, axis=0)

def anchored__wrong_half_and_half(server, states, sizes, n_server):
    return (server + np.average(states, axis=0, weights=sizes)) / 2

def anchored__wrong_server_against_the_number_of_clients(server, states, sizes, n_server):
    alpha = n_server / (n_server + len(sizes))
    return alpha * server + (1 - alpha) * np.average(states, axis=0, weights=sizes)

def anchored__wrong_the_other_way_round(server, states, sizes, n_server):
    alpha = sum(sizes) / (n_server + sum(sizes))
    return alpha * server + (1 - alpha) * np.average(states, axis=0, weights=sizes)

def anchored__wrong_overwrites_the_server(server, states, sizes, n_server):
    server *= n_server
    for state, size in zip(states, sizes): server += size * state
    server /= n_server + sum(sizes)
    return server

def anchored__right_soft_mixture(server, states, sizes, n_server):
    n = sum(sizes)
    mean = sum(size * state for state, size in zip(states, sizes)) / n
    return mean + n_server / (n_server + n) * (server - mean)


def answer_bytes__wrong_no_scale(shapes, kind, keep):
    counts = [math.prod(shape) for shape in shapes]
    each = {"whole": lambda n: 4 * n, "int8": lambda n: n, "top": lambda n: 8 * math.ceil(keep * n)}[kind]
    return sum(map(each, counts))

def answer_bytes__wrong_no_places(shapes, kind, keep):
    counts = [math.prod(shape) for shape in shapes]
    each = {"whole": lambda n: 4 * n, "int8": lambda n: n + 4, "top": lambda n: 4 * math.ceil(keep * n)}[kind]
    return sum(map(each, counts))

def answer_bytes__wrong_rounds_down(shapes, kind, keep):
    counts = [math.prod(shape) for shape in shapes]
    each = {"whole": lambda n: 4 * n, "int8": lambda n: n + 4, "top": lambda n: 8 * int(keep * n)}[kind]
    return sum(map(each, counts))

def answer_bytes__wrong_all_tensors_as_one(shapes, kind, keep):
    n = sum(math.prod(shape) for shape in shapes)
    return {"whole": 4 * n, "int8": n + 4, "top": 8 * math.ceil(keep * n)}[kind]

def answer_bytes__right_array_by_array(shapes, kind, keep):
    total = 0
    for t in (np.zeros(shape, np.float32) for shape in shapes):
        if kind == "whole": total += t.nbytes
        elif kind == "int8": total += t.astype(np.int8).nbytes + np.float32(1).nbytes
        else: total += (t.nbytes + t.astype(np.int32).nbytes) // t.size * int(np.ceil(keep * t.size))
    return total
