"""Laws of predictions in a file: what is written by columns is what Python's writer writes, byte by byte."""

from __future__ import annotations

import csv
import datetime
import io

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsw.cli.columns import write_columns

TEXTS = st.one_of(st.sampled_from(["yes", "no", "", " a ", "ä", "a,b", 'a"b', "a\nb", "a\rb"]), st.text(max_size=4))


def plainly(columns) -> str:
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows(
        zip(*[getattr(each, "tolist", lambda each=each: each)() for each in columns.values()], strict=True)
    )
    return file.getvalue()


def by_columns(columns) -> str:
    file = io.StringIO(newline="")
    write_columns(file, columns)
    return file.getvalue()


@pytest.mark.parametrize("rows", [1, 3, 2**16])
@given(st.lists(st.tuples(st.floats(), st.floats(width=32), TEXTS), min_size=1, max_size=9))
@example([(1e-5, 0.5, "a"), (9999999.5, 1e9, "b"), (0.1, 1 / 3, "c"), (1e-4, -0.0, "d")])
@settings(deadline=None, max_examples=40)
def test_columns_are_written_as_rows_are(rows, cells):
    doubles, singles, texts = map(list, zip(*cells, strict=True))
    columns = {
        "row": np.arange(len(cells)) + 2,
        "predicted": np.array(["no", "yes"])[np.arange(len(cells)) % 2],
        "a,b": np.array(doubles),
        "probability": np.array(singles, dtype=np.float32).astype(np.float64),
        "kept": texts,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsw.cli.columns._ROWS", rows)
        assert by_columns(columns) == plainly(columns)


def test_many_probabilities_are_written_with_the_digits_that_python_writes():
    generator = np.random.default_rng(0)
    values = np.concatenate(
        [generator.uniform(size=20_000).astype(np.float32), 10.0 ** generator.uniform(-9, 12, 20_000)]
    )
    assert by_columns({"row": np.arange(len(values)), "p": values}) == plainly(
        {"row": np.arange(len(values)), "p": values}
    )


def test_cells_that_are_no_text_and_no_number_are_written_as_python_writes_them():
    columns = {"row": np.arange(2), "when": [datetime.date(2024, 5, 31), None], "kept": ["1", 2]}
    assert by_columns(columns) == plainly(columns)
