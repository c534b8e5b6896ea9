"""After the build: every link inside the site leads to a page and a place on it, and no page is too heavy."""
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.errors import SphinxError

MOST = 2_000_000
MATHJAX = ("core.js", "input/tex.js", "output/chtml.js", "output/chtml/fonts/tex.js", "a11y/assistive-mml.js",
           *(f"output/chtml/fonts/woff-v2/MathJax_{font}.woff" for font in (
               "Main-Regular", "Main-Bold", "Math-Italic", "AMS-Regular", "Size1-Regular", "Size2-Regular")))


class Page(HTMLParser):
    "The ids of a page, its links, and what a browser loads with it before anybody scrolls."

    def __init__(self, path: Path):
        super().__init__()
        self.path, self.ids, self.links, self.loaded = path, set(), set(), {path}
        self.feed(path.read_text(encoding="utf-8"))

    def file(self, link: str) -> Path:
        path = unquote(urlsplit(link).path)
        return (self.path.parent / path).resolve() if path else self.path

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        link = attrs.get("href") if tag in ("a", "link") else attrs.get("src")
        if attrs.get("id"): self.ids.add(attrs["id"])
        if not link or urlsplit(link).scheme or urlsplit(link).netloc: return
        self.links.add(link)
        seen = tag == "img" and attrs.get("loading") != "lazy"
        if tag == "script" or attrs.get("rel") == "stylesheet" or seen: self.loaded.add(self.file(link))

    def weight(self) -> int:
        "Bytes, not compressed, with what MathJax fetches once it has started."
        mathjax = next((file.parent for file in self.loaded if file.parent.name == "mathjax"), None)
        files = [*self.loaded, *(mathjax / name for name in MATHJAX if mathjax)]
        return sum(file.stat().st_size for file in files if file.exists())


def read(folder: Path) -> dict:
    "The pages of a built site: path to `Page`."
    return {path: Page(path) for path in sorted(folder.resolve().rglob("*.html"))}


def faults(folder: Path) -> list:
    "A sentence for each link of the built site that leads nowhere, and for each page above `MOST` bytes."
    pages, found = read(folder), []
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        for link in sorted(page.links):
            file, anchor = page.file(link), unquote(urlsplit(link).fragment)
            lost = anchor and file in pages and anchor not in pages[file].ids
            if lost or not file.exists(): found.append(f"page {name}: the link {link} leads nowhere")
        if page.weight() > MOST: found.append(f"page {name} weighs {page.weight():,} bytes, at most {MOST:,}")
    return found


def finished(app, error):
    if error or app.builder.name != "html": return
    found = faults(Path(app.outdir))
    if found: raise SphinxError("; ".join(found[:5]))
