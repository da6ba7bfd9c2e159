"""What becomes a pair: paragraphs, prose, sentences."""

import pytest

from attendant.training.data.fetch.debdocs import PARAGRAPHS, PROSE, SENTENCES, Unit
from attendant.training.data.pairs import Pair, num_words


@pytest.mark.parametrize(
    ("text", "count"), [("don't stop", 2), ("x.y = 3;", 6), ("l’été (2)", 4), ("", 0), ("a_b-c", 3)]
)
def test_words_and_marks(text: str, count: int) -> None:
    assert num_words(text) == count


@pytest.mark.parametrize(
    ("unit", "source", "is_kept"),
    [
        (PARAGRAPHS, "Two words", False),
        (PARAGRAPHS, "Load/Save options", True),
        (PARAGRAPHS, "word " * 120, True),
        (PARAGRAPHS, "word " * 121, False),
        (PARAGRAPHS, "=SUM(A1;B2) is 3", False),
        (PROSE, "Saves the open document.", True),
        (PROSE, "Saves the open document", False),
        (PROSE, "Saves the:", False),
        (PROSE, "This one saves the:", True),
        (SENTENCES, "word " * 81, False),
    ],
)
def test_which_pairs_are_worth_learning(unit: Unit, source: str, is_kept: bool) -> None:
    assert list(unit.pairs([(source.strip(), "ce que ça donne")])) == (
        [Pair(source.strip(), "ce que ça donne")] if is_kept else []
    )


def test_what_was_not_translated_leaves() -> None:
    assert list(PARAGRAPHS.pairs([("The same text", "The same text"), ("An empty one", "")])) == []


def test_sentences_correspond_where_there_are_as_many() -> None:
    english = "It works (mostly.) See e.g. the manual. Does it work? “Yes, it always does.”"
    french = "Ça marche (en gros.) Voir p. ex. le manuel. Est-ce que ça marche ? « Oui, ça marche. »"
    assert [pair.source for pair in SENTENCES.pairs([(english, french)])] == [
        "It works (mostly.)", "See e.g. the manual.", "Does it work?", "“Yes, it always does.”",
    ]  # fmt: skip
    assert [pair.target for pair in SENTENCES.pairs([(english, french)])][2:] == [
        "Est-ce que ça marche ?", "« Oui, ça marche. »",
    ]  # fmt: skip
    joined = french.replace("marche ? «", "marche, «")
    assert list(SENTENCES.pairs([(english, joined)])) == [Pair(english, joined)]
