"""What `evaluate` found, for a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from attendant.training.assessment.results import Result
from attendant.training.evaluation.bootstrap import interval_text
from attendant.training.evaluation.evaluating import Evaluation, describe_search

PIPE_WIDTH = 200
"""Columns where standard output is no terminal: nothing is folded."""


def show(results: Sequence[Result], data_name: str) -> None:
    """Prints every measurement, the differences to the first model, and the bins of lengths."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    first = results[0].evaluation
    resamples = first.measurements[0].num_resamples
    intervals = f"; 95 % intervals from {resamples:,} resamples of them" if resamples else ""
    console.print(f"{first.num_examples:,} examples: {data_name}{intervals}")
    console.print(_measurements(results))
    if any(result.differences for result in results):
        models = {result.model for result in results}
        baseline = results[0].model if len(models) > 1 else describe_search(first.options)
        console.print(f"\nagainst {baseline}, on the same resamples (p: the paired bootstrap's, two-sided)")
        console.print(_differences(results))
    for result in results:
        if result.evaluation.measurements[0].length_unit is not None:
            console.print(f"\nby length: {result.model}, {describe_search(result.evaluation.options)}")
            console.print(_lengths(result.evaluation))
    console.print()
    for statistics in first.statistics:
        console.print(f"{statistics.metric}: {statistics.rule}")


def _measurements(results: Sequence[Result]) -> Table:
    table = _table("model", "search", "metric", "value >", "95 % interval >", "examples/s >")
    for result in results:
        names = (result.model, describe_search(result.evaluation.options))
        rate = f"{result.examples_per_second:,.0f}" if result.examples_per_second >= 10 else ""
        rate = rate or f"{result.examples_per_second:.1f}"
        for measurement in result.evaluation.measurements:
            value, interval = f"{measurement.value:.2f}", interval_text(measurement.interval)
            table.add_row(*names, measurement.metric, value, interval, rate)
            names, rate = ("", ""), ""
    return table


def _differences(results: Sequence[Result]) -> Table:
    table = _table("model", "search", "metric", "difference >", "95 % interval >", "p >")
    for result in results:
        names = (result.model, describe_search(result.evaluation.options))
        for one in result.differences:
            p_value = "" if one.p_value is None else f"{one.p_value:.3f}"
            table.add_row(*names, one.metric, f"{one.value:+.2f}", interval_text(one.interval), p_value)
            names = ("", "")
    return table


def _lengths(evaluation: Evaluation) -> Table:
    measurements = evaluation.measurements
    headings = [heading for one in measurements for heading in (f"{one.metric} >", "95 % interval >")]
    table = _table(f"source {measurements[0].length_unit} >", "examples >", *headings)
    for bins in zip(*(one.by_length for one in measurements), strict=True):
        cells = [cell for one in bins for cell in (f"{one.value:.2f}", interval_text(one.interval))]
        table.add_row(bins[0].name, f"{bins[0].num_examples:,}", *cells)
    return table


def _table(*headings: str) -> Table:
    """A plain table; a heading that ends in ">" is of numbers, which stand to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading.rstrip(" >"), justify="right" if heading.endswith(">") else "left")
    return table
