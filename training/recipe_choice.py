"""Chooses a recipe for files of pairs, so that a training can begin without one; finds signs of errors in pairs."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Final

from attendant.runtime.errors import UserError, escaped
from attendant.training.data.config import CorpusFiles, SplitFiles
from attendant.training.data.pairs import Pair, PairReader, no_pairs
from attendant.training.data.tokenization import TokenizerConfig, train_tokenizer
from attendant.training.recipe import RECIPE_NAME, Recipe, load_recipe, recipe_from

NUM_SAMPLED: Final = 4096  # Pairs that are looked at, at even distances.
RARE_SCRIPT: Final = 0.001  # Scripts with a smaller share of a side's letters are not listed.
SCRIPT_NAMES: Final = {"CJK": "Han", "MODIFIER": "", "FULLWIDTH": "Latin", "MATHEMATICAL": "", "FEMININE": "Latin"}
"""By the first word of a character's name, where that is not the script's name."""

SYMBOLS_PER_TEXT: Final = 1.5
SYMBOL_LENGTH: Final = 3.0
MOST_SYMBOLS: Final = 200
"""Lists of symbols have at least, at most, and at most so many different ones: phonemes, for example."""

MOJIBAKE: Final = re.compile("Ã[\x80-\xbf]|Â[\x80-\xbf]|â€|Ð[\x80-\xbf°-¿]Ñ|\ufffd")
MARKUP: Final = re.compile(r"</?[a-zA-Z][^<>]*>|&(?:amp|lt|gt|quot|nbsp|#\d+);")


@dataclass
class EvenSample:
    """Keeps up to NUM_SAMPLED of many pairs, at even distances, without knowing how many will come."""

    pairs: list[Pair] = field(default_factory=list)
    num_seen: int = 0
    _step: int = 1

    def add(self, pair: Pair) -> None:
        if self.num_seen % self._step == 0:
            if len(self.pairs) == NUM_SAMPLED:
                self.pairs = self.pairs[::2]
                self._step *= 2
            if self.num_seen % self._step == 0:
                self.pairs.append(pair)
        self.num_seen += 1


def sample_of(pairs: Iterable[Pair]) -> EvenSample:
    """Returns an even sample of all pairs."""
    sample = EvenSample()
    for pair in pairs:
        sample.add(pair)
    return sample


def script_shares(texts: Iterable[str]) -> dict[str, float]:
    """Returns each script's share of the letters, the largest first; names as Unicode's: Latin, Cyrillic, Han."""
    counts: Counter[str] = Counter()
    for character, count in Counter("".join(texts)).items():
        if unicodedata.category(character).startswith("L"):
            word = unicodedata.name(character, "other").split()[0]
            if name := SCRIPT_NAMES.get(word, word.capitalize()):
                counts[name] += count
    total = counts.total()
    return {name: count / total for name, count in counts.most_common() if count / total >= RARE_SCRIPT}


def are_symbols(texts: Sequence[str]) -> bool:
    """Returns whether texts are lists of symbols, such as phonemes, that white space separates."""
    symbols = [symbol for text in texts for symbol in text.split()]
    return (
        len(symbols) >= SYMBOLS_PER_TEXT * max(1, len(texts))
        and sum(map(len, symbols)) <= SYMBOL_LENGTH * len(symbols)
        and len(set(symbols)) <= MOST_SYMBOLS
    )


def suspicions(pairs: Sequence[Pair]) -> list[str]:
    """Returns a line for each sign that pairs are not what they should be, with its share of the pairs and an example.

    Args:
        pairs: not empty.
    """
    scripts = [next(iter(script_shares(getattr(pair, side) for pair in pairs)), "") for side in ("source", "target")]

    def is_swapped(pair: Pair) -> bool:
        scripts_of_pair = [next(iter(script_shares([text])), "") for text in (pair.source, pair.target)]
        return scripts[0] != scripts[1] and scripts_of_pair == scripts[::-1]

    signs: dict[str, Callable[[Pair], bool]] = {
        "have the same text on both sides": lambda pair: pair.source == pair.target,
        "have source and target in each other's script, as if swapped": is_swapped,
        "have broken characters, as of a wrong encoding": lambda pair: _any(MOJIBAKE, pair),
        "have markup (HTML tags or entities)": lambda pair: _any(MARKUP, pair),
    }
    lines = []
    for words, holds in signs.items():
        matching = [pair for pair in pairs if holds(pair)]
        # A task whose targets are its sources is no accident.
        if matching and len(matching) < len(pairs):
            lines.append(f"{len(matching) / len(pairs):.1%} of the pairs {words}, e.g. {shortened(matching[0])}")
    return lines


def shortened(pair: Pair, width: int = 60) -> str:
    """Returns a pair on one line; control characters, which a terminal would obey, are escaped."""
    texts = (escaped(" ".join(text[: 4 * width].split())) for text in (pair.source, pair.target))
    return " → ".join(text if len(text) <= width else text[: width - 1] + "…" for text in texts)


def _any(pattern: re.Pattern[str], pair: Pair) -> bool:
    return bool(pattern.search(pair.source) or pattern.search(pair.target))


SHARE: Final = 0.05
FEWEST_HELD_OUT: Final = 20  # Sources that validation and test should have each, even of a small corpus.
MOST_HELD_OUT: Final = 5000
LARGEST_SHARE: Final = 0.2
FEWEST_SOURCES: Final = 20
MOST_COUNTED: Final = 200_000
"""Distinct sources that are counted; with more, the shares no longer depend on their number."""

SPELLED_WORDS: Final = 1.5  # Words of a text, on average, below which it is spelled: characters are its symbols.
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

FEW_PAIRS: Final = 1000  # With fewer pairs, parts of words are too rare to be learned.
BPE_SIZES: Final = ((3_000, 1000), (10_000, 2000), (50_000, 4000))
LARGEST_BPE: Final = 8000
COVERED: Final = 0.999
LONGEST: Final = 1000


@dataclass(frozen=True, slots=True)
class Course:
    """The size of a model, and the length of its training."""

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
LARGEST_COURSE: Final = Course(256, 512, 0.2, 4096, 8)  # By the number of pairs up to which they are chosen.


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
    """Returns whether an argument names a recipe: a TOML file, a folder with a recipe.toml, or a packed one."""
    path = Path(name)
    is_bare = not path.exists() and "." not in path.name and "," not in name
    return path.suffix.lower() == ".toml" or (path / RECIPE_NAME).is_file() or is_bare


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
