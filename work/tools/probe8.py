import sys; sys.path.insert(0,"/tmp/w/m4")
import torch,time,math; torch.set_num_threads(1)
from torch import nn
import torch.nn.functional as F
from fedbook import streams as S
from fedbook.sensors import machine_sensors
tr,te=machine_sensors(100,64,0),machine_sensors(40,64,0,"test")
def body(kind):
    A=S._AlongTime()
    if kind=="gn": L=[A,nn.Conv2d(6,32,(1,7),padding=(0,3)),nn.GroupNorm(4,32),nn.ReLU(),nn.MaxPool2d((1,2)),nn.Conv2d(32,32,(1,5),padding=(0,2)),nn.GroupNorm(4,32),nn.ReLU(),nn.MaxPool2d((1,4)),nn.Flatten(),nn.Linear(256,128),nn.ReLU()]
    if kind=="mean": L=[A,nn.Conv2d(6,32,(1,7),padding=(0,3)),nn.ReLU(),nn.MaxPool2d((1,2)),nn.Conv2d(32,32,(1,5),padding=(0,2)),nn.ReLU(),nn.AdaptiveAvgPool2d((1,1)),nn.Flatten(),nn.Linear(32,128),nn.ReLU()]
    if kind=="gnmean": L=[A,nn.Conv2d(6,64,(1,7),padding=(0,3)),nn.GroupNorm(8,64),nn.ReLU(),nn.MaxPool2d((1,2)),nn.Conv2d(64,64,(1,5),padding=(0,2)),nn.GroupNorm(8,64),nn.ReLU(),nn.AdaptiveAvgPool2d((1,2)),nn.Flatten(),nn.Linear(128,128),nn.ReLU()]
    if kind=="old": return S.time_body((6,4,16),128)
    return nn.Sequential(*L)
for kind in ("old","gn","gnmean"):
  for lr in (.05,.3):
    for m in (0,1):
        cl=torch.arange(5)+5*m
        a=torch.isin(tr.labels,cl); b=torch.isin(te.labels,cl)
        x,y=S.in_rows(tr.x[a]),tr.labels[a]-5*m; X,Y=S.in_rows(te.x[b]),te.labels[b]-5*m
        torch.manual_seed(0); net=nn.Sequential(body(kind),nn.Linear(128,5)); o=torch.optim.SGD(net.parameters(),lr); out=[]
        for ep in range(1,37):
            p=torch.randperm(len(y))
            for i in range(0,len(y),32):
                j=p[i:i+32]; o.zero_grad(); F.cross_entropy(net(x[j]),y[j]).backward(); o.step()
            if ep in (3,9,18,36):
                with torch.no_grad(): out.append((ep,round((net(X).argmax(1)==Y).float().mean().item(),2)))
        print(kind,lr,m,out,flush=True)
