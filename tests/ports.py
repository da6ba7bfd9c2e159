"""Ports for programs that can't choose one themselves."""

import random
import socket

PORTS = range(12_000, 32_000)
"""Ports below the range that systems assign automatically, so a free port stays free when other tests open theirs."""


def free_ports(number: int) -> list[int]:
    """Returns different ports that are free."""
    return [port for port in random.sample(PORTS, 10 * number) if _is_free(port)][:number]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
