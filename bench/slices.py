"""The part of a notebook that an expression needs: the statements which bind the names in it, and theirs."""
import ast
import symtable
from collections.abc import Iterable
from typing import NamedTuple


class Statement(NamedTuple):
    "A statement at the top of a notebook: its tree, and the names that it binds or changes, and that it needs."
    tree: ast.stmt
    binds: set
    needs: set


def changed_in(tree):
    "The names that hold what `tree` changes in place: of `a` in `a[0] = 1`, `a.b = 1`, `del a[0]`, `a |= b`."
    found = {node.target.id for node in ast.walk(tree)
             if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Subscript | ast.Attribute) or isinstance(node.ctx, ast.Load): continue
        while isinstance(node, ast.Subscript | ast.Attribute): node = node.value
        if isinstance(node, ast.Name): found.add(node.id)
    return found


def asked_in(table):
    "The names that the functions and classes below a symbol `table` read from the top of the notebook."
    below = [name for child in table.get_children() for name in asked_in(child)]
    return {*below, *(s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced())}


def statement(tree):
    table = symtable.symtable(ast.unparse(tree), "cell", "exec")
    symbols = table.get_symbols()
    changed = changed_in(tree)
    bound = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported() or s.is_namespace()}
    read = {s.get_name() for s in symbols if s.is_referenced()} - bound
    inner = {name for child in table.get_children() for name in asked_in(child)}
    defines = isinstance(tree, ast.FunctionDef | ast.ClassDef)
    if defines: changed &= inner
    return Statement(tree, bound | changed, read | changed | (inner if defines else inner - bound))


def needed(cells: Iterable[str], expression: str, given: Iterable[str] = ()) -> list[str]:
    """Return of each of the code `cells` the statements that `expression` needs, as source; cells with none
    are left out. Names that are `given` need nothing. A statement that does something else beside, such as
    printing, comes along with its names."""
    statements = [[statement(tree) for tree in ast.parse(source).body] for source in cells]
    wanted, names = set(), statement(ast.parse(expression).body[0]).needs
    while True:
        names = names - set(given)
        more = {id(s) for cell in statements for s in cell if s.binds & names} - wanted
        if not more: break
        wanted |= more
        names = names.union(*(s.needs for cell in statements for s in cell if id(s) in more))
    parts = ["\n".join(ast.unparse(s.tree) for s in cell if id(s) in wanted) for cell in statements]
    return [part for part in parts if part]
