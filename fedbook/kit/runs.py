"""Find, check and run chapters (notebooks), one by one or in parallel, also on made-up data."""
import ast
import gzip
import hashlib
import importlib
import json
import logging
import math
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import cache, partial
from itertools import chain, product
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, BinaryIO

import fedbook
from fedbook.engine.errors import choices_text, needs, UserError
from fedbook.engine.files import locked, run_dir, runs_folder, write_atomically
from fedbook.engine.sizes import choose, is_path, meanings, Profile


def notebooks_folder() -> Path:
    """Return the folder `nbs/` with the course's notebooks: inside the installed package, or beside
    it in a checkout of the repository."""
    package = Path(fedbook.__file__).parent
    return package / "nbs" if (package / "nbs").is_dir() else package.parent / "nbs"


# The course's order, for runs, the site and the README: first the path, then these wings. A wing imports those
# above it alone.
WINGS = {
    "engine": ("local", "wire", "federation", "workers", "stacked"),
    "datasets": ("world", "split", "folders", "encoders", "leaves", "people", "traffic", "streets", "sensors"),
    "methods": ("fedavg", "score", "continual", "penalties", "exemplars", "painters", "detect", "teacher", "experts",
                "adapt", "leverage", "balanced", "wasserstein", "alignment", "heads", "reid", "pruning", "recovery"),
    "privacy": ("secagg", "dp", "private", "attack", "robust", "compress"),
    "deploy": ("flower", "nodes", "buffered", "scale"),
    "evidence": ("claims", "fedreplay", "fedmox", "fedklpr", "fedcbdr", "fedgtea", "streams", "compress", "left_open"),
}


def chapters() -> dict[str, Path]:
    """Return all chapters, each a notebook, as name to path, `in_order`: first the path (`00_start`,
    `10_fedreplay`), then those of each folder in `WINGS` (`engine/wire`)."""
    folder = notebooks_folder()
    paths = chain(folder.glob("[0-9]*.ipynb"), *(folder.glob(f"{wing}/*.ipynb") for wing in WINGS))
    found = {chapter_name(path): path for path in paths}
    return {name: found[name] for name in in_order(found)}


def in_order(names: Iterable[str]) -> list[str]:
    """Return the chapters `names` in the order of the course: the path by its numbers, then wing by wing as
    `WINGS` says. A chapter that `WINGS` does not list comes last in its wing, by name."""
    def place(known: Sequence[str], name: str) -> int:
        return known.index(name) if name in known else len(known)

    def key(name: str) -> tuple:
        wing, _, chapter = name.rpartition("/")
        return place(["", *WINGS], wing), place(WINGS.get(wing, ()), chapter), name
    return sorted(names, key=key)


def chapter_name(path: Path) -> str:
    """Return the name of the chapter (notebook) at `path`: its file name without suffix, such as
    `00_start`, preceded by its folder if that is one of `WINGS`, such as `engine/wire`."""
    path = Path(path)
    return f"{path.parent.name}/{path.stem}" if path.parent.name in WINGS else path.stem


def module_name(name: str) -> str:
    """Return the short name of the chapter `name`, which is also that of its module: without folder
    and number, so that `14_fedgtea` and `engine/wire` give `fedgtea` and `wire`."""
    return re.sub(r"^\d+_", "", name.rpartition("/")[2])


def answers_of(path: Path) -> Path:
    """Return the path of the notebook with the answers to the exercises of the chapter at `path`:
    `nbs/answers/SHORT_NAME.ipynb` (see `module_name`). The file need not exist."""
    folder = Path(path).parent
    return (folder.parent if folder.name in WINGS else folder) / "answers" / f"{module_name(Path(path).stem)}.ipynb"


SEVERAL = ("path", "all")


def find(name: str) -> dict[str, Path]:
    """Return the chapters that `name` means, name to path: all of them for `all`, the evenings for `path`,
    else the one with this name (`14_fedgtea`, `engine/wire`), short name (`fedgtea`, `wire`) or number (`14`).
    Raises `UserError`, with the choices, if there is none."""
    known, name = chapters(), name.removesuffix(".ipynb").removeprefix("nbs/")
    if name == "all": return known
    if name == "path": return {each: path for each, path in known.items() if "/" not in each}
    for fits in (lambda each: each, module_name, lambda each: each.partition("_")[0]):
        for each, path in known.items():
            if fits(each) == name: return {each: path}
    hint = choices_text([*known, "path or all"], _nearest(name, known))
    raise UserError(f"chapter {name!r} is unknown; {hint}")


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    "Chapters of `known` that somebody may have meant by `name`: by number, by a part of it, or mistyped."
    asked = name.lower().strip("./_- ")
    if not asked: return []
    begun = [each for each in known if each.startswith((f"{asked}_", f"{asked}/")) or asked in re.split("[/_]", each)]
    if begun: return begun[:3]
    ways = dict.fromkeys(way for each in known for way in (each, module_name(each)))
    close = get_close_matches(asked, ways, 2, 0.7)
    return [each for each in known if each in close or module_name(each) in close]


def code_cells(path: Path) -> list[str]:
    "Return the source texts of the code cells in the notebook at `path`, in order."
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def exported_to(path: Path) -> str:
    """Return the name, below `fedbook`, of the module that the notebook at `path` is exported to,
    such as `engine.wire`; an empty text if it is exported to none."""
    named = re.search(r"^#\| default_exp (\S+)", "\n".join(code_cells(path)), re.M)
    return named[1] if named else ""


def chapter_module(path: Path) -> ModuleType | None:
    """Import and return the module that the notebook at `path` is exported to; None if it is
    exported to none. Raises `UserError` if a package that the module needs is not installed."""
    named = exported_to(path)
    try: return importlib.import_module(f"fedbook.{named}") if named else None
    except ImportError as error: raise UserError(str(error)) from None


def read_changes(pairs: Iterable[str]) -> dict[str, str]:
    """Return texts of the form `NAME=VALUE` in `pairs` as a dict, name to value, both texts. Raises
    `UserError` for a text without `=`."""
    for pair in pairs:
        if "=" not in pair: raise UserError(f"-p {pair!r} is not of the form NAME=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)  # type: ignore[misc]


def sizes_of(path: Path, profile: str, changes: dict | None = None) -> Profile | None:
    """Return the settings with which the chapter at `path` would run: those of its `profile`
    ("smoke", "quick", "full" or "paper"), with `changes` (field to value, or to its text) applied;
    None if the chapter has no settings. Raises `UserError` for an unknown profile or field, a value
    that is not allowed, and changes to a chapter without settings."""
    module = chapter_module(path)
    profiles = getattr(module, "profiles", None)
    if not profiles and changes:
        raise UserError(f"-p {next(iter(changes))}: chapter {chapter_name(path)} has no parameters")
    return choose(profiles, profile, changes, getattr(module, "settings", None)) if profiles else None


def check_needs(module: ModuleType, sizes: Profile) -> None:
    """Make sure that the data sets and encoder weights named in `sizes` are on this machine,
    downloading what can be downloaded. `module` is the chapter's module; the data that its own
    profiles name, such as rendered pictures, need no file. Raises `UserError` that says what is
    missing and how to get it."""
    for name in _data_names(sizes): _check_data(name, offered(module))
    _check_encoder(getattr(sizes, "encoder", ""), getattr(sizes, "weights", "auto"))


def _data_names(sizes: Profile) -> Sequence[str]:
    "The data sets of a run; `reid` stands for the first `clients` of the field `sets`."
    data = getattr(sizes, "data", "")
    if data == "reid": return getattr(sizes, "sets", ())[:getattr(sizes, "clients", None)]
    return [data] if data else []


def offered(module: ModuleType) -> set[str]:
    "Return the data that the profiles and settings of the chapter's `module` name: rendered worlds among them."
    named = {getattr(profile, "data", "") for profile in module.profiles.values()}
    return named | {fields["data"] for fields in getattr(module, "settings", {}).values() if "data" in fields}


def _check_data(name: str, known: set[str]) -> None:
    from fedbook.datasets.world import advice, inventory
    from fedbook.datasets.folders import pictures

    states = {row["name"]: row["state"] for row in inventory() if not row["name"].endswith("weights")}
    if name not in states and name not in known and not Path(name).expanduser().exists():
        here = [f"{path.name}/" for path in Path().iterdir() if path.is_dir()]
        near = get_close_matches(name, [*known, *states, *here], 2, 0.6)
        choice = choices_text(sorted(known | states.keys()), near)
        raise UserError(f"data={name!r} is neither a data set nor a folder in {Path.cwd()}; {choice}")
    if states.get(name) == "not found": raise UserError(f"data={name!r} is not at hand; {advice(name)}")
    if states.get(name) == "can be downloaded": pictures(name)


def _check_encoder(name: str, weights: str) -> None:
    from fedbook.datasets.encoders import ENCODERS, find_weights

    if name and name not in ENCODERS:
        raise UserError(f"encoder={name!r} is unknown; choose one of {', '.join(ENCODERS)}")
    if name and weights == "auto": find_weights(name)
    elif weights not in ("", "auto", "random") and not Path(weights).expanduser().is_file():
        raise UserError(f"weights={weights!r} is neither auto, random, nor a file")


def notebook_stamp(path: Path) -> str:
    """Return a hash of the source of all code cells in the notebook at `path`. Texts and outputs do
    not change it."""
    return hashlib.sha256("\0".join(code_cells(path)).encode()).hexdigest()[:16]


def used_modules(path: Path) -> dict[str, str]:
    """Return the fedbook modules that the code of the notebook at `path` imports, directly or
    through one another, sorted by name: name below `fedbook`, such as `engine.wire`, to source
    text."""
    seen: dict[str, str] = {}
    texts = [("", "\n".join(code_cells(path)))]
    while texts:
        for name in _imported(*texts.pop()):
            source = Path(fedbook.__file__).parent.joinpath(*name.split(".")).with_suffix(".py")
            if name not in seen and source.exists():
                seen[name] = source.read_text(encoding="utf-8")
                texts.append((name, seen[name]))
    return {name: seen[name] for name in sorted(seen)}


def _imported(module: str, text: str) -> set[str]:
    "What the `text` of the fedbook module `module` imports of fedbook: modules, and names that may be some."
    found = set()
    for dots, base, names in re.findall(r"^\s*from (\.*)([\w.]*) import \(?([\w, ]+)", text, re.M):
        if not dots and base.partition(".")[0] != "fedbook": continue
        home = module.split(".")[:-len(dots)] if dots else []
        base = ".".join([*home, *filter(None, [base if dots else base.partition(".")[2]])])
        found |= {base, *(f"{base}.{name.strip()}".strip(".") for name in names.split(","))}
    return found


def run_stamp(path: Path) -> str:
    """Return a hash of all code that a run of the notebook at `path` depends on: its code cells and
    the fedbook modules that these import. Results of an earlier run are reused only where it is
    equal."""
    texts = [notebook_stamp(path), *used_modules(path).values()]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def data_stamp(path: Path, changes: dict | None = None) -> str:
    """Return the `run_stamp` of the notebook at `path`, and behind it, where `changes` have files of your own as
    `data`, a hash of their names, sizes and times: results for other files at the same place are not reused."""
    data = (changes or {}).get("data", "")
    root = Path(data).expanduser() if is_path(data) else None
    if root is None or not root.exists(): return run_stamp(path)
    files = sorted(file for file in (root.rglob("*") if root.is_dir() else [root]) if file.is_file())
    told = [(file.relative_to(root).as_posix(), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return f"{run_stamp(path)}-{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:8]}"


@cache
def _write_whole_notebooks() -> None:
    from papermill.iorw import LocalHandler, papermill_io

    class Whole(LocalHandler):
        def write(self, buf: str, path: str) -> None: write_atomically(path, buf)

    papermill_io.register("/", Whole())


_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)     # Windows has one alone


class Stop:
    """A handler of Ctrl-C while notebooks run in kernels, processes of their own. The first call
    interrupts all kernels. A second call kills them, and so does the end of `patience` seconds.

    `groups` lists the kernels' process groups, `asked` is True after the first call. It can also
    take the place of standard error (`write`, `flush`), and then is silent after the first call."""

    def __init__(self, patience: float = 10):
        self.asked, self.patience = False, patience
        self.groups: list[int] = []

    def __call__(self, *_: object) -> None:
        """Interrupt all kernels, and kill them at the second call. The arguments that a signal
        handler gets are ignored."""
        again, self.asked = self.asked, True
        self.send(_KILL if again else signal.SIGINT)
        if again: return
        killer = threading.Timer(self.patience, self.send, [_KILL])
        killer.daemon = True
        killer.start()

    def send(self, number: int) -> None:
        """Send the signal `number` to every kernel and its worker processes; those that have ended
        are skipped."""
        for group in self.groups:
            try: os.killpg(group, number) if hasattr(os, "killpg") else os.kill(group, signal.SIGTERM)
            except ProcessLookupError: pass

    def write(self, text: str) -> None:
        "Write `text` to standard error, unless the kernels were already told to stop."
        if not self.asked: sys.stderr.write(text)

    def flush(self) -> None:
        "Flush standard error."
        sys.stderr.flush()


@contextmanager
def _stoppable() -> Iterator[Stop]:
    "A `Stop` that Ctrl-C calls meanwhile, if this is the main thread."
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, stop)
    try: yield stop
    finally: signal.signal(signal.SIGINT, before)


_HELD = ("batch", "gan_batch", "server_batch", "high", "low", "size", "channels", "per_round")


def out_of_memory(sizes: Profile | dict | None = None) -> str:
    """Return the message for a run that needs more memory than the GPU has: which fields of its
    `sizes` to lower, at most four such as the batch size, each with half its value. For None or an
    empty dict it names no field."""
    halved = lambda v: tuple(side // 2 for side in v) if isinstance(v, tuple) else v // 2
    text = lambda v: ",".join(map(str, v)) if isinstance(v, tuple) else str(v)
    held = {name: getattr(sizes, name) for name in _HELD if getattr(sizes, name, 0) not in (0, 1)}
    lower = [f"-p {name}={text(halved(value))} (now {text(value)})" for name, value in held.items()]
    return (f"the GPU's memory is too small for this run; lower {', '.join(lower[:4]) or 'its --profile'}, or "
            "take --device cpu")


def _kernels(stop: Stop, log: BinaryIO, names: dict[str, str]) -> type:
    """Kernel managers whose kernels run this Python, whatever else is called python3 on the machine, write
    into `log`, not to the terminal, and are known to `stop`; `names` are added to their environment."""
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class Kernels(AsyncKernelManager):
        def client(self, **options: Any) -> Any:
            "Without a heartbeat, whose thread sometimes does not end with its kernel; nobody asks for it here."
            client = AsyncKernelManager.client(self, **options)
            client.start_channels = partial(client.start_channels, hb=False)  # type: ignore[method-assign]
            return client

        async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
            if stop.asked: raise InterruptedError
            self._kernel_spec = KernelSpec(**get_kernel_dict())
            await AsyncKernelManager.start_kernel(self, stdout=log, stderr=log, **options,
                                                 env={**os.environ, **names})
            stop.groups.append(getattr(self.provisioner, "pgid"))
            if stop.asked: stop.send(_KILL)

    return Kernels


class _Lines:
    "A file for a progress bar where no terminal is: each of its states becomes a line of stderr."

    def write(self, text: str) -> None:
        if text.strip(): print(text.strip(), file=sys.stderr, flush=True)

    def flush(self) -> None: sys.stderr.flush()


def _bar(title: str) -> dict[str, Any]:
    if sys.stderr.isatty(): return dict(desc=title, leave=False)
    return dict(desc=title, leave=False, file=_Lines(), delay=60, mininterval=60, maxinterval=60,
                bar_format="{desc}: cell {n_fmt} of {total_fmt} after {elapsed}")


def execute(path: Path, target: Path, parameters: dict, title: str = "", stop: Stop | None = None,
            **names: str) -> str | None:
    """Run a copy of the notebook at `path` in a new kernel (a process), and save it with its
    outputs as `target`. Return None, or a message that says which cell failed and why.

    `parameters` (name to value) replace those in the notebook's parameters cell; `title` labels the
    progress bar, which is a line a minute where no terminal is; `names` are added to the kernel's
    environment variables. Ctrl-C, or a call of `stop` where the caller gives one, ends the kernel
    and raises `KeyboardInterrupt`. With `stop` there is no progress bar. Raises `UserError` if
    papermill is not installed."""
    with _without_grammar(): needs("papermill")
    import papermill
    from nbclient.exceptions import DeadKernelError

    warnings.filterwarnings("ignore", module="papermill|zmq|jupyter_client")
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # what it logs, the sentence says as well
    _write_whole_notebooks()
    bar = _bar(title) if stop is None else False
    with tempfile.TemporaryFile() as log, nullcontext(stop) if stop else _stoppable() as stop:
        try:
            papermill.execute_notebook(str(path), str(Path(target).resolve()), parameters=parameters,
                                       kernel_name="python3", progress_bar=bar,
                                       stderr_file=stop if bar and sys.stderr.isatty() else None,
                                       kernel_manager_class=_kernels(stop, log, names),
                                       extra_arguments=["--log-level=40"])
        except Exception as error:
            if stop.asked: raise KeyboardInterrupt from None
            if isinstance(error, UserError): return str(error)
            if isinstance(error, papermill.PapermillExecutionError): return _cell_error(error, path, parameters)
            if not isinstance(error, DeadKernelError): raise
            return f"the kernel died, perhaps for want of memory{_end(log)}"
    return None


@contextmanager
def _without_grammar():
    """Without the grammar of internet addresses, which jsonschema otherwise compiles for 3.6 s and asks for in
    no notebook."""
    name = "rfc3987_syntax"
    if name in sys.modules: yield
    else:
        sys.modules[name] = None  # type: ignore[assignment]
        try: yield
        finally: del sys.modules[name]


def _cell_error(error: Any, path: Path, parameters: dict) -> str:
    sizes = parameters and sizes_of(path, parameters["profile"], parameters["changes"])
    if error.ename == "OutOfMemoryError": error.ename, error.evalue = "UserError", out_of_memory(sizes)
    lines = "" if error.ename in ("UserError", "Unfit") else "\n" + "\n".join(error.traceback)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", lines)
    return f"cell [{error.exec_count}] failed: {error.ename}: {error.evalue}{plain}"


def _end(log: BinaryIO) -> str:
    "The last lines that a kernel wrote, if any."
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()[-5:]
    return "; its last lines:\n" + "\n".join(lines) if lines else ""


def run_chapter(path: Path, profile: str = "quick", device: str = "auto", seed: int = 0,
                engine: str = "local", out: str | Path = "runs", changes: dict | None = None,
                fresh: bool = False, stop: Stop | None = None, **names: str) -> dict:
    """Run the chapter (notebook) at `path` with the settings of `profile` and the `changes` to them
    (field to value) in the folder `out/NAME-PROFILE-SEED`. Results that an earlier run with the
    same settings and code left there are reused, unless `fresh`. `device` ("auto", "cpu" or "cuda")
    and `engine` are handed to the notebook; `stop` and `names` are those of `execute`.

    Returns a dict: `chapter`, its name; `measured`, its result in a sentence, or "FAILED";
    `seconds`; `notebook`, the path of the executed copy; `error`, None or a message. Raises
    `UserError` if the folder cannot be written, or another process runs the chapter there."""
    name = chapter_name(path)
    folder = run_dir(name, profile, seed, runs_folder(out).resolve(), changes)
    parameters = dict(profile=profile, device=device, seed=seed, engine=engine, out=str(folder.parent),
                      changes=changes or {})
    start, target = perf_counter(), folder / path.name
    with locked(folder, wait=False):
        if fresh:
            for old in folder.iterdir(): shutil.rmtree(old) if old.is_dir() else old.unlink()
        error = execute(path, target, parameters, name, stop,
                        **{"FEDBOOK_STAMP": data_stamp(path, changes), **names})
    try: headline = json.loads((folder / "results.json").read_text())["headline"]
    except (OSError, ValueError): headline = ""
    return dict(chapter=name, measured="FAILED" if error else headline,
                seconds=round(perf_counter() - start, 1), notebook=str(target), error=error)


def cores() -> int:
    "Return the number of CPU cores that this process may use."
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_chapters(paths: Sequence[Path], at_once: int = 2, **options: Any) -> Iterator[dict]:
    """Run the chapters (notebooks) at `paths`, `at_once` of them in parallel, each with its share
    of the CPU cores. `options` are those of `run_chapter`, whose dict is yielded for each chapter
    as soon as it ends. Ctrl-C stops all of them and raises `KeyboardInterrupt`."""
    if at_once == 1:
        yield from (run_chapter(path, **options) for path in paths)
        return
    share, now = str(max(1, cores() // at_once)), list[str]()
    names: dict[str, Any] = dict(OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", share), FEDBOOK_CORES=share)
    def run(path: Path) -> dict:
        now.append(chapter_name(path))
        try: return run_chapter(path, **options, stop=stop, **names)
        finally: now.remove(chapter_name(path))
    with _stoppable() as stop, ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(run, path) for path in paths]
        try: yield from _as_they_end(futures, now)
        except BaseException:
            for future in futures: future.cancel()
            if not stop.asked: stop()
            raise


def _as_they_end(futures: Sequence[Future], now: list[str]) -> Iterator[dict]:
    "The results of `futures` in the order in which they end, below a bar that names what runs `now`."
    from tqdm import tqdm

    left = set(futures)
    with tqdm(total=len(left), desc="chapters", leave=False, disable=not sys.stderr.isatty()) as bar:
        while left:
            done, left = wait(left, timeout=1, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                bar.update()
            bar.set_postfix_str(" and ".join(now))


_COUNTED = ("seed", "round", "step", "pass", "epoch", "picture", "client", "farm", "site", "task")


def _unit(meaning: str) -> str:
    "What a field counts: the first of such words in its meaning."
    places = {unit: meaning.find(unit) for unit in _COUNTED if unit in meaning}
    return min(places, key=lambda unit: places[unit], default="")


def _number(value: Any, smoke: Any) -> Any:
    """A whole number at most as large as `smoke`, and 0 only where it is 0; a tuple of them, its last entries
    left out but one where it is longer than smoke's."""
    if isinstance(value, tuple):
        if 1 < len(smoke) < len(value): value = (*value[:len(smoke) - 1], value[-1])
        return tuple(_number(v, smoke[min(i, len(smoke) - 1)] if smoke else 1) for i, v in enumerate(value))
    return min(value, max(smoke, 1)) if type(value) is int else value


def _seeds(counts: dict[str, int]) -> dict[str, int]:
    "Seeds as few as can be: 2 for `seeds` and what equals it, 1 for fewer, 3 for more."
    main = counts["seeds"]
    return {name: min(n, 2 if n == main else 1 if n < main else 3) for name, n in counts.items()}


def _rounds(counts: dict[str, int]) -> dict[str, int]:
    """Rounds as few as can be: equal ones stay equal, more stay more, and none stay none. Where there are
    three numbers or more, the largest has one to spare: between a run's first rounds and its last."""
    places = {n: place for place, n in enumerate(sorted({0, *counts.values()}))}
    most = max(counts.values(), default=0)
    return {name: places[n] + (n == most and places[n] > 2) for name, n in counts.items()}


def dry_sizes(sizes: Profile, smoke: Profile) -> dict[str, Any]:
    """Return the fields of `sizes` that become smaller in a dry run, name to new value. A dry run
    executes a notebook on made-up data, to see that it runs through; `smoke` is the chapter's
    smallest profile.

    An integer becomes at most that of `smoke`, but 0 only if it was 0; a tuple is cut to the length
    of smoke's and keeps its ends. Numbers of seeds and of rounds become as small as their order
    among each other allows, so that the conditions between them still hold. Anything else stays,
    and so do an encoder's width and number of tokens; its picture size stays a multiple of its
    step."""
    from fedbook.datasets.encoders import ENCODERS

    kinds, whole = meanings(type(sizes)), {f.name: getattr(sizes, f.name) for f in fields(sizes)}
    small = {name: _number(value, getattr(smoke, name)) for name, value in whole.items()}
    numbers = {name: n for name, n in whole.items() if type(n) is int}
    counted = lambda unit: {name: n for name, n in numbers.items() if _unit(kinds[name]) == unit}
    small |= _seeds(counted("seed")) | _rounds(counted("round"))
    if "encoder" in whole:
        small |= {name: whole[name] for name in ("width", "tokens") if name in whole}
        step = ENCODERS.get(whole["encoder"], {}).get("step", 1)
        for name in ("size", "full_size"):
            if name in whole: small[name] = max(step, small[name] // step * step)
    return {name: value for name, value in small.items() if value != whole[name]}


def _draw(path: Path, rng: Any, height: int = 32, width: int = 32, patches: Any = 128) -> None:
    "A picture of coloured patches, `patches` (4, 4, 3) and noise, as the file `path`."
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix[1:].lower().replace("jpg", "jpeg")
    noisy = (patches + rng.integers(-60, 60, (4, 4, 3))).clip(0, 255).astype("uint8")
    Image.fromarray(noisy).resize((width, height), Image.Resampling.NEAREST).save(path, kind)


def _by_class(root: Path, rng: Any, classes: Sequence[str], names: Sequence[str], side: int = 32) -> None:
    "Pictures in a folder per class, each like its class's own, so that a network can learn them."
    import numpy as np

    for kind in classes:
        own = np.random.default_rng(list(kind.encode())).integers(0, 256, (4, 4, 3))
        for name in names: _draw(root / kind / name, rng, side, side, own)


def _zipped(folder: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w") as file:
        for path in sorted(folder.rglob("*.jpg")): file.write(path, path.relative_to(folder).as_posix())
    shutil.rmtree(folder)


def _numbered(count: int, form: str) -> list[str]: return [form.format(k) for k in range(count)]


def _made_pictures(data: Path, rng: Any) -> None:
    "Sets of pictures: folders and zip files with a folder per class, lists of classes, idx files of bytes."
    six, ten = (_numbered(n, "class {:02d}") for n in (6, 10))
    for split, many in (("train", 2), ("test", 1)):
        _by_class(data / "CWD30" / split, rng, six, _numbered(many, "{}.jpg"), 64)
    for split, many in (("train", 12), ("test", 4)):
        _by_class(data / "cifar" / split, rng, ten, _numbered(many, "{}.jpg"))
    _zipped(data / "cifar", data / "cifar10-jpg.zip")
    _by_class(data / "PlantVillage/color", rng, ten, _numbered(5, "{}.jpg"), 64)
    (data / "PlantVillage/leaf-map.json").write_text("{}")
    _by_class(data / "fruits/Training/Apple", rng, ten, _numbered(36, "{}_100.jpg"), 100)
    _zipped(data / "fruits", data / "fruits360-3body.zip")
    for prefix, n in (("train", 400), ("t10k", 100)):
        for kind, shape in (("images-idx3", (n, 28, 28)), ("labels-idx1", (n,))):
            values = rng.bytes(math.prod(shape)) if len(shape) > 1 else bytes(k % 10 for k in range(n))
            head = bytes([0, 0, 8, len(shape)]) + b"".join(side.to_bytes(4, "big") for side in shape)
            (data / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + values, 1))


def _made_tiny(folder: Path, rng: Any) -> None:
    "Tiny-ImageNet, with 20 of its 200 classes."
    wnids, tested = _numbered(20, "n{:08d}"), _numbered(40, "val_{}.JPEG")
    for wnid in wnids:
        _by_class(folder / "train" / wnid, rng, ["images"], _numbered(6, wnid + "_{}.JPEG"), 64)
    _by_class(folder / "val", rng, ["images"], tested, 64)
    lines = [f"{name}\t{wnids[k % 20]}\t0\t0\t62\t62" for k, name in enumerate(tested)]
    for name, listed in (("wnids.txt", wnids), ("words.txt", [f"{wnid}\t{wnid}, a word" for wnid in wnids]),
                         ("val/val_annotations.txt", lines)):
        (folder / name).write_text("\n".join(listed))


def _made_people(data: Path, rng: Any) -> None:
    "Sets of people, each seen by two cameras: named as Market-1501 names them, or as the small sets are."
    from fedbook.datasets.world import SETS

    parts = {"train": (range(8), 3), "query": (range(8, 12), 1), "gallery": (range(8, 12), 2)}
    whole, cut = (dict(zip(parts, names.split())) for names in ("bounding_box_train query bounding_box_test",
                                                                "train_all query gallery"))
    for known in (known for known in SETS.values() if known.kind == "people"):
        own = whole if "bounding_box_train" in known.put else cut
        for part, (people, views) in parts.items():
            for who, camera, view in product(people, (0, 1), range(views)):
                name = (f"{who + 1:04d}_c{camera + 1}s1_{view:06d}_01.jpg" if own is whole else
                        f"cam_{camera}_{who:05d}_{view:05d}.png")
                _draw(data / known.files[0].rstrip("*/") / own[part] / name, rng, 64, 32)


def _boxes(rng: Any, kinds: Sequence[str], height: int, width: int) -> list[tuple]:
    "Three things (kind, left, top, width, height) in a picture."
    below = lambda n: int(rng.integers(n))
    return [(kinds[below(len(kinds))], below(width // 2), below(height // 2), width // 3, height // 3)
            for _ in range(3)]


def _made_bdd(folder: Path, rng: Any) -> None:
    "BDD100K: a list of frames for each part, and pictures of 720 x 1280."
    (folder / "labels/det_20").mkdir(parents=True)
    for part in ("train", "val"):
        frames = []
        for k in range(24):
            _draw(folder / "images/100k" / part / f"{k}.jpg", rng, 720, 1280)
            kinds, weathers = ("pedestrian", "car", "bus"), ("partly cloudy", "overcast", "rainy", "snowy")
            labels = [dict(category=kind, box2d=dict(x1=x, y1=y, x2=x + w, y2=y + h))
                      for kind, x, y, w, h in _boxes(rng, kinds, 720, 1280)]
            frames.append(dict(name=f"{k}.jpg", labels=labels, attributes=dict(weather=weathers[k % 4])))
        (folder / f"labels/det_20/det_{part}.json").write_text(json.dumps(frames))


def _made_soda(folder: Path, rng: Any) -> None:
    "SODA10M: a COCO file for each part, and pictures of 1080 x 1920."
    (folder / "labeled/annotations").mkdir(parents=True)
    kinds = ("Pedestrian", "Cyclist", "Car", "Truck", "Tram", "Tricycle")
    for part in ("train", "val"):
        images, things = [], []
        for k in range(24):
            _draw(folder / "labeled" / part / f"{k}.jpg", rng, 1080, 1920)
            images.append(dict(id=k, file_name=f"{k}.jpg", height=1080, width=1920,
                               weather=("Clear", "Overcast", "Rainy")[k % 3]))
            things += [dict(image_id=k, category_id=kinds.index(kind), bbox=place)
                       for kind, *place in _boxes(rng, kinds, 1080, 1920)]
        body = dict(images=images, annotations=things,
                    categories=[dict(id=k, name=kind) for k, kind in enumerate(kinds)])
        (folder / f"labeled/annotations/instance_{part}.json").write_text(json.dumps(body))


def _made_cities(folder: Path, rng: Any) -> None:
    "Cityscapes: polygons beside each picture of 1024 x 2048, in folders of nine cities."
    parts = {"train": "gtFine", "val": "gtFine", "train_extra": "gtCoarse"}
    for (part, labels), city in product(parts.items(), _numbered(9, "city{}")):
        _draw(folder / "leftImg8bit" / part / city / f"{city}_leftImg8bit.png", rng, 1024, 2048)
        things = [dict(label=kind, polygon=[(x, y), (x + w, y), (x + w, y + h)])
                  for kind, x, y, w, h in _boxes(rng, ("person", "car", "bus"), 1024, 2048)]
        file = folder / labels / part / city / f"{city}_{labels}_polygons.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(dict(imgHeight=1024, imgWidth=2048, objects=things)))


_LITE_HEAD: dict[str, tuple] = {"classifier.weight": (1000, 1280), "classifier.bias": (1000,)}
_HEADS: dict[str, dict[str, tuple]] = {
    "dinov2-s": {"mask_token": (1, 1, 384)}, "resnet50": {"fc.weight": (1000, 2048), "fc.bias": (1000,)},
    "efficientnet-lite0": _LITE_HEAD, "efficientnet-lite1": _LITE_HEAD, "efficientnet-lite2": _LITE_HEAD}


def _made_weights(name: str, folder: Path) -> None:
    """Random weights of the encoder `name` in the layout of the real file: all its tensors, by name, shape
    and type, those that the encoder leaves out among them."""
    import torch
    from safetensors.torch import save_file
    from fedbook.datasets.encoders import random_network

    with torch.device("meta"): layout = dict(random_network(name).state_dict())
    layout |= {key: torch.empty(shape, device="meta") for key, shape in _HEADS.get(name, {}).items()}
    noise = torch.randn(2 ** 20, generator=torch.Generator().manual_seed(0)).mul_(0.02)
    def drawn(key: str, like: torch.Tensor) -> torch.Tensor:
        values = noise.repeat(-(-like.numel() // len(noise)))[:like.numel()].clone().reshape(like.shape)
        return values.add_(like.ndim == 1 and not key.endswith("bias")).to(like.dtype)
    state = {key: drawn(key, like) for key, like in layout.items()}
    folder.mkdir(parents=True, exist_ok=True)
    if name in ("clip-vit-b32", "dinov2-s"): save_file(state, folder / f"{name}.safetensors")
    else: torch.save(state, folder / f"{name}.pth")


def made_up(folder: Path, encoders: Iterable[str] = ()) -> Path:
    """Fill the folder `folder` with made-up data for dry runs: a few random pictures of every data
    set that `fedbook.datasets.world` knows, in the layout of the real files, and random weights for
    the `encoders` (names). Return `folder`. Raises `UserError` if Pillow is not installed."""
    import numpy as np

    needs("PIL")
    rng = np.random.default_rng(0)
    _made_pictures(folder, rng)
    _made_people(folder, rng)
    for make, name in ((_made_tiny, "tiny-imagenet-200"), (_made_bdd, "BDD100K"), (_made_soda, "SODA10M"),
                       (_made_cities, "Cityscapes")): make(folder / name, rng)
    for name in encoders: _made_weights(name, folder / "weights")
    return folder


DRY = "a dry run: made-up data, random weights, the least of everything; it measures nothing"


def encoders_of(path: Path) -> list[str]:
    """Return the names of the encoders (pretrained networks) that the code of the chapter at
    `path`, or a module it uses, mentions. Those whose weights an installed package brings are left
    out."""
    from fedbook.datasets.encoders import ENCODERS, local_weights

    modules = used_modules(path)
    text = "\n".join([*code_cells(path), *(modules[name] for name in modules if name != "datasets.encoders")])
    packaged = lambda name: "package" in ENCODERS[name] and local_weights(name)
    return [name for name in ENCODERS if f'"{name}"' in text and not packaged(name)]


def dry_names(path: Path, profile: str, data: Path, changes: dict | None = None,
              whole: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment variables, name to text, of a dry run of the chapter at `path` with
    `profile` and `changes` (see `sizes_of`): where the data are, namely in the folder `data` that
    `made_up` filled, and the smaller settings that `dry_sizes` returns, except for the fields in
    `whole`. Raises `UserError` for a chapter without settings, for the data set cifar100, whose
    files cannot be made up, and for settings that do not fit together once they are small."""
    module, sizes = chapter_module(path), sizes_of(path, profile, changes)
    if not sizes:
        raise UserError(f"chapter {chapter_name(path)} has no sizes, so that --dry would change nothing")
    if getattr(sizes, "data", "") == "cifar100":
        raise UserError("data='cifar100' cannot be walked: torchvision reads files of the right checksum only")
    least = module.profiles["smoke"]  # type: ignore[union-attr]
    small = {name: value for name, value in dry_sizes(sizes, least).items() if name not in whole}
    try: replace(sizes, **small)
    except UserError as error:
        raise UserError(f"profile={profile!r} cannot be walked, its sizes do not shrink: {error}") from None
    place = str(data)
    return dict(FEDBOOK_DATA=place, FEDBOOK_CACHE=place, FEDBOOK_STAMP="", FEDBOOK_DRY=json.dumps(small))


def sizes_read(sources: Sequence[str]) -> set[str]:
    """Return the names of the fields of the settings `sizes` that the last of the code cells in
    `sources` uses, directly or through a variable that an earlier cell made from them."""
    made: dict[str, set[str]] = {}
    for source in sources:
        tree = ast.parse(re.sub(r"^\s*[%!].*$", "", source, flags=re.M))
        read = lambda node: {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
                             and isinstance(n.value, ast.Name) and n.value.id == "sizes"}.union(
            *(made.get(n.id, set()) for n in ast.walk(node) if isinstance(n, ast.Name)))
        if source is sources[-1]: return read(tree)
        for node in tree.body:
            if isinstance(node, ast.Assign):
                found = read(node.value)
                for target in node.targets:
                    made |= {n.id: found for n in ast.walk(target) if isinstance(n, ast.Name)}
    return set()


def _blame(target: Path, error: str, sizes: Profile | None) -> str:
    "The sentence for a walk that ended with `error`: which cell, and which fields of `sizes` it reads."
    cells = [cell for cell in json.loads(target.read_text())["cells"] if cell["cell_type"] == "code"]
    ends = [i for i, cell in enumerate(cells) if any(o["output_type"] == "error" for o in cell["outputs"])]
    if not ends: return error
    read = sizes_read(["".join(cell["source"]) for cell in cells[:ends[0] + 1]])
    told = ", ".join(f"{name}={getattr(sizes, name)!r}" for name in sorted(read) if hasattr(sizes, name))
    cell, _, why = error.partition(" failed: ")
    return f"{cell} cannot be walked with {told or 'any sizes'}: {why}"


def walk_chapter(path: Path, profile: str, data: Path, device: str = "cpu", seed: int = 0,
                 out: str | Path = "runs", changes: dict | None = None) -> dict:
    """Do a dry run of the chapter at `path`: execute it on the folder `data` that `made_up` filled,
    with the settings of `profile` and `changes` made small by `dry_sizes`, in a folder below
    `out/dry`. That shows whether its code runs, and measures nothing. Return the dict of
    `run_chapter`; its `error` names the cell and the settings which that cell uses. Raises
    `UserError` as `dry_names` does."""
    names = dry_names(path, profile, data, changes)
    aside, sizes = runs_folder(out) / "dry", sizes_of(path, profile, changes)
    ran = run_chapter(path, profile, device, seed, "local", aside, changes, True, None, **names)
    if ran["error"]: ran["error"] = _blame(Path(ran["notebook"]), ran["error"], sizes)
    return ran | dict(measured="FAILED" if ran["error"] else "walked, nothing measured")
