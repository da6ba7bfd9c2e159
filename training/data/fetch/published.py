"""Publishing fetched data: a directory stands whole, with the digests of its files, or not at all."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from attendant.runtime.errors import UserError
from attendant.runtime.files import new_folder, sha256_of, write_json
from attendant.training.data.pairs import Pair

RECORD_NAME = "fetched.json"
VERSIONS_NAME = "versions.json"

Announce = Callable[[str], None]
"""Is told, in a line, what takes a while or is out of the ordinary."""
Builder = Callable[[Path, Announce], None]
"""Writes a data set's files into an empty directory."""


def publish(directory: Path, fetcher: str, build: Builder, *, announce: Announce) -> None:
    """Lets `build` fill an empty directory aside, records digests, and renames it to `directory`.

    Args:
        directory: reused where it stands with the recorded digests.

    Raises:
        UserError: the directory stands and is not what the fetcher left; it can't be written.
    """
    if directory.exists():
        _check(directory, fetcher)
        return
    announce(f"fetching {fetcher} into {directory}")
    with new_folder(directory) as folder:
        build(folder, announce)
        record = {"fetcher": fetcher, "sha256": {path.name: sha256_of(path) for path in sorted(folder.iterdir())}}
        write_json(folder / RECORD_NAME, record)


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Writes a TSV file."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{pair.source}\t{pair.target}\n" for pair in pairs)


def write_splits(directory: Path, splits: Mapping[str, Iterable[Pair]], versions: Mapping[str, str]) -> None:
    """Writes the TSV file of each split, and the packages that the data were built of: package -> version."""
    for split, pairs in splits.items():
        write_pairs(directory / f"{split}.tsv", pairs)
    write_json(directory / VERSIONS_NAME, dict(versions))


def _check(directory: Path, fetcher: str) -> None:
    remedy = f"remove {directory} to fetch it anew, or name another data.directory"
    try:
        record = json.loads((directory / RECORD_NAME).read_text(encoding="utf-8"))
        digests = dict(record["sha256"])
        maker = record["fetcher"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{directory} stands, without a readable {RECORD_NAME}: {remedy}") from None
    if maker != fetcher:
        raise UserError(f"{directory} was built by the fetcher {maker!r}, not {fetcher!r}: {remedy}")
    for name, digest in digests.items():
        if not (directory / name).is_file() or sha256_of(directory / name) != digest:
            raise UserError(f"{directory / name} is not as it was fetched: {remedy}")
