src=open("/tmp/w/probe3.py").read().split("import time\n")[0]
exec(src)
import time
from dataclasses import replace
W=G["WORLDS"]["sensors"]; K=G["WORLDS"]["kernels"]
def go(w,name,f):
    z=G["roomy"](name,G["at"](f,W.methods[name] if w is W else K.methods[name],w.sizes),w.streams,1000); t=time.time()
    e=StreamExperiment(z,1000,"cpu",w.methods[name],partial(w.streams,tuning=True)); tr=trial(e,workers=1); o=e.outcome(tr)
    print("S" if w is W else "K",name,f,z.rounds,round(o.accuracy,3),[round(r[k],2) for k,r in enumerate(o.matrix)],[round(x,2) for x in o.matrix[-1]],round(time.time()-t),flush=True)
U="FedCBDR, uniform draw"
for f in (1.0,.3): go(W,U,f)
go(W,"iCaRL",.3); go(K,"federated LDA",1.0); go(K,U,.3); go(K,"iCaRL",.3); go(W,"AC-GAN + FedAvg",1.0)
