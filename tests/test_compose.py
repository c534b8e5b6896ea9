"""What composes with what: every method with every aggregate and mod, every mod with every transport, run for
a round, or refused in one sentence. The table is `site/pages/compose.md`:

    FEDBOOK_WRITE=1 python -m pytest tests/test_compose.py     # writes it anew
"""
import os
import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from fedbook.engine.errors import Unfit
from fedbook.engine.federation import InProcess
from fedbook.engine.stacked import Stacked
from fedbook.engine.workers import trial
from fedbook.evidence.fedmox import MosaicExperiment, MosaicSizes
from fedbook.privacy.compress import Int8, LowRank, TopK
from fedbook.privacy.dp import Clip, Noise, NoisyMean
from fedbook.privacy.robust import Capped, ClippedMean, GeometricMedian, Krum, Median, TrimmedMean
from fedbook.privacy.secagg import SecureExperiment
from test_engine import tiny
from test_flower import experiment_of

PAGE = Path(__file__).parent.parent / "site" / "pages" / "compose.md"
METHODS = ("fedavg", "fedreplay", "fedmox", "fedklpr", "fedcbdr", "fedgtea")
AGGREGATES = {"median": Median(), "trimmed mean": TrimmedMean(0), "Krum": Krum(0),
              "Multi-Krum": Krum(0, None), "geometric median": GeometricMedian(),
              "clipped mean": ClippedMean(), "capped": Capped(),
              "noisy mean": NoisyMean(1.0, 0.5)}
MODS = {"int8": (Int8(),), "top-k": (TopK(0.1),), "low rank": (LowRank(1),), "clip": (Clip(1.0),),
        "clip, noise": (Clip(1.0), Noise(0.1)), "top-k, int8": (TopK(0.1), Int8())}
TRANSPORTS = ("in process", "two workers", "stacked", "Flower's grid")


@cache
def smallest(name):
    "The experiment of a method at its smallest: one round with four clients, as many as the merges need."
    if name == "fedavg": return tiny(rounds=1)
    if name == "fedmox":
        return MosaicExperiment(MosaicSizes(experts=2, maps=4, rounds=1, warmup=1, clients=4, share=1.0), 0)
    experiment = experiment_of(name)
    asked = {"per_round": 4} if hasattr(experiment.sizes, "per_round") else {}
    rounds = {"rounds": 1} if hasattr(experiment.sizes, "rounds") else {}
    return replace(experiment, sizes=replace(experiment.sizes, clients=4, **asked, **rounds))


def outcome(experiment, **options):
    "`runs`, or the sentence of the refusal."
    try: trial(experiment, **{"workers": 1, **options})
    except Unfit as error: return f"no: {error}"
    return "runs"


def with_aggregate(method, name): return outcome(replace(smallest(method), aggregate=AGGREGATES[name]))

def with_mods(method, name): return outcome(replace(smallest(method), mods=MODS[name]))


def over(name, transport):
    experiment = replace(smallest("fedavg"), mods=MODS[name])
    if transport == "two workers": return outcome(experiment, workers=2)
    if transport == "stacked": return outcome(experiment, transport=Stacked(experiment.built_client, 3))
    if transport == "Flower's grid":
        from fedbook.deploy.flower import FlowerTransport, client_app
        from test_flower import FakeGrid
        grid = FakeGrid(partial(client_app, experiment.built_client), experiment.ids)
        return outcome(experiment, transport=FlowerTransport(grid, experiment.ids))
    return outcome(experiment, transport=InProcess(experiment.built_client))


def under_masks(method, name):
    experiment = replace(smallest("fedavg"), **({"aggregate": AGGREGATES[name]} if name in AGGREGATES
                                                else {"mods": MODS[name]}))
    return outcome(SecureExperiment(experiment, 3))


CELLS = {**{(m, a): with_aggregate for m in METHODS for a in AGGREGATES},
         **{(m, c): with_mods for m in METHODS for c in MODS},
         **{(c, t): over for c in MODS for t in TRANSPORTS},
         **{(c, "secure aggregation"): lambda c, _: under_masks(None, c) for c in (*AGGREGATES, *MODS)}}


def short(said): return "yes" if said == "runs" else "no"


def table(corner, rows, columns, found):
    lines = [[corner, *columns], ["---"] * (len(columns) + 1)]
    lines += [[row, *(short(found[row, column]) for column in columns)] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(found):
    "The page of all cells, with the sentences of the refusals below the tables."
    form = r"^no: (aggregate|mods)=.*?\) (?=does not|covers)"
    bare = lambda said: re.sub(form, r"\1: ", said)
    reasons = sorted({bare(said) for said in found.values() if said != "runs"})
    told = "\n".join(f"- {reason}" for reason in reasons)
    masked = {("secure aggregation", c): found[c, "secure aggregation"] for c in (*AGGREGATES, *MODS)}
    return f"""# What composes with what

An aggregate (`Experiment(..., aggregate=Median())`) takes the place of the mean in a server's merge.
A mod (`Experiment(..., mods=[Int8()])`) writes what leaves a client, and reads it at the server.
`tests/test_compose.py` ran each cell for a round and wrote this page. What does not go together says so
before anything is merged.

{table("method", METHODS, AGGREGATES, found)}

{table("method", METHODS, MODS, found)}

{table("mods (FedAvg)", MODS, TRANSPORTS, found)}

{table("FedAvg", ("secure aggregation",), (*AGGREGATES, *MODS), masked)}

Why not, in the words of the refusals:

{told}
"""


@pytest.fixture(scope="module")
def found(): return {cell: run(*cell) for cell, run in CELLS.items()}


def test_each_cell_runs_for_a_round_or_is_refused_in_one_sentence(found):
    for cell, said in found.items():
        assert "\n" not in said and (said == "runs" or re.match("no: (aggregate|mods)=", said)), (cell, said)
    assert found["fedgtea", "median"] == found["fedcbdr", "int8"] == found["clip, noise", "stacked"] == "runs"
    assert found["fedklpr", "median"] != "runs" != found["fedreplay", "clip"]


def test_the_page_says_what_was_found(found):
    written = page(found)
    if os.environ.get("FEDBOOK_WRITE"): PAGE.write_text(written)
    assert PAGE.read_text() == written, "run it again with FEDBOOK_WRITE=1"


def test_an_aggregate_acts_and_a_mod_costs_what_it_says():
    "The same round with the mean and with the median, with whole messages and with int8, differ."
    plain = trial(smallest("fedgtea"), workers=1)
    robust = trial(replace(smallest("fedgtea"), aggregate=Median()), workers=1)
    short = trial(replace(smallest("fedgtea"), mods=(Int8(),)), workers=1)
    unlike = lambda a, b: any((a.server.weights[name] != t).any() for name, t in b.server.weights.items())
    assert unlike(plain, robust) and unlike(plain, short)
    assert short.federation.ledger.total(way="up") < 0.6 * plain.federation.ledger.total(way="up")


def test_what_does_not_fit_is_said_before_the_first_round():
    asked = []
    class Counting(InProcess):
        def serve(self, calls):
            for each in super().serve(calls):
                asked.append(each)
                yield each
    experiment = replace(smallest("fedklpr"), aggregate=Median())
    with pytest.raises(Unfit, match="does not fit FedKLPRServer"):
        trial(experiment, transport=Counting(experiment.built_client))
    assert not asked
