"""put_warm.py STORE OUT: as put_rows.py, and finished checkpoints of the first seed's warm-ups (from /tmp/h/warm11) beside the rows."""
import hashlib, os, runpy, sys
g = runpy.run_path(os.path.join(os.path.dirname(__file__), "put_rows.py"))
import torch
from dataclasses import replace
from fedbook.engine import Checkpoint
from fedbook.fedavg import Federation, Here, Place
from fedbook.report import History
ns, cells = g["ns"], g["cells"]
for id in ("11c0b002",): exec(cells[id], ns)
sizes = ns["sizes"]
for experts in (1, sizes.experts):
    chosen = replace(sizes, experts=experts)
    if experts == 1: chosen = replace(chosen, mixed="both", detach=True, balance=0.0, upcycle=0.0)
    key = [*(getattr(chosen, name) for name in ns["WARMS"]), 0]
    pt = f"/tmp/h/warm11/{hashlib.sha1(repr((key, None)).encode()).hexdigest()[:16]}.pt"
    path = ns["results"].checkpoint_path(f"warm-up {key}", 0)
    its = replace(chosen, share=0, lr=chosen.warm_lr, penalty="none", rounds=chosen.warmup)
    server = ns["street_server"](its, 0, "cpu", lasting=True, rise=5, phase=0)
    weights = torch.load(pt); assert weights.keys() == server.weights.keys()
    server.weights = weights
    with Federation(Here(lambda id: None), []) as nobody:
        Checkpoint(path, ["warm-up", *key, ns["results"].facts]).save(Place(chosen.warmup), server, nobody, History())
    back = ns["warm_up"](chosen, 0, "cpu", Checkpoint(path, ["warm-up", *key, ns["results"].facts]))
    assert all(torch.equal(back[n], t) for n, t in weights.items()); print(path, "kept")
