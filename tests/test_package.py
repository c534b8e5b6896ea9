"""The package as others get it: built, installed elsewhere, and with the base install's packages alone."""
import ast
import email
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fedbook
from conftest import house, project, tracked

ROOT = Path(__file__).parent.parent
BASE = {"torch", "numpy", "safetensors", "tqdm"}
OPTIONAL = ["IPython", "PIL", "cloudpickle", "cryptography", "dp_accounting", "fastcore", "flwr", "ipywidgets",
            "matplotlib", "nbclient", "nbconvert", "nbdev", "nbformat", "open_clip", "papermill", "scipy",
            "sklearn", "timm", "torchmetrics", "torchvision"]
TOGETHER = dict.fromkeys(("papermill", "nbconvert"), {"nbclient", "nbformat"})   # what a package brings
BLOCK = f"""
import sys
class Without:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {OPTIONAL}: return self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
"""
FEDERATION = """
from fedbook.fedgtea import CATE
from fedbook.methods.fedavg import FedAvgExperiment, profiles
from fedbook.engine.workers import trial
import torch
assert CATE((1, 28, 28)).body(torch.zeros(3, 1, 28, 28)).shape == (3, 64)
ended = trial(FedAvgExperiment(profiles["smoke"], 0), workers=1)
assert ended.federation.ledger.total() > 1e6
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w",
                    folder, source], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    """The environment of a machine on which the wheel is installed in a folder of its own, and no checkout
    lies about."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, wheel],
                   check=True)
    return os.environ | dict(PYTHONPATH=str(folder), OMP_NUM_THREADS="1")


def test_the_wheel_is_small_and_holds_notebooks_without_outputs(wheel):
    assert wheel.stat().st_size < 10e6
    with zipfile.ZipFile(wheel) as held:
        names = held.namelist()
        books = [name for name in names if name.endswith(".ipynb")]
        assert "fedbook/_modidx.py" not in names
        assert "fedbook/datasets/data/fashion_mnist_small.npz" in names
        assert "fedbook/datasets/data/fashion_mnist_small.LICENSE" in names
        assert (len(books) == len(list((ROOT / "nbs").glob("*.ipynb")))
                + len(list((ROOT / "nbs").glob("*/*.ipynb"))))
        for name in books:
            assert not any(cell.get("outputs") for cell in json.loads(held.read(name))["cells"])


def test_the_wheel_runs_a_chapter_from_another_folder(elsewhere, tmp_path):
    code = "import fedbook; print(fedbook.__file__)"
    home = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=elsewhere, capture_output=True,
                          text=True).stdout
    assert home.startswith(elsewhere["PYTHONPATH"])
    command = [sys.executable, "-m", "fedbook", "run", "00_start", "--profile", "smoke", "--out", "runs"]
    done = subprocess.run(command, cwd=tmp_path, env=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "runs" / "00_start-smoke-0" / "results.json").exists()


def test_the_base_install_federates(elsewhere, tmp_path):
    done = subprocess.run([sys.executable, "-c", BLOCK + FEDERATION], cwd=tmp_path, env=elsewhere,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


WITHOUT = [
    ("from fedbook.evidence.claims import judge; judge([1.0, 2.0, 3.0], at_least=0)", "course"),
    ("from fedbook.datasets.split import iid, plot_split; plot_split(iid([0, 1, 0, 1], 2, 0), [0, 1, 0, 1])",
     "course"),
    ("from fedbook.methods.detect import faster_rcnn; faster_rcnn(None, 2)", "vision"),
    ("from fedbook.engine.show import style; style()", "course"),
    ("from fedbook.methods.pruning import digits_world; digits_world(0)", "course"),
    ("from fedbook.deploy.nodes import write_node_key; write_node_key('key')", "flower"),
    ("from fedbook.privacy.dp import poisson_event; poisson_event(1.0, 0.2, 8)", "dp"),
    ("from fedbook.privacy.secagg import keystream; keystream(bytes(32), 1)", "flower"),
    ("from fedbook.datasets.world import Files; Files(['a.png'])[0]", "vision"),
    ("import fedbook.deploy.flower", "flower"),
    ("from fedbook.kit.command import main; main(['run', 'methods/fedavg', '--profile', 'smoke'])", "course"),
    ("from fedbook.kit.command import main; main(['slides', 'engine/wire'])", "course"),
    ("from fedbook.kit.classroom import Pupil; Pupil('mine.ipynb')", "course"),
]
ANSWER = """
from contextlib import redirect_stderr
from io import StringIO
for use in {uses}:
    heard = StringIO()
    with redirect_stderr(heard):
        try: exec(use)
        except (Exception, SystemExit) as error: answer = str(error)
    print(repr((heard.getvalue().strip() or answer).splitlines()[-1]))
"""


def test_a_missing_extra_is_one_sentence_with_the_command(elsewhere, tmp_path):
    "Each use in its turn, in one process: torch is imported once."
    code = BLOCK + ANSWER.format(uses=[use for use, _ in WITHOUT])
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=elsewhere, capture_output=True,
                          text=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(WITHOUT), done.stderr[-1500:]
    for (use, extra), answer in zip(WITHOUT, answers):
        assert f"pip install 'fedbook[{extra}]'" in ast.literal_eval(answer), (use, answer)


def optional_imports(function):
    "The packages beyond the base that `function` itself imports, and whether it says before that it needs them."
    needed, found = set(), []
    for node in sorted((n for n in ast.walk(function) if hasattr(n, "lineno")), key=lambda n: n.lineno):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "needs":
            needed |= {node.args[0].value.partition(".")[0]} | TOGETHER.get(node.args[0].value, set())
        names = ([alias.name for alias in node.names] if isinstance(node, ast.Import)
                 else [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else [])
        tops = {name.partition(".")[0] for name in names} & set(OPTIONAL)
        found += [(top, top in needed) for top in tops]
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "fedbook").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_every_public_function_says_which_extra_it_needs(path):
    tree = ast.parse(path.read_text())
    kinds = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    functions = [node for home in (tree, *kinds) for node in home.body if isinstance(node, ast.FunctionDef)]
    public = [node for node in functions if not node.name.startswith("_") or node.name.startswith("__")]
    if path.stem == "flower": public = []  # the whole module says it once, when it is imported
    silent = [(node.name, top) for node in public for top, said in optional_imports(node) if not said]
    assert silent == []
    private = [node for node in functions if node not in public]
    said = {node.args[0].value.partition(".")[0] for node in ast.walk(tree)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "needs"}
    reached = {top for node in private for top, _ in optional_imports(node)} - said
    assert path.stem in ("flower", "command") or not reached


def test_the_base_requirements_are_the_engines_needs():
    assert {each.partition(">")[0] for each in project()["dependencies"]} == BASE
    extras = project()["optional-dependencies"]
    assert [*extras] == ["course", "vision", "encoders", "flower", "dp", "dev", "site"]
    assert all(extras.values())


def test_a_learner_gets_jupyterlab_and_no_tools_of_the_house():
    extras = project()["optional-dependencies"]
    course = {each.partition(">")[0].partition("=")[0] for each in extras["course"]}
    assert "jupyterlab" in course and not course & {"sphinx", "mypy", "playwright", "pytest", "ruff", "nbdev"}


def test_what_an_index_shows(wheel):
    "Licence, addresses and versions stand in the metadata; hints are typed; no link is relative."
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        told = email.message_from_bytes(file.read(next(name for name in names if name.endswith("METADATA"))))
    assert "fedbook/py.typed" in names
    assert told["License-Expression"] == "Apache-2.0" and "License" not in told
    urls = dict(each.split(", ") for each in told.get_all("Project-URL"))
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= urls.keys()
    assert {"Typing :: Typed", *(f"Programming Language :: Python :: 3.{n}" for n in (11, 12, 13))} <= {
        *told.get_all("Classifier")}
    links = re.findall(r"\]\(([^)]+)\)", told.get_payload())
    assert len(links) > 50 and all(link.startswith(("https://", "#")) for link in links)
    assert told["Version"] == fedbook.__version__ == house("version")
