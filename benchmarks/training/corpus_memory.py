"""How much memory a training on a corpus of millions of pairs takes."""

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from string import Template

from benchmarks.command import Context
from benchmarks.harness.process import ROOT
from benchmarks.harness.results import Part

VOCABULARY_SIZE = 8000
NUM_PHRASES = 50_000
NUM_STEPS = 10


def memory(context: Context) -> Part:
    """Memory of a training on many pairs.

    A synthetic corpus of about 200 bytes a pair, and a few steps of the public command: it surveys the pairs for
    duplicates and shared sources, trains the tokenizers, tokenizes into memory-mapped files, plans an epoch and
    updates. The peak is the kernel's figure for the training process, mapped file pages included.
    """
    num_pairs, limit = context.options.pairs, context.options.limit_gib
    with tempfile.TemporaryDirectory(prefix="attendant-memory-") as name:
        began = time.monotonic()
        write_corpus(Path(name), num_pairs)
        written = time.monotonic()
        peak = peak_memory(Path(name)) / 2**30
        seconds = time.monotonic() - written
    return Part(
        columns=["pairs", "peak GiB", "allowed", "s to write the corpus", "s to train"],
        rows=[[f"{num_pairs:,}", peak, limit, written - began, seconds]],
        problems=[f"{num_pairs:,} pairs: peak {peak:.2f} GiB (limit {limit:g})"] if peak > limit else [],
    )


def write_corpus(folder: Path, num_pairs: int) -> None:
    """Sentences of two random phrases of 4 to 12 words each; the same bytes for the same number."""
    generator = random.Random(1)
    words = [f"word{number}" for number in range(VOCABULARY_SIZE)]
    phrases = [" ".join(generator.choices(words, k=generator.randint(4, 12))) for _ in range(NUM_PHRASES)]
    for part, number in (("train", num_pairs), ("validation", 200)):
        for ending in ("src", "tgt"):
            with (folder / f"{part}.{ending}").open("w", encoding="utf-8") as file:
                for _ in range(number):
                    file.write(f"{generator.choice(phrases)} {generator.choice(phrases)}\n")


def peak_memory(folder: Path) -> int:
    """Bytes that a training on the folder's corpus had resident at most. Raises CalledProcessError where it fails."""
    recipe = folder / "recipe.toml"
    template = Template(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    recipe.write_text(template.substitute(folder=folder, num_steps=NUM_STEPS), encoding="utf-8")
    command = [sys.executable, "-m", "training", str(recipe), "--output", str(folder / "run")]
    # Its own standard output is no table of ours.
    subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, stdout=sys.stderr)
    # Linux says kilobytes; of this process's children only that one counts, the largest.
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
