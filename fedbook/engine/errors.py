"""What a user can put right, and what is not installed."""

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path


class UserError(ValueError):
    "Something the user can put right: one sentence that names the argument, what came and what was expected."


class Unfit(UserError):
    """Two parts that do not go together: a server and an aggregate, a client and a mod, or what it shall be made
    of."""


def choices_text(known: Iterable[str], near: Sequence[str] = ()) -> str:
    "The cure for a name that is unknown: those `near` it, or where there are none, all that are `known`."
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"choose one of {', '.join(known)}"


EXTRAS = {
    "course": (
        "IPython",
        "cloudpickle",
        "ipywidgets",
        "jupyterlab",
        "latex2mathml",
        "matplotlib",
        "nbclient",
        "nbconvert",
        "nbformat",
        "papermill",
        "scipy",
        "sklearn",
        "yaml",
    ),
    "vision": (
        "PIL",
        "huggingface_hub",
        "open_clip",
        "timm",
        "torchmetrics",
        "torchvision",
    ),
    "flower": ("cryptography", "flwr"),
    "dp": ("dp_accounting", "opacus"),
}


def how_to_install(extra: str) -> str:
    "Return the command that brings the packages of `extra`: for a checkout where there is one, else from an index."
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e '{checkout}[{extra}]'"
    return f"pip install 'fedbook[{extra}]'"


def needs(package: str) -> None:
    """Raise `UserError` with the command that installs `package`, where it is missing: the base install is
    small."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        extra = next(
            extra
            for extra, packages in EXTRAS.items()
            if package.partition(".")[0] in packages
        )
        sentence = f"{error.name or package} is not installed; it comes with: {how_to_install(extra)}"
        raise UserError(sentence) from None
