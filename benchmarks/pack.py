"""Put new results of the papers' figures into the compact files of their experiments, to be committed.

python -m benchmarks.pack [--drawn-only]

With --drawn-only, arrays that no drawing reads are left out, those of other seeds mostly: whoever clones the repository
gets what pages are made from. It draws every figure once, which takes minutes.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from simulations.papers.__main__ import COMMITTED
from simulations.papers.figure import figures, load_figure
from simulations.papers.pictures import draw
from simulations.papers.store import pack, packed
from simulations.papers.study import read_study


class Noted(Mapping[str, NDArray[Any]]):
    """A result's arrays, noting which are read."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], noted: set[int]) -> None:
        self._arrays, self._noted = arrays, noted

    def __getitem__(self, name: str) -> NDArray[Any]:
        self._noted.add(id(self._arrays[name]))
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def undrawn(folder: Path) -> set[tuple[str, str]]:
    """The arrays that no drawing reads, by the key of their result and their name."""
    results, noted = packed(folder), set[int]()  # kept here, so that an array is the same object when it is drawn
    with tempfile.TemporaryDirectory() as pictures:
        for name in figures():
            study = read_study(folder, load_figure(name))
            seen = (dataclasses.replace(each, arrays=Noted(each.arrays, noted)) for each in study.results)
            draw(dataclasses.replace(study, results=tuple(seen)), Path(pictures))
    return {
        (key, name)
        for key, stored in results.items()
        for part in stored.measures.values()
        for name, array in part.arrays.items()
        if id(array) not in noted
    }


if __name__ == "__main__":
    written = pack(COMMITTED)
    if "--drawn-only" in sys.argv:
        written = pack(COMMITTED, without=undrawn(COMMITTED)) or written
    for path in written:
        print(path)
