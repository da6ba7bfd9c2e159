"""python -m recipes.papers: the commands; docs/experiments shows how each is used."""

import argparse
import sys
from pathlib import Path

from attendant.runtime.command import Command, exit_command, with_user_errors


def parser() -> argparse.ArgumentParser:
    """Imports the experiments here: torch takes seconds, and Ctrl-C must end that with one line too."""
    from attendant.recipes.papers.alignment import show_alignment  # noqa: PLC0415
    from attendant.recipes.papers.comparison import show  # noqa: PLC0415
    from attendant.recipes.papers.costs import measure_costs  # noqa: PLC0415
    from attendant.recipes.papers.long_sources import study_long_sources  # noqa: PLC0415
    from attendant.recipes.papers.memory import TASKS, study_memory  # noqa: PLC0415
    from attendant.recipes.papers.peers import show_peers, train_peers  # noqa: PLC0415
    from attendant.recipes.papers.plan import plan_names, prepare_lesson, train  # noqa: PLC0415

    options = argparse.ArgumentParser(prog="python -m recipes.papers", description="Experiments of docs/experiments.")
    commands = options.add_subparsers(required=True)
    plans = plan_names()
    for name, run, about in (
        ("train", train, "train the missing runs of a plan, one after another; Ctrl-C at any time"),
        (
            "cost",
            measure_costs,
            "measure the speed of each variant of a plan, in training and in a served decoder step",
        ),
        ("show", show, "write a plan's table and picture from the runs that have ended"),
    ):
        command = commands.add_parser(name, help=about)
        command.add_argument("plan", choices=plans, metavar=f"PLAN: {', '.join(plans)}")
        command.set_defaults(run=lambda parsed, run=run: run(parsed.plan))
    lesson = commands.add_parser("lesson", help="train and export the small models of docs/learn.md")
    lesson.set_defaults(run=lambda _: prepare_lesson())
    align = commands.add_parser("align", help="compare attention with letters and sounds that were aligned by hand")
    align.add_argument("model", type=Path, metavar="RUN|BUNDLE", help="a model of CMUdict's pronunciations")
    align.set_defaults(run=lambda parsed: show_alignment(parsed.model))
    memory = commands.add_parser("memory", help="train small recurrent networks to remember, and show their gradients")
    memory.add_argument("task", nargs="?", choices=list(TASKS), help="default: all")
    memory.set_defaults(run=lambda parsed: study_memory([parsed.task] if parsed.task else list(TASKS)))
    long_sources = commands.add_parser(
        "long-sources", help="measure the runs of which-attention on sources of up to 500 letters"
    )
    long_sources.set_defaults(run=lambda _: study_long_sources())
    peers = commands.add_parser(
        "peers", help="compare our models with other toolkits', trained as long on the same pairs"
    )
    peers.add_argument("step", choices=("train", "show"))
    peers.set_defaults(run=lambda parsed: train_peers() if parsed.step == "train" else show_peers())
    for command in commands.choices.values():
        with_user_errors(command)
    return options


if __name__ == "__main__":
    exit_command("recipes.papers", lambda: Command(parser(), lambda parsed: parsed.run(parsed))(sys.argv[1:]))
