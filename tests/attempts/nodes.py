"Attempts at the exercises of nbs/deploy/nodes.ipynb: see tests/test_exercises.py."


def believes__wrong_any_address(shown, authorities, address, now):
    return shown["issuer"] in authorities and shown["begin"] <= now <= shown["end"]


def believes__wrong_any_authority(shown, authorities, address, now):
    return address in shown["names"] and shown["begin"] <= now <= shown["end"]


def believes__wrong_it_ends_a_moment_early(shown, authorities, address, now):
    return (shown["issuer"] in authorities and address in shown["names"] and shown["begin"] <= now
            < shown["end"])


def believes__wrong_a_part_of_a_name_is_enough(shown, authorities, address, now):
    known = any(address in name for name in shown["names"])
    return shown["issuer"] in authorities and known and shown["begin"] <= now <= shown["end"]


def believes__right_one_reason_after_the_other(shown, authorities, address, now):
    if not authorities or shown["issuer"] not in set(authorities): return False
    if all(name != address for name in shown["names"]): return False
    return not (now < shown["begin"] or now > shown["end"])


def gaps__wrong_not_sorted(beats, patience, end):
    pairs = zip(beats, [*beats[1:], end])
    return [(a + patience, b) for a, b in pairs if b - a > patience]


def gaps__wrong_from_the_last_beat(beats, patience, end):
    times = sorted(beats)
    return [(a, b) for a, b in zip(times, [*times[1:], end]) if b - a > patience]


def gaps__wrong_just_in_time_is_late(beats, patience, end):
    times = sorted(beats)
    return [(a + patience, b) for a, b in zip(times, [*times[1:], end]) if b - a >= patience]


def gaps__wrong_forgets_the_end(beats, patience, end):
    times = sorted(beats)
    return [(a + patience, b) for a, b in zip(times, times[1:]) if b - a > patience]


def gaps__wrong_dead_before_the_first_beat(beats, patience, end):
    times = [0, *sorted(beats), end]
    return [(a + patience, b) for a, b in zip(times, times[1:]) if b - a > patience]


def gaps__right_backwards(beats, patience, end):
    found = []
    for beat in sorted(beats, reverse=True):
        if beat + patience < end: found.insert(0, (beat + patience, end))
        end = beat
    return found


def family__wrong_children_only(parents, root):
    return {root, *(child for child, parent in parents.items() if parent == root)} & {*parents}


def family__wrong_in_the_order_of_numbers(parents, root):
    found = {root} & {*parents}
    for child in sorted(parents):
        if parents[child] in found: found.add(child)
    return found


def family__wrong_orphans_too(parents, root):
    found, grown = {root} & {*parents}, True
    while grown:
        new = {child for child, parent in parents.items() if parent in found or parent not in parents} | found
        grown, found = new != found, new
    return found


def family__wrong_without_the_root(parents, root):
    found = {child for child, parent in parents.items() if parent == root}
    for _ in parents: found |= {child for child, parent in parents.items() if parent in found}
    return found


def family__right_upwards(parents, root):
    def ancestors(pid):
        while pid in parents:
            yield pid
            pid = parents[pid]
    return {pid for pid in parents if root in ancestors(pid)}
