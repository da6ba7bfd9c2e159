"""A repository of models: REPOSITORY/NAME/VERSION/, a bundle each, and NAME/serving.toml, the policy.

    stable = "latest"       # or a version; requests that name no version
    canary = "8"            # a share of these
    canary_percent = 5
    shadow = "9"            # is asked what the stable version has answered; the answers are only compared
    shadow_percent = 100
    named = ["3"]           # for requests that name it

Without the file the latest version is served.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError, model_validator

from attendant.runtime.bundle.manifest import MANIFEST_NAME, NAME_PATTERN, Section
from attendant.runtime.bundle.reading import read_file
from attendant.runtime.errors import UserError, one_line
from attendant.server.credentials import State, state_of

POLICY_NAME: Final = "serving.toml"
NAME: Final = re.compile(NAME_PATTERN)
LABEL: Final = re.compile(r"(?=.{1,64}\Z)\d+([._-]\d+)*", re.ASCII)
"""Numbers, so that the latest is known: 7, 1.10, 2026-11-22. Folders with other names are ignored."""

MAX_FILES = 64
"""Files of a version that are checked for changes: a bundle has fewer, and is refused if it has more."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's folder at one moment.

    Attributes:
        versions: label -> the state of its files; the earliest version first.
        policy: the state of its serving.toml; empty if there is none.
    """

    path: Path
    versions: Mapping[str, State]
    policy: State


def is_repository(path: Path) -> bool:
    """Returns whether a folder contains models, and is not a bundle itself."""
    if not path.is_dir() or (path / MANIFEST_NAME).exists():
        return False
    return any(any(_folders(model, LABEL)) for model in _folders(path, NAME))


def look_into(repository: Path) -> dict[str, ModelFolder]:
    """Returns the models of a repository by name.

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
    return (inner for inner in path.iterdir() if pattern.fullmatch(inner.name) and inner.is_dir())


def _order(folder: Path) -> tuple[list[int], str]:
    return [int(number) for number in re.split("[._-]", folder.name)], folder.name


def _state_of_files(folder: Path) -> State:
    """Returns the state of a bundle's files and of the folders that contain them."""
    paths = [folder]
    for path in paths:
        if path.is_dir() and len(paths) < MAX_FILES:
            paths += sorted(path.iterdir())
    return tuple(map(state_of, paths[:MAX_FILES]))


LATEST: Final = "latest"
MAX_BYTES: Final = 65_536


class Policy(Section):
    """The content of a serving.toml."""

    stable: str = LATEST
    canary: str | None = None
    canary_percent: float = Field(0.0, ge=0, le=100)
    shadow: str | None = None
    shadow_percent: float = Field(100.0, ge=0, le=100)
    named: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_a_share(self) -> "Policy":
        if self.canary is not None and "canary_percent" not in self.model_fields_set:
            raise ValueError("canary_percent is unset, must be 0 to 100 where there is a canary")
        return self

    def stable_choices(self, labels: Sequence[str]) -> list[str]:
        """Returns the versions that may be the stable one, the best first.

        Args:
            labels: of the existing versions, the earliest first.
        """
        if self.stable != LATEST:
            return [self.stable]
        return [label for label in reversed(labels) if label not in (self.canary, self.shadow)]


def read_policy(path: Path) -> Policy:
    """Reads a serving.toml; without the file, the policy is the latest version.

    Raises:
        UserError: it can't be read, or has invalid content.
    """
    try:
        # Links are followed, e.g. in a volume of Kubernetes. `read_file` refuses a FIFO, which would block.
        text = read_file(path.resolve(), MAX_BYTES).decode()
        return Policy.model_validate(tomllib.loads(text))
    except FileNotFoundError:
        return Policy()
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {f'{where}: ' if where else ''}{one_line(first['msg'])}") from None
    except ValueError as error:
        raise UserError(f"{path}: {one_line(str(error))}") from None
