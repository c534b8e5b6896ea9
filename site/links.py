"""The links of the pages' sources, before Sphinx reads them, and those that lead nowhere."""
import ast
import fnmatch
import html
import posixpath
import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

from docutils.nodes import make_id
from markdown_it import MarkdownIt

MARKDOWN = MarkdownIt()
HREF = re.compile(r"<a\b[^>]*?\shref=(?:'([^']*)'|\"([^\"]*)\")")
BY_SPHINX = {"genindex", "py-modindex", "search"}


@lru_cache(maxsize=None)
def tokens(text: str) -> list:
    "A Markdown text as blocks and what is in them."
    return [token for block in MARKDOWN.parse(text) for token in (block, *(block.children or ()))]


def links(text: str) -> list:
    "The targets of the links of a Markdown or HTML text, those to other sites left out."
    if "](" not in text and "]:" not in text and "href=" not in text: return []
    found = []
    for token in tokens(text):
        if token.type == "link_open": found.append(unquote(str(token.attrs["href"])))
        if not token.type.startswith("html_"): continue
        found += [html.unescape(single or double) for single, double in HREF.findall(token.content)]
    return [link for link in dict.fromkeys(found) if not re.match(r"[a-z]+:|//", link)]


def headings(text: str) -> dict:
    "What a link may name of a Markdown text: its headings, as MyST names them, to their ids on the page."
    found, seen = {}, tokens(text) if "#" in text else []
    for opened, title in zip(seen, seen[1:]):
        if opened.type != "heading_open" or opened.tag not in ("h1", "h2", "h3"): continue
        words = "".join(part.content for part in title.children if part.type in ("text", "code_inline"))
        slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        found.setdefault(slug, make_id(title.content))
    return found


def ids(text: str) -> set:
    "The ids of the HTML in a text."
    return set(re.findall(r"<\w+\b[^>]*?\sid=['\"]([^'\"]+)", text))


def entries(text: str) -> list:
    "What the tables of contents of a Markdown page list: names of pages, or patterns of them."
    fences = (token.content for token in tokens(text) if token.type == "fence" and "toctree" in token.info)
    lines = (line for fence in fences for line in fence.splitlines() if line and not line.startswith(":"))
    return [re.sub(r"^.*<(.+)>$", r"\1", line) for line in lines]


def described(module: str) -> set:
    "The anchors of a module's page in the reference: what it exports that has a docstring, and methods."
    tree = ast.parse(Path(find_spec(f"fedbook.{module}").origin).read_text(encoding="utf-8"))
    kinds = ast.ClassDef, ast.FunctionDef
    documented = lambda node: [each for each in node.body
                               if isinstance(each, kinds) and ast.get_docstring(each)]
    listed = [ast.literal_eval(node.value) for node in tree.body
              if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    offered = lambda node: node.name in listed[0] if listed else not node.name.startswith("_")
    top = [node for node in documented(tree) if offered(node)]
    inner = [(node.name, each.name) for node in top if isinstance(node, ast.ClassDef)
             for each in documented(node) if not each.name.startswith("_")]
    return {f"module-fedbook.{module}", *(f"fedbook.{module}.{node.name}" for node in top),
            *(f"fedbook.{module}.{kind}.{name}" for kind, name in inner)}


class Source:
    "A page's source: `slugs` (what MyST links to, to ids), `ids`, `links` with the cell that they follow."

    def __init__(self, parts: list):
        "`parts`: the texts of the page from top to bottom, Markdown or HTML."
        self.slugs, self.ids, self.links, cell = {}, set(), [], ""
        for text in parts:
            cell = next(iter(re.findall(r"id='cell-([\w-]+)'", text)), cell)
            self.slugs = headings(text) | self.slugs
            self.ids |= ids(text)
            self.links += [(cell, link) for link in links(text)]
        self.ids |= set(self.slugs.values())


def parts(page) -> list:
    "The texts of a notebook's page that may hold links: Markdown cells, outputs in Markdown and HTML."
    shown = lambda cell: [output.get("data", {}) for output in cell.get("outputs", [])]
    return [text for cell in page["cells"] for text in (
        [cell["source"]] if cell["cell_type"] == "markdown" else
        ["".join(data.get(kind, "")) for data in shown(cell) for kind in ("text/html", "text/markdown")])]


def faults(pages: dict, texts: dict, built: dict) -> list:
    """A sentence for each link that leads nowhere: of the notebooks `pages` (name to page), the other sources
    `texts` (name with its ending to text), and the reference, from whose entries links lead to the cells that
    `built` names."""
    known = {name: Source(parts(page)) for name, page in pages.items()}
    known |= {name.removesuffix(".md"): Source([text]) for name, text in texts.items()
              if name.endswith(".md")}
    for name in (name.removesuffix(".rst") for name in texts if name.endswith(".rst")):
        known[name] = Source([])
        known[name].ids = described(name.removeprefix("api/"))

    def lost(name, link):
        path, _, anchor = link.partition("#")
        if path.startswith("pictures/") or "/pictures/" in path: return False
        stem, kind = posixpath.splitext(posixpath.normpath(posixpath.join(posixpath.dirname(name), path)))
        if stem.startswith("notebooks/"): stem = stem.removeprefix("notebooks/")     # to take away
        other = known.get(stem if path else name)
        if other is None: return stem not in BY_SPHINX
        places = other.ids if kind == ".html" else other.slugs if path else other.ids | other.slugs.keys()
        return bool(anchor) and anchor not in places

    found = [f"page {name}{f', below cell {cell}' if cell else ''}: the link {link} leads nowhere"
             for name, source in known.items() for cell, link in source.links if lost(name, link)]
    found += [f"page {name}: its table of contents lists {entry}, which is no page"
              for name, text in texts.items() for entry in (entries(text) if name.endswith(".md") else [])
              if not fnmatch.filter(known, entry)]
    return found + [f"page api/{full.removeprefix('fedbook.').rpartition('.')[0]}: the cell {cell}, which builds {full}, is not on page {page}"
                    for full, (page, cell) in built.items() if f"cell-{cell}" not in known[page].ids]
