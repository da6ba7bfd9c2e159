"""TLS: the server's certificate and key, and the authorities that clients' certificates must come from."""

import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from attendant.runtime.errors import UserError
from attendant.server.access.reloading import Reloaded, read_bytes

CERTIFICATE, KEY, CLIENT_CA = "--tls-certificate", "--tls-key", "--tls-client-ca"

PEER_CERTIFICATE = "peer_certificate"
"""Where the HTTP port puts a client's certificate: a key of what a request knows of its connection."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """The same files, as gRPC's port and as the HTTP port take them."""

    for_grpc: grpc.ServerCertificateConfiguration
    for_http: ssl.SSLContext


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

    def read(self) -> Certificates:
        """Reads the files, and checks that they can be used and belong together.

        gRPC itself finds out at a connection, and tells nobody but its own log.

        Raises:
            UserError: they can't be read or used.
        """
        certificate, key = read_bytes(CERTIFICATE, self.certificate), read_bytes(KEY, self.key)
        roots = None if self.client_ca is None else read_bytes(CLIENT_CA, self.client_ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Without a password of ours OpenSSL would ask the terminal for one.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise UserError(
                f"{CERTIFICATE}: {self.certificate} and {KEY} {self.key} can't be used together: {_reason(error)}; "
                "both must be PEM, the key without a password"
            ) from None
        if roots is not None:
            try:
                context.load_verify_locations(cadata=roots.decode("ascii", errors="replace"))
            except (OSError, ValueError) as error:
                raise UserError(f"{CLIENT_CA}: {self.client_ca} can't be used: {_reason(error)}; must be PEM") from None
            context.verify_mode = ssl.CERT_REQUIRED
            # A session that is resumed is not verified again: with a ticket, that would be for hours.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return Certificates(grpc.ssl_server_certificate_configuration([(key, certificate)], roots), context)


def _reason(error: OSError | ValueError) -> str:
    """In OpenSSL's words, where it has any."""
    reason: str | None = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else "no PEM that can be read"


def server_credentials(certificates: Reloaded[Certificates], *, ask_clients: bool) -> grpc.ServerCredentials:
    """Credentials that take what the files hold at each new connection.

    Args:
        ask_clients: whether a client without a certificate of the authorities is refused, at its connection.
    """
    initial = handed = certificates.value.for_grpc

    def changed() -> Any:
        """What gRPC asks for at each connection, on a thread of its own; None: as before."""
        nonlocal handed
        latest = certificates.value.for_grpc
        # gRPC keeps sessions with what it is handed: a client with a certificate must not resume one, unverified.
        if latest is handed and not ask_clients:
            return None
        handed = latest
        return latest

    return grpc.dynamic_ssl_server_credentials(initial, changed, ask_clients)


def name_in_peer_certificate(certificate: dict[str, Any]) -> str:
    """The common name of a client's certificate, or its first alternative name; see `clients.name_in_certificate`.

    Args:
        certificate: what ssl's `getpeercert` returns.
    """
    names = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    names += [value for _, value in certificate.get("subjectAltName", ())]
    return next(filter(None, names), "")


def has_expired(certificate: dict[str, Any]) -> bool:
    """Returns whether a client's certificate, as ssl's `getpeercert` returns it, is no longer valid."""
    return ssl.cert_time_to_seconds(certificate["notAfter"]) < time.time()
