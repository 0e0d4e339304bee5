"""Image data sets: pixels in [0, 1] in the order of the file, other sizes, and the published files."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsw.data import Dataset, digits, fashion_mnist, find_data, mnist, resized, ring, usps
from fedsw.data.image_sets import image_dataset, pixel_names

CLASSES = [
    (mnist, "mnist"),
    (mnist, "MNIST/raw"),
    (fashion_mnist, "fashion_mnist"),
    (fashion_mnist, "FashionMNIST/raw"),
]


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write(folder: Path, *, zipped: bool = True, **replaced: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (6, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte": np.array([9, 0, 1, 2, 3, 4], dtype=np.uint8),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (3, 28, 28), dtype=np.uint8),
        "t10k-labels-idx1-ubyte": np.array([5, 9, 7], dtype=np.uint8),
    }
    arrays |= {name.replace("_", "-"): array for name, array in replaced.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        content = idx(array)
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(content) if zipped else content)
    return arrays


def write_usps(path: Path, **replaced: np.ndarray) -> dict[str, np.ndarray]:
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    arrays = {
        "train/data": rng.random((12, 256)).astype(np.float32),
        "train/target": np.arange(12, dtype=np.int32) % 10,
        "test/data": rng.random((4, 256)).astype(np.float32),
        "test/target": np.arange(4, dtype=np.int32),
    }
    arrays |= {name.replace("_", "/"): array for name, array in replaced.items()}
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return arrays


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("load", "layout"), CLASSES)
def test_pixels_are_the_bytes_over_255_row_by_row(
    tmp_path: Path, load: Callable[..., Dataset], layout: str, zipped: bool
) -> None:
    arrays = write(tmp_path / layout, zipped=zipped)
    dataset = load(tmp_path)
    for part, name in ((dataset.train, "train"), (dataset.test, "t10k")):
        expected = arrays[f"{name}-images-idx3-ubyte"].reshape(-1, 784).astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(part.features.numpy(), expected)
        np.testing.assert_array_equal(part.target.numpy(), arrays[f"{name}-labels-idx1-ubyte"])
    assert torch.equal(torch.cat([dataset.train.ids, dataset.test.ids]), torch.arange(9))
    assert dataset.feature_names[29] == "pixel(1,1)" and len(dataset.classes) == 10 and dataset.groups == ("all",)


def test_the_folder_decides_between_two_sets_of_the_same_file_names(tmp_path: Path) -> None:
    write(tmp_path / "mnist")
    assert find_data("mnist", tmp_path / "mnist") == tmp_path / "mnist"
    with pytest.raises(FileNotFoundError, match="fashion-mnist: .* are not together in .*fashion_mnist"):
        fashion_mnist(tmp_path / "mnist")
    write(tmp_path)
    with pytest.raises(FileNotFoundError, match="fashion-mnist"):
        fashion_mnist(tmp_path)


@pytest.mark.parametrize(
    ("replaced", "reason"),
    [
        ({"train_labels_idx1_ubyte": np.zeros(5, np.uint8)}, r"train-labels.*labels of shape \(5,\) for 6 images"),
        ({"t10k_labels_idx1_ubyte": np.array([1, 10, 3], np.uint8)}, "t10k-labels.*label 1 is 10; it must be 0 .. 9"),
        ({"train_images_idx3_ubyte": np.zeros((6, 28, 27), np.uint8)}, "train-images.*28x27 pixels; 28x28"),
        ({"train_images_idx3_ubyte": np.zeros((0, 28, 28), np.uint8)}, "for 0 images"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    tmp_path: Path, replaced: dict[str, np.ndarray], reason: str
) -> None:
    write(tmp_path / "mnist", **replaced)
    with pytest.raises(ValueError, match=reason):
        mnist(tmp_path)


def test_usps_is_read_as_it_is_and_resized_where_asked(tmp_path: Path) -> None:
    arrays = write_usps(tmp_path / "usps.h5")
    dataset = usps(tmp_path)
    np.testing.assert_array_equal(dataset.train.features.numpy(), arrays["train/data"])
    np.testing.assert_array_equal(dataset.test.target.numpy(), arrays["test/target"])
    assert torch.equal(torch.cat([dataset.train.ids, dataset.test.ids]), torch.arange(16))
    assert usps(tmp_path, side=28).train.features.shape == (12, 784)


@pytest.mark.parametrize(
    ("replaced", "reason"),
    [
        (
            {"train_data": np.full((12, 256), 1.5, np.float32)},
            r"train/data, row 0, column 0 is 1.5; it must be in \[0, 1\]",
        ),
        ({"test_data": np.full((4, 256), np.nan, np.float32)}, "test/data, row 0, column 0 is nan"),
        ({"test_data": np.zeros((4, 255), np.float32)}, r"test/data is float32 of shape \(4, 255\)"),
        ({"train_data": np.zeros((12, 256), np.int32)}, "train/data is int32"),
        ({"train_target": np.full(12, -1, np.int32)}, "label 0 is -1; it must be 0 .. 9"),
        ({"train_target": np.zeros(11, np.int32)}, r"labels of shape \(11,\) for 12 images"),
    ],
)
def test_a_usps_file_out_of_range_is_refused(tmp_path: Path, replaced: dict[str, np.ndarray], reason: str) -> None:
    write_usps(tmp_path / "usps.h5", **replaced)
    with pytest.raises(ValueError, match=reason):
        usps(tmp_path)


def test_a_file_that_is_no_hdf5_or_lacks_an_array_is_refused_by_name(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "usps.h5"
    path.write_bytes(b"no HDF5")
    with pytest.raises(ValueError, match=r"usps.h5 has no arrays train/data"):
        usps(tmp_path)
    with h5py.File(path, "w") as file:
        file["train/data"] = np.zeros((1, 256), np.float32)
    with pytest.raises(ValueError, match=r"usps.h5 has no arrays train/data"):
        usps(tmp_path)


def test_digits_are_those_of_scikit_learn_each_in_one_part() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    dataset = digits(seed=3)
    assert (len(dataset.train), len(dataset.test)) == (1437, 360)
    for part in (dataset.train, dataset.test):
        np.testing.assert_allclose(part.features.numpy() * 16, pixels[part.ids])
        np.testing.assert_array_equal(part.target.numpy(), labels[part.ids])
    assert torch.equal(torch.cat([dataset.train.ids, dataset.test.ids]).sort().values, torch.arange(1797))
    assert float(dataset.train.features.min()) == 0 and float(dataset.train.features.max()) == 1
    assert torch.equal(dataset.train.ids, digits(seed=3).train.ids)
    assert not torch.equal(dataset.train.ids, digits(seed=4).train.ids)


def square(side: int, n: int = 4) -> Dataset:
    pixels = torch.rand(2 * n, side * side, generator=torch.Generator().manual_seed(side))
    target = torch.arange(n) % 2
    return image_dataset(
        "squares",
        (pixels[:n], target, torch.arange(n)),
        (pixels[n:], target, torch.arange(n, 2 * n)),
        classes=("0", "1"),
    )


@pytest.mark.parametrize(("old", "new"), [(28, 16), (16, 28), (8, 4), (5, 9), (4, 1)])
def test_resizing_keeps_constant_images_range_records_and_means(old: int, new: int) -> None:
    dataset = square(old)
    dataset.train.features[0] = 0.25
    dataset.train.features[1] = 1.0
    found = resized(dataset, new)
    assert found.train.features.shape == (4, new * new) and found.feature_names == pixel_names(new)
    torch.testing.assert_close(found.train.features[0], torch.full((new * new,), 0.25))
    torch.testing.assert_close(found.train.features[1], torch.ones(new * new))
    assert float(found.test.features.min()) >= 0 and float(found.test.features.max()) <= 1
    assert torch.equal(found.train.ids, dataset.train.ids) and torch.equal(found.test.target, dataset.test.target)
    torch.testing.assert_close(found.test.features.mean(), dataset.test.features.mean(), atol=0.05, rtol=0)


def test_halving_an_image_weighs_every_pixel_by_the_triangle() -> None:
    dataset = square(8)
    # Width 4 triangle about the centre of each new pixel: weights 1, 3, 3, 1 over the four old ones it reaches.
    weights = torch.zeros(4, 8, dtype=torch.float64)
    for new in range(4):
        for old in range(8):
            weights[new, old] = max(0.0, 1 - abs((old + 0.5) - (2 * new + 1)) / 2)
    weights /= weights.sum(dim=1, keepdim=True)
    expected = weights @ dataset.train.features.double().reshape(-1, 8, 8) @ weights.T
    found = resized(dataset, 4).train.features.reshape(-1, 4, 4)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


def test_an_image_is_resized_alone_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = square(8, n=7)
    whole = resized(dataset, 5).train.features
    monkeypatch.setattr("fedsw.data.image_sets._CHUNK", 3)
    torch.testing.assert_close(resized(dataset, 5).train.features, whole)
    assert resized(dataset, 8) is dataset


@pytest.mark.parametrize(
    ("dataset", "side", "reason"),
    [(square(4), 0, "side = 0"), (ring(4, 4), 4, "ring: its 2 features are not the pixels")],
)
def test_what_is_no_square_image_cannot_be_resized(dataset: Dataset, side: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        resized(dataset, side)


@pytest.mark.parametrize(
    ("load", "name", "train", "test", "mean"),
    [
        (mnist, "mnist", [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949], 10_000, 0.13066),
        (fashion_mnist, "fashion-mnist", [6000] * 10, 10_000, 0.28604),
        (usps, "usps", [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644], 2_007, 0.25448),
    ],
)
def test_the_published_files_have_the_published_counts(
    load: Callable[..., Dataset], name: str, train: list[int], test: int, mean: float
) -> None:
    given = Path(os.environ.get("FEDSW_DATA", Path(__file__).parents[3] / "shared" / "data"))
    try:
        find_data(name, given)
    except FileNotFoundError as fault:
        pytest.skip(f"{fault}")
    dataset = load(given)
    assert dataset.train.target.bincount().tolist() == train
    assert len(dataset.test) == test
    assert float(dataset.train.features.mean()) == pytest.approx(mean, abs=1e-5)
    assert float(dataset.train.features.min()) == 0 and float(dataset.train.features.max()) == 1
