"Pictures of your own, read before a run starts as its chapter will read them, so that what is wrong comes first."

import math
import re
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedbook.datasets.folders import pictures, reid_folder
from fedbook.datasets.reading import check_pictures
from fedbook.datasets.split import by_class, by_group, class_stream, dirichlet
from fedbook.datasets.squares import side_of
from fedbook.datasets.streets import own_street
from fedbook.datasets.world import Pictures, Selected
from fedbook.engine.errors import UserError
from fedbook.methods.reid import own_sites


def check_own(sizes: Any, offered: Collection[str]) -> list[str]:
    """Return what has to be said of the pictures at the path that `sizes` name as `data`: what is left out,
    and what is resized. `offered` are the data that the chapter's own profiles name, which tell its kind. Raises
    `UserError` where the chapter cannot take them, and where some cannot be read."""
    path = sizes.data
    try:
        return _said_of(path, sizes, offered)
    except UserError as error:
        raise UserError(re.sub("^path=", "data=", str(error))) from None


def _said_of(path: str, sizes: Any, offered: Collection[str]) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        sets = _read(path, sizes, offered)
        files = dict.fromkeys(file for data in sets for file in _files(data))
        check_pictures(list(files), Path(path).name)
        if not {"rendered", "people"} & set(offered):
            _check_classes(path, sizes, sets[0])
    return list(dict.fromkeys(str(warning.message) for warning in said))


def _read(path: str, sizes: Any, offered: Collection[str]) -> list[Pictures]:
    "The pictures at `path`, lazily, as chapters on streets, on people or on classes read them."
    if "rendered" in offered:
        clients = getattr(sizes, "clients", 1)
        rng = np.random.default_rng(0)
        server, edge, tests = own_street(path, clients, sizes.server_images, rng)
        return [server, *edge, *tests.values()]
    if "people" in offered:
        parts = ("train", "query", "gallery")
        return [reid_folder(site, part) for site in own_sites(path) for part in parts]
    return [pictures(path, split) for split in ("train", "test")]


def _check_classes(path: str, sizes: Any, train: Pictures) -> None:
    "Raise `UserError` where `train`, the pictures at `path` to train with, are too few for the `sizes`."
    if len(train.classes) < 2:
        raise UserError(f"data={path!r} has one class, expected two or more: a folder for each")
    for name in ("clients", "farms"):
        asked = getattr(sizes, name, 0)
        counts = asked if isinstance(asked, tuple) else (asked,)
        fitting = [n for n in counts if n <= len(train)] or [len(train)]
        if max(counts) > len(train):
            raise UserError(
                f"{train.name} has {len(train)} pictures to train with, too few for {name}={asked}; "
                f"choose fewer, such as -p {name}={','.join(map(str, fitting))}"
            )
    split = getattr(sizes, "split", "")
    if split == "domain":
        by_group(train.domains(), sizes.clients, 0)
    if split == "skew" and math.isfinite(sizes.alpha):
        dirichlet(train.labels, sizes.clients, sizes.alpha, 0)
    if split == "class":
        by_class(train.labels, sizes.clients, 0)
    if hasattr(sizes, "tasks"):
        class_stream(len(train.classes), sizes.tasks, sizes.order)
    if hasattr(sizes, "side"):
        side_of(path, sizes.side)


def _files(data: Pictures) -> Iterable[Path]:
    "The files of lazy pictures; none where they were decoded."
    images: Any = data.images
    if isinstance(images, Selected):
        return [images.images.paths[i] for i in images.indices]
    return getattr(images, "paths", [])
