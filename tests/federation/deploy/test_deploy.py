"""Laws of what a deployment is given: what certificates vouch for, who can read keys, what commands say."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import ssl
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.cli.app import main
from fedsw.federation.deploy.certificates import (
    LOOPBACK,
    ServerCertificates,
    write_certificates,
    write_federation,
    write_node_key,
)
from fedsw.federation.deploy.flower_processes import (
    node_config_text,
    profile,
    superlink_command,
    supernode_command,
)
from fedsw.federation.deploy.node_settings import NodeSettings
from fedsw.federation.deploy.processes import Processes, free_port
from fedsw.federation.deploy.serving import probe

HOSTS = ("fed.example.org", "10.1.2.3", *LOOPBACK)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation")
    write_federation(folder, ["fed.example.org", "10.1.2.3"], 3)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("host", HOSTS)
def test_the_certificate_is_valid_for_every_named_host_under_its_own_authority(federation: Path, host: str) -> None:
    files = ServerCertificates.of(federation / "server")
    assert _verified(files.authority, files.certificate, host)


@pytest.mark.parametrize("host", ["other.example.org", "10.1.2.4", "example.org"])
def test_the_certificate_is_not_valid_for_any_other_host(federation: Path, host: str) -> None:
    files = ServerCertificates.of(federation / "server")
    assert not _verified(files.authority, files.certificate, host)


def test_the_certificate_is_not_valid_under_another_authority_of_the_same_name(federation: Path, tmp_path) -> None:
    other = write_certificates(tmp_path / "other", HOSTS)
    assert not _verified(other.authority, ServerCertificates.of(federation / "server").certificate, HOSTS[0])


def test_the_server_certificate_can_sign_nothing_and_the_authority_s_key_is_nowhere(federation: Path) -> None:
    files = ServerCertificates.of(federation / "server")
    server, authority = (
        x509.load_pem_x509_certificate(path.read_bytes()) for path in (files.certificate, files.authority)
    )
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    known = {_der(server.public_key())}
    for path in federation.rglob("*"):
        if path.is_file() and b"PRIVATE KEY" in (content := path.read_bytes()):
            load = load_ssh_private_key if b"OPENSSH" in content else load_pem_private_key
            known.add(_der(load(content, None).public_key()))  # type: ignore[operator]
    assert len(known) == 2 + 3, "the server's keys, for TLS and for requests, and three node keys"
    assert _der(authority.public_key()) not in known


def _der(public: Any) -> bytes:
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[no-any-return]


def test_only_their_owner_can_read_secrets(federation: Path) -> None:
    for path in [federation / "server", *federation.glob("client*"), federation / "server" / "nodes"]:
        assert mode(path) == 0o700, path
    for path in (*federation.glob("server/*.key"), *federation.glob("client*/node.key")):
        assert mode(path) == 0o600, path


def test_a_secret_is_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert mode(write_node_key(tmp_path / "key").with_suffix("")) == 0o600
    finally:
        os.umask(before)


def test_no_machine_is_given_another_machine_s_key(federation: Path) -> None:
    secrets = {path: path.read_bytes() for path in federation.rglob("*.key")}
    assert len(secrets) == len(set(secrets.values())) == 5
    for place in (federation / "server", *(federation / f"client{client}" for client in range(3))):
        held = [content for content in secrets.values() if any(content in p.read_bytes() for p in _files(place))]
        assert len(held) == (2 if place.name == "server" else 1), place


def test_nothing_is_overwritten(federation: Path) -> None:
    before = {path: path.read_bytes() for path in _files(federation)}
    with pytest.raises(FileExistsError, match="choose another folder"):
        write_federation(federation, ["fed.example.org"], 3)
    with pytest.raises(FileExistsError, match=r"node\.key exists"):
        write_node_key(federation / "client0" / "node.key")
    assert {path: path.read_bytes() for path in _files(federation)} == before


def test_flower_reads_the_node_keys_and_both_halves_belong_together(federation: Path) -> None:
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    private = load_ssh_private_key((federation / "client1" / "node.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP384R1)
    registered = try_load_public_key(federation / "server" / "nodes" / "client1.pub")
    assert registered == public_key_to_bytes(private.public_key())


def test_a_client_probes_the_server_s_certificate_before_it_connects(federation: Path, tmp_path: Path) -> None:
    stranger = write_certificates(tmp_path / "stranger", LOOPBACK)
    elsewhere = write_certificates(tmp_path / "elsewhere", ["fed.example.org"])
    own = ServerCertificates.of(federation / "server")
    with _tls_server(own) as port:
        assert probe(f"127.0.0.1:{port}", own.authority) is None
        assert probe(f"localhost:{port}", own.authority) is None
        with pytest.raises(ConnectionError, match="not to be trusted"):
            probe(f"127.0.0.1:{port}", stranger.authority)
    with _tls_server(elsewhere) as port, pytest.raises(ConnectionError, match="not to be trusted"):
        probe(f"127.0.0.1:{port}", elsewhere.authority)
    assert "refused" in str(probe(f"127.0.0.1:{free_port()}", own.authority))


WELL = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\nContent-Length: 0\r\n\r\n"
ENDS_TLS = {
    "finds no way on": (b"HTTP/1.1 502 Bad Gateway\r\nServer: nginx/1.24\r\nContent-Length: 0\r\n\r\n", "nginx/1.24"),
    "speaks plain to the server": (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "HTTP 400"),
    "speaks TLS to the server": (WELL.replace(b"uvicorn", b"envoy"), "envoy"),
    "answers as it likes": (WELL.replace(b"uvicorn", b"\x1b[31m"), r"\x1b"),
    "hangs up": (b"", "without response"),
}


@pytest.mark.parametrize("kind", ENDS_TLS)
def test_a_proxy_with_the_server_s_certificate_is_named_at_once_with_what_to_set(federation, capsys, kind) -> None:
    """Its handshake is that of the server; what it answers is not."""
    answer, said = ENDS_TLS[kind]
    with _tls_server(ServerCertificates.of(federation / "server"), answer) as port:
        why = str(probe(f"127.0.0.1:{port}", federation / "client0" / "ca.crt"))
        asked = ["client", "--superlink", f"127.0.0.1:{port}", "--certs", str(federation / "client0"), "--check"]
        asked += ["--partition-id", "0", "--num-partitions", "3", "--trust", "any"]
        assert main([*asked, "--state-dir", str(federation / "state")]) == 1
    assert said in why and "\x1b" not in why
    (fault,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAULT  server")]
    assert " ".join(why.split()) in fault
    assert kind == "hangs up" or ("a proxy answers for it" in why and "`proxy_pass`" in why and "`mode tcp`" in why)


def test_a_proxy_with_a_certificate_of_its_own_is_named_with_who_issued_it(federation: Path, tmp_path: Path) -> None:
    with (
        _tls_server(write_certificates(tmp_path / "proxy", LOOPBACK)) as port,
        pytest.raises(ConnectionError, match=r"issued by 'CN=fedsw authority'.* `ssl-passthrough`"),
    ):
        probe(f"127.0.0.1:{port}", federation / "client0" / "ca.crt")


def test_a_port_where_no_tls_is_spoken_is_named_with_what_to_set(federation: Path) -> None:
    class Plain(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.connection.recv(4096)
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Plain) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        why = str(probe(f"127.0.0.1:{server.server_address[1]}", federation / "client0" / "ca.crt"))
        server.shutdown()
    assert "no TLS is spoken there" in why and "must not end TLS" in why


@contextlib.contextmanager
def _proxy(asked: list[str]) -> Iterator[int]:
    """A proxy that makes tunnels, and notes where to and for whom."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            place = self.rfile.readline().split()[1].decode()
            lines = iter(lambda: self.rfile.readline().strip().decode(), "")
            asked.extend([place, *(line for line in lines if line.startswith("Proxy-Authorization"))])
            with socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2])), timeout=10) as other:
                self.wfile.write(b"HTTP/1.1 200 there\r\n\r\n")
                back = threading.Thread(target=_pass_on, args=(other, self.connection), daemon=True)
                back.start()
                _pass_on(self.connection, other)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(4096):
            target.sendall(content)


def test_a_client_probes_through_its_proxy_and_still_checks_the_server_s_certificate(
    federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, asked = ServerCertificates.of(federation / "server"), list[str]()
    stranger = write_certificates(tmp_path / "stranger", LOOPBACK)
    with _proxy(asked) as proxy, _tls_server(own) as port:
        monkeypatch.setenv("https_proxy", f"http://ward:secret@127.0.0.1:{proxy}")
        monkeypatch.setenv("no_proxy", "")
        assert probe(f"fed.example.org:{port}", own.authority) is None
        assert asked == [f"fed.example.org:{port}", "Proxy-Authorization: Basic d2FyZDpzZWNyZXQ="]
        with pytest.raises(ConnectionError, match="A proxy that looks into TLS"):
            probe(f"fed.example.org:{port}", stranger.authority)
        asked.clear()
        assert probe(f"127.0.0.1:{port}", own.authority) is None and not asked
        monkeypatch.setenv("no_proxy", "fed.example.org")
        with monkeypatch.context() as names:
            names.setattr(socket, "create_connection", _to_this_machine(socket.create_connection))
            assert probe(f"fed.example.org:{port}", own.authority) is None and not asked


def _to_this_machine(connect: Callable[..., socket.socket]) -> Callable[..., socket.socket]:
    return lambda address, *rest, **more: connect(("127.0.0.1", address[1]), *rest, **more)


PROXIES = {
    "http": {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"},
    "small letters": {"http_proxy": "http://127.0.0.1:9", "https_proxy": "127.0.0.1:9", "no_proxy": ""},
    "all": {"ALL_PROXY": "http://127.0.0.1:9", "NO_PROXY": ".example.org"},
    "socks": {"all_proxy": "socks5h://127.0.0.1:9", "https_proxy": "socks5://127.0.0.1:9"},
    "an unknown socks": {"ALL_PROXY": "socks://127.0.0.1:9"},
}
ASK = "import sys, httpx; ca, *urls = sys.argv[1:]; print(*(httpx.Client(verify=ca).get(url).text for url in urls))"


@pytest.mark.parametrize("kind", PROXIES)
def test_a_process_of_a_deployment_asks_this_machine_through_no_proxy(federation, tmp_path, monkeypatch, kind) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in PROXIES[kind].items():
        monkeypatch.setenv(name, value)
    own = ServerCertificates.of(federation / "server")
    with _tls_server(own, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nthere") as port, Processes(tmp_path) as started:
        assert probe(f"127.0.0.1:{port}", own.authority) is None
        urls = [f"https://{host}:{port}/" for host in ("127.0.0.1", "localhost")]
        assert started.start("ask", [sys.executable, "-c", ASK, str(own.authority), *urls]).wait() == 0
        assert started.said("ask") == "there there"


def test_a_proxy_of_another_kind_is_refused_by_name_where_a_server_elsewhere_is_asked(federation, monkeypatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://ward:secret@proxy.example.org:1080")
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConnectionError, match=r"socks5://proxy\.example\.org, .*NO_PROXY=fed\.example\.org"):
        probe("fed.example.org:9092", ServerCertificates.of(federation / "server").authority)


@pytest.mark.parametrize(
    "address",
    ["fed.example.org", "https://fed.example.org/", "http://fed.example.org:9092", ":9092", "fed:port", "fed:99999"],
)
def test_an_address_without_host_or_port_is_refused(federation: Path, address: str) -> None:
    """Before anything is started: one with http:// was tried every ten seconds, for ever."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        probe(address, federation / "client0" / "ca.crt")
    with pytest.raises(ValueError, match="HOST:PORT"):
        _node(federation, superlink=address)


def _node(federation: Path, **changes: Any) -> NodeSettings:
    settings = {
        "superlink": "fed.example.org:9092",
        "authority": federation / "client0" / "ca.crt",
        "key": federation / "client0" / "node.key",
        "client": 0,
        "clients": 3,
    }
    return NodeSettings(**{**settings, **changes})


def test_flower_understands_the_supernode_s_command_as_meant(federation: Path, tmp_path: Path) -> None:
    from flwr.common.config import parse_config_args
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    node = _node(federation, client=2, data_dir=tmp_path, state_dir=tmp_path / "a b")
    command = supernode_command(node, stock=True, port=19000)
    asked = _parse_args_run_supernode().parse_args(command[1:])
    assert not asked.insecure and asked.superlink == node.superlink
    assert asked.root_certificates == str(node.authority) and asked.auth_supernode_private_key == str(node.key)
    assert (asked.host, asked.port, asked.isolation) == ("127.0.0.1", 19000, "subprocess")
    assert not asked.runtime_dependency_install
    assert parse_config_args([asked.node_config]) == {
        "partition-id": 2,
        "num-partitions": 3,
        "data-dir": str(tmp_path),
        "state-dir": str(tmp_path / "a b"),
        "modules": "",
    }


def test_the_warm_supernode_is_given_the_same_but_for_the_port(federation: Path) -> None:
    node = _node(federation)
    stock, warm = (supernode_command(node, stock=choice, port=19000) for choice in (True, False))
    assert warm[3:] == stock[1:-4] and stock[-4:] == ["--host", "127.0.0.1", "--port", "19000"]


def test_flower_understands_the_superlink_s_command_as_meant(federation: Path) -> None:
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

    files = ServerCertificates.of(federation / "server")
    stock = superlink_command(files, "127.0.0.1", 18000, stock=True)
    asked = _parse_args_run_superlink().parse_args(stock[4:])
    assert not asked.insecure and asked.enable_supernode_auth and not asked.runtime_dependency_install
    assert (asked.ssl_certfile, asked.ssl_keyfile) == (str(files.certificate), str(files.key))
    assert (asked.host, asked.port) == ("127.0.0.1", 18000)
    warm = superlink_command(files, "127.0.0.1", 18000, stock=False)
    assert warm[4:] == stock[4:] and (warm[3], stock[3]) == ("superlink", "stock")


@settings(deadline=None, derandomize=True)
@given(st.text(st.characters(exclude_categories=("C",), exclude_characters='"'), min_size=1), st.integers(0, 99))
def test_flower_reads_back_any_path_in_a_node_s_configuration(path: str, client: int) -> None:
    from flwr.common.config import parse_config_args

    config: dict[str, int | str] = {"partition-id": client, "data-dir": path}
    assert parse_config_args([node_config_text(config)]) == config


def test_a_path_that_flower_would_cut_in_two_is_refused() -> None:
    with pytest.raises(ValueError, match="double quote"):
        node_config_text({"data-dir": 'a" partition-id=3 b="'})


@pytest.mark.parametrize(
    ("changes", "error", "what"),
    [
        ({"client": 3}, ValueError, "partition-id 3 is not below num-partitions 3"),
        ({"client": -1}, ValueError, "numbered from 0"),
        ({"key": Path("nowhere")}, FileNotFoundError, "no node key at nowhere"),
        ({"authority": Path("nowhere")}, FileNotFoundError, "no certificate of the authority at nowhere"),
        ({"data_dir": Path("nowhere")}, FileNotFoundError, "no data directory at nowhere"),
    ],
)
def test_a_node_that_cannot_start_is_refused_with_the_reason(federation: Path, changes, error, what) -> None:
    with pytest.raises(error, match=what):
        _node(federation, **changes)


def test_flower_finds_the_superlink_by_its_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.cli.flower_config import read_superlink_connection

    authority = tmp_path / "a b" / "ca.crt"
    (tmp_path / "config.toml").write_text(profile("127.0.0.1:18000", authority))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    connection = read_superlink_connection("fedsw")
    assert (connection.address, connection.root_certificates) == ("127.0.0.1:18000", str(authority))
    assert not connection.insecure


def test_a_client_names_its_own_file_and_the_columns_it_agrees_to(tmp_path):
    """What a node reads and what it refuses is decided on its own command line, not by the server."""
    for name in ("ca.crt", "node.key", "records.csv"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    (tmp_path / "columns.toml").write_text(_SCHEMA, encoding="utf-8")
    settings = {"superlink": "host:1", "authority": tmp_path / "ca.crt", "key": tmp_path / "node.key"}
    node = NodeSettings(
        **settings, client=0, clients=2, data_path=tmp_path / "records.csv", schema=tmp_path / "columns.toml"
    )
    assert node.node_config["data-path"] == str((tmp_path / "records.csv").resolve())
    assert node.node_config["schema"] == str((tmp_path / "columns.toml").resolve())
    with pytest.raises(FileNotFoundError, match="no schema at"):
        NodeSettings(**settings, client=0, clients=2, schema=tmp_path / "none.toml")


_SCHEMA = """\
features = [{name = "age", low = 0, high = 100}]
sensitive = {name = "sex", values = ["f", "m"]}
target = {name = "income", values = ["low", "high"]}
"""


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (_SCHEMA.replace("]", "", 1), "is not valid TOML"),
        (_SCHEMA.replace("low = 0", "low = 200"), "200"),
        (_SCHEMA.replace("features", "faetures"), "faetures"),
    ],
)
def test_a_client_with_a_broken_schema_does_not_start_and_says_why_on_its_own_screen(
    federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], schema, said
) -> None:
    monkeypatch.setattr(
        "fedsw.federation.deploy.serving.keep_connected", lambda *words, **more: pytest.fail("it was started")
    )
    (tmp_path / "columns.toml").write_text(schema, encoding="utf-8")
    options = ["--superlink", "localhost:1", "--partition-id", "0", "--num-partitions", "2", "--trust", "any"]
    files = ["--schema", str(tmp_path / "columns.toml"), "--state-dir", str(tmp_path / "state")]
    assert main(["client", *options, *files, "--certs", str(federation / "client0")]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"fedsw: the schema {tmp_path / 'columns.toml'}") and said in shown


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"trust": "local-gradient, locl-slices"}, "'locl-slices'"), ({"max_epsilon": -1.0}, "positive and finite")],
)
def test_limits_that_say_nothing_are_refused_when_a_client_is_started(
    federation: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        _node(federation, **changes)


def _verified(authority: Path, certificate: Path, host: str) -> bool:
    import ipaddress

    from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

    try:
        subject: Any = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    store = Store([x509.load_pem_x509_certificate(authority.read_bytes())])
    try:
        verifier = PolicyBuilder().store(store).build_server_verifier(subject)
        verifier.verify(x509.load_pem_x509_certificate(certificate.read_bytes()), [])
    except VerificationError:
        return False
    return True


class _tls_server:
    """Accepts connections on loopback and shakes hands, and says one thing to all who ask, until it is left."""

    def __init__(self, files: ServerCertificates, answer: bytes = WELL) -> None:
        self._answer = answer
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        self._socket = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> int:
        threading.Thread(target=self._serve, daemon=True).start()
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            try:
                with self._context.wrap_socket(connection, server_side=True) as secured:
                    if secured.recv(4096):
                        secured.sendall(self._answer)
            except OSError:
                connection.close()


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
