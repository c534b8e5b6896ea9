"""Leverage: masks, scores, who is drawn and what a buffer keeps, against scipy and numpy."""
import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings, strategies as st

from fedbook.methods.exemplars import herding
from fedbook.engine.errors import UserError
from fedbook.methods.leverage import (BlockDiagonal, LeverageScoreCalculator, ReplayBuffer, class_quota,
                                      draw_samples, fair_shares, leverage_scores, mask, printed_scores,
                                      random_orthogonal, repo_local, sampling_probabilities, uniform,
                                      unmask_rows, whitening)


def seeded(seed=0): return torch.Generator().manual_seed(seed)

def normal(*shape, seed=0): return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)

def conditioned(n, d, condition, seed=0):
    "(n, d) with singular values from 1 down to 1 / condition, in directions of no special kind."
    u = torch.linalg.qr(normal(n, d, seed=seed)).Q
    return (u * torch.logspace(0, -np.log10(condition), d, dtype=torch.float64)
            @ random_orthogonal(d, seeded(seed + 1)))

def reference(x, cut=1e-6):
    u, s, _ = scipy.linalg.svd(np.asarray(x, dtype=np.float64), full_matrices=False)
    return torch.from_numpy((u[:, s > cut * s[0]] ** 2).sum(1))

def close(a, b, tol=1e-8): return torch.allclose(a, b, rtol=0, atol=tol)

def clients(sizes=(30, 0, 50, 7), d=6, block=None):
    "Features of each client, their masks, and Q."
    x = [normal(n, d, seed=n) * (1 + torch.arange(n)[:, None] % 5) for n in sizes]
    return x, [random_orthogonal(n, seeded(n), block) for n in sizes], random_orthogonal(d, seeded(99))

# ---- masks

@settings(deadline=None, max_examples=40)
@given(n=st.integers(0, 40), block=st.one_of(st.none(), st.integers(1, 12)), seed=st.integers(0, 99))
def test_random_orthogonal_is_orthogonal(n, block, seed):
    p = random_orthogonal(n, seeded(seed), block)
    assert p.shape == (n, n)
    dense = p.dense() if block else p
    assert n == 0 or close(dense @ dense.T, torch.eye(n, dtype=torch.float64), 1e-12)
    if block:
        sizes = [len(b) for b in p.blocks]
        assert max(sizes) <= block and max(sizes) - min(sizes) <= 1

def test_random_orthogonal_is_haar():
    """Mean 0, variance 1/n and fourth moment 3/(n(n+2)) of each entry; without the sign fix the diagonal's
    mean would not be 0."""
    q = torch.stack([random_orthogonal(3, g) for g in [seeded()] for _ in range(4000)])
    assert q.mean(0).abs().max() < 0.04
    assert (q.square().mean(0) - 1 / 3).abs().max() < 0.03
    assert (q.pow(4).mean(0) - 3 / 15).abs().max() < 0.03
    assert torch.linalg.det(q).mean().abs() < 0.06

def test_random_orthogonal_repeats_with_its_generator_and_leaves_the_global_one():
    before = torch.get_rng_state()
    assert torch.equal(random_orthogonal(7, seeded(3)), random_orthogonal(7, seeded(3)))
    assert torch.equal(before, torch.get_rng_state())

def test_block_mask_is_small():
    p = random_orthogonal(20000, seeded(), block=50)
    assert sum(b.numel() for b in p.blocks) == 20000 * 50
    x = normal(20000, 3)
    assert close(unmask_rows(p @ x, p), x)

@pytest.mark.parametrize("block", [None, 4])
def test_mask_is_P_X_Q_and_comes_undone(block):
    x, p, q = normal(11, 5), random_orthogonal(11, seeded(1), block), random_orthogonal(5, seeded(2), block)
    dense = [m.dense() if isinstance(m, BlockDiagonal) else m for m in (p, q)]
    assert close(mask(x, p, q), dense[0] @ x @ dense[1], 1e-12)
    assert close(unmask_rows(mask(x, p, q), p), x @ dense[1], 1e-12)
    assert mask(x.float(), p, q).dtype == torch.float64

def test_masks_of_the_wrong_size():
    x, p, q = normal(11, 5), random_orthogonal(11, seeded()), random_orthogonal(5, seeded())
    for wrong in (lambda: mask(x, q, q), lambda: mask(x, p, p), lambda: unmask_rows(x, q),
                  lambda: mask(x, random_orthogonal(10, seeded(), 3), q),
                  lambda: random_orthogonal(-1, seeded()), lambda: random_orthogonal(3, seeded(), block=0),
                  lambda: mask(x[0], p, q)):
        with pytest.raises(UserError): wrong()

# ---- leverage

@pytest.mark.parametrize("shape", [(50, 8), (8, 8), (5, 8), (9, 8), (1, 1), (3000, 20)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", ["auto", "qr"])
def test_scores_match_scipy(shape, dtype, method):
    x = normal(*shape).to(dtype)
    tau = leverage_scores(x, method)
    assert tau.dtype == torch.float64 and close(tau, reference(x))
    assert abs(tau.sum().item() - min(shape)) < 1e-8 and tau.min() >= 0 and tau.max() <= 1

def test_scores_match_numpy_projector():
    x = normal(400, 7).numpy()
    assert close(leverage_scores(torch.from_numpy(x)),
                 torch.from_numpy(np.diag(x @ np.linalg.pinv(x)).copy()))

def test_chunks_of_rows_make_no_difference():
    x = normal(30000, 100)
    assert close(leverage_scores(x), reference(x)) and close(leverage_scores(x, "qr"), reference(x))

@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 60), d=st.integers(1, 10), rank=st.integers(0, 10),
       scale=st.sampled_from([1e-280, 1e-200, 1e-5, 1.0, 1e6, 1e200, 1e280]), seed=st.integers(0, 99))
def test_scores_sum_to_the_rank(n, d, rank, scale, seed):
    x = scale * normal(n, rank, seed=seed) @ normal(rank, d, seed=seed + 1)
    tau, w = leverage_scores(x), whitening([x])[0]
    assert abs(tau.sum().item() - w.shape[1]) < 1e-6 and w.shape[1] <= min(n, d, rank)
    assert tau.shape == (n,) and tau.min() >= 0 and tau.max() <= 1

@pytest.mark.parametrize("condition", [1, 10, 1e3, 1e4])
def test_relative_error_up_to_condition_1e4(condition):
    x = conditioned(3000, 40, condition)
    wanted = reference(x)
    for method in ("auto", "qr"):
        assert ((leverage_scores(x, method) - wanted).abs() / wanted).max() < 1e-6

@pytest.mark.parametrize("condition, how",
                         [(1e3, "gram"), (2e4, "gram"), (5e4, "qr"), (1e5, "qr"), (9e5, "qr"), (1e7, "qr"),
                          (1e12, "qr")])
def test_the_switch(condition, how):
    x = conditioned(3000, 40, condition)
    wanted = reference(x)
    assert whitening([x])[1] == how
    assert ((leverage_scores(x) - wanted).abs() / wanted).max() < 1e-6

def test_a_factorisation_that_fails_falls_back(monkeypatch):
    def fails(_): raise torch.linalg.LinAlgError("no convergence")
    monkeypatch.setattr(torch.linalg, "eigh", fails)
    x = normal(300, 5)
    assert whitening([x])[1] == "qr" and close(leverage_scores(x), reference(x))

def test_rank_deficient_data_stay_on_the_fast_path():
    x = normal(3000, 40)
    x[:, 5], x[:, 6], x[:, 7] = 0, x[:, 8], x[:, 9] - x[:, 10]
    w, how = whitening([x])
    assert w.shape == (40, 37) and how == "gram" and close(leverage_scores(x), reference(x))

def test_zeros_and_nothing():
    assert torch.equal(leverage_scores(torch.zeros(9, 3)), torch.zeros(9, dtype=torch.float64))
    assert leverage_scores(torch.zeros(0, 3)).shape == (0,)
    assert leverage_scores(torch.zeros(4, 0)).tolist() == [0] * 4

def test_printed_scores_are_all_one():
    x = normal(60, 8)
    assert close(printed_scores(x), torch.ones(60, dtype=torch.float64)) and leverage_scores(x).std() > 0.01

@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 999), n=st.integers(6, 80))
def test_scores_do_not_change_under_X_A(seed, n):
    x, a = normal(n, 6, seed=seed), conditioned(6, 6, 50, seed=seed + 1)
    assert close(leverage_scores(x @ a), leverage_scores(x))

def test_a_row_unlike_all_others_scores_one_and_copies_share():
    x = normal(50, 6)
    x[:, 5] = 0
    x[7] = torch.tensor([0., 0, 0, 0, 0, 3])
    tau = leverage_scores(x)
    assert abs(tau[7].item() - 1) < 1e-12 and tau.argmax() == 7
    for c in (2, 5): assert close(leverage_scores(torch.cat([x, x[7].expand(c - 1, 6)]))[7], tau[7] / c)

def test_scores_of_bad_input():
    x = normal(20, 3)
    x[4, 1] = float("nan")
    for wrong in (x, normal(5), torch.ones(3, 3, dtype=torch.long), [[1.0]],
                  torch.full((4, 2), float("inf"))):
        with pytest.raises(UserError): leverage_scores(wrong)
    assert "nan" in str(pytest.raises(UserError, leverage_scores, x).value)
    with pytest.raises(UserError): leverage_scores(normal(5, 2), method="svd")

# ---- the distributed case

@pytest.mark.parametrize("block", [None, 5])
@pytest.mark.parametrize("method", ["auto", "qr"])
def test_demasked_equals_unmasked(block, method):
    x, ps, q = clients(block=block)
    calculator = LeverageScoreCalculator(method)
    u = calculator.blocks([mask(a, p, q) for a, p in zip(x, ps)])
    stacked = torch.cat(u)
    assert [len(each) for each in u] == [30, 0, 50, 7]
    assert close(stacked.T @ stacked, torch.eye(6, dtype=torch.float64))
    scores = [calculator.scores(each, p) for each, p in zip(u, ps)]
    assert close(torch.cat(scores), reference(torch.cat(x)))
    if block is None: assert calculator.used == ("gram" if method == "auto" else "qr")

def test_without_demasking_the_sums_per_client_are_right_and_the_entries_are_not():
    x, ps, q = clients((200, 300))
    u = LeverageScoreCalculator().blocks([mask(a, p, q) for a, p in zip(x, ps)])
    for scrambled, wanted in zip(u, reference(torch.cat(x)).split([200, 300])):
        scrambled = scrambled.square().sum(1)
        assert abs(scrambled.sum() - wanted.sum()) < 1e-8
        assert not close(scrambled, wanted, 1e-2) and abs(np.corrcoef(scrambled, wanted)[0, 1]) < 0.3

def test_ill_conditioned_and_deficient_clients():
    x = conditioned(400, 10, 1e5)
    x = torch.cat([x, x[:, :3]], 1)
    calculator, q = LeverageScoreCalculator(), random_orthogonal(13, seeded())
    parts, ps = x.split([100, 300]), [random_orthogonal(n, seeded(n)) for n in (100, 300)]
    u = calculator.blocks([mask(a, p, q) for a, p in zip(parts, ps)])
    assert calculator.used == "qr" and u[0].shape == (100, 10)
    assert close(torch.cat([calculator.scores(a, p) for a, p in zip(u, ps)]), reference(x))

def test_only_empty_clients_and_bad_blocks():
    calculator = LeverageScoreCalculator()
    assert [tuple(u.shape) for u in calculator.blocks([torch.zeros(0, 4)] * 2)] == [(0, 0)] * 2
    for wrong in ([], [normal(3, 2), normal(3, 4)], [normal(3)]):
        with pytest.raises(UserError): calculator.blocks(wrong)
    with pytest.raises(UserError): calculator.scores(normal(4, 2), torch.eye(5))

# ---- who is drawn

def weights():
    return [torch.tensor([0.2, 0.0, 0.4]), torch.empty(0), torch.tensor([0.1]),
            torch.rand(40, generator=seeded())]

@pytest.mark.parametrize("norm", ["global", "per_client"])
def test_probabilities_sum_to_one(norm):
    p = sampling_probabilities(weights(), norm)
    assert [len(each) for each in p] == [3, 0, 1, 40]
    assert abs(sum(each.sum().item() for each in p) - 1) < 1e-12
    masses = [p[k].sum().item() for k in (0, 2, 3)]
    wanted = ([1 / 3] * 3 if norm == "per_client"
              else [weights()[k].sum().item() / torch.cat(weights()).sum().item() for k in (0, 2, 3)])
    assert np.allclose(masses, wanted, atol=1e-6)

def test_all_zero_scores_are_uniform():
    zero = [torch.zeros(2), torch.zeros(0), torch.zeros(6)]
    assert close(torch.cat(sampling_probabilities(zero)), torch.full((8,), 1 / 8, dtype=torch.float64))
    assert ([each.tolist() for each in sampling_probabilities(zero, "per_client")]
            == [[1 / 4] * 2, [], [1 / 12] * 6])

def test_probabilities_of_bad_scores():
    for wrong in ([torch.tensor([-1.0])], [torch.tensor([float("nan")])], [], [torch.empty(0)],
                  [torch.ones(2, 2)], [[0.5]]):
        with pytest.raises(UserError): sampling_probabilities(wrong)
    with pytest.raises(UserError): sampling_probabilities(weights(), "local")

sizes_lists = st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(sum)

@settings(deadline=None, max_examples=80)
@given(sizes=sizes_lists, share=st.floats(0, 1), replace=st.booleans(), seed=st.integers(0, 99))
def test_exactly_m_are_drawn(sizes, share, replace, seed):
    m = round(share * sum(sizes)) * (3 if replace else 1)
    for picks in (uniform(sizes, m, replace, seeded(seed)),
                  draw_samples(sampling_probabilities([torch.rand(n, generator=seeded(seed)) + 0.01
                                                       for n in sizes]), m, replace, seeded(seed))):
        assert len(picks) == len(sizes) and sum(map(len, picks)) == m
        for part, n in zip(picks, sizes):
            assert part.dtype == torch.long and all(0 <= i < n for i in part.tolist())
            assert replace or len(set(part.tolist())) == len(part)

def test_zero_probability_never_comes_and_enough_must_be_positive():
    p = weights()
    assert not any(1 in draw_samples(p, 43, False, seeded(s))[0]
                   or 1 in draw_samples(p, 43, True, seeded(s))[0] for s in range(30))
    assert draw_samples(p, 43, False, seeded())[0].tolist() == [0, 2]
    for wrong in (lambda: draw_samples(p, 44, False, seeded()), lambda: draw_samples(p, -1, True, seeded()),
                  lambda: draw_samples(p, 2.5, True, seeded()),
                  lambda: draw_samples([torch.zeros(3)], 0, True, seeded()),
                  lambda: uniform([2, 3], 6, False, seeded())):
        with pytest.raises(UserError): wrong()

def test_expected_number_per_client():
    p = sampling_probabilities(weights())
    drawn = np.mean([[len(part) for part in draw_samples(p, 30, True, g)] for g in [seeded()]
                     for _ in range(600)], axis=0)
    assert np.allclose(drawn, [30 * each.sum().item() for each in p], atol=0.3)

def test_draws_are_proportional():
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    picks = draw_samples([p[:1], p[1:]], 20000, True, seeded())
    counts = torch.cat([picks[0].bincount(minlength=1), picks[1].bincount(minlength=3)])
    assert (counts / 20000 - p).abs().max() < 0.015

def test_indices_are_the_clients_own():
    "Round trip: a sample that is certain to be drawn is found at its place in its own client."
    p = [torch.zeros(4), torch.zeros(0), torch.zeros(5)]
    p[2][3] = 1
    assert [part.tolist() for part in draw_samples(p, 2, True, seeded())] == [[], [], [3, 3]]

def test_draws_repeat_with_their_generator_and_leave_the_global_one():
    before = torch.get_rng_state()
    a, b = (draw_samples(weights(), 20, False, seeded(5)) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(a, b)) and torch.equal(before, torch.get_rng_state())

@settings(deadline=None, max_examples=80)
@given(sizes=sizes_lists, classes=st.integers(1, 5), share=st.floats(0, 1), seed=st.integers(0, 99),
       zeros=st.booleans())
def test_class_quota_is_balanced(sizes, classes, share, seed, zeros):
    labels = list(torch.randint(classes, (sum(sizes),), generator=seeded(seed)).split(sizes))
    scores = [torch.rand(n, generator=seeded(seed)) * (not zeros or torch.arange(n) % 2) for n in sizes]
    m = round(share * sum(sizes))
    picks = class_quota(scores, labels, m, seeded(seed))
    assert sum(map(len, picks)) == m and all(len(set(p.tolist())) == len(p) for p in picks)
    got = torch.cat([y[p] for y, p in zip(labels, picks)]).bincount(minlength=classes)
    have = torch.cat(labels).bincount(minlength=classes)
    open_ = got[got < have]
    assert not len(open_) or (got.max() - open_.min() <= 1)

def test_class_quota_redistributes_and_prefers_leverage():
    labels = [torch.tensor([7] * 20 + [3] * 2), torch.tensor([9] * 20)]
    scores = [torch.tensor([1.0] * 5 + [0.0] * 15 + [0.0] * 2), torch.rand(20, generator=seeded())]
    picks = class_quota(scores, labels, 12, seeded())
    assert picks[0].tolist() == [0, 1, 2, 3, 4, 20, 21] and len(picks[1]) == 5
    assert sum(map(len, class_quota(scores, labels, 42, seeded()))) == 42

def test_fair_shares():
    assert fair_shares([10, 10, 10], 6, seeded()) == [2, 2, 2]
    assert sorted(fair_shares([10, 10, 10], 5, seeded())) == [1, 2, 2]
    assert fair_shares([2, 10, 10], 8, seeded()) == [2, 3, 3]
    assert fair_shares([1, 0, 9], 10, seeded()) == [1, 0, 9]
    assert len({tuple(fair_shares([9, 9, 9], 1, seeded(s))) for s in range(20)}) == 3

def test_class_quota_of_bad_input():
    scores, labels = [torch.ones(3), torch.ones(2)], [torch.zeros(3).long(), torch.zeros(2).long()]
    for wrong in (lambda: class_quota(scores, labels, 6, seeded()),
                  lambda: class_quota(scores, labels[:1], 1, seeded()),
                  lambda: class_quota(scores, labels[::-1], 1, seeded()),
                  lambda: class_quota(scores, scores, 1, seeded())):
        with pytest.raises(UserError): wrong()

@pytest.mark.parametrize("m", [0, 1, 7, 100])
def test_repo_local_draws_equal_numbers(m):
    x, ps, q = clients()
    counts = [len(part) for part in repo_local([mask(a, p, q) for a, p in zip(x, ps)], m, seeded())]
    assert sum(counts) == m and counts[1] == 0
    assert max(counts[k] for k in (0, 2, 3)) - min(counts[k] for k in (0, 2, 3)) <= 1

def test_repo_local_is_nearly_uniform():
    """The published protocol's probabilities: spread far below the true scores', exactly uniform with no more
    samples than features."""
    x = normal(400, 8) * torch.linspace(0.1, 3, 400, dtype=torch.float64)[:, None]
    spread = lambda tau: (tau.std() / tau.mean()).item()
    masked = mask(x, random_orthogonal(400, seeded()), random_orthogonal(8, seeded(1)))
    assert spread(leverage_scores(masked)) < 0.6 * spread(leverage_scores(x))
    assert close(leverage_scores(masked[:8]), torch.ones(8, dtype=torch.float64))

def test_a_row_unlike_all_others_is_drawn_most_often():
    x = normal(50, 6)
    x[:, 5] = 0
    x[7] = torch.tensor([0., 0, 0, 0, 0, 3])
    p = torch.cat(sampling_probabilities(list(leverage_scores(x).split([20, 30]))))
    assert p.argmax() == 7 and abs(p[7].item() - 1 / 6) < 1e-9


# ---- the buffer

def coded(y, first=0):
    "Pictures (n, 1, 1, 1) whose only pixel is their number, with labels `y`."
    return torch.arange(first, first + len(y), dtype=torch.float32).reshape(-1, 1, 1, 1), torch.tensor(y)

def numbers(x): return x.flatten().int().tolist()

def test_a_buffer_without_capacity_only_grows():
    buffer = ReplayBuffer()
    assert len(buffer) == 0 and buffer.x is buffer.y is None
    for first in (0, 5, 10): buffer.add(*coded([3, 3, 7, 3, 7], first))
    assert numbers(buffer.x) == list(range(15)) and buffer.y.tolist() == [3, 3, 7, 3, 7] * 3
    assert len(buffer) == 15

def test_a_buffer_keeps_pictures_that_come_twice():
    buffer = ReplayBuffer()
    x, y = coded([1, 2])
    buffer.add(x[[0, 0, 1]], y[[0, 0, 1]])
    assert numbers(buffer.x) == [0, 0, 1]

def test_nothing_added_is_nothing_kept():
    buffer = ReplayBuffer(3)
    buffer.add(*(t[:0] for t in coded([1])))
    assert len(buffer) == 0
    buffer.add(*coded([1, 2]))
    assert len(buffer) == 2

@pytest.mark.parametrize("policy", ["class_balanced", "herding", "append"])
@pytest.mark.parametrize("capacity", [1, 4, 7, 12, 30])
def test_capacity_is_never_exceeded(policy, capacity):
    buffer, held = ReplayBuffer(capacity, policy), 0
    for first, y in ((0, [5] * 9), (9, [2, 8] * 5), (19, [1])):
        buffer.add(*coded(y, first), lambda x: x.flatten(1))
        held = min(capacity, held + len(y))
        assert len(buffer) == len(buffer.x) == held and len(set(numbers(buffer.x))) == held
        assert all((n < 9 and c == 5) or (9 <= n < 19 and c == (2, 8)[(n - 9) % 2]) or (n == 19 and c == 1)
                   for n, c in zip(numbers(buffer.x), buffer.y.tolist()))

@pytest.mark.parametrize("policy", ["class_balanced", "herding"])
def test_classes_in_a_full_buffer_differ_by_at_most_one(policy):
    buffer = ReplayBuffer(11, policy)
    for first, y in ((0, [5] * 9 + [6] * 20), (29, [2] * 8), (37, [4, 3] * 6)):
        buffer.add(*coded(y, first), lambda x: x.flatten(1))
        counts = buffer.y.unique(return_counts=True)[1]
        assert len(buffer) == 11 and counts.max() - counts.min() <= 1

def test_a_class_with_few_pictures_leaves_its_room_to_others():
    buffer = ReplayBuffer(9)
    buffer.add(*coded([5] * 2 + [6] * 20 + [7] * 20))
    assert buffer.y.unique(return_counts=True)[1].tolist() in ([2, 3, 4], [2, 4, 3])

def test_class_balanced_keeps_those_that_came_first():
    buffer = ReplayBuffer(4)
    buffer.add(*coded([5, 6, 5, 6, 5, 6]))
    buffer.add(*coded([6, 5], 6))
    assert numbers(buffer.x) == [0, 1, 2, 3]

def test_append_takes_no_more_once_full():
    buffer = ReplayBuffer(4, "append")
    for first in (0, 3, 6): buffer.add(*coded([5, 5, 6] if first == 0 else [9, 9, 9], first))
    assert numbers(buffer.x) == [0, 1, 2, 3] and buffer.y.tolist() == [5, 5, 6, 9]

def test_herding_is_icarls_class_by_class():
    y = torch.tensor([5, 6] * 12)
    x = torch.randn(24, 1, 2, 2, generator=seeded())
    buffer = ReplayBuffer(10, "herding")
    buffer.add(x, y, lambda x: x.flatten(1))
    for c in (5, 6):
        assert ({tuple(row) for row in buffer.x[buffer.y == c].flatten(1).tolist()}
                == {tuple(row) for row in x[y == c][herding(x[y == c].flatten(1), 5)].flatten(1).tolist()})
    first = ReplayBuffer(10)
    first.add(x, y)
    assert not torch.equal(first.x, buffer.x)

@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, "4"])
def test_buffer_refuses_a_bad_capacity(capacity):
    with pytest.raises(UserError, match="capacity="): ReplayBuffer(capacity)

@pytest.mark.parametrize("policy", ["class_balanced", "herding"])
def test_copies_go_first_where_room_is_short(policy):
    x, y = coded([1, 1, 2, 2])
    buffer = ReplayBuffer(4, policy)
    buffer.add(x[[0, 0, 0, 1, 2, 3]], y[[0, 0, 0, 1, 2, 3]], lambda x: x.flatten(1))
    assert buffer.x.flatten().tolist() == x.flatten().tolist() and buffer.y.tolist() == [1, 1, 2, 2]

def test_buffer_refuses_a_bad_policy_and_herding_without_features():
    with pytest.raises(UserError, match="policy='newest'.*herding"): ReplayBuffer(3, "newest")
    with pytest.raises(UserError, match="features=None"): ReplayBuffer(2, "herding").add(*coded([1, 1, 2]))
