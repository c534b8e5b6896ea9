"""put_rob.py STORE OUT: rows of STORE (jsonl) into OUT/22_robust-full-0/results.json, as a run of the present notebook would have kept them."""
import json, os, sys
from pathlib import Path
sys.path.insert(0, os.getcwd())
import matplotlib; matplotlib.use("Agg")
from fedbook.runs import run_stamp
store, out = sys.argv[1:3]
path = Path("nbs/22_robust.ipynb")
os.environ["FEDBOOK_STAMP"] = run_stamp(path)
cells = {c["id"]: "".join(c["source"]) for c in json.load(open(path))["cells"] if c["cell_type"] == "code"}
ns = {"__name__": "rows"}
exec("import fedbook.robust as k\nfor _n in dir(k):\n    if not _n.startswith('__'): globals()[_n] = getattr(k, _n)", ns)
for id in ("22c00003", "22c00004", "22c00126"): exec(cells[id], ns)
ns.update(profile="full", device="cpu", seed=0, out=out, changes={})
exec(cells["22c00010"], ns)
rows = {}
for line in open(store):
    r = json.loads(line); rows[r["what"], r["seed"]] = r
ns["results"].rows = [rows[k] for k in sorted(rows)]
ns["results"].save()
print(len(rows), ns["results"].folder)
