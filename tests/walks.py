"""Dry walks of chapters in this process: the sizes of a profile, shrunk, on a folder of made-up data.

    python tests/walks.py paper 10_fedreplay 11_fedmox      # chapters at a profile, each in a clean process"""
import os
import sys
import tempfile
from pathlib import Path
from time import process_time

from fedbook.kit.runs import chapters, dry_names, encoders_of, made_up
from pretended import aside, run_chapter


def walk(path, profile, data, out, changes=None, whole=()):
    """What came of a dry walk of the chapter at `path`, as `Ran`. The fields `whole` do not shrink."""
    os.environ.update(dry_names(path, profile, data, changes, whole))
    return run_chapter(path, out, profile, plain=True)


if __name__ == "__main__":
    profile, *names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        data, start = Path(folder, "data"), process_time()
        data.mkdir()
        made_up(data, {each for name in names for each in encoders_of(chapters()[name])})
        print(f"made up in {process_time() - start:.1f} s")
        for name in names:
            ran = aside(walk, chapters()[name], profile, data, folder)
            print(f"{name}: {ran.seconds:.1f} s", *ran.failures, sep="\n    ", flush=True)
