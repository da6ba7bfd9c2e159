"""Synthetic pairs of text: the same for all toolkits, every sentence equally long, so that no batch has padding."""

import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.workload import Workload

NUM_SPECIAL_SYMBOLS = 4
SEED = 1


@dataclass(frozen=True, slots=True)
class Corpus:
    """Files of one folder: `<part>.src` and `<part>.tgt` of the parts train and dev, and `words.txt`, a word a line."""

    folder: Path

    @property
    def words(self) -> Path:
        return self.folder / "words.txt"

    def part(self, name: str) -> Path:
        """The part's files without their endings."""
        return self.folder / name


def write_corpus(workload: Workload, folder: Path) -> Corpus:
    """Writes the files; the same bytes for the same workload."""
    corpus = Corpus(folder)
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"w{number}" for number in range(workload.vocabulary_size - NUM_SPECIAL_SYMBOLS)]
    corpus.words.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    generator = random.Random(SEED)
    for part, num_batches in (("train", workload.num_batches), ("dev", 1)):
        # The target's end symbol is its last position.
        for ending, num_words in (("src", workload.num_tokens), ("tgt", workload.num_tokens - 1)):
            lines = _sentences(words, workload.batch_sentences * num_batches, num_words, generator)
            corpus.part(part).with_suffix(f".{ending}").write_text("".join(lines), encoding="utf-8")
    return corpus


def _sentences(words: list[str], num_sentences: int, num_words: int, generator: random.Random) -> list[str]:
    """Lines of random words; each word occurs if there is room, so that a counted vocabulary has the wanted size."""
    stream = words + generator.choices(words, k=max(0, num_sentences * num_words - len(words)))
    generator.shuffle(stream)
    return [
        " ".join(stream[start : start + num_words]) + "\n" for start in range(0, num_sentences * num_words, num_words)
    ]
