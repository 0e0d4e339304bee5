"""Synthetic tables: rows of the declared columns, drawn from a generator that learnt from a sketch."""

from __future__ import annotations

import torch
from torch import nn

from fedsw.columns import Columns
from fedsw.columns.coded import Coded
from fedsw.data.codes import cells_of_table, drawn_codes
from fedsw.models.samples import generate, proportions_of


def made_table(
    network: nn.Module, columns: Columns, coded: tuple[Coded, ...], count: int, *, seed: int = 0
) -> dict[str, list[str]]:
    """The cells of `count` synthetic rows by column, as text, in the declared order of columns.

    Guarantee: post-processing of the sketch that the network learnt from; any number of rows costs nothing.

    Args:
        network: a trained generator of the columns' codes.
        columns: the declaration. coded: how its columns are written as codes.
        count: how many rows.
        seed: of noise, codes and numbers.
    """
    chances, cells = generate(network, proportions_of(network), count, seed=seed)
    codes, where = drawn_codes(chances, coded, seed=seed), cells.cpu()
    classes = max(1, len(columns.classes)) if columns.target is not None else 1
    groups = int(getattr(network, "cells")) // classes  # noqa: B009
    label = torch.div(where, groups, rounding_mode="floor")
    return cells_of_table(codes, label, where % groups, columns, coded, seed=seed)
