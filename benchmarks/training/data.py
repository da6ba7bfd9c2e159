"""Synthetic pairs of text: the same for all toolkits, every sentence equally long, so that no batch has padding."""

import random
from pathlib import Path

from benchmarks.job import NUM_SPECIAL_SYMBOLS
from benchmarks.workload import Workload

SEED = 1


def write_corpus(workload: Workload, folder: Path) -> Path:
    """Writes train.src, train.tgt, dev.src, dev.tgt, and words.txt, a word a line; returns the folder.

    The same bytes for the same workload.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"w{number}" for number in range(workload.vocabulary_size - NUM_SPECIAL_SYMBOLS)]
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    generator = random.Random(SEED)
    for part, num_batches in (("train", workload.num_batches), ("dev", 1)):
        # The target's end symbol is its last position.
        for ending, num_words in (("src", workload.num_tokens), ("tgt", workload.num_tokens - 1)):
            lines = _sentences(words, workload.batch_sentences * num_batches, num_words, generator)
            (folder / f"{part}.{ending}").write_text("".join(lines), encoding="utf-8")
    return folder


def _sentences(words: list[str], num_sentences: int, num_words: int, generator: random.Random) -> list[str]:
    """Lines of random words; each word occurs if there is room, so that a counted vocabulary has the wanted size."""
    stream = words + generator.choices(words, k=max(0, num_sentences * num_words - len(words)))
    generator.shuffle(stream)
    starts = range(0, num_sentences * num_words, num_words)
    return [" ".join(stream[start : start + num_words]) + "\n" for start in starts]
