import json
class NB:
    def __init__(self, path): self.path, self.nb = path, json.load(open(path))
    def at(self, id): return next(i for i, c in enumerate(self.nb["cells"]) if c["id"] == id)
    def get(self, id): return "".join(self.nb["cells"][self.at(id)]["source"])
    def put(self, id, src): self.nb["cells"][self.at(id)]["source"] = src.strip("\n").splitlines(True)
    def sub(self, id, old, new, n=1):
        s = self.get(id); assert s.count(old) >= 1, (id, old); self.put(id, s.replace(old, new))
    def cell(self, id, src, kind="code"):
        c = dict(cell_type=kind, id=id, metadata={}, source=src.strip("\n").splitlines(True))
        if kind == "code": c.update(execution_count=None, outputs=[])
        return c
    def after(self, where, id, src, kind="code"): self.nb["cells"].insert(self.at(where) + 1, self.cell(id, src, kind))
    def md(self, where, id, src): self.after(where, id, src, "markdown")
    def drop(self, *ids):
        for id in ids: del self.nb["cells"][self.at(id)]
    def move(self, ids, where):
        moved = [self.nb["cells"][self.at(id)] for id in ids]
        self.nb["cells"] = [c for c in self.nb["cells"] if c["id"] not in ids]
        i = self.at(where) + 1; self.nb["cells"][i:i] = moved
    def save(self): open(self.path, "w").write(json.dumps(self.nb, indent=1, ensure_ascii=False) + "\n")
