"""The `fedbook` command: run chapters, report their claims, list data sets, help a class."""
import argparse
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import fedbook
from fedbook.engine.devices import torch_device
from fedbook.engine.errors import choices_text, needs, UserError
from fedbook.engine.files import run_dir, runs_folder, write_atomically
from fedbook.engine.rows import machine_name, results_text
from fedbook.engine.sizes import is_path
from fedbook.evidence.claims import (headline_p_values, interval_text, looks, measured_on, older_note,
                                     message, verdict_of)
from fedbook.kit.classroom import (booked_minutes, doctor, exercises_of, feedback_file, grade, kept_in, progress_rows,
                                   write_assignment, write_slides)
from fedbook.kit.lab import PROGRESS, progress_file, sizes_table
from fedbook.kit.mine import (both_headlines, guarded, load_mine, method_of, own_notebook, shown_path, verdicts,
                              with_headline, write_mine, written_in)
from fedbook.kit.papers import PAPERS, papers_table
from fedbook.kit.questions import kept_results
from fedbook.kit.report import (collect, failed_runs, fill, keep, read_results, result_name,
                                row_cells, SIZES, write_report)
from fedbook.kit.runs import (DRY, chapter_module, chapter_name, chapters, check_needs, code_cells, cores,
                              data_stamp, encoders_of, find, made_up, module_name, notebooks_folder, offered,
                              read_changes, run_chapter, run_chapters, SEVERAL, sizes_of,
                              walk_chapter)
from fedbook.kit.sandbox import held


def trained() -> dict[str, Path]:
    """Return the chapters that train federated clients, name to path: those whose notebook exports
    an `experiment`."""
    says = lambda cell: cell.startswith("#| export") and re.search("^experiment = ", cell, re.M)
    return {name: path for name, path in chapters().items() if any(map(says, code_cells(path)))}


def plan_of(name: str, profile: str = "quick", seed: int = 0, changes: dict | None = None,
            device: str = "cpu") -> Any:
    """Return the `fedbook.deploy.flower.Plan`, which Flower can run, of the training in chapter
    `name` (a notebook or its short name), with `seed`, `device` and the settings of `profile` with
    `changes` (field to value) applied. Raises `UserError` for an unknown chapter, for one that
    trains no clients, and if Flower is not installed."""
    name, path = next(iter(find(name).items()))
    module: Any = chapter_module(path)
    if not hasattr(module, "experiment"):
        known = ", ".join(map(module_name, trained()))
        raise UserError(f"chapter {name!r} trains no clients; choose one of {known}")
    experiment = module.experiment(sizes_of(path, profile, changes), seed, device)
    return _flower().Plan(module_name(name), profile, dict(changes or {}), experiment)


def _flower() -> Any:
    try: flower = importlib.import_module("fedbook.deploy.flower")
    except ImportError as error: raise UserError(str(error)) from None
    return flower


def seconds_of(budget: str) -> float:
    """Return the number of seconds in `budget`, a text such as 2h, 90m or 45s. Raises `UserError`
    for any other text, and for no time at all."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([hms])", budget)
    if not found or not float(found[1]):
        raise UserError(f"--budget {budget} must be a time such as 2h, 90m or 45s")
    return float(found[1]) * {"h": 3600, "m": 60, "s": 1}[found[2]]


def undecided(claims: Sequence[dict]) -> list[dict]:
    """Return those of `claims` (dicts from `judged_claim`) that are undecided: a paper's own, or, if
    there is none of a paper, the checks of our own."""
    asked = [c for c in claims if not c["own"]] or claims
    return [c for c in asked if c["verdict"] == "undecided"]


def _hand_on(rows: list[dict], file: Path, facts: dict) -> None:
    "Put `rows`, and those that an earlier run of this code left there, into the results `file` of a look."
    try: old = read_results(file)
    except (UserError, OSError): old = {}
    before = old["rows"] if all(old.get(key) == facts[key] for key in ("stamp", "device")) else []
    known = {(row["what"], row["seed"]): row for row in [*rows, *before]}
    body = dict(facts, scale="", rows=list(known.values()), claims=[], headline="", seeded="more seeds")
    write_atomically(file, results_text(body))


def until_decided(path: Path, budget: float, most: int = 32, profile: str = "full", seed: int = 0,
                  out: str | Path = "runs", changes: dict | None = None, device: str = "auto",
                  **options: Any) -> Iterator[dict]:
    """Run the chapter at `path` with more and more seeds, as many as `looks(most)` plans for each
    step, until no claim is `undecided`, `seeds` no longer adds to those that are, or the next step would
    exceed `budget` seconds in all. Yield
    the dict of `run_chapter` after each step; its `measured` also counts the undecided claims. The other
    arguments, and `options`, are those of `run_chapter`.

    Each step reuses what the one before has measured; so does a second call after an interruption.
    Raises `UserError` if the chapter's settings have no field `seeds`."""
    plan, spent, rows = looks(most), 0.0, list[dict]()
    if not hasattr(sizes_of(path, profile, changes), "seeds"):
        raise UserError(f"chapter {chapter_name(path)!r} has no number of seeds that could grow; "
                        "leave out --until-decided")
    for (n, level), (following, _) in zip(plan, [*plan[1:], (most, 0)]):
        start, now = perf_counter(), {**(changes or {}), "seeds": str(n)}
        file = run_dir(chapter_name(path), profile, seed, runs_folder(out).resolve(), now) / "results.json"
        _hand_on(rows, file, _facts(path, profile, seed, device, now, level))
        ran = run_chapter(path, profile, device, seed, out=out, changes=now, FEDBOOK_LEVEL=str(level),
                          **options)
        spent += perf_counter() - start
        if not ran["error"]:
            body = read_results(file)
            rows, lacking = body["rows"], undecided(body["claims"])
            more = sum(row["seconds"] for row in rows) / n * (following - n)
            held = all(len(claim["values"]) < n for claim in lacking)
            end = "decided" if not lacking else "no more seeds" if n == most else \
                "their rows have a number of seeds of their own, -p others=N or the like (see --help)" if held else \
                f"{more / 60:.0f} more minutes exceed the budget" if spent + more > budget else ""
            said = f"{n} seeds at {level:.1%}, {len(lacking)} claims undecided{end and ', '}{end}"
            ran |= dict(measured=f"{said}: {ran['measured']}")
        yield ran
        if ran["error"] or end: return


def _facts(path: Path, profile: str, seed: int, device: str, changes: dict, level: float) -> dict:
    "What `Results` will hold true of such a run, but for its scale in words."
    sizes = json.loads(json.dumps(asdict(sizes_of(path, profile, changes))))  # type: ignore[arg-type]
    return dict(name=chapter_name(path), profile=profile, seed=seed, device=machine_name(torch_device(device)),
                changes=changes, sizes=sizes, stamp=data_stamp(path, changes), level=level)


def copy_chapters(folder: str | Path) -> tuple[int, int]:
    """Copy all notebooks, chapters and answers, into `folder`, without overwriting any, and begin a
    `progress.json` there, which notes solved exercises. Return two numbers: how many were copied,
    and how many were there already."""
    source, folder = notebooks_folder(), Path(folder)
    books = [path for path in source.rglob("*.ipynb") if not path.parent.name.startswith(".")]
    missing = [path for path in books if not (folder / path.relative_to(source)).exists()]
    for path in missing:
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, path.read_bytes())
    if not (folder / PROGRESS).exists(): write_atomically(folder / PROGRESS, "{}\n")
    return len(missing), len(books) - len(missing)


_OWN = ("Your own pictures: -p data=PATH, such as fedbook run methods/fedavg -p data=photos/ -p clients=4 -p per_round=4 "
       "for photos/CLASS/*.jpg. A chapter on boxes (fedmox) takes COCO, Pascal VOC or YOLO, one on people (fedklpr) "
       "train, query and gallery.")


def _with_cure(message: str) -> str:
    "What argparse says: in fewer words for a mistyped command, with the form of `-p` where words are too many."
    wrong = re.match(r"argument command: invalid choice: '(.*?)' \(choose from (.*)\)", message)
    if wrong:
        known = re.findall(r"[\w-]+", wrong[2])
        near = get_close_matches(wrong[1], known, 2, 0.5)
        return f"{wrong[1]!r} is no command; {choices_text(known, near)}"
    if message.startswith("unrecognized arguments") and "=" in message:
        return f"{message}; a size is changed with -p NAME=VALUE, without spaces, such as -p lr=0.05"
    return message


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any: raise UserError(f"{_with_cure(message)} (see {self.prog} --help)")


class _Later(argparse.Action):
    "`--help` that waits for the rest of the line: it may name a chapter."
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, *_: Any) -> None: namespace.help = parser


def _helped(args: argparse.Namespace) -> int:
    "`fedbook run NAME --help`: the usual text, and the sizes of the chapter NAME."
    args.help.print_help()
    if args.name not in SEVERAL: _print_sizes(args.name)
    return 0


def _print_table(rows: list[dict]) -> None:
    rows = [dict(zip(rows[0], rows[0])), *rows]
    widths = [max(len(str(row[key])) for row in rows) for key in rows[0]]
    for row in rows: print("  ".join(str(v).ljust(w) for v, w in zip(row.values(), widths)).rstrip())


def _print_sizes(name: str) -> None:
    name, path = next(iter(find(name).items()))
    module = chapter_module(path)
    profiles, settings = (getattr(module, name, None) for name in ("profiles", "settings"))
    if not profiles: return print(f"\n{name} has no sizes: -p does not apply")
    first, _, *lines = map(row_cells, sizes_table(profiles).splitlines())
    order = ["size", *profiles, "limits", "meaning"]
    rows = [dict(zip(first, [cell.replace("`", "") for cell in line])) for line in lines]
    print(f"\nsizes of {name}, to be changed with -p NAME=VALUE:")
    _print_table([{key: row[key] for key in order} for row in rows])
    if settings: print(f"\n-p setting=NAME, a row of the paper's table: {', '.join(settings)}")


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", default="quick", help="smoke, quick (the default), full, paper; or open, where a chapter has it")
    parser.add_argument("--seed", type=int, default=0, help="the (first) seed, 0 or more")
    parser.add_argument("-p", dest="changes", action="append", default=[], metavar="NAME=VALUE",
                        help="replace a size of the profile, or the data by a path; fedbook run NAME --help lists them")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="fedbook", description="Federated learning, one paper at a time.", epilog=_OWN)
    parser.add_argument("--version", action="version", version=f"fedbook {fedbook.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    _add_run(commands)
    app = commands.add_parser(
        "flower-app", help="write a chapter's training as an app that `flwr run` takes to real nodes")
    app.add_argument("name", help="a chapter with clients: a notebook (methods/fedavg) or a module (fedavg)")
    app.add_argument("folder", help="a new folder")
    _add_sizes(app)
    keys = commands.add_parser("flower-keys", help="make keys and certificates for real nodes, and say what to type where")
    keys.add_argument("folder", help="a new folder")
    keys.add_argument("--host", required=True, help="name or address by which nodes call the server")
    keys.add_argument("--nodes", type=int, required=True, help="number of nodes, one for each client")
    keys.add_argument("--days", type=float, default=90.0, help="for which the server's certificate is good (90)")
    keys.add_argument("--at", default="", help="where the machines will have their folders (where they are now)")
    renew = commands.add_parser("flower-renew", help="renew the server's certificate that flower-keys made")
    renew.add_argument("folder", help="the folder of flower-keys")
    renew.add_argument("--days", type=float, default=90.0, help="for which it is good from now (90)")
    node = commands.add_parser("flower-node", help="run a node with the keys that flower-keys made, until it ends")
    node.add_argument("folder", help="the node's folder, such as keys/node0")
    node.add_argument("--data", default="", help="folder of its own pictures, with one per class in it (left out: "
                      "its part of the data of all)")
    report = commands.add_parser("report", help="claims of all runs: as text here, as a page in the folder")
    report.add_argument("folder", nargs="?", default="runs", help="folder of the runs, or results")
    report.add_argument("--keep", action="store_true", help="copy the results into results/, renew its page")
    report.add_argument("--readme", help="write the counts of verdicts into this file's table of papers")
    commands.add_parser("data", help="data sets and weights: found, downloadable, or what to put where")
    copy = commands.add_parser("copy", help="copy the chapters into a folder to work in; what is there stays")
    copy.add_argument("folder", nargs="?", default="", help="a folder (the copy that we are in, or course)")
    _add_class(commands)
    _add_completion(parser)
    return parser


_NAMES = {"bash": "_fedbook_names", "zsh": "_fedbook_names"}
_PREAMBLE = {"bash": '_fedbook_names() {{ compgen -W "{0}" -- "$1"; }}', "zsh": "_fedbook_names() {{ compadd {0}; }}"}


def _add_completion(parser: argparse.ArgumentParser) -> None:
    "`--print-completion SHELL`, where shtab is installed: a script with which Tab completes commands and chapters."
    if not find_spec("shtab"): return
    import shtab

    ways = [*SEVERAL, *chapters(), *map(module_name, chapters())]
    preamble = {shell: text.format(" ".join(dict.fromkeys(ways))) for shell, text in _PREAMBLE.items()}
    shtab.add_argument_to(parser, "--print-completion", preamble=preamble,  # type: ignore[arg-type]
                          help="print a script for your shell: Tab then completes commands and chapters")
    for action in _actions(parser):
        if action.dest == "name": action.complete = _NAMES  # type: ignore[attr-defined]


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    "All actions of `parser` and of its commands."
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values(): yield from each._actions


def _add_run(commands: Any) -> None:
    run = commands.add_parser("run", help="execute the path, a chapter, or all", add_help=False,
                              epilog=f"{_OWN} The chapters: {', '.join(chapters())}.")
    run.add_argument("-h", "--help", action=_Later, nargs=0, help="show this; with the name of a chapter, its sizes too")
    run.add_argument("name", nargs="?", default="path",
                     help="a notebook (methods/fedavg), a module (fedavg), path (the default: the evenings, "
                          "then a table of the papers), or all: the path, then the wings")
    _add_sizes(run)
    run.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu or cuda")
    run.add_argument("--engine", default="local",
                     help="local (the notebook, in this process and its workers), or flower[:N] (its "
                          "training, on Flower's simulation, N clients at once)")
    run.add_argument("--out", default="runs", help="folder for the runs (runs)")
    run.add_argument("--at-once", type=int, metavar="N",
                     help="chapters that run side by side (path and all, on a CPU of two cores or more: 2)")
    run.add_argument("--fresh", action="store_true",
                     help="forget what an earlier run with these settings has finished")
    run.add_argument("--dry", action="store_true",
                     help="walk the notebook on made-up data and the least of everything: measures nothing")
    run.add_argument("--until-decided", action="store_true",
                     help="add seeds at fixed looks until the paper's claims are decided")
    run.add_argument("--budget", metavar="TIME", help="with --until-decided: at most about 2h, 90m or 45s")
    run.add_argument("--most-seeds", type=int, default=32, metavar="N", help="with --until-decided: at most N seeds")


def _add_class(commands: Any) -> None:
    commands.add_parser("doctor", help="what is here, what runs here, how long it takes, what to mend")
    lab = commands.add_parser("lab", help="open a chapter in JupyterLab, in a copy of your own")
    lab.add_argument("name", nargs="?", default="00_start", help="a notebook or a module")
    progress = commands.add_parser("progress", help="which exercises are solved in your copy of the chapters")
    for parser in (lab, progress): parser.add_argument("--folder", default="", help="the copy (this one, or course)")
    _add_mine(commands)
    work = commands.add_parser("assignment", help="write a chapter's exercises for students, and a grader")
    work.add_argument("name", help="a notebook (methods/fedavg) or a module (fedavg)")
    work.add_argument("folder", help="a new folder")
    work.add_argument("--seed", type=int, help="decides the hidden cases (default: a random one)")
    work.add_argument("--hidden", type=int, default=6, metavar="N", help="hidden cases of each exercise")
    work.add_argument("--students", nargs="+", default=[], metavar="NAME",
                      help="a notebook for each, with exercises varied for this student")
    marks = commands.add_parser("grade", help="grade notebooks that students hand in")
    marks.add_argument("folder", help="the folder of the assignment")
    marks.add_argument("notebooks", nargs="+", help="what the students handed in")
    marks.add_argument("--patience", type=float, default=30, metavar="SECONDS", help="that one call may take")
    slides = commands.add_parser("slides", help="write a chapter as slides, a page for the browser")
    slides.add_argument("name", help="a notebook (methods/fedavg) or a module (fedavg)")
    slides.add_argument("--to", default="", help="the file (default: slides-NAME.html)")
    slides.add_argument("--reveal", default="", metavar="URL", help="where reveal.js is taken from")


def _add_mine(commands: Any) -> None:
    mine = commands.add_parser(
        "mine", help="run a chapter's method with the functions that you wrote, and with the library's")
    mine.add_argument("name", help="a notebook (14_fedgtea) or a module (fedgtea)")
    _add_sizes(mine)
    mine.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu or cuda")
    mine.add_argument("--notebook", default="", metavar="PATH",
                      help="where your functions are (default: the chapter in your copy, course)")
    mine.add_argument("--out", default="", metavar="FILE",
                      help="the module to write (default: mine_NAME.py beside the notebook)")


def _finish(ran: Iterable[dict], count: int = 1) -> int:
    "Say of each of `count` runs what it measured, as soon as it ends; then what was written, what failed, what to open."
    from tqdm import tqdm

    told, several = [], count > 1
    for r in ran:
        told.append(r)
        place = f"{len(told):>2} of {count}  " if several else ""
        why = f": {r['error'].splitlines()[0]}" if r["error"] and several else ""
        tqdm.write(f"{place}{r['chapter']:<20}{r['seconds']:>7.1f} s  {r['measured']}{why}")
        sys.stdout.flush()
    return _end(told, several)


def _end(ran: list[dict], several: bool) -> int:
    print("\nwritten:", *(r["notebook"] for r in ran if r["notebook"]), sep="\n  ")
    failed = [r for r in ran if r["error"]]
    for r in failed: print(f"\nfedbook: {r['chapter']}: {r['error']}", file=sys.stderr)
    if several:
        sys.stderr.flush()
        if {paper.chapter for paper in PAPERS} & {r["chapter"] for r in ran}: _print_papers(ran)
        print(f"\nopen next: {_first(ran)}; to work in a copy of the chapters: {_lab()}", flush=True)
    return 1 if failed else 0


def _print_papers(ran: list[dict]) -> None:
    "Print the table of the papers, with what `ran` measured of them."
    table = papers_table(ran, kept_results())
    if table: print(f"\nThe papers, beside what was measured now and what is kept:\n\n{table}")


def _first(ran: list[dict]) -> str:
    "The executed notebook with which a reader begins."
    return min(((r["chapter"], r["notebook"]) for r in ran if r["notebook"] and not r["error"]),
               default=("", "the first notebook that failed"))[1]


def _lab() -> str:
    made = Path.cwd() == notebooks_folder().parent and Path(".venv/installed").exists()
    return "make lab" if made else "fedbook lab"


def _check_run(args: argparse.Namespace) -> dict[str, str]:
    "The changes of a run, with all that can be said without a chapter checked."
    if args.profile not in SIZES:
        raise UserError(f"profile={args.profile!r} is unknown; choose one of {', '.join(SIZES)}")
    at_once = getattr(args, "at_once", None)
    if at_once is not None and at_once < 1:
        raise UserError(f"--at-once {at_once} must be 1 or more")
    if args.seed < 0: raise UserError(f"seed={args.seed} must be 0 or more")
    if args.changes and args.name in SEVERAL: raise UserError(f"-p goes with one chapter, not with {args.name}")
    return read_changes(args.changes)


def _refusal(path: Path, profile: str, changes: dict) -> str:
    "Why the chapter at `path` cannot run with these sizes; empty if it can."
    try:
        sizes = sizes_of(path, profile, changes)
        if sizes: _check_sizes(chapter_module(path), sizes)
    except UserError as error: return str(error)
    return ""


def _check_sizes(module: Any, sizes: Any) -> None:
    check_needs(module, sizes)
    path, known = getattr(sizes, "data", ""), offered(module)
    if path in known or not is_path(path): return
    from fedbook.kit.own import check_own

    for said in check_own(sizes, known): print(f"fedbook: {said}", file=sys.stderr, flush=True)


def _at_its_length(found: dict[str, Path], profile: str) -> dict[str, Path]:
    "`found`, or in place of one paper's chapter its lab book, where that has the long runs; it is said which."
    name = next(iter(found))
    lab = f"evidence/{module_name(name)}"
    if len(found) > 1 or "/" in name or profile not in ("full", "open", "paper") or lab not in chapters(): return found
    if not getattr(chapter_module(chapters()[lab]), "profiles", None): return found
    print(f"fedbook: {name} is for an evening; {lab} has its runs at {profile}, and runs now", flush=True)
    return {lab: chapters()[lab]}


def _forecast(found: dict[str, Path]) -> None:
    "Say how long the chapters `found` took at full, where that is more than a few minutes."
    booked = booked_minutes()
    minutes = sum(booked.get(name, 0.0) for name in found)
    if minutes < 5: return
    text = f"{minutes:.0f} minutes" if minutes < 100 else f"{minutes / 60:.1f} hours"
    print(f"fedbook: at full this took {text} of measuring on the authors' machine, a CPU; rows that are done are kept",
          flush=True)


def _run(args: argparse.Namespace) -> int:
    if args.help: return _helped(args)
    changes = _check_run(args)
    _check_looks(args, changes)
    if not re.fullmatch(r"local|flower(:[1-9]\d*)?", args.engine):
        raise UserError(f"engine={args.engine!r} is unknown; choose local, flower, or flower:N (N at once)")
    found = find(args.name)
    if args.engine == "local": found = _at_its_length(found, args.profile)
    if args.device == "cpu": os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch_device(args.device)
    if args.dry: return _finish(_walks(args, found, changes), len(found))
    refused = {name: _refusal(path, args.profile, changes) for name, path in found.items()}
    if len(found) == 1 and any(refused.values()): raise UserError(*refused.values())
    if args.engine != "local": return _finish(_on_flower(args, found, changes))
    if args.profile == "full": _forecast(found)
    options = dict(profile=args.profile, device=args.device, seed=args.seed, engine=args.engine, out=args.out,
                   changes=changes, fresh=args.fresh)
    if args.until_decided:
        path, budget = next(iter(found.values())), seconds_of(args.budget)
        return _finish(until_decided(path, budget, args.most_seeds, **options))  # type: ignore[arg-type]
    no = [dict(chapter=name, measured="FAILED", seconds=0.0, notebook="", error=why)
          for name, why in refused.items() if why]
    paths = [found[name] for name in found if not refused[name]]
    return _finish(chain(no, run_chapters(paths, _at_once(args, len(found)), **options)), len(found))


def _walks(args: argparse.Namespace, found: dict[str, Path], changes: dict) -> Iterator[dict]:
    "The dry runs of the chapters `found` that have the profile; one alone is refused if it cannot be walked."
    for given, what in ((args.engine != "local", f"--engine {args.engine}"),
                        (args.until_decided, "--until-decided")):
        if given: raise UserError(f"--dry does not go with {what}")
    has = lambda name: args.profile in getattr(chapter_module(found[name]), "profiles", ())
    stems = [name for name in found if len(found) == 1 or has(name)]
    print(DRY, flush=True)
    with TemporaryDirectory() as folder:
        data = made_up(Path(folder), {name for name in stems for name in encoders_of(found[name])})
        for name in stems:
            try: yield walk_chapter(found[name], args.profile, data, args.device, args.seed, args.out, changes)
            except UserError as error:
                if len(found) == 1: raise
                yield dict(chapter=name, measured="FAILED", seconds=0.0, notebook="", error=str(error))


def _check_looks(args: argparse.Namespace, changes: dict) -> None:
    if not args.until_decided:
        if args.budget: raise UserError("--budget goes with --until-decided")
        return
    if not args.budget: raise UserError("--until-decided needs a --budget such as 2h")
    for given, what in ((args.name in SEVERAL, f"{args.name}: name one chapter"), ("seeds" in changes, "-p seeds"),
                        (args.engine != "local", f"--engine {args.engine}"), (args.fresh, "--fresh")):
        if given: raise UserError(f"--until-decided does not go with {what}")
    if args.most_seeds < 3: raise UserError(f"--most-seeds {args.most_seeds} must be 3 or more")
    seconds_of(args.budget)


def _at_once(args: argparse.Namespace, count: int) -> int:
    "How many of `count` chapters run side by side: two, where there are a second core and no GPU to share."
    if args.at_once: return args.at_once
    return 2 if count > 1 and cores() > 1 and torch_device(args.device).type == "cpu" else 1


def _on_flower(args: argparse.Namespace, found: dict[str, Path], changes: dict) -> Iterator[dict]:
    flower, at_once, device = _flower(), int(args.engine[7:] or 0) or None, str(torch_device(args.device))
    for name in found if len(found) == 1 else [name for name in found if name in trained()]:
        start, plan = perf_counter(), plan_of(name, args.profile, args.seed, changes, device)
        results = flower.run_on_flower(plan, at_once, args.out, args.fresh) / "results.json"
        yield dict(chapter=f"{plan.name} on Flower", measured=json.loads(results.read_text())["headline"],
                   seconds=round(perf_counter() - start, 1), notebook=str(results), error=None)


def _flower_app(args: argparse.Namespace) -> int:
    flower, plan = _flower(), plan_of(args.name, args.profile, args.seed, _check_run(args))
    print(flower.node_commands(plan, flower.write_app(plan, args.folder)))
    return 0


def _flower_keys(args: argparse.Namespace) -> int:
    if args.nodes < 1: raise UserError(f"--nodes {args.nodes} must be 1 or more")
    from fedbook.deploy.nodes import write_keys

    print(write_keys(args.folder, args.host, args.nodes, args.days, at=args.at))
    return 0


def _flower_renew(args: argparse.Namespace) -> int:
    from fedbook.deploy.nodes import renew_certificate

    print(renew_certificate(args.folder, args.days))
    return 0


def _flower_node(args: argparse.Namespace) -> int:
    if sys.platform == "win32": raise UserError("flower-node needs Linux or macOS, and this is Windows; WSL is Linux")
    from fedbook.deploy.nodes import join_server

    return join_server(args.folder, args.data)


def _report(args: argparse.Namespace) -> int:
    folder = runs_folder(args.folder)
    bodies, failed = collect(folder), failed_runs(folder)
    if not folder.is_dir(): raise UserError(f"folder={args.folder!r} is not there; run a chapter first")
    if (folder / "results.json").exists():
        raise UserError(f"folder {args.folder!r} is one run; name the folder of runs, {str(folder.parent)!r}")
    if not bodies and not failed:
        raise UserError(f"folder {args.folder!r} holds no results.json; run a chapter first")
    for body in (body for body in bodies if body["claims"]):
        print(f"\n{message(body)}\nmeasured on: {measured_on(body)}")
        corrected = headline_p_values(body["claims"])
        _print_table([dict(verdict=verdict_of(c, corrected), ours=interval_text(c), claim=c["claim"])
                      for c in body["claims"]])
        if older_note(body): print(older_note(body))
    silent = [result_name(body) for body in bodies if not body["claims"]]
    if silent: print("\nno claims:", *silent, sep="\n  ")
    if failed: print("\nnot complete:", *(f"{run}: {why}" for run, why in failed.items()), sep="\n  ")
    print("\nwritten:", *write_report(folder, bodies), sep="\n  ")
    if args.keep: print("kept:", *keep(folder), *write_report("results", collect("results")), sep="\n  ")
    if args.readme: fill(args.readme, bodies)
    return 0


OPEN = "fedreplay", "fedmox"     # chapters with the profile `open`

def _data(args: argparse.Namespace) -> int:
    from fedbook.datasets.world import data_folder, inventory, shown

    print(f"data folder: {shown(data_folder())} (set FEDBOOK_DATA to choose another)\n")
    _print_table(inventory())
    print("\nnearly the papers' sizes on pictures that everybody can have (PlantVillage, rendered streets), on a GPU:")
    for name in OPEN: print(f"  fedbook run {name} --profile open")
    return 0


def _copy_folder(named: str) -> Path:
    "The folder of the copy: the one that we are in, where no other was named."
    here = progress_file()
    return here.parent if here and not named else Path(named or "course")


def _copy(args: argparse.Namespace) -> int:
    folder = _copy_folder(args.folder)
    copied, stayed = copy_chapters(folder)
    print(f"{copied} chapters and answers copied into {folder}; {stayed} that were there stay.\n"
          f"Work there: what you save changes your copy only. Delete a file to get the original again.")
    return 0


def _doctor(_: argparse.Namespace) -> int:
    for what, found, cure in doctor():
        print(f"{what:<18}{found}{f'  ->  {cure}' if cure else ''}", flush=True)
    return 0


def _open_lab(args: argparse.Namespace) -> int:
    path = next(iter(find(args.name).values()))
    needs("jupyterlab")
    folder = _copy_folder(args.folder)
    copy_chapters(folder)
    target = folder / path.relative_to(notebooks_folder())
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(target)])


def _progress(args: argparse.Namespace) -> int:
    folder = _copy_folder(args.folder)
    rows = progress_rows(folder)
    _print_table(rows)
    solved, all_ = (sum(int(row["solved"].split(" of ")[k]) for row in rows) for k in (0, 1))
    print(f"\n{solved} of {all_} exercises solved; noted in {folder / PROGRESS}, sent nowhere")
    return 0


def _mine(args: argparse.Namespace) -> int:
    changes = _check_run(args)
    path = with_headline(args.name)
    module: Any = chapter_module(path)
    if args.device == "cpu": os.environ["CUDA_VISIBLE_DEVICES"] = ""
    device, sizes = torch_device(args.device), sizes_of(path, args.profile, changes)
    _check_sizes(module, sizes)
    own, wrong = _own_functions(args, path, module)
    method = method_of(path)
    print(f"\n{method} at {args.profile}, seed {args.seed}: with the library's functions, then with yours in "
          f"place of {', '.join(own)}", flush=True)
    theirs, mine, stopped = both_headlines(module, own, sizes, args.seed, device)
    share = f"{100 * theirs:.1f} %"
    if stopped:
        print(f"the library's {method} {share}", flush=True)
        print(f"fedbook: the run with your functions stopped: {stopped}", file=sys.stderr)
        return 1
    print(f"my {method} {100 * mine:.1f} %, the library's {share}")
    if wrong: print(f"Wrong, as the table says: {', '.join(wrong)}. The accuracy alone need not show it.")
    elif share != f"{100 * mine:.1f} %":
        print("Your functions are right on all cases. They may round otherwise, and training magnifies that.")
    return 0


def _own_functions(args: argparse.Namespace, path: Path, module: Any) -> tuple[dict[str, Any], list[str]]:
    """The reader's functions that a run calls, name to function, guarded, and the names of those that are wrong.
    Writes them as a module, and says of each blank what it is. Raises `UserError` if there is none."""
    notebook = own_notebook(path, args.notebook)
    blanks, written = exercises_of(path), written_in(notebook, path, module)
    if not written.names and not written.broken:
        raise UserError(f"{shown_path(notebook)} has none of your functions yet; write one of "
                        f"{', '.join(blanks)}")
    file = write_mine(written.text, Path(args.out or notebook.parent), path)
    print(f"written: {shown_path(file)}\n", flush=True)
    functions = load_mine(file, written.names)
    called = [name for name in blanks if callable(getattr(module, name, None))]
    said = verdicts(path, functions, written.broken, called)
    _print_table([dict(function=name, state=state) for name, state in said.items()])
    own = {name: guarded(name, functions[name], file) for name in called if name in functions}
    if own: return own, [name for name in own if said[name] != "yours"]
    raise UserError(f"the run calls none of the functions that you wrote; write one of {', '.join(called)}")


def _assignment(args: argparse.Namespace) -> int:
    *handed, kept = write_assignment(args.name, args.folder, args.seed, args.hidden, args.students)
    for file in handed: print(f"to hand out: {file}")
    print(f"to keep:     {kept}")
    print(f"then:        fedbook grade {args.folder} NOTEBOOK ...")
    return 0


def _grade(args: argparse.Namespace) -> int:
    if args.patience <= 0: raise UserError(f"--patience {args.patience:g} must be above 0")
    kept_in(args.folder)
    failed = False
    for notebook in args.notebooks:
        try: rows = grade(args.folder, notebook, args.patience)
        except (UserError, OSError) as error:
            print(f"fedbook: {error}", file=sys.stderr)
            failed = True
            continue
        got, of = (sum(row[key] for row in rows) for key in ("points", "of"))
        print(f"\n{notebook}: {got:g} of {of:g} points ({feedback_file(args.folder, notebook)})")
        _print_table(rows)
    if not Path(args.folder, "grades.csv").exists(): return 2
    print(f"\nwritten: {Path(args.folder, 'grades.csv')}\n{held()}")
    return 2 if failed else 0


def _slides(args: argparse.Namespace) -> int:
    page = write_slides(args.name, args.to, args.reveal)
    where = args.reveal or "the network"
    print(f"written: {page} (open it in a browser; it takes reveal.js from {where})")
    return 0


def _any_locale() -> None:
    "Print what the terminal's encoding lacks as a question mark."
    for stream in (sys.stdout, sys.stderr): stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `fedbook` with the arguments `argv` (None: those of the process) and return
    its exit code: 0, or 1 if a chapter failed, 2 for a mistake of the user, which is printed, and
    130 after Ctrl-C."""
    commands = {"run": _run, "flower-app": _flower_app, "flower-keys": _flower_keys, "flower-renew": _flower_renew,
                "flower-node": _flower_node,
                "report": _report, "data": _data, "copy": _copy,
                "doctor": _doctor, "lab": _open_lab, "progress": _progress, "mine": _mine,
                "assignment": _assignment, "grade": _grade, "slides": _slides}
    if argv is None: _any_locale()
    try:
        args = _parser().parse_args(argv)
        code = commands[args.command](args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:             # whoever read, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except (UserError, OSError) as error:
        print(f"fedbook: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        if argv is None: signal.signal(signal.SIGINT, signal.SIG_IGN)
        said = str(stopped) or "interrupted; the same command goes on where this one stopped"
        print(f"fedbook: {said}", file=sys.stderr)
        return 130
