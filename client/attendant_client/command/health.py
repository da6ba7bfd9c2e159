"""`attendant health`: whether the server is serving."""

from argparse import Namespace

from attendant_client.answers import HealthStatus
from attendant_client.command.connection import connect


async def run(options: Namespace) -> int:
    """0 where it is serving, else 1."""
    async with connect(options) as client:
        status = await client.health(options.service)
    print(status)
    return 0 if status is HealthStatus.SERVING else 1
