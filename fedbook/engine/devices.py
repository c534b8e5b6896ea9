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


def usable_cores() -> int:
    """How many cores this process may use: those of the environment's `FEDBOOK_CORES`, where a run has to leave
    some to others, else all that the system gives it."""
    told = os.environ.get("FEDBOOK_CORES")
    if told:
        return int(told)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def to_device(tensors: dict[str, Any], device: Any) -> dict[str, Any]:
    """`tensors` by name, all on `device` (a `torch.device`, or its name), each with its dtype, shape and bits.
    `tensors` themselves where they are all there, as on a CPU. Those of one other device come in a single copy,
    out of one buffer, and share the memory that it takes here. A GPU goes on working while it gets them."""
    import torch

    device = torch.device(device)
    away: dict[Any, dict] = {}
    for name, t in tensors.items():
        if not _is_at(t, device):
            away.setdefault(t.device, {})[name] = t
    if not away:
        return tensors
    moved = dict(tensors)
    for group in away.values():
        plain = {n: t for n, t in group.items() if t.layout == torch.strided}
        odd = {n: t.to(device) for n, t in group.items() if n not in plain}
        moved |= odd | _in_one_copy(plain, device)
    return moved


def to_host(tensors: dict[str, Any]) -> dict[str, Any]:
    "`tensors` by name, on the CPU: `to_device` the other way, which waits until they are here."
    return to_device(tensors, "cpu")


def _is_at(t, device):
    index = t.device.index if device.index is None else device.index
    return t.device.type == device.type and t.device.index == index


_ALIGNED = 16  # bytes: the largest entry of a tensor


def _in_one_copy(tensors, device):
    "`tensors`, all of one device, on another: packed there, copied once, and taken apart here."
    import torch

    places = {}
    end = 0
    for name, t in tensors.items():
        start = -(-end // _ALIGNED) * _ALIGNED
        end = start + t.numel() * t.element_size()
        places[name] = start, end
    if not end:
        return {name: t.to(device) for name, t in tensors.items()}
    source = next(iter(tensors.values())).device
    packed = _buffer(end, source, device)
    arrived = _buffer(end, device, source)
    views = {}
    for name, t in tensors.items():
        start, end = places[name]
        cut = slice(start, end)
        packed[cut].view(t.dtype).view(t.shape).copy_(t.detach())
        views[name] = arrived[cut].view(t.dtype).view(t.shape)
    arrived.copy_(packed, non_blocking=device.type != "cpu")
    return views


def _buffer(size, device, other):
    "So many bytes on `device`; on the CPU in pinned memory, where a GPU is the `other` side."
    import torch

    pinned = device.type == "cpu" and other.type == "cuda"
    return torch.empty(
        size, dtype=torch.uint8, device=device, pin_memory=pinned
    )


def check_precision(precision: str, device: Any = None) -> None:
    """Raise `UserError` for a `precision` that is none of fp32, tf32, bf16, and for one in which `device`, where
    one is given, computes no faster than in fp32."""
    if precision not in ("fp32", "tf32", "bf16"):
        raise UserError(
            f"precision={precision!r} is unknown; choose one of fp32, tf32, bf16"
        )
    kind = str(device or "").partition(":")[0]
    if precision == "tf32" and kind == "cpu":
        raise UserError(
            "precision='tf32' is a mode of GPUs and changes nothing on a CPU; choose fp32 or bf16"
        )
    if precision == "bf16" and not _knows_bf16(kind):
        raise UserError(
            f"precision='bf16' is slower than fp32 on this {'GPU' if kind == 'cuda' else 'processor'}, which has "
            "no instructions for it; choose fp32"
        )


def _knows_bf16(kind):
    import torch

    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    known = getattr(torch.cpu, "get_capabilities", None)
    if kind != "cpu" or known is None:
        return True
    return any(has and "bf16" in name for name, has in known().items())


def clock() -> float:
    "Seconds, to take the difference of two: `perf_counter`, once a GPU has done all that was asked of it."
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return perf_counter()
