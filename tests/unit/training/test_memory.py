"""Tests the peak memory of a training on five million pairs."""

import os
import random
import subprocess
import sys
from pathlib import Path
from string import Template

import pytest

from tests.paths import ROOT

RECIPE = Template("""
[data]
train = {source = "$folder/train.src", target = "$folder/train.tgt"}
validation = {source = "$folder/validation.src", target = "$folder/validation.tgt"}
drop_duplicates = true
shared_sources = "drop_from_train"

[source]
tokenizer = "word"

[target]
tokenizer = "word"

[model]
embedding_size = 64
hidden_size = 128

[training]
max_steps = 10
log_every_steps = 1
device = "cpu"
num_threads = 1

[validation]
every_steps = 10
""")
VOCABULARY_SIZE = 8000
NUM_PHRASES = 50_000


def write_corpus(folder: Path, num_pairs: int) -> None:
    """Writes sentences of two random phrases of 4 to 12 words each; equal numbers give equal files."""
    generator = random.Random(1)
    words = [f"word{number}" for number in range(VOCABULARY_SIZE)]
    phrases = [" ".join(generator.choices(words, k=generator.randint(4, 12))) for _ in range(NUM_PHRASES)]
    for part, number in (("train", num_pairs), ("validation", 200)):
        for ending in ("src", "tgt"):
            with (folder / f"{part}.{ending}").open("w", encoding="utf-8") as file:
                for _ in range(number):
                    file.write(f"{generator.choice(phrases)} {generator.choice(phrases)}\n")


def peak_gib(folder: Path, num_pairs: int) -> float:
    """Returns the peak resident memory in GiB of a training by the public command, mapped file pages included.

    The training surveys the pairs for duplicates and shared sources, trains the tokenizers, tokenizes into
    memory-mapped files, plans an epoch and updates a few times.
    """
    write_corpus(folder, num_pairs)
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.substitute(folder=folder), encoding="utf-8")
    command = [sys.executable, "-m", "training", str(recipe), "--output", str(folder / "run")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss / 2**20  # kilobytes on Linux


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_million_pairs_train_within_three_gib(tmp_path: Path) -> None:
    peak = peak_gib(tmp_path, 5_000_000)
    print(f"5,000,000 pairs: peak {peak:.2f} GiB")
    assert peak < 3
