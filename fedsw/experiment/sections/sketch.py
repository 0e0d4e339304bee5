"""What a sketch measures of every record, and how a generator is trained on it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedsw.experiment.sections.section import PositiveFloat, PositiveInt, Section, Seed

_READ: dict[str, tuple[str, ...]] = {
    "gaussian": ("bandwidths", "fractions", "pairs", "scheme", "map"),
    "cramer": ("directions", "harmonics", "period", "scheme", "map"),
    "code": (),
    "table": ("bins", "singles"),
}
_READ_BY_MAP: dict[str, tuple[str, ...]] = {
    "raw": (),
    "cosine": ("decay",),
    "convolutions": ("filters", "kernel", "stride"),
    "scattering": ("scales", "orientations", "order"),
}


class SketchPart(Section):
    """One block of a record's vector; `fedsw.transport.sketch_parts` has the mathematics.

    Attributes:
        kind: "gaussian", cosines and sines at frequencies of a Gaussian kernel of several bandwidths; "cramer", those
            of the sliced Cramer distance; "code", columns that are a one-hot code, as they are; or "table", single
            columns and pairs of columns of a declared table, each written as codes (`fedsw.columns.coded`).
        bandwidths, fractions, pairs: "gaussian": of the kernels, in the units of the features; their parts, equal where
            none are given; and how many frequencies, divided over them.
        directions, harmonics, period: "cramer": directions, odd multiples along each, and a length that holds all
            projections.
        bins, singles: "table": equal parts that the range of numbers is cut into; and the part of the squared norm that
            single columns have, pairs have the rest.
        scheme: orthogonal blocks of frequencies, or independent ones.
        map: the public feature map that they look at: "raw" features; "cosine", the cosine transform of square images,
            weighted by frequency with `decay`; "convolutions", `filters` fixed random ones of side `kernel`; or
            "scattering", local means of moduli of wavelets at `scales` sizes and `orientations`, up to `order`.
        columns: which features; none for all.
        weight: part of the squared norm, before weights are divided by their sum.
    """

    kind: Literal["gaussian", "cramer", "code", "table"] = "gaussian"
    bandwidths: tuple[PositiveFloat, ...] = (0.7, 1.2, 2.0, 3.5)
    fractions: tuple[PositiveFloat, ...] = ()
    pairs: PositiveInt = 600
    directions: PositiveInt = 50
    harmonics: PositiveInt = 8
    period: PositiveFloat = 2.0
    bins: Annotated[int, Field(ge=2, le=200, strict=True)] = 16
    singles: Annotated[float, Field(gt=0, le=1)] = 0.2
    scheme: Literal["orthogonal", "iid"] = "orthogonal"
    map: Literal["raw", "cosine", "convolutions", "scattering"] = "raw"
    decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    filters: PositiveInt = 16
    kernel: PositiveInt = 5
    stride: PositiveInt = 1
    scales: PositiveInt = 2
    orientations: PositiveInt = 4
    order: Literal[1, 2] = 1
    columns: tuple[Annotated[int, Field(ge=0, strict=True)], ...] = ()
    weight: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _read_by_its_kind(self) -> SketchPart:
        """Refuse a setting that another kind, or another map, would read."""
        for by, chosen, table in (("kind", self.kind, _READ), ("map", self.map, _READ_BY_MAP)):
            for owner, names in table.items():
                for name in names:
                    foreign = owner != chosen and name not in table[chosen]
                    if foreign and getattr(self, name) != type(self).model_fields[name].default:
                        raise ValueError(f"{name} is for {by} {owner!r}, not for {chosen!r}: leave it out")
        if self.kind == "gaussian" and self.fractions and len(self.fractions) != len(self.bandwidths):
            raise ValueError(
                f"fractions has {len(self.fractions)} numbers for {len(self.bandwidths)} bandwidths: give one for each"
            )
        if self.kind == "gaussian" and not len(self.bandwidths) <= self.pairs:
            raise ValueError(f"pairs is {self.pairs} for {len(self.bandwidths)} bandwidths: each needs at least one")
        if self.kind == "code" and not self.columns:
            raise ValueError("kind 'code' reads the columns of a one-hot code: name them in columns")
        if self.kind == "table" and self.columns:
            raise ValueError("kind 'table' measures every declared column: leave columns out")
        return self


class Sketch(SketchPart):
    """Trust models `sketch` and `sketch-local`: one sum over all records, once, and a generator that learns from it.

    The settings of `SketchPart` are those of the first part; `also` has more. What is measured is public and fixed
    before any record is read; `batch`, `learning_rate`, `fraction` and `generated` are post-processing, which costs
    nothing whatever they are. The generator takes `training.rounds` steps.

    Attributes:
        also: more parts of a record's vector.
        labels, groups: whether a record's place is the block of its label, and of its group. Both are then protected.
        counts: square of what a record adds to its block's count; up to 1 counts cost nothing beside cosines and sines.
        seed: of frequencies and maps, and of the generator's training.
        batch: samples of a step.
        learning_rate: of Adam at the first step; it falls to 0.
        fraction: of the frequencies that a step looks at.
        generated: labelled samples that a classifier is trained on to measure a generator by.
        independent: whether generated labels do not depend on the group: how often each label and group is generated is
            then the product of both, and the generator is trained for that law. It needs labels and groups.
    """

    also: tuple[SketchPart, ...] = ()
    labels: bool = True
    groups: bool = False
    counts: Annotated[float, Field(gt=0, le=4)] = 1.0
    seed: Seed = 0
    batch: Annotated[int, Field(ge=2, le=2**24, strict=True)] = 200
    learning_rate: PositiveFloat = 0.01
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    generated: PositiveInt = 10_000
    independent: bool = False

    @model_validator(mode="after")
    def _fit_together(self) -> Sketch:
        if any(part.kind == "table" for part in self.also) or (self.kind == "table" and self.also):
            raise ValueError("kind 'table' measures a table by itself: leave also out, and keep it the only part")
        if self.independent and not (self.labels and self.groups):
            raise ValueError("independent asks for labels that do not depend on the group: set labels and groups too")
        return self
