"""Exercises, quizzes, guesses, sliders and message pictures of every chapter."""
import copy
import hashlib
import html
import inspect
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, get_type_hints

from fedbook.engine.errors import needs, UserError
from fedbook.engine.files import write_atomically
from fedbook.engine.show import bytes_text, COLOURS, Markdown
from fedbook.engine.sizes import limits, meanings


def sizes_table(profiles: dict) -> Markdown:
    """Return a table, for display in a notebook, of the settings in `profiles`: a chapter's dict
    from profile name, such as "quick", to its `Profile`. Each row is a field, with its meaning, its
    limits and its value in each profile."""
    kind = type(next(iter(profiles.values())))
    hints = get_type_hints(kind, include_extras=True)
    rows = [["size", "meaning", "limits", *profiles]]
    for name, meaning in meanings(kind).items():
        known = limits(hints[name])
        allowed = ", ".join(map(str, known)) if type(known) is tuple else known or ""
        rows.append([f"`{name}`", meaning, allowed, *(getattr(size, name) for size in profiles.values())])
    rows.insert(1, ["---"] * len(rows[0]))
    return Markdown("\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows))


def _whole(value):
    "Whether `value` is a whole number or a bool, or a numpy array of them."
    return isinstance(value, int) or getattr(getattr(value, "dtype", None), "kind", "none") in ("i", "u", "b")


def same(a: Any, b: Any, tolerance: float = 1e-6) -> bool:
    """Return whether the result `a` agrees with the expected result `b`. Numbers, arrays and
    tensors agree if their shapes are equal and each entry is within `tolerance`, relative plus
    absolute; NaN agrees with NaN. Where `b` has whole numbers or bools, those of `a` must be equal to
    them, and floats be within `tolerance`, absolute alone. Dicts, lists and tuples are compared item by
    item, anything else by `==`."""
    if hasattr(b, "detach") and isinstance(a, (list, tuple)) and any(hasattr(v, "detach") for v in a): return False
    if hasattr(a, "detach") or hasattr(b, "detach"):
        a, b = (v.detach().cpu().numpy() if hasattr(v, "detach") else v for v in (a, b))
    if hasattr(b, "shape") or isinstance(b, (int, float)):
        import numpy as np

        try:
            if np.shape(a) != np.shape(b): return False
            if _whole(b) and np.asarray(a).dtype.kind != "f": return np.asarray(a).tolist() == np.asarray(b).tolist()
            relative = 0 if _whole(b) else tolerance
            return bool(np.allclose(a, b, rtol=relative, atol=tolerance, equal_nan=True))
        except (TypeError, ValueError): return False
    if isinstance(b, dict):
        return isinstance(a, dict) and a.keys() == b.keys() and all(same(a[k], b[k], tolerance) for k in b)
    if isinstance(b, (list, tuple)):
        if hasattr(a, "tolist"): a = a.tolist()
        alike = lambda: all(same(p, q, tolerance) for p, q in zip(a, b))
        return isinstance(a, (list, tuple)) and len(a) == len(b) and alike()
    return a == b


def _described(value, most=12):
    "`value` as text for a message: its kind, where it holds more than `most` numbers."
    many = lambda v: isinstance(v, (list, tuple, dict)) and len(v) > most
    if hasattr(value, "state_dict"): return f"{type(value).__name__}(...)"
    if hasattr(value, "shape") and math.prod(value.shape) > most:
        return f"{'tensor' if hasattr(value, 'detach') else 'array'} of shape {tuple(value.shape)}"
    if many(value): return f"{type(value).__name__} of {len(value)}"
    if type(value) is dict: return "{" + ", ".join(f"{k!r}: {_described(v)}" for k, v in value.items()) + "}"
    if type(value) is list: return "[" + ", ".join(map(_described, value)) + "]"
    if type(value) is tuple: return f"({', '.join(map(_described, value))}{',' if len(value) == 1 else ''})"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 200 else text[:200] + " ..."


def _first_unlike(got, want, tolerance, where=""):
    "(where, got there, wanted there) of the first entry in which two results differ."
    if isinstance(got, (list, tuple)) and isinstance(want, (list, tuple)) and len(got) == len(want):
        pairs = [(i, a, b) for i, (a, b) in enumerate(zip(got, want))]
    elif isinstance(got, dict) and isinstance(want, dict) and got.keys() == want.keys():
        pairs = [(k, got[k], want[k]) for k in want]
    elif hasattr(got, "tolist") and hasattr(want, "tolist") and got.shape == want.shape and got.shape:
        pairs = [(i, a, b) for i, (a, b) in enumerate(zip(got.tolist(), want.tolist()))]
    else: return where, got, want
    for key, a, b in pairs:
        if not same(a, b, tolerance): return _first_unlike(a, b, tolerance, f"{where}[{key!r}]")
    return where, got, want


def _intact(before, after):
    """Whether `after` still holds what `before` holds. What is neither number, text, array, network nor
    container counts as intact."""
    if hasattr(before, "state_dict"): return _intact(dict(before.state_dict()), dict(after.state_dict()))
    if hasattr(before, "shape") and hasattr(before, "dtype"):
        return before.shape == after.shape and bool(((before == after) | (before != before)).all())
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(_intact(before[k], after[k]) for k in before)
    if isinstance(before, (list, tuple)):
        return len(before) == len(after) and all(map(_intact, before, after))
    return before == after or before != before if isinstance(before, (int, float, str)) else True


def overwritten(case: tuple, given: tuple) -> int:
    """Return the position, counted from 1, of the first argument that a function changed in place;
    0 if it changed none. `case` holds its arguments as they were before the call, `given` the
    objects that it was called with, after the call. Arguments other than numbers, texts, arrays,
    tensors, networks (by their weights) and containers of these count as unchanged."""
    return next((i for i, pair in enumerate(zip(case, given), 1) if not _intact(*pair)), 0)


def _also(answer, case):
    "Whether `answer` overwrites its arguments too."
    given = copy.deepcopy(case)
    answer(*given)
    return overwritten(case, given) > 0


def _wrong(got, want, tolerance):
    "What is wrong with the result `got`, or an empty text."
    if same(got, want, tolerance): return ""
    mine, right = _described(got), _described(want)
    where, a, b = _first_unlike(got, want, tolerance)
    more = f": at {where} it is {_described(a)}, not {_described(b)}" if mine == right and where else ""
    return f"gave {mine}, expected {right}{more}"


def _tensors(value):
    "The float tensors in `value`, a nesting of lists, tuples and dicts."
    if isinstance(value, dict): value = list(value.values())
    if isinstance(value, (list, tuple)): return [t for v in value for t in _tensors(v)]
    return [value] if hasattr(value, "requires_grad") and value.is_floating_point() else []


def _slopes(result, case):
    """The gradients of the sum of all numbers in `result`, one for each tensor in the arguments `case` that
    requires one; None where there is none at all."""
    import torch

    inputs = [t for t in _tensors(case) if t.requires_grad and t.is_leaf]
    ends = [t for t in _tensors(result) if t.grad_fn is not None]
    if not inputs or not ends: return None
    found = torch.autograd.grad(sum(t.sum() for t in ends), inputs, allow_unused=True)
    return [torch.zeros_like(t) if slope is None else _as_far_as_free(slope, t) for t, slope in zip(inputs, found)]


def _as_far_as_free(slope, t):
    "A symmetric matrix `t` stays one, so only the symmetric part of its gradient counts."
    symmetric = t.dim() == 2 and t.shape[0] == t.shape[1] and bool((t == t.mT).all())
    return (slope + slope.mT) / 2 if symmetric else slope


def _wrong_slope(got, given, want, case, tolerance):
    "What is wrong with the gradient of the result `got` for the arguments `given`, or an empty text."
    mine, right = _slopes(got, given), _slopes(want, case)
    if right is None:
        kept = [t for t in (*_tensors(want), *_tensors(case)) if t.requires_grad]
        extra = not kept and any(t.grad_fn is not None for t in _tensors(got))
        return "gave the right value, but with a gradient behind it; detach it" if extra else ""
    if mine is None and any(t.requires_grad for t in _tensors(got)): return ""  # it came from another process
    if mine is None: return "gave the right value, but PyTorch cannot compute its gradient; it must stay a tensor"
    fault = _wrong(mine, right, tolerance)
    return f"gave the right value, but its gradient is wrong: {fault}" if fault else ""


def _live(result, case):
    "Whether `result` has a tensor of a network in `case`, and no copy of it."
    own = {t.data_ptr() for v in case if hasattr(v, "state_dict") for t in v.state_dict().values()}
    return any(t.data_ptr() in own for t in _tensors(result))


def _wrong_memory(got, given, want, case):
    if not _live(got, given) or _live(want, case): return ""
    return "returned the network's own tensors, which its next step changes; return copies"


def try_case(attempt: Callable, answer: Callable | None, case: tuple, tolerance: float = 1e-6,
             holds: Callable | None = None) -> tuple[bool, str]:
    """Call a learner's function `attempt` with copies of the arguments `case` and return a pair
    `(attempted, fault)`. `attempted` is False where the exercise is still unwritten: the call
    returned None or `...`, or raised `NotImplementedError`. `fault` says what is wrong, and is
    empty for a right result.

    A result is right if it agrees within `tolerance` with that of `answer` (see `same`), or, with
    `holds`, if `holds(result, *case)` returns None or "". Where tensors in `case` require a
    gradient, that of the result must agree too. An error of `attempt` is a fault, and so is an
    argument changed in place, unless `answer` changes its own too. Without `holds` an `answer` is
    needed."""
    given = copy.deepcopy(case)
    try: got = attempt(*given)
    except NotImplementedError: return False, "is not written yet"
    except Exception as error: return True, f"raised {type(error).__name__}: {error}"
    again = copy.deepcopy(case)
    try:
        if holds: wrong = holds(got, *again) or ""
        else:
            want = answer(*again)  # type: ignore[misc]
            wrong = (_wrong(got, want, tolerance) or _wrong_slope(got, given, want, again, tolerance)
                     or _wrong_memory(got, given, want, again))
    except Exception as error:
        wrong = f"gave {_described(got)}, which cannot be judged ({type(error).__name__}: {error})"
    number = 0 if wrong else overwritten(case, given)
    if number and not (answer and _also(answer, case)):
        wrong = f"changed its argument number {number} in place"
    return got is not None and got is not Ellipsis, wrong


PROGRESS = "progress.json"


def progress_file(folder: str | Path = ".") -> Path | None:
    """Return the path of the `progress.json` in which a learner's solved exercises are noted, or
    None. It is looked for in `folder`, then in its parent, and counts only beside a copy of the
    chapters (beside `00_start.ipynb`)."""
    here = Path(folder).resolve()
    files = [place / PROGRESS for place in (here, here.parent) if (place / "00_start.ipynb").exists()]
    return next(filter(Path.exists, files), None)


def solved_in(file: Path) -> dict[str, list[str]]:
    """Read a learner's `progress.json` from `file`; return, for each chapter's module name such as
    "fedavg", the sorted names of the solved exercises. Raises `UserError` if the file is missing or
    damaged."""
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        return {module: sorted(set(map(str, names))) for module, names in held.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        raise UserError(f"{str(file)!r} cannot be read; delete it, fedbook copy makes a new one") from None


def _note(attempt):
    "Note in a reader's copy that the exercise `attempt` is solved. Returns what to say of it."
    answers = getattr(getattr(attempt, "__globals__", {}).get("answers"), "__name__", "")
    file, module = progress_file(), answers.rpartition(".")[2]
    if not file or answers != f"fedbook.answers.{module}": return ""
    try:
        known = solved_in(file)
        known[module] = sorted({*known.get(module, []), attempt.__name__})
        write_atomically(file, json.dumps(known, indent=1) + "\n")
    except (OSError, UserError): return ""
    return f", noted in {file.name}"


def tries(attempt: Callable, answer: Callable | None, cases: list | dict, tolerance: float = 1e-6,
          holds: Callable | None = None) -> Iterator[tuple[bool, str, str]]:
    """Try a learner's function `attempt` on one case after the other; the arguments are those of `check`. Yield
    for each what `try_case` returns, and the case in words, such as "case 2 of 3 (no step): f(1, 2)"."""
    words = [f" ({word})" for word in cases] if isinstance(cases, dict) else [""] * len(cases)
    for i, case in enumerate(cases.values() if isinstance(cases, dict) else cases, 1):
        case = case if isinstance(case, tuple) else (case,)
        gave, wrong = try_case(attempt, answer, case, tolerance, holds)
        call = f"{attempt.__name__}({', '.join(map(_described, case))})"
        yield gave, wrong, f"case {i} of {len(words)}{words[i - 1]}: {call}"


def check(attempt: Callable, answer: Callable | None, cases: list | dict, tolerance: float = 1e-6,
          holds: Callable | None = None) -> None:
    """Compare the learner's function `attempt` with the right one, `answer`, on `cases`: a list of
    argument tuples (a single argument may stand alone), or a dict to these from a description such
    as "two tensors of unlike size". Prints "not attempted yet", "correct on N cases", or the first
    case that fails and why; an error of `attempt` is printed too, not raised.

    Results must agree within `tolerance` (see `same`), and no argument may be changed in place. If
    `holds` is given, it judges the result instead: `holds(result, *case)` returns None or "" if
    `result` is right, else what is wrong; `answer` may then be None. In a learner's own copy of the
    chapters, a solved exercise is noted in `progress.json`."""
    count = 0
    for gave, wrong, where in tries(attempt, answer, cases, tolerance, holds):
        count += 1
        if count == 1 and not gave: return print("not attempted yet")
        if wrong: return print(f"not yet: {where} {wrong}")
    print(f"correct on {count} case{'s' if count != 1 else ''}{_note(attempt)}")


def _show(markup, text):
    needs("IPython")
    from IPython.display import display

    display({"text/html": markup, "text/plain": text}, raw=True)


def reveal(answer: Callable) -> None:
    """Show the source code of `answer`, a function or class, in a notebook, folded behind a line
    that the reader opens."""
    source = inspect.getsource(answer)
    line = f"Answer: <code>{answer.__name__}</code>"
    _show(f"<details><summary>{line}</summary><pre>{html.escape(source)}</pre></details>",
          f"Answer: {answer.__name__} in {answer.__module__}")


def _plain_text(markup): return html.unescape(re.sub(r"<[^>]+>", "", markup))


def quiz(question: str, *choices: tuple[str, bool, str]) -> None:
    """Show a multiple-choice `question` in a notebook. Each of `choices` (at most 8) is a tuple
    `(text, right, reason)`; opening it shows whether it is right, and the reason. Question and
    texts may hold HTML. The choices are shuffled, for one question always in the same way."""
    order, look = list(choices), "margin:4px 0 4px 16px"
    random.Random(hashlib.sha256(question.encode()).hexdigest()).shuffle(order)
    named = [(f"{letter})", *choice) for letter, choice in zip("abcdefgh", order)]
    items = "".join(f"<details style='{look}'><summary>{name} {text}</summary>"
                    f"<i>{'Right' if right else 'Not so'}.</i> {reason}</details>"
                    for name, text, right, reason in named)
    plain = "\n".join(f"  {name} {_plain_text(text)}" for name, text, _, _ in named)
    _show(f"<div><b>{question}</b>{items}</div>",
          f"{_plain_text(question)}\n{plain}\n({len(order)} choices; each opens to its reason in JupyterLab)")


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _both_curves(question, mine, measured, unit):
    "Figure of two curves (`measured`: a list, or a dict from x to y); says where they are farthest apart."
    needs("matplotlib")
    import matplotlib.pyplot as plt
    needs("IPython")
    from IPython.display import display

    truth = list(measured.items()) if isinstance(measured, dict) else list(enumerate(measured))
    guessed = [(x, y) for (x, _), y in zip(truth, mine)]
    fig, ax = plt.subplots(figsize=(6.5, 2.8))
    ax.plot(*zip(*truth), marker="o", ms=5, label="measured")
    ax.plot(*zip(*guessed), marker="s", ms=5, label="your guess")
    ax.set(title=question, ylabel=unit)
    if len(truth) <= 12: ax.set_xticks([x for x, _ in truth])
    ax.legend()
    display(fig)
    plt.close(fig)
    far, x = max((abs(a - b), x) for (x, a), (_, b) in zip(truth, guessed))
    print(f"Farthest apart at {x}: {far:.3g} {unit}".rstrip() + ".")


def guess(question: str, mine: Any, measure: Callable[[], Any], unit: str = "") -> Any:
    """Show the reader's guess `mine` beside the result of an experiment, which `measure()` then
    runs. The guess is a number, a list of numbers (a curve), or `...` for none yet, with which
    nothing runs. `measure` returns a number, a list, or a dict from x to y; `unit` is printed
    behind numbers.

    Numbers are printed with their difference, curves are drawn in one figure. Returns what was
    measured, or None if nothing ran. A guess of the wrong kind or length is reported in print; no
    error is raised for it."""
    if mine is Ellipsis or mine is None:
        return print(f"{question}\nnot attempted yet: put your guess in place of ... and run the cell")
    curve = isinstance(mine, (list, tuple))
    if not all(map(_number, mine if curve and mine else [mine])):
        return print(f"not yet: the guess {mine!r:.80} is neither a number nor a list of numbers")
    measured = measure()
    many = len(measured) if isinstance(measured, (list, tuple, dict)) else 0
    if many != (len(mine) if curve else 0):
        wanted = f"a list of {many} numbers" if many else "one number"
        print(f"Your guess is {mine!r:.80}, expected {wanted}; measured: {_described(measured)}")
    elif curve: _both_curves(question, mine, measured, unit)
    else:
        yours, ours = f"{mine:.4g} {unit}".rstrip(), f"{measured:.4g} {unit}".rstrip()
        print(f"{question} You guessed {yours}, measured is {ours}: {abs(mine - measured):.3g} apart.")
    return measured


def _knob(name, spec):
    "The widget that moves the argument `name`."
    import ipywidgets as w

    look = dict(description=name, continuous_update=False, style={"description_width": "initial"},
                layout=w.Layout(width="420px"))
    if isinstance(spec, list):
        names = [f"{v:g}" if isinstance(v, float) else str(v) for v in spec]
        return w.SelectionSlider(options=list(zip(names, spec)), value=spec[0], **look)
    low, high, step, start = (*spec, spec[0])[:4]
    kind = w.IntSlider if all(isinstance(v, int) for v in (low, high, step)) else w.FloatSlider
    return kind(min=low, max=high, step=step, value=start, **look)


def play(f: Callable[..., Any], **knobs: list | tuple) -> None:
    """Show sliders in a notebook that redraw the matplotlib figure `f(**values)`. Each of `knobs`
    belongs to the argument of `f` with its name: a list of choices, or `(low, high, step)` or
    `(low, high, step, start)` of a number.

    A line above the figure says for which values `f` is at work. If `f` raises an error after a
    move, that line shows it and the old figure stays; at the first drawing the error is raised.
    Moves made meanwhile wait, and of each slider only the last counts. Without a running kernel the
    reader sees one line that names the sliders."""
    needs("ipywidgets")
    import ipywidgets as w
    needs("matplotlib")
    import matplotlib.pyplot as plt
    needs("IPython")
    from IPython.display import display

    def draw():
        data, values = BytesIO(), {name: control.value for name, control in controls.items()}
        setting = html.escape(", ".join(f"{name} = {value}" for name, value in values.items()))
        state.value, said = f"<i role='status'>busy with {setting} ...</i>", f"stopped at {setting}"
        try:
            f(**values).savefig(data, format="png", bbox_inches="tight")
            picture.value, said = data.getvalue(), "&nbsp;"
        except Exception as error:
            said = f"nothing drawn for {setting}: {html.escape(f'{type(error).__name__}: {error}')}"
            raise
        finally:
            state.value = said
            plt.close("all")

    def moved(_):
        with suppress(Exception): draw()

    controls = {name: _knob(name, spec) for name, spec in knobs.items()}
    state = w.HTML("&nbsp;")
    picture = w.Image(format="png", layout=w.Layout(align_self="flex-start", max_width="100%"))
    for control in controls.values(): control.observe(moved, "value")
    draw()
    bundle = w.VBox([*controls.values(), state, picture])._repr_mimebundle_()
    bundle["text/plain"] = f"[slider: {', '.join(knobs)}. Run this cell in JupyterLab to move it.]"
    display(bundle, raw=True)


def _arrow_text(verb, entries, room=86):
    "`fit: 12 x [conv 1.6 kB, fc 3 kB, +4 more]` for an arrow: up to three tensors, in about `room` letters."
    largest = sorted(entries[0].tensors, key=lambda item: -item[1])
    for most in (3, 2, 1):
        names = ", ".join(f"{name} {bytes_text(size)}" for name, size in largest[:most])
        more = f", +{len(largest) - most} more" if len(largest) > most else ""
        text = f"{verb}: {len(entries)} x [{names}{more}]" if len(entries) > 1 else f"{verb}: {names}{more}"
        if len(text) <= room: break
    return text


def flow(entries: Sequence, title: str = "One round, drawn from its messages",
         says: dict[str, str] | None = None) -> Any:
    """Return a matplotlib figure of the messages between server and clients: an arrow for each verb
    (the client's method that is asked for, such as "fit") and direction, with the names and bytes
    of its largest tensors, or with what `says` has in words for that direction ("down", "up").
    `entries`: records of messages, `fedbook.engine.wire.Entry`, usually of one round; each has
    `way` ("down" or "up"), `client`, `verb`, `nbytes` and `tensors` (pairs of name and bytes)."""
    needs("matplotlib")
    import matplotlib.pyplot as plt

    arrows: dict[tuple, list] = {}
    for entry in entries: arrows.setdefault((entry.verb, entry.way), []).append(entry)
    fig, ax = plt.subplots(figsize=(8, 1.2 + 0.75 * len(arrows)))
    for row, ((verb, way), group) in enumerate(arrows.items()):
        ends = ((0, row), (1, row)) if way == "down" else ((1, row), (0, row))
        colour = COLOURS[0] if way == "down" else COLOURS[1]
        ax.annotate("", xytext=ends[0], xy=ends[1],
                    arrowprops=dict(arrowstyle="-|>", lw=2, color=colour, shrinkA=0, shrinkB=0))
        words = f"{verb}: {says[way]}" if says and way in says else _arrow_text(verb, group)
        ax.text(0.5, row - 0.12, words, ha="center", va="bottom", fontsize=9)
        ax.text(0.5, row + 0.12, f"{bytes_text(sum(e.nbytes for e in group))} {way}", ha="center", va="top",
                fontsize=9, color=colour)
    clients = len({entry.client for group in arrows.values() for entry in group})
    for x, name in ((0, "server"), (1, f"{clients} clients" if clients > 1 else "client")):
        ax.axvline(x, color="black", lw=1.5)
        ax.text(x, -0.95, name, ha="center", va="bottom", fontsize=11, weight="bold")
    ax.set(xlim=(-0.12, 1.12), ylim=(len(arrows) - 0.4, -0.82))
    ax.set_title(title, pad=30)
    ax.axis("off")
    return fig
