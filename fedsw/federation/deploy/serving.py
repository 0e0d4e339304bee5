"""Running a deployment's two sides: the server's SuperLink, and a client's SuperNode with news for its operator."""

from __future__ import annotations

import base64
import contextlib
import http.client
import sqlite3
import ssl
import subprocess
import threading
import time
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography import x509

from fedsw._tools.files import private_folder
from fedsw.federation.deploy.certificates import ServerCertificates, warn_of_expiry
from fedsw.federation.deploy.executor import REFUSAL
from fedsw.federation.deploy.flower_processes import SuperLink, supernode_command
from fedsw.federation.deploy.node_settings import NodeSettings, read_address
from fedsw.federation.deploy.processes import Processes, free_port, is_this_machine
from fedsw.runs.client_status import Participation, participations, read_client_status
from fedsw.runs.report.screens import words_of_run


class RunNotices:
    """Sentences about the runs in a state folder, each said once; what is there already is not said again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._said = {part.run: part.over for part in participations(folder)}
        self._refused = {part.run: part.refused for part in participations(folder)}

    @property
    def all_over(self) -> bool:
        """True if there was a run here, and every one is over."""
        return bool(self._said) and all(self._said.values())

    def fresh(self) -> list[str]:
        """Sentences about what happened since the last call."""
        sentences: list[str] = []
        for part in participations(self._folder):
            before, refused = self._said.get(part.run), self._refused.get(part.run, "")
            self._refused[part.run] = part.refused
            if part.refused:
                if part.refused != refused:
                    sentences.append(f"was greeted in the run {part.name!r}, and does not take part: {part.refused}")
                continue
            if before is None or refused:
                about = self._words(part)[0]
                other = "" if part.server in ("", part.code) else "; the server's fedsw has another code than here"
                sentences.append(f"takes part in the run {part.name!r}: {about}, {part.rounds} rounds{other}")
            if part.over and not before:
                rest = self._words(part)[1:]
                sentences.append(
                    f"the run {part.name!r} is over here: {'; '.join(rest)}. This client waits for the next run; "
                    "Ctrl-C stops it"
                )
            self._said[part.run] = part.over
        return sentences

    def _words(self, part: Participation) -> list[str]:
        """A run in sentences; a ledger that cannot be read is one of them, and stops nothing here."""
        try:
            return list(words_of_run(part, read_client_status(self._folder).ledgers))
        except (ValueError, OSError, sqlite3.Error) as fault:
            return [f"trust {part.trust}", f"its ledger cannot be read: {fault}"]


PORT = 9092
RETRY_SECONDS = 10.0
_PROBE_SECONDS = 10.0
_SERVED_BY = "uvicorn"
_PASS_ON = (
    "A proxy before the server must not end TLS, but pass TCP on as it is: nginx `stream` with `proxy_pass`, HAProxy "
    "`mode tcp`, ingress-nginx `ssl-passthrough`, a load balancer for TCP (docs/deploy.md)"
)
_LOOK_SECONDS = 2.0


@contextlib.contextmanager
def serving(folder: Path, home: Path, *, port: int, stock: bool) -> Iterator[SuperLink]:
    """A SuperLink on all interfaces that admits the keys in `folder`/nodes; stopped on the way out.

    A key that is put there or taken away meanwhile is admitted or refused within seconds, without `stock`. The logs
    are in `home`, Flower's folder.

    Raises:
        FileNotFoundError: if certificates or keys are missing. ValueError: if a certificate has ended.
        RuntimeError: if it does not start.
    """
    certificates = ServerCertificates.of(folder)
    for path in certificates:
        if not path.is_file():
            raise FileNotFoundError(f"no {path.name} in {folder}; `fedsw certs --host NAME --out DIR` makes it")
    warn_of_expiry([certificates.authority, certificates.certificate])
    keys = sorted((folder / "nodes").glob("*.pub"))
    if not keys:
        raise FileNotFoundError(f"no public key in {folder / 'nodes'}; without one every client would be refused")
    with Processes(private_folder(private_folder(home) / "logs")) as processes:
        link = SuperLink.start(processes, certificates, home, host="0.0.0.0", port=port, stock=stock)
        link.register(keys)
        with _following_keys(link, folder / "nodes"):
            yield link


@contextlib.contextmanager
def _following_keys(link: SuperLink, folder: Path) -> Iterator[None]:
    """Admit keys that are put into the folder meanwhile, and refuse those that are taken out, within seconds."""
    over, before = threading.Event(), _keys_in(folder)

    def follow() -> None:
        known = before
        while not over.wait(_LOOK_SECONDS):
            if (keys := _keys_in(folder)) == known:
                continue
            try:
                link.revoke_all_but(list(keys))
                if fresh := [path for path, key in keys.items() if known.get(path) != key]:
                    link.register(fresh)
                known = keys
            except RuntimeError as fault:  # tried again: the files still differ from what is known
                warnings.warn(str(fault), stacklevel=1)

    if link.stock:
        yield
        return
    thread = threading.Thread(target=follow, name="node keys", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _keys_in(folder: Path) -> dict[Path, bytes]:
    """The public keys in a folder by file; one that is just being taken away is left out."""
    keys = {}
    for path in sorted(folder.glob("*.pub")):
        with contextlib.suppress(OSError):
            keys[path] = path.read_bytes()
    return keys


def keep_connected(node: NodeSettings, home: Path, *, stock: bool, say: Callable[[str], None]) -> None:
    """Run a SuperNode and start it again whenever it ends, until this process is stopped.

    A SuperLink takes a node that vanished without a word back only when its lease has run out, after 20 s, or a minute
    with `stock`; so every end is followed by another attempt, and `say` gets the reason, once while it is the same.

    Raises:
        ValueError: if the authority's certificate has ended.
        ConnectionError: if the SuperLink shows a certificate that the authority did not sign for its name.
    """
    warn_of_expiry([node.authority] if node.authority.is_file() else [])
    news, before = None if node.state_dir is None else RunNotices(node.state_dir), ""
    refusal = private_folder(home) / "refusal"
    with Processes(None, {"FLWR_HOME": str(home), REFUSAL: str(refusal.resolve())}) as processes:
        while True:
            if fault := probe(node.superlink, node.authority):
                why = (
                    f"the SuperLink at {node.superlink} is out of reach ({fault}); an attempt follows every "
                    f"{RETRY_SECONDS:g} s"
                )
                why += "; the runs that took part from here are over" if news is not None and news.all_over else ""
            else:
                port = free_port()
                refusal.unlink(missing_ok=True)
                process = processes.start("supernode", supernode_command(node, stock=stock, port=port))
                code: int | None = None
                while code is None:
                    for sentence in [] if news is None else news.fresh():
                        say(sentence)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        code = process.wait(_LOOK_SECONDS)
                said = refusal.read_text(encoding="utf-8") if refusal.exists() else f"it ended with code {code}"
                why = f"{said}; an attempt follows every {RETRY_SECONDS:g} s"
            if why != before:
                say(why)
            before = why
            time.sleep(RETRY_SECONDS)


def probe(address: str, authority: Path) -> str | None:
    """Reason why a SuperLink can't be reached, None if it can; a certificate that is not trusted is an error.

    What answers there must be a SuperLink: a proxy that ends TLS with the server's own certificate would otherwise be
    taken for one, and every request after it would fail without a word of the proxy.

    Through the proxy that HTTPS_PROXY or ALL_PROXY names, unless NO_PROXY excepts the host, or it is this machine: as
    Flower's own requests go.

    Raises:
        ValueError: if the address is not HOST:PORT. ConnectionError: for the certificate, or a proxy of another kind.
    """
    host, port = read_address(address)
    context = ssl.create_default_context(cafile=str(authority))
    connection = connection_to(host, port, context)
    try:
        with contextlib.closing(connection):
            connection.request("GET", "/health")
            answer = connection.getresponse()
    except ssl.SSLCertVerificationError as untrusted:
        raise ConnectionError(
            f"the certificate of {address} is not to be trusted: {untrusted.verify_message}; it is issued by "
            f"{_issuer(host, port)}. Is {authority} the ca.crt that was made with this server's certificate, and is "
            f"{host} one of its --host names? A proxy that looks into TLS shows a certificate of its own: except the "
            f"server from it. {_PASS_ON}"
        ) from None
    except ssl.SSLError as fault:
        return f"{fault.reason or fault}: no TLS is spoken there. {_PASS_ON}"
    except (OSError, http.client.HTTPException) as fault:
        return f"{fault or type(fault).__name__}"
    by = answer.headers.get("server", "")
    if answer.status == http.client.OK and by in ("", _SERVED_BY):
        return None
    return f"a proxy answers for it: HTTP {answer.status}, server {by!a}. {_PASS_ON}"


def _issuer(host: str, port: int) -> str:
    """Who issued the certificate that is shown there, trusted or not; an escaped text."""
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    try:
        with contextlib.closing(connection_to(host, port, anyone)) as connection:
            connection.connect()
            shown = connection.sock.getpeercert(binary_form=True) or b""
        return ascii(x509.load_der_x509_certificate(shown).issuer.rfc4514_string())
    except (OSError, ValueError) as fault:
        return f"an unknown authority ({type(fault).__name__})"


def connection_to(host: str, port: int, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    """A connection to a server that is not made yet: straight, or in a tunnel through the proxy."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get("https") or proxies.get("all")
    if proxy is None or is_this_machine(host) or urllib.request.proxy_bypass(host):
        return http.client.HTTPSConnection(host, port, timeout=_PROBE_SECONDS, context=context)
    url = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if url.scheme not in ("http", "https"):
        raise ConnectionError(
            f"HTTPS_PROXY or ALL_PROXY names the proxy {url.scheme}://{url.hostname}, and a tunnel is made by an HTTP "
            f"proxy alone: name one in HTTPS_PROXY, or except {host} from it (NO_PROXY={host}), and leave ALL_PROXY out"
        )
    tunnel = http.client.HTTPSConnection(url.hostname or "", url.port, timeout=_PROBE_SECONDS, context=context)
    allowed = {}
    if url.username:
        known = f"{urllib.parse.unquote(url.username)}:{urllib.parse.unquote(url.password or '')}"
        allowed["Proxy-Authorization"] = "Basic " + base64.b64encode(known.encode()).decode()
    tunnel.set_tunnel(host, port, headers=allowed)
    return tunnel
