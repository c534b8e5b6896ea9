"""run.py NB PROFILE FROM TO: exec code cells (in one namespace), show timing; figures to /tmp/w22/fig"""
import sys, json, time, os, traceback
sys.path.insert(0, "/work/main")
import matplotlib; matplotlib.use("Agg")
import matplotlib.pyplot as plt, torch
torch.set_num_threads(1)
nb = json.load(open(sys.argv[1])); profile = sys.argv[2]
stop = sys.argv[3] if len(sys.argv) > 3 else None
os.makedirs("/tmp/w22/fig", exist_ok=True); os.chdir("/tmp/w22")
import ast
ns = {"__name__": "__main__"}
import matplotlib.figure
shown = []
def display(*a, **k):
    for x in a: show(x)
def show(x):
    if isinstance(x, matplotlib.figure.Figure): x.savefig(f"/tmp/w22/fig/{cur}.png", dpi=80, bbox_inches="tight")
    elif x is not None:
        s = getattr(x, "_repr_markdown_", None); print("   ->", (s() if s else repr(x))[:1500])
import IPython.display as D
D.display = display
for c in nb["cells"]:
    if c["cell_type"] != "code": continue
    src = "".join(c["source"]); cur = c["id"]
    if src.startswith("profile ="): src = src.replace('"quick"', repr(profile)).replace('out = "runs"', f'out = "/tmp/w22/runs"')
    t = time.time()
    src = "\n".join(l for l in src.splitlines() if not l.startswith("#|"))
    tree = ast.parse(src); quiet = src.rstrip().endswith(";")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    try:
        exec(compile(tree, cur, "exec"), ns)
        if last:
            value = eval(compile(ast.Expression(last.value), cur, "eval"), ns)
            if not quiet: show(value)
    except Exception:
        traceback.print_exc(); print("FAILED", cur); sys.exit(1)
    for n in plt.get_fignums(): plt.figure(n).savefig(f"/tmp/w22/fig/{cur}_{n}.png", dpi=80, bbox_inches="tight")
    plt.close("all")
    dt = time.time() - t
    if dt > 0.5: print(f"{cur} {dt:.1f} s", flush=True)
    if cur == stop: break
