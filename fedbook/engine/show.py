"""What a notebook or a terminal shows: tables, progress, bytes, the look of figures."""

import json
import math
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import stdev
from typing import Any

from fedbook.engine.errors import needs


_LINUX = hasattr(os, "memfd_create")
_board = os.memfd_create("said") if _LINUX else -1  # forked workers share it
_own_board: list[bytes] = []  # elsewhere nothing is forked


@lru_cache(maxsize=None)
def say_once(sentence: str, stamp: str = "") -> None:
    """Print `sentence` once, by whichever comes first of this process and its forked workers. `stamp` is what
    of it stands with the results of the run."""
    if sentence in (said for _, said, _ in _on_board()):
        return
    me = threading.get_native_id()
    _pin([me, sentence, stamp])
    first = next(who for who, said, _ in _on_board() if said == sentence)
    if first == me:
        print(sentence, flush=True)


def stamps() -> list[str]:
    "What stands with the results of a run, of all that was said so far, each once."
    return sorted({stamp for *_, stamp in _on_board() if stamp})


def _pin(note):
    line = json.dumps(note).encode() + b"\n"
    if _LINUX:
        os.write(_board, line)
    else:
        _own_board.append(line)


def _on_board():
    "The notes in the order in which they came: who said what, and its stamp."
    text = b"".join(_own_board)
    if _LINUX:
        text = os.pread(_board, os.fstat(_board).st_size, 0)
    return [json.loads(line) for line in text.splitlines()]


COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)


def style() -> None:
    """Set matplotlib to the course's look: fonts of 9 pt and more, Okabe-Ito colours, no frame where there is
    no data."""
    needs("matplotlib")
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=COLOURS),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "axes.labelsize": 10,
            "font.size": 10,
            "legend.fontsize": 9,
            "legend.frameon": False,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "figure.dpi": 100,
            "figure.constrained_layout.use": True,
        }
    )


class Markdown(str):
    "A text that a notebook shows as Markdown, and a terminal as it is."

    def _repr_markdown_(self) -> str:
        return str(self)


class Table(list):
    "A list of dicts with the same keys that a notebook shows as a Markdown table, whatever its cells hold."

    def _repr_markdown_(self) -> str:
        if not self:
            return "(empty)"
        head = [_in_cell(name) for name in self[0]]
        lines = [head, ["---"] * len(head)]
        for row in self:
            lines.append([_in_cell(v) for v in row.values()])
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _in_cell(value):
    "The text of a `value` in a cell of a Markdown table: it ends no cell and opens no tag."
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", r"\|").replace("<", "&lt;").replace("\n", " ")


def _in_notebook():
    "Whether a Jupyter kernel runs this that somebody has opened by hand."
    if "IPython" not in sys.modules or "FEDBOOK_STAMP" in os.environ:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell.__class__.__name__ == "ZMQInteractiveShell"


def progress(
    iterable: Iterable,
    label: str = "",
    total: int | None = None,
    initial: int = 0,
) -> Any:
    """A progress bar over `iterable`, which is gone when it is done: a widget in an open notebook, else a
    line on stderr. `total` and `initial` count what there is and what was done before."""
    if _in_notebook():
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm
    return tqdm(
        iterable,
        desc=label,
        total=total,
        initial=initial,
        leave=False,
        mininterval=0.5,
    )


def bytes_text(n: float) -> str:
    "`n` bytes for a reader: 512 B, 1.5 kB, 3.2 MB (powers of 1000)."
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= 0.9995 * size:
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f} B"


def one_line(text: Any, most: int = 500) -> str:
    """`text` (or an error, which may fail to say what it is) as one line that any terminal can show, of at most
    `most` characters."""
    try:
        words = str(text).split()
    except Exception:
        return f"(a {type(text).__name__} that cannot be printed)"
    line = " ".join(words)
    line = line if len(line) <= most else f"{line[:most - 1]}…"
    return "".join(c if c.isprintable() else "?" for c in line)


def spread(values: Sequence[float], unit: str = "") -> str:
    "`values` as text: mean and standard deviation over seeds, with their number."
    mean = math.fsum(values) / len(values)
    scale = 100 if unit == "%" else 1
    unit = f" {unit}" if unit else ""
    if len(values) == 1:
        return f"{scale * mean:.3g}{unit} (1 seed)"
    deviation = stdev(map(float, values))
    return f"{scale * mean:.3g} ± {scale * deviation:.2g}{unit} ({len(values)} seeds)"


def boxes(ax: Any, places: dict[str, tuple[float, float, str]], arrows: Sequence[tuple[str, str]]) -> None:
    """Draw texts in boxes on the matplotlib axes `ax`, at `places`, a dict from text to (x, y, colour), and arrows
    between them: `arrows` are pairs of texts."""
    drawn = {}
    for text, (x, y, colour) in places.items():
        look = {"boxstyle": "round,pad=0.4", "fc": "white", "ec": colour, "lw": 1.5}
        drawn[text] = ax.text(x, y, text, ha="center", va="center", fontsize=9, bbox=look)
    for start, end in arrows:
        look = {"arrowstyle": "-|>", "lw": 1.2, "color": "grey", "shrinkA": 3, "shrinkB": 3}
        look |= {"patchA": drawn[start].get_bbox_patch(), "patchB": drawn[end].get_bbox_patch()}
        ax.annotate("", xy=places[end][:2], xytext=places[start][:2], arrowprops=look)
    ax.axis("off")


def lanes(
    ax: Any, who: tuple[str, str], crossings: Sequence[tuple[str, str, bool]]
) -> None:
    """Draw two time lines, named `who` (left, right), on the matplotlib axes
    `ax`, and from top to bottom what crosses between them: `crossings` are
    (text above, text below, whether it goes right). Crossing n lies at
    height n, the lines at 0 and 1."""
    for x, name in enumerate(who):
        ax.plot([x, x], [0.3, len(crossings) + 0.7], color="grey", lw=1)
        ax.text(x, 0, name, ha="center", weight="bold")
    for n, (above, below, right) in enumerate(crossings, 1):
        colour = COLOURS[0 if right else 1]
        look = {"arrowstyle": "-|>", "color": colour, "lw": 1.8}
        ax.annotate("", (right, n), (1 - right, n), arrowprops=look)
        ax.text(0.5, n - 0.08, above, ha="center", va="bottom")
        ax.text(0.5, n + 0.1, below, ha="center", va="top", fontsize=9)
    ax.set(xlim=(-0.45, 1.45), ylim=(len(crossings) + 0.8, -0.3))
    ax.axis("off")
