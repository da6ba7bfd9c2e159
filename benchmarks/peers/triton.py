"""NVIDIA Triton around the plain int8 loop, in its own environment."""

import signal
import socket
import threading
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.peers.plain_loop import Array, onnx_loop

HOST = "127.0.0.1"
PORTS = "grpc_port", "http_port", "metrics_port"


def serve(folder: str, num_instances: int, batch_size: int) -> None:
    """Its dynamic batcher collects requests of one shape; each instance, a process, decodes a batch on one thread."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    # Ports that nobody listens on now.
    listening = {name: socket.create_server((HOST, 0)) for name in PORTS}
    ports = {name: one.getsockname()[1] for name, one in listening.items()}
    for one in listening.values():
        one.close()
    triton = Triton(config=TritonConfig(http_address=HOST, grpc_address=HOST, **ports))
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
        print(f"serving on {HOST}:{ports['grpc_port']}", flush=True)
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
