"""The tables and the picture of docs/experiments/alignment.md."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from attendant.runtime.files import write_text
from attendant.training.evaluation.bootstrap import interval_text
from attendant.training.report.pictures import attention_map, on_paper
from attendant_client.alignment import Link
from experiments.alignment.error_rate import Agreement, agreement, attended, diagonal_links, links_of, open_model
from experiments.alignment.hand import AlignedWord, read_words
from experiments.pages import PAGES, write_table

PAGE = "alignment"
SHOWN = "thoroughfare"


def show_alignment(path: Path) -> None:
    """Of a run or a bundle. Raises UserError: it is none, or has no attention."""
    words, model = read_words(), open_model(path)
    weights = attended(model, words)
    links = links_of(weights, words)
    found = {"attention": agreement(links, words), "the diagonal": agreement(diagonal_links(words), words)}
    write_table(PAGE, "table", HEADINGS, [_row(name, one) for name, one in found.items()])
    write_table(PAGE, "differences", ("word", "sound", "attention", "hand"), list(_differences(links, words)))
    place = [word.word for word in words].index(SHOWN)
    end = ["</s>"]
    drawn = attention_map(weights[place], [*SHOWN, *end * model.append_eos], [*words[place].sounds, *end])
    write_text(PAGES / "images" / f"{PAGE}.svg", on_paper(drawn))


HEADINGS = ("links", "AER %", "95 % interval", "precision %", "recall %")


def _row(name: str, one: Agreement) -> list[str]:
    return [
        name,
        f"{one.error_rate:.1f}",
        interval_text(one.interval, 1),
        f"{one.precision:.1f}",
        f"{one.recall:.1f}",
    ]


def _differences(links: Sequence[Sequence[Link]], words: Sequence[AlignedWord]) -> Iterator[list[str]]:
    """The sounds that attention links to no letter that the hand does."""
    for found, word in zip(links, words, strict=True):
        attention = {sound: letter for letter, sound in found}
        for sound, name in enumerate(word.sounds):
            possible = sorted(letter for letter, one in word.possible if one == sound)
            looked = [attention[sound]] if sound in attention else []
            if looked != possible and not set(looked) & set(possible):
                yield [word.word, name, _marked(word.word, looked), _marked(word.word, possible)]


def _marked(word: str, letters: Sequence[int]) -> str:
    """The word with these letters in capitals, or a dash."""
    shown = "".join(letter.upper() if place in letters else letter for place, letter in enumerate(word))
    return shown if letters else "none"
