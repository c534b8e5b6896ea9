"""What tests of several chapters share."""
import importlib.util
import itertools
from pathlib import Path

import pytest
import torch

import fedbook.engine
from fedbook.engine import Checkpoint


def seeded(seed=0): return torch.Generator().manual_seed(seed)

def normal(*shape, seed=0): return torch.randn(*shape, generator=seeded(seed))


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
    monkeypatch.setattr(fedbook.engine, "default_workers", lambda: 1)
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
    spec.loader.exec_module(module)
    return module
