"""Every kind of column by its name, in the order in which the form of undeclared cells is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw._tools.registry import Registry

if TYPE_CHECKING:
    from fedsw.data.columns.kind import ColumnKind


def _shipped() -> None:
    """Register the kinds of this package; they take NumPy, which a command that reads no column does without."""
    from fedsw.data.columns._category import CategoryKind, CodeKind
    from fedsw.data.columns._truth import TruthKind
    from fedsw.data.columns.date import DateKind
    from fedsw.data.columns.number import IntegerKind, NumberKind

    for kind in (TruthKind(), CodeKind(), DateKind(), IntegerKind(), NumberKind(), CategoryKind()):
        KINDS.register(kind.name, kind)


KINDS: Registry[ColumnKind] = Registry("kind", group="fedsw.kinds", shipped=_shipped)
"""All kinds of columns by the name that a declaration's `kind` gives."""
