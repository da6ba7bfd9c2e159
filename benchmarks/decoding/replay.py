"""The calls into the graphs alone: what is left of decoding when nothing is searched, scheduled or copied."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from attendant.runtime.onnx.session import Array, OnnxSession


@dataclass(slots=True)
class GraphCalls:
    """Calls of `OnnxSession.run`, in order.

    Attributes:
        seconds: spent in them.
        calls: what each was given, if they were to be kept.
    """

    seconds: float = 0.0
    calls: list[tuple[OnnxSession, Sequence[str], Mapping[str, Array]]] = field(default_factory=list)

    def replay(self) -> float:
        """Makes the same calls again, one after the other; the seconds that it took."""
        began = time.perf_counter()
        for session, outputs, inputs in self.calls:
            session.run(outputs, inputs)
        return time.perf_counter() - began


@contextmanager
def watched_graphs(*, keep: bool) -> Iterator[GraphCalls]:
    """Times every call into a graph, of every session.

    Args:
        keep: what they are given, to be replayed. Not copied: should one be written over later, a replay computes
            something else in the same time.
    """
    found = GraphCalls()
    run = OnnxSession.run

    def watched(session: OnnxSession, outputs: Sequence[str], inputs: Mapping[str, Array]) -> Any:
        began = time.perf_counter()
        results = run(session, outputs, inputs)
        found.seconds += time.perf_counter() - began
        if keep:
            found.calls.append((session, tuple(outputs), dict(inputs)))
        return results

    OnnxSession.run = watched  # type: ignore[assignment, method-assign]
    try:
        yield found
    finally:
        OnnxSession.run = run  # type: ignore[method-assign]
