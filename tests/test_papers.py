"""The table that `fedbook run` ends in: the papers, what they claim, what came out now, and what is kept."""
import json
import re

import pytest

from fedbook.evidence.claims import judged_claim
from fedbook.kit import command
from fedbook.kit.command import main
from fedbook.kit.papers import compared, gain, Paper, PAPERS, papers_figure, papers_rows, papers_table, saving
from fedbook.kit.questions import kept_results
from fedbook.kit.runs import chapters, module_name

DEMO = Paper("FedX", "10_demo", gain, ("accuracy", "down+up"), ("Old", "FedAvg"))


def row(what, seed, **numbers): return dict(what=what, seed=seed, numbers=numbers, seconds=1.0)


def three_seeds():
    pairs = (("FedGTEA", 0.5), ("FedAvg", 0.3))
    return [row(what, s, accuracy=a + s / 100) for s in range(3) for what, a in pairs]


def ran(folder, *rows, chapter="14_fedgtea", error=None, profile="quick"):
    "What `run_chapter` returns of a run with these rows."
    body = dict(name=chapter, profile=profile, seed=0, sizes={}, scale="", device="cpu", changes={},
                claims=[], rows=list(rows), headline="done")
    (folder / "results.json").write_text(json.dumps(body))
    return dict(chapter=chapter, measured="done", seconds=1.0, notebook=str(folder / "x.ipynb"), error=error)


def test_a_comparison_is_paired_by_seed_with_the_first_baseline_that_is_there():
    rows = [row("FedX", 1, accuracy=0.7), row("FedX", 0, accuracy=0.5), row("FedX", 2, accuracy=0.9),
            row("FedAvg", 0, accuracy=0.25), row("FedAvg", 1, accuracy=0.5), row("other", 2, accuracy=0.1)]
    values, baseline = compared(DEMO, rows)
    assert values == pytest.approx([0.25, 0.2]) and baseline == "FedAvg"
    assert compared(DEMO, [*rows, row("Old", 2, accuracy=0.8)]) == ([pytest.approx(0.1)], "Old")


def test_numbers_may_be_sums_and_a_share_that_is_saved():
    rows = [row("FedX", 0, down=30, up=20, accuracy=[0.1]), row("Old", 0, down=50, up=50)]
    assert compared(DEMO._replace(compare=saving), rows) == ([0.5], "Old")


@pytest.mark.parametrize("rows", [[], [row("FedX", 0, accuracy=1)], [row("FedAvg", 0, accuracy=1)],
                                  [row("FedX", 0, accuracy=1), row("FedAvg", 1, accuracy=1)],
                                  [row("FedX", 0, loss=1), row("FedAvg", 0, loss=1)]])
def test_a_run_that_has_not_both_is_not_measured(rows): assert compared(DEMO, rows) == ([], "")


def now(*runs):
    rows = papers_rows(runs, kept_results())
    return next(row["ours now"] for row in rows if row["paper"] == "FedGTEA")


def test_what_came_out_now_is_said_with_its_interval_and_its_baseline(tmp_path):
    rows = three_seeds()
    assert now(ran(tmp_path, *rows)) == "20 [20, 20] % (3 seeds), against FedAvg"
    assert now(ran(tmp_path, rows[0], profile="smoke")) == "not measured at smoke"
    assert now(ran(tmp_path, *rows, error="cell 3 failed")) == "the run failed"
    assert now(ran(tmp_path, *rows, chapter="13_fedcbdr")) == "not run"
    done = ran(tmp_path, *rows)
    (tmp_path / "results.json").unlink()
    assert now(done) == "not measured"


def test_the_table_has_each_paper_with_the_figures_of_its_kept_claim():
    "The papers' and our kept figures are read, and no number is written in the module."
    rows, kept = papers_rows([], kept_results()), kept_results()
    assert [each["paper"] for each in rows] == [paper.name for paper in PAPERS]
    for each, paper in zip(rows, PAPERS):
        first = next(c for body in kept for c in body["claims"] if c["of"] == paper.name)
        assert each["it claims"] == first["claim"] and first["verdict"] in each["ours kept"]
        assert papers_figure(first) == each["its figure"] != ""
        evening, lab = each["open"].split()
        assert {evening, lab} <= chapters().keys() and module_name(evening) == module_name(lab)
    assert papers_rows([], []) == [] and papers_table([], []) == ""


def test_the_table_fits_a_terminal_and_loses_no_word():
    table = papers_table([], kept_results())
    assert max(map(len, table.splitlines())) <= 128
    texts = (text for each in papers_rows([], kept_results()) for text in each.values())
    words = {word for text in texts for word in text.split()}
    assert words <= set(table.split())


def test_a_size_is_a_range_or_the_papers_words():
    claim = lambda **facts: judged_claim("a", [0.1, 0.2], at_least=0, of="P", paper="much more", **facts)
    assert papers_figure(claim(effect=(0.039, 0.047), unit="%")) == "3.9 to 4.7 %"
    assert papers_figure(claim(effect=0.027)) == "0.027" and papers_figure(claim()) == "much more"


def test_a_walk_along_the_path_ends_in_the_table(tmp_path, monkeypatch, capsys):
    told = [ran(tmp_path, *three_seeds())]
    monkeypatch.setattr(command, "run_chapters", lambda *_, **__: told)
    assert main(["run", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    head, *_, last = out.partition("The papers, ")[2].splitlines()
    assert re.search(r"FedGTEA .*20 \[20, 20\] %", out) and "what is kept" in head
    assert last.startswith("open next: ")
    assert main(["run", "fedgtea", "--out", str(tmp_path)]) == 0
    assert "The papers, " not in capsys.readouterr().out
