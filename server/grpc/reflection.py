"""Reflection under two names: newer tools call `v1`, and grpcio-reflection 1.85 has only `v1alpha`.

This file ends with the release of grpcio-reflection that has both.
"""

from dataclasses import replace
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_reflection.v1alpha import reflection, reflection_pb2

from attendant.server.config import Openness
from attendant.server.grpc.gate import Rpc
from attendant.server.grpc.handlers import library_rpcs

OLDER: Final = reflection.SERVICE_NAME
NEWER: Final = OLDER.replace("v1alpha", "v1")


def reflection_rpcs(services: list[str], openness: Openness) -> list[Rpc]:
    """Makes the table of a service that describes these services and itself.

    `v1` has the same messages as `v1alpha`, with the same fields and numbers, so one servicer answers both.
    """
    _add_newer_descriptors()
    servicer = reflection.aio.ReflectionServicer([*services, NEWER, OLDER])
    service = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
    older = library_rpcs(service, {"ServerReflectionInfo": servicer.ServerReflectionInfo}, openness)
    return [*older, *(replace(rpc, service=NEWER) for rpc in older)]


def _add_newer_descriptors() -> None:
    """Adds the descriptors of `v1`, which clients look up like those of any other service."""
    older = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(older)
    text = text_format.MessageToString(older).replace("v1alpha", "v1")
    newer = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    newer.name = f"{NEWER.rpartition('.')[0].replace('.', '/')}/reflection.proto"
    descriptor_pool.Default().Add(newer)
