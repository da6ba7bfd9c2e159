"""Fetchers: what builds a recipe's data. Each leaves `train.tsv`, `validation.tsv`, `test.tsv` in one directory.

Those of sources alone leave what `attendant label` takes.
"""

from functools import partial
from pathlib import Path

from attendant.training.data.config import DataConfig, FetcherName
from attendant.training.data.fetch.cmudict import build_cmudict
from attendant.training.data.fetch.debdocs import build_debdocs
from attendant.training.data.fetch.debian_descriptions import build_debian_synopses
from attendant.training.data.fetch.english_words import build_english_words
from attendant.training.data.fetch.numbers import build_numbers
from attendant.training.data.fetch.published import Announce, Builder, publish
from attendant.training.data.fetch.toys import build_copy, build_dates, build_reverse

FETCHERS: dict[FetcherName, Builder] = {
    "cmudict": build_cmudict,
    "copy": build_copy,
    "dates": build_dates,
    "debdocs-en-fr": partial(build_debdocs, language="fr", unit="paragraphs"),
    "debdocs-en-fr-prose": partial(build_debdocs, language="fr", unit="prose"),
    "debdocs-en-fr-sentences": partial(build_debdocs, language="fr", unit="sentences"),
    "debian-synopses": build_debian_synopses,
    "numbers": build_numbers,
    "reverse": build_reverse,
}

SOURCES: dict[str, Builder] = {"english-words": build_english_words}
"""Of sources without targets."""


def fetch_sources(name: str, *, announce: Announce) -> Path:
    """Builds `data/<name>` of SOURCES where it is missing, and returns it. Raises UserError as `fetch` does."""
    directory = Path("data") / name
    publish(directory, name, SOURCES[name], announce=announce)
    return directory


def fetch(config: DataConfig, *, announce: Announce) -> None:
    """Builds the recipe's data where it is missing; does nothing where it stands, or where no fetcher is named. Raises
    UserError: no network, a wrong checksum, files changed by hand.
    """
    if config.fetch is None or config.directory is None:
        return
    publish(Path(config.directory), config.fetch, FETCHERS[config.fetch], announce=announce)
