"""Draws docs/images/attention-WORD.svg as reports do: `python docs/draw_attention.py WORD... [--target HOST:PORT]`."""

import argparse
import asyncio
from pathlib import Path

import numpy as np

from attendant.runtime.command import exit_command
from attendant.training.report.pictures import attention_map, on_paper
from attendant_client import AttendantClient
from attendant_client.answers import EOS

IMAGES = Path(__file__).parent / "images"


async def draw(target: str, words: list[str]) -> None:
    async with AttendantClient(target) as client:
        for word in words:
            answer = await client.generate(word, attention=True)
            weights = np.array(answer.best.attention, np.float32)
            rows = [*answer.best.tokens, EOS][: len(weights)]
            picture = IMAGES / f"attention-{word}.svg"
            picture.write_text(on_paper(attention_map(weights, answer.source_tokens, rows)), encoding="utf-8")
            print(picture)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="+", metavar="WORD")
    parser.add_argument("--target", default="localhost:50051", metavar="HOST:PORT", help="default: %(default)s")
    arguments = parser.parse_args()
    asyncio.run(draw(arguments.target, arguments.words))
    return 0


if __name__ == "__main__":
    exit_command("draw_attention", main)
