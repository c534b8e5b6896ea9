"""The site of a course of two notebooks: what its pages show, what opens on them, what stops its build."""
import base64
import html
import json
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest

pytest.importorskip("furo", reason="the site's packages are missing: pip install 'fedbook[site]'")
from PIL import Image, ImageChops

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "site"))
import check
import notebooks
import prepare


def png(shade):
    data = BytesIO()
    Image.linear_gradient("L").resize((60, 40)).point(lambda v: (v + shade) % 256).save(data, "png")
    return base64.b64encode(data.getvalue()).decode()


def text(id, source): return dict(cell_type="markdown", id=id, metadata={}, source=source)


def code(id, source, *outputs, **metadata):
    shown = [dict(output_type="display_data", metadata={}, data=data) for data in outputs]
    return dict(cell_type="code", id=id, execution_count=1, metadata=metadata, source=source, outputs=shown)


def notebook(path, cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(nbformat=4, nbformat_minor=5, metadata={}, cells=cells)))


PICTURES = [png(0), png(60), png(120)]
QUIZ = ("<div><b>Where do pictures stay?</b><details style='margin:4px 0 4px 16px'>"
        "<summary>a) At home.</summary><i>Right.</i> Nothing but weights travels.</details></div>")
NAMES = "## Names\n\n| in the text | in code | what |\n|---|---|---|\n| $\\alpha$ | `alpha` | how skewed |"
PART = ("## A part\n\n$$a = b \\\\ c \\tag{1}$$\n\n"
        "Back to [the names](#names), on to [the answers](answers/00_small.ipynb).")
FIGURE = ("def figure(alpha, beta=1):\n    ax.set_title(f'skew at {alpha}')\n\n"
          "for alpha in (0.1, 0.5, 2.0): display(figure(alpha))")
REVEALED = {"text/plain": "Answer: double in fedbook.answers.small",
            "text/html": "<details><summary>Answer</summary><pre>return 2 * x</pre></details>"}
CHAPTER = [
    text("t0", "# A small chapter\n\n> It has one of everything."),
    code("c0", "#| default_exp lab"),
    code("c1", "#| hide\nimport math"),
    text("t1", NAMES), text("t2", PART),
    code("c2", "#| export\ndef same(a, b): ...", {"text/plain": "ok"}),
    code("c3", FIGURE, *({"image/png": each, "text/plain": "<Figure>"} for each in PICTURES)),
    code("c4", "play(figure, alpha=[0.1, 0.5], beta=(1, 5, 1))",
         {"text/plain": "[slider: alpha, beta. Run this cell in JupyterLab to move it.]"}),
    code("c5", "results", {"text/markdown": "| claim |\n|---|\n| skew costs accuracy |", "text/plain": ""}),
    text("t3", "## Exercises"),
    code("c6", "reveal(answers.double)", REVEALED),
    code("c7", "quiz('Where do pictures stay?')", {"text/html": QUIZ, "text/plain": "Where"},
         jupyter={"source_hidden": True})]
ANSWERS = [text("t4", "# Answers to 00_small"), code("a0", "#| default_exp answers.small"),
           code("a1", "#| export\ndef double(x): return 2 * x")]
CLAIM = dict(claim="skew costs accuracy", paper="3 points", source="Table 1", unit="%", at_least=0.0,
             at_most=None, values=[0.02, 0.03, 0.04], low=0.005, high=0.055, level=0.95, effect=[0.03],
             reruns=0.0, our_bound=False, headline=False, own=False, note="", seeds=None,
             verdict="reproduced")
RESULT = dict(name="00_small", profile="full", seed=0, scale="small", device="cpu", changes={}, stamp="",
              sizes={"data": "none"}, level=0.95, headline="", clock=[], rows=[], claims=[CLAIM])
INDEX = """# Small

```{toctree}
:hidden:
:caption: Part I

A chapter <00_small>
results
glossary
api/lab
answers/00_small
```
"""


def course(folder, chapter=CHAPTER):
    "A course of one `chapter` and its answers in `folder`, with one result and a start page."
    notebook(folder / "nbs" / "00_small.ipynb", chapter)
    notebook(folder / "nbs" / "answers" / "00_small.ipynb", ANSWERS)
    for name in ("results", "written"): (folder / name).mkdir()
    (folder / "results" / "00_small-full-0-none.json").write_text(json.dumps(RESULT))
    (folder / "written" / "index.md").write_text(INDEX)
    return folder


def prepared(folder):
    prepare.prepare(folder / "pages", folder / "nbs", folder / "results", folder / "written")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    "The folder of a small site, built the way `make site` builds the large one."
    folder = course(tmp_path_factory.mktemp("site"))
    prepared(folder)
    places = "-c", ROOT / "site", "-d", folder / "trees", folder / "pages", folder / "html"
    done = subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", *places], text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "html"


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
    for source, kept in zip(PICTURES, re.findall(r"src='([^']+)'", frames)):
        files = BytesIO(base64.b64decode(source)), site / kept
        was, now = (Image.open(file).convert("RGB") for file in files)
        assert ImageChops.difference(was, now).getbbox() is None


def test_answers_stand_on_a_page_of_their_own(site):
    assert "2 * x" not in words(page(site))
    assert "<a href='answers/00_small.html#cell-a1'>Answer: <code>double</code></a>" in page(site)
    assert "id='cell-a1'" in page(site, "answers/00_small")


def test_the_reference_leads_to_the_cell_and_the_chapter_back(site):
    entry = page(site, "api/lab")
    assert 'href="../00_small.html#cell-c2"' in entry and "Whether two results agree" in words(entry)
    assert re.search(r"same\(\s*a: Any,\s*b: Any,\s*tolerance: float = 1e-0?6\W+bool", words(entry))
    assert "api/lab.html#fedbook.lab.same" in page(site)


def test_an_equation_keeps_its_number(site):
    assert r"\[a = b \\ c \tag{1}\]" in page(site) and r"\begin{split}" not in page(site)


def test_a_claim_is_an_interval_that_leads_to_its_cell(site):
    row = re.search(r"<tr id='claim-\w+'.*?</tr>", page(site, "results"), re.S)[0]
    facts = "00_small", "reproduced", "claims of papers"
    for name, fact in zip(("chapter", "verdict", "kind"), facts):
        assert f'data-{name}="{fact}"' in row and f"<option>{fact}</option>" in page(site, "results")
    assert "href='00_small.html#cell-c5'" in row and "3 points (Table 1)" in row
    (low, high), = re.findall(r"class='bar' x1='([\d.]+)' x2='([\d.]+)'", row)
    assert float(low) < float(re.search(r"cx='([\d.]+)'", row)[1]) < float(high) and row.count("★") == 1


def test_names_are_in_the_glossary_and_words_in_the_search(site):
    assert re.search(r"alpha.*how skewed.*00_small\.html#names", page(site, "glossary"), re.S)
    index = (site / "searchindex.js").read_text()
    assert '"everyth' in index and '"travel"' in index and '"skew' in index


def test_nothing_comes_from_elsewhere_and_no_page_is_heavy(site):
    pages = check.read(site)
    for path in pages:
        assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=.(?:https?:)?//[^>]+", path.read_text())
    heaviest = max(each.weight() for each in pages.values())
    assert 900_000 < heaviest < 1_400_000, "MathJax has 0.9 MB; the text of a chapter may have the rest"


def test_the_check_finds_a_dead_anchor_a_missing_page_and_a_heavy_one(tmp_path, monkeypatch):
    links = "".join(f"<a href='{link}'>x</a>" for link in ("b.html#there", "b.html#gone", "c.html"))
    (tmp_path / "a.html").write_text(links)
    (tmp_path / "b.html").write_text("<p id='there'>")
    lost = [f"page a.html: the link {link} leads nowhere" for link in ("b.html#gone", "c.html")]
    assert check.faults(tmp_path) == lost
    monkeypatch.setattr(check, "MOST", 20)
    assert any("page a.html weighs" in fault for fault in check.faults(tmp_path))


@pytest.mark.parametrize("link", ["05_gone.ipynb", "#gone", "answers/00_small.ipynb#cell-gone", "../gone.md"])
def test_a_broken_link_stops_the_build_in_one_sentence(tmp_path, link):
    broken = course(tmp_path, [*CHAPTER, text("broken", f"See [there]({link}).")])
    with pytest.raises(notebooks.SiteError) as error: prepared(broken)
    assert str(error.value) == f"nbs/00_small.ipynb, cell broken: the link {link} leads nowhere"


def test_a_notebook_without_outputs_stops_the_build_in_one_sentence(tmp_path):
    empty = [{**cell, "outputs": []} if cell["cell_type"] == "code" else cell for cell in CHAPTER]
    with pytest.raises(notebooks.SiteError) as error: prepared(course(tmp_path, empty))
    assert str(error.value) == "nbs/00_small.ipynb has no outputs: fill it with `make book NAME=00_small`"


def test_an_answer_that_nobody_wrote_stops_the_build(tmp_path):
    other = code("c8", "reveal(answers.triple)", {"text/plain": "Answer: triple in fedbook.answers.small"})
    with pytest.raises(notebooks.SiteError, match="reveals triple"):
        prepared(course(tmp_path, [*CHAPTER, other]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory): return notebooks.Course(ROOT / "nbs", tmp_path_factory.mktemp("pictures"))


def test_every_link_of_the_course_leads_somewhere(whole):
    for name, book in whole.books.items():
        for cell in book.cells:
            if cell.cell_type == "markdown": whole.linked(name, cell)


def test_every_notebook_has_its_place_on_the_start_page(whole):
    placed = re.findall(r"<((?:workshop/)?w?\d+_\w+)>", (ROOT / "site" / "pages" / "index.md").read_text())
    assert sorted(placed) == sorted(name for name in whole.books if not name.startswith("answers/"))
    readme = (ROOT / "README.md").read_text().partition("## Chapters")[2]
    order = re.findall(r"nbs/(\d\d_\w+)\.ipynb", readme)
    assert [name for name in placed if name in order] == order


ONE_PICTURE = {"09_teacher", "09_together", "11_fedmox", "20_nodes",
               "workshop/w4_leaves", "workshop/w5_people", "workshop/w7_streets"}


def test_every_slider_has_frames_but_those_that_show_their_settings_in_one_picture(whole):
    moved = lambda book: sum(bool(notebooks.calls(cell, "play") and cell.outputs) for cell in book.cells)
    plays = {name: moved(book) for name, book in whole.books.items() if moved(book)}
    still = {name for name, count in plays.items() if count > len(notebooks.frames(whole.books[name]))}
    assert sum(plays.values()) >= 36 and still <= ONE_PICTURE
