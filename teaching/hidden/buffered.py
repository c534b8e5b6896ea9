"Hidden cases for the exercises of `fedbook.deploy.buffered`: each function draws the arguments of one case."

def ages(g):
    log, out = [], []
    for _ in range(int(g.integers(4, 16))):
        idle = [client for client in range(6) if client not in out]
        if out and (not idle or g.random() < 0.5):
            client = out.pop(int(g.integers(len(out))))
            log.append(("land", client))
        else:
            out.append(int(g.choice(idle)))
            log.append(("ask", out[-1]))
    return log, int(g.integers(1, 4))


def ask_for(g): return int(g.integers(1, 40)), float(g.uniform(0, 0.5)), float(g.uniform(0.2, 0.99))


def buffered_step(g):
    k, d = int(g.integers(1, 6)), int(g.integers(1, 5))
    return (g.normal(size=d), g.normal(size=(k, d)), g.integers(0, 9, k).tolist(), float(g.uniform(0.1, 2)),
            float(g.choice([0.0, 0.5, 1.0, 2.0])))
