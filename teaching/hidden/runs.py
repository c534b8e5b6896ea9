"Hidden cases for the exercises of `fedbook.runs`: each function draws the arguments of one case."

_LINES = ("from fedbook.{} import x", "import {}", "from fedbook.{}s import x", "from fedbook.lab import {}",
          "def f():\n    from fedbook.{} import (x,\n        y)", "print('from fedbook.{} import x')")


def users(g):
    module = str(g.choice(["wire", "score", "split"]))
    cell = lambda: "\n".join(line.format(module) for line in g.choice(_LINES, g.integers(1, 3)))
    return {f"{n:02}_chapter": cell() for n in g.permutation(6)}, module


def settings_of(g):
    changes = [f"lr=1e-0{g.integers(1, 9)}", f"rounds={g.integers(1, 50)}", f"data=cifar10-{g.integers(2, 6)}"]
    chosen = [changes[i] for i in g.permutation(3)[:g.integers(0, 4)]]
    profile = str(g.choice(["smoke", "full"]))
    return "-".join([f"{g.integers(1, 30):02}_name", profile, str(g.integers(99)), *chosen])
