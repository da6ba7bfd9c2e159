"""The one name by which the server knows whoever calls, for limits and fair queueing."""

from contextvars import ContextVar
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address, IPv6Network
from typing import Any
from urllib.parse import unquote

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The client of the call that is being handled; set by `server/grpc/gatekeeper.py`."""

IPV6_PREFIX = 64
"""Whoever has one IPv6 address mostly has 2^64 of them."""


def address_of(peer: str) -> str:
    """The address of gRPC's name for the other end, without its port; of IPv6 the network of a single customer."""
    family, _, rest = peer.partition(":")
    return family if family == "unix" else _without_port(rest)


def name_in_certificate(auth_context: dict[str, Any]) -> str:
    """The common name of a client's certificate, or its first alternative name if it has none.

    Args:
        auth_context: gRPC's facts of a connection whose client has shown a certificate.
    """
    for kind in ("x509_common_name", "x509_subject_alternative_name"):
        for value in auth_context.get(kind, ()):
            if value:
                return str(value.decode(errors="backslashreplace"))
    return ""


def in_metadata(call: Any, key: str) -> str:
    """What a call's metadata, or headers, say under a key; empty where they say nothing."""
    for name, value in call.invocation_metadata():
        if name == key:
            return value if isinstance(value, str) else str(value.decode("latin-1"))
    return ""


@lru_cache(maxsize=4096)
def _without_port(host_and_port: str) -> str:
    host = unquote(host_and_port).rpartition(":")[0].strip("[]")
    try:
        address = IPv6Address(host)
    except AddressValueError:
        return host
    mapped: IPv4Address | None = address.ipv4_mapped
    return str(mapped or IPv6Network((int(address), IPV6_PREFIX), strict=False))
