"""Fetchers: what builds a recipe's data. Each leaves `train.tsv`, `validation.tsv`, `test.tsv` in one directory."""

from collections.abc import Callable
from pathlib import Path

from training.data.config import DataConfig
from training.data.fetch.cmudict import build_cmudict
from training.data.fetch.published import publish
from training.data.fetch.reverse import build_reverse

FETCHERS: dict[str, Callable[[Path], None]] = {"cmudict": build_cmudict, "reverse": build_reverse}


def fetch(config: DataConfig, *, announce: Callable[[str], None]) -> None:
    """Builds the recipe's data where it is missing; does nothing where it stands, or where no fetcher is named.

    Raises:
        UserError: no network, a wrong checksum, files changed by hand.
    """
    if config.fetch is None or config.directory is None:
        return
    publish(Path(config.directory), config.fetch, FETCHERS[config.fetch], announce=announce)
