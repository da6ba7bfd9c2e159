"""Runs `attendant generate`, `score`, `models` and `health`, with a server, or with a bundle in this process."""

import asyncio
import os
import stat
import sys
import threading
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Self, cast

import grpc
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from attendant_client.bulk import Bulk, in_order
from attendant_client.client import AttendantClient
from attendant_client.command import rendering
from attendant_client.errors import AttendantError, InvalidArgument
from attendant_client.types import Generation, HealthStatus, RequestOptions, Sampling, Score, Source
from attendant_client.version import VERSION

STANDARD_INPUT = 0

# Lines that may be read ahead.
READ_AHEAD = 256


async def read_lines() -> AsyncIterator[bytes]:
    """Yields the lines of standard input, each as soon as it arrives, with its line end.

    A thread reads, because reading can't be cancelled. It is a daemon, so that Ctrl-C at a terminal does not wait for
    the next line, and has its own file object, so that no lock blocks the interpreter's end.
    """
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(READ_AHEAD)
    stopped = threading.Event()

    def read() -> None:
        try:
            with open(STANDARD_INPUT, "rb", closefd=False) as stream:
                while not stopped.is_set():
                    line = stream.readline()
                    loop.call_soon_threadsafe(lines.put_nowait, line)
                    if not line:
                        return
                    room.acquire()
        except OSError as error:
            loop.call_soon_threadsafe(lines.put_nowait, error)
        except RuntimeError:
            return  # the loop has been closed

    threading.Thread(target=read, name="standard-input", daemon=True).start()
    try:
        while line := await lines.get():
            if isinstance(line, OSError):
                raise line
            yield line
            room.release()
    finally:
        stopped.set()
        room.release()


@contextmanager
def progress(*, enabled: bool) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar; yields a function that takes the size in bytes of each line that is done.

    It is shown only if standard error is a terminal, and standard input and output are not.
    """
    if not enabled or not sys.stderr.isatty() or sys.stdout.isatty() or os.isatty(STANDARD_INPUT):
        yield lambda num_bytes: None
        return
    facts = os.fstat(STANDARD_INPUT)
    # Of a pipe, the length is unknown.
    num_left = facts.st_size - os.lseek(STANDARD_INPUT, 0, os.SEEK_CUR) if stat.S_ISREG(facts.st_mode) else None
    bar = Progress(
        TextColumn("{task.fields[num_lines]} lines"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]:.0f} lines/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        redirect_stdout=False,
    )
    with bar:
        task = bar.add_task("", total=num_left, num_lines=0, speed=0.0)
        num_lines = 0

        def advance(num_bytes: int) -> None:
            nonlocal num_lines
            num_lines += 1
            elapsed = bar.tasks[0].elapsed or 0.0
            bar.update(task, advance=num_bytes, num_lines=num_lines, speed=num_lines / elapsed if elapsed else 0.0)

        yield advance


class LocalModel:
    """A bundle in this process with the methods of a client that the command needs, over `attendant.load`.

    Requests that arrive during a decoding are decoded together after it. Loading and decoding have daemon threads, so
    that Ctrl-C does not wait for their end.
    """

    def __init__(self, path: Path, precision: str | None = None) -> None:
        """Stores where the bundle is. If `precision` is None, it is the bundle's own choice."""
        self._path = path
        self._precision = precision
        self._waiting: list[tuple[Source, asyncio.Future[Generation]]] = []
        self._decoding: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Opens the bundle. Raises InvalidArgument if that is not possible."""
        try:
            library = import_module("attendant.server.library")
        except ModuleNotFoundError as missing:
            raise _refusal(remedy(missing, "cpu")) from None
        self._on_a_thread = import_module("attendant.server.engine.loading").in_daemon_thread
        try:
            self._model = await self._on_a_thread(partial(library.load, self._path, precision=self._precision))
        except library.UserError as error:
            raise _refusal(str(error)) from None
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._decoding is not None:
            self._decoding.cancel()

    def bulk(self) -> Self:
        """Returns itself: all requests are decoded together."""
        return self

    async def generate(self, source: Source, *, model: str, version: str, **options: Any) -> Generation:
        """Decodes as a client does. All calls have the same options, and there is one model."""
        answered: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting.append((source, answered))
        if self._decoding is None or self._decoding.done():
            self._decoding = asyncio.create_task(self._decode(options))
        return await answered

    async def score(
        self, source: Source, target: Source, *, model: str, version: str, request_id: str, **how: Any
    ) -> Score:
        """Scores as a client does; the id is not used."""
        # A list would be several sources.
        single_source = source if isinstance(source, str) else tuple(source)
        score: Score = await self._on_a_thread(partial(self._model.score, single_source, target, **how))
        return score

    async def _decode(self, options: dict[str, Any]) -> None:
        while self._waiting:
            requests, self._waiting = self._waiting, []
            sources = [source for source, _ in requests]
            try:
                decode = partial(self._model.generate, sources, return_errors=True, **options)
                results = await self._on_a_thread(decode)
            except Exception as error:
                results = [error] * len(requests)
            for (_, answered), result in zip(requests, results, strict=True):
                if answered.done():  # its caller has left
                    continue
                if isinstance(result, Exception):
                    answered.set_exception(result)
                else:
                    answered.set_result(result)


def remedy(missing: ModuleNotFoundError, extras: str) -> str:
    """Returns a message with the missing package and the command that installs it.

    An installed distribution's further extras come from the index alone; the distribution itself is on none.
    """
    if (missing.name or "").partition(".")[0] == "attendant":
        wheel = f"./attendant_seq2seq-{VERSION}-py3-none-any.whl"
        return (
            f"the distribution attendant-seq2seq is not installed: pip install '{wheel}[{extras}]' (made by `make "
            f"dist`), or in a checkout '.[{extras}]'"
        )
    return f"{missing.name} is not installed: pip install 'attendant-seq2seq[{extras}]'"


def _refusal(why: str) -> InvalidArgument:
    return InvalidArgument(grpc.StatusCode.INVALID_ARGUMENT, f"--bundle: {why}")


def connect(options: Namespace) -> AttendantClient | LocalModel:
    """Returns a client of the server, or the bundle that is used instead."""
    return _client(options) if options.bundle is None else LocalModel(options.bundle, options.precision)


def _client(options: Namespace) -> AttendantClient:
    return AttendantClient(
        options.target,
        timeout=options.timeout,
        tls=options.tls,
        root_certificates=options.root_certificates,
        client_certificate=options.client_certificate,
        client_key=options.client_key,
        server_name=options.server_name,
        token=options.token,
    )


async def score(options: Namespace) -> int:
    """Prints the probability of a target."""
    source, target = options.source, options.target_text
    async with connect(options) as client:
        answer = await client.score(
            source.split() if options.tokens else source,
            target.split() if options.tokens else target,
            include_eos=not options.no_eos,
            attention=options.attention,
            model=options.model,
            version=options.version,
            request_id=options.request_id,
        )
    print(rendering.score_as_json(answer) if options.json else rendering.score_as_text(answer, options))
    for warning in answer.warnings:
        print(f"attendant: {warning}", file=sys.stderr)
    return 0


async def models(options: Namespace) -> int:
    async with _client(options) as client:
        served = await client.models() if options.name is None else (await client.model(options.name),)
    for model in served:
        print(rendering.model_as_json(model) if options.json else rendering.model_as_text(model))
    return 0


async def health(options: Namespace) -> int:
    """Prints the health of a server; returns 0 if it is serving, else 1."""
    async with _client(options) as client:
        status = await client.health(options.service)
    print(status)
    return 0 if status is HealthStatus.SERVING else 1


# None for a blank line.
Answer = Generation | AttendantError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One source: a text of the command line or a line of standard input.

    Attributes:
        number: from 1.
        name: its name in messages; empty if it is the only one.
        source: None if it is not UTF-8.
        is_blank: a blank line, which gets a blank answer.
        num_bytes: its length in the file.
    """

    number: int
    name: str = ""
    source: str | None
    is_blank: bool = False
    num_bytes: int = 0


async def generate(options: Namespace) -> int:
    """Returns the exit status: 0, or after all sources 2 if some were wrong, 1 if the server failed for some."""
    bulk = options.texts == ["-"]
    items = _lines(options.skip) if bulk else _texts(options.texts)
    concurrency = 1 if options.stream else options.concurrency
    statuses = {0}
    async with connect(options) as client, client.bulk() if bulk else nullcontext(client) as decoder:

        async def answer(item: Item) -> tuple[Item, Answer]:
            return item, await _answer(decoder, item, options)

        with progress(enabled=bulk) as advance:
            async with aclosing(in_order(answer, items, concurrency=concurrency)) as outcomes:
                async for item, answered in outcomes:
                    ends = isinstance(answered, AttendantError) and rendering.concerns_every_line(answered)
                    if isinstance(answered, AttendantError):
                        statuses.add(rendering.status_of(answered))
                        print(f"attendant: {item.name}{rendering.explain(answered, options)}", file=sys.stderr)
                    if options.json:
                        print(rendering.generation_as_json(item.number, item.source, answered), flush=True)
                    # A blank line replaces a missing answer, so that lines of input and output correspond.
                    elif isinstance(answered, Generation) or (item.name and not ends):
                        _print(item, answered, options)
                    for warning in answered.warnings if isinstance(answered, Generation) else ():
                        print(f"attendant: {item.name}{warning}", file=sys.stderr)
                    if ends:
                        break
                    advance(item.num_bytes)
    # A failed server weighs more than a wrong line.
    return 1 if 1 in statuses else max(statuses)


async def _answer(decoder: AttendantClient | Bulk | LocalModel, item: Item, options: Namespace) -> Answer:
    if item.is_blank:
        return None
    if item.source is None:
        return InvalidArgument(grpc.StatusCode.INVALID_ARGUMENT, "is not UTF-8")
    source: Source = tuple(item.source.split()) if options.tokens else item.source
    own_options = _request_options(options)
    try:
        if options.stream:
            keeps_lines = rendering.has_lines(item.source)
            return await _streamed(cast(AttendantClient, decoder), source, own_options, options, keeps_lines)
        if isinstance(decoder, AttendantClient):
            return await decoder.generate(source, request_id=options.request_id, **own_options)
        return await decoder.generate(source, **own_options)
    except AttendantError as error:
        return error


async def _streamed(
    client: AttendantClient, source: Source, own_options: RequestOptions, options: Namespace, keeps_lines: bool
) -> Generation:
    """Prints the best text as it arrives; returns the answer."""
    stream, written = client.stream(source, request_id=options.request_id, **own_options), False
    try:
        async for delta in stream:
            print(delta.text if keeps_lines else rendering.as_one_line(delta.text), end="", flush=True)
            written = True
    finally:
        if written:
            print(flush=True)
    if not written:  # an empty answer is a line, too
        print(flush=True)
    return stream.generation


def _print(item: Item, answer: Answer, options: Namespace) -> None:
    several = isinstance(answer, Generation) and len(answer.hypotheses) > 1
    # The streamed text has been printed; the other hypotheses and the drawings have not.
    draws = options.attention or options.links or options.trace
    if not options.stream or several or draws or not isinstance(answer, Generation):
        source = item.source if item.name and several else None
        keeps_lines = not several and rendering.has_lines(item.source or "")
        print(rendering.generation_as_text(answer, options, source, keeps_lines=keeps_lines), flush=True)


def _request_options(options: Namespace) -> RequestOptions:
    """Returns the options on the command line; the server chooses the others."""
    values = vars(options)
    request_options = {name: values[name] for name in RequestOptions.__annotations__ if values.get(name) is not None}
    drawn = {name: values[name] for name in Sampling.__annotations__ if values[name] is not None}
    if drawn or options.sample:
        request_options["sampling"] = Sampling(**drawn)
    request_options |= {"attention": True} if options.links else {}
    return cast(RequestOptions, {**request_options, "token_log_probs": options.json})


async def _texts(texts: list[str]) -> AsyncIterator[Item]:
    for number, text in enumerate(texts, start=1):
        yield Item(number=number, name=f"text {number}: " if len(texts) > 1 else "", source=text)


async def _lines(num_skipped: int) -> AsyncIterator[Item]:
    number = 0
    async for line in read_lines():
        number += 1
        if number <= num_skipped:
            continue
        try:
            # Some editors begin files with a byte order mark.
            source = line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            source = None
        yield Item(
            number=number,
            name=f"line {number}: ",
            source=source,
            is_blank=source is not None and not source.strip(),
            num_bytes=len(line),
        )
