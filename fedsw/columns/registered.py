"""Every kind of column by its name, in the order in which the form of undeclared cells is tried."""

from __future__ import annotations

from fedsw.columns.category import CategoryKind, CodeKind
from fedsw.columns.date import DateKind
from fedsw.columns.kind import ColumnKind
from fedsw.columns.number import IntegerKind, NumberKind
from fedsw.columns.truth import TruthKind
from fedsw.registry import Registry

KINDS: Registry[ColumnKind] = Registry("kind", ColumnKind, group="fedsw.kinds")
"""What `kind` of a column may name."""

for kind in (TruthKind(), CodeKind(), DateKind(), IntegerKind(), NumberKind(), CategoryKind()):
    KINDS.register(kind.name, kind)
