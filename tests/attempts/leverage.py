"Attempts at the exercises of nbs/methods/leverage.ipynb: see tests/test_exercises.py."
import numpy as np


def leverage_if_added__wrong_as_if_not_added(gram, x):
    return np.einsum("ij,jk,ik->i", x, np.linalg.inv(gram), x)

def leverage_if_added__wrong_all_rows_together(gram, x):
    return np.einsum("ij,jk,ik->i", x, np.linalg.inv(gram + x.T @ x), x)

def leverage_if_added__wrong_sign(gram, x):
    h = np.einsum("ij,jk,ik->i", x, np.linalg.inv(gram), x)
    return h / (1 - h)

def leverage_if_added__wrong_gram_not_inverted(gram, x):
    h = np.einsum("ij,jk,ik->i", x, gram, x)
    return h / (1 + h)

def leverage_if_added__right_row_by_row(gram, x):
    return np.array([row @ np.linalg.solve(gram + np.outer(row, row), row) for row in x])


def distinct__wrong_as_if_uniform(p, m): return len(p) * (1 - (1 - 1 / len(p)) ** m)

def distinct__wrong_no_sample_twice(p, m): return float(min(m, np.count_nonzero(p)))

def distinct__wrong_the_repeats(p, m): return m - float((1 - (1 - np.asarray(p)) ** m).sum())

def distinct__wrong_power_of_p(p, m): return float((1 - np.asarray(p) ** m).sum())

def distinct__wrong_linear(p, m): return float(np.minimum(1, m * np.asarray(p)).sum())

def distinct__right_draw_by_draw(p, m):
    "The k-th draw is new with the chance that it is a sample which the k - 1 before it have missed."
    return sum(float(each * (1 - each) ** k) for k in range(m) for each in p)


def reflect__wrong_first_one_first(x, vectors):
    for v in vectors: x = x - 2 * np.outer(v, v @ x) / (v @ v)
    return x

def reflect__wrong_length_forgotten(x, vectors):
    for v in vectors[::-1]: x = x - 2 * np.outer(v, v @ x)
    return x

def reflect__wrong_projection(x, vectors):
    for v in vectors[::-1]: x = x - np.outer(v, v @ x) / (v @ v)
    return x

def reflect__wrong_in_place(x, vectors):
    for v in vectors[::-1]: x -= 2 * np.outer(v, v @ x) / (v @ v)
    return x

def reflect__right_rows(x, vectors):
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = x.T
    for v in reversed(unit): rows = rows - 2 * (rows @ v)[:, None] * v
    return rows.T
