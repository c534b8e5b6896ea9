"""The sliders of a chapter, each with the part of the chapter that it needs: what binds, or changes, a name
that is used. So a slider is moved without the chapter's evidence before it."""
import ast
import symtable
from typing import NamedTuple

import nbformat

LOOPS, DEFINITIONS = (ast.For, ast.With), (ast.FunctionDef, ast.ClassDef)
EVIDENCE = {"results"}  # what is written there is for the claims


class Part(NamedTuple):
    "A statement of a chapter, the names that it binds or changes, and the names that it uses."
    source: str
    binds: set
    uses: set


def scopes(table):
    yield table
    for inner in table.get_children(): yield from scopes(inner)


def loop_names(node):
    "What the loops of a statement bind for their own use."
    targets = [loop.target if isinstance(loop, ast.For) else item.optional_vars for loop in ast.walk(node)
               if isinstance(loop, LOOPS)
               for item in (loop.items if isinstance(loop, ast.With) else [None])]
    return {name.id for target in filter(None, targets) for name in ast.walk(target)
            if isinstance(name, ast.Name)}


def changed(node):
    "The names whose objects a statement changes: `x[...] = `, `x.a = `, `x.append(...)`."
    for each in [] if isinstance(node, DEFINITIONS) else ast.walk(node):
        called = isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)
        for place in each.targets if isinstance(each, ast.Assign) else [each.value.func] if called else []:
            if not isinstance(place, (ast.Attribute, ast.Subscript)): continue
            while isinstance(place, (ast.Attribute, ast.Subscript)): place = place.value
            if isinstance(place, ast.Name): yield place.id


def part(node, imported):
    source = ast.unparse(node)
    top = symtable.symtable(source, "cell", "exec")
    binds = {symbol.get_name() for symbol in top.get_symbols()
             if symbol.is_assigned() or symbol.is_imported()}
    uses = {symbol.get_name() for scope in scopes(top) for symbol in scope.get_symbols()
            if scope is top or symbol.is_global()}
    own = set() if isinstance(node, DEFINITIONS) else loop_names(node)
    return Part(source, binds - own | set(changed(node)) - imported - EVIDENCE, uses - own)


def parts(path):
    "The statements of a chapter at smoke, one after the other."
    nodes = []
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "code": nodes += ast.parse(at_smoke(cell)).body
    imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    imported = {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
    return [part(node, imported) for node in nodes]


def at_smoke(cell):
    "The source of a cell, with the profile smoke in the cell of the parameters."
    tagged = "parameters" in cell.metadata.get("tags", [])
    return cell.source.replace('profile = "quick"', 'profile = "smoke"') if tagged else cell.source


def needed(before, last):
    "The sources of the `before` that `last` needs, and its own."
    names, taken = set(last.uses), set()
    while more := {i for i, each in enumerate(before) if each.binds & names} - taken:
        taken |= more
        for i in more: names |= before[i].uses
    return "\n".join([*(before[i].source for i in sorted(taken)), last.source])


def sliders(path):
    "The name of the function of each `play(f, ...)` in a chapter: f to the code that shows the slider."
    every = parts(path)
    called = {place: ast.parse(each.source).body[0] for place, each in enumerate(every)
              if each.source.startswith("play(")}
    return {call.value.args[0].id: needed(every[:place], every[place]) for place, call in called.items()}
