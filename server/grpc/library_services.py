"""The services that gRPC's libraries implement, health and reflection, as tables of methods like our own."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_reflection.v1alpha import reflection, reflection_pb2

from attendant.server.call import Rpc, guard_of, rpcs_of
from attendant.server.config import Openness
from attendant.server.grpc.handlers import GrpcCall


def library_rpcs(service: Any, servicer: object, openness: Openness) -> list[Rpc]:
    """Makes the table of a library's service, whose methods take gRPC's context.

    Args:
        service: its descriptor.
        openness: of `--health` or `--reflection`.
    """
    guard = guard_of(openness)
    return [
        replace(rpc, answer=_with_context(rpc), guard=guard, is_counted=False)
        for rpc in rpcs_of(service, servicer).values()
    ]


def _with_context(rpc: Rpc) -> Callable[[Any, GrpcCall], Any]:
    def answer(request: Any, call: GrpcCall) -> Any:
        return rpc.answer(request, call.context)

    async def stream(request: Any, call: GrpcCall) -> AsyncIterator[Any]:
        await rpc.answer(request, call.context)
        return
        yield  # the method has written its responses to the context itself

    return stream if rpc.streams_responses and iscoroutinefunction(rpc.answer) else answer


OLDER: Final = reflection.SERVICE_NAME
NEWER: Final = OLDER.replace("v1alpha", "v1")


def reflection_rpcs(services: list[str], openness: Openness) -> list[Rpc]:
    """Makes the table of a service that describes these services and itself.

    Newer tools call `v1`, and grpcio-reflection 1.85 has only `v1alpha`; a release that has both will replace this.
    `v1` has the same messages as `v1alpha`, with the same fields and numbers, so one servicer answers both.
    """
    _add_newer_descriptors()
    servicer = reflection.aio.ReflectionServicer([*services, NEWER, OLDER], DescriptorsWithMethods())
    service = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
    older = library_rpcs(service, servicer, openness)
    return [*older, *(replace(rpc, service=NEWER) for rpc in older)]


class DescriptorsWithMethods:
    """The pool of all descriptors, in which methods are symbols too.

    Tools look up `SERVICE.METHOD` by reflection (`grpcurl describe`), as its protocol allows. Of a service, protobuf's
    pool (7.36) finds only the service itself.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(descriptor_pool.Default(), name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802  # protobuf's name
        pool: Any = descriptor_pool.Default()
        try:
            return pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return pool.FindMethodByName(symbol).containing_service.file


def _add_newer_descriptors() -> None:
    """Adds the descriptors of `v1`, which clients look up like those of any other service."""
    older = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(older)
    text = text_format.MessageToString(older).replace("v1alpha", "v1")
    newer = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    newer.name = f"{NEWER.rpartition('.')[0].replace('.', '/')}/reflection.proto"
    descriptor_pool.Default().Add(newer)
