"""The front door says what is true: its examples run, and so do its two methods of others."""
import re
from functools import partial
from pathlib import Path

import pytest

from fedbook.engine import prove, trial
from fedbook.fedavg import FedAvgExperiment, FedAvgSizes

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "README.md").read_text(), re.S)
EXAMPLE, NOVA, SCAFFOLD = BLOCKS


def lines(block): return [line for line in block.splitlines() if line.strip()]


def method(block):
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    return names


def nova(sizes):
    names = method(NOVA)
    return FedAvgExperiment(sizes, 0, client_kind=names["NovaClient"], server_kind=names["FedNova"])


def scaffold(sizes):
    names = method(SCAFFOLD)
    server_kind = partial(names["Scaffold"], clients=sizes.clients)
    return FedAvgExperiment(sizes, 0, client_kind=names["ScaffoldClient"], server_kind=server_kind)


METHODS = pytest.mark.parametrize("method", [nova, scaffold], ids=["FedNova", "SCAFFOLD"])
SMALL = FedAvgSizes(alpha=0.5, clients=60, per_round=3, rounds=2)


def test_example(capsys):
    exec(EXAMPLE.replace("rounds=10", "rounds=1"), {})
    assert int(capsys.readouterr().out.split()[0]) > 1_000_000


@pytest.mark.parametrize("block, most", [(NOVA, 15), (SCAFFOLD, 40)], ids=["FedNova", "SCAFFOLD"])
def test_a_method_of_your_own_is_short(block, most): assert len(lines(block)) <= most


@METHODS
def test_it_is_counted_and_proven(method):
    "Two workers, kills and resumes, faults: all of `prove`."
    assert prove(method(SMALL), kills=2, kinds=("silent", "nan", "names"))
    ended = trial(method(SMALL), workers=1)
    per_message = 2 * 4 * 3 if method is scaffold else 4 * 3
    weights = sum(t.numel() for t in ended.server.weights.values())
    assert ended.federation.ledger.total() > 2 * per_message * weights


@METHODS
def test_it_runs_on_flower_with_the_same_bits(method):
    pytest.importorskip("flwr", reason="Flower is not installed here: pip install 'fedbook[flower]'")
    from fedbook.flower import FlowerLine, client_app
    from test_flower import FakeGrid
    experiment = method(SMALL)
    grid = FakeGrid(partial(client_app, experiment.client), experiment.ids)
    away, here = trial(experiment, line=FlowerLine(grid, experiment.ids)), trial(experiment, workers=1)
    assert all((away.server.weights[name] == t).all() for name, t in here.server.weights.items())
    assert [e[:5] for e in away.federation.ledger.entries] == [e[:5] for e in here.federation.ledger.entries]
