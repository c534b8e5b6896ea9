"""The spy on sizes: a field that nobody reads is found, however it is passed on."""
import copy
from dataclasses import asdict, dataclass, replace

import pytest

from fedbook.engine.sizes import Count, Profile, choose
from fedbook.kit.lab import sizes_table
from spy import spied


@dataclass(frozen=True)
class WalkSizes(Profile):
    "Three numbers."
    rounds: Count = 2       # rounds
    lr: float = 0.1         # rate
    planted: Count = 3      # nobody reads it

    def __post_init__(self):
        super().__post_init__()
        assert self.planted > 0


PROFILES = {"smoke": WalkSizes(), "quick": WalkSizes(rounds=3)}
ALL = ["seeds", "rounds", "lr", "planted"]


def unread(read):
    "The fields that are unread after `read(sizes)`."
    with spied() as spy: read(choose(PROFILES, "smoke"))
    return spy.unread().get("WalkSizes", [])


class Walker:
    def __init__(self, sizes): self.rounds = sizes.rounds


@pytest.mark.parametrize("read, left", [
    (Walker, ["seeds", "lr", "planted"]), (lambda sizes: Walker(replace(sizes, rounds=1)), ALL),
    (lambda sizes: None, ALL), (lambda sizes: (sizes.seeds, sizes.rounds, sizes.lr), ["planted"]),
    (lambda sizes: [getattr(sizes, name) for name in ALL], []),
    (lambda sizes: replace(sizes, lr=1.0).rounds, ["seeds", "lr", "planted"]),
    (lambda sizes: replace(sizes, lr=1.0).lr, ALL),
    (lambda sizes: replace(replace(sizes, rounds=1), lr=2.0).planted, ["seeds", "rounds", "lr"]),
    (lambda sizes: choose({"here": sizes}, "here", {"lr": "3"}).rounds, ["seeds", "lr", "planted"]),
    (lambda sizes: choose({"here": sizes}, "here", {"lr": "3"}).lr, ALL),
    (lambda sizes: copy.copy(sizes).lr, ["seeds", "rounds", "planted"])])
def test_what_is_asked_for_is_read_and_what_was_replaced_is_not(read, left): assert unread(read) == left


@pytest.mark.parametrize("look", [asdict, repr, hash, lambda sizes: sizes == WalkSizes(),
                                  lambda sizes: sizes_table(PROFILES), lambda sizes: replace(sizes)])
def test_to_look_at_all_fields_is_to_read_none(look): assert unread(look) == ALL


def test_nothing_is_spied_on_afterwards():
    with spied() as spy: sizes = choose(PROFILES, "smoke")
    assert sizes.lr == 0.1 and spy.unread() == {"WalkSizes": ALL} and "__getattribute__" not in vars(Profile)
