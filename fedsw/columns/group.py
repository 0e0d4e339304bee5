"""The column of the groups: declared values, or numbers that public edges cut."""

from __future__ import annotations

from pydantic import field_validator, model_validator

from fedsw.columns.kinds import Bound, Declared, Name
from fedsw.columns.texts import as_texts, number_text, require_distinct


class Group(Declared):
    """The column of the groups: one group for each of the declared `values`, or numbers cut at public `edges`.

    The edges e1 < e2 < ... cut the line into "name<e1", "e1<=name<e2", ..., "name>=ek": every number is in one group.
    Numbers are compared with them as they are in the file, in float64, before any scaling. With public bounds `low` and
    `high` a number outside them is refused, and every edge must lie above `low` and not above `high`.
    """

    name: Name
    values: tuple[str, ...] = ()
    edges: tuple[Bound, ...] = ()
    low: Bound | None = None
    high: Bound | None = None

    _texts = field_validator("values", mode="before")(lambda values: as_texts(values))

    @model_validator(mode="after")
    def _one_kind(self) -> Group:
        if bool(self.values) == bool(self.edges):
            given = "both values and edges" if self.values else "neither values nor edges"
            raise ValueError(f"column {self.name!r} has {given}; groups are declared values, or numbers cut at edges")
        if self.values:
            require_distinct(self.name, "values", self.values)
            if self.low is not None or self.high is not None:
                raise ValueError(f"column {self.name!r} has values; low and high are for numbers that edges cut")
        if any(not below < above for below, above in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError(f"column {self.name!r} has edges {list(self.edges)}; each must be above the one before it")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"column {self.name!r} has low = {self.low} and high = {self.high}; give both or neither")
        if self.low is not None and self.high is not None:
            self.require_within(self.low, self.high)
        return self

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups, in the order of their numbers."""
        if self.values:
            return self.values
        written = [number_text(edge) for edge in self.edges]
        between = [f"{low}<={self.name}<{high}" for low, high in zip(written, written[1:], strict=False)]
        return (f"{self.name}<{written[0]}", *between, f"{self.name}>={written[-1]}")

    def require_within(self, low: float, high: float) -> None:
        """Refuse an edge that leaves a group which no number from `low` to `high` is in.

        Raises:
            ValueError: naming the edge and the bounds.
        """
        for edge in self.edges:
            if not low < edge <= high:
                raise ValueError(
                    f"column {self.name!r} has the edge {number_text(edge)}, and bounds {number_text(low)} and "
                    f"{number_text(high)}: one of the groups beside it would be empty; move the edge between them"
                )
