"""NVIDIA Triton around the plain int8 loop, in its own environment:

python -m benchmarks.peers.triton_program server FOLDER STEPS INSTANCES BATCH PORT
its dynamic batcher collects requests; each instance, a process, decodes a batch on one thread
python -m benchmarks.peers.triton_program payloads FILE JOB
writes the requests of a job in JSON, one per line in base64
"""

import base64
import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tritonclient.grpc import service_pb2 as messages

from benchmarks.job import Job, sentences
from benchmarks.peers.plain_loop import Array, onnx_loop

HOST = "127.0.0.1"


def instance(folder: str, num_steps: int) -> Any:
    loop = onnx_loop(folder)

    def infer(source_ids: Array) -> dict[str, Array]:
        return {"target_ids": loop.decode(source_ids, num_steps, 1)}

    return batch(infer)


def serve(folder: str, num_steps: int, num_instances: int, batch_size: int, port: int) -> None:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ports = {"grpc_port": port, "http_port": port + 1, "metrics_port": port + 2}
    triton = Triton(config=TritonConfig(http_address=HOST, grpc_address=HOST, **ports))
    triton.bind(
        model_name="mt",
        infer_func=[instance(folder, num_steps) for _ in range(num_instances)],
        inputs=[Tensor(name="source_ids", dtype=np.int64, shape=(-1,))],
        outputs=[Tensor(name="target_ids", dtype=np.int64, shape=(-1,))],
        config=ModelConfig(max_batch_size=batch_size, batcher=DynamicBatcher(max_queue_delay_microseconds=2000)),
        strict=False,
    )
    triton.run()
    try:
        print(f"serving on {HOST}:{port}", flush=True)
        ended.wait()
    finally:
        triton.stop()


def write_payloads(path: str, job: str) -> None:
    with Path(path).open("w", encoding="ascii") as file:
        for source in sentences(Job(**json.loads(job))):
            shape = [1, len(source)]
            tensor = messages.ModelInferRequest.InferInputTensor(name="source_ids", datatype="INT64", shape=shape)
            ids = np.array(source, "<i8").tobytes()
            request = messages.ModelInferRequest(model_name="mt", inputs=[tensor], raw_input_contents=[ids])
            file.write(base64.b64encode(request.SerializeToString()).decode() + "\n")


if __name__ == "__main__":
    what, path, *arguments = sys.argv[1:]
    if what == "payloads":
        write_payloads(path, *arguments)
    else:
        serve(path, *map(int, arguments))
