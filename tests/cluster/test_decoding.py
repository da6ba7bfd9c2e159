"""Files on Ray Data: each line answered once, in order, whoever dies meanwhile and however often it is begun."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from attendant.runtime.errors import UserError
from attendant.server.library import load
from tests.cluster.conftest import Nodes, command
from tests.paths import ROOT

BUNDLE = ROOT / "models" / "g2p-en"
NUM_FILES, NUM_LINES = 6, 400

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Words, and among them what can't be decoded."""
    folder = tmp_path_factory.mktemp("inputs")
    words = ["badge", "face", "knowledgeable", "", "onnx", "phoneme"]
    paths = [folder / f"{number}.txt" for number in range(NUM_FILES)]
    for number, path in enumerate(paths):
        lines = [words[(line + number) % len(words)] for line in range(NUM_LINES)]
        path.write_text("".join(f"{line}\n" for line in lines))
    return paths


def work(output: Path, **options: Any) -> Any:
    from attendant.server.cluster.decoding import Work

    return Work(bundle=BUNDLE, output=output, options=options)


def actors() -> list[psutil.Process]:
    """Returns the processes that hold a model to decode files."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "FileDecoder" in " ".join(process.info["cmdline"] or [])
    ]


def kill_an_actor(output: Path, killed: list[int]) -> None:
    """Kills an actor when one has begun a file. The folder's record has a hidden name with a single dot meanwhile."""
    while not list(output.glob("..*")):
        time.sleep(0.02)
    killed.append(actors()[0].pid)
    os.kill(killed[0], signal.SIGKILL)


def test_each_line_is_answered_once_though_an_actor_dies(nodes: Nodes, inputs: list[Path], tmp_path: Path) -> None:
    from attendant.server.cluster.decoding import decode

    killed: list[int] = []
    killer = threading.Thread(target=kill_an_actor, args=(tmp_path, killed))
    killer.start()
    decode(work(tmp_path, beam_size=4), inputs, actors=2, threads=1)
    killer.join()
    assert killed
    model = load(BUNDLE, threads=1)
    for path in inputs:
        texts = path.read_text().splitlines()
        answers = [json.loads(line) for line in (tmp_path / path.name).read_text().splitlines()]
        assert len(answers) == len(texts) == NUM_LINES
        expected = {text: model.generate(text, beam_size=4).best for text in set(texts) if text}
        for text, answer in zip(texts, answers, strict=True):
            if text:
                assert (answer["text"], answer["score"]) == (expected[text].text, expected[text].score)
            else:
                assert list(answer) == ["error"]
    assert not list(tmp_path.glob(".*"))

    # Again: only what is missing, and nothing of other work.
    before = {path.name: (tmp_path / path.name).stat().st_mtime_ns for path in inputs[1:]}
    (tmp_path / inputs[0].name).unlink()
    output = command("decode", BUNDLE, *inputs, "--output", tmp_path, "--beam-size", 4)
    assert output.splitlines() == [
        f"{NUM_FILES - 1} of {NUM_FILES} files are there",
        f"{inputs[0].name}: {NUM_LINES} lines, 67 errors",
    ]
    assert {path.name: (tmp_path / path.name).stat().st_mtime_ns for path in inputs[1:]} == before
    with pytest.raises(UserError, match="name another folder"):
        decode(work(tmp_path, beam_size=5), inputs, actors=1, threads=1)
