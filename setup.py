import json
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

cfg = ConfigParser(delimiters=["="])
cfg.read("settings.ini", encoding="utf-8")
cfg = cfg["DEFAULT"]
WINGS = "engine", "datasets", "methods", "privacy", "deploy", "evidence", "kit", "answers"


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


setup(
    name=cfg["lib_name"], version=cfg["version"], description=cfg["description"], author=cfg["author"],
    author_email=cfg["author_email"], url=cfg["url"], keywords=cfg["keywords"].split(),
    classifiers=[each.strip() for each in cfg["classifiers"].split(";")],
    license="Apache-2.0", python_requires=">=" + cfg["min_python"],
    long_description=Path("README.md").read_text(encoding="utf-8"), long_description_content_type="text/markdown",
    packages=["fedbook", *(f"fedbook.{wing}" for wing in WINGS), "fedbook.nbs", "fedbook.teaching"],
    package_dir={"fedbook": "fedbook", "fedbook.nbs": "nbs", "fedbook.teaching": "teaching"},
    package_data={"fedbook.datasets": ["data/*"], "fedbook.nbs": ["*.ipynb", "*/*.ipynb", "*/*.toml"],
                  "fedbook.teaching": ["hidden/*.py"]},
    install_requires=cfg["requirements"].split(),
    extras_require={extra: cfg[f"{extra}_requirements"].split() for extra in cfg["extras"].split()},
    entry_points={"console_scripts": cfg["console_scripts"].split()}, cmdclass={"build_py": WithoutOutputs},
)
