"""Authentication: which client makes a call, whether it may, and how much each client may ask for."""

import asyncio
import ipaddress
import logging
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc

from attendant.runtime.errors import UserError
from attendant.server.call import Call
from attendant.server.config import Openness, OpennessOrOff, ServerConfig
from attendant.server.credentials import (
    ADMIN_TOKENS,
    CERTIFICATE,
    CLIENT_CA,
    DIGEST_PREFIX,
    KEY,
    TOKENS,
    CertificateFiles,
    Certificates,
    Limits,
    Reloaded,
    Tokens,
    read_tokens,
    server_credentials,
)
from attendant.server.errors import PermissionDenied, Unauthenticated


class Shares:
    """A number of places. A client may take as many as are still free, so another client always gets some."""

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self._taken: Counter[str] = Counter()

    @property
    def num_taken(self) -> int:
        return self._taken.total()

    def take(self, client: str) -> bool:
        """Takes a place, to be given back; returns False if the client has its share."""
        if self._taken[client] >= self.num_places - self.num_taken:
            return False
        self._taken[client] += 1
        return True

    def taken_by(self, client: str) -> int:
        return self._taken[client]

    def give_back(self, client: str) -> None:
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]


BURST_SECONDS = 1.0
MAX_CLIENTS = 16384
"""Whose account is kept. A client that was dropped begins anew, which gives it a second's worth at most."""

NO_LIMIT = float("inf")


class Rates:
    """The accounts of the clients that were seen last.

    Attributes:
        limited: there is a limit; where there is none, `take` need not be called.
    """

    def __init__(
        self,
        requests_per_second: float | None = None,
        bytes_per_second: float | None = None,
        *,
        own_limits: Callable[[str], Limits] | None = None,
        max_clients: int = MAX_CLIENTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """None: no limit. `own_limits`: returns those of a client, each in the place of the common one."""
        self.limited = any((requests_per_second, bytes_per_second, own_limits))
        self._limits = requests_per_second, bytes_per_second
        self._own_limits = own_limits or (lambda client: (None, None))
        self._max_clients = max_clients
        self._clock = clock
        # Client -> when its requests, and its bytes, will have been paid for; who was seen last stands last.
        self._paid_at: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._paid_at)

    def take(self, client: str, num_bytes: int, num_requests: int = 1) -> float:
        """Charges a client for requests of so many bytes in all, and returns 0.

        A client that is too far ahead is charged nothing. What is returned then: the seconds until it would be let in.
        """
        now = self._clock()
        requests, of_bytes = self._paid_at.get(client, (now, now))
        wait = max(requests, of_bytes) - BURST_SECONDS - now
        if wait > 0:
            return wait
        self.charge(client, num_bytes, num_requests)
        return 0.0

    def charge(self, client: str, num_bytes: int, num_requests: int) -> None:
        """Charges a client that has been let in, however far ahead it is."""
        now = self._clock()
        requests, of_bytes = self._paid_at.get(client, (now, now))
        of_requests, of_all_bytes = (
            own or common or NO_LIMIT for own, common in zip(self._own_limits(client), self._limits, strict=True)
        )
        self._paid_at[client] = (
            max(requests, now) + num_requests / of_requests,
            max(of_bytes, now) + num_bytes / of_all_bytes,
        )
        self._paid_at.move_to_end(client)
        if len(self._paid_at) > self._max_clients:
            self._paid_at.popitem(last=False)


log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often the files are looked at; a change counts at the second look that finds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may call. Without arguments everybody, as often as they like.

    Attributes:
        certificates: None: no TLS.
        asks_for_certificates: whether a client needs one of its own.
        tokens: None: none are asked for.
        admin_tokens: of those who may load and unload models; None: nobody may.
        health, reflection: whether these ask for a token as well.
    """

    certificates: Reloaded[Certificates] | None = None
    asks_for_certificates: bool = False
    tokens: Reloaded[Tokens] | None = None
    admin_tokens: Reloaded[Tokens] | None = None
    rates: Rates = field(default_factory=Rates)
    health: Openness = "open"
    reflection: OpennessOrOff = "open"

    def credentials(self) -> grpc.ServerCredentials | None:
        """For the port; None: unencrypted."""
        if self.certificates is None:
            return None
        return server_credentials(self.certificates, ask_clients=self.asks_for_certificates)

    def http_context(self) -> ssl.SSLContext | None:
        """For the HTTP port's next connection; None: unencrypted.

        After a reload it is another one, in which no session from before can be resumed, unverified.
        """
        return None if self.certificates is None else self.certificates.value.for_http

    def client_of(self, call: Call) -> str:
        """Returns the caller's name: its token's, else its certificate's, else its address.

        Raises:
            Unauthenticated: calls need a token, and this one has none that is known.
        """
        if self.tokens is not None:
            try:
                return self.tokens.value.name_of(call.header("authorization"))
            except Unauthenticated:
                if self.admin_tokens is None:
                    raise
                return self.administrator_of(call)
        if self.asks_for_certificates:
            return call.certificate_name()
        return call.address

    def known_client(self, call: Call) -> str:
        """Returns the caller's name, or its address if it lacks credentials."""
        try:
            return self.client_of(call)
        except Unauthenticated:
            return call.address

    def administrator_of(self, call: Call) -> str:
        """Returns the name of the administrator who makes a call.

        Raises:
            PermissionDenied: the server has no administrators, or the token is a client's.
            Unauthenticated: there is no token, or none that is known.
        """
        if self.admin_tokens is None:
            raise PermissionDenied(f"nobody may do this here: the server was started without {ADMIN_TOKENS}")
        authorization = call.header("authorization")
        try:
            return self.admin_tokens.value.name_of(authorization)
        except Unauthenticated:
            if self.tokens is None:
                raise
            client = self.tokens.value.name_of(authorization)
            raise PermissionDenied(f"{client} may not do this: it needs a token of {ADMIN_TOKENS}") from None

    @contextmanager
    def following_files(self) -> Iterator[None]:
        """Keeps certificates and tokens as their files are."""
        followed = [one for one in (self.certificates, self.tokens, self.admin_tokens) if one is not None]

        async def follow() -> None:
            while followed:
                await asyncio.sleep(LOOK_SECONDS)
                for one in followed:
                    # The disk may be slow, and certificates take milliseconds to check.
                    await asyncio.to_thread(one.look)

        following = asyncio.create_task(follow())
        try:
            yield
        finally:
            following.cancel()

    def reload(self) -> None:
        """Reads certificates and tokens again, now."""
        for one in (self.certificates, self.tokens, self.admin_tokens):
            if one is not None:
                one.reload()

    def warn_of_strangers(self, host: str) -> None:
        """Says in the log what a port that other machines reach is open for."""
        if is_loopback(host):
            return
        if self.certificates is None:
            log.warning(f"unencrypted: others can read along; {CERTIFICATE} and {KEY} encrypt", extra={"host": host})
        if self.tokens is None and not self.asks_for_certificates:
            log.warning(
                f"open: whoever reaches the port may call; {TOKENS} or {CLIENT_CA} asks for credentials",
                extra={"host": host},
            )


def open_access(config: ServerConfig) -> Access:
    """Reads what the options name.

    Raises:
        UserError: a file that can't be used, or an option that needs another one.
    """
    certificates = tokens = admin_tokens = None
    if config.tls_certificate is not None and config.tls_key is not None:
        files = CertificateFiles(certificate=config.tls_certificate, key=config.tls_key, client_ca=config.tls_client_ca)
        certificates = Reloaded(files.paths, files.read)
    elif config.tls_certificate != config.tls_key:
        raise UserError(f"{CERTIFICATE} and {KEY} need each other; one of them is missing")
    elif config.tls_client_ca is not None:
        raise UserError(f"{CLIENT_CA} needs {CERTIFICATE} and {KEY}: clients show certificates over TLS alone")
    if (path := config.tokens) is not None:
        tokens = _opened(TOKENS, path)
    if (admin_path := config.admin_tokens) is not None:
        admin_tokens = _opened(ADMIN_TOKENS, admin_path)
    for option, value in (("--health", config.health), ("--reflection", config.reflection)):
        if value == "closed" and tokens is None and config.tls_client_ca is None:
            raise UserError(f"{option} is 'closed', but there are no credentials to ask for; add {TOKENS}")
    return Access(
        certificates=certificates,
        asks_for_certificates=config.tls_client_ca is not None,
        tokens=tokens,
        admin_tokens=admin_tokens,
        rates=Rates(
            config.client_requests_per_second,
            config.client_bytes_per_second,
            own_limits=None if tokens is None else partial(_limits_of, tokens),
        ),
        health=config.health,
        reflection=config.reflection or ("open" if tokens is None else "closed"),
    )


def _limits_of(tokens: Reloaded[Tokens], client: str) -> Limits:
    return tokens.value.limits_of(client)


def _opened(option: str, path: Path) -> Reloaded[Tokens]:
    """The tokens of a file that has some. Later it may have none: the last one was revoked."""
    tokens = Reloaded([path], lambda: read_tokens(path, option))
    if not tokens.value:
        raise UserError(f"{option}: {path} holds no token, so nobody could call; a line is NAME {DIGEST_PREFIX}DIGEST")
    return tokens


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
