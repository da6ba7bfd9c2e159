"""The calls into the graphs alone: what is left of decoding when nothing is searched, scheduled or copied."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attendant.runtime.onnx.bound_runs import Shape
from attendant.runtime.onnx.session import Array, OnnxSession

Call = tuple[OnnxSession, Sequence[str], Mapping[str, Array]]
"""A session, the outputs that it was asked for, and its inputs."""


@dataclass(slots=True)
class GraphCalls:
    """Watches the sessions of a stepper, which opens them with `open`.

    Attributes:
        seconds: spent in their runs.
        kept: where set, each call is appended. Inputs are not copied: should one be written over later, a replay
            computes something else in the same time.
    """

    seconds: float = 0.0
    kept: list[Call] | None = None

    def open(self, *arguments: Any, **options: Any) -> OnnxSession:
        """A session that is watched; takes what `OnnxSession` takes."""
        return _Watched(self, *arguments, **options)


class _Watched(OnnxSession):
    def __init__(self, calls: GraphCalls, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._calls = calls

    def run(
        self, outputs: Sequence[str] | Mapping[str, Shape], inputs: Mapping[str, Array], *, in_place: bool = False
    ) -> list[Array]:
        began = time.perf_counter()
        results = super().run(outputs, inputs, in_place=in_place)
        self._calls.seconds += time.perf_counter() - began
        if self._calls.kept is not None:
            self._calls.kept.append((self, tuple(outputs), dict(inputs)))
        return results


def replay(calls: Iterable[Call]) -> None:
    """Makes the same calls again, one after the other."""
    for session, outputs, inputs in calls:
        session.run(outputs, inputs)
