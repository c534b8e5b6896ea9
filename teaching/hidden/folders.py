"Hidden cases for the exercises of `fedbook.datasets.folders`: each function draws the arguments of one case."

def leaking(g):
    plants = lambda n: [str(p) for p in g.integers(0, 12, n)]
    return plants(8), plants(int(g.integers(0, 12)))


def corners(g): return [*g.integers(-20, 110, 2).tolist(), *g.integers(0, 40, 2).tolist()], 100, 80


def two_cameras(g):
    seen = g.integers((0, 1), (5, 4), (9, 2))
    names = [f"{who:04}_c{camera}s1_{n}_0.jpg" for n, (who, camera) in enumerate(seen)]
    return [*names, "-1_c1s1_1_1.jpg", "-1_c2s1_1_1.jpg", "notes.txt"]
