import sys, nbformat, json
# usage: nbedit.py FILE CELL <<< json [[old,new],...]
p, cell = sys.argv[1:3]
pairs = json.load(sys.stdin)
nb = nbformat.read(p, 4)
c, = [c for c in nb.cells if c.id == cell]
for a, b in pairs:
    assert c.source.count(a) == 1, (c.source.count(a), a)
    c.source = c.source.replace(a, b)
nbformat.write(nb, p)
