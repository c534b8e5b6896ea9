"""The front door says what is true: its examples run, and so do its two methods of others."""
import re
from base64 import b64decode
from functools import partial
from pathlib import Path

import nbformat
import pytest
from PIL import Image

from fedbook.engine import federation
from fedbook.kit import command
from fedbook.kit.runs import chapters, code_cells
from fedbook.engine.workers import prove, trial
from fedbook.methods.fedavg import FedAvgExperiment, FedAvgSizes
from fedbook.kit.report import collect, drawn_from, figures_of, fill, page

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
NOVA, EXAMPLE = re.findall(r"```python\n(.*?)```", README, re.S)


def lines(block): return [line for line in block.splitlines() if line.strip()]


def scaffold_cells():
    "The cells of methods/fedavg that import, and those with SCAFFOLD, where the README sends its reader."
    sources = code_cells(chapters()["methods/fedavg"])
    imports = [source for source in sources if re.match(r"#\| (export|hide)\n(import|from) ", source)]
    return "\n\n".join([*imports, *(source for source in sources
                                    if re.match(r"(def zeros|class Scaffold)", source))])


def method(block, **names):
    exec(compile(block, "README.md", "exec"), names)
    return names


def nova(sizes):
    names = method(NOVA)
    return FedAvgExperiment(sizes, 0, client_kind=names["NovaClient"], server_kind=names["FedNova"])


def scaffold(sizes):
    names = method(scaffold_cells(), **vars(federation))
    server_kind = partial(names["Scaffold"], clients=sizes.clients)
    return FedAvgExperiment(sizes, 0, client_kind=names["ScaffoldClient"], server_kind=server_kind)


METHODS = pytest.mark.parametrize("method", [nova, scaffold], ids=["FedNova", "SCAFFOLD"])
SMALL = FedAvgSizes(alpha=0.5, clients=60, per_round=3, rounds=2)


def test_example(capsys):
    exec(NOVA + EXAMPLE.replace("rounds=10", "rounds=1"), {})
    assert int(capsys.readouterr().out.split()[0]) > 1_000_000


def test_the_command_for_your_own_pictures_is_taken(tmp_path, monkeypatch, capsys):
    (words,) = re.findall(r"`fedbook (run methods/fedavg -p data=photos/[^`]*)`", README)
    assert f"`fedbook {words}`" in (ROOT / "nbs" / "00_start.ipynb").read_text(), "its third door"
    for kind in ("cat", "dog"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for i in range(5): Image.new("RGB", (40, 30 + i)).save(tmp_path / "photos" / kind / f"{i}.jpg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "run_chapters", lambda *_, **__: [])
    assert command.main(words.split()) == 0 and "resized to 32 x 32" in capsys.readouterr().err
    with pytest.raises(SystemExit): command.main(["--help"])
    assert f"fedbook {words} for" in " ".join(capsys.readouterr().out.split())


def test_a_method_of_your_own_is_short(): assert len(lines(NOVA)) <= 15


PICTURES = re.findall(r"!\[.+\]\((.+\.png)\)", README)


def test_the_first_picture_is_that_of_the_first_chapter():
    "A stranger sees what federated learning is, before anything of claims."
    book = nbformat.read(ROOT / "nbs" / "00_start.ipynb", as_version=4)
    drawn = [out["data"]["image/png"] for cell in book.cells if cell.id == "90b6cc89" for out in cell.outputs
             if "image/png" in out.get("data", {})]
    shown = (ROOT / PICTURES[0]).read_bytes()
    assert [b64decode(png) for png in drawn] == [shown], "python tools/evenings.py --write"


def test_the_second_picture_shows_the_main_claims():
    assert len(PICTURES) == 2 and drawn_from(ROOT / PICTURES[1])


def test_the_commands_for_your_own_machines_are_taken(tmp_path, monkeypatch, capsys):
    pytest.importorskip("flwr", reason="Flower is not installed here: pip install 'fedbook[flower]'")
    typed = [line for line in README.splitlines() if line.startswith("fedbook flower-")]
    keys, app, node = (line.split()[1:] for line in typed)
    monkeypatch.chdir(tmp_path)
    assert command.main(keys) == 0 and "flwr run" in capsys.readouterr().out
    assert command.main(app) == 0 and (tmp_path / "app" / "pyproject.toml").exists()
    asked = command._parser().parse_args(node)
    assert (tmp_path / asked.folder).is_dir() and asked.data == "photos/"


def test_it_says_how_to_get_it_and_what_to_type():
    first, found, _ = README.partition("## What you can do")
    assert found and all(words in first for words in ("git clone https://github.com/fedbook/fedbook", "make run", "Windows"))


def links(page):
    "The files and places that a Markdown page links to, relative to its folder."
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if not link.startswith("http")]


def anchors(page): return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
                           for title in re.findall(r"^#+ (.+)$", page.read_text(), re.M)}


@pytest.mark.parametrize("page", ["README.md", "results/README.md"])
def test_links_resolve(page):
    page = ROOT / page
    for link in links(page):
        file, _, anchor = link.partition("#")
        target = (page.parent / file) if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_list_of_chapters_has_every_one_in_the_order_of_the_course_and_folds_the_wings():
    path, folded, wings = README.partition("## Chapters")[2].partition("<details>")
    names = lambda part: re.findall(r"\(nbs/([\w/]+)\.ipynb\)", part)
    listed, beside = names(path), names(wings.partition("</details>")[0])
    assert folded and listed + beside == list(chapters())
    assert not [name for name in listed if "/" in name] and all("/" in name for name in beside)


def test_results_are_what_the_command_writes(tmp_path):
    bodies, folder = collect(ROOT / "results"), ROOT / "results"
    assert bodies and (folder / "README.md").read_text() == page(bodies, "results")
    drawn = {path.name: drawn_from(path) for path in (folder / "figures").iterdir()}
    assert drawn == {name: stamp for name, (stamp, _) in figures_of(bodies).items()}


def test_the_papers_table_counts_the_kept_verdicts(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(README)
    fill(copy, collect(ROOT / "results"))
    assert copy.read_text() == README
    assert len(re.findall(r"\| \[results\]\(results/README.md#fed\w+\) \|", README)) == 5


@pytest.mark.slow
@METHODS
def test_it_is_counted_and_proven(method):
    "Two workers, kills and resumes, faults: all of `prove`."
    assert prove(method(SMALL), kills=2, kinds=("silent", "nan", "names"))
    ended = trial(method(SMALL), workers=1)
    per_message = 2 * 4 * 3 if method is scaffold else 4 * 3
    weights = sum(t.numel() for t in ended.server.weights.values())
    assert ended.federation.ledger.total() > 2 * per_message * weights


@METHODS
def test_it_runs_on_flower_with_the_same_bits(method):
    pytest.importorskip("flwr", reason="Flower is not installed here: pip install 'fedbook[flower]'")
    from fedbook.deploy.flower import FlowerTransport, client_app
    from test_flower import FakeGrid
    experiment = method(SMALL)
    grid = FakeGrid(partial(client_app, experiment.client), experiment.ids)
    away, here = trial(experiment, transport=FlowerTransport(grid, experiment.ids)), trial(experiment, workers=1)
    assert all((away.server.weights[name] == t).all() for name, t in here.server.weights.items())
    assert [e[:5] for e in away.federation.ledger.entries] == [e[:5] for e in here.federation.ledger.entries]
