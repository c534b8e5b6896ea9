"""What tests of several chapters share."""
import itertools

import pytest

from fedbook.fedavg import Checkpoint


class Killed(BaseException): pass


@pytest.fixture
def kill(monkeypatch):
    "`kill(job, stop)` runs `job()`, and kills it right after its checkpoint was saved for the `stop`-th time."
    def run(job, stop):
        calls, save = itertools.count(1), Checkpoint.save
        def save_or_die(self, *args):
            save(self, *args)
            if next(calls) == stop: raise Killed
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "save", save_or_die)
            with pytest.raises(Killed): job()
    return run
