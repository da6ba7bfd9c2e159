"""How the client connects: credentials, retries, sizes."""

import json
from collections.abc import Sequence

import grpc

from attendant_client.version import VERSION

# Attention maps of long sources with many hypotheses pass gRPC's default of 4 MiB.
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

# gRPC's own retries (gRFC A6), within the call's deadline; the waits are drawn from around 0.1, 0.2, 0.4 and 0.8 s.
# A server that answers with `grpc-retry-pushback-ms` sets the wait itself, or forbids a retry. Every call of the API is
# without side effects, so trying twice is safe. A health check is answered as it is.
SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": "attendant.v1.Seq2Seq"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            },
        }
    ]
}


def open_channel(target: str, *, tls: bool, root_certificates: bytes | None) -> grpc.aio.Channel:
    """A channel that connects on its first call.

    Args:
        target: host:port, or any gRPC name, e.g. unix:///run/attendant.sock or dns:///attendant:50051.
        tls: encrypt, and check who the server is.
        root_certificates: PEM, instead of those that gRPC brings along.
    """
    options: Sequence[tuple[str, str | int]] = (
        ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        ("grpc.primary_user_agent", f"attendant-client/{VERSION}"),
    )
    if tls:
        credentials = grpc.ssl_channel_credentials(root_certificates)
        return grpc.aio.secure_channel(target, credentials, options=options)
    return grpc.aio.insecure_channel(target, options=options)
