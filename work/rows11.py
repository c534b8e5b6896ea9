"""rows11.py CODE STORE GROUP[:SEEDS] ...  measure groups of rows of notebook 11; SEEDS such as 0-2 (of any range)."""
import builtins, fcntl, hashlib, json, os, sys, time, traceback
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
nb = json.load(open(f"{code}/nbs/11_fedmox.ipynb"))
cells = {c["id"]: "".join(c["source"]) for c in nb["cells"] if c["cell_type"] == "code"}
GROUPS = {"NAIVE": ["8a6a91ee"], "MEMORY": ["afdb9603"], "HEADS": ["11c0b005"], "GRADIENT": ["11c0b009"], "COLLAPSE": ["11c0b012"],
          "LABELS": ["11c0b015"], "TRIES": ["11c0b021"], "MAIN": ["de873965"], "PENALTY": ["11c0b036"],
          "PARTS": ["11c0b023"], "RERUNS": ["11c0b026"], "AGREE": ["a9db1ebb"], "TOY": ["11c0c002"], "MAP": ["11c0c006"],
          "PLACES": ["11c0c007"], "GROWN": ["83f9f5e8"], "WEAK": ["8806c057"], "SEGMENTS": ["11c0d008"], "SMALL": ["ebdc1bcf"]}
ORDER = ["11c0b002", "11c0b004", "11c0b033", "11c0b005", "11c0b009", "11c0b012", "11c0b015", "e6c97fd8", "11c0b021", "11c0b022",
         "fe92a759", "de873965", "11c0b036", "11c0b023", "11c0b026", "21a86db0", "a9db1ebb", "facfa26d", "11c0c002", "11c0c006",
         "1aff7633", "11c0c003", "11c0c004", "11c0c007", "83f9f5e8", "8806c057", "11c0d001", "11c0d003", "11c0d005", "11c0d006", "11c0d007", "11c0d012",
         "11c0d008", "80aaf7ed", "ebdc1bcf"]
FIRST = ["60d66ccd", "8a6a91ee", "afdb9603"]
def load():
    rows = {}
    if os.path.exists(store):
        for line in open(store):
            r = json.loads(line); rows[r["what"], r["seed"]] = r
    return rows
measuring, wanted = False, None
class Rows(ev.Results):
    def __init__(self, *a, **k): super().__init__(*a, **k); self.rows = []; self.size = -1
    def sync(self):
        size = os.path.getsize(store) if os.path.exists(store) else 0
        if size == self.size: return
        self.size = size
        have = {(r["what"], r["seed"]) for r in self.rows}
        self.rows += [r for key, r in load().items() if key not in have]
        self.at = {(r["what"], r["seed"]): r for r in self.rows}
    def row(self, what, seed, measure):
        self.sync()
        if (what, seed) in getattr(self, "at", {}): return self.at[what, seed]["numbers"]
        if not measuring or (wanted is not None and seed not in wanted): return {}
        t = time.time(); numbers = json.loads(json.dumps(measure())); s = round(time.time() - t, 2)
        line = json.dumps(dict(what=what, seed=seed, numbers=numbers, seconds=s))
        with open(store, "a") as f:
            fcntl.flock(f, fcntl.LOCK_EX); f.write(line + "\n"); f.flush()
        print(time.strftime("%H:%M:%S"), what, seed, s, numbers.get("total"), flush=True)
        return numbers
    def values(self, what, number):
        self.sync(); rows = sorted((r for r in self.rows if r["what"] == what), key=lambda r: r["seed"])
        return [r["numbers"][number] for r in rows]
    def save(self): pass
    def checkpoint_path(self, *a): return None
ns = {"__name__": "rows"}
def run(id):
    exec(compile(cells[id].replace("#| export", ""), id, "exec"), ns)
    if id == "11c0b002":
        inner = ns["warmed"]
        def warmed(chosen, s):
            if chosen.experts == 1: chosen = ns["replace"](chosen, mixed="both", detach=True, balance=0.0, upcycle=0.0)
            key = [getattr(chosen, name) for name in ns["WARMS"]] + [s]
            os.makedirs("/tmp/h/warm11", exist_ok=True)
            path = f"/tmp/h/warm11/{hashlib.sha1(repr((key, os.environ.get('CHANGES'))).encode()).hexdigest()[:16]}.pt"
            if os.path.exists(path): return torch.load(path)
            with open(path + ".lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not os.path.exists(path):
                    torch.save(inner(chosen, s), path + ".part"); os.replace(path + ".part", path)
            return torch.load(path)
        ns["warmed"] = warmed
exec("import fedbook.fedmox as k11\nfor _n in dir(k11):\n    if not _n.startswith('__'): globals()[_n] = getattr(k11, _n)", ns)
for id in ["c5bb01cb", "7e9a5800"]: run(id)
ns["profile"] = os.environ.get("PROFILE", "full"); ns["out"] = "/tmp/h/rowsout"
if os.environ.get("CHANGES"): ns["changes"] = json.loads(os.environ["CHANGES"])
ns["Results"] = Rows
ns["display"] = lambda *a, **k: None
import io, contextlib
run("f10bb164")
def quietly(id):
    try:
        with contextlib.redirect_stdout(io.StringIO()): run(id)
    except Exception as e: print("before", id, repr(e)[:200], flush=True)
for group in sys.argv[3:]:
    name, _, ss = group.partition(":")
    a, _, b = ss.partition("-")
    wanted = range(int(a), int(b or a) + 1) if ss else None
    goal = GROUPS[name][0]
    for id in FIRST + ORDER:
        measuring = id == goal
        if measuring:
            try: run(id)
            except Exception: print("FAILED", group, id, flush=True); traceback.print_exc()
            break
        if id in FIRST and goal not in FIRST: continue
        if id in FIRST[1:]: continue
        quietly(id)
    import matplotlib.pyplot as plt; plt.close("all")
print("done", sys.argv[3:], flush=True)
