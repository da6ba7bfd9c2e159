"""What KServe's own client is told by a server, as JSON: run where that is installed, and nothing of ours."""

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


async def infer(client: InferenceGRPCClient, model: str, **asked: Any) -> dict[str, Any]:
    answer = await client.infer(InferRequest(model, request_id="mine", **asked))
    outputs = {one.name: one.as_numpy().tolist() for one in answer.outputs}
    return {"id": answer.id, "model": answer.model_name, "outputs": outputs}


async def told(target: str, model: str) -> dict[str, Any]:
    raw, typed = InferInput("text", [2], "BYTES"), InferInput("text", [2], "BYTES", data=list(TEXTS))
    raw.set_data_from_numpy(np.array([text.encode() for text in TEXTS], object))
    outputs = [RequestedOutput(name) for name in ("tokens", "attention")]
    async with InferenceGRPCClient(target) as client:
        found = {
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
                found[name] = await ask()
            except grpc.RpcError as error:
                found[name] = [error.code().name, error.details()]
    # What its client has no method for.
    async with grpc.aio.insecure_channel(target) as channel:
        stub = GRPCInferenceServiceStub(channel)
        found["server"] = (await stub.ServerMetadata(wire.ServerMetadataRequest())).name
        metadata = await stub.ModelMetadata(wire.ModelMetadataRequest(name=model))
        found["inputs"] = [[one.name, one.datatype, list(one.shape)] for one in metadata.inputs]
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(told(*sys.argv[1:])), default=bytes.decode))
