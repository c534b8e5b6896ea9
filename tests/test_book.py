"""Booking: outputs copied back into the notebooks, kept rows taken over, nothing changed where a number differs."""
import json
import shutil

import nbformat
import pytest

from conftest import house
from fedbook.engine.errors import UserError
from fedbook.evidence.claims import verdict_of
from fedbook.kit import command, runs
from fedbook.kit.report import keep
from fedbook.kit.runs import execute, notebook_stamp, run_chapter, run_stamp
from nbformat.v4 import new_code_cell
from test_command import chapter, execute_here
from tools import book as booking
from tools.book import copy_outputs, main


@pytest.fixture
def in_process(monkeypatch):
    "Chapters run without kernels."
    for module in (booking, runs): monkeypatch.setattr(module, "execute", execute_here)


MISTAKES = [
    ("fedavg --rows-from x.json", "--rows-from goes with --keep-rows"),
    ("all --keep-rows", "--keep-rows goes with one chapter"),
    ("all --old-rows", "--old-rows goes with one chapter"),
    ("fedavg --as-before x --profile quick", "books the outputs of full"),
    ("fedavg --as-before /nowhere/at/all", "0 runs *fedavg-quick-0 lie in"),
    ("fedavg --keep-rows --as-before x", "not allowed with"),
    ("wire --keep-rows", "0 files of kept results fit *wire-full-0-*.json")]


@pytest.mark.parametrize("line, said", MISTAKES)
def test_a_mistake_is_one_sentence(line, said, capsys):
    try: assert main(line.split()) == 2
    except SystemExit as ended: assert ended.code == 2
    assert said in capsys.readouterr().err


def test_outputs_are_copied_back_by_cell_id(tmp_path):
    path = chapter(tmp_path, "print('first', profile)", "import sys; print('bar', file=sys.stderr)", "2 + 2")
    target = tmp_path / "done.ipynb"
    assert execute(path, target, dict(profile="smoke")) is None
    copy_outputs(target, path, "profile `smoke`, seed 0")
    book = nbformat.read(path, 4)
    assert book.cells[2].outputs[0].text == "first smoke\n" and book.cells[3].outputs == []
    assert book.cells[4].outputs[0].data["text/plain"] == "4"
    assert book.cells[0].source.endswith("*Outputs: profile `smoke`, seed 0.*")
    assert book.metadata.fedbook.stamp == notebook_stamp(path) and len(book.cells) == 5
    copy_outputs(target, path, "profile `full`, seed 0")
    assert nbformat.read(path, 4).cells[0].source.count("*Outputs:") == 1
    book = nbformat.read(path, 4)
    book.cells[0].source = book.cells[0].source.replace("seed 0.*", "seed 0; the table has more.*")
    nbformat.write(book, path)
    for shown, kept in (("profile `full`, seed 0", "profile `full`, seed 0; the table has more"),
                        ("profile `full`, seeds 0 to 1", "profile `full`, seeds 0 to 1"),
                        ("profile `full`, seeds 0 to 15", "profile `full`, seeds 0 to 15")):
        copy_outputs(target, path, shown)
        assert nbformat.read(path, 4).cells[0].source.endswith(f"\n\n*Outputs: {kept}.*")


def test_pictures_are_booked_in_few_colours_and_booked_ones_stay():
    from base64 import b64decode, b64encode
    from io import BytesIO
    from PIL import Image
    data = BytesIO()
    Image.radial_gradient("L").convert("RGBA").save(data, "PNG")
    png = b64encode(data.getvalue()).decode()
    shown = lambda png: [dict(output_type="display_data", metadata={}, data={
        "image/png": png, "text/plain": "<Figure>", "application/vnd.jupyter.widget-view+json": {}})]
    (once,) = booking._tidy(shown(png))
    assert set(once["data"]) == {"image/png", "text/plain"} and once["data"]["text/plain"] == "<Figure>"
    with Image.open(BytesIO(b64decode(once["data"]["image/png"]))) as few:
        assert few.mode == "P" and few.size == (256, 256)
    assert booking._tidy(shown(once["data"]["image/png"])) == [once]


@pytest.mark.parametrize("source, want", [
    ("#| hide\nimport os", True), ("#|hide", True), ("#| hidden", False),
    ('quiz("a", ("b", True, "c"))\nquiz("d")', True), ('quiz("a")\nx = 1', False), ("x = quiz('a')", False),
    ("", False), ("%%time\nquiz('a')", False), ("#| export\nimport os", False)])
def test_what_is_folded(source, want): assert booking.to_fold(source) is want


def test_booking_folds_cells_and_cleaning_keeps_the_folds(tmp_path):
    path = chapter(tmp_path, "#| hide\nimport os", "2 + 2")
    target = tmp_path / "done.ipynb"
    execute(path, target, {})
    copy_outputs(target, path, "")
    read = lambda: [cell.metadata for cell in nbformat.read(path, 4).cells]
    assert read() == [{}, {"tags": ["parameters"]}, {"jupyter": {"source_hidden": True}}, {}]
    from nbdev.clean import clean_nb
    from execnb.nbio import read_nb, write_nb
    book = read_nb(path)
    clean_nb(book, allowed_metadata_keys=["fedbook"],
             allowed_cell_metadata_keys=house("allowed_cell_metadata_keys").split())
    write_nb(book, path)
    assert read() == [{}, {"tags": ["parameters"]}, {"jupyter": {"source_hidden": True}}, {}]


# what is measured follows from VALUE; each measurement leaves a letter in LOG, and `took` is a clock
MOVED = """from fedbook.evidence.claims import Results
from time import perf_counter
results = Results("NAME", profile, {"data": "toy"}, seed, out, scale="toy", clock=["took"])
def measure(what, s):
    open("LOG", "a").write(what[0])
    return {"score": (VALUE) * (s + 1), "nested": [{"deep": VALUE}], "took": perf_counter()}
for what in ("a", "a, twice", "b: one"):
    for s in range(3): results.row(what, s, lambda: measure(what, s))
pairs = zip(results.values("a", "score"), results.values("b: one", "score"))
results.claim("a pairs with b", [p - q for p, q in pairs], at_least=-1)
print(profile, results.values("a", "score"))
"""


def moved(folder, log, name="98_demo", value="2.5", more=()):
    folder.mkdir(exist_ok=True)
    return chapter(folder, MOVED.replace("LOG", str(log)).replace("NAME", name).replace("VALUE", value),
                   'results.finish("done")', *more, name=name)


def booked(tmp_path):
    "A chapter under an old number that ran at full, with its results kept."
    old = moved(tmp_path / "old", tmp_path / "log")
    run_chapter(old, "full", out=tmp_path / "runs")
    return keep(tmp_path / "runs", tmp_path / "results")[0]


def test_keep_rows_measures_one_row_of_each_method_again(tmp_path):
    file, log = booked(tmp_path), tmp_path / "log"
    before = json.loads(file.read_text())
    assert log.read_text() == "aaaaaabbb"
    new = moved(tmp_path / "new", log, "99_demo", more=["# the code has moved"])
    ran = booking.keep_rows(new, out=tmp_path / "runs", results=tmp_path / "results")
    assert ran["error"] is None and ran["measured"] == "9 rows, 2 of them measured again: done"
    assert log.read_text() == "aaaaaabbb" + "ab"
    done = json.loads((tmp_path / "runs" / "99_demo-full-0" / "results.json").read_text())
    assert sorted(done["recomputed"]) == sorted(map(list, booking.to_recompute(before["rows"])))
    assert [(r["what"], r["seed"]) for r in done["rows"]] == [(r["what"], r["seed"]) for r in before["rows"]]
    assert not any("again" in row for row in done["rows"])
    assert done["claims"] == before["claims"] and done["name"] == "99_demo"
    assert not (tmp_path / "runs" / "kept-rows" / "99_demo-full-0").exists()
    assert nbformat.read(new, 4).metadata.fedbook.stamp == notebook_stamp(new)
    assert any("recomputed" in json.loads(kept.read_text())
               for kept in keep(tmp_path / "runs", tmp_path / "kept"))


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("value, name, said", [("2.5 if s < 0 else 2.5 + 1e-12", "99_demo", "and is"),
                                               ("float('nan')", "99_demo", "and is nan")])
def test_keep_rows_changes_nothing_if_a_number_differs(value, name, said, tmp_path):
    booked(tmp_path)
    new = moved(tmp_path / "new", tmp_path / "log", name, value)
    before = new.read_bytes()
    ran = booking.keep_rows(new, out=tmp_path / "runs", results=tmp_path / "results")
    assert said in ran["error"] and "row 'a" in ran["error"] and "nothing is changed" in ran["error"]
    assert new.read_bytes() == before and not (tmp_path / "runs" / "99_demo-full-0").exists()
    assert not list((tmp_path / "runs"
                     / "kept-rows").glob("*/results.json")), "rows of two programs must not lie about"


@pytest.mark.usefixtures("in_process")
def test_keep_rows_says_when_settings_differ_or_a_row_is_gone(tmp_path):
    file, log = booked(tmp_path), tmp_path / "log"
    source = nbformat.read(moved(tmp_path / "new", log, "99_demo"), 4).cells[2].source
    for old, other, said in (('"toy", clock', '"other", clock',
                              "the kept rows are of scale='toy', this run has 'other'"),
                             ('"b: one"', '"b: two"', "row 'b: one', seed")):
        other = chapter(tmp_path / "new", source.replace(old, other), name="99_demo")
        ran = booking.keep_rows(other, file, out=tmp_path / "runs")
        assert said in ran["error"], ran["error"]


@pytest.mark.usefixtures("in_process")
def test_old_rows_are_taken_as_they_are_and_marked(tmp_path, monkeypatch, capsys):
    file, log = booked(tmp_path), tmp_path / "log"
    body = json.loads(file.read_text())
    gone = body["rows"].pop()
    file.write_text(json.dumps(body))
    new = moved(tmp_path / "new", log, "99_demo", "3.5")
    log.write_text("")
    ran = booking.old_rows(new, out=tmp_path / "runs", results=tmp_path / "results")
    assert ran["error"] is None and ran["measured"] == "9 rows, 8 of earlier code: done"
    assert log.read_text() == "b"
    done = json.loads((tmp_path / "runs" / "99_demo-full-0" / "results.json").read_text())
    assert [row.pop("older", None) for row in done["rows"]] == [body["stamp"]] * 8 + [None]
    assert done["rows"][:8] == body["rows"]
    assert done["rows"][8]["numbers"]["score"] != gone["numbers"]["score"]
    assert done["stamp"] == run_stamp(new) and done["claims"][0]["older"] is True
    assert nbformat.read(new, 4).cells[0].source.endswith(", rows measured with earlier code.*")
    capsys.readouterr()
    assert command.main(["report", str(tmp_path / "runs")]) == 0
    said, pages = capsys.readouterr().out, (tmp_path / "runs" / "README.md").read_text()
    for text in (said, pages): assert "† 8 of 9 rows were measured with earlier code." in text
    word = verdict_of(done["claims"][0])
    assert word.endswith(" †") and any(line.startswith(word) for line in said.splitlines())
    assert f"| {word} |" in pages

    shutil.rmtree(tmp_path / "results")
    keep(tmp_path / "runs", tmp_path / "kept")
    kept = next((tmp_path / "kept").glob("99_demo*.json"))
    newer = moved(tmp_path / "new", log, "99_demo", "4.5")
    booking.old_rows(newer, kept, tmp_path / "runs")
    again = json.loads((tmp_path / "runs" / "99_demo-full-0" / "results.json").read_text())
    assert {row["older"] for row in again["rows"][:8]} == {body["stamp"]}, "the stamp of who measured it stays"
    assert again["rows"][8]["older"] == done["stamp"]


def test_old_rows_of_the_same_code_are_not_old(tmp_path):
    file, log = booked(tmp_path), tmp_path / "log"
    same = moved(tmp_path / "old", log)
    ran = booking.old_rows(same, file, tmp_path / "runs")
    assert ran["measured"] == "9 rows, 0 of earlier code: done"
    done = json.loads((tmp_path / "runs" / "98_demo-full-0" / "results.json").read_text())
    assert "older" not in done["claims"][0] and "earlier" not in nbformat.read(same, 4).cells[0].source


@pytest.mark.parametrize("old, new, want", [
    ("f(1, 2)", "f(1,\n  2)  # why", True), ("x = 1", "x = 2", False), (None, "x = 1", False),
    ("%matplotlib inline", "%matplotlib inline", True), ("%time x", "%time y", False),
    ("'a'", "\"a\"", True), ("f(a=1, b=2)", "f(b=2, a=1)", False)])
def test_the_same_code_may_look_otherwise(old, new, want): assert booking.same_code(old, new) is want


@pytest.mark.usefixtures("in_process")
def test_as_before_takes_what_does_not_depend_on_the_size(tmp_path):
    log, cell = tmp_path / "log", lambda source, id: new_code_cell(source, id=id)
    def write(folder, *cells):
        path = moved(folder, log, more=["0"] * len(cells))
        book = nbformat.read(path, 4)
        for i, cell_ in enumerate(book.cells): cell_["id"] = f"cell{i}"
        book.cells[4:] = cells
        nbformat.write(book, path)
        return path
    old = write(tmp_path / "old", cell("print('size', profile)", "size"), cell("print('quiz')", "quiz"),
                cell("print('changed', profile)", "changed"),
                cell("if profile == 'full': print('nodes')", "nodes"))
    run_chapter(old, "quick", out=tmp_path / "base")
    new = write(tmp_path / "new", cell("print('size', profile)", "size"),
                cell("print('better quiz')", "quiz"), cell("print('changed', f'{profile}')", "changed"),
                cell("if profile == 'full': print('nodes')", "nodes"), cell("print('new')", "new"))
    run_chapter(new, "full", out=tmp_path / "full")
    copy_outputs(tmp_path / "full" / "98_demo-full-0" / "98_demo.ipynb", new, "profile `full`, seed 0")
    book = nbformat.read(new, 4)
    for i, text in ((-4, "quiz\n"),
                    (-3, "committed, full\n")): book.cells[i]["outputs"] = [nbformat.v4.new_output("stream",
                                                                                                   text=text)]
    book.cells[-1]["outputs"] = []
    book.metadata.fedbook.stamp = "old"
    nbformat.write(book, new)
    ran = booking.as_before(new, tmp_path / "base", out=tmp_path / "runs")
    assert ran["error"] is None and ran["measured"] == "as before: 9 rows at quick", ran
    texts = {c.id: "".join(o.get("text", "") for o in c.get("outputs", []))
             for c in nbformat.read(new, 4).cells}
    assert texts["size"] == "size full\n" and texts["quiz"] == "better quiz\n"
    assert texts["changed"] == "committed, full\n" and texts["new"] == "new\n" and texts["nodes"] == "nodes\n"
    assert texts["cell2"].startswith("full [")
    assert nbformat.read(new, 4).metadata.fedbook.stamp == notebook_stamp(new)
    assert "profile `full`" in nbformat.read(new, 4).cells[0].source

    book = nbformat.read(new, 4)
    book.cells.append(cell("print('new and of a size:', profile)", "newer"))
    nbformat.write(book, new)
    before = new.read_bytes()
    wanted = "cell 10 .* is new or changed, and its outputs depend on the size"
    with pytest.raises(UserError, match=wanted):
        booking.as_before(new, tmp_path / "base", out=tmp_path / "runs")
    assert new.read_bytes() == before


def test_as_before_compares_all_rows(tmp_path):
    run_chapter(moved(tmp_path / "old", tmp_path / "log"), "quick", out=tmp_path / "base")
    new = moved(tmp_path / "new", tmp_path / "log", "99_demo", "2.5 + 1e-12 * (s == 2)")
    before = new.read_bytes()
    ran = booking.as_before(new, tmp_path / "base", out=tmp_path / "runs")
    assert "row 'a', seed 2: score was 7.5 and is" in ran["error"] and ran["measured"] == "FAILED"
    assert new.read_bytes() == before
