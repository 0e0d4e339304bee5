"""Images: MNIST, Fashion-MNIST and USPS from their files, and the digits of scikit-learn."""

from __future__ import annotations

import dataclasses
import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.later import torch
from fedsw.data.downloads import find_data, stored
from fedsw.data.records import Dataset, Part, Records, ungrouped

if TYPE_CHECKING:
    from torch import Tensor

MAX_BYTES = 2**30
_UNSIGNED_BYTE = 8
_PIECE = 2**20


def read_idx(path: Path, *, dims: int) -> NDArray[np.uint8]:
    """An array of unsigned bytes, of the shape that an IDX file announces; gzip is recognised by its first bytes.

    Big-endian: a magic number, the length of every dimension, the bytes, and nothing more. The header is read first and
    never more than it announces (plus one byte), so a small file cannot fill memory. ValueError names the fault.
    """
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if zipped else path.open("rb") as stream:
            shape = _shape(stream.read(4 + 4 * dims), dims, path)
            length = math.prod(shape)
            if length > MAX_BYTES:
                raise ValueError(f"{path}: the header announces {length} bytes ({shape}); at most {MAX_BYTES} are read")
            content = _read(cast(IO[bytes], stream), length + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        raise ValueError(f"{path} is not a whole gzip file ({fault}); fetch it again") from fault
    if len(content) != length:
        follow = f"{len(content)}" if len(content) < length else "more"
        raise ValueError(f"{path}: the header announces {length} bytes ({shape}) and {follow} follow; fetch it again")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read(stream: IO[bytes], most: int) -> bytearray:
    """At most that many bytes, in pieces: asked for at once, memory for all of them is taken before one is read."""
    content = bytearray()
    while len(content) < most and (piece := stream.read(min(_PIECE, most - len(content)))):
        content += piece
    return content


def _shape(header: bytes, dims: int, path: Path) -> tuple[int, ...]:
    if len(header) != 4 + 4 * dims:
        raise ValueError(f"{path} has {len(header)} bytes; an IDX header of {dims} dimensions has {4 + 4 * dims}")
    magic, *lengths = struct.unpack(f">{1 + dims}I", header)
    wanted = (_UNSIGNED_BYTE << 8) + dims
    if magic != wanted:
        raise ValueError(
            f"{path}: the magic number is {magic}; {wanted} is expected (unsigned bytes in {dims} dimensions)"
        )
    return tuple(lengths)


DIGITS = tuple("0123456789")
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
MNIST_SIDE = 28
USPS_SIDE = 16

_CHUNK = 8192


def mnist(data_dir: str | Path | None = None) -> Dataset:
    """MNIST: 60 000 private and 10 000 held-out digits of 28x28 pixels.

    Features are the 784 pixels row by row in [0, 1], the target is the digit, and all records are in one group. Ids
    count the private images from 0 in the order of the file and go on with the held-out ones.
    Source: Y. LeCun, C. Cortes, C. Burges.
    """
    return _idx_dataset("mnist", data_dir, DIGITS)


def fashion_mnist(data_dir: str | Path | None = None) -> Dataset:
    """Fashion-MNIST: 60 000 private and 10 000 held-out pictures of clothes of 28x28 pixels, in ten classes.

    As `mnist` in everything else. Source: H. Xiao, K. Rasul, R. Vollgraf 2017.
    """
    return _idx_dataset("fashion-mnist", data_dir, FASHION)


def usps(data_dir: str | Path | None = None, *, side: int = USPS_SIDE) -> Dataset:
    """USPS: 7291 private and 2007 held-out digits of 16x16 pixels in [0, 1], or resized to another side.

    Errors are those of `mnist`, and ModuleNotFoundError without h5py.
    Source: J. Hull 1994, in the 16x16 form of The Elements of Statistical Learning.
    """
    path = stored(find_data("usps", data_dir), "usps.h5")
    try:
        import h5py
    except ModuleNotFoundError as fault:
        raise ModuleNotFoundError(
            "the data set 'usps' is an HDF5 file, and h5py is not installed: `pip install h5py`"
        ) from fault
    try:
        with h5py.File(path, "r") as file:
            arrays = [np.asarray(file[name]) for name in ("train/data", "train/target", "test/data", "test/target")]
    except (OSError, KeyError) as fault:
        raise ValueError(f"{path} has no arrays train/data, train/target, test/data and test/target: {fault}") from None
    train = _hdf5_part(path, "train", arrays[0], arrays[1], first_id=0)
    test = _hdf5_part(path, "test", arrays[2], arrays[3], first_id=len(arrays[0]))
    dataset = image_dataset("usps", train, test, classes=DIGITS)
    return dataset if side == USPS_SIDE else resized(dataset, side)


def resized(dataset: Dataset, side: int) -> Dataset:
    """The same records with their square images at another side, in [0, 1].

    Bilinear interpolation, with the triangle widened when it shrinks so that every pixel counts (torch's antialias),
    then clamped. Each image is treated by itself, by weights that no record decides.
    """
    if side < 1:
        raise ValueError(f"side = {side}; an image has at least 1 pixel")
    width = dataset.train.features.shape[1]
    old = math.isqrt(width)
    if old * old != width or dataset.feature_names != pixel_names(old):
        raise ValueError(f"{dataset.name}: its {width} features are not the pixels of a square image")
    if old == side:
        return dataset

    def resize(records: Records) -> Records:
        features = torch.empty(len(records), side * side)
        for start in range(0, len(records), _CHUNK):
            part = records.features[start : start + _CHUNK].reshape(-1, 1, old, old)
            new = torch.nn.functional.interpolate(
                part, size=(side, side), mode="bilinear", align_corners=False, antialias=True
            )
            features[start : start + _CHUNK] = new.reshape(len(part), -1)
        return dataclasses.replace(records, features=features.clamp_(0, 1))

    return dataclasses.replace(
        dataset, train=resize(dataset.train), test=resize(dataset.test), feature_names=pixel_names(side)
    )


def public_half(dataset: Dataset) -> Records:
    """The first half of the training records, which no client holds: encoders may learn from it."""
    return dataset.train.take(torch.arange(len(dataset.train) // 2))


def private_half(dataset: Dataset) -> Dataset:
    """The second half of a data set's training records, and all held-out ones, as SPF, Section 5.3, has them."""
    rows = torch.arange(len(dataset.train) // 2, len(dataset.train))
    return dataclasses.replace(dataset, train=dataset.train.take(rows))


def with_classes(dataset: Dataset, length: float) -> Dataset:
    """The records with their class beside their features: one-hot, times `length`.

    What is released of such a record's features is released of its class as well, under the same guarantee.
    """
    if not dataset.classes:
        raise ValueError(f"{dataset.name} has no classes to put beside its features")
    if not length > 0:
        raise ValueError(f"the length of a class's code is {length}; it must be above 0")

    def beside(records: Records) -> Records:
        codes = length * torch.nn.functional.one_hot(records.target, len(dataset.classes)).to(records.features)
        return dataclasses.replace(records, features=torch.cat([records.features, codes], dim=1))

    names = (*dataset.feature_names, *(f"class({name})" for name in dataset.classes))
    return dataclasses.replace(dataset, train=beside(dataset.train), test=beside(dataset.test), feature_names=names)


def image_dataset(name: str, train: Part, test: Part, *, classes: tuple[str, ...]) -> Dataset:
    """A data set of square images, all in the group "all", from its two parts."""
    return ungrouped(name, train, test, pixel_names(math.isqrt(train[0].shape[1])), classes)


def pixel_names(side: int) -> tuple[str, ...]:
    """Names of the pixels of a square image, row by row."""
    return tuple(f"pixel({row},{column})" for row in range(side) for column in range(side))


def _idx_dataset(name: str, data_dir: str | Path | None, classes: tuple[str, ...]) -> Dataset:
    folder = find_data(name, data_dir)
    train = _idx_part(folder, "train", first_id=0, classes=len(classes))
    test = _idx_part(folder, "t10k", first_id=len(train[2]), classes=len(classes))
    return image_dataset(name, train, test, classes=classes)


def _idx_part(folder: Path, part: str, *, first_id: int, classes: int) -> Part:
    image_path = stored(folder, f"{part}-images-idx3-ubyte.gz")
    label_path = stored(folder, f"{part}-labels-idx1-ubyte.gz")
    images, labels = read_idx(image_path, dims=3), read_idx(label_path, dims=1)
    if images.shape[1:] != (MNIST_SIDE, MNIST_SIDE):
        raise ValueError(f"{image_path}: images of {images.shape[1]}x{images.shape[2]} pixels; 28x28 are expected")
    _require_labels(label_path, labels, len(images), classes)
    features = torch.empty(len(images), MNIST_SIDE**2)
    for start in range(0, len(images), _CHUNK):  # a second copy as floats would be 190 MB
        part_bytes = torch.from_numpy(images[start : start + _CHUNK].reshape(-1, MNIST_SIDE**2).copy())
        features[start : start + _CHUNK] = part_bytes
    return _numbered(features.div_(255), labels, first_id)


def _numbered(features: Tensor, labels: np.ndarray, first_id: int) -> Part:
    ids = torch.arange(first_id, first_id + len(features))
    return features, torch.from_numpy(labels.astype(np.int64)), ids


def _hdf5_part(path: Path, part: str, pixels: np.ndarray, target: np.ndarray, *, first_id: int) -> Part:
    if pixels.ndim != 2 or pixels.shape[1] != USPS_SIDE**2 or not np.issubdtype(pixels.dtype, np.floating):
        raise ValueError(
            f"{path}: {part}/data is {pixels.dtype} of shape {pixels.shape}; numbers (n, 256) are expected"
        )
    if len(outside := np.argwhere(~((pixels >= 0) & (pixels <= 1)))):
        row, column = outside[0]
        raise ValueError(
            f"{path}: {part}/data, row {row}, column {column} is {pixels[row, column]}; it must be in [0, 1]"
        )
    _require_labels(path, target, len(pixels), len(DIGITS))
    return _numbered(torch.from_numpy(pixels.astype(np.float32)), target, first_id)


def _require_labels(path: Path, labels: np.ndarray, images: int, classes: int) -> None:
    if labels.shape != (images,):
        raise ValueError(f"{path}: labels of shape {labels.shape} for {images} images; each has one")
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        row = int(outside[0])
        raise ValueError(f"{path}: label {row} is {labels[row]}; it must be 0 .. {classes - 1}")


PRIVATE = 1_437


def digits(*, seed: int = 0) -> Dataset:
    """The 1797 handwritten digits of 8x8 pixels that scikit-learn carries, 1437 of them private.

    Features are the 64 pixels row by row in [0, 1], the target is the digit, the id the place in the published order,
    which is by writer: so the split is a permutation, decided by the public `seed`.
    Source: UCI "Optical Recognition of Handwritten Digits", test part (E. Alpaydin, C. Kaynak 1998).
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as fault:
        raise ModuleNotFoundError(
            "the data set 'digits' comes with scikit-learn, which is not installed: `pip install scikit-learn`"
        ) from fault
    pixels, labels = load_digits(return_X_y=True)
    order = torch.from_numpy(np.random.RandomState(seed).permutation(len(labels)))
    features = torch.from_numpy(pixels.astype(np.float32)) / 16
    target = torch.from_numpy(labels.astype(np.int64))
    private, held_out = order[:PRIVATE].sort().values, order[PRIVATE:].sort().values
    return image_dataset(
        "digits",
        (features[private], target[private], private),
        (features[held_out], target[held_out], held_out),
        classes=DIGITS,
    )
