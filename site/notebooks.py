"""Notebooks as pages: the committed outputs, with pictures in files, sliders as frames, answers as links."""
import ast
import base64
import hashlib
import html
import os
import posixpath
import re
from functools import lru_cache
from io import BytesIO
from pathlib import Path

from nbformat import from_dict
from nbformat.v4 import reads_json
from PIL import Image

from fedbook.kit.runs import module_name
from links import headings, links

GITHUB = "https://github.com/fedbook/fedbook/blob/main/"
BINDER = "https://mybinder.org/v2/gh/fedbook/fedbook/main?urlpath=lab/tree/course/"
COLAB = "https://colab.research.google.com/github/fedbook/fedbook/blob/main/binder/colab.ipynb"     # asks for a NAME


class SiteError(Exception):
    "What keeps a notebook from becoming a page: one sentence that names the file and, if it can, the cell."


def read(nbs: Path) -> dict:
    "Notebooks below `nbs`: name (`methods/fedavg`, `answers/fedavg`) to notebook."
    paths = (path for path in sorted(nbs.rglob("*.ipynb")) if ".ipynb_checkpoints" not in path.parts)
    named = lambda path: path.relative_to(nbs).with_suffix("").as_posix()
    return {named(path): reads_json(path.read_text(encoding="utf-8")) for path in paths}


@lru_cache(maxsize=None)
def statements(source: str) -> list:
    "The statements of a code cell; none where it is not plain Python."
    try: return ast.parse(source).body
    except SyntaxError: return []


def definitions(cell) -> dict:
    "The functions and classes that a cell defines: name to syntax tree."
    if cell.cell_type != "code": return {}
    kinds = ast.FunctionDef, ast.ClassDef
    return {node.name: node for node in statements(cell.source) if isinstance(node, kinds)}


def calls(cell, name: str) -> list:
    "The calls of the function `name` in a cell."
    if cell.cell_type != "code" or f"{name}(" not in cell.source: return []
    nodes = (node for statement in statements(cell.source) for node in ast.walk(statement))
    return [node for node in nodes if called(node) == name]


def called(node) -> str:
    "The function that a call in the source calls by its plain name."
    return getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""


def module_of(book) -> str:
    "What the notebook is exported to (`fedavg`, `answers.fedavg`), or nothing."
    found = (re.match(r"#\| default_exp (\S+)", cell.source) for cell in book.cells)
    return next((match[1] for match in found if match), "")


def prose(book) -> str:
    "All Markdown of a notebook."
    return "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")


def is_public(cell) -> bool:
    "Whether a cell goes into its module's `__all__`, and so into the reference: `exporti` goes into the module alone."
    return bool(re.search(r"^#\| *export *$", cell.source, re.M))


def bare(cell) -> str:
    "The source of a code cell without its directives; a cell that has nothing else is not shown."
    return "\n".join(line for line in cell.source.splitlines() if not line.startswith("#|")).strip()


def anchors(book) -> dict:
    """What a link to a notebook may name, to ids on its page: headings, as MyST names them, and the code
    cells that are shown, as JupyterLab names them (`cell-id=ID`)."""
    titles = {slug: place for cell in book.cells if cell.cell_type == "markdown"
              for slug, place in headings(cell.source).items()}
    return titles | {f"cell-id={cell.id}": f"cell-{cell.id}" for cell in book.cells
                     if cell.cell_type == "code" and bare(cell)}


class Course:
    """All notebooks of the folder `nbs`, and what a page must know of the others: `modules` (module to
    notebook) and `built` (full name of what is exported to notebook and cell). What its pages have:
    `pictures` (file name to PNG) and `dead` (a sentence for each dead link)."""

    def __init__(self, nbs: Path):
        self.nbs, self.books, self.pictures, self.dead = nbs.resolve(), read(nbs), {}, []
        self.anchors = {name: anchors(book) for name, book in self.books.items()}
        self.modules = {module_of(book): name for name, book in self.books.items() if module_of(book)}
        self.built = {f"fedbook.{module}.{name}": (page, cell.id) for module, page in self.modules.items()
                      for cell in self.books[page].cells if is_public(cell)
                      for name in definitions(cell)}

    def page(self, name: str) -> dict:
        "The notebook `name` as its page. `SiteError` for one without outputs; dead links go to `dead`."
        book = self.books[name]
        if not name.startswith("answers/") and not any(cell.get("outputs") for cell in book.cells):
            command = f"make book NAME={name}"
            raise SiteError(f"nbs/{name}.ipynb has no outputs: fill it with `{command}`")
        return Page(self, name).notebook()

    def chapters(self) -> list:
        "The notebooks but for those with answers."
        return [name for name in self.books if not name.startswith("answers/")]

    def to_take(self, name: str) -> dict:
        "The notebook `name` without outputs, to run it elsewhere."
        bare = lambda cell: {**cell, "outputs": [], "execution_count": None} if cell.cell_type == "code" else cell
        return from_dict({**self.books[name], "cells": [bare(cell) for cell in self.books[name].cells]})

    def target(self, name: str, link: str) -> str:
        """Where a link in the notebook `name` leads on the site: to a page and a place on it, or to a file on
        GitHub; "" for nowhere."""
        path, _, anchor = link.partition("#")
        file = (self.nbs / name).parent / path if path else self.nbs / f"{name}.ipynb"
        other = Path(os.path.relpath(file.resolve(), self.nbs.parent)).as_posix()
        book = other.removeprefix("nbs/").removesuffix(".ipynb")
        if book not in self.books:
            return GITHUB + other if file.exists() and not other.startswith("..") else ""
        if anchor and anchor not in self.anchors[book]: return ""
        page = posixpath.relpath(f"{book}.html", posixpath.dirname(name)) if path else ""
        return f"{page}#{self.anchors[book][anchor]}" if anchor else page

    def equations(self) -> dict:
        "The numbered equations of each module's chapter: module to number to LaTeX."
        numbered = lambda book: {number: latex.strip()
                                 for latex in re.findall(r"\$\$(.*?)\$\$", prose(book), re.S)
                                 for number in re.findall(r"\\tag\{(\w+)\}", latex)}
        return {module: numbered(self.books[name]) for module, name in self.modules.items()}


class Page:
    "One notebook of a `Course` on its way to a page."

    def __init__(self, course: Course, name: str):
        self.course, self.name, self.book = course, name, course.books[name]
        self.module, self.frames = module_of(self.book), frames(self.book)
        self.up = "../" * name.count("/")

    def notebook(self) -> dict:
        cells = [shown for cell in self.book.cells for shown in self.shown(cell)]
        return from_dict({**self.book, "nbformat_minor": 4, "cells": [*cells[:1], self.doors(), *cells[1:]]})

    def doors(self) -> dict:
        "The line under the title: where to go from this page."
        short, source = module_name(self.name), f"[notebook]({GITHUB}nbs/{self.name}.ipynb)"
        if self.name.startswith("answers/"):
            others = (name for name in self.course.books if name != self.name)
            chapter = next(name for name in others if module_name(name) == short)
            place = "#exercises" if "exercises" in self.course.anchors[chapter] else ""
            return markdown(f"[Back to the exercises](../{chapter}.ipynb{place}) · {source}")
        library = f"[fedbook.{self.module}]({self.up}api/{self.module}.rst)" if self.module else ""
        answered = f"answers/{short}" in self.course.books
        answers = f"[answers]({self.up}answers/{short}.ipynb)" if answered else ""
        file = f"{self.up}notebooks/{self.name}.ipynb"
        take = f"<a href='{file}' download='{short}.ipynb'>download</a>"
        return markdown(" · ".join(filter(None, [source, take, f"[Binder]({BINDER}{self.name}.ipynb)", f"[Colab]({COLAB})",
                                                 library, answers])))

    def shown(self, cell) -> list:
        "The cells that the page shows for one of the notebook's."
        if cell.cell_type != "code": return [markdown(self.linked(cell, cell.source, in_cell=True))]
        source = bare(cell)
        if not source: return []
        link = f"<a class='cell' id='cell-{cell.id}' href='#cell-{cell.id}' title='A link to this cell'>#</a>"
        metadata = {"tags": folded(cell), "mystnb": {"code_prompt_show": prompt(cell)}}
        code = from_dict({"cell_type": "code", "execution_count": None, "metadata": metadata, "source": source,
                          "outputs": self.outputs(cell)})
        return [markdown(link), code, *self.library(cell)]

    def linked(self, cell, text: str, in_cell: bool = False) -> str:
        """A text of a cell, or of its outputs, with its links as the site has them. Sphinx itself finds the
        page of a notebook that a Markdown cell links to, but not a cell on it."""
        for link in links(text):
            to, written = self.course.target(self.name, link), re.escape(link)
            if not to:
                place = f"nbs/{self.name}.ipynb, cell {cell.id}"
                self.course.dead.append(f"{place}: the link {link} leads nowhere")
                continue
            text = re.sub(rf"(\shref=['\"]){written}(?=['\"])", rf"\g<1>{to}", text)
            if in_cell and "#cell-" in to:
                text = re.sub(rf"\[([^]]*)\]\({written}\)", rf"<a href='{to}'>\1</a>", text)
            elif not in_cell or to.startswith(GITHUB):
                text = re.sub(rf"\]\({written}(?=[) ])", f"]({to}", text)
        return text

    def library(self, cell) -> list:
        "The line below an exported cell that leads to its names in the reference: those with a docstring."
        names = [name for name, node in definitions(cell).items()
                 if not name.startswith("_") and ast.get_docstring(node)]
        if not is_public(cell) or not names or self.module.startswith("answers."): return []
        page = f"{self.up}api/{self.module}.html#fedbook.{self.module}"
        each = (f"<a href='{page}.{name}'><code>{self.module}.{name}</code></a>" for name in names)
        return [markdown(f"<p class='library'>In the library: {', '.join(each)}</p>")]

    def outputs(self, cell) -> list:
        "The outputs of a cell; several pictures of one slider become its frames."
        attempted = lambda output: not output.get("text", "").startswith("not attempted")
        shown = [self.output(cell, output) for output in cell.outputs if attempted(output)]
        labels = self.frames.get(cell.id)
        if not labels: return shown
        markup = [output.get("data", {}).get("text/html", "") for output in shown]
        pictures = [text for text in markup if text.startswith("<img")]
        rest = [output for output, text in zip(shown, markup) if text not in pictures]
        return [*rest, as_html(slider(pictures, labels))]

    def output(self, cell, output) -> dict:
        data = output.get("data", {})
        plain, markup = data.get("text/plain", ""), data.get("text/html", "")
        if "image/png" in data: return as_html(self.picture(data["image/png"], title(cell)))
        if plain.startswith("[slider: "): return as_html(note(plain, shown_before(self.book, cell)))
        if plain.startswith("Answer: "): return as_html(self.answer(plain))
        if "text/markdown" in data: return as_markdown(self.linked(cell, data["text/markdown"]))
        if not markup: return output
        markup = self.linked(cell, markup)
        if not calls(cell, "quiz"): return from_dict({**output, "data": {**data, "text/html": markup}})
        plainer = re.sub(r" style=(['\"]).*?\1", "", markup)
        return as_html(f"<div class='quiz'>{plainer}</div>")

    def picture(self, png: str, alt: str) -> str:
        "The `<img>` of a picture, which is kept in a file of its own."
        data = base64.b64decode(png)
        image, name = Image.open(BytesIO(data)), hashlib.sha256(data).hexdigest()[:16] + ".webp"
        self.course.pictures[name] = data
        return (f"<img src='{self.up}pictures/{name}' width='{image.width}' height='{image.height}' "
                f"loading='lazy' alt='{html.escape(alt, quote=True)}'>")

    def answer(self, plain: str) -> str:
        "The link to the answer that `plain` (`Answer: NAME in MODULE`) names."
        _, name, _, module = plain.split()
        if f"{module}.{name}" not in self.course.built:
            raise SiteError(f"nbs/{self.name}.ipynb reveals {name}, which no notebook exports to {module}")
        page, cell = self.course.built[f"{module}.{name}"]
        target = f"{self.up}{page}.html#cell-{cell}"
        return f"<p class='answer'><a href='{target}'>Answer: <code>{name}</code></a></p>"


def markdown(text: str) -> dict: return from_dict({"cell_type": "markdown", "metadata": {}, "source": text})


def as_markdown(text: str) -> dict:
    return from_dict({"output_type": "display_data", "metadata": {}, "data": {"text/markdown": text}})


def as_html(markup: str) -> dict:
    return from_dict({"output_type": "display_data", "metadata": {}, "data": {"text/html": markup}})


LONG, OF_A_FIGURE = 10, 4       # lines from which code is folded, and that of a figure or table


def folded(cell) -> list:
    """The tag that folds a cell's source (imports, sizes, hidden cells, blanks, long code, figures) or leaves it out
    (quizzes, answers)."""
    body, lines = statements(cell.source), bare(cell).count("\n") + 1
    if calls(cell, "quiz") or body and all(called(getattr(node, "value", None)) == "reveal" for node in body):
        return ["remove-input"]
    imports = all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in body)
    hidden = "#| hide" in cell.source or cell.metadata.get("jupyter", {}).get("source_hidden")
    sizes = "parameters" in cell.metadata.get("tags", [])
    long = lines >= (OF_A_FIGURE if draws(cell) else LONG)
    proof = any(isinstance(node, ast.Assert) for node in body) and not cell.get("outputs")
    return ["hide-input"] if imports or hidden or sizes or long or proof or blanks(cell) else []


def draws(cell) -> bool:
    "Whether a cell shows a picture or a table."
    return any({"image/png", "text/markdown"} & set(output.get("data", {})) for output in cell.get("outputs", []))


def blanks(cell) -> list:
    "The functions that a reader is to write in a cell."
    return [name for call in calls(cell, "check") if (name := getattr(call.args[0], "id", ""))]


def prompt(cell) -> str:
    "What the bar of a folded cell says: what is to be written there, or what it defines for the library."
    if blanks(cell): return f"Show the blank: {', '.join(blanks(cell))}"
    names = [name for name in definitions(cell) if not name.startswith("_")] if is_public(cell) else []
    return f"Show the code of {' and '.join(names)}" if names else "Show the code"


def note(plain: str, shows) -> str:
    "What stands in the place of a slider that needs a kernel; the cell `shows`, if any, has its frames."
    knobs = plain.removeprefix("[slider: ").partition(".")[0]
    few = f"<a href='#cell-{shows.id}'>The picture above</a> shows a few settings. " if shows else ""
    return f"<p class='note'>{few}In JupyterLab this cell has sliders for all: <code>{knobs}</code>.</p>"


def title(cell) -> str:
    "What a figure says, for those who cannot see it: the titles in the code that drew it, ... for numbers."
    words = []
    for node in (node for statement in statements(cell.source) for node in ast.walk(statement)):
        if not isinstance(node, ast.Call): continue
        place = {"set_title": 0, "suptitle": 0, "flow": 1}.get(getattr(node.func, "attr", called(node)), 99)
        values = [keyword.value for keyword in node.keywords if keyword.arg == "title"]
        words += map(text_of, [*values, *node.args[place:place + 1]])
    return "; ".join(filter(None, dict.fromkeys(words))) or "A figure; the text beside it says what it shows"


def text_of(node) -> str:
    "A string or an f-string of the source as text."
    if isinstance(node, ast.Constant): return str(node.value)
    return "".join(map(text_of, node.values)) if isinstance(node, ast.JoinedStr) else "..."


def moved(cell) -> str:
    "The function `f` of a cell `play(f, ...)`, or nothing."
    return next((getattr(call.args[0], "id", "") for call in calls(cell, "play")), "")


def shown_before(book, cell):
    "The last cell before `cell`, a `play(f, ...)`, that displays `f`, or None."
    displays = lambda other: any(called(argument) == moved(cell) != "" for shown in calls(other, "display")
                                 for argument in shown.args)
    before = book.cells[:book.cells.index(cell)]
    return next((other for other in reversed(before) if displays(other)), None)


def frames(book) -> dict:
    "The cells that show a slider's function at a few settings: cell id to a label for each of its pictures."
    plays = ((shown_before(book, cell), moved(cell)) for cell in book.cells if moved(cell))
    return {shows.id: labels(book, shows, f) for shows, f in plays if shows is not None}


def labels(book, cell, f: str) -> list:
    "A text for each setting at which a cell displays `f`: `alpha = 0.1`."
    pictures = sum("image/png" in output.get("data", {}) for output in cell.outputs)
    loop = next((node for node in statements(cell.source) if isinstance(node, ast.For)), None)
    try: settings = ast.literal_eval(loop.iter)
    except (AttributeError, ValueError): settings = ()
    if len(settings) != pictures: return [f"{i} of {pictures}" for i in range(1, pictures + 1)]
    parameters = [arg.arg for other in book.cells if f in definitions(other)
                  for arg in definitions(other)[f].args.args]
    keywords = [keyword.arg for call in calls(cell, f) for keyword in call.keywords]
    several = (setting if isinstance(setting, tuple) else (setting,) for setting in settings)
    return [", ".join(f"{name} = {value}" for name, value in zip(keywords or parameters, values))
            for values in several]


def slider(pictures: list, labels: list) -> str:
    "Pictures as frames; without JavaScript they stand below each other."
    told = (f"data-label='{html.escape(label, quote=True)}'" for label in labels)
    shown = "".join(picture.replace("<img", f"<img {label}", 1) for picture, label in zip(pictures, told))
    knob = f"<input type='range' min='0' max='{len(pictures) - 1}' value='0' aria-label='setting'>"
    return f"<figure class='frames'>{shown}<figcaption>{knob} <output></output></figcaption></figure>"
