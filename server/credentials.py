"""Certificates and tokens: files that are followed while the server runs, so that they are replaced without a restart.

A file of tokens has one token per line. It need hold no secret, only the tokens' digests:

    # the client's name, then the SHA-256 of its token, or the token itself
    search  sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    mail    yE3f...

    batch   sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752 expires=2027-01-31

A client may have several lines, e.g. while its token is being replaced. A token may be followed by `expires`, a date or
a time (UTC if it names no zone), and by its client's own limits: `requests_per_second` and `bytes_per_second`.
"""

import hashlib
import logging
import math
import re
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hmac import compare_digest
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import grpc

from attendant.runtime.errors import UserError
from attendant.server.errors import Unauthenticated

log = logging.getLogger(__name__)

Limits = tuple[float | None, float | None]
"""Requests and bytes per second; None: no limit."""

T = TypeVar("T")

State = tuple[tuple[int, ...], ...]


class Reloaded(Generic[T]):
    """What some files hold together, read anew when they change.

    A change counts once two looks have found the files in the same state, so that a file that is still being written,
    or a key whose certificate is yet to come, is left alone. What can't be read changes nothing: the former value
    stays, and the log gets one line.

    Attributes:
        value: what the files held when they were last whole; any thread may read it.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Reads the files.

        Args:
            read: raises UserError where they can't be used. Its message goes to the log, so it quotes no contents.

        Raises:
            UserError: from `read`.
        """
        self._paths = tuple(paths)
        self._read = read
        self._taken = self._last_seen = self._state()
        self.value = read()

    def look(self) -> None:
        """Looks at the files, and reads them where they have changed and are at rest."""
        state, before = self._state(), self._last_seen
        self._last_seen = state
        if state != self._taken and state == before:
            self.reload()

    def reload(self) -> None:
        """Reads the files."""
        state = self._state()
        names = ", ".join(map(str, self._paths))
        try:
            value = self._read()
        except UserError as error:
            self._taken = state
            log.warning("not reloaded", extra={"files": names, "reason": str(error)})
            return
        # Changed while it was read: the parts may not belong together.
        if self._state() == state:
            self._taken, self.value = state, value
            log.info("reloaded", extra={"files": names})

    def _state(self) -> State:
        return tuple(map(state_of, self._paths))


def state_of(path: Path) -> tuple[int, ...]:
    """What changes when a file does; empty where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_bytes(option: str, path: Path) -> bytes:
    """A file that an option names.

    Raises:
        UserError: it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{option}: {path} can't be read: {error.strerror or error}") from None


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


TOKENS, ADMIN_TOKENS = "--tokens", "--admin-tokens"
DIGEST_PREFIX = "sha256:"
MIN_TOKEN_CHARACTERS = 16
CLIENT_NAME = re.compile(r"[A-Za-z0-9._@/-]{1,64}")
DIGEST = re.compile(r"[0-9a-fA-F]{64}")
TOKEN = re.compile(r"[!-~]+")

# A digest's first bytes say where to look. They tell nothing of the token: whoever wants a digest that begins in a
# certain way has to search for it, and learns a few bits of a digest.
_INDEXED_BYTES = 4


class Token(NamedTuple):
    """A line of the file.

    Attributes:
        name: of the client.
        expires_at: in seconds since 1970.
        limits: requests and bytes per second; None where the options decide.
    """

    name: str
    digest: bytes
    expires_at: float = math.inf
    limits: Limits = (None, None)


class Tokens:
    """The tokens that are let in, by their digests; compared in constant time."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._found: dict[bytes, list[Token]] = {}
        self._limits: dict[str, Limits] = {}
        for token in tokens:
            self._found.setdefault(token.digest[:_INDEXED_BYTES], []).append(token)
            self._limits.setdefault(token.name, token.limits)

    def __len__(self) -> int:
        return len(self._found)

    def limits_of(self, client: str) -> Limits:
        """The limits in the first line of a client."""
        return self._limits.get(client, (None, None))

    def name_of(self, authorization: str) -> str:
        """The client whose token stands in an `authorization` header; empty: there is no header.

        Raises:
            Unauthenticated: no bearer token, or one that is not known.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("this server asks for a token; send it as `authorization: Bearer TOKEN`")
        presented = digest_of(token.strip())
        for one in self._found.get(presented[:_INDEXED_BYTES], ()):
            if compare_digest(one.digest, presented):
                if one.expires_at <= time.time():
                    raise Unauthenticated("the token has expired")
                return one.name
        raise Unauthenticated("the token is not known here; it may have been replaced")


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def read_tokens(path: Path, option: str = TOKENS) -> Tokens:
    """Reads a file of tokens, which an option names.

    Raises:
        UserError: it can't be read, or has a line that is none; by the line's number, never its words.
    """
    found: dict[bytes, Token] = {}
    try:
        lines = read_bytes(option, path).decode().splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{option}: {path} is not UTF-8") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            token = _read_line(line)
            if found.setdefault(token.digest, token).name != token.name:
                raise ValueError("has the token of another client")
        except ValueError as error:
            raise UserError(f"{option}: {path}, line {number} {error}") from None
    return Tokens(found.values())


def _read_line(line: str) -> Token:
    fields = line.split()
    if len(fields) < 2:
        raise ValueError(f"must be NAME {DIGEST_PREFIX}DIGEST or NAME TOKEN")
    name, token, *facts = fields
    if not CLIENT_NAME.fullmatch(name):
        raise ValueError("begins with a name that is not 1 to 64 letters, digits or any of . _ @ / -")
    if token.startswith(DIGEST_PREFIX):
        digest = token.removeprefix(DIGEST_PREFIX)
        if not DIGEST.fullmatch(digest):
            raise ValueError(f"has no 64 hexadecimal digits after {DIGEST_PREFIX}")
        return _with_facts(Token(name, bytes.fromhex(digest)), facts)
    if len(token) < MIN_TOKEN_CHARACTERS or not TOKEN.fullmatch(token):
        raise ValueError(f"has a token that is not {MIN_TOKEN_CHARACTERS} or more printable ASCII characters")
    return _with_facts(Token(name, digest_of(token)), facts)


def _with_facts(token: Token, facts: Sequence[str]) -> Token:
    """The token with what follows it in its line."""
    numbers: dict[str, float | None] = {"requests_per_second": None, "bytes_per_second": None}
    for fact in facts:
        key, _, value = fact.partition("=")
        try:
            if key == "expires":
                moment = datetime.fromisoformat(value)
                token = token._replace(expires_at=moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
                continue
            if key in numbers and 0 < (number := float(value)) < math.inf:
                numbers[key] = number
                continue
        except ValueError:
            pass
        raise ValueError(f"must have, after its token, only expires=DATE and {'=NUMBER, '.join(numbers)}=NUMBER")
    return token._replace(limits=(numbers["requests_per_second"], numbers["bytes_per_second"]))
