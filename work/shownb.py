import sys, json
nb = json.load(open(sys.argv[1]))
a = int(sys.argv[2]) if len(sys.argv) > 2 else 0
b = int(sys.argv[3]) if len(sys.argv) > 3 else len(nb['cells'])
for i, c in enumerate(nb['cells'][a:b], a):
    print(f"=== {i} {c['id']} {c['cell_type']} {c.get('metadata',{}).get('tags') or ''}")
    print(''.join(c['source']))
    if c["cell_type"] == "code" and "-o" in sys.argv:
        for o in c["outputs"]:
            d = o.get("data", {})
            t = o.get("text") or d.get("text/markdown") or d.get("text/plain") or ""
            print("--->", "".join(t)[:1500])
