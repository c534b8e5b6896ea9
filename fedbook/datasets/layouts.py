"Three layouts that people bring, and how to tell them: Pascal VOC, YOLO, and LEAF's JSON."

import math
import re
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..engine.errors import UserError, needs
from .reading import (
    PICTURES,
    json_body,
    picture_size,
    shown,
    text,
    visible_files,
    visible_folders,
)


class Labelled(NamedTuple):
    """A set for detection: names of its `classes`, and for each part (train and test, or all) a list of
    (file, (height, width) that the labels are for, [(x1, y1, x2, y2, class)])."""

    classes: list[str]
    parts: dict[str, list]


LAYOUTS = {
    "voc": "Pascal VOC (pictures in JPEGImages, boxes in Annotations)",
    "yolo": "YOLO (pictures in images, boxes in labels)",
    "leaf": "LEAF (JSON files with users and user_data)",
}


def layout_of(root: Path) -> str | None:
    "Return `voc`, `yolo` or `leaf` where the folder `root` is laid out so, else None."
    names = _folders_by_name(root).keys()
    if {"annotations", "jpegimages"} <= names:
        return "voc"
    inner = [_folders_by_name(part).keys() for part in _folders_of_parts(root)]
    if any({"images", "labels"} <= each for each in [names, *inner]):
        return "yolo"
    if _leaf_files(root, "train"):
        return "leaf"
    return None


def _folders(root):
    return visible_folders(root) if root.is_dir() else []


def _folders_by_name(root):
    "The visible folders in `root` by their names in small letters."
    return {folder.name.lower(): folder for folder in _folders(root)}


def _folders_of_parts(root):
    return [folder for folder in _folders(root) if _part_named(folder.name)]


def refuse_layout(root: Path) -> None:
    "Raise `UserError` that names the layout where the folder `root` is one of `LAYOUTS`."
    found = layout_of(root)
    if found:
        use = (
            ""
            if found == "leaf"
            else ", or give its path as data to detect or fedmox"
        )
        raise UserError(
            f"path={str(root)!r} is laid out as {LAYOUTS[found]}, and is no folder with a folder per class; "
            f"read it with pictures(..., layout={found!r}){use}"
        )


_PARTS = {
    "train": "train",
    "training": "train",
    "val": "test",
    "valid": "test",
    "validation": "test",
    "test": "test",
}


def _halves(named, root):
    """`named`, a dict from part to rows, as train and test (test, else val), or all in one where one of them
    is missing."""
    boxed = {
        name: rows for name, rows in named.items() if any(row[2] for row in rows)
    }
    filled = boxed or {name: rows for name, rows in named.items() if rows}
    if not filled:
        raise UserError(f"path={str(root)!r} holds no labelled pictures")
    train = next((filled[n] for n in ("train", "training") if n in filled), [])
    held = ("test", "val", "valid", "validation")
    tested = next((filled[name] for name in held if name in filled), [])
    if train and tested:
        return {"train": train, "test": tested}
    return {"all": [row for rows in filled.values() for row in rows]}


# ---- Pascal VOC


def voc(root: Path) -> Labelled:
    """Return the set in the folder `root` with Annotations (XML) and JPEGImages. Its parts are those of
    ImageSets/Main, where there are such lists. Pixels are counted from 1 in VOC, and from 0 here."""
    folders = _folders_by_name(root)
    files = visible_files(folders["annotations"], {".xml"})
    if not files:
        raise UserError(f"path={str(root)!r} has no Annotations/*.xml")
    places = visible_files(folders["jpegimages"], PICTURES)
    at = {place.stem: place for place in places}
    read = {file.stem: _voc_file(file, at) for file in files}
    names = sorted({box[4] for row in read.values() for box in row[2]})
    rows = {
        stem: (place, size, [(*box[:4], names.index(box[4])) for box in boxes])
        for stem, (place, size, boxes) in read.items()
    }
    lists = root / "ImageSets" / "Main"
    named = {part: _voc_list(lists / f"{part}.txt", rows) for part in _PARTS}
    if not any(named.values()):
        named = {"all": list(rows.values())}
    return Labelled(names, _halves(named, root))


def _voc_list(file, rows):
    if not file.is_file():
        return []
    stems = [
        line.split()[0] for line in text(file).splitlines() if line.split()
    ]
    return [rows[stem] for stem in stems if stem in rows]


def _voc_file(file, at):
    "(picture, (height, width), [(x1, y1, x2, y2, name)]) of one XML file."
    try:
        tree = xml.fromstring(text(file))
        size = tree.find("size")
        pixels = [int(_content(size, side)) for side in ("height", "width")]
        boxes = [_voc_box(thing) for thing in tree.iter("object")]
    except UserError:
        raise
    except (xml.ParseError, AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"{shown(file)} is not an annotation of Pascal VOC ({error}); write or fetch it again"
        ) from None
    named = Path(tree.findtext("filename") or "").stem
    place = at.get(file.stem) or at.get(named) or file.with_suffix(".jpg")
    return place, tuple(pixels), boxes


def _content(node, name):
    return node.findtext(name) if node is not None else None


def _voc_box(thing):
    corners = ("xmin", "ymin", "xmax", "ymax")
    x1, y1, x2, y2 = (
        float(_content(thing.find("bndbox"), c)) for c in corners
    )
    return x1 - 1, y1 - 1, x2, y2, thing.findtext("name").strip().lower()


# ---- YOLO


def yolo(root: Path) -> Labelled:
    """Return the set in the folder `root` with images and labels in it (perhaps with a folder per part in
    each), or with parts that have images and labels in them. Names of classes come from the `names` in a
    *.yaml file, from a classes.txt, or are numbers."""
    named: dict[str, list] = {}
    for images in _yolo_images(root):
        part = _yolo_part(images, root)
        named.setdefault(part, []).extend(_yolo_rows(images))
    rows = [box for each in named.values() for row in each for box in row[2]]
    names = _yolo_names(root, 1 + max((box[4] for box in rows), default=-1))
    return Labelled(names, _halves(named, root))


def _yolo_images(root):
    "The folders with pictures, each with labels of the same place."
    for folder in [root, *_folders_of_parts(root)]:
        top = _folders_by_name(folder).get("images")
        if top:
            yield from _folders_of_parts(top) or [top]


def _yolo_part(images, root):
    parts = images.relative_to(root).parts
    return next(filter(None, map(_part_named, parts)), "all")


def _part_named(folder):
    "The part that the name of a folder means, perhaps with a year behind it (train2017), else None."
    name = re.sub(r"[-_ ]?\d{2,4}$", "", folder.lower())
    return name if name in _PARTS else None


def _labels_in(folder):
    return _folders_by_name(folder).get("labels", folder / "labels")


def _yolo_rows(images):
    "(picture, (height, width), boxes) of each picture below the folder `images`."
    top = images if images.name.lower() == "images" else images.parent
    labels = _labels_in(top.parent) / images.relative_to(top)
    found = []
    for place in visible_files(images, PICTURES):
        file = labels / place.relative_to(images).with_suffix(".txt")
        size = picture_size(place)
        lines = text(file).splitlines() if file.is_file() else []
        boxes = [_yolo_box(line, size, file) for line in lines if line.strip()]
        found.append((place, size, boxes))
    return found


def _yolo_box(line, size, file):
    "The box of a `line` (class, middle and sides, or class and corners of an outline, as shares of `size`)."
    height, width = size
    try:
        number, *places = map(float, line.split())
    except ValueError:
        number, places = math.nan, []
    if not number >= 0 or len(places) < 4 or len(places) % 2:
        raise UserError(
            f"{shown(file)}: {line.strip()!r} is no line of YOLO, expected a class and four shares"
        )
    if len(places) == 4:
        x, y, w, h = places
        corners = x - w / 2, y - h / 2, x + w / 2, y + h / 2
    else:
        xs, ys = places[::2], places[1::2]
        corners = min(xs), min(ys), max(xs), max(ys)
    scale = (width, height, width, height)
    return *(c * s for c, s in zip(corners, scale)), int(number)


def _yolo_names(root, count):
    "The names of the classes, for labels up to `count`."
    listed = [*sorted(root.glob("*.yaml")), *sorted(root.glob("*.yml"))]
    lists = [root / "classes.txt", _labels_in(root) / "classes.txt"]
    names = next(filter(None, map(_yaml_names, listed)), None)
    if names is None:
        file = next((f for f in lists if f.is_file()), None)
        lines = text(file).splitlines() if file else []
        names = [line.strip() for line in lines if line.strip()]
    if not names:
        return [str(k) for k in range(count)]
    if count > len(names):
        raise UserError(
            f"path={str(root)!r} has labels of class {count - 1}, but names of {len(names)} classes"
        )
    return names


def _yaml_names(file):
    needs("yaml")
    import yaml

    try:
        names = yaml.safe_load(text(file)).get("names")
    except (yaml.YAMLError, AttributeError):
        return None
    if isinstance(names, dict):
        names = [names[key] for key in sorted(names)]
    return [str(name) for name in names] if names else None


# ---- LEAF


def _leaf_files(root, part):
    "The JSON files of `part` in `root`, or in its folder data, where the first looks like LEAF's."
    for folder in (root / part, root / "data" / part):
        files = visible_files(folder, {".json"}) if folder.is_dir() else []
        if files and b'"user_data"' in files[0].read_bytes():
            return files
    return []


class LeafPictures(NamedTuple):
    "Pictures (n, C, H, W) of uint8, int64 labels (n,) and the user of each."

    images: torch.Tensor
    labels: torch.Tensor
    users: list[str]


def leaf(root: Path, part: str) -> LeafPictures:
    """Return the pictures of `part` (train or test) of a set that LEAF wrote: JSON files with `user_data`, for
    each user `x`, pixels of a square picture, and `y`, numbers of classes. Raises `UserError` for texts, which
    are no pictures."""
    files = _leaf_files(root, part)
    if not files:
        raise UserError(
            f"path={str(root)!r} has no {part}/*.json as LEAF writes it; run LEAF's preprocess.sh with -t"
        )
    pixels, labels, users = [], [], []
    for file in files:
        for user, own in _leaf_users(file):
            pixels.extend(own["x"])
            labels.extend(own["y"])
            users.extend([user] * len(own["y"]))
    try:
        table = np.array(pixels, dtype=np.float64)
        numbers = torch.tensor(labels, dtype=torch.int64)
    except (TypeError, ValueError):
        table = np.empty(0)
    width = table.shape[1] if table.ndim == 2 else 0
    fits = [c for c in (1, 3) if width and width == c * _side(width, c) ** 2]
    if not fits or len(table) != len(labels):
        raise UserError(
            f"{shown(files[0])}: x must be pixels of square pictures, as many numbers in each, with a class in "
            "y for each; texts and names of files are not read"
        )
    channels, side = fits[0], _side(width, fits[0])
    top = 1 if table.max(initial=0) <= 1 else 255
    whole = (table.clip(0, top) * (255 / top)).round().astype(np.uint8)
    images = torch.from_numpy(whole).reshape(-1, side, side, channels)
    return LeafPictures(
        images.permute(0, 3, 1, 2).contiguous(), numbers, users
    )


def _side(numbers, channels):
    return math.isqrt(numbers // channels)


def _leaf_users(file):
    "(user, {x, y}) of each user in one of LEAF's files."
    body = json_body(file)
    data = body.get("user_data") if isinstance(body, dict) else None
    if isinstance(data, dict):
        sound = [
            isinstance(own, dict) and {"x", "y"} <= set(own)
            for own in data.values()
        ]
        if all(sound):
            return data.items()
    raise UserError(
        f"{shown(file)} has no user_data with x and y of each user"
    )
