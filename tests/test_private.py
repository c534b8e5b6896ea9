"The anatomy of Flower's masks: the cells of nbs/privacy/private.ipynb that build it, run by themselves."
import ast
import base64
from dataclasses import replace
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import AT_NIGHT, normal

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

from books import book
from fedbook.engine.federation import weighted_average
from fedbook.engine.local import generator, predict
from fedbook.engine.sizes import choose
from fedbook.engine.wire import Msg
from fedbook.kit.runs import chapters
from fedbook.methods.fedavg import FedAvgExperiment
from fedbook.methods.score import accuracy
from fedbook.privacy.private import profiles

matplotlib.use("Agg")


def builds(node):
    "Whether a statement imports, defines, sets the style of figures, or names a number."
    if isinstance(node, ast.Assign):
        return not any(isinstance(part, (ast.Call, ast.Name)) for part in ast.walk(node.value))
    return (isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))
            or ast.unparse(node) == "style()")


def built():
    """What the cells that only build define, by name. Their functions are of `__main__`, as in a
    kernel, so that Ray's workers are sent them whole."""
    names, path = {"__name__": "__main__"}, chapters()["privacy/private"]
    with matplotlib.rc_context():
        for cell in book(path).cells:
            if cell.cell_type != "code" or not all(map(builds, ast.parse(cell.source).body)): continue
            exec(compile(cell.source, f"{path.name}: {cell.id}", "exec"), names)
    return SimpleNamespace(**{name: value for name, value in names.items() if not name.startswith("__")})


PRIVATE = built()


# Masks


def test_whole_numbers_by_hand():
    assert PRIVATE.whole_numbers(np.array([-9.0, -1.0, 0.0, 0.5, 9.0]), clip=1.0,
                                 levels=4).tolist() == [0, 0, 2, 3, 4]


@given(st.integers(1, 6), st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_masks_cancel_in_the_sum_to_the_last_bit(n, seed):
    x = np.random.default_rng(seed).normal(size=(n, 50))
    whole = PRIVATE.whole_numbers(x)
    total = PRIVATE.mask_vectors(whole, seed).sum(0) % 2**32
    assert (total == whole.sum(0)).all()
    assert np.abs(PRIVATE.mean_of(total, n) - x.mean(0)).max() <= 16 / 2**22


def test_a_masked_upload_looks_uniform():
    uploads = PRIVATE.mask_vectors(np.zeros((3, 10000), np.int64), 0)
    counts = np.array([np.bincount(row >> 28, minlength=16) for row in uploads])
    assert counts.min() > 450 and counts.max() < 800


def test_no_seed_of_a_mask_has_more_than_28_bits():
    flower = pytest.importorskip("flwr.common.secure_aggregation.secaggplus_utils")
    draw = np.random.default_rng(0)
    for _ in range(20):
        key = base64.urlsafe_b64encode(draw.bytes(32))
        seed, shapes = PRIVATE.folded_seed(key), [(1,), (2, 3)]
        assert seed & 0x80808080 == 0
        assert all((a == b).all() for a, b in zip(flower.pseudo_rand_gen(key, 2**32, shapes),
                                                  PRIVATE.mask_of(seed, shapes), strict=True))


def test_flower_makes_its_pairwise_keys_in_base64():
    keys = PRIVATE.secagg_round([np.zeros(1), np.zeros(1)], [1, 1])["keys"]
    assert keys[1, 2] == keys[2, 1] and len(base64.urlsafe_b64decode(keys[1, 2])) == 32


def test_key_seeds_are_all_different_and_only_those_without_top_bits():
    some = PRIVATE.key_seed(np.arange(0, 2**28, 997))
    assert len(set(some.tolist())) == len(some) and not (some & 0x80808080).any()
    assert PRIVATE.key_seed(2**28 - 1) == 0x7F7F7F7F


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
@settings(max_examples=20, deadline=None)
def test_first_words_are_those_of_numpys_generator(seeds):
    words = [np.random.RandomState(seed).randint(0, 2**32, dtype=np.uint64) for seed in seeds]
    assert PRIVATE.first_words(np.array(seeds, np.uint32)).tolist() == words


@pytest.mark.parametrize("at", [1000, 1234, 4999])
def test_a_seed_is_found_where_it_lies_and_not_beside(at):
    word = PRIVATE.first_words(PRIVATE.key_seed([at]))[0]
    assert int(PRIVATE.key_seed(at)) in PRIVATE.find_seeds(word, 1000, 5000, chunk=700)[0]
    for start, stop in ((1000, at), (at + 1, 5000)):
        assert int(PRIVATE.key_seed(at)) not in PRIVATE.find_seeds(word, start, stop, chunk=700)[0]


def test_the_server_learns_the_sum_and_with_one_seed_each_summand():
    vectors, counts = [normal(40, seed=k).numpy() for k in range(3)], [300, 500, 200]
    seen = PRIVATE.secagg_round(vectors, counts)
    own = {id: PRIVATE.folded_seed(seed) for id, seed in seen["own"].items()}
    left = {id: PRIVATE.peel(vector, own[id], 1) for id, vector in seen["masked"].items()}
    shares = [round(count / 500 * 2**22) for count in counts]
    assert sum(vector[0][0] for vector in left.values()) % 2**32 == sum(shares)

    first = PRIVATE.peel(left[1], PRIVATE.folded_seed(seen["keys"][1, 3]), -1)
    missing = PRIVATE.folded_seed(seen["keys"][1, 2])
    assert PRIVATE.first_words(np.array([missing]))[0] == (shares[0] - first[0][0]) % 2**32
    bare = PRIVATE.peel(first, missing, -1)
    assert bare[0][0] == shares[0]
    assert np.abs((bare[1] * 16 / 2**22 - 8) * 2**22 / shares[0] - vectors[0]).max() < 2 * 16 / 2**22
    assert PRIVATE.peel(first, missing ^ 1, -1)[0][0] != shares[0]


def few():
    sizes = choose(profiles, "smoke")
    return replace(sizes, clients=sizes.secagg_clients, per_round=sizes.secagg_clients, batch=100, lr=0.05)

def averaged(sizes, ids):
    "Accuracy of FedAvg's model after one round with clients `ids`, computed here."
    experiment, replies = FedAvgExperiment(sizes), []
    for id in ids:
        client = experiment.client(id)
        client.generator = generator(0, id, 1)
        msg = client.fit(Msg(experiment.network().state_dict()))
        replies.append(({name: t.clone() for name, t in msg.tensors.items()}, msg.meta["n"]))
    x, y = experiment.pictures("test").tensors()
    return accuracy(predict(experiment.network(), weighted_average(*zip(*replies)), x), y)


@pytest.fixture(scope="module")
def secagg():
    "One round of each kind, all in one simulation."
    pytest.importorskip("ray")
    jobs = {"secure": PRIVATE.Job(), "plain": PRIVATE.Job(secure=False),
            "leaves late": PRIVATE.Job(threshold=2, leaving=("collect_masked_vectors", [0])),
            "leaves early": PRIVATE.Job(threshold=2, leaving=("share_keys", [0]))}
    runs = PRIVATE.secagg_runs(few(), list(jobs.values()))
    return {name: history.rows[0] for name, history in zip(jobs, runs)}


@AT_NIGHT
def test_secure_aggregation_gives_fedavgs_model_in_four_exchanges(secagg):
    sizes, row, plain = few(), secagg["secure"], secagg["plain"]
    assert row["moved"] and row["failed"] == plain["failed"] == 0
    assert (row["exchanges"], plain["exchanges"]) == (4, 1)
    alone = averaged(sizes, range(sizes.clients))
    assert abs(row["accuracy"] - alone) < 0.005 and abs(plain["accuracy"] - alone) < 0.005
    weights = sizes.clients * sum(t.numel() for t in FedAvgExperiment(sizes).network().parameters())
    assert 8 * weights < row["up"] < 1.03 * 8 * weights and 4 * weights < plain["up"] < 1.03 * 4 * weights


@AT_NIGHT
def test_a_client_that_leaves_after_sharing_its_keys_is_left_out(secagg):
    row, sizes = secagg["leaves late"], few()
    assert row["moved"] and row["failed"] == 1
    assert abs(row["accuracy"] - averaged(sizes, range(1, sizes.clients))) < 0.005


@AT_NIGHT
def test_a_client_that_leaves_before_it_shares_its_keys_costs_the_round(secagg):
    assert not secagg["leaves early"]["moved"] and secagg["leaves early"]["failed"] > 1
