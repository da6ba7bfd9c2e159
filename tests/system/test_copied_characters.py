"""A copying model whose tokenizer spells rare characters in bytes: characters that it has never seen survive."""

import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from attendant.runtime.bundle.tokenizer import UNK_ID
from attendant.runtime.command import run_command
from attendant.runtime.decoding.options import DecodingOptions
from attendant.training.__main__ import main
from attendant.training.data.pairs import Example
from attendant.training.evaluation.evaluating import decode_examples
from attendant.training.run.loading import open_runs

pytestmark = pytest.mark.slow

SCRIPTS = [(0x4E00, 0x9FA0), (0x4E00, 0x9FA0), (0x430, 0x44F), (0xAC00, 0xD7A0), (0x1F600, 0x1F640), (0x100, 0x17F)]
TEMPLATES = [("open {} now", "ouvrez {}"), ("close {}", "fermez {} !")]

RECIPE = """
[data]
train = "{folder}/train.tsv"
validation = "{folder}/validation.tsv"
[source]
tokenizer = "bpe"
vocabulary_size = 300
byte_fallback = true
min_frequency = 50
[target]
tokenizer = "bpe"
vocabulary_size = 300
byte_fallback = true
min_frequency = 50
[model]
embedding_size = 32
hidden_size = 64
dropout = 0.0
shared_embeddings = true
encoder.hidden_size = 32
attention.score = "additive"
decoder.copying = true
decoder.input_feeding = true
[optimizer]
learning_rate = 0.01
[schedule]
kind = "cosine"
warmup_steps = 50
[batches]
max_tokens = 1024
[training]
max_epochs = 6
num_threads = 1
device = "cpu"
label_smoothing = 0.0
"""


def pairs(number: int, generator: random.Random, is_seen: Callable[[int], bool]) -> list[tuple[str, str]]:
    """Sentences about a name of one to three characters of a script, of which training sees four in five."""
    drawn = []
    for _ in range(number):
        first, last = generator.choice(SCRIPTS)
        able = [n for n in range(first, last) if is_seen(n) and unicodedata.normalize("NFC", chr(n)) == chr(n)]
        name = "".join(map(chr, generator.choices(able, k=generator.randint(1, 3))))
        source, target = generator.choice(TEMPLATES)
        drawn.append((source.format(name), target.format(name)))
    return drawn


def test_characters_that_were_never_seen_are_copied(tmp_path: Path) -> None:
    generator = random.Random(1)
    for split, number in (("train", 3000), ("validation", 100)):
        lines = ("\t".join(pair) + "\n" for pair in pairs(number, generator, lambda code: code % 5 != 0))
        (tmp_path / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    recipe, run = tmp_path / "names.toml", tmp_path / "run"
    recipe.write_text(RECIPE.format(folder=tmp_path), encoding="utf-8")
    assert run_command("training", lambda: main([str(recipe), "--output", str(run)])) == 0
    model = open_runs([run]).model
    unseen = pairs(200, generator, lambda code: code % 5 == 0)
    examples = [Example(source, (target,)) for source, target in unseen]
    decoded = decode_examples(model, examples, DecodingOptions(max_length=40))
    assert all(UNK_ID not in output.source_ids for output in decoded)
    num_right = sum(output.text == target for output, (_, target) in zip(decoded, unseen, strict=True))
    assert num_right > 150
