"""Rows of chapter 14 at `full`, measured by the notebook's own cells, one after another; resumable.

    PYTHONPATH=<worktree> python /tmp/h/rows14.py <worktree> <minutes> job job ...

Jobs: tune:NAME  look:SEED  unit:SEED  ask:SEED  row:NAME:SEED  rerun:K. Rows lie in /tmp/h/rows14/run/.../results.json (kept
by the stamp below) and, one line each, in /tmp/h/rows14/rows.jsonl."""
import json, os, sys, time
import nbformat
tree, minutes, jobs = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
os.environ["FEDBOOK_STAMP"] = "h14"
import matplotlib; matplotlib.use("agg")
DEFS = """fafef6db 7f1b50ac d30abaea 771e7d61 SET 7a627bee b6387b91 BEST b1c4d403 21b8ed18 b1c4d410 b1c4d421 b1c4d422 DEFMIC
b1c4d455D RERUN""".split()
cells = {c.id: c.source for c in nbformat.read(f"{tree}/nbs/14_fedgtea.ipynb", 4).cells}
ns = {"__name__": "__main__", "display": lambda *_: None}
import types; mod = types.ModuleType("__main__"); sys.modules["__main__"].__dict__.update({})
import fedbook.fedgtea as lib
def ex(src): exec(compile(src, "cell", "exec"), ns)
for id in ("fafef6db", "7f1b50ac", "b1c4d4f0"): ex(cells[id])
ns.update({k: v for k, v in vars(lib).items() if not k.startswith("__")})
ns.update(profile=os.environ.get("PROFILE", "full"), device="auto", seed=0, engine="local", out="/tmp/h/rows14/run",
          changes=json.loads(os.environ.get("CHANGES", "{}")))
for id in ("7a627bee", "b6387b91"): ex(cells[id])
ex(cells["b1c4d401"])
tun = cells["b1c4d412"]; ex(tun[:tun.index("for method in (FedGTEA")])
for id in ("b1c4d403", "21b8ed18", "b1c4d410", "b1c4d421", "b1c4d422"): ex(cells[id])
mic = cells["b1c4d423"]; ex(mic[:mic.index("slides = ")])
ex(cells["b1c4d455"]); ex(cells["b1c4d45a"])
rer = cells["b1c4d460"]; ex(rer[:rer.index("for method in reruns if")])
results = ns["results"]
methods = {m.name: m for m in (ns["FedGTEA"], ns["FedAvg"], ns["AC_GAN"], *ns["ablations"], *ns["others"])}
inside = {"FedGTEA", *(m.name for m in ns["ablations"])}
def do(job):
    kind, *of = job.split(":")
    if kind == "tune":
        m = methods[of[0]]
        ns["tune"](m)
    if kind == "look":
        s = int(of[0]); results.row("microscope", s, lambda: ns["microscope"](s, ns["looks"], ns["kinds"]))
    if kind == "unit":
        s = int(of[0]); results.row("microscope, length 1", s, lambda: ns["microscope"](s, ns["few_looks"], length="unit"))
    if kind == "ask":
        for m in ns["answerers"]:
            if len(of) < 2 or of[1] in m.name: ns["answering"](m, int(of[0]))
    if kind == "row":
        m, s = methods[of[0]], int(of[1])
        ns["row"](m, s, ns["look_inside"]) if m.name in inside else ns["row"](m, s)
    if kind == "rerun": ns["row"](ns["reruns"][int(of[0]) - 1], ns["seed"])
start = time.time()
for job in jobs:
    if time.time() - start > 60 * minutes: print("time is up before", job); break
    before = len(results.rows); t = time.time()
    do(job)
    print(job, f"{time.time() - t:.0f} s", flush=True)
    with open("/tmp/h/rows14/rows.jsonl", "a") as f:
        for r in results.rows[before:]: f.write(json.dumps(r) + "\n")
