"Attempts at the exercises of engine/wire: wrong ones that `check` must catch, right ones written another way."
import torch


def pays__wrong_mask_rounded_down(n, k, b): return n // 8 + k * b < n * b


def pays__wrong_share_of_zeros(n, k, b): return k / n < 1 - 1 / (8 * b)


def pays__wrong_a_tie_pays(n, k, b): return (n + 7) // 8 + k * b <= n * b


def pays__wrong_counts_zeros(n, k, b): return (n + 7) // 8 + (n - k) * b < n * b


def pays__wrong_a_byte_for_each_flag(n, k, b): return n + k * b < n * b


def pays__right_saved_against_mask(n, k, b): return (n - k) * b > -(-n // 8)


def _changes(old, new): return {name: new[name] - old[name] for name in new}


def delta__wrong_one_threshold_for_all(old, new):
    changes = _changes(old, new)
    most = max(float(c.abs().max()) for c in changes.values())
    return {name: torch.where(c.abs() > 0.1 * most, c, 0) for name, c in changes.items()}


def delta__wrong_tenth_of_the_largest_weight(old, new):
    return {name: torch.where(c.abs() > 0.1 * new[name].abs().max(), c, 0)
            for name, c in _changes(old, new).items()}


def delta__wrong_largest_with_its_sign(old, new):
    return {name: torch.where(c.abs() > 0.1 * c.max(), c, 0) for name, c in _changes(old, new).items()}


def delta__wrong_keeps_a_tenth(old, new):
    return {name: torch.where(c.abs() >= 0.1 * c.abs().max(), c, 0) for name, c in _changes(old, new).items()}


def delta__wrong_drops_all_negative_changes(old, new):
    return {name: torch.where(c > 0.1 * c.abs().max(), c, 0) for name, c in _changes(old, new).items()}


def delta__wrong_way_round(old, new):
    return {name: torch.where(c.abs() > 0.1 * c.abs().max(), c, 0) for name, c in _changes(new, old).items()}


def delta__wrong_sends_the_new_weights(old, new):
    return {name: torch.where(c.abs() > 0.1 * c.abs().max(), new[name], 0)
            for name, c in _changes(old, new).items()}


def delta__wrong_overwrites_new(old, new):
    for name, t in new.items():
        t -= old[name]
        t[t.abs() <= 0.1 * t.abs().max()] = 0
    return new


def delta__right_zeros_in_place(old, new):
    changes = _changes(old, new)
    for change in changes.values(): change[change.abs() <= 0.1 * change.abs().max()] = 0
    return changes


def delta__right_with_numpy(old, new):
    found = {}
    for name in new:
        change = (new[name] - old[name]).numpy()
        found[name] = change * (10 * abs(change) > abs(change).max())
    return found


def costliest__wrong_largest_single_tensor(ledger, way):
    return max((size, name) for entry in ledger.where(way=way) for name, size in entry.tensors)[1]


def costliest__wrong_both_ways(ledger, way):
    return max(ledger.table("tensor"), key=lambda row: row["bytes"])["tensor"]


def costliest__wrong_most_messages(ledger, way):
    names = [name for entry in ledger.where(way=way) for name, _ in entry.tensors]
    return max(sorted(names), key=names.count)


def costliest__right_by_the_table(ledger, way):
    rows = [row for row in ledger.table("way", "tensor") if row["way"] == way]
    return max(rows, key=lambda row: row["bytes"])["tensor"]


def costliest__right_by_sums(ledger, way):
    names = {name for entry in ledger.entries for name, _ in entry.tensors}
    spent = {name: sum(size for entry in ledger.where(way=way) for other, size in entry.tensors if other
                       == name) for name in names}
    return max(spent, key=spent.get)
