"Attempts at the exercises of nbs/30_command.ipynb: see tests/test_exercises.py."
import re


def engine_of__wrong_no_number_is_zero(text):
    name, _, number = text.partition(":")
    return (name, int(number or 0)) if name in ("local", "flower") else None

def engine_of__wrong_takes_any_number(text):
    found = re.fullmatch(r"(local|flower)(?::(\d+))?", text)
    return found and (found[1], int(found[2]) if found[2] else None)

def engine_of__wrong_one_digit(text):
    found = re.fullmatch(r"(local)|(flower)(?::([1-9]))?", text)
    return found and (found[1] or found[2], int(found[3]) if found[3] else None)

def engine_of__right_partition(text):
    name, colon, number = text.partition(":")
    if not colon: return (name, None) if name in ("local", "flower") else None
    return (name, int(number)) if name == "flower" and number.isdigit() and int(number) else None


def left__wrong_failed_is_done(order, done): return [name for name in order if name not in done]

def left__wrong_sorted(order, done): return sorted(name for name in order if done.get(name) != 0)

def left__wrong_keeps_only_failures(order, done): return [name for name in order if done.get(name)]

def left__right_set(order, done):
    well = {name for name, code in done.items() if code == 0}
    return [name for name in order if name not in well]


def makespan__wrong_even_share(seconds, at_once): return sum(seconds) / at_once

def makespan__wrong_in_turn(seconds, at_once):
    return max((sum(seconds[place::at_once]) for place in range(at_once)), default=0)

def makespan__wrong_waits_for_both(seconds, at_once):
    return sum(max(seconds[i:i + at_once]) for i in range(0, len(seconds), at_once))

def makespan__right_least_loaded(seconds, at_once):
    places = [0] * at_once
    for each in seconds: places[places.index(min(places))] += each
    return max(places)
