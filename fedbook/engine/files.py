"""Folders of runs, and files that are never half written."""

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbook.engine.errors import UserError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

_LONGEST = 120  # bytes of a run's name without its hash; 255 are allowed


def run_name(
    name: str, profile: str, seed: int, changes: dict | None = None
) -> str:
    """`NAME-PROFILE-SEED`, and behind it the `changes` to the profile; of a name, `/` becomes a dot. A path
    counts whole, wherever the run is started. Where letters had to go, a hash of all of it comes last, so
    that no two runs have one name."""
    whole = {k: _whole_path(k, v) for k, v in (changes or {}).items()}
    parts = [name.replace("/", "."), profile, str(seed)]
    for field, value in whole.items():
        parts.append(f"{field}={value}")
    text = "-".join(parts)
    plain = re.sub(r"[^\w.=,-]", "_", text)
    if plain == text and len(text.encode()) <= _LONGEST:
        return text
    digest = hashlib.sha256(json.dumps([parts]).encode()).hexdigest()[:12]
    short = plain.encode()[:_LONGEST].decode(errors="ignore")
    return f"{short}-{digest}"


def _whole_path(field, value):
    "`value` as an absolute path, if it is a path: it has a separator, or is the `data` that lies here."
    if not isinstance(value, str | Path) or not str(value):
        return value
    here = field == "data" and Path(value).exists()
    if not here and not re.search(r"[/\\]", str(value)):
        return value
    return os.path.abspath(Path(value).expanduser())


def runs_folder(out: str | Path = "runs") -> Path:
    """The folder of runs that `out` means: a relative one lies in the working folder, but beside the folder
    of the chapters where one was opened there."""
    here = Path.cwd()
    for folder in (here, here.parent):
        if (folder / "00_start.ipynb").exists():
            return folder.parent / out
    return here / out


def run_dir(
    name: str,
    profile: str,
    seed: int,
    out: str | Path = "runs",
    changes: dict | None = None,
) -> Path:
    "The folder `out/run_name(...)`, made if it is not there. Raises `UserError` where it cannot be written."
    folder = runs_folder(out) / run_name(name, profile, seed, changes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"out={str(out)!r} cannot be written ({error.strerror}); "
            "choose another folder with --out"
        ) from None
    return folder


@contextmanager
def locked(folder: str | Path, wait: bool = True) -> Iterator[None]:
    """Keep other processes that ask for `folder` out meanwhile: they wait, or with `wait=False` raise
    `UserError`. A process that dies lets go. Where a disk knows no locks, nobody is kept out."""
    if fcntl is None:
        yield
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(place)
        raise UserError(
            f"another process is at work in {str(folder)!r}; wait until it ends, or choose "
            "another folder with --out"
        ) from None
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(place)


def write_atomically(path: str | Path, data: bytes | str) -> None:
    """Write `data` to `path` so that a reader, or a power cut, sees the old file or the new one, never half.
    Raises `UserError` if the disk is full."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        _say_full(path, error)
        raise


def _say_full(path, error):
    "Raise `UserError` if `error` says that the disk of `path` is full."
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        raise UserError(
            f"the disk is full: {path.name} does not fit into {str(path.parent)!r}; make room "
            "there, or choose another disk with --out, and run the same command again"
        ) from None


def append_line(path: str | Path, first: str, line: str) -> None:
    """Write `line` to the end of the file at `path`, which begins with the line `first`: one that begins
    otherwise is written anew. It is on disk when this returns. A line that was cut off before is closed, so
    that this one stands alone. Raises `UserError` if the disk is full."""
    path = Path(path)
    head = f"{first}\n".encode()
    with open(path, "ab+") as file:
        file.seek(0)
        if file.read(len(head)) != head:
            file.truncate(0)
        place = file.seek(0, os.SEEK_END)
        try:
            file.write(b"\n" if place else head)
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        except BaseException as error:
            os.ftruncate(file.fileno(), place)
            _say_full(path, error)
            raise
