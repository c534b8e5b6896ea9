"""The page of the papers' claims: each as an interval beside its bound and the paper's figure, with filters."""
import hashlib
import html
import math

from fedbook.evidence.claims import (VERDICTS, chance_note, detectable_text, interval_text, mean_of_claim,
                                     older_note, paper_text, verdict_counts, verdict_of)
from fedbook.kit.report import headlines, sentence

HOW_TO_READ = """\
The bar is the interval of the mean over seeds, the dot that mean, the line the bound; the triangle
on it points to where the claim holds. The star is the figure that the paper prints. The papers ran at another
scale, with other data. Checks of our own stand in the lab books."""
TAUGHT = "How a verdict comes about is taught in [Evidence](evidence/claims.ipynb)."


def page(bodies: list, books: dict) -> str:
    "The results `bodies`, as `fedbook.kit.report.collect` gives them, as a MyST page. `books`: name to notebook."
    found = headlines(bodies)
    every = [headline.claim for several in found.values() for headline in several]
    taught = TAUGHT if "evidence/claims" in books else ""
    count = f"{len(every)} claims of papers: {verdict_counts(every)}."
    blocks = ["# Results", count, chance_note(every), HOW_TO_READ, taught, filters(found)]
    for paper, several in found.items(): blocks += section(paper, several, bodies, books)
    return "\n\n".join(filter(None, blocks)) + "\n"


def filters(found: dict) -> str:
    "The row of choices above the claims."
    verdicts = {headline.claim["verdict"] for several in found.values() for headline in several}
    choices = {"paper": list(found), "verdict": [word for word in VERDICTS if word in verdicts]}
    options = {name: "".join(f"<option>{html.escape(choice)}</option>" for choice in several)
               for name, several in choices.items()}
    selects = (f"<label>{name} <select name='{name}'><option value=''>all</option>{several}</select></label>"
               for name, several in options.items())
    return f"<form class='filters'>{' '.join(selects)} <output aria-live='polite'></output></form>"


def section(paper: str, several: list, bodies: list, books: dict) -> list:
    "The claims of one paper: heading, the main one in a sentence, table, what it was measured on."
    claims = [headline.claim for headline in several]
    rows = "".join(row(claim, home(claim, bodies), books) for claim in claims)
    heads = ("the paper's claim", "its figure", "interval", "verdict")
    head = "<thead><tr>" + "".join(f"<th>{text}</th>" for text in heads) + "</tr></thead>"
    scales = dict.fromkeys(headline.measured for headline in several)
    notes = dict.fromkeys(older_note(home(claim, bodies)) for claim in claims)
    return [f"## {paper}", sentence(several),
            f"<div class='wide'><table class='claims'>{head}<tbody>{rows}</tbody></table></div>",
            f"Measured on: {'; '.join(scales)}.", *notes]


def home(claim: dict, bodies: list) -> dict:
    "The first results file that has the `claim`: the one that judges it."
    return next(body for body in bodies if any(c["claim"] == claim["claim"] for c in body["claims"]))


def row(claim: dict, body: dict, books: dict) -> str:
    "One claim as a row of the table."
    name = body["name"]
    facts = f"data-paper=\"{claim['of']}\" data-verdict=\"{claim['verdict']}\""
    own = "claim-" + hashlib.sha256((claim["of"] + claim["claim"]).encode()).hexdigest()[:8]
    cell = cell_of(claim, books[name])
    target = f"{name}.html#cell-{cell}" if cell else f"{name}.html"
    least = detectable_text(claim)
    small = "; ".join(filter(None, [interval_text(claim), f"least detectable: {least}" if least else ""]))
    curve = "".join(f"<li>{html.escape(point['setting'])}: {html.escape(interval_text(claim | point | dict(reruns=None)))}</li>"
                    for point in claim["curve"] if point["values"] != claim["values"])
    more = f"<details><summary>at other settings</summary><ul>{curve}</ul></details>" if curve else ""
    note = f"<small>{html.escape(claim['note'])}</small>" if claim["note"] else ""
    return (f"<tr id='{own}' {facts}><td><a href='{target}'>{html.escape(claim['claim'])}</a> "
            f"<a class='here' href='#{own}' title='A link to this claim'>#</a>{note}{more}</td>"
            f"<td>{html.escape(paper_text(claim))}</td>"
            f"<td>{drawing(claim)}<small>{html.escape(small)}</small></td>"
            f"<td>{html.escape(verdict_of(claim))}</td></tr>")


def cell_of(claim: dict, book) -> str:
    "The id of the cell that prints a claim, or of the one whose code states it."
    printed = lambda cell: any(claim["claim"] in output.get("data", {}).get("text/markdown", "")
                               for output in cell.get("outputs", []))
    stated = lambda cell: cell.cell_type == "code" and claim["claim"] in cell.source
    return next((cell.id for made in (printed, stated) for cell in book.cells if made(cell)), "")


def drawing(claim: dict) -> str:
    "A claim as a small SVG, 220 wide: interval, mean, bounds and the paper's effect on one scale."
    if not claim["values"]: return ""
    mean = mean_of_claim(claim)
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
    parts += [f"<text class='star' x='{x(effect)}' y='19'>★</text>" for effect in dict.fromkeys(claim["effect"])]
    said = html.escape(f"{claim['verdict']}: {interval_text(claim)}", quote=True)
    return f"<svg viewBox='0 0 220 28' role='img' aria-label=\"{said}\">{''.join(parts)}</svg>"
