"""The measurements as a results file, a page and a picture."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu.measurement import SEARCHES, Measurement
from benchmarks.gpu.parity import TOLERANCES, Parity
from benchmarks.pictures import draw
from benchmarks.results import Cell, Measured, Part, Picture, Series
from benchmarks.tables import page
from benchmarks.training.machine import this_machine

NAME = "gpu"
TITLE = "One decoder step on a GPU"


def write_report(
    folder: Path, command: str, device: str, parities: Sequence[Parity], measured: Sequence[Measurement], left: str
) -> None:
    """Writes gpu.json, gpu.md and one picture per search.

    Args:
        device: the accelerator, in words.
        left: what was left out, and why; empty: nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    machine = this_machine()
    facts = {
        "command": command,
        "device": device,
        "machine": asdict(machine),
        "left_out": left,
        "parity": [{**asdict(one), "holds": one.holds} for one in parities],
        "steps": [asdict(one) for one in measured],
    }
    (folder / f"{NAME}.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    parts = {"parity": _parity_part(parities)}
    for search in SEARCHES:
        own = [one for one in measured if one.search == search]
        if not own:
            continue
        part = _search_part(search, own)
        for picture in part.pictures:
            draw(picture, folder / picture.file)
        parts[search] = part
    sections = {name: Measured(part=part, command=command, machine=machine) for name, part in parts.items()}
    about = f"Device: {device}." + (f" Left out: {left}." if left else "")
    (folder / f"{NAME}.md").write_text(page(TITLE, about, sections), encoding="utf-8")


def _parity_part(parities: Sequence[Parity]) -> Part:
    return Part(
        title="Parity",
        about="The largest error of any log-probability or attention weight against onnxruntime's CPU in fp32, on "
        "sources of unequal lengths that join, leave and are reordered.",
        columns=["system", "precision", "largest error", "allowed", "holds"],
        rows=[
            [one.system, one.precision, f"{one.error:.1e}", f"{TOLERANCES[one.precision]:g}", str(one.holds).lower()]
            for one in parities
        ],
    )


def _search_part(search: str, measured: Sequence[Measurement]) -> Part:
    names = list(dict.fromkeys((one.system, one.precision) for one in measured))
    counts = sorted({one.num_rows for one in measured})
    found = {(one.system, one.precision, one.num_rows): one for one in measured}
    rows: list[list[Cell]] = []
    for name, precision in names:
        for value in ("step_ms", "tokens_per_second"):
            unit = {"step_ms": "ms a step", "tokens_per_second": "tokens/s"}[value]
            cells = [found.get((name, precision, count)) for count in counts]
            shown = [None if one is None else getattr(one, value) for one in cells]
            rows.append([f"{name}, {precision}: {unit}", *shown])
    picture = Picture(
        file=f"{NAME}-{search.replace(' ', '-')}.svg",
        title=f"{search}: tokens/s by rows stepped together",
        x_label="rows",
        y_label="tokens/s",
        series=[
            Series(
                name=f"{name}, {precision}",
                xs=[one.num_rows for one in measured if (one.system, one.precision) == (name, precision)],
                ys=[one.tokens_per_second for one in measured if (one.system, one.precision) == (name, precision)],
            )
            for name, precision in names
        ],
        logarithmic=True,
    )
    return Part(
        title=search,
        about="Medians of single steps, ids up and candidates down included. Columns: rows stepped together.",
        columns=["", *(str(count) for count in counts)],
        rows=rows,
        pictures=[picture],
    )
