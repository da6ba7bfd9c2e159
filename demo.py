"""`make demo`: the whole way on real data. Trains, evaluates, exports, serves, asks, and shows what it measured.

Each stage is the very command that a user would type; what an earlier run finished is reused, and Ctrl-C at any moment
leaves what is done so far in a state that the next run goes on from.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.command import exit_command
from attendant.runtime.errors import UserError
from attendant.server.bench.command import addresses
from attendant_client import AttendantClient, Generation, attention_map

RECIPE = "g2p-cmudict-small"
RUN = Path("runs/g2p-cmudict-small")
BUNDLE = Path("bundles/g2p-cmudict-small")
DICTIONARY = Path("data/cmudict")
NEW_WORDS = ("tokenizer", "backpropagate", "kubernetes", "onnx", "transphonic", "blorptastic")
MAPPED_WORD = "backpropagate"

console = Console()


def main() -> int:
    os.chdir(Path(__file__).parent)
    began = time.monotonic()
    stage(1, "Train", f"{RECIPE} -> {RUN}")
    # A run that has ended says so and ends again at once; one that was interrupted goes on.
    run("training", RECIPE, "--output", str(RUN), *(["--resume"] if RUN.exists() else []))
    stage(2, "Evaluate", "on the test words, with the decoder that serves")
    if not evaluations():
        run("training", "evaluate", str(RUN), "--split", "test")
    for entry in evaluations():
        console.print(f"  [bold]{entry['metric']} {float(str(entry['value'])):.2f}[/]  {entry['protocol']}")
    stage(3, "Export", f"to ONNX, compared with PyTorch -> {BUNDLE}")
    if is_exported():
        console.print(f"[green]done before[/]: {BUNDLE}")
    else:
        run("export", str(RUN), "--output", str(BUNDLE), *(["--force"] if BUNDLE.exists() else []))
    stage(4, "Serve", "in a process without torch")
    with served(BUNDLE) as (target, metrics_port):
        stage(5, "Ask", f"words that are not in the dictionary, by gRPC from {target}")
        asyncio.run(ask(target))
        stage(6, "Observe", f"what Prometheus would read at http://127.0.0.1:{metrics_port}/metrics")
        show_metrics(metrics_port)
    console.print(f"\nDone in {time.monotonic() - began:.0f} s. What to type next:\n")
    for command, what in (
        ("make serve", "serve the bundle in the foreground (port 50051, metrics on 9090)"),
        (".venv/bin/attendant generate onnx --beam-size 4 --attention", "ask it, from another terminal"),
        (f".venv/bin/attendant inspect {BUNDLE}", "what was verified, and how well it held"),
        (f".venv/bin/tensorboard --logdir {RUN}", "the learning curves"),
    ):
        console.print(f"  [bold]{command}[/]\n      {what}", highlight=False)
    return 0


def stage(number: int, verb: str, what: str) -> None:
    console.print()
    console.rule(f"[bold]{number} of 6  {verb}[/] {what}", align="left")


def run(room: str, *arguments: str) -> None:
    """One command of the project, its output straight to the terminal; its failure is the demo's."""
    console.print(f"[dim]$ python -m {room} {' '.join(arguments)}[/]", highlight=False)
    process = subprocess.Popen([sys.executable, "-m", room, *arguments])
    try:
        status = process.wait()
    except KeyboardInterrupt:
        # The terminal has told the child too: it saves what it has, and the next demo goes on from there.
        process.wait()
        raise
    if status:
        raise SystemExit(status)


def evaluations() -> list[dict[str, object]]:
    path = RUN / "evaluation.json"
    found: list[dict[str, object]] = json.loads(path.read_text()) if path.exists() else []
    return [entry for entry in found if "test" in str(entry["protocol"])]


def is_exported() -> bool:
    """Whether the bundle is whole and younger than the weights it came from."""
    try:
        open_bundle(BUNDLE)
    except UserError:
        return False
    weights = max(path.stat().st_mtime for path in (RUN / "checkpoints").rglob("*.safetensors"))
    return (BUNDLE / "manifest.json").stat().st_mtime > weights


@contextmanager
def served(bundle: Path) -> Iterator[tuple[str, int]]:
    """A server on free ports for as long as the block runs: (host:port, metrics port)."""
    command = [sys.executable, "-m", "server", str(bundle), "--port", "0", "--metrics-port", "0"]
    command += ["--log-level", "warning"]
    console.print(f"[dim]$ attendant serve {bundle}[/]", highlight=False)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield wait_until_serving(process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def wait_until_serving(process: subprocess.Popen[str]) -> tuple[str, int]:
    assert process.stdout is not None
    for line in process.stdout:
        console.print(f"  [dim]{line.rstrip()}[/]", highlight=False)
        if found := addresses(line):
            return found["serving"], int(found["metrics"].rpartition(":")[2])
    raise SystemExit(process.wait() or 1)


async def ask(target: str) -> None:
    known = set()
    for part in DICTIONARY.glob("*.tsv"):
        known |= {line.split("\t", 1)[0] for line in part.read_text().splitlines()}
    words = [word for word in NEW_WORDS if word not in known]
    table = Table("word", "pronunciation", "log-prob", "runner-up", box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    async with AttendantClient(target) as client:
        for word in words:
            found = await client.generate(word, beam_size=4, num_hypotheses=2)
            best, second = found.hypotheses[:2]
            table.add_row(word, f"[bold]{best.text}[/]", f"{best.log_prob:.2f}", f"[dim]{second.text}[/]")
        console.print(table)
        mapped: Generation = await client.generate(MAPPED_WORD, attention=True)
        # A hundred at once, so that the metrics have a batch to show.
        await asyncio.gather(*(client.generate(word) for word in sorted(known)[:: max(1, len(known) // 100)]))
    console.print(f"\nWhere the decoder looked, symbol by symbol, while it spelled out [bold]{MAPPED_WORD}[/]:\n")
    print(attention_map.draw(mapped))


def show_metrics(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
    table = Table("metric", "count", "mean", box=None, pad_edge=False)
    for name, unit in (
        ("attendant_request_seconds", "ms"),
        ("attendant_queue_seconds", "ms"),
        ("attendant_encode_seconds", "ms"),
        ("attendant_decode_seconds", "ms"),
        ("attendant_step_rows", "rows"),
    ):
        samples = families[name].samples
        count = sum(sample.value for sample in samples if sample.name.endswith("_count"))
        total = sum(sample.value for sample in samples if sample.name.endswith("_sum"))
        mean = total / count * (1000 if unit == "ms" else 1) if count else 0.0
        table.add_row(name, f"{count:.0f}", f"{mean:.2f} {unit}")
    console.print(table)


if __name__ == "__main__":
    exit_command("demo", main)
