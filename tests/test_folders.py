import gzip
import io
import json
import os
import zipfile
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image

from fedbook.datasets import folders
from fedbook.answers import folders as answers
from fedbook.datasets.folders import (BDD_CLASSES, bdd100k, check_cameras, cifar10, cifar100, cityscapes,
                                      class_folder, coco_boxes, cwd30, fashion_mnist, fruits360, pictures,
                                      plantvillage, read_name, reid_folder, reid_set, soda10m, street_parts,
                                      tiny_imagenet)
from fedbook.engine.errors import UserError
from fedbook.datasets.world import Files, class_means, fashion_mnist_small, inventory, nearest_mean
from fedbook.engine.local import as_float


@pytest.fixture
def folder(tmp_path, monkeypatch):
    "An empty data folder, and a network that does not answer."
    def no_network(*args, **kwargs): raise URLError("no network")

    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", no_network)
    return tmp_path


def save(path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), shade).save(path)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big")
                                                   for n in array.shape) + array.tobytes()


# ---- sets by name


@pytest.mark.parametrize("where, packed",
                         [("FashionMNIST/raw", False), ("FashionMNIST/raw", True), (".", True)])
def test_fashion_mnist_from_a_folder(folder, where, packed):
    rng = np.random.default_rng(0)
    (folder / where).mkdir(parents=True, exist_ok=True)
    arrays = {}
    for prefix, n in (("train", 7), ("t10k", 3)):
        arrays[prefix] = rng.integers(0, 256, (n, 28, 28),
                                      dtype=np.uint8), rng.integers(0, 10, n, dtype=np.uint8)
        for array, kind in zip(arrays[prefix], ("images-idx3", "labels-idx1")):
            name = f"{prefix}-{kind}-ubyte"
            if packed: (folder / where / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else: (folder / where / name).write_bytes(idx(array))
    for split, prefix in (("train", "train"), ("test", "t10k")):
        data = fashion_mnist(split)
        assert np.array_equal(data.images[:, 0].numpy(),
                              arrays[prefix][0]) and data.labels.tolist() == arrays[prefix][1].tolist()
    assert {row["name"]: row["state"] for row in inventory()}["fashion_mnist"] == "found"


@pytest.mark.parametrize("name, file",
                         [("fashion_mnist", "ubyte"), ("cifar10", "cifar-10-python.tar.gz"),
                          ("cifar100", "cifar-100-python.tar.gz")])
def test_missing_data_is_one_sentence(folder, name, file, capfd):
    with pytest.raises(UserError, match=file) as error: pictures(name)
    assert str(folder) in str(error.value) and "no network" in str(error.value)
    assert "\n" not in str(error.value)


def test_cifar_pickles_with_a_wrong_checksum_are_not_opened(folder):
    "A pickle that would make a file if it were read."
    class Bomb:
        def __reduce__(self): return os.mkdir, (str(folder / "ran"),)

    import pickle

    (folder / "cifar-10-batches-py").mkdir()
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch",
                 "batches.meta"):
        (folder / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match="CIFAR-10"): cifar10()
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_in_torchvisions_layout(folder, monkeypatch, name):
    "A tiny fabricated folder; torchvision's checksums are replaced by those of the fabricated files."
    import hashlib
    import pickle

    from torchvision import datasets

    kind = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    rng = np.random.default_rng(0)
    label_key, classes = ("labels", 10) if name == "cifar10" else ("fine_labels", 100)
    base = folder / kind.base_folder
    base.mkdir()
    def put(file, content):
        (base / file).write_bytes(pickle.dumps(content))
        return hashlib.md5((base / file).read_bytes()).hexdigest()
    batch = lambda: {"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8), label_key: [0, 1, 9, 3]}
    for which in ("train_list", "test_list"):
        monkeypatch.setattr(kind, which, [[file, put(file, batch())] for file, _ in getattr(kind, which)])
    monkeypatch.setattr(kind, "meta",
                        {**kind.meta, "md5": put(kind.meta["filename"],
                                                 {kind.meta["key"]: [f"c{i}" for i in range(classes)]})})
    data = pictures(name, "test")
    raw = pickle.loads((base / kind.test_list[0][0]).read_bytes())["data"]
    assert np.array_equal(data.images.numpy(),
                          raw.reshape(4, 3, 32,
                                      32))
    assert data.labels.tolist() == [0, 1, 9, 3] and len(data.classes) == classes


def jpeg(colour):
    file = io.BytesIO()
    Image.new("RGB", (32, 32), colour).save(file, "JPEG")
    return file.getvalue()


def test_cifar10_jpeg_copy_has_a_name_of_its_own(folder):
    with zipfile.ZipFile(folder / "cifar10-jpg.zip", "w") as file:
        file.writestr("README.md", "x")
        for split in ("train", "test"):
            for name, colour in (("truck", "red"), ("airplane", "blue")):
                file.writestr(f"{split}/{name}/0000.jpg", jpeg(colour))
    data = pictures("cifar10", "test")
    assert data.name == "CIFAR-10 (JPEG copy)" and data.classes == ["airplane", "truck"]
    assert data.labels.tolist() == [0, 1]
    assert data.images.shape == (2, 3, 32, 32)
    assert data.images[0,
                                                               2].float().mean() > 250
    assert data.images[1, 0].float().mean() > 250


def test_damaged_zip_is_refused(folder):
    (folder / "cifar10-jpg.zip").write_bytes(b"not a zip")
    with pytest.raises(UserError, match="damaged"): pictures("cifar10")
    with zipfile.ZipFile(folder / "cifar10-jpg.zip", "w") as file: file.writestr("README.md", "x")
    with pytest.raises(UserError, match="no pictures"): pictures("cifar10")


def test_cifar10_jpeg_copy_is_sound():
    named = os.environ.get("FEDBOOK_DATA")
    if not named or not Path(named,
                             "cifar10-jpg.zip").is_file() or Path(named, "cifar-10-batches-py").is_dir():
        pytest.skip("needs FEDBOOK_DATA to name a folder with cifar10-jpg.zip and no original CIFAR-10")
    data = pictures("cifar10", "test")
    assert data.images.shape == (10_000, 3, 32,
                                 32)
    assert torch.bincount(data.labels).tolist() == [1000] * 10 and data.classes[0] == "airplane"
    half = np.arange(10_000) % 2 == 0
    means = class_means(*data.take(half).tensors(), 10)
    assert (nearest_mean(data.images[~half], means) == data.labels[~half]).float().mean() > 0.2


WNIDS = ("n03", "n01", "n02")


@pytest.fixture
def tiny(folder):
    "Tiny-ImageNet-200 with three classes, two training pictures and one for the test of each; n01 is grey."
    root, shades = folder / "tiny-imagenet-200", dict(zip(WNIDS, (30, 100, 220)))
    def save(path, wnid):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L" if wnid == "n01" else "RGB", (64, 64),
                  shades[wnid] if wnid == "n01" else (shades[wnid],) * 3).save(path)

    for wnid in WNIDS:
        for i in range(2): save(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", wnid)
    for i, wnid in enumerate(("n01", "n02", "n03")): save(root / "val" / "images" / f"val_{i}.JPEG", wnid)
    (root / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in WNIDS))
    (root / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\nn03\tEgyptian cat\n")
    (root / "val" / "val_annotations.txt").write_text("".join(f"val_{i}.JPEG\tn0{i + 1}\t0\t32\t44\t62\n"
                                                              for i in range(3)))
    return root


@pytest.mark.parametrize("split, labels, shades",
                         [("train", [0, 0, 1, 1, 2, 2], [30, 30, 100, 100, 220, 220]),
                          ("test", [1, 2, 0], [100, 220, 30])])
def test_tiny_imagenet(tiny, split, labels, shades):
    data = pictures("tiny_imagenet", split)
    assert data.name == "Tiny-ImageNet-200"
    assert data.classes == ["Egyptian cat", "goldfish", "n02"], "in the order of wnids.txt, without words as it is"
    x, y = data.tensors()
    assert isinstance(data.images, Files)
    assert x.shape == (len(labels), 3, 64,
                                                          64)
    assert x.dtype == torch.uint8 and y.tolist() == labels
    assert (x.float().mean((1, 2, 3)) - torch.tensor(shades)).abs().max() < 2


def test_tiny_imagenet_is_never_downloaded(folder):
    row = {row["name"]: row for row in inventory()}["tiny_imagenet"]
    with pytest.raises(UserError, match="is missing.*unpack .*tiny-imagenet-200.zip in ") as error:
        pictures("tiny_imagenet")
    assert row["state"] == "not found" and row["advice"] in str(error.value) and str(folder) in row["advice"]
    assert "\n" not in str(error.value)


def test_inventory_finds_tiny_imagenet(tiny):
    row = {row["name"]: row for row in inventory()}["tiny_imagenet"]
    assert row["state"] == "found" and row["advice"] == f"in {tiny / 'wnids.txt'}"


@pytest.mark.parametrize("line",
                         ["val_1.JPEG", "val_1.JPEG n02 0 32 44 62", "val_1.JPEG\tn09\t0", "", "\xff\t\xfe"])
def test_tiny_imagenet_with_a_damaged_annotation(tiny, line):
    path = tiny / "val" / "val_annotations.txt"
    first, _, last = path.read_text().splitlines()
    path.write_bytes("\n".join((first, line, last)).encode("latin-1"))
    with pytest.raises(UserError, match="line 2 of .*val_annotations.txt.*unpack") as error:
        pictures("tiny_imagenet", "test")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("gone, split, says",
                         [("words.txt", "train", "no file .*words.txt"),
                          ("val/val_annotations.txt", "test", "no file .*val_annotations.txt"),
                          ("train/n02/images/n02_1.JPEG", "train", "1 to 2 train pictures of a class")])
def test_tiny_imagenet_half_unpacked(tiny, gone, split, says):
    (tiny / gone).unlink()
    with pytest.raises(UserError, match=f"{says}.*unpack"): pictures("tiny_imagenet", split)


def test_tiny_imagenet_without_classes(tiny):
    (tiny / "wnids.txt").write_text("\n")
    with pytest.raises(UserError, match="0 to 0 train pictures"): pictures("tiny_imagenet")


@pytest.mark.parametrize("loader",
                         [fashion_mnist_small, fashion_mnist, cifar10, cifar100, tiny_imagenet, fruits360,
                          plantvillage, cwd30])
def test_unknown_split(loader):
    with pytest.raises(UserError, match="split='valid'"): loader("valid")


def test_unknown_name_lists_the_choices():
    with pytest.raises(UserError,
                       match="fashion_mnist_small, fashion_mnist, cifar10, cifar100, tiny_imagenet, "
                             "fruits360, plantvillage, cwd30"):
        pictures("mnist")


# ---- class folders


def test_class_folder(tmp_path):
    for split, shade in (("train", 10), ("test", 200)):
        for name in ("dog", "cat"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("L", (4, 3), shade).save(tmp_path / split / name / "a.PNG")
    (tmp_path / "train" / "dog" / "notes.txt").write_text("x")
    data = class_folder(tmp_path, name="pets", licence="CC0", split="test")
    assert data.classes == ["cat",
                            "dog"]
    assert data.labels.tolist() == [0, 1] and data.split == ["test", "test"]
    assert isinstance(data.images, Files)
    assert data.images[0].shape == (3, 3,
                                    4)
    assert data.images[0].dtype == torch.uint8 and int(data.images[0].min()) == 200
    with pytest.raises(UserError, match="choose one as split"): class_folder(tmp_path)
    with pytest.raises(UserError, match="not a folder"): class_folder(tmp_path, split="val")
    with pytest.raises(UserError, match="has pictures in it and no folder for each class"):
        class_folder(tmp_path / "train" / "dog")


def test_unreadable_picture_is_named(tmp_path):
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "a.jpg").write_bytes(b"not a picture")
    with pytest.raises(UserError, match="a.jpg"): class_folder(tmp_path).images[0]


@pytest.mark.parametrize("pattern", ["(.+)_view", r"^([^/]+?)_view\d"])
def test_class_folder_names_the_plant(tmp_path, pattern):
    for name in ("rye/a_view1.png", "rye/a_view2.png", "rye/b_view1.png", "rye/other.png", "rye/third.png",
                 "weed/a_view1.png"):
        save(tmp_path / name)
    assert class_folder(tmp_path).identity is None
    data = class_folder(tmp_path, group=pattern)
    assert data.identity == ["rye/a", "rye/a", "rye/b", "rye/other.png", "rye/third.png", "weed/a"]


def test_class_folder_searches_below_the_class(tmp_path):
    for name in ("train/rye/p1/a.png", "train/rye/p1/b.png", "train/rye/p2/a.png", "train/rye/a.png"):
        save(tmp_path / name)
    data = class_folder(tmp_path, split="train", group="^(.+)/")
    assert sorted(data.identity) == ["rye/a.png", "rye/p1", "rye/p1",
                                     "rye/p2"] and data.take([1]).identity == [data.identity[1]]


@pytest.mark.parametrize("group", ["(", "no parentheses", 3])
def test_class_folder_refuses_a_pattern(tmp_path, group):
    save(tmp_path / "rye" / "a.png")
    with pytest.raises(UserError, match="group=.*regular expression") as error:
        class_folder(tmp_path, group=group)
    assert "\n" not in str(error.value)


# ---- crops


@pytest.fixture
def fruits(folder):
    "Two varieties in two folders; the first has two turns of 12 frames of shade 20 x frame, the second has one."
    path = folder / "fruits360-3body-two.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name in ("LICENSE", "Training/Tomato/Tomato 1/odd.jpg"): file.writestr(name, "x")
        for where, turns in (("Training/Tomato/Tomato 1", ("", "r2_")), ("Test/Apple/Apple 9", ("r0_",))):
            for turn in turns:
                for i in range(12): file.writestr(f"{where}/{turn}{i}_100.jpg", jpeg((20 * i,) * 3))
    return path


@pytest.mark.parametrize("split, frames", [("train", [0, 1, 2, 3, 4, 10, 11]), ("test", [6, 7, 8])])
def test_fruits360_is_split_by_turn(fruits, split, frames):
    data = pictures("fruits360", split)
    assert data.classes == ["Apple 9",
                            "Tomato 1"]
    assert torch.bincount(data.labels).tolist() == [len(frames), 2 * len(frames)]
    assert data.identity == [data.classes[c]
                             for c in data.labels]
    assert data.split == [split] * len(data) and data.licence == "CC BY-SA 4.0"
    shades = (data.images[:, 0].float().mean((1, 2)) / 20).round().int()
    for c, turns in ((0, 1), (1, 2)):
        assert sorted(shades[data.labels == c].tolist()) == sorted(turns * frames)


def test_fruits360_damaged_or_without_photos(fruits):
    fruits.write_bytes(fruits.read_bytes()[:-30])
    with pytest.raises(UserError, match="damaged"): pictures("fruits360")
    with zipfile.ZipFile(fruits, "w") as file: file.writestr("Training/Apple 9/0_100.jpg", "x")
    with pytest.raises(UserError, match="has no Training"): pictures("fruits360")


def test_fruits360_is_sound():
    named = os.environ.get("FEDBOOK_DATA")
    if not named or not list(Path(named).glob("fruits360-3body*.zip")):
        pytest.skip("needs FEDBOOK_DATA to name a folder with fruits360-3body*.zip")
    train, test = pictures("fruits360", "train"), pictures("fruits360", "test")
    assert train.classes == test.classes and len(train.classes) == 67
    assert train.images.shape[1:] == (3, 100, 100)
    assert torch.bincount(test.labels,
                          minlength=67).min() >= 10 and torch.bincount(train.labels, minlength=67).min() >= 30
    x, y = torch.cat([train.images, test.images]), torch.cat([train.labels, test.labels])
    x = torch.nn.functional.adaptive_avg_pool2d(as_float(x), 16).flatten(1)
    def nearest(order, n):
        return (y[order[:n]][torch.cdist(x[order[n:]],
                                         x[order[:n]]).argmin(1)] == y[order[n:]]).float().mean().item()
    by_turn, at_random = (nearest(order, len(train))
                          for order in (torch.arange(len(y)),
                                        torch.randperm(len(y), generator=torch.Generator().manual_seed(0))))
    assert 0.5 < by_turn < at_random - 0.1, "neighbours in the turn are what the random split lives on"


@pytest.fixture(params=["raw/color", "color", "."])
def plants(folder, request):
    "PlantVillage with ten leaves of two pictures in two classes; some short names stand for leaves of both."
    table = {}
    for c, kind in enumerate(("Apple___healthy", "Grape___healthy")):
        for i in range(20):
            save(folder / "PlantVillage" / request.param / kind / f"{c}{i:03d}-e2___RS_HL {i:04d}.JPG",
                 100 * c + i)
            table.setdefault(f"rs_hl {i:04d}", []).append(f"{kind}:::{i // 2}.0")
    (folder / "PlantVillage" / "leaf-map.json").write_text(json.dumps(table))
    return folder / "PlantVillage"


def test_plantvillage_is_split_by_leaf(plants):
    parts = [pictures("plantvillage", split) for split in ("train", "test")]
    assert [len(part) for part in parts] == [32,
                                             8]
    assert torch.bincount(parts[1].labels).tolist() == [4, 4] and parts[1].split == ["test"] * 8
    assert not set(parts[0].identity) & set(parts[1].identity) and len(set(parts[0].identity)) == 16
    assert parts[0].classes == ["Apple___healthy", "Grape___healthy"]
    for part in parts:
        for picture, label, identity in zip(part.images, part.labels, part.identity):
            leaf = (int(picture[0, 0, 0]) - 100 * int(label)) // 2
            assert identity == f"{part.classes[label]}/{leaf}.0", "the leaf of its own class"


@pytest.mark.parametrize("name, leaf",
                         [("id___RS_HL 1", "A/7.0"), ("rs_hl 1", "A/7.0"),
                          ("id___RS_HL 1_final_masked", "A/7.0"), ("id___RS_HL 1 copy 2", "A/7.0"),
                          ("id___RS_HL 2", "A/5.0"), ("id___RS_HL 3", "A/id___RS_HL 3.JPG"),
                          ("id___RS_HL 4", "A/id___RS_HL 4.JPG")])
def test_leaf_of_a_file_name(name, leaf):
    table = {"rs_hl 1": ["AB:::6.0", "A:::7.0"], "rs_hl 2": ["B:::5.0"], "rs_hl 3": ["B:::1.0", "C:::1.0"]}
    assert folders._leaf(Path("A", f"{name}.JPG"), table) == leaf


def test_plantvillage_needs_the_table_of_leaves(plants):
    table = plants / "leaf-map.json"
    for damage in ("[1", "[]", '{"a": 3}'):
        table.write_text(damage)
        with pytest.raises(UserError, match="has a damaged .*leaf-map.json.*put raw/color"):
            pictures("plantvillage")
    table.unlink()
    with pytest.raises(UserError, match="without leaf-map.json.*put raw/color"): pictures("plantvillage")


@pytest.mark.parametrize("name, folder_name, below",
                         [("plantvillage", "PlantVillage", ""), ("cwd30", "CWD30", ""),
                          ("cwd30", "CWD30", "images")])
def test_official_split_is_used(folder, name, folder_name, below):
    for split, shade in (("train", 10), ("val", 50), ("test", 200)):
        for kind in ("maize", "weed"):
            save(folder / folder_name / split / below / kind / "p1" / "a.png", shade)
    for split, shade in (("train", 10), ("test", 200)):
        data = pictures(name, split)
        assert data.classes == ["maize",
                                "weed"]
        assert data.split == [split] * 2 and [int(x.min()) for x in data.images] == [shade] * 2
        assert data.identity == (["maize/p1", "weed/p1"] if name == "cwd30" else None)
    save(folder / folder_name / "train" / below / "thistle" / "a.png")
    with pytest.raises(UserError, match="other classes in train than in test"): pictures(name)


def test_official_split_that_is_half_there(folder):
    save(folder / "CWD30" / "train" / "maize" / "a.png")
    with pytest.raises(UserError, match="test.*is not a folder"): pictures("cwd30", "train")


def test_cwd30_without_an_official_split(folder):
    for kind in ("maize", "weed"):
        for plant in range(5):
            for view in range(3): save(folder / "CWD30" / kind / f"p{plant}" / f"{view}.png")
    parts = [pictures("cwd30", split) for split in ("train", "test")]
    assert [len(part) for part in parts] == [24, 6] and not set(parts[0].identity) & set(parts[1].identity)


@pytest.mark.parametrize("name, file, found",
                         [("fruits360", "fruits360-3body.zip", "fruits360-3body-mini60.zip"),
                          ("plantvillage", "leaf-map.json", "PlantVillage"),
                          ("cwd30", "CWD30", "CWD30")])
def test_crops_are_never_downloaded(folder, name, file, found):
    row = {row["name"]: row for row in inventory()}[name]
    with pytest.raises(UserError, match=f"is missing; .*{file}") as error: pictures(name)
    assert row["state"] == "not found" and row["advice"] in str(error.value) and str(folder) in row["advice"]
    assert "\n" not in str(error.value)
    (folder / found).mkdir()
    assert {row["name"]: row["state"] for row in inventory()}[name] == "found"


@pytest.mark.parametrize("names",
                         [("train2017", "val2017"), ("Training", "Test"), ("train", "valid"),
                          ("dev-2014", "test_2014")])
def test_splits_are_no_classes(tmp_path, names):
    for name in names: save(tmp_path / name / "rye" / "a.png")
    with pytest.raises(UserError, match=f"{min(names)}, {max(names)}, which are splits and not classes"):
        class_folder(tmp_path)
    assert class_folder(tmp_path, split=names[0]).classes == ["rye"]


def test_a_class_may_be_called_like_a_split(tmp_path):
    for name in ("train", "bus"): save(tmp_path / name / "a.png")
    assert class_folder(tmp_path).classes == ["bus", "train"]


# ---- people


def red(path, level=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 8), (level, 0, 0)).save(path)


@pytest.fixture
def market(tmp_path):
    root = tmp_path / "Market-1501-v15.09.15"
    for name in ("0002_c1s1_000451_03.png", "0002_c3s1_000551_01.png", "0007_c6s2_1_1.png"):
        red(root / "bounding_box_train" / name)
    for name in ("0003_c1s1_1_0.png", "0000_c2s1_1_0.png"): red(root / "query" / name)
    for k, name in enumerate(("-1_c1s1_1_1.png", "0000_c4s6_2_1.png", "0003_c2s1_3_1.png")):
        red(root / "bounding_box_test" / name, 50 * k)
    (root / "query" / "Thumbs.db").write_bytes(b"x")
    return root


def test_a_market_folder(market):
    train, query, gallery = (reid_folder(market, part) for part in ("train", "query", "gallery"))
    assert train.identity.tolist() == [2, 2,
                                       7]
    assert train.camera.tolist() == [0, 2, 5] and train.labels.tolist() == [0, 0, 1]
    assert train.classes == ["0002", "0007"]
    assert query.identity.tolist() == [3] and gallery.identity.tolist() == [0, 3]
    assert gallery.camera.tolist() == [3, 1]
    assert isinstance(train.images,
                      Files) and gallery.split == ["gallery"] * 2 and gallery.images[1][0, 0, 0] == 100
    assert reid_folder(market / "query", "query").identity.tolist() == [3] and check_cameras(train) == 1
    (market / "bounding_box_train").rename(market / "train")
    whole = market.rename(market.with_name("train"))
    assert reid_folder(whole, "train").identity.tolist() == [2, 2, 7]
    with pytest.raises(UserError, match="one camera only"): check_cameras(query)


def test_the_benchmarks_layout(tmp_path):
    for part in ("train", "train_all", "val", "query", "gallery"):
        for camera_, who in ((0, 0), (1, 0), (1, 12)):
            red(tmp_path / "viper" / "pytorch" / part / str(who) / f"cam_{camera_}_{who:05d}_00000.png")
    red(tmp_path / "viper" / "pytorch" / "train_all" / "5" / "cam_0_00005_00000.png")
    train, query = reid_folder(tmp_path, "train"), reid_folder(tmp_path / "viper", "query")
    assert sorted(zip(train.identity.tolist(),
                      train.camera.tolist())) == [(1, 0), (1, 1), (6, 0), (13, 1)] and len(query) == 3


def test_a_part_that_is_there_twice_counts_once(market):
    red(market / "pytorch" / "train_all" / "2" / "0002_c1s1_000451_03.png")
    red(market / "pytorch" / "query" / "9" / "0009_c1s1_000451_03.png")
    assert len(reid_folder(market, "train")) == 3 and reid_folder(market, "query").identity.tolist() == [3]


@pytest.mark.parametrize("name, expected",
                         [("0002_c1s1_000451_03.jpg", (2, 0)), ("0011_c8_f0046182.jpg", (11, 7)),
                          ("-1_c2s1_1_1.jpg", (-1, 1)),
                          ("cam_1_00002_00003.png", (3, 1)), ("cat.jpg", None), ("12_3.png", None)])
def test_names(name, expected): assert read_name(name) == expected


def test_bad_folders(market, tmp_path):
    with pytest.raises(UserError, match="not a folder"): reid_folder(tmp_path / "none", "train")
    with pytest.raises(UserError, match="part='val'"): reid_folder(market, "val")
    with pytest.raises(UserError, match="no folder query"):
        reid_folder(market / "bounding_box_train", "query")
    (tmp_path / "empty" / "query").mkdir(parents=True)
    with pytest.raises(UserError, match="no pictures"): reid_folder(tmp_path / "empty", "query")
    for name in ("holiday.png", "0001_c0s1_1_1.png"):
        red(tmp_path / name[:4] / "query" / name)
        with pytest.raises(UserError, match=f"{name}, expected names like 0002_c1s1"):
            reid_folder(tmp_path / name[:4], "query")


def test_sets_by_name(market, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    site = reid_set("market1501")
    assert site.name == "Market-1501"
    assert [len(d)
                                           for d in site[:3]] == [3, 1, 2]
    assert "redistributed" in site.train.licence
    assert {row["name"]: row["state"] for row in inventory()}["market1501"] == "found"
    with pytest.raises(UserError, match="put the folders train_all, query and gallery of VIPeR"):
        reid_set("viper")
    with pytest.raises(UserError, match="unknown"): reid_set("msmt17")
    with pytest.raises(UserError,
                       match=f"DukeMTMC-reID is missing; put the folders bounding_box_train.*{tmp_path}"):
        reid_set("duke")
    with pytest.raises(UserError, match="unknown"): reid_set("bdd100k")


# ---- streets


def picture(path, size=(72, 128), level=100):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size[::-1], (level, level, level)).save(path)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def bdd_frames(weathers, person="pedestrian"):
    def box(x): return dict(zip(("x1", "y1", "x2", "y2"), (x, 10.0, x + 40, 60.0)))
    labels = [dict(category=person, box2d=box(10.0)), dict(category="rider", box2d=box(60.0)),
              dict(category="lane/road curb", poly2d=[]), dict(category="traffic sign", box2d=box(1260.0)),
              dict(category="car", box2d=dict(x1=5, y1=5, x2=5, y2=9)),
              dict(category="traffic light", box2d=box(90.0))]
    return [dict(name=f"{k}.jpg", attributes=dict(weather=w, timeofday="daytime"),
                 labels=labels if k else None) for k, w in enumerate(weathers)]


@pytest.mark.parametrize("edition", ["old", "new", "frames", "deep"])
def test_bdd100k(folder, edition):
    root = folder / "BDD100K" / ("bdd100k" if edition == "deep" else ".")
    frames = bdd_frames(["partly cloudy", "rainy", "clear", "foggy"],
                        "person" if edition == "old" else "pedestrian")
    for k in range(3): picture(root / "images" / "100k" / "val" / f"{k}.jpg")
    if edition == "old": write(root / "labels" / "bdd100k_labels_images_val.json", frames)
    else:
        write(root / "labels" / "det_20" / "det_val.json",
              dict(frames=frames) if edition == "frames" else frames)
    data = bdd100k("val")
    assert len(data) == 3
    assert not isinstance(data.images,
                                             torch.Tensor)
    assert data.domain == ["cloudy", "rainy", "clear"] and data.classes == list(BDD_CLASSES)
    assert data.boxes[0].xyxy.shape == (0,
                                        4)
    assert data.boxes[1].labels.tolist() == [0, 4] and data.labels.tolist() == [0, 0, 0]
    assert data.split == ["val"] * 3
    assert data.boxes[2].xyxy.tolist() == [[10, 10, 50, 60], [1260, 10, 1280, 60]]
    with pytest.raises(UserError, match="det_train"): bdd100k("train")
    with pytest.raises(UserError, match="part"): bdd100k("test")


def city(folder, part, cities):
    kind = "gtCoarse" if part == "train_extra" else "gtFine"
    objects = [dict(label="person", polygon=[[10, 20], [29, 20], [29, 59], [10, 40]]),
               dict(label="cargroup", polygon=[[0, 0], [9, 9], [0, 9]]),
               dict(label="bicycle", polygon=[[-5, 0], [9, 0], [9, 9]]),
               dict(label="road", polygon=[[0, 0], [9, 9], [0, 9]])]
    for k, name in enumerate(cities):
        stem = f"{name}_{k:06d}_000019"
        picture(folder / "Cityscapes" / "leftImg8bit" / part / name / f"{stem}_leftImg8bit.png")
        write(folder / "Cityscapes" / kind / part / name / f"{stem}_{kind}_polygons.json",
              dict(imgHeight=72, imgWidth=128, objects=objects))


def test_cityscapes(folder):
    city(folder, "train", ["ulm", "aachen"])
    city(folder, "train_extra", ["bamberg"] * 2)
    data = cityscapes("train")
    assert data.domain == ["aachen",
                           "ulm"]
    assert data.boxes[0].xyxy.tolist() == [[10, 20, 30, 60], [0, 0, 10, 10]]
    assert [data.classes[c] for c in data.boxes[0].labels] == ["person", "bicycle"]
    first = next((folder / "Cityscapes" / "gtCoarse").rglob("*.json"))
    first.unlink()
    assert sorted(len(b.labels) for b in cityscapes("train_extra").boxes) == [0, 2]
    next((folder / "Cityscapes" / "gtFine").rglob("*.json")).unlink()
    with pytest.raises(UserError, match="has no labels: .* is missing; put"): cityscapes("train")
    with pytest.raises(UserError, match="part"): cityscapes("test")


def coco(entries, **more):
    found = [dict(image_id=e["id"], category_id=k, bbox=box, **extra) for e in entries for k, box, extra in
             ((3, [10, 20, 30, 40], {}), (7, [100, 50, 60, 60], {"iscrowd": 0}),
              (3, [0, 0, 9, 9], {"iscrowd": 1}), (3, [5, 5, 0, 9], {}))]
    return dict(images=entries, annotations=found,
                categories=[dict(id=7, name="Tram"), dict(id=3, name="Car")], **more)


def entries(weathers, word="weather"):
    return [dict(id=10 + k, file_name=f"{k}.png", height=72, width=128, **({word: w} if w else {}))
            for k, w in enumerate(weathers)]


def test_coco_boxes(tmp_path):
    for k in range(3): picture(tmp_path / "p" / f"{k}.png")
    write(tmp_path / "c.json", coco(entries(["Rainy", None, "Clear", "Clear"])))
    data = coco_boxes(tmp_path / "c.json", tmp_path / "p")
    assert data.classes == ["car", "tram"] and data.domain == ["rainy", "unknown", "clear"] and len(data) == 3
    assert data.boxes[0].xyxy.tolist() == [[10, 20, 40, 60],
                                           [100, 50, 128, 72]] and data.boxes[0].labels.tolist() == [0, 1]
    assert coco_boxes(tmp_path / "c.json", tmp_path / "p",
                      {"0.png": "Snowy"}).domain == ["snowy", "unknown", "unknown"]
    only = coco_boxes(tmp_path / "c.json", tmp_path / "p", classes=["Tram"])
    assert only.classes == ["tram"] and only.boxes[0].labels.tolist() == [0]
    assert only.boxes[0].xyxy.tolist() == [[100, 50, 128, 72]]
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
    with pytest.raises(UserError, match="bad entry .*bbox"): coco_boxes(tmp_path / "b.json", tmp_path)
    (tmp_path / "f.json").write_text("{")
    with pytest.raises(UserError, match="not a JSON"): coco_boxes(tmp_path / "f.json", tmp_path)


def soda(folder, part, weathers):
    for k in range(len(weathers)):
        picture(folder / "SODA10M" / "SSLAD-2D" / ("labeled" if part != "unlabeled"
                                                   else ".") / part / f"{k}.png", level=20 * k)
    write(folder / "SODA10M" / "SSLAD-2D" / "labeled" / "annotations" / f"instance_{part}.json",
          coco(entries(weathers)))


def test_soda10m(folder):
    soda(folder, "train", ["Clear", "Overcast"])
    data = soda10m("train")
    assert data.domain == ["clear",
                           "overcast"]
    assert [data.classes[c]
                                            for c in data.boxes[0].labels] == ["car", "tram"]
    assert len(data.classes) == 6
    with pytest.raises(UserError, match="instance_val"): soda10m("val")


def bdd(folder, part, weathers):
    for k in range(len(weathers)):
        picture(folder / "BDD100K" / "images" / "100k" / part / f"{k}.jpg", (72, 128))
    write(folder / "BDD100K" / "labels" / "det_20" / f"det_{part}.json", bdd_frames(weathers))


def test_a_panoptic_file_is_named(tmp_path):
    for k in range(2): picture(tmp_path / f"{k}.png")
    body = coco(entries([None, None]))
    body["annotations"] = [dict(image_id=e["id"], file_name=e["file_name"],
                                segments_info=[dict(id=1, bbox=[0, 0, 9, 9])]) for e in body["images"]]
    write(tmp_path / "panoptic_val2017.json", body)
    for read in (lambda path: coco_boxes(path, tmp_path), pictures):
        with pytest.raises(UserError, match="panoptic COCO file; take the instances_.*json") as error:
            read(tmp_path / "panoptic_val2017.json")
        assert "fetch it again" not in str(error.value)


def files_of(data): return [str(data.images.images.paths[int(i)]) for i in data.images.indices]


def divide(name, clients=3, server_images=2000, seed=0):
    return street_parts(name, clients, server_images, np.random.default_rng(seed))


def test_streets_divided_by_weather(folder):
    bdd(folder, "train",
        ["partly cloudy"] * 5 + ["overcast"] * 6 + ["rainy"] * 4 + ["snowy"] * 7 + ["clear"] * 2)
    bdd(folder, "val", ["partly cloudy", "overcast", "rainy", "snowy", "snowy"])
    server, edge, tests = divide("bdd100k", 3, 3)
    assert len(server) == 3 and set(server.domain) == {"cloudy"} and server.images[0].shape == (3, 72, 128)
    assert [(set(c.domain), len(c)) for c in edge] == [({"overcast"}, 6), ({"rainy"}, 4), ({"snowy"}, 7)]
    assert {d: len(t) for d, t in tests.items()} == {"cloudy": 1, "overcast": 1, "rainy": 1, "snowy": 2}
    six = divide("bdd100k", 6, 3, seed=1)[1]
    assert [c.domain[0] for c in six] == ["overcast", "rainy",
                                          "snowy"] * 2 and sorted([len(six[2]), len(six[5])]) == [3, 4]
    found = [p for c in six for p in files_of(c)]
    assert len(found) == len(set(found)) == 17
    again, other = (divide("bdd100k", 6, 3, seed)[1] for seed in (1, 2))
    assert files_of(again[0]) == files_of(six[0]) != files_of(other[0])
    with pytest.raises(UserError, match="clients=60"): divide("bdd100k", 60)


def test_streets_without_a_domain(folder):
    bdd(folder, "train", ["partly cloudy", "overcast", "rainy"])
    bdd(folder, "val", ["partly cloudy", "overcast", "rainy", "snowy"])
    with pytest.raises(UserError, match="train.*'snowy'"): divide("bdd100k")
    assert len(divide("bdd100k", clients=2)[1]) == 2


@pytest.mark.parametrize("unlabeled", [True, False])
def test_streets_of_soda10m(folder, unlabeled):
    soda(folder, "train", ["Clear", "Clear", "Overcast", "Overcast", "Rainy"])
    soda(folder, "val", ["Clear", "Overcast", "Rainy"])
    if unlabeled: soda(folder, "unlabeled", ["Overcast"] * 5 + ["Rainy"] * 3)
    _, edge, tests = divide("soda10m", 3, 2)
    assert [c.domain[0] for c in edge] == ["overcast", "overcast", "rainy"]
    assert [len(c) for c in edge] == ([3, 2, 3] if unlabeled
                                      else [1, 1, 1]) and list(tests) == ["clear", "overcast", "rainy"]


def test_streets_by_city(folder):
    city(folder, "train", ["aachen", "ulm", "ulm"])
    city(folder, "val", ["lindau"] * 2)
    city(folder, "train_extra", ["bamberg", "bayreuth", "dortmund", "erlangen"] * 2)
    server, edge, tests = divide("cityscapes", 3, 2)
    assert [sorted(set(c.domain)) for c in edge] == [["bamberg", "erlangen"], ["bayreuth"], ["dortmund"]]
    assert len(server) == 2 and len(tests["val"]) == 2
    with pytest.raises(UserError, match="clients=5"): divide("cityscapes", 5)


def test_missing_streets(folder):
    for name in ("bdd100k", "cityscapes", "soda10m"):
        with pytest.raises(UserError, match="is missing; put "): divide(name)
    for name in ("kitti", "viper"):
        with pytest.raises(UserError, match=f"{name}.*is unknown"): divide(name)
    (folder / "BDD100K").mkdir()
    with pytest.raises(UserError, match="BDD100K in .* has no labels .*put images/100k"): bdd100k("train")


# ---- your own pictures


@pytest.fixture
def greenhouse(tmp_path):
    "Two classes of five plants with two views, and the same as halves with years in their names."
    for c, kind in enumerate(("rye", "weed")):
        for plant in range(5):
            for view in range(2):
                save(tmp_path / "plants" / kind / f"p{plant}_view{view}.png", 100 * c + 10 * plant + view)
                save(tmp_path / "halves" / ("train2017",
                                            "val2017")[plant == 4] / kind / f"p{plant}_{view}.png",
                     10 * plant)
    return tmp_path


@pytest.mark.parametrize("as_name", [str, Path, lambda path: f"{path}/"])
def test_pictures_of_a_folder_are_shared_out(greenhouse, as_name):
    path = as_name(greenhouse / "plants")
    parts = [pictures(path, split) for split in ("train", "test")]
    assert [len(part) for part in parts] == [16, 4] and torch.bincount(parts[1].labels).tolist() == [2, 2]
    assert [set(part.split) for part in parts] == [{"train"},
                                                   {"test"}]
    assert parts[0].identity is parts[1].identity is None
    shades = [int(x[0, 0, 0]) for part in parts for x in part.images]
    assert len(set(shades)) == 20 and parts[0].name == "plants"
    test = [sorted(int(x[0, 0, 0]) for x in pictures(path, "test", seed=s).images) for s in (0, 0, 1)]
    assert test[0] == test[1] != test[2]
    assert len(pictures(path, "test", share=0.5)) == 10


def test_plants_of_a_folder_stay_whole(greenhouse):
    train, test = (pictures(greenhouse / "plants", split, group="(.+)_view") for split in ("train", "test"))
    assert not set(train.identity) & set(test.identity) and len(set(test.identity)) == 2 and len(test) == 4


def test_halves_of_a_folder(greenhouse):
    halves = greenhouse / "halves"
    with pytest.raises(UserError, match="train2017, val2017, which are splits"): pictures(halves)
    train, test = (pictures(halves, split, splits=("train2017", "val2017")) for split in ("train", "test"))
    assert [len(train), len(test)] == [16,
                                       4]
    assert set(train.split) == {"train"} and {int(x[0, 0, 0]) for x in test.images} == {40}
    for wrong in (("train2017", "test2017"), ("train2017",), ("train2017", "val2017", "train2017")):
        with pytest.raises(UserError, match="splits=.*must be two names"): pictures(halves, splits=wrong)
    (halves / "train2017").rename(halves / "train")
    (halves / "val2017").rename(halves / "val")
    assert len(pictures(halves, "test")) == 4
    save(halves / "val" / "thistle" / "a.png")
    with pytest.raises(UserError, match="halves has other classes in train than in test"): pictures(halves)


@pytest.mark.parametrize("where, images", [("p", "p"), ("photos", None), ("images", None), (".", None)])
def test_pictures_of_a_coco_file(tmp_path, where, images):
    for k in range(10): picture(tmp_path / "set" / where / f"{k}.png", level=k)
    path = tmp_path / "set" / "boxes_photos.json"
    write(path, coco(entries([None] * 10)))
    train, test = (pictures(path, split, images=images and tmp_path / "set" / images)
                   for split in ("train", "test"))
    assert [len(train), len(test)] == [8,
                                       2] and train.classes == ["car", "tram"] and set(test.split) == {"test"}
    assert {int(x[0, 0, 0]) for part in (train, test) for x in part.images} == set(range(10))
    assert all(b.labels.tolist() == [0, 1] for b in test.boxes) and test.identity is None


def test_two_coco_files(tmp_path):
    names = ("instances_train2017.json", "instances_val2017.json")
    for name, part, n in zip(names, ("train2017", "val2017"), (3, 2)):
        for k in range(n): picture(tmp_path / part / f"{k}.png", level=50 + k)
        write(tmp_path / "annotations" / name, coco(entries([None] * n)))
    train, test = (pictures(tmp_path / "annotations", split, "coco", names) for split in ("train", "test"))
    assert [len(train), len(test)] == [3,
                                       2]
    assert set(test.split) == {"test"} and int(test.images[1][0, 0, 0]) == 51
    for file in (tmp_path / "val2017").iterdir(): file.unlink()
    with pytest.raises(UserError,
                       match="none of its 2 pictures is in .*val2017 or images beside it; pass images="):
        pictures(tmp_path / "annotations", "test", "coco", names)


def test_people_of_a_folder(market):
    assert [len(pictures(market, part, "reid")) for part in ("train", "query", "gallery")] == [3, 1, 2]
    with pytest.raises(UserError, match="part='test' is unknown"): pictures(market, "test", "reid")


@pytest.mark.parametrize("wrong, message",
                         [(dict(name="nowhere/plants"), "neither a folder nor a file"),
                          (dict(name="plants"), "data='plants' is unknown"),
                          (dict(layout="shards"), "layout='shards' is unknown"),
                          (dict(layout="voc"), "not laid out as Pascal VOC"),
                          (dict(group="(.+)", layout="reid"), "group=.*belongs to folders"),
                          (dict(split="query"), "split='query'"), (dict(share=1.5), "share=1.5")])
def test_pictures_refuse_what_they_do_not_know(greenhouse, wrong, message):
    with pytest.raises(UserError, match=message): pictures(**{"name": greenhouse / "plants", **wrong})


def test_a_folder_of_this_place_needs_no_separator(greenhouse, monkeypatch):
    monkeypatch.chdir(greenhouse)
    assert len(pictures("plants", "test")) == 4


# ---- answers, imports


def test_answers():
    assert answers.leaking(["a"], ["a", "a",
                                   "b"]) == 2 and answers.corners([1, 2, 3, 4], 3, 9) == [1, 2, 3, 6]
    assert answers.two_cameras(["0001_c1s1_1.jpg", "0001_c2s1_1.jpg", "-1_c1s1_1.jpg", "-1_c2s1_1.jpg"]) == 1
