"""The federation of `compose.yaml`: each service with an address, a disk and processes of its own, in Linux's
namespaces, for a container engine is rarely at hand."""
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import numpy as np
import pytest
from PIL import Image

from conftest import ALL

if not ALL: pytest.skip("takes minutes: make test-all", allow_module_level=True)

pytest.importorskip("flwr", reason="these tests start real Flower nodes, and Flower is not installed: pip "
                    "install 'fedbook[flower]'")
yaml = pytest.importorskip("yaml", reason="compose.yaml is read with pyyaml, which is not installed")

import fedbook
from fedbook.kit.command import plan_of
from fedbook.engine.federation import Failure, Federation, InProcess, run
from fedbook.deploy.flower import fingerprint, write_app
from fedbook.deploy.nodes import NodeProcess, write_compose
from fedbook.engine.wire import Ledger, pack, unpack
from namespaces import command, refused

BEAT = "from flwr.common import constant\nconstant.HEARTBEAT_DEFAULT_INTERVAL = constant.HEARTBEAT_MIN_INTERVAL\n"
PATIENCE = float(os.environ.get("FEDBOOK_PATIENCE", 120))     # seconds for one step; more on a busy machine


REFUSED = refused("unshare --net --pid --mount --fork mount -t tmpfs none /mnt")


class Machines:
    """The services of a compose file as machines: each has an address, mounts its volumes on a /mnt of its
    own, and is process 1 of its processes. The SuperLink's is 10.77.0.1; each other one is linked to it by a
    wire of its own, so that nodes do not see one another."""

    def __init__(self, file):
        self.folder, self.services = file.parent, yaml.safe_load(file.read_text())["services"]
        self.tag, self.running, self.logs = f"fb{os.getpid()}", {}, file.parent / "logs"
        self.logs.mkdir()

    def __enter__(self):
        try: self.wire()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_): self.stop()

    def net(self, name): return f"{self.tag}-{name}"

    def inside(self, name, words): command("ip", "netns", "exec", self.net(name), *words.split())

    def wire(self):
        for name in self.services: command("ip", "netns", "add", self.net(name))
        self.inside("superlink", "ip address add 10.77.0.1/32 dev lo")
        for name in self.services: self.inside(name, "ip link set lo up")
        for k, name in enumerate(set(self.services) - {"superlink"}, 1):
            command(*f"ip link add eth0 netns {self.net(name)} type veth peer name v{k} netns".split(),
                    self.net("superlink"))
            for at, link, end in ((name, "eth0", 2), ("superlink", f"v{k}", 1)):
                self.inside(at, f"ip address add 10.77.{k}.{end}/30 dev {link}")
                self.inside(at, f"ip link set {link} up")
            self.inside(name, f"ip route add 10.77.0.1 via 10.77.{k}.1")

    def start(self, name):
        "The process of the service `name`; when it is killed, all that it started is gone."
        service, lines = self.services[name], ["mount -t tmpfs none /mnt"]
        for volume in service["volumes"]:
            here, there, *how = volume.split(":")
            flags = "-o bind,ro" if how else "--bind"
            lines += [f"mkdir {there}", f"mount {flags} {shlex.quote(str(self.folder / here))} {there}"]
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 superlink\n")
        lines += [f"mount --bind {shlex.quote(str(self.folder / 'hosts'))} /etc/hosts", "cd /",
                  f"exec {service['command'].replace('$$', '$')}"]
        words = ["ip", "netns", "exec", self.net(name), "unshare", "--pid", "--fork", "--kill-child",
                 "--mount-proc", "sh", "-ec", "\n".join(lines)]
        path = os.pathsep.join([str(self.folder), str(Path(fedbook.__file__).parent.parent)])
        ours = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        env = {**ours, **service["environment"], "PYTHONPATH": path, "PYTHONUNBUFFERED": "1",
               "OMP_NUM_THREADS": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
               "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        self.running[name] = NodeProcess(name, words, self.logs / name, env)
        return self.running[name]

    def kill(self, name): self.running[name].end(signal.SIGKILL)

    def comes_back(self, name, sign):
        "Start `name` again, as `restart: unless-stopped` does, until it gives the `sign`."
        for _ in range(60):
            process = self.start(name)
            process.until(lambda: re.search(sign, process.log) or not process.alive, PATIENCE)
            if re.search(sign, process.log): return
            sleep(1)
        raise AssertionError(process.log_tail())

    def stop(self):
        for process in self.running.values(): process.end(signal.SIGKILL)
        for name in self.services: subprocess.run(["ip", "netns", "del", self.net(name)], capture_output=True)


def class_folders(root, classes, count, seed):
    "`count` pictures in a folder for each of `classes`: a colour of its own, and noise."
    for c, name in classes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            rng = np.random.default_rng([seed, c, i])
            colour = np.random.default_rng(c).integers(60, 196, 3)
            pixels = (colour + rng.integers(-50, 50, (48, 48, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    (root / "classes.txt").write_text("barley\nmaize\nrye\nwheat\n")


SECURE = """from fedbook.deploy.flower import {side}_app
from fedbook.engine.wire import Msg
from fedbook.kit.command import plan_of
from fedbook.privacy.secagg import Additive, SecureExperiment

def reply_to(asked):
    weights = {{name: t for name, t in asked.tensors.items() if not name.startswith("pool")}}
    return Msg(weights, {{"n": 1, "counts": [0] * 4}})

plain = plan_of("fedreplay", "smoke", changes={changes!r})
secure = SecureExperiment(plain.experiment, 2, Additive(reply_to, most=1000), clear=("donate", "pool"))
app = {side}_app({argument})
"""

def write_secure_app(folder, changes):
    "FedReplay under secure aggregation as an app."
    app = write_app(plan_of("fedreplay", "smoke", changes=changes), folder)
    for side, argument in (("client", "secure.own_client"), ("server", "plain._replace(experiment=secure)")):
        code = SECURE.format(side=side, argument=argument, changes=changes)
        (app / f"fedbook_app/{side}.py").write_text(code)
    return app


CROPS = dict(enumerate(["barley", "maize", "rye", "wheat"]))
PLAN = dict(clients=2, rounds=2, warm_steps=5)


@pytest.fixture
def farms(tmp_path):
    "The folder of a federation of two farms; its app is FedReplay."
    file = farms_of(tmp_path)
    write_app(plan_of("fedreplay", "smoke", changes=PLAN), file.parent / "app")
    return file


def farms_of(tmp_path):
    "The folder of two farms with two crops each, and a server with pictures of all four, without an app."
    file = write_compose(tmp_path / "farms", 2)
    for i in range(2):
        class_folders(file.parent / f"node{i}/data", {c: CROPS[c] for c in (2 * i, 2 * i + 1)}, 6, i)
    class_folders(file.parent / "superlink/data", CROPS, 4, 9)
    (file.parent / "sitecustomize.py").write_text(BEAT)
    with open(file.parent / "desk/state/run.toml", "a") as settings: settings.write("wait = 600.0\n")
    return file


class Absent:
    def __init__(self, absent): self.absent = {(row["round"], row["verb"], row["client"]) for row in absent}

    def harm(self, call, outcome):
        return Failure("gone") if (call.round, call.verb, call.id) in self.absent else outcome


def in_one_process(folder, absent):
    experiment = plan_of("fedreplay", "smoke", changes=PLAN).experiment
    make = lambda id: experiment.own_client(id, folder=str(folder / f"node{id}/data"))
    server = experiment.at(str(folder / "superlink/data")).server()
    federation = Federation(InProcess(make), experiment.ids, faults=Absent(absent))
    run(server, federation, experiment.rounds)
    return server, federation


def place_in(folder):
    "Round and step that come next; None while there is no checkpoint."
    return left_in(folder)[3][:2] if [*folder.glob("runs/*/checkpoint.safetensors")] else None


def left_in(folder):
    "What the run left on the SuperLink's disk: the server's state, fingerprints, ledger, place, results."
    [path] = folder.glob("runs/*/checkpoint.safetensors")
    held = {name: t.numpy().tobytes() for name, t in unpack(path.read_bytes()).tensors.items()}
    said = json.loads(held.pop("run"))
    marks = {int(name.removeprefix("client/")): mark.decode() for name, mark in held.items() if "/" in name}
    ledger = Ledger.from_json(said["ledger"])
    return held["server"], marks, ledger, said["place"], path.with_name("results.json")


@pytest.mark.skipif(bool(REFUSED), reason=f"network namespaces cannot be had here: {REFUSED}")
@pytest.mark.filterwarnings("ignore:round")
def test_two_farms_with_crops_of_their_own_learn_over_tls_and_outlive_every_death(farms):
    state = farms.parent / "superlink/state"
    with Machines(farms) as machines:
        machines.start("superlink").until("Uvicorn running", PATIENCE)
        run_1 = machines.start("desk")
        run_1.until("started run", PATIENCE)
        for i in range(2): machines.start(f"node{i}").until("SuperNode ID", PATIENCE)
        received = "Receiving: train.fit message(?s:.*?)Received successfully"
        machines.running["node1"].until(received, 3 * PATIENCE)
        machines.kill("node1")
        run_1.until(lambda: place_in(state) == [1, 0], 3 * PATIENCE, "the second round")
        machines.comes_back("node1", "SuperNode ID")
        machines.running["node0"].until("ROUND 1(?s:.*?)Receiving: train.fit message", 3 * PATIENCE)
        machines.kill("superlink")
        run_1.until(lambda: not run_1.alive, PATIENCE)
        assert place_in(state) == [1, 0]

        machines.start("superlink").until("Uvicorn running", PATIENCE)
        run_2 = machines.start("desk")
        assert run_2.wait(3 * PATIENCE) == 0, run_2.log_tail()
    packed, marks, ledger, _, results = left_in(state)
    assert [(row["round"], row["verb"], row["client"]) for row in ledger.absent] == [(0, "fit", 1)]
    server, federation = in_one_process(farms.parent, ledger.absent)
    assert packed == pack(server.state())
    assert marks == {id: fingerprint(held) for id, held in federation.states.items()}
    curve = json.loads(results.read_text())["rows"][0]["numbers"]["curve"]
    assert [row["round"] for row in curve] == [1, 2] and all("accuracy" in row for row in curve)


@pytest.mark.skipif(bool(REFUSED), reason=f"network namespaces cannot be had here: {REFUSED}")
@pytest.mark.filterwarnings("ignore:round")
def test_two_farms_learn_under_secure_aggregation(tmp_path):
    file = farms_of(tmp_path)
    write_secure_app(file.parent / "app", PLAN)
    with Machines(file) as machines:
        machines.start("superlink").until("Uvicorn running", PATIENCE)
        desk = machines.start("desk")
        desk.until("started run", PATIENCE)
        for i in range(2): machines.start(f"node{i}").until("SuperNode ID", PATIENCE)
        assert desk.wait(6 * PATIENCE) == 0, desk.log_tail()
    *_, ledger, _, results = left_in(file.parent / "superlink/state")
    assert not ledger.absent and json.loads(results.read_text())["rows"][0]["numbers"]["rounds"] == PLAN["rounds"]
    assert {"advertise", "share", "masked", "agree", "unmask"} <= {entry.verb for entry in ledger.entries}
    assert all([*(file.parent / f"node{i}/state/book").rglob("*")] for i in range(2)), "what was answered is noted"
