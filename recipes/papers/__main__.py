"""python -m recipes.papers: the commands; docs/experiments shows how each is used."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from attendant.runtime.command import Command, CommandParser, ended_by_interrupts, exit_command


def parser() -> CommandParser:
    """Imports the experiments here: torch takes seconds, and Ctrl-C must end that with one line too."""
    with ended_by_interrupts():
        from attendant.recipes.papers import alignment, comparison, harness, long_sources, memory  # noqa: PLC0415

    options = CommandParser(prog="python -m recipes.papers", description="Experiments of docs/experiments.")
    commands = options.add_subparsers(required=True)

    def add(name: str, run: Callable[[argparse.Namespace], None], about: str) -> CommandParser:
        command = commands.add_parser(name, help=about)
        command.set_defaults(run=run)
        return command

    plans = sorted(path.stem for path in harness.PLANS.glob("*.toml"))
    for name, of_plan, about in (
        ("train", harness.train, "train the missing runs of a plan, one after another; Ctrl-C at any time"),
        ("cost", comparison.measure_costs, "measure each variant's speed, in training and in a served decoder step"),
        ("show", comparison.show, "write a plan's table and picture from the runs that have ended"),
    ):
        command = add(name, partial(lambda run, parsed: run(harness.load_plan(parsed.plan)), of_plan), about)
        command.add_argument("plan", choices=plans, metavar=f"PLAN: {', '.join(plans)}")
    add("lesson", lambda _: harness.prepare_lesson(), "train and export the small models of docs/learn.md")
    about = "compare attention with letters and sounds that were aligned by hand"
    align = add("align", lambda parsed: alignment.show_alignment(parsed.model), about)
    align.add_argument("model", type=Path, metavar="RUN|BUNDLE", help="a model of CMUdict's pronunciations")
    about = "train small recurrent networks to remember, and show their gradients"
    remember = add("memory", lambda parsed: memory.study_memory([parsed.task] if parsed.task else memory.TASKS), about)
    remember.add_argument("task", nargs="?", choices=list(memory.TASKS), help="default: all")
    about = "measure the runs of which-attention on sources of up to 500 letters"
    add("long-sources", lambda _: long_sources.study_long_sources(), about)
    return options


if __name__ == "__main__":
    exit_command("recipes.papers", lambda: Command(parser(), lambda parsed: parsed.run(parsed))(sys.argv[1:]))
