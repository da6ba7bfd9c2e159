"""Access: which client makes a call, whether it is permitted, and the rate of each client."""

import asyncio
import ipaddress
import logging
import socket
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from attendant.runtime.command import set_variables
from attendant.runtime.errors import UserError
from attendant.server import credentials
from attendant.server.call import Call, Guard, RequestLog, Rpc
from attendant.server.config import Openness, OpennessOrOff, ServerConfig
from attendant.server.errors import PermissionDenied, RateLimited, TooManyCalls, TooManyStreams, Unauthenticated
from attendant.server.polling import checking

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Interval at which the files of certificates and tokens are checked; a change counts when two checks have seen it."""


def is_loopback(host: str) -> bool:
    """Returns whether all addresses of a host, which may be a name, can be reached from this machine alone."""
    try:
        addresses = [ipaddress.ip_address(address[0]) for *_, address in socket.getaddrinfo(host, None)]
    except (OSError, UnicodeError):
        return False
    return all((getattr(address, "ipv4_mapped", None) or address).is_loopback for address in addresses)


class Shares:
    """A number of places that clients share.

    A client may take as many as are still free, so another client always gets some.
    """

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self._taken: Counter[str] = Counter()

    @contextmanager
    def place(self, client: str, refusal: type[TooManyStreams | TooManyCalls]) -> Iterator[None]:
        """Holds a place until the end of the context. Raises `refusal` if the client has its share."""
        taken = self._taken
        if taken[client] >= self._num_places - taken.total():
            raise refusal(taken.total(), taken[client])
        taken[client] += 1
        try:
            yield
        finally:
            taken[client] -= 1
            if not taken[client]:
                del taken[client]


class Rates:
    """The rates of clients: requests and bytes per second.

    Each is a token bucket, kept as one number: the time at which everything taken so far will have been paid for (the
    generic cell rate algorithm, ITU-T I.371). A client may be ahead of its rate by one second's worth. Until then a
    request is admitted however large it is, and the excess is waited for afterwards.

    Attributes:
        limited: there is a limit; without one, `take` need not be called.
    """

    BURST_SECONDS = 1.0
    MAX_CLIENTS = 16384
    """Accounts that are kept: those of the most recent clients. A forgotten client gains a second's worth at most."""

    def __init__(
        self,
        requests_per_second: float | None = None,
        bytes_per_second: float | None = None,
        *,
        own_limits: Callable[[str], credentials.Limits] | None = None,
        max_clients: int = MAX_CLIENTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """If a rate is None, there is no limit. `own_limits` returns a client's own rates, which replace these."""
        self.limited = any((requests_per_second, bytes_per_second, own_limits))
        self._limits = requests_per_second, bytes_per_second
        self._own_limits = own_limits or (lambda client: (None, None))
        self._max_clients = max_clients
        self._clock = clock
        # Client -> when its requests, and its bytes, will have been paid for; the most recent client last.
        self._paid_at: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._paid_at)

    def take(self, client: str, num_bytes: int, num_requests: int = 1) -> float:
        """Charges a client for requests that have `num_bytes` bytes together, and returns 0.

        A client that is too far ahead is charged nothing. Then the seconds until it would be admitted are returned.
        """
        now = self._clock()
        wait = max(self._paid_at.get(client, (now, now))) - self.BURST_SECONDS - now
        if wait > 0:
            return wait
        self.charge(client, num_bytes, num_requests)
        return 0.0

    def charge(self, client: str, num_bytes: int, num_requests: int) -> None:
        """Charges a client that has been admitted, however far ahead it is."""
        now = self._clock()
        requests_paid, bytes_paid = self._paid_at.get(client, (now, now))
        requests_rate, bytes_rate = (
            own or common or float("inf") for own, common in zip(self._own_limits(client), self._limits, strict=True)
        )
        self._paid_at[client] = (
            max(requests_paid, now) + num_requests / requests_rate,
            max(bytes_paid, now) + num_bytes / bytes_rate,
        )
        self._paid_at.move_to_end(client)
        if len(self._paid_at) > self._max_clients:
            self._paid_at.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The server's rules of access. By default all clients may call, as often as they like.

    Attributes:
        certificates: if None, connections are not encrypted.
        asks_for_certificates: a client needs a certificate of its own.
        tokens: if None, calls need no token.
        admin_tokens: of clients that may load and unload models; if None, no client may.
        health, reflection: whether these services need a token as well.
    """

    certificates: credentials.Reloaded[credentials.Certificates] | None = None
    asks_for_certificates: bool = False
    tokens: credentials.Reloaded[credentials.Tokens] | None = None
    admin_tokens: credentials.Reloaded[credentials.Tokens] | None = None
    rates: Rates = field(default_factory=Rates)
    health: Openness = "open"
    reflection: OpennessOrOff = "open"

    def grpc_credentials(self) -> grpc.ServerCredentials | None:
        """Returns credentials that use the files' current content for each new connection; None if unencrypted."""
        if (certificates := self.certificates) is None:
            return None
        initial = latest = certificates.value.for_grpc

        def changed() -> Any:
            """Returns the configuration of a new connection, or None if it is the same; gRPC calls it on a thread."""
            nonlocal latest
            # gRPC keeps TLS sessions with each configuration. If clients need certificates, every connection gets a
            # new one, so that a client can't resume a session without being verified.
            if certificates.value.for_grpc is latest and not self.asks_for_certificates:
                return None
            latest = certificates.value.for_grpc
            return latest

        return grpc.dynamic_ssl_server_credentials(initial, changed, self.asks_for_certificates)

    def http_context(self) -> ssl.SSLContext | None:
        """Returns the TLS context of the HTTP port's next connection; None if unencrypted.

        A reload replaces it, so that no session from before the reload can be resumed without being verified.
        """
        return None if self.certificates is None else self.certificates.value.for_http

    def client_of(self, call: Call) -> str:
        """Returns the client's name: its token's, else its certificate's, else its address.

        Raises:
            Unauthenticated: a token is needed, and the call has no known one.
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
        """Returns the client's name, or its address if it lacks credentials."""
        try:
            return self.client_of(call)
        except Unauthenticated:
            return call.address

    def administrator_of(self, call: Call) -> str:
        """Returns the name of the administrator that makes a call.

        Raises:
            PermissionDenied: the server has no administrators, or the token is a client's.
            Unauthenticated: there is no known token.
        """
        if self.admin_tokens is None:
            raise PermissionDenied("this call needs an administrator; the server was started without --admin-tokens")
        authorization = call.header("authorization")
        try:
            return self.admin_tokens.value.name_of(authorization)
        except Unauthenticated:
            if self.tokens is None:
                raise
            client = self.tokens.value.name_of(authorization)
            raise PermissionDenied(f"{client} may not do this: it needs a token of --admin-tokens") from None

    def _files(self) -> list[credentials.Reloaded[Any]]:
        return [files for files in (self.certificates, self.tokens, self.admin_tokens) if files is not None]

    def following_files(self) -> AbstractContextManager[None]:
        """Takes over changes of certificates and tokens until the end of the context.

        Certificates that expire are read again, so that the log warns.
        """
        looked_at = time.time()

        async def look() -> None:
            nonlocal looked_at
            for files in self._files():
                # The disk may be slow, and certificates take milliseconds to check.
                await asyncio.to_thread(files.look)
            before, looked_at = looked_at, time.time()
            if self.certificates is not None and before < self.certificates.value.expires_at <= looked_at:
                await asyncio.to_thread(self.certificates.reload)

        return checking(POLL_SECONDS, look)

    def reload(self) -> None:
        for files in self._files():
            files.reload()

    def warn_if_exposed(self, host: str) -> None:
        """Logs a warning if other machines can reach the port without encryption or credentials."""
        if is_loopback(host):
            return
        if self.certificates is None:
            log.warning(
                "unencrypted: others can read along; --tls-certificate and --tls-key encrypt", extra={"host": host}
            )
        if self.tokens is None and not self.asks_for_certificates:
            log.warning(
                "open: every client that reaches the port may call; --tokens or --tls-client-ca requires credentials",
                extra={"host": host},
            )


def open_access(config: ServerConfig) -> Access:
    """Reads the files that the options name.

    Raises:
        UserError: a file that can't be used, or an option that needs another one.
    """
    certificates = None
    if config.tls_certificate is not None and config.tls_key is not None:
        files = (config.tls_certificate, config.tls_key, config.tls_client_ca)
        certificates = credentials.Reloaded(
            [path for path in files if path], partial(credentials.read_certificates, *files)
        )
    elif config.tls_certificate != config.tls_key:
        names = set_variables("tls_certificate", "tls_key")
        raise UserError(f"--tls-certificate and --tls-key need each other; one of them is missing{names}")
    elif config.tls_client_ca is not None:
        names = set_variables("tls_client_ca")
        raise UserError(
            f"--tls-client-ca needs --tls-certificate and --tls-key: clients show certificates over TLS alone{names}"
        )
    tokens, admin_tokens = _open_tokens("--tokens", config.tokens), _open_tokens("--admin-tokens", config.admin_tokens)
    for name, value in (("health", config.health), ("reflection", config.reflection)):
        if value == "closed" and tokens is None and config.tls_client_ca is None:
            remedy = f"add --tokens{set_variables(name)}"
            raise UserError(f"--{name} is 'closed', but the server accepts no credentials; {remedy}")
    token_files = [file for file in (tokens, admin_tokens) if file is not None]
    return Access(
        certificates=certificates,
        asks_for_certificates=config.tls_client_ca is not None,
        tokens=tokens,
        admin_tokens=admin_tokens,
        rates=Rates(
            config.client_requests_per_second,
            config.client_bytes_per_second,
            own_limits=partial(_own_limits, token_files) if token_files else None,
        ),
        health=config.health,
        reflection=config.reflection or ("open" if tokens is None else "closed"),
    )


def _own_limits(files: Sequence[credentials.Reloaded[credentials.Tokens]], client: str) -> credentials.Limits:
    """Returns a client's own limits, from the first file that has any."""
    return next((limits for file in files if any(limits := file.value.limits_of(client))), (None, None))


def _open_tokens(option: str, path: Path | None) -> credentials.Reloaded[credentials.Tokens] | None:
    """Opens a file with at least one token. Later it may become empty, when the last token is revoked."""
    if path is None:
        return None
    tokens = credentials.Reloaded([path], lambda: credentials.read_tokens(path, option))
    if not tokens.value:
        raise UserError(
            f"{option}: {path} holds no token, so no client can call; a line is NAME {credentials.DIGEST_PREFIX}DIGEST"
        )
    return tokens


class Gate:
    """Checks credentials, and keeps each client within its rate. All ports of the server use it."""

    def __init__(self, access: Access, log: RequestLog) -> None:
        self.access = access
        self.log = log

    def let_in(self, rpc: Rpc, request: Any, call: Call) -> None:
        """Sets the call's client, and charges it for the request.

        Args:
            request: or an iterator of requests, which are charged one by one, see `wait_seconds`.

        Raises:
            Failed: the call is refused, and has been counted.
            PermissionDenied, Unauthenticated: the call is refused; its method is not counted.
        """
        call.method = rpc.full_name
        if rpc.guard is Guard.NONE:
            call.client = call.address
            return
        try:
            administers = rpc.guard is Guard.ADMINISTRATORS
            call.client = (self.access.administrator_of if administers else self.access.client_of)(call)
            if not rpc.streams_requests and (seconds := self.wait_seconds(rpc, request, call)) > 0:
                raise RateLimited(seconds, retry_seconds=seconds)
        except (PermissionDenied, RateLimited, Unauthenticated) as error:
            call.client = call.client or self.access.known_client(call)
            if not rpc.is_counted:
                raise
            with self.log.begin(rpc.name, call, request):
                raise error

    def check_again(self, rpc: Rpc, call: Call) -> None:
        """Checks the credentials of a stream, whose token may have been revoked. Raises Failed."""
        if rpc.guard is not Guard.NONE:
            try:
                self.access.client_of(call)
            except Unauthenticated:
                with self.log.begin(rpc.name, call):
                    raise

    def wait_seconds(self, rpc: Rpc, request: Any, call: Call) -> float:
        """Charges the client for a request and returns 0, or returns the seconds until the request could be let in."""
        rates = self.access.rates
        if not (rates.limited and rpc.is_counted):
            return 0.0
        return rates.take(call.client, request.ByteSize(), rpc.size(request))

    def charge_listed(self, rpc: Rpc, request: Any, call: Call) -> None:
        """Charges the client for the requests of a list after the first one, for which `let_in` has charged it."""
        if (rates := self.access.rates).limited:
            rates.charge(call.client, 0, rpc.size(request) - 1)
