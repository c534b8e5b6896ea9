"Secure aggregation: the sum is exact whoever leaves, and nobody is helped to more than the sum."
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from conftest import Strike, normal

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives.asymmetric import ec

import fedbook.privacy.secagg
from fedbook.engine.workers import prove, trial
from fedbook.engine.federation import Client, Experiment, Federation, InProcess, Server, TooFewReplies
from fedbook.methods.heads import World
from fedbook.fedreplay import FedReplayExperiment
from fedbook.fedreplay import profiles as replay_profiles
from fedbook.engine.errors import UserError
from fedbook.engine.local import build
from fedbook.deploy.nodes import write_node_key
from fedbook.privacy.secagg import (Additive, Identity, SecureClient, SecureExperiment, SecureServer, _List,
                                    _unmasked, join_secret, keystream, known_keys, moment_sums,
                                    moments_of_sums, private_key,
                                    profiles, secure_experiment, split_secret)
from fedbook.methods.wasserstein import Gaussian
from fedbook.engine.wire import Msg, Refused, labelled, pack, part, unpack

BENCH = "secagg"
VERBS = ("advertise", "share", "masked", "unmask")
KEY = b"k" * 32


# Keys and pieces


def test_a_stream_is_aes_of_a_counter():
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    block = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()
    by_hand = b"".join(block.update(i.to_bytes(16, "big")) for i in range(5))
    assert keystream(KEY, 18).tobytes() == by_hand[:72]
    assert (keystream(KEY, 18) != keystream(b"l" * 32, 18)).any()


@given(st.integers(2, 7), st.integers(0, 4), st.binary(min_size=31, max_size=31), st.randoms())
@settings(max_examples=25, deadline=None)
def test_any_pieces_as_many_as_the_threshold_give_the_secret(threshold, more, secret, random):
    pieces = split_secret(secret, threshold, threshold + more, KEY)
    chosen = random.sample(range(1, threshold + more + 1), threshold)
    assert pieces.shape == (threshold + more, 32)
    assert join_secret({x: pieces[x - 1].tobytes() for x in chosen}) == secret


@given(st.integers(0, 2**248 - 1), st.binary(min_size=31, max_size=31))
@settings(max_examples=10, deadline=None)
def test_with_a_piece_too_few_every_secret_is_possible(wish, secret):
    one, two = (int.from_bytes(piece.tobytes(), "little") for piece in split_secret(secret, 3, 3, KEY)[:2])
    third = (wish - 3 * one + 3 * two) % (2**255 - 19)
    made_up = {x: value.to_bytes(32, "little") for x, value in ((1, one), (2, two), (3, third))}
    assert join_secret(made_up) == wish.to_bytes(31, "little")


def test_pieces_that_do_not_belong_together():
    pieces = {x: piece.tobytes() for x, piece in enumerate(split_secret(b"s" * 31, 2, 3, KEY), 1)}
    wrong = pieces | {1: bytes([pieces[1][0] ^ 1]) + pieces[1][1:]}
    try: assert join_secret({x: wrong[x] for x in (1, 2)}) != b"s" * 31
    except Refused as why: assert "pieces" in str(why)
    assert join_secret({x: wrong[x] for x in (2, 3)}) == b"s" * 31


@pytest.mark.parametrize("threshold", [1, 0, 4])
def test_a_threshold_that_is_none_is_named(threshold):
    with pytest.raises(UserError, match=f"threshold={threshold}"): split_secret(b"s" * 31, threshold, 3, KEY)


# What adds up


def tiny(): return nn.Linear(3, 2)

HOW = Additive(most=1000)
ASKED = Msg(Server(build(tiny, 0)).weights)


def reply(id, n=None):
    return Msg({"weight": normal(2, 3, seed=id), "bias": normal(2, seed=id + 50)}, {"n": n or 4 + id})


def test_a_mean_out_of_whole_numbers():
    replies = [reply(0, 100), reply(1, 7), reply(2, 393)]
    shapes = {name: tuple(t.shape) for name, t in HOW.parts(ASKED).items()}
    assert list(shapes.items()) == [("meta/n", ()), ("bias", (2,)), ("weight", (2, 3))]
    wholes = [HOW.whole(each, ASKED) for each in replies]
    joined = HOW.reply(sum(wholes), ASKED)
    assert joined.meta == {"n": 500} and joined.tensors["weight"].dtype == torch.float32
    mean = sum(each.tensors["weight"].double() * each.meta["n"] for each in replies) / 500
    assert (joined.tensors["weight"] - mean).abs().max() < 3 * 8 * 1000 / 2**31 / 500 + 1e-6
    signed = [whole.view(np.int32).astype(object) for whole in wholes]
    assert (sum(wholes).view(np.int32) == sum(signed)).all(), "no sum has run over"


def test_the_largest_sum_still_fits():
    most = [Msg({name: torch.full_like(t, sign * 8.0) for name, t in ASKED.tensors.items()}, {"n": 500})
            for sign in (1, 1)]
    joined = HOW.reply(sum(HOW.whole(each, ASKED) for each in most), ASKED)
    assert torch.allclose(joined.tensors["bias"], torch.tensor(8.0), atol=1e-5)


@pytest.mark.parametrize("change, word", [
    (dict(bias=torch.tensor([9.0, 0])), "bias has numbers beyond clip=8"),
    (dict(bias=torch.tensor([float("nan"), 0])), "not finite"), (dict(bias=torch.zeros(3)), "shape"),
    (dict(more=torch.zeros(1)), "more")])
def test_what_does_not_fit_is_named(change, word):
    with pytest.raises(UserError, match=word): HOW.whole(Msg(reply(0).tensors | change, {"n": 5}), ASKED)


@pytest.mark.parametrize("meta, word", [({"n": 1001}, "n=1001"), ({"n": 0}, "n=0"),
                                        ({"n": 5, "loss": 0.5}, "loss"), ({"n": 5, "who": 3}, "who")])
def test_a_meta_that_does_not_add_up_is_named(meta, word):
    with pytest.raises(UserError, match=word): HOW.whole(Msg(reply(0).tensors, meta), ASKED)


def test_a_count_of_all_beyond_the_most_is_refused():
    total = sum(HOW.whole(reply(id, 400), ASKED) for id in range(3))
    with pytest.raises(Refused, match="n=1200"): HOW.reply(total, ASKED)


def test_moments_add_up_to_those_of_all_samples():
    samples = [normal(n, 4, seed=n) for n in (5, 30, 11)]
    mine = [Gaussian.from_samples(x) for x in samples]
    empty = {"moments/mean": torch.zeros(4), "moments/cov": torch.zeros(4, 4), "w": torch.zeros(1)}
    like = lambda asked: Msg(empty, {"n": 1})
    how = Additive(like, moment_sums, moments_of_sums, most=100)
    replies = [Msg({"moments/mean": g.mean, "moments/cov": g.cov, "w": torch.ones(1)}, {"n": g.n})
               for g in mine]
    without = Msg({"w": torch.full((1,), 3.0)}, {"n": 2})
    joined = how.reply(sum(how.whole(each, Msg()) for each in (*replies, without)), Msg())
    pooled = Gaussian.pool(mine)
    assert joined.meta == {"n": 48} and joined.tensors["w"].item() == pytest.approx(52 / 48)
    assert torch.allclose(joined.tensors["moments/mean"], pooled.mean, atol=1e-5)
    assert torch.allclose(joined.tensors["moments/cov"], pooled.cov, atol=1e-5)
    assert torch.allclose(pooled.cov, Gaussian.from_samples(torch.cat(samples)).cov, atol=1e-5)
    alone = how.reply(how.whole(without, Msg()), Msg())
    assert alone.tensors.keys() == {"w"}


# Rounds


class Tiny(Experiment):
    kind = Server

    def client(self, id):
        n = 4 + id
        return Client(id, build(tiny, 1), normal(n, 3, seed=id), torch.arange(n) % 2, seed=0, batch=4)

    def server(self): return self.kind(build(tiny, 0))

SIZES = replace(profiles["smoke"], clients=5, per_round=5, threshold=3)

def secure(rounds=1, threshold=3, how=HOW, kind=Tiny, **options):
    return SecureExperiment(kind(replace(SIZES, rounds=rounds)), threshold, how, **options)


def take(step, federation, server):
    step.merge(federation.exchange(step.verb, step.say, step.to, server.accept))


class Seen(Additive):
    "Notes the sums that it is given."
    def reply(self, total, asked):
        seen.append(total.copy())
        return super().reply(total, asked)

seen: list[np.ndarray] = []


def wholes(ids):
    "The exact sum of the whole numbers of clients `ids` in the first round."
    answers = [Tiny(SIZES).client(id).fit(Msg(Tiny(SIZES).server().weights)) for id in ids]
    return sum(HOW.whole(each, ASKED).astype(np.uint64) for each in answers) % 2**32


@given(st.lists(st.sampled_from((*VERBS, None, None)), min_size=5, max_size=5))
@settings(max_examples=30, deadline=None)
def test_the_sum_is_exact_for_whoever_leaves_or_nothing_is_opened(leaves):
    seen.clear()
    hits = {(0, verb, id): "silent" for id, verb in enumerate(leaves) if verb}
    after = [5 - sum(v in VERBS[:k + 1] for v in leaves) for k in range(4)]
    experiment = secure(how=Seen(most=1000))
    server, started = experiment.server(), pack(Msg(experiment.server().server.weights))
    with Federation(InProcess(experiment.client), 5, faults=Strike(hits)) as federation:
        ids = server.pick(list(range(5)), 0)
        server.begin(ids, 0)
        try:
            for step in server.steps(ids, 0): take(step, federation, server)
        except TooFewReplies as stopped:
            assert min(after) < 3 and not seen and pack(Msg(server.server.weights)) == started
            assert "nothing was merged" in str(stopped) or min(after) == 0
        else:
            assert min(after) >= 3
            added = [id for id, verb in enumerate(leaves) if verb in (None, "unmask")]
            assert (seen[0] == wholes(added)).all()
            assert pack(Msg(server.server.weights)) != started


@pytest.mark.parametrize("verb", VERBS)
def test_a_garbled_answer_costs_its_client_only(verb):
    seen.clear()
    ended = trial(secure(how=Seen(most=1000)), workers=1, faults=Strike({(0, verb, 2): "garbage"}))
    assert {(row["verb"], row["client"]) for row in ended.federation.ledger.absent} == {(verb, 2)}
    assert (seen[0] == wholes([id for id in range(5) if id != 2 or verb == "unmask"])).all()


def test_a_run_under_masks_is_a_function_of_its_seed_and_resumes_at_every_verb():
    shown = prove(secure(rounds=2), workers=1, kinds=())
    assert any("8 of 8" in row["what was done"] for row in shown)


def test_the_server_is_told_who_answered_and_equal_shares():
    class Noting(Server):
        def merge(self, replies):
            self.noted = [(id, msg.meta["n"], msg.tensors) for id, msg in replies]

    class Noted(Tiny): kind = Noting
    ended = trial(secure(kind=Noted), workers=1, faults=Strike({(0, "masked", 4): "silent"}))
    noted = ended.server.server.noted
    assert [id for id, *_ in noted] == [0, 1, 2, 3] and sum(n for _, n, _ in noted) == 4 + 5 + 6 + 7
    assert all(tensors is noted[0][2] for *_, tensors in noted)


@pytest.mark.parametrize("threshold, word", [(6, "threshold=6"), (2, "threshold=2"), (1, "threshold=1"),
                                             (2.5, "threshold=2.5")])
def test_a_threshold_above_all_or_below_half_is_named(threshold, word):
    with pytest.raises(UserError, match=word): trial(secure(threshold=threshold), workers=1)


# Who does not keep to it


def upto(experiment, verb, meddle=lambda verb, server: None):
    "A server and federation as they are before `verb` of the first round; `meddle` after each merge."
    server, federation = experiment.server(), Federation(InProcess(experiment.client), 5, faults=Strike({}))
    server.begin(federation.ids, 0)
    for step in server.steps(federation.ids, 0)[:VERBS.index(verb)]:
        take(step, federation, server)
        meddle(step.verb, server)
    return server, federation


def ask(federation, verb, say, to): return dict(federation.exchange(verb, say, to))


def test_a_letter_that_was_changed_is_not_opened():
    def meddle(verb, server):
        if verb == "share": server.letters[1][0, 7] ^= 1
    server, federation = upto(secure(), "unmask", meddle)
    assert server.here == [1, 2, 3, 4]
    assert "letter of client 1 to client 0 was changed" in federation.ledger.absent[0]["reason"]


def test_a_letter_for_somebody_else_is_not_opened():
    def meddle(verb, server):
        if verb == "share": server.letters[1][[2, 3]] = server.letters[1][[3, 2]]
    assert upto(secure(), "unmask", meddle)[0].here == [0, 1, 4]


class Liar(SecureClient):
    "A client whose pieces, of the secrets of those in the rows `lies`, are wrong."
    lies: tuple = ()

    def unmask(self, msg):
        answer = super().unmask(msg)
        for row in self.lies: answer.tensors["pieces"][row, 3 + 5 * self.client.id] ^= 1
        return answer


def with_liars(liars, row, gone=()):
    "A server before `unmask`, its last step, a federation in which `liars` give a wrong piece of `row`."
    def make(id):
        client = Liar(secure().client(id).client, 3, HOW)
        client.lies = [row] if id in liars else []
        return client

    server, hits = secure(how=Seen(most=1000)).server(), {(0, "masked", id): "silent" for id in gone}
    federation = Federation(InProcess(make), 5, faults=Strike(hits))
    server.begin(federation.ids, 0)
    *first, last = server.steps(federation.ids, 0)
    for step in first: take(step, federation, server)
    return server, last, federation


@pytest.mark.parametrize("liars, row, gone", [([0], 0, []), ([0], 4, [4]), ([1, 3], 2, []), ([2], 2, [4])])
def test_others_open_what_a_wrong_piece_does_not(liars, row, gone):
    seen.clear()
    server, last, federation = with_liars(liars, row, gone)
    with pytest.warns(UserWarning, match=rf"clients \{liars} gave a wrong piece of a secret of client {row}"):
        take(last, federation, server)
    assert (seen[0] == wholes([id for id in range(5) if id not in gone])).all()


@pytest.mark.parametrize("row", [0, 4])
def test_too_many_wrong_pieces_open_nothing(row):
    server, last, federation = with_liars([0, 1, 2], row, [4])
    before = pack(Msg(server.server.weights))
    with pytest.raises(TooFewReplies, match=f"too many pieces .* are wrong: that of client {row}"):
        take(last, federation, server)
    assert pack(Msg(server.server.weights)) == before


def there(ids): return Msg({}, {"there": ids})


@pytest.mark.parametrize("booked", [False, True])
def test_a_server_that_asks_for_both_is_refused(booked, tmp_path, monkeypatch):
    server, federation = upto(secure(book=str(tmp_path / "book") if booked else None), "unmask")
    before, everybody = dict(federation.states), list(range(5))
    first = ask(federation, "unmask", there(everybody), everybody)
    with pytest.raises(TooFewReplies, match="no secret of an open round"):
        ask(federation, "unmask", there([1, 2, 3, 4]), [1, 2, 3, 4])
    federation.states = dict(before)
    if booked: monkeypatch.setattr(fedbook.privacy.secagg, "_ANSWERED", {})
    for _ in range(2):
        with pytest.raises(TooFewReplies, match="another 'unmask'"):
            ask(federation, "unmask", there([1, 2, 3, 4]), [1, 2, 3, 4])
    again = ask(federation, "unmask", there(everybody), everybody)
    assert all(torch.equal(again[id].tensors["pieces"], first[id].tensors["pieces"]) for id in everybody)


@pytest.mark.parametrize("booked", [False, True])
def test_two_answers_are_not_sent_under_the_same_masks(booked, tmp_path):
    "A client that is not put back answers otherwise, and the difference would stand in the clear."
    experiment = secure(book=str(tmp_path / "book") if booked else None)
    server, federation = upto(experiment, "masked")
    letter, client = server.steps(federation.ids, 0)[2].say(3), experiment.client(3)
    answers = []
    for _ in range(2):
        client.load(unpack(federation.states[3]))
        answers.append(client.masked(letter).tensors["masked"])
    assert torch.equal(*answers), "put back, it answers the same"
    with pytest.raises(Refused, match="client 3 has given another answer with the same secret"):
        client.masked(letter)


def test_a_client_gives_one_piece_of_each():
    server, federation = upto(secure(), "unmask")
    held = {id: unpack(federation.states[id]).tensors["round/held"] for id in range(5)}
    answer = ask(federation, "unmask", there([0, 1, 2]), [0, 1, 2])[0].tensors["pieces"]
    assert torch.equal(answer[:3], held[0][:3, 0]) and torch.equal(answer[3:], held[0][3:, 1])


@pytest.mark.parametrize("ids", [[1, 2, 3, 4], [0, 1], [0, 2, 1], [0, 1, 2, 7], [0, 0, 1, 2]])
def test_a_strange_list_of_who_is_there_is_refused(ids):
    server, federation = upto(secure(), "unmask")
    with pytest.raises(TooFewReplies, match="there="): ask(federation, "unmask", there(ids), [0])


def test_two_models_under_the_same_masks_are_refused():
    server, federation = upto(secure(), "masked")
    step, before = server.steps(federation.ids, 0)[2], dict(federation.states)
    first = ask(federation, "masked", step.say, [0])
    federation.states = before
    def other(id):
        msg = step.say(id)
        return Msg({name: t + 1 if t.is_floating_point() else t for name, t in msg.tensors.items()}, msg.meta)
    with pytest.raises(TooFewReplies, match="another 'masked'"): ask(federation, "masked", other, [0])
    assert torch.equal(ask(federation, "masked", step.say, [0])[0].tensors["masked"], first[0].tensors["masked"])


def test_an_upload_is_new_in_each_round_and_not_what_it_hides():
    experiment, uploads = secure(), []
    for _ in range(2):
        server, federation = upto(experiment, "masked")
        step = server.steps(federation.ids, 0)[2]
        uploads.append(ask(federation, "masked", step.say, [0])[0].tensors["masked"].numpy().view(np.uint32))
    assert (uploads[0] != uploads[1]).all() and (uploads[0] != wholes([0])).all()


def listed(change):
    "What client 0 is shown, after a `change` of ids and keys."
    clients = [secure().client(id) for id in range(5)]
    keys = torch.stack([client.advertise(Msg()).tensors["keys"][:2] for client in clients])
    ids = list(range(5))
    return clients[0], Msg({"keys": change(ids, keys)}, {"ids": ids})


def own_key(ids, keys): keys[0, 1] = keys[1, 1] ^ 1; return keys
def twice(ids, keys): keys[3] = keys[4]; return keys
def not_there(ids, keys): del ids[0]; return keys[1:]
def few_left(ids, keys): del ids[2:]; return keys[:2]
def many(ids, keys): ids[:] = range(7); return torch.cat([keys, keys[:2] ^ 1])
def shuffled(ids, keys): ids[:2] = [1, 0]; return keys
def short(ids, keys): return keys[:, :, :31]


@pytest.mark.parametrize("change, word", [(own_key, "as they are"), (twice, "different clients"),
                                          (not_there, "as they are"), (few_left, "threshold=3"),
                                          (many, "threshold=3"), (shuffled, "in order"), (short, "in order")])
def test_a_list_that_is_no_crowd_is_refused(change, word):
    client, msg = listed(change)
    with pytest.raises(Refused, match=word): client.share(msg)


def test_a_list_as_it_should_be_is_answered():
    client, msg = listed(lambda ids, keys: keys)
    assert client.share(msg).tensors["letters"].shape == (5, 80)


def test_keys_on_which_everybody_agrees_cost_their_client_only():
    class Low(SecureClient):
        def advertise(self, msg):
            answer = super().advertise(msg)
            if self.client.id == 3: answer.tensors["keys"][0] = 0
            return answer

    experiment, server = secure(), secure().server()
    make = lambda id: Low(experiment.client(id).client, 3, HOW)
    with Federation(InProcess(make), 5, faults=Strike({})) as federation:
        server.begin(federation.ids, 0)
        for step in server.steps(federation.ids, 0): take(step, federation, server)
    assert [(row["client"], row["verb"]) for row in federation.ledger.absent] == [(3, "advertise")]


def test_nothing_is_reached_around_the_masks():
    client = secure().client(0)
    assert not hasattr(client, "fit")
    assert client.verbs == ("advertise", "share", "masked", "agree", "unmask")
    with pytest.raises(AttributeError): client.fit
    named = SecureClient(SimpleNamespace(id=0, donate=len, fit=len), 3, clear=("donate",))
    assert named.donate is len and "donate" in named.verbs and not hasattr(named, "fit")


def test_a_client_that_keeps_more_than_it_declares_is_an_error():
    class Hoarder(Client):
        def fit(self, msg):
            self.hoard = 1
            return super().fit(msg)

    class Hoarding(Tiny):
        def client(self, id): return Hoarder(id, build(tiny, 1), normal(4, 3), torch.arange(4) % 2)
    with pytest.raises(UserError, match="hoard"): trial(secure(kind=Hoarding), workers=1)


def test_secrets_are_forgotten_when_the_round_is_over():
    ended = trial(secure(), workers=1)
    for state in ended.federation.states.values():
        kept = unpack(state)
        assert kept.meta["round"]["kept"]["secret"] is None and "round/held" not in kept.tensors
    assert ended.server.keys == {} == ended.server.letters and ended.server.total is None


# A server that asks one something else


class Deep(Tiny):
    "FedAvg of a network with a hidden layer."
    net = staticmethod(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))

    def client(self, id):
        n = 4 + id
        return Client(id, build(self.net, 1), normal(n, 3, seed=id), torch.arange(n) % 2, seed=0, batch=4)

    def server(self): return Server(build(self.net, 0))


ALONE = 2  # the client that is asked something else than the others


def zeros(tensors): return {name: torch.zeros_like(t) for name, t in tensors.items()}


class Inconsistent(SecureServer):
    "Asks all but one about a model of zeros, of which only the last bias learns."
    def _letter(self, say, id):
        letter = super()._letter(say, id)
        others = labelled(zeros(self.asked.tensors), "asked") if id != ALONE else {}
        return Msg(letter.tensors | others, letter.meta)


def opened_by(kind, experiment):
    "The sum that a server of this `kind` opens, as floats times the counts, by name, and what it says."
    seen.clear()
    server = kind(experiment.experiment.server(), 3, experiment.how)
    with Federation(InProcess(experiment.client), 5, faults=Strike({})) as federation:
        server.begin(federation.ids, 0)
        try:
            for step in server.steps(federation.ids, 0): take(step, federation, server)
            said = ""
        except TooFewReplies as stopped: said = str(stopped)
    return seen[0], said


@pytest.mark.parametrize("bound", [True, False])
def test_a_model_that_others_do_not_have_reads_nobody(bound, monkeypatch):
    if not bound: monkeypatch.setattr(_List, "about_answers", lambda listed, asked: listed.about())
    experiment = secure(kind=Deep, how=Seen(most=1000))
    total, said = opened_by(Inconsistent, experiment)
    asked = Msg(Deep(SIZES).server().weights)
    true = HOW.whole(Deep(SIZES).client(ALONE).fit(asked), asked)
    hidden = slice(1, 1 + 12 + 4)  # after n: the first layer, whose sum over the others is 0
    assert (total[hidden] == true[hidden]).all() != bound
    assert ("n=" in said) == bound


def test_a_layout_that_travels_is_not_read():
    server, federation = upto(secure(), "masked")
    step = server.steps(federation.ids, 0)[2]
    def told(id):
        letter = step.say(id)
        return Msg(letter.tensors, letter.meta | {"layout": [["weight", [10**13]]]})
    answers = ask(federation, "masked", told, server.here)
    assert all(msg.tensors["masked"].shape == (9,) for msg in answers.values())


class Careless(Client):
    "A client that reads the names that it knows, and no others."
    def fit(self, msg):
        known = {name: msg.tensors[name] for name in ("weight", "bias")}
        return super().fit(Msg(known, msg.meta))


class Lax(Tiny):
    def client(self, id):
        n = 4 + id
        return Careless(id, build(tiny, 1), normal(n, 3, seed=id), torch.arange(n) % 2, seed=0, batch=4)


def by_name(asked): return Msg(dict(sorted(asked.tensors.items())), {"n": 1})


@pytest.mark.parametrize("bound", [True, False])
def test_numbers_that_lie_elsewhere_read_nobody(bound, monkeypatch):
    "One is asked with a name more at the end, the others with one at the front, where their sum has zeros."
    if not bound: monkeypatch.setattr(_List, "about_answers", lambda listed, asked: listed.about())
    experiment, everybody = secure(kind=Lax, how=HOW._replace(like=by_name)), list(range(5))
    server, federation = upto(experiment, "masked")
    step = server.steps(everybody, 0)[2]

    def told(id):
        letter = step.say(id)
        return Msg(letter.tensors | {f"asked/{'zzz' if id == ALONE else 'aaa'}": torch.zeros(8)}, letter.meta)

    uploads = [msg.tensors["masked"].numpy() for msg in ask(federation, "masked", told, everybody).values()]
    answers = ask(federation, "unmask", there(everybody), everybody)
    pieces = {id: msg.tensors["pieces"] for id, msg in answers.items()}
    digests = {id: keys[2].numpy().tobytes() for id, keys in server.keys.items()}
    listed, letter = server._listed(), told(ALONE)
    about = listed.about_answers(Msg(part(letter.tensors, "asked"), letter.meta["asked"]))
    total = sum(upload.view(np.uint32) for upload in uploads)
    read = _unmasked(listed, about, digests, total, server.sharers, everybody, pieces)[1:9]
    true = HOW._replace(like=by_name).whole(Tiny(SIZES).client(ALONE).fit(ASKED), ASKED)[1:9]
    assert (read == true).all() != bound


def test_who_would_be_asked_something_else_is_left_out():
    class Picky(Server):
        def send(self, id): return Msg(self.weights, {"again": True} if id in (1, 3) else {})

    class Picked(Tiny): kind = Picky
    seen.clear()
    with pytest.warns(UserWarning, match=r"clients \[1, 3\] would be asked something else"):
        ended = trial(secure(kind=Picked, how=Seen(most=1000)), workers=1)
    assert (seen[0] == wholes([0, 2, 4])).all()
    assert sorted(e.client for e in ended.federation.ledger.where(way="up", verb="masked")) == [0, 2, 4]


# Who the others are


def named(count=5, skip=()):
    "The `Identity` of each of so many clients; those of `skip` are known by another key."
    keys = {id: ec.generate_private_key(ec.SECP384R1()) for id in range(count)}
    others = {id: ec.generate_private_key(ec.SECP384R1()) for id in skip}
    known = {id: key.public_key() for id, key in (keys | others).items()}
    return {id: Identity(key, known) for id, key in keys.items()}


def signing(identities, threshold=3):
    server = SecureServer(Tiny(SIZES).server(), threshold, HOW, signed=True)
    make = lambda id: SecureClient(Tiny(SIZES).client(id), threshold, HOW, identity=identities[id])
    return server, Federation(InProcess(make), 5, faults=Strike({}))


def test_signed_lists_give_the_same_sum():
    server, federation = signing(named())
    server.begin(federation.ids, 0)
    for step in server.steps(federation.ids, 0): take(step, federation, server)
    plain = trial(secure(), workers=1).server.server.weights
    assert all(torch.equal(t, plain[name]) for name, t in server.server.weights.items())


def signed_upto(verb, gone=()):
    "A signing server and its federation as they are before `verb`; clients `gone` fall silent at `masked`."
    server, federation = signing(named())
    federation.faults = Strike({(0, "masked", id): "silent" for id in gone})
    server.begin(federation.ids, 0)
    for step in server.steps(federation.ids, 0):
        if step.verb == verb: return server, federation, step
        take(step, federation, server)


def crowd(there, agreed, signatures):
    return Msg({"signatures": torch.stack([signatures[id] for id in agreed])},
               {"there": there, "agreed": agreed})


def test_who_leaves_at_agree_is_in_the_sum():
    server, federation, step = signed_upto("agree")
    federation.faults = Strike({(0, "agree", 3): "silent"})
    take(step, federation, server)
    assert server.here == [0, 1, 2, 4] and server.there == [0, 1, 2, 3, 4]
    take(server.steps(federation.ids, 0)[-1], federation, server)
    plain = trial(secure(), workers=1).server.server.weights
    assert all(torch.equal(t, plain[name]) for name, t in server.server.weights.items())


def test_no_client_opens_a_crowd_that_others_were_not_told():
    "Each would be a good crowd, and together they open the masks of client 0 with everybody."
    server, federation, _ = signed_upto("agree")
    told = {0: [0, 1, 2], 1: [0, 1, 3], 2: [0, 2, 3], 3: [0, 3, 4], 4: [0, 3, 4]}
    answers = ask(federation, "agree", lambda id: there(told[id]), list(told))
    signatures = {id: msg.tensors["signature"] for id, msg in answers.items()}
    with pytest.raises(TooFewReplies, match="known as client . has not signed who is there"):
        ask(federation, "unmask", lambda id: crowd(told[id], told[id], signatures), list(told))
    with pytest.raises(TooFewReplies, match=r"agreed=\[3, 4\] must be 3 or more"):
        ask(federation, "unmask", crowd([0, 3, 4], [3, 4], signatures), [3, 4])
    with pytest.raises(TooFewReplies, match="agreed="): ask(federation, "unmask", there(told[3]), [3])


def test_a_client_signs_one_crowd_in_a_round():
    server, federation, _ = signed_upto("agree")
    before, everybody = dict(federation.states), list(range(5))
    ask(federation, "agree", there(everybody), everybody)
    federation.states = dict(before)
    with pytest.raises(TooFewReplies, match="another 'agree'"):
        ask(federation, "agree", there([0, 1, 2]), [0, 1, 2])


def test_a_server_that_dies_before_unmask_asks_again_with_new_signatures():
    server, federation, step = signed_upto("agree", gone=[4])
    before = dict(federation.states)
    for _ in range(2):
        federation.states = dict(before)
        server.here[:] = server.there
        take(step, federation, server)
        answers = ask(federation, "unmask", server._agreed(0), server.here)
        assert sorted(answers) == [0, 1, 2, 3]


def test_nobody_answers_beside_one_who_is_made_up():
    server, federation = signing(named(skip=[4]))
    server.begin(federation.ids, 0)
    first, second, *_ = server.steps(federation.ids, 0)
    take(first, federation, server)
    with pytest.raises(TooFewReplies, match="known as client 4 has not signed its keys"):
        take(second, federation, server)


def sealed(victim, others, threshold):
    "The victim's letters after a server listed it beside `others`, signed with keys of the server's own."
    own = victim.advertise(Msg())
    clients = {0: own, **{id: client.advertise(Msg()) for id, client in others.items()}}
    keys, signatures = (torch.stack([msg.tensors[name] for msg in clients.values()])
                        for name in ("keys", "signature"))
    return victim.share(Msg({"keys": keys[:, :2], "signatures": signatures}, {"ids": [*clients]}))


@pytest.mark.parametrize("made_up", [1, 3])
def test_no_piece_is_sealed_for_a_client_that_the_server_made_up(made_up):
    "With t of 5 on its side it would read a client alone, without anybody's letter."
    real, fake = named(), named()
    make = lambda id, identity: SecureClient(Tiny(SIZES).client(id), 3, HOW, identity=identity)
    honest = {id: make(id, real[id]) for id in range(1, 5)}
    assert sealed(make(0, real[0]), honest, 3).tensors["letters"].any()
    others = {id: make(id, fake[id]) if id > 4 - made_up else client for id, client in honest.items()}
    with pytest.raises(Refused, match=f"client {5 - made_up} has not signed its keys"):
        sealed(make(0, real[0]), others, 3)


def test_keys_of_an_older_round_are_noticed_before_an_upload():
    "The server shows client 0 the keys that client 1 signed a round before: nobody else has that list."
    identities = named()
    clients = {id: SecureClient(Tiny(SIZES).client(id), 2, HOW, identity=identities[id]) for id in range(3)}
    old = clients[1].advertise(Msg()).tensors
    new = {id: client.advertise(Msg()).tensors for id, client in clients.items()}
    def listed(shown):
        told = {"keys": torch.stack([each["keys"][:2] for each in shown.values()]),
                "signatures": torch.stack([each["signature"] for each in shown.values()])}
        return Msg(told, {"ids": [0, 1, 2]})
    mine = clients[0].share(listed(new | {1: old})).tensors
    others = [clients[id].share(listed(new)).tensors for id in (1, 2)]
    signatures = torch.stack([mine["signature"], *(each["signature"] for each in others)])
    letters = torch.stack([mine["letters"][0], *(each["letters"][0] for each in others)])
    with pytest.raises(Refused, match="client 1 has not signed the list of keys"):
        clients[0].masked(Msg({"letters": letters, "signatures": signatures},
                              {"sharers": [0, 1, 2], "asked": {}}))


@pytest.mark.parametrize("change", [lambda t: t[[1, 0, 2, 3, 4]], lambda t: t ^ 1, lambda t: t[:4],
                                    lambda t: t * 0])
def test_signatures_that_are_not_theirs_are_refused(change):
    identity = named()
    signatures = torch.stack([identity[id].sign(b"list") for id in range(5)])
    everybody = dict.fromkeys(range(5), b"list")
    identity[0].check("that", everybody, signatures)
    with pytest.raises(Refused, match="has not signed that"):
        identity[0].check("that", everybody, change(signatures))
    with pytest.raises(Refused, match="client 0 has not signed"):
        identity[0].check("that", {0: b"other", 1: b"list"}, signatures[:2])


def test_an_identity_out_of_the_files_of_nodes(tmp_path):
    keys = [write_node_key(tmp_path / f"node{id}") for id in range(2)]
    (tmp_path / "known.txt").write_text("".join(f"{id} {Path(f'{key}.pub').read_text()}\n"
                                                for id, key in enumerate(keys)))
    known = known_keys(tmp_path / "known.txt")
    one, two = (Identity(private_key(key), known) for key in keys)
    one.check("that", dict.fromkeys((0, 1), b"list"), torch.stack([one.sign(b"list"), two.sign(b"list")]))
    with pytest.raises(UserError, match="known=.*a line for each client"): known_keys(keys[0])
    with pytest.raises(UserError, match="key=.*private key"): private_key(tmp_path / "known.txt")


def test_on_a_machine_of_its_own_a_client_has_a_book_and_signs(tmp_path):
    experiment = secure_experiment(replace(profiles["smoke"], clients=3, per_round=3), 0)
    key = write_node_key(tmp_path / "node0")
    (tmp_path / "known.txt").write_text(f"0 {Path(f'{key}.pub').read_text()}")
    own = dict(key=str(key), known=str(tmp_path / "known.txt"))
    with pytest.raises(UserError, match="book=''.*node-config"): experiment.own_client(0, **own)
    with pytest.raises(UserError, match="key=.*private key"): experiment.own_client(0, book="b")
    client = experiment.own_client(0, book=str(tmp_path / "book"), **own)
    assert client.book and list(client.identity.known) == [0] and client.client.id == 0
    assert experiment.at().built_server().signed and not experiment.built_server().signed


# Other messages of the course


def test_fedreplays_head_is_the_same_under_masks():
    y = torch.arange(60) % 6
    world = World(normal(60, 8) + y[:, None], y, normal(12, 8, seed=1), y[:12], list("abcdef"), "six")
    farms = FedReplayExperiment(replace(replay_profiles["smoke"], clients=4, rounds=1), 0, features=world)
    how = Additive(lambda asked: Msg(asked.tensors, {"n": 1, "counts": [0] * 6}), most=60)
    one = trial(farms, workers=1).server
    other = trial(SecureExperiment(farms, 3, how, clear=("donate", "pool")), workers=1).server.server
    assert all(torch.allclose(t, other.weights[name], atol=1e-6) for name, t in one.weights.items())
    assert one.holders == other.holders and len(other.shared_pool) == len(one.shared_pool)


# The bench


def test_the_bench_measures_what_it_says(bench):
    plainly, under = bench.clear(5, 40), bench.masked(5, 40, gone=1)
    assert under.included == 4 and plainly.included == 5
    assert plainly.down > 5 * 160 and under.down > plainly.down and under.up > plainly.up
    assert under.away < 1e-4


def test_the_bench_runs_flowers_functions(bench):
    pytest.importorskip("flwr")
    theirs = bench.flower(3, 40)
    assert theirs.included == 3 and theirs.away < 1e-3 and theirs.up > 3 * 8 * 40
