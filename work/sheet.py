import sys, math
from PIL import Image
out, cols, *files = sys.argv[1:]
cols = int(cols); ims = [Image.open(f).convert("RGB") for f in files]
w = max(i.width for i in ims); rows = [ims[k:k+cols] for k in range(0, len(ims), cols)]
H = sum(max(i.height for i in r) for r in rows)
sheet = Image.new("RGB", (w*cols, H), "white"); y = 0
for r in rows:
    for k, i in enumerate(r): sheet.paste(i, (k*w, y))
    y += max(i.height for i in r)
sheet.save(out)
