"""Networks that know a label: generators by class or cell, of a table too, and samples of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from fedsw._tools.randomness import Stream
from fedsw.learning.models.initial import (
    Seed,
    convolution,
    doubled_convolution,
    doubling,
    generator_of,
    linear,
    require_doubled_twice,
    require_multiple,
    require_positive,
)


class Unflattened(nn.Unflatten):
    """`nn.Unflatten` of columns into images with channels innermost in memory: convolutions of few take less time."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__(1, (channels, side, side))

    def forward(self, input: Tensor) -> Tensor:
        """Images (m, channels, side, side) of rows (m, channels side^2)."""
        return super().forward(input).contiguous(memory_format=torch.channels_last)


def innermost(module: nn.Module) -> None:
    """Store a module's filters with channels innermost; names, shapes and numbers stay."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # which torch does not declare


_GROUPS, _LABELLED = 4, (16, 8)
"""How `LabelledImages` normalises its images, and how many there are."""


class LabelledImages(nn.Module):
    """Images in (0, 1) and one-hot classes of length `weight` beside them, (m, side^2 + classes), of normal inputs.

    The last `classes` coordinates of an input say which class it is, the largest one: classes are uniform, and public.
    A linear layer of the others and the one-hot class to 16 images of a quarter of the side, then two 5x5 convolutions,
    of 8 filters and of one, the image doubled by repetition before each; GroupNorm and ReLU after every layer but the
    last, which ends in a sigmoid. Samples are made one by one.

    Source: Harder, Adamczewski, Park 2021, for the architecture, with other widths and GroupNorm for BatchNorm; RR,
        Section 6.3, which takes it over.
    """

    def __init__(
        self,
        side: int,
        classes: int,
        *,
        weight: float = 1.0,
        latent: int = 20,
        seed: Seed = 0,
    ) -> None:
        super().__init__()
        require_multiple(side, 4, "the image is doubled twice")
        if classes < 1 or latent <= classes:
            raise ValueError(f"latent = {latent}; {classes} of them choose the class, and the image needs more")
        self.side, self.classes, self.weight = side, classes, weight
        generator, quarter, (first, second) = generator_of(seed), side // 4, _LABELLED
        self.layers = nn.Sequential(
            *(linear(latent, first * quarter**2, generator), Unflattened(first, quarter)),
            *(nn.GroupNorm(_GROUPS, first), nn.ReLU(), nn.UpsamplingNearest2d(scale_factor=2)),
            *(convolution(first, second, 5, generator), nn.GroupNorm(_GROUPS, second), nn.ReLU()),
            *(nn.UpsamplingNearest2d(scale_factor=2), convolution(second, 1, 5, generator)),
            *(nn.Flatten(1), nn.Sigmoid()),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Images with their classes' codes (m, side^2 + classes) of standard normal inputs (m, latent)."""
        images, codes = self._made(inputs)
        return torch.cat([images, self.weight * codes], dim=1)

    def labelled(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Images (m, side^2) and their classes (m,) int64 of standard normal inputs (m, latent)."""
        images, codes = self._made(inputs)
        return images, codes.argmax(dim=1)

    def _made(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        noise, chosen = inputs[:, : -self.classes], inputs[:, -self.classes :]
        codes = F.one_hot(chosen.argmax(dim=1), self.classes).to(inputs)
        return self.layers(torch.cat([noise, codes], dim=1)), codes


class BlockedImages(LabelledImages):
    """The same generator, compared in blocks: an image stands in the block of its class, and all others are 0.

    Random directions then meet every class with weights of their own, so that a mean of projections tells of every
    class's mean image; of images beside their codes only the second moments do. An image is as long in its block as
    it was, so one that is replaced, class included, moves by at most the diameter of the images' own ball.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Images in their classes' blocks (m, classes side^2) of standard normal inputs (m, latent)."""
        return _in_blocks(*self._made(inputs))

    def seen(self, features: Tensor) -> Tensor:
        """Records (n, side^2 + classes), images with codes beside them, in blocks (n, classes side^2)."""
        images, codes = features[:, : -self.classes], features[:, -self.classes :]
        return _in_blocks(images, codes / self.weight)

    def beside(self, blocks: Tensor) -> Tensor:
        """Images in blocks (n, classes side^2) with their codes beside them (n, side^2 + classes): `seen` undone."""
        parts = blocks.reshape(len(blocks), self.classes, -1)
        codes = F.one_hot(parts.abs().sum(dim=2).argmax(dim=1), self.classes).to(blocks)
        return torch.cat([parts.sum(dim=1), self.weight * codes], dim=1)


def _in_blocks(images: Tensor, codes: Tensor) -> Tensor:
    """Outer products (n, classes side^2) of images (n, side^2) and one-hot codes (n, classes)."""
    return (codes.unsqueeze(2) * images.unsqueeze(1)).flatten(1)


class DecodedImages(nn.Module):
    """Square images (m, side^2) in (0, 1) of inputs (m, latent): the decoder of SPF's autoencoder as a generator.

    A linear layer to 32 images of half the side, which is even, two 3x3 convolutions of 32 filters, a transposed 2x2
    one of stride 2, each with ReLU, and a 3x3 convolution to one channel with a sigmoid.

    Source: SPF, Appendix C.1, with the images at their own side (28) where SPF pads them to 32.
    """

    def __init__(self, side: int, latent: int, *, seed: Seed = 0) -> None:
        super().__init__()
        if side < 2 or side % 2:
            raise ValueError(f"side = {side}; the decoder doubles the image once: use an even side")
        generator, half, filters = generator_of(seed), side // 2, 32
        self.layers = nn.Sequential(
            *(linear(latent, filters * half**2, generator), nn.ReLU(), nn.Unflatten(1, (filters, half, half))),
            *(convolution(filters, filters, 3, generator), nn.ReLU()),
            *(convolution(filters, filters, 3, generator), nn.ReLU()),
            *(doubling(filters, filters, generator), nn.ReLU()),
            *(convolution(filters, 1, 3, generator), nn.Flatten(1), nn.Sigmoid()),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Images (m, side^2) of inputs (m, latent)."""
        images: Tensor = self.layers(inputs)
        return images


class Conditional(Protocol):
    """A class-conditional generator: a module of these sizes, called with noise and cells."""

    latent: int
    cells: int

    def __call__(self, noise: Tensor, cells: Tensor) -> Tensor:
        """Samples (m, features) of standard normal noise (m, latent) and cells (m,) int64."""


class Proportioned(nn.Module):
    """A generator that knows how often each cell is to be generated.

    The ``proportions`` (cells,) are a buffer: equal parts until a release says more. Training does not read it.
    """

    proportions: Tensor

    def __init__(self, latent: int, cells: int) -> None:
        super().__init__()
        self.latent, self.cells = latent, cells
        self.register_buffer("proportions", torch.full((cells,), 1 / cells))


class ImageGenerator(Proportioned):
    """Square images (m, side^2) in (0, 1) of noise and a cell.

    A linear layer of noise and the one-hot cell to `channels[0]` images of a quarter of the side, then two 5x5
    convolutions, the image doubled by repetition before each; BatchNorm and ReLU after every layer but the last, which
    ends in a sigmoid. BatchNorm mixes the samples of a batch: it is for networks that only see noise.

    Source: Harder, Adamczewski, Park 2021, for the architecture, with other widths.
    """

    def __init__(
        self, side: int, cells: int, *, latent: int = 10, channels: tuple[int, int] = (32, 16), seed: Seed = 0
    ) -> None:
        require_doubled_twice(side, channels, cells=cells, latent=latent)
        super().__init__(latent, cells)
        generator, quarter, (first, second) = generator_of(seed), side // 4, channels
        self.layers = nn.Sequential(
            *(linear(latent + cells, first * quarter**2, generator), nn.BatchNorm1d(first * quarter**2), nn.ReLU()),
            *(
                Unflattened(first, quarter),
                doubled_convolution(first, second, 5, generator),
                nn.BatchNorm2d(second),
                nn.ReLU(),
            ),
            *(doubled_convolution(second, 1, 5, generator), nn.Flatten(1), nn.Sigmoid()),
        )
        innermost(self)

    def forward(self, noise: Tensor, cells: Tensor) -> Tensor:
        """Images (m, side^2) of noise (m, latent) and cells (m,)."""
        images: Tensor = self.layers(_given(noise, cells, self.cells))
        return images


class VectorGenerator(Proportioned):
    """Points (m, features) of noise and a cell: a perceptron with BatchNorm and ReLU after every hidden layer.

    Ranges (first, end) of columns that are one-hot ``codes`` do not overlap; a softmax over each makes relaxed codes.
    """

    def __init__(
        self,
        features: int,
        cells: int,
        *,
        latent: int = 10,
        hidden: Sequence[int] = (200, 200),
        codes: Sequence[tuple[int, int]] = (),
        seed: Seed = 0,
    ) -> None:
        widths = {f"hidden[{i}]": width for i, width in enumerate(hidden)}
        require_positive(features=features, cells=cells, latent=latent, **widths)
        ends = [0, *(edge for pair in sorted(codes) for edge in pair), features]
        if ends != sorted(ends) or any(first >= end for first, end in codes):
            raise ValueError(f"codes are {list(codes)}; give ranges of the columns 0 .. {features} without overlap")
        super().__init__(latent, cells)
        self.codes = tuple(sorted(codes))
        generator = generator_of(seed)
        sizes = [latent + cells, *hidden]
        layers: list[nn.Module] = []
        for inputs, units in zip(sizes[:-1], sizes[1:], strict=True):
            layers += [linear(inputs, units, generator), nn.BatchNorm1d(units), nn.ReLU()]
        self.layers = nn.Sequential(*layers, linear(sizes[-1], features, generator))

    def forward(self, noise: Tensor, cells: Tensor) -> Tensor:
        """Points (m, features) of noise (m, latent) and cells (m,)."""
        points: Tensor = self.layers(_given(noise, cells, self.cells))
        if not self.codes:
            return points
        parts, done = [], 0
        for first, end in self.codes:
            parts += [points[:, done:first], torch.softmax(points[:, first:end], dim=1)]
            done = end
        return torch.cat([*parts, points[:, done:]], dim=1)


def _given(noise: Tensor, cells: Tensor, count: int) -> Tensor:
    return torch.cat([noise, F.one_hot(cells, count).to(noise)], dim=1)


CHUNK = 4096


def generate(network: nn.Module, proportions: Tensor, count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Labelled samples of a trained generator, which is put into evaluation mode.

    Proportions (cells,) are of the cells among the samples, `NoisedSketch.proportions`; numbers are rounded so that
    their sum is the count. Features (count, p) are on the network's device; cells (count,) int64 in random order: the
    label is cells // groups, the group cells % groups.
    """
    if count < 1:
        raise ValueError(f"count = {count}; it must be at least 1")
    network.eval()
    conditional, like = cast(Conditional, network), next(network.parameters())
    generator = seeded_generator(seed, "generated samples", 0)
    cells = stratified(proportions, count)[torch.randperm(count, generator=generator)].to(like.device)
    parts = []
    with torch.no_grad():
        for start in range(0, count, CHUNK):
            part = cells[start : start + CHUNK]
            noise = torch.randn(len(part), conditional.latent, generator=generator).to(like)
            parts.append(conditional(noise, part))
    return torch.cat(parts), cells


_SETTLING = 32
"""Batches that BatchNorm's statistics are the means over."""


def settled(network: nn.Module, proportions: Tensor, batch: int, *, seed: int = 0) -> nn.Module:
    """Give BatchNorm the statistics of a network's own samples; returns the network, in evaluation mode.

    The network is a `Conditional`, changed in place; proportions (cells,), on the host, are of the cells among the
    samples, which are normalised together in groups of ``batch``, as in training.
    """
    conditional, like = cast(Conditional, network), next(network.parameters())
    cells = stratified(proportions, batch).to(like.device)
    generators = (seeded_generator(seed, "batch statistics", number) for number in range(_SETTLING))
    noises = (torch.randn(batch, conditional.latent, generator=generator).to(like) for generator in generators)
    update_bn((((noise, cells),) for noise in noises), _Given(network))
    return network.eval()


class _Given(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        made: Tensor = self.network(*pair)
        return made


def proportions_of(network: nn.Module) -> Tensor:
    """How often each cell is to be generated, (cells,) float64: the network's own buffer, or equal parts."""
    cells = int(cast(Conditional, network).cells)
    proportions = getattr(network, "proportions", None)
    if not isinstance(proportions, Tensor) or tuple(proportions.shape) != (cells,):
        return torch.full((cells,), 1 / cells, dtype=torch.float64)
    return proportions.detach().to("cpu", torch.float64)


def stratified(proportions: Tensor, count: int) -> Tensor:
    """Cells (count,) int64, in order, in proportions (cells,) of sum 1 as closely as whole numbers can be."""
    wanted = (proportions.detach().cpu().to(torch.float64) * count).clamp(min=0)
    whole = wanted.floor()
    short = count - int(whole.sum())
    order = torch.sort(wanted - whole, descending=True, stable=True).indices
    whole[order[: max(0, short)]] += 1
    return torch.repeat_interleave(torch.arange(len(wanted)), whole.to(torch.int64))[:count]


def seeded_generator(seed: int, *purpose: str | int) -> torch.Generator:
    """torch's generator for one public purpose of a seed."""
    word = int(Stream.seeded(seed, *purpose).words(1)[0])
    return torch.Generator().manual_seed(word >> 1)


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
