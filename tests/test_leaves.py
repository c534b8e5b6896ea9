
import numpy as np
import pytest
import torch

from fedbook.answers import leaves as answers
from fedbook.datasets.leaves import (CONDITIONS, CROPS, LEAF_CLASSES, VIEWS, half_width, leaf_places, leaves,
                                     line_coverage, long_tail, noise, outline, paint_leaf, plant, render_leaf,
                                     smooth_step, spots, veins, view)
from fedbook.engine.errors import UserError

AT = (np.arange(96, dtype=np.float32) + 0.5) / 48 - 1
X, Y = np.meshgrid(1.3 * AT, 1.3 * AT)


def rng(*key): return np.random.default_rng([7, *key])


# ---- the data set

def test_pictures_are_what_they_say():
    data = leaves([3, 0, 2], 3, 40, 5, "test")
    assert data.images.dtype == torch.uint8 and data.images.shape == (5, 3, 40, 40)
    assert data.labels.tolist() == [0, 0, 0, 2, 2]
    assert data.classes == ["maize healthy", "wheat rust", "bean blight"] and data.split == ["test"] * 5
    assert set(data.domain) <= {"soil",
                                "sky"} and data.identity.shape == (5,) and "Apache-2.0" in data.licence
    assert len(leaves(0, 2, 16)) == 0


def test_the_first_thirty_classes_hold_every_crop_and_every_condition_five_times():
    assert len(set(LEAF_CLASSES)) == 36
    assert all([crop for crop, _ in LEAF_CLASSES[:30]].count(name) == 5 for name in CROPS)
    assert all([condition for _, condition in LEAF_CLASSES[:30]].count(name) == 5 for name in CONDITIONS)
    assert leaves(1, 36, 16).classes == [" ".join(pair) for pair in LEAF_CLASSES]


def test_a_picture_depends_on_its_key_alone():
    few, more = leaves([2, 1], 2, 32, 3), leaves([7, 9, 1], 3, 32, 3)
    own = [0, 1, 7]
    assert torch.equal(few.images,
                       more.images[own])
    assert torch.equal(few.identity,
                                                         more.identity[own])
    assert few.domain == [more.domain[i] for i in own]
    global_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    assert torch.equal(few.images, leaves([2, 1], 2, 32, 3).images)
    assert np.array_equal(global_state[0],
                          np.random.get_state()[1]) and torch.equal(global_state[1], torch.get_rng_state())


def test_seed_split_class_and_number_all_matter():
    pictures = [*leaves(5, 7, 24, 0).images, *leaves(5, 7, 24, 1).images, *leaves(5, 7, 24, 0, "test").images]
    assert len({p.numpy().tobytes() for p in pictures}) == len(pictures)


def test_no_plant_is_in_two_splits_or_two_classes():
    train, test = leaves(9, 36, 8), leaves(9, 36, 8, split="test")
    assert not set(train.identity.tolist()) & set(test.identity.tolist())
    for data in (train, test):
        pairs = set(zip(data.identity.tolist(), data.labels.tolist()))
        assert len(pairs) == len({own for own, _ in pairs}) == 36 * 3
        assert torch.bincount(data.identity).max() == VIEWS


def test_leaves_of_a_plant_stand_in_one_place():
    data = leaves(2 * VIEWS, 12, 8)
    places_of = {}
    for own, domain in zip(data.identity.tolist(), data.domain): places_of.setdefault(own, set()).add(domain)
    assert all(len(found) == 1 for found in places_of.values()) and set(data.domain) == {"soil", "sky"}


def test_the_same_scene_at_any_size():
    small, large = leaves(1, 36, 64).images.float(), leaves(1, 36, 256).images.float()
    shrunk = torch.nn.functional.avg_pool2d(large, 4)
    right, wrong = (small - shrunk).abs().mean((1, 2, 3)), (small - shrunk.roll(1, 0)).abs().mean((1, 2, 3))
    assert right.max() < 6 and wrong.min() > 4 * right.max()


@pytest.mark.parametrize("size", [8, 33, 100])
def test_sizes_need_not_be_powers_of_two(size): assert leaves(1, 6, size).images.shape == (6, 3, size, size)


@pytest.mark.parametrize("wrong",
                         [dict(per_class=-1), dict(per_class=2.5), dict(per_class="3"),
                          dict(per_class=[1, 2]), dict(per_class=None), dict(per_class=True),
                          dict(classes=0), dict(classes=37), dict(size=7), dict(size=64.0), dict(seed=-1),
                          dict(seed=0.5), dict(split="val")])
def test_bad_arguments(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        leaves(**{"per_class": 1, "classes": 3, "size": 16, **wrong})


# ---- its parts

@pytest.mark.parametrize("name", CROPS)
def test_an_outline_has_an_inside(name):
    depth = outline(CROPS[name], X, Y).inside
    assert 0.03 < np.mean(depth > 0) < 0.7 and depth.dtype == np.float32 and np.isfinite(depth).all()
    assert depth[0, 0] < -0.3 and depth.max() > 0.05


@pytest.mark.parametrize("name, shift", [("apple", 0.0), ("maize", 0.4)])
def test_the_covered_pixels_add_up_to_the_area(name, shift):
    crop, (lobe,), t = CROPS[name], CROPS[name].lobes, np.linspace(0, 1, 20001)
    at = (np.arange(400, dtype=np.float32) + 0.5) / 140 - 400 / 280
    depth = outline(crop, *np.meshgrid(at, at), shift).inside
    area = smooth_step(depth, -1 / 140, 1 / 140).sum() / 140 ** 2
    halves = [half_width(crop, lobe, t, shift + 0.37 * side).mean() * lobe.length for side in (0, 1)]
    assert abs(area / sum(halves) - 1) < 0.02


def test_half_width_peaks_where_the_product_rule_says():
    crop = CROPS["apple"]._replace(depth=0.0)
    lobe, t = crop.lobes[0], np.linspace(0, 1, 2001)
    widths = half_width(crop, lobe, t)
    assert np.isclose(widths.max(), lobe.width,
                      rtol=1e-4) and np.isclose(t[widths.argmax()], lobe.low / (lobe.low + lobe.high),
                                                atol=1e-3)
    toothed = half_width(CROPS["apple"], lobe, t)
    assert (toothed <= widths + 1e-12).all()
    assert (toothed >= widths * (1 - CROPS["apple"].depth) - 1e-12).all()
    assert toothed.max() > 0.98 * lobe.width


def test_a_thin_line_keeps_its_weight():
    distance = np.abs(np.linspace(-1, 1, 20001))
    weights = [line_coverage(distance, 0.01, pixel).mean() for pixel in (0.001, 0.02, 0.1)]
    assert np.allclose(weights, weights[0], rtol=0.01)


def test_veins_lie_between_zero_and_one():
    for crop in CROPS.values():
        vein, between = veins(crop, outline(crop, X, Y), 0.02)
        assert 0 <= vein.min() and vein.max() <= 1.6 and 0 <= between.min() and between.max() <= 1 + 1e-5


def test_noise_has_deviation_one_at_any_size():
    fields = np.stack([noise(rng(s), 60, 12) for s in range(60)])
    assert abs(fields.std() - 1) < 0.06 and abs(fields.mean()) < 0.05
    assert np.abs(noise(rng(1), 240, 6).reshape(60, 4, 60, 4).mean((1, 3)) - noise(rng(1), 60,
                                                                                   6)).max() < 0.05


def test_spots_stay_in_their_cells():
    at = (np.arange(640, dtype=np.float32) + 0.5) / 20
    x, y = np.meshgrid(at, at)
    depth = spots(rng(), x, y, 1.0, 1.0, 0.2, 0.3)
    inside = (depth > 0).reshape(32, 20, 32, 20)
    assert inside.any((1, 3)).all()
    border = np.minimum(x % 1, y % 1) < 0.03
    assert depth[border].max() < 0.06 and not (spots(rng(), x, y, 1.0, 0.0, 0.2, 0.3) > 0).any()


@pytest.mark.parametrize("crop", CROPS)
def test_each_condition_does_its_work(crop):
    def painted(condition, severity):
        return paint_leaf(CROPS[crop], CONDITIONS[condition], severity, plant(rng(1)), view(rng(2)), rng(3),
                          96)
    sound, leaf_rgb = painted("healthy", 0.5), {name: painted(name, 0.9) for name in CONDITIONS}
    on = sound.cover > 0.9
    red, green, blue = ((leaf.rgb - sound.rgb)[:, on].mean(1)
                        for leaf in (leaf_rgb["rust"], leaf_rgb["mildew"], leaf_rgb["chlorosis"]))
    assert red[0] > 0.03 and red[1] < red[0]
    assert green.min() > 0.05 and blue[0] > 0.05 and blue[2] < blue[0]
    assert leaf_rgb["blight"].rgb[:, on].mean(1)[0] > leaf_rgb["blight"].rgb[:, on].mean(1)[1] - 0.12
    assert leaf_rgb["chewed"].cover.sum() < painted("chewed", 0.1).cover.sum() <= sound.cover.sum()


def test_severity_is_drawn_or_given():
    own = plant(rng(1))
    early, late = (render_leaf("vine", "mildew", own, [1, 2], 48, s) for s in (0.0, 1.0))
    assert late.mean() > early.mean() + 5 and render_leaf("vine", "mildew", own, [1, 2],
                                                          48).shape == (3, 48, 48)
    assert np.array_equal(render_leaf("vine", "healthy", own, [1, 2], 48, 0.0),
                          render_leaf("vine", "healthy", own, [1, 2], 48, 1.0))


def test_places_follow_the_matrix():
    camera = view(rng(4))
    x, y, pixel = leaf_places(camera, 50)
    matrix = np.reshape(camera.matrix, (2, 2))
    assert np.allclose(matrix @ ((np.array([31, 8]) + 0.5) / 25 - 1 - camera.at), (x[8, 31], y[8, 31]),
                       atol=1e-5)
    assert np.isclose(pixel, np.sqrt(abs(np.linalg.det(matrix))) / 25)


# ---- counts, answers, imports

def test_long_tail():
    counts = long_tail(30, 160, 40, 1)
    assert sorted(counts) == np.rint(np.geomspace(40, 160,
                                                  30)).astype(int).tolist()
    assert counts != sorted(counts, reverse=True)
    assert counts == long_tail(30, 160, 40, 1) != long_tail(30, 160, 40,
                                                            2)
    assert long_tail(1, 9, 3) == [9] and long_tail(3, 5, 5) == [5] * 3
    assert all(type(n) is int for n in counts) and len(leaves(long_tail(3, 4, 1), 3,
                                                              8)) == sum(long_tail(3, 4, 1))
    for wrong in ((0, 5, 1), (3, 1, 5), (3, 5, 0), (3, 5.0, 1)):
        with pytest.raises(UserError): long_tail(*wrong)


def test_answers():
    assert answers.hold_out([1, 9, 9, 3], 2) == [False, True, True,
                                                 True] and answers.hold_out([1], 0) == [False]
    assert answers.eaten([[2.0]], [[0.5]]) == 0.75 and answers.eaten([[0]], [[0]]) == 0
    assert answers.head([1, 8, 1], 0.8) == 1 and answers.head([1, 8, 1],
                                                              0.81) == 2 and answers.head([1, 8, 1], 1.0) == 3
