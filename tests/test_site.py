"""The site of a course of two notebooks: what its pages show, what opens on them, what stops its build."""
import base64
import html
import importlib
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

pytest.importorskip("furo", reason="the site's packages are missing: pip install 'fedbook[site]'")
from PIL import Image, ImageChops
from sphinx.util.inventory import InventoryFile

from small_site import CHAPTER, PICTURES, code, course, prepared, text
from fedbook.kit.runs import WINGS, chapters
import check
import links
import notebooks
import prepare
import reference

ROOT = Path(__file__).parent.parent


@pytest.fixture
def site(little_site): return little_site


def page(site, name="00_small"): return (site / f"{name}.html").read_text()


def words(markup): return html.unescape(re.sub(r"<[^>]+>", "", markup))


def test_imports_are_folded_and_directives_gone(site):
    assert "#|" not in words(page(site)) and "default_exp" not in page(site)
    folded = re.search(r"<details.*?</details>", page(site), re.S)[0]
    assert "math" in folded and "Show the code" in folded


def test_a_quiz_opens_to_its_reason_and_hides_its_source(site):
    opened = "<details><summary>a) At home.</summary><i>Right.</i> Nothing but weights travels.</details>"
    assert opened in page(site)
    assert "margin:4px" not in page(site) and "quiz(" not in words(page(site))


def test_a_slider_is_three_pictures_without_loss_that_load_late(site):
    frames = re.search(r"<figure class='frames'>.*?</figure>", page(site), re.S)[0]
    assert re.findall(r"data-label='([^']+)'", frames) == ["alpha = 0.1", "alpha = 0.5", "alpha = 2.0"]
    for part in ("loading='lazy'", "width='60' height='40'", "alt='skew at ...'"):
        assert frames.count(part) == page(site).count(part) == 3
    assert "max='2'" in frames and "<code>alpha, beta</code>" in page(site)
    assert "<a href='#cell-c3'>The picture above</a>" in page(site)
    for source, kept in zip(PICTURES, re.findall(r"src='([^']+)'", frames)):
        files = BytesIO(base64.b64decode(source)), site / kept
        was, now = (Image.open(file).convert("RGB") for file in files)
        assert ImageChops.difference(was, now).getbbox() is None


def test_answers_stand_on_a_page_of_their_own(site):
    assert "2 * x" not in words(page(site))
    assert "<a href='answers/small.html#cell-a1'>Answer: <code>double</code></a>" in page(site)
    assert "id='cell-a1'" in page(site, "answers/small")


def test_a_link_to_a_cell_is_written_as_jupyterlab_has_it_and_leads_to_the_cell_of_the_site(site):
    assert '<a href=\'answers/small.html#cell-a1\'>the <em>cell</em></a>' in page(site)
    assert 'href="#cell-c5">this cell</a>' in page(site)
    assert 'href="answers/small.html">those</a>' in page(site)
    away = r"https://(github|mybinder|colab)|(\.\./)*notebooks/"
    to_take = rf"""href=['"]({away})[^'"]*['"]|download=['"][^'"]*['"]"""
    assert "ipynb" not in re.sub(to_take, "", page(site))


def test_a_page_offers_its_notebook_without_outputs_and_a_place_to_run_it(site):
    [file] = re.findall(r"href='(notebooks/[^']*)' download", page(site))
    taken = nbformat.read(site / file, as_version=4)
    assert taken.cells and not any(cell.get("outputs") for cell in taken.cells)
    assert "mybinder.org" in page(site) and "colab.research.google.com" in page(site)


def test_what_the_sources_promise_stands_on_the_pages(site, tmp_path):
    "The check of the sources knows anchors that Sphinx has yet to make."
    small = notebooks.Course(course(tmp_path) / "nbs")
    for name in small.books: assert set(small.anchors[name].values()) <= check.Page(site / f"{name}.html").ids
    described = links.described("kit.lab")
    assert len(described) > 10 and described <= check.Page(site / "api/kit.lab.html").ids


def test_the_reference_leads_to_the_cell_and_the_chapter_back(site):
    entry = page(site, "api/kit.lab")
    assert 'href="../00_small.html#cell-c2"' in entry and "Return whether the result a agrees" in words(entry)
    assert re.search(r"same\(\s*a: Any,\s*b: Any,\s*tolerance: float = 1e-0?6\W+bool", words(entry))
    assert "api/kit.lab.html#fedbook.kit.lab.same" in page(site)


@pytest.mark.parametrize("project", ["torch", "flower"])
def test_a_class_of_others_is_found_in_the_inventory_by_the_name_of_their_reference(project):
    data = (ROOT / "site" / "inventories" / f"{project}.inv").read_bytes()
    found = InventoryFile.loads(data, uri="https://x")
    for name, item in found.data["py:class"].items():
        module, _, short = name.rpartition(".")
        own = getattr(pytest.importorskip(module), short)
        written = f"{own.__module__}.{own.__qualname__}"
        assert reference.PUBLIC.get(written, written) == name
        assert item.uri.startswith("https://x/") and item.uri.endswith(f".html#{name}")


def test_an_equation_keeps_its_number(site):
    assert r"\[a = b \\ c \tag{1}\]" in page(site) and r"\begin{split}" not in page(site)


def test_a_claim_is_an_interval_that_leads_to_its_cell(site):
    row = re.search(r"<tr id='claim-\w+'.*?</tr>", page(site, "results"), re.S)[0]
    for name, fact in dict(paper="Small", verdict="reproduced").items():
        assert f'data-{name}="{fact}"' in row and f"<option>{fact}</option>" in page(site, "results")
    assert "href='00_small.html#cell-c5'" in row and "3 points (Table 1)" in row
    (low, high), = re.findall(r"class='bar' x1='([\d.]+)' x2='([\d.]+)'", row)
    assert float(low) < float(re.search(r"cx='([\d.]+)'", row)[1]) < float(high) and row.count("★") == 1


def test_the_start_page_says_the_minutes_of_the_path_alone(tmp_path):
    small = notebooks.Course(course(tmp_path) / "nbs")
    [path] = [name for name in small.books if "/" not in name]
    small.books[path].cells[0].source += "\n\n**Paper** x. **Time** 50 minutes, 20 of them for what you write."
    part = lambda pattern: f'```{{toctree}}\n:hidden:\n:caption: "Part"\n\n{pattern}\n```'
    assert f"]({path}.ipynb) (50 minutes): It has one of everything." in prepare.contents(small, part("[0-9]*"))
    assert "minutes" not in prepare.contents(small, part("answers/*"))


def test_names_are_in_the_glossary_and_words_in_the_search(site):
    assert re.search(r"alpha.*how skewed.*00_small\.html#names", page(site, "glossary"), re.S)
    index = (site / "searchindex.js").read_text()
    assert '"everyth' in index and '"travel"' in index and '"skew' in index


def test_each_word_of_the_glossary_has_a_chapter_and_a_name_that_can_be_imported():
    page = (ROOT / "site" / "pages" / "glossary.md").read_text()
    rows = [line for line in page.splitlines() if re.match(r"\| (?!word)[^-]", line)]
    assert len(rows) == page.count("\n| ") - page.count("\n| word") >= 60
    for row in rows:
        word, sentence, chapter, name = re.fullmatch(
            r"\| (.+) \| (.+\.) \| \[(.+)\]\(\3\.ipynb\) \| `(fedbook\..+)` \|", row).groups()
        module, _, own = name.rpartition(".")
        assert chapter in chapters() and hasattr(importlib.import_module(module), own), word


def test_a_link_in_a_name_of_a_wing_leads_there_from_the_glossary():
    row = "what [the engine](../engine/wire.ipynb#rows) writes, [a site](https://a.b/c.ipynb), [4](score.ipynb)"
    told = row.replace("../", "").replace("score", "methods/score")
    assert prepare.from_top(row, "methods/fedavg") == told and prepare.from_top(told, "00_start") == told


def test_nothing_comes_from_elsewhere_and_no_page_is_heavy(site):
    pages = check.read(site)
    for path in pages:
        assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=.(?:https?:)?//[^>]+", path.read_text())
    heaviest = max(each.weight() for each in pages.values())
    assert 900_000 < heaviest < 1_400_000, "MathJax has 0.9 MB; the text of a chapter may have the rest"


def test_the_check_finds_a_dead_anchor_a_missing_page_and_a_heavy_one(tmp_path, monkeypatch):
    dead = "".join(f"<a href='{link}'>x</a>" for link in ("b.html#there", "b.html#gone", "c.html"))
    (tmp_path / "a.html").write_text(f"<a class='cell' id='cell-c9'>#</a>{dead}")
    (tmp_path / "b.html").write_text("<p id='there'>")
    lost = [f"page a.html, below cell-c9: the link {link} leads nowhere"
            for link in ("b.html#gone", "c.html")]
    assert check.faults(tmp_path) == lost
    done = subprocess.run([sys.executable, check.__file__, tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == "".join(f"site: {fault}\n" for fault in lost)
    monkeypatch.setattr(check, "MOST", 20)
    assert any("page a.html weighs" in fault for fault in check.faults(tmp_path))


def planted(link):
    "Cells with a link: in Markdown, in HTML between Markdown, and in what is shown by code, with its kind."
    return {"markdown": text("planted", f"See [there]({link})."),
            "markdown, html": text("planted", f"See <b>it</b> <a href='{link}'>there</a>."),
            "output, markdown": code("planted", "1", {"text/markdown": f"| [there]({link}) |"}),
            "output, html": code("planted", "1", {"text/html": f'<p><a href="{link}">there</a></p>'})}


@pytest.mark.parametrize("kind", planted(""))
@pytest.mark.parametrize("link", ["05_gone.ipynb", "#gone", "answers/small.ipynb#cell-id=gone", "#c5",
                                  "../gone.md"])
def test_a_broken_link_stops_the_build_in_one_sentence(tmp_path, link, kind):
    broken = course(tmp_path, [*CHAPTER, planted(link)[kind]])
    with pytest.raises(notebooks.SiteError) as error: prepared(broken)
    assert str(error.value) == f"nbs/00_small.ipynb, cell planted: the link {link} leads nowhere"


@pytest.mark.parametrize("kind", planted(""))
def test_a_link_that_leads_somewhere_does_not(tmp_path, kind):
    for i, link in enumerate(("answers/small.ipynb#cell-id=a1", "#cell-id=c5", "#exercises", "../nbs")):
        prepared(course(tmp_path / str(i), [*CHAPTER, planted(link)[kind]]))


def test_all_broken_links_are_told_at_once(tmp_path):
    lost = [code(f"d{i}", "1", {"text/markdown": f"[x](#{i})"}) for i in range(3)]
    with pytest.raises(notebooks.SiteError) as error: prepared(course(tmp_path, [*CHAPTER, *lost]))
    assert re.findall(r"cell (\w+)", str(error.value)) == ["d0", "d1", "d2"]


def test_a_broken_link_of_a_page_that_nobody_wrote_stops_the_build(tmp_path):
    folder = course(tmp_path)
    start = (folder / "written" / "index.md").read_text()
    more = "\n[there](results.md#gone) <a href='api/kit.lab.html#gone'>x</a>"
    (folder / "written" / "index.md").write_text(start.replace("glossary\n", "glossary\nlost\n") + more)
    with pytest.raises(notebooks.SiteError) as error: prepared(folder)
    assert str(error.value).splitlines() == [
        "page index: the link results.md#gone leads nowhere",
        "page index: the link api/kit.lab.html#gone leads nowhere",
        "page index.md: its table of contents lists lost, which is no page"]


def test_an_exported_name_that_its_module_lacks_stops_the_build(tmp_path):
    "The line `In the library` below a cell leads to the reference, which Sphinx makes from the module."
    new = code("new", "#| export\ndef unheard_of(): 'It is not exported yet.'", {"text/plain": "ok"})
    with pytest.raises(notebooks.SiteError) as error: prepared(course(tmp_path, [*CHAPTER, new]))
    anchor = "api/kit.lab.html#fedbook.kit.lab.unheard_of"
    assert str(error.value) == f"page 00_small, below cell new: the link {anchor} leads nowhere"


def test_a_notebook_without_outputs_stops_the_build_in_one_sentence(tmp_path):
    empty = [{**cell, "outputs": []} if cell["cell_type"] == "code" else cell for cell in CHAPTER]
    with pytest.raises(notebooks.SiteError) as error: prepared(course(tmp_path, empty))
    assert str(error.value) == "nbs/00_small.ipynb has no outputs: fill it with `make book NAME=00_small`"


def test_an_answer_that_nobody_wrote_stops_the_build(tmp_path):
    other = code("c8", "reveal(answers.triple)", {"text/plain": "Answer: triple in fedbook.answers.small"})
    with pytest.raises(notebooks.SiteError, match="reveals triple"):
        prepared(course(tmp_path, [*CHAPTER, other]))


@pytest.fixture(scope="module")
def whole(): return notebooks.Course(ROOT / "nbs")


def test_every_link_of_the_whole_site_leads_somewhere(whole):
    """Of Markdown cells, of outputs, of results, glossary, start page and reference, from what is committed.
    Only the build itself knows the links that Sphinx makes: sidebars, the search, signatures."""
    made = prepare.sources(whole, ROOT / "results", ROOT / "site" / "pages")
    assert {f"{name}.ipynb" for name in whole.books} | {"results.md", "glossary.md"} < made.keys()


def placed(books):
    "The notebooks on the start page of the course, with more of them or fewer, in its order."
    index = (ROOT / "site" / "pages" / "index.md").read_text()
    start = prepare.contents(SimpleNamespace(books=books), index)
    return re.findall(r"<((?:\w+/)?\w+)>$", start.partition("## Chapters")[2], re.M)


def test_every_notebook_has_its_place_on_the_start_page_in_the_order_of_the_course(whole):
    shown = [name for name in placed(whole.books) if name in whole.books]
    assert shown == list(chapters())
    assert sorted(shown) == sorted(name for name in whole.books if not name.startswith("answers/"))


def test_the_wings_are_folded_below_the_path(whole):
    index = (ROOT / "site" / "pages" / "index.md").read_text()
    start = prepare.contents(whole, index)
    path, *folded = start.partition("## Chapters")[2].split("<details")
    assert all(f"]({name}.ipynb)" in path for name in chapters() if "/" not in name)
    assert [re.search(r"\]\((\w+)/", part)[1] for part in folded] == list(WINGS)


def test_a_new_chapter_comes_to_the_start_page_by_itself(whole):
    late = {"19_late": whole.books["methods/fedavg"], "evidence/late": whole.books["methods/fedavg"]}
    shown = placed({**whole.books, **late})
    assert shown[shown.index("14_fedgtea") + 1] == "19_late" and shown[-1] == "evidence/late"


def test_every_slider_has_frames_to_move_through(whole):
    moved = lambda book: sum(bool(notebooks.calls(cell, "play") and cell.outputs) for cell in book.cells)
    plays = {name: moved(book) for name, book in whole.books.items() if moved(book)}
    shown = {name: [len(labels) for labels in notebooks.frames(whole.books[name]).values()] for name in plays}
    assert sum(plays.values()) >= 36 and {name: len(counts) for name, counts in shown.items()} == plays
    assert min(count for counts in shown.values() for count in counts) >= 2
