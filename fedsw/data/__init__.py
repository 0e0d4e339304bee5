"""Data sets and how they are spread over clients."""

from fedsw.data.codes import find_table, read_table, read_tables, read_units, tables_in, what_is_in
from fedsw.data.declared import DeclaredRecords, as_records
from fedsw.data.files import find_data
from fedsw.data.formats import BadRecords
from fedsw.data.images import digits, fashion_mnist, mnist, resized, usps
from fedsw.data.partition import from_flwr_datasets, owners
from fedsw.data.records import Dataset, Records, concatenate, require_groups, validate, within_reach
from fedsw.data.synthetic import gaussians, mode_centres, ring, synthetic
from fedsw.data.tabular import adult, communities, law_school
from fedsw.data.units import rows_in_common, same_content, same_file

__all__ = [
    "BadRecords", "Dataset", "DeclaredRecords", "Records", "adult", "as_records", "communities", "concatenate",
    "digits", "fashion_mnist", "find_data", "find_table", "from_flwr_datasets", "gaussians", "law_school", "mnist",
    "mode_centres", "owners", "read_table", "read_tables", "read_units", "require_groups", "resized",
    "ring", "rows_in_common", "same_content", "same_file", "synthetic", "tables_in", "usps", "validate", "what_is_in",
    "within_reach",
]  # fmt: skip
