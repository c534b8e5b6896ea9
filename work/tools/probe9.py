src=open("/tmp/w/side.py").read().split("# exported")[0]
src=src.replace("/tmp/w/m1","/tmp/w/m4"); import re
src=re.sub(r'os\.environ\["FEDBOOK_STAMP"\]=.*','os.environ["FEDBOOK_STAMP"]=""',src); src=re.sub(r"assert os\.environ.*","",src)
exec(src)
import fedbook.streams as S
for k,v in vars(S).items():
    if not k.startswith("__"): G[k]=v
for i in ("29a00004","29a00005"): run(i)
G.update(profile="full",device="cpu",seed=0,engine="local",out="/tmp/w/runsP9",changes={})
for i in ("29a00026","29a0002f","29a00098","29a00030","29a00031","29a00032"): run(i)
G["METHODS"]["federated LDA"]=S.FederatedLDA; G["METHODS"]["class means alone"]=S.ClassMeans
run("29a0004f"); run("29a00067")
from functools import partial
from fedbook.continual import StreamExperiment
from fedbook.engine import trial
import time
W=G["World"]("sensors: ",G["METHODS"],G["on_sensors"],S.kernel_stream)
for name,f in [a.rsplit("@",1) for a in sys.argv[1:]]:
    z=G["roomy"](name,G["at"](float(f),W.methods[name],W.sizes),W.streams,1000); t=time.time()
    e=StreamExperiment(z,1000,"cpu",W.methods[name],partial(W.streams,tuning=True)); tr=trial(e,workers=1); o=e.outcome(tr)
    print(name,f,z.rounds,round(o.accuracy,3),[round(r[k],2) for k,r in enumerate(o.matrix)],[round(x,2) for x in o.matrix[-1]],round(time.time()-t),flush=True)
