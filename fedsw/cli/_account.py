"""`fedsw account`: one budget for one data set, over all runs on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsw.cli._modules import lifetime, pool, verbs
from fedsw.cli.options import Accounts, Json, Verbs, echo, echo_json, say

account = Verbs(help="Show and limit the joint budget of runs on one data set.", invoke_without_command=True)

Data = Annotated[str, typer.Argument(metavar="DATA", help="The data set's name, as data.account gives it.")]
Delta = Annotated[float | None, typer.Option(help="δ at which ε is shown; the limit's by default.")]


@account.callback()
def account_command(
    context: typer.Context, accounts: Accounts = None, delta: Delta = None, as_json: Json = False
) -> None:
    """Show what all runs on one data set spent together, and how much is left.

    Without a command: all data sets that have an account on this machine.
    """
    if context.invoked_subcommand is not None:
        return
    answered = verbs.account(delta=delta, accounts=accounts)
    if not (answered["accounts"] or as_json):
        echo(f"no accounts in {answered['folder']}; an experiment with data.account = 'NAME' keeps one")
        return
    say(answered, as_json=as_json, highlight=True)


@account.command("show")
def show_command(
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help="Names of data sets.")],
    accounts: Accounts = None,
    delta: Delta = None,
    as_json: Json = False,
) -> None:
    """Show the runs on a data set, what they cost together, and what is left.

    Of several names, also what the runs of all these accounts cost a record that is in each: `people people.client-0`
    is a record of client 0 in a simulation.
    """
    _show(*data, accounts=accounts, delta=delta, as_json=as_json)


@account.command("limit")
def limit_command(
    data: Data,
    epsilon: Annotated[float, typer.Option(help="ε that all runs together may spend.")],
    delta: Annotated[float, typer.Option(help="δ of that ε, well below 1 / records.")],
    accounts: Accounts = None,
    as_json: Json = False,
) -> None:
    """Set how much all runs on a data set may spend together; runs beyond it are refused before they begin."""
    folder = lifetime.accounts_folder() if accounts is None else accounts.expanduser()
    lifetime.DatasetAccount(folder, data).limit(epsilon, delta)
    _show(data, accounts=accounts, delta=None, as_json=as_json)


@account.command("settle")
def settle_command(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The folder of a run, a training or a ledger, or a client's state folder."),
    ],
    as_json: Json = False,
) -> None:
    """Let a run or training that stopped count with what it spent, and give back the rest of what was set aside.

    It may be resumed later, if there is room for it then.
    """
    settled = pool.settle_run(run)
    if as_json:
        echo_json({"settled": settled})
    else:
        echo("\n".join(f"{name}: settled" for name in settled))


def _show(*data: str, accounts: Path | None, delta: float | None, as_json: bool) -> None:
    say(verbs.account(*data, delta=delta, accounts=accounts), as_json=as_json, highlight=True)
