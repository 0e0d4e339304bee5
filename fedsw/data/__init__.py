"""Records: data sets, tables and files, how cells are read and coded, and how records are spread over clients.

`columns` are the kinds of columns and their declarations; `tables` finds files and makes records of them
(`read_table`), of cells that `formats`, `containers` and `blocks` read, `cells` tells missing among, and `encoding`
checks and encodes. `codes` writes records as codes and back, `made_up` draws cells of the declared form.
`settings` are sections [data] and [partition]; `places` and `sources` find and read the records that they name,
`own_records` those of Python objects. `records` are what a client holds, `units` their privacy units, `persons`
columns that look like these, `tabular`, `image_sets` and `downloads` the shipped data sets and their files.
Names are imported when they are first used: reading a column's declaration needs no tensor.
"""

from typing import TYPE_CHECKING

from fedsw._tools.later import named

if TYPE_CHECKING:
    from fedsw.data._declared import DeclaredRecords as DeclaredRecords
    from fedsw.data._declared import as_records as as_records
    from fedsw.data._spreading import from_flwr_datasets as from_flwr_datasets
    from fedsw.data._spreading import owners as owners
    from fedsw.data._synthetic import gaussians as gaussians
    from fedsw.data._synthetic import mode_centres as mode_centres
    from fedsw.data._synthetic import ring as ring
    from fedsw.data._synthetic import synthetic as synthetic
    from fedsw.data.downloads import find_data as find_data
    from fedsw.data.formats import BadRecords as BadRecords
    from fedsw.data.image_sets import digits as digits
    from fedsw.data.image_sets import fashion_mnist as fashion_mnist
    from fedsw.data.image_sets import mnist as mnist
    from fedsw.data.image_sets import resized as resized
    from fedsw.data.image_sets import usps as usps
    from fedsw.data.records import Dataset as Dataset
    from fedsw.data.records import Records as Records
    from fedsw.data.records import concatenate as concatenate
    from fedsw.data.records import require_groups as require_groups
    from fedsw.data.records import validate as validate
    from fedsw.data.records import within_reach as within_reach
    from fedsw.data.tables import find_table as find_table
    from fedsw.data.tables import read_table as read_table
    from fedsw.data.tables import read_tables as read_tables
    from fedsw.data.tables import read_units as read_units
    from fedsw.data.tables import tables_in as tables_in
    from fedsw.data.tables import what_is_in as what_is_in
    from fedsw.data.tabular import adult as adult
    from fedsw.data.tabular import communities as communities
    from fedsw.data.tabular import law_school as law_school
    from fedsw.data.units import rows_in_common as rows_in_common
    from fedsw.data.units import share_of_repeated_rows as share_of_repeated_rows

_NAMES = {
    "tables": (
        "find_table",
        "read_table",
        "read_tables",
        "read_units",
        "tables_in",
        "what_is_in",
    ),
    "_declared": (
        "DeclaredRecords",
        "as_records",
    ),
    "downloads": ("find_data",),
    "formats": ("BadRecords",),
    "image_sets": (
        "digits",
        "fashion_mnist",
        "mnist",
        "resized",
        "usps",
    ),
    "_spreading": (
        "from_flwr_datasets",
        "owners",
    ),
    "records": (
        "Dataset",
        "Records",
        "concatenate",
        "require_groups",
        "validate",
        "within_reach",
    ),
    "_synthetic": (
        "gaussians",
        "mode_centres",
        "ring",
        "synthetic",
    ),
    "tabular": (
        "adult",
        "communities",
        "law_school",
    ),
    "units": ("rows_in_common", "share_of_repeated_rows"),
}
_MODULES = (
    "blocks", "cells", "codes", "columns", "containers", "downloads", "encoding", "formats", "image_sets",
    "made_up", "own_records", "persons", "places", "records", "settings", "sources", "tables", "tabular", "units",
)  # fmt: skip

__all__ = sorted([*_MODULES, *(name for names in _NAMES.values() for name in names)])

__getattr__ = named(__name__, _NAMES)
