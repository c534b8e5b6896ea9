"""An operator's way: what `fedbook flower-keys` prints is typed on machines of their own (namespaces)."""
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from conftest import ALL

if not ALL: pytest.skip("takes minutes: make test-all", allow_module_level=True)

pytest.importorskip("flwr", reason="these tests start real Flower nodes, and Flower is not installed: pip "
                    "install 'fedbook[flower]'")

import fedbook
from fedbook.deploy.nodes import NodeProcess, write_keys
from namespaces import command, refused
from test_containers import BEAT, CROPS, PATIENCE, class_folders, write_secure_app

REFUSED = refused("unshare --net --pid --fork true")
HOST = "link.example"


class Machines:
    "A server, and machines that are each linked to it by a wire of their own; each has a hosts file."
    def __init__(self, folder, names):
        self.folder, self.names, self.tag, self.running = folder, names, f"fm{os.getpid()}", {}

    def net(self, name): return f"{self.tag}-{name}"

    def inside(self, name, words): command("ip", "netns", "exec", self.net(name), *words.split())

    def __enter__(self):
        try:
            for name in ("server", *self.names): command("ip", "netns", "add", self.net(name))
            for name in ("server", *self.names): self.inside(name, "ip link set lo up")
            self.inside("server", "ip address add 10.78.0.1/32 dev lo")
            for k, name in enumerate(self.names, 1):
                wire = f"ip link add eth0 netns {self.net(name)} type veth peer name v{k} netns"
                command(*wire.split(), self.net("server"))
                for at, link, end in ((name, "eth0", 2), ("server", f"v{k}", 1)):
                    self.inside(at, f"ip address add 10.78.{k}.{end}/30 dev {link}")
                    self.inside(at, f"ip link set {link} up")
                self.inside(name, f"ip route add 10.78.0.1 via 10.78.{k}.1")
        except BaseException:
            self.stop()
            raise
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n10.78.0.1 {HOST}\n")
        (self.folder / "sitecustomize.py").write_text(BEAT)
        return self

    def __exit__(self, *_): self.stop()

    def type(self, machine, line, name=None):
        "Type a `line` on a `machine`; answers its process."
        name = name or machine
        shell = f"mount --bind {shlex.quote(str(self.folder / 'hosts'))} /etc/hosts\nexec {line}"
        words = ["ip", "netns", "exec", self.net(machine), "unshare", "--mount", "--pid", "--fork",
                 "--kill-child", "--mount-proc", "sh", "-ec", shell]
        path = os.pathsep.join([str(self.folder), str(Path(fedbook.__file__).parent.parent)])
        ours = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        env = {**ours, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
               "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
               "FLWR_HOME": str(self.folder / "keys/desk"),
               "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1", "HOME": str(self.folder),
               "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        self.running[name] = NodeProcess(name, words, self.folder / f"{name}.log", env)
        return self.running[name]

    def stop(self):
        for process in self.running.values(): process.end(signal.SIGKILL)
        for name in ("server", *self.names):
            subprocess.run(["ip", "netns", "del", self.net(name)], capture_output=True)


CHANGES = dict(clients=3, rounds=2, warm_steps=5)


def typed(text, start):
    "The command in `text`, as it was printed, that begins with `start`, its lines joined."
    [line] = re.findall(rf"^ *({re.escape(start)}[^\\\n]*(?:\\\n[^\\\n]*)*)$", text, re.M)
    return line.replace("\\\n", " ")


@pytest.mark.skipif(bool(REFUSED), reason=f"network namespaces cannot be had here: {REFUSED}")
@pytest.mark.filterwarnings("ignore:round")
def test_fedreplay_under_secure_aggregation_on_machines_that_an_operator_set_up(tmp_path):
    begun = monotonic()
    text = write_keys(tmp_path / "keys", HOST, 3, 7)
    app = write_secure_app(tmp_path / "app", CHANGES)
    for i in range(3): class_folders(tmp_path / f"data{i}", {c: CROPS[c] for c in (i, i + 1)}, 6, i)
    class_folders(tmp_path / "tests", CROPS, 4, 9)
    with Machines(tmp_path, ["desk", "node0", "node1", "node2", "stranger"]) as machines:
        machines.type("server", typed(text, "flower-superlink")).until("Uvicorn running", PATIENCE)
        for i in range(3):
            line = re.search(rf"^ *(flwr supernode register .*node{i}.pub nodes)$", text, re.M)[1]
            assert machines.type("desk", line, f"register{i}").wait(PATIENCE) == 0

        def node(i, machine=None):
            line = typed(text, "fedbook flower-node").replace("node0", f"node{i}")
            line = line.replace("/its/own/pictures", str(tmp_path / f"data{i}"))
            return machines.type(machine or f"node{i}", line)
        for i in range(3): node(i)
        for i in range(3): machines.running[f"node{i}"].until("SuperNode ID", PATIENCE)
        print(f"all nodes are in after {monotonic() - begun:.0f} s")

        start = typed(text, "flwr run").replace("APP", str(app))
        start = start.replace("/where/the/server/writes", str(tmp_path / "out"))
        more = f'folder="{tmp_path}/tests" wait=600.0 timeout=120.0 min-replies=2 out="'
        start = start.replace('out="', more)
        run = machines.type("desk", start, "run")
        machines.running["node2"].until("Receiving: train.masked", 3 * PATIENCE)
        machines.running["node2"].end(signal.SIGKILL)
        back = node(2)
        back.until("SuperNode ID", 2 * PATIENCE)
        assert "does not let this node in yet" in back.log
        assert run.wait(5 * PATIENCE) == 0, run.log_tail()
        [file] = (tmp_path / "out").rglob("results.json")
        numbers = json.loads(file.read_text())["rows"][0]["numbers"]
        assert numbers["rounds"] == 2, numbers
        gone = {(row["verb"], row["client"]) for row in numbers["absent"]}
        assert gone == {("masked", 2)}, numbers["absent"]

        stranger = write_keys(tmp_path / "others", HOST, 1, 7)
        (tmp_path / "others/node0/ca.pem").write_bytes((tmp_path / "keys/node0/ca.pem").read_bytes())
        line = typed(stranger, "fedbook flower-node").replace(" --data /its/own/pictures", "")
        unknown = machines.type("stranger", line)
        assert unknown.wait(3 * PATIENCE) == 2
        assert f"the server does not know the key {tmp_path}/others/node0/key.pub" in unknown.log
