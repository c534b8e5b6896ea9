"Attempts at the exercises of nbs/30_command.ipynb: see tests/test_exercises.py."
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


def engine_of__wrong_no_number_is_zero(text):
    name, _, number = text.partition(":")
    return (name, int(number or 0)) if name in ("local", "flower") else None

def engine_of__wrong_takes_any_number(text):
    found = re.fullmatch(r"(local|flower)(?::(\d+))?", text)
    return found and (found[1], int(found[2]) if found[2] else None)

def engine_of__wrong_one_digit(text):
    found = re.fullmatch(r"(local)|(flower)(?::([1-9]))?", text)
    return found and (found[1] or found[2], int(found[3]) if found[3] else None)

def engine_of__right_partition(text):
    name, colon, number = text.partition(":")
    if not colon: return (name, None) if name in ("local", "flower") else None
    return (name, int(number)) if name == "flower" and number.isdigit() and int(number) else None


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
