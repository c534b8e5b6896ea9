"""Writes the chapters' minutes and prerequisites, and the weeks' sums, into the syllabus beside this file.

    python teaching/fill.py

(`python tools/evenings.py --write` does so, too.) Both are read off each chapter's first cell, into every row of
a table that links to a chapter: `| chapter | minutes | before this | after it you can |`. The sum of a
week stands in its heading. A test fails where that would change anything.
"""
import json
import re
from pathlib import Path
from typing import NamedTuple

from fedbook.kit.runs import chapters

SYLLABUS = Path(__file__).with_name("syllabus.md")
FROM_ZERO = "From zero, in minutes with the chapters on which it stands:"
LEFT_OUT = "Left out of all plans, for those who want more:"


class Facts(NamedTuple):
    "Of a chapter: minutes, minutes for the exercises beside these (0: they are in them), what comes before."
    minutes: int
    exercises: int
    before: str


def minutes(text):
    "The first time in `text`, such as `2 hours`, `half an hour` or `40 for the exercises`, in minutes."
    found = re.search(r"(half an|\d+) ?(hour)?", text)
    number = 0.5 if found[1] == "half an" else int(found[1])
    return int(number * (60 if found[2] else 1))


def facts(path):
    "The `Facts` of the chapter at `path`."
    text = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    time, _, more = re.search(r"\*\*Time\*\* (.*?)(?:[.;]\s|\.$)", text, re.M)[1].partition(", and ")
    before = re.split(r"[.;](?:\s|$)", text.partition("**Before this** ")[2], maxsplit=1)[0]
    named = ", ".join(re.findall(r"\[([\w/]+)\]\([^)]*\.ipynb\)", before))
    return Facts(minutes(time), minutes(more) if "exercises" in more else 0, named or before.partition(":")[0])


def from_zero(name, known):
    "The names of the chapter `name` of the path and of all chapters of the path on which it stands."
    needs = [each for each in facts(known[name]).before.split(", ") if each in known and "/" not in each]
    return {name}.union(*(from_zero(each, known) for each in needs))


def whole(known):
    "The sentence with the minutes of each paper, those of the chapters that it needs included."
    total = lambda name: sum(sum(facts(known[each])[:2]) for each in from_zero(name, known))
    papers = [name for name in known if name.startswith("1")]
    return f"{FROM_ZERO} {', '.join(f'{name} {total(name)}' for name in papers)}."


def others(text, known):
    "A line for each wing: links to those of its chapters that no plan in `text` has."
    rest = [name for name in known if f"[{name}](" not in text]
    wings = dict.fromkeys(name.partition("/")[0] for name in rest)
    link = lambda name: f"[{name}](../nbs/{name}.ipynb)"
    linked = {wing: ", ".join(link(name) for name in rest if name.startswith(f"{wing}/")) for wing in wings}
    return [f"- **{wing}**: {links}." for wing, links in linked.items() if links]


def refilled(text):
    """The syllabus `text` with the rows and sums as they are now. A chapter that is not there yet has no minutes.
    The list of what is left out, at the end, is written anew."""
    plans, mark, _ = text.partition(LEFT_OUT)
    lines, known, sums, heading = plans.split("\n"), chapters(), {}, None
    for i, line in enumerate(lines):
        if line.startswith("#"): heading = i
        if line.startswith(FROM_ZERO): lines[i] = whole(known)
        cells = [cell.strip() for cell in line.split("|")]
        link = re.fullmatch(r"\[([\w/]+)\]\(.*\.ipynb\)", cells[1]) if len(cells) == 6 else None
        if not link: continue
        fact = facts(known[link[1]]) if link[1] in known else None
        total = fact.minutes + fact.exercises if fact else 0
        lines[i] = f"| {cells[1]} | {total or '-'} | {fact.before if fact else '-'} | {cells[4]} |"
        sums[heading] = sums.get(heading, 0) + total
    for i, total in sums.items(): lines[i] = re.sub(r"\d+ minutes", f"{total} minutes", lines[i])
    plans = "\n".join(lines)
    return plans + mark + "\n\n" + "\n".join(others(plans, known)) + "\n"


if __name__ == "__main__": SYLLABUS.write_text(refilled(SYLLABUS.read_text(encoding="utf-8")), encoding="utf-8")
