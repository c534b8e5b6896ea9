"""The site of a course of two notebooks, with one of everything, built as `make site` builds the whole."""
import base64
import json
import subprocess
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "site"))
import check
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
    metadata = dict(kernelspec=dict(name="python3", display_name="python3", language="python"))
    path.write_text(json.dumps(dict(nbformat=4, nbformat_minor=5, metadata=metadata, cells=cells)))


PICTURES = [png(0), png(60), png(120)]
QUIZ = ("<div><b>Where do pictures stay?</b><details style='margin:4px 0 4px 16px'>"
        "<summary>a) At home.</summary><i>Right.</i> Nothing but weights travels.</details></div>")
NAMES = "## Names\n\n| in the text | in code | what |\n|---|---|---|\n| $\\alpha$ | `alpha` | how skewed |"
PART = ("## A part\n\n$$a = b \\\\ c \\tag{1}$$\n\n"
        "Back to [the names](#names), on to [the answers](answers/small.ipynb), "
        "and [the *cell*](answers/small.ipynb#cell-id=a1) of one.")
SHOWN = ("| claim |\n|---|\n| skew costs accuracy |\n\n"
         "From [this cell](#cell-id=c5) to [those](answers/small.ipynb).")
FIGURE = ("def figure(alpha, beta=1):\n    ax.set_title(f'skew at {alpha}')\n\n"
          "for alpha in (0.1, 0.5, 2.0): display(figure(alpha))")
REVEALED = {"text/plain": "Answer: double in fedbook.answers.small",
            "text/html": "<details><summary>Answer</summary><pre>return 2 * x</pre></details>"}
CHAPTER = [
    text("t0", "# A small chapter\n\n> It has one of everything."),
    code("c0", "#| default_exp kit.lab"),
    code("c1", "#| hide\nimport math"),
    text("t1", NAMES), text("t2", PART),
    code("c2", "#| export\ndef same(a, b): 'Whether two agree.'", {"text/plain": "ok"}),
    code("c3", FIGURE, *({"image/png": each, "text/plain": "<Figure>"} for each in PICTURES)),
    code("c4", "play(figure, alpha=[0.1, 0.5], beta=(1, 5, 1))",
         {"text/plain": "[slider: alpha, beta. Run this cell in JupyterLab to move it.]"}),
    code("c8", f"wide = {'wide ' * 40!r}", {"text/plain": "wide " * 60}),
    code("c5", "results", {"text/markdown": SHOWN, "text/plain": ""}),
    text("t3", "## Exercises"),
    code("c6", "reveal(answers.double)", REVEALED),
    code("c7", "quiz('Where do pictures stay?')", {"text/html": QUIZ, "text/plain": "Where"},
         jupyter={"source_hidden": True})]
ANSWERS = [text("t4", "# Answers to 00_small"), code("a0", "#| default_exp answers.small"),
           code("a1", "#| export\ndef double(x): return 2 * x")]
CLAIM = dict(claim="skew costs accuracy", paper="3 points", source="Table 1", unit="%", at_least=0.0,
             at_most=None, values=[0.02, 0.03, 0.04], low=0.005, high=0.055, level=0.95, effect=[0.03, 0.03],
             reruns=None, of="Small", reach=None, why="", curve=[], detectable=0.02, own=False, note="", seeds=None,
             verdict="reproduced")
RESULT = dict(name="00_small", profile="full", seed=0, scale="small", device="cpu", changes={}, stamp="",
              sizes={"data": "none"}, level=0.95, headline="", clock=[], rows=[], claims=[CLAIM])
INDEX = """# Small

```{toctree}
:hidden:
:caption: Part I

0?_*
```

```{toctree}
results
glossary
api/kit.lab
answers/small
```
"""


def course(folder, chapter=CHAPTER):
    "A course of one `chapter` and its answers in `folder`, with one result and a start page."
    notebook(folder / "nbs" / "00_small.ipynb", chapter)
    notebook(folder / "nbs" / "answers" / "small.ipynb", ANSWERS)
    for name in ("results", "written"): (folder / name).mkdir(parents=True)
    (folder / "results" / "00_small-full-0-none.json").write_text(json.dumps(RESULT))
    (folder / "written" / "index.md").write_text(INDEX)
    return folder


def prepared(folder):
    prepare.prepare(folder / "pages", folder / "nbs", folder / "results", folder / "written")


def built(folder):
    "The folder of the pages of the small site, which is built in `folder`."
    prepared(course(folder))
    places = "-c", ROOT / "site", "-d", folder / "trees", folder / "pages", folder / "html"
    done = subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", *places], text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert check.faults(folder / "html") == []
    return folder / "html"
