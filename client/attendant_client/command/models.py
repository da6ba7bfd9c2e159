"""`attendant models`: what is served."""

from argparse import Namespace

from attendant_client.command.connection import connect
from attendant_client.command.rendering import model_as_json, model_as_text


async def run(options: Namespace) -> int:
    async with connect(options) as client:
        models = await client.models() if options.name is None else (await client.model(options.name),)
    for model in models:
        print(model_as_json(model) if options.json else model_as_text(model))
    return 0
