"""Trainings of one computation side by side, where there are cores to spare, on a GPU where there is one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import torch

from fedsw.federation.engines.pool import cores

Case = TypeVar("Case")
Result = TypeVar("Result")


def side_by_side(function: Callable[[Case], Result], cases: Sequence[Case]) -> list[Result]:
    """What a picklable function makes of each case, in processes of their own on half of the cores; in turns on two.

    The results are those of a loop where the function seeds what it draws.
    """
    workers = min(len(cases), cores() // 2)
    if workers < 2:
        return [function(case) for case in cases]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(function, cases))


def device() -> torch.device:
    """What nominal trainings of this package compute on; the stored result names it."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name() -> str:
    """Its name, as results have it."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
