"""`attendant score`, `attendant models` and `attendant health`: one question each, and its answer."""

import sys
from argparse import Namespace

from attendant_client.answers import HealthStatus
from attendant_client.client import AttendantClient
from attendant_client.command.local import LocalModel
from attendant_client.command.rendering import model_as_json, model_as_text, score_as_json, score_as_text


def connect(options: Namespace) -> AttendantClient | LocalModel:
    """Whoever the command's options ask: a server, or a bundle in its place. Raises InvalidArgument."""
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
    """How probable the model finds a given target."""
    source, target = options.source, options.target_text
    async with connect(options) as client:
        found = await client.score(
            source.split() if options.tokens else source,
            target.split() if options.tokens else target,
            include_eos=not options.no_eos,
            attention=options.attention,
            model=options.model,
            version=options.version,
            request_id=options.request_id,
        )
    print(score_as_json(found) if options.json else score_as_text(found, options))
    for warning in found.warnings:
        print(f"attendant: {warning}", file=sys.stderr)
    return 0


async def models(options: Namespace) -> int:
    """What is served."""
    async with _client(options) as client:
        found = await client.models() if options.name is None else (await client.model(options.name),)
    for model in found:
        print(model_as_json(model) if options.json else model_as_text(model))
    return 0


async def health(options: Namespace) -> int:
    """Whether the server is serving: 0 where it is, else 1."""
    async with _client(options) as client:
        status = await client.health(options.service)
    print(status)
    return 0 if status is HealthStatus.SERVING else 1
