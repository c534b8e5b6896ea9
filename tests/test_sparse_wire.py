"""The functions of bench/sparse_wire.py at toy size: that what it compares is the same; no speed is tested."""
import pytest
import torch

from fedbook.engine.local import snapshot
from fedbook.engine.local import build
from fedbook.methods.pruning import magnitude_prune, masked, prunable, sparse_average
from fedbook.methods.reid import small_net

BENCH = "sparse_wire"


@pytest.fixture(scope="module")
def whole(): return snapshot(build(lambda: small_net(4), 0))


def pruned(whole, share):
    mask = magnitude_prune(whole, {}, share, share)
    return masked(whole, mask), mask


@pytest.mark.parametrize("share", [0, 0.35, 0.7, 1])
def test_every_way_brings_the_state_back(bench, whole, share):
    state, mask = pruned(whole, share)
    state["neck.running_mean"] = torch.full_like(state["neck.running_mean"], -0.0)
    sizes = {way.name: bench.there_and_back(way, state)[0] for way in bench.ways(state, mask)}
    assert len(sizes) == 7 and min(sizes.values()) > 0


def test_bytes_are_those_of_each_format(bench, whole):
    state, mask = pruned(whole, 0.7)
    tensors = {way.name: bench.load(way.pack()) for way in bench.ways(state, mask) if not way.slow}
    size = {name: sum(t.nbytes for t in those.values()) for name, those in tensors.items()}
    kept, rows = (sum(f(name) for name in prunable(state))
                  for f in (lambda n: int(mask[n].sum()), lambda n: len(state[n]) + 1))
    rest = sum(t.nbytes for name, t in state.items() if name not in mask)
    assert size["dense, safetensors"] == sum(t.nbytes for t in state.values())
    assert size["scipy CSR"] == rest + 8 * kept + 4 * rows
    bits = sum((m.numel() + 7) // 8 for m in mask.values())
    assert size["kept values and mask, pack"] == size["kept values, pack"] + bits
    assert 4 * kept < size["kept values, pack"] <= 4 * kept + rest
    assert len(tensors["kept values and mask, pack"]) == len(state) + len(mask)


def test_identical_sees_every_difference(bench):
    a = {"w": torch.tensor([0.0, 1.0]), "n": torch.tensor(3)}
    assert bench.identical(a, {name: t.clone() for name, t in a.items()})
    for other in ({"w": a["w"]}, {**a, "b": a["n"]}, {**a, "w": torch.tensor([-0.0, 1.0])},
                  {**a, "w": a["w"][None]}, {**a, "n": a["n"].int()}):
        assert not bench.identical(a, other)


def test_a_way_that_loses_something_stops_the_run(bench, whole):
    state, _ = pruned(whole, 0.35)
    half = bench.Way("half",
                     lambda: bench.save({name: t.half() if t.is_floating_point() else t
                                         for name, t in state.items()}), bench.load)
    with pytest.raises(SystemExit, match="half"): bench.there_and_back(half, state)


def test_naive_averages_by_hand(bench):
    "Three clients and four positions, the last of which nobody kept."
    values, omega = [[1.0, 0, 3, 0], [2.0, 4, 0, 0], [3.0, 8, 0, 0]], [0.5, 0.3, 0.2]
    masks = [[v != 0 for v in row] for row in values]
    assert bench.by_position(values, masks, omega) == pytest.approx([1.7, 5.6, 3, 0])
    mean = bench.by_stack([{"w": torch.tensor(v)} for v in values], [{"w": torch.tensor(m)} for m in masks],
                          omega)
    torch.testing.assert_close(mean["w"], torch.tensor([1.7, 5.6, 3, 0]))


def test_naive_averages_are_sas(bench, whole):
    states, masks, weights = bench.federation(whole, 5)
    mean, wanted = sparse_average(states, masks, weights), bench.by_stack(states, masks, weights)
    assert mean.keys() == wanted.keys() and bench.gap(mean, wanted) <= 1e-6
    for name in prunable(whole):
        numbers = bench.by_position(*bench.slices(states, masks, name, 50), weights)
        torch.testing.assert_close(mean[name].flatten()[:50], torch.tensor(numbers))


def test_the_clients_keep_ever_less(bench, whole):
    states, masks, weights = bench.federation(whole, 4)
    kept = [sum(int(m.sum()) for m in mask.values()) for mask in masks]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] == sum(whole[name].numel() for name in prunable(whole)) and len(weights) == 4
    assert all((state[name][~mask[name]] == 0).all() for state, mask in zip(states, masks) for name in mask)


def test_it_prints_its_tables(bench, whole, capsys):
    bench.show_wire(whole, [0, 0.7], 1)
    bench.show_average(whole, 3, 2, 100)
    lines = capsys.readouterr().out.splitlines()
    head, *rows = [line for line in lines if not line.startswith("bar: ")]
    assert len(lines) - 1 - len(rows) == 3
    assert head.split()[:3] == ["sparsity", "way", "MB"] and len(rows) == 2 * (7 + 1) + 3
    assert all(row.split()[:4] == [share, "dense,", "safetensors", "0.03"] and "100.0%" in row
               for row, share in ((rows[0], "0.0%"), (rows[8], "69.9%")))
    assert "of scipy CSR" in rows[7] and "of deflate" in rows[15]
    assert rows[-2].startswith("SAS over 3 clients") and "results at most" in rows[-1]


def test_averages_that_differ_stop_the_run(bench, whole, monkeypatch):
    monkeypatch.setattr(bench, "sparse_average", lambda states, masks, weights: states[0])
    with pytest.raises(SystemExit, match="differ"): bench.show_average(whole, 3, 1, 100)
