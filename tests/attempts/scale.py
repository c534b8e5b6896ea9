"Attempts at the exercises of nbs/deploy/scale.ipynb: see tests/test_exercises.py."
import math


def surviving__wrong_all_that_was_written(log):
    return {what[0]: what[1] for event, *what in log if event == "write"}


def surviving__wrong_only_the_last_save(log):
    counts, written = {}, {}
    for event, *what in log:
        if event == "save": counts, written = written, {}
        else: written[what[0]] = what[1]
    return counts


def surviving__wrong_the_first_value_stays(log):
    counts, written = {}, {}
    for event, *what in log:
        if event == "save": counts, written = {**written, **counts}, {}
        else: written[what[0]] = what[1]
    return counts


def surviving__wrong_unsaved_clients_vanish(log):
    counts, written = {}, {}
    for event, *what in log:
        if event == "save": counts, written = {**counts, **written}, {}
        else: written[what[0]] = what[1]
    return {client: value for client, value in counts.items() if client not in written}


def surviving__wrong_first_write_of_a_round(log):
    counts, written = {}, {}
    for event, *what in log:
        if event == "save": counts, written = {**counts, **written}, {}
        else: written.setdefault(*what)
    return counts


def surviving__right_cuts_at_the_last_save(log):
    saves = [place for place, (event, *_) in enumerate(log) if event == "save"]
    return {what[0]: what[1] for event, *what in log[:saves[-1] if saves else 0] if event == "write"}


def fewest__wrong_without_the_last_merge(replies, each, within):
    for n in range(1, max(1, replies) + 1):
        if each * math.ceil(replies / n) <= within + 1e-12: return n


def fewest__wrong_equal_parts(replies, each, within):
    for n in range(1, max(1, replies) + 1):
        if each * (replies / n + (n if n > 1 else 0)) <= within + 1e-12: return n


def fewest__wrong_one_merges_too(replies, each, within):
    for n in range(1, max(1, replies) + 1):
        if each * (math.ceil(replies / n) + n) <= within + 1e-12: return n


def fewest__wrong_divides(replies, each, within): return max(1, math.ceil(replies * each / within))


def fewest__wrong_must_be_below(replies, each, within):
    for n in range(1, max(1, replies) + 1):
        if each * (math.ceil(replies / n) + (n if n > 1 else 0)) < within - 1e-12: return n


def fewest__wrong_fastest_not_fewest(replies, each, within):
    time = lambda n: each * (math.ceil(replies / n) + (n if n > 1 else 0))
    best = min(range(1, max(1, replies) + 1), key=time)
    return best if time(best) <= within + 1e-12 else None


def fewest__right_lists_all(replies, each, within):
    fits = [n for n in range(1, max(2, replies + 1))
            if each * (-(-replies // n)) + (each * n if n > 1 else 0) <= within + 1e-9]
    return fits[0] if fits else None


def traffic__wrong_one_way(clients, size, bytes, inner):
    return math.ceil(clients / size) * bytes, clients * bytes * inner


def traffic__wrong_drops_the_last_group(clients, size, bytes, inner):
    return 2 * (clients // size) * bytes, 2 * clients * bytes * inner


def traffic__wrong_each_average_goes_up(clients, size, bytes, inner):
    return 2 * math.ceil(clients / size) * bytes * inner, 2 * clients * bytes * inner


def traffic__wrong_inner_is_forgotten(clients, size, bytes, inner):
    return 2 * math.ceil(clients / size) * bytes, 2 * clients * bytes


def traffic__wrong_clients_at_the_top(clients, size, bytes, inner):
    return 2 * clients * bytes, 2 * clients * bytes * inner


def traffic__wrong_other_way_round(clients, size, bytes, inner):
    return 2 * clients * bytes * inner, 2 * math.ceil(clients / size) * bytes


def traffic__right_group_by_group(clients, size, bytes, inner):
    groups = [min(size, clients - begin) for begin in range(0, clients, size)]
    return sum(2 * bytes for _ in groups), sum(2 * bytes * members * inner for members in groups)
