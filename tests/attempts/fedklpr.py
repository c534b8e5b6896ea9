"Attempts at the exercises of 12_fedklpr: wrong ones that `check` must catch, right ones written another way."
import math

import numpy as np


def ramp__wrong_a_share_of_the_whole(accepted, step, target):
    pruned = spared = 0.0
    for yes in accepted:
        if yes: pruned = min(target, pruned + step)
        spared += pruned
    return spared / len(accepted)


def ramp__wrong_no_target(accepted, step, target):
    left, spared = 1.0, 0.0
    for yes in accepted:
        if yes: left *= 1 - step
        spared += 1 - left
    return spared / len(accepted)


def ramp__wrong_a_step_beyond_the_target_is_left_out(accepted, step, target):
    left, spared = 1.0, 0.0
    for yes in accepted:
        if yes and left * (1 - step) >= 1 - target: left *= 1 - step
        spared += 1 - left
    return spared / len(accepted)


def ramp__wrong_sent_before_it_is_pruned(accepted, step, target):
    left, spared = 1.0, 0.0
    for yes in accepted:
        spared += 1 - left
        if yes: left = max(1 - target, left * (1 - step))
    return spared / len(accepted)


def ramp__wrong_rounds_that_wait_send_all(accepted, step, target):
    left, spared = 1.0, 0.0
    for yes in accepted:
        if yes:
            left = max(1 - target, left * (1 - step))
            spared += 1 - left
    return spared / len(accepted)


def ramp__wrong_the_sum_of_rounds(accepted, step, target):
    left, spared = 1.0, 0.0
    for yes in accepted:
        if yes: left = max(1 - target, left * (1 - step))
        spared += 1 - left
    return spared


def ramp__wrong_the_last_round_alone(accepted, step, target):
    return min(target, 1 - (1 - step) ** sum(accepted))


def ramp__wrong_down_to_the_target(accepted, step, target):
    left, sent = 1.0, 0.0
    for yes in accepted:
        if yes: left = max(target, left * (1 - step))
        sent += left
    return 1 - sent / len(accepted)


def ramp__right_by_cumulative_sums(accepted, step, target):
    return float(np.minimum(target, 1 - (1 - step) ** np.cumsum(accepted)).mean())


def ramp__right_counts_what_is_sent(accepted, step, target):
    sent = [max(1 - target, (1 - step) ** sum(accepted[:r + 1])) for r in range(len(accepted))]
    return 1 - math.fsum(sent) / len(accepted)


def _entries(i, c, gallery_ids, gallery_cams):
    return [g == i for g, d in zip(gallery_ids, gallery_cams) if not (g == i and d == c)]


def luck__wrong_ignores_cameras(query_ids, gallery_ids, query_cams, gallery_cams):
    shares = [gallery_ids.count(i) / len(gallery_ids) for i in query_ids if i in gallery_ids]
    return sum(shares) / len(shares)


def luck__wrong_leaves_out_all_of_the_own_camera(query_ids, gallery_ids, query_cams, gallery_cams):
    found = []
    for i, c in zip(query_ids, query_cams):
        counted = [g == i for g, d in zip(gallery_ids, gallery_cams) if d != c]
        if any(counted): found.append(sum(counted) / len(counted))
    return sum(found) / len(found)


def luck__wrong_counts_queries_without_a_right_entry(query_ids, gallery_ids, query_cams, gallery_cams):
    found = [_entries(i, c, gallery_ids, gallery_cams) for i, c in zip(query_ids, query_cams)]
    return sum(sum(counted) / len(counted) for counted in found) / len(found)


def luck__wrong_one_pool_for_all_queries(query_ids, gallery_ids, query_cams, gallery_cams):
    found = [_entries(i, c, gallery_ids, gallery_cams) for i, c in zip(query_ids, query_cams)]
    found = [counted for counted in found if any(counted)]
    return sum(map(sum, found)) / sum(map(len, found))


def luck__wrong_over_the_whole_gallery(query_ids, gallery_ids, query_cams, gallery_cams):
    found = [sum(_entries(i, c, gallery_ids, gallery_cams)) for i, c in zip(query_ids, query_cams)]
    found = [right / len(gallery_ids) for right in found if right]
    return sum(found) / len(found)


def luck__wrong_one_entry_of_each_person(query_ids, gallery_ids, query_cams, gallery_cams):
    found = []
    for i, c in zip(query_ids, query_cams):
        counted = {g for g, d in zip(gallery_ids, gallery_cams) if not (g == i and d == c)}
        if i in counted: found.append(1 / len(counted))
    return sum(found) / len(found)


def luck__right_with_numpy(query_ids, gallery_ids, query_cams, gallery_cams):
    same = np.equal.outer(query_ids, gallery_ids)
    counted = ~(same & np.equal.outer(query_cams, gallery_cams))
    right = (same & counted).sum(1)
    return float((right[right > 0] / counted.sum(1)[right > 0]).mean())


def luck__right_by_subtraction(query_ids, gallery_ids, query_cams, gallery_cams):
    pairs, found = list(zip(gallery_ids, gallery_cams)), []
    for query in zip(query_ids, query_cams):
        ignored = pairs.count(query)
        right = gallery_ids.count(query[0]) - ignored
        if right: found.append(right / (len(pairs) - ignored))
    return float(np.mean(found))


def _cosine(a, b): return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def _kl(m1, v1, m2, v2): return float(((v1 + (m1 - m2) ** 2) / v2 - 1 - np.log(v1 / v2)).mean() / 2)


def moved__wrong_way_round(m1, v1, m2, v2): return 1 - _cosine(m1, m2), _kl(m2, v2, m1, v1)


def moved__wrong_sum_over_the_numbers(m1, v1, m2, v2):
    return 1 - _cosine(m1, m2), len(m1) * _kl(m1, v1, m2, v2)


def moved__wrong_without_the_half(m1, v1, m2, v2): return 1 - _cosine(m1, m2), 2 * _kl(m1, v1, m2, v2)


def moved__wrong_variances_taken_for_deviations(m1, v1, m2, v2):
    return 1 - _cosine(m1, m2), _kl(m1, v1**2, m2, v2**2)


def moved__wrong_only_the_spread(m1, v1, m2, v2): return 1 - _cosine(m1, m2), _kl(m1, v1, m1, v2)


def moved__wrong_only_the_means(m1, v1, m2, v2): return 1 - _cosine(m1, m2), _kl(m1, v2, m2, v2)


def moved__wrong_the_cosine_itself(m1, v1, m2, v2): return _cosine(m1, m2), _kl(m1, v1, m2, v2)


def moved__wrong_a_cosine_without_a_sign(m1, v1, m2, v2): return 1 - abs(_cosine(m1, m2)), _kl(m1, v1, m2, v2)


def moved__wrong_a_product_without_lengths(m1, v1, m2, v2): return 1 - float(m1 @ m2), _kl(m1, v1, m2, v2)


def moved__right_by_torch(m1, v1, m2, v2):
    import torch

    m1, v1, m2, v2 = map(torch.tensor, (m1, v1, m2, v2))
    a, b = (torch.distributions.Normal(m, v.sqrt()) for m, v in ((m1, v1), (m2, v2)))
    cosine = torch.nn.functional.cosine_similarity(m1, m2, dim=0)
    return 1 - cosine.item(), torch.distributions.kl_divergence(a, b).mean().item()


def moved__right_number_by_number(m1, v1, m2, v2):
    numbers = list(zip(m1, v1, m2, v2))
    kl = [math.log(math.sqrt(d / b)) + (b + (a - c) ** 2) / (2 * d) - 0.5 for a, b, c, d in numbers]
    length = math.sqrt(sum(m1 * m1) * sum(m2 * m2))
    return 1 - sum(m1 * m2) / length, sum(kl) / len(kl)
