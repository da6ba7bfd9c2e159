"""What decodes in process beside Attendant: each peer with its environment, its model and its worker."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from benchmarks.command import Context
from benchmarks.decoding.in_process import (
    BEAM_SIZE,
    NUM_WORKERS,
    PRECISIONS,
    Decoder,
    layout,
    one_by_one,
    own_decoder,
    throughput,
)
from benchmarks.harness.environment import ENVIRONMENTS, TORCH, made_once
from benchmarks.harness.process import output_of
from benchmarks.harness.results import Part
from benchmarks.peers.marian import BLOCK, narrowed, num_parameters, shapes_of
from benchmarks.peers.plain_model import export_plain, plain_parameters
from benchmarks.program import program

OWN_BATCH_SIZES = (32, 64, 128)
"""Of peers whose workers are threads of one process."""

TRANSFORMERS = {
    "6+2": {"num_encoder_layers": 6, "num_decoder_layers": 2, "width": 256, "feed_forward": 2048},
    "12+1": {"num_encoder_layers": 12, "num_decoder_layers": 1, "width": 256, "feed_forward": 1152},
}
"""Transformers (Vaswani et al. 2017) with about as many parameters as the model that is measured."""


def greedy(context: Context) -> Part:
    """Greedy, in process.

    Sentences per second, each system at its best setting of those tried.
    """
    return throughput(context, list(all_decoders(context)), beam_size=1)


def beam(context: Context) -> Part:
    """Beam 4, in process.

    As before, with a beam. The best hypothesis is returned.
    """
    return throughput(context, list(all_decoders(context)), beam_size=BEAM_SIZE)


def single(context: Context) -> Part:
    """One sentence alone, in process, one thread.

    Median latency of 20 source positions and as many steps, greedy.
    """
    return one_by_one(context, list(all_decoders(context, alone=True)))


def all_decoders(context: Context, *, alone: bool = False) -> Iterator[Decoder]:
    """Attendant in its two layouts, and all peers with two workers; `alone`: one worker with one thread of each."""
    num_workers = 1 if alone else NUM_WORKERS
    for precision in PRECISIONS:
        for workers, threads in dict.fromkeys([(num_workers, 1), (1, num_workers)]):
            yield own_decoder(context, precision, num_workers=workers, num_threads=threads)
    yield from _of_one_thread(context, num_workers)
    yield from _with_workers_of_their_own(context, num_workers)


def _of_one_thread(context: Context, num_workers: int) -> Iterator[Decoder]:
    """Peers that share a job between processes."""
    parameters = _millions(plain_parameters(context.workload))

    def graphs(precision: str) -> list[str]:
        return program("peers.plain_loop:work", folder=str(plain_folder(context) / precision))

    def joeynmt() -> list[str]:
        python, sizes = ENVIRONMENTS["joeynmt"].install(context.cache), replace(context.workload, dropout=0.0)
        return program("peers.joeynmt:work", python, **asdict(sizes))

    eager = partial(program, "peers.plain_model:work", **asdict(context.workload))
    exported = f"graphs as torch.onnx writes them, {parameters}"
    fp32, int8 = (partial(graphs, precision) for precision in ("fp32", "int8"))
    for key, name, command, about in (
        ("plain_fp32", "plain ORT loop fp32", fp32, exported),
        ("plain_int8", "plain ORT loop int8", int8, "the same after onnxruntime's quantize_dynamic"),
        ("torch", "PyTorch loop fp32", eager, f"the same model in {TORCH}, eager"),
        ("joeynmt", "JoeyNMT fp32", joeynmt, f"{ENVIRONMENTS['joeynmt'].package}, the same kind of model"),
    ):
        named = f"{name}, {layout(num_workers)}"
        yield Decoder(key=key, name=named, command=command, num_workers=num_workers, about=about)


def _with_workers_of_their_own(context: Context, num_workers: int) -> Iterator[Decoder]:
    """Peers whose workers are threads of one process.

    Marian's recurrent model is its `s2s` (Junczys-Dowmunt et al. 2018): each direction of the encoder is as wide as the
    decoder, and a second cell follows the attention. It is made as wide as it can be with no more parameters than the
    model beside it.
    """
    workload, packages = context.workload, {name: one.package for name, one in ENVIRONMENTS.items()}
    for layers, shape in TRANSFORMERS.items():
        parameters = _millions(transformer_parameters(**shape, vocabulary_size=workload.vocabulary_size))
        yield Decoder(
            key=f"ctranslate2_{layers.replace('+', '_')}",
            name=f"CTranslate2 {layers} int8, inter_threads={num_workers}",
            command=partial(ctranslate2_program, context, layers, "work", num_workers=num_workers),
            batch_sizes=OWN_BATCH_SIZES,
            about=f"{packages['ctranslate2']}, Transformer of width {shape['width']}, {parameters}",
        )
    sizes = {"vocabulary": workload.vocabulary_size, "embedding": -(-workload.embedding_size // BLOCK) * BLOCK}
    sizes["width"] = narrowed(**sizes, most=plain_parameters(workload))
    of_size = f"hidden size {sizes['width']}, {_millions(num_parameters(shapes_of(**sizes)))}"
    yield Decoder(
        key="marian",
        name=f"Marian s2s LSTM int8, {num_workers} worker{'' if num_workers == 1 else 's'}",
        command=partial(peer_program, context, "marian:work", sizes, num_workers=num_workers),
        batch_sizes=OWN_BATCH_SIZES,
        about=f"{packages['marian']}, the same kind of model, {of_size}",
    )


def plain_folder(context: Context) -> Path:
    """Where the plain graphs are; made at the first use."""
    folder = context.cache / "models" / f"plain-{context.workload.hidden_size}"
    return made_once(folder, partial(export_plain, context.workload))


def ctranslate2_program(context: Context, transformer: str, function: str, **arguments: int) -> list[str]:
    """The command of a function of peers/ctranslate2.py with one of TRANSFORMERS. Raises Unavailable."""
    sizes = {**TRANSFORMERS[transformer], "vocabulary_size": context.workload.vocabulary_size}
    return peer_program(context, f"ctranslate2:{function}", sizes, **arguments)


def peer_program(context: Context, function: str, sizes: Mapping[str, int], **arguments: int) -> list[str]:
    """The command of a peer's function, in its own environment and with the folder of a model of these sizes.

    Args:
        function: the peer's name, which is that of its module and of its environment, and the function's.

    Raises:
        Unavailable: the environment or the model can't be made.
    """
    peer = function.partition(":")[0]
    python = ENVIRONMENTS[peer].install(context.cache)

    def make(folder: Path) -> None:
        output_of(program(f"peers.{peer}:make_model", python, folder=str(folder), **sizes))

    folder = made_once(context.cache / "models" / "-".join([peer, *map(str, sizes.values())]), make)
    return program(f"peers.{function}", python, folder=str(folder), **arguments)


def transformer_parameters(
    num_encoder_layers: int, num_decoder_layers: int, width: int, feed_forward: int, vocabulary_size: int
) -> int:
    """Weights and biases of the linear layers and the embeddings."""
    attention = 4 * width * (width + 1)
    between = 2 * width * feed_forward + width + feed_forward
    layers = num_encoder_layers * (attention + between) + num_decoder_layers * (2 * attention + between)
    return layers + (3 * width + 1) * vocabulary_size


def _millions(number: int) -> str:
    return f"{number / 1e6:.1f} M parameters"
