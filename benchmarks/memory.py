"""How much memory a training on a corpus of millions of pairs takes: python -m benchmarks.memory.

A synthetic corpus is written (about 200 bytes a pair), and the public command trains a few steps on it: it surveys the
pairs for duplicates and shared sources, trains the tokenizers, tokenizes into memory-mapped files, plans an epoch and
updates. The peak resident memory is the kernel's figure for the training process, mapped file pages included.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from string import Template

from benchmarks.harness.process import ROOT

GIB = 2**30
VOCABULARY_SIZE = 8000
NUM_PHRASES = 50_000
CHUNK_PAIRS = 50_000


def write_corpus(folder: Path, num_pairs: int) -> None:
    """Sentences of two random phrases of 4 to 12 words each; the same bytes for the same number."""
    generator = random.Random(1)
    words = [f"word{number}" for number in range(VOCABULARY_SIZE)]
    phrases = [" ".join(generator.choices(words, k=generator.randint(4, 12))) for _ in range(NUM_PHRASES)]
    for part, number in (("train", num_pairs), ("validation", 200)):
        for ending in ("src", "tgt"):
            with (folder / f"{part}.{ending}").open("w", encoding="utf-8") as file:
                lines = (
                    f"{first} {second}\n"
                    for first, second in zip(
                        generator.choices(phrases, k=number), generator.choices(phrases, k=number), strict=True
                    )
                )
                while chunk := list(islice(lines, CHUNK_PAIRS)):
                    file.writelines(chunk)


def peak_memory(folder: Path, num_steps: int) -> int:
    """Bytes that a training on the folder's corpus had resident at most. Raises CalledProcessError where it fails."""
    recipe = folder / "recipe.toml"
    template = Template(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    recipe.write_text(template.substitute(folder=folder, num_steps=num_steps), encoding="utf-8")
    command = [sys.executable, "-m", "training", str(recipe), "--output", str(folder / "run")]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
    # Linux says kilobytes; of this process's children only that one counts, the largest.
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--num-pairs", type=int, default=5_000_000, metavar="N", help="default: 5,000,000")
    parser.add_argument("--num-steps", type=int, default=10, metavar="N", help="updates (default: 10)")
    parser.add_argument("--limit-gib", type=float, default=3.0, metavar="GIB", help="exit 1 beyond it (default: 3)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="attendant-memory-") as name:
        started = time.monotonic()
        write_corpus(Path(name), arguments.num_pairs)
        written = time.monotonic()
        peak = peak_memory(Path(name), arguments.num_steps)
        print(
            f"{arguments.num_pairs:,} pairs: peak {peak / GIB:.2f} GiB resident (limit {arguments.limit_gib:g}); "
            f"{written - started:.0f} s to write the corpus, {time.monotonic() - written:.0f} s to train"
        )
    return int(peak > arguments.limit_gib * GIB)


if __name__ == "__main__":
    sys.exit(main())
