"""What an engine was computing when its process died: the keys of the requests, in memory that outlives the process."""

import mmap
import os
import struct
from array import array
from collections.abc import Iterable

COUNT = struct.Struct("<Q")
KEY = "Q"


class FlightRecord:
    """Memory that a server and a worker process share. The worker writes before it computes; the server reads after.

    A message could be lost in what the process had not sent yet; what is written here is there at once.
    """

    def __init__(self, descriptor: int) -> None:
        """Maps memory that `new_record` made; the descriptor may be closed afterwards."""
        self._memory = mmap.mmap(descriptor, 0)

    def note(self, keys: Iterable[int]) -> None:
        """These requests are computed from now on."""
        packed = array(KEY, keys)
        self._memory[COUNT.size : COUNT.size + len(packed) * packed.itemsize] = packed.tobytes()
        COUNT.pack_into(self._memory, 0, len(packed))

    def read(self) -> set[int]:
        (count,) = COUNT.unpack_from(self._memory)
        keys = array(KEY)
        keys.frombytes(self._memory[COUNT.size : COUNT.size + count * keys.itemsize])
        return set(keys)


def new_record(max_requests: int) -> int:
    """Makes the memory for as many requests as can be computed at once; returns its descriptor."""
    descriptor = os.memfd_create("attendant-flight-record")
    os.truncate(descriptor, COUNT.size + max_requests * array(KEY).itemsize)
    return descriptor
