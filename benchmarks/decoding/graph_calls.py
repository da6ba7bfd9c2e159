"""The calls into the graphs alone: what is left of decoding when nothing is searched, scheduled or copied."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attendant.runtime.onnx.buffers import Shape
from attendant.runtime.onnx.session import OnnxSession
from attendant.runtime.stepper import Array

Call = tuple[OnnxSession, Sequence[str], Mapping[str, Array]]
"""A session, the outputs that it was asked for, and its inputs."""


class GraphCalls:
    """Watches the sessions of a stepper, which opens them with `open`.

    Attributes:
        seconds: spent in their runs.
        kept: where set, each call is appended. Inputs are not copied: should one be written over later, a replay
            computes something else in the same time.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.kept: list[Call] | None = None

    def open(self, *arguments: Any, **options: Any) -> OnnxSession:
        """A session that is watched; takes what `OnnxSession` takes."""
        calls = self

        class Watched(OnnxSession):
            def run(
                self, outputs: Sequence[str] | Mapping[str, Shape], inputs: Mapping[str, Array], **how: Any
            ) -> list[Array]:
                began = time.perf_counter()
                results = super().run(outputs, inputs, **how)
                calls.seconds += time.perf_counter() - began
                if calls.kept is not None:
                    calls.kept.append((self, tuple(outputs), dict(inputs)))
                return results

        return Watched(*arguments, **options)


def replay(calls: Iterable[Call]) -> None:
    """Makes the same calls again, one after the other."""
    for session, outputs, inputs in calls:
        session.run(outputs, inputs)
