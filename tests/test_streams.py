"Federated discriminant analysis against a pooled one, streams that do not go together, painters of features."
import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbook.evidence import streams
from fedbook.methods.continual import Expandable, Finetune, StreamExperiment, networks
from fedbook.engine.workers import prove, trial
from fedbook.methods.exemplars import annealed
from fedbook.fedcbdr import FedCBDRSizes, variant
from fedbook.fedgtea import FedGTEA, FedGTEASizes
from fedbook.engine.errors import UserError
from fedbook.engine.local import generator
from fedbook.methods.painters import ACGANFedAvg
from fedbook.datasets.sensors import machine_sensors
from fedbook.evidence.streams import (ClassMeans, FederatedLDA, FlatGenerator, SourceSizes, StreamSizes,
                                      StreamTask, SumsServer, accept_sums, as_grid, interleaved, class_sums,
                                      discriminant, encoded, feature_network, held_out, in_rows,
                                      kernel_stream, known_sources, machine_tasks, mixed_stream, mixed_tasks,
                                      one_and_dirichlet, with_network, with_flat_generator, profiles,
                                      sensor_stream,
                                      series_network, with_fixed_sizes, stream_of, time_body, whole_matrix)
from fedbook.engine.wire import Msg, Refused

SIZES = replace(profiles["smoke"], clients=3, tasks=4, rounds=2)


def points(n, d, classes, seed=0):
    "Features (n, d) and labels (n,), at least one of each class."
    g = generator(seed)
    y = torch.cat([torch.arange(classes), torch.randint(classes, (n - classes,), generator=g)])
    return torch.randn(n, d, generator=g) + 3 * torch.randn(classes, d, generator=g)[y], y


def as_task(x, y, classes, source="mine"):
    x = x[:, :, None, None]
    return StreamTask(source, [f"{source} {c}" for c in range(classes)], (x, y), (x, y))


def toy_stream(classes=(2, 3, 1), d=5, n=20, clients=3, seed=0):
    "A stream of tasks of random points."
    return stream_of([as_task(*points(n, d, c, seed + t), c) for t, c in enumerate(classes)], clients, 0.3,
                     seed)


def pooled(stream):
    x, y = (torch.cat(parts) for parts in zip(*itertools.chain(*stream.clients)))
    return x.flatten(1), y


def reference(x, y, classes, shrink):
    "Weight and bias written plainly, in numpy: means, centred pictures, no sum of squares."
    x, y = x.double().numpy(), y.numpy()
    means = np.stack([x[y == c].mean(0) for c in range(classes)])
    centred = x - means[y]
    within = centred.T @ centred / len(x)
    within = (1 - shrink) * within + shrink * np.trace(within) / x.shape[1] * np.eye(x.shape[1])
    weight = np.linalg.solve(within, means.T).T
    return weight, -0.5 * np.einsum("cd,cd->c", weight, means)


def close(found, wanted, tolerance=1e-8):
    return all(np.abs(np.asarray(a) - np.asarray(b)).max() <= tolerance * max(1, np.abs(np.asarray(b)).max())
               for a, b in zip(found, wanted))


# -- sums ----------------------------------------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.lists(st.integers(1, 4), min_size=1, max_size=5),
       st.data())
def test_federated_is_pooled_for_any_split_and_any_order_of_tasks(seed, clients, classes, data):
    """The pictures of each task dealt to clients at random, some of which may have none; tasks and clients
    in any order; the head of what was added is that of all pictures in one place."""
    d, edges = 4, np.cumsum([0, *classes])
    x, y = points(8 * edges[-1], d, int(edges[-1]), seed)
    order = data.draw(st.permutations(range(len(classes))))
    server = SumsServer(StandIn(d), [classes[t] for t in order], 1)
    rank = torch.tensor(np.argsort(np.concatenate([np.arange(edges[t], edges[t + 1]) for t in order])))
    owner = torch.randint(clients, y.shape, generator=generator(seed, 1))
    for position, t in enumerate(order):
        server.begin([], position)
        old, new = sum(server.classes[:position]), classes[t]
        here = (y >= edges[t]) & (y < edges[t + 1])
        replies = [(k, Msg(class_sums(x[here & (owner == k)], rank[y[here & (owner == k)]] - old, new)))
                   for k in data.draw(st.permutations(range(clients)))]
        for k, msg in replies: server.accept("sums", k, msg)
        server.merge(iter(replies))
    found = discriminant(server.counts, server.sums, server.second, 0.1)
    assert close(found, reference(x, rank[y], int(edges[-1]), 0.1))


class StandIn:
    "A model that says how many features it has."
    def __init__(self, dim): self.dim = dim


@pytest.mark.parametrize("shrink", [0.1, 0.5, 1.0])
def test_discriminant_is_scikit_learns(shrink):
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    x = torch.randn(300, 5, generator=generator(1), dtype=torch.float64)
    y = torch.arange(300) % 3
    x = x + 2 * torch.randn(3, 5, generator=generator(2), dtype=torch.float64)[y]
    weight, bias = discriminant(**class_sums(x, y, 3), shrink=shrink)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrink).fit(x.numpy(), y.numpy())
    ours = (x @ weight.T + bias).numpy()
    assert np.allclose(np.diff(ours), np.diff(theirs.decision_function(x.numpy())), atol=1e-9)


def test_without_the_matrix_the_nearest_mean_is_named():
    x, y = points(60, 3, 4)
    weight, bias = discriminant(**class_sums(x, y, 4, second=False))
    means = torch.stack([x[y == c].double().mean(0) for c in range(4)])
    nearest = torch.cdist(x.double(), means).argmin(1)
    assert torch.equal((x.double() @ weight.T + bias).argmax(1), nearest)


def test_a_class_without_pictures_is_never_named():
    x, y = points(30, 3, 2)
    weight, bias = discriminant(**class_sums(x, y, 3))
    assert bias[2] == -math.inf and ((x.double() @ weight.T + bias).argmax(1) < 2).all()


@pytest.mark.parametrize("shrink", [0.0, -0.1, 1.5])
def test_shrink_is_a_share(shrink):
    with pytest.raises(UserError, match=f"shrink={shrink} must be above 0 and at most 1"):
        discriminant(**class_sums(*points(9, 2, 2), 2), shrink=shrink)


def test_the_triangle_and_back():
    x = torch.randn(7, 4, generator=generator(3), dtype=torch.float64)
    second = class_sums(x, torch.zeros(7, dtype=torch.int64), 1)["second"]
    assert second.shape == (10,) and torch.allclose(whole_matrix(second, 4), x.T @ x)


# -- client and server -----------------------------------------------------------------------------------
def experiment(stream=None, method=FederatedLDA, **changed):
    stream = stream or toy_stream()
    return StreamExperiment(replace(SIZES, **changed), 0, "cpu", method, lambda *_: stream)


def test_a_run_ends_with_the_pooled_head_and_asks_once_a_task():
    stream = toy_stream()
    ended = trial(experiment(stream, rounds=3), workers=1)
    found = discriminant(ended.server.counts, ended.server.sums, ended.server.second, 0.1)
    assert close(found, reference(*pooled(stream), 6, 0.1))
    asked = [(e.round, e.verb) for e in ended.federation.ledger.where(way="down", client=0)]
    assert asked == [(0, "sums"), (3, "sums"), (6, "sums")]
    assert ended.history.column("up")[0] == ended.history.column("up")[2] < ended.history.column("up")[3]


def test_after_each_task_it_is_the_pooled_head_of_the_tasks_so_far():
    stream = toy_stream()
    shorter = stream._replace(tasks=stream.tasks[:2], test=stream.test[:2],
                              clients=[tasks[:2] for tasks in stream.clients])
    server = trial(experiment(shorter), workers=1).server
    assert close(discriminant(server.counts, server.sums, server.second), reference(*pooled(shorter), 5, 0.1))


@pytest.mark.parametrize("method", [FederatedLDA, ClassMeans], ids=lambda m: m.name)
def test_a_run_is_a_function_of_its_seed(method):
    prove(experiment(method=method, rounds=1), kills=2, kinds=("nan", "shape", "names"))


def test_class_means_send_no_matrix():
    up = [trial(experiment(method=method), workers=1).history.last("up")
          for method in (FederatedLDA, ClassMeans)]
    assert up[1] < up[0]


@pytest.mark.parametrize("lie, sentence", [
    (lambda s: s | {"second": s["second"] / 9}, "second is smaller"),
    (lambda s: s | {"counts": -s["counts"]}, "counts are not numbers of pictures"),
    (lambda s: s | {"counts": torch.tensor([int(s["counts"].sum()), 0])},
     "a class without pictures has a sum"),
    (lambda s: s | {"sums": s["sums"].float()}, "dtype"),
    (lambda s: s | {"sums": s["sums"] * math.nan}, "finite"),
    (lambda s: s | {"sums": s["sums"][:1]}, "shape"), (lambda s: {**s, "more": s["sums"]}, "unexpected")])
def test_sums_that_cannot_be_are_refused(lie, sentence):
    sound = class_sums(*points(20, 3, 2), 2)
    accept_sums(Msg(sound), 2, 3, True)
    with pytest.raises(Refused, match=sentence): accept_sums(Msg(lie(sound)), 2, 3, True)


# -- tasks that go together, and that do not -------------------------------------------------------------
def test_sources_that_disagree_get_one_sentence():
    tasks = [as_task(*points(9, 4, 2), 2), as_task(*points(9, 5, 2), 2, "theirs")]
    with pytest.raises(UserError,
                       match=r"sources disagree: 'theirs' has features \(5, 1, 1\), 'mine' \(4, 1, 1\)"):
        stream_of(tasks, 2, 1.0, 0)
    mixed = tasks[0]._replace(test=tasks[1].test)
    with pytest.raises(UserError, match="sources disagree"): stream_of([mixed], 2, 1.0, 0)


def test_a_task_without_classes_or_pictures_gets_one_sentence():
    fine = as_task(*points(9, 4, 2), 2)
    with pytest.raises(UserError, match="task 2 of 'mine' has no classes, expected at least one"):
        stream_of([fine, fine._replace(classes=[])], 2, 1.0, 0)
    few = fine.test[0], torch.zeros(9, dtype=torch.int64)
    for part in ("train", "test"):
        with pytest.raises(UserError,
                           match=f"has no {part}\\w* inputs of 'mine 1', expected at least one of each"):
            stream_of([fine._replace(**{part: few})], 2, 1.0, 0)
    with pytest.raises(UserError, match="tasks are empty"): stream_of([], 2, 1.0, 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(0, 40), st.floats(0.05, 10), st.integers(0, 10**6))
def test_everybody_has_a_picture_and_every_picture_somebody(clients, more, alpha, seed):
    labels = np.random.default_rng(seed).integers(0, 3, clients + more)
    shares = one_and_dirichlet(labels, clients, alpha, seed)
    assert len(shares) == clients and all(len(own) for own in shares)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(labels)))


def test_more_clients_than_pictures_get_one_sentence():
    with pytest.raises(UserError, match="clients=9 is more than the 5 pictures of a task"):
        one_and_dirichlet([0, 1, 0, 1, 0], 9, 1.0, 0)


def test_a_small_alpha_is_more_skewed():
    labels = np.arange(600) % 3
    def largest(alpha):
        shares = one_and_dirichlet(labels, 6, alpha, 5)
        return np.mean([np.bincount(labels[own], minlength=3).max() / len(own) for own in shares])
    assert largest(0.05) > largest(100.0) + 0.2


def test_by_turns_deals_as_cards_are_dealt():
    assert interleaved([[1, 2, 3], ["a"], [7, 8]]) == [1, "a", 7, 2, 8, 3] and interleaved([]) == []


def test_the_mixed_stream_is_made_of_its_sources():
    tasks = mixed_tasks(SIZES, 0)
    assert {task.source for task in tasks} == {"digits", "leaves"} and len(tasks) == 4
    assert [task.source for task in tasks[:2]] == [task.source for task in tasks[2:]], "in turn"
    crops = {name.split()[0] for task in tasks if task.source == "leaves" for name in task.classes[:1]}
    assert all(len({name.split()[0] for name in task.classes}) == 1 for task in tasks
               if task.source == "leaves")
    assert len(crops) == 2
    stream = mixed_stream(SIZES, 0)
    assert stream.shape == (SIZES.width // 16, 4, 4) and len(stream.clients) == 3
    assert sorted(set(torch.cat([y for _, y in stream.test]).tolist())) == list(range(sum(stream.classes)))


def test_one_by_one_has_the_same_tasks_in_another_order():
    here, there = (mixed_tasks(replace(SIZES, turns=turns), 3) for turns in ("in turn", "one by one"))
    key = lambda task: (task.source, *task.classes)
    assert sorted(map(key, here)) == sorted(map(key, there)) and list(map(key, here)) != list(map(key, there))
    assert len(list(itertools.groupby(task.source for task in there))) == 2


def drawn(sizes, seed):
    "Names of a task's classes to its training and its test features, as sets."
    points = lambda x: {tuple(one.flatten().tolist()) for one in x}
    return {tuple(sorted(task.classes)): (points(task.train[0]), points(task.test[0]))
            for task in mixed_tasks(sizes, seed)}


def test_each_seed_draws_its_own_pictures_out_of_a_pool():
    sizes = replace(SIZES, sources=("leaves",), pictures=3, test_pictures=2, pool=3)
    first, again, second = drawn(sizes, 0), drawn(sizes, 0), drawn(sizes, 1)
    assert first == again and all(not train & test for train, test in first.values())
    shared = set(first) & set(second)
    assert shared and all(first[name][k] != second[name][k] for name in shared for k in (0, 1))
    pool = SourceSizes(sources=("digits",), pixels=32, pictures=4, test_pictures=2, pool=3)
    source, train, test = encoded("digits", pool)
    assert source.train.labels.bincount().tolist() == [12] * 10 and len(train) == 120 and len(test) == 60


def test_tuning_sees_no_test_picture():
    "What a tuning stream trains and tests on are the training pictures of the stream, and no two are shared."
    points = lambda pairs: [tuple(one.flatten().tolist()) for x, _ in pairs for one in x]
    few = replace(SIZES, minutes=5, test_minutes=2, steps=32)
    for make, sizes in ((mixed_stream, SIZES), (sensor_stream, few)):
        usual, tuned = make(sizes, 1000), make(sizes, 1000, tuning=True)
        own = [points(itertools.chain(*stream.clients)) for stream in (usual, tuned)]
        assert sorted(own[1] + points(tuned.test)) == sorted(own[0])
        assert not set(own[1]) & set(points(tuned.test))
        assert not set(points(usual.test)) & set(points(tuned.test)) and usual.tasks == tuned.tasks


def test_a_fifth_of_each_class_is_held_out():
    x, y = torch.arange(16).float()[:, None], torch.tensor([0] * 10 + [1] * 5 + [2])
    task = held_out(StreamTask("mine", ["a", "b", "c"], (x, y), (x, y)))
    assert task.test[0].flatten().tolist() == [8, 9, 14, 15] and task.train[0].flatten().tolist() == [
        0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 15], "a class of one is in both"


def test_a_task_is_split_alike_in_either_order():
    sizes = replace(SIZES, tasks=4, pictures=6)
    def splits(turns):
        stream = mixed_stream(replace(sizes, turns=turns), 3)
        return {tuple(names): [sorted(map(tuple, client[t][0].flatten(1).tolist()))
                               for client in stream.clients]
                for t, names in enumerate(stream.tasks)}
    here, there = splits("in turn"), splits("one by one")
    assert here == there and list(here) != list(there)


def test_unknown_and_absent_sources_get_one_sentence(monkeypatch, tmp_path):
    with pytest.raises(UserError, match="sources has 'moon', which is unknown; choose some of fashion"):
        known_sources(replace(SIZES, sources=("digits", "moon")))
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    assert list(known_sources(replace(SIZES, sources=("cifar10", "digits")))) == ["digits"]
    with pytest.raises(UserError, match="are not at hand"):
        known_sources(replace(SIZES, sources=("cifar10",)))


def test_grids_keep_distances_up_to_a_factor():
    x = torch.randn(40, 300, generator=generator(4))
    grid = as_grid(x, 4096, 1 / 1000)
    apart = [torch.cdist(z, z)[~torch.eye(40, dtype=torch.bool)] for z in (x, grid.flatten(1))]
    ratio = 1000 / math.sqrt(4096) * apart[1] / apart[0]
    assert grid.shape == (40, 256, 4, 4) and abs(ratio - 1).max() < 0.1
    with pytest.raises(UserError, match="width=20 must be a multiple of 16"): as_grid(x, 20)


# -- methods of other chapters on these streams ------------------------------------------------------------
def test_settled_takes_from_the_sizes_what_they_have_and_the_rest_from_its_own_chapter():
    method = with_fixed_sizes(FedGTEA, replace(FedGTEASizes(), anchor=0.123))
    assert "anchor" not in method.server_takes and "server_steps" in method.server_takes
    model = with_flat_generator(method).network(networks["cnn"], 2, (1, 4, 4))
    server = method.server(model, [2, 2], 1, server_steps=7, server_every=1, critic_lr=1e-3, server_batch=4,
                           painted=4)
    assert server.how.anchor == 0.123 and server.how.server_steps == 7


def test_flat_generators_grow_and_leave_old_classes_as_they_are():
    artist = FlatGenerator(2, (3, 4, 4))
    before = artist.sample(torch.tensor([0, 1]), generator(0))
    artist.widen(2, generator(1))
    assert torch.equal(before, artist.sample(torch.tensor([0, 1]), generator(0)))
    assert artist.classes == 4 and before.shape == (2, 3, 4, 4) and before.abs().max() <= 1
    other = FlatGenerator(1, (3, 4, 4))
    other.load_state_dict(artist.state_dict())
    assert other.classes == 4


CBDR = FedCBDRSizes()
METHODS = {"Finetune": with_network(with_fixed_sizes(annealed(Finetune), CBDR), feature_network),
           "FedCBDR": with_network(with_fixed_sizes(variant("FedCBDR"), CBDR), feature_network),
           "AC-GAN": with_flat_generator(with_fixed_sizes(ACGANFedAvg, FedGTEASizes())),
           "FedGTEA": with_flat_generator(with_fixed_sizes(FedGTEA, FedGTEASizes()))}


@pytest.mark.parametrize("name", METHODS)
def test_methods_learn_features(name):
    stream = mixed_stream(SIZES, 0)
    ended = trial(StreamExperiment(replace(SIZES, rounds=1), 0, "cpu", METHODS[name], mixed_stream),
                  workers=1)
    assert ended.server.classify(stream.test[0][0]).shape == (len(stream.test[0][1]),)
    assert len(ended.history) == 4 and ended.server.task == 3


def test_a_generator_learns_features():
    "Two classes of features apart: what FedGTEA's generator paints of each is nearer to its own class."
    g = generator(5)
    y = torch.arange(120) % 2
    x = (0.05 * torch.randn(120, 2, 4, 4, generator=g) + (0.5 - y.float())[:, None, None, None]).clamp(-1, 1)
    stream = stream_of([StreamTask("two", ["a", "b"], (x, y), (x, y))], 2, 10.0, 0)
    sizes = replace(SIZES, clients=2, rounds=6, iterations=20, gan_batch=16, critic_lr=2e-3,
                    generator_lr=2e-3)
    ended = trial(StreamExperiment(sizes, 0, "cpu", METHODS["FedGTEA"], lambda *_: stream), workers=1)
    painted = ended.server.network().generator.sample(torch.tensor([0] * 20 + [1] * 20),
                                                      generator(6)).mean((1, 2, 3))
    assert painted[:20].mean() > painted[20:].mean() + 0.3


# -- machines ------------------------------------------------------------------------------------------------
def test_machines_are_tasks():
    train, test = machine_sensors(3, 32, 0), machine_sensors(2, 32, 0, "test")
    tasks = machine_tasks(train, test, 1, in_rows)
    assert len(tasks) == 5 and all(len({name.split()[0] for name in task.classes}) == 1 for task in tasks)
    x, y = tasks[0].train
    assert x.shape == (15, 6, 4, 8) and y.bincount().tolist() == [3] * 5
    assert torch.equal(x.flatten(2)[0], train.x[train.classes.index(tasks[0].classes[0]) * 3])


def test_classes_without_a_machine_are_dealt_to_five_tasks():
    train = machine_sensors(2, 32, 0)
    train.classes = [f"state{c}" for c in range(25)]
    assert [len(task.classes) for task in machine_tasks(train, train, 0, in_rows)] == [5] * 5


def test_series_of_other_lengths_get_one_sentence():
    with pytest.raises(UserError, match="series have 48 steps, expected a multiple of 32"):
        in_rows(torch.zeros(2, 6, 48))


def test_sensor_streams():
    sizes = replace(StreamSizes(), minutes=4, test_minutes=2, steps=32, clients=2, kernels=10)
    series, features = sensor_stream(sizes, 0), kernel_stream(sizes, 0)
    assert series.shape == (6, 4, 8) and features.shape == (2, 4, 4)
    assert series.tasks == features.tasks
    assert [len(y) for _, y in series.test] == [len(y) for _, y in features.test]


def test_all_tasks_are_brought_to_the_scale_of_the_first():
    g = torch.Generator().manual_seed(0)
    part = lambda n, far: (far + torch.randn(n, 3, 1, 1, generator=g) * torch.tensor([100., 1, 0])[:, None, None],
                           torch.arange(n) % 2)
    tasks = [StreamTask("x", ["a", "b"], part(50, far), part(20, far)) for far in (7.0, 7.5)]
    first, second = streams._like_the_first(tasks)
    x = first.train[0]
    inside = x[:, :2].abs().lt(1)
    assert x.abs().max() <= 1 and inside.float().mean() > 0.98 and (x[:, 2] == 0).all()
    assert x[:, :2].mean(0).abs().max() < 0.02 and (x[:, :2].std(0) - 1 / 3).abs().max() < 0.02
    scale = lambda before, after: (before[1, 1] - before[0, 1]) / (after[1, 1] - after[0, 1])
    assert torch.allclose(scale(tasks[0].train[0], x), scale(tasks[1].test[0], second.test[0])), "one for all"
    assert (second.train[0][:, 2] == 1).all(), "what never moved in the first task is cut"
    assert torch.equal(second.train[1], tasks[1].train[1])


@pytest.mark.parametrize("make", [partial(series_network, None), lambda classes, shape: Expandable(
    time_body(shape, 16), 16, classes, shape)])
def test_networks_along_time(make):
    model = make(3, (6, 4, 16))
    assert model(torch.zeros(2, 6, 4, 16)).shape == (2, 3)
