"""`fedsw choose`: which trust model and command, whether the data are enough, and when not to use fedsw."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedsw.cli.options import Json, echo

if TYPE_CHECKING:
    from fedsw.own_data.choice import Answers, Choice


def choose_command(
    sums: Annotated[
        Literal["server", "nobody"] | None, typer.Option(help="Who may see sums before noise is added.")
    ] = None,
    counts: Annotated[
        Literal["hidden", "watched"] | None, typer.Option(help="Whether traffic, and so batch sizes, can be watched.")
    ] = None,
    rows: Annotated[Literal["one", "several"] | None, typer.Option(help="Rows of a person.")] = None,
    product: Annotated[Literal["model", "table"] | None, typer.Option(help="What is to come out.")] = None,
    records: Annotated[int | None, typer.Option(min=2, help="Records, or persons, of all clients together.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients; 4 if it is not said.")] = None,
    columns: Annotated[
        int | None, typer.Option(min=1, help="Columns that are learnt from; 10 if it is not said.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(min=1e-3, max=100, help="The ε to guarantee; 1 if it is not said.")
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Print the whole decision page, as Markdown.")] = False,
    as_json: Json = False,
) -> None:
    """Ask five questions, and say which trust model follows.

    Says which commands follow, and whether the data are enough, too. What no option answers is asked at a terminal;
    where nobody is there, the cautious answer is taken: nobody sees sums, traffic is watched, a person has several
    rows. All that nobody said is named.
    """
    from fedsw.own_data import choice
    from fedsw.text import json_text

    if page:
        echo(choice.page(), nl=False)
        return
    given = {"sums": sums, "counts": counts, "rows": rows, "product": product, "records": records}
    known, assumed = _answered(given, asking=sys.stdin.isatty() and not as_json)
    for name, value in {"clients": clients, "columns": columns, "epsilon": epsilon}.items():
        if value is None:
            assumed[name] = getattr(choice.Answers(), name)
        else:
            known[name] = value
    answers = choice.Answers(**known)
    found = choice.choose(answers)
    if as_json:
        echo(json_text({**found.plain(), "assumed": assumed}))
    else:
        echo(_view(answers, found, assumed))  # nothing is wrapped, so that commands can be pasted


def _answered(given: Mapping[str, Any], *, asking: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answers, and those of them that nobody gave."""
    from fedsw.own_data.choice import QUESTIONS, Answers

    known, assumed = {}, {}
    for name, (question, possible) in QUESTIONS.items():
        default = getattr(Answers(), name)
        if given[name] is not None:
            known[name] = given[name]
        elif asking:
            known[name] = _ask(question, possible, default)
        else:
            known[name] = assumed[name] = default
    return known, assumed


def _ask(question: str, possible: Mapping[str, str], default: Any) -> Any:
    from click import Choice as OneOf

    for name, meaning in possible.items():
        echo(f"  {name}: {meaning}", err=True)
    kind: Any = OneOf(list(possible)) if possible else int
    return typer.prompt(question, default=default, type=kind, err=True)


def _view(answers: Answers, found: Choice, assumed: Mapping[str, Any]) -> str:
    from fedsw.own_data.choice import WHEN_NOT
    from fedsw.text import upward

    settings = ", ".join(f"{key} = {value}" for key, value in found.settings.items())
    said = ", ".join(f"--{name} {value}" for name, value in assumed.items())
    lines = [
        f"trust model    {found.trust}   ({settings})",
        f"protects       {found.protects}",
        f"does not       {found.leaves_open}",
        f"data           {answers.records:,} records at {_counted(answers.clients, 'client')}, "
        f"{_counted(answers.columns, 'column')}, epsilon {upward(answers.epsilon, 6)}: {found.enough}",
        *([f"assumed        {said}"] if assumed else []),
        "type",
        *(f"    {command}" for command in found.commands),
        "do not use fedsw where",
        *(f"  - {reason}" for reason in WHEN_NOT),
    ]
    return "\n".join(lines)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
