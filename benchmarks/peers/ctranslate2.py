"""CTranslate2, in its own environment: makes a Transformer, decodes in process, serves behind a plain batcher."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ctranslate2
import grpc
import numpy as np
from numpy.typing import NDArray

from benchmarks.job import NUM_SPECIAL_SYMBOLS, Job, Sources, answer_jobs, word_of, words_of
from benchmarks.serving.echo_server import serve

SPECIAL_TOKENS = ["<pad>", "<unk>", "<s>", "</s>"]
NUM_HEADS = 8
SCALE = 0.05


def make_model(
    folder: str,
    num_encoder_layers: int,
    num_decoder_layers: int,
    width: int,
    feed_forward: int,
    vocabulary_size: int,
) -> None:
    """Writes a Transformer of seeded random weights, in int8; the vocabulary is that of each side."""
    size = vocabulary_size
    spec = ctranslate2.specs.TransformerSpec.from_config((num_encoder_layers, num_decoder_layers), NUM_HEADS)
    random = np.random.default_rng(1)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return random.normal(0, SCALE, (rows, columns)).astype(np.float32)

    def linear(layer: Any, rows: int, columns: int) -> None:
        layer.weight, layer.bias = matrix(rows, columns), np.zeros(rows, np.float32)

    def norm(layer: Any) -> None:
        layer.gamma, layer.beta = np.ones(width, np.float32), np.zeros(width, np.float32)

    def attention(layer: Any, factors: tuple[int, ...]) -> None:
        norm(layer.layer_norm)
        for number, factor in enumerate(factors):
            linear(layer.linear[number], factor * width, width)

    for side, embeddings in ((spec.encoder, spec.encoder.embeddings[0]), (spec.decoder, spec.decoder.embeddings)):
        embeddings.weight = matrix(size, width)
        side.scale_embeddings = True
        side.position_encodings.encodings = matrix(512, width)
        norm(side.layer_norm)
        for layer in side.layer:
            # Self-attention projects queries, keys and values at once; attention to the source has queries apart.
            attention(layer.self_attention, (3, 1))
            if side is spec.decoder:
                attention(layer.attention, (1, 2, 1))
            norm(layer.ffn.layer_norm)
            linear(layer.ffn.linear_0, feed_forward, width)
            linear(layer.ffn.linear_1, width, feed_forward)
    linear(spec.decoder.projection, size, width)
    words = [*SPECIAL_TOKENS, *(word_of(number) for number in range(NUM_SPECIAL_SYMBOLS, size))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.validate()
    spec.optimize(quantization="int8")
    spec.save(folder)


class Translator:
    """Translates each source into so many tokens, no fewer and no more."""

    def __init__(self, folder: str, num_workers: int) -> None:
        self._translator = ctranslate2.Translator(
            folder, device="cpu", compute_type="int8", inter_threads=num_workers, intra_threads=1
        )

    def translate(self, words: list[list[str]], num_steps: list[int], batch_size: int, beam_size: int = 1) -> Any:
        longest = max(num_steps)
        options: dict[str, Any] = {"min_decoding_length": longest, "max_decoding_length": longest}
        if min(num_steps) < longest:
            # A row for which this is true leaves the batch. Only greedy search asks.
            options["callback"] = lambda result: result.step + 1 >= num_steps[result.batch_id]
        return self._translator.translate_batch(words, max_batch_size=batch_size, beam_size=beam_size, **options)


def work(folder: str, num_workers: int) -> None:
    """Decodes in process."""
    translator = Translator(folder, num_workers)

    def translate(sources: Sources, job: Job) -> None:
        words = [[*words_of(source).split(), "</s>"] for source in sources]
        translator.translate(words, [job.num_tokens] * len(words), job.batch_size, job.beam_size)

    answer_jobs(translate, batches_itself=True)


class Batcher:
    """What one would write first: requests wait in a list; as long as a worker is free, all that wait, up to a batch,
    go to it together, and are answered together. A request is the number of its steps and its words, an answer words.
    """

    def __init__(self, translator: Translator, num_workers: int, batch_size: int) -> None:
        self._translator, self._batch_size = translator, batch_size
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
            words, num_steps = [request[1:] for request, _ in batch], [int(request[0]) for request, _ in batch]
            arguments = words, num_steps, self._batch_size
            run = asyncio.get_running_loop().run_in_executor(self._threads, self._translator.translate, *arguments)
            for (_, answer), result in zip(batch, await run, strict=True):
                if not answer.done():
                    answer.set_result(result.hypotheses[0])


def serve_batches(folder: str, num_workers: int, batch_size: int) -> None:
    """Serves behind the batcher on grpc.aio."""
    batcher = Batcher(Translator(folder, num_workers), num_workers, batch_size)
    handlers: dict[str, Any] = {"Translate": grpc.unary_unary_rpc_method_handler(batcher.translate)}

    async def run() -> None:
        workers = asyncio.gather(*(batcher.work() for _ in range(num_workers)))
        await serve("benchmarks.CTranslate2", handlers)
        workers.cancel()

    asyncio.run(run())
