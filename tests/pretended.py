"""A pretended accelerator: a device that computes the CPU's bits and is as strict as CUDA.

    python tests/pretended.py methods/continual deploy/flower    # at smoke, on the device `sham`; or all
    python tests/pretended.py --plain methods/continual          # on the CPU

It refuses tensors of two devices in one operator, numpy on a tensor of the device, a CPU generator for what
is drawn on the device, and to pin the device's memory. It counts operators and copies. A chapter that passes
here uses its devices rightly; whether it is fast on a GPU, or fits, this cannot say.

PyTorch keeps a dispatch key free for devices from outside, PrivateUse1. A tensor on `sham` is an empty shell
of shape and dtype there; its numbers lie in a CPU tensor, which is found by the shell's storage (autograd
makes shallow copies of shells, and those share it). One fallback serves nearly all operators: it opens the
shells, calls the CPU's operator, and puts what comes out into new shells. Views are made of the CPU tensors,
so that shells share numbers where tensors on a real device would; but a shell does not tell the strides of
what it holds, and where PyTorch chooses a product by strides, the last bit may differ. What PyTorch does not
send to a fallback (views, copies, convolutions) is registered by hand.

`install()` cannot be undone, and autograd does not survive a fork once it has worked. So tests call
`aside(job)`: a process, forked from one that has imported everything and computed nothing, installs the device
and ends."""
import ast
import contextlib
import io
import linecache
import multiprocessing
import os
import random
import re
import sys
import tempfile
import threading
import traceback
import warnings
from multiprocessing import forkserver
from pathlib import Path
from time import process_time
from typing import NamedTuple
from unittest.mock import patch

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import backend_registration

from fedbook.engine.local import build, small_cnn
from fedbook.kit.runs import chapters, code_cells
from spy import spied

NAME = "sham"
MISSING = ("PyTorch's experimental entry for a device written in Python is missing here"
           if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
           else "only Linux can fork" if sys.platform != "linux" else "")
VIEWS = """t transpose.int permute expand slice.Tensor select.int squeeze squeeze.dim squeeze.dims unsqueeze
diagonal split.Tensor split_with_sizes unbind.int view.dtype unfold""".split()
STEPS = 400             # of the calibration loop
WAITS = ("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::equal")
INDEXING = re.compile("aten::(_unsafe_|_)?index(_put)?(_impl)?_?(\\.|$)")
numbers: dict = {}      # a shell's storage: (weak reference to it, the CPU tensor with its numbers)
counts: list = []       # the `Count`s that are open
spent: list = []        # the CPU seconds of each process aside


class Count:
    """What happened on the device inside `with Count() as count`: `operators`, and `copies`, a list of (way,
    elements, where) with way "in" or "out". An operator whose result has a size that only its numbers tell
    makes a GPU wait, and stands there as a copy out of one element."""

    def __init__(self): self.operators, self.copies = 0, []

    def __enter__(self):
        counts.append(self)
        return self

    def __exit__(self, *_): counts.remove(self)

    def ways(self, way): return [copy for copy in self.copies if copy[0] == way]


def note_copy(way, elements):
    if not counts: return
    frames = [f"{Path(f.filename).stem}.{f.name}" for f in traceback.extract_stack()
              if "/fedbook/" in f.filename or Path(f.filename).name.startswith(("test_", "cell"))]
    for count in counts: count.copies.append((way, elements, " > ".join(frames[-3:])))


def on_sham(t): return isinstance(t, torch.Tensor) and not t.is_cpu and t.device.type == NAME

def opened(t): return numbers[t.untyped_storage()._cdata][1]

def shell(plain):
    "A tensor on the device with the numbers of `plain`, which it shares."
    with torch.inference_mode(False): t = torch._C._acc.create_empty_tensor(tuple(plain.shape), plain.dtype)
    storage = t.untyped_storage()
    with shell.lock:
        numbers[storage._cdata] = StorageWeakRef(storage), plain
        if len(numbers) > shell.sweep_at: sweep()
    return t

shell.sweep_at, shell.lock = 4000, threading.Lock()   # autograd works in threads, one for each device

def sweep():
    "Forget the numbers of shells that are gone."
    for key in [key for key, (ref, _) in numbers.items() if ref.expired()]: del numbers[key]
    shell.sweep_at = 2 * len(numbers) + 4000


def refuse(name, v, given):
    """Raise as CUDA does where `v`, among what operator `name` is `given` together with shells, is a CPU
    tensor (other than a number, or an index) or a CPU generator."""
    if isinstance(v, torch.Generator) and v.device.type != NAME:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found '{v.device.type}' "
                           f"({name})")
    if not isinstance(v, torch.Tensor) or not v.dim(): return
    if INDEXING.match(name) and on_sham(given[0]) and any(v is index for index in given[1]): return
    raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {NAME} and {v.device} "
                       f"(shape {tuple(v.shape)})")


def open_all(v, shells, others):
    "`v`, an argument of an operator, opened; notes what was open and what is of the CPU."
    if isinstance(v, torch.Tensor):
        if not on_sham(v):
            others.append(v)
            return v
        plain = opened(v)
        shells[id(plain)] = v
        return plain
    if isinstance(v, (list, tuple)): return [open_all(each, shells, others) for each in v]
    if isinstance(v, torch.Generator): others.append(v)
    return torch.device("cpu") if isinstance(v, torch.device) and v.type == NAME else v

def close_all(v, shells):
    if isinstance(v, torch.Tensor): return shells[id(v)] if id(v) in shells else shell(v)
    return type(v)(close_all(each, shells) for each in v) if isinstance(v, (list, tuple)) else v


def fallback(op, *args, **kwargs):
    "Any operator: opened, computed on the CPU, and put into shells again; what changed in place is kept."
    name, shells, others = op.name(), {}, []
    plain = [open_all(v, shells, others) for v in args]
    named = {key: open_all(v, shells, others) for key, v in kwargs.items()}
    for v in others: refuse(name, v, args)
    for count in counts: count.operators += 1
    if counts and (name in WAITS or name == "aten::index.Tensor" and
                   any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])):
        note_copy("out", 1)
    made = op(*plain, **named)
    for t in shells.values():
        if t.shape != opened(t).shape:
            with torch.no_grad(): t.data = shell(opened(t))
    return close_all(made, shells)


def copy_into(target, source):
    if on_sham(target) != on_sham(source): note_copy("in" if on_sham(target) else "out", source.numel())
    (opened(target) if on_sham(target) else target).copy_(opened(source) if on_sham(source) else source)
    return target

def to_copy(x, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False,
            memory_format=None):
    there = torch.device(x.device if device is None else device).type == NAME
    if there != on_sham(x): note_copy("in" if there else "out", x.numel())
    plain = (opened(x) if on_sham(x) else x).to(dtype=dtype or x.dtype, copy=True)
    if memory_format in (torch.channels_last, torch.contiguous_format):
        plain = plain.contiguous(memory_format=memory_format)
    return shell(plain) if there else plain

def number(x):
    note_copy("out", 1)
    return opened(x).item()

def convolution(x, weight, bias, *rest):
    return fallback(torch.ops.aten.convolution.default, x, weight, bias, *rest)

def convolution_backward(grad, x, weight, stride, padding, dilation, transposed, output_padding, groups,
                         mask):
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return fallback(torch.ops.aten.convolution_backward.default, grad, x, weight, [channels], stride, padding,
                    dilation, transposed, output_padding, groups, mask)

def pin(x, device=None): raise RuntimeError("cannot pin: only dense CPU tensors can be pinned")

def reshaped(x, size, *_): return shell(opened(x).reshape(size))


def deepcopy_on(plain_deepcopy):
    "`Tensor.__deepcopy__` that copies the numbers of a shell as well."
    def deepcopy(self, memo):
        if not on_sham(self): return plain_deepcopy(self, memo)
        if id(self) in memo: return memo[id(self)]
        with torch.no_grad(): new = shell(opened(self).clone())
        new = (torch.nn.Parameter(new, self.requires_grad) if isinstance(self, torch.nn.Parameter)
               else new.requires_grad_(self.requires_grad))
        memo[id(self)] = new
        return new
    return deepcopy

def storage_method(plain_method, name):
    "A method of storages that asks that of the numbers (a shell's own storage is empty)."
    def asked(self):
        held = numbers.get(self._cdata) if self.device.type == NAME else None
        return getattr(held[1].untyped_storage(), name)() if held else plain_method(self)
    return asked


def install():
    "Make the device, for good, and answer it. Raises `RuntimeError` with `MISSING` where it cannot be made."
    if MISSING: raise RuntimeError(MISSING)
    if install.libraries: return torch.device(NAME, 0)
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    any_op, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    install.libraries += [any_op, aten]
    any_op.fallback(fallback, "PrivateUse1")
    by_hand = {"view": reshaped, "_unsafe_view": reshaped, "_reshape_alias": reshaped,
               "_local_scalar_dense": number, "_to_copy": to_copy, "_pin_memory": pin,
               "copy_": lambda target, source, non_blocking=False: copy_into(target, source),
               "_copy_from": lambda source, target, non_blocking=False: copy_into(target, source),
               "convolution_overrideable": convolution,
               "convolution_backward_overrideable": convolution_backward}
    for name in VIEWS:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        by_hand[name] = lambda *args, op=op, **kwargs: fallback(op, *args, **kwargs)
    for name, function in by_hand.items(): aten.impl(name, function, "PrivateUse1")
    torch.Tensor.__deepcopy__ = deepcopy_on(torch.Tensor.__deepcopy__)
    for name in ("nbytes", "data_ptr"):
        setattr(torch.UntypedStorage, name, storage_method(getattr(torch.UntypedStorage, name), name))
    return torch.device(NAME, 0)

install.libraries = []


STANDINS = {"torch_device": lambda name="auto": torch.device("cpu") if name == "cpu" else install(),
            "_can_start": lambda device: False}

def stand_in(names):
    "Where `names` (of a module, or of a notebook) find out what the machine has, let them find the device."
    for name, answer in STANDINS.items():
        if name in names: names[name] = answer

def install_in_fedbook():
    "`install`, and let all of fedbook take the device for the GPU."
    device = install()
    for name, module in list(sys.modules.items()):
        if name.startswith("fedbook."): stand_in(vars(module))
    return device

class Ran(NamedTuple):
    """What came of a notebook's cells: `failures` as texts, what they `printed`, their CPU `seconds` and
    those as `loops` of the calibration, imports left out; the sizes, of those in its `profiles`, that nobody
    read, by their class; and the global generators that are not as they were."""
    failures: list
    printed: str
    seconds: float
    loops: float
    unread: dict
    drawn: list

def loop_seconds(device="cpu"):
    """The CPU seconds of the calibration loop on `device`, of which the twentieth part is run: steps of a
    small network, which take 1 second on one of two idle cores of 2026, and 3 on the pretended device. What a
    chapter takes is counted in such loops of the same process and device, so that a slow machine changes
    nothing. (A device must be there before autograd works.)"""
    model = build(small_cnn, 0).to(device)
    x, y = torch.linspace(0, 1, 16 * 784).reshape(16, 1, 28, 28).to(device), (torch.arange(16) % 10).to(device)
    step = torch.optim.SGD(model.parameters(), 0.01)
    def steps(count):
        for _ in range(count):
            step.zero_grad()
            F.cross_entropy(model(x), y).backward()
            step.step()
    steps(3)
    start = process_time()
    steps(STEPS // 20)
    return 20 * (process_time() - start)

def generators():
    "The states of the global generators, by whose they are."
    _, keys, *rest = np.random.get_state()
    return {"torch": torch.random.get_rng_state().tolist(), "numpy": [keys.tolist(), rest],
            "random": random.getstate()}

IMPORTS = (ast.Import, ast.ImportFrom)

def run_cells(path, plain=False, **parameters):
    """Execute a notebook's code cells on the device, or `plain` on the CPU, with these `parameters` where it
    has some. Returns what came of it, `Ran`."""
    matplotlib.use("agg")
    failures, printed, names, taken = [], io.StringIO(), {"__name__": "__main__"}, 0.0
    loop = loop_seconds("cpu" if plain else install_in_fedbook())
    exec("from IPython.display import display", names)
    before = generators()
    with spied() as spy:
        for i, source in enumerate(code_cells(path)):
            start = process_time()
            try:
                linecache.cache[f"cell {i}"] = len(source), None, source.splitlines(True), f"cell {i}"
                tree = ast.parse(source)
                with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                    exec(compile(source, f"cell {i}", "exec"), names)
            except Exception as error:
                frames = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in
                          traceback.extract_tb(error.__traceback__) if re.search(r"fedbook|^cell", f.filename)]
                failures.append(f"code cell {i}: {type(error).__name__}: {str(error)[:300]} "
                                f"({' > '.join(frames[-4:])})")
            if not all(isinstance(node, IMPORTS) for node in tree.body): taken += process_time() - start
            if re.search(r'^profile = "quick"', source, re.M): names |= parameters
            if not plain: stand_in(names)
    drawn = [whose for whose, state in generators().items() if state != before[whose]]
    own = {type(sizes).__name__ for sizes in names.get("profiles", {}).values()}
    unread = {kind: left for kind, left in spy.unread().items() if kind in own}
    return Ran(failures, printed.getvalue(), taken, taken / loop, unread, drawn)

def run_chapter(path, out, profile="smoke", plain=False):
    "`run_cells` of a chapter."
    return run_cells(path, plain, profile=profile, device="cpu" if plain else "auto", seed=0, engine="local",
                     out=str(out), changes={})


def answer_into(pipe, job, args):
    try: answer = True, job(*args)
    except BaseException as error:
        answer = False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    pipe.send((*answer, process_time()))
    pipe.close()

def clean_processes():
    "The context of processes that are forked from a server, which imports the tests here, once."
    context, folder = multiprocessing.get_context("forkserver"), str(Path(__file__).parent)
    context.set_forkserver_preload(["preloaded"])
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    with patch.dict(os.environ, PYTHONPATH=path): forkserver.ensure_running()
    return context

def aside(job, *args):
    """What `job(*args)`, a function of a module, returns in a clean process. Raises `AssertionError` with what
    it raised there."""
    context = clean_processes()
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=answer_into, args=(there, job, args))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        process.start()
    there.close()
    try: fine, answer, seconds = here.recv()
    except EOFError: fine, answer, seconds = False, "the process ended without an answer", 0.0
    spent.append(seconds)
    process.join()
    assert fine, answer
    return answer


if __name__ == "__main__":
    plain = "--plain" in sys.argv
    asked = [name for name in sys.argv[1:] if name != "--plain"] or chapters()
    with tempfile.TemporaryDirectory() as folder:
        for chapter in asked:
            ran = aside(run_chapter, chapters()[chapter], folder, "smoke", plain)
            told = [f"{kind}: nobody reads {', '.join(names)}" for kind, names in ran.unread.items()]
            told += [f"it draws from the global generator of {whose}" for whose in ran.drawn]
            print(f"{chapter}: {ran.loops:.1f} loops, {ran.seconds:.1f} s", *ran.failures, *told,
                  sep="\n    ", flush=True)
