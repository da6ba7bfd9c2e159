"""Chooses a recipe for files of pairs, so that a training can begin without one; finds signs of errors in pairs."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, Final

from attendant.runtime.errors import UserError, escaped, shown
from attendant.runtime.files import path_of
from attendant.training import recipe
from attendant.training.data.config import CorpusFiles, SplitFiles
from attendant.training.data.pairs import InMemoryPairs, Pair, PairReader, is_in_memory
from attendant.training.data.tokenization import SourceConfig, TargetConfig, TokenizerConfig, train_tokenizer

NUM_SAMPLED: Final = 4096  # Pairs of the sample, at even distances.
RARE_SCRIPT: Final = 0.001  # Scripts with a smaller share of a side's letters are not listed.
# By the first word of a character's name, if that is not the script's name.
SCRIPT_NAMES: Final = {
    **dict.fromkeys(("CJK", "IDEOGRAPHIC"), "Han"),
    **dict.fromkeys(("KATAKANA-HIRAGANA", "HALFWIDTH"), "Katakana"),
    **dict.fromkeys(("FULLWIDTH", "FEMININE", "MASCULINE"), "Latin"),
    **dict.fromkeys(("MODIFIER", "MATHEMATICAL"), ""),
}
# Lists of symbols, e.g. phonemes: the fewest symbols of a text, their longest mean length, the most different ones.
SYMBOLS_PER_TEXT, SYMBOL_LENGTH, MAX_SYMBOLS = 1.5, 3.0, 200
MOJIBAKE: Final = re.compile("Ã[\x80-\xbf]|Â[\x80-\xbf]|â€|Ð[\x80-\xbf°-¿]Ñ|\ufffd")
MARKUP: Final = re.compile(r"</?[a-zA-Z][^<>]*>|&(?:amp|lt|gt|quot|nbsp|#\d+);")

SHOWN_WIDTH: Final = 60  # Characters of each side of an example.
HELD_OUT_SHARE, LARGEST_SHARE = 0.05, 0.2
MIN_HELD_OUT, MAX_HELD_OUT = 20, 5000  # Sources of validation and of test.
MIN_SOURCES: Final = 20
MAX_COUNTED: Final = 200_000  # Distinct sources that are counted; with more, the shares do not depend on their number.
SPELLED_WORDS: Final = 1.5  # Mean words of a text below which characters are its symbols.
SPELLED_LENGTH: Final = 8.0  # Mean characters above which a text is a sentence in a script without spaces.
# By the main script of the targets, if spaces do not separate its words.
BLEU_TOKENIZERS: Final = {"Han": "zh"} | dict.fromkeys(
    ("Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Javanese", "Balinese", "Yi"), "char"
)
LEAST_KANA: Final = 0.1  # Share of kana among the letters of Japanese.
FEW_PAIRS: Final = 1000  # Up to this many pairs, parts of words are too rare to be learned.
# The same if both sides are short: of shell commands with names of files, learned from 2,000 pairs, 99 % are right by
# characters and none by bpe. Longer texts have too many characters to train on and to attend to.
FEW_SHORT_PAIRS, SHORT_LENGTH = 10_000, 60.0
MULTILINE_SHARE: Final = 0.05  # Lines are part of the task if more than this share of the texts have several.
# Largest number of pairs -> vocabulary size; LARGEST_BPE beyond.
BPE_SIZES: Final = ((3_000, 1000), (10_000, 2000), (50_000, 4000))
LARGEST_BPE: Final = 8000
# Largest number of pairs -> embedding size, hidden size, dropout, tokens of a batch, epochs.
COURSES: Final = (
    (2_000, (64, 128, 0.3, 512, 60)),
    (20_000, (128, 256, 0.3, 1024, 30)),
    (200_000, (128, 256, 0.2, 4096, 12)),
)
LARGEST_COURSE: Final = (256, 512, 0.2, 4096, 8)
# Pairs that a training sees at least, repeated. Words and their reversal are learned by heart from about 6,000.
MIN_SEEN: Final = 12_000
MAX_WARMUP_STEPS: Final = 100
COVERED_SHARE: Final = 0.999
USUAL_SHARE: Final = 0.99  # The longest texts beyond it, such as a line with a book, do not choose tokenizers.
MAX_TOKENS: Final = 1000


def sample_of(pairs: Iterable[Pair]) -> tuple[list[Pair], int]:
    """Returns up to NUM_SAMPLED of many pairs, at even distances, and the number of all."""
    sample: list[Pair] = []
    num_pairs, step = 0, 1
    for place, pair in enumerate(pairs):
        if place % step == 0 and len(sample) == NUM_SAMPLED:
            sample, step = sample[::2], 2 * step
        if place % step == 0:
            sample.append(pair)
        num_pairs = place + 1
    return sample, num_pairs


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
    """Returns True for lists of symbols, such as phonemes, that white space separates."""
    symbols = [symbol for text in texts for symbol in text.split()]
    return (
        len(symbols) >= SYMBOLS_PER_TEXT * max(1, len(texts))
        and sum(map(len, symbols)) <= SYMBOL_LENGTH * len(symbols)
        and len(set(symbols)) <= MAX_SYMBOLS
    )


def suspicions(pairs: Sequence[Pair]) -> list[str]:
    """Returns a line for each sign of wrong pairs, with its share of the pairs and an example.

    Args:
        pairs: not empty.
    """
    scripts = [next(iter(script_shares(getattr(pair, side) for pair in pairs)), "") for side in ("source", "target")]

    def is_swapped(pair: Pair) -> bool:
        scripts_of_pair = [next(iter(script_shares([text])), "") for text in (pair.source, pair.target)]
        return scripts[0] != scripts[1] and scripts_of_pair == scripts[::-1]

    signs: dict[str, Callable[[Pair], object]] = {
        "have the same text on both sides": lambda pair: pair.source == pair.target,
        "have source and target in each other's script, as if swapped": is_swapped,
        "have broken characters, as of a wrong encoding": lambda pair: MOJIBAKE.search(f"{pair.source}\n{pair.target}"),
        "have markup (HTML tags or entities)": lambda pair: MARKUP.search(pair.source) or MARKUP.search(pair.target),
    }
    lines = []
    for words, holds in signs.items():
        matching = [pair for pair in pairs if holds(pair)]
        # If all pairs have the sign, e.g. in a task of copying, it is no error.
        if matching and len(matching) < len(pairs):
            lines.append(f"{len(matching) / len(pairs):.1%} of the pairs {words}, e.g. {shortened(matching[0])}")
    return lines


def shortened(pair: Pair) -> str:
    """Returns a pair on one line, with escaped control characters, which a terminal would interpret."""
    texts = (escaped(" ".join(text[: 4 * SHOWN_WIDTH].split())) for text in (pair.source, pair.target))
    return " → ".join(text if len(text) <= SHOWN_WIDTH else text[: SHOWN_WIDTH - 1] + "…" for text in texts)


def choose_recipe(files: CorpusFiles, name: str = "") -> tuple[dict[str, Any], list[str]]:
    """Returns the content of a recipe for these files, and lines that explain it. The same files give the same recipe.

    Args:
        name: how errors name the files; if empty, by their paths.

    Raises:
        UserError: bad rows; no pairs; too few different sources to hold some out.
    """
    sources = set[str]()

    def counted() -> Iterator[Pair]:
        for pair in PairReader(SplitFiles(**dict(files), drop_empty=True)):
            if len(sources) < MAX_COUNTED:
                sources.add(pair.source)
            yield pair

    sample, num_pairs = sample_of(counted())
    name = name or str(files)
    if not num_pairs:
        raise UserError(f"{name} has no pairs")
    if len(sources) < MIN_SOURCES:
        raise UserError(
            f"{name} has {len(sources)} different sources, and {MIN_SOURCES} are needed to hold some out for "
            "validation and test: give more pairs, or a recipe (docs/training.md)"
        )
    texts = {side: [getattr(pair, side) for pair in sample] for side in ("source", "target")}
    usual = {side: sorted(of_side, key=len)[: int(USUAL_SHARE * len(of_side))] for side, of_side in texts.items()}
    are_short = all(sum(map(len, of_side)) <= SHORT_LENGTH * len(of_side) for of_side in usual.values())
    spells = num_pairs <= (FEW_SHORT_PAIRS if are_short else FEW_PAIRS)
    keeps_lines = _have_lines(usual["target"])
    tables = {
        side: _tokenizer(of_side, num_pairs, spells=spells, keeps_spaces=keeps_lines and _have_lines(of_side))
        for side, of_side in usual.items()
    }
    configs: dict[str, type[TokenizerConfig]] = {"source": SourceConfig, "target": TargetConfig}
    limits = {side: _limit(configs[side].model_validate(tables[side]), of_side) for side, of_side in texts.items()}
    share = max(min(HELD_OUT_SHARE, MAX_HELD_OUT / len(sources)), MIN_HELD_OUT / len(sources))
    share = float(f"{min(share, LARGEST_SHARE):.2g}")
    embedding_size, hidden_size, dropout, max_tokens, max_epochs = next(
        (course for most, course in COURSES if num_pairs <= most), LARGEST_COURSE
    )
    validation = {}
    if num_pairs * max_epochs < MIN_SEEN:
        max_epochs = ceil(MIN_SEEN / num_pairs)
        # At the end alone: a dozen held-out pairs prefer weights that have not learned the training pairs yet.
        validation = {"every_steps": max_epochs * num_pairs}
    content = {
        "data": {
            "train": {name: value for name, value in files.model_dump(mode="json").items() if value is not None},
            "split": {"validation": share, "test": share},
            "drop_empty": True,
            "max_source_tokens": limits["source"],
            "max_target_tokens": limits["target"],
        },
        "source": tables["source"],
        "target": tables["target"],
        "model": {"embedding_size": embedding_size, "hidden_size": hidden_size, "dropout": dropout},
        # A batch holds at least the longest pair that the limits allow, with the end of both sides.
        "batches": {"max_tokens": max(max_tokens, sum(limits.values()) + 2)},
        "optimizer": {"learning_rate": 0.002},
        # Few pairs may make one batch, and so a step, of an epoch.
        "schedule": {"kind": "cosine", "warmup_steps": min(MAX_WARMUP_STEPS, num_pairs // 10)},
        "training": {"max_epochs": max_epochs},
        "validation": validation,
        "evaluation": _evaluation(tables["target"]["tokenizer"], usual["target"]),
    }
    sides = [
        f"{side}: {table['tokenizer']}"
        + (f" of {size:,}" if (size := table.get("vocabulary_size")) else "")
        + (" with line feeds" if "keep_spaces" in table else "")
        + f", at most {limits[side]} tokens"
        for side, table in tables.items()
    ]
    explanation = (
        f"recipe chosen from {num_pairs:,} pairs: {'; '.join(sides)}; embeddings of {embedding_size}, states of "
        f"{hidden_size}; {max_epochs} epochs; {share:.1%} of the sources each held out for validation and test"
    )
    return content, [explanation]


def _tokenizer(texts: Sequence[str], num_pairs: int, *, spells: bool, keeps_spaces: bool) -> dict[str, Any]:
    """Returns the table of a side, with the tokenizer that suits its texts."""
    spaces = {"keep_spaces": True} if keeps_spaces else {}
    if are_symbols(texts) and not keeps_spaces:
        return {"tokenizer": "word"}
    num_words = sum(len(text.split()) for text in texts) / len(texts)
    if spells or num_words < SPELLED_WORDS:
        return {"tokenizer": "character", **spaces}
    size = next((size for most, size in BPE_SIZES if num_pairs <= most), LARGEST_BPE)
    return {"tokenizer": "bpe", "vocabulary_size": max(size, 2 * len(set("".join(texts)))), **spaces}


def _have_lines(texts: Sequence[str]) -> bool:
    """Returns True if line feeds within the texts are part of the task, not oddities of a few."""
    return sum("\n" in text.strip() for text in texts) > MULTILINE_SHARE * len(texts)


def _limit(config: TokenizerConfig, texts: Sequence[str]) -> int:
    """Returns a limit of tokens: 1.1 times the length of the longest texts, without the longest 0.1 %."""
    tokenizer = train_tokenizer(config, texts)
    most = tokenizer.max_characters(MAX_TOKENS)
    lengths = sorted(map(len, tokenizer.encode_batch([text for text in texts if len(text) <= most]))) or [MAX_TOKENS]
    covering = lengths[ceil(COVERED_SHARE * len(lengths)) - 1]
    return min(MAX_TOKENS, max(10, 5 * ceil(1.1 * covering / 5)))


def _evaluation(tokenizer: str, targets: Sequence[str]) -> dict[str, Any]:
    """Returns the metrics that suit the targets: lists of symbols, single words, or sentences."""
    if tokenizer == "word":
        return {"metrics": ["wer", "per"]}
    length = sum(map(len, targets)) / len(targets)
    num_words = sum(len(text.split()) for text in targets) / len(targets)
    shares = script_shares(targets)
    # Japanese may have more Han characters than kana, and is not Chinese.
    kana = shares.get("Hiragana", 0.0) + shares.get("Katakana", 0.0)
    script = "Hiragana" if kana > LEAST_KANA else next(iter(shares), "")
    if num_words < SPELLED_WORDS and not (script in BLEU_TOKENIZERS and length > SPELLED_LENGTH):
        return {"metrics": ["exact_match", "cer"]}
    return {"metrics": ["bleu", "chrf"], "bleu_tokenizer": BLEU_TOKENIZERS.get(script, "13a")}


def is_recipe(name: str) -> bool:
    """Returns True if an argument is meant as a recipe: a TOML file, a folder, or the name of one of the package's.

    A file of YAML is no recipe, and no file of pairs either: the error about a recipe has the remedy.
    """
    path = Path(name)
    is_bare = not path.exists() and "." not in path.name and "," not in name
    return path.suffix.lower() in (".toml", ".yaml", ".yml") or path.is_dir() or is_bare


Inputs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, Any] | recipe.Recipe | InMemoryPairs
"""A recipe: a file, a folder, a name, tables; or pairs for which one is chosen: files, or pairs in memory."""


def recipe_of_inputs(
    inputs: Inputs, overrides: recipe.Overrides = (), keep_pairs: recipe.KeepPairs | None = None
) -> tuple[recipe.Recipe, list[str]]:
    """Returns the recipe of the inputs of a training, or one chosen for their pairs.

    Args:
        inputs: files of pairs are named as `CorpusFiles.named` takes them.
        overrides: see `load_recipe`.
        keep_pairs: stores pairs in memory; if None, they are refused.

    Returns:
        the recipe, and lines that explain the choice.

    Raises:
        UserError: no such file, a bad recipe, bad pairs; a recipe among several inputs.
    """
    if isinstance(inputs, recipe.Recipe):
        inputs = inputs.model_dump(mode="json", exclude_none=True)
    if isinstance(inputs, Mapping):
        return recipe.recipe_from(inputs, "recipe", overrides, keep_pairs=keep_pairs), []
    if is_in_memory(inputs) and keep_pairs is not None:
        content, lines = choose_recipe(CorpusFiles.model_validate(keep_pairs("train", inputs)), "data.train")
        return recipe.recipe_from(content, "pairs", overrides, keep_pairs=keep_pairs), lines
    inputs = named_inputs(inputs)
    recipes = [name for name in inputs if is_recipe(name)]
    if len(inputs) == 1 and recipes:
        return recipe.load_recipe(Path(inputs[0]), overrides, keep_pairs=keep_pairs), []
    if recipes:
        others = ", ".join(name for name in inputs if name != recipes[0]) or recipes[0]
        raise UserError(f"{recipes[0]} is a recipe, which names its files itself: leave {others} out")
    content, lines = choose_recipe(files_of(inputs))
    return recipe.recipe_from(content, ", ".join(inputs), overrides, keep_pairs=keep_pairs), lines


def files_of(names: Sequence[str]) -> CorpusFiles:
    """Joins files of pairs into one corpus. Raises UserError: they are of different kinds or have different columns."""
    files = [CorpusFiles.named(name) for name in names]
    if len(files) == 1:
        return files[0]
    columns = files[0].columns
    for part, name in zip(files, names, strict=True):
        if part.pairs is None or part.columns != columns:
            raise UserError(f"{name}: several files must all be files of pairs with the same columns")
    return CorpusFiles(pairs=tuple(name for part in files for name in part.pairs or ()), columns=columns)


def named_inputs(inputs: Any) -> list[str]:
    """Returns the names of a recipe or of files; empty for tables and pairs in memory.

    Raises:
        UserError: it is none of these.
    """
    if isinstance(inputs, Mapping | recipe.Recipe) or is_in_memory(inputs):
        return []
    names = inputs if isinstance(inputs, list | tuple) else [inputs]
    if not all(isinstance(name, str | os.PathLike) for name in names):
        raise UserError(
            f"recipe={shown(inputs)}: must be a recipe's file, folder, name or tables, files of pairs, or pairs in "
            "memory"
        )
    for name in names:
        path_of("recipe", name)
    return [os.fspath(name) for name in names]
