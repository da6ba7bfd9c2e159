"""NVIDIA Triton around the plain int8 loop, in its own environment."""

import base64
import json
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tritonclient.grpc import service_pb2 as messages

from benchmarks.peers.plain_loop import Array, onnx_loop

HOST = "127.0.0.1"
PAD_ID = 0


def serve(folder: str, num_instances: int, batch_size: int, ports: list[int]) -> None:
    """Its dynamic batcher collects requests of one shape; each instance, a process, decodes a batch on one thread.

    Args:
        ports: for gRPC, HTTP and metrics.
    """
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    named = dict(zip(("grpc_port", "http_port", "metrics_port"), ports, strict=True))
    triton = Triton(config=TritonConfig(http_address=HOST, grpc_address=HOST, **named))
    triton.bind(
        model_name="mt",
        infer_func=[_instance(folder) for _ in range(num_instances)],
        inputs=[Tensor(name=name, dtype=np.int64, shape=(-1,)) for name in ("source_ids", "num_steps")],
        outputs=[Tensor(name="target_ids", dtype=np.int64, shape=(-1,))],
        config=ModelConfig(max_batch_size=batch_size, batcher=DynamicBatcher(max_queue_delay_microseconds=2000)),
        strict=False,
    )
    triton.run()
    try:
        print(f"serving on {HOST}:{ports[0]}", flush=True)
        ended.wait()
    finally:
        triton.stop()


def _instance(folder: str) -> Any:
    loop = onnx_loop(folder)

    def decode(source_ids: Array, num_steps: Array) -> dict[str, Array]:
        """Cuts the padding that all sources have, and steps until the last of them has ended."""
        longest = int(np.count_nonzero(source_ids, axis=1).max())
        return {"target_ids": loop.decode(source_ids[:, :longest], int(num_steps.max()), 1)}

    return batch(decode)


def write_payloads(path: str, work: str) -> None:
    """Writes requests, one per line in base64; a client pads its source, since only equal shapes share a batch.

    Args:
        work: a file of payloads.Work in JSON.
    """
    pairs = json.loads(Path(work).read_text(encoding="utf-8"))
    longest = max(len(source) for source, _ in pairs)
    with Path(path).open("w", encoding="ascii") as file:
        for source, num_steps in pairs:
            values = {"source_ids": source + [PAD_ID] * (longest - len(source)), "num_steps": [num_steps]}
            tensors = [
                messages.ModelInferRequest.InferInputTensor(name=name, datatype="INT64", shape=[1, len(ids)])
                for name, ids in values.items()
            ]
            contents = [np.array(ids, "<i8").tobytes() for ids in values.values()]
            request = messages.ModelInferRequest(model_name="mt", inputs=tensors, raw_input_contents=contents)
            file.write(base64.b64encode(request.SerializeToString()).decode() + "\n")
