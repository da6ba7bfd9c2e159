"""Tests of the survey of texts, with their scripts and signs of broken pairs, and of the recipe chosen for files of
pairs: tokenizers, limits and split shares that suit the data.
"""

import json
import random
from itertools import pairwise, product
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles
from attendant.training.data.pairs import Pair
from attendant.training.recipe import Recipe
from attendant.training.recipe_choice import (
    NUM_SAMPLED,
    are_symbols,
    choose_recipe,
    recipe_of_inputs,
    sample_of,
    script_shares,
    shortened,
    suspicions,
)


@pytest.mark.parametrize("count", [3, NUM_SAMPLED, NUM_SAMPLED + 1, 5 * NUM_SAMPLED])
def test_a_sample_is_spread_over_all_pairs(count: int) -> None:
    sample, num_seen = sample_of(Pair(str(number), "x") for number in range(count))
    numbers = [int(pair.source) for pair in sample]
    assert num_seen == count and NUM_SAMPLED / 2 <= max(len(numbers), NUM_SAMPLED / 2) <= NUM_SAMPLED
    (step,) = {later - earlier for earlier, later in pairwise(numbers)}
    assert numbers[0] == 0 and numbers[-1] > count - 1 - step
    assert sample_of([]) == ([], 0)


def test_scripts_are_shares_of_the_letters() -> None:
    assert script_shares(["ab 1º", "Жж!", "々", "ｱー"]) == {
        "Latin": 3 / 8, "Cyrillic": 2 / 8, "Katakana": 2 / 8, "Han": 1 / 8,
    }  # fmt: skip
    assert script_shares(["12", "?"]) == {}


def test_signs_of_broken_pairs_are_reported_with_an_example() -> None:
    good = [Pair("hello", "привет"), Pair("cat", "кот"), Pair("dog", "пёс")]
    assert suspicions(good) == []
    bad = [
        Pair("мышь", "mouse"),
        Pair("same", "same"),
        Pair("cafÃ©", "кафе"),
        Pair("a <b>c</b>", "вот"),
        Pair("x&amp;y", "и"),
    ]
    lines = suspicions(good + bad)
    assert [line.split("% of the pairs ")[1].split(" ")[1:3] for line in lines] == [
        ["the", "same"], ["source", "and"], ["broken", "characters,"], ["markup", "(HTML"],
    ]  # fmt: skip
    assert "e.g. мышь → mouse" in lines[1] and lines[3].startswith("25.0%")


def test_a_task_that_copies_is_not_suspicious() -> None:
    assert suspicions([Pair("a", "a"), Pair("b", "b")]) == []


def test_a_pair_is_shown_on_one_line() -> None:
    assert shortened(Pair("a\nb", "c" * 10**7)) == "a b → " + "c" * 59 + "…"
    assert "\x1b" not in shortened(Pair("\x1b[2Jclear", "x"))


@pytest.mark.parametrize(
    ("texts", "are"),
    [
        (["F EY S", "K AE T", "AH0 B AW1 T"], True),
        (["house", "cat"], False),
        (["the house is old", "an old book"], False),
        (["", "a b c"], True),
        ([], False),
        ([f"{first} {second}" for first in range(20) for second in range(1000, 1020)], True),
        ([f"{number} {number + 1}" for number in range(100, 900)], False),
    ],
)
def test_lists_of_symbols_are_recognized(texts: list[str], are: bool) -> None:
    assert are_symbols(texts) == are


WORDS = [f"{first}{second}{third}en" for first in "bdfgklmnprst" for second in "aeiou" for third in "bdfgklmnprst"]


def chosen(tmp_path: Path, pairs: list[tuple[str, str]]) -> Recipe:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return recipe_of_inputs([str(path)], [])[0]


def test_spellings_become_characters_and_phonemes_become_symbols(tmp_path: Path) -> None:
    recipe = chosen(tmp_path, [(word, " ".join(word.upper())) for word in WORDS])
    assert (recipe.source.tokenizer, recipe.target.tokenizer) == ("character", "word")
    assert (recipe.data.max_source_tokens, recipe.data.max_target_tokens) == (10, 10)
    assert recipe.evaluation.metrics == ("wer", "per")


def test_sentences_are_parts_of_words_if_there_are_enough(tmp_path: Path) -> None:
    draw = random.Random(1)
    sentences = [" ".join(draw.choices(WORDS, k=12)) for _ in range(1200)]
    recipe = chosen(tmp_path, [(sentence, sentence) for sentence in sentences])
    assert recipe.source.tokenizer == recipe.target.tokenizer == "bpe" and recipe.source.vocabulary_size == 1000
    assert 12 <= recipe.data.max_source_tokens <= 60
    assert recipe.evaluation.metrics == ("bleu", "chrf")
    assert chosen(tmp_path, [(sentence, "x") for sentence in sentences[:200]]).source.tokenizer == "character"


def test_short_texts_are_characters_unless_they_are_many(tmp_path: Path) -> None:
    pairs = [(f"move {word} to {other}", f"mv {word} {other}") for word, other in product(WORDS, WORDS[:20])]
    few = chosen(tmp_path, pairs[:9000])
    assert few.source.tokenizer == few.target.tokenizer == "character"
    assert few.evaluation.metrics == ("bleu", "chrf")
    many = chosen(tmp_path, pairs[:11_000])
    assert many.source.tokenizer == many.target.tokenizer == "bpe"


@pytest.mark.parametrize("count", [1, 40, 2000])
def test_lines_of_targets_are_kept(tmp_path: Path, count: int) -> None:
    path = tmp_path / "pairs.jsonl"
    words = (WORDS * 3)[:2000]
    targets = [f"a{word}\nb c" if place < count else f"a{word} b c" for place, word in enumerate(words)]
    lines = (json.dumps({"source": word, "target": target}) for word, target in zip(words, targets, strict=True))
    path.write_text("\n".join(lines))
    recipe, (note,) = recipe_of_inputs([str(path)])
    keeps_lines = count > 0.05 * len(words)
    assert recipe.target.keep_spaces == keeps_lines == ("with line feeds" in note)
    assert not recipe.source.keep_spaces


def test_symbols_on_several_lines_are_characters(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"source": "\n".join(word), "target": "\n".join(word)}) for word in WORDS))
    recipe, _ = recipe_of_inputs([str(path)])
    for side in (recipe.source, recipe.target):
        assert (side.tokenizer, side.keep_spaces) == ("character", True)


@pytest.mark.parametrize(
    ("characters", "length", "metric", "tokenizer"),
    [
        ("漢", 20, "bleu", "zh"),
        ("の", 20, "bleu", "char"),
        ("東京タ", 7, "bleu", "char"),
        ("བོད་", 7, "bleu", "char"),
        ("မြန်", 7, "bleu", "char"),
        ("漢", 2, "exact_match", "13a"),
        ("w", 20, "exact_match", "13a"),
    ],
)
def test_metrics_suit_the_script(tmp_path: Path, characters: str, length: int, metric: str, tokenizer: str) -> None:
    recipe = chosen(tmp_path, [(word, characters * length) for word in WORDS[:50]])
    assert (recipe.evaluation.metrics[0], recipe.evaluation.bleu_tokenizer) == (metric, tokenizer)


def test_limits_pass_over_a_single_long_text(tmp_path: Path) -> None:
    recipe = chosen(tmp_path, [(word, word) for word in WORDS * 3] + [("w" * 2**20, "x")])
    assert recipe.data.max_source_tokens == 10


def test_a_single_long_text_does_not_choose_the_tokenizers(tmp_path: Path) -> None:
    recipe = chosen(tmp_path, [(word, " ".join(word.upper())) for word in WORDS] + [("ab " * 30_000, "word " * 30_000)])
    assert (recipe.source.tokenizer, recipe.target.tokenizer) == ("character", "word")
    assert recipe.evaluation.metrics == ("wer", "per")


def test_a_batch_holds_the_longest_pair_within_the_limits(tmp_path: Path) -> None:
    recipe = chosen(tmp_path, [(word * 60, word * 50) for word in WORDS[:40]])
    assert recipe.batches.max_tokens == recipe.data.max_source_tokens + recipe.data.max_target_tokens + 2 > 600


@pytest.mark.parametrize(("count", "share"), [(30, 0.2), (200, 0.1), (700, 0.05)])
def test_a_larger_share_is_held_out_if_there_are_few_pairs(tmp_path: Path, count: int, share: float) -> None:
    recipe = chosen(tmp_path, [(word, word) for word in WORDS[:count]])
    assert recipe.data.split is not None and recipe.data.split.validation == recipe.data.split.test == share


@pytest.mark.parametrize(("count", "num_epochs"), [(40, 300), (199, 61), (200, 60), (700, 60)])
def test_few_pairs_are_repeated_and_do_not_choose_the_weights(tmp_path: Path, count: int, num_epochs: int) -> None:
    recipe = chosen(tmp_path, [(word, word) for word in WORDS[:count]])
    assert recipe.training.max_epochs == num_epochs
    every = recipe.validation.every_steps  # An epoch has a step a pair at most.
    assert every is None if count >= 200 else every is not None and every >= num_epochs * count


def test_the_same_files_give_the_same_recipe_and_overrides_change_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(f"{word},x,{word}\n" for word in WORDS[:50]) + ",x,\n")
    name = f"{tmp_path / 'a.csv'}[1,3]"
    recipe, lines = recipe_of_inputs([name], ["model.hidden_size=32", "training.max_epochs=1"])
    assert recipe == recipe_of_inputs([name], ["model.hidden_size=32", "training.max_epochs=1"])[0]
    assert recipe.model.hidden_size == 32 and recipe.data.drop_empty and "50 pairs" in lines[0]
    files = recipe.data.files("train")
    assert files is not None and files.columns == (1, 3)
    both, _ = recipe_of_inputs([name, name], [])
    assert both.data.train is not None and len(both.data.train.paths) == 2


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["{here}/few.tsv"], "has 3 different sources, and 20 are needed"),
        (["{here}/empty.tsv"], "has no pairs"),
        (["{here}/none.tsv"], "there is no such file"),
        (["{here}/few.tsv", "{here}/x.toml"], "x.toml is a recipe, which names its files itself"),
        (["{here}/few.tsv[1,2]", "{here}/few.tsv"], "must all be files of pairs with the same columns"),
        (["{here}/few.tsv", "a.en,a.fr"], "must all be files of pairs with the same columns"),
    ],
)
def test_invalid_inputs_are_refused_in_one_line(tmp_path: Path, inputs: list[str], message: str) -> None:
    (tmp_path / "few.tsv").write_text("a\tb\nc\td\ne\tf\n")
    (tmp_path / "empty.tsv").touch()
    with pytest.raises(UserError) as caught:
        recipe_of_inputs([name.format(here=tmp_path) for name in inputs], [])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_does_not_hide_a_recipe_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dates").mkdir()
    monkeypatch.chdir(tmp_path)
    assert recipe_of_inputs("dates")[0].data.fetch == "dates"


def test_parallel_files_are_taken_as_they_are(tmp_path: Path) -> None:
    for name in ("a.en", "a.fr"):
        (tmp_path / name).write_text("".join(f"{word}\n" for word in WORDS[:40]))
    content, _ = choose_recipe(CorpusFiles.named(f"{tmp_path / 'a.en'},{tmp_path / 'a.fr'}"))
    assert content["data"]["train"] == {"source": [str(tmp_path / "a.en")], "target": [str(tmp_path / "a.fr")]}
