"""A seeded split into private and held-out records."""

from __future__ import annotations

import numpy as np

from fedsw.data.records import Records


def held_out_split(records: Records, fraction: float, seed: int, name: str) -> tuple[Records, Records]:
    """Private records, and the given fraction held out, in their order in the file.

    The seed is no secret: which records are private is public, and nothing else uses it.

    Raises:
        ValueError: if a part would be empty, naming the data.
    """
    held = round(fraction * len(records))
    if not 0 < held < len(records):
        raise ValueError(f"{name}: {len(records)} records; holding out {fraction:g} of them leaves an empty part")
    shuffled = np.random.default_rng(seed).permutation(len(records))
    return records.take(np.sort(shuffled[held:])), records.take(np.sort(shuffled[:held]))
