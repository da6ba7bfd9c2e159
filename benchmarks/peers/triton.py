"""NVIDIA Triton around the plain int8 loop, in its own environment."""

import base64
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tritonclient.grpc import service_pb2 as messages

from benchmarks.job import Job, sentences
from benchmarks.peers.plain_loop import onnx_loop

HOST = "127.0.0.1"


def serve(folder: str, num_steps: int, num_instances: int, batch_size: int, ports: list[int]) -> None:
    """Its dynamic batcher collects requests; each instance, a process, decodes a batch on one thread.

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
        infer_func=[_instance(folder, num_steps) for _ in range(num_instances)],
        inputs=[Tensor(name="source_ids", dtype=np.int64, shape=(-1,))],
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


def _instance(folder: str, num_steps: int) -> Any:
    loop = onnx_loop(folder)
    return batch(lambda source_ids: {"target_ids": loop.decode(source_ids, num_steps, 1)})


def write_payloads(path: str, job: dict[str, int]) -> None:
    """Writes the requests of a job, one per line in base64."""
    with Path(path).open("w", encoding="ascii") as file:
        for source in sentences(Job(**job)):
            shape = [1, len(source)]
            tensor = messages.ModelInferRequest.InferInputTensor(name="source_ids", datatype="INT64", shape=shape)
            ids = np.array(source, "<i8").tobytes()
            request = messages.ModelInferRequest(model_name="mt", inputs=[tensor], raw_input_contents=[ids])
            file.write(base64.b64encode(request.SerializeToString()).decode() + "\n")
