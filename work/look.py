import json,sys,numpy as np
from scipy import stats
R={}
for l in open(sys.argv[1] if len(sys.argv)>1 else '/tmp/h/rows11.jsonl'):
    r=json.loads(l); R.setdefault(r['what'],{})[r['seed']]=r['numbers']
def diff(a,b,key='total',u=100):
    A,B=R.get(a,{}),R.get(b,{}); s=sorted(set(A)&set(B)); d=np.array([A[k][key]-B[k][key] for k in s])*u
    if len(d)<2: return f"{a} - {b}: n={len(d)}"
    h=stats.t.ppf(.975,len(d)-1)*d.std(ddof=1)/len(d)**.5
    return f"{a} - {b}: {d.mean():+.2f} [{d.mean()-h:+.2f},{d.mean()+h:+.2f}] n={len(d)}"
def mean(a,key='total',u=100): 
    v=np.array([x[key] for x in R.get(a,{}).values()])*u
    return f"{a}: {v.mean():.1f} +- {v.std(ddof=1) if len(v)>1 else 0:.1f} n={len(v)}"
