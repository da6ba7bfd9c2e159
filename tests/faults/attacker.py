"""A hostile HTTP/2 client, which sends frame by frame on its own socket.

with RawConnection(target) as connection:
    stream = connection.open_stream("/attendant.v1.Seq2Seq/Generate")
    connection.send(stream, framed(request)[:-1])   # a message that never ends
    connection.receive(seconds=0.1)
    connection.reset(stream)
"""

import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from google.protobuf.message import Message

GENERATE = "/attendant.v1.Seq2Seq/Generate"
GENERATE_BATCH = "/attendant.v1.Seq2Seq/GenerateBatch"
RECEIVED_BYTES = 1 << 16


def framed(message: Message | bytes) -> bytes:
    """Returns a message in gRPC's framing: a zero byte (not compressed), the length, the content."""
    content = message if isinstance(message, bytes) else message.SerializeToString()
    return b"\0" + len(content).to_bytes(4, "big") + content


def frame(kind: int, payload: bytes, *, flags: int = 0, stream: int = 0) -> bytes:
    """Returns an HTTP/2 frame, by default for the whole connection."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class RawConnection:
    """A connection that does nothing by itself: it reads and answers pings in `receive` only.

    Attributes:
        socket: the socket, for bytes that h2 would not send: connection.socket.sendall(...).
        http2: h2's state machine; `flush` sends its output.
        events: all received events.
        closed: True if the server has closed the connection.
    """

    def __init__(
        self,
        target: str,
        *,
        settings: dict[int, int] | None = None,
        wrap: Callable[[socket.socket], socket.socket] = lambda plain: plain,
        timeout: float = 10.0,
    ) -> None:
        """Connects and sends the preface.

        Args:
            settings: HTTP/2 settings in addition to h2's own: {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0}.
            wrap: wraps the connected socket, for TLS.
            timeout: longest time that a socket operation may block, in seconds.
        """
        host, _, port = target.rpartition(":")
        self.socket = wrap(socket.create_connection((host, int(port)), timeout=timeout))
        self._timeout = timeout
        # Headers that are malformed on purpose are sent unchanged.
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self.http2 = h2.connection.H2Connection(config)
        if settings:
            self.http2.local_settings.update(settings)
        self.http2.initiate_connection()
        self.events: list[h2.events.Event] = []
        self.closed = False
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()

    def flush(self) -> None:
        """Sends h2's output. If the server has closed the connection, sets `closed` instead of raising."""
        try:
            self.socket.sendall(self.http2.data_to_send())
        except (ConnectionError, TimeoutError):
            self.closed = True

    def open_stream(self, path: str, headers: dict[str, Any] | None = None, *, flush: bool = True) -> int:
        """Begins a call with additional `headers`. `flush=False` lets many calls be sent together."""
        stream = self.http2.get_next_available_stream_id()
        always: dict[str, Any] = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        always |= {"te": "trailers", "content-type": "application/grpc"}
        self.http2.send_headers(stream, list((always | (headers or {})).items()))
        if flush:
            self.flush()
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = False, flush: bool = True) -> int:
        """Sends as much data as the server's windows allow; returns the number of bytes."""
        sent = 0
        while sent < len(data) and (window := self.http2.local_flow_control_window(stream)):
            piece = data[sent : sent + min(window, self.http2.max_outbound_frame_size)]
            sent += len(piece)
            self.http2.send_data(stream, piece, end_stream=end and sent == len(data))
        if flush:
            self.flush()
        return sent

    def reset(self, stream: int, *, flush: bool = True) -> None:
        self.http2.reset_stream(stream)
        if flush:
            self.flush()

    def receive(self, seconds: float = 0.0, *, acknowledge: bool = True) -> list[h2.events.Event]:
        """Reads for `seconds`, or until the server closes the connection; answers settings and pings.

        Args:
            acknowledge: if False, the server's windows are not refilled, as by a client that stops reading.
        """
        received: list[h2.events.Event] = []
        give_up = time.monotonic() + seconds
        while not self.closed:
            self.socket.settimeout(max(0.0, give_up - time.monotonic()))
            try:
                data = self.socket.recv(RECEIVED_BYTES)
            except (BlockingIOError, TimeoutError):
                break
            except ConnectionError:
                data = b""
            finally:
                self.socket.settimeout(self._timeout)
            if not data:
                self.closed = True
                break
            events = self.http2.receive_data(data)
            for event in events:
                if acknowledge and isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                    self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            received += events
            self.flush()
        self.events += received
        return received
