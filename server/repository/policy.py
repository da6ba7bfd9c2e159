"""NAME/serving.toml: which versions of a model are served, and for what.

    stable = "latest"       # or a version; requests that name no version
    canary = "8"            # a share of these
    canary_percent = 5
    shadow = "9"            # is asked what the stable version has answered; the answers are only compared
    shadow_percent = 100
    named = ["3"]           # for requests that name it

Without the file the latest version is served.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError, model_validator

from attendant.runtime.bundle.manifest import Section
from attendant.runtime.bundle.reading import read_file
from attendant.runtime.errors import UserError, one_line

LATEST: Final = "latest"
MAX_BYTES: Final = 65_536


class Policy(Section):
    """What the file says."""

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
        """The versions that may be the stable one, the best first.

        Args:
            labels: of the versions that there are, the earliest first.
        """
        if self.stable != LATEST:
            return [self.stable]
        return [label for label in reversed(labels) if label not in (self.canary, self.shadow)]


def read_policy(path: Path) -> Policy:
    """Reads the file; where there is none, the policy is the latest version.

    Raises:
        UserError: it can't be read, or says what it must not.
    """
    try:
        # A link may lead there, e.g. in a volume of Kubernetes; a FIFO would be waited for.
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
