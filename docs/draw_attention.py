"""Draws docs/images/attention.png: `python docs/draw_attention.py WORD... [--target HOST:PORT]`."""

import argparse
import asyncio
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

from attendant.runtime.command import exit_command
from attendant_client import AttendantClient, Generation

PICTURE = Path(__file__).parent / "images" / "attention.png"


async def ask(target: str, words: list[str]) -> list[Generation]:
    async with AttendantClient(target) as client:
        return [await client.generate(word, attention=True) for word in words]


def draw(generations: list[Generation], picture: Path) -> None:
    widths = [len(generation.source_tokens) for generation in generations]
    figure, axes = plt.subplots(1, len(generations), figsize=(0.42 * sum(widths) + 1.6, 4.6), width_ratios=widths)
    for axis, generation in zip([axes] if len(generations) == 1 else axes, generations, strict=True):
        best = generation.hypotheses[0]
        axis.imshow(best.attention, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
        axis.set_xticks(range(len(generation.source_tokens)), generation.source_tokens)
        rows = [*best.tokens, "</s>"][: len(best.attention or ())]
        axis.set_yticks(range(len(rows)), rows)
        axis.xaxis.tick_top()
        axis.tick_params(length=0, labelsize=11)
        for spine in axis.spines.values():
            spine.set_visible(False)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="+", metavar="WORD")
    parser.add_argument("--target", default="localhost:50051", metavar="HOST:PORT", help="default: %(default)s")
    arguments = parser.parse_args()
    draw(asyncio.run(ask(arguments.target, arguments.words)), PICTURE)
    print(PICTURE)
    return 0


if __name__ == "__main__":
    exit_command("draw_attention", main)
