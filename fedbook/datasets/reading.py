"One gate for each kind of file that people bring: pictures, folders of classes, texts, JSON and tables."

import codecs
import csv
import json
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..engine.errors import UserError, needs
from ..engine.show import progress

PICTURES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}
)
TABLES = frozenset({".csv", ".tsv"})


def shown(path: str | Path) -> str:
    "Return `path` as text for a reader, with `~` for the home folder."
    try:
        return str("~" / Path(path).relative_to(Path.home()))
    except ValueError:
        return str(path)


# ---- pictures

_ORIENTATION = 274  # EXIF's tag for how the camera was held
_UPRIGHT = 1
_LYING = (5, 6, 7, 8)


def picture(path: str | Path) -> torch.Tensor:
    """Return the picture file at `path` as viewers show it, uint8 (3, H, W): turned as its camera says, on
    white paper where it is transparent, and greys of 16 bits or of floats scaled to 0..255. Raises
    `UserError` that names the file where that cannot be."""
    image = _decoded(path)
    if image.mode.startswith(("I", "F")):
        greys = _scaled(np.asarray(image, np.float64), image.mode, path)
        return torch.from_numpy(greys).expand(3, -1, -1).contiguous()
    pixels = np.array(_on_paper(image).convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def check_pictures(paths: Collection[Path], name: str) -> None:
    """Raise `UserError` where some of the picture files at `paths`, those of a set called `name`, cannot be
    read to their ends: it counts them, and names the first three."""
    found = ((path, _fault(path)) for path in progress(paths, f"checking {name}"))
    faults = {path: fault for path, fault in found if fault}
    if len(faults) == 1:
        raise UserError(*faults.values())
    if faults:
        named = ", ".join(shown(path) for path in [*faults][:3])
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise UserError(
            f"{len(faults)} of {len(paths)} pictures of {name} cannot be read: {named}{more}; "
            "replace or remove them"
        )


def _fault(path):
    "Why the picture file at `path` cannot be read; empty if it can. A JPEG is read whole and made small."

    def whole(image):
        image.draft(None, (1, 1))
        image.load()

    try:
        _open(path, whole)
    except UserError as error:
        return str(error)
    return ""


def picture_size(path: str | Path) -> tuple[int, int]:
    "Return (height, width) of the picture file at `path` as `picture` would return it, from its head."
    height, width, turn = _head(path)
    return (width, height) if turn in _LYING else (height, width)


def upright_boxes(
    rows: list, size: tuple[int, int], path: Path
) -> tuple[list, tuple[int, int]]:
    """Return `rows` (x1, y1, x2, y2, label) as they lie in the picture at `path` once it is upright, and its
    (height, width). `size` is that which the file of labels states: where it is that of the stored pixels and
    not of the upright picture, the boxes are turned with it; where both are one, the labels are taken as
    upright. Raises `UserError` where it is neither."""
    height, width, turn = _head(path)
    stored = height, width
    upright = (width, height) if turn in _LYING else stored
    if size == upright:
        return rows, upright
    if size != stored:
        raise UserError(
            f"{shown(path)} has {width} x {height} pixels, but its labels are for {size[1]} x {size[0]}; "
            "the boxes would lie beside the things: take the picture that was labelled"
        )
    return [_turned(row, height, width, turn) for row in rows], upright


def _turned(row, height, width, turn):
    x1, y1, x2, y2, label = row
    if turn == 6:
        return height - y2, x1, height - y1, x2, label
    if turn == 8:
        return y1, width - x2, y2, width - x1, label
    if turn == 5:
        return y1, x1, y2, x2, label
    return height - y2, width - x2, height - y1, width - x1, label


def _open(path, use):
    "`use` of the opened picture at `path`, and one sentence for whatever Pillow says against it."
    needs("PIL")
    from PIL import Image

    try:
        with Image.open(path) as image:
            return use(image)
    except Image.DecompressionBombError:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise UserError(
            f"{shown(path)} has more than {most:,} pixels, the most that Pillow opens; "
            "make it smaller, or remove it"
        ) from None
    except (OSError, SyntaxError, ValueError, EOFError):
        raise UserError(
            f"{path} is not a picture that can be read; replace or remove it"
        ) from None


def _decoded(path):
    needs("PIL")
    from PIL import ImageOps

    def upright(image):
        image.load()
        turn = image.getexif().get(_ORIENTATION, _UPRIGHT)
        return image if turn == _UPRIGHT else ImageOps.exif_transpose(image)

    return _open(path, upright)


def _head(path):
    def facts(image):
        turn = image.getexif().get(_ORIENTATION, _UPRIGHT)
        return image.height, image.width, turn

    return _open(path, facts)


def _on_paper(image):
    "`image` on white, where it is transparent."
    from PIL import Image

    if (
        not {"A", "a"} & set(image.getbands())
        and "transparency" not in image.info
    ):
        return image
    paper = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(paper, image.convert("RGBA"))


def _scaled(greys, mode, path):
    """Greys of integers (0..65535) or of floats (0..1, 0..255 or 0..65535, the first that holds them) as
    bytes."""
    tops = (1, 255, 65535) if mode == "F" else (65535,)
    low, high = greys.min(), greys.max()
    top = next((top for top in tops if high <= top), None)
    if top is None or not low >= 0:
        raise UserError(
            f"{shown(path)} has greys from {low:g} to {high:g}, expected "
            f"0..{' or 0..'.join(map(str, tops))}; save it with 8 bits"
        )
    return (greys * (255 / top)).round().astype(np.uint8)


# ---- folders

_SYSTEM = {
    "__macosx",
    "__pycache__",
    "@eadir",
    "$recycle.bin",
    "system volume information",
    "lost+found",
    "thumbs.db",
    "desktop.ini",
}


def is_visible(path: Path, root: Path) -> bool:
    "Whether `path` is a person's, and not a hidden or a system's file, seen from the folder `root`."
    names = path.relative_to(root).parts
    return not any(n.startswith(".") or n.lower() in _SYSTEM for n in names)


def visible_files(
    folder: Path, endings: Collection[str] | None = None
) -> list[Path]:
    "Return the visible files below `folder`, at any depth, sorted: those with one of `endings`, or all."
    return [
        path
        for path in sorted(folder.rglob("*"))
        if endings is None or path.suffix.lower() in endings
        if is_visible(path, folder) and path.is_file()
    ]


def visible_folders(root: Path) -> list[Path]:
    "Return the visible folders in `root`, sorted."
    found = sorted(path for path in root.iterdir() if path.is_dir())
    return [path for path in found if is_visible(path, root)]


def composed(name: str) -> str:
    "Return `name` with each accent in one code point with its letter, whatever system wrote it."
    return unicodedata.normalize("NFC", name)


def files_by_class(
    root: Path, endings: Collection[str], what: str
) -> tuple[list[str], list[tuple[Path, int]]]:
    """Return the classes of the folder `root`, which has a folder per class, and (file, class) of each file
    with one of `endings`. `what` these are, in the plural, stands in the sentences.

    The classes are those of `listed_classes`. What is left out is said once: folders without such a file, and
    files of another kind."""
    folders = visible_folders(root)
    held = {folder: visible_files(folder) for folder in folders}
    fitting = {
        folder: [file for file in files if file.suffix.lower() in endings]
        for folder, files in held.items()
    }
    classes = listed_classes(root, [f for f in folders if fitting[f]], folders)
    rows = [
        (file, c)
        for c, name in enumerate(classes)
        for folder in folders
        if composed(folder.name) == name
        for file in fitting[folder]
    ]
    if rows:
        empty = [f.name for f in folders if composed(f.name) not in classes]
        others = [
            file.suffix.lower() or file.name
            for files in held.values()
            for file in files
            if file.suffix.lower() not in endings
        ]
        _say_left_out(root, empty, others, what)
    return classes, rows


def _say_left_out(root, folders, endings, what):
    parts = []
    if folders:
        parts.append(f"folders without {what} ({', '.join(folders)})")
    if endings:
        counts = Counter(endings).most_common(5)
        listed = ", ".join(f"{n} {ending}" for ending, n in counts)
        parts.append(f"files that are not read as {what} ({listed})")
    if parts:
        warnings.warn(
            f"{shown(root)}: left out are {' and '.join(parts)}", stacklevel=4
        )


def listed_classes(
    root: Path, full: Iterable[Path], folders: Iterable[Path]
) -> list[str]:
    """Return the classes of a folder `root` that has a folder per class: the names of the folders `full`, those
    that hold something, sorted. Where there is a `classes.txt` in `root`, or beside it, the names in that, one
    a line, with or without a number before them, in that order: a class of it may have no folder. Raises
    `UserError` where it does not list one of all `folders`."""
    places = (root / "classes.txt", root.parent / "classes.txt")
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        return sorted({composed(folder.name) for folder in full})
    found = {composed(folder.name) for folder in folders}
    listed = _class_list(file, found)
    if more := sorted(found - set(listed)):
        raise UserError(
            f"path={str(root)!r} holds a folder {more[0]!r}, which {shown(file)} does not list; it "
            "must list the classes of all, one a line"
        )
    return listed


def _class_list(file, found):
    "The names in the list `file`; numbers before them are taken off where the folders `found` ask for it."
    lines = [composed(line.strip()) for line in text(file).splitlines()]
    names = list(dict.fromkeys(filter(None, lines)))
    numbered = [re.fullmatch(r"\d+[\s,;:]+(.+)", name) for name in names]
    if found <= set(names) or not all(numbered):
        return names
    return list(dict.fromkeys(match[1] for match in numbered if match))


# ---- texts, JSON and tables

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def text(path: str | Path) -> str:
    """Return the text of the file at `path`: UTF-8 whatever the locale, or what its byte order mark says.
    Raises `UserError` for another encoding, and where there is no such file."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"{shown(path)} cannot be read ({error.strerror})"
        ) from None
    code = next((c for m, c in _MARKS.items() if raw.startswith(m)), "utf-8")
    try:
        return raw.decode(code)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{shown(path)} is not UTF-8 (byte {error.start} is {raw[error.start]:#x}); save it as UTF-8"
        ) from None


def json_body(path: str | Path) -> Any:
    "Return what the JSON file at `path` holds. Raises `UserError` where it cannot be read."
    body = text(path)
    try:
        return json.loads(body)
    except ValueError as error:
        raise UserError(
            f"{shown(path)} is not a JSON file that can be read ({error}); fetch it again"
        ) from None


_MISSING = {"", "na", "n/a", "nan", "null", "none"}
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")


def table(path: Path) -> tuple[list[str], np.ndarray]:
    """Return the names of the columns of the table at `path`, and its numbers, float64 (columns, lines); an
    empty place is NaN. Columns are parted by semicolons, tabs, commas or spaces; beside the first two a comma
    may stand in a number. Without a line of names they are called column 1, column 2 and so on, and a first
    column without a name that counts the lines (pandas writes one) is left out. Raises `UserError` that says
    where it is no such table."""
    lines = [line for line in text(path).splitlines() if line.strip()]
    if lines and lines[0].lower().startswith("sep="):
        lines = lines[1:]
    if not lines:
        raise UserError(f"{shown(path)} is empty, expected a table")
    mark = next((mark for mark in ";\t," if mark in lines[0]), None)
    if mark:
        rows = list(csv.reader(lines, delimiter=mark, skipinitialspace=True))
    else:
        rows = [line.split() for line in lines]
    first = [_number(field, mark) for field in rows[0]]
    if None in first or _are_counted(first):
        names, rows = [name.strip() for name in rows[0]], rows[1:]
    else:
        names = [f"column {k}" for k in range(1, len(first) + 1)]
    return _without_line_numbers(
        names, _numbers(names, rows, mark, path), path
    )


def _are_counted(first):
    "Whether the fields of a table's first line are 0, 1, 2 and so on, as pandas calls columns without names."
    numbers = [v for v in first if v is not None and not np.isnan(v)]
    blank = len(first) - len(numbers)
    return len(numbers) > 1 and blank <= 1 and numbers == [*range(len(numbers))]


def _number(field, mark):
    "`field` of a table as a number, NaN where it is missing, and None where it is something else."
    field = field.strip()
    if field.lower() in _MISSING:
        return np.nan
    if mark != "," and _DECIMAL_COMMA.fullmatch(field):
        field = field.replace(",", ".")
    try:
        return float(field)
    except ValueError:
        return None


def _numbers(names, rows, mark, path):
    "The `rows` of a table with columns `names` as float64 (columns, lines)."
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise UserError(
            f"{shown(path)} is not a table: its lines have {min(widths)} to {max(widths)} columns, expected "
            "as many in each"
        )
    if widths != {len(names)}:
        raise UserError(
            f"{shown(path)} has {len(names)} names and {max(widths, default=0)} columns of numbers, expected "
            "as many, and at least one line of numbers"
        )
    values = [[_number(field, mark) for field in row] for row in rows]
    for row, found in zip(rows, values):
        if None in found:
            k = found.index(None)
            raise UserError(
                f"{shown(path)}: {row[k]!r} in the column {names[k]!r} is no number; "
                "write a number there, or leave the column out"
            )
    return np.array(values, dtype=np.float64).T


def _without_line_numbers(names, numbers, path):
    nameless = [
        k for k, name in enumerate(names) if name in ("", "Unnamed: 0")
    ]
    if not nameless:
        return names, numbers
    if nameless == [0] and len(names) > 1 and (np.diff(numbers[0]) == 1).all():
        warnings.warn(
            f"{shown(path.parent)}: the first column of its tables has no name and counts the lines; "
            "it is left out",
            stacklevel=4,
        )
        return names[1:], numbers[1:]
    raise UserError(
        f"{shown(path)}: column {nameless[0] + 1} has no name, expected one"
    )
