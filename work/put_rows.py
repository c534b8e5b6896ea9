"""put_rows.py STORE OUT: rows of STORE (jsonl) into OUT/11_fedmox-full-0/results.json, as a run of the present notebook 11 would
have kept them; then `fedbook book 11_fedmox` (or run --profile full --out OUT) measures only what is missing. Run in the repository."""
import json, os, sys
from pathlib import Path
sys.path.insert(0, os.getcwd())
import matplotlib; matplotlib.use("Agg")
from fedbook.runs import run_stamp
store, out = sys.argv[1:3]
path = Path("nbs/11_fedmox.ipynb")
os.environ["FEDBOOK_STAMP"] = run_stamp(path)
cells = {c["id"]: "".join(c["source"]) for c in json.load(open(path))["cells"] if c["cell_type"] == "code"}
ns = {"__name__": "rows"}
exec("import fedbook.fedmox as k11\nfor _n in dir(k11):\n    if not _n.startswith('__'): globals()[_n] = getattr(k11, _n)", ns)
for id in ("c5bb01cb", "7e9a5800"): exec(cells[id], ns)
ns.update(profile="full", out=out, device="cpu")
exec(cells["f10bb164"], ns)
rows = {}
for line in open(store): r = json.loads(line); rows[r["what"], r["seed"]] = r
ns["results"].rows = [rows[k] for k in sorted(rows) if k[1] < 4 or k[1] >= 100]
ns["results"].save()
print(len(rows), ns["results"].folder)
