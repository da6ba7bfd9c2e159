"""What decodes in process beside Attendant: each peer with its environment, its model and its worker."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from benchmarks.command import Context
from benchmarks.decoding.in_process import BEAM_SIZE, NUM_WORKERS, Decoder, layout, one_by_one, own_decoder, throughput
from benchmarks.harness.environment import ENVIRONMENTS, TORCH, output_of
from benchmarks.harness.results import Part
from benchmarks.peers.marian_shapes import BLOCK, narrowed, num_parameters, shapes_of
from benchmarks.peers.plain_model import export_plain, plain_parameters
from benchmarks.training.toolkits import TOOLKITS, Training

OWN_BATCH_SIZES = (32, 64, 128)
"""Of peers whose workers are threads of one process."""


@dataclass(frozen=True, slots=True)
class Transformer:
    """A Transformer (Vaswani et al. 2017) with about as many parameters as the model that is measured."""

    num_encoder_layers: int
    num_decoder_layers: int
    width: int
    feed_forward: int

    @property
    def name(self) -> str:
        return f"{self.num_encoder_layers}+{self.num_decoder_layers}"

    def num_parameters(self, vocabulary_size: int) -> int:
        """Weights and biases of the linear layers and the embeddings."""
        attention = 4 * self.width * (self.width + 1)
        feed_forward = 2 * self.width * self.feed_forward + self.width + self.feed_forward
        layers = self.num_encoder_layers * (attention + feed_forward)
        layers += self.num_decoder_layers * (2 * attention + feed_forward)
        return layers + (3 * self.width + 1) * vocabulary_size


TRANSFORMERS = (Transformer(6, 2, 256, 2048), Transformer(12, 1, 256, 1152))


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
    for precision in ("int8", "fp32"):
        for workers, threads in {(num_workers, 1): 0, (1, num_workers): 0}:
            yield own_decoder(context, precision, num_workers=workers, num_threads=threads)
    yield from _plain(context, num_workers)
    for transformer in TRANSFORMERS:
        yield _ctranslate2(context, transformer, num_workers)
    yield _joeynmt(context, num_workers)
    yield _marian(context, num_workers)


def _plain(context: Context, num_workers: int) -> Iterator[Decoder]:
    python, size = (sys.executable, "-m"), str(context.workload.hidden_size)
    parameters = _millions(plain_parameters(context.workload))

    def decoder(key: str, name: str, about: str, command: Callable[[], Sequence[str]]) -> Decoder:
        name = f"{name}, {layout(num_workers)}"
        return Decoder(key=key, name=name, command=command, num_workers=num_workers, about=about)

    def graphs(precision: str) -> Callable[[], Sequence[str]]:
        return lambda: (*python, "benchmarks.peers.plain_loop", str(plain_folder(context) / precision))

    about = f"graphs as torch.onnx writes them, {parameters}"
    yield decoder("plain_fp32", "plain ORT loop fp32", about, graphs("fp32"))
    about = "the same after onnxruntime's quantize_dynamic"
    yield decoder("plain_int8", "plain ORT loop int8", about, graphs("int8"))
    about = f"the same model in {TORCH}, eager"
    yield decoder("torch", "PyTorch loop fp32", about, lambda: (*python, "benchmarks.peers.plain_model", size))


def plain_folder(context: Context) -> Path:
    """Where the plain graphs are; made at the first use."""
    folder = context.cache / "models" / f"plain-{context.workload.hidden_size}"
    if not (folder / "int8" / "step.onnx").exists():
        export_plain(context.workload, folder)
    return folder


def _ctranslate2(context: Context, transformer: Transformer, num_workers: int) -> Decoder:
    parameters = _millions(transformer.num_parameters(context.workload.vocabulary_size))
    package = ENVIRONMENTS["ctranslate2"].package
    return Decoder(
        key=f"ctranslate2_{transformer.name.replace('+', '_')}",
        name=f"CTranslate2 {transformer.name} int8, inter_threads={num_workers}",
        command=lambda: ctranslate2_program(context, transformer, "worker", num_workers),
        batch_sizes=OWN_BATCH_SIZES,
        about=f"{package}, Transformer of width {transformer.width}, {parameters}",
    )


def ctranslate2_program(context: Context, transformer: Transformer, what: str, *numbers: int) -> list[str]:
    """The command that does this with the model. Raises Unavailable."""
    sizes = *astuple(transformer), context.workload.vocabulary_size
    return _program(context, "ctranslate2", sizes, what, *numbers)


def _program(context: Context, peer: str, sizes: tuple[int, ...], what: str, *numbers: int) -> list[str]:
    """A peer's command; its environment and its model are made at the first use. Raises Unavailable."""
    program = [str(ENVIRONMENTS[peer].install(context.cache)), "-m", f"benchmarks.peers.{peer}_program"]
    folder = context.cache / "models" / "-".join([peer, *map(str, sizes)])
    if not (folder / "made").exists():
        folder.mkdir(parents=True, exist_ok=True)
        output_of([*program, "model", str(folder), *map(str, sizes)])
        (folder / "made").touch()
    return [*program, what, str(folder), *map(str, numbers)]


def _joeynmt(context: Context, num_workers: int) -> Decoder:
    toolkit = TOOLKITS["joeynmt"]

    def command() -> list[str]:
        python = toolkit.python(context.cache)
        folder = context.cache / "models" / f"joeynmt-{context.workload.hidden_size}"
        toolkit.configure(Training(workload=replace(context.workload, dropout=0.0), corpus=folder, folder=folder))
        config, size = folder / toolkit.template, context.workload.vocabulary_size
        return [python, "-m", "benchmarks.peers.joeynmt_worker", str(config), str(size)]

    return Decoder(
        key="joeynmt",
        name=f"JoeyNMT fp32, {layout(num_workers)}",
        command=command,
        num_workers=num_workers,
        about=f"joeynmt=={toolkit.version}, the same kind of model",
    )


def _marian(context: Context, num_workers: int) -> Decoder:
    """Marian's recurrent model (Junczys-Dowmunt et al. 2018).

    In its `s2s` each direction of the encoder is as wide as the decoder, and a second cell follows the attention. It is
    made as wide as it can be with no more parameters than the model beside it.
    """
    vocabulary, num_layers = context.workload.vocabulary_size, context.workload.num_layers
    embedding = -(-context.workload.embedding_size // BLOCK) * BLOCK
    width = narrowed(vocabulary, embedding, num_layers, plain_parameters(context.workload))
    sizes = vocabulary, embedding, width, num_layers
    parameters = _millions(num_parameters(shapes_of(*sizes)))
    return Decoder(
        key="marian",
        name=f"Marian s2s LSTM int8, {num_workers} worker{'' if num_workers == 1 else 's'}",
        command=lambda: _program(context, "marian", sizes, "worker", num_workers),
        batch_sizes=OWN_BATCH_SIZES,
        about=f"{ENVIRONMENTS['marian'].package}, the same kind of model, hidden size {width}, {parameters}",
    )


def _millions(number: int) -> str:
    return f"{number / 1e6:.1f} M parameters"
