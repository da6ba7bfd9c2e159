"""What a server and a worker process say to each other before the first request."""

from dataclasses import dataclass

from attendant.server.config import ServerConfig


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker is to serve: the one bundle of this configuration, on so many threads."""

    config: ServerConfig
    threads: int


class Ready:
    """The worker's bundle gives on this host what it must."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why it can't be served: a UserError's words."""

    message: str
