"Attempts at the exercises of nbs/deploy/flower.ipynb: see tests/test_exercises.py."
import math

import numpy as np


def _rounds(absent, client): return sorted({row["round"] for row in absent if row["client"] == client})


def longest_absence__wrong_counts_all_rounds(absent, client): return len(_rounds(absent, client))


def longest_absence__wrong_any_client(absent, client):
    rounds = {row["round"] for row in absent}
    return max((next(n for n in range(1, 99) if r + n not in rounds) for r in rounds), default=0)


def longest_absence__wrong_takes_the_list_as_it_comes(absent, client):
    longest, length, last = 0, 0, None
    for row in absent:
        if row["client"] != client: continue
        length = (length if row["round"] == last else length + 1 if last is not None and row["round"] == last
                  + 1 else 1)
        last, longest = row["round"], max(longest, length)
    return longest


def longest_absence__wrong_a_verb_is_a_round(absent, client):
    rounds = sorted(row["round"] for row in absent if row["client"] == client)
    longest = length = 0
    for i, r in enumerate(rounds):
        length = length + 1 if i and r - rounds[i - 1] <= 1 else 1
        longest = max(longest, length)
    return longest


def longest_absence__wrong_the_last_streak(absent, client):
    rounds, length = _rounds(absent, client), 0
    for i, r in enumerate(rounds): length = length + 1 if i and r == rounds[i - 1] + 1 else 1
    return length


def longest_absence__wrong_counts_steps_between(absent, client):
    rounds, longest, length = _rounds(absent, client), 0, 0
    for a, b in zip(rounds, rounds[1:]):
        length = length + 1 if b == a + 1 else 0
        longest = max(longest, length)
    return longest


def longest_absence__wrong_sorts_the_ledger(absent, client):
    absent.sort(key=lambda row: -row["round"])
    rounds = {row["round"] for row in absent if row["client"] == client}
    return max((next(n for n in range(1, 99) if r + n not in rounds) for r in rounds), default=0)


def longest_absence__right_by_splitting(absent, client):
    rounds = np.array(_rounds(absent, client), dtype=int)
    return max(len(part) for part in np.split(rounds, np.flatnonzero(np.diff(rounds) > 1) + 1))


def longest_absence__right_text(absent, client):
    rounds = _rounds(absent, client)
    marks = "".join("x" if r in rounds else " " for r in range(max(rounds, default=0) + 1))
    return max(map(len, marks.split(" ")))


def timeout_for__wrong_quantile(times, share): return float(np.quantile(times, share, axis=1).max())


def timeout_for__wrong_rounds_down(times, share):
    needed = max(1, math.floor(share * times.shape[1]))
    return float(np.sort(times, axis=1)[:, needed - 1].max())


def timeout_for__wrong_a_hair_above_seven(times, share):
    needed = math.ceil(share * times.shape[1])
    return float(np.sort(times, axis=1)[:, needed - 1].max())


def timeout_for__wrong_all_rounds_in_one(times, share):
    return float(np.sort(times.ravel())[math.ceil(round(share * times.size, 9)) - 1])


def timeout_for__wrong_the_best_round(times, share):
    needed = math.ceil(round(share * times.shape[1], 9))
    return float(np.sort(times, axis=1)[:, needed - 1].min())


def timeout_for__wrong_the_same_clients_each_time(times, share):
    needed = math.ceil(round(share * times.shape[1], 9))
    return float(np.sort(times.max(axis=0))[needed - 1])


def timeout_for__wrong_sorts_in_place(times, share):
    times.sort(axis=1)
    return float(times[:, math.ceil(round(share * times.shape[1], 9)) - 1].max())


def timeout_for__right_tries_each(times, share):
    for timeout in sorted(set(times.ravel().tolist())):
        if all((row <= timeout).mean() >= share - 1e-9 for row in times): return timeout


def crossings__wrong_sends_all_twice(messages):
    everything = sum(len(item) for message in messages for item in message)
    return everything, everything


def crossings__wrong_nodes_share_too(messages):
    objects = {item for message in messages for item in message}
    return sum(map(len, objects)), sum(map(len, objects))


def crossings__wrong_way_round(messages):
    objects = {item for message in messages for item in message}
    return sum(len(item) for message in messages for item in message), sum(map(len, objects))


def crossings__wrong_by_identity(messages):
    objects = {id(item): item for message in messages for item in message}
    return sum(map(len, objects.values())), sum(len(item) for message in messages for item in message)


def crossings__wrong_equal_messages_only(messages):
    different = {tuple(message) for message in messages}
    return sum(len(item) for message in different for item in message), sum(len(i) for m in messages
                                                                            for i in m)


def crossings__wrong_by_length(messages):
    return sum({len(item) for message in messages for item in message}), sum(len(i) for m in messages
                                                                             for i in m)


def crossings__right_one_by_one(messages):
    known, first, second = [], 0, 0
    for message in messages:
        for item in message:
            second += len(item)
            if item not in known:
                known.append(item)
                first += len(item)
    return [first, second]
