"""Certificates and keys in files of their owner: an authority, the server's certificate, a key for every node."""

from __future__ import annotations

import datetime
import ipaddress
import re
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsw._tools.files import opened, private_folder


def write_secret(path: Path, content: bytes) -> Path:
    """Write a new file (mode 0600 from its first byte on); a key is never replaced."""
    try:
        with opened(path, "xb") as file:
            file.write(content)
    except FileExistsError:
        raise FileExistsError(f"{path} exists; remove it, or choose another folder") from None
    return path


DAYS = 365
SIGNING, SIGNING_PUBLIC = "signing.key", "signing.pub"
LOOPBACK = ("localhost", "127.0.0.1")
_SOON = datetime.timedelta(days=30)
_CLOCKS_MAY_DIFFER = datetime.timedelta(minutes=10)
_PKCS8 = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
_OPENSSH = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


class ServerCertificates(NamedTuple):
    """Paths: the authority's certificate and the public signing key go to every machine, the others to the server's."""

    authority: Path
    certificate: Path
    key: Path
    signing: Path
    signing_public: Path

    @classmethod
    def of(cls, folder: Path) -> Self:
        """The names of the files in a folder."""
        names = ("ca.crt", "server.pem", "server.key", SIGNING, SIGNING_PUBLIC)
        return cls(*(folder / name for name in names))


def write_certificates(folder: Path, hosts: Sequence[str], *, days: int = DAYS) -> ServerCertificates:
    """Make a certificate that is valid for `hosts` (DNS names and IP addresses), for a server only.

    Guarantee: the authority's key exists in memory only, while this function runs. Who trusts `ca.crt` trusts this
    one server certificate; a second one cannot be issued, and a new one means a new `ca.crt`.

    Raises:
        ValueError: if no host is named, or a name is not a host name. FileExistsError: if the files are there already.
    """
    if not hosts:
        raise ValueError("a certificate needs at least one host name or IP address that clients will connect to")
    names = [_host(host) for host in dict.fromkeys(hosts)]
    files = ServerCertificates.of(private_folder(folder))
    for path in files:
        if path.exists():
            raise FileExistsError(f"{path} exists; choose another folder, or remove what must not be used any more")
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = _name("fedsw authority")
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder(_name(hosts[0][:64]), authority_name, server_key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    files.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    write_secret(files.key, server_key.private_bytes(*_PKCS8))
    write_signing_key(files)
    return files


def write_signing_key(files: ServerCertificates) -> None:
    """Make the Ed25519 key with which a server signs its requests, and its public half for the clients."""
    key = ed25519.Ed25519PrivateKey.generate()
    write_secret(files.signing, key.private_bytes(*_PKCS8))
    files.signing_public.write_bytes(key.public_key().public_bytes(*_OPENSSH) + b"\n")


def read_signing_key(path: Path) -> str:
    """A server's public signing key, in 64 hexadecimal digits; an error says where the file comes from."""
    if not path.is_file():
        raise FileNotFoundError(
            f"no key of the server at {path}; the server's operator has it as {SIGNING_PUBLIC}, made by `fedsw certs`"
        )
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise ValueError(f"{path} is no public Ed25519 key in OpenSSH's format; take the server's {SIGNING_PUBLIC}")
    return key.public_bytes_raw().hex()


def valid_until(certificate: Path) -> datetime.datetime:
    """Return the end of a certificate's validity, in UTC; ValueError if the file holds no certificate."""
    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except ValueError as fault:
        raise ValueError(f"{certificate} is no certificate: {fault}") from None


def warn_of_expiry(certificates: Sequence[Path]) -> None:
    """Warn of certificates that end within 30 days, and refuse those that have ended, with the remedy."""
    now = datetime.datetime.now(datetime.UTC)
    for path in certificates:
        end = valid_until(path)
        remedy = "`fedsw certs` makes new ones, and every client needs the new ca.crt (docs/security.md)"
        if end <= now:
            raise ValueError(f"{path} ended on {end:%Y-%m-%d} and is valid no longer; {remedy}")
        if end - now <= _SOON:
            warnings.warn(f"{path} ends on {end:%Y-%m-%d}, in {(end - now).days} days; {remedy}", stacklevel=2)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_MAY_DIFFER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
"""A part of a host name between dots; the names of containers have underscores."""
_LONGEST_HOST = 253


def _host(host: str) -> x509.GeneralName:
    """A host name or an IP address as a certificate has it; ValueError says what is wrong, and what to write."""
    address, _, zone = host.partition("%")
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        parsed = None
    if parsed is not None and zone:
        raise ValueError(
            f"{host!r} has the zone {zone!r}, which is a card of one machine, and other machines cannot ask for it: "
            f"write {address!r}"
        )
    if parsed is not None:
        return x509.IPAddress(parsed)
    if not host.isascii() and host.isprintable():
        parts = (unicodedata.normalize("NFC", part).lower() for part in host.split("."))
        written = [part if part.isascii() else f"xn--{part.encode('punycode').decode('ascii')}" for part in parts]
        raise ValueError(
            f"{host!r} has letters that no certificate has; write {'.'.join(written)!r}, here and at the clients"
        )
    labels = host.split(".")
    if not all(map(_LABEL.fullmatch, labels)) or len(host) > _LONGEST_HOST or labels[-1].isdigit():
        raise ValueError(
            f"{host!r} is neither a host name nor an IP address (no port, no https://): parts between dots have 1 to "
            f"63 letters, digits, '-' and '_', none begins or ends with '-', the last is no number, and all together "
            f"{_LONGEST_HOST} at most"
        )
    return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    others = ("key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only")
    unused, signs_data, signs = ("content_commitment", *others), not signs_certificates, signs_certificates
    return x509.KeyUsage(
        digital_signature=signs_data, key_cert_sign=signs, crl_sign=signs, **dict.fromkeys(unused, False)
    )


def write_node_key(path: Path) -> Path:
    """Make an EC P-384 key pair for Flower: `path` (mode 0600), never replaced, and `path`.pub, returned."""
    private_folder(path.parent)
    key = ec.generate_private_key(ec.SECP384R1())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    write_secret(path, key.private_bytes(*form))
    public = path.with_name(path.name + ".pub")
    public.write_bytes(key.public_key().public_bytes(*_OPENSSH) + b"\n")
    return public


def write_federation(folder: Path, hosts: list[str], clients: int) -> tuple[Path, list[Path]]:
    """Certificates and node keys of a federation: a folder for each machine with all that it needs and nothing more."""
    certificates = write_certificates(server := folder / "server", [*hosts, *LOOPBACK])
    admitted = private_folder(server / "nodes")
    machines = []
    for client in range(clients):
        machine = private_folder(folder / f"client{client}")
        public_key = write_node_key(machine / "node.key")
        (admitted / f"client{client}.pub").write_bytes(public_key.read_bytes())
        for public in (certificates.authority, certificates.signing_public):
            (machine / public.name).write_bytes(public.read_bytes())
        machines.append(machine)
    return server, machines
