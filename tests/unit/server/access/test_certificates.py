"""Certificate files that can't be used are refused before gRPC sees them."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from attendant.runtime.errors import UserError
from attendant.server.credentials import CertificateFiles
from tests.certificates import Authority, new_authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def files(certificate: Path, key: Path, client_ca: Path | None = None) -> CertificateFiles:
    return CertificateFiles(certificate=certificate, key=key, client_ca=client_ca)


def test_files_that_belong_together(authority: Authority) -> None:
    assert files(*authority.issue("server")).read() is not None
    assert files(*authority.issue("server"), authority.certificate).read() is not None


def test_a_key_of_another_certificate(authority: Authority) -> None:
    certificate, _ = authority.issue("server")
    _, key = authority.issue("other")
    with pytest.raises(UserError) as caught:
        files(certificate, key).read()
    assert str(caught.value) == (
        f"--tls-certificate: {certificate} and --tls-key {key} can't be used together: key values mismatch; both must "
        "be PEM, the key without a password"
    )


@pytest.mark.parametrize(
    "text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_files_that_are_no_pem(authority: Authority, text: str) -> None:
    certificate, key = authority.issue("server")
    broken = authority.folder / "broken"
    broken.write_text(text)
    for wrong in (files(broken, key), files(certificate, broken), files(certificate, key, broken)):
        with pytest.raises(UserError, match="must be PEM") as caught:
            wrong.read()
        assert "\n" not in str(caught.value) and str(broken) in str(caught.value)


def test_a_key_with_a_password(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    private = load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    with pytest.raises(UserError, match=r"the key without a password$"):
        files(certificate, key).read()


def test_files_that_are_not_there(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    nowhere = authority.folder / "nowhere"
    for wrong, option in (
        (files(nowhere, key), "--tls-certificate"),
        (files(certificate, nowhere), "--tls-key"),
        (files(certificate, key, nowhere), "--tls-client-ca"),
    ):
        with pytest.raises(UserError, match=f"^{option}: {nowhere} can't be read: No such file or directory$"):
            wrong.read()
