"Attempts at the exercises of datasets/encoders: wrong ones that `check` must catch, right ones done another way."
import torch
from torch.nn import functional as F


def nearest_angle__wrong_by_distance(features, means): return torch.cdist(features, means).argmin(1).tolist()


def nearest_angle__wrong_means_keep_their_length(features, means):
    return (F.normalize(features, dim=1) @ means.T).argmax(1).tolist()


def nearest_angle__wrong_either_direction(features, means):
    return (features @ F.normalize(means, dim=1).T).abs().argmax(1).tolist()


def nearest_angle__wrong_columns_of_unit_length(features, means):
    return (features @ F.normalize(means, dim=0).T).argmax(1).tolist()


def nearest_angle__wrong_furthest(features, means):
    return (features @ F.normalize(means, dim=1).T).argmin(1).tolist()


def nearest_angle__wrong_picture_of_each_mean(features, means):
    return (features @ F.normalize(means, dim=1).T).argmax(0).tolist()


def nearest_angle__right_one_by_one(features, means):
    cosines = [[F.cosine_similarity(row, mean, dim=0).item() for mean in means] for row in features]
    return [one.index(max(one)) for one in cosines]


def nearest_angle__right_distance_of_unit_vectors(features, means):
    return torch.cdist(F.normalize(features), F.normalize(means)).argmin(1).tolist()


def hypercolumn__wrong_largest_cell(maps): return torch.cat([m.amax((2, 3)) for m in maps], 1)


def hypercolumn__wrong_sum(maps): return torch.cat([m.sum((2, 3)) for m in maps], 1)


def hypercolumn__wrong_all_cells(maps): return torch.cat([m.flatten(1) for m in maps], 1)


def hypercolumn__wrong_mean_over_pictures_too(maps): return torch.cat([m.mean((0, 2, 3)) for m in maps])[None]


def hypercolumn__wrong_coarsest_first(maps): return torch.cat([m.mean((2, 3)) for m in maps[::-1]], 1)


def hypercolumn__wrong_square_maps_only(maps):
    return torch.cat([m.sum((2, 3)) / m.shape[2] ** 2 for m in maps], 1)


def hypercolumn__right_pooling(maps):
    return torch.hstack([F.adaptive_avg_pool2d(m, 1).flatten(1) for m in maps])


def hypercolumn__right_einsum(maps):
    return torch.cat([torch.einsum("bchw->bc", m) / (m.shape[2] * m.shape[3]) for m in maps], -1)


def break_even__wrong_as_many_bytes(n_params, dim, rounds): return -(-n_params * rounds // dim)


def break_even__wrong_not_more_yet(n_params, dim, rounds): return n_params * rounds // dim


def break_even__wrong_once_a_round(n_params, dim, rounds): return rounds * (n_params // dim) + 1


def break_even__wrong_both_ways(n_params, dim, rounds): return 2 * n_params * rounds // dim + 1


def break_even__wrong_a_fraction(n_params, dim, rounds): return n_params * rounds / dim


def break_even__right_in_bytes(n_params, dim, rounds):
    weights, price = 4 * n_params * rounds, 4 * dim
    whole, rest = divmod(weights, price)
    return whole + 1 if whole * price + rest == weights else None
