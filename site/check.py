"""After the build: every link inside the site leads to a page and a place on it, and no page is too heavy.
`python site/check.py FOLDER` is the last part of `make site`: a sentence for each fault, and 1 at the end."""
import html
import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

MOST = 2_000_000
MATHJAX = ("core.js", "input/tex.js", "output/chtml.js", "output/chtml/fonts/tex.js", "a11y/assistive-mml.js",
           *(f"output/chtml/fonts/woff-v2/MathJax_{font}.woff" for font in (
               "Main-Regular", "Main-Bold", "Math-Italic", "AMS-Regular", "Size1-Regular", "Size2-Regular")))


TAG = re.compile(r"<([a-z]\w*)(\s[^>]*)>")
ATTRIBUTE = re.compile(r"\s(id|class|href|src|rel|loading)=(?:\"([^\"]*)\"|'([^']*)')")


class Page:
    "The ids of a page, its links with the cell that they follow, what a browser loads before a scroll."

    def __init__(self, path: Path):
        self.path, self.ids, self.links, self.loaded, self.cell = path, set(), {}, {path}, ""
        for tag, written in TAG.findall(path.read_text(encoding="utf-8")):
            if "id=" in written or "href=" in written or "src=" in written: self.read(tag, written)

    def read(self, tag: str, written: str) -> None:
        "Keep what the tag `tag` with its attributes, as `written`, says."
        attrs = {name: html.unescape(double or single) for name, double, single in ATTRIBUTE.findall(written)}
        if attrs.get("class") == "cell": self.cell = attrs["id"]
        if attrs.get("id"): self.ids.add(attrs["id"])
        link = attrs.get("href") if tag in ("a", "link") else attrs.get("src")
        if not link or re.match(r"[a-z]+:|//", link): return
        self.links.setdefault(link, self.cell)
        seen = tag == "img" and attrs.get("loading") != "lazy"
        if tag == "script" or attrs.get("rel") == "stylesheet" or seen: self.loaded.add(self.file(link))

    def file(self, link: str) -> Path:
        path = unquote(urlsplit(link).path)
        return Path(os.path.normpath(self.path.parent / path)) if path else self.path

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
    pages, found, there = read(folder), [], {}
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        for link, cell in sorted(page.links.items()):
            file, anchor = page.file(link), unquote(urlsplit(link).fragment)
            lost = anchor and file in pages and anchor not in pages[file].ids
            if file not in there: there[file] = file.exists()
            below = f", below {cell}" if cell else ""
            if lost or not there[file]: found.append(f"page {name}{below}: the link {link} leads nowhere")
        if page.weight() > MOST: found.append(f"page {name} weighs {page.weight():,} bytes, at most {MOST:,}")
    return found


if __name__ == "__main__":
    found = faults(Path(sys.argv[1]))
    more = [f"site: and {len(found) - 20} more"] if len(found) > 20 else []
    sys.exit("\n".join([*(f"site: {fault}" for fault in found[:20]), *more]) or 0)
