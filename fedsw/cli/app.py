"""The `fedsw` command: every verb has a file of its own in this folder, and is registered here.

What a command needs is imported when it runs: `fedsw --help` loads none of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from fedsw.cli.account import account
from fedsw.cli.audit import audit_command
from fedsw.cli.budget import budget_command
from fedsw.cli.bundle import bundle_command
from fedsw.cli.card import card_command
from fedsw.cli.certs import certs_command
from fedsw.cli.check import check_command
from fedsw.cli.client import client_command
from fedsw.cli.compare import compare_command
from fedsw.cli.demo import demo_command
from fedsw.cli.deploy import deploy
from fedsw.cli.distance import distance_command
from fedsw.cli.evaluate import evaluate_command
from fedsw.cli.export import export_command
from fedsw.cli.init import init_command
from fedsw.cli.ledger import ledger_command
from fedsw.cli.list import list_command
from fedsw.cli.plan import plan_command
from fedsw.cli.predict import predict_command
from fedsw.cli.reproduce import reproduce_command
from fedsw.cli.resume import resume_command
from fedsw.cli.run import run_command
from fedsw.cli.server import server_command
from fedsw.cli.shell import invoke, new_group, split_debug
from fedsw.cli.show import show_command
from fedsw.cli.status import status_command
from fedsw.cli.synthesize import synthesize_command
from fedsw.cli.tune import tune_command

_VERBS: dict[str, Callable[..., None]] = {
    "init": init_command,
    "check": check_command,
    "plan": plan_command,
    "tune": tune_command,
    "budget": budget_command,
    "compare": compare_command,
    "reproduce": reproduce_command,
    "audit": audit_command,
    "run": run_command,
    "predict": predict_command,
    "export": export_command,
    "card": card_command,
    "synthesize": synthesize_command,
    "distance": distance_command,
    "certs": certs_command,
    "server": server_command,
    "client": client_command,
    "bundle": bundle_command,
    "status": status_command,
    "resume": resume_command,
    "show": show_command,
    "evaluate": evaluate_command,
    "list": list_command,
    "ledger": ledger_command,
    "demo": demo_command,
}
"""In the order in which `fedsw --help` shows them."""

app = new_group()
for verb, command in _VERBS.items():
    app.command(verb)(command)
app.add_typer(deploy, name="deploy")
app.add_typer(account, name="account")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 done, 1 the run failed, 2 bad input."""
    debug, rest = split_debug(sys.argv[1:] if arguments is None else arguments)
    return invoke(app, rest, debug=debug)
