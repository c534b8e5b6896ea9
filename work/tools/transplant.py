import sys; sys.path.insert(0,"/tmp/w/m3")
import json,glob,hashlib,re
from pathlib import Path
from fedbook.compress import profiles
from fedbook.evidence import Results
from fedbook.runs import run_stamp
from fedbook.engine import _digest
from fedbook.wire import pack,Msg,unpack
import torch
dst=Path("/tmp/w/runs11c/11_compress-full-0"); dst.mkdir(parents=True,exist_ok=True)
new=None
for f in glob.glob("/tmp/w/runs11b/11_compress-full-0/*.safetensors"):
    msg=unpack(Path(f).read_bytes()); parts={n:t.numpy().tobytes() for n,t in msg.tensors.items()}
    run=json.loads(parts["run"]); about=run["about"]; facts=about[3]
    if new is None:
        new=dict(facts); sizes=json.loads(json.dumps(vars(profiles["full"])))
        print({k:(facts["sizes"].get(k),sizes.get(k)) for k in set(sizes)|set(facts["sizes"]) if facts["sizes"].get(k)!=sizes.get(k)})
        new["sizes"]={k:sizes[k] for k in facts["sizes"] if k in sizes}
        assert set(new["sizes"])==set(sizes)
        new["scale"]=new["scale"].replace("60 pictures in each","20 pictures in each"); new["stamp"]=run_stamp(Path("/tmp/w/m3/nbs/11_compress.ipynb").resolve())
    about[3]=new; print(about[:3],run["place"])
    parts["run"]=json.dumps(run).encode()
    digest=hashlib.sha256(json.dumps([f"warm-up, {about[1]}",about[2],new]).encode()).hexdigest()[:12]
    path=dst/f"{re.sub(r'[^a-zA-Z0-9]+','-',f'warm-up, {about[1]}')}-{digest}.safetensors"
    path.write_bytes(pack(Msg({n:torch.frombuffer(bytearray(d),dtype=torch.uint8) for n,d in parts.items()},{"digest":_digest(parts)})))
print(new)
