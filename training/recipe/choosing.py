"""Chooses a recipe for files of pairs, so that a training can begin without one."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Final

from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles, SplitFiles
from attendant.training.data.inspection import EvenSample, are_symbols, script_shares
from attendant.training.data.pairs import PairReader, no_pairs
from attendant.training.data.tokenization import TokenizerConfig, train_tokenizer
from attendant.training.recipe.recipe import Recipe, load_recipe, recipe_from

SHARE: Final = 0.05
FEWEST_HELD_OUT: Final = 20
"""Sources that validation and test should have each, even of a small corpus."""

MOST_HELD_OUT: Final = 5000
LARGEST_SHARE: Final = 0.2
FEWEST_SOURCES: Final = 20
MOST_COUNTED: Final = 200_000
"""Distinct sources that are counted; with more, the shares no longer depend on their number."""

SPELLED_WORDS: Final = 1.5
"""Words of a text, on average, below which it is spelled: characters are its symbols."""

SPELLED_LENGTH: Final = 8.0
"""Characters of a text, on average, above which it is a sentence in a script without spaces."""

BLEU_TOKENIZERS: Final = {
    "Han": "zh",
    "Hiragana": "char",
    "Katakana": "char",
    "Thai": "char",
    "Lao": "char",
    "Khmer": "char",
}
"""By the main script of the targets, where words are not separated by spaces."""

FEW_PAIRS: Final = 1000
"""With fewer pairs, parts of words are too rare to be learned."""

BPE_SIZES: Final = ((3_000, 1000), (10_000, 2000), (50_000, 4000))
LARGEST_BPE: Final = 8000
COVERED: Final = 0.999
LONGEST: Final = 1000


@dataclass(frozen=True, slots=True)
class Course:
    """How large a model is, and how long it trains."""

    embedding_size: int
    hidden_size: int
    dropout: float
    max_tokens: int
    max_epochs: int


COURSES: Final = (
    (2_000, Course(64, 128, 0.3, 512, 60)),
    (20_000, Course(128, 256, 0.3, 1024, 30)),
    (200_000, Course(128, 256, 0.2, 4096, 12)),
)
LARGEST_COURSE: Final = Course(256, 512, 0.2, 4096, 8)
"""By the number of pairs up to which they are chosen."""


def choose_recipe(files: CorpusFiles) -> tuple[dict[str, Any], list[str]]:
    """Returns the content of a recipe for these files, and lines that explain it. The same files give the same recipe.

    Raises:
        UserError: bad rows; no pairs; too few different sources to hold some out.
    """
    reader = PairReader(SplitFiles(**dict(files), drop_empty=True))
    sample, sources = EvenSample(), set[str]()
    for pair in reader:
        sample.add(pair)
        if len(sources) < MOST_COUNTED:
            sources.add(pair.source)
    if not sample.num_seen:
        raise no_pairs(files)
    if len(sources) < FEWEST_SOURCES:
        raise UserError(
            f"{files} has {len(sources)} different sources, and {FEWEST_SOURCES} are needed to hold some out for "
            "validation and test: give more pairs, or a recipe (docs/training.md)"
        )
    tables = {
        side: _tokenizer([getattr(pair, side) for pair in sample.pairs], sample.num_seen)
        for side in ("source", "target")
    }
    limits = {
        side: _limit(TokenizerConfig.model_validate(table), [getattr(pair, side) for pair in sample.pairs])
        for side, table in tables.items()
    }
    share = _share(len(sources))
    course = next((course for most, course in COURSES if sample.num_seen <= most), LARGEST_COURSE)
    named = {name: value for name, value in files.model_dump(mode="json").items() if value is not None}
    content = {
        "data": {
            "train": named,
            "split": {"validation": share, "test": share},
            "drop_empty": True,
            "max_source_tokens": limits["source"],
            "max_target_tokens": limits["target"],
        },
        "source": tables["source"],
        "target": tables["target"],
        "model": {
            "embedding_size": course.embedding_size,
            "hidden_size": course.hidden_size,
            "dropout": course.dropout,
        },
        "batches": {"max_tokens": course.max_tokens},
        "optimizer": {"learning_rate": 0.002},
        "schedule": {"kind": "cosine", "warmup_steps": 100},
        "training": {"max_epochs": course.max_epochs},
        "evaluation": _evaluation(tables["target"]["tokenizer"], [pair.target for pair in sample.pairs]),
    }
    return content, _explained(content, sample.num_seen)


def _tokenizer(texts: Sequence[str], num_pairs: int) -> dict[str, Any]:
    """Returns the table of a side."""
    if are_symbols(texts):
        return {"tokenizer": "word"}
    per_text = sum(len(text.split()) for text in texts) / len(texts)
    if per_text < SPELLED_WORDS or num_pairs < FEW_PAIRS:
        return {"tokenizer": "character"}
    size = next((size for most, size in BPE_SIZES if num_pairs <= most), LARGEST_BPE)
    num_characters = len(set("".join(texts)))
    return {"tokenizer": "bpe", "vocabulary_size": max(size, 2 * num_characters)}


def _evaluation(tokenizer: str, targets: Sequence[str]) -> dict[str, Any]:
    """Returns the metrics that suit the targets: lists of symbols, single words, or sentences."""
    if tokenizer == "word":
        return {"metrics": ["wer", "per"]}
    length = sum(map(len, targets)) / len(targets)
    num_words = sum(len(text.split()) for text in targets) / len(targets)
    script = next(iter(script_shares(targets)), "")
    without_spaces = script in BLEU_TOKENIZERS and length > SPELLED_LENGTH
    if num_words < SPELLED_WORDS and not without_spaces:
        return {"metrics": ["exact_match", "cer"]}
    return {"metrics": ["bleu", "chrf"], "bleu_tokenizer": BLEU_TOKENIZERS.get(script, "13a")}


def _limit(config: TokenizerConfig, texts: Sequence[str]) -> int:
    """Returns the tokens that nearly all texts have at most, and a tenth more."""
    tokenizer = train_tokenizer(config, texts)
    most = tokenizer.max_characters(LONGEST)
    lengths = sorted(map(len, tokenizer.encode_batch([text for text in texts if len(text) <= most]))) or [LONGEST]
    covering = lengths[ceil(COVERED * len(lengths)) - 1]
    return min(LONGEST, max(10, 5 * ceil(1.1 * covering / 5)))


def _share(num_sources: int) -> float:
    share = max(min(SHARE, MOST_HELD_OUT / num_sources), FEWEST_HELD_OUT / num_sources)
    return float(f"{min(share, LARGEST_SHARE):.2g}")


def _explained(content: dict[str, Any], num_pairs: int) -> list[str]:
    data, model = content["data"], content["model"]
    sides = [
        f"{side}: {content[side]['tokenizer']}"
        + (f" of {size:,}" if (size := content[side].get("vocabulary_size")) else "")
        + f", at most {data[f'max_{side}_tokens']} tokens"
        for side in ("source", "target")
    ]
    return [
        f"recipe chosen from {num_pairs:,} pairs: {'; '.join(sides)}; embeddings of {model['embedding_size']}, states "
        f"of {model['hidden_size']}; {content['training']['max_epochs']} epochs; {data['split']['validation']:.1%} of "
        "the sources held out for validation, as many for the test"
    ]


def is_recipe(name: str) -> bool:
    """Returns whether an argument names a recipe: a TOML file, or one that comes with the package."""
    path = Path(name)
    is_bare = not path.exists() and "." not in path.name and "," not in name
    return path.suffix.lower() == ".toml" or is_bare


def recipe_of_inputs(inputs: Sequence[str], overrides: Sequence[str]) -> tuple[Recipe, list[str]]:
    """Returns the recipe that a command's arguments name, or one chosen for the files of pairs that they name.

    Args:
        inputs: a recipe; or files of pairs, as `CorpusFiles.named` takes them.
        overrides: `table.key=value` each.

    Returns:
        the recipe, and lines that explain what was chosen.

    Raises:
        UserError: no such file, a bad recipe, bad pairs; a recipe among several inputs.
    """
    recipes = [name for name in inputs if is_recipe(name)]
    if len(inputs) == 1 and recipes:
        return load_recipe(Path(inputs[0]), overrides), []
    if recipes:
        others = ", ".join(name for name in inputs if name != recipes[0]) or recipes[0]
        raise UserError(f"{recipes[0]} is a recipe, which names its files itself: leave {others} out")
    content, lines = choose_recipe(_together([CorpusFiles.named(name) for name in inputs], inputs))
    return recipe_from(content, ", ".join(inputs), overrides), lines


def _together(files: Sequence[CorpusFiles], inputs: Sequence[str]) -> CorpusFiles:
    first = files[0]
    if len(files) == 1:
        return first
    for part, name in zip(files, inputs, strict=True):
        if part.pairs is None or part.columns != first.columns:
            raise UserError(f"{name}: several files must all be files of pairs with the same columns")
    return CorpusFiles(pairs=tuple(name for part in files for name in part.pairs or ()), columns=first.columns)
