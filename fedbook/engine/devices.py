"""Where PyTorch computes, and how long it takes."""

import os
import sys
from time import perf_counter
from typing import Any

from fedbook.engine.errors import UserError


def torch_device(name: str = "auto") -> Any:
    """The `torch.device` for `auto` (a GPU where there is one), `cpu` or `cuda`. On a GPU, PyTorch is set to
    float32 in convolutions too, and to kernels that repeat their bits; where it has none, it warns."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(
            f"device={name!r} is unknown; choose one of auto, cpu, cuda"
        )
    import torch

    found = torch.cuda.is_available()
    if name == "cuda" and not found:
        raise UserError(
            "device='cuda' was asked for, but PyTorch finds no GPU here; use auto or cpu"
        )
    if not found or name == "cpu":
        return torch.device("cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    return torch.device("cuda")


def clock() -> float:
    "Seconds, to take the difference of two: `perf_counter`, once a GPU has done all that was asked of it."
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return perf_counter()
