"""The systems that decode in process: ours, and each peer with its environment and its model."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import Context
from benchmarks.decoding.system import ROOT, System, attendant
from benchmarks.peers.environment import PeerEnvironment
from benchmarks.peers.plain_model import export_plain, plain_parameters
from benchmarks.training import joeynmt
from benchmarks.training.environment import TORCH, InstallationFailed

CTRANSLATE2 = PeerEnvironment(name="ctranslate2", requirements=("ctranslate2==4.8.5", "numpy==2.4.6", "grpcio==1.85.1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A Transformer (Vaswani et al. 2017) with about as many parameters as the model that is measured."""

    num_encoder_layers: int
    num_decoder_layers: int
    width: int
    feed_forward: int

    @property
    def name(self) -> str:
        return f"{self.num_encoder_layers}+{self.num_decoder_layers}"


TRANSFORMERS = (
    Transformer(num_encoder_layers=6, num_decoder_layers=2, width=256, feed_forward=2048),
    Transformer(num_encoder_layers=12, num_decoder_layers=1, width=256, feed_forward=1152),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row to be: a system, or why there is none.

    Attributes:
        key: of its figures.
    """

    key: str
    name: str
    prepare: Callable[[], System]


def ours(context: Context, *, best: bool) -> list[Candidate]:
    layouts = ((2, 1), (1, 2)) if best else ((1, 1),)
    return [
        _known(f"attendant_{precision}", attendant(context.bundle, precision, num_workers=workers, num_threads=threads))
        for precision in ("int8", "fp32")
        for workers, threads in layouts
    ]


def _known(key: str, system: System) -> Candidate:
    return Candidate(key=key, name=system.name, prepare=lambda: system)


def plain(context: Context, *, alone: bool = False) -> list[Candidate]:
    folder = plain_folder(context)
    abouts = {
        "fp32": f"graphs as torch.onnx writes them, {plain_parameters(context.workload) / 1e6:.1f} M parameters",
        "int8": "the same after onnxruntime's quantize_dynamic",
    }
    systems = [
        _known(
            f"plain_{precision}",
            System(
                name=f"plain ORT loop {precision}, {_workers(alone)}",
                command=(sys.executable, "-m", "benchmarks.peers.plain_worker", str(folder / precision), "1"),
                num_workers=1 if alone else 2,
                about=about,
            ),
        )
        for precision, about in abouts.items()
    ]
    torch_loop = System(
        name=f"PyTorch loop fp32, {_workers(alone)}",
        command=(sys.executable, "-m", "benchmarks.peers.torch_worker", str(context.workload.hidden_size)),
        num_workers=1 if alone else 2,
        about=f"the same model in {TORCH}, eager",
    )
    return [*systems, _known("torch", torch_loop)]


def _workers(alone: bool) -> str:
    return "1 worker x 1 thread" if alone else "2 workers x 1 thread"


def plain_folder(context: Context) -> Path:
    """Where the plain graphs are; made at the first use."""
    folder = context.cache / "models" / f"plain-{context.workload.hidden_size}"
    if not (folder / "int8" / "step.onnx").exists():
        export_plain(context.workload, folder)
    return folder


def ctranslate2(context: Context, *, alone: bool = False) -> list[Candidate]:
    def prepare(transformer: Transformer) -> System:
        model, num_parameters = transformer_model(context, transformer)
        module, num_workers = "benchmarks.peers.ctranslate2_worker", "1" if alone else "2"
        return System(
            name=_name_of(transformer, alone=alone),
            # Its own workers are threads of one process.
            command=(str(CTRANSLATE2.python(context.cache)), "-m", module, str(model), num_workers),
            batch_sizes=(32, 64, 128),
            about=f"{CTRANSLATE2.requirements[0]}, Transformer of width {transformer.width}, "
            f"{num_parameters / 1e6:.1f} M parameters",
        )

    def candidate(transformer: Transformer) -> Candidate:
        key = f"ctranslate2_{transformer.name.replace('+', '_')}"
        return Candidate(key=key, name=_name_of(transformer, alone=alone), prepare=lambda: prepare(transformer))

    return [candidate(transformer) for transformer in TRANSFORMERS]


def _name_of(transformer: Transformer, *, alone: bool) -> str:
    return f"CTranslate2 {transformer.name} int8, inter_threads={1 if alone else 2}"


def transformer_model(context: Context, transformer: Transformer) -> tuple[Path, int]:
    """Where the model is, made at the first use, and its number of parameters.

    Raises:
        InstallationFailed: CTranslate2 is not to be had, or refuses the model.
    """
    python = CTRANSLATE2.install(context.cache)
    folder = context.cache / "models" / f"transformer-{transformer.name}-{context.workload.vocabulary_size}"
    counted = folder / "parameters.txt"
    if not counted.exists():
        folder.mkdir(parents=True, exist_ok=True)
        sizes = (
            transformer.num_encoder_layers,
            transformer.num_decoder_layers,
            transformer.width,
            transformer.feed_forward,
            context.workload.vocabulary_size,
        )
        counted.write_text(
            said_by([str(python), "-m", "benchmarks.peers.ctranslate2_model", str(folder), *map(str, sizes)]),
            encoding="utf-8",
        )
    return folder, int(counted.read_text(encoding="utf-8"))


def said_by(command: Sequence[str]) -> str:
    """What a peer's command prints. Raises InstallationFailed with its last words."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallationFailed(" / ".join(done.stderr.strip().splitlines()[-2:]))
    return done.stdout


def toolkits(context: Context, *, alone: bool = False) -> list[Candidate]:
    """Those that a user would train with, too."""

    def joey() -> System:
        joeynmt.ENVIRONMENT.install(context.cache, None)
        return System(
            name=f"JoeyNMT fp32, {_workers(alone)}",
            command=(
                str(joeynmt.ENVIRONMENT.python(context.cache)),
                "-m",
                "benchmarks.peers.joeynmt_worker",
                str(context.workload.hidden_size),
            ),
            num_workers=1 if alone else 2,
            about=f"joeynmt=={joeynmt.ENVIRONMENT.version}, the same kind of model",
        )

    return [Candidate(key="joeynmt", name=f"JoeyNMT fp32, {_workers(alone)}", prepare=joey)]
