"""How one thing is drawn: perspective, covers, shapes, and boxes that are their extents."""
import math

import numpy as np
import pytest

from fedbook.answers import traffic as answers
from fedbook.datasets.folders import BDD_CLASSES
from fedbook.datasets.traffic import (STREET_CLASSES, Camera, Part, between, canvas, cover, extent,
                                      paint_part, parts_of, perspective, random_thing, vary)

SMALL = (45, 80)
WHITE = (1, 1, 1)
CAMERA = Camera(0.8, 0.4, 1.3, 1.7, 0.0)


def test_perspective_is_a_pinhole():
    rng = np.random.default_rng(0)
    x, h, z = rng.uniform(-5, 5, 20), rng.uniform(0, 3, 20), rng.uniform(3, 40, 20)
    image = np.array([[1.3, 0, 0.8], [0, 1.3, 0.4], [0, 0, 1]]) @ np.stack([x, 1.7 - h, z])
    assert np.allclose(perspective(CAMERA, x, h, z), image[:2] / image[2])
    assert perspective(CAMERA, 2.0, 1.7, 1e9)[1] == pytest.approx(0.4)


def test_covers():
    assert np.allclose(between(np.array([0.5, 1.5, 2.5]), 0.25, 2.0, 1.0), [0.75, 0.5 + 0.5, 0.0])


THREE = [(0.1, 0.9), (0.7, 0.15), (1.6, 0.8)]
AREA_OF_THREE = 0.5 * abs(0.6 * -0.1 - 1.5 * -0.75)


@pytest.mark.parametrize("shape, points, area", [
    ("rect", [(0.113, 0.217), (0.631, 0.522)], 0.518 * 0.305),
    ("oval", [(0.9, 0.5), (0.4, 0.21)], math.pi * 0.084),
    ("poly", THREE, AREA_OF_THREE), ("poly", THREE[::-1], AREA_OF_THREE)])
def test_areas(shape, points, area):
    for rows in (40, 90):
        c = canvas((rows, rows * 16 // 9))
        paint_part(c, Part(shape, points, WHITE))
        assert c.planes[0].sum() * c.px * c.py == pytest.approx(area, rel=0.015) and c.planes.max() <= 1


def test_shapes_outside_paint_nothing():
    c = canvas(SMALL)
    for x in (-3, 3):
        shapes = {"rect": [(x, 2), (x + 0.5, 3)], "oval": [(x, x), (0.2, 0.2)],
                  "poly": [(x, x), (x + 0.4, x), (x, x + 0.4)]}
        for shape, points in shapes.items():
            part = Part(shape, points, WHITE)
            paint_part(c, part)
            assert not cover(c, part)[2].any()
    assert not c.planes.any()


def test_shadows_do_not_count_for_a_box():
    black = (0, 0, 0)
    shadow = Part("oval", [(0.5, 0.5), (0.3, 0.1)], black, solid=False)
    parts = [Part("rect", [(0.2, 0.2), (0.4, 0.5)], black), shadow,
             Part("oval", [(0.4, 0.3), (0.1, 0.2)], black)]
    assert extent(parts) == pytest.approx((0.2, 0.1, 0.5, 0.5))


@pytest.mark.parametrize("kind", range(5), ids=STREET_CLASSES)
def test_a_thing_fills_its_box(kind):
    for number, (x, front) in enumerate(((-3.4, True), (0.2, False), (4.0, False))):
        thing = random_thing(np.random.default_rng([number, kind]), kind, x, 11.0, front)
        c = canvas((360, 640), segments=True)
        c.now = 1
        for part in parts_of(CAMERA, thing): paint_part(c, part)
        i, j = np.nonzero(c.ids)
        painted = np.array([j.min() * c.px, i.min() * c.py, (j.max() + 1) * c.px, (i.max() + 1) * c.py])
        assert np.abs(painted - extent(parts_of(CAMERA, thing))).max() * 360 < 2


def test_things_vary_with_their_generator_alone():
    make = lambda seed: random_thing(np.random.default_rng(seed), 1, 3.4, 9.0, False)
    assert make(0) == make(0) != make(1) and make(0)[:4] == (1, 3.4, 9.0, False) and len(make(0).form) == 3
    colours = [vary(np.random.default_rng(k), [(0.0, 0.5, 1.0)]) for k in range(50)]
    assert len(set(colours)) == 50 and all(0.03 <= v <= 0.97 for colour in colours for v in colour)


def test_classes_are_those_of_bdd100k(): assert STREET_CLASSES == BDD_CLASSES and len(STREET_CLASSES) == 5


def test_answers():
    camera = Camera(0.9, 0.4, 1.2, 1.6, 0.0)
    far = answers.farthest(1.6, camera.focal, 180, 8)
    top, foot = perspective(camera, 0, 1.6, far)[1], perspective(camera, 0, 0, far)[1]
    assert 180 * (foot - top) == pytest.approx(8)
    middles = (np.arange(7) + 0.5) / 7
    assert answers.row_of_cover(0.2, 0.66, 7) == pytest.approx(between(middles, 0.2, 0.66, 1 / 7).tolist())
