"""Connections to a listening socket, with or without TLS: all of them end with it, and handshakes are bounded.

An event loop's own servers leave a connection open that they were about to make when they were closed; and their TLS
holds any number of connections that have not shaken hands, and tells nobody of them.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.1
"""After a connection that could not be accepted, e.g. because too many files are open."""


@asynccontextmanager
async def accepting(
    listener: socket.socket,
    make_protocol: Callable[[], asyncio.Protocol],
    tls: Callable[[], ssl.SSLContext | None],
    *,
    seconds: float,
    max_handshakes: int,
) -> AsyncIterator[None]:
    """Accepts connections until the end of the context; a protocol is connected once its peer has shaken hands.

    Args:
        listener: closed at the end.
        tls: returns the context of a new connection; None: unencrypted.
        seconds: how long a handshake may take.
        max_handshakes: at once; beyond them the oldest one makes way.
    """
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    # In order of arrival.
    handshakes: dict[asyncio.Task[None], None] = {}
    retry: asyncio.TimerHandle | None = None

    async def shake_hands(accepted: socket.socket) -> None:
        context = tls()
        # What goes wrong is the peer's affair: ssl's errors are OSErrors. The transport closes the socket in any case.
        with suppress(OSError):
            await loop.connect_accepted_socket(
                make_protocol, accepted, ssl=context, ssl_handshake_timeout=None if context is None else seconds
            )

    def accept() -> None:
        nonlocal retry
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # it has gone
        except OSError as error:
            log.warning("no connection could be accepted", extra={"reason": error.strerror})
            loop.remove_reader(listener)
            retry = loop.call_later(RETRY_SECONDS, loop.add_reader, listener, accept)
            return
        task = loop.create_task(shake_hands(accepted))
        handshakes[task] = None
        task.add_done_callback(handshakes.pop)
        if len(handshakes) > max_handshakes:
            next(iter(handshakes)).cancel()

    loop.add_reader(listener, accept)
    try:
        yield
    finally:
        loop.remove_reader(listener)
        if retry is not None:
            retry.cancel()
        listener.close()
        # By then each handshake has begun: one that is cancelled before leaves its socket open.
        await asyncio.sleep(0)
        left = list(handshakes)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
