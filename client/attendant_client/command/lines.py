"""Standard input, line by line, without holding up the event loop."""

import asyncio
import threading
from collections.abc import AsyncIterator

# Lines that may be read ahead.
READ_AHEAD = 256


async def read_lines(descriptor: int = 0) -> AsyncIterator[bytes]:
    """Yields the lines of a file, pipe or terminal, each as soon as it is there, with its line end.

    A thread reads, for a read can't be cancelled: it is a daemon, so that Ctrl-C at a terminal need not wait for the
    next line, and it has a file object of its own, whose lock nobody else wants while the interpreter ends.
    """
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(READ_AHEAD)
    stopped = threading.Event()

    def read() -> None:
        try:
            with open(descriptor, "rb", closefd=False) as stream:
                while not stopped.is_set():
                    line = stream.readline()
                    loop.call_soon_threadsafe(lines.put_nowait, line)
                    if not line:
                        return
                    room.acquire()
        except OSError as error:
            loop.call_soon_threadsafe(lines.put_nowait, error)
        except RuntimeError:
            return  # the loop has been closed: nobody waits for lines any more

    threading.Thread(target=read, name="standard-input", daemon=True).start()
    try:
        while line := await lines.get():
            if isinstance(line, OSError):
                raise line
            yield line
            room.release()
    finally:
        stopped.set()
        room.release()
