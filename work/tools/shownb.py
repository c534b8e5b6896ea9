import sys,nbformat
nb=nbformat.read(sys.argv[1],4)
for i,c in enumerate(nb.cells):
    print(f"--- [{i}] {c.cell_type} {c.id}")
    print(c.source)
