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
    with pytest.warns(UserWarning, match="10 pictures .* are resized to 32 x 32; what is over"):
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
    assert squares._own.cache_info().maxsize == 2 and not decoded
