"""FedGTEA: the task encoder's invariants, the server's three losses and what each does, moments on the wire,
and whole runs."""
import itertools
import math
import zipfile
from dataclasses import asdict, replace
from functools import partial
from inspect import cleandoc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

import fedbook.methods.continual as continual
import fedbook.fedgtea as fedgtea
from conftest import by_day, equal

from fedbook.datasets import world
from fedbook.methods.painters import ACGANFedAvg, FedCIL, Generator, half_of
from fedbook.methods.continual import FedAvg, StreamExperiment, TaskServer, make_stream, run_stream
from fedbook.engine.local import distillation_loss, frozen, snapshot
from fedbook.methods.exemplars import GLFC
from fedbook.engine.wire import Msg, Refused, pack, part, unpack
from fedbook.engine.workers import Checkpoint, prove
from fedbook.evidence.fedgtea import (RARE, NoAnchor, NoCATE, NoDistillation, NoTasks, answered_pictures,
                                      ceiling_of_one, profiles, question_stream)
from fedbook.fedgtea import CATE, GTEA, FedGTEA, FedGTEAClient, NoWasserstein, settings
from fedbook.methods.alignment import (Rivals, ServerLoss, TaskDiscriminator, anchor_loss, batch_moments,
                                       drawn_ahead, embed_all, forces, group_means, measured, modes, pull_back,
                                       replayed, server_distillation, server_loss, task_of, walk, _likeliest)
from fedbook.engine.errors import UserError
from fedbook.engine.sizes import choose
from fedbook.engine.local import build, generator
from fedbook.datasets.split import CIFAR100_SUPERCLASSES, class_stream
from fedbook.methods.wasserstein import Gaussian, pairwise_wasserstein2
from fedbook.engine.local import as_float

SMOKE = replace(profiles["smoke"], pictures=40, test_pictures=12, tasks=3, clients=3, proxy_steps=2,
                server_steps=2)
METHODS = (FedGTEA, NoCATE, NoWasserstein, NoAnchor, NoDistillation, NoTasks)
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
BRISK = replace(SMOKE, iterations=8, gan_batch=8, critic_lr=2e-3, generator_lr=2e-3, server_steps=12,
                server_batch=24, painted=24)


@pytest.fixture(scope="module")
def stream(): return make_stream(SMOKE, 0)


def fit(client, msg):
    """The reply of `client` as it arrives: clients of one process share a network, and a reply points at its
    weights."""
    return unpack(pack(client.fit(unpack(pack(msg)))))


def only(half, tensors): return {name: t for name, t in tensors.items() if name.startswith(half)}


class Scene:
    "The server of `method` with the replies of the first round of task `task`, which are not merged yet."

    def __init__(self, stream, sizes=BRISK, method=FedGTEA, task=1, seed=0):
        self.stream = stream
        self.sizes = sizes
        self.method = method
        self.seed = seed
        self.ids = list(range(sizes.clients))
        self.clients = [self.experiment().client(id) for id in self.ids]
        server = self.experiment().server()
        for r in range(task * sizes.rounds):
            server.begin(self.ids, r)
            server.merge([(c.id, fit(c, server.send(c.id))) for c in self.clients])
        self.round = task * sizes.rounds
        server.begin(self.ids, self.round)
        self.opened = server.state()
        self.replies = [(c.id, fit(c, server.send(c.id))) for c in self.clients]
        self.n = np.array([msg.meta["n"] for _, msg in self.replies])
        self.average = {name: sum(msg.tensors[f"model/{name}"].double() * n
                                  for (_, msg), n in zip(self.replies, self.n)) / self.n.sum()
                        for name in server.weights}

    def experiment(self, **changes):
        sizes = replace(self.sizes, **changes)
        return StreamExperiment(sizes, self.seed, method=self.method, streams=lambda *_: self.stream)

    def server(self, **changes):
        "A server that stands right before the merge, with other sizes."
        server = self.experiment(**changes).server()
        server.load(unpack(pack(self.opened)))
        server.begin(self.ids, self.round)
        return server

    def merged(self, **changes):
        server = self.server(**changes)
        server.merge(self.replies)
        return server


@pytest.fixture(scope="module")
def scene(stream): return Scene(stream)


@pytest.fixture(scope="module")
def merged(scene): return scene.merged()


def test_every_method_has_a_name_of_its_own_and_its_fields():
    assert len({m.name for m in METHODS}) == len(METHODS)
    for method, sizes in itertools.product((*METHODS, FedAvg, ACGANFedAvg, FedCIL, GLFC), profiles.values()):
        assert {*method.takes, *method.server_takes} <= asdict(sizes).keys()


# ---- sizes

def sizes_of(profile, changes=None): return choose(profiles, profile, changes, settings)
def test_the_three_sequences_are_the_papers():
    want = {"cifar10-5x2": ("cifar10", 5, 5, 60, 100, 1e-4, 10),
            "cifar100-10x10": ("cifar100", 10, 10, 40, 400, 1e-3, 100),
            "cifar100-20x5": ("cifar100", 20, 10, 40, 400, 1e-3, 100)}
    assert settings.keys() == want.keys()
    for name, (data, tasks, clients, rounds, iterations, rate, classes) in want.items():
        s = sizes_of("paper", {"setting": name})
        assert ((s.data, s.tasks, s.clients, s.rounds, s.iterations, s.critic_lr, s.generator_lr)
                == (data, tasks, clients, rounds, iterations, rate, rate))
        assert (s.gan_batch, s.distillation, s.wasserstein, s.anchor) == (64, 0.3, 0.3, 0.4)
        assert s.pictures * classes == 50000 and s.test_pictures * classes == 10000
        tasks = class_stream(classes, s.tasks, s.order, 0)
        assert {len(task) for task in tasks} == {classes // s.tasks}
        assert sorted(sum(tasks, [])) == list(range(classes))


def test_each_task_of_the_third_sequence_is_one_superclass():
    s, fine = sizes_of("paper", {"setting": "cifar100-20x5"}), sorted(sum(CIFAR100_SUPERCLASSES.values(), []))
    tasks = [{fine[c] for c in task} for task in class_stream(100, s.tasks, s.order, 0)]
    assert len(tasks) == 20 and all(len(task) == 5 for task in tasks)
    assert sorted(map(sorted, tasks)) == sorted(map(sorted, CIFAR100_SUPERCLASSES.values()))


def test_the_second_sequence_has_icarls_order():
    s = sizes_of("paper", {"setting": "cifar100-10x10"})
    assert class_stream(100, s.tasks, s.order, 0)[0] == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]


def test_changes_win_over_the_setting():
    s = sizes_of("paper", {"setting": "cifar100-20x5", "rounds": "3", "clients": 2})
    assert (s.rounds, s.clients, s.tasks, s.iterations) == (3, 2, 20, 400)
    assert sizes_of("smoke", {"setting": "cifar10-5x2"}).data == "cifar10" and sizes_of("paper").tasks == 5
    assert sizes_of("paper", {"setting": ""}) == replace(profiles["paper"], setting="")


def test_the_profile_paper_has_the_fields_of_its_setting():
    for own in (fedgtea.profiles["paper"], profiles["paper"]):
        assert {name: getattr(own, name) for name in settings["cifar10-5x2"]} == settings["cifar10-5x2"]
    assert sizes_of("paper") == profiles["paper"]


@pytest.mark.parametrize("profile, changes, said",
                         [("paper", {"setting": "cifar10-2x5"}, "setting='cifar10-2x5'.*cifar100-20x5"),
                          ("paper", {"alfa": 1}, "'alfa'"), ("tiny", {}, "profile='tiny'"),
                          ("smoke", {"rounds": "two"}, "rounds='two'"),
                          ("smoke", {"anchor": -0.1}, "anchor=-0.1")])
def test_sizes_refuse_what_cannot_be(profile, changes, said):
    with pytest.raises(UserError, match=said): sizes_of(profile, changes)


@pytest.mark.parametrize("name", profiles)
def test_every_profile_is_sound(name):
    s = sizes_of(name)
    assert replace(s) == s and (s.distillation, s.wasserstein, s.anchor) == (0.3, 0.3, 0.4)
    assert min(s.server_steps, s.server_batch, s.painted, s.iterations, s.gan_batch) > 0 and s.critic_lr > 0
    assert s.generator_lr > 0
    assert s.network in continual.networks and sizes_of(name, {k: str(v) for k, v in asdict(s).items()}) == s
    assert s.data == "fashion_mnist_small" or name == "paper"
    chapters = asdict(choose(fedgtea.profiles, name, None, settings)) | dict(seeds=s.seeds)
    assert asdict(s) == asdict(s) | chapters, "the lab book measures with the chapter's sizes"


# ---- CATE
def cate(seed=0, shape=(1, 4, 4), dim=4, length="root_d"):
    return build(partial(CATE, shape, dim, (16,), length), seed)


@tries(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(0, 10**6), st.lists(st.integers(1, 59), max_size=5, unique=True),
       st.booleans())
def test_an_embedding_is_the_mean_over_any_split_in_any_order(n, seed, cuts, training):
    net = cate(seed).double().train(training)
    x = torch.randn(n, 1, 4, 4, generator=generator(seed), dtype=torch.float64)
    parts = [p for p in torch.tensor_split(x, sorted(cuts)) if len(p)]
    whole = net.embed(x)
    torch.testing.assert_close(sum(len(p) * net.embed(p) for p in parts) / n, whole)
    torch.testing.assert_close(torch.stack([net.embed(one[None]) for one in x]).mean(0), whole)
    torch.testing.assert_close(net.embed(x[torch.randperm(n, generator=generator(seed, 1))]), whole)
    assert torch.equal(net.train(not training).embed(x), whole) and whole.shape == (4,)


def test_an_embedding_has_mean_0_and_variance_1():
    z = cate()(torch.randn(30, 1, 4, 4, generator=generator(1)) * 40)
    torch.testing.assert_close(z.mean(1), torch.zeros(30), atol=1e-5, rtol=0)
    torch.testing.assert_close(z.var(1, unbiased=False), torch.ones(30), atol=1e-3, rtol=0)


def test_cate_does_not_grow_with_tasks():
    count = lambda net: sum(p.numel() for p in net.cate.parameters())
    few, many = (build(partial(GTEA, classes, (1, 28, 28)), 0) for classes in (2, 40))
    before = snapshot(few.cate)
    few.widen(6, generator(0))
    assert count(few) == count(many) and equal(snapshot(few.cate), before)


def test_the_covariance_of_a_batch_embedding_falls_with_its_size():
    net, x, b = cate(3), torch.randn(400, 1, 4, 4, generator=generator(4)), 8
    with torch.no_grad():
        draws = torch.stack([net.embed(x[torch.randint(400, (b,), generator=random)])
                             for random in [generator(5)] for _ in range(6000)]).double().numpy()
        z = net(x).double().numpy()
    got, want = np.cov(draws.T, bias=True), np.cov(z.T, bias=True) / b
    assert np.linalg.norm(got - want) < 0.05 * np.linalg.norm(want)
    assert np.trace(got) == pytest.approx(np.trace(want), rel=0.05)


@pytest.mark.parametrize("call, words", [
    (lambda: cate()(torch.zeros(2, 1, 5, 4)), r"x has shape \(2, 1, 5, 4\), expected \(b, 1, 4, 4\)"),
    (lambda: cate().embed(torch.zeros(0, 1, 4, 4)), "no picture"),
    (lambda: cate()(torch.zeros(2, 1, 4, 4).byte()), "x holds torch.uint8, expected floats.*as_float"),
    (lambda: CATE(784), "in_shape=784 must be the shape of a picture"),
    (lambda: CATE((1, 0, 4)), r"in_shape=\(1, 0, 4\)"), (lambda: CATE(()), r"in_shape=\(\)"),
    (lambda: CATE((1, 4, 4), dim=0), "dim=0 must be at least 2"),
    (lambda: CATE((1, 4, 4), dim=1), "dim=1 must be at least 2.*0 for every picture"),
    (lambda: CATE((1, 4, 4), dim=1, length="unit"), "dim=1 must be at least 2"),
    (lambda: CATE((1, 4, 4), dim=0, length="free"), "dim=0 must be at least 1"),
    (lambda: CATE((1, 4, 4), length="long"), "length='long' is unknown")])
def test_cate_says_what_it_cannot_take(call, words):
    with pytest.raises(UserError, match=words): call()


def test_the_length_of_an_embedding_is_the_one_asked_for():
    x = torch.randn(30, 1, 4, 4, generator=generator(1)) * 40
    z, unit, free = (cate(length=length)(x) for length in ("root_d", "unit", "free"))
    torch.testing.assert_close(unit, z / 2)
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(30), atol=1e-3, rtol=0)
    assert free.norm(dim=1).std() > 0.1
    assert [cate(length=name).most for name in ("root_d", "unit", "free")] == [4, 1, math.inf]
    assert CATE((1, 4, 4), dim=1, length="free")(x).std() > 0


def test_the_example_of_cate_holds():
    example = cleandoc(CATE.__doc__).splitlines()      # from Python 3.13 on the compiler takes indents away
    lines = [line.partition("#")[0].strip() for line in example if line.startswith(" " * 4)]
    names = {"CATE": CATE, "torch": torch}
    for line in lines[:-1]: exec(line, names)
    assert eval(lines[-1], names) == (64,) and len(lines) == 2


# ---- groups
def test_tasks_of_labels_by_hand():
    assert task_of(torch.tensor([0, 2, 3, 4, 5, 9]), [3, 2, 5]).tolist() == [0, 0, 1, 1, 2, 2]
    assert task_of(torch.tensor([0, 1]), [1, 1]).tolist() == [0, 1]


def test_group_means_by_hand():
    z, groups = torch.tensor([[1.0, 0], [4, 4], [3, 2], [5, 0], [0, 0]]), torch.tensor([0, 2, 0, 2, 3])
    assert group_means(z, groups).tolist() == [[2, 1], [4.5, 2], [2, 1], [4.5, 2], [0, 0]]


def test_groups_never_mix_tasks():
    net = build(partial(GTEA, 4, (1, 28, 28)), 0).eval()
    x, y = torch.randn(8, 1, 28, 28, generator=generator(1)), torch.tensor([0, 2, 1, 3, 0, 2, 3, 1])
    groups = task_of(y, [2, 2])
    e = net.embeddings(x, groups)
    for t in (0, 1): torch.testing.assert_close(e[groups == t], net.cate.embed(x[groups == t]).expand(4, -1))
    other = torch.where((groups == 1)[:, None, None, None], -x, x)
    torch.testing.assert_close(net(other, groups)[groups == 0], net(x, groups)[groups == 0])
    assert not torch.allclose(net(other, groups)[groups == 1], net(x, groups)[groups == 1])
    torch.testing.assert_close(net(x),
                               torch.cat([net(one[None], torch.zeros(1, dtype=torch.int64)) for one in x]))


# ---- networks
@pytest.mark.parametrize("shape, dim", [((1, 28, 28), 64), ((3, 32, 32), 8), ((1, 28, 28), 0)])
def test_widening_keeps_old_pictures_and_logits(shape, dim):
    net = build(partial(GTEA, 4, shape, dim), 0).eval()
    z = torch.randn(6, 100, generator=generator(1))
    y = torch.arange(6) % 4
    x = torch.randn(6, *shape, generator=generator(2))
    groups = torch.arange(6) % 2
    rest = {name: t for name, t in snapshot(net).items() if "head" not in name and "labels" not in name}
    painted, said, told = net.generator(z, y), net(x), net(x, groups)
    net.widen(3, generator(0))
    assert torch.equal(net.generator(z, y), painted) and torch.equal(net(x)[:, :4], said)
    assert torch.equal(net(x, groups)[:, :4], told)
    assert net(x).shape == (6, 7) and all(torch.equal(snapshot(net)[name], t) for name, t in rest.items())
    assert net.generator(z, y + 3).shape == (6, *shape)


def test_a_network_takes_the_width_of_the_weights_it_is_given():
    wide = build(partial(GTEA, 6, (1, 28, 28)), 0)
    narrow = build(partial(GTEA, 2, (1, 28, 28)), 1)
    x = torch.zeros(3, 1, 28, 28)
    narrow.load_state_dict(snapshot(wide))
    assert torch.equal(narrow(x), wide(x)) and narrow.generator.classes == 6


def test_the_class_head_sees_the_embedding_and_the_other_head_does_not():
    d = build(partial(TaskDiscriminator, 3, (1, 28, 28), 5), 0)
    x = torch.randn(2, 1, 28, 28, generator=generator(0))
    e = torch.randn(2, 5, generator=generator(1))
    (real, z), (same, other) = d(x, e), d(x, e + 1)
    assert torch.equal(real, same) and real.shape == (2,)
    torch.testing.assert_close(other - z, d.head.weight[:, -5:].sum(1).expand(2, 3))


# ---- losses of the server
def test_the_anchor_by_hand():
    p = [torch.tensor([1.0, 2.0]), torch.tensor([[5.0]])]
    a = [torch.tensor([1.0, -1.0]), torch.tensor([[1.0]])]
    assert anchor_loss(p, a).item() == pytest.approx(5) and anchor_loss(p, a, squared=True).item() == 25
    with pytest.raises(ValueError): anchor_loss(p, a[:1])


@pytest.mark.parametrize("squared", [False, True])
def test_the_anchor_is_0_with_a_finite_gradient_where_it_starts(squared):
    p = torch.randn(5, generator=generator(0)).requires_grad_()
    loss = anchor_loss([p], [p.detach().clone()], squared)
    loss.backward()
    assert loss.item() <= 1.01e-6 and not p.grad.any() and p.grad.isfinite().all()


def test_the_anchors_gradient_has_length_one_away_from_the_start():
    p = torch.tensor([3.0, 4.0], requires_grad=True)
    anchor_loss([p], [torch.zeros(2)]).backward()
    torch.testing.assert_close(p.grad, torch.tensor([0.6, 0.8]))


def test_the_servers_loss_weighs_its_terms_as_the_paper():
    one, none = torch.ones(()), torch.zeros(())
    assert [server_loss(*terms).item()
            for terms in ((one, none, none), (none, one, none),
                          (none, none, one))] == pytest.approx([0.3, 0.3, 0.4])
    assert server_loss(2 * one, 3 * one, 5 * one, 1, 10, 100).item() == 532


@tries(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 3), st.booleans())
def test_pulling_back_minimises_what_it_says(seed, length, squared):
    "No other point has less of length |p - anchor| + |p - here|^2 / 2."
    g = generator(seed)
    here, anchor = (torch.randn(5, generator=g, dtype=torch.float64) for _ in range(2))
    parts = list(here.clone().split([2, 3]))
    pull_back(parts, anchor.split([2, 3]), length, squared)
    cost = lambda p: length * (p - anchor).norm() ** (2 if squared else 1) + (p - here).square().sum() / 2
    found = torch.cat(parts)
    near = torch.randn(15, 5, generator=g, dtype=torch.float64)
    others = [found + size * step for size, step in zip((1e-3, 0.1, 1.0) * 5, near)]
    assert all(cost(found) <= cost(p) + 1e-9 for p in [*others, anchor, here])


def test_pulling_back_stops_at_the_anchor():
    p, a = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])], [torch.zeros(2), torch.zeros(1)]
    pull_back(p, a, 1.0)
    torch.testing.assert_close(torch.cat(p), torch.tensor([2.4, 0.0, 3.2]))
    pull_back(p, a, 4.5)
    assert not torch.cat(p).any()
    pull_back(p, a, 4.5)
    assert not torch.cat(p).any()


def test_distillation_over_all_classes_counts_new_ones_as_wrong():
    teacher, z = torch.randn(6, 3, generator=generator(0)), torch.randn(6, 5, generator=generator(1))
    p, q = (np.exp(v.double().numpy()) for v in (teacher, z))
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    want = (p * np.log(p / q[:, :3])).sum(1).mean()
    assert server_distillation(teacher, z, "all").item() == pytest.approx(want, rel=1e-5)
    assert server_distillation(teacher, z).item() == pytest.approx(distillation_loss(teacher, z).item())
    louder = z + torch.tensor([0, 0, 0, 4.0, 4.0])
    assert server_distillation(teacher, louder, "all") > server_distillation(teacher, z, "all") + 1
    torch.testing.assert_close(server_distillation(teacher, louder), server_distillation(teacher, z))


@pytest.fixture
def pair(scene):
    "A server in the second task, its teacher and a network to train."
    server = scene.server()
    TaskServer.merge(server, scene.replies)
    theta = server.network()
    return server, server.formula(theta), theta


def test_distillation_is_0_where_student_and_teacher_agree(pair):
    _, formula, _ = pair
    student = frozen(formula.teacher).requires_grad_(True)
    loss = formula.distilled(student, generator(0))
    loss.backward()
    grads = [p.grad for p in student.parameters() if p.grad is not None]
    assert abs(loss.item()) < 1e-6 and grads and max(g.abs().max() for g in grads) < 1e-5


def test_distillation_looks_at_old_logits_up_to_a_constant(pair):
    server, formula, theta = pair
    bias = theta.discriminator.head.bias.data
    want = formula.distilled(theta, generator(1)).item()
    bias[:server.old] += 5
    bias[server.old:] -= 9
    assert formula.distilled(theta, generator(1)).item() == pytest.approx(want, abs=1e-5) and want > 1e-4
    bias[0] += 3
    assert abs(formula.distilled(theta, generator(1)).item() - want) > 0.05


def test_distillation_moves_cate_and_the_way_to_the_classes_alone(pair):
    server, formula, theta = pair
    formula.distilled(theta, generator(2)).backward()
    moved = {name for name, p in theta.named_parameters() if p.grad is not None and p.grad.any()}
    assert (moved == {name for name, _ in theta.named_parameters()
                      if not name.startswith(("generator.", "discriminator.real."))})
    assert not theta.discriminator.head.weight.grad[server.old:].any()
    assert all(p.grad is None for p in formula.teacher.parameters())


def test_the_wasserstein_loss_moves_cate_alone(pair):
    _, formula, theta = pair
    formula.parted(theta).backward()
    moved = {name for name, p in theta.named_parameters() if p.grad is not None and p.grad.any()}
    assert moved == {name for name, _ in theta.named_parameters() if name.startswith("cate.")}
    assert all(p.grad.isfinite().all() for p in theta.cate.parameters())


def test_the_server_asks_for_every_old_class_equally_often(pair, monkeypatch):
    server, formula, theta = pair
    asked, sample = [], Generator.sample
    monkeypatch.setattr(Generator, "sample",
                        lambda self, y, *args: (asked.append((self, y)), sample(self, y, *args))[1])
    formula.distilled(theta, generator(0))
    assert asked[0][0] is formula.teacher.generator and asked[0][1].bincount().tolist() == [8, 8, 8]
    assert server.old == 3
    asked.clear()
    assert [x.shape for x in server.paint(server.network().generator)] == [(24, 1, 28, 28)] * 2
    assert [y.unique().tolist() for _, y in asked] == [[0, 1, 2], [3, 4, 5]]
    assert all(y.unique(return_counts=True)[1].eq(8).all() for _, y in asked)


@pytest.mark.parametrize("alone", [0.0, 0.5, 1.0])
def test_the_server_distils_with_means_by_task_or_each_pictures_own(pair, monkeypatch, alone):
    server, formula, theta = pair
    seen, judge = [], GTEA.judge
    monkeypatch.setattr(GTEA, "judge",
                        lambda self, x, groups=None: (seen.append(groups), judge(self, x, groups))[1])
    assert server.how.alone == 0.5
    formula.how = replace(server.how, alone=alone)
    for seed in range(12): formula.distilled(theta, generator(seed))
    grouped = [groups is not None for groups in seen]
    assert grouped[::2] == grouped[1::2]
    assert set(grouped) == {0.0: {True}, 0.5: {True, False}, 1.0: {False}}[alone]


def test_moments_are_those_of_batches(pair):
    server, _, theta = pair
    pictures = server.paint(theta.generator)
    means, covs = batch_moments(theta.cate, pictures)
    assert torch.equal(batch_moments(theta.cate, pictures, 16)[1], covs * 4)
    for mean, cov, x in zip(means, covs, pictures):
        z = theta.cate(x).detach().double().numpy()
        np.testing.assert_allclose(mean.detach(), z.mean(0), atol=1e-5)
        np.testing.assert_allclose(cov.detach(), np.cov(z.T, bias=True) / 64, atol=1e-6)


# ---- the server's step
def close(got, want):
    for name in want:
        torch.testing.assert_close(got[name].double(), want[name].double(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("anchor", [0.4, 0.0])
def test_without_distillation_and_wasserstein_the_average_stays(scene, anchor):
    server, plain = scene.merged(distillation=0.0, wasserstein=0.0, anchor=anchor), scene.server()
    TaskServer.merge(plain, scene.replies)
    assert equal(server.weights, plain.weights) and len(server.log) == 1
    close(server.weights, scene.average)


def test_the_first_task_has_no_step_of_the_server(stream):
    first = Scene(stream, BRISK, task=0)
    server = first.merged()
    assert server.log == []
    close(server.weights, first.average)


def test_a_single_client_is_its_own_average(stream):
    one = replace(SMOKE, clients=1)
    first = Scene(make_stream(one, 0), one, task=0)
    [(_, reply)] = first.replies
    server = first.merged()
    assert equal(server.weights, part(reply.tensors, "model"))
    torch.testing.assert_close(server.gaussians[0].mean, reply.tensors["moments/mean"])
    torch.testing.assert_close(server.gaussians[0].cov, reply.tensors["moments/cov"])


def test_the_generator_does_not_move_in_the_step(scene, merged):
    close(only("generator.", merged.weights), only("generator.", scene.average))
    close(only("discriminator.real.", merged.weights), only("discriminator.real.", scene.average))
    for half in ("cate.", "discriminator.body."):
        assert all((t - scene.average[name]).abs().max() > 1e-4
                   for name, t in only(half, merged.weights).items())


def test_weights_of_the_losses_reach_the_server():
    sizes = replace(SMOKE, distillation=0.11, wasserstein=0.22, anchor=0.33, server_steps=7, critic_lr=0.044,
                    server_batch=5, painted=9)
    def said(server, *terms):
        return ServerLoss(server.how, [2], None, None, []).of(*map(torch.tensor, terms)).item()
    server = StreamExperiment(sizes, method=FedGTEA).server()
    assert said(server, 1.0, 10.0, 100.0) == pytest.approx(0.11 + 2.2 + 33)
    how = server.how
    assert (how.server_steps, how.critic_lr, how.server_batch, how.painted) == (7, 0.044, 5, 9)
    for method, at in ((NoDistillation, 0), (NoWasserstein, 1), (NoAnchor, 2), (NoCATE, 1), (NoTasks, 1)):
        weights = [0.11, 0.22, 0.33]
        weights[at] = 0
        server = StreamExperiment(sizes, method=method).server()
        got = [said(server, *terms) for terms in torch.eye(3).tolist()]
        assert got == pytest.approx(weights), method.name


@pytest.mark.parametrize("name", ["distillation", "wasserstein", "anchor"])
def test_each_weight_changes_the_step(scene, merged, name):
    other = scene.merged(**{name: 2.0})
    assert not equal(other.weights, merged.weights)


def test_the_step_is_taken_every_so_many_rounds(stream):
    sizes = replace(SMOKE, tasks=2, rounds=4, server_every=3)
    outcome = run_stream(FedGTEA, make_stream(sizes, 0), sizes, 0, workers=1)
    assert [row["round"] for row in outcome.server.log] == [6, 7]
    assert outcome.server.track.keys() == {0, 1} == outcome.server.gaussians.keys()
    assert [len(outcome.server.track[t][0]) for t in (0, 1)] == [1, 2]


@pytest.fixture(scope="module")
def steps(stream, scene, merged):
    """For some seeds a scene, the server after the full step and the one after a step without each term: all
    else is the same."""
    def without(scene, full=None):
        return ({None: full or scene.merged()}
                | {name: scene.merged(**{name: 0.0}) for name in ("distillation", "wasserstein", "anchor")})
    other = Scene(make_stream(SMOKE, 1), BRISK, seed=1)
    return [(scene, without(scene, merged)), (other, without(other))]


def test_the_wasserstein_loss_parts_the_tasks(steps):
    for _, after in steps:
        apart = {name: pairwise_wasserstein2(*after[name].track[1]).detach().sum().item()
                 for name in (None, "wasserstein")}
        assert apart[None] > 2 * apart["wasserstein"], apart


def test_without_the_anchor_the_weights_drift_further(steps):
    for scene, after in steps:
        drift = {name: math.sqrt(sum((t - scene.average[key]).square().sum().item()
                                     for key, t in after[name].weights.items())) for name in (None, "anchor")}
        assert drift["anchor"] > 2 * drift[None], drift


def test_with_distillation_old_logits_move_less(steps):
    for _, after in steps:
        moved = {}
        for name in (None, "distillation"):
            theta, old = after[name].network(), after[name].old
            teacher = frozen(theta, after[name].before)
            x = teacher.generator.sample(torch.arange(120) % old, generator(99))
            moved[name] = distillation_loss(teacher(x)[:, :old], theta(x)).item()
        assert moved["distillation"] > 2 * moved[None], moved


# ---- walks
@pytest.mark.slow
@pytest.mark.parametrize("kind", by_day(["falling", "constant", "proximal"], "constant", "proximal"))
def test_each_way_to_walk_goes_down(scene, kind):
    "With the anchor, and nothing left of the distillation's noise, the sum of the terms falls."
    server = scene.server(server_steps=40, critic_lr=5e-4, walk=kind, server_batch=240)
    server.merge(scene.replies)
    [entry] = server.log
    assert entry["sum"] < entry["began"] and entry["anchor"] > 1e-3


def test_a_falling_rate_rests_where_a_constant_one_chatters(pair):
    "Of the anchor alone, started off it: Adam's constant steps keep on passing the kink."
    _, formula, theta = pair
    ends = {}
    for kind in ("constant", "falling", "proximal"):
        formula.how = replace(formula.how, walk=kind, distillation=0.0, wasserstein=0.0, server_steps=60,
                              critic_lr=1e-3)
        formula.beta, student = 0.0, frozen(formula.average).requires_grad_(True)
        with torch.no_grad():
            for p in student.parameters(): p.add_(1e-4)
        walk(formula, student, generator(0))
        ends[kind] = anchor_loss(student.parameters(), formula.average.parameters()).item()
    assert ends["proximal"] < 1e-5 and ends["falling"] < 0.5 * ends["constant"], ends


def test_an_anchor_that_pulls_harder_than_the_rest_holds(scene):
    server = scene.merged(walk="proximal", anchor=1.1)
    close(server.weights, scene.average)
    assert server.log[0]["anchor"] < 1e-5 and server.log[0]["forces"]["together"] > 0


def test_an_unknown_walk_is_refused(pair):
    _, formula, theta = pair
    formula.how = replace(formula.how, walk="away")
    with pytest.raises(UserError, match="walk='away' is unknown; choose falling"):
        walk(formula, theta, generator(0))


def test_forces_are_lengths_of_gradients(pair):
    _, formula, theta = pair
    found = forces(formula, theta, generator(3), draws=1)
    kd, parted, _ = formula.terms(theta, generator(3))
    theta.zero_grad()
    (0.3 * kd).backward()
    cate = math.sqrt(sum(p.grad.square().sum().item() for p in theta.cate.parameters()))
    assert found["distillation"] == pytest.approx(cate, rel=1e-4)
    (0.3 * parted).backward()
    whole = math.sqrt(sum(p.grad.square().sum().item() for p in theta.parameters() if p.grad is not None))
    assert found["together"] == pytest.approx(whole, rel=1e-4) and found["Wasserstein"] > 0


def test_balanced_weights_pull_as_their_ratio_says(pair):
    _, formula, theta = pair
    formula.how = replace(formula.how, weighing="balanced", distillation=0.3, wasserstein=0.6)
    formula.beta = 0.6
    formula.balance(forces(formula, theta, generator(3)))
    found = forces(formula, theta, generator(3))
    assert found["Wasserstein"] == pytest.approx(2 * found["distillation"], rel=1e-3)
    formula.balance({"together": 1.0})


def test_the_log_measures_where_the_walk_began_and_ended(scene, merged):
    [entry] = merged.log
    assert set(entry) == {"round", "began", "forces", "distillation", "wasserstein", "anchor", "sum"}
    server = scene.server()
    TaskServer.merge(server, scene.replies)
    theta = server.network()
    formula, random = server.formula(theta), generator(server.seed, server.round, 2)
    assert measured(formula, theta, random)["sum"] == pytest.approx(entry["began"])
    theta.load_state_dict(merged.weights)
    random = generator(server.seed, server.round, 2)
    assert measured(formula, theta, random)["sum"] == pytest.approx(entry["sum"])
    want = 0.3 * entry["distillation"] + 0.3 * entry["wasserstein"] + 0.4 * entry["anchor"]
    assert entry["sum"] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("field, value", [
    ("weighing", "balanced"), ("softmax", "all"), ("norm", "squared"), ("walk", "proximal"),
    ("walk", "constant"), ("per_batch", 1)])
def test_every_form_can_be_chosen_and_changes_the_step(scene, merged, field, value):
    sizes = sizes_of("smoke", {field: str(value)})
    assert getattr(StreamExperiment(sizes, method=FedGTEA).server().how, field) == value
    assert not equal(scene.merged(**{field: value}).weights, merged.weights)


def test_the_length_of_embeddings_can_be_chosen(stream):
    sizes = sizes_of("smoke", {"length": "unit"})
    assert StreamExperiment(sizes, method=FedGTEA).server().model.cate.length == "unit"
    assert StreamExperiment(sizes, method=NoCATE).server().model.cate is None
    with pytest.raises(UserError, match="length='long'"): sizes_of("smoke", {"length": "long"})
    outcome = run_stream(FedGTEA, stream, sizes, 0, workers=1)
    assert all(float(g.mean.square().sum() + g.cov.trace()) == pytest.approx(1, abs=0.05)
               for g in outcome.server.gaussians.values())


def test_the_track_holds_numbers_and_no_graph(merged):
    "A graph would keep every task's painted pictures in memory."
    assert all(not t.requires_grad for pair in merged.track.values() for t in pair)


# ---- the client
def at_task_1(scene, id=0, **options):
    "A client with a network of its own that has begun the second task."
    client = FedGTEAClient(id, build(partial(GTEA, 3, scene.stream.shape), 0), scene.stream.clients[id],
                           iterations=2, gan_batch=4, **options)
    server = scene.server()
    client.fit(server.send(id))
    return client, server


def test_nothing_is_replayed_in_the_first_task():
    client = FedGTEAClient(0, build(partial(GTEA, 6, (1, 28, 28)), 0), [], iterations=30, gan_batch=8)
    x, y = replayed(client.model, {}, 0, 30, 8, generator(0))
    assert x.shape == (30, 0, 1, 28, 28) and y.shape == (30, 0)


def test_replay_has_old_classes_alone_and_all_alike(scene):
    client, _ = at_task_1(scene)
    y = replayed(client.model, client.store["previous"], client.old, 300, 4, generator(0))[1].flatten()
    share = y.bincount(minlength=6) / len(y)
    assert len(y) == 1200 and not share[3:].any() and (share[:3] - 1 / 3).abs().max() < 0.05


def test_replay_paints_with_the_generator_from_before_the_task(scene):
    client, server = at_task_1(scene)
    before = half_of(part(scene.opened.tensors, "weights"), "generator")
    assert equal(client.store["previous"], before) and not equal(snapshot(client.model.generator), before)
    got_x, got_y = replayed(client.model, client.store["previous"], client.old, 2, 4, generator(5))
    random = generator(5)
    y = torch.randint(3, (8,), generator=random)
    assert torch.equal(got_y.flatten(), y)
    assert torch.equal(got_x.flatten(0, 1), frozen(client.model.generator, before).sample(y, random))
    client.fit(server.send(0))
    assert equal(client.store["previous"], before)


def test_every_task_has_a_frozen_generator_of_its_own(stream):
    third = Scene(stream, SMOKE, task=2)
    opened = half_of(part(third.opened.tensors, "weights"), "generator")
    for client in third.clients: assert equal(client.store["previous"], opened)


def test_a_latecomer_replays_what_was_there_before_the_task(stream):
    sizes, late = replace(SMOKE, rounds=2), 1
    scene = Scene(stream, sizes)
    server = scene.server()
    server.merge(scene.replies[:1])
    server.begin(scene.ids, scene.round + 1)
    client = StreamExperiment(sizes, method=FedGTEA).client(late)
    fit(client, server.send(late))
    before = half_of(part(scene.opened.tensors, "weights"), "generator")
    assert equal(client.store["previous"], before) and not equal(before, half_of(server.weights, "generator"))


@pytest.mark.parametrize("alone", [0.0, 1.0])
def test_embeddings_in_training_are_means_by_task_or_each_pictures_own(scene, monkeypatch, alone):
    seen, judge = [], GTEA.judge
    def seen_judge(self, x, groups=None):
        if torch.is_grad_enabled(): seen.append(groups)
        return judge(self, x, groups)
    monkeypatch.setattr(GTEA, "judge", seen_judge)
    at_task_1(scene, alone=alone)
    assert len(seen) == 2 * 3
    for groups in seen: assert groups is None if alone else groups.tolist() == [1] * 4 + [0] * 4


def test_the_generators_step_leaves_the_critic_alone(scene):
    client, _ = at_task_1(scene)
    x, y = as_float(scene.stream.clients[0][1][0][:4]), scene.stream.clients[0][1][1][:4]
    rivals = Rivals(client.model, 0.0, 1e-3)
    before = snapshot(client.model)
    rivals.step(x, y, None, torch.randn(4, 100, generator=generator(0)))
    changed = {name.split(".")[0]
               for name, t in snapshot(client.model).items() if not torch.equal(t, before[name])}
    assert changed == {"generator"}


def test_what_chance_decides_is_drawn_in_the_order_of_the_steps(scene):
    "Drawing it ahead changes no number: pictures, replay, then coin and noise of each step in turn."
    client, _ = at_task_1(scene)
    state, random = client.generator.get_state(), torch.Generator()
    steps = list(drawn_ahead(client))
    random.set_state(state)
    (x, y), old = client.data(), client.old
    picks = torch.randint(len(y), (2, 4), generator=random)
    old_x, old_y = replayed(client.model, client.store["previous"], old, 2, 4, random)
    for k, (got_x, got_y, groups, noise) in enumerate(steps):
        alone = torch.rand((), generator=random) < 0.5
        assert torch.equal(noise, torch.randn(8, 100, generator=random))
        assert torch.equal(got_x, torch.cat([as_float(x[picks[k]]), old_x[k]]))
        assert torch.equal(got_y, torch.cat([y[picks[k]], old_y[k]]))
        assert groups is None if alone else groups.tolist() == [1] * 4 + [0] * 4
    assert len(steps) == 2 and torch.equal(client.generator.get_state(), random.get_state())


def few_pictures(scene, n):
    "A server, client 0 with `n` pictures of the second task, and its reply."
    tasks = [(x[:n], y[:n]) if t else (x, y) for t, (x, y) in enumerate(scene.stream.clients[0])]
    model = build(partial(GTEA, 3, scene.stream.shape), 0)
    client = FedGTEAClient(0, model, tasks, iterations=2, gan_batch=4)
    server = scene.server()
    return server, client, fit(client, server.send(0))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_moments_of_one_or_two_pictures_are_not_sent(scene, n):
    server, client, reply = few_pictures(scene, n)
    assert ("moments/mean" in reply.tensors) == (n == 3)
    server.accept("fit", 0, reply)
    server.merge([(0, reply)])
    assert server.gaussians.keys() == ({0, 1} if n == 3 else {0})
    assert len(server.classify(scene.stream.test[0][0][:3], "gaussian")) == 3


@pytest.mark.parametrize("n, words", [(1, "moments of 1 picture are"), (2, "moments of 2 pictures are")])
def test_moments_of_one_or_two_pictures_are_refused(scene, n, words):
    server, (id, reply) = scene.server(), scene.replies[0]
    with pytest.raises(Refused, match=words):
        server.accept("fit", id, Msg(reply.tensors, {**reply.meta, "n": n}))


def test_moments_of_two_pictures_are_their_embeddings(scene):
    "Why there is a least number: whoever has the moments has both."
    z = embed_all(scene.server().network(), scene.stream.clients[0][1][0][:2]).double()
    g = Gaussian.from_samples(z)
    values, axes = torch.linalg.eigh(g.cov)
    found = torch.stack([g.mean + sign * values[-1].sqrt() * axes[:, -1] for sign in (-1, 1)])
    assert torch.cdist(found, z).min(1).values.max() < 1e-6


def test_moments_are_missed_where_there_should_be_some(scene):
    server, (id, reply) = scene.server(), scene.replies[0]
    bare = {name: t for name, t in reply.tensors.items() if not name.startswith("moments/")}
    with pytest.raises(Refused, match="missing"): server.accept("fit", id, Msg(bare, reply.meta))


def test_moments_in_a_reply_are_those_of_cate_on_the_tasks_pictures(scene):
    for id, reply in scene.replies:
        model = build(partial(GTEA, 6, scene.stream.shape), 5)
        model.load_state_dict(part(reply.tensors, "model"))
        x = scene.stream.clients[id][1][0]
        z = model.cate(as_float(x)).detach().double().numpy()
        np.testing.assert_allclose(reply.tensors["moments/mean"], z.mean(0), atol=1e-5)
        np.testing.assert_allclose(reply.tensors["moments/cov"], np.cov(z.T, bias=True), atol=1e-5)
        assert reply.meta["n"] == len(x)


def test_the_servers_gaussian_is_that_of_all_clients_embeddings(scene, merged):
    model, z = build(partial(GTEA, 6, scene.stream.shape), 5), []
    for id, reply in scene.replies:
        model.load_state_dict(part(reply.tensors, "model"))
        z.append(embed_all(model, scene.stream.clients[id][1][0]).double().numpy())
    z, got = np.concatenate(z), merged.gaussians[1]
    np.testing.assert_allclose(got.mean, z.mean(0), atol=1e-5)
    np.testing.assert_allclose(got.cov, np.cov(z.T, bias=True), atol=1e-5)
    assert got.n == len(z) == scene.n.sum() and merged.gaussians.keys() == {0, 1}


def test_without_cate_no_moments_cross(stream):
    experiment = StreamExperiment(SMOKE, method=NoCATE)
    server, client = experiment.server(), experiment.client(0)
    server.begin([0], 0)
    reply = fit(client, server.send(0))
    server.accept("fit", 0, reply)
    server.merge([(0, reply)])
    assert all(name.startswith("model/") and "cate" not in name for name in reply.tensors)
    assert server.gaussians == {} == server.track
    with pytest.raises(Refused):
        server.accept("fit", 0,
                      Msg({**reply.tensors, "moments/mean": torch.zeros(64), "moments/cov": torch.eye(64)},
                          reply.meta))
    with pytest.raises(UserError, match="Gaussian"): server.classify(stream.test[0][0][:3], "gaussian")


def spoiled(kind, tensors):
    mean, cov = tensors["moments/mean"].clone(), tensors["moments/cov"].clone()
    if kind == "asymmetric": cov[0, 1] += 1
    if kind == "negative": cov -= 0.1 * cov.trace() * torch.eye(len(cov))
    if kind == "nan in cov": cov[2, 2] = math.nan
    if kind == "nan in mean": mean[2] = math.nan
    if kind == "infinite": mean[0] = math.inf
    if kind == "short mean": mean = mean[:-1]
    if kind == "wrong shape": cov = cov[:-1]
    if kind == "double": cov = cov.double()
    if kind == "far mean": mean = torch.full_like(mean, 1e30)
    if kind == "wide cov": cov = 1e30 * torch.eye(len(cov))
    tensors = {**tensors, "moments/mean": mean, "moments/cov": cov}
    if kind == "missing": del tensors["moments/cov"]
    if kind == "extra": tensors["moments/skew"] = mean
    return tensors


KINDS = ("asymmetric", "negative", "nan in cov", "nan in mean", "infinite", "short mean", "wrong shape",
         "double", "missing", "extra", "far mean", "wide cov")


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_moments_are_refused(scene, kind):
    server, (id, reply) = scene.server(), scene.replies[0]
    server.accept("fit", id, reply)
    with pytest.raises(Refused): server.accept("fit", id, Msg(spoiled(kind, reply.tensors), reply.meta))


class Liar(FedGTEAClient):
    "Client 1 sends a covariance that is none."

    def fit(self, msg):
        reply = super().fit(msg)
        return Msg(spoiled("negative", reply.tensors), reply.meta) if self.id == 1 else reply


def test_a_round_goes_on_without_a_refused_reply(stream):
    sizes = replace(SMOKE, tasks=2)
    here = make_stream(sizes, 0)
    with pytest.warns(UserWarning, match="2 of 3"):
        got = run_stream(FedGTEA._replace(client=Liar), here, sizes, 0, workers=1)
    assert {(miss["client"], miss["round"]) for miss in got.federation.ledger.absent} == {(1, 0), (1, 1)}
    assert all("negative eigenvalue" in miss["reason"] for miss in got.federation.ledger.absent)
    assert got.server.gaussians[1].n == sum(len(here.clients[k][1][1]) for k in (0, 2))
    assert np.isfinite(got.accuracy)


# ---- test modes
@pytest.fixture
def told(scene):
    """A server whose class head looks at the embedding alone, so that what the classifier is told can be read
    off, with pictures."""
    server = scene.merged()
    weights, random = {name: t.clone() for name, t in server.weights.items()}, generator(8)
    head = weights["discriminator.head.weight"]
    head[:, :-64], head[:, -64:] = 0, torch.randn(6, 64, generator=random)
    server.weights = weights
    x = torch.cat([scene.stream.test[0][0][:20], scene.stream.test[1][0][:20]])
    return server, x[torch.randperm(40, generator=random)]


def test_by_default_each_picture_stands_alone(scene, merged):
    x = torch.cat([x[:15] for x, _ in scene.stream.test[:2]])
    got = merged.classify(x)
    assert torch.equal(got, merged.classify(x, "per_sample"))
    assert torch.equal(got, torch.cat([merged.classify(one[None]) for one in x]))
    with torch.no_grad(): assert torch.equal(got, merged.network()(as_float(x)).argmax(1))
    assert torch.equal(merged.classify(x.flip(0)).flip(0), got) and got.dtype == torch.int64


def test_a_batch_of_a_task_depends_on_neighbours(told):
    server, x = told
    single, model = server.classify(x), server.network()
    together = server.classify(x, "task_batch", batch=8)
    with torch.no_grad():
        want = torch.cat([model(as_float(b), torch.zeros(len(b), dtype=torch.int64)).argmax(1)
                          for b in x.split(8)])
    assert torch.equal(together, want) and all(len(b.unique()) == 1 for b in together.split(8))
    assert len(single.unique()) > 1
    assert not torch.equal(together, single)
    assert torch.equal(server.classify(x, "task_batch", batch=1), single)
    padded = torch.cat([x[:1], x[20:27]])
    assert any(server.classify(torch.cat([x[i:i + 1], padded]), "task_batch")[0] != single[i]
               for i in range(len(x)))


def test_the_nearest_gaussian_says_which_task(told):
    server, x = told
    z = embed_all(server.network(), x)
    gaussians = [Gaussian(z[0], torch.eye(64), 5), Gaussian(z[1], torch.eye(64), 5),
                 Gaussian(z[:9].mean(0), torch.eye(64), 5)]
    means = torch.stack([g.mean for g in gaussians])
    nearest = torch.cdist(z.double(), means.double()).argmin(1)
    w, b = (server.weights[f"discriminator.head.{name}"] for name in ("weight", "bias"))
    want = (means[nearest] @ w[:, -64:].T + b).argmax(1)
    assert torch.equal(server.classify(x, "gaussian", gaussians), want) and len(nearest.unique()) > 1
    assert nearest[:2].tolist() == [0, 1]
    assert torch.equal(server.classify(x, "gaussian"),
                       server.classify(x, "gaussian", [server.gaussians[0], server.gaussians[1]]))


def test_the_likeliest_gaussian_minds_the_width():
    z = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.9, 0.0]])
    narrow = Gaussian(torch.zeros(2), 0.01 * torch.eye(2), 9)
    wide = Gaussian(torch.tensor([1.0, 0.0]), 4 * torch.eye(2), 9)
    assert _likeliest([narrow, wide], z).tolist() == [0, 1, 1]
    assert _likeliest([wide, narrow], z).tolist() == [1, 0, 0]


def test_an_unknown_mode_is_refused(merged, stream):
    with pytest.raises(UserError, match="mode='oracle'.*per_sample"):
        merged.classify(stream.test[0][0][:2], "oracle")


# ---- states
def test_a_server_comes_back_from_its_state(scene, merged):
    other = StreamExperiment(BRISK, 7, method=FedGTEA).server()
    other.load(unpack(pack(merged.state())))
    a, b = merged.state(), other.state()
    assert equal(a.tensors, b.tensors) and a.meta == b.meta and equal(other.weights, merged.weights)
    assert other.log == merged.log
    assert equal(other.before, merged.before) and other.ready == merged.ready
    assert other.task == merged.task == 1
    x = scene.stream.test[1][0]
    for mode in modes: assert torch.equal(other.classify(x, mode), merged.classify(x, mode))


def test_a_client_comes_back_from_its_state(scene):
    client, server = at_task_1(scene)
    other = FedGTEAClient(0, build(partial(GTEA, 3, scene.stream.shape), 3), scene.stream.clients[0], seed=9,
                          iterations=2, gan_batch=4)
    other.load(unpack(pack(client.state())))
    a, b = client.state(), other.state()
    assert equal(a.tensors, b.tensors) and a.meta == b.meta
    one, two = fit(client, server.send(0)), fit(other, server.send(0))
    assert equal(one.tensors, two.tensors) and one.meta == two.meta


# ---- whole runs
@pytest.fixture(scope="module")
def outcomes(stream): return {m.name: run_stream(m, stream, SMOKE, 0, workers=1) for m in METHODS}


@every_method
def test_every_method_runs(method, outcomes, stream):
    outcome = outcomes[method.name]
    a = np.array(outcome.matrix)
    assert a.shape == (3, 3) and np.isnan(a[np.triu_indices(3, 1)]).all()
    assert np.isfinite(a[np.tril_indices(3)]).all()
    assert outcome.forgetting == pytest.approx(np.mean(np.nanmax(a, 0)[:-1] - a[-1, :-1]))
    assert np.nanmax(a, 0).min() >= 0
    assert outcome.accuracy == pytest.approx(np.average(a[-1], weights=[len(y) for _, y in stream.test]))
    assert not outcome.federation.ledger.absent
    assert all(t.isfinite().all() for t in outcome.server.weights.values())
    assert [row["round"] for row in outcome.server.log] == [1, 2]


def test_every_method_ends_with_weights_of_its_own(outcomes):
    for a, b in itertools.combinations(outcomes.values(), 2):
        assert not equal(a.server.weights, b.server.weights)


def test_methods_that_train_alike_agree_in_the_first_task(stream):
    "What the server's losses weigh changes nothing before the second task."
    sizes = replace(SMOKE, tasks=1, rounds=2, pictures=20)
    one = make_stream(sizes, 0)
    want = run_stream(FedGTEA, one, sizes, 0, workers=1).server.weights
    for method in (NoWasserstein, NoAnchor, NoDistillation):
        assert equal(run_stream(method, one, sizes, 0, workers=1).server.weights, want)
    assert not equal(run_stream(NoTasks, one, sizes, 0, workers=1).server.weights, want)


def test_another_seed_is_another_run(outcomes, stream):
    other = run_stream(FedGTEA, stream, SMOKE, 1, workers=1)
    assert not equal(other.server.weights, outcomes["FedGTEA"].server.weights)


@pytest.mark.slow
def test_a_run_is_proven():
    few = dict(pictures=8, test_pictures=4, iterations=1, server_steps=1)
    tiny = replace(SMOKE, tasks=2, rounds=2, clients=2, **few)
    prove(StreamExperiment(tiny, method=FedGTEA), kills=2)
    prove(StreamExperiment(tiny, method=NoCATE), kills=1, kinds=("silent", "names"))


def test_tasks_may_have_one_class_or_seven():
    narrow = replace(SMOKE, pictures=12, test_pictures=5, clients=2)
    whole = make_stream(replace(narrow, tasks=10), 0)
    def joined(tasks, of):
        return [tuple(torch.cat(parts) for parts in zip(*[of[t] for t in group])) for group in tasks]
    groups = [[0], [1, 2], [3, 4, 5, 6, 7, 8, 9]]
    uneven = continual.Stream([sum((whole.tasks[t] for t in g), []) for g in groups],
                              [joined(groups, c) for c in whole.clients], joined(groups, whole.test),
                              "uneven")
    outcome = run_stream(FedGTEA, uneven, narrow, 0, workers=1)
    assert uneven.classes == [1, 2, 7] and np.isfinite(outcome.accuracy)
    assert len(outcome.server.track[2][0]) == 3


# ---- the stream of questions
def test_what_one_picture_allows_by_trying():
    "The best answer to each kind of picture, learnt from a million of them."
    rng, n = np.random.default_rng(0), 1_000_000
    question = rng.integers(0, 4, n)
    kinds = rng.random((n, 4)) < RARE
    kinds[np.arange(n), question] = rng.random(n) < 0.5
    counted = np.zeros((16, 4))
    np.add.at(counted, (kinds @ [1, 2, 4, 8], question), 1)
    assert ceiling_of_one() == pytest.approx(counted.max(1).sum() / n, abs=3e-3)
    assert ceiling_of_one(0.5) == pytest.approx(0.25) and ceiling_of_one(0.0) == pytest.approx(0.5 + 0.5 / 4)


@pytest.fixture(scope="module")
def asked(): return question_stream(replace(SMOKE, pictures=400, test_pictures=100), 3)


def attributes(x):
    "Of pictures of a bar that stands in an empty picture: bright, lying, right, read off the pixels."
    bright = x.amin((1, 2, 3)) >= 128
    shown = x.float() > 200
    rows, columns = (shown.any(d).squeeze(1).sum(1) for d in (3, 2))
    middle = (shown.any(2).squeeze(1).float() * torch.arange(x.shape[-1])).sum(1) / columns
    return torch.stack([bright, columns > rows, middle > 13.5], 1).long()


def test_the_answers_can_be_read_off_a_picture():
    bar = torch.zeros(5, 1, 28, 28, dtype=torch.uint8)
    bar[:, :, 2:26, 10:18] = 255
    disc = torch.full((9, 1, 28, 28), 60, dtype=torch.uint8)
    answers = torch.tensor(list(itertools.product((0, 1), repeat=3)))
    answers = torch.cat([torch.zeros(8, 1, dtype=torch.int64), answers], 1)
    x = answered_pictures(answers, [bar, disc], generator(0))
    assert x.dtype == torch.uint8 and x.shape == (8, 1, 28, 28) and torch.equal(attributes(x), answers[:, 1:])
    other = answered_pictures(torch.tensor([[1, 0, 0, 0]]), [bar, disc], generator(0))
    assert other.unique().tolist() == [0, 60]


def test_each_question_has_its_company(asked):
    assert asked.classes == [2, 2, 2, 2] and asked.tasks[1] == ["dark", "bright"]
    for pairs in (asked.test, *asked.clients):
        for t, (x, y) in enumerate(pairs):
            assert set((y // 2).tolist()) == {t}
            bright = (x.amin((1, 2, 3)) >= 128).float().mean().item()
            assert bright == pytest.approx(0.5 if t == 1 else RARE, abs=0.13)
            assert len({len(c[t][1]) for c in asked.clients}) <= 2
        shares = [float((y % 2).float().mean()) for _, y in pairs]
        assert shares == pytest.approx([0.5] * 4, abs=0.1)
    assert not equal(dict(x=asked.test[0][0]), dict(x=question_stream(replace(
        SMOKE, pictures=400, test_pictures=100), 4).test[0][0]))


def test_a_stream_of_questions_runs(stream):
    sizes = replace(SMOKE, pictures=30, test_pictures=10)
    experiment = StreamExperiment(sizes, 0, "cpu", FedGTEA, question_stream)
    prove(replace(experiment, sizes=replace(sizes, rounds=1, clients=2)), kills=1, kinds=("silent",))


@pytest.mark.parametrize("name", ["server_steps", "server_every", "server_batch", "painted"])
def test_a_server_needs_something_to_do(name):
    with pytest.raises(UserError, match=f"{name}=0 must be at least 1"): replace(SMOKE, **{name: 0})


# ---- real pictures
@pytest.fixture
def few_of_cifar10(tmp_path, monkeypatch):
    "The data set where there is one; of the large file of JPEGs, a few pictures of each class."
    try: folder = world.data_folder()
    except UserError as reason: pytest.skip(str(reason))
    if {row["name"]: row["state"] for row in world.inventory()}["cifar10"] != "found":
        pytest.skip("CIFAR-10 is not in the data folder")
    continual._pictures.cache_clear(), make_stream.cache_clear()
    if not any((folder / name).exists() for name in ("cifar-10-batches-py", "cifar-10-python.tar.gz")):
        seen = {}
        with zipfile.ZipFile(folder
                             / "cifar10-jpg.zip") as whole, zipfile.ZipFile(tmp_path / "cifar10-jpg.zip",
                                                                            "w") as few:
            for name in sorted(n for n in whole.namelist() if n.endswith(".jpg")):
                place = name.rsplit("/", 1)[0]
                seen[place] = seen.get(place, 0) + 1
                if seen[place] <= 20: few.writestr(name, whole.read(name))
        monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    yield
    continual._pictures.cache_clear(), make_stream.cache_clear()


def test_the_papers_profile_starts_and_resumes_on_cifar10(few_of_cifar10, tmp_path, kill):
    sizes = sizes_of("paper", dict(pictures=20, test_pictures=5, tasks=2, clients=2, rounds=1, iterations=1,
                                   gan_batch=4, server_steps=1, server_batch=5, painted=5))
    here = make_stream(sizes, 0)
    assert here.shape == (3, 32, 32) and here.classes == [5, 5] and sizes.network == "resnet18"
    want, path = run_stream(FedGTEA, here, sizes, 0, workers=1), tmp_path / "run.safetensors"
    kill(lambda: run_stream(FedGTEA, here, sizes, 0, checkpoint=Checkpoint(path), workers=1), stop=1)
    got = run_stream(FedGTEA, here, sizes, 0, checkpoint=Checkpoint(path), workers=1)
    assert equal(got.server.weights, want.server.weights) and str(got.matrix) == str(want.matrix)
    assert len(got.server.log) == 1
    assert got.server.model.cate.in_shape == (3, 32, 32)
    assert all(t.isfinite().all() for t in got.server.weights.values())
