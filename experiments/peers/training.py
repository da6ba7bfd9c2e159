"""Peers learn for as much processor time as our model did; what was interrupted goes on from its last checkpoint."""

import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from attendant.runtime.errors import UserError
from attendant.runtime.files import write_json
from benchmarks import ROOT
from benchmarks.harness import cpu_seconds, tree
from experiments.peers.tasks import Contest, Peer, contests, load_peers
from experiments.plan import read_results

WATCH_SECONDS: Final = 2.0
SAVING_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a peer has come: progress.json in its folder.

    Attributes:
        processor_seconds: that its training has taken up to its last checkpoint.
        ended: it has had its time.
    """

    processor_seconds: float = 0.0
    ended: bool = False

    @classmethod
    def of(cls, folder: Path) -> "Progress":
        return cls(**read_results(folder / "progress.json", {}))


def train_peers() -> None:
    """Trains every peer of every task that has had less than its time.

    Raises:
        UserError: an environment can't be made; a training failed.
        KeyboardInterrupt: Ctrl-C.
    """
    known = load_peers().peers
    for contest in contests():
        contest.write_data()
        for name in contest.task.peers:
            _train(contest, name, known[name])


def last_checkpoint(folder: Path, peer: Peer) -> Path | None:
    """Of any of its trainings; None: there is none yet."""
    found = (path for path in folder.glob(f"model-*/{peer.checkpoints}") if not path.is_symlink())
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _train(contest: Contest, name: str, peer: Peer) -> None:
    folder, limit = contest.folder / name, contest.task.processor_seconds
    progress, start = Progress.of(folder), last_checkpoint(folder, peer)
    print(f"{folder}: {progress.processor_seconds:,.0f} of {limit:,} processor seconds", flush=True)
    if progress.ended:
        return
    model = folder / f"model-{len(list(folder.glob('model-*')))}"
    values = {"model": model, "load": start or "null"}
    contest.configure(name, **values, decoding_batch=64)
    command = [peer.python(), *contest.filled(peer.train, name, **values)]
    with (folder / "training.log").open("ab") as log:
        # In a session of its own: Ctrl-C is for this program, which passes it on.
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            preexec_fn=_heed_interrupts,  # noqa: PLW1509 (this program has one thread)
        )
        spent = _watch(process, folder, peer, progress.processor_seconds, limit)
    if spent < limit:
        raise UserError(f"{folder}: its training ended by itself; training.log says why")
    write_json(folder / "progress.json", {"processor_seconds": spent, "ended": True})


def _heed_interrupts() -> None:
    """In the child: a shell's background job ignores SIGINT and hands that down, but SIGINT is what ends a peer."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _watch(process: subprocess.Popen[bytes], folder: Path, peer: Peer, before: float, limit: float) -> float:
    """Waits until the training has had its time, or has ended, and ends it; the processor seconds of it in all.

    What came after the last checkpoint is lost to whoever is interrupted, so it does not count for him.
    """
    spent, seen = before, last_checkpoint(folder, peer)

    def note() -> Path | None:
        if (newest := last_checkpoint(folder, peer)) != seen:
            write_json(folder / "progress.json", {"processor_seconds": spent, "ended": False})
        return newest

    try:
        while process.poll() is None and spent < limit:
            time.sleep(WATCH_SECONDS)
            with suppress(psutil.Error):
                spent = before + cpu_seconds(tree(process.pid))
            seen = note()
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(SAVING_SECONDS)
        process.kill()
        process.wait()
        # Some save themselves when they are interrupted.
        note()
    return spent
