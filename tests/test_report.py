import json
import re
from io import BytesIO

import hypothesis.strategies as st
import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from matplotlib.figure import Figure

from fedbook.engine.show import COLOURS
from fedbook.engine.errors import UserError
from fedbook.evidence.claims import claims_figure, judged_claim, mean_of_claim, message, verdict_counts
from fedbook.engine.rows import results_text
from fedbook.engine.history import History
from fedbook.kit.report import (as_html, collect, draw_curves, drawn_from, failed_runs, few_colours,
                                figures_of, fill, headlines, keep, main_claims, overview_figure, page,
                                row_difference, result_name, write_report)

matplotlib.use("Agg")


def result(*claims, name="99_demo", data="toy", headline="done", **facts):
    return dict(name=name, profile="full", seed=0, sizes={"data": data}, scale="a toy", device="cpu",
                changes={},
                headline=headline, rows=[], claims=list(claims)) | facts


OF = dict(unit="%", of="FedDemo", effect=0.054)
SURE = judged_claim("b beats a", [0.05, 0.06, 0.052], at_least=0, paper="61.2 minus 55.8 %",
                    source="Table 2", **OF)
OPPOSITE = judged_claim("c beats a", [-0.05, -0.06, -0.052], at_least=0, paper="0.2 to 2.2 %",
                        **OF | dict(effect=(0.002, 0.022)))
NOISY = judged_claim("a <b> c", [0.05, -0.06, 0.02], at_least=-0.01, at_most=0.01, unit="%", paper="x",
                     of="FedDemo")
FEW = judged_claim("few", [2.0], at_most=3)
PLAIN = judged_claim("plain", [12.0, 14.0, 13.0], unit="s")


def put(folder, *bodies):
    folder.mkdir(exist_ok=True)
    for body in bodies: (folder / f"{result_name(body)}.json").write_text(json.dumps(body))
    return folder


SOUND = dict(name="99_x", profile="full", seed=0, sizes={}, scale="", device="cpu", changes={})
CLAIM = judged_claim("a", [1.0])
BROKEN = [SOUND, SOUND | dict(claims=3), SOUND | dict(claims=[3]),
          SOUND | dict(claims=[CLAIM | dict(values=[])]),
          SOUND | dict(claims=[CLAIM | dict(values=["x"])]), SOUND | dict(claims=[CLAIM | dict(paper=3)]),
          SOUND | dict(claims=[{k: v for k, v in CLAIM.items() if k != "unit"}]),
          SOUND | dict(claims=[], profile="huge"),
          SOUND | dict(claims=[CLAIM | dict(at_least="0")]),
          SOUND | dict(claims=[CLAIM | dict(verdict="too noisy to say")]),
          SOUND | dict(claims=[CLAIM | dict(verdict="yes", own=False)]),
          SOUND | dict(claims=[CLAIM | dict(curve=[dict(setting="x")])]),
          SOUND | dict(claims=[CLAIM | dict(reach=["x"])])]


@pytest.mark.parametrize("text", ["{", "{}", "[]", "3", *map(json.dumps, BROKEN)])
def test_a_broken_results_file_is_one_sentence(text, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "results.json").write_text(text)
    with pytest.raises(UserError, match="is not a results.json") as error: collect(tmp_path)
    assert "\n" not in str(error.value)


def test_collect_orders_and_keep_names(tmp_path):
    bodies = [result(SURE, name="10_b"), result(SURE, name="04_a", data="z"),
              result(SURE, name="04_a", data="b"), result(name="03_c")]
    for i, body in enumerate(bodies):
        (tmp_path / f"run{i}").mkdir()
        (tmp_path / f"run{i}" / "results.json").write_text(json.dumps(body))
    assert [result_name(body) for body in collect(tmp_path)] == ["03_c-full-0-toy", "04_a-full-0-b",
                                                            "04_a-full-0-z", "10_b-full-0-toy"]
    own = result(CLAIM, data="/home/ann/pics", changes={"data": "/home/ann/pics"})
    assert re.fullmatch(r"99_demo-full-0-data=_home_ann_pics-[0-9a-f]{12}-own", result_name(own))
    kept = keep(tmp_path, tmp_path / "results")
    assert [path.name for path in kept] == ["04_a-full-0-b.json", "04_a-full-0-z.json",
                                            "10_b-full-0-toy.json"]
    assert collect(tmp_path / "results") == [body for body in collect(tmp_path) if body["claims"]]


def notebook(*errors, failed):
    outputs = [dict(output_type="error", ename=name, evalue="", traceback=[]) for name in errors]
    return json.dumps(dict(metadata=dict(papermill=dict(exception=failed or None)),
                           cells=[dict(outputs=outputs)]))


@pytest.mark.parametrize("book, results, why", [
    (notebook(failed=False), result(SURE), None), (notebook("ZeroDivisionError", failed=True),
                                                   result(SURE, headline=""),
                                                   "a cell failed: ZeroDivisionError"),
    (notebook("KeyboardInterrupt", failed=True), result(headline=""), "stopped before its end"),
    (notebook(failed=False), result(headline=""), "stopped before its end"),
    (notebook(failed=False), None, "stopped before its end"), ("{", None, "stopped before its end"),
    (None, result(SURE), None), (None, None, None)])
def test_which_runs_failed(book, results, why, tmp_path):
    run = tmp_path / "99_demo-full-0"
    run.mkdir()
    if book is not None: (run / "99_demo.ipynb").write_text(book)
    if results: (run / "results.json").write_text(json.dumps(results))
    assert failed_runs(tmp_path) == ({run.name: why} if why else {})


def test_counts_have_one_order():
    counted = verdict_counts([FEW, NOISY, SURE, SURE, PLAIN])
    assert counted == "2 reproduced, 1 undecided; own checks: 1 undecided, 1 measured"
    assert verdict_counts([]) == "no claims" and message(result(OPPOSITE)) == "99_demo on toy: 1 contradicted"


def lines_of(ax): return [line for line in ax.lines if len(line.get_xdata())]


def test_a_figure_shows_each_claim_against_bound_and_paper():
    fig, own = claims_figure(result(SURE, OPPOSITE, NOISY, FEW, PLAIN)), claims_figure(result(FEW, PLAIN))
    [percent], [few, _] = fig.axes, own.axes
    assert percent.get_xlabel() == "percent, or percentage points", "own checks stand in the table"
    assert [ax.get_xlabel() for ax in own.axes] == ["checks of our own: ratio, or as the claim says",
                                                    "checks of our own: s"]
    assert [t.get_text() for t in percent.get_yticklabels()] == ["b beats a", "c beats a", "a <b> c"]
    low, high = (100 * SURE[end] for end in ("low", "high"))
    bars = [tuple(line.get_xdata()) for line in lines_of(percent) if line.get_linewidth() == 6]
    assert bars[0] == pytest.approx((low, high)) and len(bars) == 3
    stars = [tuple(line.get_xdata()) for line in percent.lines if line.get_marker() == "*"]
    assert stars == [pytest.approx((5.4, 5.4)), pytest.approx((0.2, 2.2))]
    bounds = [line.get_xdata()[0] for line in lines_of(percent) if line.get_marker() in (8, 9)]
    assert bounds == pytest.approx([0, 0, -1, 1])
    assert [line.get_marker() for line in lines_of(few)
            if line.get_marker() in (8, 9)] == [8], "at most: to the left"
    assert not [line for line in lines_of(few) if line.get_linewidth() == 6], "one seed has no interval"
    assert "1 reproduced, 1 contradicted" in fig.get_suptitle()


ELSEWHERE = judged_claim("b beats a", [0.01, 0.03, 0.02], at_least=0, **OF,
                         curve=[("long", [0.2, 0.21, 0.2])])
OTHER = judged_claim("other", [3.0, 3.1, 3.3], at_least=4, of="FedOther", reach=[3.5] * 3)


def test_one_sentence_is_one_claim_and_what_other_runs_found_is_its_curve():
    bodies = [result(SURE, OPPOSITE, FEW), result(ELSEWHERE, OTHER, data="photos")]
    found = headlines(bodies)
    assert {paper: [h.claim["claim"] for h in several] for paper, several in found.items()} == {
        "FedDemo": ["b beats a", "c beats a"], "FedOther": ["other"]}
    first = found["FedDemo"][0].claim
    assert first["values"] == SURE["values"] and first["verdict"] == "reproduced"
    assert [(p["setting"], p["values"]) for p in first["curve"]] == [
        ("photos", ELSEWHERE["values"]), ("photos, long", [0.2, 0.21, 0.2])]
    assert SURE["curve"] == [], "the file's own claim stays as it is"


def test_the_largest_run_gives_the_verdict():
    small = result(SURE, data="small") | dict(profile="smoke")
    few, many = (result(ELSEWHERE) | dict(changes={"seeds": str(n)}, sizes=dict(seeds=n, data=f"{n}"))
                 for n in (3, 12))
    plain = result(SURE, data="plain") | dict(sizes=dict(seeds=5, data="plain"))
    other = result(SURE, data="other") | dict(changes={"data": "other"}, sizes=dict(seeds=99, data="other"))
    (first,) = headlines([few, small, other, plain, many])["FedDemo"]
    assert first.claim["values"] == ELSEWHERE["values"]
    settings = [point["setting"] for point in first.claim["curve"]]
    assert [name for name in settings if "long" not in name] == ["plain", "3", "other", "small"]


def test_the_overview_has_one_row_a_paper_on_the_papers_scale():
    ratio = judged_claim("d has 4 times of a", [1.9, 2.0, 2.1], at_least=4, unit="times", of="FedTimes")
    far = OPPOSITE | dict(of="FedFar")
    plain = judged_claim("no size", [1.0, 1.1], at_least=0, of="FedPlain")
    bodies = [result(SURE, OPPOSITE, NOISY, FEW), result(ratio, far, name="98_other"),
              result(plain, name="99_last")]
    assert [claim["of"] for claim in main_claims(bodies)] == ["FedDemo", "FedTimes", "FedFar"]
    [ax] = overview_figure(bodies).axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["b beats a", "d has 4 times of a", "c beats a"]
    ends = [bar.get_width() for bar in ax.patches]
    assert ends[::2] == [1, 1, 1], "what the paper claims"
    ours = [mean_of_claim(SURE) / 0.054, (2 - 1) / (4 - 1), -2.5]
    assert ends[1::2] == pytest.approx(ours), "what is far outside is cut at the edge"
    intervals = [line.get_xdata() for line in ax.lines if line.get_marker() == "|"]
    assert intervals[0] == pytest.approx([SURE["low"] / 0.054, SURE["high"] / 0.054])
    assert [text.get_text() for text in ax.texts][:4] == [
        "paper: 5.4 %", "here: 5.4 [4.09, 6.71] %, reproduced",
        "paper: at least 4 times", "here: 2 [1.75, 2.25] times, contradicted"]
    assert figures_of([bodies[2]]) == {} and "overview" not in page([bodies[2]])


def test_a_curve_has_a_panel_with_the_claim_its_bound_and_every_setting():
    figure, bare = Figure(), Figure()
    draw_curves(figure, [SURE, ELSEWHERE])
    ax, = figure.axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["the claim", "long"]
    assert ax.get_title(loc="left").startswith("b beats a")
    means = [line.get_xdata()[0] for line in ax.lines if line.get_marker() in ("D", "o")]
    assert means == pytest.approx([2.0, 100 * mean_of_claim(dict(values=[0.2, 0.21, 0.2]))])
    stars = [line.get_xdata() for line in ax.lines if line.get_marker() == "*"]
    assert [list(sizes) for sizes in stars] == [pytest.approx([5.4, 5.4])]
    draw_curves(bare, [dict(ELSEWHERE, values=[], why="no run")])
    assert [t.get_text() for t in bare.axes[0].get_yticklabels()] == ["long"]


def test_a_figure_can_be_read_by_all_and_changes_nobodys_settings():
    before = dict(matplotlib.rcParams)
    overview = overview_figure([result(SURE, OPPOSITE, NOISY)])
    fig = claims_figure(result(SURE, OPPOSITE, NOISY))
    assert min(t.get_fontsize() for t in overview.findobj(matplotlib.text.Text) if t.get_text()) >= 9
    assert dict(matplotlib.rcParams) == before
    texts = [text for text in fig.findobj(matplotlib.text.Text) if text.get_text()]
    assert min(text.get_fontsize() for text in texts) >= 9
    looks = {(line.get_marker(), line.get_color()) for line in fig.axes[0].lines
             if line.get_markersize() == 7}
    assert len(looks) == 3 == len({marker for marker, _ in looks}), "shape tells as much as colour"
    assert {colour for _, colour in looks} <= {*COLOURS, "#767676"}


def test_the_page_has_a_section_for_each_paper_and_the_lab_books_below():
    text = page([result(SURE, OPPOSITE, name="04_a"), result(ELSEWHERE, name="04_a", data="other",
                                                             scale="other scale"), result(name="05_b"),
                 result(FEW, OTHER, name="06_c")])
    assert re.findall(r"^## (.*)", text, re.M) == ["FedDemo", "FedOther", "Lab books"] and "05_b" not in text
    assert "| b beats a | 61.2 minus 55.8 % (Table 2) | 5.4 [4.09, 6.71] % (3 seeds) |" in text
    assert ("b beats a (paper: 61.2 minus 55.8 %): here 5.4 [4.09, 6.71] % (3 seeds), *reproduced*. "
            "Measured, where nothing else is said, on ") in text
    assert "All claims of papers: 1 reproduced, 1 contradicted, 1 not testable here." in text
    assert "| b beats a | other | 2 [-0.484, 4.48] % (3 seeds) |" in text
    assert "|  | other, long | 20.3 [18.9, 21.8] % (3 seeds) |" in text
    assert "| [06_c](../nbs/06_c.ipynb) | full, toy | 1 undecided |" in text and "| few |" not in text


def test_a_report_is_written_whole_and_figures_stay_until_their_claims_change(tmp_path):
    body = result(SURE, OPPOSITE)
    pages = write_report(tmp_path, [body])
    figure = tmp_path / "figures" / "overview.png"
    assert [p.name for p in pages] == ["README.md", "report.html"]
    stamps = {name: stamp for name, (stamp, _) in figures_of([body]).items()}
    assert {path.name: drawn_from(path) for path in figure.parent.iterdir()} == stamps
    before = drawn_from(figure)
    assert all((tmp_path / link).exists() for link in re.findall(r"!\[.*?\]\((.*?)\)", pages[0].read_text()))
    figure.write_bytes(figure.read_bytes() + b"mark")
    write_report(tmp_path, [body])
    assert figure.read_bytes().endswith(b"mark")
    write_report(tmp_path, [result(OPPOSITE, NOISY)])
    assert not figure.read_bytes().endswith(b"mark") and drawn_from(figure) != before
    figure.write_bytes(b"no picture")
    assert drawn_from(figure) == "" == drawn_from(tmp_path / "none.png")
    write_report(tmp_path, [result(FEW)])
    assert figure.exists(), "what is not ours stays"
    write_report(tmp_path, [body]), write_report(tmp_path, [result(FEW)])
    assert not figure.exists(), "nothing of a paper is claimed any more"


def png_of(array, mode="RGBA"):
    from PIL import Image
    data = BytesIO()
    Image.fromarray(array.astype(np.uint8), mode).save(data, "PNG")
    return data.getvalue()


def pixels(png):
    from PIL import Image
    with Image.open(BytesIO(png)) as picture: return np.asarray(picture.convert("RGBA")).astype(int)


def drawn():
    "Curves with a legend, and a photograph (noise over slopes), each as PNG."
    curves = Figure((8, 3))
    ax = curves.subplots()
    for k in range(4): ax.plot(np.sin(np.arange(40) / (k + 2)), label=f"curve {k}")
    ax.legend()
    data = BytesIO()
    curves.savefig(data, format="png")
    slope = np.stack([*np.meshgrid(np.arange(200), np.arange(200)), np.full((200, 200), 90)], 2)
    photo = slope + np.random.default_rng(0).integers(0, 50, slope.shape)
    return data.getvalue(), png_of(np.dstack([photo, np.full((200, 200), 255)]))


def test_a_picture_in_few_colours_looks_the_same_and_twice_is_once():
    chart, photo = drawn()
    for png, most, mean in ((chart, 12, 0.5), (photo, 40, 6)):
        few = few_colours(png)
        off = abs(pixels(few) - pixels(png))
        assert off.shape == pixels(png).shape and off.max() <= most and off.mean() <= mean
        assert len(few) < 0.6 * len(png) and few_colours(few) == few
        assert few_colours(png) == few


def test_what_lets_light_through_or_would_grow_stays():
    clear = np.dstack([np.random.default_rng(0).integers(0, 255, (50, 50, 3)), np.full((50, 50), 100)])
    dot = png_of(np.full((1, 1, 3), 7), "RGB")
    assert few_colours(png_of(clear)) == png_of(clear) and few_colours(dot) == dot


def test_results_are_written_a_line_a_row_with_every_number():
    body = result(SURE, NOISY) | dict(rows=[dict(what="a: b", seed=0, numbers=dict(x=[0.1, 1e-17, None]))] * 3)
    text = results_text(body)
    assert json.loads(text) == json.loads(json.dumps(body)) and list(json.loads(text)) == list(body)
    assert len(text.splitlines()) == len(body) + 2 + 3 + 2 + 2 and len(text) < len(json.dumps(body)) + 20
    assert json.loads(results_text(result())) == result()


def test_html_is_escaped_and_has_all_parts():
    text = as_html(page([result(SURE, NOISY)]))
    assert "a &lt;b&gt; c" in text and "<b>" not in text
    assert text.count("<table>") == 2 and "<h2 id='FedDemo'>" in text and "<img alt=" in text


def test_fill_writes_the_last_cell_of_linked_rows(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("| [A](results/README.md#feddemo) | what | old |\n"
                      "| [B](results/README.md#fednone) | x | old |\n| no | link |\n")
    fill(readme, [result(SURE), result(NOISY, data="other")])
    said = ("b beats a (paper: 61.2 minus 55.8 %): here 5.4 [4.09, 6.71] % (3 seeds), *reproduced*. "
            "Measured, where nothing else is said, on a toy, full, cpu. All 2 claims: 1 reproduced, 1 undecided")
    assert readme.read_text() == (f"| [A](results/README.md#feddemo) | what | {said} |\n"
                                  "| [B](results/README.md#fednone) | x | nothing claimed yet |\n| no | link |\n")
    readme.write_text("no rows")
    with pytest.raises(UserError, match="no table row"): fill(readme, [])


def test_clocks_are_left_out_at_any_depth_and_as_whole_rows():
    old = [dict(what="a", seed=0, numbers={"score": 1.0, "by": [{"seconds": 3, "n": 2}]}),
           dict(what="b", seed=0, numbers={"x": 1})]
    new = [dict(what="a", seed=0, numbers={"score": 1.0, "by": [{"seconds": 4, "n": 2}]}),
           dict(what="b", seed=0, numbers={"x": 2})]
    assert row_difference(old, new, ("seconds", "b")) == ""
    assert "seconds" in row_difference(old, new, ("b",))
    assert "row 'b'" in row_difference(old, new, ("seconds",))


texts = st.text() | st.sampled_from(["float:nan", "float:x", "text:", "text:float:inf"])
plain = st.none() | st.booleans() | st.integers() | st.floats() | texts
nested = lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
values = st.recursive(plain, nested, max_leaves=6)


def bits(value):
    "A text that is equal only for values that are equal in type and bit for bit, NaN included."
    if isinstance(value, dict): return [(k, bits(v)) for k, v in value.items()]
    return [bits(v) for v in value] if isinstance(value, list) else f"{type(value).__name__} {value!r}"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=6) | st.sampled_from(["self", "row", "name"]), values,
                                max_size=4), max_size=4))
def test_history_round_trip_is_exact_and_valid_json(rows):
    history = History(rows)
    def refuse(constant): raise AssertionError(constant)
    text = history.to_json()
    json.loads(text, parse_constant=refuse)
    back = History.from_json(text)
    assert bits(back.rows) == bits(history.rows) == bits(rows) and back.to_json() == text
    assert len(back) == len(rows)


def test_history_columns():
    history = History()
    assert len(history) == 0
    with pytest.raises(UserError, match="none yet"): history.last("loss")
    history.add(round=1, loss=0.5)
    history.add(round=2, accuracy=0.25)
    history.add(round=3, loss=None)
    assert history.column("loss") == [0.5, None, None] and history.last("loss") == 0.5
    assert history.last("accuracy") == 0.25
    with pytest.raises(UserError, match="round, loss, accuracy"): history.column("acc")
    with pytest.raises(UserError, match="round, loss, accuracy"): history.plot("acc")
    with pytest.raises(UserError, match="round, loss, accuracy"): history.plot("loss", x="epoch")
    with pytest.raises(UserError, match="columns"): history.plot()


def test_history_takes_tensors_and_arrays_and_refuses_the_rest():
    history = History()
    history.add(a=torch.tensor(2), b=np.float32(0.5), c=np.arange(2), d=(1, 2), e={"x": torch.tensor([1.5])})
    assert history.rows == [{"a": 2, "b": 0.5, "c": [0, 1], "d": [1, 2], "e": {"x": [1.5]}}]
    assert type(history.rows[0]["b"]) is float
    for wrong in (object(), {1: 2}, {1}, b"bytes", 1j, np.array([1j]), torch.optim.SGD([torch.zeros(1)])):
        with pytest.raises(UserError) as error: history.add(state=wrong)
        assert str(error.value).startswith("state") and "\n" not in str(error.value)
    assert len(history) == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"rows": 3}', '{"rows": [3]}',
                                  '{"rows": [{"a": "float:x"}]}', '{"rows": {"a": 1}}', None])
def test_what_is_no_history_is_refused(text):
    with pytest.raises(UserError, match="is not a history"): History.from_json(text)


def test_history_figure_skips_what_is_no_number():
    history = History([dict(round=1, a=0.5, b="x"), dict(round=2), dict(round=3, a=0.7)])
    ax = history.plot("a", "b").axes[0]
    assert ax.lines[0].get_xydata().tolist() == [[1, 0.5], [3, 0.7]] and len(ax.lines[1].get_xydata()) == 0
    assert ax.get_xlabel() == "round" and [t.get_text() for t in ax.get_legend().get_texts()] == ["a", "b"]


def test_history_table_is_short_and_safe():
    history = History([dict(round=r, note="<b>") for r in range(100)])
    page = history._repr_html_()
    assert page.count("<tr>") == 8 and "&lt;b&gt;" in page and "<b>" not in page and ">99<" in page
    assert ">50<" not in page
    assert History()._repr_html_() == "<table><tr></tr></table>"
