"""CTranslate2 behind a plain batcher: python -m benchmarks.peers.ctranslate2_server MODEL STEPS WORKERS BATCH.

grpc.aio, in CTranslate2's environment. What one would write first: requests wait in a list; as long as a worker is
free, all that wait, up to a batch, go to it together, and are answered together. A request is its words, an answer too.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ctranslate2
import grpc

METHOD = "Translate"
SERVICE = "benchmarks.CTranslate2"


class Batcher:
    def __init__(self, translator: ctranslate2.Translator, num_steps: int, num_workers: int, batch_size: int) -> None:
        self._translator = translator
        self._num_steps = num_steps
        self._batch_size = batch_size
        self._threads = ThreadPoolExecutor(num_workers)
        self._waiting: asyncio.Queue[tuple[list[str], asyncio.Future[list[str]]]] = asyncio.Queue()

    async def translate(self, request: bytes, context: object) -> bytes:
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((request.decode().split(), answer))
        return " ".join(await answer).encode()

    async def work(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < self._batch_size and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            words = [request for request, _ in batch]
            results = await asyncio.get_running_loop().run_in_executor(self._threads, self._run, words)
            for (_, answer), result in zip(batch, results):  # noqa: B905  # Python 3.9 has no strict
                if not answer.done():
                    answer.set_result(result.hypotheses[0])

    def _run(self, words: list[list[str]]) -> Any:
        return self._translator.translate_batch(
            words,
            max_batch_size=self._batch_size,
            beam_size=1,
            min_decoding_length=self._num_steps,
            max_decoding_length=self._num_steps,
        )


async def serve(path: str, num_steps: int, num_workers: int, batch_size: int) -> None:
    translator = ctranslate2.Translator(
        path, device="cpu", compute_type="int8", inter_threads=num_workers, intra_threads=1
    )
    batcher = Batcher(translator, num_steps, num_workers, batch_size)
    server = grpc.aio.server()
    # Without serializers both sides are bytes.
    handlers: dict[str, Any] = {METHOD: grpc.unary_unary_rpc_method_handler(batcher.translate)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    workers = [asyncio.create_task(batcher.work()) for _ in range(num_workers)]
    print(f"serving on 127.0.0.1:{port}", flush=True)
    await ended.wait()
    await server.stop(None)
    for worker in workers:
        worker.cancel()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], *map(int, sys.argv[2:])))
