"""The functions of bench/clients.py at toy size: that what it compares is the same; no speed is tested."""
import math

BENCH = "clients"


def test_a_row_asks_as_many_as_it_says(bench):
    line, here = bench.federation(bench.Row(30, 5), 3)
    assert here.ledger.messages(way="up") == 15 == sum(map(len, line.seconds.values()))
    assert len(here.states) == len(line.seconds["first"]) and here.ledger.missed == 0


def test_it_prints_its_tables(bench, capsys):
    rows = [bench.Row(4, 2), bench.Row(5000, 2), bench.Row(2, 1, "80 k")]
    worst, full = bench.show_rows(rows, 1, 1)
    assert worst >= 1 and 0 < full < 1 and not math.isnan(worst)
    assert bench.show_ledger([20, 2000, 4000], bound=1000) < 1.5
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[1].startswith("2 of 4, 68 ") and lines[2].startswith("2 of 5,000, 68 ")
    assert len(lines) == 4 + 1 + 6
    assert lines[3].startswith("1 of 2, 80 k")


def test_networks_have_as_many_parameters_as_their_names_say(bench):
    units = {"k": 1e3, "M": 1e6}
    for name, make in bench.NETWORKS.items():
        number, _, unit = name.partition(" ")
        found = sum(p.numel() for p in make().parameters())
        assert abs(found / (float(number) * units.get(unit, 1)) - 1) < 0.05


def test_many_rounds_hold_what_few_do(bench, capsys):
    held, text = bench.show_rounds(60, 20, bound=50)
    assert 0.5 < held < 2 and 0 < text < 100
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[:2] for line in lines] == [["20", "400"], ["60", "1,200"]]


def test_rows_have_about_as_many_replies(bench):
    rows = [bench.Row(1000, n) for n in (10, 100, 1000)]
    assert [bench.rounds_for(row, 200) * row.asked for row in rows] == [2000] * 3
    assert bench.rounds_for(bench.Row(10, 10, "20 M"), 20) == 1
