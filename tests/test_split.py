import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbook.answers import split as answers
from fedbook.engine.errors import UserError
from fedbook.datasets.split import (CIFAR100_SUPERCLASSES, by_class, by_group, class_stream, counts, dirichlet, iid,
                                    plot_split, shards, skew)
from fedbook.datasets.split import _cut

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
label_lists = st.lists(st.integers(0, 6), min_size=12, max_size=120)


def is_partition(parts, n):
    return all(np.all(np.diff(part) > 0) for part in parts) and np.array_equal(np.sort(np.concatenate(parts)),
                                                                               np.arange(n))


# ---- every split is a partition, and a function of the seed

@given(st.lists(st.sampled_from("abcdef"), min_size=6), st.integers(0, 99), st.data())
def test_by_group(groups, seed, data):
    clients = data.draw(st.integers(1, len(set(groups))))
    parts = by_group(groups, clients, seed)
    held = [{groups[i] for i in part} for part in parts]
    assert is_partition(parts, len(groups)) and sum(map(len, held)) == len(set(groups))
    assert max(map(len, held)) - min(map(len, held)) <= 1
    with pytest.raises(UserError, match=r"clients=7 is more than the \d groups"): by_group(groups, 7, seed)


@given(label_lists, st.integers(1, 6), st.integers(0, 99))
def test_iid(labels, clients, seed):
    parts = iid(labels, clients, seed)
    sizes = [len(part) for part in parts]
    assert len(parts) == clients and is_partition(parts, len(labels)) and max(sizes) - min(sizes) <= 1
    assert all(np.array_equal(a, b) and a.dtype == np.int64
               for a, b in zip(parts, iid(torch.tensor(labels), clients, seed)))


@given(label_lists, st.integers(1, 4), st.sampled_from([0.3, 1.0, 10.0, 1e6]), st.integers(0, 99))
def test_dirichlet(labels, clients, alpha, seed):
    parts = dirichlet(labels, clients, alpha, seed)
    assert len(parts) == clients and is_partition(parts, len(labels)) and min(map(len, parts)) >= 1
    assert all(np.array_equal(a, b) for a, b in zip(parts, dirichlet(np.array(labels), clients, alpha, seed)))


@given(label_lists, st.integers(1, 6), st.integers(1, 2), st.integers(0, 99))
def test_shards(labels, clients, per_client, seed):
    parts = shards(labels, clients, seed, per_client)
    assert len(parts) == clients and is_partition(parts, len(labels)) and min(map(len, parts)) >= per_client
    assert all(np.array_equal(a, b) for a, b in zip(parts, shards(labels, clients, seed, per_client)))


@given(label_lists, st.integers(0, 99), st.data())
def test_by_class(labels, seed, data):
    clients = data.draw(st.integers(1, len(set(labels))))
    parts = by_class(labels, clients, seed)
    held = counts(parts, labels) > 0
    assert is_partition(parts, len(labels)) and held.sum(0).max() == 1 and np.ptp(held.sum(1)) <= 1
    each = data.draw(st.integers(1, len(set(labels)) // clients))
    some = by_class(labels, clients, seed, classes_each=each)
    assert ((counts(some, labels) > 0).sum(1) == each).all()
    assert len(np.unique(np.concatenate(some))) == sum(map(len, some))


@pytest.mark.parametrize("split", [lambda s: iid(LABELS, 5, s), lambda s: dirichlet(LABELS, 5, 0.5, s),
                                   lambda s: shards(LABELS, 5, s), lambda s: by_class(LABELS, 5, s)])
def test_seeds(split):
    """Other seeds split differently, lists of integers and generators are seeds too, and the global
    generators are left alone."""
    np.random.seed(7)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    equal = lambda a, b: all(np.array_equal(p, q) for p, q in zip(a, b))
    assert equal(split(3), split(np.random.default_rng(3))) and equal(split([3, 1]), split([3, 1]))
    assert not equal(split(3), split(4)) and not equal(split([3, 1]), split([3, 2]))
    assert np.array_equal(before[0], np.random.get_state()[1])
    assert torch.equal(before[1], torch.get_rng_state())


# ---- Dirichlet

def published_loop(labels, clients, shares):
    "LANDER's loop over lists of positions, with cuts rounded where it truncates."
    held = [[] for _ in range(clients)]
    for c, row in enumerate(shares):
        mine = np.flatnonzero(labels == c)
        p = np.array([q * (len(own) < len(labels) / clients) for q, own in zip(row, held)])
        cuts = np.rint(np.cumsum(p / p.sum()) * len(mine)).astype(int)[:-1]
        held = [own + piece.tolist() for own, piece in zip(held, np.split(mine, cuts))]
    return held


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(2, 8), st.sampled_from([0.2, 1.0, 50.0]))
def test_balance_rule_is_the_published_one(seed, clients, alpha):
    rng = np.random.default_rng(seed)
    labels = np.sort(np.concatenate([np.arange(5), rng.integers(0, 5, 200)]))
    shares = rng.dirichlet([alpha] * clients, 5)
    expected = counts([np.array(part, dtype=np.int64) for part in published_loop(labels, clients, shares)],
                      labels)
    assert np.array_equal(_cut(shares, np.bincount(labels), clients), expected)


def test_a_full_client_gets_no_more():
    for seed in range(30):
        table = counts(dirichlet(LABELS, 4, 0.3, seed), LABELS)
        full = np.cumsum(table, 1)[:, :-1] >= len(LABELS) / 4
        assert not table[:, 1:][full].any()


def test_a_share_of_nearly_nothing_gives_nothing():
    "Truncated cuts would give the last client a picture of each class."
    assert _cut(np.tile([1 / 3, 1 / 3, 1 / 3, 1e-6], (2, 1)), [100, 100], 4)[-1].tolist() == [0, 0]


def test_all_shares_at_full_clients_means_draw_again():
    assert _cut(np.array([[1.0, 0.0], [1.0, 0.0]]), [10, 10], 2) is None


def test_shares_follow_the_dirichlet_distribution():
    """The first class is not touched by the balance rule, so its shares have the mean 1/K and variance of the
    distribution."""
    clients, alpha = 4, 1.0
    big = np.repeat([0, 1], [1000, 9000])
    shares = np.array([counts(dirichlet(big, clients, alpha, s), big)[:, 0] / 1000 for s in range(600)])
    assert np.allclose(shares.mean(0), 1 / clients, atol=0.04)
    assert np.allclose(shares.var(0), (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1), rtol=0.25)


def test_large_alpha_is_nearly_iid_and_small_alpha_nearly_disjoint():
    skews = [np.mean([skew(dirichlet(LABELS, 5, alpha, s), LABELS) for s in range(5)])
             for alpha in (0.05, 0.5, 5.0, 1e6)]
    assert skews == sorted(skews, reverse=True) and skews[0] > 0.6 and skews[-1] < 0.01


def test_pictures_of_a_class_are_shuffled():
    "Otherwise client 0 would always hold the first pictures of each class."
    first = [dirichlet(np.zeros(100, dtype=int), 2, 1e6, s)[0] for s in range(5)]
    assert all(part.max() > 60 for part in first)


@pytest.mark.parametrize("alpha", [0, -1.0, float("nan"), float("inf"), "0.5", None])
def test_alpha_is_checked(alpha):
    with pytest.raises(UserError, match="alpha="): dirichlet(LABELS, 5, alpha, 0)


def test_hopeless_wish_ends():
    with pytest.raises(UserError, match="larger alpha or fewer clients"):
        dirichlet(LABELS[:50], 50, 0.01, 0, tries=5)


# ---- the others

def test_shards_of_balanced_classes():
    parts = shards(LABELS, 10, 0)
    table = counts(parts, LABELS)
    assert set(table.sum(1)) == {100}
    assert set(np.unique(table)) <= {0, 50, 100}
    assert (table > 0).sum(1).max() <= 2


@pytest.mark.parametrize("wish", [lambda: iid([0, 1], 3, 0), lambda: iid([0, 1], 0, 0),
                                  lambda: iid([0, 1], 1.0, 0), lambda: iid([], 1, 0),
                                  lambda: iid([[0], [1]], 1, 0), lambda: iid([0.5, 1.0], 1, 0),
                                  lambda: iid([-1, 1], 1, 0), lambda: iid([0, 1], True, 0),
                                  lambda: shards([0, 1, 2], 2, 0),
                                  lambda: shards([0, 1, 2], 2, 0, per_client=0),
                                  lambda: by_class([0, 0, 1], 3, 0),
                                  lambda: by_class([0, 1, 2], 2, 0, classes_each=2),
                                  lambda: by_class([0, 1, 2], 2, 0, classes_each=0),
                                  lambda: skew([[0, 1], []], [0, 1])])
def test_impossible_wishes(wish):
    with pytest.raises(UserError) as error: wish()
    assert "\n" not in str(error.value)


# ---- streams

@given(st.integers(1, 60), st.data(), st.sampled_from(["random", "sorted", "icarl"]))
def test_stream_holds_each_class_once_and_the_rest_comes_last(classes, data, order):
    tasks = data.draw(st.integers(1, classes))
    stream = class_stream(classes, tasks, order, seed=3)
    assert sorted(c for task in stream for c in task) == list(range(classes)) and len(stream) == tasks
    assert {len(task) for task in stream[:-1]} <= {classes // tasks}
    assert len(stream[-1]) == classes // tasks + classes % tasks
    assert all(type(c) is int for task in stream for c in task)
    assert stream == class_stream(classes, tasks, order, seed=3)


def test_stream_sizes_and_orders():
    assert [len(task) for task in class_stream(10, 3)] == [3, 3, 4]
    assert class_stream(4, 2, "sorted") == [[0, 1], [2, 3]]
    assert class_stream(10, 2, seed=0) != class_stream(10, 2, seed=1)
    assert sum(class_stream(10, 5, seed=4), []) == np.random.default_rng(4).permutation(10).tolist()


def test_icarl_order_is_the_published_one():
    assert sum(class_stream(100, 10, "icarl", seed=5), [])[:10] == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]


# superclass of each fine class, in the order of the fine ids, as distributed with CIFAR-100
COARSE = [4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15,
          0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4,
          18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19,
          5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13]


def test_superclasses_are_those_of_cifar100():
    stream = class_stream(100, 20, "superclass")
    assert [len(task) for task in stream] == [5] * 20 and sorted(sum(stream, [])) == list(range(100))
    assert [{COARSE[c] for c in task} for task in stream] == [{t} for t in range(20)]
    assert len(CIFAR100_SUPERCLASSES) == 20
    assert [{COARSE[c] for c in task} for task in class_stream(100, 10, "superclass")] == [{2 * t, 2 * t + 1}
                                                                                           for t in range(10)]


@pytest.mark.parametrize("arguments", [(10, 11), (10, 0), (10, 2.5), (0, 1), (10, 5, "backwards"),
                                       (10, 5, "superclass"), (100, 3, "superclass")])
def test_impossible_streams(arguments):
    with pytest.raises(UserError): class_stream(*arguments)


# ---- counts, skew, picture

@given(label_lists, st.integers(1, 5), st.integers(0, 9))
def test_counts_and_skew_against_plain_python(labels, clients, seed):
    parts = iid(labels, clients, seed)
    table = counts(parts, labels, 9)
    assert table.shape == (clients, 9)
    assert table.tolist() == [[sum(labels[i] == c for i in part) for c in range(9)] for part in parts]
    distance = lambda part: sum(abs(sum(labels[i] == c for i in part) / len(part) - labels.count(c)
                                    / len(labels)) for c in range(9)) / 2
    assert np.isclose(skew(parts, labels), sum(map(distance, parts)) / clients)
    assert 0 <= skew(parts, labels) <= 1


def test_skew_at_its_ends():
    assert skew([np.arange(10)], np.arange(10)) == 0
    assert np.isclose(skew(by_class(LABELS, 10, 0), LABELS), 0.9)
    assert np.isclose(skew([[0, 1, 2], [3]], torch.tensor([0, 0, 1, 1])), 1 / 3)


@pytest.mark.parametrize("clients", [2, 50])
def test_plot_split_shows_the_counts(clients):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    parts = iid(LABELS, clients, 0)
    fig = plot_split(parts, LABELS, [f"class {c}" for c in range(10)])
    ax = fig.axes[0]
    assert np.array_equal(ax.images[0].get_array(), counts(parts, LABELS))
    assert ax.get_xlabel() == "class"
    assert ax.get_ylabel() == "client"
    assert len(ax.texts) == (np.count_nonzero(counts(parts, LABELS)) if clients == 2 else 0)
    plt.close(fig)


# ---- answers

@given(st.lists(st.integers(0, 50), min_size=2, max_size=8).filter(any))
def test_effective_classes(row):
    from scipy.stats import entropy

    assert np.isclose(answers.effective_classes(row), np.exp(entropy(row)))


def test_other_answers():
    stream = class_stream(7, 3, seed=2)
    flat = sum(stream, [])
    assert [flat[place] for place in answers.arrival([3, 0, 6, 3], stream)] == [3, 0, 6, 3]
    assert answers.size_skew([[0, 1], [2, 3]]) == 0 and np.isclose(answers.size_skew([[0, 1, 2], [3]]), 0.25)
