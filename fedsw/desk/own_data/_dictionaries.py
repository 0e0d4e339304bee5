"""Code books that others write, as rows of a code book: REDCap's data dictionary, a Frictionless Table Schema, SPSS."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = tuple[str, Mapping[str, Any]]

REDCAP = "variable / field name"
"""The first field of a data dictionary of REDCap, in small letters."""
_TEXTS = {"integer": "integer", "number": "number", "number_comma_decimal": "number"}
_TYPES = {"integer": "integer", "number": "number", "boolean": "boolean", "date": "date", "datetime": "date"}
_TYPES |= {"year": "integer", "string": "text", "any": "", "time": "leave out", "duration": "leave out"}


def of_redcap(path: str, text: str) -> Iterator[Row]:
    """Rows of a data dictionary: exports have choices as their codes, dates in ISO 8601, a column for each checkbox.

    What need not be answered may be empty. The first field names records, and is left out.
    """
    reader = csv.DictReader(io.StringIO(text))
    for number, cells in enumerate(reader):
        fields = {name.strip().lower(): (cell or "").strip() for name, cell in cells.items() if name is not None}
        column, type_, where = fields[REDCAP], fields.get("field type", ""), f"{path}, line {reader.line_num}"
        answers = fields.get("choices, calculations, or slider labels", "")
        codes = [choice.partition(",")[0].strip() for choice in answers.split("|") if choice.strip()]
        row: dict[str, Any] = {"column": column, "missing": [] if fields.get("required field?") == "y" else [""]}
        if type_ == "descriptive":
            continue  # a text on the form, without a column
        if type_ == "checkbox":
            for code in codes:
                yield where, {"column": f"{column}___{code.lower().replace('-', '_')}", "kind": "boolean"}
            continue
        checked = fields.get("text validation type or show slider number", "")
        if number == 0 or fields.get("identifier?") == "y" or type_ in ("notes", "file", "signature"):
            row |= {"role": "leave out", "missing": []}
        elif type_ in ("radio", "dropdown") and len(codes) > 1:
            row |= {"kind": "text", "categories": codes}
        elif type_ in ("yesno", "truefalse"):
            row |= {"kind": "boolean"}
        elif type_ in ("calc", "slider") or checked in _TEXTS or checked.startswith("date"):
            low, high = (fields.get(f"text validation {end}", "")[:10] for end in ("min", "max"))
            if type_ == "slider" and not low:
                low, high = "0", "100"
            kind = "date" if checked.startswith("date") else _TEXTS.get(checked, "number")
            row |= {"kind": kind, **({"low": low, "high": high} if low and high else {})}
        else:
            row = {"column": column}
        yield where, row


def of_schema(path: str, schema: Mapping[str, Any]) -> Iterator[Row]:
    """Rows of a Table Schema, or of a package's first one: its constraints, and its missing values for all columns."""
    if "resources" in schema:
        schema = schema["resources"][0].get("schema", {})
    absent, keys = list(schema.get("missingValues", [""])), schema.get("primaryKey", [])
    for field in schema["fields"]:
        limits, column = field.get("constraints", {}), str(field.get("name", ""))
        type_ = _TYPES.get(field.get("type", "any"), "leave out")
        if column in ([keys] if isinstance(keys, str) else keys) or type_ == "leave out":
            yield f"{path}, field {column!r}", {"column": column, "role": "leave out"}
            continue
        listed = [
            category.get("value") if isinstance(category, Mapping) else category
            for category in field.get("categories", ())
        ]
        listed = [str(value) for value in limits.get("enum", listed) if str(value) not in absent]
        row: dict[str, Any] = {"column": column, "missing": [] if limits.get("required") else absent}
        if len(listed) > 1:
            row |= {"kind": "text", "categories": listed}
        elif type_ == "text":
            row = {"column": column}
        else:
            row |= {"kind": type_}
        low, high = limits.get("minimum"), limits.get("maximum")
        if low is not None and high is not None and "categories" not in row:
            row |= {"low": str(low), "high": str(high)}
        if type_ == "date" and "%" in field.get("format", ""):
            row |= {"format": field["format"]}
        if type_ == "boolean" and field.get("falseValues") and field.get("trueValues"):
            row |= {"format": f"{field['falseValues'][0]}|{field['trueValues'][0]}"}
        yield f"{path}, field {column!r}", row if row.get("kind") else {"column": column}


_CODE = re.compile(r"-?\d+(\.\d+)?")
_TOKEN = re.compile(r"'((?:[^']|'')*)'|\"((?:[^\"]|\"\")*)\"|([/(),])|([^\s/(),'\"]+)")


def of_spss(path: str, text: str) -> Iterator[Row]:
    """Rows of SPSS syntax: values with labels are categories by their codes, missing values are missing.

    A column of which missing codes alone have labels holds numbers; their bounds are not in such a file.
    """
    labels: dict[str, list[str]] = {}
    absent: dict[str, list[str]] = {}
    for command in re.split(r"\.\s*(?:\n|$)", text):
        if (named := re.match(r"\s*(?:ADD\s+)?VALUE\s+LABELS\s+(.*)", command, re.IGNORECASE | re.DOTALL)) is not None:
            _labelled(named[1], labels)
        elif (named := re.match(r"\s*MISSING\s+VALUES\s+(.*)", command, re.IGNORECASE | re.DOTALL)) is not None:
            for names, codes in re.findall(r"([^()]+)\(([^()]*)\)", named[1]):
                values = [code.strip("'\"") for code in re.split(r"[\s,]+", codes.strip()) if code]
                for name in names.replace("/", " ").split():
                    absent.setdefault(name, []).extend(values)
    for name in dict.fromkeys((*labels, *absent)):
        missing = absent.get(name, [])
        codes = [code for code in labels.get(name, ()) if code not in missing]
        kind: dict[str, Any] = {"kind": "text", "categories": codes} if len(codes) > 1 else {"kind": "number"}
        yield f"{path}, {name}", {"column": name, "missing": missing, **kind}


def _labelled(command: str, labels: dict[str, list[str]]) -> None:
    """Take in the codes of a command: names, then pairs of a code and its label, parted by slashes."""
    names: Sequence[str] = []
    code = None
    for single, double, mark, word in _TOKEN.findall(command):
        quoted = single or double
        if mark == "/":
            names, code = [], None
        elif word and code is None and not names or (word and code is None and not _CODE.fullmatch(word)):
            names = [*names, word]
        elif code is None:
            code = word or quoted
        else:
            for name in names:
                labels.setdefault(name, []).append(code)
            code = None
