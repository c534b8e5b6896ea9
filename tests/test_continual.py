"""Federated class-incremental learning: streams, heads that grow, and every method of four chapters over the
same streams."""
import importlib
import itertools
import math
import pickle
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedbook.methods.continual as continual
from conftest import by_day, equal

from fedbook.methods.continual import (Comparison, FedAvg, FedProx, Finetune, Stream, StreamExperiment,
                                       TaskSizes, drawn_stream,
                                       expandable_cnn, expandable_resnet18, holdings, make_stream, padded,
                                       probe, run_stream, stream_row, train_on_all, widen)
from fedbook.engine.local import distillation_loss, snapshot
from fedbook.engine.workers import prove, trial
from fedbook.datasets.squares import square_pictures
from fedbook.methods.exemplars import DER, GLFC, ICaRL, ReFed
from fedbook.evidence.claims import Results
from fedbook.engine.errors import UserError
from fedbook.engine.sizes import choose
from fedbook.engine.local import build, generator
from fedbook.methods.painters import (ACGAN, ACGANFedAvg, ACGANFedProx, ACGANNoReplay, FedCIL, LANDER,
                                      LANDERClient, PainterSizes, TARGET, ac_gan, mapped)
from fedbook.methods.penalties import CGoFed, FLwF2T, FedEWC, FedLwF

@dataclass(frozen=True)
class EverySizes(PainterSizes):
    "What the methods of four chapters take."
    memory: int = 12
    proxy_steps: int = 3

SMOKE = EverySizes(pictures=40, test_pictures=20, tasks=3, clients=3, rounds=1, epochs=1, iterations=2, gan_batch=4,
                   consolidation=2, synthetic=64, judge_epochs=1, tries=1)
METHODS = (Finetune, FedAvg, FedProx, FedEWC, FedLwF, FLwF2T, ICaRL, DER, ReFed, CGoFed, ACGANNoReplay,
           ACGANFedAvg,
           ACGANFedProx, FedCIL, GLFC, TARGET, LANDER)
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)


@pytest.fixture(scope="module")
def stream(): return make_stream(SMOKE, 0)


def test_every_method_has_a_name_of_its_own(): assert len({m.name for m in METHODS}) == len(METHODS)


def test_labels_follow_the_order_of_arrival(stream):
    edges = np.cumsum([0, *stream.classes])
    assert len(sum(stream.tasks, [])) == len(set(sum(stream.tasks, []))) == 10 and stream.classes == [3, 3, 4]
    for t, (low, high) in enumerate(itertools.pairwise(edges)):
        assert set(stream.test[t][1].tolist()) == set(range(low, high))
        y = torch.cat([client[t][1] for client in stream.clients])
        assert y.bincount(minlength=high)[low:].tolist() == [SMOKE.pictures] * (high - low) and y.min() >= low
        assert all(len(client[t][1]) for client in stream.clients)


def test_a_label_means_the_same_class_in_training_and_test(stream):
    train, names = square_pictures(SMOKE.data, "train"), sum(stream.tasks, [])
    x, y = stream.clients[0][1]
    for picture, label in zip(x[:5], y[:5]):
        at = (train.images == picture).flatten(1).all(1).nonzero().flatten()
        assert names[label] in {train.classes[train.labels[i]] for i in at}


def test_sizes_refuse_what_cannot_be():
    with pytest.raises(UserError, match="rounds=0"): replace(SMOKE, rounds=0)
    with pytest.raises(UserError, match="network='vit'"): replace(SMOKE, network="vit")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(0, 10), st.integers(1, 300), st.integers(1, 40), st.booleans())
def test_widening_keeps_old_logits(classes, n_new, dim, batch, bias):
    old = build(lambda: nn.Linear(dim, classes, bias=bias), 0)
    new = widen(old, n_new, generator(1))
    assert torch.equal(new.weight[:classes], old.weight) and new.out_features == classes + n_new
    assert torch.equal(new.weight, widen(old, n_new, generator(1)).weight)
    if bias: assert torch.equal(new.bias[:classes], old.bias) and not new.bias[classes:].any()
    x = torch.randn(batch, dim, generator=generator(2))
    assert torch.equal(new(x)[:, :classes], old(x))
    assert torch.equal(widen(new, 3, generator(3))(x)[:, :classes + n_new], new(x))
    assert new.weight.abs().max() <= max(1 / math.sqrt(dim), old.weight.abs().max())


@pytest.mark.parametrize("classes", [2, 4, 6, 8])
def test_a_network_keeps_its_old_logits_to_the_last_bit(classes):
    net, x = build(partial(expandable_cnn, classes), 0), torch.randn(64, 1, 28, 28, generator=generator(3))
    before = net(x)
    net.widen(2, generator(0))
    assert torch.equal(net(x)[:, :classes], before)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 28, 36), (1, 21, 16)])
def test_the_small_cnn_takes_pictures_that_are_not_square(shape):
    net = build(partial(expandable_cnn, 3, shape), 0)
    x = torch.zeros(2, *shape)
    assert net(x).shape == (2, 3) and net.features(x).shape == (2, 128)


def test_widening_refuses_to_shrink_and_leaves_the_global_generator():
    state = torch.get_rng_state()
    with pytest.raises(UserError, match="n_new=-1"): widen(nn.utils.skip_init(nn.Linear, 2, 2), -1)
    widen(nn.utils.skip_init(nn.Linear, 2, 2), 3, generator(0))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("make", [expandable_cnn, partial(mapped, expandable_cnn), ACGAN],
                         ids=["cnn", "mapped", "ac-gan"])
def test_a_network_takes_the_width_of_the_weights_it_is_given(make):
    wide, narrow = build(partial(make, 6, (1, 28, 28)), 0), build(partial(make, 2, (1, 28, 28)), 1)
    x = torch.zeros(3, 1, 28, 28)
    first = snapshot(narrow)
    narrow.load_state_dict(snapshot(wide))
    assert torch.equal(narrow(x), wide(x)) and narrow(x).shape == (3, 6)
    narrow.load_state_dict(first)
    assert narrow(x).shape == (3, 2)


def test_resnet_has_the_stem_for_small_pictures():
    net = build(partial(expandable_resnet18, 4), 0)
    assert net.body.conv1.kernel_size == (3, 3) and net.features(torch.zeros(2, 3, 32, 32)).shape == (2, 512)
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 4)


def test_distillation_by_hand():
    t, T = np.array([[1.0, -2.0, 0.5], [0.0, 0.3, 3.0]]), 2.5
    s = np.array([[0.2, 0.1, 0.0, 9.0], [1.0, 2.0, -1.0, -5.0]])
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
    with pytest.raises(UserError, match="student_logits have shape"):
        distillation_loss(torch.zeros(4, 3), torch.zeros(shape))


FEW = dict(pictures=8, test_pictures=4, iterations=1, consolidation=1)
TINY = replace(SMOKE, tasks=2, rounds=2, clients=2, **FEW)
ONE = replace(SMOKE, tasks=1, rounds=2, clients=2, pictures=20, mu=0.0)
ALIKE = (Finetune, FedProx, ACGANNoReplay, ACGANFedProx)     # they keep what FedAvg and AC-GAN + FedAvg do


def weights_after(method, stream, sizes, **options):
    return run_stream(method, stream, sizes, 0, workers=1, **options).server.weights


@pytest.mark.parametrize("method", [m for m in METHODS if m.network is not ac_gan], ids=lambda m: m.name)
def test_with_one_task_every_classifier_equals_fedavg(method):
    """Terms that act in the first task too are set to zero: FedProx's proximal term, LANDER's ball."""
    one = make_stream(ONE, 0)
    if method is LANDER: method = method._replace(client=partial(LANDERClient, bound=0.0))
    got = weights_after(method, one, ONE)
    want = weights_after(FedAvg, one, ONE)
    assert equal({name: t for name, t in got.items() if not name.startswith("mapping")}, want)


@every_method
def test_every_method_runs(method, stream):
    outcome = run_stream(method, stream, SMOKE, 0, workers=1)
    a = np.array(outcome.matrix)
    assert a.shape == (3, 3)
    assert np.isnan(a[np.triu_indices(3, 1)]).all() and np.isfinite(a[np.tril_indices(3)]).all()
    sizes = [len(y) for _, y in stream.test]
    assert outcome.accuracy == pytest.approx(np.average(a[-1], weights=sizes))
    assert outcome.up > 0 and outcome.down > 0
    assert outcome.forgetting == pytest.approx(np.mean(np.nanmax(a, 0)[:-1] - a[-1, :-1]))
    ledger = outcome.federation.ledger
    assert (outcome.down, outcome.up) == (ledger.total(way="down"), ledger.total(way="up"))


@pytest.mark.slow
@pytest.mark.parametrize("method", by_day([m for m in METHODS if m not in ALIKE], LANDER, TARGET),
                         ids=lambda m: m.name)
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


@pytest.mark.slow
@pytest.mark.parametrize("method", [m for m in METHODS if m not in (Finetune, FedAvg, ACGANNoReplay)],
                         ids=lambda m: m.name)
def test_every_method_does_something_of_its_own_in_the_second_task(method, stream):
    bases = (ACGANNoReplay,) if method.network is ac_gan else (Finetune, FedAvg)
    got = weights_after(method, stream, SMOKE)
    got = {name: t for name, t in got.items() if not name.startswith("mapping")}
    for base in bases: assert not equal(got, weights_after(base, stream, SMOKE))


def test_every_client_needs_pictures_in_every_task(stream):
    poor = stream._replace(clients=[*stream.clients[:2], [(x[:0], y[:0]) for x, y in stream.clients[2]]])
    with pytest.raises(UserError, match="without pictures"): run_stream(FedAvg, poor, SMOKE, 0, workers=1)


@pytest.mark.parametrize("method", [FedEWC, ICaRL, GLFC, TARGET, LANDER, CGoFed, FedCIL],
                         ids=lambda m: m.name)
def test_tasks_may_have_one_class_or_seven(method):
    narrow = replace(SMOKE, pictures=12, test_pictures=5, clients=2, memory=40)
    whole = make_stream(replace(narrow, tasks=10), 0)
    def joined(tasks, of): return [tuple(map(torch.cat, zip(*[of[t] for t in group]))) for group in tasks]
    groups = [[0], [1, 2], [3, 4, 5, 6, 7, 8, 9]]
    names = [sum((whole.tasks[t] for t in group), []) for group in groups]
    clients = [joined(groups, client) for client in whole.clients]
    uneven = Stream(names, clients, joined(groups, whole.test), "uneven")
    outcome = run_stream(method, uneven, narrow, 0, workers=1)
    assert uneven.classes == [1, 2, 7] and np.isfinite(outcome.accuracy)


def test_a_stream_that_was_given_is_named_and_travels(stream, monkeypatch):
    seen = []
    monkeypatch.setattr(continual, "trial", lambda experiment, **_: seen.append(experiment))
    monkeypatch.setattr(StreamExperiment, "outcome", lambda self, ended: ended)
    run_stream(FedAvg, stream, SMOKE, 0)
    assert seen[0].streams.keywords["stream"] is stream and seen[0].stream is stream
    assert pickle.loads(pickle.dumps(seen[0])).stream.tasks == stream.tasks


def test_sizes_need_only_what_their_method_takes():
    few = continual.TaskSizes(pictures=8, test_pictures=4, tasks=2, clients=2, rounds=1, epochs=1)
    assert np.isfinite(run_stream(FedAvg, make_stream(few, 0), few, 0, workers=1).accuracy)
    with pytest.raises(UserError, match="^TaskSizes has no field 'mu'; FedProx takes it$"):
        StreamExperiment(few, method=FedProx).client(0)
    with pytest.raises(UserError, match="has no field 'proxy_steps'; GLFC takes it"):
        StreamExperiment(few, method=GLFC).server()


@pytest.mark.parametrize("name, field", [
    ("methods.continual", "gan_batch"), ("methods.penalties", "mu"), ("methods.exemplars", "synthetic"),
    ("methods.painters", "memory"), ("methods.leverage", "others"), ("fedcbdr", "gan_batch"),
    ("fedgtea", "synthetic"), ("evidence.streams", "data")])
def test_a_chapter_refuses_a_field_that_it_does_not_read(name, field):
    profiles = importlib.import_module(f"fedbook.{name}").profiles
    cure = "did you mean batch" if field == "gan_batch" else "choose one of seeds, "
    with pytest.raises(UserError, match=f"^'{field}' is not a parameter of this chapter; {cure}"):
        choose(profiles, "smoke", {field: 9})


def test_holdings_count_what_is_in_the_states(stream):
    sizes = replace(SMOKE, clients=2)
    for method, keeps_pictures in ((FedAvg, False), (ICaRL, True)):
        ended = trial(StreamExperiment(sizes, method=method), workers=1)
        found, states = holdings(ended, 10), ended.federation.states
        assert found["kept"] == np.mean([len(state) for state in states.values()])
        assert set(found["memory"]) == (set(states) if keeps_pictures else set())
        for counts in found["memory"].values(): assert len(counts) == 10 and 0 < sum(counts) <= SMOKE.memory


def test_a_network_that_saw_everything_beats_chance_and_leaves_the_global_generator(stream):
    state = torch.get_rng_state()
    network, accuracy = train_on_all(stream, replace(SMOKE, judge_epochs=4), 0)
    again, _ = train_on_all(stream, replace(SMOKE, judge_epochs=4), 0)
    assert accuracy > 0.4 and equal(network.state_dict(), again.state_dict())
    assert torch.equal(state, torch.get_rng_state())


class Eye(nn.Module):
    """Features that say which number is in the first pixel (as_float makes it the numbers in [-1, 1]), or
    nothing at all."""

    def __init__(self, open_):
        super().__init__()
        self.weight, self.open = nn.Parameter(torch.ones(1)), open_

    def features(self, x):
        number = ((x[:, 0, 0, 0] + 1) * 127.5).round().long()
        return F.one_hot(number * self.open, 10).float()


def test_a_probe_finds_what_features_hold(stream):
    x, y = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1), torch.arange(10)
    pairs = [(x[i], y[i]) for i in (slice(0, 3), slice(3, 6), slice(6, 10))]
    one_client = Stream(stream.tasks, [pairs], pairs, "numbers")
    assert probe(Eye(1), one_client, ridge=1e-6) == 1 and probe(Eye(0), one_client) == pytest.approx(0.1)


def test_a_comparison_keeps_rows_servers_and_a_table(tmp_path):
    results = Results("continual", "smoke", TINY, 0, tmp_path)
    comparison = Comparison(results, TINY, 0)
    comparison.run([FedAvg, FedEWC], [0, 1], lambda method, server, stream: {"task": server.task})
    rows = [(row["what"], row["seed"]) for row in results.rows]
    assert rows == [("FedAvg", 0), ("FedEWC", 0), ("FedAvg", 1), ("FedEWC", 1)]
    assert comparison.values(FedAvg, "task") == [1, 1] and comparison.done([DER, FedEWC]) == [FedEWC]
    names = [row["method"] for row in comparison.table([FedAvg, FedEWC, DER])]
    assert names[0] == "all tasks together" and sorted(names[1:]) == ["FedAvg", "FedEWC"]
    stored = comparison.server(FedEWC)
    for file in tmp_path.glob("**/*.server"): file.unlink()
    again = comparison.server(FedEWC)
    assert equal(again.weights, stored.weights) and equal(again.fisher, stored.fisher)


def test_lines_are_padded_to_a_square():
    square = np.array(padded([[1.0], [2.0, 3.0]]))
    assert square[0, 0] == 1 and math.isnan(square[0, 1]) and square[1].tolist() == [2, 3]


def test_each_method_is_tried_alike_on_seeds_of_their_own_and_runs_at_its_best_rates(tmp_path):
    sizes = replace(SMOKE, tries=3, lr=0.02)
    results = Results("methods/continual", "smoke", sizes, 0, tmp_path)
    comparison = Comparison(results, sizes, 0)
    assert comparison.factor(FedAvg) == 1 and comparison.experiment(FedAvg, 0).sizes.lr == 0.02
    for factor, accuracy in ((1.0, 0.3), (0.5, 0.2), (2.0, 0.4)):
        for s, more in ((1000, 0.05), (1001, -0.05)):
            results.row(f"FedAvg, rates × {factor:g}", s, lambda: {"accuracy": accuracy + more})
    comparison.tune([FedAvg, FedProx])
    tried = [(row["what"], row["seed"]) for row in results.rows]
    assert tried == [(f"{m}, rates × {f:g}", s) for m in ("FedAvg", "FedProx") for f in (1.0, 0.5, 2.0)
                     for s in (1000, 1001)]
    assert comparison.tried(FedAvg) == pytest.approx({0.5: 0.2, 1.0: 0.3, 2.0: 0.4})
    assert comparison.factor(FedAvg) == 2
    assert comparison.experiment(FedAvg, 0).sizes.lr == 0.04
    table = comparison.tuned([FedAvg])._repr_markdown_()
    assert "rates × 0.5" in table and "20.0%" in table and "× 2 |" in table


# Pictures drawn by the seed


def in_bytes(pairs): return Counter(picture.numpy().tobytes() for x, _ in pairs for picture in x)


def test_a_drawn_stream_tests_on_what_no_seed_trains_on():
    sizes = TaskSizes(pictures=30, test_pictures=20, clients=3)
    streams = [drawn_stream(sizes, seed, tuning) for seed in (0, 1) for tuning in (False, True)]
    for stream in streams:
        assert all(y.bincount(minlength=10).max() == 20 for _, y in stream.test)
        trained = in_bytes(pair for client in stream.clients for pair in client)
        assert trained.total() == 300
        for other in streams[::2]: assert not trained & in_bytes(other.test), "rows are tested on another pile"
        assert not trained & in_bytes(stream.test)
    assert in_bytes(streams[0].test) != in_bytes(streams[2].test), "the seed draws them"
    assert not in_bytes(streams[1].test) & in_bytes(streams[0].test), "what is tuned on is in no result"


def test_a_drawn_stream_labels_as_make_stream_does():
    sizes = TaskSizes(pictures=30, test_pictures=20, clients=3)
    drawn, made = drawn_stream(sizes, 3), make_stream(sizes, 3)
    assert drawn.tasks == made.tasks and drawn.name == made.name and drawn.shape == made.shape
    for (x, y), (same_x, same_y) in zip(drawn.test, made.test):
        assert y.tolist() == same_y.tolist() and x.dtype == same_x.dtype
    of_class = {c: x[y == c].float().mean(0) for x, y in made.test for c in y.unique().tolist()}
    for x, y in drawn.test:
        for c in y.unique().tolist():
            far = {k: float((mean - x[y == c].float().mean(0)).abs().mean()) for k, mean in of_class.items()}
            assert min(far, key=far.get) == c


def test_without_pictures_to_tune_on_it_says_so():
    with pytest.raises(UserError, match="pictures=1000 .* to tune on"): drawn_stream(TaskSizes(), 0, True)
