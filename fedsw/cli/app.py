"""The `fedsw` command: a file of this folder for each group of verbs, all of them registered here.

What a command needs is imported when it runs: `fedsw --help` loads none of it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

import typer

from fedsw.cli._data import check_command, describe_command, distance_command, init_command
from fedsw.cli._plan import budget_command, plan_command, tune_command
from fedsw.cli._use import evaluate_command, export_command, predict_command
from fedsw.cli.deploy import bundle_command, certs, client_command, deploy, server_command
from fedsw.cli.options import invoke, new_group, split_debug
from fedsw.cli.run import compare_command, demo_command, resume_command, run_command, synthesize_command
from fedsw.cli.show import account, audit_command, list_command, report_command, show_command

GROUPS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Data": {"init": init_command, "check": check_command, "describe": describe_command, "distance": distance_command},
    "Plan": {"plan": plan_command, "tune": tune_command, "budget": budget_command},
    "Run": {
        "run": run_command,
        "compare": compare_command,
        "synthesize": synthesize_command,
        "resume": resume_command,
        "demo": demo_command,
        "deploy": deploy,
    },
    "Look": {
        "list": list_command,
        "show": show_command,
        "report": report_command,
        "evaluate": evaluate_command,
        "audit": audit_command,
        "account": account,
    },
    "Use": {"predict": predict_command, "export": export_command},
    "Operate": {
        "certs": certs,
        "server": server_command,
        "client": client_command,
        "bundle": bundle_command,
    },
}
"""Every verb in its group, in the order in which `fedsw --help` shows them; it shows last what has verbs of its own."""

app = new_group()
for group, verbs in GROUPS.items():
    for verb, command in verbs.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=verb, rich_help_panel=group)
        else:
            app.command(verb, rich_help_panel=group)(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: see `fedsw._tools.exits`."""
    debug, rest = split_debug(sys.argv[1:] if arguments is None else arguments)
    return invoke(app, rest, debug=debug)


def program() -> NoReturn:
    """Run the command line of this process, and end it with its exit code.

    A daemon thread of a client, or of a library that reads files, may still be at work in native code, where Python's
    finalisation would stop it and crash the process. So the process ends without finalisation.
    """
    code = main()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the pipe may be closed
            stream.flush()
    os._exit(code)
