"""Real Flower nodes on this computer, over TLS and with keys: who is let in, a SuperLink and a node that die
in mid-run, and nothing left behind."""
import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from ipaddress import ip_address
from itertools import combinations
from pathlib import Path
from shutil import copy, rmtree
from time import sleep

import pytest
import torch
import yaml

pytest.importorskip("flwr", reason="these tests start real Flower nodes, and Flower is not installed: pip "
                    "install 'fedbook[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from flwr.common.config import parse_config_args

from conftest import AT_NIGHT, by_day, close, equal_bits
from fedbook.kit.command import plan_of
from fedbook.engine.federation import Failure, Federation, InProcess, run
from fedbook.deploy.flower import fingerprint, write_app
from fedbook.engine.errors import UserError
import fedbook.deploy.nodes as nodes_module
from fedbook.privacy.secagg import known_keys, private_key
from fedbook.deploy.nodes import (LocalNodes, NodeProcess, check_certificate, check_server, join_server,
                                  renew_certificate, write_authority, write_certificate, write_compose,
                                  write_keys, write_node_key)
from fedbook.engine.wire import Ledger, pack, part, unpack

RECEIVED, SENDING = r"Receiving: {} message(?s:.*?)Received successfully", r"Sending: {} message"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    "Three nodes with books and the public keys of all (`known_by`), as `fedbook flower-node` starts them."
    home = tmp_path_factory.mktemp("federation") / "nodes"
    nodes = LocalNodes(home, config=f'book="{{node}}/book" key="{{node}}/key" known="{home}/known.txt"')
    with nodes:
        keys = [nodes.key(i).with_name("key.pub").read_text() for i in range(3)]
        known_by(nodes).write_text("".join(f"{i} {key}\n" for i, key in enumerate(keys)))
        yield nodes
    assert nodes.processes() == [] == mentioning(nodes.port)


def known_by(nodes): return nodes.folder / "known.txt"


@pytest.fixture
def plan():
    "One task of FedCBDR: all of its exchanges."
    return plan_of("fedcbdr", "smoke", changes={"tasks": 1, "clients": 3})


class Absent:
    "Stands for `Faults`: strikes those replies silent that are in the list `absent` of a ledger."

    def __init__(self, absent):
        self.absent = {(miss["round"], miss["verb"], miss["client"]) for miss in absent}

    def harm(self, call, outcome):
        return Failure("gone") if (call.round, call.verb, call.id) in self.absent else outcome


def in_one_process(experiment, absent=()):
    """Server and federation after `experiment` was trained in this process, without the replies that are
    `absent`."""
    server = experiment.server()
    federation = Federation(InProcess(experiment.client), experiment.ids, faults=Absent(absent))
    run(server, federation, experiment.rounds)
    return server, federation

def left_in(out):
    """What the run that wrote into the folder `out` left: the server's packed state, the clients'
    fingerprints, the ledger, the results."""
    [path] = Path(out).rglob("checkpoint.safetensors")
    held = {name: t.numpy().tobytes() for name, t in unpack(path.read_bytes()).tensors.items()}
    said = json.loads(held.pop("run"))
    marks = {int(name.removeprefix("client/")): mark.decode() for name, mark in held.items()
             if name.startswith("client/")}
    results = path.with_name("results.json")
    return (held["server"], marks, Ledger.from_json(said["ledger"]), said["place"], results.exists()
            and json.loads(results.read_text()))

def mentioning(port):
    "The command lines of all processes that name `port`, whatever their environment is."
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try: words = place.read_bytes()
        except OSError: continue
        if str(port).encode() in words: found.append(words.replace(b"\0", b" ").decode())
    return found

def until(nodes, i, sign, verb, running, over=True):
    """Wait until node `i` has logged the `sign` for `verb` in the run that is `running`; with `over`, that
    must not end before. Lines of the node's other processes may stand between those of one message."""
    run, node = running.until(r"started run (\d+)")[1], nodes.nodes[i]
    wanted = rf"\[RUN {run}(?s:.*?){sign.format('train.' + verb)}"
    assert node.until(lambda: re.search(wanted, node.log) or over and not running.alive and "over",
                      600) != "over", running.log

def kept_by(nodes, id):
    return [file.read_bytes() for file in nodes.folder.glob(f"node{id}/state/**/client-*")]


# ---- certificates and processes, without nodes

def certificate(path): return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_server_is_believed_by_those_who_trust_its_authority(tmp_path):
    ours, theirs = (write_authority(tmp_path / name) for name in ("ours", "theirs"))
    server, here = certificate(ours.with_name("server.pem")), x509.IPAddress(ip_address("127.0.0.1"))
    def verify(authority, place):
        store = Store([certificate(authority)])
        return PolicyBuilder().store(store).build_server_verifier(place).verify(server, [])
    assert [each.subject for each in verify(ours, here)][-1] == certificate(ours).subject
    for authority, place in ((theirs, here), (ours, x509.IPAddress(ip_address("127.0.0.2")))):
        with pytest.raises(VerificationError): verify(authority, place)


def test_a_certificate_that_does_not_fit_says_why(tmp_path):
    hosts = ["link.example", "10.0.0.7"]
    ours, theirs = (write_authority(tmp_path / name, hosts, 7) for name in ("ours", "theirs"))
    shown, now = ours.with_name("server.pem"), datetime.now(timezone.utc)
    def why(authority=ours, host="link.example", days=0, shown=shown):
        when = now + timedelta(days)
        with pytest.raises(UserError) as error: check_certificate(shown, authority, host, when)
        assert "\n" not in str(error.value)
        return str(error.value)
    assert timedelta(6.9) < check_certificate(shown, ours, "10.0.0.7") - now < timedelta(7.1)
    assert "expired on" in why(days=7.5) and "is not good before" in why(days=-1)
    assert "is foreign" in why(theirs) and "is foreign" in why(shown=theirs.with_name("server.pem"))
    assert "is for link.example, 10.0.0.7, and not for 'other.example'" in why(host="other.example")
    assert f"'{tmp_path}/nothing' is not a certificate that can be read" in why(shown=tmp_path / "nothing")
    check_certificate(shown, ours, "Link.EXAMPLE")
    assert "renew it where the folder `authority` is kept" in why(days=7.5)
    write_certificate(ours.parent, ["other.example"], 1000)
    end = check_certificate(shown, ours, "other.example")
    assert timedelta(69) < end - now < timedelta(71), "the authority's end"


@contextmanager
def showing(folder):
    "A server, by its port, that shows the certificate which is in `folder` when it is called."
    def show(listening):
        while True:
            try: called, _ = listening.accept()
            except OSError: return
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "server.pem", folder / "server.key")
            with suppress(OSError), context.wrap_socket(called, server_side=True): pass
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=show, args=[listening], daemon=True)
        server.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        server.join(10)


def test_a_server_shows_what_is_checked(tmp_path):
    ours, theirs = (write_authority(tmp_path / name) for name in ("ours", "theirs"))
    with showing(ours.parent) as port:
        check_server("127.0.0.1", port, ours)
        with pytest.raises(UserError, match="is foreign"): check_server("127.0.0.1", port, theirs)
    with pytest.raises(UserError, match=f"no server answers at 127.0.0.1:{port}"):
        check_server("127.0.0.1", port, ours)


def typed(*words):
    "The end code of the command `fedbook` with these `words`, and what it printed."
    command = [str(Path(sys.executable).parent / "fedbook"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def expire(keys):
    "Let the server in the folder `keys` show a certificate that has expired."
    renew_certificate(keys, days=1e-6)
    sleep(1.1)


def test_an_operator_reads_that_the_certificate_expired_and_renews_it(tmp_path):
    keys = tmp_path / "keys"
    with showing(keys / "server") as port:
        write_keys(keys, "127.0.0.1", 1, port=port)
        expire(keys)
        code, said = typed("flower-node", keys / "node0")
        assert code == 2 and re.fullmatch(r"fedbook: the certificate expired on \d{4}-\d\d-\d\d at \d\d:\d\d UTC; "
                                          r"renew it where .*: fedbook flower-renew KEYS; then take .*\n", said), said
        code, said = typed("flower-renew", keys, "--days", 3)
        assert code == 0 and "start flower-superlink again" in said
        end = check_server("127.0.0.1", port, keys / "node0/ca.pem")
        assert timedelta(2.9) < end - datetime.now(timezone.utc) < timedelta(3.1)
    code, said = typed("flower-renew", keys / "node0")
    assert code == 2 and "is not a certificate that can be read" in said


def test_an_expired_certificate_starts_no_superlink(tmp_path):
    nodes = LocalNodes(tmp_path / "nodes", 0)
    write_authority(nodes.folder)
    write_certificate(nodes.folder, days=1e-6)
    sleep(1.1)
    with pytest.raises(UserError, match="the certificate expired on .* renew it"): nodes.start_superlink()
    with pytest.raises(UserError, match="the authority ended on .* write a new one"):
        write_authority(nodes.folder, days=1e-6)
        sleep(1.1)
        write_certificate(nodes.folder)
    assert nodes.processes() == []


def test_each_container_is_given_its_own_keys_and_no_others(tmp_path):
    file = write_compose(tmp_path / "farms", 2, ["link.example"])
    services = yaml.safe_load(file.read_text())["services"]
    keys = {name: {path.name for path in (file.parent / name / "keys").iterdir()} for name in services}
    node = {"ca.pem", "key", "key.pub", "known.txt"}
    assert keys == {"superlink": {"ca.pem", "server.pem", "server.key", "known.txt"}, "node0": node, "node1": node,
                    "desk": {"ca.pem", "node0.pub", "node1.pub"}}
    words = shlex.split(services["node1"]["command"])
    config = parse_config_args([words[words.index("--node-config") + 1]])
    assert config["book"].startswith("/mnt/state/") and config["key"] == "/mnt/keys/key"
    identity = private_key(file.parent / "node1/keys/key"), known_keys(file.parent / "node1/keys/known.txt")
    assert identity[0].public_key() == identity[1][config["partition-id"]]
    for name, service in services.items():
        for volume in service["volumes"]:
            here = volume.split(":")[0]
            assert here.split("/")[1] in (name, "app") and ("state" in here or volume.endswith(":ro"))
    shown = file.parent / "superlink/keys/server.pem"
    for host in ("superlink", "127.0.0.1", "link.example"):
        check_certificate(shown, file.parent / "node1/keys/ca.pem", host)
    with pytest.raises(UserError, match="holds other things"): write_compose(file.parent)


def test_an_operator_is_told_what_to_type_and_each_machine_has_its_own(tmp_path):
    text = write_keys(tmp_path / "keys", "link.example", 2, 7)
    place = (tmp_path / "keys").resolve()
    files = {folder.name: {file.name for file in folder.iterdir()} for folder in place.iterdir()}
    node = {"ca.pem", "key", "key.pub", "known.txt", "node.json"}
    assert files == {"authority": {"ca.pem", "ca.key"}, "node0": node, "node1": node,
                     "server": {"ca.pem", "server.pem", "server.key", "known.txt"},
                     "desk": {"ca.pem", "config.toml", "node0.pub", "node1.pub"}}
    end = check_certificate(place / "server/server.pem", place / "node1/ca.pem", "link.example")
    assert timedelta(6.9) < end - datetime.now(timezone.utc) < timedelta(7.1)
    known = known_keys(place / "node0/known.txt")
    assert all(private_key(place / f"node{i}/key").public_key() == known[i] for i in range(2))
    assert all(name in text for name in re.findall(r"\S+(?:\.pem|\.pub|known\.txt)", text)) and "node1.pub nodes" in text
    for name in re.findall(rf"({place}\S+\.(?:pem|pub|key|txt))", text): assert Path(name).exists(), name
    elsewhere = write_keys(tmp_path / "moved", "link.example", 1, at="/opt/farms")
    assert str(tmp_path) not in elsewhere.split("1. The server")[1] and "/opt/farms/node0 --data" in elsewhere
    assert '"/opt/farms/desk/ca.pem"' in (tmp_path / "moved/desk/config.toml").read_text()
    six = write_keys(tmp_path / "six", "::1", 1)
    assert 'address = "[::1]:8000"' in (tmp_path / "six/desk/config.toml").read_text() and "--host ::1" in six
    assert "[::1]:8000" in nodes_module._node_command(tmp_path, {"client": 0, "host": "::1", "port": 8000}, "")
    with pytest.raises(UserError, match="at='farms' must be an absolute"):
        write_keys(tmp_path / "none", "link.example", 1, at="farms")
    with pytest.raises(UserError, match="holds other things"): write_keys(place, "link.example", 2)
    with pytest.raises(UserError, match="count=0"): write_keys(tmp_path / "none", "link.example", 0)
    with pytest.raises(UserError, match="host="): write_keys(tmp_path / "no host", "not a host", 1)


def fake_node(tmp_path, monkeypatch, code):
    "A node's folder, and in the place of Flower's node a program that runs `code`."
    write_keys(tmp_path / "keys", "127.0.0.1", 1)
    program = tmp_path / "node.py"
    program.write_text(code)
    monkeypatch.setattr(nodes_module, "_node_command", lambda *_: [sys.executable, str(program)])
    monkeypatch.setattr(nodes_module, "check_server", lambda *_: None)
    return tmp_path / "keys/node0"


REFUSES = """print("ERROR: [code: 2004] Failed to activate SuperNode.")
raise SystemExit(1)"""


def test_a_node_whose_key_is_unknown_says_so_after_it_has_waited(tmp_path, monkeypatch, capfd):
    place = fake_node(tmp_path, monkeypatch, REFUSES)
    with pytest.raises(UserError, match="does not know the key .*node0/key.pub.*flwr supernode register key.pub"):
        join_server(place, patience=0.5)
    assert capfd.readouterr().out.count("does not let this node in yet") == 1


def test_a_node_that_was_killed_is_let_in_when_the_server_has_noticed(tmp_path, monkeypatch):
    counted = f"""import pathlib
file = pathlib.Path({str(tmp_path / "tries")!r})
file.write_text(file.read_text() + "x" if file.exists() else "x")
if len(file.read_text()) < 3: print("[code: 2004]"); raise SystemExit(1)
raise SystemExit(7)"""
    monkeypatch.setattr(nodes_module, "sleep", lambda seconds: None)
    assert join_server(fake_node(tmp_path, monkeypatch, counted), patience=600.0) == 7


def test_a_node_whose_server_shows_an_expired_certificate_in_mid_run_says_so(tmp_path, monkeypatch):
    "Flower's node logs it, stays, and does nothing any more."
    keys = tmp_path / "keys"
    stays = "print('ERROR :     SSL/TLS handshake error detected.', flush=True); import time; time.sleep(600)"
    def command(place, told, data):
        expire(keys)
        return [sys.executable, "-c", stays]
    monkeypatch.setattr(nodes_module, "_node_command", command)
    with showing(keys / "server") as port:
        write_keys(keys, "127.0.0.1", 1, port=port)
        with pytest.raises(UserError, match="the certificate expired on"): join_server(keys / "node0")


def test_a_node_ends_with_what_it_started(tmp_path, monkeypatch):
    "Flower's node leaves a child that holds its output open."
    code = """import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)"""
    assert join_server(fake_node(tmp_path, monkeypatch, code)) == 0


@pytest.mark.parametrize("why, said", [("away", "no server answers at 127.0.0.1"),
                                       ("folder", "has no node.json that can be read")])
def test_a_node_that_cannot_start_says_which_of_three_it_is(why, said, tmp_path):
    write_keys(tmp_path / "keys", "127.0.0.1", 1, port=1)
    with pytest.raises(UserError, match=said): join_server(tmp_path / ("keys/node0" if why == "away" else "keys/desk"))


def test_a_node_says_how_it_numbers_classes_that_no_list_names(tmp_path, capsys):
    write_keys(tmp_path / "keys", "127.0.0.1", 1, port=1)
    for name in ("wheat", "rye"): (tmp_path / "data" / name).mkdir(parents=True)
    node = partial(join_server, tmp_path / "keys/node0")
    with pytest.raises(UserError, match="no server answers"): node(str(tmp_path / "data"))
    assert "numbers them by name (rye, wheat)" in capsys.readouterr().out
    (tmp_path / "data/classes.txt").write_text("wheat\nrye\nmaize\n")
    with pytest.raises(UserError, match="no server answers"): node(str(tmp_path / "data"))
    assert not capsys.readouterr().out
    with pytest.raises(UserError, match="data=.*none' is no folder"): node(str(tmp_path / "none"))


def test_secrets_are_their_owners_alone_and_a_public_half_fits(tmp_path):
    key, authority = write_node_key(tmp_path / "node0/key"), write_authority(tmp_path)
    secret = key, authority.with_name("server.key"), authority.with_name("ca.key")
    assert [path.stat().st_mode & 0o777 for path in secret] == 3 * [0o600]
    public = load_ssh_private_key(key.read_bytes(), None).public_key()
    assert key.with_name("key.pub").read_bytes() == public.public_bytes(Encoding.OpenSSH,
                                                                        PublicFormat.OpenSSH)


def python(tmp_path, code):
    return NodeProcess("it", [sys.executable, "-c", code], tmp_path / "log", dict(os.environ))


def test_a_process_is_waited_for_until_its_sign_or_its_end(tmp_path):
    process = python(tmp_path, "print('\\x1b[32mready\\x1b[0m', flush=True); import time; time.sleep(60)")
    assert process.until("re(.*)y")[1] == "ad" and process.alive and process.log == "ready\n"
    with pytest.raises(UserError, match="it gave no sign of served within 0.2 s: ready"):
        process.until("served", 0.2)
    process.end()
    assert not process.alive and process.wait() == -signal.SIGTERM
    again = python(tmp_path, "raise SystemExit('the disk is full')")
    with pytest.raises(UserError, match="it ended with 1: the disk is full"): again.until("ready")
    assert "ready" not in again.log, "the log of the process before"


# ---- real nodes

def test_outsiders_are_not_let_in(nodes, tmp_path):
    ours, authority = nodes.statuses(), write_authority(tmp_path / "other")
    assert len(ours) == 3 and set(ours.values()) == {"online"}
    stranger = nodes.join("stranger", key=write_node_key(tmp_path / "stranger/key"))
    keyless = nodes.join("keyless")
    misled = nodes.join("misled", key=nodes.key(0), authority=authority)
    plain = nodes.join("plain", tls=False)
    plain.until("Connection attempt failed")
    assert [node.wait(120) for node in (stranger, keyless, misled)] == [1, 1, 1]
    assert "Failed to activate SuperNode" in stranger.log
    assert "CERTIFICATE_VERIFY_FAILED" in misled.log
    for node in (stranger, keyless, misled, plain): assert "SuperNode ID" not in node.log
    plain.end()
    assert nodes.statuses() == ours


@AT_NIGHT
def test_a_run_outlives_its_superlink_bit_for_bit(nodes, plan, tmp_path):
    app, said, out = write_app(plan, tmp_path / "app"), {"out": str(tmp_path / "out")}, tmp_path / "out"
    first = nodes.run(app, said)
    until(nodes, 0, RECEIVED, "keep", first)
    nodes.kill_superlink()
    until(nodes, 0, SENDING, "keep", first, over=False)
    assert first.wait() == 1
    _, before, _, place, results = left_in(out)
    assert place[:2] == [0, 3] and not results
    ahead = {fingerprint(state) for state in kept_by(nodes, 0)} > {before[0]}
    assert ahead, "the node was to be a state ahead of what the server knows"

    nodes.start_superlink()
    assert nodes.run(app, said).wait(600) == 0
    nodes.superlink.until(lambda: "running" not in nodes.runs(), 120,
                          "the first run's end, which Flower sees by a missing heartbeat")
    assert nodes.runs() == ["finished:completed", "finished:failed"]
    server, federation = in_one_process(plan.experiment)
    state, marks, ledger, _, _ = left_in(out)
    assert state == pack(server.state())
    assert marks == {id: fingerprint(state) for id, state in federation.states.items()}
    assert all(federation.states[id] in kept_by(nodes, id) for id in plan.experiment.ids)
    assert ledger.absent == []
    assert [entry[:5] for entry in ledger.entries] == [entry[:5] for entry in federation.ledger.entries]


@AT_NIGHT
def test_a_run_ends_without_a_node_that_dies(nodes, plan, tmp_path):
    out = tmp_path / "out"
    running = nodes.run(write_app(plan, tmp_path / "app"), {"out": str(out), "wait": 2.0})
    until(nodes, 2, RECEIVED, "sketch", running)
    nodes.kill(2)
    assert running.wait(600) == 0 and nodes.runs()[0] == "finished:completed"
    state, marks, ledger, _, results = left_in(out)
    assert [(miss["client"], miss["verb"]) for miss in ledger.absent] == [(2, "sketch"), (2, "scores"),
                                                                          (2, "keep")]
    assert [miss["reason"][:17] for miss in ledger.absent] == ["Flower's error 5:",
                                                               *2 * ["no node serves it"]]
    assert [row["numbers"]["absent"] for row in results["rows"]] == [ledger.absent]
    server, federation = in_one_process(plan.experiment, ledger.absent)
    assert state == pack(server.state())
    assert marks == {id: fingerprint(state) for id, state in federation.states.items()}
    nodes.start(2)


AGAIN = """
import fedbook.deploy.flower as flower

honest = flower.train_plan


def twice(plan, federation, out, patience):
    honest(plan, federation, out + "/first", patience)
    return honest(plan, flower.Federation(federation.transport, federation.ids), out + "/second", patience)


flower.train_plan = twice
"""


def changed(app, code):
    "The `app`, whose server does as `code` says."
    with open(app / "fedbook_app/server.py", "a") as file: file.write(code)
    return app


@pytest.mark.parametrize("unit", by_day(["record", "client"], "client"))
def test_noise_on_nodes_is_new_whatever_the_seed(unit, nodes, tmp_path):
    "Here a run can be repeated; there the same run, once more, ends elsewhere, and is noted in the books."
    pytest.importorskip("opacus", reason="privacy by record takes Opacus")
    plan = plan_of("dp", "smoke", changes=dict(unit=unit, clients=3, per_round=3, rounds=1))
    app, out = changed(write_app(plan, tmp_path / "app"), AGAIN), tmp_path / "out"
    running = nodes.run(app, {"out": str(out), "known": str(known_by(nodes))})
    assert running.wait(600) == 0, running.log
    (server, federation), (again, _) = in_one_process(plan.experiment), in_one_process(plan.experiment)
    assert equal_bits(server.weights, again.weights)
    ended = [server.weights]
    for which in ("first", "second"):
        state, _, ledger, _, results = left_in(out / which)
        assert ledger.absent == [] and [row["numbers"]["rounds"] for row in results["rows"]] == [1]
        ended.append(part(unpack(state).tensors, "weights"))
    for one, other in combinations(ended, 2):
        apart = torch.cat([(one[name] - t).flatten() for name, t in other.items()])
        assert (apart != 0).float().mean() > 0.99
        if unit == "client":
            assert apart.std().item() == pytest.approx(2**0.5 / 3, rel=0.06), "noise 1, clip 1"
    if unit == "record":
        for id, held in federation.states.items():
            client = plan.experiment.client(id)
            client.load(unpack(held))
            [[noise, rate, steps]] = client.told
            book = nodes.folder / f"node{id}/book/steps-of-client-{id}.json"
            assert json.loads(book.read_text()) == [[noise, rate, 2 * steps]]


GREEDY = """
import fedbook.deploy.flower as flower
from fedbook.engine.federation import TooFewReplies
from fedbook.engine.wire import Msg
from pathlib import Path
from time import sleep
import torch

honest = flower.train_plan


def greedy(plan, federation, out, patience):
    "Trains as it should. Then it asks 0 and 1, put back, for the other secret of client 2, once per file."
    exchange, before = federation.exchange, {}

    def noting(verb, *rest):
        if verb == "agree": before.update(federation.states)
        return exchange(verb, *rest)

    federation.exchange = noting
    numbers, both = honest(plan, federation, out, patience), {"there": [0, 1, 2]}
    for what in ("restarted", "forgotten"):
        print("waiting until it is", what, flush=True)
        while not Path(out, what).exists(): sleep(0.1)
        federation.states = dict(before)
        try:
            signed = dict(exchange("agree", Msg({}, both), [0, 1]))
            signatures = torch.stack([signed[id].tensors["signature"] for id in signed])
            said = Msg({"signatures": signatures}, both | {"agreed": [*signed]})
            [(_, reply)] = exchange("unmask", said, [0])
        except TooFewReplies:
            print(what, "refused:", [miss["reason"] for miss in federation.ledger.absent], flush=True)
        else: print(what, "given:", len(reply.tensors["pieces"]), "pieces", flush=True)
    return numbers


flower.train_plan = greedy
"""


def test_secure_aggregation_on_nodes_of_which_one_dies_and_whose_books_refuse(nodes, tmp_path):
    "The last with these nodes, for it leaves two."
    plan = plan_of("secagg", "smoke", changes=dict(clients=3, per_round=3, threshold=2, rounds=1, batch=500))
    app, out = changed(write_app(plan, tmp_path / "app"), GREEDY), tmp_path / "out"
    key = write_node_key(tmp_path / "bookless/key")
    nodes.flwr("supernode", "register", f"{key}.pub", "nodes")
    bookless = nodes.join("bookless", key, config=f'partition-id=0 key="{key}" known="{known_by(nodes)}"')
    bookless.until("SuperNode ID", 300)
    running = nodes.run(app, {"out": str(out), "known": str(known_by(nodes))})
    until(nodes, 2, RECEIVED, "masked", running)
    nodes.kill(2)
    running.until("waiting until it is restarted", 600)
    said = 'book=\'\' must be a folder that only this machine reads.* into the node\'s --node-config'
    assert re.search(said, bookless.log) and re.search(f"a node is left out.*{said}", running.log)
    bookless.end()

    state, _, ledger, _, results = left_in(out)
    assert [(miss["client"], miss["verb"], miss["reason"][:17]) for miss in ledger.absent] == [
        (2, "masked", "Flower's error 5:")]
    assert [row["numbers"]["absent"] for row in results["rows"]] == [ledger.absent]
    for i in range(3):
        book = os.listdir(nodes.folder / f"node{i}/book")
        noted = {name.split("-")[1] for name in book if not name.startswith("steps")}
        whole = {"share", "masked", "answer", "agree", "unmask"}
        assert noted == whole if i < 2 else "share" in noted and "unmask" not in noted
    server, _ = in_one_process(plan.experiment, ledger.absent)
    plain, _ = in_one_process(plan.experiment.experiment, [{"round": 0, "verb": "fit", "client": 2}])
    found = part(unpack(state).tensors, "inner/weights")
    assert equal_bits(found, server.server.weights), "masks cancel to the last bit"
    assert all(close(found[name], t, 1e-4) for name, t in plain.weights.items())

    nodes.nodes[0].end()
    nodes.start(0)
    (out / "restarted").touch()
    running.until("waiting until it is forgotten", 600)
    assert "client 0 has answered another 'agree' with the same secret" in running.log
    for i in range(2): rmtree(nodes.folder / f"node{i}/book")
    (out / "forgotten").touch()
    assert running.wait() == 0 and "forgotten given: 3 pieces" in running.log, running.log


@AT_NIGHT
def test_a_running_node_says_that_the_certificate_of_its_server_has_expired(tmp_path, monkeypatch):
    with LocalNodes(tmp_path / "nodes", 0) as nodes:
        farm = nodes.folder / "farm"
        key = write_node_key(farm / "key")
        copy(nodes.folder / "ca.pem", farm)
        (farm / "known.txt").write_text(f"0 {key.with_name('key.pub').read_text()}")
        (farm / "node.json").write_text(json.dumps({"client": 0, "host": "127.0.0.1", "port": nodes.port}))
        nodes.flwr("supernode", "register", f"{key}.pub", "nodes")
        node = nodes.launch("farmer", "fedbook", "flower-node", farm)
        node.until("SuperNode ID", 300)
        nodes.kill_superlink()
        write_certificate(nodes.folder, days=1e-6)
        sleep(1.1)
        with monkeypatch.context() as patch:
            patch.setattr(nodes_module, "check_certificate", lambda *_: None)
            nodes.start_superlink()
        assert node.wait() == 2 and "fedbook: the certificate expired on" in node.log, node.log


@AT_NIGHT
def test_nothing_is_left_when_the_body_raises(tmp_path):
    nodes = LocalNodes(tmp_path / "nodes", count=1, tls=False, auth=False)
    app = write_app(plan_of("fedavg", "smoke"), tmp_path / "app")
    with pytest.raises(ZeroDivisionError), nodes:
        nodes.run(app, {"out": str(tmp_path / "out")})
        nodes.nodes[0].until("Start `flwr-clientapp` process", 300)
        assert len(mentioning(nodes.port)) >= 4 and len(nodes.processes()) >= 6
        1 / 0
    assert nodes.processes() == [] == mentioning(nodes.port)


def test_what_does_not_come_up_is_said_with_its_log(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        nodes = LocalNodes(tmp_path / "nodes")
        nodes.port = taken.getsockname()[1]
        with pytest.raises(UserError, match="superlink ended with 1: .*address already in use"):
            nodes.__enter__()
    assert nodes.processes() == []


def test_bad_arguments(tmp_path):
    for hosts in ([], "link.example", ["two words"], [""]):
        with pytest.raises(UserError, match="host"): write_authority(tmp_path / "authority", hosts)
    for days in (0, -1, 4000, "many", float("nan")):
        with pytest.raises(UserError, match="days="): write_authority(tmp_path / "authority", days=days)
    with pytest.raises(UserError, match="tls=False does not go with auth=True"):
        LocalNodes(tmp_path / "nodes", tls=False)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="holds other things"): LocalNodes(tmp_path)
