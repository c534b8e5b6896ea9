"""What runs measured, kept: a row for each method and seed, in `results.json`, that is not measured twice."""

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedbook.engine.devices import clock
from fedbook.engine.errors import UserError
from fedbook.engine.files import (
    append_line,
    locked,
    run_dir,
    write_atomically,
)
from fedbook.engine.show import stamps
from fedbook.engine.sizes import Profile, whole_number


_NETWORKS = "networks"  # in `made_with`, where there is something to say of them


def machine_name(device: Any) -> str:
    "`device` as a text; behind a GPU its name, so that rows of two kinds of GPU are not mixed."
    cuda = sys.modules["torch"].cuda if str(device).startswith("cuda") else None
    if cuda and cuda.is_available():
        return f"{device} ({cuda.get_device_name(device)})"
    return str(device)


def made_with() -> dict[str, str]:
    "Return what numbers depend on beside the code: the versions of Python, torch and numpy, and the processor."
    versions = {name: version(name) for name in ("torch", "numpy")}
    return dict(
        python=platform.python_version(), **versions, processor=_processor()
    )


def _processor() -> str:
    try:
        facts = Path("/proc/cpuinfo").read_text()
    except OSError:
        facts = ""
    named = re.search(r"model name\s*: (.+)", facts)
    return named[1] if named else platform.processor() or platform.machine()


def _line(value):
    "`value` as JSON in one line, without blanks; numbers of NumPy and PyTorch as plain ones."
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"{value!r:.60} is a {type(value).__name__}, which JSON cannot hold"
    )


def results_text(body: dict) -> str:
    """The results `body` as the text of a `results.json`: without blanks, and with a line for each fact, row
    and claim."""
    facts = []
    for key, value in body.items():
        if key in ("rows", "claims"):
            text = "[\n" + ",\n".join(map(_line, value)) + "\n]"
        else:
            text = _line(value)
        facts.append(f"{_line(key)}:{text}")
    return "{\n" + ",\n".join(facts) + "\n}\n"


def journal_of(path: str | Path) -> Path:
    """The file beside the results file at `path` that takes rows and claims while the run goes on, one a
    line, below the `results_mark` of the text that they go with."""
    return Path(path).with_suffix(".jsonl")


def results_mark(text: str) -> str:
    "The line with which the journal of a results file with this `text` begins."
    return json.dumps(hashlib.sha256(text.encode()).hexdigest())


def results_body(path: str | Path) -> Any:
    """What the results file at `path` holds, with the rows and claims of its journal: all that was measured,
    also of a run that goes on or was killed. Raises `OSError` if there is no such file, `ValueError` if it is
    not JSON."""
    return _body_and_mark(Path(path))[0]


def _body_and_mark(path):
    "The `results_body` and the `results_mark` of a results file."
    text, lines = _text_and_lines(path)
    mark = results_mark(text)
    body = json.loads(text)
    if lines[:1] == [mark]:
        _play(body, lines[1:])
    return body, mark


def _text_and_lines(path):
    "A results file and the lines of its journal, as they were at one time."
    text = path.read_text(encoding="utf-8")
    while True:
        try:
            journal = journal_of(path).read_bytes()
        except FileNotFoundError:
            journal = b""
        again = path.read_text(encoding="utf-8")
        if again == text:
            return text, journal.decode(errors="replace").split("\n")
        text = again


def _play(body, lines):
    "Put the rows and claims of a journal's `lines` into `body`; a line that was cut off counts as none."
    rows = {_key(row): row for row in body["rows"]}
    for line in lines:
        try:
            kind, value = json.loads(line)
        except ValueError:
            continue
        if kind == "row":
            rows[_key(value)] = value
        else:
            body["claims"] = _with_claim(body["claims"], value)
    body["rows"] = list(rows.values())


def _with_claim(claims, new):
    return [c for c in claims if c["claim"] != new["claim"]] + [new]


def defaults_of(sizes: Any) -> dict[str, Any]:
    "The defaults of the fields of `sizes`, as JSON holds them; none where that is no `Profile`."
    if not isinstance(sizes, Profile):
        return {}
    found = {f.name: f.default for f in fields(sizes) if f.default is not MISSING}
    return json.loads(json.dumps(found))


def _key(row):
    return row["what"], row["seed"]


def _keys(rows):
    return set(map(_key, rows))


def paired(first: dict[int, Any], second: dict[int, Any]) -> list:
    "Return the numbers of `first` minus those of `second` (seed to number), for common seeds, by rising seed."
    both = sorted(first.keys() & second.keys())
    return [first[seed] - second[seed] for seed in both]


class Rows:
    """What a run measured: rows (a method and a seed, with their numbers), in
    `out/NAME-PROFILE-SEED/results.json`. Rows that come while it goes on lie in a journal beside it
    (`journal_of`) until `save` or `finish`; `results_body` reads both.

    Several may write into one folder, also from several processes: each keeps the rows of the others.
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
        seed = whole_number("seed", seed, least=0)
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
        self._defaults = defaults_of(sizes)
        self.made_with = made_with()
        self.rows: list[dict] = []
        self.claims: list[dict] = []
        self.headline = ""
        self.clock = list(clock)
        self._asked: set[tuple] = set()
        self._before: set[tuple] = set()
        self.file = self.folder / "results.json"
        self._saved: Any = None
        self._keep_old_rows()

    @classmethod
    def read(cls, path: str | Path) -> "Rows":
        """Return the rows and claims of the results file at `path`. `save` writes them back there. Raises
        `OSError` if there is no such file."""
        body = results_body(path)
        kept = cls.__new__(cls)
        kept.file = Path(path)
        kept.folder = kept.file.parent
        kept._asked = set()
        kept._saved = None
        kept._defaults = {}
        for name in ("made_with", "rows", "claims", "headline", "clock"):
            setattr(kept, name, body.pop(name, {}))
        kept._before = _keys(kept.rows)
        kept.facts = body
        return kept

    def _on_disk(self):
        "What `results.json` and its journal hold, and its mark; {} where it is missing, or holds no rows."
        try:
            body, mark = _body_and_mark(self.file)
            _keys(body["rows"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}, ""
        return body, mark

    def _other_facts(self, body):
        """The facts on which rows depend in which `body` differs; a size that it lacks was not there yet, and counts
        as its default."""
        kept = dict(body)
        if isinstance(body.get("sizes"), dict):
            kept["sizes"] = {**self._defaults, **body["sizes"]}
        return [k for k, v in self._facts_of_rows().items() if kept.get(k) != v]

    def _facts_of_rows(self):
        "The facts on which rows depend: all but the level of the claims' intervals."
        return {k: v for k, v in self.facts.items() if k != "level"}

    def _keep_old_rows(self):
        old, _ = self._on_disk()
        if not old:
            return
        self._before = _keys(old["rows"])
        other = self._other_facts(old)
        if "scale" in other and old.get("seeded") == "more seeds":
            other.remove("scale")
        if self.facts["stamp"] and not other:
            self.rows = old["rows"]
            before = old.get("made_with", {})
            for name, now in self.made_with.items():
                was = before.get(name, now)
                if was != now:
                    self.made_with[name] = f"{was}, then {now}"
            if _NETWORKS in before:
                self.made_with[_NETWORKS] = before[_NETWORKS]
        elif self.facts["stamp"] and old.get("seeded"):
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
        for row in self.rows:
            if _key(row) == asked and not row.get("again"):
                return row["numbers"]
        start = clock()
        numbers = measure()
        self._note_networks()
        seconds = round(clock() - start, 2)
        row = dict(what=what, seed=seed, numbers=numbers, seconds=seconds)
        places = list(map(_key, self.rows))
        at = places.index(asked) if asked in places else len(places)
        self.rows[at : at + 1] = [row]
        self._add("row", row)
        return numbers

    def add_claim(self, claim: dict) -> None:
        "Keep `claim` (a dict with its text under `claim`) in place of one with its text, and write it at once."
        self.claims = _with_claim(self.claims, claim)
        self._add("claim", claim)

    def by_seed(self, what: str, number: str) -> dict[int, Any]:
        "Return the `number` of the row `what` for each of its seeds, by rising seed: seed to number."
        rows = [row for row in self.rows if row["what"] == what]
        rows.sort(key=lambda row: row["seed"])
        return {row["seed"]: row["numbers"][number] for row in rows}

    def values(self, what: str, number: str) -> list:
        "Return the `number` of the row `what`, one for each of its seeds, by rising seed."
        return list(self.by_seed(what, number).values())

    def difference(self, what: str, minus: str, number: str) -> list:
        """Return the `number` of the row `what` minus that of the row `minus`, paired by seed, by rising
        seed; empty if neither row was measured. Raises `UserError` if the two have unlike seeds."""
        first = self.by_seed(what, number)
        second = self.by_seed(minus, number)
        if first.keys() != second.keys():
            raise UserError(
                f"row {what!r} has the seeds {list(first)} and row {minus!r} "
                f"{list(second)}, expected equal ones; measure the missing"
            )
        return paired(first, second)

    def gain(self, what: str, minus: str, number: str) -> list:
        "Return the `difference` of the two rows; empty also where only one of them was measured."
        if not (self.values(what, number) and self.values(minus, number)):
            return []
        return self.difference(what, minus, number)

    def common_difference(self, what: str, minus: str, number: str) -> list:
        """Return the `number` of the row `what` minus that of the row `minus`, paired by seed, by rising
        seed, for the seeds that both have."""
        return paired(self.by_seed(what, number), self.by_seed(minus, number))

    def checkpoint_path(self, what: str, seed: int) -> Path | None:
        """Where `what` with `seed` may keep its checkpoint; None in an open notebook, where code may have
        changed since."""
        if not self.facts["stamp"]:
            return None
        about = json.dumps([what, seed, self._facts_of_rows()])
        digest = hashlib.sha256(about.encode()).hexdigest()[:12]
        name = re.sub(r"[^a-zA-Z0-9]+", "-", what)
        return self.folder / f"{name}-{digest}.safetensors"

    def save(self) -> None:
        "Write `results.json`, whole or not at all, with the rows that another run has written meanwhile."
        with locked(self.folder.parent):
            self._save()

    def _save(self):
        body, _ = self._on_disk()
        self._take_in(body)
        facts = dict(self.facts, **self._about())
        body = dict(facts, rows=self.rows, claims=self.claims)
        text = results_text(body)
        write_atomically(self.file, text)
        journal_of(self.file).unlink(missing_ok=True)
        self._saved = self._place(), results_mark(text), self._about()

    def _about(self):
        "What a journal does not take: a change of it is a reason to write all anew."
        return dict(
            made_with=dict(self.made_with),
            headline=self.headline,
            clock=list(self.clock),
        )

    def _place(self):
        "Which file lies at `results.json` now: another number means that somebody wrote it."
        try:
            found = self.file.stat()
        except OSError:
            return None
        return str(self.file), found.st_ino, found.st_mtime_ns, found.st_size

    def _add(self, kind, value):
        """Write a row or a claim at once: into the journal, so that a run writes each once, or, where what
        lies there is not this run's, with all others."""
        with locked(self.folder.parent):
            new = _key(value) if kind == "row" else None
            if not self._goes_on(new):
                return self._save()
            line = _line([kind, value])
            append_line(journal_of(self.file), self._saved[1], line)

    def _goes_on(self, new):
        "Whether what lies there lacks nothing of this run but the row whose key is `new`."
        if not self._saved or self._saved[2] != self._about():
            return False
        place = self._place()
        if place == self._saved[0]:
            return True
        body, mark = self._on_disk()
        if not body or self._other_facts(body):
            return False
        lacking = _keys(self.rows) - _keys(body["rows"])
        self._take_in(body)
        self._saved = place, mark, self._saved[2]
        return lacking <= {new}

    def _take_in(self, body):
        "Take in the rows that came to disk since this run began: those of another run with the same facts."
        if body and not self._other_facts(body):
            known = _keys(self.rows) | self._before
            self.rows += [row for row in body["rows"] if _key(row) not in known]

    def _note_networks(self):
        "Note what was said of the networks of this process and its workers: how they get their pictures."
        before = self.made_with.get(_NETWORKS, "").split("; ")
        said = {*before, *stamps()} - {""}
        if said:
            self.made_with[_NETWORKS] = "; ".join(sorted(said))

    def finish(self, headline: str) -> None:
        """Keep `headline`, the sentence that the command's table shows, and print it. Rows from before that
        this run did not ask for go."""
        self.headline = headline
        gone = self._before - self._asked
        self.rows = [row for row in self.rows if _key(row) not in gone]
        self.save()
        print(headline)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.folder.name}: {len(self.rows)} rows, {len(self.claims)} claims)"
