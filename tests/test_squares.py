"""Pictures of any shape in the chapters that take squares, each decoded once a process."""
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from fedbook.datasets import squares, world
from fedbook.datasets.folders import pictures
from fedbook.datasets.squares import square_pictures, squared
from fedbook.engine.errors import UserError
from fedbook.engine.workers import trial
from fedbook.methods.continual import TaskSizes, make_stream
from fedbook.methods.fedavg import FedAvgExperiment, FedAvgSizes


def fill(root, sizes, each=5):
    "A folder of two classes with pictures of these `sizes` (height, width) in turn."
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (root / kind).mkdir(parents=True)
        for i in range(each):
            x = rng.integers(0, 256, (*sizes[i % len(sizes)], 3), dtype=np.uint8)
            Image.fromarray(x).save(root / kind / f"{i}.png")
    return str(root)


@pytest.fixture
def decoded(monkeypatch):
    "The paths that were decoded."
    seen = []

    def counted(path):
        seen.append(path)
        return plain(path)

    plain = world.picture
    monkeypatch.setattr(world, "picture", counted)
    return seen


def test_squares_of_one_size_stay_as_they_are(tmp_path):
    path = fill(tmp_path, [(20, 20)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = square_pictures(path, "train")
    assert torch.equal(found.images, pictures(path, "train").tensors()[0]) and len(found) == 8


@pytest.mark.parametrize("sizes", [[(40, 30)], [(40, 40), (50, 50)], [(200, 200)], [(9, 60), (80, 16)]])
def test_other_shapes_become_squares(tmp_path, sizes):
    path = fill(tmp_path, sizes)
    with pytest.warns(UserWarning, match="10 pictures .* are resized to 32 x 32 "):
        train, test = (square_pictures(path, split) for split in ("train", "test"))
    assert train.images.shape == (8, 3, 32, 32) and test.images.shape == (2, 3, 32, 32)


def test_the_middle_of_the_longer_side_is_kept():
    x = torch.zeros(3, 40, 80, dtype=torch.uint8)
    x[:, :, 20:60] = 200
    assert (squared(x, 40) == 200).all() and (squared(x, 20)[:, :, 1:-1] == 200).all()
    assert torch.equal(squared(x.mT, 40), squared(x, 40))


def test_each_file_is_decoded_once_however_many_rounds(tmp_path, decoded):
    path = fill(tmp_path, [(40, 30)])
    sizes = FedAvgSizes(data=path, clients=2, per_round=2, rounds=3)
    with pytest.warns(UserWarning, match="of 30 x 40 pixels"):
        history = trial(FedAvgExperiment(sizes), workers=1).history
    assert len(history.column("accuracy")) == 3
    assert len(decoded) == len(set(decoded)) == 10


def test_a_stream_of_any_shape(tmp_path):
    sizes = TaskSizes(data=fill(tmp_path, [(40, 30), (30, 40)], 20), tasks=2, clients=2)
    with pytest.warns(UserWarning, match="from 40 x 30 to 30 x 40 pixels"): stream = make_stream(sizes, 0)
    assert stream.shape == (3, 32, 32)


def test_a_damaged_picture_is_named_before_anything_starts(tmp_path):
    path = fill(tmp_path, [(40, 30)])
    (tmp_path / "dog" / "4.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="dog/4.png is not a picture that can be read"):
        FedAvgExperiment(FedAvgSizes(data=path, clients=2, per_round=2)).server()


def test_known_sets_are_as_they_were(decoded):
    assert square_pictures("fashion_mnist_small", "test").images.shape == (2000, 1, 28, 28)
    assert square_pictures("fashion_mnist_small", "test", 20).images.shape == (2000, 1, 20, 20)
    assert not decoded


def test_a_side_may_be_asked_for(tmp_path):
    path = fill(tmp_path, [(40, 30)])
    with pytest.warns(UserWarning, match="of 30 x 40 pixels .* resized to 20 x 20; .*cut off"):
        assert square_pictures(path, "train", 20).images.shape == (8, 3, 20, 20)
    tiny = fill(tmp_path / "tiny", [(12, 12)])
    with pytest.warns(UserWarning, match="of 12 x 12 pixels .* resized to 32 x 32 [^;]*$"):
        assert square_pictures(tiny, "train").images.shape == (8, 3, 32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert squares.side_of(tiny, 12) == 12


def test_networks_follow_the_side(tmp_path):
    path = fill(tmp_path, [(40, 30)], 20)
    sizes = FedAvgSizes(data=path, side=24, clients=2, per_round=2, rounds=1)
    with pytest.warns(UserWarning, match="24 x 24"): history = trial(FedAvgExperiment(sizes)).history
    assert history.rows and make_stream(TaskSizes(data=path, side=24, tasks=2, clients=2), 0).shape == (3, 24, 24)
    for kind in (FedAvgSizes, TaskSizes):
        with pytest.raises(UserError, match="side=8 must be 0, or at least 16"): kind(side=8)


def test_a_named_set_of_files_is_decoded_once_if_it_fits(tmp_path, decoded, monkeypatch):
    lazy = pictures(fill(tmp_path, [(40, 30)]), "train")
    monkeypatch.setattr(squares, "pictures", lambda name, split: lazy)
    squares.square_pictures.cache_clear()
    found = [square_pictures("a set", "train") for _ in range(2)]
    assert len(decoded) == 8 and found[0] is found[1]
    assert torch.equal(found[0].tensors()[0], lazy.tensors()[0])
    monkeypatch.setattr(squares, "ROOM", 8 * 3 * 40 * 30 - 1)
    squares.square_pictures.cache_clear()
    assert square_pictures("a set", "train").images is lazy.images
    squares.square_pictures.cache_clear()
