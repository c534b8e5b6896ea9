"""What the server of clean processes has imported before it forks them, so that no chapter pays for it.
Nothing is computed here: autograd does not survive a fork once it has worked."""
import importlib
import pkgutil
from contextlib import suppress

import torch

import fedbook
import test_pretended  # noqa: F401

OTHERS = ("IPython.display", "PIL.Image", "dp_accounting", "ipywidgets", "matplotlib.backends.backend_agg",
          "matplotlib.pyplot", "nbformat", "open_clip", "opacus", "scipy.stats", "sklearn.cluster",
          "sklearn.linear_model", "timm", "torchmetrics.detection", "torchvision")

for name in [*OTHERS, *(module.name for module in pkgutil.walk_packages(fedbook.__path__, "fedbook."))]:
    if not name.startswith(("fedbook.__main__", "fedbook.answers")):
        with suppress(Exception): importlib.import_module(name)     # a chapter's own run says what is wrong

# PyTorch's first optimiser imports a thousand modules
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
