"""Certificates for tests, written as files."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority in its own folder.

    Attributes:
        certificate: the file of its own certificate, PEM.
    """

    folder: Path
    ca: trustme.CA
    certificate: Path

    def issue(self, name: str, *identities: str, **validity: datetime) -> tuple[Path, Path]:
        """Writes a certificate with `name` in its subject, and its key; returns their files.

        Args:
            validity: trustme's `not_before` and `not_after`.
        """
        issued = self.ca.issue_cert(*(identities or ("localhost", "127.0.0.1")), common_name=name, **validity)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return certificate, key


def new_authority(folder: Path) -> Authority:
    """Makes an authority, and its folder if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    ca = trustme.CA()
    certificate = folder / "authority.pem"
    ca.cert_pem.write_to_path(str(certificate))
    return Authority(folder, ca, certificate)


def put(files: tuple[Path, Path], places: tuple[Path, Path]) -> None:
    """Writes the contents of a certificate and its key into other files."""
    for file, place in zip(files, places, strict=True):
        place.write_bytes(file.read_bytes())
