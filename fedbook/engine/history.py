"""What a run measured: one row a round."""

import html
import json
import math
from collections.abc import Iterable
from typing import Any

from fedbook.engine.errors import needs, UserError


def _plain(name, value):
    """`value` as JSON knows it (tensors and arrays become numbers and lists); raises `UserError` where that
    cannot be."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(name, v) for v in value]
    if isinstance(value, dict) and all(type(k) is str for k in value):
        return {k: _plain(name, v) for k, v in value.items()}
    raise UserError(
        f"{name} is a {type(value).__name__}, expected a number, a text, None, or lists "
        "and dicts of these"
    )


def _mark(value):
    if isinstance(value, float) and not math.isfinite(value):
        return f"float:{value}"
    if isinstance(value, str) and value.startswith(("float:", "text:")):
        return f"text:{value}"
    if isinstance(value, list):
        return [_mark(v) for v in value]
    if isinstance(value, dict):
        return {k: _mark(v) for k, v in value.items()}
    return value


def _unmark(value):
    if isinstance(value, str) and value.startswith("float:"):
        return float(value[6:])
    if isinstance(value, str):
        return value.removeprefix("text:")
    if isinstance(value, list):
        return [_unmark(v) for v in value]
    if isinstance(value, dict):
        return {k: _unmark(v) for k, v in value.items()}
    return value


def _cell_text(value):
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _html_row(cells, tag="td"):
    marked = (f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
    return "<tr>" + "".join(marked) + "</tr>"


def _html_table(columns, rows, ends=3):
    "The first and last `ends` of `rows` (dicts) as an HTML table."
    body = []
    for row in rows:
        values = [row.get(name) for name in columns]
        body.append(_html_row(map(_cell_text, values)))
    if len(body) > 2 * ends + 1:
        gap = _html_row(["..."] * len(columns))
        body = body[:ends] + [gap] + body[-ends:]
    return f"<table>{_html_row(columns, 'th')}{''.join(body)}</table>"


class History:
    """What a run measured: `rows`, a list of dicts of JSON values, usually one per round.

    Tensors and arrays are kept as numbers and lists. Asking for an unknown column raises `UserError` with
    the known ones."""

    def __init__(self, rows: Iterable[dict] = ()):
        self.rows: list[dict] = []
        for row in rows:
            self.add(**row)

    def add(self, /, **row: Any) -> None:
        "Keep one more row, such as `add(round=3, accuracy=0.81)`."
        self.rows.append(
            {name: _plain(name, value) for name, value in row.items()}
        )

    def columns(self) -> list[str]:
        "Names of the columns, in the order in which they first came."
        names: dict[str, None] = {}
        for row in self.rows:
            names |= dict.fromkeys(row)
        return list(names)

    def column(self, name: str) -> list:
        "The values of one column, a list with one entry per row: None where a row lacks it."
        if name not in self.columns():
            raise UserError(
                f"column {name!r} is unknown; known are: {self._known()}"
            )
        return [row.get(name) for row in self.rows]

    def _known(self) -> str:
        return ", ".join(self.columns()) or "none yet"

    def last(self, name: str) -> Any:
        "The newest value of a column: that of the last row that has one."
        for value in reversed(self.column(name)):
            if value is not None:
                return value
        return None

    def to_json(self) -> str:
        "All rows as JSON text; `from_json` gives back exactly the same, NaN and infinities included."
        marked = _mark(self.rows)
        return json.dumps({"rows": marked}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "History":
        "The `History` that `to_json` wrote. Raises `UserError` for any other text."
        try:
            return cls(_unmark(json.loads(text)["rows"]))
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"text={text!r:.60} is not a history, expected what to_json wrote"
            ) from None

    def plot(self, *columns: str, x: str = "round") -> Any:
        "A figure with one curve per column over column `x`; rows without a number are skipped."
        needs("matplotlib")
        import matplotlib.pyplot as plt

        if not columns:
            raise UserError(
                f"columns=() is empty, expected some of: {self._known()}"
            )
        number = lambda v: isinstance(v, (int, float))
        curves = {}
        for name in columns:
            pairs = zip(self.column(x), self.column(name))
            curves[name] = [p for p in pairs if all(map(number, p))]
        fig, ax = plt.subplots(figsize=(6.5, 2.8))
        for name, points in curves.items():
            ax.plot(
                *zip(*points) if points else ([], []),
                marker="o",
                ms=4,
                label=name,
            )
        ax.set(xlabel=x, ylabel=columns[0] if len(columns) == 1 else "value")
        ax.xaxis.get_major_locator().set_params(
            integer=all(isinstance(p, int) for p in self.column(x))
        )
        if len(columns) > 1:
            ax.legend()
        return fig

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"History({len(self)} rows: {', '.join(self.columns())})"

    def _repr_html_(self) -> str:
        return _html_table(self.columns(), self.rows)
