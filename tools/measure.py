"""The house in numbers: modules, imports, public names, density. `python tools/measure.py [PACKAGE]`, the folder of a package."""
import ast
import io
import re
import statistics
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

QUIET = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
         tokenize.ENCODING}


def modules(package: Path) -> dict[str, Path]:
    "Dotted name below the package to file; answers and the index of nbdev are no modules of it."
    files = (file for file in sorted(package.rglob("*.py")) if not file.stem.startswith("_"))
    inside = (file.relative_to(package) for file in files)
    return {".".join(file.with_suffix("").parts): package / file for file in inside if file.parts[0] != "answers"}


def code_lines(tree: ast.Module, text: str) -> dict[int, int]:
    "Tokens of each line of code: docstrings, comments, imports and `__all__` are none."
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)): left_out |= set(range(node.lineno, node.end_lineno + 1))
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text: left_out |= set(range(node.lineno, node.end_lineno + 1))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            left_out |= set(range(node.lineno, node.end_lineno + 1))
    found: Counter = Counter()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in QUIET and token.start[0] not in left_out: found[token.start[0]] += 1
    return dict(found)


def dense_functions(tree: ast.Module, tokens: dict[int, int]) -> list[float]:
    "Tokens a code line, of each function."
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef): continue
        lines = [n for line, n in tokens.items() if node.lineno <= line <= node.end_lineno]
        if lines: found.append(sum(lines) / len(lines))
    return found


def defined(tree: ast.Module) -> set[str]:
    "The names at the top of a module."
    found = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in tree.body:
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Name): found.add(target.id)
    return found


def public(tree: ast.Module) -> set[str]:
    "What a module offers: its `__all__`, or all names without a leading underscore."
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return {name for name in defined(tree) if not name.startswith("_")}


def imports(name: str, tree: ast.Module, known: dict) -> set[str]:
    "The modules of the package that the module `name` imports."
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom): continue
        if not node.level and (node.module or "").partition(".")[0] != "fedbook": continue
        home = name.split(".")[:-node.level] if node.level else []
        base = [*home, *(node.module or "").split(".")] if node.level else node.module.split(".")[1:]
        for full in (base, *([*base, alias.name] for alias in node.names)):
            found |= {".".join(filter(None, full))} & known.keys()
    return found


def words(name: str) -> int:
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).strip("_").split("_")
    return len(list(filter(None, parts)))


def main(package: Path) -> None:
    files = modules(package)
    texts = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    tokens = {name: code_lines(trees[name], texts[name]) for name in files}
    arrows = {name: imports(name, trees[name], files) for name in files}
    wing = lambda name: name.partition(".")[0] if "." in name else "top"
    print(f"{'wing':<10}{'modules':>8}{'lines':>8}{'public':>8}{'tokens a line':>15}{'functions above 12':>20}")
    for each in (*dict.fromkeys(map(wing, files)), "all"):
        names = [name for name in files if each in (wing(name), "all")]
        counts = [n for name in names for n in tokens[name].values()]
        dense = [value for name in names for value in dense_functions(trees[name], tokens[name])]
        above = sum(value > 12 for value in dense) / max(len(dense), 1)
        offered = sum(len(public(trees[name])) for name in names)
        length = sum(len(texts[name].splitlines()) for name in names)
        print(f"{each:<10}{len(names):>8}{length:>8}{offered:>8}{statistics.mean(counts):>15.1f}{above:>20.0%}")
    folders = Counter(file.parent for file in files.values())
    print(f"most modules in a folder: {max(folders.values())}; arrows between modules: "
          f"{sum(map(len, arrows.values()))}; between wings: "
          f"{len({(wing(a), wing(b)) for a, others in arrows.items() for b in others if wing(a) != wing(b)})}")
    identifiers = {node.id for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Name)}
    identifiers |= {name for tree in trees.values() for name in defined(tree)}
    print(f"words a name: {statistics.mean(map(words, identifiers)):.2f}")
    print("large: " + ", ".join(f"{name} {len(text.splitlines())} lines" for name, text in texts.items()
                                if len(text.splitlines()) > 700))
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=package.parent, capture_output=True).stdout
    paths = [package.parent / name for name in tracked.decode().split("\0") if name]
    print(f"checkout: {sum(path.stat().st_size for path in paths if path.is_file()) / 1e6:.1f} MB in {len(paths)} files")


if __name__ == "__main__": main(Path(sys.argv[1] if len(sys.argv) > 1 else "fedbook").resolve())
