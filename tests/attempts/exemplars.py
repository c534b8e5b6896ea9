"Attempts at the exercises of nbs/methods/exemplars.ipynb: see tests/test_exercises.py."
import numpy as np


def orphans__wrong_some_client_lacks_it(memory):
    return np.flatnonzero(np.asarray(memory).min(0) == 0).tolist()

def orphans__wrong_clients_for_classes(memory): return np.flatnonzero(np.asarray(memory).sum(1) == 0).tolist()

def orphans__wrong_a_single_picture_counts_as_none(memory):
    return np.flatnonzero(np.asarray(memory).sum(0) <= 1).tolist()

def orphans__wrong_first_client_alone(memory): return [c for c, count in enumerate(memory[0]) if not count]

def orphans__right_columns(memory): return [c for c, column in enumerate(zip(*memory)) if not any(column)]


def fair_shares__wrong_one_pass(counts, memory):
    return [min(count, memory // len(counts)) for count in counts]

def fair_shares__wrong_the_rest_to_the_last(counts, memory):
    shares = [0] * len(counts)
    while memory and shares != list(counts):
        for c in reversed(range(len(counts))):
            if memory and shares[c] < counts[c]: shares[c], memory = shares[c] + 1, memory - 1
    return shares

def fair_shares__wrong_the_rest_to_the_largest(counts, memory):
    shares = [0] * len(counts)
    for _ in range(min(memory, sum(counts))):
        open_ = [c for c in range(len(counts)) if shares[c] < counts[c]]
        c = min(open_, key=lambda c: (shares[c], -counts[c]))
        shares[c] += 1
    return shares

def fair_shares__wrong_in_proportion(counts, memory):
    return [min(count, memory * count // sum(counts)) for count in counts]

def fair_shares__wrong_what_is_over_is_lost(counts, memory):
    share, rest = divmod(memory, len(counts))
    return [min(count, share + (c < rest)) for c, count in enumerate(counts)]

def fair_shares__right_water_level(counts, memory):
    memory = min(memory, sum(counts))
    level = max(k for k in range(max(counts) + 1) if sum(min(count, k) for count in counts) <= memory)
    shares = [min(count, level) for count in counts]
    for c in [c for c, count in enumerate(counts) if count > level][:memory - sum(shares)]: shares[c] += 1
    return shares


def expected__wrong_equal_shares(counts, memory):
    return [[min(count, memory / (t + 1)) for count in counts[:t + 1]] for t in range(len(counts))]

def expected__wrong_no_limit(counts, memory):
    return [[count * memory / sum(counts[:t + 1]) for count in counts[:t + 1]] for t in range(len(counts))]

def expected__wrong_all_tasks_from_the_start(counts, memory):
    chance = min(1, memory / sum(counts))
    return [[count * chance for count in counts[:t + 1]] for t in range(len(counts))]

def expected__wrong_whole_pictures(counts, memory):
    return [[int(n) for n in row] for row in expected__right_shrinks_step_by_step(counts, memory)]

def expected__right_shrinks_step_by_step(counts, memory):
    rows, room = [], []
    for count in counts:
        room = [*room, float(count)]
        if rows and sum(counts[:len(room)]) > memory:
            passed = sum(counts[:len(rows)])
            was = min(memory, passed) / passed
            room = [n / was for n in room[:-1]] + room[-1:]
        if sum(room) > memory: room = [n * memory / sum(room) for n in room]
        rows.append(room)
    return rows
