"""Tokenized parts on disk: the same as in memory, whole or not there, made once."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from attendant.runtime.errors import UserError
from attendant.training.data import corpus as module
from attendant.training.data.batches import BatchPlan, collate
from attendant.training.data.config import BatchConfig, CorpusFiles, DataConfig
from attendant.training.data.corpus import PairEncoder, encode_pairs, open_stored, store
from attendant.training.data.pairs import Pair
from attendant.training.data.tokenization import SourceConfig, TargetConfig, TokenizerConfig, train_tokenizer
from attendant.training.run.corpora import prepare_training_split

TOKENIZER = train_tokenizer(TokenizerConfig(tokenizer="character"), ["abcd"])
CONFIG = DataConfig.model_validate({"train": "t.tsv", "validation": "v.tsv", "max_source_tokens": 5})
PAIRS = [Pair("abcd"[: 1 + number % 4], "dcba"[number % 3 :]) for number in range(25)] + [Pair("a" * 9, "a")]


def encoder() -> PairEncoder:
    return PairEncoder(TOKENIZER, TOKENIZER, CONFIG, append_eos=True)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_holds_what_memory_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(module, "CHUNK_PAIRS", chunk)
    store(tmp_path / "part", iter(PAIRS), encoder(), {"what": "é"})
    found = open_stored(tmp_path / "part")
    assert found is not None
    corpus, said = found
    expected = encode_pairs(PAIRS, encoder())
    assert said == {"what": "é"}
    assert (len(corpus), corpus.num_too_long) == (25, 1) == (len(expected), expected.num_too_long)
    for side, same in ((corpus.sources, expected.sources), (corpus.targets, expected.targets)):
        np.testing.assert_array_equal(side.ids, same.ids)
        np.testing.assert_array_equal(side.offsets, same.offsets)
        # Mapped, not read.
        assert isinstance(side.ids.base, np.memmap) and not side.ids.flags.writeable
    batches = BatchPlan(corpus, BatchConfig(max_tokens=40), 1).epoch(0)
    assert sum(len(collate(corpus, indices, 2).source_ids) for indices in batches) == 25


def test_what_stands_nowhere_is_not_found(tmp_path: Path) -> None:
    assert open_stored(tmp_path / "part") is None


def test_dying_leaves_nothing(tmp_path: Path) -> None:
    def pairs() -> Iterator[Pair]:
        yield from PAIRS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store(tmp_path / "run" / "corpus" / "part", pairs(), encoder(), {})
    with pytest.raises(UserError, match="none of the 1 pairs"):
        store(tmp_path / "run" / "corpus" / "part", [Pair("a" * 9, "a")], encoder(), {})
    assert list(tmp_path.iterdir()) == []


def test_damage_is_said(tmp_path: Path) -> None:
    store(tmp_path / "part", PAIRS, encoder(), {})
    with (tmp_path / "part" / "source_ids.bin").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(UserError, match=r"is damaged \(source_ids\.bin has .*: remove it, and it will be made again"):
        open_stored(tmp_path / "part")


def prepare(tmp_path: Path, **options: object) -> Path:
    """Returns the directory that was made or found."""
    (tmp_path / "train.tsv").write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS))
    before = set((tmp_path / "cache").glob("*"))
    part = prepare_training_split(
        CorpusFiles(tsv=str(tmp_path / "train.tsv")),
        CONFIG.model_copy(update=options),
        SourceConfig(tokenizer="character"),
        TargetConfig(tokenizer="character"),
        shared_vocabulary=False,
        digest="d",
        held_out={"validation": frozenset({"a"})},
        folder=tmp_path / "cache",
        tokenizers=None,
    )
    assert part.survey.num_pairs == 26 and part.survey.shared_sources == {"validation": ["a"]}
    new = set((tmp_path / "cache").glob("*")) - before
    return new.pop() if new else tmp_path / "found"


def test_is_made_once_for_the_same_inputs_and_anew_for_others(tmp_path: Path) -> None:
    assert prepare(tmp_path).name != "found"
    assert prepare(tmp_path).name == "found"
    changes = ({"drop_duplicates": True}, {"max_length_ratio": 2.0}, {"max_source_tokens": 4}, {"max_source_words": 4})
    for options in changes:
        assert prepare(tmp_path, **options).name != "found"
        assert prepare(tmp_path, **options).name == "found"


def test_a_run_that_lost_it_makes_it_again(tmp_path: Path, tiny_recipe: Path, command) -> None:
    import shutil

    def train(steps: int, *options: object) -> int:
        return command(tiny_recipe, "--output", tmp_path / "run", "--set", f"training.max_steps={steps}", *options)[0]

    assert train(2) == 0
    (made,) = (tmp_path / "run" / "corpus").iterdir()
    shutil.rmtree(tmp_path / "run" / "corpus")
    assert train(4, "--resume") == 0
    assert [path.name for path in (tmp_path / "run" / "corpus").iterdir()] == [made.name]
