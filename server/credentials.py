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
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hmac import compare_digest
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

import grpc

from attendant.runtime.errors import UserError
from attendant.runtime.files import reading_error
from attendant.server.errors import Unauthenticated

log = logging.getLogger(__name__)

DIGEST_PREFIX = "sha256:"
MIN_TOKEN_CHARACTERS = 16
CLIENT_NAME = re.compile(r"[A-Za-z0-9._@/-]{1,64}")
DIGEST = re.compile(r"[0-9a-fA-F]{64}")
TOKEN = re.compile(r"[!-~]+")

Limits = tuple[float | None, float | None]
"""Requests and bytes per second. If one is None, there is no limit."""

State = tuple[tuple[int, ...], ...]
"""The state of some files: it changes when any of them does."""

T = TypeVar("T")


class Reloaded(Generic[T]):
    """The value of some files, which are read again when they change.

    A change counts when the files were in the same state in two checks, so that a file that is still being written, or
    a key whose certificate is yet to come, is left alone. If the files can't be read, the former value stays, and a
    warning is logged.

    Attributes:
        value: the content of the files when they were last valid; any thread may read it.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Reads the files.

        Args:
            read: raises UserError if they can't be used. Its message is logged, so it must not quote the content.

        Raises:
            UserError: from `read`.
        """
        self._paths = tuple(paths)
        self._read = read
        self._taken = self._last_seen = self._state()
        self.value = read()

    def look(self) -> None:
        """Reads the files if they have changed, and were the same in two checks."""
        state, before = self._state(), self._last_seen
        self._last_seen = state
        if state != self._taken and state == before:
            self.reload()

    def reload(self) -> None:
        state = self._state()
        names = ", ".join(map(str, self._paths))
        try:
            value = self._read()
        except UserError as error:
            self._taken = state
            log.warning("not reloaded", extra={"files": names, "reason": str(error)})
            return
        # If they changed while they were read, the parts may not belong together.
        if self._state() == state:
            self._taken, self.value = state, value
            log.info("reloaded", extra={"files": names})

    def _state(self) -> State:
        return tuple(map(state_of, self._paths))


def state_of(path: Path) -> tuple[int, ...]:
    """Returns numbers that change when the file does; none if there is no file."""
    try:
        facts = path.stat()
    except OSError:
        return ()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def read_bytes(option: str, path: Path) -> bytes:
    """Reads the file that an option names. Raises UserError: it can't be read, or only once, as a pipe."""
    try:
        if path.is_file() or not path.exists():
            return path.read_bytes()
    except OSError as error:
        raise UserError(f"{option}: {path} can't be read: {reading_error(error)}") from None
    raise UserError(f"{option}: {path} must be a regular file, because it is read again when it changes")


@dataclass(frozen=True, slots=True)
class Certificates:
    """The same certificates in the forms that gRPC's port and the HTTP port need.

    Attributes:
        expires_at: in seconds since 1970, when the first of those that are valid now expires, clients' authorities
            included.
    """

    for_grpc: grpc.ServerCertificateConfiguration
    for_http: ssl.SSLContext
    expires_at: float


def read_certificates(certificate_path: Path, key_path: Path, client_ca: Path | None = None) -> Certificates:
    """Reads files of PEM, and checks that they can be used and belong together.

    gRPC itself would only find out at the first connection, and report it in its own log.

    Args:
        certificate_path: the server's own, followed by those between it and its authority.
        client_ca: if None, clients need no certificate.

    Raises:
        UserError: they can't be read or used.
    """
    certificate, key = read_bytes("--tls-certificate", certificate_path), read_bytes("--tls-key", key_path)
    roots = None if client_ca is None else read_bytes("--tls-client-ca", client_ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password OpenSSL would ask the terminal for one.
        context.load_cert_chain(certificate_path, key_path, password="")
    except (OSError, ValueError) as error:
        raise UserError(
            f"--tls-certificate: {certificate_path} and --tls-key {key_path} can't be used together: {_reason(error)}; "
            "both must be PEM, the key without a password"
        ) from None
    if roots is not None:
        try:
            context.load_verify_locations(cadata=_ascii(roots))
        except (OSError, ValueError) as error:
            raise UserError(f"--tls-client-ca: {client_ca} can't be used: {_reason(error)}; must be PEM") from None
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session is not verified again, and a ticket would allow that for hours.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        if reason := _outdated(context):
            log.warning("clients of an authority are refused", extra={"file": str(client_ca), "reason": reason})
    reason, expiry = _clients_view(context, certificate)
    if reason:
        log.warning("clients refuse the certificate", extra={"file": str(certificate_path), "reason": reason})
    expiries = [expiry, *(ssl.cert_time_to_seconds(authority["notAfter"]) for authority in _authorities(context))]
    expires_at = min((each for each in expiries if each > time.time()), default=math.inf)
    return Certificates(grpc.ssl_server_certificate_configuration([(key, certificate)], roots), context, expires_at)


def _ascii(pem: bytes) -> str:
    """Returns certificates as `cadata` takes them; comments between them may have other characters."""
    return pem.decode("ascii", errors="ignore")


def _clients_view(context: ssl.SSLContext, certificate: bytes) -> tuple[str, float]:
    """Returns why every client refuses a certificate, e.g. because it has expired, or an empty string; and its expiry,
    which is infinite if it is unknown.

    A client in this process, which trusts the certificate itself, shakes hands with it. So names and authorities, which
    clients judge differently, don't count.
    """
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(cadata=_ascii(certificate))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    try:
        for end in (client, server, client):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError as error:
        return getattr(error, "verify_message", "") or _reason(error), math.inf
    with suppress(ValueError):  # TLS 1.2 would need a round in which the server requests a client's certificate
        shown = cast(dict[str, Any], client.getpeercert())
        return "", ssl.cert_time_to_seconds(shown["notAfter"])
    return "", math.inf


def _outdated(context: ssl.SSLContext) -> str:
    """Returns why clients of an authority that a context trusts are refused now, or an empty string."""
    for authority in _authorities(context):
        name = ", ".join(value for part in authority["subject"] for _, value in part)
        if ssl.cert_time_to_seconds(authority["notAfter"]) < time.time():
            return f"the certificate of the authority {name} has expired"
        if ssl.cert_time_to_seconds(authority["notBefore"]) > time.time():
            return f"the certificate of the authority {name} is not yet valid"
    return ""


def _authorities(context: ssl.SSLContext) -> list[Any]:
    return cast(list[Any], context.get_ca_certs())


def _reason(error: OSError | ValueError) -> str:
    """Returns OpenSSL's reason if it has one."""
    reason: str | None = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else "no PEM that can be read"


class Token(NamedTuple):
    """A line of a file of tokens.

    Attributes:
        name: the client's.
        expires_at: in seconds since 1970.
        limits: the client's own requests and bytes per second; if None, the options decide.
    """

    name: str
    digest: bytes
    expires_at: float = math.inf
    limits: Limits = (None, None)


class Tokens:
    """The known tokens, by their digests, which are compared in constant time."""

    _INDEXED_BYTES = 4
    """The first bytes of a digest select the candidates. They reveal nothing of the token: a client that searches for a
    token whose digest begins with certain bytes learns only these bits of the digest."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._candidates: dict[bytes, list[Token]] = {}
        self._limits: dict[str, Limits] = {}
        for token in tokens:
            self._candidates.setdefault(token.digest[: self._INDEXED_BYTES], []).append(token)
            requests, num_bytes = self.limits_of(token.name)
            self._limits[token.name] = requests or token.limits[0], num_bytes or token.limits[1]

    def __len__(self) -> int:
        return len(self._candidates)

    def limits_of(self, client: str) -> Limits:
        """Returns the limits of a client, each from the first of its lines that has it."""
        return self._limits.get(client, (None, None))

    def name_of(self, authorization: str) -> str:
        """Returns the client whose token is in an `authorization` header, which is empty if there is no header.

        Raises:
            Unauthenticated: it has no bearer token, or an unknown or expired one.
        """
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("this server requires a token; send it as `authorization: Bearer TOKEN`")
        digest = digest_of(text.strip())
        for token in self._candidates.get(digest[: self._INDEXED_BYTES], ()):
            if compare_digest(token.digest, digest):
                if token.expires_at <= time.time():
                    raise Unauthenticated("the token has expired")
                return token.name
        raise Unauthenticated("the token is not known here; it may have been replaced")


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def read_tokens(path: Path, option: str = "--tokens") -> Tokens:
    """Reads a file of tokens, which an option names.

    Raises:
        UserError: it can't be read, or has an invalid line, which is named by its number and never quoted.
    """
    tokens: dict[bytes, Token] = {}
    try:
        lines = read_bytes(option, path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{option}: {path} is not UTF-8") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            token = _read_line(line)
            if tokens.setdefault(token.digest, token) != token:
                raise ValueError("has the token of an earlier line, with another client, expiry or limit")
        except ValueError as error:
            raise UserError(f"{option}: {path}, line {number} {error}") from None
    return Tokens(tokens.values())


def _read_line(line: str) -> Token:
    fields = line.split()
    if len(fields) < 2:
        raise ValueError(f"must be NAME {DIGEST_PREFIX}DIGEST or NAME TOKEN")
    name, text, *facts = fields
    if not CLIENT_NAME.fullmatch(name):
        raise ValueError("begins with a name that is not 1 to 64 letters, digits or any of . _ @ / -")
    if text.startswith(DIGEST_PREFIX):
        digits = text.removeprefix(DIGEST_PREFIX)
        if not DIGEST.fullmatch(digits):
            raise ValueError(f"has no 64 hexadecimal digits after {DIGEST_PREFIX}")
        digest = bytes.fromhex(digits)
    elif len(text) >= MIN_TOKEN_CHARACTERS and TOKEN.fullmatch(text):
        digest = digest_of(text)
    else:
        raise ValueError(f"has a token that is not {MIN_TOKEN_CHARACTERS} or more printable ASCII characters")
    expires_at, rates = math.inf, dict.fromkeys(("requests_per_second", "bytes_per_second"), 0.0)
    for fact in facts:
        key, _, value = fact.partition("=")
        try:
            if key == "expires":
                moment = datetime.fromisoformat(value)
                expires_at = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
                continue
            if key in rates and 0 < (rate := float(value)) < math.inf:
                rates[key] = rate
                continue
        except ValueError:
            pass
        raise ValueError(f"must have, after its token, only expires=DATE and {'=NUMBER, '.join(rates)}=NUMBER")
    requests, num_bytes = rates.values()
    return Token(name, digest, expires_at, (requests or None, num_bytes or None))
