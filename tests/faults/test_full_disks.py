"""Full disks and read-only places.

The tests refuse each write operation in turn, as the operating system does: opening a file for writing, creating a
folder or a link, renaming, and writing files beyond several sizes.
"""

import errno
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from torch import nn

from attendant.export.published import publish as publish_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME
from attendant.runtime.errors import UserError
from attendant.runtime.files import new_file, write_json
from attendant.training.data.config import DataConfig
from attendant.training.data.corpus import PairEncoder, open_stored, store
from attendant.training.data.fetch import builders, publish
from attendant.training.data.pairs import Pair
from attendant.training.loop.callbacks import Record
from attendant.training.loop.journal import Journal
from attendant.training.run.checkpoint import (
    Learner,
    TrainingState,
    checkpoint_path,
    load_state,
    load_weights,
    save_checkpoint,
)
from attendant.training.run.directory import Run
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.paths import ROOT
from tests.ports import free_ports
from tests.server_process import command
from tests.serving import LETTERS, SOUNDS, symbol_tokenizer
from tests.unit.training.test_progress import start

LIMITS = (0, 1, 16, 64, 256, 1024, 4096, 16384, 65536)
"""Maximum sizes of a file, in bytes."""

REFUSALS = (errno.ENOSPC, errno.EROFS)
WRITTEN = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND


class Refuser:
    """Counts write operations, and raises the operating system's error for one of them."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.refused: int | None = None
        self.number = 0
        self.count = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or not self._writes(event, arguments):
            return
        self.count += 1
        if self.count == self.refused:
            raise OSError(self.number, "refused by the test", str(arguments[0]))

    def _writes(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "open":
            path, mode, flags = arguments
            return (
                isinstance(path, str | bytes)
                and os.fsdecode(path).startswith(str(self.folder))
                and bool(set(mode or "") & set("wax+") or (mode is None and flags & WRITTEN))
            )
        return event in ("os.mkdir", "os.rename", "os.symlink")


REFUSER = Refuser()
sys.addaudithook(REFUSER)  # it can't be removed; without a folder it lets everything pass


@contextmanager
def refusing(folder: Path, refused: int, number: int) -> Iterator[Refuser]:
    """Refuses one write within the context: the one with the number `refused`, counted from 1."""
    REFUSER.refused, REFUSER.number, REFUSER.count, REFUSER.folder = refused, number, 0, folder
    try:
        yield REFUSER
    finally:
        REFUSER.folder = None


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Limits the size of files to `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def tree(folder: Path) -> dict[str, bytes | str]:
    """Returns the content of each file and the target of each link."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else ""
        for path in folder.rglob("*")
    }


def a_result(folder: Path, turn: int) -> None:
    write_json(folder / "evaluation.json", {"turn": turn})


def outputs(folder: Path, turn: int) -> None:
    with new_file(folder / "outputs.tsv") as file:
        file.writelines(f"{turn}\t{number}\n" for number in range(1000))


def a_bundle(folder: Path, turn: int) -> None:
    with publish_bundle(folder / "bundle", force=True) as draft:
        (draft / "fp32").mkdir()
        (draft / "fp32" / "encoder.onnx").write_bytes(b"x" * 5000 + str(turn).encode())
        (draft / MANIFEST_NAME).write_text(str(turn))


def fetched_data(folder: Path, turn: int) -> None:
    publish(folder / "data" / f"copy-{turn}", "copy", builders()["copy"], announce=lambda line: None)


def a_corpus(folder: Path, turn: int) -> None:
    source, target = symbol_tokenizer(LETTERS, characters=True), symbol_tokenizer(SOUNDS, characters=False)
    config = DataConfig.model_validate({"train": {"tsv": "x"}, "validation": {"tsv": "y"}})
    encoder = PairEncoder(source, target, config, append_eos=True)
    directory = folder / "corpus" / f"key-{turn}"
    store(directory, [Pair("abc", "AA B K")] * 1000, encoder, {})
    assert open_stored(directory) is not None


def a_checkpoint(folder: Path, turn: int) -> None:
    torch.manual_seed(turn)
    model = nn.Linear(40, 40)
    optimizer = torch.optim.Adam(model.parameters())
    save_checkpoint(Run(folder), Learner(model=model, optimizer=optimizer), TrainingState(step=turn), best=True)


def check_links(folder: Path) -> None:
    """Checks that both links name a complete checkpoint."""
    for which in ("best", "last"):
        path = checkpoint_path(Run(folder), which)
        assert path is not None and load_state(path).step in (1, 2)
        load_weights(path, nn.Linear(40, 40))


WRITERS = (a_result, outputs, a_bundle, fetched_data, a_corpus, a_checkpoint)


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("write", WRITERS)
def test_a_refused_write_leaves_the_old_state(tmp_path: Path, write: Callable[[Path, int], None], number: int) -> None:
    num_refused = 0
    for refused in range(1, 100):
        folder = tmp_path / str(refused)
        folder.mkdir()
        write(folder, 1)
        before = tree(folder)
        with refusing(folder, refused, number) as refuser:
            try:
                write(folder, 2)
                message = ""
            except UserError as refusal:
                message = str(refusal)
        if write is a_checkpoint:
            check_links(folder)
        if refuser.count < refused:
            break
        if message:
            num_refused += 1
            assert "\n" not in message and os.strerror(number) in message, message
            assert write is a_checkpoint or tree(folder) == before, refused
        else:  # the refused operation would have created a folder that already exists
            assert tree(folder) != before
    assert num_refused >= 2 and not message


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_that_does_not_fit_leaves_the_old_state(tmp_path: Path, write: Callable[[Path, int], None]) -> None:
    write(tmp_path, 1)
    before, num_refused = tree(tmp_path), 0
    for size in LIMITS:
        try:
            with limited(size):
                write(tmp_path, 2)
            break
        except UserError as refusal:
            assert "can't be written: " in str(refusal) and "\n" not in str(refusal)
        num_refused += 1
        assert tree(tmp_path) == before, size
    assert num_refused


def test_a_line_of_the_journal_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    journal = Journal(Run(tmp_path))
    journal.begin(start(tmp_path))
    journal.record(Record(event="train", step=1, epochs=0.0, values={"loss": 1.5}))
    before = Run(tmp_path).metrics_path.read_bytes()
    second = Record(event="train", step=2, epochs=0.0, values={"loss": 1.25})
    for room in (0, 1, 20):
        with limited(len(before) + room), pytest.raises(UserError, match=r"metrics\.jsonl: can't be written: File too"):
            journal.record(second)
        assert Run(tmp_path).metrics_path.read_bytes() == before
    journal.record(second)
    journal.end(None)
    assert [json.loads(line)["step"] for line in Run(tmp_path).metrics_path.read_text().splitlines()] == [1, 2]


def test_events_for_tensorboard_are_written_completely_or_not_at_all(tmp_path: Path) -> None:
    journal = Journal(Run(tmp_path))
    journal.begin(start(tmp_path))
    journal.record(Record(event="train", step=1, epochs=0.0, values=dict.fromkeys("abcdefghi", 1.5)))
    (events,) = (tmp_path / "tensorboard").iterdir()
    before = events.read_bytes()
    assert len(before) > 2 * Run(tmp_path).metrics_path.stat().st_size, "events reach the limit first"
    second = Record(event="train", step=2, epochs=0.0, values={"loss": 1.5})
    for room in (0, 1, 20):
        with limited(len(before) + room), pytest.raises(UserError, match="tensorboard: can't be written: File too"):
            journal.record(second)
        assert events.read_bytes() == before
    journal.end(None)


def test_a_full_standard_output_is_one_error_line_and_status_2() -> None:
    _, environment = command()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "export", "inspect", "models/g2p-en"],
            env=environment, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=200,
        )  # fmt: skip
    assert done.stderr == (
        "export: standard output: can't be written: No space left on device: make room, or name another place\n"
    )
    assert done.returncode == 2


def test_a_server_whose_log_can_not_be_written_serves_on(tiny_bundle_path: Path) -> None:
    (port,) = free_ports(1)
    target = f"127.0.0.1:{port}"
    line, environment = command(str(tiny_bundle_path), "--port", str(port), "--metrics-port", "0")
    line += ["--log-level", "debug", "--threads", "1"]
    with (
        Path("/dev/full").open("w") as full,
        subprocess.Popen(line, env=environment, cwd=ROOT, stdout=full, stderr=full) as process,
        grpc.insecure_channel(target) as channel,
    ):
        try:
            request = messages.GenerateRequest(text="badge")
            stub, give_up = seq2seq_pb2_grpc.Seq2SeqStub(channel), time.monotonic() + 200
            while True:
                try:
                    assert stub.Generate(request, wait_for_ready=True, timeout=200).hypotheses
                    break
                except grpc.RpcError as error:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE and time.monotonic() < give_up
                    time.sleep(0.1)
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
