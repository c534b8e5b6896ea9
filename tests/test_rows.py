"""A run's rows and claims on disk: written once each, all there whenever and wherever somebody looks."""
import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbook.engine.errors import UserError
from fedbook.engine.rows import Rows, journal_of, results_body, results_mark
from fedbook.evidence.claims import Results
from fedbook.kit.report import collect, read_results

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")


def opened(out, kind=Rows, **more):
    return kind("99_x", "quick", {}, 0, out, **more)


def measured(rows, what, n):
    for s in range(n): rows.row(what, s, lambda: {"v": s, "curve": [0.5] * 20})


def test_rows_stay_under_another_level(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_STAMP", "this code")
    monkeypatch.setenv("FEDBOOK_LEVEL", "0.982")
    rows = opened(tmp_path)
    measured(rows, "a", 2)
    monkeypatch.delenv("FEDBOOK_LEVEL")
    again = opened(tmp_path)
    assert [row["seed"] for row in again.rows] == [0, 1] and again.facts["level"] == 0.95


@pytest.mark.parametrize("odd", [np.float32(0.5), torch.tensor(0.5), np.array([0.5])])
def test_numbers_of_other_libraries_are_written(tmp_path, odd):
    rows = opened(tmp_path)
    rows.row("a", 0, lambda: {"v": odd})
    rows.save()
    assert results_body(rows.file)["rows"][0]["numbers"] == {"v": odd.tolist()}


def keys(file):
    return [(row["what"], row["seed"]) for row in results_body(file)["rows"]]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts the bytes that Linux says were written")
@pytest.mark.parametrize("level", ["rows", "claims"])
def test_bytes_written_grow_as_the_rows_do(tmp_path, level):
    def written(n):
        count = lambda: int(dict(map(str.split, Path("/proc/self/io").read_text().splitlines()))["wchar:"])
        results = opened(tmp_path / str(n), Results)
        before = count()
        if level == "rows": measured(results, "a", n)
        for k in range(n if level == "claims" else 0): results.claim(f"claim {k}", [0.1, 0.2], at_least=0.0)
        return count() - before, results
    few, _ = written(125)
    many, results = written(1000)
    assert many < 1.1 * 8 * few, "each row is written once"
    results.finish("done")
    assert not journal_of(results.file).exists()
    assert len(json.loads(results.file.read_text())[level]) == 1000


def test_whoever_reads_an_unfinished_run_sees_all_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_STAMP", "s")
    results = opened(tmp_path, Results)
    measured(results, "a", 4)
    results.claim("first", [0.1, 0.2], at_least=0.0)
    results.claim("second", [0.1, 0.2], at_least=0.0)
    results.claim("first", [0.3, 0.4], at_least=0.0)
    assert len(json.loads(results.file.read_text())["rows"]) == 1
    [body] = collect(tmp_path)
    for found in (body, read_results(results.file), results_body(results.file)):
        assert found["rows"] == results.rows and found["claims"] == results.claims
        assert [claim["claim"] for claim in found["claims"]] == ["second", "first"]
    again = Results.read(results.file)
    assert again.rows == results.rows and again.claims == results.claims
    resumed = opened(tmp_path)
    def not_again(): raise AssertionError("measured twice")
    assert [resumed.row("a", s, not_again)["v"] for s in range(4)] == [0, 1, 2, 3]
    resumed.finish("done")
    assert keys(results.file) == [("a", s) for s in range(4)] and not journal_of(results.file).exists()


def dies_at(n, work):
    """`work(say)` in a process that ends at once, as by a power cut, before its `n`-th call that changes the
    disk, and half of what that call would write is there. Returns what it said, and whether it died."""
    here, there = os.pipe()
    child = os.fork()
    if not child:
        left = [n]
        def fatal(name):
            real = getattr(os, name)
            def call(*args):
                left[0] -= 1
                if not left[0]:
                    if name == "fsync":
                        place = os.fstat(args[0]).st_size
                        os.ftruncate(args[0], max(0, place - 7))
                    os._exit(9)
                return real(*args)
            return call
        for name in ("fsync", "replace", "unlink"): setattr(os, name, fatal(name))
        try: work(lambda text: os.write(there, text.encode()))
        finally: os._exit(0 if left[0] > 0 else 1)
    os.close(there)
    with os.fdopen(here, "rb") as pipe: said = pipe.read().decode().split()
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@forks
def test_a_kill_at_any_moment_keeps_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_STAMP", "s")
    def work(out):
        def steps(say):
            results = opened(out, Results)
            for s in range(4):
                results.row("a", s, lambda: {"v": s})
                say(f"{s} ")
            results.claim("told", [0.1, 0.2], at_least=0.0)
            say("claim ")
            results.finish("done")
            say("done ")
        return steps
    died, n = True, 0
    while died:
        n += 1
        out = tmp_path / str(n)
        said, died = dies_at(n, work(out))
        file = out / "99_x-quick-0" / "results.json"
        if said: assert [s for _, s in keys(file)][:len(said)] == [s for s in range(4) if str(s) in said]
        if "claim" in said: assert [claim["claim"] for claim in results_body(file)["claims"]] == ["told"]
        after, _ = dies_at(0, work(out))
        assert after[-1] == "done" and keys(file) == [("a", s) for s in range(4)]
        assert not journal_of(file).exists() and json.loads(file.read_text())["headline"] == "done"
    assert n > 8, "it must have died at many places"


@forks
def test_two_processes_write_each_row_once(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_STAMP", "s")
    results = opened(tmp_path)
    results.row("mine", 0, lambda: {"v": 0})
    def others(say):
        other = opened(tmp_path)
        saves = []
        real = other._save
        other._save = lambda: (saves.append(1), real())
        for s in range(5):
            other.row("other", s, lambda: {"v": s})
        say(str(len(saves)))
    said, _ = dies_at(0, others)
    assert said == ["1"], "it writes all anew once, then only what comes"
    whole = results.file.read_text()
    measured(results, "mine", 6)
    assert results.file.read_text() == whole, "what another has written goes on"
    assert set(keys(results.file)) == {("mine", s) for s in range(6)} | {("other", s) for s in range(5)}
    results.finish("done")
    assert set(keys(results.file)) == {("mine", s) for s in range(6)} | {("other", s) for s in range(5)}


def test_a_journal_of_another_text_counts_for_nothing(tmp_path):
    results = opened(tmp_path)
    measured(results, "a", 3)
    old = journal_of(results.file).read_text()
    results.finish("done")
    journal_of(results.file).write_text(old)
    results.file.write_text(results.file.read_text().replace('"seed":2', '"seed":7'))
    assert keys(results.file) == [("a", 0), ("a", 1), ("a", 7)]
    journal_of(results.file).write_text(results_mark(results.file.read_text()) + '\n["row",{"wh\n')
    assert keys(results.file) == [("a", 0), ("a", 1), ("a", 7)], "a line that was cut off"


def test_a_run_whose_file_is_gone_or_of_others_writes_all_anew(tmp_path):
    results = opened(tmp_path)
    measured(results, "a", 3)
    results.file.unlink()
    results.row("a", 3, lambda: {"v": 3})
    assert keys(results.file) == [("a", s) for s in range(4)]
    other = opened(tmp_path, scale="other")
    other.row("b", 0, lambda: {"v": 0})
    assert keys(results.file) == [("b", 0)]
    results.row("a", 4, lambda: {"v": 4})
    assert keys(results.file) == [("a", s) for s in range(5)]
    results.made_with["networks"] = "told"
    results.row("a", 5, lambda: {"v": 5})
    assert "told" in results_body(results.file)["made_with"]["networks"].split("; ")


def test_a_full_disk_leaves_no_half_row(tmp_path, monkeypatch):
    results = opened(tmp_path)
    measured(results, "a", 3)
    before = journal_of(results.file).read_bytes()
    def full(_): raise OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="the disk is full: results.jsonl does not fit"):
            results.row("a", 3, lambda: {"v": 3})
    assert journal_of(results.file).read_bytes() == before
