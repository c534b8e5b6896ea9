"Pictures of any shape for networks that take squares of one size; each file is decoded once a process."

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any

import torch
from torch.nn.functional import interpolate

from ..engine.show import progress
from ..engine.sizes import Bounds, is_path
from .folders import pictures
from .world import Pictures, size_at

USUAL = 32  # the side of pictures of your own that have to be brought to one size
LEAST = 16  # the smallest side that the course's small networks take
MOST = 128  # the largest side of squares that stay as they are
ROOM = 2 * 10**9  # bytes that a named set may take decoded; a larger one stays lazy

Side = Annotated[int, Bounds(low=LEAST, off=0)]


def squared(x: torch.Tensor, side: int) -> torch.Tensor:
    """Return the picture `x`, uint8 (C, H, W), as uint8 (C, side, side): resized so that its shorter side is
    `side`, and the middle of its longer side."""
    _, height, width = x.shape
    if (height, width) == (side, side):
        return x
    scale = side / min(height, width)
    size = round(height * scale), round(width * scale)
    small = interpolate(x[None].float(), size, mode="bilinear", antialias=True)
    top, left = (size[0] - side) // 2, (size[1] - side) // 2
    middle = small[0, :, top : top + side, left : left + side]
    return middle.round().clamp(0, 255).to(torch.uint8)


@lru_cache(maxsize=4)
def square_pictures(name: str, split: str, side: int = 0) -> Pictures:
    """Return `pictures(name, split)` for a network that takes squares of one size, each `squared` to `side`.
    Where that is 0, those of a named set are as they are, and those at a path have the side that `side_of`
    finds. They are decoded once a process; a named set of more than `ROOM` bytes stays lazy. Callers share
    one object and must not write into it."""
    data = pictures(name, split)
    if is_path(name):
        side = side_of(name, side)
    images = _decoded(data, side) if side else _as_they_are(data)
    return replace(data, images=images)


@lru_cache(maxsize=4)
def side_of(name: str, side: int = 0) -> int:
    """Return the side of the squares that the pictures at the path `name` become: `side`, or where that is 0
    their own, if training and test hold squares of one size of 16 to 128 pixels, else 32. Where this changes
    a picture, it is said once."""
    both = [pictures(name, split) for split in ("train", "test")]
    sizes = [size_at(data.images, i) for data in both for i in range(len(data))]
    kinds = sorted(set(sizes))
    (low, first), (high, last) = kinds[0], kinds[-1]
    one = len(kinds) == 1 and low == first
    choice = "" if side else f" (-p side={2 * USUAL} takes larger ones)"
    side = side or (low if one and LEAST <= low <= MOST else USUAL)
    if one and low == side:
        return side
    between = "of" if len(kinds) == 1 else f"from {first} x {low} to"
    over = "" if one else "; what is over on the longer side is cut off"
    warnings.warn(
        f"{both[0].name}: {len(sizes)} pictures {between} {last} x {high} pixels (width x height) are resized to "
        f"{side} x {side}{choice}{over}",
        stacklevel=3,
    )
    return side


def _decoded(data, side):
    "The pictures of `data`, each `squared` to `side`."
    images: Sequence[Any] = data.images
    channels = 3
    if isinstance(images, torch.Tensor):
        channels = images.shape[1]
        if images.shape[2:] == (side, side):
            return images
    found = torch.empty(len(images), channels, side, side, dtype=torch.uint8)
    for i in progress(range(len(images)), f"reading {data.name}"):
        found[i] = squared(images[i], side)
    return found


def _as_they_are(data):
    "The pictures of `data`, decoded where they have one size and take at most `ROOM` bytes."
    images: Any = data.images
    if isinstance(images, torch.Tensor):
        return images
    shape = 3, *size_at(images, 0)
    if len(images) * math.prod(shape) > ROOM:
        return images
    found = torch.empty(len(images), *shape, dtype=torch.uint8)
    for i in progress(range(len(images)), f"reading {data.name}"):
        x = images[i]
        if x.shape != shape:
            return images
        found[i] = x
    return found
