"Attempts at the exercises of nbs/deploy/buffered.ipynb: see tests/test_exercises.py."
import math

import numpy as np


def ages__wrong_counts_landings(log, size):
    asked, found, landed = {}, [], 0
    for event, client in log:
        if event == "ask": asked[client] = landed
        else:
            found.append(landed - asked[client])
            landed += 1
    return found


def ages__wrong_its_own_update_counts(log, size):
    asked, found, landed = {}, [], 0
    for event, client in log:
        if event == "ask": asked[client] = landed // size
        else:
            landed += 1
            found.append(landed // size - asked[client])
    return found


def ages__wrong_landings_over_size(log, size):
    asked, found, landed = {}, [], 0
    for event, client in log:
        if event == "ask": asked[client] = landed
        else:
            found.append((landed - asked[client]) // size)
            landed += 1
    return found


def ages__wrong_the_first_asking_counts(log, size):
    asked, found, landed = {}, [], 0
    for event, client in log:
        if event == "ask": asked.setdefault(client, landed // size)
        else:
            found.append(landed // size - asked[client])
            landed += 1
    return found


def ages__wrong_asking_moves_the_server(log, size):
    asked, found = {}, []
    for place, (event, client) in enumerate(log):
        if event == "ask": asked[client] = place // size
        else: found.append(place // size - asked[client])
    return found


def ages__right_looks_back(log, size):
    updates = lambda upto: sum(event == "land" for event, _ in log[:upto]) // size
    begun = lambda upto, client: max(i for i in range(upto) if log[i] == ("ask", client))
    landings = [(i, client) for i, (event, client) in enumerate(log) if event == "land"]
    return [updates(i) - updates(begun(i, client)) for i, client in landings]


def ask_for__wrong_on_average(wanted, slow, sure): return math.ceil(wanted / (1 - slow))


def ask_for__wrong_always_130_percent(wanted, slow, sure): return math.ceil(1.3 * wanted)


def ask_for__wrong_more_than_wanted(wanted, slow, sure):
    fast = lambda n, k: math.comb(n, k) * (1 - slow) ** k * slow ** (n - k)
    n = wanted
    while sum(fast(n, k) for k in range(wanted + 1, n + 1)) < sure and n < 300: n += 1
    return n


def ask_for__wrong_all_of_them_fast(wanted, slow, sure):
    n = wanted
    while 1 - slow ** n < sure: n += 1
    return n


def ask_for__wrong_slow_and_fast_mixed_up(wanted, slow, sure):
    n = wanted
    while sum(math.comb(n, k) * slow ** k * (1 - slow) ** (n - k) for k in range(wanted, n + 1)) < sure:
        n += 1
        if n > 300: return n
    return n


def ask_for__wrong_strictly_surer(wanted, slow, sure):
    fast = lambda n, k: math.comb(n, k) * (1 - slow) ** k * slow ** (n - k)
    n = wanted
    while sum(fast(n, k) for k in range(wanted, n + 1)) <= sure + 1e-12 and n < 300: n += 1
    return n


def ask_for__right_from_scipy(wanted, slow, sure):
    from scipy.stats import binom
    n = wanted
    while binom.sf(wanted - 1, n, 1 - slow) < sure - 1e-9: n += 1
    return n


def buffered_step__wrong_divides_by_the_weights(w, updates, ages, step, exponent):
    weights = (1.0 + np.asarray(ages)) ** -exponent
    return w + step * weights @ updates / weights.sum()


def buffered_step__wrong_age_is_not_counted(w, updates, ages, step, exponent):
    return w + step * updates.mean(0)


def buffered_step__wrong_sum_for_mean(w, updates, ages, step, exponent):
    return w + step * (1.0 + np.asarray(ages)) ** -exponent @ updates


def buffered_step__wrong_age_without_one(w, updates, ages, step, exponent):
    weights = np.maximum(1.0, np.asarray(ages, dtype=float)) ** -exponent
    return w + step * weights @ updates / len(updates)


def buffered_step__wrong_downhill_sign(w, updates, ages, step, exponent):
    return w - step * (1.0 + np.asarray(ages)) ** -exponent @ updates / len(updates)


def buffered_step__wrong_rate_at_the_weights(w, updates, ages, step, exponent):
    return step * (w + (1.0 + np.asarray(ages)) ** -exponent @ updates / len(updates))


def buffered_step__right_one_by_one(w, updates, ages, step, exponent):
    new = w.copy()
    for update, age in zip(updates, ages): new += step * update / len(updates) / (1 + age) ** exponent
    return new
