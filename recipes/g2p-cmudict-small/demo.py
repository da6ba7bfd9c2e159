"""`make demo`: trains, evaluates, exports, serves and calls a small real model, and shows the measurements.

Each stage is the command that a user would type. Finished stages are reused. Ctrl-C at any moment leaves files from
which the next run continues.
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
from attendant_client import AttendantClient, attention_map

RECIPE = "g2p-cmudict-small"
RUN = Path("runs/g2p-cmudict-small")
BUNDLE = Path("bundles/g2p-cmudict-small")
DICTIONARY = Path("data/cmudict")
NEW_WORDS = ("tokenizer", "backpropagate", "kubernetes", "onnx", "transphonic", "blorptastic")
MAPPED_WORD = "backpropagate"

console = Console()


def main() -> None:
    os.chdir(Path(__file__).resolve().parents[2])
    start = time.monotonic()
    stage(1, "Train", f"{RECIPE} -> {RUN}")
    # With --resume, a finished run ends at once, and an interrupted one continues.
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
        stage(6, "Observe", f"the metrics that Prometheus would read at http://127.0.0.1:{metrics_port}/metrics")
        show_metrics(metrics_port)
    console.print(f"\nDone in {time.monotonic() - start:.0f} s. What to type next:\n")
    for command, purpose in (
        ("make serve", "serve the bundle in the foreground (port 50051, metrics on 9090)"),
        (".venv/bin/attendant generate onnx --beam-size 4 --attention", "ask it, from another terminal"),
        (f".venv/bin/attendant inspect {BUNDLE}", "the results of the verification"),
        (f".venv/bin/tensorboard --logdir {RUN}", "the learning curves"),
    ):
        console.print(f"  [bold]{command}[/]\n      {purpose}", highlight=False)


def stage(number: int, verb: str, purpose: str) -> None:
    console.print()
    console.rule(f"[bold]{number} of 6  {verb}[/] {purpose}", align="left")


def run(module: str, *arguments: str) -> None:
    """Runs a command of the project; if it fails, the demo ends with its status."""
    console.print(f"[dim]$ python -m {module} {' '.join(arguments)}[/]", highlight=False)
    process = subprocess.Popen([sys.executable, "-m", module, *arguments])
    try:
        status = process.wait()
    except KeyboardInterrupt:
        # The terminal has interrupted the command too: it saves its work, and the next demo continues there.
        process.wait()
        raise
    if status:
        raise SystemExit(status)


def evaluations() -> list[dict[str, object]]:
    path = RUN / "evaluation.json"
    entries: list[dict[str, object]] = json.loads(path.read_text()) if path.exists() else []
    return [entry for entry in entries if "test" in str(entry["protocol"])]


def is_exported() -> bool:
    """Returns True if the bundle is complete and newer than the weights of the run."""
    try:
        open_bundle(BUNDLE)
    except UserError:
        return False
    weights = max(path.stat().st_mtime for path in (RUN / "checkpoints").rglob("*.safetensors"))
    return (BUNDLE / "manifest.json").stat().st_mtime > weights


@contextmanager
def served(bundle: Path) -> Iterator[tuple[str, int]]:
    """Runs a server on free ports while the context lasts; yields its address and the metrics port."""
    command = [sys.executable, "-m", "server", str(bundle), "--port", "0", "--metrics-port", "0"]
    console.print(f"[dim]$ attendant serve {bundle}[/]", highlight=False)
    with subprocess.Popen([*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                console.print(f"  [dim]{line.rstrip()}[/]", highlight=False)
                if ports := addresses(line):
                    yield ports["serving"], int(ports["metrics"].rpartition(":")[2])
                    return
            raise SystemExit(process.wait() or 1)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


async def ask(target: str) -> None:
    lines = (line for part in DICTIONARY.glob("*.tsv") for line in part.read_text().splitlines())
    known = {line.split("\t", 1)[0] for line in lines}
    table = Table("word", "pronunciation", "log-prob", "runner-up", box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    async with AttendantClient(target) as client:
        for word in NEW_WORDS:
            if word not in known:
                best, second = (await client.generate(word, beam_size=4, num_hypotheses=2)).hypotheses[:2]
                table.add_row(word, f"[bold]{best.text}[/]", f"{best.log_prob:.2f}", f"[dim]{second.text}[/]")
        console.print(table)
        mapped = await client.generate(MAPPED_WORD, attention=True)
        # A hundred requests at once, so that the metrics show a batch.
        await asyncio.gather(*(client.generate(word) for word in sorted(known)[:: max(1, len(known) // 100)]))
    console.print(f"\nWhere the decoder looked, symbol by symbol, while it spelled out [bold]{MAPPED_WORD}[/]:\n")
    print(attention_map.draw(mapped))


def show_metrics(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
    table = Table("metric", "count", "mean", box=None, pad_edge=False)
    for name, unit, factor in (
        ("attendant_request_seconds", "ms", 1000),
        ("attendant_queue_seconds", "ms", 1000),
        ("attendant_encode_seconds", "ms", 1000),
        ("attendant_decode_seconds", "ms", 1000),
        ("attendant_step_rows", "rows", 1),
    ):
        samples = families[name].samples
        count = sum(sample.value for sample in samples if sample.name.endswith("_count"))
        total = sum(sample.value for sample in samples if sample.name.endswith("_sum"))
        table.add_row(name, f"{count:.0f}", f"{factor * total / count if count else 0.0:.2f} {unit}")
    console.print(table)


if __name__ == "__main__":
    exit_command("demo", main)
