"""What tests of several chapters share."""
import importlib.util
import itertools
import os
import subprocess
import sys
import tomllib
from collections import Counter
from configparser import ConfigParser
from itertools import chain
from pathlib import Path

sys.modules.setdefault("rfc3987_syntax", None)     # or jsonschema compiles a grammar, in each process

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

import fedbook.engine.workers
from fedbook.methods import detect
from fedbook.engine.workers import Checkpoint, Faults
from fedbook.engine.local import build, generator


ROOT = Path(__file__).parent.parent
UNPACKED = {".venv", "__pycache__", "build", "course", "runs", "_docs", "fedbook.egg-info", ".pytest_cache"}


def tracked():
    "Paths of the files that git knows, from the root; in an unpacked sdist all but what a run makes."
    if not (ROOT / ".git").exists():
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        return sorted(path.as_posix() for path in found if not UNPACKED & {*path.parts})
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


def project():
    "The metadata of the package."
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def house(name):
    "A setting of nbdev's."
    found = ConfigParser(delimiters=["="])
    found.read(ROOT / "settings.ini")
    return found["DEFAULT"][name]


CLASSES = {"nodes": ("test_nodes", "test_containers", "test_ray_machines", "test_flower"),
           "chapters": ("test_pretended", "test_notebooks", "test_dry"), "browser": ("test_browser",),
           "site": ("test_site",), "lint": ("test_house", "test_repo"), "exercises": ("test_exercises",),
           "command": ("test_command", "test_package"), "bench": ("test_engines_bench", "test_gpu_bench")}
CLOCK = pytest.StashKey()
ALL = os.environ.get("FEDBOOK_TESTS") == "all"
AT_NIGHT = pytest.mark.skipif(not ALL, reason="takes long: make test-all")

def by_day(cases, *late):
    "Cases of a parametrised test, of which those in `late` wait for `make test-all`."
    return [pytest.param(case, marks=AT_NIGHT if case in late else ()) for case in cases]

SLOW = ("nodes", "chapters", "browser", "command", "bench")      # what `make test-fast` leaves out
# Tests that wait (for heartbeats, kernels, a browser) share a worker, while the others use the cores.
TOGETHER = dict.fromkeys(("test_nodes", "test_containers", "test_ray_machines", "test_command", "test_browser",
                          "test_site", "test_notebooks", "test_flower"), "waiting")
ALONE = ("test_pretended", "test_house", "test_repo")    # their tests share nothing
LONGEST = ("waiting", "test_dry", "test_package", "test_engines_bench")


def class_of(file):
    "To which class of tests the file of this name belongs: seconds are counted by class."
    return next((name for name, files in CLASSES.items() if file in files), "library")


def group_of(nodeid):
    """What runs on one worker: a file, whose fixtures are made once; or several that wait; or a test alone."""
    file = file_of(nodeid)
    return nodeid if file in ALONE else TOGETHER.get(file, file)

def file_of(nodeid): return Path(nodeid.partition("::")[0]).stem


class Groups(LoadScopeScheduling):
    "xdist's scheduler by groups of ours. (Its own marks for them do nothing with pytest 9.2: its issue 1386.)"
    def _split_scope(self, nodeid): return group_of(nodeid)


def pytest_xdist_make_scheduler(config, log): return Groups(config, log)


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: chapters, nodes, kernels, the browser and long proofs")


def pytest_collection_modifyitems(items):
    "The longest groups first, so that no worker is left with a long one at the end."
    order = {name: i for i, name in enumerate(LONGEST)}
    chapters_before_others = lambda item: len(order) + (class_of(item.path.stem) != "chapters")
    items.sort(key=lambda item: order.get(group_of(item.nodeid), chapters_before_others(item)))
    for item in items:
        if class_of(item.path.stem) in SLOW: item.add_marker("slow")


def cpu_seconds():
    "Of this process, of those that it waited for, and of those that `pretended.aside` ran."
    times, pretended = os.times(), sys.modules.get("pretended")
    aside = sum(pretended.spent) if pretended else 0
    return times.user + times.system + times.children_user + times.children_system + aside


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    "Each report carries the CPU seconds since the one before it."
    report, now = (yield), cpu_seconds()
    report.cpu = now - item.config.stash.get(CLOCK, now)
    item.config.stash[CLOCK] = now
    return report


def pytest_terminal_summary(terminalreporter):
    "The seconds of each class of tests, and those of a CPU."
    spent, cpu, count = Counter(), Counter(), Counter()
    for report in chain(*terminalreporter.stats.values()):
        if not isinstance(report, pytest.TestReport): continue
        name = class_of(file_of(report.nodeid))
        spent[name] += report.duration
        cpu[name] += getattr(report, "cpu", 0)
        count[name] += report.when == "call"
    told = [f"{name} {spent[name]:.0f} ({cpu[name]:.0f} CPU, {count[name]} tests)"
            for name, _ in cpu.most_common()]
    terminalreporter.write_line(f"seconds by class: {', '.join(told)}; {sum(cpu.values()):.0f} CPU in all")


@pytest.fixture(autouse=True)
def plain_figures():
    "Each test begins with matplotlib's own look and no figure, whatever was drawn before it."
    plt.close("all")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


def seeded(seed=0): return torch.Generator().manual_seed(seed)

def normal(*shape, seed=0): return torch.randn(*shape, generator=seeded(seed))


def close(a, b, tol=1e-6): return torch.allclose(a, b, rtol=0, atol=tol)

def equal(a, b): return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)

def bits(t): return t.contiguous().view({4: torch.int32, 8: torch.int64}.get(t.element_size(), t.dtype))

def equal_bits(a, b):
    "As `equal`, and a zero differs from a negative zero, and a NaN equals itself."
    return a.keys() == b.keys() and all(torch.equal(bits(a[name]), bits(b[name])) for name in a)

def copied(state): return {name: t.clone() for name, t in state.items()}


def detector(encoder, seed=0, **options):
    "A small detector of five classes on `encoder`."
    return build(lambda: detect.faster_rcnn(encoder, 5, 16, 16, **options), seed)


@pytest.fixture(scope="session")
def little_site(tmp_path_factory):
    "The folder of the pages of the site of a course of two notebooks."
    pytest.importorskip("furo", reason="the site's packages are missing: pip install 'fedbook[site]'")
    from small_site import built

    return built(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def sure(encoder, data):
    "A detector that has learned a little, and is made to be sure of what it sees."
    model, g = detector(encoder), generator(1)
    optimiser = detect.detector_optimiser(model, 3e-3)
    for _ in range(6): detect.supervised_epoch(model, data, g, optimiser=optimiser)
    model.roi_heads.score_thresh = 0.01
    return model


class Strike(Faults):
    "Faults at chosen places: (round, client) or (round, verb, client) to the kind of fault."
    def __init__(self, hits): vars(self)["hits"] = hits

    def strike(self, round, verb, id): return self.hits.get((round, verb, id), self.hits.get((round, id)))


class Killed(BaseException): pass


@pytest.fixture
def kill(monkeypatch):
    """`kill(job, stop)` runs `job()`, and kills it right after its checkpoint was saved for the `stop`-th
    time."""
    def run(job, stop):
        calls, save = itertools.count(1), Checkpoint.save
        def save_or_die(self, *args):
            save(self, *args)
            if next(calls) == stop: raise Killed
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "save", save_or_die)
            with pytest.raises(Killed): job()
    return run


@pytest.fixture
def one_process(monkeypatch):
    "One worker in this process with one thread, for sizes that are too small to share out."
    monkeypatch.setattr(fedbook.engine.workers, "default_workers", lambda device=None: 1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bench(request):
    "The file of bench/ that the test file's `BENCH` names, as a module."
    spec = importlib.util.spec_from_file_location(request.module.BENCH, Path(__file__).parent.parent / "bench"
                                                  / f"{request.module.BENCH}.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(spec.origin).parent)
        spec.loader.exec_module(module)
    return module
