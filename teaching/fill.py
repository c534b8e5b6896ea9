"""Writes the chapters' minutes and prerequisites, and the weeks' sums, into the syllabus beside this file.

    python teaching/fill.py

Both are read off each chapter's first cell, into every row of a table that links to a chapter:
`| chapter | minutes | before this | after it you can |`. The sum of a week stands in its heading. A test fails
where that would change anything.
"""
import json
import re
from pathlib import Path
from typing import NamedTuple

from fedbook.kit.runs import chapters

SYLLABUS = Path(__file__).with_name("syllabus.md")


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


def refilled(text):
    "The syllabus `text` with the rows and sums as they are now."
    lines, known, sums, heading = text.split("\n"), chapters(), {}, None
    for i, line in enumerate(lines):
        if line.startswith("#"): heading = i
        cells = [cell.strip() for cell in line.split("|")]
        link = re.fullmatch(r"\[([\w/]+)\]\(.*\.ipynb\)", cells[1]) if len(cells) == 6 else None
        if not link: continue
        fact = facts(known[link[1]])
        total = fact.minutes + fact.exercises
        lines[i] = f"| {cells[1]} | {total} | {fact.before} | {cells[4]} |"
        sums[heading] = sums.get(heading, 0) + total
    for i, total in sums.items(): lines[i] = re.sub(r"\d+ minutes", f"{total} minutes", lines[i])
    return "\n".join(lines)


if __name__ == "__main__": SYLLABUS.write_text(refilled(SYLLABUS.read_text(encoding="utf-8")), encoding="utf-8")
