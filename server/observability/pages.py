"""The registry as text, for everybody who asks at once, in a bounded share of the event loop's time."""

import asyncio
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

RENDERED_SHARE = 0.1
"""Of the time, at most: however many ask, and however often, nine tenths are left to calls."""

GZIP = 31
"""zlib's number for gzip's format with the largest window."""

OPEN_METRICS = "application/openmetrics-text"
OPEN_METRICS_END = b"# EOF\n"


@dataclass(frozen=True, slots=True)
class Form:
    """How a page is written: as Prometheus' text or as OpenMetrics, compressed or not."""

    content_type: str
    gzip: bool
    encode: Callable[[Sequence[Metric]], bytes] = field(compare=False, repr=False)

    @classmethod
    def asked_for(cls, accept: str, accept_encoding: str) -> "Form":
        """By a request's headers, of which nothing is repeated."""
        encode, content_type = choose_encoder(f"{OPEN_METRICS};version=1.0.0" if OPEN_METRICS in accept else "")
        encodings = {one.split(";")[0].strip().lower() for one in accept_encoding.split(",")}
        return cls(content_type, "gzip" in encodings, lambda families: encode(_Families(families)))

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": self.content_type} | ({"Content-Encoding": "gzip"} if self.gzip else {})


@dataclass(frozen=True, slots=True)
class _Families:
    """Some families of a registry, as the library's encoders take them."""

    families: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.families


class Pages:
    """Renders the registry: one page at a time, family by family, so that calls are answered in between.

    All who wait for a form get the same page. It is never older than their questions.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._awaited: dict[Form, asyncio.Task[bytes]] = {}
        self._turn = asyncio.Lock()
        self._not_before = 0.0

    async def page(self, form: Form) -> bytes:
        if form not in self._awaited:
            self._awaited[form] = asyncio.create_task(self._in_turn(form))
        # Shielded: one who goes away does not take the others' page along.
        return await asyncio.shield(self._awaited[form])

    async def _in_turn(self, form: Form) -> bytes:
        async with self._turn:
            await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
            del self._awaited[form]
            parts, seconds = [], 0.0
            pieces = self._pieces(form)
            while True:
                began = time.monotonic()
                piece = next(pieces, None)
                seconds += time.monotonic() - began
                if piece is None:
                    break
                parts.append(piece)
                await asyncio.sleep(0)
            self._not_before = time.monotonic() + seconds * (1 / RENDERED_SHARE - 1)
            return b"".join(parts)

    def _pieces(self, form: Form) -> Iterator[bytes]:
        """The page, in pieces of a family each."""
        compressor = zlib.compressobj(wbits=GZIP) if form.gzip else None
        for family in self._registry.collect():
            piece = form.encode([family]).removesuffix(OPEN_METRICS_END)
            yield compressor.compress(piece) if compressor else piece
        end = OPEN_METRICS_END if form.content_type.startswith(OPEN_METRICS) else b""
        yield compressor.compress(end) + compressor.flush() if compressor else end
