"""Writes the sources of the site, out of what is committed: a page for every notebook, and the pages that
gather from them. Nothing is executed. `python site/prepare.py OUT` is the first half of `make site`."""
import fnmatch
import json
import os
import posixpath
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

from nbformat.v4 import writes_json
from PIL import Image

import claims
from fedbook.kit.report import collect
from links import faults
from notebooks import Course, SiteError, prose

ROOT = Path(__file__).resolve().parent.parent


def names_table(book) -> list:
    "The rows of a chapter's section Names: in the text, in code, what it is."
    section = re.search(r"^## Names\n(.*?)(?=^## |\Z)", prose(book), re.M | re.S)
    lines = re.findall(r"^\|(.+)\|$", section[1] if section else "", re.M)[2:]
    cells = ([part.strip() for part in re.split(r"(?<!\\)\|", line)] for line in lines)
    return [(symbol, code, "; ".join(filter(None, meaning))) for symbol, code, *meaning in cells]


def from_top(text: str, name: str) -> str:
    "The Markdown of the notebook `name`, with its links to others as they are from a page at the top."
    there = lambda link: posixpath.normpath(posixpath.join(posixpath.dirname(name), link[1]))
    return re.sub(r"\]\(([\w./]+\.ipynb)", lambda link: f"]({there(link)}", text)


def glossary(course: Course) -> str:
    "The page of all names, sorted by symbol; those that only the code has come last."
    rows = [(*row, name) for name, book in course.books.items() if not name.startswith("answers/")
            for row in names_table(book)]
    letters = lambda symbol: re.sub(r"[^a-z0-9]", "", re.sub(r"\\[a-z]+(?=\{)", "", symbol.lower()))
    rows.sort(key=lambda row: (letters(row[0]) or "~", row[1], row[3]))
    lines = [f"| {symbol} | {code} | {from_top(meaning, name)} | [{Path(name).name}]({name}.ipynb#names) |"
             for symbol, code, meaning, name in rows]
    table = "\n".join(["| in the text | in code | what it is | chapter |", "|---|---|---|---|", *lines])
    about = "The names of all chapters: how the text and the papers write them, and how the code does."
    return f"# Glossary\n\n{about}\n\n{table}\n"


def in_order(names: list, readme: str) -> list:
    "Notebooks by number; those that share one as the README lists them."
    listed = re.findall(r"\(nbs/([\w/]+)\.ipynb\)", readme)
    place = lambda name: listed.index(name) if name in listed else len(listed)
    return sorted(names, key=lambda name: (int(re.search(r"\d+", name)[0]), place(name), name))


def label(name: str, book) -> str:
    "A notebook in the sidebar: its number, if it is a chapter of the course, and its title up to the colon."
    title = re.match(r"# (.+?)(?:: .*)?$", book.cells[0].source, re.M)[1].replace("`", "")
    number = re.match(r"\d+ ?", name)
    return f"{number[0]} {title}" if number else title


def contents(course: Course, index: str, readme: str = "") -> str:
    """The start page. Where a list has a pattern of notebooks (`1?_*`), those that fit it come in its place;
    below the list of a part stands the sentence of each of its chapters."""
    def sentence(name):
        first = course.books[name].cells[0].source
        return next(iter(re.findall(r"^> (.+)$", first, re.M)), "")

    def part(match):
        caption, pattern = match.groups()
        names = in_order(fnmatch.filter(course.books, pattern), readme)
        named = {name: label(name, course.books[name]) for name in names}
        entries = "\n".join(f"{text} <{name}>" for name, text in named.items())
        told = "\n".join(f"- [{text}]({name}.ipynb): {sentence(name)}" for name, text in named.items())
        return f"{match[0].replace(pattern, entries)}\n\n### {caption}\n\n{told}"
    return re.sub(r'```\{toctree\}\n:hidden:\n:caption: "?(.+?)"?\n\n(.*\*.*)\n```', part, index)


def module_page(module: str, notebook: str) -> str:
    "The source of a module's page in the reference."
    name = f"fedbook.{module}"
    return (f"{name}\n{'=' * len(name)}\n\nBuilt in :doc:`/{notebook}`.\n\n"
            f".. automodule:: {name}\n   :members:\n   :member-order: bysource\n   :show-inheritance:\n")


def write(path: Path, text: str) -> Path:
    "Write a file, unless it says so already: Sphinx reads anew what has changed."
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text: path.write_text(text, encoding="utf-8")
    return path


def encode(png: bytes, file: Path) -> None:
    "Write a picture to `file`, unless it is there: every bit of it, in 40 % of the bytes."
    if file.exists(): return
    half = file.with_suffix(".part")
    Image.open(BytesIO(png)).save(half, "webp", lossless=True, exact=True, quality=50, method=2)
    half.rename(file)


def sources(course: Course, results: Path, pages: Path) -> dict:
    """The sources of the site, by file name: the notebooks of a course, the claims of the folder `results`
    and the Markdown files of the folder `pages`. Raises `SiteError` that names every link which leads nowhere."""
    books = {name: course.page(name) for name in course.books}
    texts = {f"api/{module}.rst": module_page(module, name) for module, name in course.modules.items()
             if not module.startswith("answers.")}
    texts |= {page.name: page.read_text(encoding="utf-8") for page in pages.glob("*.md")}
    readme = course.nbs.parent / "README.md"
    order = readme.read_text(encoding="utf-8") if readme.exists() else ""
    texts["index.md"] = contents(course, texts["index.md"], order)
    texts["results.md"] = claims.page(collect(results), course.books)
    texts["glossary.md"] = glossary(course)
    dead = course.dead or faults(books, texts, course.built)
    if dead: raise SiteError("\n".join(dead))
    texts["reference.json"] = json.dumps({"built": course.built, "equations": course.equations()}, indent=1)
    return texts | {f"{name}.ipynb": writes_json(page) for name, page in books.items()}


def prepare(out: Path, nbs: Path, results: Path, pages: Path) -> None:
    "Write the `sources` of the site to `out`, with the pictures of the notebooks of the folder `nbs`."
    course, pictures = Course(nbs), out / "extra" / "pictures"
    written = [write(out / name, text) for name, text in sources(course, results, pages).items()]
    pictures.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(encode, course.pictures.values(), (pictures / name for name in course.pictures)))
    for old in out.rglob("*.*"):
        kept = old in written or old.parent == pictures and old.name in course.pictures
        if old.is_file() and not kept: old.unlink()


if __name__ == "__main__":
    try: prepare(Path(sys.argv[1]).resolve(), ROOT / "nbs", ROOT / "results", ROOT / "site" / "pages")
    except SiteError as error: sys.exit("\n".join(f"site: {each}" for each in str(error).splitlines()))
