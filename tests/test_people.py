import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from fedbook.answers import people as answers
from fedbook.lab import UserError
from fedbook.people import (SETS, STYLES, Body, Canvas, Place, Site, advice, blur, camera, check_cameras, cmc_curve, cmc_map, draw_person, expose, inventory,
                            limb, panel, people, person, places, plot_cmc, query_gallery, ranked_strip, ranking, read_name, reid_folder, reid_set,
                            render_site, rendered_sizes, scenery, site_cameras, texture)
from fedbook.world import Files

SMALL = (32, 16)


def rng(*key): return np.random.default_rng([3, *key])


def canvas(size=(256, 128), level=0.0):
    return Canvas(np.full((3, *size), level, np.float32), *places(size), 2 / size[0], 0.0)


# ---- the data set

def test_pictures_are_what_they_say():
    data = people(3, 2, 4, SMALL, 0, 1, "test")
    assert data.images.dtype == torch.uint8 and data.images.shape == (24, 3, 32, 16)
    assert data.labels.tolist() == [i for i in range(3) for _ in range(8)] and data.labels.dtype == data.identity.dtype == data.camera.dtype == torch.int64
    assert data.camera.tolist() == [0, 0, 0, 0, 1, 1, 1, 1] * 3 and data.split == ["test"] * 24
    assert [int(data.classes[k]) for k in data.labels] == data.identity.tolist() and people(8, 1, 1, (8, 8)).classes[6] == "0007"


def test_a_picture_depends_on_its_key_alone():
    few, more = people(2, 2, 3, SMALL, 5), people(4, 3, 4, SMALL, 5)
    same = [k for k in range(48) if more.labels[k] < 2 and more.camera[k] < 2 and k % 4 < 3]
    assert torch.equal(few.images, more.images[same]) and torch.equal(few.identity, more.identity[same])
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    scenery.cache_clear()
    assert torch.equal(few.images, people(2, 2, 3, SMALL, 5).images)
    assert np.array_equal(before[0], np.random.get_state()[1]) and torch.equal(before[1], torch.get_rng_state())


def test_every_part_of_the_key_matters():
    found = [p.numpy().tobytes() for seed in (0, 1) for site in (0, 4) for split in ("train", "test") for p in people(2, 2, 2, SMALL, seed, site, split).images]
    assert len(set(found)) == len(found)


def test_numbers_are_unique():
    sets = [set(people(2, 1, 1, (8, 8), seed, site, split).identity.tolist()) for seed in (0, 1) for site in (0, 1, 999) for split in ("train", "test")]
    assert len(set.union(*sets)) == 2 * len(sets) and 0 not in set.union(*sets)


def test_the_same_scene_at_any_size():
    small, large = people(4, 3, 2, (64, 32), 1).images.float(), people(4, 3, 2, (256, 128), 1).images.float()
    shrunk = torch.nn.functional.avg_pool2d(large, 4)
    right, wrong = (small - shrunk).abs().mean((1, 2, 3)), (small - shrunk.roll(8, 0)).abs().mean((1, 2, 3))
    assert right.max() < 5 and wrong.min() > 2 * right.max()
    assert people(1, 1, 1, (50, 31)).images.shape == (1, 3, 50, 31)


@pytest.mark.parametrize("wrong", [dict(identities=0), dict(identities=2.5), dict(identities=True), dict(identities=10_000), dict(cameras=0), dict(per_camera="4"),
                                   dict(size=64), dict(size=(64, 4)), dict(size=(64.0, 32)), dict(seed=-1), dict(site=0.5), dict(site=1000), dict(split="val")])
def test_bad_arguments(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))): people(**{"identities": 1, "size": (16, 8), **wrong})


def nearest(x, ids, allowed):
    distance = torch.cdist(x, x)
    distance[~allowed] = math.inf
    return float((ids[distance.argmin(1)] == ids).float().mean())


def test_difficulty():
    "Pixels know a person in the same camera, not in another; without the cameras' colours they know more."
    found = []
    for site in range(4):
        data = people(20, 3, 4, (64, 32), 0, site, "test")
        x, ids, cams = data.images.float(), data.identity, data.camera
        clean = x.clone()
        for c in range(3):
            own = cams == c
            clean[own] = (x[own] - x[own].mean((0, 2, 3), keepdim=True)) / x[own].std((0, 2, 3), keepdim=True)
        same = cams[:, None] == cams
        others = same & ~torch.eye(len(data), dtype=torch.bool)
        found.append([nearest(x.flatten(1), ids, others), nearest(x.flatten(1), ids, ~same), nearest(clean.flatten(1), ids, ~same)])
    within, across, removed = np.mean(found, 0)
    assert within > 0.9 and 0.4 < across < within - 0.1 and across < removed < 0.95

def test_difficulty_by_the_usual_protocol():
    "With other people of the query's own camera in the gallery, pixels find few."
    ranks = []
    for site in range(4):
        _, query, gallery, _ = render_site(site, 8, 30, seed=0)
        pixels = [torch.nn.functional.normalize(part.images.float().flatten(1) / 127.5 - 1) for part in (query, gallery)]
        ranks.append(cmc_map(*pixels, query.identity, gallery.identity, query.camera, gallery.camera)["rank1"])
    assert 0.05 < np.mean(ranks) < 0.5


# ---- its parts

def test_areas():
    c = canvas((512, 256))
    limb(c, (-0.2, -0.5), (0.1, -0.1), 0.1, 0.1, (1, 0, 0))
    panel(c, 0.0, 0.1, 0.9, 0.2, 0.3, (0, 1, 0))
    red, green, blue = c.rgb.sum((1, 2)) * (2 / 512) / 256
    assert abs(red / (math.pi * 0.01 + 0.1) - 1) < 0.01 and abs(green / 0.4 - 1) < 0.01 and blue == 0


def test_shapes_outside_the_picture_paint_nothing():
    c = canvas(SMALL, 0.5)
    limb(c, (3, 3), (4, 4), 0.1, 0.1, (1, 1, 1))
    limb(c, (-3, -3), (-4, -4), 0.1, 0.1, (1, 1, 1))
    panel(c, -2.0, -4, -3, 0.2, 0.2, lambda across, down: np.ones((3, 1, 1), np.float32))
    assert (c.rgb == 0.5).all()


@pytest.mark.parametrize("turn", [0.0, 1.0, 2.5, 4.0])
def test_a_body_turns_like_an_ellipse(turn):
    who, angles = person(rng(), STYLES[0]), np.linspace(0, 2 * math.pi, 20001)
    body = Body(who, Place(turn, 0, 0, 0.1, -0.1, 1.5))
    seen = 0.12 * np.cos(angles) * math.cos(turn) + 0.07 * np.sin(angles) * math.sin(turn)
    assert np.isclose(body.broad(0.12, 0.07), 1.5 * who.width * seen.max(), rtol=1e-5)
    assert np.allclose(body.at(0, 1, 0), (0.1 + 1.5 * math.sin(turn), -0.1 - 0.75))


def painted(turn, **changes):
    who = person(rng(), STYLES[0])._replace(**{"bag": "none", "pattern": "plain", "top": (0.0, 0.0, 0.9), "head": "short", **changes})
    c = canvas((128, 64), 0.5)
    draw_person(c, who, Place(turn, 0.4, 0.4, 0, 0, 1.75))
    return c.rgb


def test_a_logo_is_in_front_and_a_backpack_behind():
    red = lambda rgb: float(((rgb[0] > 0.8) & (rgb[1] < 0.2)).sum())
    logo, bag = dict(pattern="logo", second=(1.0, 0.0, 0.0)), dict(bag="backpack", bag_colour=(1.0, 0.0, 0.0))
    plain = dict(shoes=(0, 0, 0), bottom=(0, 0, 0))
    assert red(painted(0, **plain, **logo)) > 40 and red(painted(math.pi, **plain, **logo)) == 0 == red(painted(0, **plain))
    assert red(painted(math.pi, **plain, **bag)) > 3 * red(painted(0, **plain, **bag)) > 0


@pytest.mark.parametrize("change", [dict(head="long"), dict(head="bald"), dict(head="cap"), dict(head="hood"), dict(pattern="stripes"), dict(pattern="block"),
                                    dict(sleeves="long"), dict(legs="skirt"), dict(legs="trousers"), dict(bag="handbag"), dict(shoes=(1, 0, 1)), dict(width=1.25)])
def test_every_trait_shows(change):
    base = dict(sleeves="short", legs="shorts", second=(0.9, 0.9, 0.0), width=0.9, hair=(0.6, 0.1, 0.1))
    for turn in (0.1, math.pi / 2): assert np.abs(painted(turn, **{**base, **change}) - painted(turn, **base)).max() > 0.2


def test_a_camera_is_blur_cast_and_gamma():
    cam = camera(rng(), STYLES[1], 0)._replace(cast=(1.2, 1.0, 0.5), gamma=0.8)
    even = expose(np.full((3, 20, 10), 0.4, np.float32), cam)
    assert np.abs(even[:, 10, 5] - 255 * (0.4 * np.array(cam.cast)) ** 0.8).max() <= 0.51 and even.dtype == np.uint8
    assert expose(np.full((3, 8, 8), 9, np.float32), cam).max() == 255
    rows = blur(30, 2.0)
    assert np.allclose(rows.sum(1), 1, atol=1e-6) and np.isclose(rows[15, 17] / rows[15, 15], math.exp(-0.5), atol=1e-5)


def test_sites_have_cameras_of_their_own():
    assert site_cameras(2, 0, 1) == site_cameras(3, 0, 1)[:2]
    assert len({cam.cast for seed in (0, 1) for site in (0, 4) for cam in site_cameras(3, seed, site)}) == 12


def test_scenery_and_texture():
    cam = site_cameras(1)[0]
    assert np.array_equal(scenery(cam, (1, 2), SMALL), scenery(cam, (1, 2), SMALL)) and not scenery(cam, (1, 2), SMALL).flags.writeable
    assert np.abs(scenery(cam, (1, 2), SMALL) - scenery(cam, (1, 3), SMALL)).max() > 0.01
    fields = np.stack([texture(rng(s), (64, 32), 16) for s in range(60)])
    assert abs(fields.std() - 1) < 0.06


# ---- sites

def test_query_and_gallery():
    data = people(3, 2, 3, (8, 8)).take([5, 4, 3, 0, 1, 2, 9])
    q, g = query_gallery(data)
    assert q.tolist() == [0, 3, 6] and g.tolist() == [1, 2, 4, 5] and q.dtype == g.dtype == np.int64
    with pytest.raises(UserError, match="None"): query_gallery(type(data)(data.images, data.labels, data.classes, "x", "", ""))


def test_rendered_sizes():
    assert rendered_sizes(3, 100, 1) == [100, 10, 1] and rendered_sizes(1, 7, 3) == [7] and rendered_sizes(2, 5, 5) == [5, 5]
    for wrong in ((0, 5, 1), (2, 1, 5), (2, 5, 0), (2, 5.0, 1)):
        with pytest.raises(UserError): rendered_sizes(*wrong)


def test_render_site():
    site = render_site(2, 50, 4, 3, 2, SMALL, 1)
    assert isinstance(site, Site) and site.name == STYLES[2].name and len(site.train) == 48 and len(site.query) == len(site.gallery) == 12
    assert [set(d.split) for d in site[:3]] == [{"train"}, {"query"}, {"gallery"}]
    assert set(site.query.identity.tolist()) == set(site.gallery.identity.tolist()) and not set(site.train.identity.tolist()) & set(site.query.identity.tolist())
    assert len(render_site(0, 1, 1, 2, 2, (8, 8)).train.classes) == 2
    for wrong in (dict(train_images=0), dict(per_camera=1), dict(cameras=0)):
        with pytest.raises(UserError, match=next(iter(wrong))): render_site(**{"site": 0, "train_images": 9, "test_identities": 2, "size": (8, 8), **wrong})


# ---- rankings

def case(seed, q=25, g=70, kinds=9, cams=3):
    r = rng(seed)
    return (r.normal(size=(q, 4)), r.normal(size=(g, 4)), r.integers(kinds + 3, size=q), r.integers(kinds, size=g), r.integers(cams, size=q), r.integers(cams, size=g))


def by_hand(q, g, qi, gi, qc, gc):
    from sklearn.metrics import average_precision_score

    first, precision, orders = [], [], []
    for k in range(len(q)):
        score = g @ q[k] / np.linalg.norm(g, axis=1)
        order = [j for j in np.argsort(-score, kind="stable") if not (gi[j] == qi[k] and gc[j] == qc[k])]
        orders.append(order)
        right = [gi[j] == qi[k] for j in order]
        if any(right):
            first.append(right.index(True))
            precision.append(average_precision_score(right, -np.arange(len(right))))
    return {**{f"rank{k}": np.mean([f < k for f in first]) for k in (1, 5, 10)}, "mAP": np.mean(precision)}, orders


@pytest.mark.parametrize("seed", range(6))
def test_scores_agree_with_a_loop_and_with_scikit_learn(seed):
    args = case(seed)
    expected, orders = by_hand(*args)
    for chunk in (1, 7, 256):
        found = cmc_map(*args, chunk=chunk)
        assert found.keys() == expected.keys() and all(type(v) is float and abs(v - expected[k]) < 1e-9 for k, v in found.items())
    order = ranking(*args)
    assert order.shape == (25, 70) and order.dtype == np.int64 and [row[row >= 0].tolist() for row in order] == orders
    assert all((np.diff((row < 0).astype(int)) >= 0).all() for row in order)


def test_lists_arrays_and_tensors_give_the_same():
    args = case(9)
    assert cmc_map(*args) == cmc_map(torch.tensor(args[0]), torch.tensor(args[1], requires_grad=True), *(list(a) for a in args[2:4]), *(torch.tensor(a) for a in args[4:]))


def test_by_hand_small():
    q, g = [[1.0, 0.0]], [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [1.0, 0.3]]
    found = cmc_map(torch.tensor(q), torch.tensor(g), [1], [1, 2, 1, 1], [0], [0, 0, 1, 2])
    assert found["rank1"] == 0 and found["rank5"] == 1 and np.isclose(found["mAP"], (1 / 2 + 2 / 3) / 2)
    assert ranking(torch.tensor(q), torch.tensor(g), [1], [1, 2, 1, 1], [0], [0, 0, 1, 2]).tolist() == [[1, 2, 3, -1]]


def test_other_people_in_the_own_camera_stay_in_the_gallery():
    x = torch.eye(2)
    assert cmc_map(x[:1], torch.tensor([[1.0, 0.0], [0.9, 0.5]]), [1], [2, 1], [0], [0, 1])["rank1"] == 0


def test_queries_without_a_right_answer_are_left_out():
    x = torch.eye(3)
    assert cmc_map(x, x, [1, 2, 7], [1, 2, 3], [0, 0, 0], [1, 0, 1])["mAP"] == 1.0
    assert cmc_curve(ranking(x, x, [1, 2, 7], [1, 2, 3], [0, 0, 0], [1, 0, 1]), [1, 2, 7], [1, 2, 3], 3).tolist() == [1, 1, 1]


def test_ties_keep_the_gallerys_order():
    assert ranking(torch.ones(1, 2), torch.ones(5, 2), [1], [2, 1, 2, 1, 2], [0], [0] * 5).tolist() == [[0, 2, 4, -1, -1]]


@pytest.mark.parametrize("change, text", [(dict(gallery=torch.zeros(0, 2), gallery_ids=[], gallery_cams=[]), "empty"), (dict(query_ids=[1]), "query_ids has 1"),
                                          (dict(gallery_cams=[1] * 4), "gallery_cams has 4"), (dict(query=torch.ones(2, 3)), "query has 3"),
                                          (dict(query=torch.tensor([[1.0, math.nan], [1, 1]])), "not finite"), (dict(gallery=torch.full((3, 2), math.inf)), "not finite"),
                                          (dict(query=torch.ones(2)), "matrix"), (dict(query_cams=[1, 1]), "one camera only"), (dict(query_ids=[8, 9]), "one camera only"),
                                          (dict(query=torch.ones(0, 2), query_ids=[], query_cams=[]), "no query")])
def test_bad_rankings(change, text):
    args = dict(query=torch.ones(2, 2), gallery=torch.ones(3, 2), query_ids=[1, 2], gallery_ids=[1, 2, 2], query_cams=[0, 0], gallery_cams=[1, 1, 1])
    cmc_map(**args)
    with pytest.raises(UserError, match=text): cmc_map(**{**args, **change})


def test_figures():
    import matplotlib.pyplot as plt

    site = render_site(0, 8, 2, 2, 3, SMALL)
    f = lambda d: d.images.float().flatten(1)
    names = (site.query.identity, site.gallery.identity, site.query.camera, site.gallery.camera)
    order = ranking(f(site.query), f(site.gallery), *names)
    fig = ranked_strip(site.query, site.gallery, order, 8)
    labels = [[ax.get_xlabel() for ax in fig.axes[k * 9:k * 9 + 9]] for k in range(4)]
    for k, row in enumerate(labels):
        right = [bool(site.gallery.identity[j] == site.query.identity[k]) for j in order[k, :8] if j >= 0]
        assert row[0].startswith("query") and [t[0] == "✓" for t in row[1:] if t] == right and len(right) == 6
    framed = {ax.get_xlabel()[0]: ax.spines["top"].get_linestyle() for ax in fig.axes if ax.get_xlabel()[:1] in ("✓", "✗")}
    assert framed == {"✓": "-", "✗": "--"}
    assert len(plot_cmc({"a": cmc_curve(order, *names[:2], 5), "b": np.ones(5)}).axes[0].lines) == 2
    plt.close("all")


# ---- real folders

def write(path, level=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 8), (level, 0, 0)).save(path)


@pytest.fixture
def market(tmp_path):
    root = tmp_path / "Market-1501-v15.09.15"
    for name in ("0002_c1s1_000451_03.png", "0002_c3s1_000551_01.png", "0007_c6s2_1_1.png"): write(root / "bounding_box_train" / name)
    for name in ("0003_c1s1_1_0.png", "0000_c2s1_1_0.png"): write(root / "query" / name)
    for k, name in enumerate(("-1_c1s1_1_1.png", "0000_c4s6_2_1.png", "0003_c2s1_3_1.png")): write(root / "bounding_box_test" / name, 50 * k)
    (root / "query" / "Thumbs.db").write_bytes(b"x")
    return root


def test_a_market_folder(market):
    train, query, gallery = (reid_folder(market, part) for part in ("train", "query", "gallery"))
    assert train.identity.tolist() == [2, 2, 7] and train.camera.tolist() == [0, 2, 5] and train.labels.tolist() == [0, 0, 1] and train.classes == ["0002", "0007"]
    assert query.identity.tolist() == [3] and gallery.identity.tolist() == [0, 3] and gallery.camera.tolist() == [3, 1]
    assert isinstance(train.images, Files) and gallery.split == ["gallery"] * 2 and gallery.images[1][0, 0, 0] == 100
    assert reid_folder(market / "query", "query").identity.tolist() == [3] and check_cameras(train) == 1
    with pytest.raises(UserError, match="one camera only"): check_cameras(query)


def test_the_benchmarks_layout(tmp_path):
    for part in ("train", "train_all", "val", "query", "gallery"):
        for camera_, who in ((0, 0), (1, 0), (1, 12)): write(tmp_path / "viper" / "pytorch" / part / str(who) / f"cam_{camera_}_{who:05d}_00000.png")
    write(tmp_path / "viper" / "pytorch" / "train_all" / "5" / "cam_0_00005_00000.png")
    train, query = reid_folder(tmp_path, "train"), reid_folder(tmp_path / "viper", "query")
    assert sorted(zip(train.identity.tolist(), train.camera.tolist())) == [(1, 0), (1, 1), (6, 0), (13, 1)] and len(query) == 3


def test_a_part_that_is_there_twice_counts_once(market):
    write(market / "pytorch" / "train_all" / "2" / "0002_c1s1_000451_03.png")
    write(market / "pytorch" / "query" / "9" / "0009_c1s1_000451_03.png")
    assert len(reid_folder(market, "train")) == 3 and reid_folder(market, "query").identity.tolist() == [3]


@pytest.mark.parametrize("name, expected", [("0002_c1s1_000451_03.jpg", (2, 0)), ("0011_c8_f0046182.jpg", (11, 7)), ("-1_c2s1_1_1.jpg", (-1, 1)),
                                            ("cam_1_00002_00003.png", (3, 1)), ("cat.jpg", None), ("12_3.png", None)])
def test_names(name, expected): assert read_name(name) == expected


def test_bad_folders(market, tmp_path):
    with pytest.raises(UserError, match="not a folder"): reid_folder(tmp_path / "none", "train")
    with pytest.raises(UserError, match="part='val'"): reid_folder(market, "val")
    with pytest.raises(UserError, match="no folder query"): reid_folder(market / "bounding_box_train", "query")
    (tmp_path / "empty" / "query").mkdir(parents=True)
    with pytest.raises(UserError, match="no pictures"): reid_folder(tmp_path / "empty", "query")
    for name in ("holiday.png", "0001_c0s1_1_1.png"):
        write(tmp_path / name[:4] / "query" / name)
        with pytest.raises(UserError, match=f"{name}, expected names like 0002_c1s1"): reid_folder(tmp_path / name[:4], "query")


def test_sets_by_name(market, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    site = reid_set("market1501")
    assert site.name == "Market-1501" and [len(d) for d in site[:3]] == [3, 1, 2] and "redistributed" in site.train.licence
    states = {row["name"]: row["state"] for row in inventory()}
    assert states == {name: "found" if name == "market1501" else "not found" for name in SETS}
    with pytest.raises(UserError, match="put the folders train_all, query and gallery of VIPeR"): reid_set("viper")
    with pytest.raises(UserError, match="unknown"): reid_set("msmt17")
    assert str(tmp_path) in advice("duke") and "bounding_box_train" in advice("duke")


def test_the_table_of_sets():
    assert list(SETS) == ["duke", "market1501", "cuhk03", "prid2011", "cuhk01", "viper", "3dpes", "ilids"]
    assert sum(s.train_images for s in SETS.values()) == 43837 and sum(s.query for s in SETS.values()) == 8728 and sum(s.gallery for s in SETS.values()) == 45058
    assert sum(s.train_ids for s in SETS.values()) == 3458 and "withdrawn" in SETS["duke"].licence and "119" in SETS["ilids"].title


# ---- answers, imports

def test_answers():
    assert np.isclose(answers.average_precision([False, True, True]), (1 / 2 + 2 / 3) / 2) and answers.average_precision([]) is None
    assert np.isclose(answers.by_chance(2, 4, 1), 0.5) and np.isclose(answers.by_chance(2, 4, 2), 5 / 6) and answers.by_chance(1, 3, 3) == 1
    assert answers.grey_world([10.0, 20.0, 30.0]) == [2.0, 1.0, 20 / 30] and answers.grey_world([0.0, 0.0, 5.0]) == [1.0, 1.0, 1.0]


def test_imports_little():
    heavy = ["matplotlib", "ipywidgets", "torchvision", "open_clip", "timm", "sklearn", "scipy"]
    code = f"import sys, fedbook.people; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
