"""Who a caller is, for sharing the server fairly."""

from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any
from urllib.parse import unquote

IPV6_NETWORK_BITS = 64
"""What one subscriber of an IPv6 network has: its addresses are one client."""

MAX_PEERS_KEPT = 4096


def client_of(context: Any) -> str:
    """The client behind an RPC: the address that it comes from."""
    return _address_of(context.peer())


@lru_cache(maxsize=MAX_PEERS_KEPT)
def _address_of(peer: str) -> str:
    """An address, without its port, of gRPC's "ipv4:127.0.0.1:50112", "ipv6:%5B::1%5D:50112" or "unix:"."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    host = unquote(rest).rpartition(":")[0].strip("[]")
    if kind == "ipv4":
        return host
    address = IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = int(address) >> (128 - IPV6_NETWORK_BITS) << (128 - IPV6_NETWORK_BITS)
    return f"{IPv6Address(network)}/{IPV6_NETWORK_BITS}"
