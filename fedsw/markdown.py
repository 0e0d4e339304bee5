"""Tables and pages in Markdown, from templates."""

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


def render(template: str, **values: object) -> str:
    """A page from a jinja2 template; runs of empty lines become one.

    Raises:
        jinja2.UndefinedError: naming the first value that the template asks for and that is not given.
    """
    lines: list[str] = []
    for line in _ENVIRONMENT.from_string(template).render(values).splitlines():
        if line.strip() or (lines and lines[-1]):
            lines.append(line.rstrip())
    return "\n".join(lines).rstrip() + "\n"
