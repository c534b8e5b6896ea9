"""The bench of replies that are taken as they come, and what it measures, at a small size."""
import sys
import tracemalloc

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed here: pip install 'fedbook[flower]'")

BENCH = "stream"


def peak(bench, count, transport=None):
    "The most bytes that Python held in an exchange with `count` replies of 1 MB."
    tracemalloc.start()
    try:
        bench.exchange(count, 1, transport or bench.FlowerTransport)
        return tracemalloc.get_traced_memory()[1]
    finally: tracemalloc.stop()


def test_memory_is_flat_in_the_number_of_replies(bench):
    peak(bench, 1)
    few, many, at_once = peak(bench, 8), peak(bench, 24), peak(bench, 24, bench.AtOnce)
    assert many - few < 2e6 < 10e6 < at_once - few


def test_both_ways_give_the_same_bits(bench, tmp_path):
    kinds = bench.FlowerTransport, bench.AtOnce
    one, other = (bench.exchange(5, 0.01, kind, tmp_path)[0] for kind in kinds)
    assert torch.equal(one.weights["weight"], other.weights["weight"])
    assert not [*tmp_path.iterdir()]


def test_the_bench_says_whether_its_bound_is_kept(bench, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["stream.py", "--clients", "2", "4", "--at-once", "2"])
    monkeypatch.setattr(bench, "measured", lambda count, megabytes, kind: (1e6 * megabytes * count, 1.0, 1.0))
    bench.main()
    assert "bar: memory of 4 replies beyond that of 2, at most 2 replies: 2 replies, kept" in capsys.readouterr().out
