import json,sys,numpy as np
sys.path.insert(0,"/work/main")
from fedbook.evidence import interval
d=json.load(open("/tmp/w/runs15/15_streams-full-0/results.json"))
from collections import OrderedDict
R=OrderedDict()
for x in d["rows"]: R.setdefault(x["what"],[]).append(x["numbers"])
for k,v in R.items():
    a=[n["accuracy"]*100 for n in v]; m,h=interval(a) if len(a)>1 else (a[0],0)
    extra=""
    if "forgetting" in v[0]: extra=f" forg {100*np.mean([n['forgetting'] for n in v]):.0f} held {np.mean([n['held'] for n in v]):.0f} up {np.mean([n['up'] for n in v])/1e6:.1f} down {np.mean([n['down'] for n in v])/1e6:.1f} s {np.mean([n['seconds'] for n in v]):.0f} div {sum(n['diverged'] for n in v)}"
    print(f"{k}: {m:.1f} ±{h:.1f} n{len(a)}{extra}")
for c in d["claims"]: print(c["claim"],"|",c["verdict"],"|",c["low"],c["high"],c.get("note"))
