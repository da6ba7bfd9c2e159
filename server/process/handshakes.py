"""TLS before an asyncio protocol, in which handshakes are bounded too.

An event loop's own TLS servers hold any number of connections that have not shaken hands, and tell nobody of them.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

RETRY_SECONDS = 0.1
"""After a connection that could not be accepted, e.g. because too many files are open."""


@contextmanager
def accepting(
    listener: socket.socket,
    make_protocol: Callable[[], asyncio.Protocol],
    tls: ssl.SSLContext,
    *,
    seconds: float,
    max_handshakes: int,
) -> Iterator[None]:
    """Accepts connections until the end of the context; a protocol is connected once its peer has shaken hands.

    Args:
        seconds: how long a handshake may take.
        max_handshakes: at once; beyond them the oldest one makes way.
    """
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    # In order of arrival.
    handshakes: dict[asyncio.Task[None], None] = {}

    async def shake_hands(accepted: socket.socket) -> None:
        # What goes wrong is the peer's affair: ssl's errors are OSErrors. The transport closes the socket in any case.
        with suppress(OSError):
            await loop.connect_accepted_socket(make_protocol, accepted, ssl=tls, ssl_handshake_timeout=seconds)

    async def accept() -> None:
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            task = loop.create_task(shake_hands(accepted))
            handshakes[task] = None
            task.add_done_callback(handshakes.pop)
            if len(handshakes) > max_handshakes:
                next(iter(handshakes)).cancel()

    task = loop.create_task(accept())
    try:
        yield
    finally:
        for one in (task, *handshakes):
            one.cancel()
        listener.close()
