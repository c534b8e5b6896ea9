"""What messages tell: each attack against a case whose answer is known."""
import importlib
import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from conftest import normal
from fedbook.privacy.attack import (AttackSizes, Decoder, FewPictures, Gallery, Recorder, Recording,
                                    ShieldedClient, audit, bin_contents, change_in, distance_from_moments,
                                    embeddings_in, guess_counts, guess_labels, holding_of, imprinted,
                                    inputs_from_moves, invert_update, likeness_of_masks, linked_answers,
                                    lira_scores, log_odds, membership_auc, noised, outside_span, own_rows,
                                    guess_shares, known_holdings, read_classes, read_pictures, read_shares, recorded,
                                    seen_by, share_read,
                                    simulated_update, thin_spans, total_variation, train_decoder,
                                    true_positive_rate, unique_lengths, unknown_rows)
from fedbook.engine.workers import prove, trial
from fedbook.engine.federation import Call, InProcess, Server, Wrapped, WrappedClient
from fedbook.engine.errors import UserError
from fedbook.methods.leverage import BlockDiagonal, mask, random_orthogonal
from fedbook.engine.local import build, generator
from fedbook.methods.fedavg import FedAvgExperiment, FedAvgSizes
from fedbook.privacy.dp import DPClient, norm_of
from fedbook.privacy.secagg import SecureExperiment
from fedbook.methods.wasserstein import Gaussian
from fedbook.engine.wire import Ledger, Msg, pack
from fedbook.engine.local import as_float

SIZES = AttackSizes(clients=3, per_round=3, rounds=2, batch=4)


def mlp(hidden=64):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def move_of(experiment, id=0, sent=None):
    sent = sent or experiment.server().weights
    new = experiment.client(id).fit(Msg(sent)).tensors
    return {name: new[name] - t for name, t in sent.items()}


@pytest.fixture(scope="module")
def two_rounds(): return recorded(FewPictures(SIZES, 0, count=2))


# -- what is recorded ----------------------------------------------------------------------------------------
def test_a_recorder_changes_nothing_and_keeps_all(two_rounds):
    plain = trial(FewPictures(SIZES, 0, count=2), workers=1)
    assert all(torch.equal(t, plain.server.weights[name]) for name, t in two_rounds.server.weights.items())
    assert [(one.round, one.client, one.verb) for one in two_rounds.letters] == [
        (r, id, "fit") for r in range(2) for id in range(3)]
    assert two_rounds.ledger.entries == plain.federation.ledger.entries


def test_letters_are_copies(two_rounds):
    first = seen_by(two_rounds, "server")[0]
    first.reply.tensors["0.weight"].zero_()
    assert recorded(FewPictures(SIZES, 0, count=2)).letters[0].reply.tensors["0.weight"].any()


def test_each_attacker_sees_its_own(two_rounds):
    assert len(seen_by(two_rounds, "server")) == 6
    assert {one.client for one in seen_by(two_rounds, "client", 1)} == {1}
    assert all(entry.verb == "" and entry.tensors == () and entry.nbytes
               for entry in seen_by(two_rounds, "stranger"))


def test_what_cannot_be_seen_is_one_sentence(two_rounds):
    with pytest.raises(UserError, match="who='nobody' is unknown"): seen_by(two_rounds, "nobody")
    with pytest.raises(UserError, match="no recorded message"):
        seen_by(Recording(two_rounds.experiment, [], Ledger(), None), "server")


def test_a_call_without_an_answer_is_not_kept():
    class Mute:
        verbs = ("fit",)
        def fit(self, msg): raise ValueError("no")
        def state(self): return Msg()
        def load(self, msg): pass
    recorder = Recorder(InProcess(lambda id: Mute()))
    assert len(list(recorder.serve([Call(0, 0, "fit", pack(Msg()), None)]))) == 1 and recorder.letters == []


def test_more_pictures_than_a_batch_are_refused():
    with pytest.raises(UserError, match="count=5 pictures must fit into one batch of 4"):
        FewPictures(SIZES, 0, count=5)
    with pytest.raises(UserError, match="client 5000 would be the owner"):
        FewPictures(SIZES, 0, count=4).holding(5000)


# -- pictures from a layer -----------------------------------------------------------------------------------
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_one_step_on_few_pictures_names_their_classes(labels, seed):
    logits = (0.3 * normal(len(labels), 10, seed=seed)).requires_grad_()
    nn.functional.cross_entropy(logits, torch.tensor(labels)).backward()
    moves = -logits.grad.sum(0)
    expected = np.bincount(labels, minlength=10) - logits.detach().softmax(1).sum(0).numpy()
    assert np.allclose(len(labels) * moves, expected, atol=1e-5)
    assert guess_labels(moves) == np.flatnonzero(expected > 0).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_the_analytic_inversion_is_exact_for_one_picture(seed):
    experiment = FewPictures(SIZES, seed, count=1, make=mlp)
    move, x = move_of(experiment), as_float(experiment.holding(0)[0]).flatten(1)
    rows = inputs_from_moves(move["1.weight"].double(), move["1.bias"].double(), least=0.9)
    # Weights are float32, so a move is known to about 1e-7 of the weight; the gradient itself is exact.
    weights = experiment.server().weights
    start = {name: t.double().requires_grad_(True) for name, t in weights.items()}
    loss = F.cross_entropy(torch.func.functional_call(experiment.network().double(), start, (x.double(),)),
                           experiment.holding(0)[1])
    pulls = dict(zip(start, torch.autograd.grad(loss, [*start.values()])))
    assert (inputs_from_moves(pulls["1.weight"], pulls["1.bias"]) - x).abs().max() < 1e-9
    assert (rows - x).abs().max() < 1e-4


def test_units_that_hear_one_picture_give_it_and_others_a_mean():
    w = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    x = torch.tensor([[2.0, -5.0], [-3.0, 4.0]])
    active = (x @ w.T > 0).double()
    delta = torch.tensor([[0.5, 0.5, 0.5], [0.25, 0.25, 0.25]], dtype=torch.float64) * active
    rows = inputs_from_moves(delta.T @ x.double(), delta.sum(0))
    assert torch.allclose(rows[0], x[0].double()) and torch.allclose(rows[1], x[1].double())
    assert share_read(rows, x) == 1.0 and share_read(rows[:1], x) == 0.5 and share_read(rows[:0], x) == 0.0


def test_a_malicious_server_reads_pictures_that_an_honest_one_does_not():
    count, sizes = 24, replace(SIZES, batch=24)
    experiment = FewPictures(sizes, 1, count=count, make=partial(mlp, 200))
    x = as_float(experiment.holding(0)[0]).flatten(1)
    honest = experiment.server().weights
    public = as_float(experiment.pictures("test").tensors()[0]).flatten(1)
    bad = imprinted(honest, "1", "3", public, generator(1))
    assert (bad["1.weight"] == bad["1.weight"][0]).all() and (bad["1.bias"].diff() <= 0).all()
    read = []
    for sent, of in ((honest, inputs_from_moves), (bad, bin_contents)):
        move = move_of(experiment, 0, sent)
        read.append(share_read(of(move["1.weight"], move["1.bias"]), x))
    assert read[1] > read[0] + 0.2


# -- pictures from a gradient --------------------------------------------------------------------------------
@pytest.mark.parametrize("steps", [1, 3])
def test_the_simulated_update_is_the_clients(steps):
    experiment = FewPictures(replace(SIZES, epochs=steps), 0, count=3)
    x, y = experiment.holding(0)
    weights = experiment.server().weights
    ours = simulated_update(experiment.network(), weights, as_float(x), y, SIZES.lr, steps)
    for name, t in move_of(experiment).items(): assert (ours[name] - t).abs().max() < 1e-5


def test_total_variation_by_hand():
    x = torch.tensor([[[[0.0, 1.0], [0.0, 3.0]]]])
    assert float(total_variation(x)) == (0 + 2) / 2 + (1 + 3) / 2
    assert float(total_variation(torch.ones(2, 3, 4, 4))) == 0


def test_one_picture_is_rebuilt():
    experiment = FewPictures(SIZES, 0, count=1)
    x, y = experiment.holding(0)
    weights, move = experiment.server().weights, move_of(experiment)
    guess = invert_update(experiment.network(), weights, move, y, (1, 28, 28), SIZES.lr, generator(0),
                          iterations=150)
    error = lambda a: float((a - as_float(x)).square().mean())
    assert guess.abs().max() <= 1 and error(guess) < 0.3 * error(torch.zeros_like(guess))


def test_counts_are_read_from_the_biases():
    p = torch.full((5,), 0.2)
    move = 0.1 / 10 * (torch.tensor([6.0, 0, 4, 0, 0]) - 10 * p)
    assert guess_counts(move, 0.1, 10, p).tolist() == [0] * 6 + [2] * 4
    assert len(guess_counts(torch.randn(5), 0.1, 7, p)) == 7
    assert len(guess_counts(-torch.ones(5), 0.1, 17, p)) == 17, "noise may push every bias down"


def test_a_gallery_pairs_and_finds():
    g = generator(3)
    candidates = F.interpolate(torch.rand(12, 1, 4, 4, generator=g) * 2 - 1, (28, 28))
    look = Gallery(candidates)
    found = look.compare(candidates[[3, 1]], [1, 3])
    assert found["found"] == 1 and found["ssim"] > 0.999 and found["psnr"] > 60 and found["distance"] < 1e-4
    assert torch.equal(look.in_order(candidates[[3, 1, 7]], [1, 7, 3]), candidates[[1, 7, 3]])
    assert look.compare(candidates[[3, 1]], [1, 3], paired=True)["found"] == 0
    assert look.compare(candidates[[5]], [2])["found"] == 0
    grain = torch.randn(1, 1, 28, 28, generator=g)
    assert look.compare(0.3 * candidates[[5]] + 0.4 + 0.1 * grain, [5])["found"] == 1, "pale, bright and grainy"


# -- features, members ---------------------------------------------------------------------------------------
def test_a_decoder_undoes_a_linear_map_better_than_the_mean():
    g = generator(1)
    x = F.interpolate(torch.rand(120, 1, 2, 2, generator=g) * 2 - 1, (8, 8))
    z = x.flatten(1) @ torch.randn(64, 20, generator=g)
    decoder = train_decoder(z[:100], x[:100], 40, 0)
    with torch.no_grad(): guess = decoder(z[100:])
    error = lambda a: float((a - x[100:]).abs().mean())
    assert error(guess) < 0.6 * error(x[:100].mean(0).expand_as(guess))
    with pytest.raises(UserError, match="a side that 4 divides"): Decoder(z, (1, 9, 9))


def test_log_odds_by_hand():
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    p = logits.softmax(1)[0, 1]
    assert float(log_odds(logits, torch.tensor([1]))) == pytest.approx(float((p / (1 - p)).log()), abs=1e-5)


def learnt_by_heart(seed=0, n=200, shadows=16):
    g = generator(seed)
    x, y = torch.randn(2 * n, 300, generator=g), torch.randint(5, (2 * n,), generator=g)
    half = lambda: F.pad(torch.randperm(n, generator=g) < n // 2, (0, n))
    rows = [half() for _ in range(shadows // 2)]
    inside = torch.stack([half(), *rows, *(F.pad(~row[:n], (0, n)) for row in rows)])
    found = []
    for row in inside:
        model = build(partial(nn.Linear, 300, 5), 0)
        adam = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(60):
            adam.zero_grad()
            F.cross_entropy(model(x[row]), y[row]).backward()
            adam.step()
        with torch.no_grad(): found.append(log_odds(model(x), y))
    return torch.stack(found), inside, n


def test_lira_finds_members_of_an_overfitted_model_and_nobody_else():
    found, inside, n = learnt_by_heart()
    scores = lira_scores(found[1:, :n], inside[1:, :n], found[0, :n])
    assert true_positive_rate(scores, inside[0, :n], 0.01) > 0.2
    never, half = found[0, n:] - found[1:, n:].mean(0), torch.arange(n) % 2 == 0
    assert true_positive_rate(never, half, 0.05) < 0.15


def test_a_rate_is_counted_by_hand():
    scores = torch.tensor([9.0, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    members = torch.tensor([1, 0, 1, 0, 1, 0, 1, 0, 0, 0], dtype=torch.bool)
    # 6 strangers: 8, 6, 4, 2, 1, 0. One of them may be accused, so a member must be above 6.
    assert true_positive_rate(scores, members, 0.2) == 0.5


def test_too_few_strangers_and_shadows_are_refused():
    with pytest.raises(UserError, match="expected at least 1000"):
        true_positive_rate(torch.arange(200.0), torch.arange(200) < 100, 0.001)
    with pytest.raises(UserError, match="fewer than 2 of 2 shadow models"):
        lira_scores(torch.zeros(2, 5), torch.tensor([[True] * 5, [False] * 5]), torch.zeros(5))


# -- spans and moments ---------------------------------------------------------------------------------------
def test_a_span_holds_its_rows_and_no_others():
    g = generator(5)
    x = torch.randn(20, 30, generator=g, dtype=torch.float64)
    sent = mask(x, random_orthogonal(20, g), random_orthogonal(30, g))
    Q = random_orthogonal(30, generator(6))
    hidden = mask(x, random_orthogonal(20, g), Q) @ Q.mT
    assert outside_span(x, hidden).max() < 1e-9
    assert outside_span(torch.randn(40, 30, generator=g), hidden).min() > 0.05
    assert outside_span(x, sent).min() > 0.05, "without Q the span is another"
    assert outside_span(x, torch.zeros(3, 30)).min() == 1


def test_a_block_mask_betrays_its_blocks_where_a_whole_one_does_not():
    g = generator(7)
    x = torch.randn(60, 30, generator=g, dtype=torch.float64)
    whole, blocks = random_orthogonal(60, g) @ x, random_orthogonal(60, g, block=20)
    assert isinstance(blocks, BlockDiagonal)
    others = torch.randn(40, 30, generator=g, dtype=torch.float64)
    assert outside_span(others, whole).max() < 1e-9, "60 rows span all 30 directions"
    parts = (blocks @ x).split([len(b) for b in blocks.blocks])
    near = lambda z: torch.stack([outside_span(z, part) for part in parts]).min(0).values
    assert near(x).max() < 1e-9 and near(others).min() > 0.01


def test_one_unknown_row_is_unmasked_and_two_are_up_to_a_rotation():
    g = generator(8)
    x = torch.randn(15, 20, generator=g, dtype=torch.float64)
    hidden = random_orthogonal(15, g) @ x
    one = unknown_rows(hidden, x[:-1], 1)[0]
    assert min((one - x[-1]).abs().max(), (one + x[-1]).abs().max()) < 1e-6
    two = unknown_rows(hidden, x[:-2], 2)
    assert torch.allclose(two.T @ two, x[-2:].T @ x[-2:], atol=1e-8)
    assert outside_span(x[-2:], two).max() < 1e-6


def test_moments_of_one_and_two_are_the_embeddings():
    e = torch.randn(2, 12, generator=generator(9), dtype=torch.float64)
    g = Gaussian.from_samples(e)
    back = embeddings_in(g.mean, g.cov, 2)
    assert min((back - e).abs().max(), (back.flip(0) - e).abs().max()) < 1e-9
    assert torch.equal(embeddings_in(e[0], g.cov, 1)[0], e[0])
    with pytest.raises(UserError, match="n=3 embeddings are not determined"): embeddings_in(g.mean, g.cov, 3)


def test_moments_of_few_betray_who_is_among_them():
    e = torch.randn(40, 16, generator=generator(10), dtype=torch.float64)
    few, many = Gaussian.from_samples(e[:10]), Gaussian.from_samples(e[:30])
    far = distance_from_moments(e, few.mean, few.cov)
    assert far[:10].max() <= 9 + 1e-6 and far[10:].min() > 1e3
    by_hand = (e - many.mean) @ torch.linalg.inv(many.cov) * (e - many.mean)
    assert torch.allclose(distance_from_moments(e, many.mean, many.cov), by_hand.sum(1))


def test_moments_of_some_pictures_more_than_they_are_wide_still_betray():
    e = torch.randn(2000, 16, generator=generator(11), dtype=torch.float64)
    found = []
    for n in (20, 800):
        own = Gaussian.from_samples(e[:n])
        far = distance_from_moments(e, own.mean, own.cov)
        found.append(true_positive_rate(-far, torch.arange(len(e)) < n, 0.05))
    assert found[0] > 0.5 > 0.15 > found[1]


# -- masks, shields, audit -----------------------------------------------------------------------------------
def test_masks_are_compared_by_what_they_prune():
    a, b = {"w": torch.tensor([True, False, False, True])}, {"w": torch.tensor([True, False, True, False])}
    assert likeness_of_masks(a, b) == pytest.approx(1 / 3) and likeness_of_masks(a, a) == 1
    whole = {"w": torch.ones(3, dtype=torch.bool)}
    assert likeness_of_masks(whole, whole) == 1


def test_noise_is_of_the_size_asked_for():
    told = noised({"w": torch.zeros(20000)}, generator(1), 2.0, 0.5)
    assert float(told["w"].std()) == pytest.approx(1.0, abs=0.03)
    assert norm_of(noised({"w": torch.full((4,), 9.0)}, generator(1), 2.0, 0.0)) == pytest.approx(2.0)


class Shielded(FewPictures):
    def client(self, id): return ShieldedClient(super().client(id), partial(noised, clip=1.0, noise=0.1))


def test_a_shielded_federation_is_a_function_of_its_seed():
    prove(Shielded(replace(SIZES, clients=4, per_round=4, rounds=2), 0, count=4), kills=2, kinds=("nan",))


def test_the_direction_of_updates_links_unlike_clients():
    record = recorded(FewPictures(replace(SIZES, clients=6, per_round=6, rounds=3), 0, count=1))
    assert linked_answers(record) > 0.9
    assert read_classes(known_holdings(record)) > 0.9 and own_rows(record) is None and thin_spans(record) is None
    assert set(change_in(record.letters[0])) == set(record.letters[0].reply.tensors)


def test_a_linear_first_layer_gives_its_pictures():
    record = recorded(FewPictures(replace(SIZES, rounds=1), 0, count=1, make=mlp))
    assert read_pictures(known_holdings(record)) == 1.0


def test_lengths_tell_where_they_differ(two_rounds):
    assert unique_lengths(two_rounds) == 0
    entry = two_rounds.ledger.entries
    odd = Ledger()
    for k in range(3): odd.record(0, "up", k, "fit", b"x" * (5 + (k == 2)))
    assert unique_lengths(two_rounds._replace(ledger=odd)) == pytest.approx(1 / 3) and entry


def test_members_are_known_where_a_model_has_seen_little():
    record = recorded(FewPictures(replace(SIZES, rounds=40, batch=4), 0, count=4))
    x, y = record.experiment.pictures("test").tensors()
    assert membership_auc(record, (x, y)) > 0.6
    assert holding_of(object()) is None and holding_of(record.experiment.client(0))[1].numel() == 4


def test_a_network_is_found_in_an_experiment_that_is_wrapped():
    inside = FewPictures(replace(SIZES, rounds=1), 0, count=4)
    strangers = tuple(t[:20] for t in inside.pictures("test").tensors())
    plain = recorded(inside)
    wrapped = recorded(Wrapped(Wrapped(inside)))
    pairs = known_holdings(plain)
    assert read_shares(wrapped, pairs, strangers) == read_shares(plain, pairs, strangers) is not None
    masked = recorded(SecureExperiment(inside, 2))
    assert membership_auc(masked, strangers) == pytest.approx(membership_auc(plain, strangers), abs=0.02)


def test_a_client_with_tasks_holds_what_the_message_names():
    class Tasked:
        tasks = [(torch.zeros(2, 3), torch.tensor([0, 1])), (torch.ones(1, 3), torch.tensor([2]))]
    assert holding_of(Tasked(), {"task": 1})[1].tolist() == [2]
    assert holding_of(Tasked())[1].tolist() == [0, 1, 2]


# Whatever the layers are called, and whatever a client answers


def named_layers(first, last):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(first, nn.Linear(784, 64))
            self.add_module(last, nn.Linear(64, 10))

        def forward(self, x): return getattr(self, last)(getattr(self, first)(x.flatten(1)).relu())
    return Net


def twelve():
    "A network whose last bias, of module 11, stands before others by the alphabet."
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), *[nn.Identity() for _ in range(8)], nn.ReLU(),
                         nn.Linear(64, 10))


NETWORKS = {"by the alphabet": named_layers("a_first", "z_last"),
            "stem and classifier": named_layers("stem", "classifier"),
            "hidden and head": named_layers("hidden", "head"), "out and in": named_layers("z_in", "a_out"),
            "twelve modules": twelve}


def told_of(reply, sent, form):
    move = {name: t - sent[name] for name, t in reply.items()}
    return {"weights": reply, "update": move, "renamed": {f"g/{name}": t for name, t in move.items()},
            "gradient": {name: -10 * t for name, t in move.items()}}[form]


class Telling(WrappedClient):
    "Answers its weights in some other `form`."
    def __init__(self, client, form):
        super().__init__(client)
        self.form = form

    def fit(self, msg):
        reply = self.client.fit(msg)
        return Msg(told_of(reply.tensors, msg.tensors, self.form), reply.meta)


class Forgiving(Server):
    "Takes any answer, and learns nothing."
    def accept(self, verb, id, msg): pass

    def merge(self, replies): list(replies)


def few_pictures_each(make, around, count=1):
    @dataclass(frozen=True)
    class Told(FewPictures):
        def client(self, id): return around(super().client(id))

        def server(self): return Forgiving(self.network(), self.sizes.per_round, self.seed)
    sizes = replace(SIZES, clients=4, per_round=4, rounds=1, batch=max(4, count))
    return Told(sizes, 0, count=count, make=make)


@pytest.mark.parametrize("form", ["weights", "update", "renamed", "gradient"])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_audit_finds_what_leaks_under_any_name_and_in_any_form(name, form):
    experiment = few_pictures_each(NETWORKS[name], lambda client: Telling(client, form))
    found = {row["attack"]: row["figure"] for row in audit(experiment)}
    assert found["classes from a bias"] == found["pictures from a layer"] == "100%", found


def test_an_audit_finds_what_the_courses_own_clients_leak():
    def private(client):
        return DPClient(client.id, client.model, client.x, client.y, 0, batch=16, lr=0.1, clip=1e6)
    experiment = few_pictures_each(NETWORKS["hidden and head"], private)
    found = {row["attack"]: row["figure"] for row in audit(experiment)}
    assert found["classes from a bias"] == found["pictures from a layer"] == "100%"


@pytest.mark.parametrize("count", [1, 3])
def test_an_attack_that_was_not_made_for_a_network_does_not_call_it_safe(count):
    "Noise hides what a client with one picture tells, too: then nobody knows whether the attack would work."
    experiment = few_pictures_each(mlp, lambda client: ShieldedClient(client, hidden), count)
    found = {row["attack"]: row["figure"] for row in audit(experiment)}
    assert found["classes from a bias"] == found["pictures from a layer"] == "could not be tried"


def hidden(update, generator): return noised(update, generator, 1.0, 10.0)


def test_many_pictures_are_no_reason_to_doubt_the_attack():
    "Of clients with all classes nothing is read, and the control says that it was tried."
    experiment = few_pictures_each(mlp, lambda client: client, 100)
    found = {row["attack"]: row["figure"] for row in audit(experiment)}
    assert found["pictures from a layer"].endswith("%") and found["classes from a bias"].endswith("%")
    assert float(found["pictures from a layer"][:-1]) < 50


def test_shares_of_classes_are_read_from_a_whole_round():
    true = torch.tensor([0.6, 0.1, 0.3, 0.0])
    given = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.2, 0.5, 0.2, 0.1], [0.1, 0.2, 0.6, 0.1], [0.1, 0.1, 0.1, 0.7]])
    move = 0.1 * 20 * (true - given.T @ true)
    assert torch.allclose(guess_shares(move, 0.1, 20, given, given).float(), true, atol=1e-5)
    sizes = replace(FedAvgSizes(), clients=20, per_round=4, rounds=1, alpha=0.3, batch=16, lr=0.1)
    skewed = FedAvgExperiment(sizes, 0)
    x, y = skewed.pictures("test").tensors()
    rows = {row["attack"]: row for row in audit(skewed, (x[:300], y[:300]))}
    read, alike = (float(rows["class shares of a round"][key].split("%")[0]) for key in ("figure", "safe"))
    assert read > alike + 15


@pytest.mark.parametrize("name", ["fedavg", "fedreplay", "fedmox", "fedklpr", "fedcbdr", "fedgtea"])
def test_audit_takes_any_experiment(name):
    module = importlib.import_module(f"fedbook.{'methods.' * (name == 'fedavg')}{name}")
    sizes = module.profiles["smoke"]
    if name == "fedavg": sizes = replace(sizes, clients=sizes.per_round, rounds=2)    # all asked twice in a row
    if name == "fedreplay": sizes = replace(sizes, clients=4, rounds=2)
    table = {row["attack"]: row["figure"] for row in audit(module.experiment(sizes, 0))}
    fits = {attack for attack, figure in table.items() if figure != "does not fit"}
    assert "lengths" in fits and len(table) == 8
    wanted = {"fedavg": {"classes from a bias", "linking"}, "fedreplay": {"rows sent as they are", "linking"},
              "fedmox": set(), "fedklpr": {"linking"}, "fedcbdr": {"span of few rows", "linking"},
              "fedgtea": {"span of few rows", "linking"}}[name]
    assert wanted <= fits, table


def test_sizes_say_what_is_wrong():
    with pytest.raises(UserError): replace(SIZES, fpr=2.0)
    assert np.isfinite(SIZES.lr) and math.isinf(SIZES.alpha)
