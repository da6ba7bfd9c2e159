"""The results of attendant.evaluate: as tables, as JSON, and as a file with the outputs of every decoding."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from attendant.runtime.bundle.manifest import SEARCH_OPTIONS
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.files import CantWrite, new_file
from attendant.training.data.tokenization import WARNED_UNKNOWN_SHARE
from attendant.training.evaluation.bootstrap import Difference, interval_text, value_text
from attendant.training.evaluation.evaluating import Decoded, Evaluation, describe_search
from attendant.training.progress import PIPE_WIDTH, plain_table

COLUMNS: Final = ("model", *SEARCH_OPTIONS, "source", "output", "references", "score", "log_prob")
REFERENCE_SEPARATOR: Final = " ||| "


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One evaluation of one model.

    Attributes:
        model: its name, e.g. "bundles/mine, int8 on cpu".
        decode_seconds: wall time of tokenizing and decoding, without loading and scoring.
        unknown_share: unknown tokens of all tokens of the sources; `print` warns if it is large.
        differences: metric by metric, to the first model by the same search; of a single model, to its first search.
            Empty for the first model or search itself.
    """

    model: str
    evaluation: Evaluation
    decode_seconds: float
    unknown_share: float = 0.0
    differences: tuple[Difference, ...] = ()

    @property
    def examples_per_second(self) -> float:
        return self.evaluation.num_examples / self.decode_seconds

    @property
    def values(self) -> dict[str, float]:
        """The values of the metrics, by name."""
        return {measurement.metric: measurement.value for measurement in self.evaluation.measurements}

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "decode_seconds": round(self.decode_seconds, 4),
            "examples_per_second": round(self.examples_per_second, 2),
            "measurements": [measurement.to_json() for measurement in self.evaluation.measurements],
            "differences": [asdict(difference) for difference in self.differences],
        }


AddOutputs = Callable[[str, DecodingOptions, Sequence[Decoded]], None]
"""Adds the outputs of a decoding to a file: the model's name, the search and the outputs."""


@contextmanager
def outputs_file(path: Path) -> Iterator[AddOutputs]:
    """Yields a function that writes outputs to `path`; the file appears when all of them are written.

    It is a tab-separated table with a header and a line per example, the examples of each decoding in the order of
    their scores: the outputs of the lowest score come first. Several references are joined by " ||| "; white space
    inside a text becomes a single space.

    Raises:
        CantWrite: the disk is full.
    """
    with new_file(path) as file:
        file.write("\t".join(COLUMNS) + "\n")

        def add(model: str, options: DecodingOptions, decoded: Sequence[Decoded]) -> None:
            search = ["" if (value := getattr(options, name)) is None else f"{value:g}" for name in SEARCH_OPTIONS]
            for output in sorted(decoded, key=lambda output: output.score):
                texts = (output.example.source, output.text, REFERENCE_SEPARATOR.join(output.example.references))
                spaced = [" ".join(text.split()) for text in texts]
                cells = (model, *search, *spaced, f"{output.score:.6f}", f"{output.log_prob:.6f}")
                file.write("\t".join(cells) + "\n")

        yield add


@dataclass(frozen=True, slots=True, kw_only=True)
class Results(Sequence[Result]):
    """The results of `attendant.evaluate`: one for each model and search, in this order.

    `print` and notebooks show the tables of the command.

    Attributes:
        data_name: name of the data, as in protocols.
        results: `results[0].values` has the values of the first by their metrics.
        unrecorded: errors of runs whose evaluation.json can't be written.
    """

    data_name: str
    results: tuple[Result, ...]
    unrecorded: tuple[CantWrite, ...] = ()

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, place: Any) -> Any:
        return self.results[place]

    def to_json(self) -> dict[str, Any]:
        """Returns the document of the option --json."""
        return {"data": self.data_name, "results": [result.to_json() for result in self.results]}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields every measurement, the differences to the first model, and the bins of lengths."""
        first = self.results[0].evaluation
        resamples = first.measurements[0].num_resamples
        intervals = f"; 95 % intervals from {resamples:,} resamples of them" if resamples else ""
        yield Text(f"{first.num_examples:,} examples: {self.data_name}{intervals}")
        values = plain_table("model", "search", "metric", "value >", "95 % interval >", "examples/s >")
        differences = plain_table("model", "search", "metric", "difference >", "95 % interval >", "p >")
        for result in self.results:
            names = (result.model, describe_search(result.evaluation.options))
            per_second = result.examples_per_second
            rate = f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"
            for measurement in result.evaluation.measurements:
                value, interval = value_text(measurement.value), interval_text(measurement.interval)
                values.add_row(*names, measurement.metric, value, interval, rate)
                names, rate = ("", ""), ""
            names = (result.model, describe_search(result.evaluation.options))
            for difference in result.differences:
                value, interval = value_text(difference.value, sign="+"), interval_text(difference.interval)
                p_value = "" if difference.p_value is None else f"{difference.p_value:.3f}"
                differences.add_row(*names, difference.metric, value, interval, p_value)
                names = ("", "")
        yield values
        if differences.row_count:
            models = {result.model for result in self.results}
            baseline = self.results[0].model if len(models) > 1 else describe_search(first.options)
            yield Text(f"\nagainst {baseline}, on the same resamples (p: the paired bootstrap's, two-sided)")
            yield differences
        for result in self.results:
            if result.evaluation.measurements[0].length_unit is not None:
                yield Text(f"\nby length: {result.model}, {describe_search(result.evaluation.options)}")
                yield _by_length(result.evaluation)
        yield Text()
        for model, share in {result.model: result.unknown_share for result in self.results}.items():
            if share > WARNED_UNKNOWN_SHARE:
                yield Text(f"warning: {share:.1%} of the tokens of the sources are unknown to {model}")
        for statistics in first.statistics:
            yield Text(f"{statistics.metric}: {statistics.rule}")

    def _recorded(self) -> Console:
        file = io.StringIO()
        console = Console(file=file, record=True, width=PIPE_WIDTH, highlight=False, markup=False, emoji=False)
        console.print(self, soft_wrap=True)
        return console

    def __str__(self) -> str:
        return self._recorded().export_text().rstrip()

    def _repr_html_(self) -> str:
        return self._recorded().export_html(code_format="<pre>{code}</pre>", inline_styles=True)


def _by_length(evaluation: Evaluation) -> Table:
    measurements = evaluation.measurements
    headings = [heading for each in measurements for heading in (f"{each.metric} >", "95 % interval >")]
    table = plain_table(f"source {measurements[0].length_unit} >", "examples >", *headings)
    for bins in zip(*(each.by_length for each in measurements), strict=True):
        cells = [cell for each in bins for cell in (value_text(each.value), interval_text(each.interval))]
        table.add_row(bins[0].name, f"{bins[0].num_examples:,}", *cells)
    return table
