"Attempts at the exercises of nbs/workshop/w9_report.ipynb: see tests/test_exercises.py."
from collections import Counter


def slowest__wrong_fails_without_rows(body): return max(body["rows"], key=lambda row: row["seconds"])["what"]

def slowest__wrong_clock_among_the_numbers(body):
    return max(body["rows"], key=lambda row: row["numbers"].get("seconds", 0), default={"what": None})["what"]

def slowest__wrong_last_row(body): return body["rows"][-1]["what"] if body["rows"] else None

def slowest__wrong_fastest(body):
    return min(body["rows"], key=lambda row: row["seconds"], default={"what": None})["what"]

def slowest__right_sorted(body):
    rows = sorted(body["rows"], key=lambda row: row["seconds"])
    return rows[-1]["what"] if rows else None


def tally__wrong_one_result(bodies):
    return dict(Counter(claim["verdict"] for claim in bodies[0]["claims"])) if bodies else {}

def tally__wrong_one_per_result(bodies):
    return dict(Counter(claim["verdict"] for body in bodies for claim in body["claims"][:1]))

def tally__wrong_empties_what_it_reads(bodies):
    count = Counter()
    for body in bodies:
        while body["claims"]: count[body["claims"].pop()["verdict"]] += 1
    return dict(count)

def tally__right_loop(bodies):
    count = {}
    for body in bodies:
        for claim in body["claims"]: count[claim["verdict"]] = count.get(claim["verdict"], 0) + 1
    return count


def changed__wrong_by_place(old, new):
    pairs = zip(old["claims"], new["claims"])
    return {a["claim"]: (a["verdict"], b["verdict"]) for a, b in pairs if a["verdict"] != b["verdict"]}

def changed__wrong_counts_what_is_gone(old, new):
    now = {claim["claim"]: claim["verdict"] for claim in new["claims"]}
    return {c["claim"]: (c["verdict"], now.get(c["claim"])) for c in old["claims"]
            if now.get(c["claim"]) != c["verdict"]}

def changed__wrong_way_round(old, new):
    before = {claim["claim"]: claim["verdict"] for claim in old["claims"]}
    return {c["claim"]: (c["verdict"], before[c["claim"]]) for c in new["claims"]
            if c["claim"] in before and before[c["claim"]] != c["verdict"]}

def changed__right_two_loops(old, new):
    found = {}
    for a in old["claims"]:
        for b in new["claims"]:
            if a["claim"] != b["claim"] or a["verdict"] == b["verdict"]: continue
            found[a["claim"]] = a["verdict"], b["verdict"]
    return found
