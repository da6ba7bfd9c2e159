"""Functions to run as programs: the load generator, empty services, and the peers. `job.program` makes the commands.

Each peer runs in its own environment. So each function imports its libraries itself, and the module needs only the
standard library of Python 3.9, which Marian's environment has.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import importlib.util
import itertools
import json
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from string import Template
from types import SimpleNamespace
from typing import Any

from benchmarks import DATA, ROOT
from benchmarks.job import NUM_SPECIAL_SYMBOLS, Job, Sources, answer_jobs, answer_questions, word_of, words_of

Array = Any
"""A numpy array. The type checker can't see it, because only some environments have numpy."""

G2P_BUNDLE = ROOT / "models" / "g2p-en"
HOST = "127.0.0.1"
SCALE = 0.05  # Standard deviation of random weights.
METHODS = {
    "bulk": "/attendant.v1.Seq2Seq/GenerateBatch",
    "bulk-lists": "/attendant.v1.Seq2Seq/GenerateBatches",
    "list": "/attendant.v1.Seq2Seq/GenerateMany",
    "stream": "/attendant.v1.Seq2Seq/GenerateStream",
}
"""By kind of load; the other kinds use the server's own unary call."""


def generate_load(target: str, method: str, requests: str) -> None:
    """Loads a server: questions are `Load`s, answers `Answered`s. The file of requests has one a line, in base64."""
    from attendant.server.bench.load import Load, run_load

    payloads = itertools.cycle(map(base64.b64decode, Path(requests).read_text(encoding="ascii").splitlines()))

    def answer(question: dict[str, Any]) -> dict[str, object]:
        load = Load(**question)
        return asdict(asyncio.run(run_load(target, METHODS.get(load.kind, method), payloads, load)))

    answer_questions(answer)


async def serve(service: str, handlers: dict[str, Any]) -> None:
    """Runs a grpc.aio service on a free port, which it prints, until SIGTERM.

    Args:
        service: the full name.
        handlers: grpc's, by the names of the calls; both sides are bytes.
    """
    import grpc

    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print(f"serving on {HOST}:{port}", flush=True)
    await ended.wait()
    await server.stop(None)


def serve_nothing(refuses: bool = False) -> None:
    """Runs a service with our calls that returns its requests, or refuses each, to measure gRPC itself."""
    import grpc
    import uvloop

    async def unary(request: bytes, context: Any) -> bytes:
        if refuses:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")
        return request

    async def stream(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request)

    unary_handler: Any = grpc.unary_unary_rpc_method_handler(unary)
    stream_handler: Any = grpc.stream_stream_rpc_method_handler(stream)
    handlers = dict.fromkeys(("Generate", "GenerateMany"), unary_handler)
    handlers |= dict.fromkeys(("GenerateBatch", "GenerateBatches"), stream_handler)
    uvloop.run(serve("attendant.v1.Seq2Seq", handlers))


BOS_ID = 2
STATE = ("hidden", "cell", "feeding")
Run = Callable[[Mapping[str, Array]], "list[Array]"]
"""Runs an encoder or a step: arrays by name in, arrays in the order of plain_model.py out."""


class PlainLoop:
    """Decodes a batch of sentences of one length; no sentence ends before the last step."""

    def __init__(self, encode: Run, step: Run) -> None:
        self._encode = encode
        self._step = step

    def answer_jobs(self) -> None:
        answer_jobs(lambda batch, job: self.decode(batch, job.num_tokens, job.beam_size))

    def decode(self, sources: Array, num_steps: int, beam_size: int) -> Array:
        """Returns ids [B, num_steps] of the best hypothesis of each source."""
        import numpy as np

        memory, keys, hidden, cell = self._encode({"source_ids": np.array(sources, np.int64)})
        feeding = np.zeros((len(sources), hidden.shape[2]), np.float32)
        inputs = {"hidden": hidden, "cell": cell, "feeding": feeding, "memory": memory, "keys": keys}
        inputs = {name: array.repeat(beam_size, axis=_row_axis(name)) for name, array in inputs.items()}
        num_sources, previous = len(sources), np.full(len(sources) * beam_size, BOS_ID, np.int64)
        # At first all rows of a source are equal: only one of them counts.
        scores = np.tile(np.array([0.0] + [-np.inf] * (beam_size - 1), np.float32), (num_sources, 1))
        target_ids = np.zeros((num_sources * beam_size, 0), np.int64)
        for _ in range(num_steps):
            log_probs, ids, *state = self._step({"previous_ids": previous, **inputs})
            if beam_size == 1:
                previous = ids[:, 0]
            else:
                pool = (scores[:, :, None] + log_probs.reshape(num_sources, beam_size, -1)).reshape(num_sources, -1)
                best = np.argsort(-pool, axis=1, kind="stable")[:, :beam_size]
                scores = np.take_along_axis(pool, best, 1)
                rows = (best // log_probs.shape[1] + np.arange(num_sources)[:, None] * beam_size).ravel()
                previous = np.take_along_axis(ids.reshape(num_sources, -1), best, 1).ravel()
                state = [array.take(rows, axis=_row_axis(name)) for name, array in zip(STATE, state, strict=True)]
                target_ids = target_ids[rows]
            inputs.update(zip(STATE, state, strict=True))
            target_ids = np.concatenate([target_ids, previous[:, None]], 1)
        return target_ids.reshape(num_sources, beam_size, -1)[:, 0]


def _row_axis(name: str) -> int:
    """Returns the axis of the rows: in states of torch's LSTM the layers come first."""
    return 1 if name in {"hidden", "cell"} else 0


def work_plain(folder: str) -> None:
    """Decodes jobs with the graphs of a folder."""
    onnx_loop(folder).answer_jobs()


def onnx_loop(folder: str) -> PlainLoop:
    """Returns the loop around the graphs of a folder, on one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")

    def run(name: str) -> Run:
        session = ort.InferenceSession(f"{folder}/{name}.onnx", options, providers=["CPUExecutionProvider"])
        return lambda inputs: list(session.run(None, dict(inputs)))

    return PlainLoop(run("encoder"), run("step"))


def serve_triton(folder: str, num_instances: int, batch_size: int) -> None:
    """Runs a Triton server. Its dynamic batcher puts requests of the same shape into a batch.

    Each instance is a process with one thread.
    """
    import numpy as np
    from pytriton.decorators import batch
    from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig

    def instance() -> Any:
        loop = onnx_loop(folder)

        def decode(source_ids: Array, num_steps: Array) -> dict[str, Array]:
            """Cuts the padding that all sources have, and steps until the last sentence has ended."""
            longest = int(np.count_nonzero(source_ids, axis=1).max())
            return {"target_ids": loop.decode(source_ids[:, :longest], int(num_steps.max()), 1)}

        return batch(decode)

    with ExitStack() as exits:
        names = "grpc_port", "http_port", "metrics_port"
        sockets = {name: exits.enter_context(socket.create_server((HOST, 0))) for name in names}
        ports = {name: free.getsockname()[1] for name, free in sockets.items()}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Triton(config=TritonConfig(http_address=HOST, grpc_address=HOST, **ports)) as triton:
        triton.bind(
            model_name="mt",
            infer_func=[instance() for _ in range(num_instances)],
            inputs=[Tensor(name=name, dtype=np.int64, shape=(-1,)) for name in ("source_ids", "num_steps")],
            outputs=[Tensor(name="target_ids", dtype=np.int64, shape=(-1,))],
            config=ModelConfig(max_batch_size=batch_size, batcher=DynamicBatcher(max_queue_delay_microseconds=2000)),
            strict=False,
        )
        triton.run()
        print(f"serving on {HOST}:{ports['grpc_port']}", flush=True)
        signal.pause()


def make_ctranslate2(
    folder: str, num_encoder_layers: int, num_decoder_layers: int, width: int, feed_forward: int, vocabulary_size: int
) -> None:
    """Writes a Transformer of seeded random weights in int8; the vocabulary is that of each side."""
    import ctranslate2
    import numpy as np

    spec = ctranslate2.specs.TransformerSpec.from_config((num_encoder_layers, num_decoder_layers), num_heads=8)
    generator, sizes = np.random.default_rng(1), {"vocabulary": vocabulary_size, "feed_forward": feed_forward}
    sizes |= {"positions": 512, "width": width, "two_widths": 2 * width, "three_widths": 3 * width}
    # Rows and columns of the matrices that are not square, by the last parts of CTranslate2's names.
    shapes = json.loads((DATA / "ctranslate2_shapes.json").read_text(encoding="utf-8"))

    def fill(layer: Any, name: str, value: object) -> None:
        *scope, kind = name.split("/")
        rows, columns = (sizes[size] for size in shapes.get("/".join(scope[-2:]), ("width", "width")))
        if kind in {"weight", "encodings"}:
            setattr(layer, kind, generator.normal(0, SCALE, (rows, columns)).astype(np.float32))
        elif kind in {"gamma", "beta", "bias"}:
            setattr(layer, kind, np.full(rows, kind == "gamma", np.float32))

    ctranslate2.specs.model_spec.visit_spec(spec, fill)
    words = ["<pad>", "<unk>", "<s>", "</s>", *map(word_of, range(NUM_SPECIAL_SYMBOLS, vocabulary_size))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.validate()
    spec.optimize(quantization="int8")
    spec.save(folder)


def ctranslate2_translator(folder: str, num_workers: int) -> Callable[..., Any]:
    """Returns a function that translates each source into an exact number of tokens."""
    import ctranslate2

    sizes = {"inter_threads": num_workers, "intra_threads": 1}
    translator = ctranslate2.Translator(folder, device="cpu", compute_type="int8", **sizes)

    def translate(words: list[list[str]], num_steps: list[int], batch_size: int, beam_size: int) -> Any:
        longest = max(num_steps)
        options: dict[str, Any] = {"min_decoding_length": longest, "max_decoding_length": longest}
        if min(num_steps) < longest:
            # A row for which this is true leaves the batch. Only greedy search calls it.
            options["callback"] = lambda result: result.step + 1 >= num_steps[result.batch_id]
        return translator.translate_batch(words, max_batch_size=batch_size, beam_size=beam_size, **options)

    return translate


def work_ctranslate2(folder: str, num_workers: int) -> None:
    """Decodes jobs."""
    translate = ctranslate2_translator(folder, num_workers)

    def decode(sources: Sources, job: Job) -> None:
        words = [[*words_of(source).split(), "</s>"] for source in sources]
        translate(words, [job.num_tokens] * len(words), job.batch_size, job.beam_size)

    answer_jobs(decode, batches_itself=True)


def serve_ctranslate2(folder: str, num_workers: int, batch_size: int) -> None:
    """Runs CTranslate2 with a plain batcher on grpc.aio.

    A free worker takes all waiting requests, up to a batch, which are answered together. A request is the number of its
    steps and its words; an answer is words.
    """
    import grpc

    translate, threads = ctranslate2_translator(folder, num_workers), ThreadPoolExecutor(num_workers)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[tuple[list[str], asyncio.Future[list[str]]]] = asyncio.Queue()

        async def answer(request: bytes, context: object) -> bytes:
            future: asyncio.Future[list[str]] = loop.create_future()
            waiting.put_nowait((request.decode().split(), future))
            return " ".join(await future).encode()

        async def work() -> None:
            while True:
                batch = [await waiting.get()]
                while len(batch) < batch_size and not waiting.empty():
                    batch.append(waiting.get_nowait())
                words, num_steps = [request[1:] for request, _ in batch], [int(request[0]) for request, _ in batch]
                results = await loop.run_in_executor(threads, translate, words, num_steps, batch_size, 1)
                for (_, future), result in zip(batch, results, strict=True):
                    if not future.done():
                        future.set_result(result.hypotheses[0])

        workers = asyncio.gather(*(work() for _ in range(num_workers)))
        await serve("benchmarks.CTranslate2", {"Translate": grpc.unary_unary_rpc_method_handler(answer)})
        workers.cancel()

    asyncio.run(run())


def work_joeynmt(vocabulary_size: int, hidden_size: int, **sizes: float) -> None:
    """Decodes jobs with the model of its training benchmark, by its own search."""
    import torch
    import yaml
    from joeynmt.config import _check_special_symbols
    from joeynmt.model import build_model
    from joeynmt.search import search
    from joeynmt.vocabulary import Vocabulary

    torch.set_num_threads(1)
    torch.manual_seed(1)
    words = list(map(word_of, range(NUM_SPECIAL_SYMBOLS, vocabulary_size)))
    vocabulary = Vocabulary(words, SimpleNamespace(**_check_special_symbols({})))
    sizes |= {"hidden_size": hidden_size, "direction_size": hidden_size // 2}
    template = Template((DATA / "joeynmt.yaml").read_text(encoding="utf-8"))
    config = yaml.safe_load(template.safe_substitute(sizes, input_feeding="true"))["model"]
    model = build_model(config, vocabulary, vocabulary).eval()

    def decode(sources: Sources, job: Job) -> None:
        batch = SimpleNamespace(
            src=torch.tensor(sources),
            src_length=torch.full((len(sources),), job.num_tokens),
            src_mask=torch.ones(len(sources), 1, job.num_tokens, dtype=torch.bool),
            has_trg=False,
        )
        lengths = {"max_output_length": job.num_tokens, "min_output_length": job.num_tokens}
        search(model, batch, **lengths, beam_size=job.beam_size, beam_alpha=0.6)

    answer_jobs(decode)


def make_marian(folder: str, vocabulary_size: int, embedding: int, width: int) -> None:
    """Writes a model of seeded random weights, and a vocabulary with a piece for each word."""
    import numpy as np
    import sentencepiece

    generator, eos_id, arrays = np.random.default_rng(1), 0, dict[str, Any]()
    sizes = {"vocabulary": vocabulary_size, "embedding": embedding, "width": width}
    sizes |= {"context": 2 * width, "gates": 4 * width, "one": 1}
    # Rows and columns of every parameter, by Marian's name.
    shapes = json.loads((DATA / "marian_shapes.json").read_text(encoding="utf-8"))
    for name, (rows, columns) in shapes.items():
        shape = sizes[rows], sizes[columns]
        values = np.zeros(shape) if rows == "one" else generator.normal(0, SCALE, shape)
        arrays[name] = values.astype(np.float32)
    # As in workload.py: a distribution with a clear best candidate, and no early end.
    arrays["decoder_ff_logit_l2_Wt"] *= 40.0
    arrays["decoder_ff_logit_l2_b"][0, eos_id] = -50.0
    template = Template((DATA / "marian.yml").read_text(encoding="utf-8"))
    text = template.substitute(vocabulary=vocabulary_size, embedding=embedding, width=width)
    # Marian expects a C string.
    arrays["special:model.yml"] = np.frombuffer(text.encode() + b"\0", np.int8)
    np.savez(Path(folder, "model.npz"), **arrays)
    words = map(word_of, range(NUM_SPECIAL_SYMBOLS - 2, vocabulary_size))  # Marian has two special symbols
    with Path(folder, "vocabulary.spm").open("wb") as file:
        options: dict[str, Any] = {"model_type": "word", "vocab_size": vocabulary_size, "minloglevel": 2}
        options |= {"bos_id": -1, "pad_id": -1, "eos_id": eos_id, "unk_id": 1}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=words, model_writer=file, **options)


def work_marian(folder: str, num_workers: int) -> None:
    """Decodes jobs by the package's compiled module, because importing the package fetches a list of models."""
    sys.path[:0] = importlib.util.find_spec("bergamot").submodule_search_locations  # type: ignore[union-attr, assignment]
    import _bergamot as bergamot

    service = bergamot.Service(bergamot.ServiceConfig(numWorkers=num_workers, cacheSize=0))
    options = bergamot.ResponseOptions(qualityScores=False)
    model = functools.lru_cache(maxsize=None)(service.modelFromConfig)

    files = {"models": [f"{folder}/model.npz"], "vocabs": 2 * [f"{folder}/vocabulary.spm"]}
    fixed = {"normalize": 0.6, "ssplit-mode": "sentence", "cpu-threads": 1, "workspace": 128, "quiet": True}

    def decode(sources: Sources, job: Job) -> None:
        # A batch has a number of source tokens, and no answer is longer than its source. Of the precisions that a model
        # without precomputed scales can have, one is fastest for batches, the other for single sentences.
        settings = {
            **files,
            **fixed,
            "beam-size": job.beam_size,
            "max-length-factor": 1.0,
            "max-length-break": job.num_tokens,
            "mini-batch-words": job.num_tokens * job.batch_size,
            "gemm-precision": "int8" if job.batch_size == 1 else "int8shiftAll",
        }
        # A line is a sentence; all lines of a request are read before the first batch is made.
        lines = bergamot.VectorString(["\n".join(map(words_of, sources))])
        (answer,) = service.translate(model(json.dumps(settings)), lines, options)
        lengths = {answer.target.numWords(number) for number in range(len(sources))}
        if answer.target.numSentences() != len(sources) or lengths != {job.num_tokens}:
            raise AssertionError(f"{len(sources)} answers of {job.num_tokens} tokens were expected, not {lengths}")

    answer_jobs(decode, batches_itself=True)


def g2p_words(job: Job) -> list[str]:
    """Returns words of the golden examples of models/g2p-en, drawn at random."""
    lines = (G2P_BUNDLE / "golden.jsonl").read_text(encoding="utf-8").splitlines()
    words = sorted({"".join(json.loads(line)["source_tokens"]) for line in lines})
    return random.Random(job.seed).choices(words, k=job.num_sentences)


def work_g2p_en() -> None:
    """Pronounces words one by one, because the package has no batches."""
    import nltk.corpus

    # When imported it fetches a dictionary and a tagger, which single words that the model pronounces don't need.
    nltk.download, nltk.corpus.cmudict = (lambda name: True), SimpleNamespace(dict=dict)
    from g2p_en import G2p

    model = G2p()

    def decode(batch: list[str], job: Job) -> None:
        for word in batch:
            model.predict(word)

    answer_jobs(decode, sources=g2p_words)
