"""What keeps notebooks, package and results in step."""
import ast
import re
import subprocess
from pathlib import Path

import pytest

from books import book
from fedbook.kit.command import to_fold
from fedbook.kit.report import collect
from fedbook.kit.runs import chapters, notebook_stamp

ROOT = Path(__file__).parent.parent
CHAPTERS = list(chapters().values())
ANSWERS = sorted((ROOT / "nbs" / "answers").glob("*.ipynb"))
NOTEBOOKS = CHAPTERS + ANSWERS
named = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.relative_to(ROOT / "nbs").as_posix())
chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)


def module_of(path):
    found = re.findall(r"^#\| default_exp (\S+)", "\n".join(c.source for c in book(path).cells),
                       re.M)
    assert len(found) <= 1, f"{path.name} names {len(found)} modules"
    return found[0] if found else None


MODULES = {module_of(path): path for path in NOTEBOOKS if module_of(path)}


def test_export_is_fresh(tmp_path):
    import shutil
    from nbdev.export import nb_export
    shutil.copytree(ROOT / "nbs", tmp_path / "nbs")
    for path in NOTEBOOKS:
        nb_export(str(tmp_path / "nbs" / path.relative_to(ROOT / "nbs")), lib_path=str(tmp_path / "fedbook"))
    for module in MODULES:
        file = Path("fedbook", *module.split(".")).with_suffix(".py")
        assert (tmp_path / file).read_text() == (ROOT / file).read_text(), f"{file} is older than its notebook: run make export"


def test_each_module_has_one_notebook_and_each_notebook_one_module():
    named_twice = [m for m in MODULES if sum(module_of(p) == m for p in NOTEBOOKS) > 1]
    assert not named_twice
    files = {f.relative_to(ROOT / "fedbook").with_suffix("").as_posix().replace("/", ".")
             for f in (ROOT / "fedbook").rglob("*.py")}
    assert files - {"__init__", "__main__", "_modidx", "answers.__init__"} == set(MODULES)


@chapter
def test_one_parameters_cell(path):
    tagged = [c for c in book(path).cells if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1
    assert [line.split(" = ")[0] for line in tagged[0].source.splitlines()] == ["profile", "device", "seed",
                                                                                "engine", "out", "changes"]


@named
def test_outputs_are_of_this_code_and_clean(path):
    read = book(path)
    old = f"the outputs of {path.name} are older than its code: run make book NAME={path.stem}"
    assert read.metadata.get("fedbook", {}).get("stamp") == notebook_stamp(path), old
    assert set(read.metadata) <= {"fedbook", "kernelspec", "language_info"}
    for cell in read.cells:
        assert set(cell.metadata) <= {"tags", "jupyter"}
        assert cell.metadata.get("jupyter", {}) == ({"source_hidden": True} if cell.cell_type == "code"
                                                    and to_fold(cell.source)
                                                    else {}), "fedbook book folds cells"
        for output in cell.get("outputs", []):
            assert output.output_type != "error" and output.get("name") != "stderr"
    assert path in ANSWERS or any(cell.get("outputs") for cell in read.cells)
    text = path.read_text()
    assert str(Path.home()) not in text and str(ROOT) not in text


def place(module):
    "(0, number) for the workshop, (1, number) for the course: what stands before may be imported."
    wing, number = re.match(r"(w?)(\d+)_", MODULES[module].name).groups()
    return 0 if wing else 1, int(number)


def imported(module):
    "The modules of fedbook that a module imports."
    tree = ast.parse((ROOT / "fedbook" / Path(*module.split("."))).with_suffix(".py").read_text())
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom): continue
        assert all(alias.name != "*" for alias in node.names), "star import"
        other = (node.module if node.level else (node.module or "").removeprefix("fedbook.")
                 if (node.module or "").startswith("fedbook.") else None)
        whole = not node.module and node.level or node.module == "fedbook"
        yield from [alias.name for alias in node.names if alias.name in MODULES] if whole else filter(None,
                                                                                                      [other])


@pytest.mark.parametrize("module", MODULES)
def test_imports_look_back(module):
    """A module of the workshop imports only earlier ones of the workshop; a chapter imports the workshop and
    chapters with a smaller number. (Two notebooks may share a number; they do not import each other.) Papers
    do not import each other."""
    for other in imported(module):
        if module.startswith("answers."):
            assert place(other) <= place(module)
            continue
        assert place(other) < place(module), f"{module} imports {other}, which comes later"
        papers = [(1, 10) <= place(each) < (1, 20) for each in (module, other)]
        assert not all(papers), "a paper imports another paper"


def test_the_workshop_stands_apart():
    wings = {MODULES[module].parent.name for module in MODULES if place(module)[0] == 0}
    assert wings == {"workshop", "answers"}
    assert place("lab") == (0, 1) < place("world") < place("split") < place("command")


def test_kept_results_have_scale_device_and_at_least_three_seeds_for_a_verdict():
    for body in collect(ROOT / "results"):
        assert body["scale"] and body["device"] and body["profile"] in ("full", "paper")
        for c in body["claims"]:
            assert c["verdict"] in ("open", "measured") or len(c["values"]) >= 3


def test_package_holds_notebooks_and_data():
    from configparser import ConfigParser
    cfg = ConfigParser(delimiters=["="])
    cfg.read(ROOT / "settings.ini")
    assert cfg["DEFAULT"]["allowed_cell_metadata_keys"].split() == ["tags", "jupyter"]
    assert "fedbook" in cfg["DEFAULT"]["allowed_metadata_keys"]
    manifest = (ROOT / "MANIFEST.in").read_text()
    assert "settings.ini" in manifest and "recursive-include nbs *.ipynb" in manifest
    assert all(folder in (ROOT / "setup.py").read_text() for folder in ('"*.ipynb"', '"answers/*.ipynb"',
                                                                        '"workshop/*.ipynb"'))


def test_the_tree_is_light():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    paths = [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]
    sizes = {path.relative_to(ROOT).as_posix(): path.stat().st_size / 1e6 for path in paths}
    biggest = ", ".join(f"{name} {sizes[name]:.1f}" for name in sorted(sizes, key=sizes.get)[-5:])
    assert sum(sizes.values()) < 35, f"{sum(sizes.values()):.1f} MB are tracked; the biggest, in MB: {biggest}"
    heavy = [f"{name} {size:.1f} MB" for name, size in sizes.items() if name.endswith(".ipynb") and size > 2]
    assert not heavy, f"above 2 MB: {', '.join(heavy)}; fedbook book stores pictures in few colours"
