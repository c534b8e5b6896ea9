"""Folders of runs, and files that are never half written."""

import errno
import os
import re
from pathlib import Path

from fedbook.engine.errors import UserError


def run_name(
    name: str, profile: str, seed: int, changes: dict | None = None
) -> str:
    "`NAME-PROFILE-SEED`, and behind it the `changes` to the profile; of a name, `/` becomes a dot."
    parts = [name.replace("/", "."), profile, str(seed)]
    for field, value in (changes or {}).items():
        parts.append(f"{field}={value}")
    text = "-".join(parts)
    return re.sub(r"[^\w.=,-]", "_", text)


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
        if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"the disk is full: {path.name} does not fit into {str(path.parent)!r}; make room "
            "there, or choose another disk with --out, and run the same command again"
        ) from None
