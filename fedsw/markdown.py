"""Tables in Markdown, from a template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jinja2 import Environment, StrictUndefined

_ENVIRONMENT = Environment(autoescape=False, undefined=StrictUndefined)  # Markdown, not HTML
_ENVIRONMENT.filters["cell"] = lambda value: str(value).replace("|", "\\|").replace("\n", "<br>")
_TABLE = _ENVIRONMENT.from_string("""\
{% macro line(cells) %}| {{ cells | map("cell") | join(" | ") }} |{% endmacro -%}
{{ line(headings) }}
|{{ "---|" * headings | length }}
{%- for row in rows %}
{{ line(row) }}
{%- endfor %}""")


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""A table with these headings; cells are written as they read, a bar as `\|` and the end of a line as `<br>`.

    Raises:
        ValueError: naming the first row that has another number of cells than there are headings.
    """
    lines = [list(row) for row in rows]
    for row in lines:
        if len(row) != len(headings):
            raise ValueError(f"a table of {len(headings)} columns has a row of {len(row)}: {row}")
    return _TABLE.render(headings=headings, rows=lines)
