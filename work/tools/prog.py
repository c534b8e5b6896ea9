import json,sys,collections
for p in ("/tmp/w/runs15/15_streams-full-0/results.json","/tmp/w/runs11c/11_compress-full-0/results.json"):
    try: d=json.load(open(p))
    except Exception as e: print(p,"none"); continue
    r=d["rows"]; print(p[-35:],len(r),"rows",round(sum(x["seconds"] for x in r)),"s; last",[ (x["what"],x["seed"],x["seconds"]) for x in r[-4:]])
