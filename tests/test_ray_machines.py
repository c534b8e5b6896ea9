"""The crowd of chapter 23 on Ray with workers on machines of their own: network namespaces on one bridge, each
with an address and a raylet; the head trains nobody."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import ALL

if not ALL: pytest.skip("takes minutes: make test-all", allow_module_level=True)

pytest.importorskip("ray", reason="Ray, which comes with Flower's simulation, is not installed: pip install "
                    "'fedbook[flower]'")

from fedbook.engine.workers import trial
from fedbook.deploy.scale import CrowdExperiment, CrowdSizes
from fedbook.engine.wire import unpack
from namespaces import command, refused

SIZES = CrowdSizes(clients=6, per_round=4, pictures=10, rounds=2, tests=20)
DRIVER = """
import sys
from pathlib import Path
import ray
from fedbook.engine.federation import run
from fedbook.deploy.flower import simulate
from fedbook.deploy.scale import CrowdExperiment, CrowdSizes
from fedbook.engine.wire import Msg, pack

made = CrowdExperiment(CrowdSizes(clients=6, per_round=4, pictures=10, rounds=2, tests=20), 0)

def job(federation):
    server = made.server()
    run(server, federation, 2)
    at_work = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    return Msg(server.weights, {"machines": sorted(node["NodeManagerAddress"] for node in at_work)})

Path(sys.argv[1]).write_bytes(pack(simulate(job, made.client, made.ids)))
"""


REFUSED = refused()


class Cluster:
    "A Ray with `count` machines that train, 10.78.0.2 and on, and a head at 10.78.0.1 that does not."
    def __init__(self, count, folder): self.count, self.folder, self.tag = count, folder, f"r{os.getpid()}n"

    def inside(self, k, *words, **options):
        path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        env = {**os.environ, "RAY_ENABLE_MAC_PARALLELISM": "0", "RAY_USAGE_STATS_ENABLED": "0",
               "RAY_worker_niceness": "0", "PYTHONPATH": path, **options.pop("env", {})}
        command("ip", "netns", "exec", f"{self.tag}{k}", *words, env=env, **options)

    def __enter__(self):
        try: self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def start(self):
        for k in range(self.count + 1):
            command("ip", "netns", "add", f"{self.tag}{k}")
            self.inside(k, "ip", "link", "set", "lo", "up")
        self.inside(0, "ip", "link", "add", "bridge", "type", "bridge")
        self.inside(0, "ip", "address", "add", "10.78.0.1/24", "dev", "bridge")
        self.inside(0, "ip", "link", "set", "bridge", "up")
        for k in range(1, self.count + 1):
            pair = f"ip link add eth0 netns {self.tag}{k} type veth peer name v{k} netns {self.tag}0"
            command(*pair.split())
            self.inside(k, "ip", "address", "add", f"10.78.0.{k + 1}/24", "dev", "eth0")
            self.inside(k, "ip", "link", "set", "eth0", "up")
            self.inside(0, "ip", "link", "set", f"v{k}", "master", "bridge")
            self.inside(0, "ip", "link", "set", f"v{k}", "up")
        ray = str(Path(sys.executable).parent / "ray")
        self.inside(0, ray, "start", "--head", "--node-ip-address=10.78.0.1", "--port=6379", "--num-cpus=0",
                    "--include-dashboard=false", f"--temp-dir={self.folder}")
        for k in range(1, self.count + 1):
            self.inside(k, ray, "start", "--address=10.78.0.1:6379", f"--node-ip-address=10.78.0.{k + 1}",
                        "--num-cpus=1")

    def __exit__(self, *_): self.stop()

    def stop(self):
        for k in range(self.count + 1):
            found = subprocess.run(["ip", "netns", "pids", f"{self.tag}{k}"], capture_output=True, text=True)
            for pid in found.stdout.split(): subprocess.run(["kill", "-9", pid])
            subprocess.run(["ip", "netns", "del", f"{self.tag}{k}"], capture_output=True)


@pytest.mark.skipif(bool(REFUSED), reason=f"network namespaces are not permitted here: {REFUSED}")
@pytest.mark.parametrize("count", [1, 2])
def test_ray_on_machines_of_their_own_gives_the_bits_of_this_process(count, tmp_path):
    import tempfile
    with tempfile.TemporaryDirectory(prefix="ray") as short, Cluster(count, short) as cluster:
        cluster.inside(0, sys.executable, "-c", DRIVER, str(tmp_path / "weights"), timeout=600,
                       env={"RAY_ADDRESS": "10.78.0.1:6379"})
    there = unpack((tmp_path / "weights").read_bytes())
    here = trial(CrowdExperiment(SIZES, 0), workers=1).server.weights
    assert there.meta["machines"] == [f"10.78.0.{k + 2}" for k in range(count)]
    assert all(torch.equal(t, there.tensors[name]) for name, t in here.items())
