"""What a reader sees: chapters in JupyterLab and the site, in a real browser.

`make test` runs one chapter in JupyterLab, from top to bottom, and looks at a small site. With
FEDBOOK_BROWSER=all, as `make test-browser` has it, two more chapters run, every slider of the others moves,
and the site is the whole one, which `make site` has built."""
import importlib.util
import inspect
import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

pytest.importorskip("playwright", reason="the browser's driver is missing: pip install 'fedbook[dev]'")
pytest.importorskip("axe_playwright_python", reason="axe is missing: pip install 'fedbook[dev]'")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from browser import CHROMIUM, MINUTE, Lab, browser, jupyterlab, served
from fedbook.kit.runs import module_name
from fedbook.kit.command import copy_chapters
from fedbook.kit.runs import chapters
from needed import at_smoke, sliders

expect.set_options(timeout=3 * MINUTE)
pytestmark = pytest.mark.skipif(not CHROMIUM,
                                reason="no chromium is on the path (Debian: apt install chromium)")
ROOT = Path(__file__).parent.parent
ALL = os.environ.get("FEDBOOK_BROWSER") == "all"
only_all = pytest.mark.skipif(not ALL, reason="make test-browser does it")
WHOLE = ("00_start", "methods/fedavg", "13_fedcbdr")  # run from top to bottom, their sliders with them
ACTS = {"kept_and_dropped": 2}  # the knob to move, where at smoke the first leaves the picture as it is
OTHERS = [name for name in chapters() if name not in WHOLE]


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as driver, browser(driver) as found: yield found


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    "A reader's copy of the chapters, set to smoke."
    folder = tmp_path_factory.mktemp("reader") / "course"
    copy_chapters(folder)
    for path in (folder / f"{name}.ipynb" for name in WHOLE):
        book = nbformat.read(path, 4)
        for cell in book.cells: cell.source = at_smoke(cell)
        nbformat.write(book, path)
    return folder


@pytest.fixture(scope="module")
def lab(chromium, course, tmp_path_factory):
    with jupyterlab(course, tmp_path_factory.mktemp("lab")) as address:
        page = chromium.new_page(viewport=dict(width=1200, height=900))
        yield Lab(page, address)
        page.close()


@only_all
@pytest.mark.parametrize("name", [name for name in WHOLE if name != "methods/fedavg"])
def test_a_chapter_runs_from_top_to_bottom_and_its_slider_moves(name, lab):
    lab.open(f"{name}.ipynb")
    assert lab.run_all() == []
    shown = lab.sliders()
    assert len(shown) == plays(name) > 0
    for slider in shown: noted(name, *slider.moved())
    lab.close()


def noted(name, was, now):
    "A line of the list of sliders moved, which `make test-browser` prints."
    print(f"{name}: {was} -> {now}")
    assert was != now


@pytest.fixture(scope="module")
def fedavg(lab):
    "methods/fedavg in JupyterLab, run from top to bottom."
    lab.open("methods/fedavg.ipynb")
    assert lab.run_all() == []
    yield lab
    lab.close()


def test_while_a_federation_trains_the_reader_sees_it_and_only_the_last_move_waits(fedavg):
    slider, = fedavg.sliders()
    knob = slider.knobs.first
    slider.listen()
    for _ in range(4): knob.press("ArrowRight")
    last, busy = slider.drawn("alpha = 1.0"), slider.said()
    assert busy[0].startswith("busy with alpha = 0.05") and busy[-1].startswith("busy with alpha = 1.0")
    assert len(busy) < 4, "of the moves made meanwhile, only the last is drawn"
    knob.press("ArrowRight")
    assert slider.drawn("alpha = 10.0") != last
    slider.said()
    knob.press("ArrowLeft")
    assert slider.drawn("alpha = 1.0") == last


def test_a_quiz_opens_to_its_reason(fedavg):
    choice = fedavg.seen.locator(".jp-OutputArea details:has(summary:text-matches('^a\\\\)'))").first
    expect(choice.locator("i")).to_be_hidden()
    choice.locator("summary").click()
    expect(choice.locator("i")).to_have_text(re.compile(r"^(Right|Not so)\.$"))


@pytest.fixture
def attempts():
    "The attempts at exercises of methods/fedavg: near misses and right ones."
    file = ROOT / "tests" / "attempts" / "fedavg.py"
    spec = importlib.util.spec_from_file_location("attempts_fedavg", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def typed(attempt):
    "An attempt as the reader types it."
    name = attempt.__name__
    return inspect.getsource(attempt).replace(name, name.partition("__")[0]).strip()


def test_an_exercise_goes_from_not_attempted_over_a_near_miss_to_correct(fedavg, course, attempts):
    tried = {attempts.trimmed_mean__wrong_divided_by_all: "not yet: case 2 of 3",
             attempts.trimmed_mean__right_by_taking_out_one_after_the_other: "correct on 3 cases, noted in"}
    stub = "def trimmed_mean(states, cut): ..."
    cell, source = fedavg.cell(stub)
    said = cell.locator(".jp-OutputArea-output")
    expect(said).to_have_text("not attempted yet")
    for attempt, word in tried.items():
        cell.locator(".cm-content").click()
        fedavg.page.keyboard.press("ControlOrMeta+a")
        fedavg.page.keyboard.insert_text(source.replace(stub, typed(attempt)))
        fedavg.page.keyboard.press("Shift+Enter")
        expect(said).to_contain_text(word)
    assert json.loads((course / "progress.json").read_text()) == {"fedavg": ["trimmed_mean"]}


def plays(name):
    "How many sliders a chapter has."
    sources = (cell.source for cell in nbformat.read(chapters()[name], 4).cells if cell.cell_type == "code")
    return sum(len(re.findall(r"^play\(", source, re.M)) for source in sources)


@only_all
def test_every_slider_of_the_other_chapters_moves_and_its_picture_changes(lab, course):
    "Each `play(...)` in a cell of one notebook, with what it needs of its chapter."
    shown = [(f"{name} {f}", f, code) for name in OTHERS for f, code in sliders(chapters()[name]).items()]
    cells = [new_code_cell(f"exec(compile({code!r}, {name!r}, 'exec'), dict(__name__='__main__'))")
             for name, _, code in shown]
    kernel = dict(name="python3", display_name="Python 3", language="python")
    nbformat.write(new_notebook(cells=cells, metadata=dict(kernelspec=kernel)), course / "sliders.ipynb")
    lab.open("sliders.ipynb")
    assert lab.run_all(minutes=30) == []
    found = lab.sliders()
    assert len(found) == len(shown) == sum(map(plays, OTHERS)) > 25
    for slider, (name, f, _) in zip(found, shown): noted(name, *slider.moved(ACTS.get(f, 0)))
    lab.close()


@only_all
def test_a_link_in_an_output_leads_to_its_cell_in_another_notebook(lab):
    """The address of a cell, `#cell-id=ID`, is JupyterLab's; the site has its own for it. JupyterLab opens the
    notebook at the first click, and scrolls to the cell once it is open."""
    for name in ("evidence/fedreplay.ipynb", "evidence/left_open.ipynb"): lab.open(name)
    link = lab.seen.locator("a[href*='fedreplay.ipynb'][href*='#cell-id=']").first
    cell = link.get_attribute("href").partition("#cell-id=")[2]
    link.click()
    lab.page.wait_for_function("jupyterapp.shell.currentWidget.context.path == 'evidence/fedreplay.ipynb'")
    place = [each["id"] for each in lab.cells()].index(cell)
    expect(lab.seen.locator(".jp-Cell").nth(place)).to_be_in_viewport()
    for _ in range(2): lab.close()


@pytest.fixture(scope="module")
def site(request):
    "The address of the site."
    whole = ROOT / "_docs" / "html"
    assert not ALL or (whole / "index.html").exists(), "the whole site is not there: make site"
    with served(whole if ALL else request.getfixturevalue("little_site")) as address: yield address


@pytest.fixture
def page(site, chromium):
    "A page of the site. What its browser complains of fails the test."
    shown, said = chromium.new_page(base_url=site), []
    shown.set_default_timeout(MINUTE)
    told = lambda message: f"{message.text} ({message.location['url']})"
    shown.on("console", lambda message: said.append(told(message)) if message.type == "error" else None)
    shown.on("pageerror", lambda error: said.append(str(error)))
    yield shown
    shown.close()
    assert said == []


@pytest.fixture
def chapter(page):
    "The name of a chapter of the site, which `page` shows."
    page.goto("/results.html")
    link = page.locator("a[href$='methods/fedavg.html'], a[href$='00_small.html']").first
    name = link.get_attribute("href").removesuffix(".html")
    page.goto(f"/{name}.html")
    return name


def test_search_finds_the_chapter_of_a_word(page, chapter):
    word = max(re.findall(r"\w+", page.title().rpartition(" - ")[0]), key=len)
    page.goto("/index.html")
    page.get_by_placeholder("Search").first.fill(word)
    page.keyboard.press("Enter")
    page.locator(f"#search-results a[href*='{chapter}.html']").first.click()
    expect(page.locator("h1")).to_contain_text(word)


def test_a_slider_of_frames_moves_and_says_its_setting(page, chapter):
    figure = page.locator("figure.frames").first
    shown, told, seen = figure.locator("img:visible"), figure.locator("output"), []
    for _ in range(figure.locator("img").count()):
        expect(shown).to_have_count(1)
        seen.append((shown.get_attribute("src"), told.inner_text()))
        figure.get_by_label("setting").press("ArrowRight")
    assert len({source for source, _ in seen}) == len({text for _, text in seen}) == len(seen) == 3


def test_wings_are_folded_in_the_sidebar_but_that_of_the_page_stays_open(page):
    part = lambda caption, item: f"<p class='caption'><span>{caption}</span></p><ul><li class='{item}'>x</li></ul>"
    parts = part("The path, an evening each", "") + part("Engine: workers", "current-page") + part("Deploy: nodes", "")
    page.set_content(f"<div class='sidebar-tree'>{parts}</div>")
    page.add_script_tag(path=ROOT / "site" / "static" / "site.js")
    folds = page.locator("details").evaluate_all("all => all.map(fold => [fold.innerText.trim(), fold.open])")
    assert [(text.split(":")[0], opened) for text, opened in folds] == [("Engine", True), ("Deploy", False)]
    expect(page.locator("li:visible")).to_have_count(2)
    page.locator("summary").nth(1).click()
    expect(page.locator("li:visible")).to_have_count(3)


def test_a_claim_leads_to_its_cell(page):
    page.goto("/results.html")
    link = page.locator("table.claims td:first-child a[href*='#cell-']").first
    claim = link.inner_text()
    link.click()
    expect(page.locator(":target")).to_be_in_viewport()
    letters = lambda text: re.sub(r"\W+", " ", text)
    assert letters(claim) in letters(page.locator("p:has(> :target) + div.cell").inner_text())


def test_claims_are_filtered_and_the_address_keeps_the_choice(page):
    page.goto("/results.html")
    page.get_by_label("verdict").select_option("reproduced")
    rows = page.locator("table.claims tbody tr:visible")
    assert set(rows.evaluate_all("rows => rows.map(row => row.dataset.verdict)")) == {"reproduced"}
    count = rows.count()
    page.reload()
    expect(rows).to_have_count(count)


def test_a_quiz_of_the_site_opens_to_its_reason(page, chapter):
    choice = page.locator("div.quiz details").first
    expect(choice.locator("i")).to_be_hidden()
    choice.locator("summary").click()
    expect(choice.locator("i")).to_have_text(re.compile("Right|Not so"))


@pytest.mark.parametrize("place", ["", "/results.html", "/glossary.html"])
def test_nothing_hangs_over_the_edge_of_a_phone(place, page, chapter):
    page.set_viewport_size(dict(width=390, height=844))
    page.goto(place or f"/{chapter}.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def serious(page):
    "What axe finds to be serious or worse: impact, rule, the first place."
    found = Axe().run(page).response["violations"]
    return [f"{each['impact']} {each['id']}: {each['nodes'][0]['html'][:200]}" for each in found
            if each["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("place", ["/index.html", "/results.html", "/glossary.html", "/api/kit.lab.html",
                                   "/search.html?q=client"])
def test_a_page_is_for_everyone_to_read(place, page):
    page.goto(place)
    assert serious(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_chapter_and_its_answers_are_for_everyone_to_read(scheme, page, chapter):
    page.emulate_media(color_scheme=scheme)
    assert serious(page) == []
    page.goto(f"/answers/{module_name(chapter)}.html")
    assert serious(page) == []
