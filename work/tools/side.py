import sys,os; sys.path.insert(0,"/tmp/w/m1"); os.chdir("/tmp/w/m1/nbs")
import matplotlib; matplotlib.use("agg")
import torch, nbformat, json
torch.set_num_threads(1)
from pathlib import Path
from fedbook.runs import run_stamp
nbp=Path("/tmp/w/m1/nbs/15_streams.ipynb").resolve()
os.environ["FEDBOOK_STAMP"]=json.load(open("/tmp/w/runs15/15_streams-full-0/results.json"))["stamp"]
assert os.environ["FEDBOOK_STAMP"]==run_stamp(nbp)
nb=nbformat.read(nbp,4); C={c.id:c.source for c in nb.cells}
G={"__name__":"side"}
def run(i,src=None): exec(compile(src or C[i],i,"exec"),G)
run("29a00003"); 
# exported definitions come from the package
import fedbook.streams as S
for k,v in vars(S).items():
    if not k.startswith("__"): G[k]=v
for i in ("29a00004","29a00005"): run(i)
G.update(profile="full",device="cpu",seed=0,engine="local",out="/tmp/w/runs15s",changes={})
run("29a00026")
for i in ("29a0002f","29a00098","29a00030","29a00031","29a00032"): run(i)
G["METHODS"]["federated LDA"]=S.FederatedLDA; G["METHODS"]["class means alone"]=S.ClassMeans
run("29a0004f"); run("29a00067")
exec("""
WORLDS["sensors"] = World("sensors: ", SENSOR_METHODS, on_sensors, sensor_stream)
ON_KERNELS = ("federated LDA", "FedCBDR", "iCaRL")
WORLDS["kernels"] = World("random kernels: ", METHODS, on_sensors, kernel_stream)
""",G)
row=G["row"]
old=json.load(open("/tmp/w/runs15/15_streams-full-0/results.json"))
print({k:(old[k],v) for k,v in G["results"].facts.items() if old[k]!=v},flush=True)
for s in G["sensor_seeds"]:
    for name in G["ON_KERNELS"]: row(name,s,"kernels")
    for name in G["SENSOR_METHODS"]: row(name,s,"sensors"); print(name,s,flush=True)
