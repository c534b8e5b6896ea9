import math

import numpy as np
import pytest
import torch

from fedbook.answers import people as answers
from fedbook.datasets.people import (STYLES, Body, PersonCanvas, Pose, blur, camera, draw_person, expose,
                                     limb, panel, people, person, pixel_places, query_gallery, render_site,
                                     rendered_sizes, scenery, site_cameras, texture)
from fedbook.engine.errors import UserError
from fedbook.datasets.world import Site


SMALL = (32, 16)


def rng(*key): return np.random.default_rng([3, *key])


def canvas(size=(256, 128), level=0.0):
    return PersonCanvas(np.full((3, *size), level, np.float32), *pixel_places(size), 2 / size[0], 0.0)


# ---- the data set


def test_pictures_are_what_they_say():
    data = people(3, 2, 4, SMALL, 0, 1, "test")
    assert data.images.dtype == torch.uint8 and data.images.shape == (24, 3, 32, 16)
    assert data.labels.tolist() == [i for i in range(3)
                                    for _ in range(8)]
    assert data.labels.dtype == data.identity.dtype == data.camera.dtype == torch.int64
    assert data.camera.tolist() == [0, 0, 0, 0, 1, 1, 1, 1] * 3 and data.split == ["test"] * 24
    assert [int(data.classes[k])
            for k in data.labels] == data.identity.tolist() and people(8, 1, 1, (8, 8)).classes[6] == "0007"


def test_a_picture_depends_on_its_key_alone():
    few, more = people(2, 2, 3, SMALL, 5), people(4, 3, 4, SMALL, 5)
    same = [k for k in range(48) if more.labels[k] < 2 and more.camera[k] < 2 and k % 4 < 3]
    assert torch.equal(few.images, more.images[same]) and torch.equal(few.identity, more.identity[same])
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    scenery.cache_clear()
    assert torch.equal(few.images, people(2, 2, 3, SMALL, 5).images)
    assert np.array_equal(before[0],
                          np.random.get_state()[1]) and torch.equal(before[1], torch.get_rng_state())


def test_every_part_of_the_key_matters():
    found = [p.numpy().tobytes() for seed in (0, 1) for site in (0, 4) for split in ("train", "test")
             for p in people(2, 2, 2, SMALL, seed, site, split).images]
    assert len(set(found)) == len(found)


def test_numbers_are_unique():
    sets = [set(people(2, 1, 1, (8, 8), seed, site, split).identity.tolist()) for seed in (0, 1)
            for site in (0, 1, 999) for split in ("train", "test")]
    assert len(set.union(*sets)) == 2 * len(sets) and 0 not in set.union(*sets)


def test_the_same_scene_at_any_size():
    small, large = people(4, 3, 2, (64, 32), 1).images.float(), people(4, 3, 2, (256, 128), 1).images.float()
    shrunk = torch.nn.functional.avg_pool2d(large, 4)
    right, wrong = (small - shrunk).abs().mean((1, 2, 3)), (small - shrunk.roll(8, 0)).abs().mean((1, 2, 3))
    assert right.max() < 5 and wrong.min() > 2 * right.max()
    assert people(1, 1, 1, (50, 31)).images.shape == (1, 3, 50, 31)


@pytest.mark.parametrize("wrong",
                         [dict(identities=0), dict(identities=2.5), dict(identities=True),
                          dict(identities=10_000), dict(cameras=0), dict(per_camera="4"),
                          dict(size=64), dict(size=(64, 4)), dict(size=(64.0, 32)), dict(seed=-1),
                          dict(site=0.5), dict(site=1000), dict(split="val")])
def test_bad_arguments(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        people(**{"identities": 1, "size": (16, 8), **wrong})


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
        found.append([nearest(x.flatten(1), ids, others), nearest(x.flatten(1), ids, ~same),
                      nearest(clean.flatten(1), ids, ~same)])
    within, across, removed = np.mean(found, 0)
    assert within > 0.9 and 0.4 < across < within - 0.1 and across < removed < 0.95


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
    body = Body(who, Pose(turn, 0, 0, 0.1, -0.1, 1.5))
    seen = 0.12 * np.cos(angles) * math.cos(turn) + 0.07 * np.sin(angles) * math.sin(turn)
    assert np.isclose(body.broad(0.12, 0.07), 1.5 * who.width * seen.max(), rtol=1e-5)
    assert np.allclose(body.at(0, 1, 0), (0.1 + 1.5 * math.sin(turn), -0.1 - 0.75))


def painted(turn, **changes):
    who = person(rng(), STYLES[0])._replace(**{"bag": "none", "pattern": "plain", "top": (0.0, 0.0, 0.9),
                                               "head": "short", **changes})
    c = canvas((128, 64), 0.5)
    draw_person(c, who, Pose(turn, 0.4, 0.4, 0, 0, 1.75))
    return c.rgb


def test_a_logo_is_in_front_and_a_backpack_behind():
    red = lambda rgb: float(((rgb[0] > 0.8) & (rgb[1] < 0.2)).sum())
    logo, bag = dict(pattern="logo", second=(1.0, 0.0, 0.0)), dict(bag="backpack", bag_colour=(1.0, 0.0, 0.0))
    plain = dict(shoes=(0, 0, 0), bottom=(0, 0, 0))
    assert red(painted(0, **plain, **logo)) > 40 and red(painted(math.pi, **plain,
                                                                 **logo)) == 0 == red(painted(0, **plain))
    assert red(painted(math.pi, **plain, **bag)) > 3 * red(painted(0, **plain, **bag)) > 0


@pytest.mark.parametrize("change",
                         [dict(head="long"), dict(head="bald"), dict(head="cap"), dict(head="hood"),
                          dict(pattern="stripes"), dict(pattern="block"),
                          dict(sleeves="long"), dict(legs="skirt"), dict(legs="trousers"),
                          dict(bag="handbag"), dict(shoes=(1, 0, 1)), dict(width=1.25)])
def test_every_trait_shows(change):
    base = dict(sleeves="short", legs="shorts", second=(0.9, 0.9, 0.0), width=0.9, hair=(0.6, 0.1, 0.1))
    for turn in (0.1, math.pi / 2):
        assert np.abs(painted(turn, **{**base, **change}) - painted(turn, **base)).max() > 0.2


def test_a_camera_is_blur_cast_and_gamma():
    cam = camera(rng(), STYLES[1], 0)._replace(cast=(1.2, 1.0, 0.5), gamma=0.8)
    even = expose(np.full((3, 20, 10), 0.4, np.float32), cam)
    assert np.abs(even[:, 10,
                       5] - 255 * (0.4 * np.array(cam.cast)) ** 0.8).max() <= 0.51 and even.dtype == np.uint8
    assert expose(np.full((3, 8, 8), 9, np.float32), cam).max() == 255
    rows = blur(30, 2.0)
    assert np.allclose(rows.sum(1), 1,
                       atol=1e-6) and np.isclose(rows[15, 17] / rows[15, 15], math.exp(-0.5), atol=1e-5)


def test_sites_have_cameras_of_their_own():
    assert site_cameras(2, 0, 1) == site_cameras(3, 0, 1)[:2]
    assert len({cam.cast for seed in (0, 1) for site in (0, 4) for cam in site_cameras(3, seed, site)}) == 12


def test_scenery_and_texture():
    cam = site_cameras(1)[0]
    assert np.array_equal(scenery(cam, (1, 2), SMALL),
                          scenery(cam, (1, 2), SMALL)) and not scenery(cam, (1, 2), SMALL).flags.writeable
    assert np.abs(scenery(cam, (1, 2), SMALL) - scenery(cam, (1, 3), SMALL)).max() > 0.01
    fields = np.stack([texture(rng(s), (64, 32), 16) for s in range(60)])
    assert abs(fields.std() - 1) < 0.06


# ---- sites


def test_query_and_gallery():
    data = people(3, 2, 3, (8, 8)).take([5, 4, 3, 0, 1, 2, 9])
    q, g = query_gallery(data)
    assert q.tolist() == [0, 3, 6] and g.tolist() == [1, 2, 4, 5] and q.dtype == g.dtype == np.int64
    with pytest.raises(UserError, match="None"):
        query_gallery(type(data)(data.images, data.labels, data.classes, "x", "", ""))


def test_rendered_sizes():
    assert rendered_sizes(3, 100, 1) == [100, 10,
                                         1] and rendered_sizes(1, 7,
                                                               3) == [7] and rendered_sizes(2, 5, 5) == [5, 5]
    for wrong in ((0, 5, 1), (2, 1, 5), (2, 5, 0), (2, 5.0, 1)):
        with pytest.raises(UserError): rendered_sizes(*wrong)


def test_render_site():
    site = render_site(2, 50, 4, 3, 2, SMALL, 1)
    assert isinstance(site,
                      Site)
    assert site.name == STYLES[2].name and len(site.train) == 48
    assert len(site.query) == len(site.gallery) == 12
    assert [set(d.split) for d in site[:3]] == [{"train"}, {"query"}, {"gallery"}]
    assert set(site.query.identity.tolist()) == set(site.gallery.identity.tolist())
    assert not set(site.train.identity.tolist()) & set(site.query.identity.tolist())
    assert len(render_site(0, 1, 1, 2, 2, (8, 8)).train.classes) == 2
    for wrong in (dict(train_images=0), dict(per_camera=1), dict(cameras=0)):
        with pytest.raises(UserError, match=next(iter(wrong))):
            render_site(**{"site": 0, "train_images": 9, "test_identities": 2, "size": (8, 8), **wrong})


# ---- answers, imports


def test_answers():
    assert answers.dressed_alike([2, 3]) == 0.4 and answers.dressed_alike([1, 1, 1]) == 0
    assert answers.dressed_alike([1]) is None and answers.dressed_alike([]) is None
    cam = site_cameras(1)[0]
    byte = expose(np.full((3, 20, 10), 0.4, np.float32), cam)[:, 10, 5]
    scene = [answers.undone(int(b), cast, cam.gamma) for b, cast in zip(byte, cam.cast)]
    assert np.allclose(scene, 0.4, atol=0.004)
    data = people(3, 2, 2, (8, 8)).take([5, 4, 0, 1, 2, 9])
    assert answers.first_pictures(data.identity.tolist(),
                                  data.camera.tolist()) == query_gallery(data)[0].tolist()
