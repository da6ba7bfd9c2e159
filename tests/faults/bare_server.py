"""`python -m server` without what guards its front by default: gRPC reads the messages, and nobody asks who calls."""

from typing import Any

import grpc

from attendant.runtime.command import exit_command
from attendant.server import app
from attendant.server.__main__ import main
from attendant.server.grpc import port as listening
from attendant.server.grpc.gatekeeper import Gatekeeper
from attendant.server.grpc.incoming import Incoming

KEPT = {"grpc.so_reuseport", "grpc.max_receive_message_length", "grpc.max_send_message_length"}


class Absent(grpc.aio.ServerInterceptor):
    """Leaves every call as it comes."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        return await continuation(handler_call_details)


class NoBounds(Absent, Incoming):
    """gRPC reads the requests."""


class NoGatekeeper(Absent, Gatekeeper):
    """Everybody is let in."""


if __name__ == "__main__":
    vars(app).update(Incoming=NoBounds, Gatekeeper=NoGatekeeper)
    options = tuple(option for option in listening.OPTIONS if option[0] in KEPT)
    vars(listening).update(OPTIONS=options)
    exit_command("server", main)
