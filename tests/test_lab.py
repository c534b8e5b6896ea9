import errno
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import matplotlib
import numpy as np
import pytest
import torch
from scipy import stats

from fedbook.engine import devices, files, show
from fedbook.kit import lab
from fedbook.kit.runs import out_of_memory
from fedbook.engine.sizes import Bounds, Count, Profile, Share, as_printed, choose, whole_number
from fedbook.engine.show import Table, bytes_text, progress
from fedbook.engine.errors import UserError
from fedbook.kit.lab import check, guess, quiz, reveal, same
from fedbook.engine.files import run_dir, write_atomically
from fedbook.engine.rows import results_body
from fedbook.evidence.claims import Results, claims_table, interval, judge

matplotlib.use("Agg")


@dataclass(frozen=True)
class Sizes(Profile):
    lr: float = 0.1
    rounds: int = 3
    data: str = "x"
    deep: bool = False
    alphas: tuple = (0.1, 1.0)


@dataclass(frozen=True)
class Fixed(Profile):
    data: Literal["clothes", "leaves"] = "clothes"
    bits: Literal[8, 16] = 8


def test_a_field_with_choices_refuses_others_at_once():
    assert choose({"quick": Fixed()}, "quick", {"data": "leaves", "bits": "16"}) == Fixed(1, "leaves", 16)
    wanted = "data='nope' is unknown; choose one of clothes, leaves"
    with pytest.raises(UserError, match=wanted): choose({"quick": Fixed()}, "quick", {"data": "nope"})
    with pytest.raises(UserError, match="bits=9 is unknown; choose one of 8, 16"): Fixed(bits=9)


SIZES = {"quick": Sizes(), "full": Sizes(seeds=3)}


@dataclass(frozen=True)
class Sided(Profile):
    side: Annotated[int, Bounds(low=16, off=0)] = 0


def test_a_size_may_be_off_outside_its_limits():
    assert (Sided().side, Sided(side=16).side) == (0, 16)
    for side in (-1, 1, 15):
        with pytest.raises(UserError, match=f"side={side} must be 0, or at least 16$"): Sided(side=side)


@dataclass(frozen=True)
class Asked(Profile):
    clients: Count = 20
    per_round: Count = 5
    rates: tuple[Share, ...] = (0.1,)
    weights: str | None = "auto"
    make: Callable = int


@pytest.mark.parametrize("sizes, why", [
    (dict(clients=2.5), "clients=2.5 must be a whole number"),
    (dict(clients="20"), "clients='20' must be a whole number"),
    (dict(clients=True), "clients=True must be a whole number"),
    (dict(seeds=None), "seeds=None must be a whole number"),
    (dict(rates=0.1), "rates=0.1 must be a tuple"),
    (dict(rates=("0.1",)), "rates='0.1' must be a number"),
    (dict(rates=(0.1, 2)), "rates=2 must be from 0 to 1"),
    (dict(weights=3), "weights=3 must be a text or None"),
    (dict(per_round=0), "per_round=0 must be at least 1"),
    (dict(per_round=-1), "per_round=-1 must be at least 1"),
    (dict(per_round=0.5), "per_round=0.5 must be a whole number"),
    (dict(clients=4), "per_round=5 must be at most clients=4")])
def test_sizes_of_a_wrong_type_are_refused_where_they_are_written(sizes, why):
    with pytest.raises(UserError, match=why): Asked(**sizes)


def test_numbers_of_numpy_and_lists_become_those_of_python():
    for tens in (np.int64(10), np.arange(5).sum(), torch.tensor(10)):
        sizes = Asked(clients=tens, rates=[np.float32(0.5), 1], weights=None)
        assert sizes == Asked(clients=10, rates=(0.5, 1), weights=None) and hash(sizes)
        assert type(sizes.clients) is int and type(sizes.rates[0]) is float
    assert Asked(rates=np.array([0.1, 0.3])).rates == (0.1, 0.3)


def test_a_whole_number_is_one_whoever_counted_it():
    for three in (3, np.uint8(3), np.ones(3).shape[0], torch.tensor(3)): assert whole_number("n", three) == 3
    for bad in (3.0, np.float64(3), "3", None, True, np.True_, torch.tensor(True), 0, np.int64(-1),
                torch.tensor([1, 2]), torch.tensor(3.0)):
        with pytest.raises(UserError, match="n=.* must be a whole number of at least 1$"):
            whole_number("n", bad)


def test_choose_reads_texts_as_the_field_has_them():
    got = choose(SIZES, "full", {"lr": "1", "rounds": "7", "data": "3", "deep": "true", "alphas": "0.5, 2"})
    assert got == Sizes(3, 1.0, 7, "3", True, (0.5, 2.0))
    assert choose(SIZES, "quick", {"lr": 2, "rounds": 4, "deep": True,
                                   "alphas": [1.0]}) == Sizes(1, 2.0, 4, "x", True, (1.0,))
    assert choose(SIZES, "quick") is not choose(SIZES, "full")
    numbers = {"lr": np.float64(2), "rounds": np.int64(4), "deep": np.bool_(True), "alphas": np.ones(1)}
    assert choose(SIZES, "quick", numbers) == Sizes(1, 2.0, 4, "x", True, (1.0,))


@pytest.mark.parametrize("profile, changes, why", [
    ("huge", {}, "profile='huge' is unknown; choose one of quick, full"),
    ("quick", {"colour": 1}, "choose one of seeds, lr"), ("quick", {"speed": 1}, "did you mean seeds?"),
    ("quick", {"lr": "abc"}, "lr='abc' must be a number, such as"),
    ("quick", {"rounds": "3.5"}, "must be a whole number"),
    ("quick", {"rounds": 3.5}, "must be a whole number"),
    ("quick", {"rounds": True}, "must be a whole number"),
    ("quick", {"deep": "yes"}, "must be True or False"),
    ("quick", {"alphas": "1,b"}, "must be a number")])
def test_choose_says_what_is_wrong(profile, changes, why):
    with pytest.raises(UserError, match=re.escape(why)): choose(SIZES, profile, changes)


def test_what_a_text_says_of_figures_need_not_hold_of_a_readers_own_sizes(monkeypatch):
    assert as_printed("quick") and as_printed("full", {})
    assert not as_printed("quick", {"data": "photos/"}) and not as_printed("smoke")
    monkeypatch.setenv("FEDBOOK_DRY", "{}")
    assert not as_printed("quick")


def test_interval_against_scipy():
    for values in ([1.0, 2.0, 4.0], [0.5, 0.5], list(np.random.default_rng(0).normal(size=9))):
        mean, half = interval(values)
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values),
                                     scale=stats.sem(values)) if np.std(values) else (values[0],) * 2
        assert mean - half == pytest.approx(low) and mean + half == pytest.approx(high)
    assert interval([3.0]) == (3.0, math.inf)


@pytest.mark.parametrize("values, bounds, want", [
    ([5, 5.1, 4.9], dict(at_least=4), "reproduced"), ([5, 5.1, 4.9], dict(at_least=6), "contradicted"),
    ([5, 9, 1], dict(at_least=4), "undecided"),
    ([5, 5.1, 4.9], dict(at_most=6), "reproduced"), ([5, 5.1, 4.9], dict(at_most=4), "contradicted"),
    ([5, 5.1, 4.9], dict(at_least=4, at_most=6), "reproduced"),
    ([5, 6], dict(at_least=4), "undecided"), ([5], {}, "measured"),
    ([1.0, 1.0, 1.0], dict(at_least=1.0), "reproduced")])
def test_verdict(values, bounds, want): assert judge(values, **bounds).verdict == want


def test_torch_device():
    assert devices.torch_device("cpu").type == "cpu"
    if not torch.cuda.is_available():
        assert devices.torch_device("auto").type == "cpu"
        with pytest.raises(UserError, match="finds no GPU"): devices.torch_device("cuda")
    with pytest.raises(UserError, match="device='tpu'"): devices.torch_device("tpu")


@pytest.fixture
def found_gpu(monkeypatch):
    "As if there were a GPU; the settings of PyTorch that `torch_device` makes are taken back afterwards."
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    tf32 = torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32 = tf32
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name, kind", [("auto", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")])
def test_a_gpu_is_set_to_repeat_its_bits(name, kind, found_gpu):
    torch.backends.cudnn.allow_tf32 = True
    assert devices.torch_device(name).type == kind
    on_gpu = kind == "cuda"
    assert torch.are_deterministic_algorithms_enabled() == on_gpu == (not torch.backends.cudnn.allow_tf32)
    assert torch.is_deterministic_algorithms_warn_only_enabled() == on_gpu
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (":4096:8" if on_gpu else None)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.mark.parametrize("begun", [True, False])
def test_the_clock_waits_for_a_gpu_that_is_at_work(begun, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: begun)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(1))
    first = devices.clock()
    assert devices.clock() >= first and len(waited) == 2 * begun


def test_results_name_the_gpu(found_gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Toy 9000")
    on = lambda device: Results("99_x", "quick", {}, 0, tmp_path, device=device).facts["device"]
    assert [on(torch.device("cuda")), on(torch.device("cpu")), on("cpu")] == ["cuda (Toy 9000)", "cpu", "cpu"]


@dataclass(frozen=True)
class Held(Profile):
    batch: int = 32
    high: tuple[int, ...] = (180, 320)
    size: int = 1
    per_round: int = 0


def test_too_little_memory_names_what_to_lower():
    assert out_of_memory(Held()) == (
        "the GPU's memory is too small for this run; lower -p batch=16 (now 32), "
        "-p high=90,160 (now 180,320), or take --device cpu")
    for nothing in (None, {}, Profile()): assert "lower its --profile, or" in out_of_memory(nothing)


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


def test_a_size_that_was_not_there_yet_counts_as_its_default(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_STAMP", "s")
    open_run = lambda sizes: Results("99_x", "quick", sizes, 0, tmp_path)
    old = open_run(Sizes())
    old.row("a", 0, lambda: {"v": 1})
    for name in ("alphas", "lr"): del old.facts["sizes"][name]
    old.save()
    assert open_run(Sizes()).values("a", "v") == [1]
    assert not open_run(Sizes(lr=0.2)).rows and not open_run(Sizes(alphas=(0.1,))).rows
    kept = open_run(Sizes())
    kept.finish("done")
    assert json.loads(kept.file.read_text())["sizes"] == asdict(Sizes()) | {"alphas": [0.1, 1.0]}


def test_two_runs_in_one_folder_keep_the_rows_of_both(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_STAMP", "s")
    open_run = lambda: Results("99_x", "quick", SIZES["quick"], 0, tmp_path)
    old = open_run()
    old.row("not asked for any more", 0, lambda: {"v": 0})
    one, two = open_run(), open_run()
    one.row("b", 0, lambda: {"v": 1})
    two.row("c", 0, lambda: {"v": 2})
    assert two.values("b", "v") == [1] and two.row("b", 0, lambda: {"v": 2}) == {"v": 1}
    one.finish("one")
    two.finish("two")
    body = json.loads(one.file.read_text())
    assert {row["what"]: row["numbers"]["v"] for row in body["rows"]} == dict(b=1, c=2)


def test_runs_that_save_at_once_lose_no_row(tmp_path):
    code = ("import sys; from fedbook.evidence.claims import Results\n"
            "results = Results('99_x', 'quick', {}, 0, sys.argv[1])\n"
            "input()\n"
            "for s in range(20): results.row(sys.argv[2], s, lambda: {'v': s})")
    start = lambda name: subprocess.Popen([sys.executable, "-c", code, tmp_path, name], stdin=subprocess.PIPE,
                                          env=os.environ | {"FEDBOOK_STAMP": "s"})
    both = [start(name) for name in "ab"]
    for each in both: each.stdin.write(b"\n"); each.stdin.flush()
    assert [each.wait(60) for each in both] == [0, 0]
    rows = results_body(tmp_path / "99_x-quick-0" / "results.json")["rows"]
    assert sorted((row["what"], row["seed"]) for row in rows) == [(name, s) for name in "ab" for s in range(20)]


def test_an_open_chapter_forgets_the_rows_of_its_last_time(tmp_path):
    open_run = lambda: Results("99_x", "quick", SIZES["quick"], 0, tmp_path)
    open_run().row("renamed since", 0, lambda: {"v": 0})
    results = open_run()
    results.row("a", 0, lambda: {"v": 1})
    assert [row["what"] for row in json.loads(results.file.read_text())["rows"]] == ["a"]


def test_a_folder_that_another_process_holds(tmp_path):
    code = ("import sys; from fedbook.engine.files import locked\n"
            "with locked(sys.argv[1]): print('held', flush=True); sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(UserError, match="another process is at work in .*choose another folder with --out"):
            with files.locked(tmp_path, wait=False): pass
        other.kill()
        other.wait()
        with files.locked(tmp_path, wait=False): pass


def test_each_data_has_a_folder_of_its_own(tmp_path, monkeypatch):
    names = [files.run_name("04_fedavg", "quick", 0, {"data": data})
             for data in ("/d/a b", "/d/a_b", "_d_a_b", "/d/a/b", "/d/" + "a" * 300, "/d/" + "a" * 299 + "b",
                          "/d/" + "\u00e4" * 250)]
    assert len(set(names)) == len(names) and all(len(name.encode()) < 200 for name in names)
    assert names[2] == "04_fedavg-quick-0-data=_d_a_b"
    assert files.run_name("methods/fedavg", "full", 3, {"lr": "0.5"}) == "methods.fedavg-full-3-lr=0.5"
    for folder in ("one", "two"):
        (tmp_path / folder / "pics").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / folder)
        known = {files.run_name("x", "quick", 0, {"data": data})
                 for data in ("pics", "./pics", "../" + folder + "/pics", str(tmp_path / folder / "pics"))}
        assert len(known) == 1 and not known & set(names)
        names += known
    assert files.run_name("x", "quick", 0, {"data": "leaves"}) == "x-quick-0-data=leaves"


@pytest.mark.parametrize("seed", [-1, 0.5, "1", None, True])
def test_a_seed_that_is_no_seed_is_refused(tmp_path, seed):
    with pytest.raises(UserError, match="seed=.* must be a whole number of at least 0"):
        Results("99_x", "quick", SIZES["quick"], seed, tmp_path)


def test_a_row_is_on_disk_before_the_next_is_measured(tmp_path):
    results = Results("99_x", "quick", SIZES["quick"], 0, tmp_path)
    results.row("a", 0, lambda: {"v": 1.5})
    def fails(): raise RuntimeError("power cut")
    with pytest.raises(RuntimeError): results.row("b", 0, fails)
    kept = json.loads((tmp_path / "99_x-quick-0" / "results.json").read_text())
    assert [r["what"] for r in kept["rows"]] == ["a"] and kept["sizes"]["lr"] == 0.1 and kept["seed"] == 0


def test_a_row_marked_again_is_measured_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_STAMP", "s")
    open_run = lambda scale="": Results("99_x", "quick", SIZES["quick"], 0, tmp_path, scale=scale,
                                        clock=["took"])
    results = open_run()
    for s in range(3): results.row("a", s, lambda: {"v": s})
    file = results.folder / "results.json"
    body = results_body(file)
    assert body["clock"] == ["took"]
    body["rows"][1]["again"] = body["seeded"] = True
    file.write_text(json.dumps(body))
    with pytest.raises(UserError,
                       match="the kept rows are of scale='', this run has 'other'"): open_run("other")
    results = open_run()
    assert [results.row("a", s, lambda: {"v": -s}) for s in range(3)] == [{"v": 0}, {"v": -1}, {"v": 2}]
    assert results.values("a", "v") == [0, -1, 2] and "again" not in file.read_text()
    assert "seeded" not in file.read_text()


def test_a_broken_results_file_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_STAMP", "s")
    folder = run_dir("99_x", "quick", 0, tmp_path)
    for text in ("", "{", "[]", '"x"', '{"rows": 3}'):
        (folder / "results.json").write_text(text)
        assert Results("99_x", "quick", SIZES["quick"], 0, tmp_path).rows == []


def test_claims_table(tmp_path):
    results = Results("99_x", "full", SIZES["full"], 0, tmp_path, scale="toy", changes={"lr": "0.5"})
    assert results.claim("b beats a", [0.02, 0.03, 0.025], at_least=0, paper="3.1", source="Table 2",
                         of="a paper", unit="%") == "reproduced"
    results.claim("b beats a", [0.02, 0.03, 0.026], at_least=0, unit="%")
    lines = claims_table(results.claims).splitlines()
    assert lines[2:] == ["| b beats a | at least 0 % | 2.53 [1.28, 3.78] % (3 seeds) | yes |"]
    shown = results._repr_markdown_()
    assert shown.startswith("\n".join(lines)) and shown.endswith("\n\nMeasured on: toy, full, lr=0.5, cpu.")
    assert shown.count("toy") == 1, "the scale stands once, not in each row"


def test_runs_of_an_opened_chapter_land_beside_the_chapters(tmp_path, monkeypatch):
    course = tmp_path / "course"
    (course / "workshop").mkdir(parents=True)
    (course / "00_start.ipynb").touch()
    for opened_in in (tmp_path, course, course / "workshop"):
        monkeypatch.chdir(opened_in)
        assert files.runs_folder() == tmp_path / "runs" and files.runs_folder(tmp_path / "x") == tmp_path / "x"
        assert run_dir("a", "quick", 0) == tmp_path / "runs" / "a-quick-0"
    elsewhere = tmp_path / "elsewhere" / "deep"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    assert files.runs_folder() == elsewhere / "runs"


def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path, monkeypatch):
    def full(*_): raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "f").write_text("old")
    for name in ("f", "new"):
        with pytest.raises(UserError,
                           match=f"the disk is full: {name} does not fit into .*make room there") as error:
            write_atomically(tmp_path / name, "something")
        assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["f"] and (tmp_path / "f").read_text() == "old"


def test_run_dir_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"): run_dir("a", "quick", 0, tmp_path / "file")


def test_write_atomically_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "f"
    write_atomically(path, "old")
    def dies(*_): raise KeyboardInterrupt
    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt): write_atomically(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def blank(x): ...
def wrong(x): return x + 1
def right(x): return x * 2
def raising(x): raise ZeroDivisionError("by zero")
def unready(x): raise NotImplementedError
def spoiling(x): x.append(1); return 2 * (len(x) - 1)


@pytest.mark.parametrize("attempt, said", [
    (blank, "not attempted yet"), (unready, "not attempted yet"), (right, "correct on 2 cases"),
    (wrong, "not yet: case 2 of 2: wrong(5) gave 6, expected 10"),
    (raising, "raised ZeroDivisionError: by zero")])
def test_check_says_one_of_three_things(attempt, said, capsys):
    assert check(attempt, right, [1, 5]) is None
    assert said in capsys.readouterr().out


def test_a_long_case_is_cut(capsys):
    check(wrong, lambda x: x, [torch.arange(5000)])
    assert len(capsys.readouterr().out) < 900


def test_check_hands_out_copies_and_catches_who_overwrites_them(capsys):
    case = [1, 2]
    check(spoiling, lambda x: 2 * len(x), [(case,)])
    assert case == [1, 2]
    assert capsys.readouterr().out == "not yet: case 1 of 1: spoiling([1, 2]) changed its argument number 1 in place\n"


@pytest.mark.parametrize("value, change", [
    (torch.zeros(3), lambda x: x.add_(1)), (np.zeros(3), lambda x: x.fill(1)),
    (np.array(["a", "b"]), lambda x: x.fill("c")), ([[1], [2]], lambda x: x[1].append(3)),
    ({"a": torch.ones(2)}, lambda x: x["a"].zero_()), ({"a": 1}, lambda x: x.pop("a")),
    ({"a": [1.0, {"b": 2}]}, lambda x: x["a"][1].update(b=3)),
    (torch.zeros(2, 3), lambda x: x.resize_(1, 3))])
def test_every_change_in_place_is_seen(value, change, capsys):
    check(lambda n, x: (change(x), n)[1], lambda n, x: n, {"some words": (1, value)})
    assert "argument number 2 in place" in capsys.readouterr().out
    check(lambda n, x: n, lambda n, x: n, {"some words": (1, value)})
    assert "correct on 1 case\n" in capsys.readouterr().out


def test_what_is_meant_to_change_may(capsys):
    draw = lambda g: torch.rand(2, generator=g)
    check(draw, draw, [torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)])
    fill = lambda x: x.fill_(1.0)
    check(fill, fill, [torch.zeros(2)])
    check(lambda x: 1, lambda x: 1, [torch.tensor([math.nan, 1.0]), object(), (np.random.default_rng(0),)])
    assert capsys.readouterr().out == "correct on 2 cases\ncorrect on 1 case\ncorrect on 3 cases\n"


def test_a_failure_says_which_case_in_words_and_not_in_numbers(capsys):
    cases = {"one number": (torch.ones(1),),
             "two tensors of unlike size": ({"a": torch.ones(20, 2), "b": torch.ones(3)},)}
    check(lambda x: x if hasattr(x, "shape") else {k: v + (k == "a") for k, v in x.items()}, lambda x: x,
          cases)
    said = capsys.readouterr().out
    assert said.startswith("not yet: case 2 of 2 (two tensors of unlike size): "
                           "<lambda>({'a': tensor of shape (20, 2), 'b': tensor([1., 1., 1.])}) gave")
    assert said.endswith("at ['a'][0][0] it is 2.0, not 1.0\n")
    check(lambda x: [*range(99), 0], lambda x: list(range(100)), ["x"])
    assert capsys.readouterr().out == ("not yet: case 1 of 1: <lambda>('x') gave list of 100, "
                                       "expected list of 100: at [99] it is 0, not 99\n")


def test_holds_judges_a_property(capsys):
    def even(got, n): return None if got % 2 == 0 else f"gave {got} for {n}, which is odd"
    for attempt, said in ((lambda n: 2 * n, "correct on 2 cases"),
                          (lambda n: n,
                           "not yet: case 2 of 2 (three): <lambda>(3) gave 3 for 3, which is odd"),
                          (lambda n: "x", "gave 'x', which cannot be judged (TypeError"),
                          (blank, "not attempted yet")):
        check(attempt, None, {"two": (2,), "three": (3,)}, holds=even)
        assert said in capsys.readouterr().out


@pytest.mark.parametrize("a, b, want", [
    (1.0, 1.0 + 1e-9, True), (1.0, 1.1, False), (torch.ones(2), np.ones(2), True),
    (torch.ones(2), torch.ones(3), False), ([1, (2.0,)], [1, (2.0,)], True),
    ({"a": torch.ones(1)}, {"a": torch.ones(1)}, True),
    ({"a": 1}, {"b": 1}, False), (np.array([1.0, 2.0]), [1.0, 2.0], True), (torch.ones(2), [1.0, 2.0], False),
    ([1, [2]], np.array([1.0, 2.0]), False), ("x", "x", True), ("x", 1, False), (None, 1.0, False),
    ([1, 2], [1], False), (math.nan, math.nan, True), (True, True, True),
    (2**32 + 4000, 2**32, False), (2**32 + 1, 2**32, False), (2**60 + 1, 2**60, False), (2**70, 2**70, True),
    (torch.tensor([2**32 + 1]), torch.tensor([2**32]), False),
    (torch.tensor([2**60 + 1]), torch.tensor([2**60]), False),
    (np.uint64(2**63), np.uint64(2**63 + 1), False), ([2**32 + 1], np.array([2**32]), False),
    ({"a": (2**32 + 1,)}, {"a": (2**32,)}, False), (2.0**32 + 4000, 2**32, False), (2.0**32, 2**32, True),
    (2.0**32 + 4000, 2.0**32, True), (8.0, 8, True), (1e-17, 0, True), (3 * 0.1 / 0.1, 3, True),
    (8.001, 8, False),
    (torch.tensor([True]), torch.tensor([False]), False), (torch.tensor([1]), torch.tensor([True]), True)])
def test_same(a, b, want): assert same(a, b) is want


@pytest.fixture
def shown(monkeypatch):
    import IPython.display
    bundles = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, **options: bundles.append(bundle))
    return bundles


def test_reveal_shows_source_escaped(shown):
    reveal(interval)
    assert "n &lt; 2" in shown[0]["text/html"] and "<details>" in shown[0]["text/html"]


def test_a_quiz_keeps_its_answer_to_itself(shown):
    quiz("Why <code>x</code>?", ("a &lt; <b>b</b>", True, "because"), ("c", False, "no"),
         ("d", False, "never"))
    page, text = shown[0]["text/html"], shown[0]["text/plain"]
    assert page.count("Not so") == 2 and page.count("Right") == 1 and "because" in page
    assert text.startswith("Why x?\n  a) ") and "a < b" in text and "3 choices" in text
    assert not any(word in text for word in ("right", "wrong", "Right", "because", "no\n", "never", "True",
                                             "<b>"))


def test_a_quiz_is_shuffled_by_its_question_alone(shown):
    choices = [("first", True, "1"), ("second", False, "2"), ("third", False, "3")]
    places = []
    for i in range(300):
        quiz(f"Question {i}?", *choices)
        places.append([line.strip()[3:] for line in shown[-1]["text/plain"].splitlines()[1:4]].index("first"))
    assert all(70 < places.count(place) < 130 for place in range(3))
    code = ("import IPython.display as d; d.display = lambda b, **o: print(b['text/plain']); from fedbook.kit import lab; "
            "lab.quiz('Question 0?', ('first', 1, ''), ('second', 0, ''), ('third', 0, ''))")
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           env=os.environ | {"PYTHONHASHSEED": "7"}).stdout
    assert again.strip() == shown[0]["text/plain"].strip()


def test_guess_runs_nothing_before_there_is_a_guess(shown, capsys):
    def measure(): raise AssertionError("measured")
    for mine, said in ((..., "not attempted yet"), (None, "not attempted yet"),
                       ("abc", "neither a number nor a list"), ([1, "x"], "neither a number"),
                       ([], "neither a number"), (True, "neither a number"), (math.nan, "neither a number")):
        assert guess("How many?", mine, measure) is None
        assert said in capsys.readouterr().out
    assert not shown


def test_guess_shows_both(shown, capsys):
    assert guess("How far?", 3, lambda: 4.5, "m") == 4.5
    assert capsys.readouterr().out == "How far? You guessed 3 m, measured is 4.5 m: 1.5 apart.\n"
    assert guess("How many?", [1, 2, 5], lambda: {10: 1.5, 20: 2.0, 30: 3.0},
                 "points") == {10: 1.5, 20: 2.0, 30: 3.0}
    assert capsys.readouterr().out == "Farthest apart at 30: 2 points.\n"
    lines = {line.get_label(): line.get_xydata().tolist() for line in shown[-1].axes[0].lines}
    assert lines == {"measured": [[10, 1.5], [20, 2.0], [30, 3.0]], "your guess": [[10, 1], [20, 2], [30, 5]]}
    assert guess("How many?", (1, 2), lambda: [1.0, 2.5]) == [1.0, 2.5]
    assert "Farthest apart at 1: 0.5." in capsys.readouterr().out
    assert guess("How many?", [1, 2], lambda: [1.0, 2.5, 3.0]) == [1.0, 2.5, 3.0]
    assert "expected a list of 3 numbers" in capsys.readouterr().out
    assert guess("How many?", [1, 2], lambda: 3) == 3 and "expected one number" in capsys.readouterr().out
    import matplotlib.pyplot as plt
    assert not plt.get_fignums()


def test_progress_is_text_here_and_a_widget_in_an_open_notebook(monkeypatch, capsys):
    assert list(progress(range(3), "some label", total=5, initial=2)) == [0, 1, 2]
    assert capsys.readouterr().out == ""
    class ZMQInteractiveShell: pass
    fake = type(sys)("IPython")
    fake.get_ipython = ZMQInteractiveShell
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.delenv("FEDBOOK_STAMP", raising=False)
    assert show._in_notebook()
    monkeypatch.setenv("FEDBOOK_STAMP", "s")
    assert not show._in_notebook()
    monkeypatch.delenv("FEDBOOK_STAMP")
    monkeypatch.setattr("tqdm.notebook.tqdm", lambda iterable, **options: (iterable, options))
    assert progress("ab", "x", total=7, initial=3) == ("ab", dict(desc="x", total=7, initial=3, leave=False,
                                                                  mininterval=0.5))
    fake.get_ipython = lambda: None
    assert not show._in_notebook()


def test_flow_draws_one_arrow_per_verb_and_way():
    from types import SimpleNamespace as Entry
    entries = [Entry(way=w, client=c, verb=v, nbytes=1500, tensors=(("weights", 1400), ("n", 8)))
               for v in ("fit", "scores") for w in ("down", "up") for c in range(3)]
    fig = lab.flow(entries)
    texts = [t.get_text() for t in fig.axes[0].texts]
    assert sum("4.5 kB" in t for t in texts) == 4 and sum("weights 1.4 kB" in t for t in texts) == 4
    assert "3 clients" in texts
    worded = [t.get_text() for t in lab.flow(entries, says=dict(down="the model")).axes[0].texts]
    assert worded.count("fit: the model") == 1 and sum("weights 1.4 kB" in t for t in worded) == 2


def test_small_things():
    assert [bytes_text(n) for n in (12, 1500, 3.2e6, 2e9)] == ["12 B", "1.5 kB", "3.2 MB", "2 GB"]
    assert [bytes_text(n) for n in (999_400, 999_600)] == ["999 kB", "1 MB"]
    assert Table([{"a": 1, "b": 0.123456}])._repr_markdown_() == "| a | b |\n| --- | --- |\n| 1 | 0.1235 |"
    wild = Table([{"a|b": "<script>", "c": "1|2\n3"}])._repr_markdown_()
    assert wild == "| a\\|b | c |\n| --- | --- |\n| &lt;script> | 1\\|2 3 |"


def test_style_is_for_everyone_to_read():
    import matplotlib as mpl
    with mpl.rc_context():
        show.style()
        assert min(mpl.rcParams[k] for k in ("font.size", "axes.titlesize", "axes.labelsize",
                                             "xtick.labelsize", "ytick.labelsize", "legend.fontsize")) >= 9


@pytest.fixture
def boxes(monkeypatch):
    "What the box of each slider holds."
    import ipywidgets
    made = []
    class Box(ipywidgets.VBox):
        def __init__(self, children):
            made.append(children)
            super().__init__(children)
    monkeypatch.setattr(ipywidgets, "VBox", Box)
    return made


def test_play_draws_at_once_and_when_a_knob_is_moved_without_an_output_widget(boxes, capsys):
    """An Output widget makes nbclient write to the shell channel that it reads from, and a run may then wait for
    ever (nbclient issue 312)."""
    import ipywidgets
    import matplotlib.pyplot as plt
    drawn, said = [], []

    def f(width, kind):
        drawn.append((width, kind))
        if boxes: said.append(boxes[0][-2].value)
        return plt.subplots(figsize=(width, 1))[0]

    lab.play(f, width=(1, 3, 1, 2), kind=["a", "b"])
    (*knobs, busy, picture), = boxes
    before = bytes(picture.value)
    knobs[0].value = 3
    knobs[1].value = "b"
    assert drawn == [(2, "a"), (3, "a"), (3, "b")] and not plt.get_fignums()
    after = bytes(picture.value)
    assert before.startswith(b"\x89PNG") and after.startswith(b"\x89PNG") and after != before
    assert "busy with width = 3, kind = a" in said[0] and "busy with width = 3, kind = b" in said[1]
    assert busy.value == "&nbsp;" and not any(isinstance(child, ipywidgets.Output) for child in boxes[0])


def test_a_move_that_fails_is_told_above_the_picture_and_the_next_one_works(boxes, capsys):
    import matplotlib.pyplot as plt
    def f(n):
        if n == 2: raise ValueError("not <two>")
        if n == 3: raise KeyboardInterrupt
        return plt.subplots(figsize=(n, 1))[0]

    with pytest.raises(ValueError, match="not <two>"): lab.play(f, n=[2])
    lab.play(f, n=[1, 2, 3, 4])
    (knob, told, picture), = boxes
    before = picture.value
    knob.value = 2
    assert told.value == "nothing drawn for n = 2: ValueError: not &lt;two&gt;" and picture.value == before
    with pytest.raises(KeyboardInterrupt): knob.value = 3
    assert told.value == "stopped at n = 3" and picture.value == before
    knob.value = 4
    assert told.value == "&nbsp;" and picture.value != before
