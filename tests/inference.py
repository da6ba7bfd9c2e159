"""Requests of the Open Inference Protocol: a tensor of texts, over gRPC and over HTTP."""

from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from attendant.server.inference.v2 import open_inference_pb2 as wire

SERVICE = wire.DESCRIPTOR.services_by_name["GRPCInferenceService"]


def inference_stub(channel: grpc.aio.Channel) -> SimpleNamespace:
    """Returns the calls of the service by their names."""
    return SimpleNamespace(
        **{
            method.name: channel.unary_unary(
                f"/{SERVICE.full_name}/{method.name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            for method in SERVICE.methods
        }
    )


def text_tensor(*texts: str | bytes, **fields: Any) -> dict[str, Any]:
    contents = {"bytes_contents": [text.encode() if isinstance(text, str) else text for text in texts]}
    return {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "contents": contents} | fields


def infer_request(*texts: str, outputs: tuple[str, ...] = (), **fields: Any) -> wire.ModelInferRequest:
    """Makes a request of ModelInfer for the fake model, unless the fields name another one."""
    names = [{"name": name} for name in outputs]
    return wire.ModelInferRequest(**{"model_name": "fake", "inputs": [text_tensor(*texts)], "outputs": names} | fields)


def text_body(*texts: Any, **fields: Any) -> dict[str, Any]:
    """Makes a tensor of texts in JSON."""
    return {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)} | fields


def infer_body(*texts: Any, outputs: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    """Makes a request of /v2/models/NAME/infer in JSON."""
    names = {"outputs": [{"name": name} for name in outputs]} if outputs else {}
    return {"inputs": [text_body(*texts)]} | names | fields
