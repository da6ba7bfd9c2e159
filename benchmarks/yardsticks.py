"""What the project asks of its speed, beside what was measured: each a ratio of two figures of one run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.results import Cell, Results
from benchmarks.tables import markdown_table

COLUMNS = ("what", "ours", "theirs", "measured", "asked", "holds")
SUITES = ("serving", "peers")
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Yardstick:
    """A figure of ours, over one of theirs where there is one, and its limit.

    Attributes:
        suite, part: where the figures are.
        ours, theirs: their names; theirs None: the figure itself is asked for.
        unit: of the two figures.
        limit: at least, or at most, that.
    """

    what: str
    suite: str
    part: str
    ours: str
    theirs: str | None
    unit: str
    limit: float
    at_least: bool = field(kw_only=True)
    percent: bool = field(default=False, kw_only=True)

    @property
    def asked(self) -> str:
        factor = " x" if self.theirs is not None else f" {self.unit}"
        value = f"{self.limit * 100:g} %" if self.percent else f"{self.limit:g}{factor}"
        return f"at {'least' if self.at_least else 'most'} {value}"


_at_least = partial(Yardstick, at_least=True)
_at_most = partial(Yardstick, at_least=False)

YARDSTICKS = (
    _at_least("greedy in process, int8, against a plain fp32 ORT loop, each at its best setting",
              "peers", "greedy", "attendant_int8", "plain_fp32", "sentences/s", 4.0),
    _at_least("the same against CTranslate2, Transformer 6+2, int8",
              "peers", "greedy", "attendant_int8", "ctranslate2_6_2", "sentences/s", 1.6),
    _at_most("one sentence alone, one thread: latency against the same CTranslate2 model",
             "peers", "single", "attendant_int8", "ctranslate2_6_2", "ms", 1.0),
    _at_least("beam 4 in process against the same CTranslate2 model",
              "peers", "beam", "attendant_int8", "ctranslate2_6_2", "sentences/s", 1.3),
    _at_least("served, 64 clients, against NVIDIA Triton: throughput",
              "peers", "served", "attendant_speed_64", "triton_speed_64", "requests/s", 2.2),
    _at_most("served, 64 clients, against NVIDIA Triton: p99",
             "peers", "served", "attendant_p99_64", "triton_p99_64", "ms", 0.5),
    _at_least("served, 64 clients, against CTranslate2 12+1 behind a grpc.aio batcher: throughput",
              "peers", "served", "attendant_speed_64", "ctranslate2_speed_64", "requests/s", 1.5),
    _at_most("served, 1 client: median latency against NVIDIA Triton",
             "peers", "served", "attendant_p50_1", "triton_p50_1", "ms", 0.6),
    _at_most("server CPU above in-process decoding, per unary call",
             "serving", "overhead", "unary_overhead_ms", None, "ms", 0.30),
    _at_most("server CPU above in-process decoding, per bulk item",
             "serving", "overhead", "bulk_overhead_ms", None, "ms", 0.10),
    _at_most("single request, idle server: latency against the bare step loop",
             "serving", "idle-latency", "served_ms", "bare_ms", "ms", 1.15),
    _at_most("Poisson load at 80 % of capacity: p99 against request-level batching",
             "serving", "open-loop", "step_level_p99_80", "request_level_p99_80", "ms", 0.5),
    _at_least("Poisson load at equal p99: throughput against request-level batching",
              "serving", "open-loop", "step_level_rate_at_p99", "request_level_rate_at_p99", "requests/s", 1.6),
    _at_most("bookkeeping outside the graphs, share of wall time at 64 rows",
             "serving", "bookkeeping", "greedy_share_64", None, "", 0.10, percent=True),
    _at_most("interactive p99 under full bulk load against its idle value",
             "serving", "priority", "loaded_p99_ms", "idle_p99_ms", "ms", 2.0),
    _at_most("resident growth over requests of random shapes, after warm-up",
             "serving", "memory", "growth", None, "", 0.02, percent=True),
    _at_most("idle with a model loaded: share of a core",
             "serving", "idle", "idle_share", None, "", 0.01, percent=True),
)  # fmt: skip


def yardstick_rows(output: Path) -> list[list[Cell]]:
    """A row per yardstick, from the results that are in the folder."""
    results = {suite: Results(output / f"{suite}.json").parts for suite in SUITES}

    def figures_of(yardstick: Yardstick) -> dict[str, float]:
        measured = results[yardstick.suite].get(yardstick.part)
        return measured.part.figures if measured is not None else {}

    return [_row(yardstick, figures_of(yardstick).get) for yardstick in YARDSTICKS]


def _row(yardstick: Yardstick, figure: Callable[[str], float | None]) -> list[Cell]:
    ours = figure(yardstick.ours)
    theirs = None if yardstick.theirs is None else figure(yardstick.theirs)
    if ours is None or (theirs is None and yardstick.theirs is not None):
        return [yardstick.what, ours, theirs, NOT_MEASURED, yardstick.asked, None]
    measured = ours if theirs is None else ours / theirs
    holds = measured >= yardstick.limit if yardstick.at_least else measured <= yardstick.limit
    shown = f"{measured * 100:.1f} %" if yardstick.percent else f"{measured:.2f}{' x' if theirs is not None else ''}"
    unit = f" {yardstick.unit}" if yardstick.unit else ""
    cells = [None if value is None else f"{value:,.4g}{unit}" for value in (ours, theirs)]
    return [yardstick.what, *cells, shown, yardstick.asked, "yes" if holds else "no"]


def yardsticks_page(output: Path) -> str:
    table = markdown_table(COLUMNS, yardstick_rows(output))
    return (
        "# Yardsticks\n\nWritten by `make bench` and `make bench-peers` from serving.json and peers.json, which say "
        f"for each part by which command, when and on which machine it was measured.\n\n{table}\n"
    )
