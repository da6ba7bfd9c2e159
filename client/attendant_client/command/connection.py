"""The client that the command's options ask for."""

from argparse import Namespace

from attendant_client.client import AttendantClient


def connect(options: Namespace) -> AttendantClient:
    return AttendantClient(
        options.target,
        timeout=options.timeout,
        tls=options.tls,
        root_certificates=options.root_certificates,
        token=options.token,
    )
