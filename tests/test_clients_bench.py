"""The functions of bench/clients.py at toy size: that what it compares is the same; no speed is tested."""
import math

BENCH = "clients"


def test_a_row_asks_as_many_as_it_says(bench):
    line, here = bench.federation(bench.Row(30, 5), 3)
    assert here.ledger.messages(way="up") == 15 == sum(map(len, line.seconds.values()))
    assert len(here.states) == len(line.seconds["first"]) and here.ledger.missed == 0


def test_it_prints_its_tables(bench, capsys):
    worst, full = bench.show_rows([bench.Row(4, 2), bench.Row(5000, 2)], 1, 1)
    assert worst > 0 and 0 < full < 1 and not math.isnan(worst)
    assert bench.show_ledger([20, 2000, 4000], bound=1000) < 1.5
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[1].startswith("2 of 4 ") and lines[2].startswith("2 of 5,000 ") and len(lines) == 3 + 1 + 6


def test_rows_have_about_as_many_replies(bench):
    rows = [bench.Row(1000, n) for n in (10, 100, 1000)]
    assert [bench.rounds_for(row, 200) * row.asked for row in rows] == [2000] * 3
