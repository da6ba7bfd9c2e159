"""TLS: the server's certificate and key, and the authorities that clients' certificates must come from."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from attendant.runtime.errors import UserError
from attendant.server.access.reloading import Reloaded, read_bytes

CERTIFICATE, KEY, CLIENT_CA = "--tls-certificate", "--tls-key", "--tls-client-ca"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """All PEM.

    Attributes:
        certificate: the server's own, then those between it and its authority.
        client_ca: None: clients need no certificate.
    """

    certificate: Path
    key: Path
    client_ca: Path | None

    @property
    def paths(self) -> list[Path]:
        return [self.certificate, self.key, *([] if self.client_ca is None else [self.client_ca])]

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Reads the files, and checks that they can be used and belong together.

        gRPC itself finds out at a connection, and tells nobody but its own log.

        Raises:
            UserError: they can't be read or used.
        """
        certificate, key = read_bytes(CERTIFICATE, self.certificate), read_bytes(KEY, self.key)
        roots = None if self.client_ca is None else read_bytes(CLIENT_CA, self.client_ca)
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Without a password of ours OpenSSL would ask the terminal for one.
            trial.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise UserError(
                f"{CERTIFICATE}: {self.certificate} and {KEY} {self.key} can't be used together: {_reason(error)}; "
                "both must be PEM, the key without a password"
            ) from None
        if roots is not None:
            try:
                trial.load_verify_locations(cadata=roots.decode("ascii", errors="replace"))
            except (OSError, ValueError) as error:
                raise UserError(f"{CLIENT_CA}: {self.client_ca} can't be used: {_reason(error)}; must be PEM") from None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], roots)


def _reason(error: OSError | ValueError) -> str:
    """In OpenSSL's words, where it has any."""
    reason: str | None = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else "no PEM that can be read"


def server_credentials(
    configuration: Reloaded[grpc.ServerCertificateConfiguration], *, ask_clients: bool
) -> grpc.ServerCredentials:
    """Credentials that take what the files hold at each new connection.

    Args:
        ask_clients: whether a client without a certificate of the authorities is refused, at its connection.
    """
    initial = handed = configuration.value

    def changed() -> Any:
        """What gRPC asks for at each connection, on a thread of its own; None: as before."""
        nonlocal handed
        latest = configuration.value
        if latest is handed:
            return None
        handed = latest
        return latest

    return grpc.dynamic_ssl_server_credentials(initial, changed, ask_clients)
