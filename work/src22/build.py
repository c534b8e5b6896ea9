"""build.py OUT PART...: cells from files; '#md' / '#code [id]' lines begin a cell. Ids are given by the file and number, or by name."""
import sys, json, re, os
out, parts = sys.argv[1], sys.argv[2:]
cells = []
old = {}
if os.path.exists(out):
    for c in json.load(open(out))["cells"]: old[c["id"]] = c
for part in parts:
    kind, ident, lines = None, None, []
    def flush():
        if kind is None: return
        src = "\n".join(lines).strip("\n")
        c = dict(cell_type="markdown" if kind == "md" else "code", id=ident, metadata={}, source=src.splitlines(True))
        if kind != "md":
            keep = old.get(ident, {})
            c.update(execution_count=None, outputs=keep.get("outputs", []))
            if src.startswith("profile ="): c["metadata"] = {"tags": ["parameters"]}
        cells.append(c)
    for line in open(part).read().splitlines():
        m = re.match(r"^#(md|code) (\w{8})$", line)
        if m:
            flush(); kind, ident, lines = m[1], m[2], []
        else: lines.append(line)
    flush()
ids = [c["id"] for c in cells]; assert len(set(ids)) == len(ids), [i for i in ids if ids.count(i) > 1]
nb = dict(cells=cells, metadata={"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}, nbformat=4, nbformat_minor=5)
json.dump(nb, open(out, "w"), indent=1, ensure_ascii=False); open(out, "a").write("\n")
print(len(cells), "cells")
