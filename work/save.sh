#!/bin/bash
# commit the working tree and take it back in the next commit, without touching the working tree
cd /work/main
mkdir -p /tmp/w/stage/work/src22 /tmp/w/stage/work/rob22
cp /tmp/w/work/{put_rows.py,point22.py,figs.py,nbedit.py,sheet.py,shownb.py,rows11.py} /tmp/w/stage/work/
cp /tmp/h/rows11.jsonl /tmp/w/stage/work/; cp /tmp/h/probe.jsonl /tmp/w/work/probe11.py /tmp/w/work/rows11_3_rounds.jsonl /tmp/w/stage/work/ 2>/dev/null; cp /tmp/w/look.py /tmp/w/save.sh /tmp/w/stage/work/
cp /tmp/w22/src/*.txt /tmp/w22/src/build.py /tmp/w22/src/run.py /tmp/w/stage/work/src22/; cp /tmp/w22/rob/*.txt /tmp/w/stage/work/rob22/
cp /tmp/w/README.md /tmp/w/stage/work/README.md
export GIT_INDEX_FILE=/tmp/w/index; cp .git/index $GIT_INDEX_FILE
git add -A . && for f in $(cd /tmp/w/stage && find work -type f); do git update-index --add --cacheinfo 100644,$(git hash-object -w /tmp/w/stage/$f),$f; done
tree=$(git write-tree); old=$(git rev-parse HEAD^{tree})
c1=$(git commit-tree $tree -p HEAD -m "FedMox (11), 22_attack and 22_robust in work, kept in history, taken back in the next commit" -m "${1:-}")
c2=$(git commit-tree $old -p $c1 -m "Taken back: work on FedMox (11), 22_attack and 22_robust (git show $c1)")
git update-ref refs/heads/main $c2; echo $c1 $c2; git diff --stat $c2~2 $c2 | tail -1
