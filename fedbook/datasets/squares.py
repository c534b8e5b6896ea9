"Pictures of any shape for networks that take squares of one size; each file is decoded once a process."

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import interpolate

from ..engine.show import progress
from ..engine.sizes import is_path
from .folders import pictures
from .world import Pictures, size_at

SIDE = 32  # of pictures that have to be brought to one size
MOST = 128  # the largest side of squares that stay as they are


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


def square_pictures(name: str, split: str) -> Pictures:
    """Return `pictures(name, split)` for a network that takes squares of one size. Pictures of your own, at a
    path, are decoded once a process: as they are, where training and test hold squares of one size of at most
    128 pixels, else each is `squared` to 32 pixels, which is said once. Callers share one object and must not
    write into it."""
    return _own(name)[split] if is_path(name) else pictures(name, split)


@lru_cache(maxsize=2)
def _own(name):
    "The pictures at the path `name`, a dict from train and test to decoded `Pictures`."
    both = {split: pictures(name, split) for split in ("train", "test")}
    sizes = [
        size_at(data.images, i)
        for data in both.values()
        for i in range(len(data))
    ]
    side = _side(both["train"].name, sizes)
    return {
        split: replace(data, images=_decoded(data, side))
        for split, data in both.items()
    }


def _side(name, sizes):
    "The side of the squares that pictures of these `sizes` become."
    kinds = sorted(set(sizes))
    (low, first), (high, last) = kinds[0], kinds[-1]
    if len(kinds) == 1 and low == first <= MOST:
        return low
    between = "of" if len(kinds) == 1 else f"from {first} x {low} to"
    warnings.warn(
        f"{name}: {len(sizes)} pictures {between} {last} x {high} pixels (width x height) are resized to "
        f"{SIDE} x {SIDE}; what is over on the longer side is cut off",
        stacklevel=4,
    )
    return SIDE


def _decoded(data, side):
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
