"""Papers' notebooks are walked at `paper`, `full` and `open`, on made-up data and the least of everything."""
import json
import warnings
from dataclasses import dataclass, replace
from itertools import product

import pytest

from conftest import ALL, AT_NIGHT
from fedbook.kit.command import main
from fedbook.engine.sizes import Count, Profile
from fedbook.engine.errors import UserError
from fedbook.engine.files import run_dir
from fedbook.kit.report import collect
from fedbook.kit.runs import chapter_module, chapters, encoders_of, made_up, dry_sizes, sizes_of, sizes_read
from pretended import aside
from walks import walk

PAPERS = ("evidence/fedreplay", "evidence/fedmox", "evidence/fedklpr", "evidence/fedcbdr", "evidence/fedgtea")
LOOPS = 20          # of the calibration, that a walk may take; above is a warning
BY_DAY, AT_MOST = 2 * LOOPS, 10 * LOOPS         # above that it is red: for SHORT, and for the others
# Those that every `make test` walks:
SHORT = (("evidence/fedcbdr", "paper"), ("evidence/fedgtea", "paper"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    "A folder of made-up sets, and of weights of all encoders of the papers."
    encoders = {each for name in (PAPERS if ALL else ()) for each in encoders_of(chapters()[name])}
    return made_up(tmp_path_factory.mktemp("data"), encoders)


def walked(name, profile, data, out, whole=()):
    ran = aside(walk, chapters()[name], profile, data, out, None, whole)
    assert not ran.failures, "\n".join(ran.failures)
    body = json.loads((run_dir(name, profile, 0, out) / "results.json").read_text())
    assert body["claims"] and body["headline"] and body["dry"]
    assert not collect(out), "a dry run is no result"
    return ran


@pytest.mark.parametrize("name, profile", [
    pytest.param(*pair, marks=[] if pair in SHORT else AT_NIGHT)
    for pair in (*product(PAPERS, ("paper", "full")), ("evidence/fedreplay", "open"))])
def test_a_paper_is_walked(name, profile, data, tmp_path):
    ran = walked(name, profile, data, tmp_path)
    if ran.loops > LOOPS: warnings.warn(f"the walk of {name} at {profile} takes {ran.loops:.0f} loops")
    assert ran.loops <= (BY_DAY if (name, profile) in SHORT else AT_MOST)


@AT_NIGHT
def test_people_are_walked_at_full_picture_size(data, tmp_path):
    walked("evidence/fedklpr", "paper", data, tmp_path, ("height", "width"))


def test_the_command_walks_in_a_folder_of_its_own(tmp_path, capsys):
    arguments = ["methods/score", "--profile", "full", "--dry", "--device", "cpu", "--out", str(tmp_path)]
    assert main(["run", *arguments]) == 0
    assert "measures nothing" in capsys.readouterr().out
    assert json.loads((tmp_path / "dry/methods.score-full-0/results.json").read_text())["dry"]
    assert not collect(tmp_path) and not collect(tmp_path / "dry")


# The rule

@dataclass(frozen=True)
class Sizes(Profile):
    more_seeds: Count = 3   # seeds of more rows
    rounds: Count = 50      # rounds of a run
    rest: int = 4           # rounds at the end
    batch: Count = 128      # pictures in a step
    none: int = 0           # steps before all else
    sides: tuple[Count, ...] = (720, 1280)   # height and width, pixels
    lr: float = 0.3         # learning rate


SMOKE = Sizes(seeds=1, more_seeds=1, rounds=1, rest=0, batch=4, none=0, sides=(8, 16), lr=1.0)


@pytest.mark.parametrize("seeds, more", [(3, 6), (6, 3), (3, 7), (1, 2), (2, 1), (4, 4), (1, 1)])
def test_seeds_stay_in_order(seeds, more):
    sizes = Sizes(seeds=seeds, more_seeds=more)
    small = replace(sizes, **dry_sizes(sizes, SMOKE))
    compare = lambda a, b: (a > b) - (a < b)
    assert compare(small.seeds, small.more_seeds) == compare(seeds, more)
    assert 1 <= small.seeds <= seeds and small.more_seeds <= 3


def test_counts_shrink_and_all_else_stays():
    small = replace(Sizes(), **dry_sizes(Sizes(), SMOKE))
    assert small == Sizes(seeds=1, more_seeds=3, rounds=2, rest=1, batch=4, none=0, sides=(8, 16), lr=0.3)


def test_what_shrinks_is_at_most_what_it_was():
    for name in PAPERS:
        for profile, sizes in chapter_module(chapters()[name]).profiles.items():
            small = dry_sizes(sizes, chapter_module(chapters()[name]).profiles["smoke"])
            for field, value in small.items():
                was = getattr(sizes, field)
                if isinstance(value, tuple):
                    assert len(value) <= len(was)
                    pairs = zip(value, (*was[:len(value) - 1], was[-1]), strict=True)
                else: pairs = [(value, was)]
                assert all(0 < a <= b for a, b in pairs), (name, profile, field)


# What cannot be walked

def test_fields_are_found_behind_names():
    cells = ["seeds, many = range(sizes.seeds), range(sizes.fed_seeds)", "gap = lambda: many", "rows = sizes.rounds",
             "gap() - 1"]
    assert sizes_read(cells) == {"seeds", "fed_seeds"}


@pytest.mark.parametrize("arguments, words", [
    (["00_start"], "has no sizes"), (["13_fedcbdr", "-p", "setting=cifar100-5"], "checksum"),
    (["methods/fedavg", "--engine", "flower"], "--engine flower")])
def test_what_cannot_be_walked_is_one_sentence(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedbook.kit.command.made_up", lambda folder, encoders: folder)
    assert main(["run", *arguments, "--dry", "--profile", "paper", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_a_profile_that_breaks_a_rule_is_refused_at_once(data):
    with pytest.raises(UserError, match="late_join"):
        sizes_of(chapters()["evidence/fedreplay"], "paper", {"late_join": "200"})
