"""Framing of messages between a server and its worker processes: pickled values, each behind its length.

Unpickling is safe here: both ends of the socket are processes of ours.
"""

import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any

LENGTH = struct.Struct("<I")


def framed(message: Any) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def receive_one(connection: socket.socket) -> Any:
    """Waits for a message; None: the other end has hung up."""
    head = connection.recv(LENGTH.size, socket.MSG_WAITALL)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = connection.recv(length, socket.MSG_WAITALL)
    return pickle.loads(body) if len(body) == length else None


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that are complete with this.

        Raises:
            Exception: of unpickling, where the other end sent something else.
        """
        self._received += data
        while len(self._received) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._received)
            end = LENGTH.size + length
            if len(self._received) < end:
                return
            body = bytes(self._received[LENGTH.size : end])
            del self._received[:end]
            yield pickle.loads(body)
