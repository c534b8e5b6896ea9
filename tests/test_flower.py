"""The chapters on Flower: the same bits as in one process, over nodes that answer late, wrongly or not at
all, and again after every kill."""
import itertools
import json
import os
import pickle
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest
import torch
from PIL import Image
from torch import nn

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")
pytest.importorskip("flwr", reason="Flower is not installed here: pip install 'fedbook[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.serverapp import ServerApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from conftest import AT_NIGHT, Killed, by_day, seeded
from fedbook.deploy import flower
from fedbook.kit.command import plan_of
from fedbook.engine.workers import Checkpoint, Faults, transport_for
from fedbook.engine.federation import Client, Federation, FedProxClient, InProcess, Server, TooFewReplies, run
from fedbook.deploy.nodes import write_node_key
from fedbook.privacy.secagg import known_keys, private_key
from fedbook.deploy.flower import (FlowerTransport, client_app, fingerprint, server_app, simulate, to_array,
                                   write_app)
from fedbook.engine.errors import UserError, how_to_install
from fedbook.engine.files import locked
from fedbook.engine.local import build, torch_threads
from fedbook.engine.wire import Msg, pack, unpack
from test_fedavg import make, net, several

PACKAGE = Path(flower.__file__).parent.parent
CHAPTERS = ("fedavg", "continual", "fedreplay", "fedmox", "fedklpr", "fedcbdr", "fedgtea")
chapter = pytest.mark.parametrize("name", CHAPTERS)
pytestmark = pytest.mark.usefixtures("one_process")


# ---- Flower's nodes in this process

class Crossing(NamedTuple):
    "A message as Flower writes it: the bytes of all its objects, one after the other, and their records."
    way: str
    id: int
    verb: str
    round: str
    data: bytes
    content: RecordDict | None


def served(grid, message): return grid.serve(message)

def silent(grid, message): pass

def late(grid, message): grid.serve(message)


class FakeGrid:
    """Flower's grid over nodes in this process. A message crosses as the bytes that Flower writes; for each
    one a node makes a new `ClientApp`, and gives it the `Context` that the last one left. `weather(id, verb,
    round)` is what becomes of a message: a function of the grid and of it."""
    numbers = itertools.count(2**40)

    def __init__(self, make_app, ids, weather=lambda *_: served):
        self.make_app, self.weather, self.contexts, self.crossings = make_app, weather, {}, []
        self.waiting = {}
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        for id in ids: self.join(id)

    def join(self, id, **config):
        node = next(self.numbers)
        self.contexts[node] = Context(1, node, {"partition-id": id, **config}, RecordDict(), {})
        return node

    def leave(self, id):
        for node in self.serving(id): del self.contexts[node]

    def serving(self, id):
        return [node for node, context in self.contexts.items() if context.node_config.get("partition-id")
                == id]

    def wipe(self, id):
        for node in self.serving(id): self.contexts[node].state = RecordDict()

    def held(self, node):
        return {mark: array.data for mark, array in self.contexts[node].state.get("fedbook", {}).items()}

    def get_node_ids(self): return list(self.contexts)

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {next(self.numbers)}"
            self.waiting[message.metadata.message_id] = self.deliver(message)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, ids):
        replies = [self.waiting.pop(id) for id in ids if self.waiting.get(id) is not None]
        for reply in replies:
            if isinstance(reply, Exception): raise reply
        return replies

    def deliver(self, message):
        id, verb = (self.contexts[message.metadata.dst_node_id].node_config.get("partition-id"),
                    message.metadata.message_type.split(".")[1])
        reply = self.weather(id, verb, message.metadata.group_id)(self, self.cross("down", id, verb, message))
        return self.cross("up", id, verb, reply) if isinstance(reply, Message) else reply

    def cross(self, way, id, verb, message):
        objects = {mark: thing.deflate() for mark, thing in get_all_nested_objects(message).items()}
        content = message.content if message.has_content() else None
        self.crossings.append(Crossing(way, id, verb, message.metadata.group_id, b"".join(objects.values()),
                                       content))
        arrived = inflate_object_from_contents(message.object_id, objects)
        arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
        return arrived

    def serve(self, message):
        context = self.contexts[message.metadata.dst_node_id]
        try: reply = self.make_app()(message, context)
        except Exception as error: return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        self.contexts[message.metadata.dst_node_id] = context_from_proto(context_to_proto(context))
        return reply


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    "Time that passes only while somebody sleeps; `clock.tick` is called each time."
    class Clock:
        now, tick = 0.0, staticmethod(lambda: None)
        def sleep(self, seconds):
            self.now += seconds
            self.tick()

    clock = Clock()
    monkeypatch.setattr(flower, "monotonic", lambda: clock.now)
    monkeypatch.setattr(flower, "sleep", clock.sleep)
    return clock


def small_grid(ids=range(4), make=make, keep=None, **options):
    return FakeGrid(lambda: client_app(make, keep), ids, **options)


def over(grid, ids=range(4), min_replies=1, **options):
    return Federation(FlowerTransport(grid, ids, **options), list(ids), min_replies)


def small_run(grid, rounds=3, checkpoint=None, test=None, **options):
    server, federation = Server(build(net, 0), seed=1), over(grid, **options)
    run(server, federation, rounds, checkpoint, test)
    return server, federation


def small_reference(ids=range(4), rounds=3, make=make):
    server, federation = Server(build(net, 0), seed=1), Federation(InProcess(make), list(ids))
    run(server, federation, rounds)
    return server, federation


def assert_same_run(one, other):
    "The same bits in the server, the same messages, the same private states; the first run was on Flower."
    (server, federation), (wanted, reference) = one, other
    assert pack(server.state()) == pack(wanted.state())
    assert [entry._replace(envelope=0) for entry in federation.ledger.entries] == reference.ledger.entries
    assert marks(federation) == {id: fingerprint(state) for id, state in reference.states.items()}


def marks(federation): return {id: mark.decode() for id, mark in federation.states.items()}

def reasons(federation): return [row["reason"] for row in federation.ledger.absent]


# ---- the same bits as in one process

def experiment_of(name, changes=None): return plan_of(name, "smoke", changes=changes).experiment


def trained(experiment, federation, checkpoint=None, test=None):
    server = experiment.server()
    run(server, federation, experiment.rounds, checkpoint, test)
    return server, federation


@lru_cache(None)
def in_process(name):
    experiment = experiment_of(name)
    server, federation = trained(experiment, Federation(InProcess(experiment.client), experiment.ids))
    return server, federation, experiment.test(server)


def grid_of(experiment, keep=None, **options):
    return FakeGrid(lambda: client_app(experiment.client, keep), experiment.ids, **options)


@lru_cache(None)
def over_grid(name):
    "Server, federation and grid of chapter `name`, and the private states that its nodes had."
    experiment, secrets = experiment_of(name), set()
    def watched(grid, message):
        reply = grid.serve(message)
        secrets.update(grid.held(message.metadata.dst_node_id).values())
        return reply
    grid = grid_of(experiment, weather=lambda *_: watched)
    return *trained(experiment, over(grid, experiment.ids)), grid, secrets


@chapter
def test_flowers_records_carry_the_run_bit_for_bit(name):
    server, federation, *_ = over_grid(name)
    wanted, reference, numbers = in_process(name)
    assert_same_run((server, federation), (wanted, reference))
    assert experiment_of(name).test(server) == numbers and federation.ledger.absent == []


@pytest.fixture(scope="module")
def simulated():
    """All chapters, one after the other, on one of Flower's simulations, with one thread here: chapter to
    server and federation."""
    experiments = {name: experiment_of(name) for name in CHAPTERS}
    places = [(name, id) for name, experiment in experiments.items() for id in experiment.ids]

    def make_client(node):
        from fedbook.kit import command
        made, (name, id) = vars(command).setdefault("_made_for_the_test", {}), places[node]
        if name not in made: made[name] = command.plan_of(name, "smoke").experiment
        return made[name].client(id)

    def job(federation):
        federation.transport.find(federation.ids)
        ran = {name: alone(federation.transport, experiment, places.index((name, 0)))
               for name, experiment in experiments.items()}
        return {**ran, "addresses": listening()}

    def alone(line, experiment, first):
        nodes = {id: line.nodes[first + id] for id in experiment.ids}
        grid = SimpleNamespace(get_node_ids=nodes.values, push_messages=line.grid.push_messages,
                               pull_messages=line.grid.pull_messages)
        part = over(grid, experiment.ids)
        part.transport.nodes = nodes
        return trained(experiment, part)

    with torch_threads(1): return simulate(job, make_client, range(len(places)), side_by_side=2)


def listening():
    "The addresses on which this process and those that it started wait for others."
    me = psutil.Process()
    return {c.laddr.ip for process in [me, *me.children(recursive=True)]
            for c in process.net_connections("inet") if c.status == "LISTEN"}


@AT_NIGHT
def test_the_simulation_listens_on_this_machine_alone(simulated):
    addresses = [ip_address(text) for text in simulated["addresses"]]
    assert addresses and all((getattr(address, "ipv4_mapped", None) or address).is_loopback
                             for address in addresses), addresses


@AT_NIGHT
@chapter
def test_flowers_simulation_gives_the_same_bits(name, simulated):
    assert_same_run(simulated[name], in_process(name)[:2])
    assert all(0 < entry.envelope < 2000 for entry in simulated[name][1].ledger.entries)
    assert simulated[name][1].ledger.absent == []


class Drawing(Client):
    "Its loss draws from PyTorch's global generator, as dropout does."
    def loss(self, x, y): return super().loss(x, y) * torch.rand(())


def test_what_clients_draw_from_global_generators_is_the_same_on_flower():
    draw = partial(make, kind=Drawing)
    assert_same_run(small_run(small_grid(make=draw)), small_reference(make=draw))


def dropping():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def make_dropping(id):
    client = make(id)
    client.model = build(dropping, 0)
    return client


def run_dropping(federation):
    server = Server(build(dropping, 0), seed=1)
    run(server, federation, 3)
    return server, federation


@several
def test_a_network_with_dropout_ends_with_the_same_bits_on_flower_and_with_one_two_and_three_workers():
    on_flower = run_dropping(over(small_grid(make=make_dropping)))
    for workers in (1, 2, 3):
        with Federation(transport_for(make_dropping, workers), 4) as federation:
            assert_same_run(on_flower, run_dropping(federation))


@pytest.fixture(scope="module")
def simulated_dropping():
    "The run on a simulation of its own, by the real clock."
    with torch_threads(1): return simulate(run_dropping, make_dropping, range(4), side_by_side=2)


@AT_NIGHT
def test_a_network_with_dropout_ends_with_the_same_bits_on_flowers_simulation(simulated_dropping):
    assert_same_run(simulated_dropping, run_dropping(Federation(InProcess(make_dropping), 4)))


# ---- what crosses

@chapter
def test_private_state_never_crosses(name):
    *_, grid, secrets = over_grid(name)
    crossed = b"".join(crossing.data for crossing in grid.crossings)
    generators = {unpack(secret).tensors["generator"].numpy().tobytes() for secret in secrets}
    assert len(secrets) >= len(grid.contexts) // 5 and all(len(generator) > 1000 for generator in generators)
    assert not any(secret in crossed for secret in {*secrets, *generators})
    assert all(bytes(crossing.content["msg"]["msg"].data) in crossed for crossing in grid.crossings
               if crossing.verb != "hello")


@chapter
def test_records_hold_one_array_of_bytes_and_text(name):
    asked = [crossing for crossing in over_grid(name)[2].crossings if crossing.verb != "hello"]
    for way, content in [(crossing.way, crossing.content) for crossing in asked]:
        assert {*content} == {"msg", "fedbook"} and {*content["msg"]} == {"msg"}
        assert {*content["fedbook"]} == ({"state", "run"} if way == "down" else {"state"})
        array = content["msg"]["msg"]
        assert (array.dtype, array.shape, array.stype) == ("uint8", (len(array.data),), "safetensors")
        assert type(content["fedbook"]["state"]) is str
        unpack(array.data)
    assert asked


@chapter
def test_the_envelope_is_what_flower_writes(name):
    _, federation, grid, _ = over_grid(name)
    written = {(c.way, c.id, c.verb, int(c.round)): len(c.data) for c in grid.crossings if c.verb != "hello"}
    assert {(e.way, e.client, e.verb, e.round): e.nbytes + e.envelope
            for e in federation.ledger.entries} == written
    assert all(0 < e.envelope < 2000 for e in federation.ledger.entries)
    table = federation.ledger.table("way", "verb")
    assert sum(row["bytes"] + row["envelope"] for row in table) == sum(written.values())
    assert sum(row["messages"] for row in table) == len(written)


@chapter
def test_verbs_are_those_that_the_server_asks_for(name):
    client = experiment_of(name).client(0)
    asked = {entry.verb for entry in in_process(name)[1].ledger.entries}
    assert asked <= {*client.verbs} and not {"load", "state", "train", "loss"} & {*client.verbs}


def test_no_code_is_loaded(monkeypatch):
    experiment, wanted = experiment_of("fedcbdr"), in_process("fedcbdr")[:2]
    grid, server = grid_of(experiment), experiment.server()
    def refuse(*args, **kwargs): raise AssertionError("a pickle is loaded")
    for name in ("load", "loads", "Unpickler", "_Unpickler"): monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    federation = over(grid, experiment.ids)
    run(server, federation, experiment.rounds)
    assert_same_run((server, federation), wanted)


# ---- faults

class Failing(Client):
    def fit(self, msg):
        if self.id == 1: raise RuntimeError("the disk is full")
        return super().fit(msg)


class Spoiling(Client):
    def fit(self, msg):
        reply = super().fit(msg)
        if self.id == 1: reply.tensors["0.weight"] = self.spoil(reply.tensors["0.weight"])
        return reply


class Poisoned(Spoiling):
    def spoil(self, t): return t * float("nan")


class Misshapen(Spoiling):
    def spoil(self, t): return t[:2]


class Shouting(Client):
    def fit(self, msg):
        if self.id == 1: raise RuntimeError("ten\nlines " * 1000)
        return super().fit(msg)


class Hoarding(Client):
    "Keeps something that its `keeps` does not name."
    def fit(self, msg):
        if self.id in (1, 9): self.calls = 1
        return super().fit(msg)


def unmade_after_hello():
    made = Counter()
    def once(id):
        made[id] += 1
        if id == 1 and made[id] > 1: raise OSError("the disk is gone")
        return make(id)
    return once


def reply_with(**records):
    "Weather in which the node's reply has these records in place of its own (None: none)."
    def spoil(grid, message):
        reply = grid.serve(message)
        for name, record in records.items():
            if record is None: del reply.content[name]
            else: reply.content[name] = record
        return reply
    return spoil


def failing_with(code, reason, sender=None):
    "Weather in which the answer is an error, that the SuperLink makes itself where `sender` is its number."
    def fail(grid, message):
        reply = Message(Error(code, reason), reply_to=message)
        if sender: reply.metadata.__dict__["_src_node_id"] = sender
        return reply
    return fail


def said(state): return ConfigRecord({"state": state})


FAULTS = {
    "raises": (partial(make, kind=Failing), served, "RuntimeError: the disk is full"),
    "cannot be made": (unmade_after_hello, served, "error 2.*the disk is gone"),
    "NaN": (partial(make, kind=Poisoned), served, "not finite"),
    "wrong shape": (partial(make, kind=Misshapen), served, "has shape"),
    "hangs": (make, silent, "no answer within 600 s"),
    "late": (make, late, "no answer within 600 s"),
    "node gone": (make, failing_with(5, "Node Unavailable - the node is gone.", sender=1),
                  "error 5: Node Unavailable"),
    "process killed": (make, failing_with(8, "ClientApp stopped responding."), "error 8: ClientApp stopped"),
    "traceback": (make, failing_with(2, "Traceback\n  line 1\nValueError: the last line"),
                  "error 2:.*ValueError: the last line$"),
    "no reason": (make, failing_with(0, None), "error 0: no reason given"),
    "blank reason": (make, failing_with(0, " \n"), "error 0: no reason given"),
    "no records": (make, reply_with(msg=None, fedbook=None), "names no private state"),
    "no message": (make, reply_with(msg=None), "hold no packed message"),
    "text for message": (make, reply_with(msg=ConfigRecord({"msg": "weights"})), "hold no packed message"),
    "garbage": (make, reply_with(msg=ArrayRecord({"msg": to_array(b"\x80\x04K\x01.")})), "not a message"),
    "no state": (make, reply_with(fedbook=None), "names no private state"),
    "array for state": (make, reply_with(fedbook=ArrayRecord({"state": to_array(b"0" * 64)})),
                        "names no private state"),
    "short state": (make, reply_with(fedbook=said("0" * 63)), "names no private state"),
    "path for state": (make, reply_with(fedbook=said("../../etc/passwd")), "names no private state"),
    "list for state": (make, reply_with(fedbook=said([1, 2])), "names no private state"),
    "list for failure": (make, reply_with(fedbook=ConfigRecord({"failure": [1, 2]})), r"\[1, 2\]"),
    "shouts": (partial(make, kind=Shouting), served, "ten lines ten lines"),
    "an object that Flower cannot read": (make, lambda grid, message: ValueError("Unexpected set of `children`"),
                                          "Flower cannot read the answer .ValueError: Unexpected set"),
    "keeps what it did not declare": (partial(make, kind=Hoarding), served,
                                      r"Undeclared: client 1 \(Hoarding\) changed its attribute 'calls'"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore:round")
def test_a_client_that_fails_is_left_out_and_the_ledger_says_why(fault):
    kind, weather, why = FAULTS[fault]
    grid = small_grid(make=kind() if fault == "cannot be made" else kind, weather=lambda id, verb, _: weather
                      if (id, verb) == (1, "fit") else served)
    server, federation = small_run(grid)
    assert ([(row["round"], row["client"], row["verb"]) for row in federation.ledger.absent]
            == [(r, 1, "fit") for r in range(3)])
    assert all(re.search(why, reason) and len(reason) < 500 and "\n" not in reason
               for reason in reasons(federation))
    assert pack(server.state()) == pack(small_reference([0, 2, 3])[0].state())


@pytest.mark.filterwarnings("ignore:round")
def test_a_node_that_cannot_make_its_client_is_left_out_and_the_ledger_says_why(clock):
    def make_client(id):
        if id == 1: raise OSError("the disk is not mounted")
        return make(id)
    with pytest.warns(UserWarning, match="node is left out.*the disk is not mounted"):
        server, federation = small_run(small_grid(make=make_client))
    assert [(row["round"], row["client"]) for row in federation.ledger.absent] == [(r, 1) for r in range(3)]
    assert all(re.search("no node serves it.*the disk is not mounted", reason)
               for reason in reasons(federation))
    assert pack(server.state()) == pack(small_reference([0, 2, 3])[0].state())


def test_a_client_that_keeps_what_it_did_not_declare_is_an_error_that_names_it():
    grid = FakeGrid(lambda: client_app(partial(make, kind=Hoarding)), [9])
    with pytest.raises(TooFewReplies, match=r"Undeclared: client 9 \(Hoarding\) changed its attribute "
                       r"'calls'"):
        list(over(grid, [9]).exchange("fit", Server(build(net, 0)).send, [9]))
    assert not any(grid.held(node) for node in grid.contexts)


def test_scratch_of_a_call_is_no_mistake():
    proximal = partial(make, kind=FedProxClient, mu=0.1)
    assert_same_run(small_run(small_grid(make=proximal)), small_reference(make=proximal))


@pytest.mark.parametrize("verb", ["dance", "state", "load", "train", "loss", "_limit", "default"])
@pytest.mark.filterwarnings("ignore:round")
def test_nothing_but_a_verb_can_be_asked_for(verb):
    grid = small_grid()
    federation = over(grid)
    with pytest.raises(TooFewReplies): list(federation.exchange(verb, Msg({}), [0, 1]))
    assert len(reasons(federation)) == 2
    assert all(f"No train function registered with name '{verb}'" in reason for reason in reasons(federation))
    assert not any(grid.held(node) for node in grid.contexts)


def test_too_few_replies_leave_the_checkpoint_as_it_was(tmp_path):
    def weather(id, verb, round): return silent if verb == "fit" and int(round) >= 2 and id else served
    checkpoint, grid = Checkpoint(tmp_path / "run"), small_grid(weather=weather)
    small_run(grid, 2, checkpoint, min_replies=2)
    before = checkpoint.path.read_bytes()
    with pytest.raises(TooFewReplies, match="1 of 4 .* at least 2 are needed .*client 1: no answer"):
        small_run(grid, 3, checkpoint, min_replies=2)
    assert checkpoint.path.read_bytes() == before
    grid.weather = lambda *_: served
    assert_same_run(small_run(grid, 3, checkpoint), small_reference())


def test_replies_come_in_the_order_asked():
    federation, server = over(small_grid()), Server(build(net, 0))
    assert [id for id, _ in federation.exchange("fit", server.send, [2, 0, 3])] == [2, 0, 3]
    with pytest.raises(UserError, match="names a client twice"):
        list(federation.exchange("fit", server.send, [1, 1]))


# ---- replies as they come

def test_equal_letters_go_out_together_and_other_ones_alone(monkeypatch):
    grid, pushed = small_grid(), []
    monkeypatch.setattr(grid, "push_messages", lambda letters: pushed.append(len(letters))
                        or FakeGrid.push_messages(grid, letters))
    small_run(grid, 1)
    own = lambda id: Msg(build(net, 0).state_dict(), {"id": id})
    list(over(grid).exchange("fit", own, range(4)))
    assert pushed == [4, 4, 4, 1, 1, 1, 1], "greetings, a letter to all; greetings, four letters"


def test_what_comes_before_its_turn_waits_on_disk_and_is_gone_afterwards(clock, tmp_path):
    came, grid = [], small_grid(range(7))
    pull, line = grid.pull_messages, FlowerTransport(grid, range(7), folder=tmp_path)
    late = lambda ids: [] if clock.now < 2 and grid.first in ids else came.extend(ids) or pull(ids)
    federation, server = Federation(line, 7), Server(build(net, 0))
    line.find(range(7))
    grid.pull_messages, grid.first = late, f"message {next(grid.numbers) + 1}"
    replies = federation.exchange("fit", server.send, range(7))
    assert next(replies)[0] == 0 and came[-1] == grid.first and len(came) == 7
    [aside] = tmp_path.iterdir()
    assert len([*aside.iterdir()]) == 1 + 7, "the letter to all, and each reply"
    assert [id for id, _ in replies] == [*range(1, 7)] and not [*tmp_path.iterdir()]


@pytest.mark.filterwarnings("ignore:round")
def test_of_more_than_are_needed_the_first_are_taken(clock):
    grid = small_grid(weather=lambda id, verb, _: silent if (id, verb) == (1, "fit") else served)
    server, federation = small_run(grid, 2, over=4 / 3)
    assert ([(row["client"], row["reason"]) for row in federation.ledger.absent]
            == 2 * [(1, "not needed: 3 others were faster")])
    assert pack(server.state()) == pack(small_reference([0, 2, 3], 2)[0].state()) and clock.now == 0


@pytest.mark.filterwarnings("ignore:round")
def test_where_fewer_come_than_are_needed_the_deadline_decides(clock):
    grid = small_grid(weather=lambda id, verb, _: silent if id in (1, 2) and verb == "fit" else served)
    _, federation = small_run(grid, 1, over=4 / 3, timeout=30)
    assert reasons(federation) == 2 * ["no answer within 30 s"] and 30 <= clock.now < 34


@pytest.mark.filterwarnings("ignore:round")
def test_only_fits_are_for_the_fastest():
    experiment = experiment_of("fedreplay", {"clients": 4, "rounds": 2})
    grid = grid_of(experiment)
    _, federation = trained(experiment, over(grid, experiment.ids, over=2.0))
    assert {row["verb"] for row in federation.ledger.absent} == {"fit"}
    assert len(federation.ledger.absent) == 2 * experiment.rounds


class Dawdling(Client):
    def fit(self, msg):
        if self.id == 1: time.sleep(60)
        return super().fit(msg)


@pytest.mark.filterwarnings("ignore:round")
def test_a_client_stops_when_nobody_waits_for_it_any_more():
    grid, begin = small_grid(make=partial(make, kind=Dawdling)), time.monotonic()
    _, federation = small_run(grid, 1, timeout=3)
    assert reasons(federation) == ["TimeoutError: stopped after 3 s: nobody waits for the answer any more"]
    assert time.monotonic() - begin < 30 and not any(grid.held(node) for node in grid.serving(1))


def test_who_cannot_be_read_in_the_greeting_is_left_out():
    garbled = lambda grid, message: KeyError("NoSuchObject")
    grid = small_grid(weather=lambda id, verb, _: garbled if (id, verb) == (1, "hello") else served)
    with pytest.warns(UserWarning, match="Flower cannot read the answer .KeyError"):
        server, federation = small_run(grid, 1)
    assert pack(server.state()) == pack(small_reference([0, 2, 3], 1)[0].state())


@pytest.mark.filterwarnings("ignore:round")
def test_a_superlink_that_is_gone_is_no_fault_of_a_client(tmp_path):
    grid, checkpoint = small_grid(), Checkpoint(tmp_path / "run")
    small_run(grid, 1, checkpoint)
    before = checkpoint.path.read_bytes()
    grid.pull_messages = lambda ids: (_ for _ in ()).throw(ConnectionError("refused"))
    with pytest.raises(ConnectionError): small_run(grid, 2, checkpoint)
    assert checkpoint.path.read_bytes() == before


# ---- nodes that come and go

@pytest.mark.parametrize("id", [None, "1", 1.0, True, 4, -1])
def test_a_node_that_serves_no_client_is_left_out(id, clock):
    grid = small_grid()
    node = grid.join(id)
    if id is None: del grid.contexts[node].node_config["partition-id"]
    with pytest.warns(UserWarning, match="node is left out.*" + ("said" if type(id) is int
                                                                 else "partition-id")):
        ran = small_run(grid)
    assert_same_run(ran, small_reference())
    assert sum((crossing.verb, crossing.way) == ("hello", "down") for crossing in grid.crossings) == 4 + 3
    assert clock.now == 0


def test_a_second_node_for_a_client_is_left_out_and_takes_over_when_the_first_has_gone(clock, tmp_path):
    grid, doubles = small_grid(keep=tmp_path), []
    def replace(server):
        if not doubles: doubles.append(grid.join(1))
        else: [grid.contexts.pop(node) for node in grid.serving(1)[:-1]]
    with pytest.warns(UserWarning, match="node is left out.*said 1"):
        ran = small_run(grid, 3, test=lambda server: replace(server) or {})
    assert_same_run(ran, small_reference())
    assert grid.held(doubles[0])


def test_a_client_is_served_by_the_node_with_its_key_alone(clock, tmp_path):
    "With known keys nobody takes another's place: without a key, with another client's, with a stranger's."
    keys = {id: write_node_key(tmp_path / f"node{id}") for id in range(4)}
    known = {id: private_key(key).public_key() for id, key in keys.items()}
    stranger = write_node_key(tmp_path / "stranger")
    grid = FakeGrid(lambda: client_app(lambda id, key="": make(id)), [])
    for words in (dict(), dict(key=str(keys[0])), dict(key=str(stranger))): grid.join(1, **words)
    for id in (1, 0, 2, 3): grid.join(id, key=str(keys[id]))
    with pytest.warns(UserWarning, match="said that it serves client 1, and has not that client's key"):
        ran = small_run(grid, known=known)
    assert_same_run(ran, small_reference())


PRIVATE = {"secagg": ("secagg", dict(clients=3, per_round=3, threshold=2, rounds=1)),
           "dp, a client": ("dp", dict(unit="client", clients=3, per_round=2, rounds=2)),
           "dp, a record": ("dp", dict(unit="record", clients=3, per_round=3, rounds=1))}


@pytest.mark.parametrize("what", PRIVATE)
def test_privacy_by_name_runs_on_nodes_with_books_and_keys_of_their_own(what, clock, tmp_path):
    "What `fedbook flower-app secagg` and `dp` write: each client as its machine makes it, the server as its own."
    name, changes = PRIVATE[what]
    if name == "dp": pytest.importorskip("opacus", reason="privacy by record takes Opacus")
    plan = plan_of(name, "smoke", changes={key: str(value) for key, value in changes.items()})
    keys = {id: write_node_key(tmp_path / f"node{id}/key") for id in range(3)}
    known = "".join(f"{id} {key.with_name('key.pub').read_text()}\n" for id, key in keys.items())
    (tmp_path / "known.txt").write_text(known)
    grid = FakeGrid(lambda: client_app(plan.experiment.own_client), [])
    for id, key in keys.items():
        grid.join(id, key=str(key), known=str(tmp_path / "known.txt"), book=str(tmp_path / f"node{id}/book"))
    here = plan.experiment.at()
    federation = Federation(FlowerTransport(grid, here.ids, known=known_keys(tmp_path / "known.txt")), here.ids)
    server, before = here.built_server(), pack(here.built_server().state())
    run(server, federation, here.rounds)
    assert not federation.ledger.absent and pack(server.state()) != before
    books = sorted(path.parent.parent.name for path in tmp_path.glob("node*/book/*"))
    assert {*books} == (set() if what == "dp, a client" else {"node0", "node1", "node2"})


def test_a_node_without_a_book_says_what_to_do(clock, tmp_path):
    plan, key = plan_of("secagg", "smoke", changes={"clients": "3"}), write_node_key(tmp_path / "key")
    (tmp_path / "known.txt").write_text(f"0 {key.with_name('key.pub').read_text()}")
    grid = FakeGrid(lambda: client_app(plan.experiment.own_client), [])
    grid.join(0, key=str(key), known=str(tmp_path / "known.txt"))
    with pytest.warns(UserWarning, match="book=.* must be a folder that only this machine reads"):
        FlowerTransport(grid, [0], wait=0.1).find([0])


def test_a_signature_of_another_greeting_is_worth_nothing(clock, tmp_path):
    key = write_node_key(tmp_path / "node0")
    grid = FakeGrid(lambda: client_app(lambda id, key="": make(id)), [])
    grid.join(0, key=str(key))
    transport = FlowerTransport(grid, [0], known={0: private_key(key).public_key()})
    heard, pull = [], grid.pull_messages
    grid.pull_messages = lambda ids: heard.extend(found := list(pull(ids))) or found
    transport.find([0])
    assert transport.nodes
    [reply] = heard
    fresh = RecordDict({"fedbook": ConfigRecord({"nonce": "another"})})
    assert "has not that client's key" in transport.unproven(0, fresh, reply)


def asked(grid, id):
    return sum(crossing.verb == "fit" and crossing.way == "down" and crossing.id == id
               for crossing in grid.crossings)


@pytest.mark.filterwarnings("ignore:round")
def test_a_client_without_a_node_is_waited_for_once(clock):
    grid, waited = small_grid([0, 1, 2]), []
    server, federation = small_run(grid, test=lambda server: waited.append(clock.now) or {}, wait=20)
    assert 20 <= waited[0] <= 21 and waited == [waited[0]] * 3
    assert [(row["round"], row["client"], row["reason"])
            for row in federation.ledger.absent] == [(r, 3, "no node serves it") for r in range(3)]
    assert pack(server.state()) == pack(small_reference([0, 1, 2])[0].state())


def test_a_node_that_comes_while_it_is_waited_for_takes_part(clock):
    grid = small_grid([0, 1, 2])
    clock.tick = lambda: clock.now > 5 and not grid.serving(3) and grid.join(3)
    assert_same_run(small_run(grid), small_reference())
    assert 5 < clock.now < 10


def test_a_node_that_is_away_for_a_moment_is_greeted_again(clock):
    "As after a new start of the SuperLink: it lists a node, and does not hear it yet."
    gone = failing_with(5, "Node Unavailable - no heartbeat.", sender=1)
    grid = small_grid(weather=lambda id, verb, _: gone if (id, verb) == (1, "hello") and clock.now < 5
                      else served)
    assert_same_run(small_run(grid), small_reference())
    assert 5 <= clock.now < 6


@pytest.mark.filterwarnings("ignore:round")
def test_a_client_that_was_given_up_is_asked_again_when_its_node_has_come(clock):
    grid, rounds = small_grid([0, 1, 2]), iter(range(5))
    def come_and_go(server):
        r = next(rounds)
        if r == 1: grid.join(3)
        if r == 2: grid.leave(3)
        return {}
    server, federation = small_run(grid, 5, test=come_and_go, wait=20)
    assert [row["round"] for row in federation.ledger.absent] == [0, 1, 3, 4] and asked(grid, 3) == 1
    assert 40 <= clock.now <= 42


@pytest.mark.filterwarnings("ignore:round")
def test_a_node_that_leaves_is_missed_and_one_that_comes_back_goes_on_from_its_folder(clock, tmp_path):
    grid, rounds = small_grid(keep=tmp_path), iter(range(4))
    def weather(server):
        r = next(rounds)
        if r == 0: grid.leave(1)
        if r == 1: grid.join(1)
        return {}
    server, federation = small_run(grid, 4, test=weather)
    assert [(row["round"], row["client"]) for row in federation.ledger.absent] == [(1, 1)]
    assert asked(grid, 1) == 3
    assert marks(federation)[1] == fingerprint(small_reference(rounds=3)[1].states[1])


def test_a_farm_whose_node_connects_only_when_it_joins(clock):
    experiment = experiment_of("fedreplay", {"join_round": 1, "clients": 4, "rounds": 2})
    wanted = trained(experiment, Federation(InProcess(experiment.client), experiment.ids))
    grid = FakeGrid(lambda: client_app(experiment.client), experiment.ids[:-1])
    come = lambda server: grid.serving(3) and {} or grid.join(3) and {}
    server, federation = trained(experiment, over(grid, experiment.ids), test=come)
    assert_same_run((server, federation), wanted)
    assert {entry.verb for entry in federation.ledger.where(client=3, round=1)} == {"donate", "pool", "fit"}
    assert clock.now == 0
    assert not federation.ledger.where(client=3, round=0)
    assert federation.ledger.absent == []


# ---- private state

@pytest.mark.filterwarnings("ignore:round")
@pytest.mark.parametrize("name", ["fedcbdr", "fedgtea"])
def test_answers_that_came_too_late_change_nothing(name):
    experiment, faults = experiment_of(name), Faults(seed=5, silent=0.3)
    wanted, reference = trained(experiment, Federation(InProcess(experiment.client), experiment.ids,
                                                       faults=faults))
    struck = lambda id, verb, round: verb != "hello" and faults.strike(int(round), verb, id)
    grid = grid_of(experiment, weather=lambda *asked: late if struck(*asked) else served)
    server, federation = trained(experiment, over(grid, experiment.ids))
    assert_same_run((server, federation), (wanted, reference))
    missed, wanted = ([(row["round"], row["client"], row["verb"]) for row in each.ledger.absent]
                      for each in (federation, reference))
    assert missed == wanted != []


def test_two_states_are_kept_and_the_last_is_the_one_that_the_server_names(tmp_path):
    experiment, counts = experiment_of("fedcbdr"), Counter()
    def watched(grid, message):
        reply = grid.serve(message)
        if "msg" not in reply.content: return reply
        id = grid.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        held, files = (grid.held(message.metadata.dst_node_id),
                       [file.read_bytes() for file in (tmp_path / "nodes").rglob(f"client-{id}-*")])
        assert all(fingerprint(state) == mark for mark, state in held.items())
        assert set(held.values()) == set(files)
        assert {*held} == {reply.content["fedbook"]["state"], message.content["fedbook"]["state"]} - {""}
        counts[len(held)] += 1
        return reply
    grid = grid_of(experiment, tmp_path / "nodes", weather=lambda *_: watched)
    server, federation = trained(experiment, over(grid, experiment.ids))
    assert {*counts} == {1, 2} and counts.total() == len(federation.ledger.where(way="up"))


@pytest.mark.parametrize("config", [False, True])
def test_a_node_that_was_started_again_goes_on_from_its_folder(tmp_path, config):
    grid = small_grid([], keep=None if config else tmp_path / "nodes")
    for id in range(4): grid.join(id, **({"state-folder": str(tmp_path / f"node{id}")} if config else {}))
    assert_same_run(small_run(grid, test=lambda server: grid.wipe(1) or {}), small_reference())
    assert {*tmp_path.iterdir()} == ({tmp_path / f"node{id}" for id in range(4)} if config
                                     else {tmp_path / "nodes"})


@pytest.mark.filterwarnings("ignore:round")
@pytest.mark.parametrize("harm", [lambda data: data[:-1] + b"?", lambda data: b""])
def test_a_state_that_is_lost_or_damaged_is_named_in_the_ledger(tmp_path, harm):
    grid = small_grid(keep=tmp_path)
    def lose(server):
        grid.wipe(1)
        for file in tmp_path.rglob("client-1-*"): file.write_bytes(harm(file.read_bytes()))
        return {}
    server, federation = small_run(grid, test=lose)
    mark = fingerprint(small_reference(rounds=1)[1].states[1])
    assert marks(federation)[1] == mark
    assert [(row["round"], row["client"]) for row in federation.ledger.absent] == [(1, 1), (2, 1)]
    assert all(f"the private state {mark[:8]!r} of client 1 is not on its node" in reason
               for reason in reasons(federation))


# ---- killed and resumed

@contextmanager
def killed_before_saving(monkeypatch):
    def die(*_): raise Killed
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpoint, "save", die)
        yield


def test_killed_before_and_after_every_checkpoint_it_ends_with_the_same_bits(kill, monkeypatch, tmp_path):
    experiment, nodes = experiment_of("fedcbdr"), set()
    def job():
        grid = grid_of(experiment, tmp_path / "nodes")
        assert nodes.isdisjoint(grid.contexts)
        nodes.update(grid.contexts)
        return trained(experiment, over(grid, experiment.ids), Checkpoint(tmp_path / "run", "killed"))
    wanted, reference, _ = in_process("fedcbdr")
    exchanges = {(entry.round, entry.verb) for entry in reference.ledger.entries}
    for _ in exchanges:
        with killed_before_saving(monkeypatch): job()
        kill(job, 1)
    assert_same_run(job(), (wanted, reference))
    assert len(exchanges) == 4 * experiment.sizes.tasks
    assert len(nodes) == (2 * len(exchanges) + 1) * len(experiment.ids)


def test_two_runs_on_the_same_nodes_do_not_take_each_others_states(tmp_path):
    def run_of(label, seed, test=None):
        grid = FakeGrid(lambda: client_app(partial(make, kind=partial(Client, momentum=seed / 10)), tmp_path),
                        range(4))
        return small_run(grid, 2, Checkpoint(tmp_path / f"{label}.run", label), test, run=label)
    wanted = run_of("c", 3)
    def stop(server): raise Killed
    with pytest.raises(Killed): run_of("a", 3, stop)
    run_of("b", 0)
    server, federation = run_of("a", 3)
    assert pack(server.state()) == pack(wanted[0].state())
    assert federation.states == wanted[1].states
    assert federation.ledger.absent == []


# ---- apps

def app_in(folder, side, monkeypatch):
    "The `side` app of the folder, found as Flower finds it."
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "fedbook_app"]:
        monkeypatch.delitem(sys.modules, name)
    app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    module, name = app["components"][f"{side}app"].split(":")
    return getattr(import_module(module), name)


def served_by(app, grid, out, **config):
    app(grid, Context(1, 1, {}, RecordDict(), {"timeout": 600.0, "wait": 60.0, "min-replies": 1,
                                               "out": str(out), **config}))
    return json.loads(next(out.glob("*/results.json")).read_text())


def assert_numbers(body, wanted, **more):
    "The numbers of the one row of the results `body` are those wanted, and more."
    [row] = body["rows"]
    wanted = wanted | more
    assert {name: row["numbers"][name] for name in wanted} == wanted


def test_the_app_that_is_written_trains_the_chapter(tmp_path, monkeypatch, capsys):
    folder = write_app(plan_of("13_fedcbdr", "smoke"), tmp_path / "app")
    assert folder == write_app(plan_of("fedcbdr", "smoke"), tmp_path / "app")
    client, server = (app_in(folder, side, monkeypatch) for side in ("client", "server"))
    assert (type(client), type(server)) == (ClientApp, ServerApp)
    config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    experiment = experiment_of("fedcbdr")
    grid = FakeGrid(lambda: client, experiment.ids)
    for id in experiment.ids:
        grid.contexts[grid.serving(id)[0]].node_config["state-folder"] = str(tmp_path / f"node{id}")
    body = served_by(server, grid, tmp_path / "runs", **{name: value for name, value in config.items()
                                                         if name != "out"})
    wanted, reference, numbers = in_process("fedcbdr")
    assert_numbers(body, numbers | reference.ledger.so_far, rounds=experiment.rounds, absent=[])
    assert body["rows"][0]["numbers"]["envelope"] > 0 and str(numbers)[1:-1] in capsys.readouterr().out
    held = unpack(next((tmp_path / "runs").glob("*/checkpoint.safetensors")).read_bytes()).tensors
    assert held["server"].numpy().tobytes() == pack(wanted.state())
    for id, state in reference.states.items():
        assert held[f"client/{id}"].numpy().tobytes().decode() == fingerprint(state)


@pytest.mark.filterwarnings("ignore:GitWildMatch")
def test_flower_accepts_the_app(tmp_path):
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate
    folder = write_app(plan_of("fedavg", "smoke", seed=3, changes={"lr": "0.05"}), tmp_path / "app")
    config, warned = load_and_validate(folder / "pyproject.toml", check_module=True)
    assert config["project"]["dependencies"] == [] and not warned
    assert build_fab_from_disk(folder)
    said = {}
    exec((folder / "fedbook_app" / "client.py").read_text(), said)
    plan = said["plan"]
    assert (plan.experiment.sizes.lr, plan.experiment.seed, plan.profile) == (0.05, 3, "smoke")


@pytest.mark.filterwarnings("ignore:round")
def test_a_server_app_goes_on_where_it_was_killed(tmp_path, kill):
    plan = plan_of("fedgtea", "smoke")
    def job():
        return served_by(server_app(plan), grid_of(plan.experiment, tmp_path / "nodes"), tmp_path / "runs")
    kill(job, 2)
    _, reference, numbers = in_process("fedgtea")
    assert_numbers(job(), numbers | reference.ledger.so_far, absent=[])


def test_a_run_that_is_done_says_the_same_again(tmp_path):
    plan = plan_of("fedmox", "smoke")
    def job():
        return served_by(server_app(plan), grid_of(plan.experiment, tmp_path / "nodes"), tmp_path / "runs")
    first, again = job(), job()
    assert first["headline"] == again["headline"]
    assert first["rows"][0]["numbers"] == again["rows"][0]["numbers"]


def test_two_runs_do_not_train_in_one_folder(clock, tmp_path):
    plan = plan_of("fedavg", "smoke", changes={"per_round": "1", "rounds": "1"})
    def train(): return served_by(server_app(plan), grid_of(plan.experiment, tmp_path / "nodes"), tmp_path / "runs")
    with locked(plan.folder(tmp_path / "runs")):
        with pytest.raises(UserError, match="another process is at work in '.*fedavg-flower"): train()
    train()


@pytest.mark.filterwarnings("ignore:round")
def test_a_run_has_a_curve_and_ends_when_nothing_gets_better(tmp_path):
    plan = plan_of("fedavg", "smoke", changes={"per_round": "1", "rounds": "6", "lr": "1e-9"})
    def job(**config):
        return served_by(server_app(plan), grid_of(plan.experiment, tmp_path / "nodes"), tmp_path / "runs", **config)
    numbers = job(patience=2)["rows"][0]["numbers"]
    assert numbers["rounds"] == 3 == len(numbers["curve"])
    assert [row["round"] for row in numbers["curve"]] == [1, 2, 3]
    assert {row["accuracy"] for row in numbers["curve"]} == {numbers["accuracy"]}
    assert job(patience=2)["rows"][0]["numbers"] == numbers, "what has ended stays so"


# ---- own data

def crops(root, classes, count=6):
    for c in classes:
        (root / f"crop{c}").mkdir(parents=True)
        for i in range(count):
            pixels = torch.randint(0, 256, (28, 28, 3), generator=seeded(100 * c + i), dtype=torch.uint8).numpy()
            Image.fromarray(pixels // 2 + 25 * c).save(root / f"crop{c}" / f"{i}.png")
    (root / "classes.txt").write_text("crop0\ncrop1\ncrop2\ncrop3\n")
    return str(root)


@pytest.mark.filterwarnings("ignore:round")
def test_nodes_train_on_folders_of_their_own(tmp_path, monkeypatch):
    folders = [crops(tmp_path / f"node{id}", (2 * id, 2 * id + 1)) for id in range(2)]
    changes = {"clients": "2", "per_round": "2"}
    app = write_app(plan_of("fedavg", "smoke", changes=changes), tmp_path / "app")
    client, server = (app_in(app, side, monkeypatch) for side in ("client", "server"))
    grid = FakeGrid(lambda: client, [])
    for id, folder in enumerate(folders): grid.join(id, folder=folder, device="cpu", batch=4)
    own = crops(tmp_path / "server", range(4), 8)
    body = served_by(server, grid, tmp_path / "runs", folder=own)
    experiment = plan_of("fedavg", "smoke", changes=changes).experiment
    here = InProcess(lambda id: experiment.own_client(id, folders[id], batch=4))
    wanted, federation = trained(experiment.at(own), Federation(here, 2))
    held = unpack(next((tmp_path / "runs").glob("*/checkpoint.safetensors")).read_bytes()).tensors
    assert held["server"].numpy().tobytes() == pack(wanted.state())
    assert_numbers(body, experiment.at(own).test(wanted), absent=[])
    assert [experiment.own_client(id, folders[id]).y.unique().tolist() for id in range(2)] == [[0, 1], [2, 3]]


SETTINGS = {
    "is missing": (dict(folder="/no/such/folder"), "folder='/no/such/folder' is missing on this machine"),
    "is empty": (dict(folder="EMPTY"), "folder='.*' on this machine is empty"),
    "holds no pictures": (dict(folder="BARE"), "holds no pictures in folders per class"),
    "is not a size": (dict(folder="GOOD", speed=3), "'speed' is not a parameter of this chapter"),
    "has another type": (dict(folder="GOOD", batch="many"), "batch='many' must be a whole number"),
    "is no device": (dict(folder="GOOD", device="abacus"), "device='abacus' is unknown"),
}


@pytest.mark.parametrize("what", SETTINGS)
@pytest.mark.filterwarnings("ignore:round")
def test_a_node_whose_folder_does_not_fit_is_left_out_with_one_sentence(what, clock, tmp_path):
    config, said = SETTINGS[what]
    good = crops(tmp_path / "good", range(4))
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare" / "crop0").mkdir(parents=True)
    names = {"EMPTY": str(tmp_path / "empty"), "BARE": str(tmp_path / "bare"), "GOOD": good}
    config = {name: names.get(value, value) for name, value in config.items()}
    experiment = plan_of("fedavg", "smoke", changes={"clients": "2", "per_round": "2"}).experiment
    grid = FakeGrid(lambda: client_app(experiment.own_client), [])
    grid.join(0, folder=good), grid.join(1, **config)
    with pytest.warns(UserWarning, match=said):
        _, federation = trained(experiment.at(good), over(grid, range(2)))
    assert [(row["client"], row["verb"]) for row in federation.ledger.absent] == 2 * [(1, "fit")]
    assert all(re.search(said, reason) and "\n" not in reason for reason in reasons(federation))
    checkpoint = Checkpoint(tmp_path / "run")
    grid.leave(0)
    with pytest.warns(UserWarning, match=said), pytest.raises(TooFewReplies, match=said):
        trained(experiment.at(good), over(grid, range(2)), checkpoint)
    assert not checkpoint.path.exists()


# ---- the simulation, without Ray

@pytest.fixture
def without_ray(monkeypatch):
    """What `simulate` asks of Flower and Ray, in this process: `grids` that were made, and `raised` if the
    simulation is to be interrupted with it."""
    class Ran: grids, raised, cores = [], None, None
    ran = Ran()
    ran.grids = []
    def run_simulation(app, client, count, **options):
        ran.grids.append(FakeGrid(lambda: client, range(count)))
        ran.home = os.environ["FLWR_HOME"]
        app(ran.grids[-1], Context(1, 1, {}, RecordDict(), {}))
        if ran.raised: raise ran.raised
    @contextmanager
    def ray(cores, *args):
        ran.cores = cores
        yield
    monkeypatch.setattr("flwr.simulation.run_simulation", run_simulation)
    monkeypatch.setattr(flower, "local_ray", ray)
    return ran


def test_a_simulation_returns_what_the_job_returns_and_raises_what_it_raises(without_ray, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", "of-the-user")
    def job(federation):
        server = Server(build(net, 0), seed=1)
        run(server, federation, 3)
        return server, federation
    assert_same_run(simulate(job, make, range(4), 3), small_reference())
    assert without_ray.cores == 3
    assert os.environ["FLWR_HOME"] == "of-the-user" != without_ray.home
    assert not Path(without_ray.home).exists()
    def failing(federation): raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError): simulate(failing, make, range(4))
    without_ray.raised = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt): simulate(lambda federation: None, make, range(4))
    for ask in (without_ray.grids[-1].get_node_ids, without_ray.grids[-1].pull_messages):
        with pytest.raises(KeyboardInterrupt, match="has ended"): ask()


# ---- mistakes

@pytest.mark.parametrize("attempt, said", [
    (lambda tmp: plan_of("world"), "chapter 'datasets/world' trains no clients; choose one of fedreplay, fedmox, "
     "fedklpr, fedcbdr, fedgtea"),
    (lambda tmp: plan_of("nosuch"), "chapter 'nosuch'"),
    (lambda tmp: plan_of("fedavg", "huge"), "profile='huge'"),
    (lambda tmp: plan_of("fedcbdr", "huge"), "profile='huge'"),
    (lambda tmp: plan_of("fedavg", "smoke", changes={"speed": 3}), "'speed' is not a parameter"),
    (lambda tmp: plan_of("fedavg", "smoke", changes={"lr": "abc"}), "lr='abc'"),
    (lambda tmp: write_app(plan_of("fedavg", "smoke"), tmp), "holds other things"),
    (lambda tmp: write_app(plan_of("fedavg", "smoke"), tmp / "file"), "holds other things"),
    (lambda tmp: FlowerTransport(None, range(3), timeout=0), "timeout=0 must be"),
    (lambda tmp: FlowerTransport(None, range(3), timeout="long"), "timeout='long' must be"),
    (lambda tmp: FlowerTransport(None, range(3), timeout=float("nan")), "timeout=nan must be"),
    (lambda tmp: FlowerTransport(None, range(3), wait=-1), "wait=-1 must be"),
    (lambda tmp: FlowerTransport(None, range(3), over=0.9), "over=0.9 must be"),
    (lambda tmp: FlowerTransport(None, range(3), over=float("inf")), "over=inf must be"),
    (lambda tmp: simulate(None, make, range(3), side_by_side=0), "side_by_side=0 must be"),
    (lambda tmp: simulate(None, make, range(3), side_by_side=1.5), "side_by_side=1.5 must be"),
    (lambda tmp: simulate(None, make, range(3), side_by_side=True), "side_by_side=True must be"),
    (lambda tmp: simulate(None, make, [1, 2, 3]), r"ids=\[1, 2, 3\] must be 0, 1, 2"),
    (lambda tmp: simulate(None, make, []), "ids="),
    (lambda tmp: simulate(None, make, range(3), timeout=0), "timeout=0 must be"),
    (lambda tmp: simulate(None, make, range(3), min_replies=0), "min_replies=0 must be"),
])
def test_a_mistake_is_one_sentence(attempt, said, tmp_path, without_ray):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=said) as error: attempt(tmp_path)
    assert "\n" not in str(error.value)
    assert (tmp_path / "file").read_text() == "mine"
    assert len(os.listdir(tmp_path)) == 1
    assert not without_ray.grids or "timeout" in said or "min_replies" in said


@pytest.mark.parametrize("config, said", [({"min-replies": 0}, "min.replies"), ({"timeout": 0.0}, "timeout"),
                                          ({"wait": -1.0}, "wait")])
def test_a_wrong_run_configuration_is_one_sentence(config, said, tmp_path):
    with pytest.raises(UserError, match=said):
        served_by(server_app(plan_of("fedgtea", "smoke")), small_grid(), tmp_path / "runs", **config)


# ---- what is imported, and what is sent

def printed(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=True).stdout.strip()


def test_this_chapter_knows_no_paper():
    others = [f"fedbook.{name}" for name in ("methods.continual", *CHAPTERS[2:], "kit.command", "datasets.encoders")]
    assert (printed(f"import sys, fedbook.deploy.flower; print([name for name in {others} if name in sys.modules])")
            == "[]")


def test_without_flower_the_extra_is_named():
    code = ("import sys; sys.modules['flwr'] = None\ntry: import fedbook.deploy.flower\nexcept ImportError as "
            "error: print(error)")
    assert how_to_install("flower") in printed(code)


def test_importing_this_chapter_makes_flower_silent():
    names = ["FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK", "RAY_USAGE_STATS_ENABLED"]
    code = (f"import os; [os.environ.pop(name, None) for name in {names}]; import fedbook.deploy.flower; "
            f"print([os.environ[name] for name in {names}])")
    assert printed(code) == "['0', '1', '0']"


SPY = """import os, socket, sys
from ipaddress import ip_address
HERE = {"localhost", os.uname().nodename, "::1", "", None}

def is_name(host):
    try: ip_address(host)
    except ValueError: return True

def spy(event, args):
    if event in ("socket.connect", "socket.sendto"):
        if args[0].family not in (socket.AF_INET, socket.AF_INET6): return
        if event == "socket.connect" and args[0].type & 15 != socket.SOCK_STREAM: return
        host = args[1][0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"): host = args[0] if is_name(args[0]) else None
    elif event == "http.client.connect": host = args[1]
    elif event == "urllib.Request": host = args[0]
    else: return
    host = host.decode() if isinstance(host, bytes) else host
    if host in HERE or str(host).startswith("127."): return
    with open(os.environ["SPY"], "a") as file: print(event, host, *sys.argv[:1], file=file)
    raise OSError(f"nothing may leave: {event} {host}")

sys.addaudithook(spy)
"""


@pytest.fixture
def spied(tmp_path):
    """`spied(*words, **env)` runs Python with these words and returns what it, and what it started, tried to
    reach outside this machine."""
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "sitecustomize.py").write_text(SPY)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR", "RAY"))}
    def run_spied(*words, **env):
        seen = tmp_path / "seen"
        seen.write_text("")
        paths = os.pathsep.join([str(tmp_path / "spy"), str(PACKAGE.parent)])
        done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True,
                              cwd=tmp_path, env={**ours, "PYTHONPATH": paths, "SPY": str(seen),
                                                 "FLWR_HOME": str(tmp_path / "home"), **env})
        assert done.returncode == 0, done.stdout + done.stderr
        return seen.read_text()
    return run_spied


TELL = ("import fedbook.deploy.flower; from flwr.supercore.telemetry import event, EventType; "
        "event(EventType.RUN_SUPERLINK_ENTER).exception()")


def test_the_spy_sees_what_flower_sends_when_it_is_allowed_to(spied):
    assert "telemetry.flower.ai" in spied("-c", TELL, FLWR_TELEMETRY_ENABLED="1")
    assert spied("-c", TELL) == ""


@pytest.mark.parametrize("attempt", [
    "import socket; socket.create_connection(('198.51.100.1', 80), 1)",
    "import urllib.request as u; u.urlopen('http://198.51.100.1', timeout=1)",
    "import requests; requests.get('http://198.51.100.1', timeout=1)",
    "import httpx; httpx.get('http://198.51.100.1', timeout=1)",
    "import socket; socket.getaddrinfo('example.invalid', 80)"])
def test_the_spy_sees_every_way_out_of_any_process(spied, attempt):
    inner = f"try:\n    {attempt}\nexcept Exception: pass"
    seen = spied("-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], "
                 "check=True)")
    assert "198.51.100.1" in seen or "example.invalid" in seen


COMMANDS = {"report": "report runs", "data": "data", "flower-app": "flower-app fedcbdr app",
            "run": "run engine/wire --profile smoke", "flower": "run fedavg --profile smoke --engine flower:1 "
            "-p rounds=1 -p clients=2 -p per_round=2"}


@pytest.mark.parametrize("command", by_day(COMMANDS, "flower"))
def test_no_command_sends_anything(command, spied, tmp_path):
    if command == "report":
        (tmp_path / "runs" / "a").mkdir(parents=True)
        kept = next((PACKAGE.parent / "results").glob("*.json"))
        (tmp_path / "runs" / "a" / "results.json").write_text(kept.read_text())
    assert spied("-m", "fedbook", *COMMANDS[command].split()) == ""
