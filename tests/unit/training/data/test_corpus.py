"""Tests of tokenized corpora: the pairs that are left out, the share of unknown symbols, storage on disk, and the bound
that a training split suggests for the length of outputs.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attendant.runtime.bundle.tokenizer import EOS_ID
from attendant.runtime.decoding.options import LENGTH_MARGIN
from attendant.runtime.errors import UserError
from attendant.training.data import pairs as module
from attendant.training.data.batches import BatchPlan, collate
from attendant.training.data.config import BatchConfig, CorpusFiles, DataConfig
from attendant.training.data.corpus import (
    Corpus,
    DistillationConfig,
    PairEncoder,
    TokenSequences,
    encode_pairs,
    max_length_ratio,
    open_soft_targets,
    open_stored,
    store,
    store_soft_targets,
)
from attendant.training.data.pairs import Pair
from attendant.training.data.tokenization import TokenizerConfig, train_tokenizer
from attendant.training.recipe import Recipe
from attendant.training.run.corpora import _unknown_shares, prepare_training_split
from tests.unit.training.conftest import Runs

TOKENIZER = train_tokenizer(TokenizerConfig(tokenizer="character"), ["abcd"])


def config(source: int, target: int, **others: object) -> DataConfig:
    files = {"train": "t.tsv", "validation": "v.tsv"}
    return DataConfig.model_validate(files | {"max_source_tokens": source, "max_target_tokens": target} | others)


def encode(pairs: list[Pair], config: DataConfig, *, append_eos: bool = False) -> Corpus:
    return encode_pairs(pairs, PairEncoder(TOKENIZER, TOKENIZER, config, append_eos=append_eos))


@pytest.mark.parametrize("append_eos", [True, False])
def test_limits_do_not_count_eos(append_eos: bool) -> None:
    pairs = [Pair("ab", "abc"), Pair("abc", "a"), Pair("a", "abcd"), Pair("b", "a")]
    corpus = encode(pairs, config(2, 3), append_eos=append_eos)
    assert corpus.num_too_long == 2
    end = [EOS_ID] if append_eos else []
    assert [corpus.sources[index].tolist() for index in range(2)] == [
        TOKENIZER.encode("ab") + end,
        TOKENIZER.encode("b") + end,
    ]
    assert corpus.targets[0].tolist() == TOKENIZER.encode("abc")


@pytest.mark.parametrize("append_eos", [True, False])
def test_pairs_of_too_unequal_lengths_are_left_out(append_eos: bool) -> None:
    pairs = [Pair("ab", "abcd"), Pair("ab", "abcda"), Pair("abcda", "ab"), Pair("a" * 9, "a"), Pair("ab", "")]
    corpus = encode(pairs, config(8, 8, max_length_ratio=2.0), append_eos=append_eos)
    assert (len(corpus), corpus.num_too_long, corpus.num_unequal) == (1, 2, 2)
    with pytest.raises(UserError, match=r"in a ratio of at most 2: .* or data\.max_length_ratio"):
        encode([Pair("a", "abc")], config(9, 9, max_length_ratio=2.0))


def test_sources_of_too_many_words_are_left_out() -> None:
    pairs = [Pair("ab cd.", "ab"), Pair("ab cd, d", "ab"), Pair("abcdabcd", "ab")]
    corpus = encode(pairs, config(9, 9, max_source_words=3))
    assert (len(corpus), corpus.num_too_long) == (2, 1)
    with pytest.raises(UserError, match=r"in at most 1 source words: .* or data\.max_source_words"):
        encode([Pair("a b", "a")], config(9, 9, max_source_words=1))


def test_a_corpus_without_a_pair_within_the_limits_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"none of the 1 pairs of data\.train has 1 to 1 source and 1 to 9 target tokens"
    ):
        encode([Pair("ab", "a")], config(1, 9), append_eos=True)


def test_unknown_symbols_are_counted() -> None:
    corpus = encode([Pair("axyz", "a")], config(9, 9), append_eos=True)
    train: Any = SimpleNamespace(source_tokenizer=TOKENIZER, target_tokenizer=TOKENIZER)
    assert _unknown_shares(corpus, train) == {"source": 0.75, "target": 0.0}


CONFIG = DataConfig.model_validate({"train": "t.tsv", "validation": "v.tsv", "max_source_tokens": 5})
PAIRS = [Pair("abcd"[: 1 + number % 4], "dcba"[number % 3 :]) for number in range(25)] + [Pair("a" * 9, "a")]


def encoder() -> PairEncoder:
    return PairEncoder(TOKENIZER, TOKENIZER, CONFIG, append_eos=True)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_a_stored_corpus_equals_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(module, "CHUNK_ITEMS", chunk)
    store(tmp_path / "part", iter(PAIRS), encoder(), {"what": "é"})
    result = open_stored(tmp_path / "part")
    assert result is not None
    corpus, message = result
    expected = encode_pairs(PAIRS, encoder())
    assert message == {"what": "é"}
    assert (len(corpus), corpus.num_too_long) == (25, 1) == (len(expected), expected.num_too_long)
    for side, same in ((corpus.sources, expected.sources), (corpus.targets, expected.targets)):
        np.testing.assert_array_equal(side.ids, same.ids)
        np.testing.assert_array_equal(side.offsets, same.offsets)
        # The arrays are memory-mapped, not read.
        assert isinstance(side.ids.base, np.memmap) and not side.ids.flags.writeable
    batches = BatchPlan(corpus, BatchConfig(max_tokens=40), 1).epoch(0)
    assert sum(len(collate(corpus, indices, 2).source_ids) for indices in batches) == 25


def test_a_failed_store_leaves_no_files(tmp_path: Path) -> None:
    def pairs() -> Iterator[Pair]:
        yield from PAIRS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store(tmp_path / "run" / "corpus" / "part", pairs(), encoder(), {})
    with pytest.raises(UserError, match="none of the 1 pairs"):
        store(tmp_path / "run" / "corpus" / "part", [Pair("a" * 9, "a")], encoder(), {})
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_corpus_is_refused(tmp_path: Path) -> None:
    store(tmp_path / "part", PAIRS, encoder(), {})
    with (tmp_path / "part" / "source_ids.bin").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(UserError, match=r"is damaged \(source_ids\.bin has .*: remove it, and it will be made again"):
        open_stored(tmp_path / "part")


def test_a_corpus_that_this_user_may_not_read_need_not_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path, *arguments: object, **options: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    store(tmp_path / "part", PAIRS, encoder(), {})
    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(UserError, match=r"corpus\.json: can't be read: Permission denied: give user \d+ access"):
        open_stored(tmp_path / "part")


def prepare(tmp_path: Path, **options: object) -> Path:
    """Prepares the training split; returns its new directory in the cache, or `found` if it was there already."""
    (tmp_path / "train.tsv").write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS))
    files = CorpusFiles(tsv=str(tmp_path / "train.tsv"))
    before = set((tmp_path / "cache").glob("*"))
    recipe = Recipe.model_validate(
        {
            "data": CONFIG.model_copy(update={"train": files, **options}),
            "source": {"tokenizer": "character"},
            "target": {"tokenizer": "character"},
            "training": {"max_steps": 1},
        }
    )
    part = prepare_training_split(recipe, files, "d", {"validation": frozenset({"a"})}, tmp_path / "cache", None)
    assert part.survey.num_pairs == 26 and part.survey.shared_sources == {"validation": ["a"]}
    new = set((tmp_path / "cache").glob("*")) - before
    return new.pop() if new else tmp_path / "found"


def test_a_corpus_is_reused_for_the_same_inputs_and_made_again_for_others(tmp_path: Path) -> None:
    assert prepare(tmp_path).name != "found"
    assert prepare(tmp_path).name == "found"
    changes = ({"drop_duplicates": True}, {"max_length_ratio": 2.0}, {"max_source_tokens": 4}, {"max_source_words": 4})
    for options in changes:
        assert prepare(tmp_path, **options).name != "found"
        assert prepare(tmp_path, **options).name == "found"


def test_a_run_without_its_corpus_makes_it_again(tmp_path: Path, tiny_recipe: Path, succeeds: Runs) -> None:
    run = (tiny_recipe, "--output", tmp_path / "run")
    succeeds(*run, "--set", "training.max_steps=2")
    (made,) = (tmp_path / "run" / "corpus").iterdir()
    shutil.rmtree(tmp_path / "run" / "corpus")
    succeeds(*run, "--set", "training.max_steps=4", "--resume")
    assert [path.name for path in (tmp_path / "run" / "corpus").iterdir()] == [made.name]


def test_soft_targets_have_room_on_the_disk_before_they_are_computed(tmp_path: Path) -> None:
    """A process that wrote to the map of a file on a full disk was killed by SIGBUS, without a message."""

    def parts() -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float16]]]:
        (folder,) = tmp_path.iterdir()
        sizes = [(path.stat().st_size, path.stat().st_blocks * 512) for path in folder.iterdir()]
        assert sum(size for size, _ in sizes) == 6 * 8 * 9000 and all(room >= size for size, room in sizes)
        yield np.arange(9000), np.full((9000, 8), 3, np.int32), np.full((9000, 8), 0.125, np.float16)

    store_soft_targets(tmp_path / "soft", 9000, 8, parts())
    offsets = np.array([0, 8999])
    stored = open_soft_targets(tmp_path / "soft", offsets, DistillationConfig(teachers=("run",)))
    assert stored is not None and (stored.symbols == 3).all() and (stored.probabilities == 0.125).all()


def corpus(sources: list[int], targets: list[int], *, append_eos: bool) -> Corpus:
    sides = [[[4] * (length + append_eos) for length in sources], [[4] * length for length in targets]]
    return Corpus(*(TokenSequences.of(side) for side in sides), num_too_long=0)


@pytest.mark.parametrize("append_eos", [True, False])
def test_the_length_ratio_is_the_smallest_that_cuts_no_target(append_eos: bool) -> None:
    """Includes a short source with a long target, such as `quadrillion`: 1,000,000,000,000,000."""
    random = np.random.default_rng(0)
    sources = random.integers(1, 40, 2000)
    targets = np.maximum(1, (sources * random.gamma(8, 0.25, 2000)).astype(int))
    sources[7], targets[7] = 1, 22
    result = max_length_ratio(corpus(sources.tolist(), targets.tolist(), append_eos=append_eos), append_eos=append_eos)
    assert np.all(targets <= result * sources + LENGTH_MARGIN)
    assert np.any(targets > (result - 0.01) * sources + LENGTH_MARGIN)
    assert round(result, 2) == result


def test_the_length_ratio_is_not_below_the_mean() -> None:
    """Uses targets shorter than LENGTH_MARGIN: without the mean ratio, no output could be longer than the margin."""
    assert max_length_ratio(corpus([4, 2], [5, 4], append_eos=True), append_eos=True) == 1.5
