"""The client for code without an event loop: `AttendantClient` on a loop of its own; calls wait for their answers."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from attendant_client.client import FORKED, AttendantClient, GenerationStream
from attendant_client.types import Delta, GenerateOptions, Generation, Source

_Parameters = ParamSpec("_Parameters")
_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")


def _waiting(
    method: Callable[Concatenate[AttendantClient, _Parameters], Coroutine[Any, Any, _Answer]],
) -> Callable[Concatenate["BlockingClient", _Parameters], _Answer]:
    """Returns the same call, which waits for its answer."""

    @wraps(method)
    def call(self: "BlockingClient", /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Answer:
        return self.wait(method(self.client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[AttendantClient, _Parameters], AsyncGenerator[_Item, None]],
) -> Callable[Concatenate["BlockingClient", _Parameters], Iterator[_Item]]:
    """Returns the same answers as a generator that waits for each."""

    @wraps(method)
    def call(self: "BlockingClient", /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Iterator[_Item]:
        answers = method(self.client, *args, **kwargs)
        yield from self.each(answers, answers.aclose)

    return call


class BlockingStream:
    """A GenerationStream for `for` loops."""

    def __init__(self, owner: "BlockingClient", stream: GenerationStream) -> None:
        self._owner = owner
        self._stream = stream

    @property
    def generation(self) -> Generation:
        """See GenerationStream.generation."""
        return self._stream.generation

    def __iter__(self) -> Iterator[Delta]:
        yield from self._owner.each(aiter(self._stream), self._stream.aclose)


class BlockingClient:
    """The calls of `AttendantClient`, each of which waits for its answer. Several threads may share it.

        with BlockingClient("localhost:50051") as client:
            print(client.generate("face").best.text)

    Errors, options and answers are the same. Ctrl-C cancels the present call, on the server, too.

    Attributes:
        client: the client that it uses, on the event loop of a thread of its own.
    """

    def __init__(self, *target: str, **connection: Any) -> None:
        """See AttendantClient."""
        self.client = AttendantClient(*target, **connection)
        self._is_closed = False
        # Held while a call is given to the loop, which `close` ends.
        self._lock = threading.Lock()
        # Both begin at the first call, since they would not survive a fork.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; calls in flight are cancelled."""
        with self._lock:
            loop, thread = self._loop, self._thread
            was_running, self._is_closed = self._is_running(), True
            if loop is None or thread is None or not was_running:
                return
            closing = asyncio.run_coroutine_threadsafe(self._close(), loop)
        closing.result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _close(self) -> None:
        await self.client.close()
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    generate = _waiting(AttendantClient.generate)
    generate_many = _iterating(AttendantClient.generate_many)
    score = _waiting(AttendantClient.score)
    models = _waiting(AttendantClient.models)
    model = _waiting(AttendantClient.model)
    health = _waiting(AttendantClient.health)

    def stream(self, source: Source, *, request_id: str = "", **options: Unpack[GenerateOptions]) -> BlockingStream:
        """See AttendantClient.stream."""

        async def begun() -> GenerationStream:
            return self.client.stream(source, request_id=request_id, **options)

        return BlockingStream(self, self.wait(begun()))

    def wait(self, call: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Runs a call on the client's loop and returns its result."""
        if threading.current_thread() is self._thread:
            call.close()
            raise RuntimeError("sources of generate_many can't come from calls of the same client; use another one")
        with self._lock:
            if self._loop is None and not self._is_closed:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="attendant-client", daemon=True)
                self._thread.start()
            if self._loop is None or not self._is_running():
                call.close()
                raise RuntimeError("the client is closed; make another one" if self._is_closed else FORKED)
            running = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def each(self, answers: AsyncIterator[_Item], close: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[_Item]:
        """Yields the items of an iterator on the client's loop, and then closes it."""
        # A cancelled call for an item takes a few turns of the loop to end, and the iterator can't be closed before.
        turn = asyncio.Lock()

        async def following() -> tuple[_Item] | None:
            async with turn:
                async for answer in answers:
                    return (answer,)
                return None

        async def end() -> None:
            async with turn:
                await close()

        try:
            while (following_item := self.wait(following())) is not None:
                yield following_item[0]
        finally:
            if self._is_running():  # the end of the client ends the iterator, too
                self.wait(end())

    def _is_running(self) -> bool:
        # In a forked process, the thread does not run.
        return self._thread is not None and self._thread.is_alive() and not self._is_closed
