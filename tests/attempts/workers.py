"""Attempts at the exercises of engine/workers."""
import hashlib

import numpy as np


def in_order__right_by_counting(arrivals):
    done, handed = 0, []
    for i in range(len(arrivals)):
        came = set(arrivals[:i + 1])
        upto = done
        while upto in came: upto += 1
        handed.append(list(range(done, upto)))
        done = upto
    return handed


def in_order__wrong_as_they_finish(arrivals): return [[number] for number in arrivals]


def in_order__wrong_one_at_a_time(arrivals):
    waiting, next_one, handed = set(), 0, []
    for number in arrivals:
        waiting.add(number)
        handed.append([next_one] if next_one in waiting else [])
        next_one += next_one in waiting
    return handed


def in_order__wrong_all_at_the_end(arrivals): return [[] for _ in arrivals[1:]] + [sorted(arrivals)]


def computed__right_round_by_round(rounds, every, life):
    at = saved = total = left = 0
    seen = set()
    while True:
        if left == 0:
            if saved in seen: return None
            seen.add(saved)
            at, left = saved, life
        at, total, left = at + 1, total + 1, left - 1
        if at == rounds: return total
        if at % every == 0: saved = at


def computed__wrong_nothing_is_lost(rounds, every, life): return rounds


def computed__wrong_never_gives_up(rounds, every, life):
    saved, total = 0, 0
    for _ in range(100):
        if rounds - saved <= life: break
        total += life
        saved = (saved + life) // every * every
    return total + rounds - saved


def computed__wrong_every_life_starts_anew(rounds, every, life):
    return rounds if rounds <= life else rounds + life


def computed__wrong_the_last_save_of_a_life_is_lost(rounds, every, life):
    saved, total = 0, 0
    while rounds - saved > life:
        total += life
        kept = (saved + life - 1) // every * every
        if kept == saved: return None
        saved = kept
    return total + rounds - saved


def flaky__right_by_hash(seed, share):
    def strike(round, verb, id):
        digest = hashlib.sha256(f"{seed}/{round}/{verb}/{id}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < share
    return strike


def flaky__wrong_one_generator_for_all(seed, share):
    rng = np.random.default_rng(seed)
    return lambda round, verb, id: bool(rng.random() < share)


def flaky__wrong_verb_ignored(seed, share):
    return lambda round, verb, id: bool(np.random.default_rng([seed, round, id]).random() < share)


def flaky__wrong_seed_ignored(seed, share):
    return lambda round, verb, id: bool(np.random.default_rng([round, id, *verb.encode()]).random() < share)


def flaky__wrong_one_minus_share(seed, share):
    return lambda round, verb, id: bool(np.random.default_rng([seed, round, id, *verb.encode()]).random()
                                        < 0.8 - share)


def flaky__wrong_same_clients_in_all_rounds(seed, share):
    return lambda round, verb, id: bool(np.random.default_rng([seed, id, *verb.encode()]).random() < share)
