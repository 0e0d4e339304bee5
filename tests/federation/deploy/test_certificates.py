"""Which names a certificate is made for: those that clients can ask for, and no others."""

from __future__ import annotations

import pytest
from cryptography import x509

from fedsw.cli.app import main
from fedsw.federation.deploy.certificates import write_certificates


@pytest.mark.parametrize(
    "host",
    [
        "fed.example.org",
        "fed_server-1",  # a container's name
        "_service.internal",
        "a" * 63,
        "xn--klinik-kln-lcb.de",
        "10.0.0.5",
        "fe80::1",
        "localhost",
    ],
)
def test_names_that_machines_and_containers_have_are_in_the_certificate(host, tmp_path):
    files = write_certificates(tmp_path / "c", [host])
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [host]


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("a" * 64, "1 to 63 letters"),
        (".".join(["a" * 60] * 5), "253 at most"),
        ("-fed", "none begins or ends with '-'"),
        ("fed-.example", "none begins or ends with '-'"),
        ("fed..example", "1 to 63 letters"),
        ("https://fed", "no https://"),
        ("fed:9092", "no port"),
        ("10.0.0.256", "the last is no number"),
        ("fe80::1%eth0", "zone 'eth0'.*write 'fe80::1'"),
        ("klinik-köln.de", "write 'xn--klinik-kln-lcb.de', here and at the clients"),
        ("Klinik-Ko\u0308ln.de", "write 'xn--klinik-kln-lcb.de'"),
        ("fed\u202eexample", "neither a host name"),
        ("fed example", "neither a host name"),
        ("", "neither a host name"),
    ],
)
def test_a_name_that_nobody_can_ask_for_is_refused_with_what_to_write(host, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        write_certificates(tmp_path / "c", [host])
    assert main(["certs", "--host", host, "--out", str(tmp_path / "c"), "--clients", "2"]) == 2
    assert not (tmp_path / "c").exists()
