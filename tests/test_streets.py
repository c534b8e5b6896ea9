import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from fedbook.answers import streets as answers
from fedbook.lab import UserError
from fedbook.streets import (CLASSES, MOST_HIDDEN, SEGMENTS, SETS, SMALLEST, WEATHERS, WIDE, Boxes, Camera, Part, bdd100k, between, canvas, check_boxes,
                             cityscapes, coco_boxes, extent, hidden, inventory, largest, paint, paint_scene, parts_of, project, pulses, rendered_street, resized,
                             scaled, scene, segments, show_scene, soda10m, street_set, streets, weather_sheet)
from fedbook.world import Files, Pictures

SMALL = (45, 80)


def boxes_of(*rows):
    return Boxes(torch.tensor([row[:4] for row in rows], dtype=torch.float32).reshape(-1, 4), torch.tensor([row[4] for row in rows], dtype=torch.int64))


# ---- rendered scenes

def test_pictures_are_what_they_say():
    data = streets(3, "rainy", (90, 160), 1, "test", 4)
    assert isinstance(data, Pictures) and data.images.dtype == torch.uint8 and data.images.shape == (3, 3, 90, 160)
    assert data.classes == list(CLASSES) and data.domain == ["rainy"] * 3 and data.split == ["test"] * 3 and data.labels.dtype == torch.int64
    for b, label in zip(data.boxes, data.labels):
        assert b.xyxy.dtype == torch.float32 and b.labels.dtype == torch.int64 and b.xyxy.shape == (len(b.labels), 4)
        assert label == b.labels[((b.xyxy[:, 2] - b.xyxy[:, 0]) * (b.xyxy[:, 3] - b.xyxy[:, 1])).argmax()] == largest(b)
    assert len(streets(0)) == 0 and largest(boxes_of()) == 0


def test_weather_moves_no_box():
    first = streets(4, "cloudy", SMALL, 3)
    for weather in WEATHERS[1:]:
        other = streets(4, weather, SMALL, 3)
        assert all(torch.equal(a.xyxy, b.xyxy) and torch.equal(a.labels, b.labels) for a, b in zip(first.boxes, other.boxes))
        assert (first.images.float() - other.images.float()).abs().mean() > 8
    mixed = streets(3, ["cloudy", "night", "snowy"], SMALL, 3)
    assert mixed.domain == ["cloudy", "night", "snowy"] and torch.equal(mixed.images[0], first.images[0])
    assert torch.equal(mixed.images[2], streets(1, "snowy", SMALL, 3, start=2).images[0])


def test_the_same_scene_at_any_size():
    large, small = streets(6, "cloudy", (720, 1280), 2), streets(6, "cloudy", (180, 320), 2)
    shrunk = torch.nn.functional.avg_pool2d(large.images.float(), 4)
    right, wrong = (small.images.float() - shrunk).abs().mean((1, 2, 3)), (small.images.float() - shrunk.roll(1, 0)).abs().mean((1, 2, 3))
    assert right.max() < 3 and wrong.min() > 5 * right.max()
    assert all(torch.allclose(a.xyxy / 4, b.xyxy, atol=1e-3) and torch.equal(a.labels, b.labels) for a, b in zip(large.boxes, small.boxes))
    square = streets(6, "cloudy", (100, 100), 2)
    assert all(torch.allclose(scaled(a, (720, 1280), (100, 100)).xyxy, b.xyxy, atol=1e-3) for a, b in zip(large.boxes, square.boxes))


def test_a_scene_depends_on_its_key_alone():
    many, tail = streets(5, "night", SMALL, 7), streets(2, "night", SMALL, 7, start=3)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    assert torch.equal(many.images[3:], tail.images) and torch.equal(many.boxes[4].xyxy, tail.boxes[1].xyxy)
    assert np.array_equal(before[0], np.random.get_state()[1]) and torch.equal(before[1], torch.get_rng_state())
    found = [p.numpy().tobytes() for seed in (0, 1) for split in ("train", "test") for p in streets(3, "cloudy", SMALL, seed, split).images]
    assert len(set(found)) == 12


def test_statistics():
    scenes = [scene(0, "train", k) for k in range(300)]
    counts = [len(s.things) for s in scenes]
    kinds = np.bincount([t.kind for s in scenes for t in s.things], minlength=5) / 300
    assert 4 <= min(counts) and max(counts) <= 9
    assert 1.5 < kinds[0] < 2.5 and 2 < kinds[1] < 3 and kinds[2] > 0.5 and kinds[3] > 0.5 and 0.9 < kinds[4] < 1.5
    boxes = np.concatenate([s.boxes for s in scenes])
    heights = 180 * (boxes[:, 3] - boxes[:, 1])
    assert 22 < np.median(heights) < 30 and (heights > 8).mean() > 0.95 and heights.max() < 110


def test_weather_moves_no_house():
    a, b = (scene(6, "train", k) for k in (0, 1))
    day, grey, other = (paint_scene(s, weather, (90, 160)).planes[:3] for s, weather in ((a, "cloudy"), (a, "overcast"), (b, "cloudy")))
    assert np.abs(day - grey).mean() < 0.03 < 0.06 < np.abs(day - other).mean()


def test_what_has_a_box():
    for k in range(60):
        s = scene(4, "test", k)
        assert all(a.depth >= b.depth for a, b in zip(s.things, s.things[1:]))
        assert (s.boxes[:, :2] >= 0).all() and (s.boxes[:, 2] <= WIDE).all() and (s.boxes[:, 3] <= 1).all()
        assert (s.boxes[:, 2:] - s.boxes[:, :2]).min() >= SMALLEST
        assert all(hidden(s.boxes[i], s.boxes[i + 1:]) <= MOST_HIDDEN for i in range(len(s.boxes)))


def test_boxes_fit_what_is_painted():
    for k in range(15):
        s = scene(1, "train", k)
        for thing, box in zip(s.things, s.boxes):
            c = canvas((360, 640), segments=True)
            c.now = 1
            for part in parts_of(s.camera, thing): paint(c, part)
            i, j = np.nonzero(c.ids)
            found = np.array([j.min() * c.px, i.min() * c.py, (j.max() + 1) * c.px, (i.max() + 1) * c.py])
            assert np.abs(found - box).max() * 360 < 2, CLASSES[thing.kind]


def test_segments_agree_with_boxes():
    maps, data = segments(6, size=(180, 320), seed=2), streets(6, size=(180, 320), seed=2)
    assert maps.dtype == torch.uint8 and maps.shape == (6, 180, 320) and maps.max() < len(SEGMENTS)
    for m, b in zip(maps, data.boxes):
        inside = torch.zeros(5, 180, 320, dtype=torch.bool)
        for (x1, y1, x2, y2), c in zip(b.xyxy.tolist(), b.labels.tolist()): inside[c, math.floor(y1):math.ceil(y2), math.floor(x1):math.ceil(x2)] = True
        for c in range(5): assert not ((m == c + 2) & ~inside[c]).any()
        assert set((m.unique() - 2).tolist()[2:]) <= set(b.labels.tolist()) and (m == 1).float().mean() > 0.15


@pytest.mark.parametrize("wrong", [dict(n=-1), dict(n=2.0), dict(n=True), dict(size=64), dict(size=(4, 64)), dict(size=(64.0, 64)), dict(seed=-1), dict(start=-1),
                                   dict(split="val"), dict(weather="foggy"), dict(weather=["rainy", "rainy"])])
def test_bad_arguments(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))): streets(**{"n": 1, "size": (16, 16), **wrong})


# ---- its parts

def test_perspective_is_a_pinhole():
    camera, rng = Camera(0.8, 0.4, 1.3, 1.7, 0.0), np.random.default_rng(0)
    x, h, z = rng.uniform(-5, 5, 20), rng.uniform(0, 3, 20), rng.uniform(3, 40, 20)
    image = np.array([[1.3, 0, 0.8], [0, 1.3, 0.4], [0, 0, 1]]) @ np.stack([x, 1.7 - h, z])
    assert np.allclose(project(camera, x, h, z), image[:2] / image[2])
    assert project(camera, 2.0, 1.7, 1e9)[1] == pytest.approx(0.4)


def test_covers():
    assert np.allclose(between(np.array([0.5, 1.5, 2.5]), 0.25, 2.0, 1.0), [0.75, 0.5 + 0.5, 0.0])
    v = np.random.default_rng(0).uniform(0, 4, 30)
    fine = (np.arange(4000) + 0.5) / 4000 - 0.5
    assert np.allclose(pulses(v, 0.7, 0.4), [np.mean((u + 0.7 * fine) % 1 < 0.4) for u in v], atol=2e-3)


@pytest.mark.parametrize("part, area", [(Part("rect", [(0.113, 0.217), (0.631, 0.522)], (1, 1, 1)), 0.518 * 0.305), (Part("oval", [(0.9, 0.5), (0.4, 0.21)], (1, 1, 1)), math.pi * 0.084),
                                        (Part("poly", [(0.1, 0.9), (0.7, 0.15), (1.6, 0.8)], (1, 1, 1)), 0.5 * abs(0.6 * -0.1 - 1.5 * -0.75)),
                                        (Part("poly", [(1.6, 0.8), (0.7, 0.15), (0.1, 0.9)], (1, 1, 1)), 0.5 * abs(0.6 * -0.1 - 1.5 * -0.75))])
def test_areas(part, area):
    for rows in (40, 90):
        c = canvas((rows, rows * 16 // 9))
        paint(c, part)
        assert c.planes[0].sum() * c.px * c.py == pytest.approx(area, rel=0.015) and c.planes.max() <= 1


def test_shapes_outside_paint_nothing():
    c = canvas(SMALL)
    for x in (-3, 3):
        for shape, points in (("rect", [(x, 2), (x + 0.5, 3)]), ("oval", [(x, x), (0.2, 0.2)]), ("poly", [(x, x), (x + 0.4, x), (x, x + 0.4)])):
            paint(c, Part(shape, points, (1, 1, 1)))
    assert not c.planes.any()


def test_shadows_do_not_count_for_a_box():
    parts = [Part("rect", [(0.2, 0.2), (0.4, 0.5)], (0, 0, 0)), Part("oval", [(0.5, 0.5), (0.3, 0.1)], (0, 0, 0), solid=False), Part("oval", [(0.4, 0.3), (0.1, 0.2)], (0, 0, 0))]
    assert extent(parts) == pytest.approx((0.2, 0.1, 0.5, 0.5))


def test_hidden():
    box = (0.0, 0.0, 1.0, 1.0)
    assert hidden(box, []) == 0 and hidden(box, [box]) == 1 and hidden(box, [(0, 0, 0.5, 1)]) == 0.5
    assert hidden(box, [(0, 0, 0.5, 1), (0, 0, 0.5, 1)]) == 0.5 and hidden(box, [(0, 0, 0.5, 1), (0.5, 0, 1, 1)]) == 1 and hidden(box, [(2, 2, 3, 3)]) == 0


# ---- boxes

def test_check_boxes_clips_and_keeps():
    checked = check_boxes(boxes_of((-5, 10, 50, 300, 1), (3, 4, 5, 6, 0)), (180, 320), 5)
    assert checked.xyxy.tolist() == [[0, 10, 50, 180], [3, 4, 5, 6]] and checked.labels.tolist() == [1, 0]
    empty = check_boxes((torch.zeros(0), torch.zeros(0)), (180, 320), 5)
    assert empty.xyxy.shape == (0, 4) and empty.labels.dtype == torch.int64


@pytest.mark.parametrize("row, said", [((400, 0, 500, 9, 1), "meets the picture"), ((0, 190, 9, 200, 1), "meets the picture"), ((-9, 0, 0, 9, 1), "meets the picture"), ((5, 5, 5, 9, 1), "x1 < x2"),
                                       ((5, 9, 8, 9, 1), "x1 < x2"), ((0, 0, math.nan, 9, 1), "finite"), ((0, 0, math.inf, 9, 1), "finite"), ((0, 0, 9, 9, 5), "label 5"), ((0, 0, 9, 9, -1), "label -1")])
def test_check_boxes_refuses(row, said):
    with pytest.raises(UserError, match=r"truth\[1\]") as error: check_boxes(boxes_of((0, 0, 5, 5, 0), row), (180, 320), 5, "truth")
    assert said in str(error.value)


def test_check_boxes_shapes():
    with pytest.raises(UserError, match="shapes"): check_boxes((torch.zeros(2, 3), torch.zeros(2)), SMALL, 5)
    with pytest.raises(UserError, match="shapes"): check_boxes((torch.ones(2, 4), torch.zeros(3)), SMALL, 5)


def test_resized():
    data = streets(2, "cloudy", (180, 320), 5)
    half = resized(data, (90, 160))
    assert half.images.shape == (2, 3, 90, 160) and half.images.dtype == torch.uint8 and half.domain == data.domain and half.classes == data.classes
    assert torch.allclose(half.boxes[1].xyxy * 2, data.boxes[1].xyxy) and torch.equal(half.boxes[1].labels, data.boxes[1].labels)
    assert (half.images.float() - torch.nn.functional.avg_pool2d(data.images.float(), 2)).abs().mean() < 3
    assert torch.equal(resized(data, (180, 320)).images, data.images) and len(resized(streets(0), SMALL)) == 0
    wide = resized(data, (180, 160)).boxes[0].xyxy
    assert torch.allclose(wide * torch.tensor([2.0, 1, 2, 1]), data.boxes[0].xyxy)
    with pytest.raises(UserError, match="size"): resized(data, 90)


def test_resized_stays_lazy(tmp_path):
    data = streets(3, "cloudy", (90, 160), 5)
    for k, image in enumerate(data.images): Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{k}.png")
    lazy = Pictures(Files([tmp_path / f"{k}.png" for k in range(3)]), data.labels, data.classes, "lazy", "", "", boxes=data.boxes)
    half = resized(lazy.take([2, 0]), SMALL)
    assert not isinstance(half.images, torch.Tensor) and half.images[0].shape == (3, 45, 80)
    assert torch.equal(half.images[1], resized(data, SMALL).images[0]) and torch.allclose(half.boxes[0].xyxy * 2, data.boxes[2].xyxy)
    again = resized(half.take([1]), (90, 160))
    assert torch.allclose(again.boxes[0].xyxy, data.boxes[0].xyxy) and again.tensors()[0].shape == (1, 3, 90, 160)


# ---- federations

def test_rendered_street():
    street = rendered_street(4, 5, 3, 2, (90, 160), SMALL, 1)
    assert set(street.server.domain) == {"cloudy"} and len(street.server) == 5 and street.server.images.shape[2:] == (90, 160) and street.classes == list(CLASSES)
    assert [c.domain[0] for c in street.clients] == ["overcast", "rainy", "snowy", "overcast"] and all(len(c) == 3 and len(set(c.domain)) == 1 and c.images.shape[2:] == SMALL for c in street.clients)
    assert {d: len(t) for d, t in street.tests.items()} == {"cloudy": 2, "overcast": 4, "rainy": 2, "snowy": 2}
    every = [b.xyxy / data.images.shape[2] for data in (street.server, *street.clients, *street.tests.values()) for b in data.boxes]
    assert len({tuple(b.flatten().mul(1000).round().tolist()) for b in every}) == len(every) == 27
    assert rendered_street(1, 1, 1, 1, SMALL, SMALL, domains=("night",)).tests.keys() == {"cloudy", "night"}
    for wrong in (dict(clients=0), dict(server_images=0), dict(test_images=0), dict(domains=())):
        with pytest.raises(UserError, match=next(iter(wrong))): rendered_street(**wrong)


def picture(path, size=(72, 128), level=100):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size[::-1], (level, level, level)).save(path)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    return tmp_path


def bdd_frames(weathers, person="pedestrian"):
    def box(x): return dict(zip(("x1", "y1", "x2", "y2"), (x, 10.0, x + 40, 60.0)))
    labels = [dict(category=person, box2d=box(10.0)), dict(category="rider", box2d=box(60.0)), dict(category="lane/road curb", poly2d=[]), dict(category="traffic sign", box2d=box(1260.0)),
              dict(category="car", box2d=dict(x1=5, y1=5, x2=5, y2=9)), dict(category="traffic light", box2d=box(90.0))]
    return [dict(name=f"{k}.jpg", attributes=dict(weather=w, timeofday="daytime"), labels=labels if k else None) for k, w in enumerate(weathers)]


@pytest.mark.parametrize("edition", ["old", "new", "frames", "deep"])
def test_bdd100k(folder, edition):
    root = folder / "BDD100K" / ("bdd100k" if edition == "deep" else ".")
    frames = bdd_frames(["partly cloudy", "rainy", "clear", "foggy"], "person" if edition == "old" else "pedestrian")
    for k in range(3): picture(root / "images" / "100k" / "val" / f"{k}.jpg")
    if edition == "old": write(root / "labels" / "bdd100k_labels_images_val.json", frames)
    else: write(root / "labels" / "det_20" / "det_val.json", dict(frames=frames) if edition == "frames" else frames)
    data = bdd100k("val")
    assert len(data) == 3 and not isinstance(data.images, torch.Tensor) and data.domain == ["cloudy", "rainy", "clear"] and data.classes == list(CLASSES)
    assert data.boxes[0].xyxy.shape == (0, 4) and data.boxes[1].labels.tolist() == [0, 4] and data.labels.tolist() == [0, 0, 0] and data.split == ["val"] * 3
    assert data.boxes[2].xyxy.tolist() == [[10, 10, 50, 60], [1260, 10, 1280, 60]]
    with pytest.raises(UserError, match="det_train"): bdd100k("train")
    with pytest.raises(UserError, match="part"): bdd100k("test")


def city(folder, part, cities):
    kind = "gtCoarse" if part == "train_extra" else "gtFine"
    objects = [dict(label="person", polygon=[[10, 20], [29, 20], [29, 59], [10, 40]]), dict(label="cargroup", polygon=[[0, 0], [9, 9], [0, 9]]), dict(label="bicycle", polygon=[[-5, 0], [9, 0], [9, 9]]),
               dict(label="road", polygon=[[0, 0], [9, 9], [0, 9]])]
    for k, name in enumerate(cities):
        stem = f"{name}_{k:06d}_000019"
        picture(folder / "Cityscapes" / "leftImg8bit" / part / name / f"{stem}_leftImg8bit.png")
        write(folder / "Cityscapes" / kind / part / name / f"{stem}_{kind}_polygons.json", dict(imgHeight=72, imgWidth=128, objects=objects))


def test_cityscapes(folder):
    city(folder, "train", ["ulm", "aachen"])
    city(folder, "train_extra", ["bamberg"] * 2)
    data = cityscapes("train")
    assert data.domain == ["aachen", "ulm"] and data.boxes[0].xyxy.tolist() == [[10, 20, 30, 60], [0, 0, 10, 10]] and [data.classes[c] for c in data.boxes[0].labels] == ["person", "bicycle"]
    first = next((folder / "Cityscapes" / "gtCoarse").rglob("*.json"))
    first.unlink()
    assert sorted(len(b.labels) for b in cityscapes("train_extra").boxes) == [0, 2]
    next((folder / "Cityscapes" / "gtFine").rglob("*.json")).unlink()
    with pytest.raises(UserError, match="is missing"): cityscapes("train")
    with pytest.raises(UserError, match="part"): cityscapes("test")


def coco(entries, **more):
    found = [dict(image_id=e["id"], category_id=k, bbox=box, **extra) for e in entries for k, box, extra in
             ((3, [10, 20, 30, 40], {}), (7, [100, 50, 60, 60], {"iscrowd": 0}), (3, [0, 0, 9, 9], {"iscrowd": 1}), (3, [5, 5, 0, 9], {}))]
    return dict(images=entries, annotations=found, categories=[dict(id=7, name="Tram"), dict(id=3, name="Car")], **more)


def entries(weathers, word="weather"):
    return [dict(id=10 + k, file_name=f"{k}.png", height=72, width=128, **({word: w} if w else {})) for k, w in enumerate(weathers)]


def test_coco_boxes(tmp_path):
    for k in range(3): picture(tmp_path / "p" / f"{k}.png")
    write(tmp_path / "c.json", coco(entries(["Rainy", None, "Clear", "Clear"])))
    data = coco_boxes(tmp_path / "c.json", tmp_path / "p")
    assert data.classes == ["car", "tram"] and data.domain == ["rainy", "unknown", "clear"] and len(data) == 3
    assert data.boxes[0].xyxy.tolist() == [[10, 20, 40, 60], [100, 50, 128, 72]] and data.boxes[0].labels.tolist() == [0, 1]
    assert coco_boxes(tmp_path / "c.json", tmp_path / "p", {"0.png": "Snowy"}).domain == ["snowy", "unknown", "unknown"]
    only = coco_boxes(tmp_path / "c.json", tmp_path / "p", classes=["Tram"])
    assert only.classes == ["tram"] and only.boxes[0].labels.tolist() == [0] and only.boxes[0].xyxy.tolist() == [[100, 50, 128, 72]]
    write(tmp_path / "d.json", coco(entries(["night"], "domain")))
    assert coco_boxes(tmp_path / "d.json", tmp_path / "p").domain == ["night"]


def test_damaged_files(tmp_path):
    write(tmp_path / "c.json", coco(entries(["Rainy"])))
    with pytest.raises(UserError, match="none of the 1 pictures"): coco_boxes(tmp_path / "c.json", tmp_path)
    for content in ([], dict(images=[])):
        write(tmp_path / "e.json", content)
        with pytest.raises(UserError, match="COCO"): coco_boxes(tmp_path / "e.json", tmp_path)
    broken = coco(entries(["Rainy"]))
    del broken["annotations"][0]["bbox"]
    write(tmp_path / "b.json", broken)
    with pytest.raises(UserError, match="bbox"): coco_boxes(tmp_path / "b.json", tmp_path)
    (tmp_path / "f.json").write_text("{")
    with pytest.raises(UserError, match="not a JSON"): coco_boxes(tmp_path / "f.json", tmp_path)


def soda(folder, part, weathers):
    for k in range(len(weathers)): picture(folder / "SODA10M" / "SSLAD-2D" / ("labeled" if part != "unlabeled" else ".") / part / f"{k}.png", level=20 * k)
    write(folder / "SODA10M" / "SSLAD-2D" / "labeled" / "annotations" / f"instance_{part}.json", coco(entries(weathers)))


def test_soda10m(folder):
    soda(folder, "train", ["Clear", "Overcast"])
    data = soda10m("train")
    assert data.domain == ["clear", "overcast"] and [data.classes[c] for c in data.boxes[0].labels] == ["car", "tram"] and len(data.classes) == 6
    with pytest.raises(UserError, match="instance_val"): soda10m("val")


def bdd(folder, part, weathers):
    for k in range(len(weathers)): picture(folder / "BDD100K" / "images" / "100k" / part / f"{k}.jpg", (72, 128))
    write(folder / "BDD100K" / "labels" / "det_20" / f"det_{part}.json", bdd_frames(weathers))


def paths(data): return [str(data.images.images.images.paths[int(i)]) for i in data.images.images.indices]


def test_street_set_by_weather(folder):
    bdd(folder, "train", ["partly cloudy"] * 5 + ["overcast"] * 6 + ["rainy"] * 4 + ["snowy"] * 7 + ["clear"] * 2)
    bdd(folder, "val", ["partly cloudy", "overcast", "rainy", "snowy", "snowy"])
    street = street_set("bdd100k", 3, 3, (90, 160), SMALL)
    assert len(street.server) == 3 and set(street.server.domain) == {"cloudy"} and street.server.images[0].shape == (3, 90, 160) and street.name == "BDD100K"
    assert [(set(c.domain), len(c)) for c in street.clients] == [({"overcast"}, 6), ({"rainy"}, 4), ({"snowy"}, 7)] and street.clients[0].images[0].shape == (3, 45, 80)
    assert {d: len(t) for d, t in street.tests.items()} == {"cloudy": 1, "overcast": 1, "rainy": 1, "snowy": 2}
    six = street_set("bdd100k", 6, 3, (90, 160), SMALL, seed=1).clients
    assert [c.domain[0] for c in six] == ["overcast", "rainy", "snowy"] * 2 and sorted([len(six[2]), len(six[5])]) == [3, 4]
    found = [p for c in six for p in paths(c)]
    assert len(found) == len(set(found)) == 17
    assert paths(street_set("bdd100k", 6, 3, seed=1).clients[0]) == paths(six[0]) != paths(street_set("bdd100k", 6, 3, seed=2).clients[0])
    large, scale = next(b for b in street.server.boxes + street.tests["snowy"].boxes if len(b.labels)), 90 / 72
    assert torch.allclose(large.xyxy[0], torch.tensor([10.0, 10, 50, 60]) * scale)
    with pytest.raises(UserError, match="clients=60"): street_set("bdd100k", 60)
    with pytest.raises(UserError, match="clients=0"): street_set("bdd100k", 0)


def test_street_set_without_a_domain(folder):
    bdd(folder, "train", ["partly cloudy", "overcast", "rainy"])
    bdd(folder, "val", ["partly cloudy", "overcast", "rainy", "snowy"])
    with pytest.raises(UserError, match="train.*'snowy'"): street_set("bdd100k")
    assert len(street_set("bdd100k", clients=2).clients) == 2


@pytest.mark.parametrize("unlabeled", [True, False])
def test_street_set_soda10m(folder, unlabeled):
    soda(folder, "train", ["Clear", "Clear", "Overcast", "Overcast", "Rainy"])
    soda(folder, "val", ["Clear", "Overcast", "Rainy"])
    if unlabeled: soda(folder, "unlabeled", ["Overcast"] * 5 + ["Rainy"] * 3)
    street = street_set("soda10m", 3, 2, SMALL, SMALL)
    assert [c.domain[0] for c in street.clients] == ["overcast", "overcast", "rainy"]
    assert [len(c) for c in street.clients] == ([3, 2, 3] if unlabeled else [1, 1, 1]) and list(street.tests) == ["clear", "overcast", "rainy"]


def test_street_set_cityscapes(folder):
    city(folder, "train", ["aachen", "ulm", "ulm"])
    city(folder, "val", ["lindau"] * 2)
    city(folder, "train_extra", ["bamberg", "bayreuth", "dortmund", "erlangen"] * 2)
    street = street_set("cityscapes", 3, 2, SMALL, SMALL)
    assert [sorted(set(c.domain)) for c in street.clients] == [["bamberg", "erlangen"], ["bayreuth"], ["dortmund"]] and len(street.server) == 2 and len(street.tests["val"]) == 2
    with pytest.raises(UserError, match="clients=5"): street_set("cityscapes", 5)


def test_missing_sets(folder):
    assert [row["state"] for row in inventory()] == ["not found"] * 3 and [row["name"] for row in inventory()] == list(SETS)
    for name in SETS:
        with pytest.raises(UserError, match="put "): street_set(name)
    with pytest.raises(UserError, match="kitti"): street_set("kitti")
    (folder / "BDD100K").mkdir()
    assert inventory()[0]["state"] == "found"
    with pytest.raises(UserError, match="no labels"): bdd100k("train")


# ---- figures, answers, imports

def test_show_scene_says_every_class():
    import matplotlib.pyplot as plt

    data = streets(1, size=(90, 160))
    ax = show_scene(data.images[0], data.boxes[0], CLASSES, scores=torch.linspace(0, 1, len(data.boxes[0].labels)))
    assert len(ax.patches) == len(ax.texts) == len(data.boxes[0].labels) and all(t.get_fontsize() >= 9 for t in ax.texts)
    assert ax.texts[-1].get_text() == f"{CLASSES[data.boxes[0].labels[-1]]} 1.00"
    assert len({(p.get_linestyle(), p.get_edgecolor()) for p in ax.patches}) == len(data.boxes[0].labels.unique())
    assert [a.get_title() for a in weather_sheet(size=SMALL).axes][:5] == list(WEATHERS)
    plt.close("all")


def test_answers():
    from torchvision.ops import box_iou

    camera = Camera(0.9, 0.4, 1.2, 1.6, 0.0)
    far = answers.farthest(1.6, camera.focal, 180, 8)
    assert 180 * (project(camera, 0, 0, far)[1] - project(camera, 0, 1.6, far)[1]) == pytest.approx(8)
    boxes = torch.tensor([[0.0, 0, 10, 10], [5, 5, 15, 15], [20, 20, 21, 30], [2, 3, 4, 5]])
    expected = box_iou(boxes, boxes)
    assert all(answers.overlap(a.tolist(), b.tolist()) == pytest.approx(float(expected[i, j])) for i, a in enumerate(boxes) for j, b in enumerate(boxes))
    assert answers.shifted(8, 1) == pytest.approx(answers.overlap([0, 0, 8, 8], [1, 0, 9, 8])) and answers.shifted(3, 5) == 0


def test_import_is_light():
    heavy = "matplotlib", "ipywidgets", "torchvision", "open_clip", "timm", "sklearn"
    code = f"import sys, fedbook.streets; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
