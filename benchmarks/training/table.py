"""The result: JSON that has everything, a Markdown page and the same table on the terminal."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.training.attendant import Attendant
from benchmarks.training.environment import TORCH
from benchmarks.training.machine import Machine
from benchmarks.training.measurement import Measurement
from benchmarks.training.system import System
from benchmarks.training.workload import Workload

HEADER = ("system", "tokens/s", "to the faster peer", "slowest-fastest", "windows", "tokens/processor s", "parameters")

PAGE = """\
# Training speed

`{command}`, {machine.date}: {machine.cpu}, on {num_threads} of {machine.num_cores} cores, load
{machine.load:.1f} when it began; Python {machine.python}, {torch}; {versions}.

{num_layers} bidirectional LSTM layers encode, {num_layers} LSTM layers with Luong's general attention decode; embedding
{workload.embedding_size}, hidden {workload.hidden_size}, vocabularies {workload.vocabulary_size:,}, dropout
{workload.dropout}, Adam, gradients clipped to norm 1, batches of {workload.batch_sentences} sentences of
{workload.num_tokens} source and {workload.num_tokens} target positions, none of them padding. Target tokens per second,
medians over windows of {workload.window_steps} steps, after a warm-up and by the benchmark's own clock; the systems
take turns. A ratio is to the faster peer of the same part. Tokens per second of processor time, of all threads
together, show whether the machine was quiet.

{tables}

What differs:

{differences}
"""


def result(
    systems: Sequence[System], measurements: Sequence[Measurement], workload: Workload, machine: Machine, **facts: Any
) -> dict[str, Any]:
    """Everything, as JSON values."""
    rows = []
    for system, measurement in zip(systems, measurements, strict=True):
        peers = [
            other.median
            for beside, other in zip(systems, measurements, strict=True)
            if beside.input_feeding == system.input_feeding
            and not isinstance(beside, Attendant)
            and other.median is not None
        ]
        rows.append(
            {
                "system": system.name,
                "toolkit": system.toolkit,
                "version": system.version,
                "precision": system.precision,
                "input_feeding": system.input_feeding,
                "differences": system.differences,
                **dataclasses.asdict(measurement),
                "tokens_per_second": measurement.median,
                "tokens_per_processor_second": measurement.processor_median,
                "ratio": measurement.median / max(peers) if measurement.median and peers else None,
            }
        )
    return {
        "machine": dataclasses.asdict(machine),
        "torch": TORCH,
        "workload": dataclasses.asdict(workload),
        **facts,
        "systems": rows,
    }


def terminal_table(found: dict[str, Any]) -> str:
    rows = [HEADER, *map(_cells, found["systems"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join([*lines, *_problems(found)])


def page(found: dict[str, Any], workload: Workload, machine: Machine) -> str:
    """The Markdown page."""
    groups = []
    for title, input_feeding in (("With input feeding", True), ("Without input feeding", False)):
        rows = [row for row in found["systems"] if row["input_feeding"] == input_feeding]
        lines = [HEADER, ("---", *["---:"] * (len(HEADER) - 1)), *map(_cells, rows)]
        groups.append(f"## {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    toolkits = {row["toolkit"]: row for row in found["systems"]}
    return PAGE.format(
        machine=machine,
        workload=workload,
        num_layers=workload.num_layers,
        torch=TORCH,
        command=found["command"],
        num_threads=found["num_threads"],
        versions=", ".join(f"{name} {row['version']}" for name, row in toolkits.items()),
        tables="\n\n".join(groups),
        differences="\n".join(f"* {name}: {row['differences']}." for name, row in toolkits.items()),
    ) + "".join(f"\n{line}\n" for line in _problems(found))


def write_results(found: dict[str, Any], text: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "training.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (folder / "training.md").write_text(text, encoding="utf-8")


def _problems(found: dict[str, Any]) -> list[str]:
    return [f"{row['system']}: no figure: {row['problem']}" for row in found["systems"] if row["problem"] is not None]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    parameters = "" if row["num_parameters"] is None else f"{row['num_parameters'] / 1e6:.2f} M"
    if row["problem"] is not None:
        return row["system"], "none", "", "", "", "", parameters
    speeds = row["speeds"]
    spread = f"{min(speeds):,.0f}-{max(speeds):,.0f}"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    speed, processor_speed = f"{row['tokens_per_second']:,.0f}", f"{row['tokens_per_processor_second']:,.0f}"
    return row["system"], speed, ratio, spread, str(len(speeds)), processor_speed, parameters
