"""Numbers and names as text: JSON without NaN or Infinity literals, short forms, hints for people, tables."""

from __future__ import annotations

import codecs
import difflib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

_MOST_DIGITS = 15  # decimal digits that a float64 always keeps
_ROUND_OFF = 1e-9
MOST_SHOWN = 500
"""Letters of a text from another machine that are shown here, or of one of ours that is sent there."""

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys or no reader sees: control characters but new lines, changes of direction."""


def json_text(value: Any, *, indent: int | None = 2, ascii_only: bool = False) -> str:
    """JSON of a nested value; infinities become "inf" or "-inf" and NaN becomes null.

    What a terminal would obey in a text is written as \\uXXXX, so that JSON can be printed; with ``ascii_only`` every
    letter that is none of ASCII's is.
    """
    text = json.dumps(_plain(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False)
    return _COMMANDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def harmless(text: object, instead: str = "\N{REPLACEMENT CHARACTER}") -> str:
    """A text of any length and any number of lines without what a terminal obeys.

    For all that is printed: titles, statuses and names in a folder were written by its author, and an escape
    sequence among them could colour, hide or replace what a reader sees.
    """
    return _COMMANDS.sub(instead, str(text))


SPELT = "fedsw-spelt"
"""The name under which streams know `spelt`."""
_SPELT = {
    **{"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "eps", "η": "eta", "θ": "theta", "λ": "lambda"},
    **{"μ": "mu", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "Δ": "Delta", "Σ": "Sigma", "Φ": "Phi"},
    **{"≤": "<=", "≥": ">=", "≈": "~", "∞": "inf", "√": "sqrt", "→": "->", "−": "-", "–": "-", "—": "-", "…": "..."},
    **{"‘": "'", "’": "'", "“": '"', "”": '"', "•": "*", "½": "1/2", "¾": "3/4", "²": "^2", "±": "+-", "×": "x"},
}


def spelt(fault: UnicodeError) -> tuple[str, int]:
    """Spell letters that a stream's encoding does not have: by their names, else by a question mark each."""
    if not isinstance(fault, UnicodeEncodeError):
        raise fault
    letters = fault.object[fault.start : fault.end]
    return "".join(_SPELT.get(letter, "?") for letter in letters), fault.end


codecs.register_error(SPELT, spelt)

_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def is_formula(cell: object) -> bool:
    """Say whether a spreadsheet would run a cell of a CSV file as a formula; numbers are none."""
    return isinstance(cell, str) and cell.startswith(_BEGINS_A_FORMULA) and to_float(cell) is None


def for_spreadsheets(cell: Any) -> Any:
    """A cell with an apostrophe before it where a spreadsheet would take it for a formula; any other as it is."""
    return f"'{cell}" if is_formula(cell) else cell


def warning_of_formulas(texts: Iterable[object]) -> str | None:
    """Warning for a CSV file with cells that a spreadsheet would run as formulas; None without such cells."""
    formulas = [shown(repr(text)) for text in dict.fromkeys(texts) if is_formula(text)]
    if not formulas:
        return None
    more = f" and {len(formulas) - 1} more" if len(formulas) > 1 else ""
    return (
        f"{formulas[0]}{more} would be taken for a formula by a spreadsheet, which runs it: --spreadsheet writes an "
        "apostrophe before such cells"
    )


def to_float(value: Any) -> float | None:
    """The number behind a JSON value written by `json_text`: "inf" is infinite, anything else None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def number(value: Any, digits: int = 3) -> str:
    """A short form for people: 1.23, 3.3e-06, ∞; an en dash when there is no number."""
    known = to_float(value)
    if known is None or math.isnan(known):
        return "–"
    if math.isinf(known):
        return "∞" if known > 0 else "-∞"
    return f"{known:.{digits}g}"


def apart(one: float, other: float, digits: int = 3) -> tuple[str, str]:
    """Two numbers in a short form with as many digits as it takes to see that they differ."""
    while digits < _MOST_DIGITS and one != other and number(one, digits) == number(other, digits):
        digits += 1
    return number(one, digits), number(other, digits)


def between(interval: Sequence[Any]) -> str:
    """An interval for people: 0.21 to 0.4."""
    low, high = interval
    return f"{number(low)} to {number(high)}"


BURIED = "what the noise allows to see"
"""In messages: the range of true values, for a number that noise moved out of it."""


def measured(value: Any, interval: Sequence[Any] | None) -> str:
    """A number that was measured, with the interval that it stands for: 0.29 (0.08 to 0.5).

    What noise moved to where no true value can be is not cut: it says so, and where the true value lies.
    """
    if interval is None:
        return number(value)
    known, low, high = (to_float(part) for part in (value, *interval))
    if known is None or math.isnan(known):
        return f"not to be seen ({between(interval)})"
    if low is not None and known < low - _ROUND_OFF * abs(low):
        return f"below {BURIED} ({between(interval)})"
    if high is not None and known > high + _ROUND_OFF * abs(high):
        return f"above {BURIED} ({between(interval)})"
    return f"{number(value)} ({between(interval)})"


def gained(value: Any, interval: Sequence[Any]) -> str:
    """How much better something is, or worse where the number is negative: "0.4 (0.3 to 0.5) worse"."""
    known = to_float(value)
    if known is None or not known < 0:
        return f"{measured(value, interval)} better"
    low, high = (to_float(end) for end in interval)
    return f"{measured(-known, (None if high is None else -high, None if low is None else -low))} worse"


def upward(value: Any, digits: int = 3) -> str:
    """`number`, never below the value: how an epsilon or a delta that is claimed is written."""
    return _rounded(value, digits, up=True)


def at_delta(epsilon: Any, delta: Any) -> str:
    """A guarantee in short, neither number below its value: ε = 0.5 at δ = 1e-06."""
    return f"ε = {upward(epsilon, 4)} at δ = {upward(delta)}"


def downward(value: Any, digits: int = 3) -> str:
    """`number`, never above the value: how an epsilon that an attack shows is written, or room that is left."""
    return _rounded(value, digits, up=False)


def _rounded(value: Any, digits: int, *, up: bool) -> str:
    known = to_float(value)
    if known is None or known == 0 or not math.isfinite(known):
        return number(value, digits)
    text = f"{known:.{digits}g}"
    if float(text) < known if up else float(text) > known:
        unit = Decimal(10) ** (Decimal(known).adjusted() + 1 - digits)
        text = f"{float(Decimal(text) + (unit if up else -unit)):.{digits}g}"
    return text


def bytes_of(count: Any) -> str:
    """A number of bytes in a unit of its size, as in 1.2 MB; an en dash when there is no number."""
    if (size := to_float(count)) is None:
        return "–"
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def shown(text: object) -> str:
    """A text that came from another machine, or goes there, in one line that moves no cursor.

    It is cut after `MOST_SHOWN` letters, however long it is.
    """
    written = str(text)
    plain = "".join(letter if letter.isprintable() else " " for letter in written[:MOST_SHOWN])
    return plain if len(written) <= MOST_SHOWN else f"{plain[:-3]}..."


class Short:
    """Base class of objects that print only their `_facts`: in one line, and in a notebook as a small table.

    A dataclass derived from it needs `repr=False`, or Python would print all of its fields.
    """

    def _facts(self) -> Mapping[str, object]:
        """Public facts by name, for a screen or a notebook."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self._facts().items())
        return shown(f"{type(self).__name__}({facts})")

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(shown(name))}</th><td>{html.escape(shown(value))}</td></tr>"
            for name, value in self._facts().items()
        )
        return f"<table><caption>{html.escape(type(self).__name__)}</caption>{rows}</table>"


def run_facts(name: str, directory: object, summary: Mapping[str, Any]) -> dict[str, object]:
    """Facts that a finished run prints: how it ended, and its guarantee against a reader of all that it shows."""
    epsilon, reader = summary.get("epsilon"), summary.get("epsilon_of_reader")
    differs = {"epsilon of the reader": upward(reader, 6)} if to_float(reader) != to_float(epsilon) else {}
    ended = {"status": summary.get("status"), "rounds": summary.get("released_rounds")}
    guarantee = (summary.get("guarantee") or {}).get("statement", "")
    return {"experiment": name, **ended, **differs, "directory": directory, "guarantee": guarantee}


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for a message, "nearest: 'x'; ": the known name that is most like another; empty if none is."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"nearest: {close[0]!r}; " if close else ""


def _plain(value: Any) -> Any:
    if isinstance(value, float):  # first: large values are lists of these, and a check for Mapping is slow
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, int | str) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return _plain(value.item()) if hasattr(value, "item") else str(value)


def installed_version() -> str:
    """The version in pyproject.toml when the package was installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fedsw")
    except PackageNotFoundError:
        return "0+not.installed"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""A table with these headings; cells are written as they read, a bar as `\|` and the end of a line as `<br>`.

    ValueError names the first row that has another number of cells than there are headings.
    """
    lines = [list(row) for row in rows]
    for row in lines:
        if len(row) != len(headings):
            raise ValueError(f"a table of {len(headings)} columns has a row of {len(row)}: {row}")
    first, *others = (_table_line(cells) for cells in (headings, *lines))
    return "\n".join([first, "|" + "---|" * len(headings), *others])


def _table_line(cells: Sequence[object]) -> str:
    written = (str(cell).replace("|", "\\|").replace("\n", "<br>") for cell in cells)
    return f"| {' | '.join(written)} |"
