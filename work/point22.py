"""point22.py: let every place that promises attacks point to 22_attack and 22_robust; run in the repository when both are booked, then
book 00_start, 03_wire, 10_fedreplay, 30_command and 21_private again (`fedbook book NAME --as-before`)."""
import sys; sys.path.insert(0, __file__.rsplit("/", 1)[0])
from nbedit import NB
def put(name, *pairs):
    n = NB(f"nbs/{name}.ipynb")
    for old, new in pairs:
        ids = [c["id"] for c in n.nb["cells"] if old in "".join(c["source"])]
        assert ids, (name, old)
        for id in ids: n.sub(id, old, new)
    n.save()
put("00_start", ("A later chapter, `22_attack`, will measure how much can be read.", "[22_attack](22_attack.ipynb) measures how much can be read."),
    ("IV beyond | 22_attack | what weights reveal\n", "IV beyond | 22_attack | what messages tell\nIV beyond | 22_robust | clients that lie\n"))
put("03_wire", ("a later chapter, `22_attack`, will look at it.", "[22_robust](22_robust.ipynb) looks at it."),
    ("A later chapter, 22_attack, will look at that.", "22_robust looks at that."))
put("10_fedreplay", ("Pools like this one belong under an agreement, or under noise, which chapter [21_private](21_private.ipynb) measures.",
     "[22_attack](22_attack.ipynb) trains that decoder. Pools like this one belong under an agreement, or under noise, which chapter [21_private](21_private.ipynb) measures."))
put("21_private", ("with more arithmetic the pictures themselves can be recovered (Zhu et al. 2019).",
     "with more arithmetic the pictures themselves can be recovered (Zhu et al. 2019; [22_attack](22_attack.ipynb) does it)."),
    ("**Next:** [30_command](30_command.ipynb), the `fedbook` command.", "**Next:** [22_attack](22_attack.ipynb), what messages tell."))
s = open("README.md").read()
old = "[21_private](nbs/21_private.ipynb); [30_command]"
assert old in s
open("README.md", "w").write(s.replace(old, "[21_private](nbs/21_private.ipynb), [22_attack](nbs/22_attack.ipynb), [22_robust](nbs/22_robust.ipynb); [30_command]"))
