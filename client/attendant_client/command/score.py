"""`attendant score`: how probable the model finds a given target."""

from argparse import Namespace

from attendant_client.command.connection import connect
from attendant_client.command.rendering import score_as_json, score_as_text


async def run(options: Namespace) -> int:
    source, target = options.source, options.target_text
    async with connect(options) as client:
        score = await client.score(
            source.split() if options.tokens else source,
            target.split() if options.tokens else target,
            include_eos=not options.no_eos,
            attention=options.attention,
            model=options.model,
        )
    print(score_as_json(score) if options.json else score_as_text(score, options))
    return 0
