"""Federated class-incremental learning: the parts against independent computations, the methods against FedAvg and each other."""
import itertools
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedbook.continual as continual
from fedbook.painters import (ACGAN, TARGET, ACGANClient, ACGANFedAvg, ACGANFedProx, ACGANNoReplay, FedCIL,
                              FedCILServer, LANDER, LANDERClient, ac_gan_losses, mapped, orthogonal_anchors)
from fedbook.penalties import (CGoFed, FLwF2T, FedEWC, FedEWCClient, FedLwF, extend_basis, fisher_diagonal,
                               layer_inputs)
from fedbook.exemplars import (DER, GLFC, DERClient, GLFCClient, ICaRL, ReFed, add_exemplars, compensation,
                               herding, importance)
from fedbook.continual import (FedAvg, FedProx, Finetune, distillation_loss, expandable_cnn,
                               expandable_resnet18, frozen, logits, make_stream, project, run_stream,
                               snapshot, StreamExperiment, stream_row, unit_features, widen)
from fedbook.engine import prove
from fedbook.lab import Results, UserError
from fedbook.local import build, generator
from fedbook.wire import Msg, Refused, unpack

SMOKE = continual.profiles["smoke"]
METHODS = (Finetune, FedAvg, FedProx, FedEWC, FedLwF, FLwF2T, ICaRL, DER, ReFed, CGoFed, ACGANNoReplay, ACGANFedAvg, ACGANFedProx, FedCIL, GLFC, TARGET, LANDER)
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)


@pytest.fixture(scope="module")
def stream(): return make_stream(SMOKE, 0)


def equal(a, b): return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_every_method_has_a_name_of_its_own(): assert len({m.name for m in METHODS}) == len(METHODS)


def test_importing_it_imports_little():
    heavy = ["matplotlib", "ipywidgets", "torchvision", "sklearn", "flwr", "IPython"]
    code = f"import sys, fedbook.continual; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# ---- stream
def test_labels_follow_the_order_of_arrival(stream):
    edges = np.cumsum([0, *stream.classes])
    assert len(sum(stream.tasks, [])) == len(set(sum(stream.tasks, []))) == 10 and stream.classes == [3, 3, 4]
    for t, (low, high) in enumerate(itertools.pairwise(edges)):
        assert set(stream.test[t][1].tolist()) == set(range(low, high))
        y = torch.cat([client[t][1] for client in stream.clients])
        assert y.bincount(minlength=high)[low:].tolist() == [SMOKE.pictures] * (high - low) and y.min() >= low
        assert all(len(client[t][1]) for client in stream.clients)


def test_a_label_means_the_same_class_in_training_and_test(stream):
    train, names = continual._pictures(SMOKE.data, "train"), sum(stream.tasks, [])
    x, y = stream.clients[0][1]
    for picture, label in zip(x[:5], y[:5]):
        at = (train.images == picture).flatten(1).all(1).nonzero().flatten()
        assert names[label] in {train.classes[train.labels[i]] for i in at}


def test_sizes_refuse_what_cannot_be():
    with pytest.raises(UserError, match="rounds=0"): replace(SMOKE, rounds=0)
    with pytest.raises(UserError, match="network='vit'"): replace(SMOKE, network="vit")


# ---- networks
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(0, 10), st.integers(1, 300), st.integers(1, 40), st.booleans())
def test_widening_keeps_old_logits(classes, n_new, dim, batch, bias):
    old = build(lambda: nn.Linear(dim, classes, bias=bias), 0)
    new = widen(old, n_new, generator(1))
    assert torch.equal(new.weight[:classes], old.weight) and new.out_features == classes + n_new
    assert torch.equal(new.weight, widen(old, n_new, generator(1)).weight)
    if bias: assert torch.equal(new.bias[:classes], old.bias) and not new.bias[classes:].any()
    x = torch.randn(batch, dim, generator=generator(2))
    assert torch.equal(new(x)[:, :classes], old(x)) and torch.equal(widen(new, 3, generator(3))(x)[:, :classes + n_new], new(x))
    assert new.weight.abs().max() <= max(1 / math.sqrt(dim), old.weight.abs().max())


@pytest.mark.parametrize("classes", [2, 4, 6, 8])
def test_a_network_keeps_its_old_logits_to_the_last_bit(classes):
    net, x = build(partial(expandable_cnn, classes), 0), torch.randn(64, 1, 28, 28, generator=generator(3))
    before = net(x)
    net.widen(2, generator(0))
    assert torch.equal(net(x)[:, :classes], before)


def test_widening_refuses_to_shrink_and_leaves_the_global_generator():
    state = torch.get_rng_state()
    with pytest.raises(UserError, match="n_new=-1"): widen(nn.utils.skip_init(nn.Linear, 2, 2), -1)
    widen(nn.utils.skip_init(nn.Linear, 2, 2), 3, generator(0))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("make", [expandable_cnn, partial(mapped, expandable_cnn), ACGAN], ids=["cnn", "mapped", "ac-gan"])
def test_a_network_takes_the_width_of_the_weights_it_is_given(make):
    wide, narrow, x = build(partial(make, 6, (1, 28, 28)), 0), build(partial(make, 2, (1, 28, 28)), 1), torch.zeros(3, 1, 28, 28)
    first = snapshot(narrow)
    narrow.load_state_dict(snapshot(wide))
    assert torch.equal(narrow(x), wide(x)) and narrow(x).shape == (3, 6)
    narrow.load_state_dict(first)
    assert narrow(x).shape == (3, 2)


def test_resnet_has_the_stem_for_small_pictures():
    net = build(partial(expandable_resnet18, 4), 0)
    assert net.body.conv1.kernel_size == (3, 3) and net.features(torch.zeros(2, 3, 32, 32)).shape == (2, 512)
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 4)


# ---- distillation
def test_distillation_by_hand():
    t, s, T = np.array([[1.0, -2.0, 0.5], [0.0, 0.3, 3.0]]), np.array([[0.2, 0.1, 0.0, 9.0], [1.0, 2.0, -1.0, -5.0]]), 2.5
    soft = lambda z: np.exp(z / T) / np.exp(z / T).sum(1, keepdims=True)
    p, q = soft(t), soft(s[:, :3])
    want = T**2 * (p * np.log(p / q)).sum() / 2
    assert distillation_loss(torch.tensor(t), torch.tensor(s), T).item() == pytest.approx(want, rel=1e-12)


def test_distillation_leaves_teacher_and_new_logits_alone():
    t, s = torch.randn(4, 3, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    distillation_loss(t, s).backward()
    assert t.grad is None and not s.grad[:, 3:].any() and s.grad[:, :3].any()
    same = torch.randn(4, 3, requires_grad=True)
    loss = distillation_loss(same.detach() + 7.0, same)
    loss.backward()
    assert loss.abs() < 1e-6 and same.grad.abs().max() < 1e-6


@pytest.mark.parametrize("shape", [(4, 2), (3, 5)])
def test_distillation_refuses_shapes_that_do_not_fit(shape):
    with pytest.raises(UserError, match="student_logits have shape"): distillation_loss(torch.zeros(4, 3), torch.zeros(shape))


# ---- Fisher
def linear_model(dim=12, classes=4):
    return nn.Sequential(nn.Flatten(), build(lambda: nn.Linear(dim, classes), 0)).double()


def test_fisher_against_a_float64_loop():
    model, random = linear_model(), generator(5)
    x, y = torch.randn(70, 1, 3, 4, generator=random, dtype=torch.float64), torch.randint(4, (70,), generator=random)
    want = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for i in range(70):
        model.zero_grad()
        F.cross_entropy(model(x[i:i + 1]), y[i:i + 1]).backward()
        for name, p in model.named_parameters(): want[name] += p.grad**2 / 70
    got = fisher_diagonal(model, x, y)
    for name in want: torch.testing.assert_close(got[name], want[name], rtol=1e-10, atol=1e-14)
    p = F.softmax(model(x), 1) - F.one_hot(y, 4)
    torch.testing.assert_close(got["1.weight"], p.square().T @ x.flatten(1).square() / 70)


def test_ewc_ties_weights_to_the_old_ones_in_proportion():
    net = build(partial(expandable_cnn, 4), 0)
    client = FedEWCClient(0, net, [], strength=10.0, clip=0.5)
    anchor = snapshot(net)
    fisher = {name: torch.full_like(p[:2] if name.startswith("head") else p, 2.0 if name == "head.bias" else 0.25).detach() for name, p in net.named_parameters()}
    client.kept = {"fisher": fisher, "anchor": anchor}
    with torch.no_grad():
        net.head.bias += 3.0
        net.body[0].bias += 2.0
    assert client.tension().item() == pytest.approx(2 * 0.5 * 9 + 16 * 0.25 * 4, rel=1e-5)


# ---- exemplars
def test_herding_against_brute_force():
    f = torch.randn(9, 3, generator=generator(7), dtype=torch.float64)
    mean, chosen = f.mean(0), []
    for _ in range(5):
        rest = [i for i in range(9) if i not in chosen]
        chosen.append(min(rest, key=lambda i: float((f[[*chosen, i]].mean(0) - mean).norm())))
    assert herding(f, 5) == chosen
    away = lambda some: float((f[list(some)].mean(0) - mean).norm())
    all_of_three = [away(c) for c in itertools.combinations(range(9), 3)]
    assert away(herding(f, 1)) == min(away((i,)) for i in range(9)) and away(herding(f, 3)) < np.median(all_of_three)
    assert sorted(herding(f, 100)) == list(range(9))


def test_exemplars_share_the_memory_and_keep_the_best():
    x, y = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1), torch.tensor([0] * 5 + [1] * 5)
    last_first = lambda pictures, count: list(range(len(pictures)))[::-1][:count]
    held = add_exemplars(None, x, y, last_first, 6)
    assert held["x"].flatten().tolist() == [4, 3, 2, 9, 8, 7] and held["y"].tolist() == [0, 0, 0, 1, 1, 1]
    held = add_exemplars(held, x + 10, y * 0 + 2, last_first, 6)
    assert held["x"].flatten().tolist() == [4, 3, 9, 8, 19, 18] and held["y"].tolist() == [0, 0, 1, 1, 2, 2]


def test_der_keeps_a_uniform_sample_with_logits():
    tasks = [(torch.randint(256, (60, 1, 28, 28), generator=generator(t), dtype=torch.uint8), torch.full((60,), t)) for t in range(2)]
    shares = []
    for seed in range(30):
        client = DERClient(0, build(partial(expandable_cnn, 2), 0), tasks, seed=seed, memory=20)
        client.task = 0
        client.leave(2)
        first = client.kept["buffer"]["x"].clone()
        client.model.widen(1, generator(0))
        client.task = 1
        client.leave(3)
        buffer = client.kept["buffer"]
        assert buffer["z"].shape == (20, 3) and len(first) == 20
        old = buffer["z"][:, 2].isnan()
        shares.append(old.float().mean())
        torch.testing.assert_close(logits(client.model, buffer["x"][old])[:, :2], buffer["z"][old, :2], atol=1e-5, rtol=1e-5)
    assert abs(np.mean(shares) - 0.5) < 0.1


def test_importance_against_a_loop():
    model, random = linear_model(), generator(9)
    x, y = torch.randn(40, 1, 3, 4, generator=random, dtype=torch.float64), torch.randint(4, (40,), generator=random)
    v, want = frozen(model).requires_grad_(True), np.zeros(40)
    for p in (1, 2):
        for part_of in torch.arange(40).split(32):
            total = [torch.zeros_like(q) for q in v.parameters()]
            for i in part_of.tolist():
                grads = torch.autograd.grad(F.cross_entropy(v(x[i:i + 1]), y[i:i + 1]), list(v.parameters()))
                want[i] += float(torch.cat([g.flatten() for g in grads]).norm()) / p
                for t, g in zip(total, grads): t += g / len(part_of)
            with torch.no_grad():
                for q, t, w in zip(v.parameters(), total, model.parameters()): q -= 0.1 * (t + 1.5 * (q - w))
    np.testing.assert_allclose(importance(model, x, y, lr=0.1, mix=0.25, passes=2), want, rtol=1e-6)


# ---- projection
def test_projected_gradient_is_orthogonal_to_the_kept_basis():
    net = build(partial(expandable_cnn, 4), 0)
    x, y = torch.randn(20, 1, 28, 28, generator=generator(1)), torch.arange(20) % 4
    bases = {name: extend_basis(None, a, 0.9) for name, a in layer_inputs(net, x).items()}
    F.cross_entropy(net(torch.randn(20, 1, 28, 28, generator=generator(2))), y).backward()
    for name, layer in net.named_modules():
        if name not in bases: continue
        before = continual.layer_gradient(layer).clone()
        project(layer, bases[name], 0.5)
        torch.testing.assert_close(continual.layer_gradient(layer) @ bases[name], before @ bases[name] / 2, atol=1e-5, rtol=1e-3)
        project(layer, bases[name], 1.0)
        after = continual.layer_gradient(layer)
        assert (after @ bases[name]).norm() < 1e-5 * (1 + before.norm()) and after.norm() > 0


def test_a_projected_step_leaves_old_outputs_as_they_are():
    layer = build(lambda: nn.Linear(30, 5), 0)
    old = torch.randn(8, 30, generator=generator(1))
    basis = extend_basis(None, F.pad(old, (0, 1), value=1.0).T, 1.0 - 1e-12)
    layer(torch.randn(16, 30, generator=generator(2))).square().sum().backward()
    before = layer(old).detach()
    project(layer, basis)
    with torch.no_grad():
        for p in layer.parameters(): p -= p.grad
    torch.testing.assert_close(layer(old), before, atol=1e-4, rtol=1e-4)


def test_a_basis_grows_by_the_fewest_directions():
    random = generator(3)
    first, second = torch.randn(20, 6, generator=random), torch.randn(20, 40, generator=random)
    one = extend_basis(None, first, 0.8)
    s = torch.linalg.svdvals(first.double()).square()
    assert one.shape[1] == int((s.cumsum(0) / s.sum() < 0.8).sum()) + 1
    two = extend_basis(one, second, 0.9)
    torch.testing.assert_close(two.T @ two, torch.eye(two.shape[1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(two @ (two.T @ one), one, atol=1e-5, rtol=0)
    held = lambda b: float((b.T @ second).square().sum() / second.square().sum())
    assert held(two) >= 0.9 - 1e-6 and extend_basis(two, second, 0.9).shape == two.shape


# ---- AC-GAN
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_widening_an_ac_gan_keeps_old_pictures_and_logits(shape):
    gan = build(partial(ACGAN, 4, shape), 0).eval()
    z, y, x = torch.randn(6, 100, generator=generator(1)), torch.arange(6) % 4, torch.randn(6, *shape, generator=generator(2))
    painted, said = gan.generator(z, y), gan(x)
    gan.widen(3, generator(0))
    assert torch.equal(gan.generator(z, y), painted) and torch.equal(gan(x)[:, :4], said)
    assert painted.shape == (6, *shape) and painted.abs().max() <= 1 and gan.generator(z, y + 3).shape == (6, *shape)


def test_ac_gan_losses_by_hand():
    gan = build(partial(ACGAN, 3, (1, 28, 28)), 0).eval()
    random = generator(4)
    x, y, z, y_fake = torch.randn(5, 1, 28, 28, generator=random), torch.tensor([0, 1, 2, 0, 1]), torch.randn(4, 100, generator=random), torch.tensor([2, 2, 0, 1])
    d_loss, g_loss = ac_gan_losses(gan.discriminator, gan.generator, x, y, z, y_fake)
    (real, c), (fake, c_fake) = gan.discriminator(x), gan.discriminator(gan.generator(z, y_fake))
    log, sigmoid = torch.log, torch.sigmoid
    ce = lambda c, y: -log(F.softmax(c, 1)[range(len(y)), y]).mean()
    torch.testing.assert_close(d_loss, -log(sigmoid(real)).mean() + ce(c, y) - log(1 - sigmoid(fake)).mean())
    torch.testing.assert_close(g_loss, -log(sigmoid(fake)).mean() + ce(c_fake, y_fake))
    d_loss.backward()
    assert all(p.grad is None for p in gan.generator.parameters()), "the discriminator's loss must not move the generator"


def test_nothing_is_replayed_in_the_first_task_and_only_old_classes_later():
    client = ACGANClient(0, build(partial(ACGAN, 6, (1, 28, 28)), 0), [], iterations=30, gan_batch=8)
    assert client.replay() == [[]] * 30
    client.old, client.kept = 4, {"previous": snapshot(client.model.generator)}
    y = torch.cat([batch[0][1] for batch in client.replay()])
    assert set(y.tolist()) == {0, 1, 2, 3} and len(y) == 240


def test_generator_refuses_sizes_it_cannot_paint():
    with pytest.raises(UserError, match="divisible by 4"): continual.Generator(2, (1, 30, 30))


# ---- GLFC, TARGET, LANDER
def test_compensation_has_mean_one_among_old_and_among_new():
    p, old = torch.rand(40, generator=generator(1)), torch.arange(40) % 3 == 0
    w = compensation(p, old)
    assert w[old].mean() == pytest.approx(1, abs=1e-5) and w[~old].mean() == pytest.approx(1, abs=1e-5)
    assert torch.isfinite(compensation(torch.ones(4), torch.tensor([True, True, False, False]))).all()


def test_glfc_with_sigmoids_is_the_published_loss():
    client = GLFCClient(0, build(partial(expandable_cnn, 4), 0), [], kind="bce")
    z, y = torch.randn(5, 4, generator=generator(0)), torch.tensor([0, 1, 2, 3, 3])
    hard = F.one_hot(y, 4).float()
    torch.testing.assert_close(client.miss(z, hard).mean(), F.binary_cross_entropy(torch.sigmoid(z), hard))
    with pytest.raises(UserError, match="kind='mse'"): GLFCClient(0, client.model, [], kind="mse")


def test_pictures_are_rebuilt_from_their_gradients():
    stream_x = make_stream(SMOKE, 0).test[0][0][::20]
    spy, x, y = build(partial(continual.gradient_network, 3, (1, 28, 28)), 0), continual.as_float(stream_x), torch.tensor([0, 1, 2])
    back = continual.rebuild(spy, continual.picture_gradients(spy, x, y), y, (1, 28, 28), 150, generator(0))
    assert (back - x).square().mean() < 0.05 < (torch.zeros_like(x) - x).square().mean()


def test_prototypes_must_be_gradients_of_new_classes():
    experiment = StreamExperiment(SMOKE, 0, method=GLFC)
    server, client = experiment.server(), experiment.client(0)
    server.open(1)
    good = client.prototypes(server.ask(0))
    server.accept("prototypes", 0, good)
    assert set(good.meta["labels"]) <= {3, 4, 5}
    for labels in ([0], [3, 3], "3", [3.0], []):
        with pytest.raises(Refused): server.accept("prototypes", 0, Msg(good.tensors, {"labels": labels}))
    with pytest.raises(Refused): server.accept("prototypes", 0, Msg({**good.tensors, "0.bias": good.tensors["0.bias"] * math.nan}, good.meta))


def test_anchors_are_orthogonal_and_stay():
    a = orthogonal_anchors(10, 64, 3)
    torch.testing.assert_close(a @ a.T, 0.44**2 * 64 * torch.eye(10), atol=1e-4, rtol=0)
    assert torch.equal(orthogonal_anchors(4, 64, 3), a[:4]) and not torch.equal(orthogonal_anchors(4, 64, 4), a[:4])
    with pytest.raises(UserError, match="classes=9"): orthogonal_anchors(9, 8, 0)


def test_bounding_and_boundary_losses_by_hand():
    assert continual.bounding_loss(torch.ones(2, 4), torch.ones(2, 4) * 1.1) == 0
    assert continual.bounding_loss(torch.zeros(2, 4), torch.ones(2, 4)).item() == pytest.approx(1 - 0.015)
    t, s = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    p, q = F.softmax(t[0], 0), F.softmax(s[0], 0)
    assert continual.boundary_loss(t, s).item() == pytest.approx(float(-(p * (p / q).log()).sum() / 2), rel=1e-5)


def test_batch_norm_statistics_tell_real_from_noise():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    real = torch.randn(200, 1, 8, 8, generator=generator(0)) * 0.3 + 1
    for _ in range(60): net(real)
    net.eval()
    statistics = continual.BatchNormStatistics(net)
    net(real)
    near = statistics.loss().item()
    net(torch.randn(200, 1, 8, 8, generator=generator(1)) * 2)
    assert near < 0.2 < 1 < statistics.loss().item()


# ---- whole runs
def weights_after(method, stream, sizes, **options): return run_stream(method, stream, sizes, 0, workers=1, **options).server.weights


ONE = replace(SMOKE, tasks=1, rounds=2, clients=2, pictures=20, mu=0.0, consolidation=1)


@pytest.mark.parametrize("method", [m for m in METHODS if m.network is not continual.ac_gan], ids=lambda m: m.name)
def test_with_one_task_every_classifier_equals_fedavg(method):
    """Terms that act in the first task too are set to zero: FedProx's leash, LANDER's ball."""
    one = make_stream(ONE, 0)
    if method is LANDER: method = method._replace(client=partial(LANDERClient, bound=0.0))
    got = weights_after(method, one, ONE)
    want = weights_after(FedAvg, one, ONE)
    assert equal({name: t for name, t in got.items() if not name.startswith("mapping")}, want)


def test_with_one_task_every_generative_method_equals_ac_gan_with_fedavg():
    one, want = make_stream(ONE, 0), weights_after(ACGANFedAvg, make_stream(ONE, 0), ONE)
    plain = FedCIL._replace(client=ACGANClient, server=partial(FedCILServer, consolidation=0), server_takes=())
    for method in (ACGANFedProx, ACGANNoReplay, plain): assert equal(weights_after(method, one, ONE), want)
    assert not equal(weights_after(FedCIL, one, ONE), want)


@every_method
def test_every_method_runs(method, stream):
    outcome = run_stream(method, stream, SMOKE, 0, workers=1)
    a = np.array(outcome.matrix)
    assert a.shape == (3, 3) and np.isnan(a[np.triu_indices(3, 1)]).all() and np.isfinite(a[np.tril_indices(3)]).all()
    sizes = [len(y) for _, y in stream.test]
    assert outcome.accuracy == pytest.approx(np.average(a[-1], weights=sizes)) and outcome.up > 0 and outcome.down > 0
    assert outcome.forgetting == pytest.approx(np.mean(np.nanmax(a, 0)[:-1] - a[-1, :-1]))
    assert (outcome.down, outcome.up) == tuple(outcome.federation.ledger.total(way=way) for way in ("down", "up"))


FEW = dict(pictures=8, test_pictures=4, iterations=1, consolidation=1)
TINY = replace(SMOKE, tasks=2, rounds=2, clients=2, **FEW)
ALIKE = (Finetune, FedProx, ACGANNoReplay, ACGANFedProx)     # they keep what FedAvg and AC-GAN + FedAvg do


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ALIKE], ids=lambda m: m.name)
def test_every_method_is_proven(method):
    kinds = {} if method in (FedAvg, FedEWC, ICaRL) else {"kinds": ("silent", "shape")}
    prove(StreamExperiment(TINY, method=method), kills=2, **kinds)


@every_method
def test_an_experiment_travels(method):
    sent = StreamExperiment(TINY, 1, method=method)
    got = pickle.loads(pickle.dumps(sent))
    assert equal(got.server().weights, sent.server().weights) and got.rounds == 4 and got.ids == [0, 1]
    assert equal(got.client(1).state().tensors, sent.client(1).state().tensors)


def test_a_row_has_what_the_tables_compare(tmp_path):
    results = Results("continual", "smoke", TINY, 0, tmp_path)
    absent = lambda ended: {"absent": len(ended.federation.ledger.absent)}
    numbers, row = stream_row(results, StreamExperiment(TINY), absent), results.rows[0]
    assert (row["what"], row["seed"], row["numbers"]) == ("FedAvg", 0, numbers)
    assert [len(line) for line in numbers["matrix"]] == [1, 2]
    assert numbers["absent"] == 0 and numbers["seconds"] > 0


def test_a_gift_comes_with_the_first_message_that_is_answered():
    experiment = StreamExperiment(replace(SMOKE, rounds=2), 0, method=FedEWC)
    server, client = experiment.server(), experiment.client(1)
    server.merge([(1, client.fit(server.send(1)))])
    server.merge_fisher([(1, client.fisher(server.send(1)))])
    server.begin([0, 1, 2], 2)
    has_gift = lambda id: any(name.startswith("gift/") for name in server.send(id).tensors)
    assert server.task == 1 and has_gift(0) and has_gift(1)
    server.merge([(1, client.fit(server.send(1)))])
    assert has_gift(0) and not has_gift(1)


def test_icarl_names_the_class_with_the_nearest_mean(stream):
    outcome = run_stream(ICaRL, stream, SMOKE, 0, workers=1)
    server, x = outcome.server, stream.test[0][0]
    f = unit_features(server.network(), x)
    want = torch.stack([(f - mean).norm(dim=1) for mean in server.means], 1).argmin(1)
    assert torch.equal(server.classify(x), want)


def test_memory_is_never_exceeded(stream):
    for method in (ICaRL, GLFC, ReFed, DER):
        states = run_stream(method, stream, SMOKE, 0, workers=1).federation.states
        for state in states.values():
            kept = unpack(state).tensors
            sizes = [len(t) for name, t in kept.items() if name in ("exemplars/y", "buffer/key")]
            assert sizes and sizes[0] <= SMOKE.memory


def test_fedcil_refuses_labels_that_cannot_be():
    experiment = StreamExperiment(SMOKE, 0, method=FedCIL)
    server, client = experiment.server(), experiment.client(0)
    reply = client.fit(server.send(0))
    server.accept("fit", 0, reply)
    with pytest.raises(Refused, match="labels"): server.accept("fit", 0, Msg(reply.tensors, {**reply.meta, "labels": [7]}))


@pytest.mark.parametrize("method", [m for m in METHODS if m not in (Finetune, FedAvg, ACGANNoReplay)], ids=lambda m: m.name)
def test_every_method_does_something_of_its_own_in_the_second_task(method, stream):
    bases = (ACGANNoReplay,) if method.network is continual.ac_gan else (Finetune, FedAvg)
    got = weights_after(method, stream, SMOKE)
    for base in bases: assert not equal({name: t for name, t in got.items() if not name.startswith("mapping")}, weights_after(base, stream, SMOKE))


def test_without_strength_lwf_and_ewc_are_finetune(stream):
    want = weights_after(Finetune, stream, SMOKE)
    for method, client in ((FedLwF, continual.FedLwFClient), (FedEWC, FedEWCClient)):
        assert equal(weights_after(method._replace(client=partial(client, strength=0.0)), stream, SMOKE), want)


@pytest.mark.parametrize("kind", [continual.FedLwFClient, continual.FLwF2TClient, continual.ICaRLClient], ids=lambda k: k.__name__)
def test_losses_with_a_teacher_by_hand(kind):
    net, (one, two) = build(partial(expandable_cnn, 6), 0), (frozen(build(partial(expandable_cnn, 6), s)) for s in (1, 2))
    client, x, y = kind(0, net, []), torch.randn(5, 1, 28, 28, generator=generator(1)), torch.tensor([4, 5, 4, 4, 5])
    client.old, client._teacher, client._teachers = 4, one, [one, two]
    z = net(x)
    def soft(teacher): return (F.softmax(teacher(x)[:, :4] / 2, 1) * (F.log_softmax(teacher(x)[:, :4] / 2, 1) - F.log_softmax(z[:, :4] / 2, 1))).sum(1).mean()
    new, seen = F.cross_entropy(z[:, 4:], y - 4), F.cross_entropy(z, y)
    want = {"FedLwFClient": new + 3 * soft(one), "FLwF2TClient": (seen + soft(one) + soft(two)) / 3, "ICaRLClient": seen + soft(one)}[kind.__name__]
    torch.testing.assert_close(client.loss(x, y), want)


def test_a_latecomer_looks_back_at_the_weights_from_before_the_task():
    experiment = StreamExperiment(replace(SMOKE, rounds=2), 0, method=FedLwF)
    server, early, late = experiment.server(), experiment.client(0), experiment.client(1)
    for client in (early, late): server.merge([(client.id, client.fit(server.send(client.id)))])
    server.begin([0, 1], 2)
    opened = dict(server.weights)
    server.merge([(0, early.fit(server.send(0)))])
    reply = late.fit(server.send(1))
    assert equal(late.kept["teacher"], opened) and equal(early.kept["teacher"], opened) and not equal(server.weights, opened)
    server.merge([(1, reply)])
    assert not any(name.startswith("before/") for id in (0, 1) for name in server.send(id).tensors)


def test_hostile_replies_are_refused():
    of_ewc, of_icarl, of_glfc = (StreamExperiment(SMOKE, method=method) for method in (FedEWC, ICaRL, GLFC))
    ewc, icarl, glfc = of_ewc.server(), of_icarl.server(), of_glfc.server()
    reply = of_ewc.client(0).fisher(ewc.send(0))
    ewc.accept("fisher", 0, reply)
    with pytest.raises(Refused, match="negative"): ewc.accept("fisher", 0, Msg({**reply.tensors, "head.bias": -reply.tensors["head.bias"] - 1}, reply.meta))
    reply = of_icarl.client(0).means(icarl.send(0))
    icarl.accept("means", 0, reply)
    for name, t in (("counts", -reply.tensors["counts"]), ("sums", reply.tensors["sums"] * 1e9)):
        with pytest.raises(Refused, match="features"): icarl.accept("means", 0, Msg({**reply.tensors, name: t}, reply.meta))
    reply = of_glfc.client(0).prototypes(glfc.ask(0))
    with pytest.raises(Refused, match="larger"): glfc.accept("prototypes", 0, Msg({n: t * 0 + 1e30 for n, t in reply.tensors.items()}, reply.meta))


def test_a_memory_too_small_is_refused():
    with pytest.raises(UserError, match="memory=1"):
        add_exemplars(None, torch.zeros(4, 1, 2, 2), torch.tensor([0, 0, 1, 1]), lambda x, count: [0], 1)


def test_every_client_needs_pictures_in_every_task(stream):
    poor = stream._replace(clients=[*stream.clients[:2], [(x[:0], y[:0]) for x, y in stream.clients[2]]])
    with pytest.raises(UserError, match="without pictures"): run_stream(FedAvg, poor, SMOKE, 0, workers=1)


@pytest.mark.parametrize("method", [FedEWC, ICaRL, GLFC, TARGET, LANDER, CGoFed, FedCIL], ids=lambda m: m.name)
def test_tasks_may_have_one_class_or_seven(method):
    narrow = replace(SMOKE, pictures=12, test_pictures=5, clients=2, memory=40)
    whole = make_stream(replace(narrow, tasks=10), 0)
    def joined(tasks, of): return [tuple(torch.cat(parts) for parts in zip(*[of[t] for t in group])) for group in tasks]
    groups = [[0], [1, 2], [3, 4, 5, 6, 7, 8, 9]]
    uneven = continual.Stream([sum((whole.tasks[t] for t in g), []) for g in groups], [joined(groups, c) for c in whole.clients], joined(groups, whole.test), "uneven")
    outcome = run_stream(method, uneven, narrow, 0, workers=1)
    assert uneven.classes == [1, 2, 7] and np.isfinite(outcome.accuracy)
