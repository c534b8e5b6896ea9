import sys, json, base64, os
nb = json.load(open(sys.argv[1])); d = sys.argv[2]; os.makedirs(d, exist_ok=True)
for i, c in enumerate(nb["cells"]):
    for j, o in enumerate(c.get("outputs", [])):
        png = o.get("data", {}).get("image/png")
        if png: open(f"{d}/{i:03d}_{c['id']}_{j}.png", "wb").write(base64.b64decode(png if isinstance(png, str) else "".join(png)))
print(sorted(os.listdir(d)))
