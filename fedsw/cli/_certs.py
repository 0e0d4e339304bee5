"""`fedsw certs`: the certificates and keys of a federation's machines, and the roster of keys for masked sums."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from fedsw.cli._modules import certificates, rosters
from fedsw.cli.options import Clients, Json, Verbs, echo, echo_json
from fedsw.runs.report.console import Screen

certs = Verbs(help="Make the certificates and keys of a federation's machines.", invoke_without_command=True)
roster = Verbs(help="Keep the public keys of all sites, for trust 'distributed'.", no_args_is_help=True)
certs.add_typer(roster, name="roster")

File = Annotated[Path, typer.Argument(metavar="FILE", help="The roster, a TOML file.")]


@certs.callback()
def certs_command(
    context: typer.Context,
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="A name or address of the server's machine.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the machines' folders are made.")] = None,
    clients: Clients = None,
    as_json: Json = False,
) -> None:
    """Make the server's certificate and a key for every client.

    Each machine gets one folder. The key of the authority that signs the certificate is not kept.
    """
    if context.invoked_subcommand is not None:
        return

    if host is None or out is None or clients is None:
        missing = "host" if host is None else "out" if out is None else "clients"
        raise typer.BadParameter(f"--{missing} is missing")
    server, nodes = certificates.write_federation(out, host, clients)
    until = f"{certificates.valid_until(certificates.ServerCertificates.of(server).certificate):%Y-%m-%d}"
    if as_json:
        echo_json({"server": str(server), "clients": [str(node) for node in nodes], "until": until})
        return
    console = Screen(highlight=False)
    console.print(f"{server}  → the server's machine ({', '.join(host)})")
    for node in nodes:
        console.print(f"{node}  → {node.name}'s machine")
    console.print(f"The certificates end on {until}; server and clients warn in the last 30 days.")


@roster.command("key")
def key_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of this machine: its client's --state-dir.")],
    as_json: Json = False,
) -> None:
    """Make this client's own key, on its own machine, and print the public one for the others' rosters.

    The private key stays in the folder, which its owner alone can read. It is never replaced: for a new one, choose
    another folder, and give the others its public key.
    """
    path = rosters.write_mask_key(folder.expanduser())
    public = rosters.read_mask_key(path).public.hex()
    said = f"{public}\nthe public key of {path}, for the rosters of the other sites; the private one stays there"
    if as_json:
        echo_json({"file": str(path), "public": public})
    else:
        echo(said)


@roster.command("add")
def add_command(
    file: File,
    name: Annotated[str, typer.Option(help="What the site is known by.")],
    key: Annotated[str, typer.Option(metavar="PUBLIC", help="Its public key, from its operator's own hands.")],
    clients: Annotated[int, typer.Option(min=1, help="How many clients it answers for.")] = 1,
) -> None:
    """Add a site's public key to a roster, which is made if there is none.

    To remove a site, or change its key, edit the file; every operator does, and all compare the digest again.
    """
    from fedsw._tools.settings import validated

    if not re.fullmatch("[0-9a-f]{64}", key := key.strip().lower()):
        raise typer.BadParameter(
            f"--key {key!r} is no public key: 64 hexadecimal digits, which `fedsw certs roster key` prints at the site"
        )
    member = validated(rosters.RosterSite, {"name": name, "key": key, "clients": clients})
    known = rosters.read_roster(file) if file.exists() else rosters.Roster()
    updated = known.with_member(member)
    file.write_text(updated.text(), encoding="utf-8")
    echo(f"{file}: {len(updated.member)} sites, digest {rosters.grouped(updated.digest)}")


@roster.command("show")
def show_command(file: File, as_json: Json = False) -> None:
    """Show the sites of a roster, and its digest, which all operators compare by voice."""
    sites = rosters.read_roster(file)
    if as_json:
        echo_json({"digest": sites.digest, "members": [member.model_dump() for member in sites.member]})
        return
    for member in sites.member:
        echo(f"{member.key}  {member.name}{f', {member.clients} clients' if member.clients > 1 else ''}")
    echo(f"digest {rosters.grouped(sites.digest)}")


@roster.command("digest")
def digest_command(file: File) -> None:
    """Print a roster's digest: SHA-256 of its names, keys and numbers of clients, in whatever order they are."""
    echo(rosters.grouped(rosters.read_roster(file).digest))
