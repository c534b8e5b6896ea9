"Attempts at the exercises of nbs/privacy/dp.ipynb: see tests/test_exercises.py."
import math


def nodes_with__wrong_height_of_the_tree(step, steps): return steps.bit_length()


def nodes_with__wrong_right_children_too(step, steps):
    return sum(((step - 1 >> level) + 1) << level <= steps for level in range(steps.bit_length()))


def nodes_with__wrong_nodes_of_its_own_sum(step, steps): return bin(step).count("1")


def nodes_with__wrong_nodes_of_the_last_sum(step, steps): return bin(steps).count("1")


def nodes_with__wrong_rounds_from_nought(step, steps):
    return sum(not step >> level & 1 and ((step >> level) + 1) << level <= steps
               for level in range(steps.bit_length()))


def nodes_with__right_left_children_that_are_whole(step, steps):
    count = 0
    for level in range(steps.bit_length()):
        place = (step - 1) // 2**level
        if place % 2 == 0 and (place + 1) * 2**level <= steps: count += 1
    return count


def private_clip__wrong_raw_share(clip, norms, expected, drawn, wished=0.5, rate=0.2):
    share = sum(norm <= clip for norm in norms) / max(1, len(norms))
    return clip * math.exp(-rate * (share - wished))


def private_clip__wrong_who_stays_away_is_long(clip, norms, expected, drawn, wished=0.5, rate=0.2):
    return clip * math.exp(-rate * ((sum(norm <= clip for norm in norms) + drawn) / expected - wished))


def private_clip__wrong_mean_of_those_who_came(clip, norms, expected, drawn, wished=0.5, rate=0.2):
    count = sum((norm <= clip) - 0.5 for norm in norms)
    return clip * math.exp(-rate * (0.5 + (count + drawn) / max(1, len(norms)) - wished))


def private_clip__wrong_noise_on_the_share(clip, norms, expected, drawn, wished=0.5, rate=0.2):
    count = sum((norm <= clip) - 0.5 for norm in norms)
    return clip * math.exp(-rate * (0.5 + count / expected + drawn - wished))


def private_clip__wrong_strictly_shorter(clip, norms, expected, drawn, wished=0.5, rate=0.2):
    count = sum((norm < clip) - 0.5 for norm in norms)
    return clip * math.exp(-rate * (0.5 + (count + drawn) / expected - wished))


def private_clip__wrong_no_noise(clip, norms, expected, drawn, wished=0.5, rate=0.2):
    count = sum((norm <= clip) - 0.5 for norm in norms)
    return clip * math.exp(-rate * (0.5 + count / expected - wished))


def private_clip__right_short_less_long(clip, norms, expected, drawn, wished=0.5, rate=0.2):
    short = len([norm for norm in norms if norm <= clip])
    long = len(norms) - short
    share = 0.5 + ((short - long) / 2 + drawn) / expected
    return clip / math.exp(rate * (share - wished))


def person__wrong_the_largest(epsilons, records):
    return max((epsilons[place] for place, count in records.items() if count), default=0.0)


def person__wrong_one_record_with_each(epsilons, records):
    return sum(epsilons[place] for place, count in records.items() if count)


def person__wrong_everybody(epsilons, records): return sum(epsilons.values())


def person__wrong_factors_of_all(epsilons, records):
    return math.exp(sum(epsilons[place] * count for place, count in records.items()))


def person__wrong_root_of_the_count(epsilons, records):
    return sum(epsilons[place] * math.sqrt(count) for place, count in records.items())


def person__right_by_factors(epsilons, records):
    factor = 1.0
    for place, count in records.items():
        for _ in range(count): factor *= math.exp(epsilons[place])
    return math.log(factor)
