"""What stands in a repository of models: REPOSITORY/NAME/VERSION/, a bundle each, and NAME/serving.toml."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attendant.runtime.bundle.manifest import MANIFEST_NAME, NAME_PATTERN
from attendant.runtime.errors import UserError
from attendant.server.access.reloading import State, state_of

POLICY_NAME: Final = "serving.toml"
NAME: Final = re.compile(NAME_PATTERN)
LABEL: Final = re.compile(r"(?=.{1,64}\Z)\d+([._-]\d+)*", re.ASCII)
"""Numbers, so that it is plain which is the latest: 7, 1.10, 2026-11-22. Folders of other names are left alone."""

MAX_FILES = 64
"""Of a version that are looked at: a bundle has fewer, and what has more is refused when it is opened."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's folder at one moment.

    Attributes:
        versions: label -> the state of its files, by which a change is seen; the earliest version first.
        policy: the state of its serving.toml; empty where there is none.
    """

    path: Path
    versions: Mapping[str, State]
    policy: State


def is_repository(path: Path) -> bool:
    """Whether a folder that the server was given holds models, and is not one itself."""
    if not path.is_dir() or (path / MANIFEST_NAME).exists():
        return False
    return any(any(_folders(model, LABEL)) for model in _folders(path, NAME))


def look_into(repository: Path) -> dict[str, ModelFolder]:
    """Its models by name.

    Raises:
        UserError: it can't be read.
    """
    try:
        return {folder.name: _model_folder(folder) for folder in sorted(_folders(repository, NAME))}
    except OSError as error:
        raise UserError(f"the repository {repository} can't be read: {error.strerror or error}") from None


def _model_folder(path: Path) -> ModelFolder:
    versions = {folder.name: _state_of_files(folder) for folder in sorted(_folders(path, LABEL), key=_order)}
    return ModelFolder(path, versions, (state_of(path / POLICY_NAME),))


def _folders(path: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    return (one for one in path.iterdir() if pattern.fullmatch(one.name) and one.is_dir())


def _order(folder: Path) -> tuple[list[int], str]:
    return [int(number) for number in re.split("[._-]", folder.name)], folder.name


def _state_of_files(folder: Path) -> State:
    """Of a bundle's files and of the folders that they are in."""
    found = [folder]
    for inner in found:
        if inner.is_dir() and len(found) < MAX_FILES:
            found += sorted(inner.iterdir())
    return tuple(map(state_of, found[:MAX_FILES]))
