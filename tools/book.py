"""For authors: run chapters and copy their outputs back into the notebooks.

    python tools/book.py NAME [--keep-rows | --old-rows | --as-before FOLDER]"""
import argparse
import ast
import re
import shutil
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedbook.engine.errors import UserError
from fedbook.engine.files import run_dir, write_atomically
from fedbook.engine.rows import results_text
from fedbook.kit.report import few_colours, read_results, row_difference
from fedbook.kit.runs import (answers_of, chapter_module, chapter_name, execute, find, module_name, notebook_stamp, run_chapter,
                              run_stamp, SEVERAL)


def to_fold(source: str) -> bool:
    "Whether a code cell is folded away: it starts with `#| hide`, or holds nothing but calls of `quiz`."
    if re.match(r"#\| *hide\b", source): return True
    try: body = ast.parse(source).body
    except SyntaxError: return False
    calls = [node.value for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    quizzes = [call for call in calls if getattr(call.func, "id", "") == "quiz"]
    return len(quizzes) == len(body) > 0


def fold(cells: Iterable) -> None:
    "Set or take off the fold of notebook cells, as `to_fold` says."
    for cell in cells:
        cell.metadata.pop("jupyter", None)
        if cell.cell_type == "code" and to_fold(cell.source):
            cell.metadata["jupyter"] = dict(source_hidden=True)


def _tidy(outputs: list) -> list:
    tidy = [o for o in outputs if o.get("name") != "stderr"]
    for o in tidy:
        if "data" in o:
            o["data"] = {kind: body for kind, body in o["data"].items()
                         if kind != "application/vnd.jupyter.widget-view+json"}
            if "text/markdown" in o["data"]: o["data"].pop("text/plain", None)
            if "image/png" in o["data"]:
                png = few_colours(b64decode(o["data"]["image/png"]))
                o["data"]["image/png"] = b64encode(png).decode()
        if "execution_count" in o: o["execution_count"] = None
        if "metadata" in o: o["metadata"] = {}
    return [o for o in tidy if o.get("data", True)]


def _outputs(notebook: Path) -> dict[str, list]:
    "Cell id to tidy outputs of an executed notebook."
    import nbformat

    cells = [cell for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "code"]
    return {cell.id: _tidy(cell.outputs) for cell in cells}


def _write_outputs(path: Path, outputs: dict[str, list], shown: str = "") -> None:
    """Put `outputs` (cell id to outputs) into the notebook at `path`, stamp and fold it. `shown` goes into
    the first cell; what an author has added behind it, after a semicolon, stays."""
    import nbformat

    book = nbformat.read(path, 4)
    for cell in book.cells:
        if cell.cell_type == "code": cell.outputs, cell.execution_count = outputs[cell.id], None
    if shown and not re.search(rf"\*Outputs: {re.escape(shown)}[.;]", book.cells[0].source):
        book.cells[0].source = re.sub(r"\n+\*Outputs: .*\*$", "",
                                      book.cells[0].source) + f"\n\n*Outputs: {shown}.*"
    fold(book.cells)
    book.metadata["fedbook"] = dict(stamp=notebook_stamp(path))
    write_atomically(path, nbformat.writes(book) + "\n")


def copy_outputs(executed: Path, path: Path, shown: str) -> None:
    """Copy the outputs of notebook `executed` into `path` by cell id, stamp and fold it, and say in the first
    cell what the outputs are (`shown`)."""
    _write_outputs(path, _outputs(executed), shown)


def _refresh_answers(path: Path, folder: Path) -> str | None:
    "Run the answers to the chapter at `path`, if it has any. Returns None, or the sentence of what failed."
    answers, target = answers_of(path), Path(folder) / "answers.ipynb"
    if not answers.exists(): return None
    error = execute(answers, target, {}, f"answers to {chapter_name(path)}", FEDBOOK_STAMP=run_stamp(answers))
    if not error: copy_outputs(target, answers, "")
    return error


def _take_over(ran: dict, path: Path, profile: str, more: str = "") -> dict:
    """Copy the outputs of the run `ran`, and of the answers, into the notebooks; `more` is said of them as
    well. Returns `ran`."""
    profiles = getattr(chapter_module(path), "profiles", None)
    seeds = profiles[profile].seeds if profiles else 1
    several = f"seeds 0 to {seeds - 1}" if seeds > 1 else "seed 0"
    copy_outputs(ran["notebook"], path, f"profile `{profile}`, {several}{more}")
    return ran | dict(error=_refresh_answers(path, Path(ran["notebook"]).parent))


def refresh(path: Path, profile: str = "full", out: str | Path = "runs") -> dict:
    """Run a chapter at `profile` and its answers, and copy the outputs back into the notebooks. Returns
    `run_chapter`'s dict."""
    ran = run_chapter(path, profile, out=out)
    return ran if ran["error"] else _take_over(ran, path, profile)


def booked_results(path: Path, results: str | Path = "results") -> Path:
    """The file of the kept `full` results of the chapter at `path`, perhaps under an older name. Raises
    `UserError` if there is not just one."""
    form = "{}-full-0-*.json"
    found = [file for file in _named(path, results, form) if not read_results(file)["changes"]]
    if len(found) == 1: return found[0]
    raise UserError(f"{len(found)} files of kept results fit {form.format(_short(path))} in {str(results)!r}; "
                    "name one with --rows-from")


def _short(path: Path) -> str: return f"*{module_name(chapter_name(path))}"


def _named(path: Path, folder: str | Path, form: str) -> list[Path]:
    "What lies in `folder` under the name of the chapter at `path`; else under an older one: another number, another wing."
    own = form.format(chapter_name(path).replace("/", "."))
    older = form.format(f"*[._]{module_name(chapter_name(path))}")
    return sorted(Path(folder).glob(own)) or sorted(Path(folder).glob(older))


def to_recompute(rows: list[dict]) -> list[tuple]:
    "(what, seed) of the cheapest row of each method."
    cheapest = {}
    for row in sorted(rows, key=lambda row: row["seconds"], reverse=True):
        cheapest[re.split(", |: ", row["what"])[0]] = (row["what"], row["seed"])
    return sorted(cheapest.values())


def _seed_run(path: Path, body: dict, rows: list[dict], out: str | Path) -> Path:
    "Put `rows`, of the results `body`, into the run folder of the chapter at `path`. Returns the file."
    file, stamp = run_dir(chapter_name(path), "full", 0, out) / "results.json", run_stamp(path)
    try: begun = read_results(file)["stamp"] == stamp
    except (UserError, OSError): begun = False
    if not begun:
        seeded = dict(body, name=chapter_name(path), stamp=stamp, rows=rows, claims=[], headline="", seeded=True)
        write_atomically(file, results_text(seeded))
    return file


def _recomputed(file: Path, body: dict, again: list[tuple]) -> dict | str:
    "The results in `file` with what was measured again, or the sentence of what differs from `body`."
    done, place = read_results(file), lambda row: [row["what"], row["seed"]]
    old = [row for row in body["rows"] if tuple(place(row)) in again]
    new = [row for row in done["rows"] if tuple(place(row)) in again and not row.get("again")]
    return row_difference(old, new, done.get("clock", ())) or dict(done, recomputed=list(map(place, new)))


def keep_rows(path: Path, rows_from: str | Path | None = None, out: str | Path = "runs",
              results: str | Path = "results") -> dict:
    """Book a chapter after a pure move of code: its rows come from the kept results (or the file
    `rows_from`), except one of each method, which is measured again at `full`. Changes nothing if one number of these
    differs.

    Returns `run_chapter`'s dict; the run's `results.json` lists under `recomputed` what was measured."""
    body = read_results(Path(rows_from or booked_results(path, results)))
    aside = Path(out) / "kept-rows"
    again = to_recompute(body["rows"])
    mark = lambda row: dict(again=True) if (row["what"], row["seed"]) in again else {}
    file = _seed_run(path, body, [row | mark(row) for row in body["rows"]], aside)
    ran = run_chapter(path, "full", out=aside)
    if ran["error"]: return ran
    done = _recomputed(file, body, again)
    if isinstance(done, str):
        file.unlink()
        wanted = f"{done}; nothing is changed, the chapter needs a full run"
        return ran | dict(measured="FAILED", error=wanted)
    ran = _take_over(_moved(ran, file, done, run_dir(chapter_name(path), "full", 0, out)), path, "full")
    rows = f"{len(done['rows'])} rows, {len(again)} of them measured again"
    return ran | dict(measured=f"{rows}: {ran['measured']}")


def _moved(ran: dict, file: Path, done: dict, final: Path) -> dict:
    "`ran` after its results, `done`, and its notebook went from the folder of `file` to the folder `final`."
    write_atomically(final / "results.json", results_text(done))
    shutil.copy(ran["notebook"], final)
    shutil.rmtree(file.parent)
    return ran | dict(notebook=str(final / Path(ran["notebook"]).name))


def old_rows(path: Path, rows_from: str | Path | None = None, out: str | Path = "runs",
             results: str | Path = "results") -> dict:
    """Book a chapter at `full` with its kept results (or the file `rows_from`) taken as they are: only rows
    that are missing there are measured. A row that is taken carries under `older` the stamp of the code that
    measured it.

    Returns `run_chapter`'s dict."""
    body, aside = read_results(Path(rows_from or booked_results(path, results))), Path(out) / "kept-rows"
    stamp = run_stamp(path)
    old = lambda row: {} if body["stamp"] == stamp else dict(older=row.get("older", body["stamp"]))
    file = _seed_run(path, body, [row | old(row) for row in body["rows"]], aside)
    ran = run_chapter(path, "full", out=aside)
    if ran["error"]: return ran
    done = read_results(file)
    ran = _moved(ran, file, done, run_dir(chapter_name(path), "full", 0, out))
    count = sum("older" in row for row in done["rows"])
    ran = _take_over(ran, path, "full", ", rows measured with earlier code" if count else "")
    return ran | dict(measured=f"{len(done['rows'])} rows, {count} of earlier code: {ran['measured']}")


def _run_before(path: Path, folder: str | Path) -> tuple[Path, Path]:
    "The results and the executed notebook of a chapter's run at `quick` below `folder`. Raises `UserError`."
    found = [run for run in _named(path, folder, "{}-quick-0") if (run / "results.json").exists()]
    if len(found) != 1:
        raise UserError(f"{len(found)} runs {_short(path)}-quick-0 lie in {str(folder)!r}, expected one")
    return found[0] / "results.json", next(found[0].glob("*.ipynb"))


def same_code(old: str | None, new: str) -> bool:
    "Whether two cells' sources are the same program: line breaks, blanks and comments may differ."
    if old == new: return True
    try: return old is not None and ast.dump(ast.parse(old)) == ast.dump(ast.parse(new))
    except SyntaxError: return False


def _merged(path: Path, quick: Path, smoke: Path, before: Path) -> dict[str, list]:
    """Cell id to outputs, out of the committed notebook and three executed ones. Raises `UserError` for a
    cell that none can give."""
    import nbformat

    now, small, then, booked = _outputs(quick), _outputs(smoke), _outputs(before), _outputs(path)
    sources = {cell.id: cell.source for cell in nbformat.read(before, 4).cells}
    merged = {}
    for i, cell in enumerate(nbformat.read(path, 4).cells, 1):
        if cell.cell_type != "code": continue
        id, first = cell.id, repr(cell.source.partition("\n")[0])
        alike, grows = same_code(sources.get(id), cell.source), id in then and then[id] != booked[id]
        if now[id] in (booked[id], then.get(id)) or alike and grows: merged[id] = booked[id]
        elif now[id] == small[id] and not grows: merged[id] = now[id]
        elif alike: merged[id] = booked[id]
        else:
            raise UserError(f"{chapter_name(path)}: cell {i} ({first:.60}) is new or changed, and its outputs depend "
                            "on the size: it needs a full run; nothing is changed")
    return merged


def as_before(path: Path, folder: str | Path, out: str | Path = "runs") -> dict:
    """Book a chapter after a pure move of code without a `full` run: `folder` holds a run of the old code at
    `quick`. Changes nothing but outputs, stamp and folded cells, and nothing at all if a row differs or a cell
    needs a full run (`UserError`).

    Returns `run_chapter`'s dict."""
    results, notebook = _run_before(path, folder)
    ran, small = (run_chapter(path, profile, out=out) for profile in ("quick", "smoke"))
    error = ran["error"] or small["error"]
    if error: return ran | dict(measured="FAILED", error=error)
    old, new = (read_results(file) for file in (results, Path(ran["notebook"]).with_name("results.json")))
    unlike = row_difference(old["rows"], new["rows"], new.get("clock", ()))
    if unlike: return ran | dict(measured="FAILED", error=f"{unlike}; nothing is changed")
    _write_outputs(path, _merged(path, ran["notebook"], small["notebook"], notebook))
    error = _refresh_answers(path, Path(ran["notebook"]).parent)
    return ran | dict(measured=f"as before: {len(new['rows'])} rows at quick", error=error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="all")
    parser.add_argument("--profile", default="full")
    moved = parser.add_mutually_exclusive_group()
    moved.add_argument("--keep-rows", action="store_true",
                       help="after a pure move of code: measure a kept row of each method again, keep the others")
    moved.add_argument("--old-rows", action="store_true",
                       help="after bits changed: take the kept rows as they are, and say so")
    moved.add_argument("--as-before", metavar="FOLDER",
                       help="after a pure move of code: compare with the old code's run at quick in FOLDER")
    parser.add_argument("--rows-from", metavar="FILE",
                        help="with --keep-rows or --old-rows: take the rows of this results file")
    return parser


def _book(args: argparse.Namespace) -> list[dict]:
    if args.rows_from and not (args.keep_rows or args.old_rows):
        raise UserError("--rows-from goes with --keep-rows or --old-rows")
    given = {"--keep-rows": args.keep_rows, "--old-rows": args.old_rows, "--as-before": args.as_before}
    moved = next((option for option, value in given.items() if value), "")
    if moved and args.profile != "full":
        raise UserError(f"{moved} books the outputs of full, not of --profile {args.profile}")
    if moved and args.name in SEVERAL: raise UserError(f"{moved} goes with one chapter, not with {args.name}")
    found = find(args.name).values()
    if args.keep_rows: return [keep_rows(path, args.rows_from) for path in found]
    if args.old_rows: return [old_rows(path, args.rows_from) for path in found]
    if args.as_before: return [as_before(path, args.as_before) for path in found]
    return [refresh(path, args.profile) for path in found]


def main(argv: Sequence[str] | None = None) -> int:
    "Book, say what was measured, and return the exit code."
    try: ran = _book(_parser().parse_args(argv))
    except (UserError, OSError) as error:
        print(f"book: {error}", file=sys.stderr)
        return 2
    for r in ran: print(f"{r['chapter']:<24}{r['seconds']:>7.1f} s  {r['error'] or r['measured']}")
    return 1 if any(r["error"] for r in ran) else 0


if __name__ == "__main__": sys.exit(main())
