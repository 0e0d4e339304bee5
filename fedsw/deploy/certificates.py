"""A certificate for a SuperLink: an authority for this one federation signs it and is then forgotten."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsw.deploy.secret_files import private_folder, write_secret

DAYS = 365
LOOPBACK = ("localhost", "127.0.0.1")
_CLOCKS_MAY_DIFFER = datetime.timedelta(minutes=10)


@dataclass(frozen=True)
class ServerCertificates:
    """Paths: the authority's certificate goes to every machine, the other two stay with the SuperLink."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path) -> ServerCertificates:
        """The names of the files in a folder."""
        return cls(folder / "ca.crt", folder / "server.pem", folder / "server.key")


def write_certificates(folder: Path, hosts: Sequence[str], *, days: int = DAYS) -> ServerCertificates:
    """Make a certificate that is valid for `hosts` (DNS names and IP addresses), for a server only.

    Guarantee: the authority's key exists in memory only, while this function runs. Who trusts `ca.crt` trusts this
    one server certificate; nobody can issue a second one, and a new one means a new `ca.crt`.

    Raises:
        ValueError: if no host is named, or a name is no host name. FileExistsError: if the files are there already.
    """
    if not hosts:
        raise ValueError("a certificate needs at least one host name or IP address that clients will connect to")
    names = [_host(host) for host in dict.fromkeys(hosts)]
    files = ServerCertificates.of(private_folder(folder))
    for path in (files.authority, files.certificate, files.key):
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
    write_secret(
        files.key,
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
    return files


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


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    if not host or not host.isascii() or any(not label or not label.replace("-", "").isalnum() for label in labels):
        raise ValueError(f"{host!r} is neither a host name nor an IP address (no port, no https://)")
    return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
