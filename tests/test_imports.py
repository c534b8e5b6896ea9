"""What importing the package brings along, asked of one process for all modules."""
import json
import os
import subprocess
import sys
from pathlib import Path

import fedbook

HERE = Path(fedbook.__file__).parent
MODULES = sorted(".".join(path.relative_to(HERE.parent).with_suffix("").parts) for path in HERE.rglob("*.py")
                 if not path.stem.startswith("_") and path.parent.name != "answers" and path.stem != "flower")
HEAVY = ("IPython", "PIL", "cryptography", "dp_accounting", "flwr", "grpc", "huggingface_hub", "ipywidgets",
         "matplotlib", "nbclient", "nbconvert", "nbdev", "nbformat", "open_clip", "opacus", "pandas",
         "papermill", "ray", "scipy", "sklearn", "timm", "torchmetrics", "torchvision")
DONE = {"the list of data sets": "from fedbook.datasets.world import inventory; inventory()",
        "a progress bar": "from fedbook.engine.show import progress; list(progress(range(3)))",
        "embedded pictures": "from fedbook.datasets.folders import pictures; pictures('fashion_mnist_small')"}
ASKED = """
import importlib, json, sys
seen, brought = set(), {}
def note(what):
    new = {name for name in %r if name in sys.modules} - seen
    seen.update(new)
    brought[what] = sorted(new)
for name in %r:
    importlib.import_module(name)
    note(name)
for what, code in %r.items():
    exec(code)
    note(what)
print(json.dumps(brought))
"""


def brought(heavy, modules, done):
    "What each of the modules, and what is done then, brings of `heavy`: in one process, one after the other."
    env = {name: value for name, value in os.environ.items() if name != "FEDBOOK_DATA"}
    asked = subprocess.run([sys.executable, "-c", ASKED % (heavy, modules, done)], capture_output=True,
                           text=True, check=True, env=env)
    return json.loads(asked.stdout)


def test_no_module_imports_more_than_the_base_install_has_and_none_but_flower_imports_flower():
    found = brought(HEAVY, MODULES, DONE)
    assert {"fedbook.engine.federation", "fedbook.fedcbdr", "fedbook.kit.command", *DONE} <= found.keys()
    assert {what: names for what, names in found.items() if names} == {}


def test_a_module_that_brings_something_is_found():
    assert brought(("colorsys", "wave"), ["colorsys", "json"], {"x": "import wave"}) == {
        "colorsys": ["colorsys"], "json": [], "x": ["wave"]}
