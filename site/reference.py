"""The reference: docstrings in Sphinx's markup, with the equations that they name and a link to the cell that
builds what they describe. An extension of Sphinx; it reads the `reference.json` that `prepare.py` writes."""
import inspect
import json
import re
import textwrap
from functools import lru_cache
from pathlib import Path

import fedbook
from fedbook.engine.sizes import Profile, meanings

PUBLIC = {"torch._C.Generator": "torch.Generator", "torch.nn.modules.module.Module": "torch.nn.Module",
          "torch.nn.modules.container.Sequential": "torch.nn.Sequential",
          "torch.nn.modules.linear.Linear": "torch.nn.Linear",
          "torch.optim.optimizer.Optimizer": "torch.optim.Optimizer",
          "torch.optim.adamw.AdamW": "torch.optim.AdamW",
          "flwr.serverapp.grid.grid.Grid": "flwr.serverapp.Grid"}


def in_public(app, env, node, content):
    """Ask intersphinx for a class by the name under which its own reference has it, where a signature names
    the module that it is written in."""
    target = node.get("reftarget")
    node["reftarget"] = PUBLIC.get(target, target)


@lru_cache(maxsize=1)
def facts(folder: str) -> dict:
    "What `prepare.py` has written: `built` (full name to notebook and cell) and `equations` (by module)."
    return json.loads((Path(folder) / "reference.json").read_text(encoding="utf-8"))


def inline(text: str, full: dict) -> str:
    """A paragraph of a docstring, where `code` stands in single backticks, in Sphinx's markup. `full` gives
    the full names of what can be linked."""
    def part(piece):
        if not piece.startswith("`"): return re.sub(r"([*_|\\])", r"\\\1", piece)
        code = piece.strip("`")
        return f":py:obj:`{code} <{full[code]}>`\\ " if code in full else f"``{code}``\\ "
    return "".join(map(part, re.split(r"(`[^`]+`)", text))).replace("\\  ", " ")


def as_rst(text: str, full: dict) -> str:
    "A docstring in Sphinx's markup; what is indented is an example."
    example = ".. code-block:: python\n\n"
    block = lambda part: example + part if part.startswith("    ") else inline(part, full)
    return "\n\n".join(map(block, re.split(r"\n\s*\n", text.rstrip())))


def cited(text: str, equations: dict) -> list:
    "The equations of the chapter that a docstring names, as LaTeX."
    spans = re.findall(r"(?:equation|formula)s?\s((?:\(\w+\)(?:, | and | to )?)+)", text, re.I)
    numbers = dict.fromkeys(number for span in spans for number in re.findall(r"\((\w+)\)", span))
    return [equations[number] for number in numbers if number in equations]


def linkable(built: dict, module: str, obj) -> dict:
    """The names that the docstring of `obj` in `module` may link, with their full names: classes, and the
    module's own functions. A name that is also one of its parameters means the parameter."""
    try: parameters = inspect.signature(obj).parameters
    except (TypeError, ValueError): parameters = {}
    names = {each.rpartition(".")[2]: each for each in built if not each.startswith("fedbook.answers.")}
    return {short: each for short, each in names.items() if short not in parameters
            and (short[0].isupper() or each.startswith(f"{module}."))}


def sizes(kind: type) -> str:
    "The numbers of a profile as a list: name, default and meaning."
    told = "\n".join(f"- ``{name} = {getattr(kind, name, '')!r}``: {inline(meaning, {})}"
                     for name, meaning in meanings(kind).items())
    return f"Its numbers, with their defaults:\n\n{told}"


def home(name: str) -> str:
    "The module below fedbook that `name`, the full name of something in it, belongs to."
    parts = name.split(".")[1:]
    while parts and not find_spec_of(".".join(parts)): parts.pop()
    return ".".join(parts)


@lru_cache(maxsize=None)
def find_spec_of(module: str) -> bool:
    "Whether there is a module of this name below fedbook."
    path = Path(fedbook.__file__).parent.joinpath(*module.split("."))
    return path.with_suffix(".py").exists()


def docstring(app, what, name, obj, options, lines):
    "Rewrite the docstring of `name` in place."
    built, equations = facts(str(app.srcdir)).values()
    text, module = textwrap.dedent("\n".join(lines)), home(name)
    parts = [as_rst(text, linkable(built, f"fedbook.{module}", obj))]
    if isinstance(obj, type) and issubclass(obj, Profile): parts.append(sizes(obj))
    for latex in cited(text, equations.get(module, {})):
        parts.append(".. math::\n   :no-wrap:\n\n" + textwrap.indent(f"\\[{latex}\\]", "   "))
    if name in built:
        page, cell = built[name]
        parts.append(f"`Built in {Path(page).name} <../{page}.html#cell-{cell}>`__")
    lines[:] = "\n\n".join(parts).splitlines()


def signature(app, what, name, obj, options, given, returns):
    "A profile is told by the list of its numbers, not by a signature of thirty."
    return ("(**numbers)", returns) if isinstance(obj, type) and issubclass(obj, Profile) else None


def skipped(app, what, name, obj, skip, options):
    "The fields of a named tuple have a docstring that says nothing."
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


def setup(app):
    app.connect("missing-reference", in_public, priority=400)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skipped)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
