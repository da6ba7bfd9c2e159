"""NVIDIA Triton around the plain int8 loop: python -m benchmarks.peers.triton_server FOLDER STEPS INSTANCES BATCH PORT.

In its own environment. Its dynamic batcher collects requests; each instance, a process, decodes a batch on one thread.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.peers.plain_loop import PlainLoop


def instance(folder: str, num_steps: int) -> Any:
    loop = PlainLoop(folder, 1)

    def infer(source_ids: np.ndarray) -> dict[str, np.ndarray]:
        return {"target_ids": loop.decode(source_ids, num_steps, 1)}

    return batch(infer)


def main(folder: str, num_steps: int, num_instances: int, batch_size: int, port: int) -> None:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    config = TritonConfig(
        grpc_port=port, http_port=port + 1, metrics_port=port + 2, http_address="127.0.0.1", grpc_address="127.0.0.1"
    )
    triton = Triton(config=config)
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
        print(f"serving on 127.0.0.1:{port}", flush=True)
        ended.wait()
    finally:
        triton.stop()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
