"""Small stand-ins for the papers' data sets, in the formats of their files: quick runs need no download and no memory.

Images are digits that scikit-learn carries, enlarged; rows of tables are drawn from the values that their readers know.
What a run on them measures means nothing.
"""

from __future__ import annotations

import csv
import gzip
import io
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsw._tools import files
from fedsw.data.image_sets import MNIST_SIDE, USPS_SIDE, digits, resized
from fedsw.data.tabular import CATEGORIES, CLASSES, COLUMNS, RACES

TRAIN, TEST = 600, 300
"""Images of every set, private and held out; tables have as many rows as both together."""
_ATTRIBUTES, _GROUP_AT = 128, 7
_HIGHEST = {"age": 90, "fnlwgt": 900_000, "education-num": 16, "capital-gain": 9_000, "capital-loss": 2_000}


def write_stand_ins(folder: Path) -> Path:
    """Write all sets below a folder, which `FEDSW_DATA` or `--data-dir` may then name, unless they are there already.

    The same bytes on every machine but for those of HDF5.

    Raises:
        ModuleNotFoundError: without h5py, which USPS needs.
    """
    last = folder / "law_school" / "bar_pass_prediction.csv"
    if last.exists():
        return folder
    rng = np.random.default_rng(0)
    for name in ("mnist", "fashion_mnist"):
        _write_images(folder / name)
    _write_usps(folder / "usps")
    for part, rows in (("adult.data", TRAIN), ("adult.test", TEST)):
        _write(folder / "adult" / part, "\n".join(", ".join(row) for row in _adult(rng, rows)) + "\n")
    _write_communities(folder / "communities", rng)
    _write_law_school(last, rng)
    return folder


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, content.encode() if isinstance(content, str) else content)


def _bytes(side: int) -> Iterator[tuple[str, NDArray[np.uint8], NDArray[np.uint8]]]:
    """Images (n, side, side) and labels (n,) of either part."""
    whole = resized(digits(), side)
    for part, records, count in (("train", whole.train, TRAIN), ("test", whole.test, TEST)):
        pixels = (records.features[:count] * 255).round().to(dtype=records.ids.dtype).numpy().astype(np.uint8)
        yield part, pixels.reshape(-1, side, side), records.target[:count].numpy().astype(np.uint8)


def _write_images(folder: Path) -> None:
    for part, pixels, labels in _bytes(MNIST_SIDE):
        named = "train" if part == "train" else "t10k"
        for kind, array in (("images", pixels), ("labels", labels)):
            header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
            path = folder / f"{named}-{kind}-idx{array.ndim}-ubyte.gz"
            _write(path, gzip.compress(header + array.tobytes(), mtime=0))


def _write_usps(folder: Path) -> None:
    import h5py

    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "usps.h5", "w") as file:
        for part, pixels, labels in _bytes(USPS_SIDE):
            file[f"{part}/data"] = (pixels.reshape(len(pixels), -1) / 255).astype(np.float32)
            file[f"{part}/target"] = labels.astype(np.int32)


def _adult(rng: np.random.Generator, rows: int) -> Iterator[list[str]]:
    for _ in range(rows):
        yield [
            str(rng.choice(CATEGORIES.get(column, CLASSES)))
            if column in CATEGORIES or column == "income"
            else str(rng.integers(1, _HIGHEST.get(column, 99)))
            for column in COLUMNS
        ]


def _write_communities(folder: Path, rng: np.random.Generator) -> None:
    names = [f"column{number}" for number in range(_ATTRIBUTES)]
    names[_GROUP_AT] = "racepctblack"
    _write(folder / "communities.names", "".join(f"@attribute {name} numeric\n" for name in names))
    table = rng.random((TRAIN + TEST, _ATTRIBUTES))
    table[:, _GROUP_AT] *= 0.12  # half of them above the threshold
    _write(folder / "communities.data", "".join(",".join(f"{value:.3f}" for value in row) + "\n" for row in table))


def _write_law_school(path: Path, rng: np.random.Generator) -> None:
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["lsat", "zfygpa", "zgpa", "male", "parttime", "fam_inc", "tier", "race1", "ugpa"])
    for _ in range(TRAIN + TEST):
        grades = [f"{value:.2f}" for value in rng.normal(size=2)]
        chosen = [rng.integers(0, 2), rng.integers(0, 2), rng.integers(1, 6), rng.integers(1, 7)]
        writer.writerow([rng.integers(11, 49), *grades, *chosen, rng.choice(RACES), f"{rng.uniform(1.0, 4.0):.2f}"])
    _write(path, file.getvalue())
