"""Rendered scenes, weathers, sizes, and federations of streets."""
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from fedbook.answers import streets as answers
from fedbook.datasets.streets import (MOST_HIDDEN, SEGMENTS, SMALLEST, WEATHERS, hidden, paint_scene, pulses,
                                      rendered_street, resized, scaled, scene, segments, show_scene,
                                      street_set, streets, weather_sheet)
from fedbook.engine.errors import UserError
from fedbook.datasets.traffic import STREET_CLASSES, WIDE, canvas, paint_part, parts_of
from fedbook.datasets.world import Boxes, Files, Pictures, largest

SMALL = (45, 80)


def same_boxes(a, b):
    "Whether two lists of `Boxes` are the same to the bit."
    pairs = zip(a, b, strict=True)
    return all(torch.equal(p.xyxy, q.xyxy) and torch.equal(p.labels, q.labels) for p, q in pairs)


# ---- rendered scenes

def test_pictures_are_what_they_say():
    data = streets(3, "rainy", (90, 160), 1, "test", 4)
    assert isinstance(data, Pictures)
    assert data.images.dtype == torch.uint8
    assert data.labels.dtype == torch.int64
    assert data.images.shape == (3, 3, 90, 160) and data.classes == list(STREET_CLASSES)
    assert data.domain == ["rainy"] * 3 and data.split == ["test"] * 3 and len(streets(0)) == 0
    for b, label in zip(data.boxes, data.labels):
        assert b.xyxy.dtype == torch.float32 and b.labels.dtype == torch.int64
        assert b.xyxy.shape == (len(b.labels), 4)
        sides = b.xyxy[:, 2:] - b.xyxy[:, :2]
        assert label == b.labels[sides.prod(1).argmax()] == largest(b)


def test_weather_moves_no_box():
    first = streets(4, "cloudy", SMALL, 3)
    for weather in WEATHERS[1:]:
        other = streets(4, weather, SMALL, 3)
        assert same_boxes(first.boxes, other.boxes)
        assert (first.images.float() - other.images.float()).abs().mean() > 8
    mixed = streets(3, ["cloudy", "night", "snowy"], SMALL, 3)
    assert mixed.domain == ["cloudy", "night", "snowy"] and torch.equal(mixed.images[0], first.images[0])
    assert torch.equal(mixed.images[2], streets(1, "snowy", SMALL, 3, start=2).images[0])


def test_the_same_scene_at_any_size():
    large, small = streets(6, "cloudy", (720, 1280), 2), streets(6, "cloudy", (180, 320), 2)
    shrunk = torch.nn.functional.avg_pool2d(large.images.float(), 4)
    apart = lambda other: (small.images.float() - other).abs().mean((1, 2, 3))
    right, wrong = apart(shrunk), apart(shrunk.roll(1, 0))
    assert right.max() < 3 and wrong.min() > 5 * right.max()
    square = streets(6, "cloudy", (100, 100), 2)
    for a, b, c in zip(large.boxes, small.boxes, square.boxes):
        assert torch.allclose(a.xyxy / 4, b.xyxy, atol=1e-3) and torch.equal(a.labels, b.labels)
        assert torch.allclose(scaled(a, (720, 1280), (100, 100)).xyxy, c.xyxy, atol=1e-3)


def test_a_scene_depends_on_its_key_alone():
    many, tail = streets(5, "night", SMALL, 7), streets(2, "night", SMALL, 7, start=3)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    assert torch.equal(many.images[3:], tail.images) and torch.equal(many.boxes[4].xyxy, tail.boxes[1].xyxy)
    assert np.array_equal(before[0], np.random.get_state()[1])
    assert torch.equal(before[1], torch.get_rng_state())
    sets = [streets(3, "cloudy", SMALL, seed, split) for seed in (0, 1) for split in ("train", "test")]
    assert len({p.numpy().tobytes() for data in sets for p in data.images}) == 12


def test_statistics():
    scenes = [scene(0, "train", k) for k in range(300)]
    counts = [len(s.things) for s in scenes]
    kinds = np.bincount([t.kind for s in scenes for t in s.things], minlength=5) / 300
    assert 4 <= min(counts) and max(counts) <= 9
    assert 1.5 < kinds[0] < 2.5 and 2 < kinds[1] < 3 and kinds[2] > 0.5 and kinds[3] > 0.5
    assert 0.9 < kinds[4] < 1.5
    boxes = np.concatenate([s.boxes for s in scenes])
    heights = 180 * (boxes[:, 3] - boxes[:, 1])
    assert 22 < np.median(heights) < 30 and (heights > 8).mean() > 0.95 and heights.max() < 110


def test_weather_moves_no_house():
    a, b = (scene(6, "train", k) for k in (0, 1))
    tried = ((a, "cloudy"), (a, "overcast"), (b, "cloudy"))
    day, grey, other = (paint_scene(s, weather, (90, 160)).planes[:3] for s, weather in tried)
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
            for part in parts_of(s.camera, thing): paint_part(c, part)
            i, j = np.nonzero(c.ids)
            painted = np.array([j.min() * c.px, i.min() * c.py, (j.max() + 1) * c.px, (i.max() + 1) * c.py])
            assert np.abs(painted - box).max() * 360 < 2, STREET_CLASSES[thing.kind]


def test_segments_agree_with_boxes():
    maps, data = segments(6, size=(180, 320), seed=2), streets(6, size=(180, 320), seed=2)
    assert maps.dtype == torch.uint8 and maps.shape == (6, 180, 320) and maps.max() < len(SEGMENTS)
    for m, b in zip(maps, data.boxes):
        inside = torch.zeros(5, 180, 320, dtype=torch.bool)
        for (x1, y1, x2, y2), c in zip(b.xyxy.tolist(), b.labels.tolist()):
            inside[c, math.floor(y1):math.ceil(y2), math.floor(x1):math.ceil(x2)] = True
        for c in range(5): assert not ((m == c + 2) & ~inside[c]).any()
        assert set((m.unique() - 2).tolist()[2:]) <= set(b.labels.tolist()) and (m == 1).float().mean() > 0.15


@pytest.mark.parametrize("wrong", [
    dict(n=-1), dict(n=2.0), dict(n=True), dict(size=64), dict(size=(4, 64)), dict(size=(64.0, 64)),
    dict(seed=-1), dict(start=-1), dict(split="val"), dict(weather="foggy"),
    dict(weather=["rainy", "rainy"])])
def test_bad_arguments(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))): streets(**{"n": 1, "size": (16, 16), **wrong})


def test_pulses():
    v = np.random.default_rng(0).uniform(0, 4, 30)
    fine = (np.arange(4000) + 0.5) / 4000 - 0.5
    assert np.allclose(pulses(v, 0.7, 0.4), [np.mean((u + 0.7 * fine) % 1 < 0.4) for u in v], atol=2e-3)


def test_hidden():
    box, left, right = (0.0, 0.0, 1.0, 1.0), (0, 0, 0.5, 1), (0.5, 0, 1, 1)
    assert hidden(box, []) == 0 and hidden(box, [box]) == 1 and hidden(box, [left]) == 0.5
    assert hidden(box, [left, left]) == 0.5 and hidden(box, [left, right]) == 1
    assert hidden(box, [(2, 2, 3, 3)]) == 0


# ---- other sizes

def test_resized():
    data = streets(2, "cloudy", (180, 320), 5)
    half = resized(data, (90, 160))
    assert half.images.shape == (2, 3, 90, 160) and half.images.dtype == torch.uint8
    assert half.domain == data.domain and half.classes == data.classes
    assert torch.allclose(half.boxes[1].xyxy * 2, data.boxes[1].xyxy)
    assert torch.equal(half.boxes[1].labels, data.boxes[1].labels)
    assert (half.images.float() - torch.nn.functional.avg_pool2d(data.images.float(), 2)).abs().mean() < 3
    assert torch.equal(resized(data, (180, 320)).images, data.images) and len(resized(streets(0), SMALL)) == 0
    narrow = resized(data, (180, 160))
    assert narrow.images.shape == (2, 3, 90, 160) and torch.equal(narrow.images, half.images)
    assert torch.equal(narrow.boxes[0].xyxy, half.boxes[0].xyxy)
    with pytest.raises(UserError, match="size"): resized(data, 90)


def test_resized_stays_lazy(tmp_path):
    data, paths = streets(3, "cloudy", (90, 160), 5), [tmp_path / f"{k}.png" for k in range(3)]
    for path, image in zip(paths, data.images): Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    lazy = Pictures(Files(paths), data.labels, data.classes, "lazy", "", "", boxes=data.boxes)
    half = resized(lazy.take([2, 0]), SMALL)
    assert not isinstance(half.images, torch.Tensor) and half.images[0].shape == (3, 45, 80)
    assert torch.equal(half.images[1], resized(data, SMALL).images[0])
    assert torch.allclose(half.boxes[0].xyxy * 2, data.boxes[2].xyxy)
    again = resized(half.take([1]), (90, 160))
    assert torch.allclose(again.boxes[0].xyxy, data.boxes[0].xyxy)
    assert again.tensors()[0].shape == (1, 3, 90, 160)


def test_photographs_of_any_shape_keep_their_ratio(tmp_path):
    sizes, paths = [(80, 40), (30, 90), (45, 80)], [tmp_path / f"{k}.png" for k in range(3)]
    for path, (h, w) in zip(paths, sizes): Image.new("RGB", (w, h)).save(path)
    boxes = [Boxes(torch.tensor([[0.0, 0.0, w, h]]), torch.tensor([0])) for h, w in sizes]
    mixed = Pictures(Files(paths), torch.zeros(3, dtype=torch.long), ["car"], "mixed", "", "", boxes=boxes)
    small = resized(mixed, (40, 60))
    assert [tuple(image.shape[1:]) for image in small.images] == [(40, 20), (20, 60), (34, 60)]
    assert [box.xyxy[0, 2:].tolist() for box in small.boxes] == [[20, 40], [60, 20], [60, 34]]


# ---- federations

def test_rendered_street():
    street = rendered_street(4, 5, 3, 2, (90, 160), SMALL, 1)
    server, clients, tests = street.server, street.clients, street.tests
    assert set(server.domain) == {"cloudy"} and len(server) == 5 and server.images.shape[2:] == (90, 160)
    assert street.classes == list(STREET_CLASSES)
    assert [c.domain[0] for c in clients] == ["overcast", "rainy", "snowy", "overcast"]
    assert all(len(c) == 3 and len(set(c.domain)) == 1 and c.images.shape[2:] == SMALL for c in clients)
    assert {d: len(t) for d, t in tests.items()} == {"cloudy": 2, "overcast": 4, "rainy": 2, "snowy": 2}
    sets = (server, *clients, *tests.values())
    every = [b.xyxy / data.images.shape[2] for data in sets for b in data.boxes]
    assert len({tuple(b.flatten().mul(1000).round().tolist()) for b in every}) == len(every) == 27
    night = rendered_street(1, 1, 1, 1, SMALL, SMALL, domains=("night",))
    assert night.tests.keys() == {"cloudy", "night"}
    for wrong in (dict(clients=0), dict(server_images=0), dict(test_images=0), dict(domains=())):
        with pytest.raises(UserError, match=next(iter(wrong))): rendered_street(**wrong)


@pytest.fixture
def bdd(tmp_path, monkeypatch):
    "A made-up BDD100K of pictures of 72 x 128 pixels, with one pedestrian in each."
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    root = tmp_path / "BDD100K"
    box = dict(x1=10.0, y1=10.0, x2=50.0, y2=60.0)
    weathers = {"train": ["partly cloudy"] * 5 + ["overcast"] * 6 + ["rainy"] * 4 + ["snowy"] * 7,
                "val": ["partly cloudy", "overcast", "rainy", "snowy", "snowy"]}
    (root / "labels" / "det_20").mkdir(parents=True)
    for part, names in weathers.items():
        folder, label = root / "images" / "100k" / part, dict(category="pedestrian", box2d=box)
        folder.mkdir(parents=True)
        for k in range(len(names)): Image.new("RGB", (128, 72)).save(folder / f"{k}.jpg")
        frames = [dict(name=f"{k}.jpg", attributes=dict(weather=name), labels=[label])
                  for k, name in enumerate(names)]
        (root / "labels" / "det_20" / f"det_{part}.json").write_text(json.dumps(frames))
    return tmp_path


def test_a_real_street_has_two_sizes_and_boxes_to_match(bdd):
    street = street_set("bdd100k", 3, 3, (90, 160), SMALL)
    assert street.name == "BDD100K" and street.classes == list(STREET_CLASSES)
    assert len(street.server) == 3 and set(street.server.domain) == {"cloudy"}
    assert [set(c.domain) for c in street.clients] == [{"overcast"}, {"rainy"}, {"snowy"}]
    assert [len(c) for c in street.clients] == [6, 4, 7]
    assert [(d, len(t)) for d, t in street.tests.items()] == [("cloudy", 1), ("overcast", 1), ("rainy", 1),
                                                              ("snowy", 2)]
    assert street.server.images[0].shape == street.tests["snowy"].images[0].shape == (3, 90, 160)
    assert street.clients[0].images[0].shape == (3, 45, 80)
    right = torch.tensor([10.0, 10, 50, 60])
    assert torch.allclose(street.server.boxes[0].xyxy[0], right * 90 / 72)
    assert torch.allclose(street.clients[2].boxes[0].xyxy[0], right * 45 / 72)


def test_a_real_street_that_cannot_be(bdd, monkeypatch):
    for wrong in (dict(clients=60), dict(clients=0), dict(server_images=0)):
        words = "=".join(map(str, *wrong.items()))
        with pytest.raises(UserError, match=words): street_set("bdd100k", **wrong)
    with pytest.raises(UserError, match="kitti"): street_set("kitti")
    (bdd / "empty").mkdir()
    monkeypatch.setenv("FEDBOOK_DATA", str(bdd / "empty"))
    with pytest.raises(UserError, match="put "): street_set("bdd100k")


# ---- figures, answers, imports

def test_show_scene_says_every_class():
    import matplotlib.pyplot as plt

    data = streets(1, size=(90, 160))
    labels = data.boxes[0].labels
    ax = show_scene(data.images[0], data.boxes[0], STREET_CLASSES, scores=torch.linspace(0, 1, len(labels)))
    assert len(ax.patches) == len(ax.texts) == len(labels) and all(t.get_fontsize() >= 9 for t in ax.texts)
    assert ax.texts[-1].get_text() == f"{STREET_CLASSES[labels[-1]]} 1.00"
    assert len({(p.get_linestyle(), p.get_edgecolor()) for p in ax.patches}) == len(labels.unique())
    assert [a.get_title() for a in weather_sheet(size=SMALL).axes][:5] == list(WEATHERS)
    plt.close("all")


def test_answers():
    from torchvision.ops import box_iou

    boxes = torch.tensor([[0.0, 0, 10, 10], [5, 5, 15, 15], [20, 20, 21, 30], [2, 3, 4, 5]])
    ours = torch.tensor([[answers.overlap(a, b) for b in boxes.tolist()] for a in boxes.tolist()])
    assert torch.allclose(ours, box_iou(boxes, boxes))
    assert answers.shifted(8, 1) == pytest.approx(answers.overlap([0, 0, 8, 8], [1, 0, 9, 8]))
    assert answers.shifted(3, 5) == 0
