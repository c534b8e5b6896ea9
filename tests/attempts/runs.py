"Attempts at the exercises of nbs/workshop/w10_runs.ipynb: see tests/test_exercises.py."
import ast
import re


def users__wrong_mentions_it(sources, module):
    return sorted(name for name, text in sources.items() if f"fedbook.{module}" in text)

def users__wrong_beginning_of_a_name(sources, module):
    return sorted(name for name, text in sources.items() if f"from fedbook.{module}" in text)

def users__wrong_order(sources, module):
    return [name for name, text in sources.items() if re.search(rf"from fedbook\.{module} ", text)]

def users__wrong_first_line_only(sources, module):
    return sorted(name for name, text in sources.items() if re.match(rf"from fedbook\.{module} ", text))

def users__right_syntax_tree(sources, module):
    imports = lambda text: [node.module for node in ast.walk(ast.parse(text))
                            if isinstance(node, ast.ImportFrom)]
    return sorted(name for name, text in sources.items() if f"fedbook.{module}" in imports(text))


def settings_of__wrong_cuts_at_every_dash(run):
    chapter, profile, seed, *changes = run.split("-")
    return chapter, profile, int(seed), dict(pair.split("=") for pair in changes if "=" in pair)

def settings_of__wrong_seed_is_text(run):
    chapter, profile, seed, *changes = run.split("-", 3)
    return chapter, profile, seed, dict(re.findall(r"(\w+)=(.*?)(?=-\w+=|$)", "".join(changes)))

def settings_of__wrong_one_change(run):
    chapter, profile, seed, *changes = run.split("-", 3)
    return chapter, profile, int(seed), dict(change.split("=", 1) for change in changes)

def settings_of__right_loop(run):
    chapter, profile, seed, *rest = run.split("-")
    changes, name = {}, None
    for piece in rest:
        if "=" in piece: name, _, changes[name] = piece.partition("=")
        else: changes[name] += f"-{piece}"
    return chapter, profile, int(seed), changes
