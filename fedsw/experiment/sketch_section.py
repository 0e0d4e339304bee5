"""Section [sketch]: what a sketch measures, in how many stages, and the generator that learns from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedsw._tools.own_objects import is_reference
from fedsw._tools.registry import Registry
from fedsw._tools.section import Arguments, PositiveFloat, PositiveInt, Section, Seed, SettingRule, among, at_most


@dataclass(frozen=True)
class PartFacts:
    """Facts of a kind of part: the settings it ``reads``, and whether it reads "all" columns or must be "named" some.

    A ``table`` is measured by itself. What a later stage learnt may be looked at through one ``in_stages``.
    """

    reads: tuple[str, ...]
    columns: Literal["any", "named", "all"] = "any"
    table: bool = False
    in_stages: bool = True


PARTS: Registry[PartFacts] = Registry("sketch.kind", PartFacts)
"""The kinds of parts of a sketch; `fedsw.learning.sketches.from_settings` makes them."""
for _name, _part in {
    "gaussian": PartFacts(("bandwidths", "pairs", "scheme", "map")),
    "cramer": PartFacts(("directions", "harmonics", "scheme", "map")),
    "features": PartFacts(("map", "radius")),
    "moments": PartFacts(("map", "radius", "projected")),
    "code": PartFacts((), "named", in_stages=False),
    "table": PartFacts(("bins", "singles", "balance", "crossed"), "all", table=True, in_stages=False),
}.items():
    PARTS.register(_name, _part)


@dataclass(frozen=True)
class MapFacts:
    """Facts of a shipped feature map: the settings it ``reads``, and whether an earlier stage ``learnt`` it."""

    reads: tuple[str, ...] = ()
    learnt: bool = False


MAPS: Registry[MapFacts] = Registry("sketch.map", MapFacts)
"""The shipped feature maps, each a class of `sketches.maps` or `learnt`."""
for _name, _map in {
    "raw": MapFacts(),
    "cosine": MapFacts(("decay",)),
    "convolutions": MapFacts(("filters", "kernel", "stride", "shifts")),
    "scattering": MapFacts(("scales", "orientations", "order")),
    "learnt": MapFacts(("layer",), learnt=True),
}.items():
    MAPS.register(_name, _map)


class SketchPart(Section):
    """One block of a record's vector; `fedsw.learning.sketches.parts` has the mathematics.

    Attributes:
        kind: "gaussian", cosines and sines at frequencies of a Gaussian kernel of several bandwidths; "cramer", those
            of the sliced Cramer distance; "features", what the map makes of a record, without negative numbers;
            "moments", means and second moments of that; "code", columns that are a one-hot code, as they are; or
            "table", single columns and pairs of columns of a declared table, each written as codes
            (`fedsw.data.columns.declaration`).
        bandwidths, pairs: "gaussian": of the kernels, in the units of the features; and how many frequencies, divided
            evenly over them.
        directions, harmonics: "cramer": directions, and odd multiples along each.
        radius: "features", "moments": norm that longer vectors are shortened to.
        projected: "moments": number of random projections that they are of; 0 for all numbers.
        bins, singles: "table": equal parts that the range of numbers is cut into; and the part of the squared norm that
            single columns have, pairs have the rest; "auto" for one balance over both.
        balance: "table": weights of tables of c numbers, "equal" or, by "size", proportional to c^(1/3), by "codes" to
            c^(1/2).
        crossed: "table": which pairs of columns are measured, "all", or those of the "class" with every other column.
        scheme: orthogonal blocks of frequencies, or independent ones.
        map: the public feature map that they look at: "raw" features; "cosine", the cosine transform of square images,
            weighted by frequency with `decay`; "convolutions", `filters` fixed random ones of side `kernel`, averaged
            over moves of the image by up to `shifts` pixels; "scattering", local means of moduli of wavelets at
            `scales` sizes and `orientations`, up to `order`; "learnt", in a later stage, a `layer` of the classifier
            that was trained on what the stages before gave, its last pooled or first hidden one ("early") or its last
            hidden one ("late"); or "module:name", a map of a user's own, made with `map_arguments`.
        columns: which features; none for all.
        weight: part of the squared norm, before weights are divided by their sum.
    """

    removed: ClassVar[Mapping[str, Any]] = {"period": 2.0, "fractions": []}
    kind: Annotated[str, among(lambda: PARTS)] = "gaussian"
    bandwidths: Annotated[tuple[PositiveFloat, ...], at_most(64, "bandwidths")] = (0.7, 1.2, 2.0, 3.5)
    pairs: PositiveInt = 600
    directions: PositiveInt = 50
    harmonics: PositiveInt = 8
    radius: PositiveFloat = 1.0
    projected: Annotated[int, Field(ge=0, le=4096, strict=True)] = 0
    bins: Annotated[int, Field(ge=2, le=200, strict=True)] = 16
    singles: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = 0.2
    balance: Literal["equal", "size", "codes"] = "equal"
    crossed: Literal["all", "class"] = "all"
    scheme: Literal["orthogonal", "iid"] = "orthogonal"
    map: Annotated[str, among(lambda: MAPS, "a map")] = "raw"
    map_arguments: Arguments = {}
    decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    filters: PositiveInt = 16
    kernel: PositiveInt = 5
    stride: PositiveInt = 1
    shifts: Annotated[int, Field(ge=0, le=8, strict=True)] = 0
    scales: Annotated[int, Field(gt=0, le=32, strict=True)] = 2
    orientations: Annotated[int, Field(gt=0, le=180, strict=True)] = 4
    order: Literal[1, 2] = 1
    layer: Literal["early", "late"] = "late"
    columns: tuple[Annotated[int, Field(ge=0, strict=True)], ...] = ()
    weight: PositiveFloat = 1.0

    def rules(self) -> Iterator[SettingRule]:
        """See `Section`."""
        kind, known = PARTS.get(self.kind), dict(MAPS.items())
        looked_at = known.get(self.map, MapFacts())
        for by, chosen, reads, owners in (
            ("kind", self.kind, kind.reads, [(name, part.reads) for name, part in PARTS.items()]),
            ("map", self.map, looked_at.reads, [(name, map_.reads) for name, map_ in known.items()]),
        ):
            for owner, names in owners:
                foreign = self.changed(*(name for name in names if name not in reads))
                says = f"{foreign} is for {by} {owner!r}, not for {chosen!r}: leave it out"
                yield SettingRule(when=foreign, requires=False, says=says)
        yield SettingRule(
            when=self.map_arguments,
            requires=is_reference(self.map),
            says=f"map_arguments are for a map of your own, 'module:name', not for {self.map!r}",
        )
        yield SettingRule(
            when=looked_at.learnt,
            requires=not self.columns,
            says=f"map {self.map!r} looks at every feature: leave columns out",
        )
        yield SettingRule(
            when="bandwidths" in kind.reads,
            requires=len(self.bandwidths) <= self.pairs,
            says=f"pairs is {self.pairs} for {len(self.bandwidths)} bandwidths: each needs at least one",
        )
        yield SettingRule(
            when=kind.columns == "named",
            requires=self.columns,
            says=f"kind {self.kind!r} reads the columns of a one-hot code: name them in columns",
        )
        yield SettingRule(
            when=kind.columns == "all",
            requires=not self.columns,
            says=f"kind {self.kind!r} measures every declared column: leave columns out",
        )

    @property
    def of_table(self) -> bool:
        """True for codes of a declared table's columns, which are measured by themselves."""
        return PARTS.get(self.kind).table


class SketchStage(Section):
    """A later release of a sketch: what it measures may have been learnt from the releases before.

    Attributes:
        share: part of the budget (of mu^2) that it gets; the first stage has what no later one takes. None for as much
            as the first; "auto", for all stages, by how many numbers each measures
            (`fedsw.learning.sketches.noised.least_noise_shares`).
        parts: what is measured, of what is not a table.
        tables: of a table: how many pairs of columns are measured, those of the tree that was read off the stages
            before and others that tell most of each other, each as "balance" says; or how many triples.
        together: of a table: columns that are counted together, 2, or 3 of at most 1 000 codes, those that tell most of
            the label by the stages before; all later stages alike.
        counts: see `Sketch`; how often each label is generated is read off the first stage.
    """

    share: Annotated[float, Field(gt=0, lt=1)] | Literal["auto"] | None = None
    parts: Annotated[tuple[SketchPart, ...], Field(min_length=1), at_most(64, "parts")] = (
        SketchPart(kind="features", map="learnt", layer="early"),
        SketchPart(kind="features", map="learnt"),
    )
    tables: Annotated[int, Field(ge=1, le=1000, strict=True)] = 15
    together: Literal[2, 3] = 2
    counts: Annotated[float, Field(gt=0, le=4)] = 0.01


class Sketch(SketchPart):
    """Trust models `sketch` and `sketch-local`: one sum over all records, once, and a generator that learns from it.

    The settings of `SketchPart` are those of the first part; `also` has more. What is measured is public and fixed
    before any record is read; `batch`, `learning_rate`, `fraction`, `averaging`, `restarts` and `generated` are
    post-processing, which costs nothing whatever they are. The generator takes `training.rounds` steps.

    Attributes:
        also: more parts of a record's vector.
        stages: later releases, one after the other; between two of them a classifier is trained on what the generator
            makes (of a table, pairs of columns are chosen), and the generator goes on with all releases,
            `training.rounds` steps after each.
        hidden: width of the hidden layers of that classifier.
        labels, groups: whether a record's place is the block of its label, and of its group. Both are then protected.
        counts: square of what a record adds to its block's count; up to 1 counts cost nothing beside cosines and sines.
        seed: of frequencies and maps, and of the generator's training.
        batch: samples of a step.
        learning_rate: of Adam at the first step; it falls to 0.
        fraction: of the frequencies that a step looks at.
        averaging: of a stage's steps, that the exponential average of the generator's weights looks back on, which is
            what is released; 0 for the weights of the last step.
        restarts: initial weights that are tried: each takes the first quarter of the first stage's steps, and the
            generator continues that has samples nearest to the released sketch by then.
        generated: labelled samples that a classifier is trained on to measure a generator by.
        generator: "table": what rows are drawn from: the trained "network"; a "tree" of pairs of columns, fitted to the
            released counts; or, "auto", the one of them with rows nearer to the sketch.
        independent: whether generated labels do not depend on the group: how often each label and group is generated is
            then the product of both, and the generator is trained for that law. It needs labels and groups.
    """

    also: Annotated[tuple[SketchPart, ...], at_most(64, "parts")] = ()
    stages: Annotated[tuple[SketchStage, ...], at_most(8, "stages")] = ()
    hidden: Annotated[int, Field(ge=1, le=4096, strict=True)] = 64
    labels: bool = True
    groups: bool = False
    counts: Annotated[float, Field(gt=0, le=4)] = 1.0
    seed: Seed = 0
    batch: Annotated[int, Field(ge=2, le=2**24, strict=True)] = 200
    learning_rate: PositiveFloat = 0.01
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    averaging: Annotated[float, Field(ge=0, lt=1)] = 0.0
    restarts: Annotated[int, Field(ge=1, le=32, strict=True)] = 1
    generated: PositiveInt = 10_000
    generator: Literal["auto", "network", "tree"] = "auto"
    independent: bool = False

    def rules(self) -> Iterator[SettingRule]:
        """Rows of what goes together in all parts and stages, after those of the first part."""
        yield from super().rules()
        table, stages, parts = self.of_table, self.stages, (self, *self.also)
        yield SettingRule(
            when=table or any(part.of_table for part in self.also),
            requires=not self.also,
            says="kind 'table' measures a table by itself: leave also out, and keep it the only part",
        )
        yield SettingRule(
            when=True,
            requires=not any(part.map in MAPS and MAPS.get(part.map).learnt for part in parts),
            says="map 'learnt' looks through what an earlier stage taught: put the part into stages",
        )
        yield SettingRule(
            when=stages,
            requires=table or self.labels,
            says="stages learn to tell labels apart: set labels",
        )
        for name, foreign in (("parts", table), ("tables", not table), ("together", not table)):
            yield SettingRule(
                when=foreign,
                requires=not any(stage.changed(name) for stage in stages),
                says=f"{name} of a stage are not for kind {self.kind!r}: leave them out",
            )
        yield SettingRule(
            when=self.together == 3,
            requires=self.labels and all(stage.together == 3 for stage in stages),
            says="three columns together tell of the label: set labels, and together = 3 in every stage",
        )
        yield SettingRule(
            when=stages,
            requires=all(PARTS.get(part.kind).in_stages for stage in stages for part in stage.parts),
            says="a later stage measures waves, features or moments: leave kinds 'table' and 'code' out",
        )
        yield SettingRule(
            when=self.changed("hidden"),
            requires=stages and not table,
            says="hidden is of the classifier that later stages look through: leave it out, or add stages",
        )
        yield SettingRule(
            when=self.open,
            requires=all(stage.share == "auto" for stage in stages),
            says="share 'auto' chooses those of all stages together: write it for every stage, or for none",
        )
        yield SettingRule(
            when=True,
            requires=self.shares[0] > 0,
            says="the shares of stages add up to 1 or more: leave a part of the budget to the first stage",
        )
        yield SettingRule(
            when=self.generator != "auto",
            requires=table,
            says="generator chooses what rows of kind 'table' are drawn from: leave it out",
        )
        yield SettingRule(
            when=self.crossed != "all",
            requires=not (self.generator == "tree" or stages or self.labels),
            says="a tree and later stages read all pairs of columns, and blocks by label tell the class apart: with "
            "crossed = 'class' leave generator and stages out, and set labels to false",
        )
        yield SettingRule(
            when=self.restarts > 1,
            requires=self.generator != "tree",
            says="restarts are of the network, and generator 'tree' fits none: leave restarts out",
        )
        yield SettingRule(
            when=self.independent,
            requires=self.labels and self.groups,
            says="independent asks for labels that do not depend on the group: set labels and groups too",
        )

    @property
    def together(self) -> int:
        """How many columns of a table later stages count together at most."""
        return max((stage.together for stage in self.stages), default=2)

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of the budget (of mu^2) of each stage, with sum 1.

        Stages that state none, or have a share still to be chosen, have equal parts of the rest.
        """
        stated = [stage.share if isinstance(stage.share, float) else None for stage in self.stages]
        equal = (1 - sum(share or 0.0 for share in stated)) / (1 + stated.count(None))
        return (equal, *(share or equal for share in stated))

    @property
    def open(self) -> bool:
        """True if shares are still to be chosen."""
        return any(stage.share == "auto" for stage in self.stages)
