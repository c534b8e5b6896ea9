import gc
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from functools import partial
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from fedbook.engine import memory
from fedbook.engine import workers as engine
from fedbook.engine.errors import UserError
from fedbook.engine.federation import Client, Federation, InProcess, LocalOnly, Server, run
from fedbook.engine.local import build, generator
from fedbook.engine.memory import Block, Blocks, Post, joined
from fedbook.engine.stacked import Stacked
from fedbook.engine.wire import Msg, Refused, pack, unpack
from fedbook.engine.workers import Thrifty, Workers, transport_for
from test_fedavg import equal, several

HERE = os.path.dirname(__file__)


def wide(): return nn.Sequential(nn.Linear(4, 40_000), nn.ReLU(), nn.Linear(40_000, 3))   # 1.3 MB


def make(id, kind=Client):
    x = torch.randn(6, 4, generator=generator(7, id))
    return kind(id, build(wide, 0), x, (x[:, 0] > 0).long(), seed=3, batch=6, lr=1e-3)


def federate(line, rounds=2, server=None, clients=5, **options):
    server = server or Server(build(wide, 0), 4, seed=1)
    with Federation(line, clients, **options) as federation: run(server, federation, rounds)
    return server.weights, federation


def blocks_here(pid="self"):
    "How many descriptors and maps of shared blocks the process has."
    links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if os.path.lexists(each)]
    maps = Path(f"/proc/{pid}/maps").read_text()
    return sum("memfd:fedbook" in link for link in links) + maps.count("memfd:fedbook")


# ---- bytes that are written once

@pytest.mark.parametrize("size", [0, 1, 2**22 - 5, 2**22, 2**22 + 1, 2**23])
def test_parts_are_joined_to_bytes(size):
    drawn = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    parts = [b"head", drawn, b"", np.zeros(0, np.uint8)]
    whole = joined(parts)
    assert type(whole) is bytes and whole == b"".join(parts)


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32,
          torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.complex64,
          torch.float8_e4m3fn, torch.float8_e5m2]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)   # shorter than __metadata__


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAMES, st.sampled_from(DTYPES), max_size=6))
def test_the_bytes_are_those_that_the_library_writes(dtypes):
    tensors = {name: torch.ones(1 + i, 2).to(dtype) for i, (name, dtype) in enumerate(dtypes.items())}
    data = pack(Msg(tensors))
    assert data == save(tensors, {"fedbook": '{"meta":{},"notes":{}}'})
    for name, t in load(data).items(): assert torch.equal(t.view(torch.uint8), tensors[name].view(torch.uint8))


@settings(max_examples=300, deadline=None)
@given(st.integers(8, 200), st.integers(0, 255), st.integers(0, 3))
def test_what_the_library_refuses_is_refused(place, value, cut):
    data = bytearray(pack(Msg({"a": torch.ones(2, 3), "b": torch.arange(4)})))
    data[min(place, len(data) - 1)] = value
    data = bytes(data[:len(data) - cut])
    try: load(data)
    except SafetensorError:
        with pytest.raises(Refused): unpack(data)


def test_a_tensor_that_cannot_travel_is_named():
    with pytest.raises(UserError, match="a tensor cannot be called '__metadata__'"):
        pack(Msg({"__metadata__": torch.ones(1)}))
    with pytest.raises(UserError, match="entries of at most 8 bytes"):
        pack(Msg({"z": torch.ones(1).cdouble()}))


# ---- blocks

def test_a_lent_block_is_free_when_nobody_holds_it():
    block, back = Block(7, 4096), []
    memory.copy_into(block.memory, [b"hello"])
    lent = block.lend(5, back.append)
    t = torch.frombuffer(lent, dtype=torch.uint8)[1:3]
    del lent
    gc.collect()
    assert bytes(t.tolist()) == b"el" and back == []
    del t
    gc.collect()
    assert back == [7]


def test_blocks_are_used_again_and_few_are_kept():
    blocks = Blocks(spare=2)
    places = [blocks.write([np.zeros(n * memory.SMALL, np.uint8)]) for n in (1, 2, 3, 4)]
    assert [place.number for place in places] == [0, 1, 2, 3]
    for place in places: blocks.release(place.number)
    assert [block.size // memory.SMALL for block in blocks.known.values()] == [3, 4]
    assert blocks.write([np.zeros(5, np.uint8)]).number == 2
    assert blocks.write([np.zeros(3 * memory.SMALL, np.uint8)]).number == 3
    assert blocks.write([np.zeros(1, np.uint8)]).number == 4
    before = blocks_here()
    blocks.known.clear()
    gc.collect()
    assert blocks_here() < before


def test_a_message_for_many_is_written_once():
    blocks, data = Blocks(), bytes(memory.SMALL)
    one, two = blocks.write_once(data), blocks.write_once(data)
    assert one == two and blocks.made == 1
    for _ in range(2): blocks.release(one.number)
    assert blocks.write_once(bytes(memory.SMALL)).number == one.number


def test_tensors_lie_in_lent_memory_and_small_ones_do_not_hold_it():
    data = memoryview(bytearray(pack(Msg({"large": torch.ones(10_000), "small": torch.ones(2)}))))
    msg = unpack(data, lent=True)
    msg.tensors["large"].zero_()
    msg.tensors["small"].zero_()
    again = unpack(data)
    assert not again.tensors["large"].any() and again.tensors["small"].all()
    again.tensors["large"].fill_(3)
    assert not unpack(data).tensors["large"].any(), "a message is a copy"


# ---- between processes

def clients_of(kind=Client): return partial(make, kind=kind)


@several
def test_long_messages_do_not_go_through_the_pipe(monkeypatch):
    lengths, send = [], Post.send

    def spy(self, item, *more):
        pipe, whole = self.pipe, []
        class Seen:
            def send(self, what): whole.append(len(memory_of(what))); pipe.send(what)
        self.pipe = Seen()
        try: send(self, item, *more)
        finally: self.pipe = pipe
        lengths.extend(whole)

    import pickle
    memory_of = pickle.dumps
    monkeypatch.setattr(Post, "send", spy)
    weights, federation = federate(Workers(clients_of(), 2))
    assert max(lengths) < memory.SMALL < min(entry.nbytes for entry in federation.ledger.entries)


@several
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_weights_and_the_ledger_are_those_of_one_process(count):
    here, one = federate(InProcess(clients_of()), 3)
    there, many = federate(Workers(clients_of(), count), 3)
    assert equal(here, there) and one.ledger.to_json() == many.ledger.to_json() and one.states == many.states
    assert all(type(state) is bytes for state in many.states.values())


class Keeping(Client):
    "A client with a private state as long as its messages."
    keeps = ("generator", "own")
    own = None

    def fit(self, msg):
        reply = super().fit(msg)
        if self.own is not None: reply.meta["before"] = float(self.own["0.weight"].sum())
        self.own = {name: t.clone() for name, t in reply.tensors.items()}
        return reply


@several
def test_a_long_private_state_is_shared_too():
    here, one = federate(InProcess(clients_of(Keeping)), 3)
    there, many = federate(Workers(clients_of(Keeping), 2), 3)
    assert equal(here, there) and one.states == many.states
    assert min(map(len, many.states.values())) > memory.SMALL


@several
def test_replies_that_a_server_keeps_stay_as_they_are():
    servers = [LocalOnly(build(wide, 0), 4, seed=1) for _ in range(2)]
    federate(InProcess(clients_of()), 4, servers[0])
    federate(Workers(clients_of(), 2), 4, servers[1])
    assert all(equal(servers[0].own[id], servers[1].own[id]) for id in servers[0].own)


class Spoiling(Client):
    "A client that writes into what it is sent."
    def fit(self, msg):
        reply = super().fit(msg)
        for t in msg.tensors.values(): t.fill_(9)
        return reply


@several
def test_a_client_that_writes_into_its_message_spoils_it_for_nobody():
    assert equal(federate(InProcess(clients_of()))[0], federate(Workers(clients_of(Spoiling), 2))[0])


class Dying(Client):
    def fit(self, msg):
        if self.id % 2: os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(msg)


@several
def test_no_block_is_left_after_twenty_kills():
    before = blocks_here()
    line = Workers(clients_of(Dying), 2)
    server = Server(build(wide, 0), seed=1)
    with warnings.catch_warnings(), Federation(line, 8) as federation:
        warnings.simplefilter("ignore")
        run(server, federation, 5)
        assert federation.ledger.missed == 20
        workers = [process.pid for process in line.processes.values()]
        assert blocks_here() > before and max(map(blocks_here, workers)) < 40
        assert all(not post.lent.total() for post in line.processes)
    del line, federation, server
    gc.collect()
    assert blocks_here() == before and not list(Path("/dev/shm").glob("*fedbook*"))


NO_MEMORY = """
import os, resource, sys, warnings
sys.path.insert(0, {tests!r})
from test_memory import *
{cause}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    there, _ = federate(Workers(clients_of(), 2), 2)
    said = [str(each.message) for each in said]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
assert equal(there, federate(InProcess(clients_of()), 2)[0])
print("|".join(said))
"""


@several
@pytest.mark.parametrize("cause, reason", [
    ("resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))", "File too large"),
    ("del os.memfd_create", "memfd_create"),
    ("def refuse(name): raise OSError(12, 'Cannot allocate')\nos.memfd_create = refuse", "Cannot allocate")])
def test_without_memory_to_share_messages_go_through_pipes_and_that_is_said_once(cause, reason):
    script = NO_MEMORY.format(tests=HERE, cause=cause)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [said] = done.stdout.strip().split("|")
    assert "no memory can be shared with worker processes" in said and reason in said


# ---- spawned workers, and as many as pay

SPAWN = """
from functools import partial
import torch
from torch import nn
from fedbook.engine.federation import Client, Federation, InProcess, Server, run
from fedbook.engine.local import build, generator
from fedbook.engine.workers import Workers

def net(): return nn.Sequential(nn.Linear(4, 40_000), nn.ReLU(), nn.Linear(40_000, 3))

def make(id):
    x = torch.randn(6, 4, generator=generator(7, id))
    return Client(id, build(net, 0), x, (x[:, 0] > 0).long(), seed=3, lr=1e-3)

def weights(line):
    server = Server(build(net, 0), 4, seed=1)
    with Federation(line, 5) as federation: run(server, federation, 2)
    return server.weights
{main}
"""
SPAWNED = """
there, here = weights(Workers(make, 2, method="spawn")), weights(InProcess(make))
print(all(torch.equal(there[name], here[name]) for name in here))
"""


@several
def test_spawned_workers_give_the_same_weights(tmp_path):
    guarded = 'if __name__ == "__main__":\n' + textwrap.indent(SPAWNED, "    ")
    path = tmp_path / "script.py"
    path.write_text(SPAWN.format(main=guarded))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr


@several
def test_spawned_workers_without_a_main_that_can_be_imported_say_so():
    script = SPAWN.format(main=SPAWNED)
    done = subprocess.run([sys.executable], input=script, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode and "UserError: a worker process ended before it had started" in last


@several
def test_spawned_workers_need_a_maker_that_can_be_sent():
    with pytest.raises(UserError, match="make_client=.* cannot be sent to a new process"):
        federate(Workers(lambda id: make(id), 2, method="spawn"))


@several
def test_where_calls_are_short_one_process_serves_them(monkeypatch):
    weights, _ = federate(InProcess(clients_of()), 4)

    def served(least):
        monkeypatch.setattr(engine, "LEAST_WORK", least)
        line = Thrifty(Workers(clients_of(), 2))
        assert equal(federate(line, 4)[0], weights)
        return line

    short, long = served(1e9), served(0.0)
    assert short.one and not short.many.processes and "one process" in short.note
    assert long.one is None and long.note == ""
    with Federation(short, 5) as federation: list(federation.exchange("fit", Msg(weights), [0]))
    assert short.one, "a single call decides nothing"
    monkeypatch.setattr(engine, "LEAST_WORK", 1e-9)
    with Federation(short, 5) as federation: run(Server(build(wide, 0), 4, seed=1), federation, 2)
    assert short.one is None


def test_where_clients_compute_decides_how_workers_start(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert engine.default_workers() == 1 and engine.default_workers("cuda") == 1
    assert type(transport_for(make)) is InProcess and type(transport_for(make, device="cuda")) is Stacked
    assert type(transport_for(make, 1, device="cuda")) is InProcess
    if sys.platform == "linux":
        monkeypatch.setenv("FEDBOOK_CORES", "3")
        assert engine.default_workers("cpu") == 3 and transport_for(make, device="cpu").many.method == "fork"
        assert transport_for(make, 2, device="cuda").method == "spawn"
    with pytest.raises(UserError, match="workers=2 needs worker processes"): transport_for(make, 2)
