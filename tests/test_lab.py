import json
import math
import os

import numpy as np
import pytest
import torch
from scipy import stats

from fedbook import lab
from fedbook.lab import Profile, Results, Table, UserError, bytes_text, check, choose, claims_table, dataclass, interval, quiz, reveal, run_dir, same, verdict, write_atomically


@dataclass(frozen=True)
class Sizes(Profile):
    lr: float = 0.1
    rounds: int = 3
    data: str = "x"
    deep: bool = False
    alphas: tuple = (0.1, 1.0)


SIZES = {"quick": Sizes(), "full": Sizes(seeds=3)}


def test_choose_reads_texts_as_the_field_has_them():
    got = choose(SIZES, "full", {"lr": "1", "rounds": "7", "data": "3", "deep": "true", "alphas": "0.5, 2"})
    assert got == Sizes(3, 1.0, 7, "3", True, (0.5, 2.0))
    assert choose(SIZES, "quick", {"lr": 2, "rounds": 4, "deep": True, "alphas": [1.0]}) == Sizes(1, 2.0, 4, "x", True, (1.0,))
    assert choose(SIZES, "quick") is not choose(SIZES, "full")


@pytest.mark.parametrize("profile, changes, why", [
    ("huge", {}, "profile='huge' is unknown; choose one of quick, full"), ("quick", {"speed": 1}, "choose one of seeds, lr"), ("quick", {"lr": "abc"}, "lr='abc' is not a valid float"),
    ("quick", {"rounds": "3.5"}, "valid int"), ("quick", {"rounds": 3.5}, "valid int"), ("quick", {"rounds": True}, "valid int"), ("quick", {"deep": "yes"}, "valid bool"), ("quick", {"alphas": "1,b"}, "valid float")])
def test_choose_says_what_is_wrong(profile, changes, why):
    with pytest.raises(UserError, match=why.replace("(", r"\(")): choose(SIZES, profile, changes)


def test_interval_against_scipy():
    for values in ([1.0, 2.0, 4.0], [0.5, 0.5], list(np.random.default_rng(0).normal(size=9))):
        mean, half = interval(values)
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values)) if np.std(values) else (values[0],) * 2
        assert mean - half == pytest.approx(low) and mean + half == pytest.approx(high)
    assert interval([3.0]) == (3.0, math.inf)


@pytest.mark.parametrize("values, bounds, want", [
    ([5, 5.1, 4.9], dict(at_least=4), "reproduced"), ([5, 5.1, 4.9], dict(at_least=6), "not reproduced"), ([5, 9, 1], dict(at_least=4), "too noisy to say"),
    ([5, 5.1, 4.9], dict(at_most=6), "reproduced"), ([5, 5.1, 4.9], dict(at_most=4), "not reproduced"), ([5, 5.1, 4.9], dict(at_least=4, at_most=6), "reproduced"),
    ([5, 6], dict(at_least=4), "too few seeds"), ([5], {}, "measured"), ([1.0, 1.0, 1.0], dict(at_least=1.0), "reproduced")])
def test_verdict(values, bounds, want): assert verdict(values, **bounds) == want


def test_torch_device():
    assert lab.torch_device("cpu").type == "cpu"
    if not torch.cuda.is_available():
        assert lab.torch_device("auto").type == "cpu"
        with pytest.raises(UserError, match="finds no GPU"): lab.torch_device("cuda")
    with pytest.raises(UserError, match="device='tpu'"): lab.torch_device("tpu")


def test_rows_are_kept_only_for_the_same_settings_and_code(tmp_path, monkeypatch):
    calls = []
    def open_run(stamp, sizes=SIZES["quick"]):
        monkeypatch.setenv("FEDBOOK_STAMP", stamp)
        results = Results("99_x", "quick", sizes, 0, tmp_path)
        results.row("a", 0, lambda: calls.append(1) or {"v": len(calls)})
        return results.values("a", "v")
    assert open_run("s1") == [1] and open_run("s1") == [1]
    assert open_run("s2") == [2]
    assert open_run("s2", SIZES["full"]) == [3]
    assert open_run("") == [4] and open_run("") == [5]


def test_a_row_is_on_disk_before_the_next_is_measured(tmp_path):
    results = Results("99_x", "quick", SIZES["quick"], 0, tmp_path)
    results.row("a", 0, lambda: {"v": 1.5})
    def fails(): raise RuntimeError("power cut")
    with pytest.raises(RuntimeError): results.row("b", 0, fails)
    kept = json.loads((tmp_path / "99_x-quick-0" / "results.json").read_text())
    assert [r["what"] for r in kept["rows"]] == ["a"] and kept["sizes"]["lr"] == 0.1 and kept["seed"] == 0


def test_a_broken_results_file_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_STAMP", "s")
    folder = run_dir("99_x", "quick", 0, tmp_path)
    for text in ("", "{", "[]", '"x"', '{"rows": 3}'):
        (folder / "results.json").write_text(text)
        assert Results("99_x", "quick", SIZES["quick"], 0, tmp_path).rows == []


def test_claims_table(tmp_path):
    results = Results("99_x", "full", SIZES["full"], 0, tmp_path, scale="toy")
    assert results.claim("b beats a", [0.02, 0.03, 0.025], at_least=0, paper="3.1", source="Table 2", unit="%") == "reproduced"
    results.claim("b beats a", [0.02, 0.03, 0.026], at_least=0, unit="%")
    lines = claims_table([dict(results.facts, claims=results.claims)]).splitlines()
    assert len(lines) == 3 and "2.53 ± 0.5 % (3 seeds)" in lines[2] and lines[2].endswith("| reproduced | toy, full, cpu |")


def test_run_dir_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"): run_dir("a", "quick", 0, tmp_path / "file")


def test_write_atomically_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "f"
    write_atomically(path, "old")
    def dies(*_): raise KeyboardInterrupt
    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt): write_atomically(path, "new")
    assert path.read_text() == "old"


def blank(x): ...
def wrong(x): return x + 1
def right(x): return x * 2
def raising(x): raise ZeroDivisionError("by zero")
def unready(x): raise NotImplementedError
def spoiling(x): x.append(1); return 2 * (len(x) - 1)


@pytest.mark.parametrize("attempt, said", [
    (blank, "not attempted yet"), (unready, "not attempted yet"), (right, "correct on 2 cases"), (wrong, "not yet: wrong(5) gave 6, expected 10"), (raising, "raised ZeroDivisionError: by zero")])
def test_check_says_one_of_three_things(attempt, said, capsys):
    assert check(attempt, right, [1, 5]) is None
    assert said in capsys.readouterr().out


def test_a_long_case_is_cut(capsys):
    check(wrong, lambda x: x, [torch.arange(5000)])
    assert len(capsys.readouterr().out) < 900


def test_check_hands_out_copies(capsys):
    case = [1, 2]
    check(spoiling, lambda x: 2 * len(x), [(case,)])
    assert case == [1, 2] and "correct on 1 cases" in capsys.readouterr().out


@pytest.mark.parametrize("a, b, want", [
    (1.0, 1.0 + 1e-9, True), (1.0, 1.1, False), (torch.ones(2), np.ones(2), True), (torch.ones(2), torch.ones(3), False), ([1, (2.0,)], [1, (2.0,)], True), ({"a": torch.ones(1)}, {"a": torch.ones(1)}, True),
    ({"a": 1}, {"b": 1}, False), ("x", "x", True), ("x", 1, False), (None, 1.0, False), ([1, 2], [1], False), (math.nan, math.nan, True), (True, True, True)])
def test_same(a, b, want): assert same(a, b) is want


def test_html_shows_source_and_reasons_escaped(capsys):
    shown = []
    import IPython.display
    original, IPython.display.display = IPython.display.display, lambda bundle, raw: shown.append(bundle)
    try:
        reveal(interval)
        quiz("Why?", ("a", True, "because"), ("b", False, "no"))
    finally: IPython.display.display = original
    assert "n &lt; 2" in shown[0]["text/html"] and "<details>" in shown[0]["text/html"]
    assert "Right" in shown[1]["text/html"] and "[wrong] b: no" in shown[1]["text/plain"]


def test_flow_draws_one_arrow_per_verb_and_way():
    from types import SimpleNamespace as Entry
    entries = [Entry(way=w, client=c, verb=v, nbytes=1500, tensors=(("weights", 1400), ("n", 8))) for v in ("fit", "scores") for w in ("down", "up") for c in range(3)]
    fig = lab.flow(entries)
    texts = [t.get_text() for t in fig.axes[0].texts]
    assert sum("4.5 kB" in t for t in texts) == 4 and sum("weights 1.4 kB" in t for t in texts) == 4 and "3 clients" in texts


def test_small_things():
    assert [bytes_text(n) for n in (12, 1500, 3.2e6, 2e9)] == ["12 B", "1.5 kB", "3.2 MB", "2 GB"]
    assert Table([{"a": 1, "b": 0.123456}])._repr_markdown_() == "| a | b |\n| --- | --- |\n| 1 | 0.1235 |"


def test_style_is_for_everyone_to_read():
    import matplotlib as mpl
    with mpl.rc_context():
        lab.style()
        assert min(mpl.rcParams[k] for k in ("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")) >= 9


def test_play_draws_at_once_and_when_a_knob_is_moved_without_an_output_widget(monkeypatch, capsys):
    """An Output widget makes nbclient write to the shell channel that it reads from, and a run may then wait for ever (nbclient issue 312)."""
    import ipywidgets
    import matplotlib.pyplot as plt
    drawn, boxes = [], []

    def f(width, kind):
        drawn.append((width, kind))
        return plt.subplots(figsize=(width, 1))[0]

    class Box(ipywidgets.VBox):
        def __init__(self, children):
            boxes.append(children)
            super().__init__(children)
    monkeypatch.setattr(ipywidgets, "VBox", Box)
    lab.play(f, width=(1, 3, 1, 2), kind=["a", "b"])
    (*knobs, picture), = boxes
    before = bytes(picture.value)
    knobs[0].value = 3
    knobs[1].value = "b"
    assert drawn == [(2, "a"), (3, "a"), (3, "b")] and not plt.get_fignums()
    after = bytes(picture.value)
    assert before.startswith(b"\x89PNG") and after.startswith(b"\x89PNG") and after != before
    assert not any(isinstance(child, ipywidgets.Output) for child in boxes[0])
