"""The functions of bench/moe.py at toy size: that what it compares is the same thing; no speed is tested."""
import argparse
import math

import pytest
import torch

BENCH = "moe"


def toy(bench, routing="random", experts=3, kernel=3):
    made, x = bench.layers(experts, 6, kernel), bench.feature_map(routing, 6, (10, 12))
    return made, x, bench.pulls(made, x)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("experts", [1, 2, 5])
@pytest.mark.parametrize("routing", ["random", "smooth"])
def test_sparse_and_dense_are_one_function(bench, routing, experts, kernel):
    made, x, pull = toy(bench, routing, experts, kernel)
    assert bench.compare(made, x, pull) <= 1e-5
    assert len(bench.both(made.sparse, x, pull.sparse)) == 2 + 2 + 2 * experts
    assert torch.equal(made.sparse.routing(x),
                       made.dense.routing(x)) and made.sparse.experts[0] is made.dense.experts[0]


def test_an_expert_without_pixels_is_no_difference(bench):
    made, x, pull = toy(bench)
    with torch.no_grad(): made.sparse.router.map.bias[1] = -1e3
    assert 1 not in made.sparse.routing(x) and bench.compare(made, x, pull) <= 1e-5


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_difference_stops_the_run(bench, monkeypatch, wrong):
    "The output is the first tensor compared, a gradient the last."
    made, x, pull = toy(bench)
    honest = bench.both

    def bent(layer, x, pull):
        found = honest(layer, x, pull)
        if layer is made.sparse: found[wrong] = found[wrong] + 0.01
        return found

    monkeypatch.setattr(bench, "both", bent)
    with pytest.raises(SystemExit, match="differ"): bench.compare(made, x, pull)


def test_gap_by_hand(bench):
    a, b = torch.tensor([1.0, 4.0]), torch.tensor([2.0, 4.0])
    assert bench.gap([a, b], [b, b]) == 0.25 and bench.gap([a], [a]) == 0
    assert math.isnan(bench.gap([b, a * torch.nan], [b, a]))
    with pytest.raises(ValueError): bench.gap([a, b], [a])


def test_a_number_that_is_none_in_any_tensor_stops_the_run(bench, monkeypatch):
    made, x, pull = toy(bench)
    with torch.no_grad(): made.sparse.experts[-1].bias[0] = torch.nan
    with pytest.raises(SystemExit, match="nan"): bench.compare(made, x, pull)


def test_routing_is_what_its_name_says(bench):
    "Of 4 experts a random neighbour shares one in a quarter of the pixels; regions are seen."
    made = bench.layers(4, 16, 1)
    alike = {name: bench.alike(made.sparse.routing(bench.feature_map(name, 16, (45, 80))))
             for name in bench.ROUTINGS}
    assert alike["random"] < 0.4 < 0.55 < alike["smooth"]
    assert bench.alike(torch.tensor([[[0, 0, 1], [2, 2, 2]]])) == 0.75


def test_everybody_gets_the_same_gradient(bench):
    made, x, pull = toy(bench)
    assert torch.equal(pull.plain, pull.dense) and torch.equal(pull.plain, pull.sparse)
    assert pull.sparse.stride() == made.sparse(x).stride()


def test_seeds_are_fixed(bench):
    (a, x, p), (b, y, q) = toy(bench), toy(bench)
    assert torch.equal(x, y) and torch.equal(p.plain, q.plain)
    assert all(torch.equal(s, t) for one, other in zip(a, b) for s, t in zip(one.parameters(),
                                                                             other.parameters()))


def test_saved_bytes(bench):
    """A convolution holds its input and weights only; dense one map for each expert more; sparse patches of
    nine pixels."""
    made, x, _ = toy(bench, experts=4)
    plain, dense, sparse = (bench.saved_bytes(layer, x) for layer in made)
    assert plain == 0 and dense >= 4 * x.nbytes and sparse >= 9 * x.nbytes
    class Holds(torch.nn.Module):
        def forward(self, x): return x.exp().exp()
    assert bench.saved_bytes(Holds(), x) == 2 * x.nbytes


def test_times_are_numbers(bench):
    made, x, pull = toy(bench)
    rows = bench.measure(made, x, pull, 2)
    assert list(rows) == ["forward", "forward + backward"]
    assert all(math.isfinite(each) and each > 0 for row in rows.values() for each in row)


def test_the_first_turn_is_not_timed_and_layers_alternate(bench, monkeypatch):
    made, x, pull = toy(bench)
    seen, ticks = [], iter([100.0] * 6 + [1.0, 2.0, 3.0] * 2 + [5.0, 6.0, 7.0] * 2 + [3.0, 4.0, 5.0] * 2)
    monkeypatch.setattr(bench, "seconds", lambda job, layer, x, pull: (seen.append(layer), next(ticks))[1])
    assert bench.measure(made, x, pull, 3) == {name: (3.0, 4.0, 5.0) for name in bench.PASSES}
    assert all(a is b for a, b in zip(seen, [*made] * 8, strict=True))


def test_it_prints_its_table(bench, capsys):
    bench.table("cpu", argparse.Namespace(experts=[1, 3], channels=6, size=(10, 12), kernel=3, repeats=1))
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["routing", "alike", "experts", "pass"] and len(rows) == 2 * 2 * 2
    assert {len(row) for row in rows} == {len(head)}
    assert [row.split()[0] for row in rows] == ["random"] * 4 + ["smooth"] * 4
    assert [row.split()[2] for row in rows] == ["1", "1", "3", "3"] * 2 and all(row.split()[1] == "100%"
                                                                                for row in rows
                                                                                if row.split()[2] == "1")
