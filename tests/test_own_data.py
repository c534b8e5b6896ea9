"""`data=PATH` in every chapter whose method fits: class folders, a COCO file or two, folders of people."""
import json

import numpy as np
import pytest
from PIL import Image

from fedbook.runs import check_needs, chapter_module, find
from fedbook.command import plan_of
from fedbook.reid import own_sites
from fedbook.lab import UserError, choose
from fedbook.local import generator


def save(path, size, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    "Ten classes of eight pictures, in halves."
    root = tmp_path_factory.mktemp("classes")
    for half, count in (("train", 40), ("test", 20)):
        for c in range(10):
            for i in range(count): save(root / half / f"class{c}" / f"{i}.png", (28, 28), 100 * c + i)
    return root


def coco(path, count, start=0):
    images = [dict(id=i, file_name=f"{start + i}.png", height=48, width=80) for i in range(count)]
    boxes = [dict(id=i, image_id=i, category_id=1 + i % 2, bbox=[8, 8, 24, 20]) for i in range(count)]
    kinds = [dict(id=1, name="pot"), dict(id=2, name="leaf")]
    for image in images: save(path.parent / image["file_name"], (48, 80), start + image["id"])
    path.write_text(json.dumps(dict(images=images, annotations=boxes, categories=kinds)))


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    root = tmp_path_factory.mktemp("streets")
    coco(root / "instances_train.json", 14)
    coco(root / "instances_val.json", 4, 100)
    return root


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    "Three sites, each with six people before two cameras."
    root = tmp_path_factory.mktemp("people")
    for site in range(3):
        for part, ids in (("train", range(1, 9)), ("query", range(9, 13)), ("test", range(9, 13))):
            for id in ids:
                for cam in (1, 2):
                    save(root / f"site{site}" / part / f"{id:04d}_c{cam}s1_{id:06d}_0{cam}.jpg", (32, 16),
                         1000 * site + 10 * id + cam)
    return root


def sizes_of(name, **changes):
    module = chapter_module(next(iter(find(name).values())))
    sizes = choose(module.profiles, "smoke", {key: str(value) for key, value in changes.items()})
    check_needs(module, sizes)
    return module, sizes


@pytest.mark.parametrize("name", ["fedavg", "continual", "fedcbdr", "fedgtea", "fedreplay"])
def test_class_folders(classes, name):
    more = dict(weights="random") if name == "fedreplay" else {}
    experiment = plan_of(name, "smoke", changes={"data": str(classes), **more}).experiment
    assert experiment.sizes.data == str(classes)
    assert all(len(experiment.parts[id]) for id in experiment.ids) if name == "fedavg" else experiment.ids


@pytest.mark.parametrize("file", ["", "instances_train.json"])
@pytest.mark.parametrize("name, maker", [("detect", "street_for"), ("fedmox", "make_street")])
def test_coco_files(streets, name, maker, file):
    module, sizes = sizes_of(name, data=streets / file, server_images=4)
    street = getattr(module, maker)(sizes, 0)
    assert street.classes == ["pot", "leaf"] and len(street.server) == 4
    assert sum(map(len, [street.server, *street.clients])) == 14 - 2 * bool(file)
    assert {name: len(test) for name, test in street.tests.items()} == {"unknown": 2 if file else 4}
    assert street.tests["unknown"].boxes[0][1].numel() == 1


def test_folders_of_people(people):
    module, sizes = sizes_of("fedklpr", data=people, clients=3)
    sites = module.make_sites(sizes, 0)
    assert [site.name for site in sites] == ["site0", "site1", "site2"]
    assert all(len(site.query.identity) == 8 and len(site.data.x) for site in sites)
    with pytest.raises(UserError, match="clients=4 is more than the 3 sites"):
        module.make_sites(choose(module.profiles, "smoke", dict(data=str(people), clients=4)), 0)


def test_one_site(people):
    module, sizes = sizes_of("reid", data=people / "site1")
    assert module.site_of(0, sizes, 0).name == "site1"
    with pytest.raises(UserError, match="number=1 is beyond the 1 sites"): module.site_of(1, sizes, 0)


@pytest.mark.parametrize("name", ["fedmox", "detect", "reid", "fedklpr"])
def test_what_is_no_path_is_refused_with_the_choices(name):
    with pytest.raises(UserError, match="data='nope' is unknown; choose one of .*, a path"):
        sizes_of(name, data="nope")


def test_folders_that_do_not_fit(streets, people, tmp_path):
    module, sizes = sizes_of("fedmox", data=people)
    with pytest.raises(UserError, match="has no COCO files"): module.make_street(sizes, 0)
    module, sizes = sizes_of("fedmox", data=streets, server_images=13)
    with pytest.raises(UserError, match="has 14 pictures to train with, expected server_images=13"):
        module.make_street(sizes, 0)
    with pytest.raises(UserError, match="is not a folder of sites"): own_sites(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no sites"): own_sites(tmp_path)
