"""A client's own records: a file and the declared columns become validated tensors; nothing is estimated."""

from __future__ import annotations

from pathlib import Path

from fedsw.columns import Columns
from fedsw.data.encoding import encoded
from fedsw.data.formats import BadRecords, format_of, require_file
from fedsw.data.records import Records

_FILES = ("train.csv", "train.parquet", "train.npz", "train-images-idx3-ubyte", "train-images-idx3-ubyte.gz")


def find_table(folder: Path) -> Path:
    """The one file of records in a folder: train.csv, train.parquet, train.npz or train-images-idx3-ubyte[.gz].

    Raises:
        FileNotFoundError: if there is no such folder or file; BadRecords: if there are several files.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; a client's records are looked for in it")
    found = tables_in(folder)
    if not found:
        raise FileNotFoundError(f"there is no {', '.join(_FILES[:-1])} or {_FILES[-1]} in {folder}")
    if len(found) > 1:
        raise BadRecords(f"{folder} has {found[0].name} and {found[1].name}; keep the one that this client brings")
    return found[0]


def tables_in(folder: Path) -> list[Path]:
    """The files of records in a folder."""
    return [folder / name for name in _FILES if (folder / name).exists()]


def read_table(path: Path, columns: Columns, *, first_id: int = 0, step: int = 1) -> Records:
    """Records of a file, every cell checked against what is declared; see `fedsw.data.encoding.encoded`.

    Args:
        first_id, step: ids of the records are first_id, first_id + step, ...; different clients' must differ.

    Raises:
        FileNotFoundError: if there is no such file.
        BadRecords: naming the file, and the row and column of the first fault, its value and the limit.
    """
    require_file(path)
    kind = format_of(path)
    try:
        return encoded(
            kind.read(path, columns), columns, where=str(path), counted=kind.counted, first_id=first_id, step=step
        )
    except FileNotFoundError:
        raise
    except OSError as fault:
        raise BadRecords(f"{path} cannot be read: {fault.strerror or fault}") from None
