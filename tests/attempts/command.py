"Attempts at the exercises of nbs/30_command.ipynb: see tests/test_exercises.py."
import ast
import re
from collections import Counter


def users__wrong_mentions_it(sources, module): return sorted(name for name, text in sources.items() if f"fedbook.{module}" in text)

def users__wrong_beginning_of_a_name(sources, module): return sorted(name for name, text in sources.items() if f"from fedbook.{module}" in text)

def users__wrong_order(sources, module): return [name for name, text in sources.items() if re.search(rf"from fedbook\.{module} ", text)]

def users__wrong_first_line_only(sources, module): return sorted(name for name, text in sources.items() if re.match(rf"from fedbook\.{module} ", text))

def users__right_syntax_tree(sources, module):
    imports = lambda text: [node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return sorted(name for name, text in sources.items() if f"fedbook.{module}" in imports(text))


def slowest__wrong_fails_without_rows(body): return max(body["rows"], key=lambda row: row["seconds"])["what"]

def slowest__wrong_clock_among_the_numbers(body): return max(body["rows"], key=lambda row: row["numbers"].get("seconds", 0), default={"what": None})["what"]

def slowest__wrong_last_row(body): return body["rows"][-1]["what"] if body["rows"] else None

def slowest__wrong_fastest(body): return min(body["rows"], key=lambda row: row["seconds"], default={"what": None})["what"]

def slowest__right_sorted(body):
    rows = sorted(body["rows"], key=lambda row: row["seconds"])
    return rows[-1]["what"] if rows else None


def tally__wrong_one_result(bodies): return dict(Counter(claim["verdict"] for claim in bodies[0]["claims"])) if bodies else {}

def tally__wrong_one_per_result(bodies): return dict(Counter(verdict for body in bodies for verdict in {claim["verdict"] for claim in body["claims"][:1]}))

def tally__wrong_empties_what_it_reads(bodies):
    count = Counter()
    for body in bodies:
        while body["claims"]: count[body["claims"].pop()["verdict"]] += 1
    return dict(count)

def tally__right_loop(bodies):
    count = {}
    for body in bodies:
        for claim in body["claims"]: count[claim["verdict"]] = count.get(claim["verdict"], 0) + 1
    return count
