"""The server's options on who may call, read and checked: certificates, tokens, rates."""

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from attendant.runtime.errors import UserError
from attendant.server.access.certificates import (
    CERTIFICATE,
    CLIENT_CA,
    KEY,
    CertificateFiles,
    Certificates,
    server_credentials,
)
from attendant.server.access.clients import address_of, in_metadata, name_in_certificate
from attendant.server.access.rates import Limits, Rates
from attendant.server.access.reloading import Reloaded
from attendant.server.access.tokens import ADMIN_OPTION as ADMIN_TOKENS
from attendant.server.access.tokens import DIGEST_PREFIX, Tokens, read_tokens
from attendant.server.access.tokens import OPTION as TOKENS
from attendant.server.config import Openness, OpennessOrOff, ServerConfig
from attendant.server.errors import PermissionDenied, Unauthenticated

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

    def client_of(self, context: Any) -> str:
        """The name of whoever makes an RPC: its token's, else its certificate's, else its address.

        Raises:
            Unauthenticated: a token is asked for, and it has none that is known.
        """
        if self.tokens is not None:
            try:
                return self.tokens.value.name_of(in_metadata(context, "authorization"))
            except Unauthenticated:
                if self.admin_tokens is None:
                    raise
                return self.administrator_of(context)
        if self.asks_for_certificates:
            return name_in_certificate(context.auth_context())
        return address_of(context.peer())

    def known_client(self, context: Any) -> str:
        """The name of whoever makes an RPC, or its address if it lacks credentials."""
        try:
            return self.client_of(context)
        except Unauthenticated:
            return address_of(context.peer())

    def administrator_of(self, context: Any) -> str:
        """The name of the administrator who makes an RPC.

        Raises:
            PermissionDenied: the server has no administrators, or the token is a client's.
            Unauthenticated: there is no token, or none that is known.
        """
        if self.admin_tokens is None:
            raise PermissionDenied(f"nobody may do this here: the server was started without {ADMIN_TOKENS}")
        authorization = in_metadata(context, "authorization")
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
