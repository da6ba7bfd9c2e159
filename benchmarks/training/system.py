"""What is measured: a toolkit with an architecture and a precision."""

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.training.data import Corpus
from benchmarks.training.workload import Workload

MANY_STEPS = 1_000_000
"""No training comes to its end: it is stopped when it was watched long enough."""


@dataclass(frozen=True, kw_only=True)
class System(ABC):
    """A toolkit's own training command, set to the workload.

    Attributes:
        input_feeding: whether a decoder step needs the attention of the one before (Luong et al. 2015, section 3.3).
        precision: "fp32", or "bf16": automatic mixed precision.
        toolkit: the toolkit's name.
        differences: how its model and its work differ from the others'.
        step_line: what a line of progress looks like, the step in its group; one comes every `window_steps`.
        parameters_line: where it says how many parameters there are.
    """

    input_feeding: bool
    precision: str = "fp32"

    toolkit: ClassVar[str]
    differences: ClassVar[str]
    step_line: ClassVar[re.Pattern[str]]
    parameters_line: ClassVar[re.Pattern[str]]

    @property
    def name(self) -> str:
        return f"{self.toolkit} {self.precision}{'' if self.input_feeding else ', no input feeding'}"

    @property
    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def command(self, workload: Workload, corpus: Corpus, folder: Path, num_threads: int) -> list[str]:
        """Writes the toolkit's configuration into the folder; what to run, in the project's directory."""

    def progress(self, folder: Path, log: Path) -> Path:
        """The file that gets the lines of progress: the command's output, unless the toolkit has one of its own."""
        del folder
        return log


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    """The file that a peer's command reads: YAML, as JSON is."""
    path = folder / "config.yaml"
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")
    return path
