"""What the papers claim, shown on runs: the commands. docs/experiments has the pages."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from attendant.runtime.command import Command, with_user_errors
from experiments.alignment.showing import show_alignment
from experiments.comparison import show
from experiments.cost import measure_costs
from experiments.hours import reckon
from experiments.long_sources.measuring import measure_long_sources
from experiments.long_sources.showing import show_long_sources
from experiments.memory.learning import learn_all
from experiments.memory.showing import show_memory
from experiments.memory.tasks import TASKS
from experiments.peers.showing import show_peers
from experiments.peers.training import train_peers
from experiments.plan import plan_names
from experiments.trainings import train

OF_A_PLAN = {
    "train": (train, "trains what is missing of a plan, one run after another; Ctrl-C at any time"),
    "cost": (measure_costs, "measures what each variant of a plan costs, in training and in a served decoder step"),
    "show": (show, "writes a plan's table and picture from its runs, however many have ended"),
}

PEERS = {"train": train_peers, "show": show_peers}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    commands = found.add_subparsers(required=True)
    for name, (run, about) in OF_A_PLAN.items():
        command = commands.add_parser(name, help=about)
        command.add_argument("given", choices=plan_names(), metavar=f"PLAN: {', '.join(plan_names())}")
        command.set_defaults(run=run)
    hours = commands.add_parser("hours", help="reckons how long what is missing of plans will train")
    hours.add_argument("given", nargs="*", metavar="PLAN", help="default: all")
    hours.set_defaults(run=reckon)
    align = commands.add_parser("align", help="holds attention against letters and sounds that were aligned by hand")
    align.add_argument("given", type=Path, metavar="RUN|BUNDLE", help="a model of CMUdict's pronunciations")
    align.set_defaults(run=show_alignment)
    memory = commands.add_parser(
        "memory", help="trains small recurrent networks to remember, and shows their gradients"
    )
    memory.add_argument("given", nargs="?", choices=[*TASKS], help="default: all")
    memory.set_defaults(run=_memory)
    long_sources = commands.add_parser(
        "long-sources", help="measures runs of which-attention on sources of up to 500 letters"
    )
    long_sources.set_defaults(run=_long_sources, given=None)
    peers = commands.add_parser(
        "peers", help="holds our models against other toolkits', trained as long on the same pairs"
    )
    peers.add_argument("given", choices=PEERS, metavar="|".join(PEERS))
    peers.set_defaults(run=lambda step: PEERS[step]())
    for command in commands.choices.values():
        with_user_errors(command)
    return found


def _long_sources(_: None) -> None:
    measure_long_sources()
    show_long_sources()


def _memory(name: str | None) -> None:
    for task in TASKS.values() if name is None else [TASKS[name]]:
        learn_all(task)
        show_memory(task)


def main(arguments: Sequence[str]) -> None:
    """Runs a command."""
    Command(parser(), lambda parsed: parsed.run(parsed.given))(arguments)
