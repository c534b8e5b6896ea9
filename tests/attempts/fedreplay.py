"Attempts at the exercises of 10_fedreplay: wrong ones that `check` must catch, right ones done another way."
import torch


def break_even__wrong_labels_travel_free(features, width, parameters, rounds, clients):
    return min(1.0, rounds * 4 * parameters / (features * 4 * width))


def break_even__wrong_heads_both_ways(features, width, parameters, rounds, clients):
    return min(1.0, 2 * rounds * 4 * parameters / (features * (4 * width + 8)))


def break_even__wrong_above_everything(features, width, parameters, rounds, clients):
    return rounds * 4 * parameters / (features * (4 * width + 8))


def break_even__wrong_pool_to_one_client(features, width, parameters, rounds, clients):
    return min(1.0, clients * rounds * 4 * parameters / (features * (4 * width + 8)))


def break_even__wrong_whole_vectors(features, width, parameters, rounds, clients):
    return min(features, rounds * 4 * parameters // (4 * width + 8)) / features


def break_even__right_both_sides_for_all(features, width, parameters, rounds, clients):
    heads, everything = clients * rounds * parameters * 4, clients * features * (width * 4 + 8)
    return 1.0 if heads >= everything else heads / everything


def quota__wrong_in_proportion(counts, total): return [min(n, round(total * n / sum(counts))) for n in counts]


def quota__wrong_same_for_all(counts, total): return [min(n, total // len(counts)) for n in counts]


def quota__wrong_more_than_it_has(counts, total):
    return [total // len(counts) + (c < total % len(counts)) for c in range(len(counts))]


def quota__wrong_remainder_to_the_largest(counts, total):
    level = max(l for l in range(max(counts) + 1) if sum(min(n, l) for n in counts) <= total)
    given = [min(n, level) for n in counts]
    for c in sorted(range(len(counts)), key=lambda c: -counts[c]):
        if given[c] < counts[c] and sum(given) < total: given[c] += 1
    return given


def quota__wrong_shared_out_twice_only(counts, total):
    given = [min(n, total // len(counts)) for n in counts]
    for _ in range(2):
        wanting = [c for c, n in enumerate(counts) if given[c] < n]
        left = total - sum(given)
        for c in wanting: given[c] = min(counts[c], given[c] + left // len(wanting))
    return given


def quota__right_a_common_level(counts, total):
    total = min(total, sum(counts))
    level = max(l for l in range(max(counts) + 1) if sum(min(n, l) for n in counts) <= total)
    given = [min(n, level) for n in counts]
    wanting = [c for c, n in enumerate(counts) if n > level]
    for c in wanting[:total - sum(given)]: given[c] += 1
    return given


def masked_gradient__wrong_weighs_by_count(gradient, counts): return gradient * counts[:, None]


def masked_gradient__wrong_leaves_out_single_pictures(gradient, counts):
    return gradient * (counts > 1)[:, None]


def masked_gradient__wrong_foreign_rows_only(gradient, counts): return gradient * (counts == 0)[:, None]


def masked_gradient__wrong_columns(gradient, counts):
    return gradient * (counts > 0) if gradient.shape[1] == len(counts) else gradient * (counts > 0)[:, None]


def masked_gradient__wrong_in_place(gradient, counts):
    gradient[counts == 0] = 0
    return gradient


def masked_gradient__wrong_drops_the_rows(gradient, counts): return gradient[counts > 0]


def masked_gradient__right_where(gradient, counts): return torch.where(counts.bool()[:, None], gradient, 0.0)


def masked_gradient__right_diagonal(gradient, counts): return torch.diag((counts > 0).float()) @ gradient


def _unit(rows): return rows / rows.norm(dim=1, keepdim=True)


def centred_rows__wrong_scaled_first(prototypes, h, length): return length * _unit(prototypes) - h.mean(0)


def centred_rows__wrong_mean_of_the_prototypes(prototypes, h, length):
    return length * _unit(prototypes - prototypes.mean(0))


def centred_rows__wrong_one_number_for_all(prototypes, h, length):
    return length * _unit(prototypes - h.mean())


def centred_rows__wrong_mean_direction(prototypes, h, length):
    return length * _unit(prototypes - _unit(h).mean(0))


def centred_rows__wrong_not_centred(prototypes, h, length): return length * _unit(prototypes)


def centred_rows__wrong_unit_length(prototypes, h, length): return _unit(prototypes - h.mean(0))


def centred_rows__right_row_by_row(prototypes, h, length):
    middle = h.sum(0) / len(h)
    apart = [row - middle for row in prototypes]
    return torch.stack([row * (length / row.square().sum().sqrt()) for row in apart])
