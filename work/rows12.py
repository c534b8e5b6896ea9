"""rows12.py CODE STORE GROUP[:SEEDS] ...  measure groups of rows of notebook 12; SEEDS such as 0-4."""
import fcntl, json, os, sys, time, traceback
code, store = sys.argv[1:3]
sys.path.insert(0, code)
os.chdir("/tmp")
import matplotlib; matplotlib.use("Agg")
import torch; torch.set_num_threads(1)
import fedbook.engine as engine
import fedbook.evidence as ev
plain = engine.trial
def one_worker(*a, **k):
    k.setdefault("workers", 1); return plain(*a, **k)
engine.trial = one_worker
nb = json.load(open(f"{code}/nbs/12_fedklpr.ipynb"))
cells = {c["id"]: "".join(c["source"]) for c in nb["cells"] if c["cell_type"] == "code"}
SETUP = ["43cf1793", "a695203d", "7e9a5800"]
GROUPS = {"TUNE": ["25120012"], "HEAD": ["9314d6ab"], "LENGTHS": ["25120020"], "RERUNS": ["25120021"],
          "SHARES": ["25120031"], "PULLS": ["25120032"], "AVERAGES": ["25120033"], "MAP": ["a989cbcb"], "GATE": ["25120071"],
          "CUTS": ["07cd4e3a"], "TRANSFER": ["35771662"], "CROWD": ["5290892c"], "NETWORKS": ["25120060"], "PARTED": ["25120063"],
          "DIGITS": ["98a99d18", "06cddbad"]}
ORDER = ["41e10d9b", "25120011", "25120013", "25120012", "9314d6ab", "25120074", "fd218034", "25120020", "25120021", "25120030", "25120034", "25120031", "25120032",
         "25120033", "25120071", "a989cbcb"]
def load():
    rows = {}
    if os.path.exists(store):
        for line in open(store):
            r = json.loads(line); rows[r["what"], r["seed"]] = r
    return rows
measuring, wanted_seeds = False, None
class Rows(ev.Results):
    def __init__(self, *a, **k): super().__init__(*a, **k); self.rows = []
    def sync(self):
        have = {(r["what"], r["seed"]) for r in self.rows}
        self.rows += [r for key, r in load().items() if key not in have]
    def row(self, what, seed, measure):
        self.sync()
        for r in self.rows:
            if (r["what"], r["seed"]) == (what, seed): return r["numbers"]
        if not measuring or (wanted_seeds is not None and seed < 1000 and seed not in wanted_seeds): return {}
        t = time.time(); numbers = json.loads(json.dumps(measure())); s = round(time.time() - t, 2)
        line = json.dumps(dict(what=what, seed=seed, numbers=numbers, seconds=s))
        with open(store, "a") as f:
            fcntl.flock(f, fcntl.LOCK_EX); f.write(line + "\n"); f.flush()
        print(time.strftime("%H:%M:%S"), what, seed, s, numbers.get("rank1"), flush=True)
        return numbers
    def values(self, what, number):
        self.sync(); rows = sorted((r for r in self.rows if r["what"] == what), key=lambda r: r["seed"])
        return [r["numbers"][number] for r in rows]
    def save(self): pass
    def checkpoint_path(self, *a): return None
ns = {"__name__": "rows"}
import builtins
def run(id):
    if id == "25120012" and os.environ.get("REVERSE"): exec("TRIED = dict(reversed(TRIED.items()))", ns)
    source = cells[id].replace("#| export", "")
    if id == "25120060" and os.environ.get("REVERSE"): source = source.replace("for network in NETWORKS:", "for network in reversed(NETWORKS):")
    exec(compile(source, id, "exec"), ns)
for id in SETUP: run(id)
ns["profile"] = os.environ.get("PROFILE", "full"); ns["out"] = "/tmp/h/rowsout"
if os.environ.get("CHANGES"): ns["changes"] = json.loads(os.environ["CHANGES"])
exec("import fedbook.fedklpr as k12\nfor _n in dir(k12):\n    if not _n.startswith('__'): globals()[_n] = getattr(k12, _n)\nfrom fedbook.fedklpr import _CLIENTS", ns)
ns["Results"] = Rows
ns["display"] = lambda *a, **k: None
run("a0a9d4f7")
ns["site"] = ns["world"][0]
for group in sys.argv[3:]:
    if group[:4] in ("TRY=", "ROW="):
        measuring = False
        for id in ("41e10d9b", "25120011", "25120013"): run(id)
        measuring, wanted_seeds = True, None
        what, _, ss = group[4:].partition("@")
        a, b = (ss.split("-") if ss else (0, 0))
        for m in what.split(","):
            if group[0] == "T":
                for lr in ns["sizes"].rates: ns["tried"](m, lr)
        if group[0] == "R":
            for s in range(int(a), int(b) + 1):
                for m in what.split(","):
                    if m == "DENSE": ns["run_of"]("dense, FedKLPR's rate", s, "+ KLL + KLAW", ns["rate_of"]("FedKLPR"))
                    else: ns["row"](m, s)
        continue
    name, _, ss = group.partition(":")
    a, b = (ss.split("-") if ss else (0, 0))
    for id in ORDER + [c for c in ns.get("MORE", [])]:
        measuring = False
        if id in GROUPS[name]: break
        try: run(id)
        except Exception as e: print("before", group, id, repr(e)[:200], flush=True)
    measuring, wanted_seeds = True, (range(int(a), int(b) + 1) if ss else None)
    for id in GROUPS[name]:
        for dep in {"07cd4e3a": ["0aa6e5e8", "92119999", "47e5a75d"], "25120063": ["0aa6e5e8", "92119999", "47e5a75d", "25120060"]}.get(id, []):
            measuring = False
            run(dep)
            measuring = True
        try: run(id)
        except Exception: print("FAILED", group, id, flush=True); traceback.print_exc()
print("done", sys.argv[3:], flush=True)
