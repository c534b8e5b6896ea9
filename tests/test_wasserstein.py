"""FedGTEA: Gaussians of tasks, squared 2-Wasserstein distances and L_W against scipy, POT and what must hold
for any of them."""
import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

import fedbook.methods.wasserstein as wasserstein
from fedbook.engine.errors import UserError
from fedbook.methods.wasserstein import (Gaussian, low_rank_factors, pairwise_wasserstein2,
                                         pairwise_wasserstein2_diagonal, pairwise_wasserstein2_factors,
                                         wasserstein2, wasserstein_loss)

seeds = st.integers(0, 2**31)
dims = st.integers(1, 7)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def covariances(tasks, d, seed=0, samples=None):
    x = normal(tasks, samples or 2 * d + 2, d, seed=seed)
    return x.mT @ x / x.shape[1]


def by_scipy(m1, s1, m2, s2):
    m1, s1, m2, s2 = (np.asarray(x) for x in (m1, s1, m2, s2))
    root = scipy.linalg.sqrtm(s1)
    return ((m1 - m2) ** 2).sum() + np.trace(s1 + s2 - 2 * np.real(scipy.linalg.sqrtm(root @ s2 @ root)))


@pytest.mark.parametrize("d", [1, 2, 8, 16, 64])
def test_w2_is_scipys(d):
    m, s = normal(2, d), covariances(2, d)
    wanted = by_scipy(m[0], s[0], m[1], s[1])
    assert wasserstein2(m[0], s[0], m[1], s[1]).item() == pytest.approx(wanted, rel=1e-8)
    assert pairwise_wasserstein2(m, s)[1, 0].item() == pytest.approx(wanted, rel=1e-8)


def test_all_pairs_are_pots():
    ot = pytest.importorskip("ot")
    m, s = normal(4, 6), covariances(4, 6)
    wanted = [[ot.gaussian.bures_wasserstein_distance(m[i].numpy(), m[j].numpy(), s[i].numpy(),
                                                      s[j].numpy()) ** 2 if i != j else 0. for j in range(4)]
              for i in range(4)]
    torch.testing.assert_close(pairwise_wasserstein2(m, s), torch.tensor(wanted, dtype=torch.float64),
                               rtol=1e-9, atol=0)


@given(dims, seeds)
@settings(max_examples=25, deadline=None)
def test_w2_is_symmetric_zero_on_the_diagonal_and_a_metric(d, seed):
    w = pairwise_wasserstein2(normal(4, d, seed=seed), covariances(4, d, seed, samples=3))
    assert torch.equal(w, w.mT) and torch.equal(w.diagonal(), torch.zeros(4, dtype=w.dtype))
    assert (w >= 0).all()
    far = w.sqrt()
    for i, j, k in itertools.permutations(range(4), 3): assert far[i, k] <= far[i, j] + far[j, k] + 1e-6


@given(dims, seeds)
@settings(max_examples=25, deadline=None)
def test_equal_covariances_leave_the_means(d, seed):
    m, s = normal(2, d, seed=seed), covariances(1, d, seed)[0]
    assert (wasserstein2(m[0], s, m[1], s).item()
            == pytest.approx((m[0] - m[1]).square().sum().item(), rel=1e-9))
    assert 0 <= wasserstein2(m[0], s, m[0], s).item() <= 1e-12 * s.trace().item()


@given(dims, seeds)
@settings(max_examples=25, deadline=None)
def test_diagonal_formula_both_ways(d, seed):
    m, v = normal(3, d, seed=seed), normal(3, d, seed=seed + 1).square()
    roots = v.sqrt()
    wanted = (m[0] - m[1]).square().sum() + (roots[0] - roots[1]).square().sum()
    for w in (pairwise_wasserstein2_diagonal(m, v), pairwise_wasserstein2(m, torch.diag_embed(v))):
        assert w[0, 1].item() == pytest.approx(wanted.item(), rel=1e-9)


def test_one_dimension_by_hand():
    m, s = torch.tensor([[1.], [4.]]), torch.tensor([[[4.]], [[25.]]])
    assert pairwise_wasserstein2(m, s).tolist() == [[0, 18], [18, 0]]


@given(dims, seeds)
@settings(max_examples=25, deadline=None)
def test_rotating_and_moving_both_changes_nothing(d, seed):
    m, s = normal(3, d, seed=seed), covariances(3, d, seed)
    turn = torch.linalg.qr(normal(d, d, seed=seed + 1))[0]
    torch.testing.assert_close(pairwise_wasserstein2(m @ turn.mT + 3, turn @ s @ turn.mT),
                               pairwise_wasserstein2(m, s), rtol=1e-9, atol=1e-10)


def test_singular_covariances_to_1e8():
    d, m = 16, normal(3, 16)
    x = normal(3, 5, d, seed=1)
    small = torch.linalg.svdvals(x[0] @ x[1].mT).sum()
    wanted = (m[0] - m[1]).square().sum() + x[0].square().sum() + x[1].square().sum() - 2 * small
    s = x.mT @ x
    assert wasserstein2(m[0], s[0], m[1], s[1]).item() == pytest.approx(wanted.item(), rel=1e-8)
    zero = torch.zeros(d, d, dtype=torch.float64)
    assert (wasserstein2(m[0], zero, m[1], s[1]).item()
            == pytest.approx(((m[0] - m[1]).square().sum() + s[1].trace()).item(), rel=1e-12))
    assert wasserstein2(m[0], zero, m[0], zero).item() == 0


def test_ranges_at_a_right_angle_and_coincident_ones_have_finite_gradients():
    a, b, zero = (torch.diag(torch.tensor(v, dtype=torch.float64))
                  for v in ([1., 1, 0, 0], [0., 0, 1, 1], [0.] * 4))
    s = torch.stack([a, a, b, zero, zero, torch.eye(4, dtype=torch.float64)]).requires_grad_()
    m = torch.zeros(6, 4, dtype=torch.float64, requires_grad=True)
    w = pairwise_wasserstein2(m, s)
    assert w[0, 2].item() == pytest.approx(4) and w[0, 5].item() == pytest.approx(2) and w[3, 4].item() == 0
    w.sum().backward()
    assert s.grad.isfinite().all() and m.grad.isfinite().all()
    factors = low_rank_factors(s.detach(), 2).requires_grad_()
    pairwise_wasserstein2_factors(m, factors).sum().backward()
    assert factors.grad.isfinite().all()
    v = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    pairwise_wasserstein2_diagonal(torch.ones(3, 4), v).sum().backward()
    assert v.grad.isfinite().all()


@pytest.mark.parametrize("samples", [8, 3])
def test_gradient_of_samples_is_that_of_finite_differences(samples):
    """Fewer samples than dimensions as well: there the covariance is singular, and the distance still smooth
    in the samples."""
    x = normal(3, samples, 5).requires_grad_()
    assert gradcheck(lambda x: pairwise_wasserstein2(x.mean(1),
                                                     (x - x.mean(1, keepdim=True)).mT
                                                     @ (x - x.mean(1, keepdim=True))), x)


def test_gradients_of_every_form_are_those_of_finite_differences():
    m, s = normal(3, 4).requires_grad_(), covariances(3, 4).requires_grad_()
    assert gradcheck(pairwise_wasserstein2, (m, s))
    assert gradcheck(lambda m, s: wasserstein2(m[0], s[0], m[1], s[1]), (m, s))
    assert gradcheck(lambda m, s: pairwise_wasserstein2_factors(m, low_rank_factors(s, 2)), (m, s))
    assert gradcheck(pairwise_wasserstein2_factors, (m, normal(3, 4, 2).requires_grad_()))
    assert gradcheck(pairwise_wasserstein2_diagonal, (m, (normal(3, 4).square() + .1).requires_grad_()))
    for kind in ("inverse_sum", "sum_inverse"):
        assert gradcheck(lambda m, s: wasserstein_loss(m, s, kind), (m, s))


def test_gradient_with_equal_eigenvalues():
    s = torch.stack([torch.eye(3, dtype=torch.float64),
                     4 * torch.eye(3, dtype=torch.float64)]).requires_grad_()
    pairwise_wasserstein2(torch.zeros(2, 3, dtype=torch.float64), s)[0, 1].backward()
    torch.testing.assert_close(s.grad, torch.stack([-torch.eye(3), .5 * torch.eye(3)]).double())


@pytest.mark.parametrize("spread", [0, 3, 8])
def test_polar_factor_whatever_the_condition(spread):
    "From 1e0 to 1e8: by squares and polished, and by SVD."
    u, v = (torch.linalg.qr(normal(8, 8, seed=k))[0] for k in (1, 2))
    m = (u * torch.logspace(0, -spread, 8, dtype=torch.float64)) @ v.mT
    norm, polar = wasserstein._nuclear_norm_and_polar(m[None], torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(polar[0], u @ v.mT, rtol=0, atol=10 ** (spread - 14))
    wanted = torch.logspace(0, -spread, 8, dtype=torch.float64).sum().item()
    assert norm.item() == pytest.approx(wanted, rel=1e-12)
    assert wasserstein._nuclear_norm(m[None]).item() == pytest.approx(wanted, rel=1e-12)


def test_factors_are_exact_when_the_rank_suffices_and_best_otherwise():
    x = normal(3, 4, 9)
    s, m = x.mT @ x, normal(3, 9)
    full = low_rank_factors(s, 4)
    assert full.shape == (3, 9, 4)
    torch.testing.assert_close(full @ full.mT, s)
    torch.testing.assert_close(pairwise_wasserstein2_factors(m, full), pairwise_wasserstein2(m, s), rtol=1e-9,
                               atol=1e-9)
    less = low_rank_factors(s, 2)
    left_out = torch.linalg.eigvalsh(s)[:, :7].sum(1)
    torch.testing.assert_close((s - less @ less.mT).diagonal(dim1=1, dim2=2).sum(1), left_out)


def test_threads_change_no_bit_and_are_put_back():
    m, s, before = normal(12, 128), covariances(12, 128), torch.get_num_threads()
    answers = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            answers.append(pairwise_wasserstein2(m, s))
            assert torch.get_num_threads() == threads
    finally: torch.set_num_threads(before)
    torch.testing.assert_close(*answers, rtol=1e-13, atol=0)


def test_dtypes_follow_the_input():
    m, s = normal(3, 4), covariances(3, 4)
    single = pairwise_wasserstein2(m.float(), s.float())
    assert single.dtype == torch.float32 and pairwise_wasserstein2(m.float(), s).dtype == torch.float64
    torch.testing.assert_close(single.double(), pairwise_wasserstein2(m, s), rtol=1e-5, atol=1e-5)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), dims, seeds)
@settings(max_examples=25, deadline=None)
def test_pooling_gives_the_moments_of_all_samples(counts, d, seed):
    x = normal(sum(counts), d, seed=seed) * 3 + 1
    gaussians = [Gaussian.from_samples(part) for part in x.split(counts)]
    whole = Gaussian.from_samples(x)
    for pooled in (Gaussian.pool(gaussians), Gaussian.pool(gaussians[::-1])):
        torch.testing.assert_close(pooled.mean, whole.mean, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(pooled.cov, whole.cov, rtol=1e-12, atol=1e-12)
        assert pooled.n == whole.n == len(x)


def test_from_samples_is_the_population_covariance():
    g = Gaussian.from_samples(torch.tensor([[0., 0], [2, 4]]))
    assert g.mean.tolist() == [1, 2] and g.cov.tolist() == [[1, 2], [2, 4]] and g.n == 2
    assert g.cov.dtype == torch.float32


def test_log_prob_is_scipys_and_finite_when_singular():
    g, x = Gaussian.from_samples(normal(50, 4)), normal(6, 4, seed=1)
    wanted = scipy.stats.multivariate_normal(g.mean.numpy(), g.cov.numpy()).logpdf(x.numpy())
    np.testing.assert_allclose(g.log_prob(x, jitter=0), wanted, rtol=1e-8)
    np.testing.assert_allclose(g.log_prob(x), wanted, rtol=1e-4)
    for samples in (1, 3):
        assert Gaussian.from_samples(normal(samples, 8)).log_prob(normal(5, 8, seed=1)).isfinite().all()
    near = Gaussian.from_samples(normal(3, 8))
    assert near.log_prob(near.mean[None]) > near.log_prob(near.mean[None] + 1)


@pytest.mark.parametrize("kind", ["inverse_sum", "sum_inverse"])
def test_loss_by_hand_and_falls_when_any_pair_parts(kind):
    m, s = torch.tensor([[0.], [3.], [5.]], dtype=torch.float64), torch.ones(3, 1, 1, dtype=torch.float64)
    wanted = {"inverse_sum": 1 / (9 + 25 + 4 + .5), "sum_inverse": (1 / 9.5 + 1 / 25.5 + 1 / 4.5) / 3}[kind]
    assert wasserstein_loss(m, s, kind, eps=.5).item() == pytest.approx(wanted)
    assert wasserstein_loss(m, s, kind).item() == wasserstein_loss(m, s, kind, eps=1e-3).item()
    for k, step in ((0, -1), (2, 1)):
        moved = m.clone()
        moved[k] += step
        assert wasserstein_loss(moved, s, kind) < wasserstein_loss(m, s, kind)


@pytest.mark.parametrize("kind", ["inverse_sum", "sum_inverse"])
def test_loss_of_coincident_gaussians_is_finite_and_of_one_task_zero(kind):
    x = normal(1, 3, 5).repeat(4, 1, 1).requires_grad_()
    loss = wasserstein_loss(x.mean(1), x.mT @ x, kind)
    loss.backward()
    assert loss.item() == pytest.approx({"inverse_sum": 200, "sum_inverse": 200}[kind])
    assert x.grad.isfinite().all()
    for tasks in (0, 1):
        m = torch.ones(tasks, 5, requires_grad=True)
        loss = wasserstein_loss(m, torch.eye(5).repeat(tasks, 1, 1), kind)
        loss.backward()
        assert loss.item() == 0 and (m.grad == 0).all()


def test_inverse_sum_misses_a_coincident_pair_that_sum_inverse_sees():
    m, s = torch.tensor([[0.], [0.], [100.]], dtype=torch.float64), torch.ones(3, 1, 1, dtype=torch.float64)
    assert wasserstein_loss(m, s) < 1e-4 and wasserstein_loss(m, s, "sum_inverse") > 300


def test_loss_takes_other_distances():
    m, v = normal(3, 4), normal(3, 4).square()
    torch.testing.assert_close(wasserstein_loss(m, v, distances=pairwise_wasserstein2_diagonal),
                               wasserstein_loss(m, torch.diag_embed(v)))


@pytest.mark.parametrize("call, words", [
    (lambda: Gaussian.pool([]), "gaussians is empty"),
    (lambda: Gaussian.pool([Gaussian.from_samples(normal(3, d)) for d in (2, 3)]), r"dimensions \[2, 3\]"),
    (lambda: Gaussian(torch.zeros(2), torch.eye(2), 0), "n=0"),
    (lambda: Gaussian(torch.zeros(2), torch.eye(3), 1), "cov has shape"),
    (lambda: Gaussian(torch.zeros(2), torch.ones(2, 3), 1), "cov has shape"),
    (lambda: Gaussian.from_samples(torch.zeros(0, 2)), "at least one sample"),
    (lambda: Gaussian.from_samples(torch.zeros(2)), "x has shape"),
    (lambda: Gaussian.from_samples(torch.zeros(2, 2, dtype=torch.int64)), "floating"),
    (lambda: Gaussian.from_samples(normal(9, 2)).log_prob(torch.zeros(2, 3)), "x has shape"),
    (lambda: Gaussian(torch.zeros(2), torch.eye(2), 2.5), "n=2.5 must be a whole number"),
    (lambda: Gaussian(torch.zeros(2), -torch.eye(2), 1), "negative variance"),
    (lambda: Gaussian(torch.zeros(2), torch.tensor([[1., 2.], [2., 1.]]), 1), "larger than its two"),
    (lambda: Gaussian(torch.zeros(2), torch.tensor([[1., .5], [.1, 1.]]), 1), "not symmetric"),
    (lambda: Gaussian(torch.zeros(3), torch.tensor([[1., .9, -.9], [.9, 1., .9], [-.9, .9, 1.]]), 1).log_prob(
        torch.zeros(1, 3)), "negative eigenvalue"),
    (lambda: wasserstein2(torch.zeros(2), torch.eye(2), torch.zeros(3), torch.eye(3)), "m2 has shape"),
    (lambda: pairwise_wasserstein2(torch.zeros(2, 2), torch.ones(2, 2, 3)), "covs has shape"),
    (lambda: pairwise_wasserstein2(torch.zeros(2, 2), torch.full((2, 2, 2), math.nan)), "finite"),
    (lambda: pairwise_wasserstein2(torch.zeros(2, 2), torch.diag(torch.tensor([1., -1.])).repeat(2, 1, 1)),
     "negative eigenvalue"),
    (lambda: pairwise_wasserstein2([1], [2]), "means is a list"),
    (lambda: pairwise_wasserstein2_diagonal(torch.zeros(2, 2), -torch.ones(2, 2)), "variances go down to -1"),
    (lambda: low_rank_factors(torch.eye(3)[None], 4), "rank=4"),
    (lambda: pairwise_wasserstein2_factors(torch.zeros(2, 3), torch.ones(2, 2, 1)), "factors has shape"),
    (lambda: wasserstein_loss(torch.zeros(2, 1), torch.ones(2, 1, 1), kind="sum"), "kind='sum'"),
    (lambda: wasserstein_loss(torch.zeros(2, 1), torch.ones(2, 1, 1), eps=-1), "eps=-1")])
def test_bad_input_is_named(call, words):
    with pytest.raises(UserError, match=words): call()
