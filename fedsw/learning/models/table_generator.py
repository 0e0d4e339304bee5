"""The generator of a table: a network of chances, rows of chances, or a tree of tables that rows are drawn along."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsw.learning.models.initial import Seed
from fedsw.learning.models.labelled import Proportioned, VectorGenerator

NONE = -1
"""The parent of a column that has none."""
ROWS = 1000
"""Rows of chances of all cells together, at least one of each."""


class TableGenerator(Proportioned):
    """Rows of a table, as codes of its columns side by side (m, q), of noise and a cell.

    A network, see `VectorGenerator`, makes chances of every column's codes, which are at ranges (first, end) one after
    the other. Once it has rows of chances (`take`) it picks one of the cell's. Once `follow` has given it a tree, it
    draws codes instead, one column after the other: each by a table of its chances, given the cell and the code of one
    column before it.

    Attributes:
        latent: width of the noise: what the network takes, or a number a column where these are more.
        moved, rows: (), whether one of the rows (cells, R, q) of chances is picked.
        drawn: (), whether codes are drawn along the tree.
        parents, order: (K,), of the tree: the column that a column depends on, or NONE; and who comes after whom.
        chances: (cells, q, widest column): of every code of a column, given each code of its parent.
    """

    moved: Tensor
    rows: Tensor
    drawn: Tensor
    parents: Tensor
    order: Tensor
    chances: Tensor

    def __init__(
        self,
        codes: Sequence[tuple[int, int]],
        cells: int,
        *,
        latent: int = 16,
        hidden: Sequence[int] = (200, 200),
        seed: Seed = 0,
    ) -> None:
        width = codes[-1][1]
        super().__init__(max(latent, len(codes)), cells)
        self.network = VectorGenerator(width, cells, latent=latent, hidden=hidden, codes=codes, seed=seed)
        self.codes = tuple(codes)
        widest = max(end - first for first, end in codes)
        self.register_buffer("moved", torch.tensor(False))
        self.register_buffer("rows", torch.zeros(cells, max(1, ROWS // cells), width))
        self.register_buffer("drawn", torch.tensor(False))
        self.register_buffer("parents", torch.full((len(codes),), NONE))
        self.register_buffer("order", torch.arange(len(codes)))
        self.register_buffer("chances", torch.zeros(cells, width, widest))

    def follow(self, parents: Sequence[int], order: Sequence[int], tables: Sequence[Tensor]) -> None:
        """Draw codes along a tree from now on, of these parents and order (K,): a parent comes before its children.

        Of every column there is a table (cells, parent's codes or 1, own codes), not negative; rows need no sum of 1.
        ValueError if a parent comes after its child, or the columns' order is none.
        """
        rank = {column: at for at, column in enumerate(order)}
        late = [k for k, parent in enumerate(parents) if parent != NONE and rank[parent] >= rank[k]]
        if sorted(order) != [*range(len(self.codes))] or late:
            raise ValueError(f"columns {late} of a tree come before what they depend on, in the order {list(order)}")
        self.parents.copy_(torch.tensor(parents))
        self.order.copy_(torch.tensor(order))
        self.chances.zero_()
        for (first, end), table in zip(self.codes, tables, strict=True):
            self.chances[:, first:end, : table.shape[1]] = table.transpose(1, 2).to(self.chances)
        self.drawn.fill_(True)

    def leave(self, proportions: Tensor) -> None:
        """Draw along no tree from now on, but as before one was followed, cells in proportions (cells,)."""
        self.drawn.fill_(False)
        self.proportions.copy_(proportions)

    def take(self, rows: Tensor) -> None:
        """Pick one of these rows of chances (cells, R, q) from now on, each as often as the others of its cell."""
        self.rows.copy_(rows)
        self.moved.fill_(True)

    def forward(self, noise: Tensor, cells: Tensor) -> Tensor:
        """Chances, or codes, (m, q) of noise (m, latent) and cells (m,)."""
        if not bool(self.drawn) and bool(self.moved):
            among = self.rows.shape[1]
            picked = (torch.special.ndtr(noise[:, 0].to(torch.float64)) * among).long().clamp(max=among - 1)
            return self.rows[cells, picked]
        if not bool(self.drawn):
            chances: Tensor = self.network(noise[:, : self.network.latent], cells)
            return chances
        uniform = torch.special.ndtr(noise.to(torch.float64))
        rows, parents = noise.new_zeros(len(noise), self.codes[-1][1]), self.parents.tolist()
        codes = torch.zeros(len(noise), len(self.codes), dtype=torch.int64, device=noise.device)
        for column in self.order.tolist():
            first, end = self.codes[column]
            parent_codes = codes[:, parents[column]] if parents[column] != NONE else torch.zeros_like(cells)
            below = self.chances[cells, first:end, parent_codes].to(torch.float64).cumsum(dim=1)
            wanted = uniform[:, column : column + 1] * below[:, -1:]
            codes[:, column] = (below <= wanted).sum(dim=1).clamp(max=end - first - 1)
            rows[:, first:end] = F.one_hot(codes[:, column], end - first).to(rows)
        return rows
