"Hidden cases for the exercises of `fedbook.lab`: each function draws the arguments of one case."

def seeds_for(g): return float(g.uniform(0.4, 4)), float(g.uniform(0.2, 2))


def paired_interval(g):
    n = int(g.integers(2, 8))
    hard = g.random(n)
    return (hard + g.normal(0, 0.1, n)).tolist(), (hard + g.normal(0, 0.1, n)).tolist()


def parse_bytes(g): return f"{round(float(g.uniform(0.1, 900)), 1)} {g.choice(['B', 'kB', 'MB', 'GB'])}"
