"""Pascal VOC, YOLO and LEAF: told from folders of classes, and read."""
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fedbook.datasets.folders import class_folder, pictures
from fedbook.datasets.layouts import layout_of
from fedbook.datasets.streets import street_set
from fedbook.engine.errors import UserError
from fedbook.methods.fedavg import FedAvgExperiment, FedAvgSizes

NOTE = ("<annotation><filename>{0}.jpg</filename>"
        "<size><width>40</width><height>20</height></size>{1}</annotation>")
THING = ("<object><name>{0}</name><bndbox><xmin>{1}</xmin><ymin>{2}</ymin><xmax>{3}</xmax><ymax>{4}</ymax>"
         "</bndbox></object>")


def photo(path, turn=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (40, 20))
    exif = image.getexif()
    exif[274] = turn
    image.save(path, exif=exif)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def voc_folder(root, count=6, lists=True):
    for k in range(count):
        photo(root / "JPEGImages" / f"{k}.jpg")
        things = THING.format("Cup", 1, 1, 10, 20) + THING.format("can", 11, 5, 20, 10)
        write(root / "Annotations" / f"{k}.xml", NOTE.format(k, things))
    if lists:
        write(root / "ImageSets/Main/train.txt", "\n".join(map(str, range(count - 2))))
        write(root / "ImageSets/Main/val.txt", f"{count - 2} 1\n{count - 1} -1\n")
    return root


def yolo_folder(root, form="images/{}", names="data.yaml", count=4):
    for part, n in (("train", count), ("val", 2)):
        folder = root / form.format(part) if "images" in form else root / part / "images"
        for k in range(n):
            photo(folder / f"{part}{k}.jpg")
            label = (folder / f"{part}{k}.txt").relative_to(root).as_posix().replace("images", "labels")
            write(root / label, "1 .5 .5 .5 .5\n0 .1 .2 .3 .2 .3 .6\n" if k else "")
    if names == "data.yaml": write(root / names, "nc: 2\nnames: [can, cup]\n")
    elif names: write(root / names, "can\ncup\n")
    return root


@pytest.mark.parametrize("lists", [True, False])
def test_voc_is_read_from_zero(tmp_path, lists):
    train, test = (pictures(voc_folder(tmp_path, lists=lists), split, "voc") for split in ("train", "test"))
    assert train.classes == ["can", "cup"] and len(train) + len(test) == 6 and set(test.split) == {"test"}
    if lists: assert len(test) == 2 and test.images.paths[0].stem == "4"
    assert train.boxes[0].xyxy.tolist() == [[0, 0, 10, 20], [10, 4, 20, 10]]
    assert train.boxes[0].labels.tolist() == [1, 0]


def test_a_test_of_yolo_has_boxes_and_a_year_is_no_other_part(tmp_path):
    photo(yolo_folder(tmp_path / "plain") / "images/test/0.jpg")
    years = yolo_folder(tmp_path / "years")
    for kind in ("images", "labels"):
        for part in ("train", "val"): (years / kind / part).rename(years / kind / f"{part}2017")
    for root in (tmp_path / "plain", years):
        assert [p.stem for p in pictures(root, "test", "yolo").images.paths] == ["val0", "val1"]
        assert len(pictures(root, "train", "yolo")) == 4


@pytest.mark.parametrize("form", ["images/{}", "{}"])
@pytest.mark.parametrize("names", ["data.yaml", "classes.txt", None])
def test_yolo_is_read(tmp_path, form, names):
    train, test = (pictures(yolo_folder(tmp_path, form, names), split, "yolo") for split in ("train", "test"))
    assert train.classes == (["can", "cup"] if names else ["0", "1"]) and (len(train), len(test)) == (4, 2)
    assert train.boxes[1].labels.tolist() == [1, 0] and len(train.boxes[0].labels) == 0
    assert torch.allclose(train.boxes[1].xyxy, torch.tensor([[10., 5, 30, 15], [4, 4, 12, 12]]))


def renamed(root, *names):
    for old, new in names: (root / old).rename(root / new)
    return root


def test_folders_of_yolo_in_capitals_and_parts_with_a_year(tmp_path):
    capitals = renamed(yolo_folder(tmp_path / "capitals"), ("images", "Images"), ("labels", "Labels"))
    years = renamed(yolo_folder(tmp_path / "years", "{}"), ("train", "train2017"), ("val", "Val2017"))
    for root in (capitals, years):
        assert layout_of(root) == "yolo"
        train, test = (pictures(root, split, "yolo") for split in ("train", "test"))
        assert (len(train), len(test)) == (4, 2) and train.boxes[1].labels.tolist() == [1, 0]


def test_a_turned_photo_of_voc(tmp_path):
    voc_folder(tmp_path, lists=False)
    for k in range(6): photo(tmp_path / "JPEGImages" / f"{k}.jpg", 6)
    data = pictures(tmp_path, "train", "voc")
    assert data.images[0].shape == (3, 40, 20) and data.boxes[0].xyxy[0].tolist() == [0, 0, 20, 10]


@pytest.mark.parametrize("make, name", [(voc_folder, "voc"), (yolo_folder, "yolo")])
def test_detection_folders_are_no_classes(tmp_path, make, name):
    make(tmp_path)
    assert layout_of(tmp_path) == name
    for read in (class_folder, pictures):
        with pytest.raises(UserError, match=f"is laid out as .*layout='{name}'"): read(tmp_path)
    with pytest.raises(UserError, match="is not laid out as LEAF"): pictures(tmp_path, layout="leaf")


@pytest.mark.parametrize("make", [voc_folder, yolo_folder])
def test_streets_of_ones_own(tmp_path, make):
    street = street_set(str(make(tmp_path)), 2, 2, (16, 32), (8, 16))
    assert len(street.server) == 2 and len(street.clients) == 2 and len(street.tests["unknown"]) == 2
    assert street.server.images[0].shape == (3, 16, 32)


@pytest.mark.parametrize("file, content, sentence", [
    ("Annotations/0.xml", "<annotation>", "0.xml is not an annotation of Pascal VOC"),
    ("Annotations/0.xml", NOTE.format(0, "<object><name>cup</name></object>"), "0.xml is not an annotation")])
def test_bad_annotations(tmp_path, file, content, sentence):
    write(voc_folder(tmp_path) / file, content)
    with pytest.raises(UserError, match=sentence): pictures(tmp_path, layout="voc")


@pytest.mark.parametrize("line", ["cup .5 .5 .2 .2", "0 .5 .5", "0 .5 .5 .2 .2 .9", "7 .5 .5 .2 .2"])
def test_bad_lines_of_yolo(tmp_path, line):
    write(yolo_folder(tmp_path) / "labels/train/train0.txt", line)
    with pytest.raises(UserError, match="no line of YOLO|class 7, but names of 2"):
        pictures(tmp_path, layout="yolo")


def leaf_folder(root, x=(0.0, 0.5, 1.0, 0.25)):
    for part, users in (("train", ("ann", "ben")), ("test", ("ann",))):
        data = {user: dict(x=[x] * 4, y=[0, 1, 2, 1]) for user in users}
        body = dict(users=users, num_samples=[4] * len(users), user_data=data)
        write(root / part / "all_data.json", json.dumps(body))
    return root


def test_leaf_is_found_and_read(tmp_path):
    train, test = (pictures(leaf_folder(tmp_path), split) for split in ("train", "test"))
    assert (len(train), len(test)) == (8, 4) and train.classes == ["0", "1", "2"]
    assert train.domain == ["ann"] * 4 + ["ben"] * 4 and train.images[0].tolist() == [[[0, 128], [255, 64]]]
    with pytest.raises(UserError, match="is laid out as LEAF"): class_folder(tmp_path)


@pytest.mark.parametrize("x", ["to be or not", (0, 1), "photo.jpg"])
def test_leafs_texts_are_no_pictures(tmp_path, x):
    with pytest.raises(UserError, match="x must be pixels"): pictures(leaf_folder(tmp_path, x))


def test_leaf_trains(tmp_path):
    rng = np.random.default_rng(0)
    leaf_folder(tmp_path, rng.random(784).tolist())
    experiment = FedAvgExperiment(FedAvgSizes(data=str(tmp_path), clients=2, per_round=2, rounds=1))
    assert experiment.client(0).x.shape[1:] == (1, 28, 28)


def test_a_user_of_leaf_is_a_client(tmp_path):
    leaf_folder(tmp_path, [0.5] * 784)
    sizes = FedAvgSizes(data=str(tmp_path), split="domain", clients=2, per_round=2)
    experiment = FedAvgExperiment(sizes)
    assert sorted(part.tolist() for part in experiment.parts) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(UserError, match="clients=3 is more than the 2 groups"):
        _ = FedAvgExperiment(replace(sizes, clients=3)).parts
    with pytest.raises(UserError, match="has no domains, such as the users of LEAF's sets"):
        _ = FedAvgExperiment(replace(sizes, data="fashion_mnist_small")).parts
