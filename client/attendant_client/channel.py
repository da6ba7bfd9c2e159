"""How the client connects: credentials, retries, sizes."""

import json
from collections.abc import Sequence

import grpc

from attendant_client.target import is_this_machine, with_port
from attendant_client.version import VERSION

# Attention maps of long sources with many hypotheses pass gRPC's default of 4 MiB.
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

KEEPALIVE_MS = 20_000

# gRPC's own retries (gRFC A6), within the call's deadline; the waits are drawn from around 0.1, 0.2, 0.4 and 0.8 s.
# A server that answers with `grpc-retry-pushback-ms` sets the wait itself, or forbids a retry. Every call of the API is
# without side effects, so trying twice is safe. A health check is answered as it is.
# Where a name stands for several servers, calls take turns among those that can be reached.
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
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
    ],
}


def open_channel(
    target: str,
    *,
    tls: bool | None = None,
    root_certificates: bytes | None = None,
    client_certificate: bytes | None = None,
    client_key: bytes | None = None,
    server_name: str = "",
) -> grpc.aio.Channel:
    """A channel that connects on its first call.

    Args:
        target: host:port, or any gRPC name, e.g. unix:///run/attendant.sock, dns:///attendant:50051, or
            ipv4:10.0.0.1:50051,10.0.0.2:50051, two servers that take turns. A name or an address without a port has the
            server's own, 50051.
        tls: encrypt, and check who the server is. None: unless the target is this machine, or certificates are given.
        root_certificates: PEM, instead of those that gRPC brings along.
        client_certificate, client_key: PEM, for a server that asks for them.
        server_name: whose certificate the server has; empty: the target's.

    Raises:
        TypeError, ValueError: a target that is none; arguments that exclude or need each other.
    """
    if (client_certificate is None) != (client_key is None):
        raise ValueError("client_certificate and client_key need each other; one of them is missing")
    needs_tls = bool(root_certificates or client_certificate or server_name)
    if tls is False and needs_tls:
        raise ValueError("tls=False excludes certificates and server_name, which are for TLS")
    options: Sequence[tuple[str, str | int]] = (
        ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        # A server that is gone without a word is noticed while calls wait for it; ours takes a ping in ten seconds.
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        # Not keepalive_timeout_ms, which closes nothing in grpcio 1.85.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_MS),
        ("grpc.primary_user_agent", f"attendant-client/{VERSION}"),
    )
    target = with_port(target)
    if is_this_machine(target):
        # A proxy is on another machine, for which this one's loopback is its own.
        options = (*options, ("grpc.enable_http_proxy", 0))
    if needs_tls or (not is_this_machine(target) if tls is None else tls):
        credentials = grpc.ssl_channel_credentials(root_certificates, client_key, client_certificate)
        if server_name:
            options = (*options, ("grpc.ssl_target_name_override", server_name))
        return grpc.aio.secure_channel(target, credentials, options=options)
    return grpc.aio.insecure_channel(target, options=options)
