from configparser import ConfigParser

from setuptools import setup

cfg = ConfigParser(delimiters=["="])
cfg.read("settings.ini", encoding="utf-8")
cfg = cfg["DEFAULT"]

setup(
    name=cfg["lib_name"], version=cfg["version"], description=cfg["description"], author=cfg["author"],
    license="Apache-2.0", python_requires=">=" + cfg["min_python"],
    long_description=open("README.md", encoding="utf-8").read(), long_description_content_type="text/markdown",
    packages=["fedbook", "fedbook.answers", "fedbook.nbs"], package_dir={"fedbook": "fedbook", "fedbook.nbs": "nbs"},
    package_data={"fedbook": ["data/*"], "fedbook.nbs": ["*.ipynb", "answers/*.ipynb", "workshop/*.ipynb"]},
    install_requires=cfg["requirements"].split(), extras_require={extra: cfg[f"{extra}_requirements"].split() for extra in ("dev", "flower", "dp")},
    entry_points={"console_scripts": cfg["console_scripts"].split()},
)
