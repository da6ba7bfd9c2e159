"""`attendant generate`: texts or standard input to answers, in order."""

import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import cast

import grpc

from attendant_client.answers import Generation, Source
from attendant_client.bulk import Bulk
from attendant_client.client import AttendantClient
from attendant_client.command.ending import concerns_every_line, explain, status_of
from attendant_client.command.lines import read_lines
from attendant_client.command.local import LocalModel
from attendant_client.command.progress import progress
from attendant_client.command.questions import connect
from attendant_client.command.rendering import as_one_line, generation_as_json, generation_as_text
from attendant_client.errors import AttendantError, InvalidArgument
from attendant_client.options import RequestOptions, Sampling
from attendant_client.ordered import in_order

# To a blank line: None.
Answer = Generation | AttendantError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One source: a text of the command line or a line of standard input.

    Attributes:
        number: from 1.
        name: what a message calls it; empty where it is the only one.
        source: None where it is not UTF-8.
        is_blank: a blank line, which gets a blank answer.
        num_bytes: its length in the file.
    """

    number: int
    name: str = ""
    source: str | None
    is_blank: bool = False
    num_bytes: int = 0


async def run(options: Namespace) -> int:
    """The exit status: 0, or once all is done 2 where sources were wrong, 1 where the server failed at some."""
    bulk = options.texts == ["-"]
    items = _lines(options.skip) if bulk else _texts(options.texts)
    concurrency = 1 if options.stream else options.concurrency
    statuses = {0}
    async with connect(options) as client, client.bulk() if bulk else nullcontext(client) as asked:

        async def answer(item: Item) -> tuple[Item, Answer]:
            return item, await _answer(asked, item, options)

        with progress(enabled=bulk) as advance:
            async with aclosing(in_order(answer, items, concurrency=concurrency)) as outcomes:
                async for item, answered in outcomes:
                    ends = isinstance(answered, AttendantError) and concerns_every_line(answered)
                    if isinstance(answered, AttendantError):
                        statuses.add(status_of(answered))
                        print(f"attendant: {item.name}{explain(answered, options)}", file=sys.stderr)
                    if options.json:
                        print(generation_as_json(item.number, item.source, answered), flush=True)
                    # A blank line stands for an answer that is not there, so that the others keep their places.
                    elif isinstance(answered, Generation) or (item.name and not ends):
                        _print(item, answered, options)
                    for warning in answered.warnings if isinstance(answered, Generation) else ():
                        print(f"attendant: {item.name}{warning}", file=sys.stderr)
                    if ends:
                        break
                    advance(item.num_bytes)
    # A failed server weighs more than a wrong line.
    return 1 if 1 in statuses else max(statuses)


async def _answer(asked: AttendantClient | Bulk | LocalModel, item: Item, options: Namespace) -> Answer:
    if item.is_blank:
        return None
    if item.source is None:
        return InvalidArgument(grpc.StatusCode.INVALID_ARGUMENT, "is not UTF-8")
    source, given = _source(item.source, options), _asked(options)
    try:
        if options.stream:
            return await _streamed(cast(AttendantClient, asked), source, given, options)
        if isinstance(asked, AttendantClient):
            return await asked.generate(source, request_id=options.request_id, **given)
        return await asked.generate(source, **given)
    except AttendantError as error:
        return error


async def _streamed(client: AttendantClient, source: Source, given: RequestOptions, options: Namespace) -> Generation:
    """The answer, whose best text has been printed as it came."""
    stream, written = client.stream(source, request_id=options.request_id, **given), False
    try:
        async for delta in stream:
            print(as_one_line(delta.text), end="", flush=True)
            written = True
    finally:
        if written:
            print(flush=True)
    return stream.generation


def _print(item: Item, answer: Answer, options: Namespace) -> None:
    several = isinstance(answer, Generation) and len(answer.hypotheses) > 1
    # What has been streamed stands there already, but for the other hypotheses and the attention.
    if not options.stream or several or options.attention or options.links or not isinstance(answer, Generation):
        source = item.source if item.name and several else None
        print(generation_as_text(answer, options, source), flush=True)


def _source(text: str, options: Namespace) -> Source:
    return tuple(text.split()) if options.tokens else text


def _asked(options: Namespace) -> RequestOptions:
    """The options that were given; the others are the server's to choose."""
    values = vars(options)
    given = {name: values[name] for name in RequestOptions.__annotations__ if values.get(name) is not None}
    drawn = {name: values[name] for name in Sampling.__annotations__ if values[name] is not None}
    if drawn or options.sample:
        given["sampling"] = Sampling(**drawn)
    given |= {"attention": True} if options.links else {}
    return cast(RequestOptions, {**given, "token_log_probs": options.json})


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
            # Some editors write a byte order mark first.
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
