"""Word vectors of others: in the embeddings of the words they are of, once, or refused in a line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attendant.runtime.errors import UserError
from attendant.training.data.tokenization import TokenizerConfig, train_tokenizer
from attendant.training.run.loading import load_run, read_vectors, words_of

Command = Callable[..., tuple[int, str, str]]


def vectors(path: Path, *words: str, size: int = 8, header: str = "") -> Path:
    """Of the n-th word: n, n, ..."""
    rows = (f"{word} {' '.join([str(float(place))] * size)}\n" for place, word in enumerate(words))
    path.write_text(header + "".join(rows))
    return path


@pytest.mark.parametrize("header", ["", "5 8\n"])
def test_the_formats_of_others(tmp_path: Path, header: str) -> None:
    words = {"a": 4, "b": 7, "unseen": 9}
    path = vectors(tmp_path / "some.vec", "x", "b", ". . .", "a", "b", header=header)
    ids, found = read_vectors(path, words, 8)
    assert dict(zip(ids.tolist(), found[:, 0].tolist(), strict=True)) == {7: 1.0, 4: 3.0}
    packed = tmp_path / "some.vec.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert (read_vectors(packed, words, 8)[1] == found).all()


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    for path, said in (
        (vectors(tmp_path / "wide.vec", "a", size=9), r"wide.vec:1: has 9 numbers, and model.embedding_size is 8"),
        (vectors(tmp_path / "said.vec", "a", size=9, header="1 9\n"), r"said.vec:2: has 9 numbers"),
        (vectors(tmp_path / "other.vec", "x", "y"), r"a vector for none of the 1 words"),
        (tmp_path / "none.vec", r"none.vec: there is no such file"),
    ):
        with pytest.raises(UserError, match=said):
            read_vectors(path, {"a": 4}, 8)


@pytest.mark.parametrize("number", ["x", "nan", "-inf", "1e39"])
def test_all_lines_without_finite_numbers_are_told(tmp_path: Path, number: str) -> None:
    (tmp_path / "bad.vec").write_text(f"a 1 2 {number}\nb 1 2 3\nc {number} 2 3\nother {number} 2 3\n")
    with pytest.raises(UserError) as caught:
        read_vectors(tmp_path / "bad.vec", {"a": 4, "b": 5, "c": 6}, 3)
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("2 bad lines") and number in lines[0]
    assert "bad.vec:1: " in lines[0] and "bad.vec:3: " in lines[1]


def test_words_and_numbers_may_be_separated_by_tabs(tmp_path: Path) -> None:
    (tmp_path / "tabs.vec").write_text("a\t1\t2\t3\n")
    assert read_vectors(tmp_path / "tabs.vec", {"a": 4}, 3)[1].tolist() == [[1.0, 2.0, 3.0]]


def test_of_bpe_a_word_is_what_begins_one() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(tokenizer="bpe", vocabulary_size=60), ["the cat", "the cats"] * 9)
    words = words_of(tokenizer)
    assert tokenizer.tokens_of([words["the"], words["cat"]]) == ["▁the", "▁cat"]


def test_a_run_begins_with_them_and_resumes_without(tmp_path: Path, tiny_recipe: Path, command: Command) -> None:
    files = {side: vectors(tmp_path / f"{side}.vec", "z", "a", "c") for side in ("source", "target")}
    options = [part for side, path in files.items() for part in ("--set", f"training.{side}_vectors={path}")]
    still = ("--set", "optimizer.learning_rate=1e-12")
    first = ("--set", "training.max_epochs=1")
    status, _, errors = command(tiny_recipe, "--output", tmp_path / "run", *options, *still, *first)
    assert status == 0, errors
    said = json.loads((tmp_path / "run" / "start.json").read_text())
    assert {side: one["num_symbols"] for side, one in said.items()} == {"source_vectors": 2, "target_vectors": 2}
    run = load_run(tmp_path / "run")
    for tokenizer, embedding in (
        (run.source_tokenizer, run.model.source_embedding),
        (run.target_tokenizer, run.model.target_embedding),
    ):
        assert embedding is not None
        a, b, c = (embedding.weight[tokenizer.encode(letter)[0]] for letter in "abc")
        torch.testing.assert_close(a, torch.full((8,), 1.0))
        torch.testing.assert_close(c, torch.full((8,), 2.0))
        assert b.abs().max() <= 0.1
    for path in files.values():
        path.unlink()
    assert command(tiny_recipe, "--output", tmp_path / "run", "--resume", *options, *still)[0] == 0
    assert json.loads((tmp_path / "run" / "start.json").read_text()) == said
    status, _, errors = command(tiny_recipe, "--output", tmp_path / "run", "--resume", *still)
    assert status == 2 and "was begun with training.source_vectors" in errors


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("training.start_from=x", "training.target_vectors=y"), "would take the place of embeddings of"),
        (
            ("model.shared_embeddings=true", "source.tokenizer=word", "training.source_vectors=y"),
            "name the file as training.target_vectors",
        ),
    ],
)
def test_two_beginnings_are_refused(
    tmp_path: Path, tiny_recipe: Path, command: Command, overrides: tuple[str, ...], said: str
) -> None:
    options = [part for each in overrides for part in ("--set", each)]
    status, _, errors = command(tiny_recipe, "--output", tmp_path / "run", *options)
    assert status == 2 and said in errors and len(errors.splitlines()) == 1
