"""What runs measured, kept: a row for each method and seed, in `results.json`, that is not measured twice."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from fedbook.engine.devices import clock
from fedbook.engine.errors import UserError
from fedbook.engine.files import run_dir, write_atomically
from fedbook.engine.sizes import Profile


def machine_name(device: Any) -> str:
    "`device` as a text; behind a GPU its name, so that rows of two kinds of GPU are not mixed."
    cuda = sys.modules["torch"].cuda if str(device).startswith("cuda") else None
    if cuda and cuda.is_available():
        return f"{device} ({cuda.get_device_name(device)})"
    return str(device)


def results_text(body: dict) -> str:
    """The results `body` as the text of a `results.json`: without blanks, and with a line for each fact, row
    and claim."""
    line = partial(json.dumps, separators=(",", ":"))
    facts = []
    for key, value in body.items():
        if key in ("rows", "claims"):
            text = "[\n" + ",\n".join(map(line, value)) + "\n]"
        else:
            text = line(value)
        facts.append(f"{line(key)}:{text}")
    return "{\n" + ",\n".join(facts) + "\n}\n"


class Rows:
    """What a run measured: rows (a method and a seed, with their numbers), in
    `out/NAME-PROFILE-SEED/results.json`.

    `sizes` is the chapter's `Profile`, `scale` says in words what was run on what, `device` is a GPU (kept
    with its name) or cpu. `clock` names the numbers, or whole rows, that no second run can repeat, such as
    times."""

    def __init__(
        self,
        name: str,
        profile: str,
        sizes: Profile | dict | None = None,
        seed: int = 0,
        out: str | Path = "runs",
        scale: str = "",
        device: Any = "cpu",
        changes: dict | None = None,
        clock: Iterable[str] = (),
    ):
        self.folder = run_dir(name, profile, seed, out, changes)
        numbers = (
            asdict(sizes) if isinstance(sizes, Profile) else dict(sizes or {})
        )
        facts = dict(
            name=name,
            profile=profile,
            seed=seed,
            scale=scale,
            device=machine_name(device),
            changes=changes or {},
            sizes=numbers,
            stamp=os.environ.get("FEDBOOK_STAMP", ""),
            level=float(os.environ.get("FEDBOOK_LEVEL", 0.95)),
        )
        if "FEDBOOK_DRY" in os.environ:
            facts["dry"] = True
        self.facts: dict[str, Any] = json.loads(json.dumps(facts))
        self.rows: list[dict] = []
        self.claims: list[dict] = []
        self.headline = ""
        self.clock = list(clock)
        self._asked: set[tuple] = set()
        self._keep_old_rows()

    def _keep_old_rows(self):
        try:
            old = json.loads((self.folder / "results.json").read_text())
        except (OSError, ValueError):
            return
        other = ["all"]
        if isinstance(old, dict):
            other = [k for k, v in self.facts.items() if old.get(k) != v]
        if "scale" in other and old.get("seeded") == "more seeds":
            other.remove("scale")
        if self.facts["stamp"] and not other:
            self.rows = old["rows"]
        elif self.facts["stamp"] and other != ["all"] and old.get("seeded"):
            fact = other[0]
            was = old.get(fact)
            now = self.facts[fact]
            raise UserError(
                f"the kept rows are of {fact}={was!r}, this run has {now!r}"
            )

    def row(self, what: str, seed: int, measure: Callable[[], dict]) -> dict:
        """The numbers (a dict that JSON can hold) of `what` with `seed`: as kept from before, else
        `measure()`, timed and written at once. A kept row that is marked `again` is measured once more, in
        its place."""
        asked = what, seed
        self._asked.add(asked)
        places = [(row["what"], row["seed"]) for row in self.rows]
        at = len(places)
        if asked in places:
            at = places.index(asked)
        if at < len(self.rows) and not self.rows[at].get("again"):
            return self.rows[at]["numbers"]
        start = clock()
        numbers = measure()
        seconds = round(clock() - start, 2)
        row = dict(what=what, seed=seed, numbers=numbers, seconds=seconds)
        self.rows[at : at + 1] = [row]
        self.save()
        return numbers

    def values(self, what: str, number: str) -> list:
        "One number of a row, over its seeds, in the order they were run."
        return [
            row["numbers"][number] for row in self.rows if row["what"] == what
        ]

    def checkpoint_path(self, what: str, seed: int) -> Path | None:
        """Where `what` with `seed` may keep its checkpoint; None in an open notebook, where code may have
        changed since."""
        if not self.facts["stamp"]:
            return None
        about = json.dumps([what, seed, self.facts])
        digest = hashlib.sha256(about.encode()).hexdigest()[:12]
        name = re.sub(r"[^a-zA-Z0-9]+", "-", what)
        return self.folder / f"{name}-{digest}.safetensors"

    def save(self) -> None:
        "Write `results.json`, whole or not at all."
        body = dict(
            self.facts,
            headline=self.headline,
            clock=self.clock,
            rows=self.rows,
            claims=self.claims,
        )
        write_atomically(self.folder / "results.json", results_text(body))

    def finish(self, headline: str) -> None:
        """Keep `headline`, the sentence that the command's table shows, and print it. Rows from before that
        this run did not ask for go."""
        self.headline = headline
        self.rows = [
            row
            for row in self.rows
            if (row["what"], row["seed"]) in self._asked
        ]
        self.save()
        print(headline)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.folder.name}: {len(self.rows)} rows, {len(self.claims)} claims)"
