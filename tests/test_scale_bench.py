"The bench of ever larger crowds, at toy size: what it runs and what it says; no speed is tested."
import sys

BENCH = "scale"


def test_a_row_runs_its_rounds(bench):
    _, held, resident = bench.row(300, 3, 1)
    assert resident > held > 0


def test_memory_of_a_round_does_not_know_the_crowd(bench):
    (_, few, _), (_, many, _) = bench.row(10, 3, 1), bench.row(100_000, 3, 1)
    assert many < 1.1 * few


def test_it_prints_ratios_within_each_turn(bench, monkeypatch, capsys):
    costs = iter([(1.0, 100.0, 1000.0), (1.05, 100.0, 1000.0), (3.0, 100.0, 1000.0), (3.0, 120.0, 1000.0)])
    monkeypatch.setattr(bench, "measured", lambda clients, asked, rounds: next(costs))
    monkeypatch.setattr(sys, "argv", ["scale.py", "--clients", "10", "20", "--repeats", "2"])
    bench.main()
    said = capsys.readouterr().out
    assert "bar: seconds of a round, 20 clients against 10, at most 1.1 x: 1.02 x, kept" in said
    assert "bar: memory of a round, 20 clients against 10, at most 1.1 x: 1.1 x" in said
