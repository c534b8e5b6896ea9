"""The sizes of a run: profiles, their limits and meanings, and the changes to them."""

import inspect
import json
import linecache
import math
import operator
import os
import re
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from fedbook.engine.errors import UserError, choices_text


@dataclass(frozen=True)
class Bounds:
    """What a number of a `Profile` may be: from `low` to `high`, both included, and more than `above`; or
    `off`, wherever that lies. It is finite, unless `high` is infinite."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    off: float | None = None

    def hold(self, value: float) -> bool:
        "Whether `value` is allowed."
        if value == self.off:
            return True
        if not math.isfinite(value) and value != self.high:
            return False
        above = self.above is None or value > self.above
        return (
            above
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
        )

    def __str__(self) -> str:
        if self.off is not None:
            return f"{self.off:g}, or {replace(self, off=None)}"
        if self.low is not None and self.high is not None:
            return f"from {self.low:g} to {self.high:g}"
        above = "" if self.above is None else f"above {self.above:g}"
        low = "" if self.low is None else f"at least {self.low:g}"
        high = "" if self.high in (None, math.inf) else f"at most {self.high:g}"
        return " and ".join(filter(None, [above, low, high]))


Count = Annotated[int, Bounds(low=1)]
Share = Annotated[float, Bounds(low=0, high=1)]
Positive = Annotated[float, Bounds(above=0)]
Precision = Literal["fp32", "tf32", "bf16"]
_A_PATH = "a path"


def is_path(value: Any) -> bool:
    "Whether a text means a file or folder: it has a separator, or there is one of that name."
    return isinstance(value, str) and bool(
        re.search(r"[/\\]", value) or value and Path(value).exists()
    )


def limits(hint: Any) -> Bounds | tuple | None:
    """What the type `hint` of a size allows: `Bounds` for a number, a tuple of choices for a `Literal`, None
    for anything goes. A tuple of sizes has the limits of its entries; `Literal[...] | str` has the choices,
    and "a path" behind them."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    parts = get_args(kind)
    if len(parts) == 2 and get_origin(parts[0]) is Literal and parts[1] is str:
        return *get_args(parts[0]), _A_PATH
    if get_origin(kind) is tuple:
        return limits(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return get_args(kind)
    if kind not in (int, float):
        return None
    return next(
        (note for note in notes if isinstance(note, Bounds)), Bounds(low=0)
    )


_KINDS: dict[type, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool, "True or False"),
    str: (str, "a text"),
    tuple: (tuple, "a tuple"),
    NoneType: (NoneType, "None"),
}


def kinds(hint: Any) -> tuple[type, ...]:
    "The types, of those that a size can have, that `hint` allows; none where anything goes."
    parts = get_args(hint)
    origin = get_origin(hint)
    if origin is Annotated:
        return kinds(parts[0])
    if origin in (Union, UnionType):
        found = [kinds(part) for part in parts]
        return sum(found, ()) if all(found) else ()
    kind = origin or hint
    return (kind,) if kind in _KINDS else ()


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """`value` as an int, also where it is numpy's or a tensor of one. Raises `UserError`, which calls it
    `name`, unless it is a whole number of at least `least`."""
    try:
        number = operator.index(value)
    except (TypeError, ValueError):
        number = least - 1
    truth = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    if truth or number < least:
        raise UserError(
            f"{name}={value!r} must be a whole number of at least {least}"
        )
    return number


@dataclass(frozen=True)
class Profile:
    """The size of a run. Each chapter adds its own fields, each with its meaning in a comment beside it and
    its limits in its type (`Count`, `Share`, `Positive`, `Literal`; any other number is 0 or more). Numbers
    of numpy and lists become Python's numbers and tuples.

    Raises `UserError` for a value of a wrong type or outside the limits of its field, for a number that is
    not finite, and for more clients `per_round` than `clients`."""

    seeds: Count = 1  # how many seeds a row is repeated with

    def __post_init__(self):
        hints = get_type_hints(type(self), include_extras=True)
        for name in (field.name for field in fields(self)):
            content = _of_python(getattr(self, name), hints[name])
            object.__setattr__(self, name, content)
            _check_kind(name, content, hints[name])
            known = limits(hints[name])
            for value in content if isinstance(content, tuple) else (content,):
                _check_value(name, value, known)
        _check_clients(self)


def _of_python(value, hint):
    "`value` without numpy; a list becomes a tuple where the `hint` is of one."
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)) and tuple in kinds(hint):
        return tuple(_of_python(part, None) for part in value)
    return value


def _check_kind(name, value, hint):
    "Raise `UserError` unless `value`, and each entry of a tuple, has a type that the `hint` allows."
    allowed = kinds(hint)
    bases = tuple(_KINDS[kind][0] for kind in allowed)
    strange = isinstance(value, bool) and bool not in allowed
    if allowed and (strange or not isinstance(value, bases)):
        words = " or ".join(_KINDS[kind][1] for kind in allowed)
        raise UserError(f"{name}={value!r} must be {words}")
    entry = get_args(hint)[:1]
    if get_origin(hint) is tuple and entry:
        for part in value:
            _check_kind(name, part, entry[0])


def _check_clients(sizes):
    asked = getattr(sizes, "per_round", None)
    clients = getattr(sizes, "clients", None)
    if asked and clients and asked > clients:
        raise UserError(f"per_round={asked} must be at most clients={clients}")


def _check_value(name, value, known):
    "Raise `UserError` where the limits `known` of the field `name` do not allow `value`."
    if isinstance(known, tuple) and value not in known:
        if known[-1] == _A_PATH and is_path(value):
            return
        choices = ", ".join(map(str, known))
        raise UserError(f"{name}={value!r} is unknown; choose one of {choices}")
    number = isinstance(known, Bounds) and isinstance(value, (int, float))
    if number and not known.hold(value):
        allowed = known if known != Bounds(low=0) else "0 or more"
        finite = "" if math.isfinite(value) else ", and finite"
        raise UserError(f"{name}={value} must be {allowed}{finite}")


def _read(name: str, value: Any, now: Any, hint: Any = None) -> Any:
    "`value` (perhaps a text) as the type of the field's present value `now`; an empty tuple has it from `hint`."
    if hasattr(value, "tolist"):
        value = value.tolist()
    kind = type(now)
    if kind is tuple and isinstance(value, (str, list, tuple)):
        parts = value
        if isinstance(value, str):
            texts = value.split(",")
            parts = [text.strip() for text in texts if text.strip()]
        entry = now[0] if now else kinds(get_args(hint)[0])[0]()
        return tuple(_read(name, part, entry) for part in parts)
    if kind is bool and isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    elif (
        kind is float
        and type(value) is int
        or isinstance(value, str)
        and kind in (int, float)
    ):
        try:
            value = kind(value)
        except ValueError:
            pass
    if type(value) is kind:
        return value
    words = _KINDS[kind][1] if kind in _KINDS else f"a {kind.__name__}"
    raise UserError(f"{name}={value!r} must be {words}, such as {now!r}")


def tiny(profile: str) -> bool:
    "Whether cells without sizes of their own take the least of everything: at smoke, and in a dry run."
    return profile == "smoke" or "FEDBOOK_DRY" in os.environ


def as_printed(profile: str, changes: dict | None = None) -> bool:
    """Whether a run has sizes and data of which its chapter's text speaks, so that what the text says of the
    figures must hold: not where the reader made `changes`, and not where the run is `tiny`."""
    return not changes and not tiny(profile)


def choose(
    profiles: dict,
    name: str,
    changes: dict | None = None,
    settings: dict | None = None,
) -> Profile:
    """The `Profile` called `name` out of `profiles`, with the fields in `changes` (name to value, or to text)
    replaced. `settings` (name to fields) are the rows of a paper's table: the field `setting` picks one, and
    its fields are replaced first. Where `changes` name other `data` and no setting, the row with these data
    takes its place, and no row where none has them.

    Raises `UserError` for an unknown profile, field or setting, for a value that is not of the field's type,
    and for more clients `per_round` than `clients`. In a dry run (`FEDBOOK_DRY` in the environment) the sizes
    shrink last, where `profiles` are a chapter's: they have a `smoke`."""
    if name not in profiles:
        raise UserError(
            f"profile={name!r} is unknown; choose one of {', '.join(profiles)}"
        )
    base = profiles[name]
    known = [f.name for f in fields(base)]
    for field in changes or {}:
        if field not in known:
            near = get_close_matches(field.lower(), known, 2, 0.6)
            raise UserError(
                f"{field!r} is not a parameter of this chapter; {choices_text(known, near)}"
            )
    hints = get_type_hints(type(base))
    wanted = {
        k: _read(k, v, getattr(base, k), hints[k])
        for k, v in (changes or {}).items()
    }
    row = {}
    setting = _setting_of(base, wanted, settings or {})
    if settings is not None and setting:
        if setting not in settings:
            raise UserError(
                f"setting={setting!r} is unknown; choose one of {', '.join(settings)}"
            )
        row = settings[setting]
    if hasattr(base, "setting"):
        row = {**row, "setting": setting}
    changed = {**row, **wanted}
    sizes = replace(base, **changed)
    less = {}
    if "smoke" in profiles:
        less = json.loads(os.environ.get("FEDBOOK_DRY", "{}"))
    for k, v in less.items():
        if k in known:
            changed[k] = _read(k, v, getattr(base, k))
    if less:
        sizes = replace(base, **changed)
    return sizes


def _setting_of(base, wanted, settings):
    "The name of the row of `settings` that `wanted` asks for: by its name, or else by its data."
    setting = getattr(base, "setting", "")
    if "setting" in wanted or not setting or "data" not in wanted:
        return wanted.get("setting", setting)
    with_data = [
        name
        for name, fields_ in settings.items()
        if fields_.get("data") == wanted["data"]
    ]
    if len(with_data) > 1:
        return setting
    return with_data[0] if with_data else ""


def _source(kind):
    "The source of a class, also of one that was typed into a notebook (which `inspect` does not find)."
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        cells = [
            "".join(entry[2])
            for entry in linecache.cache.values()
            if len(entry) > 2
        ]
        head = rf"^class {kind.__name__}[(:]"
        for cell in reversed(cells):
            if re.search(head, cell, re.M):
                return cell
        return ""


def meanings(kind: type) -> dict[str, str]:
    "What each field of a `Profile` means: name to the comment beside it, in the order of the fields."
    found: dict[str, str] = {}
    for base in filter(is_dataclass, kind.__mro__):
        source = _source(base)
        pairs = re.findall(r"^ +(\w+): .*?  # *(.+)$", source, re.M)
        for name, text in pairs:
            found.setdefault(name, text)
    names = [field.name for field in fields(kind)]
    return {name: found.get(name, "") for name in names}
