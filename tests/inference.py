"""Requests of the Open Inference Protocol: a tensor of texts, over gRPC and over HTTP."""

from typing import Any

from attendant.server.inference.v2 import open_inference_pb2 as wire


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
