"""Painters: the AC-GAN's halves, FedCIL, anchors and borders against independent computations."""
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import equal

from fedbook.methods.continual import (StreamExperiment, expandable_cnn, expandable_resnet18, make_stream,
                                       run_stream)
from fedbook.engine.local import snapshot
from fedbook.engine.errors import UserError
from fedbook.engine.local import build, generator
from fedbook.methods.painters import (ACGAN, ACGANClient, ACGANFedAvg, ACGANFedProx, ACGANNoReplay,
                                      BatchNormStatistics, FedCIL, FedCILServer, Generator, LANDER,
                                      ac_gan_losses, best_batch, boundary_loss, bounding_loss, mapped, orthogonal_anchors,
                                      profiles)
from fedbook.engine.wire import Msg, Refused

SMOKE = replace(profiles["smoke"], tasks=3, pictures=40, test_pictures=20, clients=3, iterations=2,
                gan_batch=4, consolidation=2, synthetic=64)
ONE = replace(SMOKE, tasks=1, rounds=2, clients=2, pictures=20, mu=0.0, consolidation=1)


def weights_after(method, stream, sizes):
    return run_stream(method, stream, sizes, 0, workers=1).server.weights


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_widening_an_ac_gan_keeps_old_pictures_and_logits(shape):
    gan = build(partial(ACGAN, 4, shape), 0).eval()
    z, y = torch.randn(6, 100, generator=generator(1)), torch.arange(6) % 4
    x = torch.randn(6, *shape, generator=generator(2))
    painted, answer = gan.generator(z, y), gan(x)
    gan.widen(3, generator(0))
    assert torch.equal(gan.generator(z, y), painted) and torch.equal(gan(x)[:, :4], answer)
    assert painted.shape == (6, *shape) and painted.abs().max() <= 1
    assert gan.generator(z, y + 3).shape == (6, *shape)


def test_ac_gan_losses_by_hand():
    gan = build(partial(ACGAN, 3, (1, 28, 28)), 0).eval()
    random = generator(4)
    x, y = torch.randn(5, 1, 28, 28, generator=random), torch.tensor([0, 1, 2, 0, 1])
    z, y_fake = torch.randn(4, 100, generator=random), torch.tensor([2, 2, 0, 1])
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
    client.old, client.store = 4, {"previous": snapshot(client.model.generator)}
    y = torch.cat([batch[0][1] for batch in client.replay()])
    assert set(y.tolist()) == {0, 1, 2, 3} and len(y) == 240


def test_generator_refuses_sizes_it_cannot_paint():
    with pytest.raises(UserError, match="divisible by 4"): Generator(2, (1, 30, 30))


def test_anchors_are_orthogonal_and_stay():
    a = orthogonal_anchors(10, 64, 3)
    torch.testing.assert_close(a @ a.T, 0.44**2 * 64 * torch.eye(10), atol=1e-4, rtol=0)
    assert torch.equal(orthogonal_anchors(4, 64, 3), a[:4])
    assert not torch.equal(orthogonal_anchors(4, 64, 4), a[:4])
    with pytest.raises(UserError, match="classes=9"): orthogonal_anchors(9, 8, 0)


def test_lander_has_room_for_512_classes_and_64_with_the_small_cnn():
    made = (mapped(make, 2, (1, 16, 16)) for make in (expandable_cnn, expandable_resnet18))
    dims = [network.mapping.out_features for network in made]
    assert dims == [64, 512] and mapped(expandable_cnn, 2, (1, 16, 16), 7).mapping.out_features == 7
    def served(*classes): return LANDER.server(mapped(expandable_cnn, 2, (1, 16, 16)), [*classes], 1)
    assert served(32, 32).classes == [32, 32]
    with pytest.raises(UserError, match=r"classes=\[40, 25\] are 65 .* 64 anchors; network=resnet18 has 512"):
        served(40, 25)


def test_bounding_and_boundary_losses_by_hand():
    assert bounding_loss(torch.ones(2, 4), torch.ones(2, 4) * 1.1) == 0
    assert bounding_loss(torch.zeros(2, 4), torch.ones(2, 4)).item() == pytest.approx(1 - 0.015)
    t, s = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    p, q = F.softmax(t[0], 0), F.softmax(s[0], 0)
    assert boundary_loss(t, s).item() == pytest.approx(float(-(p * (p / q).log()).sum() / 2), rel=1e-5)


def test_batch_norm_statistics_tell_real_from_noise():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    real = torch.randn(200, 1, 8, 8, generator=generator(0)) * 0.3 + 1
    for _ in range(60): net(real)
    net.eval()
    statistics = BatchNormStatistics(net)
    net(real)
    near = statistics.loss().item()
    net(torch.randn(200, 1, 8, 8, generator=generator(1)) * 2)
    assert near < 0.2 < 1 < statistics.loss().item()


def test_with_one_task_every_generative_method_equals_ac_gan_with_fedavg():
    one, want = make_stream(ONE, 0), weights_after(ACGANFedAvg, make_stream(ONE, 0), ONE)
    plain = FedCIL._replace(client=ACGANClient, server=partial(FedCILServer, consolidation=0),
                            server_takes=())
    for method in (ACGANFedProx, ACGANNoReplay, plain): assert equal(weights_after(method, one, ONE), want)
    assert not equal(weights_after(FedCIL, one, ONE), want)


def test_fedcil_refuses_labels_that_cannot_be():
    experiment = StreamExperiment(SMOKE, 0, method=FedCIL)
    server, client = experiment.server(), experiment.client(0)
    reply = client.fit(server.send(0))
    server.accept("fit", 0, reply)
    strange = Msg(reply.tensors, {**reply.meta, "labels": [7]})
    with pytest.raises(Refused, match="labels"): server.accept("fit", 0, strange)


def test_the_best_batch_is_the_one_with_the_least_loss():
    "The rate is so large that the loss rises again."
    x = torch.full((1, 1, 1, 1), 3.0, requires_grad=True)
    values = []
    def loss(images):
        values.append(images.item())
        return (images**2).sum()
    best = best_batch(lambda: x * 1, loss, torch.optim.SGD([x], lr=1.2), 6)
    assert best.item() == min(values, key=abs) and len(values) == 6
