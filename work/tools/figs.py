import sys,nbformat,base64,io
from PIL import Image
f,out=sys.argv[1:3]; want=set(sys.argv[3:])
nb=nbformat.read(f,4); ims=[]
for c in nb.cells:
    for o in c.get("outputs",[]):
        d=o.get("data",{})
        if "image/png" in d and (not want or c.id in want):
            ims.append((c.id,Image.open(io.BytesIO(base64.b64decode(d["image/png"]))).convert("RGB")))
from PIL import ImageDraw
cols=2; w=900
ims=[(i,im.resize((w,int(im.height*w/im.width)))) for i,im in ims]
rows=[ims[k:k+cols] for k in range(0,len(ims),cols)]
H=sum(max(im.height for _,im in r)+16 for r in rows)
sheet=Image.new("RGB",(cols*w,H),"white"); y=0; dr=ImageDraw.Draw(sheet)
for r in rows:
    for k,(i,im) in enumerate(r): dr.text((k*w,y),i,fill="red"); sheet.paste(im,(k*w,y+14))
    y+=max(im.height for _,im in r)+16
sheet.save(out); print(sheet.size)
