"""From measured runs to a report."""

from collections.abc import Sequence

from attendant.training.report import run_sections, sections
from attendant.training.report.findings.measuring import MeasuredRun
from attendant.training.report.page.blocks import Report
from attendant.training.run.directory import versions


def compose(runs: Sequence[MeasuredRun], data_name: str) -> Report:
    """The report of one run; or of several, first against each other, then one by one."""
    shared = [
        sections.results(runs),
        *([run_sections.recipe_differences(runs)] if len(runs) > 1 else []),
        sections.learning(runs),
        sections.lengths(runs),
        sections.gradients(runs),
    ]
    own = [make(run) for run in runs for make in (run_sections.attention, run_sections.outputs, run_sections.origin)]
    made_by = versions()
    return Report(
        title=", ".join(run.name for run in runs),
        subtitle=f"{runs[0].evaluation.num_examples:,} examples of {data_name}",
        runs=[(run.letter, run.name) for run in runs],
        sections=[*shared, *own],
        footer=f"Written by Attendant {made_by['attendant']}, commit {made_by['commit']}",
    )
