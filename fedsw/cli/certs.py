"""`fedsw certs`: the certificates and keys of a federation's machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsw.cli.options import Json, echo
from fedsw.report.console import Screen
from fedsw.text import json_text

Host = Annotated[list[str], typer.Option("--host", metavar="NAME", help="A name or address of the server's machine.")]


def certs_command(
    host: Host,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the machines' folders are made.")],
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")],
    as_json: Json = False,
) -> None:
    """Make the server's certificate and a key for every client.

    Each machine gets one folder. The key of the authority that signs the certificate is not kept.
    """
    from fedsw.deploy.certificates import ServerCertificates, valid_until
    from fedsw.deploy.serving import write_federation

    server, nodes = write_federation(out, host, clients)
    until = f"{valid_until(ServerCertificates.of(server).certificate):%Y-%m-%d}"
    if as_json:
        echo(json_text({"server": str(server), "clients": [str(node) for node in nodes], "until": until}))
        return
    console = Screen(highlight=False)
    console.print(f"{server}  → the server's machine ({', '.join(host)})")
    for node in nodes:
        console.print(f"{node}  → {node.name}'s machine")
    console.print(f"The certificates end on {until}; server and clients warn in the last 30 days.")
