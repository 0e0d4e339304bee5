"""What is declared about records that clients bring themselves."""

from fedsw.columns.declaration import Columns, difference, read_columns
from fedsw.columns.group import Group
from fedsw.columns.kinds import MAX_FEATURES, Declared, Feature, Label, Name, Number
from fedsw.columns.texts import as_text, number_text

__all__ = [
    "MAX_FEATURES",
    "Columns",
    "Declared",
    "Feature",
    "Group",
    "Label",
    "Name",
    "Number",
    "as_text",
    "difference",
    "number_text",
    "read_columns",
]
