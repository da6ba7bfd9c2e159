"""Prints the answers of a server to NVIDIA's or KServe's own client, as JSON; runs in the client's environment.

python inference_clients.py triton|kserve_http|kserve_grpc HOST:PORT MODEL
"""

import asyncio
import itertools
import json
import sys
from typing import Any

import numpy as np

TEXTS = ["phoneme", "knowledgeable"]
OPTIONS = {"beam_size": 2}


def triton(target: str, model: str) -> dict[str, Any]:
    import tritonclient.http as triton  # each client has its own environment
    from tritonclient.utils import InferenceServerException

    client = triton.InferenceServerClient(target)
    report: dict[str, Any] = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model ready": [client.is_model_ready(name) for name in (model, "nobody")],
        "server": client.get_server_metadata()["name"],
        "inputs": client.get_model_metadata(model)["inputs"],
        "index": [model["state"] for model in client.get_model_repository_index()],
        "texts": [],
    }
    # Inputs and outputs as JSON and as bytes, named and default outputs, plain and compressed requests.
    for sent, received, named, coding in itertools.product((True, False), (True, False), (True, False), (None, "gzip")):
        tensor = triton.InferInput("text", [2], "BYTES")
        tensor.set_data_from_numpy(np.array([text.encode() for text in TEXTS], object), binary_data=sent)
        outputs = [triton.InferRequestedOutput(name, binary_data=received) for name in ("text", "attention")]
        answer = client.infer(
            model,
            [tensor],
            outputs=outputs if named else None,
            parameters=OPTIONS,
            request_compression_algorithm=coding,
        )
        assert (answer.as_numpy("attention") is not None) == named
        cells = answer.as_numpy("text").ravel().tolist()
        report["texts"].append([cell.decode() if isinstance(cell, bytes) else cell for cell in cells])
    try:
        client.infer(model, [tensor], parameters={"beem_size": 2})
    except InferenceServerException as error:
        report["refused"] = [error.status(), error.message()]
    return report


async def kserve_http(target: str, model: str) -> dict[str, Any]:
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

    url = f"http://{target}"
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        report: dict[str, Any] = {
            "live": await client.is_server_live(url),
            "ready": await client.is_server_ready(url),
            "model ready": [await client.is_model_ready(url, name) for name in (model, "nobody")],
            "texts": [],
        }
        for binary in (True, False):
            tensor = InferInput("text", [2], "BYTES")
            tensor.set_data_from_numpy(np.array(TEXTS, object), binary_data=binary)
            answer = await client.infer(url, InferRequest(model, [tensor], parameters=OPTIONS), model_name=model)
            report["texts"].append(answer.outputs[0].as_numpy().ravel().tolist() if binary else answer.outputs[0].data)
        try:
            await client.infer(url, InferRequest(model, [tensor], parameters={"beem_size": 2}), model_name=model)
        except Exception as error:
            report["refused"] = ["400" if "400" in str(error) else "", str(error)]
    return report


async def kserve_grpc(target: str, model: str) -> dict[str, Any]:
    import grpc
    from kserve import InferenceGRPCClient, InferInput, InferRequest

    async with InferenceGRPCClient(target) as client:
        report: dict[str, Any] = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model ready": [await client.is_model_ready(name) for name in (model, "nobody")],
            "texts": [],
        }
        raw, typed = InferInput("text", [2], "BYTES"), InferInput("text", [2], "BYTES", data=list(TEXTS))
        raw.set_data_from_numpy(np.array([text.encode() for text in TEXTS], object))
        for tensor in (raw, typed):
            answer = await client.infer(InferRequest(model, [tensor], parameters=OPTIONS))
            report["texts"].append(answer.outputs[0].as_numpy().ravel().tolist())
        try:
            await client.infer(InferRequest(model, [raw], parameters={"beem_size": 2}))
        except grpc.RpcError as error:
            report["refused"] = [error.code().name, error.details()]
    return report


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    called = triton(*arguments) if name == "triton" else asyncio.run(globals()[name](*arguments))
    print(json.dumps(called, default=bytes.decode))
