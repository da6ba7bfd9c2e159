"""An answer that comes while it is decoded."""

from collections.abc import AsyncIterator
from typing import Any, Generic, Self, TypeVar

import grpc

from attendant_client.answers import Delta, Generation
from attendant_client.errors import error_of
from attendant_client.messages import generation_of
from attendant_client.target import Proxy

AnyGeneration = TypeVar("AnyGeneration", bound=Generation)


class Streamed(Generic[AnyGeneration]):
    """What has the whole answer once it has been iterated over."""

    _generation: AnyGeneration | None = None

    @property
    def generation(self) -> AnyGeneration:
        """The whole answer, once the iteration has ended. Raises RuntimeError before."""
        if self._generation is None:
            raise RuntimeError("generation: is there when the stream has been read to its end")
        return self._generation


class GenerationStream(Streamed[Generation]):
    """Made by `AttendantClient.stream`, iterated over once. Who leaves it early frees its rows on the server.

    Raises:
        AttendantError: while it is iterated over.
    """

    def __init__(self, call: Any, request_id: str, proxy: Proxy | None = None) -> None:
        self._call = call
        self._request_id = request_id
        self._proxy = proxy

    async def __aiter__(self) -> AsyncIterator[Delta]:
        try:
            async for event in self._call:
                if event.WhichOneof("event") == "response":
                    self._generation = generation_of(event.response)
                else:
                    yield Delta(tokens=tuple(event.delta.tokens), text=event.delta.text)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, self._request_id, self._proxy) from error
        finally:
            self._call.cancel()

    async def aclose(self) -> None:
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()
