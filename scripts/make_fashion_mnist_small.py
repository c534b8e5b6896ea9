"""Make fedbook/datasets/data/fashion_mnist_small.npz: python scripts/make_fashion_mnist_small.py FOLDER

FOLDER holds the four idx files of Fashion-MNIST (gz or not), as Debian's package dataset-fashion-mnist installs them, or as
torchvision leaves them in FashionMNIST/raw. Takes the first pictures of each class, in their original order."""
import sys
from pathlib import Path

import numpy as np

from fedbook.datasets.world import array_checksum, read_idx

PER_CLASS = {"train": 1000, "test": 200}

def first_of_each_class(labels, per_class):
    "Sorted indices of the first `per_class` pictures of each of the 10 classes."
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:per_class] for c in range(10)]))

def main(folder):
    arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = (read_idx(Path(folder), f"{prefix}-{name}-ubyte") for name in ("images-idx3", "labels-idx1"))
        chosen = first_of_each_class(labels, PER_CLASS[split])
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = images[chosen], labels[chosen]
    target = Path(__file__).parent.parent / "fedbook" / "datasets" / "data" / "fashion_mnist_small.npz"
    np.savez_compressed(target, **arrays)
    print(f"{target.name}: {target.stat().st_size / 1e6:.2f} MB, sha256 of the arrays {array_checksum(arrays)}")

if __name__ == "__main__": main(*sys.argv[1:])
