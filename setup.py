import json
import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

WINGS = "engine", "datasets", "methods", "privacy", "deploy", "evidence", "kit", "answers"
HOME = "https://github.com/fedbook/fedbook"


class WithoutOutputs(build_py):
    """A wheel carries the notebooks without their outputs, which are pictures by the megabyte: whoever runs a
    chapter makes them. nbdev's index is left out; an editable install is the checkout itself."""

    def run(self):
        super().run()
        if getattr(self, "editable_mode", False): return
        package = Path(self.build_lib, "fedbook")
        (package / "_modidx.py").unlink(missing_ok=True)
        for path in package.glob("nbs/**/*.ipynb"):
            book = json.loads(path.read_text(encoding="utf-8"))
            for cell in book["cells"]:
                if cell["cell_type"] == "code": cell["outputs"], cell["execution_count"] = [], None
            path.write_text(json.dumps(book, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def with_whole_links(text):
    "The README for a package index: a picture or a file of the repository is named by its whole address."
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\1{HOME}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)", rf"\1{HOME}/blob/main/", text)


setup(
    long_description=with_whole_links(Path("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    packages=["fedbook", *(f"fedbook.{wing}" for wing in WINGS), "fedbook.nbs", "fedbook.teaching"],
    package_dir={"fedbook": "fedbook", "fedbook.nbs": "nbs", "fedbook.teaching": "teaching"},
    package_data={"fedbook": ["py.typed"], "fedbook.datasets": ["data/*"],
                  "fedbook.nbs": ["*.ipynb", "*/*.ipynb", "*/*.toml"], "fedbook.teaching": ["hidden/*.py"]},
    cmdclass={"build_py": WithoutOutputs},
)
