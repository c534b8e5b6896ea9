"""Sphinx's settings for the site. The sources are what `prepare.py` wrote; nothing comes from the network."""
import posixpath
import re
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from docutils import nodes
from sphinx.environment.adapters.toctree import global_toctree_for_doc

sys.path.insert(0, str(Path(__file__).parent))

project, author, copyright = "fedbook", "The fedbook authors", "2026 The fedbook authors"
html_title, html_theme, html_favicon = "fedbook", "furo", "static/icon.svg"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "sphinx.ext.mathjax",
              "sphinx-mathjax-offline", "sphinx_copybutton", "reference"]

copybutton_selector = "div.cell_input pre, div.highlight-sh pre, div.highlight-python pre"

exclude_patterns = ["extra"]
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "gfm"
nb_code_prompt_show, nb_code_prompt_hide = "Show the code", "Hide the code"
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]

autodoc_mock_imports = [name for name in ("flwr", "cryptography") if not find_spec(name)]
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True
add_module_names = False

# Their own inventories need a network; these list what our signatures and docstrings name.
inventory = lambda name: str(Path(__file__).parent / "inventories" / f"{name}.inv")
intersphinx_mapping = {
    "torch": ("https://docs.pytorch.org/docs/stable/", inventory("torch")),
    "flower": ("https://flower.ai/docs/framework/ref-api/", inventory("flower"))}

mathjax3_config = {"loader": {"load": ["core", "input/tex", "output/chtml", "a11y/assistive-mml"]}}
html_static_path, html_css_files, html_js_files = ["static"], ["site.css"], ["site.js"]
html_copy_source = html_show_sourcelink = False
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-dark"
html_theme_options = {"top_of_page_buttons": [], "footer_icons": [
    {"name": "GitHub", "url": "https://github.com/fedbook/fedbook", "html": "GitHub", "class": ""}]}


def as_written(app, doctree):
    "Hand equations to MathJax as they are written: Sphinx wraps them into a `split`, which knows no `\\tag`."
    for node in doctree.findall(nodes.math_block):
        if node.get("no-wrap") or node.get("nowrap"): continue
        node["no-wrap"], node.children = True, [nodes.Text(f"\\[{node.astext()}\\]")]


@lru_cache(maxsize=None)
def contents(builder, folder: str) -> str:
    "The list of all pages, as pages of `folder` link to it, with none of them marked as the current one."
    tree = global_toctree_for_doc(builder.env, posixpath.join(folder, "-"), builder, tags=builder.tags, collapse=False,
                                  titles_only=True, maxdepth=-1)
    return builder.render_partial(tree)["fragment"] if tree else ""


def shared(app, page, template, context, doctree):
    "One list of pages for each folder: made anew for every page, it takes a third of the build."
    context["toctree"] = lambda **options: contents(app.builder, posixpath.dirname(page))


def marked(tree: str, link: str) -> str:
    "The list of pages `tree`, with the page behind `link` marked as the current one, and what it is part of."
    before, found, after = tree.partition(f'"><a class="reference internal" href="{link}"')
    if not found: return tree
    start = before.rindex("<li")
    item = f'{before[start:]} current-page"><a class="current reference internal" href="#"'
    part = before[before.rindex('<li class="toctree-l1'):start]
    item = re.sub(r'<li class="toctree-l\d', r"\g<0> current", item)
    opened = part.replace('<li class="toctree-l1', '<li class="toctree-l1 current', 1).replace('class="toctree-checkbox"', 'checked="" class="toctree-checkbox"', 1)
    if not part: after = re.sub(r'^([^<]*</a><input[^>]*?)( class="toctree-)', r'\1 checked=""\2', after)
    return before[:start - len(part)] + opened + item + after


def spoken(app, page, template, context, doctree):
    """What a screen reader needs: the level of the sidebar's captions, which are headings, and that the
    parameters of a long signature, definitions without terms for Sphinx, are a list."""
    tree = marked(context.get("furo_navigation_tree", ""), f"{posixpath.basename(page)}.html")
    body = context.get("body", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')
    roles = {"<dl>": '<dl role="list">', "<dd>": '<dd role="listitem">'}
    listed = lambda found: re.sub("<d[ld]>", lambda tag: roles[tag[0]], found[0])
    context["body"] = re.sub(r"<dl>\n(<dd>.*</dd>\n)+</dl>", listed, body)


def setup(app):
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True      # it copies files, and does not say so
    app.config.mathjax_path = "mathjax/startup.js"
    app.config.html_extra_path = [str(app.srcdir / "extra")]
    app.connect("doctree-read", as_written)
    app.connect("html-page-context", shared, priority=100)
    app.connect("html-page-context", spoken, priority=900)
