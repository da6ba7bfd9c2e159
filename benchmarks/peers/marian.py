"""Marian's recurrent model (Junczys-Dowmunt et al. 2018), through the package that has it on PyPI."""

from benchmarks.command import Context
from benchmarks.decoding.system import System
from benchmarks.peers.candidates import Candidate, said_by
from benchmarks.peers.environment import PeerEnvironment
from benchmarks.peers.plain_model import plain_parameters

MARIAN = PeerEnvironment(
    name="marian",
    requirements=("bergamot==0.4.5", "numpy==2.0.2", "sentencepiece==0.2.1"),
    # Its wheels end with Python 3.10.
    interpreters=("python3.10", "python3.9"),
)


def marian(context: Context, *, alone: bool = False) -> list[Candidate]:
    num_workers = 1 if alone else 2
    name = f"Marian s2s LSTM int8, {num_workers} worker{'' if alone else 's'}"

    def prepare() -> System:
        python = MARIAN.install(context.cache)
        workload = context.workload
        most = plain_parameters(workload)
        folder = context.cache / "models" / f"marian-{workload.vocabulary_size}-{most}"
        made = folder / "made.txt"
        if not made.exists():
            folder.mkdir(parents=True, exist_ok=True)
            sizes = (workload.vocabulary_size, workload.embedding_size, workload.num_layers, most)
            said = said_by([str(python), "-m", "benchmarks.peers.marian_model", str(folder), *map(str, sizes)])
            made.write_text(said, encoding="utf-8")
        num_parameters, width = map(int, made.read_text(encoding="utf-8").split())
        return System(
            name=name,
            # Its own workers are threads of one process.
            command=(str(python), "-m", "benchmarks.peers.marian_worker", str(folder), str(num_workers)),
            batch_sizes=(32, 64, 128),
            about=f"{MARIAN.requirements[0]}, the same kind of model, hidden size {width}, "
            f"{num_parameters / 1e6:.1f} M parameters",
        )

    return [Candidate(key="marian", name=name, prepare=prepare)]
