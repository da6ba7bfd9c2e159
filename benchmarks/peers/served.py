"""The servers, ours and the peers', under the same closed loops."""

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.command import Context
from benchmarks.decoding.job import Job, sentences, word_of
from benchmarks.decoding.system import ROOT
from benchmarks.peers.candidates import CTRANSLATE2, TRANSFORMERS, plain_folder, transformer_model
from benchmarks.peers.environment import PeerEnvironment
from benchmarks.results import Part
from benchmarks.serving.attendant_server import NUM_PAYLOADS, attendant_server, write_payloads
from benchmarks.serving.closed_loop import ClosedLoop, closed_loop_part, closed_loops
from benchmarks.serving.served import ServedSystem
from benchmarks.training.environment import InstallationFailed

CLIENTS = (1, 64)
NUM_WORKERS = 2
BATCH_SIZES = (32, 64)
"""Tried of each peer: with 64 clients, one batch of all of them, or two that take turns."""

TRITON = PeerEnvironment(
    name="triton",
    requirements=("nvidia-pytriton==0.7.0", "onnxruntime==1.31.1"),
    # Its server is linked with the system's Python.
    interpreters=("/usr/bin/python3.11", "/usr/bin/python3.10", "/usr/bin/python3.12"),
)


def served(context: Context) -> Part:
    """Unary calls; a peer's figures are those of its better setting."""
    prepared: list[tuple[str, ClosedLoop]] = []
    systems: list[tuple[str, ServedSystem]] = [("attendant", attendant_server(context, num_workers=NUM_WORKERS))]
    for key, name, prepare in _peers(context):
        try:
            systems.append((key, prepare()))
        except InstallationFailed as error:
            context.say(f"{name}: {error}")
            lost = ServedSystem(name=name, command=(), method="", payloads=Path())
            prepared.append((key, ClosedLoop(lost, problem=str(error))))
    loops = closed_loops(
        [system for _, system in systems],
        CLIENTS,
        num_rounds=min(3, context.num_rounds),
        seconds=2 * context.visit_seconds,
        say=context.say,
    )
    found = [*((key, loop) for (key, _), loop in zip(systems, loops, strict=True)), *prepared]
    # The figures of a key are the last loop's: the better setting's, then.
    found.sort(key=lambda pair: pair[1].median(CLIENTS[-1], lambda report: report.speed) if pair[1].reports else 0.0)
    return closed_loop_part(found, CLIENTS, title="Served beside peers, closed loop")


def _peers(context: Context) -> Iterator[tuple[str, str, Callable[[], ServedSystem]]]:
    for batch_size in BATCH_SIZES:
        name = f"NVIDIA Triton, batches up to {batch_size}"
        yield "triton", name, lambda name=name, size=batch_size: _triton(context, name, size)  # type: ignore[misc]
        name = f"CTranslate2 12+1 behind grpc.aio, batches up to {batch_size}"
        yield "ctranslate2", name, lambda name=name, size=batch_size: _ctranslate2(context, name, size)  # type: ignore[misc]


def _triton(context: Context, name: str, batch_size: int) -> ServedSystem:
    python = TRITON.install(context.cache)
    job = _job(context)
    made = subprocess.run(
        [str(python), "-m", "benchmarks.peers.triton_payloads"],
        cwd=ROOT,
        input=job.to_line(),
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise InstallationFailed(" / ".join(made.stderr.strip().splitlines()[-2:]))
    payloads = context.cache / "payloads" / f"triton-{context.workload.hidden_size}.txt"
    payloads.parent.mkdir(parents=True, exist_ok=True)
    payloads.write_text(made.stdout, encoding="ascii")
    sizes = (job.num_tokens, NUM_WORKERS, batch_size, _free_ports())
    folder = str(plain_folder(context) / "int8")
    return ServedSystem(
        name=name,
        command=(str(python), "-m", "benchmarks.peers.triton_server", folder, *map(str, sizes)),
        method="/inference.GRPCInferenceService/ModelInfer",
        payloads=payloads,
        # Its processes have one second to find each other, or the start has failed.
        max_starts=3,
        about=f"{TRITON.requirements[0]}, {NUM_WORKERS} instances of the plain int8 loop",
    )


def _ctranslate2(context: Context, name: str, batch_size: int) -> ServedSystem:
    model, _ = transformer_model(context, TRANSFORMERS[1])
    job = _job(context)
    requests = [" ".join([*map(word_of, source[:-1]), "</s>"]).encode() for source in sentences(job)]
    sizes = (job.num_tokens, NUM_WORKERS, batch_size)
    return ServedSystem(
        name=name,
        command=(
            *(str(CTRANSLATE2.python(context.cache)), "-m", "benchmarks.peers.ctranslate2_server", str(model)),
            *map(str, sizes),
        ),
        method="/benchmarks.CTranslate2/Translate",
        payloads=write_payloads(
            context.cache / "payloads" / f"ctranslate2-{context.workload.hidden_size}.txt", requests
        ),
        about=f"{CTRANSLATE2.requirements[0]}, inter_threads={NUM_WORKERS}, int8",
    )


def _job(context: Context) -> Job:
    workload = context.workload
    return Job(
        num_sentences=NUM_PAYLOADS, num_tokens=workload.num_tokens, vocabulary_size=workload.vocabulary_size, seed=7
    )


def _free_ports() -> int:
    """The first of three ports in a row that nobody listens on now."""
    while True:
        with socket.socket() as first, socket.socket() as second, socket.socket() as third:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
                third.bind(("127.0.0.1", port + 2))
            except (OSError, OverflowError):
                continue
            return port
