"""Tests of the documentation: the commands on its pages succeed.

A fenced block of `sh`, `console` (commands after `$`, then their output) or `python` is run in a folder with the files
that the pages mention. The line before a block that can't be run has an HTML comment,
`<!-- not run: why -->`, or names the test that runs it, `<!-- run by: path -->`.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.server_process import Running, server

PAGES = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "client/README.md", "models/README.md")
] + sorted((ROOT / "docs").rglob("*.md"))
TRAINING = ROOT / "docs/training.md"
RUN = ("sh", "console", "python")
FENCE = re.compile(
    r"(?m)^(?:(?P<mark>[^\n]*)\n+)?(?P<indent> *)```(?P<language>\S*)\n(?P<body>.*?)^(?P=indent)```$", re.S
)
SERVER = re.compile(r"(?m)^(\.venv/bin/)?attendant serve .*$")


pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        mark: the line before it.
        place: its page and line, for messages.
    """

    language: str
    body: str
    mark: str
    place: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for fence in FENCE.finditer(text):
        indent = len(fence["indent"])
        body = "".join(line[indent:] for line in fence["body"].splitlines(keepends=True))
        line = text.count("\n", 0, fence.start("language")) + 1
        yield Block(fence["language"], body, fence["mark"] or "", f"{name_of(page)}:{line}")


def is_run(block: Block) -> bool:
    """Returns True if this test runs the block."""
    if block.language not in RUN or block.mark.lstrip().startswith("<!-- not run: "):
        return False
    elsewhere = re.match(r" *<!-- run by: (\S+) -->", block.mark)
    if elsewhere:
        assert (ROOT / elsewhere[1]).is_file(), block.place
    return elsewhere is None


def needs_training(block: Block) -> bool:
    """Returns True if the block uses the reader's own data, run or bundle."""
    return block.place.startswith(name_of(TRAINING)) or re.search(r"\bmine\b", block.body) is not None


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with server("models/g2p-en") as running:
        yield running


@dataclass(frozen=True)
class Reader:
    """A user who types the commands of pages.

    Attributes:
        folder: the working folder: a checkout with the files that the pages mention.
        served: the server that answers at a page's localhost.
        typed: the blocks that have run; a block that two pages show runs once.
    """

    folder: Path
    served: Running
    typed: set[str] = field(default_factory=set)

    def types(self, block: Block) -> None:
        """Runs a block; each command must succeed, and print the output that a `console` block shows."""
        if block.body in self.typed:
            return
        self.typed.add(block.body)
        body = block.body.replace("localhost:50051", self.served.target)
        body = body.replace("localhost:9090", f"localhost:{self.served.metrics_port}").replace("curl ", "curl -sSf ")
        if block.language == "python":
            self._run([sys.executable, "-c", body], block)
        elif block.language == "console":
            for command, _, shown in (entry.partition("\n") for entry in re.split(r"(?m)^\$ ", body)[1:]):
                assert self._run(self._shell(command), block) == shown, block.place
        else:
            self._run(self._shell(SERVER.sub("", body)), block)
            for line in SERVER.finditer(body):
                self._serves(line[0], block)

    def _run(self, line: list[str], block: Block) -> str:
        done = subprocess.run(
            line, cwd=self.folder, env=self._environment(), capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{block.place}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _serves(self, line: str, block: Block) -> None:
        """Starts a server, checks that it serves, and ends it."""
        with subprocess.Popen(
            self._shell(f"exec {line}"), cwd=self.folder, env=self._environment(), stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert "serving on" in process.stdout.readline(), block.place
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, block.place

    def _shell(self, command: str) -> list[str]:
        return ["bash", "-euo", "pipefail", "-c", command]

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ATTENDANT_")}
        return kept | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "ATTENDANT_TARGET": self.served.target,
            "ATTENDANT_PORT": "0",
            "ATTENDANT_METRICS_PORT": "0",
        }


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, served: Running) -> Reader:
    """Returns a user with a checkout."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("training", "export", "server", "client", "models", "protos", "recipes"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "words.txt").write_text("face\nbadge\n")
    return Reader(folder, served)


@pytest.fixture(scope="module")
def trained(reader: Reader) -> Reader:
    """Returns a user who has followed docs/training.md with toy pairs and a smaller model."""
    folder = reader.folder
    (folder / "recipes").unlink()
    (folder / "recipes").mkdir()
    page_blocks = list(blocks(TRAINING))
    (recipe,) = (block.body for block in page_blocks if block.language == "toml" and block.body.startswith("[data]"))
    # With small batches, three epochs are enough steps for answers that rounding does not change.
    smaller = recipe.replace("size = 256", "size = 64").replace("epochs = 10", "epochs = 3")
    (folder / "recipes/mine.toml").write_text(smaller + "[batches]\nmax_tokens = 256\n")
    sources = [f"{a} {b} {c}" for a in "abcdefgh" for b in "abcdefgh" for c in "abcdefgh"]
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{source}\n" for source in sources))
    for block in filter(is_run, page_blocks):
        reader.types(block)
    for name in ("wide", "seed1", "seed2", "seed3", "lstm", "gru"):
        shutil.copytree(folder / "runs/mine", folder / "runs" / name, symlinks=True)
    (folder / "test.tsv").write_text("".join(f"{source}\t{source}\n" for source in sources[::20]))
    rows = [line.split("\t") for line in (folder / "test.tsv").read_text().splitlines()]
    for name, column in (("test.en", 0), ("test.fr", 1)):
        (folder / name).write_text("".join(row[column] + "\n" for row in rows))
    return reader


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_run(page: Path, reader: Reader) -> None:
    for block in filter(is_run, blocks(page)):
        if not needs_training(block):
            reader.types(block)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page != TRAINING], ids=name_of)
def test_the_training_commands_of_a_page_run(page: Path, trained: Reader) -> None:
    for block in filter(is_run, blocks(page)):
        if needs_training(block):
            trained.types(block)
