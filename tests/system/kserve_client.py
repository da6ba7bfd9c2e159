"""Prints the answers of a server to KServe's own client, as JSON; runs in an environment without our code."""

import asyncio
import json
import sys
from typing import Any

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as wire
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub
from kserve.protocol.infer_type import RequestedOutput

TEXTS = ["phoneme", "knowledgeable"]


async def infer(client: InferenceGRPCClient, model: str, **request: Any) -> dict[str, Any]:
    answer = await client.infer(InferRequest(model, request_id="mine", **request))
    outputs = {output.name: output.as_numpy().tolist() for output in answer.outputs}
    return {"id": answer.id, "model": answer.model_name, "outputs": outputs}


async def report_of(target: str, model: str) -> dict[str, Any]:
    raw, typed = InferInput("text", [2], "BYTES"), InferInput("text", [2], "BYTES", data=list(TEXTS))
    raw.set_data_from_numpy(np.array([text.encode() for text in TEXTS], object))
    outputs = [RequestedOutput(name) for name in ("tokens", "attention")]
    async with InferenceGRPCClient(target) as client:
        report = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model ready": await client.is_model_ready(model),
            "raw": await infer(client, model, infer_inputs=[raw], parameters={"beam_size": 2}),
            "typed": await infer(client, model, infer_inputs=[typed], parameters={"beam_size": 2}),
            "chosen": await infer(client, model, infer_inputs=[raw], request_outputs=outputs),
        }
        for name, ask in (
            ("refused", lambda: infer(client, model, infer_inputs=[raw], parameters={"beem_size": 2})),
            ("unknown", lambda: client.is_model_ready("nobody")),
        ):
            try:
                report[name] = await ask()
            except grpc.RpcError as error:
                report[name] = [error.code().name, error.details()]
    # Its client has no methods for these.
    async with grpc.aio.insecure_channel(target) as channel:
        stub = GRPCInferenceServiceStub(channel)
        report["server"] = (await stub.ServerMetadata(wire.ServerMetadataRequest())).name
        metadata = await stub.ModelMetadata(wire.ModelMetadataRequest(name=model))
        report["inputs"] = [[tensor.name, tensor.datatype, list(tensor.shape)] for tensor in metadata.inputs]
    return report


if __name__ == "__main__":
    print(json.dumps(asyncio.run(report_of(*sys.argv[1:])), default=bytes.decode))
