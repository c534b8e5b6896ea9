"""The page of all claims: each as an interval beside its bound and the paper's figure, with filters."""
import hashlib
import html
import math

from fedbook.evidence.claims import (OWN_VERDICTS, VERDICTS, chance_note, holds_if, interval_text,
                                     measured_on, older_note, paper_text, run_label, verdict_counts,
                                     verdict_of)
from fedbook.kit.report import result_name

HOW_TO_READ = """\
The bar is the interval of the mean over seeds, the dot that mean, the line the bound; the triangle
on it points to where the claim holds. The star is the figure that the paper prints. The papers ran at another
scale, with other data."""
TAUGHT = "How a verdict comes about is taught in [Evidence](evidence/claims.ipynb)."


def page(bodies: list, books: dict) -> str:
    "The results `bodies`, as `fedbook.kit.report.collect` gives them, as a MyST page. `books`: name to notebook."
    bodies = [body for body in bodies if body["claims"]]
    every = [claim for body in bodies for claim in body["claims"]]
    taught = TAUGHT if "evidence/claims" in books else ""
    count = f"{len(every)} claims: {verdict_counts(every)}."
    blocks = ["# Results", count, chance_note(every), HOW_TO_READ, taught, filters(bodies)]
    for body in bodies: blocks += section(body, books)
    return "\n\n".join(filter(None, blocks)) + "\n"


def filters(bodies: list) -> str:
    "The row of choices above the claims."
    found = {claim["verdict"] for body in bodies for claim in body["claims"]}
    words = [word for word in dict.fromkeys((*VERDICTS, *OWN_VERDICTS)) if word in found]
    choices = {"chapter": list(dict.fromkeys(body["name"] for body in bodies)), "verdict": words,
               "kind": ["claims of papers", "checks of our own"]}
    options = {name: "".join(f"<option>{html.escape(choice)}</option>" for choice in several)
               for name, several in choices.items()}
    selects = (f"<label>{name} <select name='{name}'><option value=''>all</option>{several}</select></label>"
               for name, several in options.items())
    return f"<form class='filters'>{' '.join(selects)} <output aria-live='polite'></output></form>"


def section(body: dict, books: dict) -> list:
    "The claims of one run: heading, what it was measured on, table."
    name = body["name"]
    rows = "".join(row(body, claim, name, books) for claim in body["claims"])
    head = "<thead><tr><th>claim</th><th>paper</th><th>interval</th><th>verdict</th></tr></thead>"
    return [f"## {run_label(body)}", f"[{body['name']}]({name}.ipynb), {measured_on(body)}.",
            f"<div class='wide'><table class='claims'>{head}<tbody>{rows}</tbody></table></div>",
            older_note(body)]


def row(body: dict, claim: dict, name: str, books: dict) -> str:
    "One claim as a row of the table."
    kind = "checks of our own" if claim["own"] else "claims of papers"
    facts = f"data-chapter=\"{body['name']}\" data-verdict=\"{claim['verdict']}\" data-kind=\"{kind}\""
    own = "claim-" + hashlib.sha256((result_name(body) + claim["claim"]).encode()).hexdigest()[:8]
    cell = cell_of(claim, books[name])
    target = f"{name}.html#cell-{cell}" if cell else f"{name}.html"
    bound = f"<small>holds if {html.escape(holds_if(claim))}</small>" if holds_if(claim) else ""
    return (f"<tr id='{own}' {facts}><td><a href='{target}'>{html.escape(claim['claim'])}</a> "
            f"<a class='here' href='#{own}' title='A link to this claim'>#</a>{bound}</td>"
            f"<td>{html.escape(paper_text(claim))}</td>"
            f"<td>{drawing(claim)}<small>{html.escape(interval_text(claim))}</small></td>"
            f"<td>{html.escape(verdict_of(claim))}</td></tr>")


def cell_of(claim: dict, book) -> str:
    "The id of the cell that prints a claim, or of the one whose code states it."
    printed = lambda cell: any(claim["claim"] in output.get("data", {}).get("text/markdown", "")
                               for output in cell.get("outputs", []))
    stated = lambda cell: cell.cell_type == "code" and claim["claim"] in cell.source
    return next((cell.id for made in (printed, stated) for cell in book.cells if made(cell)), "")


def drawing(claim: dict) -> str:
    "A claim as a small SVG, 220 wide: interval, mean, bounds and the paper's effect on one scale."
    mean = math.fsum(claim["values"]) / len(claim["values"])
    ends = [end for end in (claim["low"], claim["high"]) if end is not None]
    sides = ("at_least", 1), ("at_most", -1)
    bounds = [(claim[key], side) for key, side in sides if claim[key] is not None]
    points = [p for p in (mean, *ends, *(b for b, _ in bounds), *claim["effect"]) if math.isfinite(p)]
    if not points or not math.isfinite(mean): return ""
    low, wide = min(points), (max(points) - min(points)) or 1.0
    x = lambda value: round(12 + 196 * (value - low) / wide, 1)
    parts = ["<line class='axis' x1='4' x2='216' y1='14' y2='14'/>"]
    for bound, side in bounds:
        flag = f"l{6 * side} 3.5l{-6 * side} 3.5"
        parts.append(f"<path class='bound' d='M{x(bound)} 2V26M{x(bound)} 2{flag}'/>")
    if ends: parts.append(f"<line class='bar' x1='{x(ends[0])}' x2='{x(ends[1])}' y1='14' y2='14'/>")
    parts.append(f"<circle class='mean' cx='{x(mean)}' cy='14' r='4'/>")
    parts += [f"<text class='star' x='{x(effect)}' y='19'>★</text>" for effect in claim["effect"]]
    said = html.escape(f"{claim['verdict']}: {interval_text(claim)}", quote=True)
    return f"<svg viewBox='0 0 220 28' role='img' aria-label=\"{said}\">{''.join(parts)}</svg>"
