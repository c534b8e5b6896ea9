"""Rows of chapter 13, measured as the notebook measures them, kept in /tmp/h/rows13/rows.jsonl.

    rows13.py queue DIGITS FASHION CIFAR TUNE MAIN ...   measure, in this order, what is not there yet
    rows13.py book OUT                                   run the whole notebook on the rows that are there
"""
import fcntl, json, os, sys, time
from pathlib import Path
ROOT = Path(os.environ.get("C13", "/tmp/h/c13"))
os.chdir(ROOT); sys.path.insert(0, str(ROOT))
os.environ.setdefault("FEDBOOK_DATA", "/work/shared/data")
os.environ.setdefault("FEDBOOK_CACHE", "/tmp/h/rows13/cache")
os.environ["FEDBOOK_STAMP"] = ""
KEPT = Path("/tmp/h/rows13/rows.jsonl")
import matplotlib; matplotlib.use("Agg")
import nbformat
import fedbook.engine as engine, fedbook.evidence as evidence, fedbook.fedcbdr as fedcbdr
engine.default_workers = lambda: int(os.environ.get("WORKERS", "1"))

class Missing(Exception): pass
MEASURE, PROFILE, CHANGES = True, "full", {}
class Kept(evidence.Results):
    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.rows, self.order = [], {}
        if KEPT.exists():
            for line in KEPT.read_text().splitlines():
                row = json.loads(line); self.rows.append(row); self.order[row["what"], row["seed"]] = row
    def row(self, what, seed, measure):
        if hasattr(self, "_asked"): self._asked.add((what, seed))
        if (what, seed) in self.order: return self.order[what, seed]["numbers"]
        if not MEASURE: raise Missing(f"{what}, seed {seed}")
        while os.path.exists('/tmp/quiet'): time.sleep(5)
        start = time.time(); numbers = measure()
        row = dict(what=what, seed=seed, numbers=json.loads(json.dumps(numbers)), seconds=round(time.time() - start, 2))
        self.rows.append(row); self.order[what, seed] = row
        with KEPT.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX); file.write(json.dumps(row) + "\n")
        print(f"{time.strftime('%H:%M:%S')} {row['seconds']:6.1f} s  {what}, seed {seed}: {numbers.get('settled', 0):.3f}", flush=True)
        return row["numbers"]
    def values(self, what, number):
        found = [r for r in self.rows if r["what"] == what]
        return [r["numbers"][number] for r in sorted(found, key=lambda r: r["seed"])]
    def save(self): pass
evidence.Results = Kept

nb = nbformat.read(ROOT / "nbs/13_fedcbdr.ipynb", 4)
cells = {c.id: c.source for c in nb.cells if c.cell_type == "code"}
ns = {"__name__": "rows13"}
def do(*ids):
    for id in ids: exec(compile(cells[id], id, "exec"), ns)

def define(profile="full"):
    ns.update({k: v for k, v in vars(fedcbdr).items() if not k.startswith("__")})
    do("b606b59d")
    ns["display"] = lambda *a: None
    ns.update(profile=profile, device="cpu", seed=0, engine="local", out="/tmp/h/rows13/runs", changes={})
    do("4897980d", "c0ec3774", "13c00001", "13c00003", "13c00002", "13c00052")
    src = cells["6f0cbc2d"].split("for s in seeds:")[0]; exec(src, ns)
    src = cells["13c00006"].split("STRAYS")[0]; exec(src, ns)
    do("13c00021", "13c00051")
    src = cells["13c00022"].split("for world in")[0]; exec(src, ns)
    src = cells["13c00027"].split("for world in")[0]; exec(src, ns)
    do("697b04e9"); exec(cells["091be67f"], ns)
    src = cells["13c00040"].split("for s in")[0]; exec(src, ns)
    src = cells["13c00046"].split("for rounds in")[0]; exec(src, ns)

def world(data): return ns["WORLDS"][data]
def rows(names, seeds, w=None, tuned=None):
    for s in seeds:
        for name in names: ns["row"](name, s, w or ns["PICTURES"], tuned)

def queue(what):
    what, _, first = what.partition(":")          # FASHION:10 is its first ten seeds
    seeds = {name: list(ns[name])[:int(first)] if first else list(ns[name]) for name in ("seeds", "feature_seeds", "digit_seeds")}
    if what == "DIGITS": rows(ns["LOSS_ROWS"], seeds["digit_seeds"], ns["DIGITS"])
    if what == "LONG":
        for rounds in ns["LENGTHS"]: rows(ns["LOSS_ROWS"], seeds["digit_seeds"], ns["of_length"](rounds), ns["DIGITS"])
    if what == "FASHION": rows(ns["GRID"], seeds["feature_seeds"], world(ns["sizes"].data))
    if what == "CIFAR": rows(ns["GRID"], seeds["feature_seeds"], world("cifar10"))
    if what == "RERUNS-F":
        for w in ns["WORLDS"].values(): ns["reruns_of"](w)
    if what.startswith("COLUMNS"):
        for w in ns["WORLDS"].values():
            for column in ns["COLUMNS"]: rows(ns["HEADLINE"], seeds["feature_seeds"], ns["column"](w, column), w)
    if what == "TUNE": [ns["rate_of"](ns["PICTURES"], name) for name in ns["MAIN"]]
    if what == "TUNE2": [ns["rate_of"](ns["PICTURES"], name) for name in ns["PARTS"]]
    if what == "MAIN": rows(ns["MAIN"], seeds["seeds"])
    if what == "PARTS": rows(ns["PARTS"], seeds["seeds"])
    if what == "RERUNS": [ns["reruns_of"](ns["PICTURES"], kind) for kind in ("falling rate", "constant rate")]

def book(out):
    "Every cell that can run on the rows there are; figures to PNG, tables printed."
    import matplotlib.pyplot as plt
    from IPython.display import Markdown
    Path(out).mkdir(parents=True, exist_ok=True)
    ns.update({k: v for k, v in vars(fedcbdr).items() if not k.startswith("__")})
    shown = []
    def show(*values):
        for v in values: print(v._repr_markdown_() if hasattr(v, "_repr_markdown_") else v)
    for c in nb.cells:
        if c.cell_type != "code" or "#| export" in c.source or "default_exp" in c.source: continue
        if "parameters" in c.metadata.get("tags", []):
            ns.update(profile=PROFILE, device="cpu", seed=0, engine="local", out="/tmp/h/rows13/runs", changes=CHANGES); continue
        print("#####", c.id)
        try:
            import ast
            tree = ast.parse(c.source); last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr) and not c.source.rstrip().endswith(";"):
                last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, c.id, "exec"), ns)
            ns["display"] = show
            if last:
                value = eval(compile(last, c.id, "eval"), ns)
                if hasattr(value, "_repr_markdown_"): show(value)
        except Missing as m: print("MISSING", m)
        except Exception as e:
            import traceback
            print("FAILED", type(e).__name__, e, traceback.format_exc()[-700:])
        for k, n in enumerate(plt.get_fignums()):
            plt.figure(n).savefig(f"{out}/{c.id}_{k}.png", dpi=80, bbox_inches="tight")
        plt.close("all")

if __name__ == "__main__":
    import torch; torch.set_num_threads(1)
    if sys.argv[1] == "queue":
        define()
        for what in sys.argv[2:]:
            while os.path.exists("/tmp/quiet"): time.sleep(5)
            print("==", what, flush=True); queue(what)
    if sys.argv[1] == "time":
        define(); ns["seeds"] = range(1)
        name = sys.argv[2]; w = {"P": ns["PICTURES"], "D": ns["DIGITS"]}.get(sys.argv[3]) or world(sys.argv[3])
        start = time.time(); numbers = ns["measured"](w, ns["METHODS"][name], 5000, float(sys.argv[4]), f"TRY {sys.argv[4]} {name}")
        print(name, round(time.time() - start, 1), "s", [round(v, 3) for v in numbers["rounds"]], round(numbers["settled"], 3))
    if sys.argv[1] in ("smoke", "quick"):
        PROFILE, KEPT = sys.argv[1], Path(f"/tmp/h/rows13/{sys.argv[1]}.jsonl")
        KEPT.unlink(missing_ok=True)
        book(sys.argv[2])
    if sys.argv[1] == "book":
        MEASURE, CHANGES = False, dict(pair.split("=") for pair in sys.argv[3:])
        book(sys.argv[2])
