"""Peers: the pairs that they are trained on, and their configurations."""

from pathlib import Path

import pytest

from attendant.recipes.papers import peers
from attendant.recipes.papers.peers import Entry, load_entries, write_data
from tests.paths import ROOT


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """A task of three short pairs and a long one."""
    recipe = (ROOT / "recipes/g2p-cmudict/recipe.toml").read_text().replace('fetch = "cmudict"', "")
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.tsv").write_text(f"badge\tB AE1 JH\ncab\tK AE1 B\n{'a' * 200}\tEY1\njab\tJH AE1 B\n")
        recipe += f"[data.{split}]\ntsv = '{tmp_path}/{split}.tsv'\n"
    (tmp_path / "recipe.toml").write_text(recipe)
    monkeypatch.setattr(peers, "RUNS", tmp_path / "peers")
    task = {"recipe": str(tmp_path / "recipe.toml"), "bundle": "models/g2p-en", "values": {"size": 7}}
    return Entry("say", task | {"processor_seconds": 1}, "slow", {})


def test_pairs_are_written_in_our_symbols(entry: Entry) -> None:
    write_data(entry)
    assert (entry.data / "train.src").read_text() == "b a d g e\nc a b\nj a b\n"
    assert (entry.data / "validation.tgt").read_text() == "B AE1 JH\nK AE1 B\nJH AE1 B\n"
    words = (entry.data / "words.txt").read_text().splitlines()
    assert {"b", "JH"} < set(words) and len(words) == len(set(words)) and "<pad>" not in words


def test_every_peer_has_a_configuration() -> None:
    entries = load_entries()
    assert len(entries) == 3
    for entry in entries:
        assert (peers.FOLDER / f"{entry.name}.yaml").is_file()
        assert entry.recipe.data.fetch is not None
