"""The answer of a verb, as a Python object: plain values, a document, and a table if there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedsw._tools.later import Later
from fedsw.runs.report.document import Document

if TYPE_CHECKING:
    import pandas

    from fedsw.runs.report import console as terminal
else:
    pandas, terminal = Later("pandas"), Later("fedsw.runs.report.console")


@dataclass(frozen=True)
class ByColumn:
    """Rows of a table that is there by column, as mappings: a million of them are made only if somebody asks."""

    columns: Mapping[str, Iterable[Any]]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in zip(*map(list, self.columns.values()), strict=True):
            yield dict(zip(self.columns, row, strict=True))


@dataclass(frozen=True, repr=False)
class Answer:
    """The outcome of a verb; a notebook shows it as a page, `print` as the command does, and `repr` in a line.

    Attributes:
        content: plain values, as `--json` prints them.
        view: makes its document.
        rows: of its table, as mappings by column.
        about: the object that the values describe, for further computation.
    """

    content: Any
    view: Callable[[], Document]
    rows: Iterable[Mapping[str, Any]] = ()
    about: Any = None

    def to_frame(self) -> Any:
        """The table as a pandas DataFrame; ValueError if there is none."""
        rows = list(self.rows)
        if not rows:
            raise ValueError("this answer has no table; .content has its values, and .page() the page")
        return pandas.DataFrame(rows)

    def page(self) -> str:
        """The page: one file of HTML, which loads nothing."""
        return self.view().page()

    def __getitem__(self, key: Any) -> Any:
        return self.content[key]

    def __repr__(self) -> str:
        keys = ", ".join(self.content) if isinstance(self.content, Mapping) else f"{len(self.content)} entries"
        return f"Answer({keys})"

    def __str__(self) -> str:
        return terminal.as_text(self.view())

    def _repr_html_(self) -> str:
        return self.view()._repr_html_()
