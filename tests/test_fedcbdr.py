"""FedCBDR: the loss, buffer and merge by hand, the three verbs on the wire, both ways to run it."""
import itertools
import warnings
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import nn

from conftest import equal

from fedbook.methods.continual import (Expandable, FedAvg, Stream, StreamExperiment, expandable_cnn,
                                       expandable_resnet18, run_stream, widen)
from fedbook.methods.exemplars import herding
from fedbook.engine.wire import Msg, Refused, labelled, pack, unpack
from fedbook.engine.workers import Faults, transport_for, prove
from fedbook.engine.federation import Federation, InProcess
from fedbook.evidence.fedcbdr import by_hand, configured, profiles, settings as settings_of
from fedbook.fedcbdr import profiles as of_the_chapter
from fedbook.fedcbdr import FedCBDR, FedCBDRClient, FedCBDRSizes, variant
from fedbook.methods.balanced import (FedCBDRAggregator, FedCBDRTrainer, as_sizes, default_network, mixed_batches,
                                      tempered, tts_loss)
from fedbook.engine.errors import UserError
from fedbook.engine.sizes import choose
from fedbook.methods.leverage import draw_samples, features, leverage_scores, sampling_probabilities
from fedbook.engine.local import as_pixels, build, generator
from fedbook.methods.score import accuracy


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

def close(a, b, tol=1e-8): return torch.allclose(a, b, rtol=0, atol=tol)


# ---- the loss

def softly(z, y):
    "Cross-entropy of each row, in numpy."
    return np.log(np.exp(z - z.max(1, keepdims=True)).sum(1)) + z.max(1) - z[np.arange(len(y)), y]

def loss_by_hand(z, y, old, tau_old=0.9, tau_new=1.1, omega_old=1.1, omega_new=0.9, mode="paper"):
    z, y = z.detach().double().numpy(), y.numpy()
    is_old = np.isin(np.arange(z.shape[1]), list(old))
    scaled, mine = z / np.where(is_old, tau_old, tau_new), is_old[y]
    if mode == "code":
        return (np.where(mine, omega_old, omega_new)
                * softly(scaled / np.where(mine, tau_old, tau_new)[:, None], y)).mean()
    each = softly(scaled, y)
    return sum(w * each[group].mean() for w, group in ((omega_old, mine), (omega_new, ~mine)) if group.any())

BATCH = torch.tensor([0, 4, 2, 3, 1, 4, 3, 0, 4, 3, 4])
both_modes = pytest.mark.parametrize("mode", ["paper", "code"])

def a_batch(y=BATCH, seed=0): return 2 * normal(len(y), 5, seed=seed), y

def test_without_temperatures_the_papers_loss_is_balanced_cross_entropy():
    z, y = a_batch()
    old = y < 3
    want = F.cross_entropy(z[old], y[old]) + F.cross_entropy(z[~old], y[~old])
    assert close(tts_loss(z, y, 3, 1, 1, 1, 1), want, 1e-12) and not close(want, F.cross_entropy(z, y), 0.1)

def test_without_temperatures_the_codes_loss_is_cross_entropy():
    z, y = a_batch()
    assert close(tts_loss(z, y, 3, 1, 1, 1, 1, "code"), F.cross_entropy(z, y), 1e-12)

@both_modes
def test_in_the_first_task_the_loss_is_cross_entropy(mode):
    z, y = a_batch()
    for none in (0, []): assert torch.equal(tts_loss(z, y, none, mode=mode), F.cross_entropy(z, y))

@both_modes
@pytest.mark.parametrize("y",
                         [BATCH, torch.tensor([3, 4, 4]), torch.tensor([0, 2, 1, 1]), torch.tensor([3]),
                          torch.tensor([1])], ids=["both", "new", "old", "one new", "one old"])
def test_loss_by_hand(mode, y):
    z, y = a_batch(y)
    for terms in ({}, dict(tau_old=0.5, tau_new=2.0, omega_old=3.0, omega_new=0.25)):
        got = tts_loss(z.float(), y, 3, mode=mode, **terms)
        assert got.dim() == 0 and got.dtype == torch.float32
        assert got.item() == pytest.approx(loss_by_hand(z.float(), y, range(3), mode=mode, **terms), rel=1e-5)

@both_modes
def test_loss_in_float64_is_exact(mode):
    z, y = a_batch()
    assert tts_loss(z, y, 3, mode=mode).item() == pytest.approx(loss_by_hand(z, y, range(3), mode=mode), rel=1e-12)

@both_modes
@pytest.mark.parametrize("y", [BATCH, torch.tensor([3, 4]), torch.tensor([0, 2])], ids=["both", "new", "old"])
def test_gradient_of_the_loss_by_finite_differences(mode, y):
    z, y = a_batch(y)
    assert torch.autograd.gradcheck(lambda z: tts_loss(z, y, 3, mode=mode), z.requires_grad_())

def test_large_logits_stay_finite():
    z, y = a_batch()
    for mode in ("paper", "code"): assert tts_loss(1e4 * z.float(), y, 3, mode=mode).isfinite()

def test_a_temperature_below_one_sharpens():
    z = torch.tensor([[4.0, 1.0, 2.0, 0.0]])
    losses = [tts_loss(z, torch.tensor([0]), 2, tau, 1, 1, 1).item() for tau in (1.0, 0.9, 0.5)]
    assert losses[0] > losses[1] > losses[2]

@both_modes
def test_old_classes_as_a_number_and_as_a_list(mode):
    z, y = a_batch()
    assert torch.equal(tts_loss(z, y, 3, mode=mode), tts_loss(z, y, [2, 0, 1], mode=mode))
    swap = torch.tensor([4, 1, 2, 3, 0])
    assert close(tts_loss(z[:, swap], swap[y], [4, 1, 2], mode=mode), tts_loss(z, y, 3, mode=mode), 1e-12)

@both_modes
def test_shares_of_the_loss_with_12_old_and_116_new(mode):
    "The card's figures: the old term is half of the paper's loss, a tenth of the code's."
    z, y = torch.zeros(128, 10), torch.tensor([0] * 12 + [9] * 116)
    whole, without = tts_loss(z, y, 5, 1, 1, mode=mode).item(), tts_loss(z, y, 5, 1, 1, 0.0, mode=mode).item()
    assert (1 - without / whole == pytest.approx({"paper": 0.55,
                                                  "code": 12 * 1.1 / (12 * 1.1 + 116 * 0.9)}[mode], abs=1e-6))

@pytest.mark.parametrize("changes, said",
                         [(dict(y=torch.tensor([0, 5])), r"y=\[0, 5\].*0\.\.4"),
                          (dict(y=torch.tensor([-1, 2])), r"y=\[-1, 2\]"),
                          (dict(mode="off"), "mode='off'.*paper"), (dict(tau_old=0.0), "tau_old=0.0"),
                          (dict(tau_new=-1.0), "tau_new=-1.0"), (dict(tau_old=float("nan")), "tau_old=nan")])
def test_loss_refuses_what_cannot_be(changes, said):
    with pytest.raises(UserError, match=said):
        tts_loss(**dict(logits=normal(2, 5), y=torch.tensor([0, 4]), old_classes=3) | changes)

def test_an_empty_batch_has_no_loss():
    with pytest.raises(UserError, match=r"y=\[\]"):
        tts_loss(normal(0, 5), torch.zeros(0, dtype=torch.int64), 3)


# ---- the local step

def coded(y, first=0):
    "Pictures (n, 1, 1, 1) whose only pixel is their number, with labels `y`."
    return torch.arange(first, first + len(y), dtype=torch.float32).reshape(-1, 1, 1, 1), torch.tensor(y)

def numbers(x): return x.flatten().int().tolist()

def epoch(ratio, n_new, n_old, batch=8, seed=0):
    """Numbers of the new (from 0) and of the replayed pictures (from 1000) in each batch of an epoch; labels
    go with them."""
    (new, old) = (coded(list(range(n_new))), coded(list(range(1000, 1000 + n_old)), 1000))
    out = []
    for x, y in mixed_batches(new, old, batch, ratio, generator(seed)):
        assert numbers(x) == y.tolist()
        out.append(([i for i in numbers(x) if i < 1000], [i for i in numbers(x) if i >= 1000]))
    return out

@pytest.mark.parametrize("ratio, batch, beside",
                         [(0.25, 8, 2), (0.5, 8, 4), (0.01, 8, 1), (0.8, 8, 6), (0.3, 32, 10)])
def test_the_replayed_share_of_each_batch_is_exact(ratio, batch, beside):
    parts = epoch(ratio, 6 * (batch - beside), 9, batch)
    assert [len(new) for new, _ in parts] == [batch - beside] * 6
    assert [len(old) for _, old in parts] == [beside] * 6

@pytest.mark.parametrize("ratio", [0.25, 0.6])
@pytest.mark.parametrize("n_new", [1, 5, 37])
def test_an_epoch_covers_every_new_picture_once(ratio, n_new):
    parts = epoch(ratio, n_new, 3)
    assert sorted(i for new, _ in parts for i in new) == list(range(n_new)) and all(old for _, old in parts)

def test_every_replayed_picture_comes_sooner_or_later():
    assert {i for _, old in epoch(0.5, 200, 5) for i in old} == set(range(1000, 1005))

@pytest.mark.parametrize("n_new, n_old", [(20, 7), (20, 0), (0, 7), (0, 0), (1, 0)])
def test_without_a_share_an_epoch_covers_new_and_replayed_once(n_new, n_old):
    parts = epoch(0.0, n_new, n_old)
    assert sorted(i for new, old in parts for i in new + old) == [*range(n_new), *range(1000, 1000 + n_old)]
    assert all(len(new) + len(old) <= 9 for new, old in parts)

def test_without_a_buffer_the_share_changes_nothing(): assert epoch(0.5, 21, 0) == epoch(0.0, 21, 0)

def test_the_trainers_loss():
    z, y = a_batch()
    assert torch.equal(FedCBDRTrainer(tts_mode="off").loss(z, y, 3), F.cross_entropy(z, y))
    for mode in ("paper", "code"):
        got = FedCBDRTrainer(tts_mode=mode, tau_old=0.5, tau_new=2.0, omega_old=3.0,
                             omega_new=0.25).loss(z, y, 3)
        assert torch.equal(got, tts_loss(z, y, 3, 0.5, 2.0, 3.0, 0.25, mode))

def test_a_local_step_is_sgd_with_momentum_and_weight_decay():
    (x, y) = (torch.randn(10, 1, 2, 2, generator=generator(1)), torch.arange(10) % 2 + 2)
    (old_x, old_y) = (torch.randn(4, 1, 2, 2, generator=generator(2)), torch.arange(4) % 2)
    make = lambda: build(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 4)), 0)
    model, plain, random, speed = make(), make(), generator(5), {}
    FedCBDRTrainer(epochs=2, batch=5, lr=0.1, momentum=0.9,
                   weight_decay=0.01).train(model, (x, y), (old_x, old_y), 2, generator(5))
    for _ in range(2):
        for i in torch.randperm(14, generator=random).split(5):
            loss = tts_loss(plain(torch.cat([x, old_x])[i]), torch.cat([y, old_y])[i], 2)
            for p, g in zip(plain.parameters(), torch.autograd.grad(loss, list(plain.parameters()))):
                speed[p] = 0.9 * speed.get(p, 0) + g + 0.01 * p.detach()
                p.data -= 0.1 * speed[p]
    for a, b in zip(model.parameters(), plain.parameters()): torch.testing.assert_close(a, b)


# ---- the merge

def state(seed): return {"w": torch.randn(3, 2, generator=generator(seed)), "seen": torch.tensor(10 * seed)}

@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_identical_models_are_their_own_average(weighting):
    got = FedCBDRAggregator(weighting).merge((state(1), n) for n in (3, 50, 1, 7))
    assert torch.allclose(got["w"], state(1)["w"], rtol=0, atol=1e-7) and got["w"].dtype == torch.float32
    assert got["seen"].item() == 10 and got["seen"].dtype == torch.int64

@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_the_average_by_numpy(weighting):
    ns = [3, 50, 7]
    got = FedCBDRAggregator(weighting).merge((state(k), n) for k, n in enumerate(ns))
    share = np.array(ns if weighting == "size" else [1, 1, 1]) / (60 if weighting == "size" else 3)
    np.testing.assert_allclose(got["w"], sum(s * state(k)["w"].double().numpy() for k, s in enumerate(share)),
                               rtol=1e-6, atol=1e-7)
    assert got["seen"].item() == round(sum(s * 10 * k for k, s in enumerate(share)))

@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_clients_without_pictures_do_not_count(weighting):
    merge = FedCBDRAggregator(weighting).merge
    got = merge([(state(0), 0), (state(1), 4), (state(2), 0), (state(3), 9)])
    want = merge([(state(1), 4), (state(3), 9)])
    assert all(torch.equal(got[name], want[name]) for name in want)
    with pytest.raises(UserError, match="without pictures"): merge([(state(0), 0), (state(1), 0)])

def test_an_unknown_weighting():
    with pytest.raises(UserError, match="weighting='median'.*size"): FedCBDRAggregator("median")


# ---- sizes

def sizes_of(profile, changes=None): return choose(profiles, profile, changes, settings_of).completed

@pytest.mark.parametrize("config",
                         [dict(buffer_size=9, tts_mode="code"),
                          dict(buffer_size="9", tts_mode="code", lr=None),
                          FedCBDRSizes(buffer_size=9, tts_mode="code")])
def test_a_configuration_as_dict_and_as_sizes(config):
    assert configured(config) == FedCBDRSizes(buffer_size=9, tts_mode="code")

def test_without_configuration_the_papers_numbers():
    c = configured()
    assert c == configured({}) == FedCBDRSizes()
    assert ((c.tau_old, c.tau_new, c.omega_old, c.omega_new, c.weight_decay, c.lr, c.epochs)
            == (0.9, 1.1, 1.1, 0.9, 1e-5, 0.01, 2))
    assert ((c.gdr_mode, c.norm, c.replace, c.tts_mode, c.aggregation, c.replay_ratio, c.mask_block)
            == ("global_leverage", "global", True, "paper", "uniform", 0, 0))

BAD_CONFIG = [({"buffer": 3}, "'buffer'.*buffer_size"), ({"lr": "fast"}, "lr='fast'"),
              ({"use_replay": 1}, "use_replay=1"), ({"buffer_size": 2.5}, "buffer_size=2.5"),
              ({"epochs": 0}, "epochs=0"), ({"buffer_size": 0}, "buffer_size=0"),
              ({"gdr_mode": "local"}, "gdr_mode='local'.*repo_local"),
              ({"norm": "l2"}, "norm='l2'.*per_client"), ({"tts_mode": "on"}, "tts_mode='on'.*off"),
              ({"buffer_policy": "fifo"}, "buffer_policy='fifo'.*herding"),
              ({"aggregation": "mean"}, "aggregation='mean'.*size"), ({"tau_old": 0.0}, "tau_old=0.0"),
              ({"tau_new": -1.0}, "tau_new=-1.0"), ({"rate": "linear"}, "rate='linear'.*cosine"),
              ({"lr_end": 0.0}, "lr_end=0.0"), ({"scale": 1}, "scale=1"),
              ({"omega_old": -0.1}, "omega_old=-0.1"),
              ({"replay_ratio": 1.0}, "replay_ratio=1.0"), ({"replay_ratio": -0.5}, "replay_ratio=-0.5"),
              ({"mask_block": -1}, "mask_block=-1"), ({"batch": 0}, "batch=0")]

@pytest.mark.parametrize("config, said", BAD_CONFIG, ids=[said for _, said in BAD_CONFIG])
def test_a_bad_configuration_is_one_clear_sentence(config, said):
    with pytest.raises(UserError, match=said) as error: by_hand(team(), exam(), config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name, data, tasks, classes, m, held",
                         [("cifar10-3", "cifar10", 3, 10, 450, 50000),
                          ("cifar10-5", "cifar10", 5, 10, 300, 50000),
                          ("cifar100-5", "cifar100", 5, 100, 1000, 50000),
                          ("cifar100-10", "cifar100", 10, 100, 500, 50000),
                          ("tiny-10", "tiny_imagenet", 10, 200, 2000, 100000),
                          ("tiny-20", "tiny_imagenet", 20, 200, 1000, 100000)])
def test_the_settings_are_the_papers(name, data, tasks, classes, m, held):
    s = sizes_of("paper", {"setting": name})
    assert ((s.data, s.tasks, s.buffer_size, s.pictures * classes, s.test_pictures * classes)
            == (data, tasks, m, held, 10000))
    assert ((s.rounds, s.batch, s.epochs, s.lr, s.weight_decay, s.clients, s.network, s.seeds)
            == (100, 128, 2, 0.01, 1e-5, 5, "resnet18", 3))
    assert (s.rate, s.lr_end, s.scale) == ("cosine", 1e-3, False)

def test_changes_win_over_the_setting():
    s = sizes_of("paper", {"setting": "cifar100-10", "rounds": "3", "buffer_size": 77})
    assert (s.rounds, s.buffer_size, s.tasks) == (3, 77, 10)
    assert set(settings_of) == {"cifar10-3", "cifar10-5", "cifar100-5", "cifar100-10", "tiny-10", "tiny-20"}
    with pytest.raises(UserError, match="setting='cifar10-2'.*cifar10-5"):
        sizes_of("paper", {"setting": "cifar10-2"})

def test_the_profile_paper_has_the_fields_of_its_setting():
    for own in (of_the_chapter["paper"], profiles["paper"]):
        assert {name: getattr(own, name) for name in settings_of["cifar10-5"]} == settings_of["cifar10-5"]
    assert sizes_of("paper") == profiles["paper"].completed

def test_a_setting_in_a_configuration_counts_or_is_refused():
    c = configured({"setting": "cifar100-10", "pictures": 7})
    assert (c.setting, c.data, c.tasks, c.buffer_size, c.pictures) == ("cifar100-10", "cifar100", 10, 500, 7)
    with pytest.raises(UserError, match="setting='cifar10-2'.*cifar10-5"): configured({"setting": "cifar10-2"})
    with pytest.raises(UserError, match="setting='cifar10-5' in config is not looked up"):
        as_sizes(FedCBDRSizes, {"setting": "cifar10-5"})

@pytest.mark.parametrize("name", profiles)
def test_every_profile_is_sound(name):
    text = lambda v: ",".join(map(str, v)) if isinstance(v, tuple) else str(v)
    assert (sizes_of(name, {k: text(v) for k, v in asdict(sizes_of(name)).items()}) == sizes_of(name)
            == replace(sizes_of(name)))


# ---- a federation

LABELS, TASKS, GREY, COLOUR = (30, 7, 12, 5), {"a": [30, 7], "b": [12, 5]}, (1, 8, 8), (3, 12, 10)
MODES = ("global_leverage", "repo_local", "uniform", "class_quota")
every_mode = pytest.mark.parametrize("mode", MODES)
SMALL = dict(batch=8, lr=0.05, buffer_size=7)

def noisy(labels, seed, shape=GREY):
    "Float pictures of `labels`: a pattern for each label and noise."
    patterns = {c: torch.randn(shape, generator=generator(77, c)) for c in {*LABELS, 99}}
    return (torch.cat([torch.zeros(0, *shape), *(patterns[c][None] for c in labels)]) + 0.7
            * torch.randn(len(labels), *shape, generator=generator(seed)),
            torch.tensor(labels, dtype=torch.int64))

def held(k, shape=GREY, labels=LABELS):
    "What client k holds: 6 + k pictures of each label, in an order of its own."
    x, y = noisy(list(labels) * (6 + k), k, shape)
    order = torch.randperm(len(y), generator=generator(k, 1))
    return x[order], y[order]

def exam(shape=GREY): return noisy(list(LABELS) * 10, 1000, shape)

def member(k, shape=GREY, kind=FedCBDRClient, **options): return kind(k, *held(k, shape), **options)

def team(count=3, **options): return [member(k, **options) for k in range(count)]

def net(shape=GREY, classes=2):
    return Expandable(nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 6), nn.Tanh()), 6, classes,
                      shape)

def lender(make=FedCBDRClient, shape=GREY):
    return lambda k: member(k, shape, make, model=build(partial(net, shape), 3))

def server_of(clients, seed=0, shape=GREY, **config):
    return by_hand(clients, exam(shape), SMALL | config, build(partial(net, shape), seed), seed)

def loop(server, tasks=TASKS, rounds=1):
    for task_id, classes in tasks.items():
        server.set_task(task_id, classes)
        for _ in range(rounds): server.train_round()
        server.coordinate_gdr()
    return server

class ByView(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.side = nn.Conv2d(3, 2, 3), 2 * 4 * 4

    def forward(self, x): return torch.tanh(self.conv(x)).view(len(x), self.side)

@pytest.mark.parametrize("form", ["by view", "in double precision"])
def test_networks_of_ones_own_go_through_selection_and_training(form):
    shape = 3, 6, 6
    make = lambda: Expandable(ByView(), 32, 2, shape) if form == "by view" else net(shape).double()
    start = build(make, 0)
    before = start.state_dict()["head.weight"].clone()
    pixels = lambda pair: (as_pixels(pair[0]), pair[1])
    clients = [FedCBDRClient(k, *pixels(held(k, shape))) for k in range(3)]
    server = loop(by_hand(clients, pixels(exam(shape)), SMALL, start, 0))
    after = server.server.weights["head.weight"]
    assert after.dtype == before.dtype and not torch.equal(after[:2], before) and after.isfinite().all()
    assert all(len(y) for _, y in buffers(server).values())

def task_pictures(k, classes, source=held):
    x, y = source(k)
    return x[torch.isin(y, torch.tensor(classes))], y[torch.isin(y, torch.tensor(classes))]

def watched(server):
    "A list of (task, verb, id, reply) that fills while `server` accepts replies."
    seen, engine, accept = [], server.server, server.server.accept
    def look(verb, id, msg):
        seen.append((engine.task, verb, id, msg))
        accept(verb, id, msg)
    engine.accept = look
    return seen

def sent(seen, verb, task): return {id: msg.tensors for t, v, id, msg in seen if (t, v) == (task, verb)}

@pytest.mark.parametrize("mode", ["global_leverage", "class_quota"])
@pytest.mark.parametrize("block", [0, 4, 100])
def test_clients_answer_the_leverage_of_the_stacked_features(mode, block):
    server = server_of(team(block=block or None), gdr_mode=mode)
    seen = watched(server)
    for task, classes in enumerate(TASKS.values()):
        loop(server, {task: classes})
        x = [features(server.server.network(), task_pictures(k, classes)[0]) for k in range(3)]
        got, want = sent(seen, "scores", task), leverage_scores(torch.cat(x)).split([len(each) for each in x])
        assert list(got) == [0, 1, 2] and 0.05 < torch.cat(want).std()
        assert abs(torch.cat(want).sum() - 6) < 1e-6
        for k in range(3): assert close(got[k]["scores"], want[k])

def test_labels_that_go_up_are_the_tasks_own_from_0():
    server = server_of(team(), gdr_mode="class_quota")
    seen = watched(server)
    loop(server)
    for task, classes in enumerate(TASKS.values()):
        for k, tensors in sent(seen, "scores", task).items():
            assert torch.equal(torch.tensor(classes)[tensors["labels"]], task_pictures(k, classes)[1])

VERBS = {"global_leverage": ["sketch", "scores", "keep"], "class_quota": ["sketch", "scores", "keep"],
         "repo_local": ["sketch", "keep"], "uniform": ["keep"]}

@every_mode
def test_the_ledger_has_the_modes_verbs_and_no_more(mode):
    ledger = loop(server_of(team(), gdr_mode=mode), rounds=2).federation.ledger
    for way, k in itertools.product(("down", "up"), range(3)):
        assert [e.verb for e in ledger.where(way=way, client=k)] == ["fit", "fit", *VERBS[mode]] * 2
    assert not ledger.absent

@every_mode
def test_the_ledgers_bytes_fit_pictures_and_features(mode):
    server = server_of(team(), gdr_mode=mode)
    loop(server)
    for k in range(3):
        got = {way: [dict(e.tensors) for e in server.federation.ledger.where(way=way, client=k)
                     if e.verb != "fit"] for way in ("down", "up")}
        n, kept = 2 * (6 + k), [len(part) for part in task_split(server, k)]
        for task, mine in enumerate(kept):
            down, up = (dict(zip(VERBS[mode], got[way][task * len(VERBS[mode]):])) for way in ("down", "up"))
            assert down["keep"] == {"indices": 8 * mine} and up["keep"] == {}
            if mode != "uniform":
                assert up["sketch"] == {"features": 8 * n * 6}
                assert all(name.startswith("model/") for name in down["sketch"])
            if "scores" in VERBS[mode]:
                assert down["scores"] == {"u": 8 * n * 6} and up["scores"]["scores"] == 8 * n
                assert up["scores"].keys() == ({"scores", "labels"} if mode == "class_quota" else {"scores"})

def buffers(server):
    "The buffer (x, y) of each client, from its state."
    states = {id: unpack(state).tensors for id, state in server.federation.states.items()}
    return {id: (held["x"], held["y"]) if "y" in held
            else (torch.zeros(0, *GREY), torch.zeros(0, dtype=torch.int64)) for id, held in states.items()}

def task_split(server, k):
    "The labels in the buffer of client k, task by task."
    y = buffers(server)[k][1]
    return [y[torch.isin(y, torch.tensor(names))] for names in server.server.names]

@every_mode
def test_unmasked_features_never_go_up(mode):
    server = server_of(team(block=5), gdr_mode=mode)
    seen = watched(server)
    for task, classes in enumerate(TASKS.values()):
        loop(server, {task: classes})
        for t, verb, k, msg in seen:
            if t != task: continue
            x = features(server.server.network(), task_pictures(k, classes)[0]).double()
            for name, tensor in msg.tensors.items():
                if name.startswith("model/") or tensor.dim() != 2: continue
                assert verb == "sketch" and tensor.shape == x.shape
                assert torch.cdist(tensor, x).min() > 0.05
                assert torch.cdist(tensor.abs().sort(1).values, x.abs().sort(1).values).min() > 0.01
                norms = tensor.norm(dim=1)[:, None] - x.norm(dim=1)
                assert norms.abs().min(1).values.max() > 0.01 and abs(tensor.norm() - x.norm()) < 1e-9

def test_masks_are_new_for_each_task_and_client_and_Q_is_shared():
    """From X and X' of full column rank, Q follows when P is known: the same for all clients, another in the
    next task."""
    clients = [FedCBDRClient(k, *held(2), seed=5) for k in range(3)]
    server = server_of(clients)
    seen, masks, qs = watched(server), [], []
    for task, classes in enumerate(TASKS.values()):
        loop(server, {task: classes})
        x = features(server.server.network(), clients[0].new[0]).double()
        masks += [client.mask_of_rows() for client in clients]
        qs += [torch.linalg.lstsq(client.mask_of_rows() @ x,
                                  sent(seen, "sketch", task)[client.id]["features"]).solution
               for client in clients]
    assert all(not close(a, b, 0.1) for a, b in itertools.combinations(masks, 2))
    assert all(close(qs[0], q, 1e-6) for q in qs[:3]) and all(close(qs[3], q, 1e-6) for q in qs[3:])
    assert not close(qs[0], qs[3], 0.1)

def sparse(k):
    "As `held`, but client 1 has no picture of the second task."
    x, y = held(k)
    some = torch.isin(y, torch.tensor([30, 7])) if k == 1 else torch.ones(len(y), dtype=torch.bool)
    return x[some], y[some]

@every_mode
@pytest.mark.parametrize("m", [1, 7, 12, 20])
@pytest.mark.parametrize("replace", [True, False])
def test_exactly_m_pictures_are_kept_of_each_task(mode, m, replace):
    clients = [FedCBDRClient(k, *sparse(k)) for k in range(3)]
    server = server_of(clients, gdr_mode=mode, buffer_size=m, replace=replace)
    for task, (name, classes) in enumerate(TASKS.items(), 1):
        server.set_task(name, classes)
        server.train_round()
        counts = server.coordinate_gdr()
        assert sum(counts.values()) == m and sum(len(client.buffer) for client in clients) == task * m
        assert task == 1 or counts[1] == 0
    assert [len(client.buffer) for client in clients] == [len(y) for _, y in buffers(server).values()]

@every_mode
@pytest.mark.parametrize("shape", [GREY, COLOUR])
def test_without_a_picture_of_a_task_the_default_network_does_too(mode, shape):
    clients = [member(0, shape), member(1, shape), FedCBDRClient(2, *noisy([30, 7] * 4, 2, shape))]
    server = loop(by_hand(clients, exam(shape), SMALL | {"gdr_mode": mode, "epochs": 1}))
    assert sum(len(client.buffer) for client in clients) == 14
    assert set(clients[2].buffer.y.tolist() if len(clients[2].buffer) else []) <= {30, 7}
    assert all(t.isfinite().all() for t in server.server.weights.values())

@every_mode
def test_kept_pictures_are_the_clients_own_of_the_present_task(mode):
    clients = [FedCBDRClient(k, *sparse(k)) for k in range(3)]
    server, drawn = server_of(clients, gdr_mode=mode, buffer_size=11), []
    engine, accept = server.server, server.server.accept
    def look(verb, id, msg):
        if verb == "keep" and id in engine.drawn: drawn.append((engine.task, id, engine.drawn[id]))
        accept(verb, id, msg)
    engine.accept = look
    loop(server)
    for k, client in enumerate(clients):
        wanted = [task_pictures(k, list(TASKS.values())[task], sparse) for task, id, _ in drawn if id == k]
        x, y = (torch.cat([pictures[i][picks]
                           for pictures, (_, _, picks) in zip(wanted, [d for d in drawn if d[1] == k])])
                for i in (0, 1))
        assert len(y) and torch.equal(client.buffer.x, x) and torch.equal(client.buffer.y, y)

@pytest.mark.parametrize("m", [6, 7, 15])
def test_class_quota_keeps_classes_alike(m):
    server = loop(server_of(team(), gdr_mode="class_quota", buffer_size=m))
    y = torch.cat([y for _, y in buffers(server).values()])
    counts = [int((y == c).sum()) for c in LABELS]
    assert counts[0] + counts[1] == counts[2] + counts[3] == m and abs(counts[0] - counts[1]) <= 1
    assert abs(counts[2] - counts[3]) <= 1

@pytest.mark.parametrize("mode", ["global_leverage", "uniform", "class_quota"])
def test_without_replacement_no_picture_is_kept_twice(mode):
    server = loop(server_of(team(), gdr_mode=mode, replace=False, buffer_size=30))
    for x, _ in buffers(server).values(): assert len(x.flatten(1).unique(dim=0)) == len(x)

def test_per_client_draws_more_from_small_clients():
    "Client 2 has three times the pictures of the others, yet the same share."
    def counts(norm):
        clients = [FedCBDRClient(k, *noisy([30, 7] * n, k)) for k, n in enumerate((5, 5, 15))]
        server = server_of(clients, norm=norm, buffer_size=3000)
        server.set_task(0, [30, 7])
        server.train_round()
        return server.coordinate_gdr()
    assert all(abs(n - 1000) < 120 for n in counts("per_client").values()) and counts("global")[2] > 1300

def test_dead_features_are_drawn_uniformly():
    "All scores are 0 where all features are."
    dead = lambda: Expandable(nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(),
                                            nn.Threshold(1e9, 0.0)), 6, 2, GREY)
    for mode in MODES:
        clients = team()
        loop(by_hand(clients, exam(), SMALL | {"gdr_mode": mode}, build(dead, 0)))
        assert sum(len(client.buffer) for client in clients) == 14

def altered(name, change):
    return lambda msg: Msg({**msg.tensors, name: change(msg.tensors[name].clone())}, msg.meta)

def saying(**meta): return lambda msg: Msg(msg.tensors, {**msg.meta, **meta})

def without(name):
    return lambda msg: Msg({n: t for n, t in msg.tensors.items() if n != name},
                           {n: v for n, v in msg.meta.items() if n != name})

def put(i, value):
    def change(t):
        t[i] = value
        return t
    return change

BAD_REPLIES = [("fit", saying(n=2.0), "n=2.0"), ("fit", saying(n=True), "n=True"),
               ("fit", saying(n="3"), "n='3'"), ("fit", saying(n=-1), "n=-1"), ("fit", saying(n=2**40), "n="),
               ("fit", without("n"), "n=None"), ("fit", saying(new=1.5), "new=1.5"),
               ("fit", without("new"), "new=None"),
               ("fit", altered("model/head.bias", lambda t: t[:1]), "shape"),
               ("fit", altered("model/head.bias", put(0, float("nan"))), "finite"),
               ("fit", without("model/head.bias"), "names"),
               ("sketch", altered("features", lambda t: t[1:]), "shape"),
               ("sketch", altered("features", lambda t: t[:, 1:]), "shape"),
               ("sketch", altered("features", lambda t: t.float()), "dtype"),
               ("sketch", altered("features", put((0, 0), float("inf"))), "finite"),
               ("sketch", without("features"), "names"),
               ("scores", altered("scores", lambda t: t[1:]), "shape"),
               ("scores", altered("scores", lambda t: t[:, None]), "shape"),
               ("scores", altered("scores", put(0, -0.1)), "0..1"),
               ("scores", altered("scores", put(0, 1.1)), "0..1"),
               ("scores", altered("scores", lambda t: 0.9 * t), "sum"),
               ("scores", altered("scores", lambda t: torch.ones_like(t)), "sum"),
               ("scores", altered("scores", lambda t: t.float()), "dtype"),
               ("scores", altered("scores", put(0, float("nan"))), "finite"),
               ("scores", altered("labels", put(0, 2)), "labels"),
               ("scores", altered("labels", put(0, -1)), "labels"),
               ("scores", altered("labels", lambda t: t.double()), "dtype"),
               ("scores", without("labels"), "names"), ("keep", saying(kept=99), "kept=99"),
               ("keep", saying(kept="all"), "kept='all'"), ("keep", without("kept"), "kept=None"),
               ("keep", lambda msg: Msg({"x": torch.zeros(2)}, msg.meta), "names")]

@pytest.mark.parametrize("verb, spoil, said", BAD_REPLIES,
                         ids=[f"{verb} {said}" for verb, _, said in BAD_REPLIES])
def test_bad_replies_are_refused(verb, spoil, said):
    server, tried = server_of(team(), gdr_mode="class_quota"), []
    accept = server.server.accept
    def look(v, id, msg):
        if v == verb and id == 1:
            with pytest.raises(Refused, match=said): accept(v, id, spoil(msg))
            tried.append(v)
        accept(v, id, msg)
    server.server.accept = look
    loop(server, {"a": [30, 7]})
    assert tried == [verb] and not server.federation.ledger.absent

def test_more_new_pictures_than_pictures_are_refused():
    server = server_of(team(), gdr_mode="uniform")
    server.set_task(0, [30, 7])
    reply = Msg(labelled(server.server.weights, "model"), {"n": 0, "new": 10**6})
    with pytest.raises(Refused, match="new"): server.server.accept("fit", 0, reply)


# ---- failures

@dataclass(frozen=True)
class Struck(Faults):
    "Faults of one `kind` that strike the replies `of`, pairs of verb and client, and nothing else."
    kind: str = "silent"
    of: tuple = ()

    def strike(self, round, verb, id): return self.kind if (verb, id) in self.of else None

def harmed(kind, *of): return Federation(InProcess(lender()), 3, faults=Struck(kind=kind, of=of))

@pytest.mark.parametrize("kind", ["silent", "nan", "shape", "garbage"])
@pytest.mark.parametrize("verb", ["sketch", "scores"])
@pytest.mark.parametrize("mode", ["global_leverage", "class_quota"])
def test_a_client_that_fails_is_left_out_and_the_rest_goes_on(kind, verb, mode):
    server = loop(server_of(harmed(kind, (verb, 1)), gdr_mode=mode))
    got = buffers(server)
    assert {(miss["client"], miss["verb"]) for miss in server.federation.ledger.absent} == {(1, verb)}
    assert len(server.federation.ledger.absent) == 2
    assert len(got[1][1]) == 0 and len(got[0][1]) + len(got[2][1]) == 14

def test_a_client_that_fails_in_keep_keeps_nothing():
    server = server_of(harmed("silent", ("keep", 1)))
    for task, classes in enumerate(TASKS.values(), 1):
        loop(server, {task: classes})
        assert len(buffers(server)[1][1]) == 0
    assert sum(len(y) for _, y in buffers(server).values()) < 14

def test_a_client_that_never_answers_fit_is_left_out():
    for mode in MODES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            server = loop(server_of(harmed("silent", ("fit", 1)), gdr_mode=mode))
        assert sum(len(y) for _, y in buffers(server).values()) == 14

def test_a_task_of_which_no_score_came_is_gone_on_without():
    server = loop(server_of(harmed("silent", ("sketch", 0), ("sketch", 2), ("scores", 1))))
    assert sum(len(y) for _, y in buffers(server).values()) == 0

def test_a_quota_minds_clients_that_are_gone():
    server = loop(server_of(harmed("silent", ("sketch", 1)), gdr_mode="class_quota", buffer_size=30))
    assert sum(len(y) for _, y in buffers(server).values()) == 56

class Broken(FedCBDRClient):
    "Client 1 raises in `sketch`."
    def sketch(self, msg):
        if self.id == 1: raise RuntimeError("out of memory")
        return super().sketch(msg)

def test_a_client_that_raises_in_sketch_is_left_out():
    clients = team(kind=Broken)
    with pytest.warns(UserWarning, match="sketch: 2 of 3.*out of memory"): loop(server_of(clients))
    assert [len(client.buffer) > 0 for client in clients] == [True, False, True]
    assert sum(len(client.buffer) for client in clients) == 14

def test_the_draw_minds_only_those_that_answered():
    "With client 1 gone, the others' scores are those of a federation of two."
    one = server_of(team(kind=Broken))
    one.set_task(0, [30, 7])
    with pytest.warns(UserWarning): one.train_round(), one.coordinate_gdr()
    x = [features(one.server.network(), task_pictures(k, [30, 7])[0]) for k in (0, 2)]
    want = draw_samples(sampling_probabilities(list(leverage_scores(torch.cat(x)).split([len(each)
                                                                                         for each in x]))), 7,
                        True, generator(0, 0, 2))
    assert not len(one.server.drawn.pop(1))
    assert all(torch.equal(a, b) for a, b in zip(one.server.drawn.values(), want, strict=True))


# ---- the loop, step by step

@pytest.mark.parametrize("shape", [GREY, COLOUR])
def test_the_loop_learns_arbitrary_labels(shape):
    clients = [member(k, shape) for k in range(3)]
    server = loop(by_hand(clients, exam(shape), dict(batch=8, lr=0.05, buffer_size=12)), rounds=3)
    x, y = exam(shape)
    got = server.predict(x)
    assert got.dtype == torch.int64 and got.shape == y.shape and set(got.tolist()) <= set(LABELS)
    assert (got == y).float().mean() > 0.8
    assert server.history.last("accuracy") == pytest.approx((got == y).float().mean().item())
    assert server.server.model.head.out_features == 4

def test_the_default_network_takes_any_pictures():
    for shape in (GREY, COLOUR, (1, 28, 28), (2, 1, 1)):
        assert default_network(3, shape)(torch.zeros(2, *shape)).shape == (2, 3)

def test_history_and_ledger_are_filled():
    server = loop(server_of(team()), rounds=2)
    rows, ledger = server.history.rows, server.federation.ledger
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert [row["task"] for row in rows] == ["a", "a", "b", "b"]
    assert [len(row["row"]) for row in rows] == [1, 1, 2, 2]
    assert all(0 <= row["accuracy"] <= 1 for row in rows)
    assert all(a["up"] < b["up"] and a["down"] < b["down"] for a, b in zip(rows, rows[1:]))
    assert ledger.so_far["up"] == sum(e.nbytes for e in ledger.where(way="up"))
    assert {e.client for e in ledger.entries} == {0, 1, 2}
    assert rows[-1]["accuracy"] == pytest.approx(np.mean(rows[-1]["row"]))

def test_history_has_every_byte():
    server = loop(server_of(team()))
    assert server.history.last("up") == server.federation.ledger.so_far["up"]

def test_accuracy_is_that_of_the_score():
    server = loop(server_of(team()))
    x, y = exam()
    assert server.evaluate()[0] == accuracy(server.predict(x), y)

def test_train_round_answers_the_accuracy_it_notes():
    server = server_of(team())
    server.set_task(0, [30, 7])
    assert server.train_round() == server.history.last("accuracy")
    x, y = task_pictures(None, [30, 7], lambda _: exam())
    assert server.history.last("accuracy") == pytest.approx((server.predict(x) == y).float().mean().item())

def test_labels_never_named_are_ignored():
    def clients(extra):
        for k in range(3):
            x, y = held(k)
            more, label = noisy([99] * extra, 50 + k)
            yield FedCBDRClient(k, torch.cat([more, x]), torch.cat([label, y]))
    plain, other = (loop(server_of(list(clients(extra)))) for extra in (0, 9))
    assert equal(plain.server.weights, other.server.weights)
    assert all(99 not in y for _, y in buffers(other).values())
    assert all(torch.equal(a[0], b[0]) for a, b in zip(buffers(plain).values(), buffers(other).values()))

def test_what_labels_are_called_changes_nothing():
    "The same pictures under other names, in another numerical order."
    names = {30: 0, 7: 1, 12: 2, 5: 3}
    number = lambda y: torch.tensor([names[c] for c in y.tolist()])
    clients = [FedCBDRClient(k, held(k)[0], number(held(k)[1])) for k in range(3)]
    x, y = exam()
    other = loop(by_hand(clients, (x, number(y)), SMALL, build(net, 0)), {"a": [0, 1], "b": [2, 3]})
    one = loop(server_of(team()))
    assert equal(one.server.weights, other.server.weights)
    assert torch.equal(number(one.predict(x)), other.predict(x))

@every_mode
def test_clients_as_a_list_and_as_a_federation(mode):
    one = loop(server_of(team(), gdr_mode=mode), rounds=2)
    for workers in (1, 2):
        with Federation(transport_for(lender(), workers), 3) as federation:
            other = loop(server_of(federation, gdr_mode=mode), rounds=2)
            assert equal(one.server.weights, other.server.weights)
            assert one.federation.states == other.federation.states and one.history.rows == other.history.rows
            assert one.federation.ledger.entries == other.federation.ledger.entries

def test_clients_may_have_any_numbers():
    clients = [FedCBDRClient(id, *held(k)) for k, id in enumerate((8, 3, 20))]
    server = loop(server_of(clients))
    assert list(server.federation.states) == [8, 3, 20]
    assert sum(len(client.buffer) for client in clients) == 14

def test_without_replay_nothing_is_kept():
    clients = team()
    server = loop(server_of(clients, use_replay=False))
    assert {e.verb for e in server.federation.ledger.entries} == {"fit"}
    assert all(len(client.buffer) == 0 for client in clients)

def test_without_replay_the_past_is_forgotten_and_with_it_it_is_not():
    accuracy = {replay: loop(server_of(team(), use_replay=replay, lr=0.1, buffer_size=12),
                             rounds=6).history.last("row")[0] for replay in (False, True)}
    assert accuracy[False] < 0.3 and accuracy[True] > 0.7

@pytest.fixture(scope="module")
def plain(): return loop(server_of(team()), rounds=2)

@pytest.mark.parametrize("changes",
                         [dict(tts_mode="off"), dict(tts_mode="code"), dict(tau_old=0.5), dict(tau_new=2.0),
                          dict(omega_old=2.0), dict(omega_new=0.5), dict(replay_ratio=0.5),
                          dict(weight_decay=0.1), dict(momentum=0.0), dict(epochs=1), dict(batch=5),
                          dict(lr=0.01), dict(rate="constant"), dict(lr_end=0.04), dict(aggregation="size"),
                          dict(gdr_mode="uniform"),
                          dict(gdr_mode="repo_local"), dict(gdr_mode="class_quota"), dict(norm="per_client"),
                          dict(replace=False), dict(use_replay=False), dict(buffer_size=3)], ids=str)
def test_every_field_of_the_configuration_counts(changes, plain):
    assert not equal(loop(server_of(team(), **changes), rounds=2).server.weights, plain.server.weights)

def test_mask_block_changes_what_is_sent_and_not_what_is_kept():
    plain, other = server_of(team()), server_of(team(block=3))
    seen = watched(plain), watched(other)
    loop(plain), loop(other)
    assert not close(sent(seen[0], "sketch", 0)[0]["features"], sent(seen[1], "sketch", 0)[0]["features"],
                     0.01)
    assert equal(plain.server.weights, other.server.weights)

def test_the_uniform_control_draws_by_pictures_or_by_clients():
    counts = {}
    for norm in ("global", "per_client"):
        server = server_of([FedCBDRClient(k, *noisy([30, 7] * n, k)) for k, n in enumerate((5, 15))],
                           gdr_mode="uniform", norm=norm, buffer_size=2000)
        server.set_task("a", [30, 7])
        server.train_round()
        counts[norm] = server.coordinate_gdr()
    assert abs(counts["global"][0] - 500) < 80 and abs(counts["per_client"][0] - 1000) < 90

def rates_told(server, rounds):
    "The rates that clients are told in `rounds` rounds of two tasks."
    told, engine, send = [], server.server, server.server.send
    def look(id):
        msg = send(id)
        if id == 0: told.append(msg.meta["train"]["lr"])
        return msg
    engine.send = look
    for task, classes in TASKS.items():
        server.set_task(task, classes)
        for _ in range(rounds): server.train_round()
    return told

def test_the_rate_falls_by_a_cosine_and_begins_anew_with_each_task():
    got = rates_told(server_of(team(), rounds=4, lr=0.05, lr_end=0.01), 4)
    want = [0.01 + 0.02 * (1 + np.cos(np.pi * r / 4)) for r in range(4)]
    assert got == pytest.approx(2 * want) and rates_told(server_of(team(), rate="constant"), 2) == [0.05] * 4

def test_rounds_beyond_those_of_a_task_stay_at_the_end_of_the_cosine():
    assert rates_told(server_of(team(), rounds=2, lr_end=0.01), 4)[2:4] == pytest.approx([0.01, 0.01])

def test_a_run_over_a_stream_tells_the_same_rates(stream):
    sizes, rates = replace(SIZES, rounds=3, lr=0.05, lr_end=0.02), []
    server = StreamExperiment(sizes, method=FedCBDR, streams=made_up).server()
    for r in range(6):
        server.begin([0, 1, 2], r)
        rates.append(server.lr)
    assert rates == pytest.approx(2 * [0.05, 0.0425, 0.0275])

def test_temperatures_at_the_test():
    z = normal(5, 4)
    want = torch.cat([z[:, :3] / 0.9, z[:, 3:] / 1.1], 1)
    assert close(tempered(z, torch.arange(4) < 3, 0.9, 1.1), want, 1e-12)
    one, other = (loop(server_of(team(), scale=scale, tau_old=0.2, tau_new=5.0), rounds=2)
                  for scale in (False, True))
    assert equal(one.server.weights, other.server.weights), "they change the answers, not the training"
    x = 0.1 * torch.randn(100, *GREY, generator=generator(5))
    with torch.no_grad(): z = other.server.network()(x)
    scaled = torch.cat([z[:, :2] / 0.2, z[:, 2:] / 5.0], 1).argmax(1)
    assert torch.equal(other.server.classify(x), scaled) and not torch.equal(scaled, z.argmax(1))
    assert torch.equal(one.server.classify(x), z.argmax(1))
    first = loop(server_of(team(), scale=True), {"a": [30, 7]})
    with torch.no_grad(): assert torch.equal(first.server.classify(x), first.server.network()(x).argmax(1))

@pytest.mark.parametrize("policy", ["class_balanced", "herding", "append"])
def test_a_clients_buffer_keeps_to_its_capacity(policy):
    clients = [FedCBDRClient(k, *held(k), buffer_size=4) for k in range(3)]
    loop(server_of(clients, buffer_policy=policy, buffer_size=30))
    assert [len(client.buffer) for client in clients] == [4, 4, 4]
    assert all(client.buffer.policy == policy for client in clients)
    for client in clients:
        if policy == "append": assert set(client.buffer.y.tolist()) <= {30, 7}
        else: assert sorted(client.buffer.y.tolist()) == sorted(LABELS)

def test_herding_in_a_client_uses_the_global_models_features():
    clients = [FedCBDRClient(k, *held(k), buffer_size=4) for k in range(2)]
    server = server_of(clients, buffer_policy="herding", buffer_size=26, gdr_mode="class_quota",
                       replace=False)
    server.set_task(0, [30, 7])
    server.train_round()
    counts, model = server.coordinate_gdr(), server.server.network()
    assert counts == {0: 12, 1: 14}
    for k, client in enumerate(clients):
        for c in (30, 7):
            x = task_pictures(k, [c])[0]
            want = x[herding(features(model, x), 2)]
            assert ({tuple(row) for row in client.buffer.x[client.buffer.y == c].flatten(1).tolist()}
                    == {tuple(row) for row in want.flatten(1).tolist()})

def test_a_configuration_as_dict_and_as_sizes_run_alike():
    one, other = (loop(by_hand(team(), exam(), config, build(net, 0)))
                  for config in (SMALL, FedCBDRSizes(**SMALL)))
    assert equal(one.server.weights, other.server.weights)

def test_a_run_repeats_with_its_seed_and_leaves_the_global_generator():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, again, other = (loop(by_hand([FedCBDRClient(k, *held(k), seed=seed) for k in range(3)], exam(),
                                            SMALL | {"epochs": 1}, seed=seed)) for seed in (0, 0, 1))
    assert equal(one.server.weights, again.server.weights)
    assert one.federation.states == again.federation.states
    assert not equal(one.server.weights, other.server.weights)
    assert torch.equal(before, torch.get_rng_state())

def test_exam_may_be_bytes_arrays_and_lists():
    "uint8 in numpy gives what the same numbers give as floats."
    as_bytes = lambda x: (x * 40 + 128).clamp(0, 255).to(torch.uint8)
    x, y = exam()
    raw = [FedCBDRClient(k, as_bytes(held(k)[0]).numpy(), held(k)[1].tolist()) for k in range(3)]
    floats = [FedCBDRClient(k, as_bytes(held(k)[0]).float().div(127.5).sub(1), held(k)[1]) for k in range(3)]
    one = loop(by_hand(raw, (as_bytes(x).numpy(), y.numpy()), SMALL, build(net, 0)))
    other = loop(by_hand(floats, (as_bytes(x).float() / 127.5 - 1, y), SMALL, build(net, 0)))
    for name in one.server.weights:
        torch.testing.assert_close(one.server.weights[name], other.server.weights[name], rtol=1e-4, atol=1e-5)
    assert raw[0].buffer.x.dtype == torch.uint8

def test_a_new_task_leaves_old_logits_as_they_are():
    server, x = server_of(team()), exam()[0]
    loop(server, {"a": [30, 7]}, rounds=2)
    with torch.no_grad(): before = server.server.network()(x)
    server.set_task("b", [12, 5])
    with torch.no_grad(): after = server.server.network()(x)
    assert after.shape == (40, 4) and torch.allclose(after[:, :2], before, rtol=0, atol=1e-6)
    assert not (server.server.weights["head.bias"][2:]).any()
    client = member(0, model=build(net, 9))
    client.receive(unpack(pack(server.server.send(0))))
    with torch.no_grad(): assert torch.allclose(client.model.eval()(x)[:, :2], before, rtol=0, atol=1e-6)

@settings(deadline=None, max_examples=30)
@given(classes=st.integers(1, 9), n_new=st.integers(0, 5), seed=st.integers(0, 99))
def test_widening_any_head_keeps_old_logits(classes, n_new, seed):
    head = build(partial(nn.Linear, 6, classes), seed)
    x = torch.randn(9, 6, generator=generator(seed))
    assert torch.equal(widen(head, n_new, generator(seed))(x)[:, :classes], head(x))

def test_tasks_of_other_widths():
    server = loop(server_of(team()), {"x": [7], 2: [30, 5, 12]}, rounds=2)
    assert server.server.classes == [1, 3] and server.server.model.head.out_features == 4
    assert set(server.predict(exam()[0]).tolist()) <= set(LABELS)

def test_more_rounds_after_the_draw_train_on_what_was_kept():
    clients = team()
    server = server_of(clients)
    seen = watched(server)
    loop(server, {"a": [30, 7]})
    server.train_round()
    counts = [msg.meta for _, verb, id, msg in seen if verb == "fit"]
    assert [m["new"] for m in counts] == [12, 14, 16] * 2
    assert [m["n"] for m in counts[3:]] == [m["new"] + len(c.buffer) for m, c in zip(counts, clients)]

def test_replayed_pictures_come_under_their_own_labels(monkeypatch):
    seen, train = [], FedCBDRTrainer.train
    def look(self, model, new, replayed, *rest):
        seen.append((new, replayed))
        train(self, model, new, replayed, *rest)
    monkeypatch.setattr(FedCBDRTrainer, "train", look)
    loop(server_of(team(), epochs=1))
    known = {tuple(row): c for k in range(3)
             for row, c in zip(held(k)[0].flatten(1).tolist(), held(k)[1].tolist())}
    order = sum(TASKS.values(), [])
    for pair in seen:
        for x, y in pair:
            assert [known[tuple(row)] for row in x.flatten(1).tolist()] == [order[i] for i in y.tolist()]
    assert [len(old[1]) > 0 for _, old in seen[:3]] == [False] * 3
    assert sum(len(old[1]) for _, old in seen[3:]) == 7
    assert all(set(new[1].tolist()) == {2, 3} and set(old[1].tolist()) <= {0, 1} for new, old in seen[3:])

def test_clients_lent_no_network_borrow_the_servers_kind():
    clients = team()
    server = server_of(clients)
    assert len({id(client.model) for client in clients}) == 1 and clients[0].model is not server.server.model
    mine = build(net, 7)
    own = member(0, model=mine)
    server_of([own, member(1)])
    assert own.model is mine


def begun(**config):
    server = server_of(team(), **config)
    loop(server, {"a": [30, 7]})
    return server

def opened(**config):
    server = server_of(team(), **config)
    server.set_task("a", [30, 7])
    server.train_round()
    return server

X, Y = noisy(LABELS, 0)
BAD_USE = {
    "task twice": (lambda: begun().set_task("a", [12, 5]), "task_id='a'"),
    "class twice": (lambda: begun().set_task("b", [12, 7]), r"came before: \[7\]"),
    "class twice in a task": (lambda: server_of(team()).set_task("a", [30, 30]),
                              r"task_classes=\[30, 30\].*first time"),
    "no class": (lambda: server_of(team()).set_task("a", []), r"task_classes=\[\]"),
    "class without test pictures": (lambda: server_of(team()).set_task("a", [30, 99]), r"\[99\].*test_data"),
    "gdr twice": (lambda: begun().coordinate_gdr(), "coordinate_gdr.*'a'.*set_task"),
    "gdr before a task": (lambda: server_of(team()).coordinate_gdr(), "set_task"),
    "training before a task": (lambda: server_of(team()).train_round(), "set_task"),
    "buffer_size leverage": (lambda: opened(buffer_size=43, replace=False).coordinate_gdr(),
                             "buffer_size=43.*42 pictures"),
    "buffer_size uniform": (lambda: opened(buffer_size=43, replace=False,
                                           gdr_mode="uniform").coordinate_gdr(),
                            "buffer_size=43.*42 pictures"),
    "buffer_size quota": (lambda: opened(buffer_size=43, gdr_mode="class_quota").coordinate_gdr(),
                          "buffer_size=43.*42 pictures"),
    "three dimensions": (lambda: FedCBDRClient(0, X[0], Y), r"client 0: x is.*\(1, 8, 8\)"),
    "whole numbers": (lambda: FedCBDRClient(0, X.int(), Y), "client 0: x is torch.int32"),
    "labels too few": (lambda: FedCBDRClient(3, X, Y[:2]), r"client 3: y is.*\(2,\).*4"),
    "labels as floats": (lambda: FedCBDRClient(3, X, Y.float()), "client 3: y is torch.float32"),
    "labels one-hot": (lambda: FedCBDRClient(3, X, F.one_hot(Y)), "client 3: y"),
    "test_data": (lambda: by_hand(team(), (X, Y[:1])), "test_data: y"),
    "test_data pictures": (lambda: by_hand(team(), (X.flatten(1), Y)), "test_data: x"),
    "cid": (lambda: FedCBDRClient("zero", X, Y), "cid='zero'"),
    "negative cid": (lambda: FedCBDRClient(-1, X, Y), "cid=-1"),
    "capacity": (lambda: FedCBDRClient(0, X, Y, buffer_size=0), "capacity=0"),
    "duplicate ids": (lambda: server_of([member(1), member(1)]), r"clients have the ids \[1, 1\]"),
    "no clients": (lambda: server_of([]), r"clients have the ids \[\]"),
    "plain network": (lambda: by_hand(team(), exam(), SMALL,
                                            nn.Sequential(nn.Flatten(), nn.Linear(64, 2))),
                      "model is a Sequential.*Expandable"),
    "no network at all": (lambda: by_hand(team(), exam(), SMALL, "cnn"), "model is a str"),
    "no picture of a task": (lambda: (lambda s: (s.set_task(0, [30]),
                                                 s.train_round()))(server_of([FedCBDRClient(0, X[1:],
                                                                                            Y[1:])])),
                             "without pictures"),
}

@pytest.mark.parametrize("name", BAD_USE)
def test_bad_use_is_one_clear_sentence(name):
    call, said = BAD_USE[name]
    with pytest.raises(UserError, match=said) as error: call()
    assert "\n" not in str(error.value)

ODD_USE = {
    "gdr before training, sketch": (lambda: (lambda s: (s.set_task("a", [30, 7]),
                                                        s.coordinate_gdr()))(server_of(team())),
                                    "train_round"),
    "gdr before training, uniform": (lambda: (lambda s: (s.set_task("a", [30, 7]),
                                                         s.coordinate_gdr()))(server_of(team(),
                                                                                        gdr_mode="uniform")),
                                     "train_round"),
    "predict before a task": (lambda: server_of(team()).predict(X), "set_task"),
    "evaluate before a task": (lambda: server_of(team()).evaluate(), "set_task"),
    "no test_data": (lambda: by_hand(team(), None), "test_data"),
    "test_data without labels": (lambda: by_hand(team(), X), "test_data"),
    "classes as a number": (lambda: server_of(team()).set_task("a", 30), "task_classes=30"),
    "classes as text": (lambda: server_of(team()).set_task("a", ["cat"]), "task_classes"),
    "a class and a half": (lambda: server_of(team()).set_task("a", [30.7]), "task_classes"),
    "labels as text": (lambda: FedCBDRClient(0, X, ["a", "b", "c", "d"]), "client 0"),
    "config as a number": (lambda: by_hand(team(), exam(), 5), "config"),
    "a single client": (lambda: server_of(member(0)), "clients"),
    "old classes below 0": (lambda: tts_loss(normal(1, 5), torch.tensor([0]), -1), "old_classes"),
    "old classes that are none": (lambda: tts_loss(normal(1, 5), torch.tensor([0]), [7]), "old_classes"),
}

@pytest.mark.parametrize("name", ODD_USE)
def test_odd_use_is_one_clear_sentence(name):
    call, said = ODD_USE[name]
    with pytest.raises(UserError, match=said): call()

def test_clients_of_an_earlier_server_are_refused():
    clients = team()
    loop(server_of(clients))
    with pytest.raises(UserError, match="another run"): server_of(clients)

def test_a_label_that_was_not_named_is_not_numbered():
    client = member(0)
    client.begin({"task": 0, "old": 0, "classes": [30, 7]})
    with pytest.raises(UserError): client.number(torch.tensor([30, 12]))


# ---- both ways to run it

SIZES = FedCBDRSizes(tasks=2, clients=3, rounds=2, epochs=1, batch=8, lr=0.05, buffer_size=7)

def streamed(tasks=2, clients=3, side=16):
    "A small `Stream` of made-up pictures, two classes a task; client k has 5 + k pictures of each."
    patterns = {c: torch.randn(1, side, side, generator=generator(88, c)) for c in range(2 * tasks)}
    def some(t, n, *seed):
        y = torch.tensor([2 * t, 2 * t + 1] * n)
        x = (torch.stack([patterns[c] for c in y.tolist()]) + 0.5
             * torch.randn(len(y), 1, side, side, generator=generator(*seed, t)))
        return (x * 40 + 128).clamp(0, 255).to(torch.uint8), y
    return Stream([[f"class {2 * t}", f"class {2 * t + 1}"] for t in range(tasks)],
                  [[some(t, 5 + k, 1, k) for t in range(tasks)] for k in range(clients)],
                  [some(t, 10, 2) for t in range(tasks)], "made up")

@pytest.fixture(scope="module")
def stream(): return streamed()

def run_with(mode, stream, sizes=SIZES, **options):
    return run_stream(FedCBDR, stream, replace(sizes, gdr_mode=mode), 0, **{"workers": 1} | options)

@pytest.fixture(scope="module")
def wanted(stream):
    "Undisturbed runs, each made once."
    return lru_cache(lambda mode, rounds=2: run_with(mode, stream, replace(SIZES, rounds=rounds)))

def same(got, want):
    return (equal(got.server.weights, want.server.weights) and got.federation.states == want.federation.states
            and (got.up, got.down) == (want.up, want.down) and str(got.matrix) == str(want.matrix))

def test_with_one_task_it_is_fedavg():
    one = streamed(tasks=1)
    sizes = replace(SIZES, tasks=1, rounds=3, epochs=2, aggregation="size", tts_mode="off", weight_decay=0.0,
                    rate="constant")
    want = run_stream(FedAvg, one, sizes, 0, workers=1)
    for mode in MODES: assert equal(run_with(mode, one, sizes).server.weights, want.server.weights)
    assert equal(run_with("uniform", one, replace(sizes, tts_mode="paper")).server.weights,
                 want.server.weights)
    assert not equal(run_with("uniform", one, replace(sizes, aggregation="uniform")).server.weights,
                     want.server.weights)

@every_mode
def test_the_loop_and_run_stream_agree(mode, stream, wanted):
    want = wanted(mode)
    clients = [FedCBDRClient(k, *(torch.cat(parts) for parts in zip(*tasks)), seed=0)
               for k, tasks in enumerate(stream.clients)]
    server = by_hand(clients, tuple(torch.cat(parts) for parts in zip(*stream.test)),
                           replace(SIZES, gdr_mode=mode), build(partial(expandable_cnn, 2, stream.shape), 0),
                           seed=0)
    loop(server, {0: [0, 1], 1: [2, 3]}, rounds=2)
    assert equal(server.server.weights, want.server.weights)
    assert server.federation.states == want.federation.states
    for a, b in zip(server.history.column("row"), want.history.column("row"), strict=True):
        assert a == pytest.approx(b)
    assert server.federation.ledger.so_far == want.federation.ledger.so_far
    x = torch.cat([x for x, _ in stream.test])
    assert torch.equal(server.predict(x), want.server.classify(x))

@every_mode
def test_a_run_over_a_stream(mode, stream, wanted):
    outcome = wanted(mode)
    a = np.array(outcome.matrix)
    assert a.shape == (2, 2) and np.isnan(a[0, 1]) and np.isfinite(a[np.tril_indices(2)]).all()
    assert not outcome.federation.ledger.absent
    kept = [unpack(state).tensors.get("y", torch.zeros(0)) for state in outcome.federation.states.values()]
    assert sum(map(len, kept)) == 14 and (torch.cat(kept) < 2).sum() == 7
    other = run_stream(FedCBDR, stream, replace(SIZES, gdr_mode=mode), 1, workers=1)
    assert not equal(other.server.weights, outcome.server.weights)

def test_a_variant_fixes_its_fields(stream):
    off = variant("without TTS", tts_mode="off", buffer_size=5)
    assert off.name == "without TTS"
    assert same(run_stream(off, stream, SIZES, 0, workers=1),
                run_stream(FedCBDR, stream, replace(SIZES, tts_mode="off", buffer_size=5), 0, workers=1))

def made_up(sizes, seed): return streamed()

@every_mode
def test_a_run_is_proven(mode):
    kinds = {} if mode == "class_quota" else {"kinds": ("silent", "shape")}
    sizes = replace(SIZES, rounds=1, gdr_mode=mode)
    prove(StreamExperiment(sizes, method=FedCBDR, streams=made_up), kills=5, **kinds)

def test_a_run_with_a_herded_buffer_is_proven():
    sizes = replace(SIZES, rounds=1, buffer_policy="herding", capacity=3, buffer_size=12)
    prove(StreamExperiment(sizes, method=FedCBDR, streams=made_up), kinds=("silent",))

def test_a_server_comes_back_from_its_state():
    "After each exchange of the end of a task."
    loop_, ids = opened(gdr_mode="class_quota"), [0, 1, 2]
    server = loop_.server
    for verb, say, to, merge in server.gdr_steps(ids):
        merge(list(loop_.federation.exchange(verb, say, to, server.accept)))
        other = opened(gdr_mode="class_quota").server
        other.load(unpack(pack(server.state())))
        a, b = server.state(), other.state()
        assert equal(a.tensors, b.tensors) and a.meta == b.meta
        assert other.new == server.new == {0: 12, 1: 14, 2: 16}
        assert equal(other.blocks, server.blocks)
        assert (verb == "sketch") == bool(other.blocks) == (other.drawn is None)
        assert equal(other.drawn or {}, server.drawn or {})

def test_a_client_comes_back_from_its_state():
    client, server = member(1, model=build(net, 3)), server_of([member(1)])
    loop(server, {"a": [30, 7]})
    state = server.federation.states[1]
    client.load(unpack(state))
    assert pack(client.state()) == state and len(client.buffer) == 7 and client.classes == [30, 7]


# ---- the gate

@pytest.fixture(scope="module")
def digits():
    datasets = pytest.importorskip("sklearn.datasets")
    from fedbook.datasets.split import dirichlet

    data = datasets.load_digits()
    x, y = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1, torch.tensor(data.target)
    order = torch.randperm(len(y), generator=generator(0))
    test, train = order[:540], order[540:]
    return [(x[train][own], y[train][own]) for own in dirichlet(y[train], 5, 0.5, 0)], (x[test], y[test])

def accuracy_on(digits, **config):
    mlp = lambda: Expandable(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU()), 64, 2, (1, 8, 8))
    clients = [FedCBDRClient(k, x, y) for k, (x, y) in enumerate(digits[0])]
    server = by_hand(clients, digits[1],
                           dict(rounds=15, epochs=2, batch=32, lr=0.1, momentum=0.9, buffer_size=16) | config,
                           build(mlp, 0))
    return loop(server, {t: [2 * t, 2 * t + 1] for t in range(5)}, rounds=15).history.last("accuracy")

def test_gate_without_replay_all_is_forgotten(digits): assert accuracy_on(digits, use_replay=False) < 0.25

@every_mode
def test_gate_with_replay_it_is_not(mode, digits): assert accuracy_on(digits, gdr_mode=mode) > 0.7


def test_memory_of_refed_is_its_part_of_all_that_is_kept():
    assert ([sizes_of("paper", {"setting": name}).memory for name in settings_of]
            == [270, 300, 1000, 1000, 4000, 4000])
    assert sizes_of("paper", {"clients": 10}).memory == 150 and sizes_of("paper", {"memory": 7}).memory == 7

def test_capacity_reaches_the_clients_of_a_run():
    outcome = run_stream(FedCBDR, streamed(), replace(SIZES, capacity=3, buffer_size=12), 0, workers=1)
    assert all(len(unpack(state).tensors["y"]) == 3 for state in outcome.federation.states.values())

@pytest.mark.parametrize("pixels, stride", [(32, 1), (64, 2)])
def test_resnets_stem_goes_by_the_size_of_the_pictures(pixels, stride):
    network = expandable_resnet18(2, (3, pixels, pixels))
    assert network.body.conv1.stride == (stride, stride)
    assert network(torch.zeros(2, 3, pixels, pixels)).shape == (2, 2)
