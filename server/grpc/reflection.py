"""Reflection, under the name that newer tools call and under the one that older tools call."""

from typing import Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

OLDER: Final = reflection.SERVICE_NAME
NEWER: Final = OLDER.replace("v1alpha", "v1")
REFLECTION_NAMES: Final = (NEWER, OLDER)


def add_reflection(services: list[str], server: grpc.aio.Server) -> None:
    """Adds a service that describes these services and itself.

    grpcio-reflection has `v1alpha` only. `v1` is the same protocol: its messages have the same fields and numbers, so
    one servicer answers both. This ends with the release of grpcio-reflection that has `v1`.
    """
    _describe_newer()
    # `enable_server_reflection` would look at the server's class, which is a wrapper here.
    servicer = reflection.aio.ReflectionServicer([*services, *REFLECTION_NAMES])
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(NEWER, {"ServerReflectionInfo": handler})
    server.add_generic_rpc_handlers((handlers,))


def _describe_newer() -> None:
    """Makes the descriptors of `v1`, which clients look up like those of any other service."""
    older = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(older)
    text = text_format.MessageToString(older).replace("v1alpha", "v1")
    newer = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    newer.name = f"{NEWER.rpartition('.')[0].replace('.', '/')}/reflection.proto"
    descriptor_pool.Default().Add(newer)
