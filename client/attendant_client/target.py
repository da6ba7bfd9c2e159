"""The address of a server: its host and port, or another gRPC name."""

import ipaddress
import re
from urllib.parse import unquote

from attendant_client.messages import shown

DEFAULT_PORT = 50051
MAX_PORT = 65535

GRPC_SCHEMES = ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds", "google-c2p")
"""The schemes of gRPC's own names."""

_HOST = re.compile(r"[^\s:/?#@,\[\]]+")
_DNS = re.compile(r"(dns:(?://[^/]*/)?)(.+)", re.DOTALL)


def with_port(target: str) -> str:
    """Returns a target as gRPC takes it, with the server's own port if it has none.

    gRPC would take port 443 for a host alone, and look up a URL or a lone port as a host.

    Raises:
        TypeError, ValueError: it is not a target; the message has the remedy.
    """
    if not isinstance(target, str):
        raise TypeError(f"target={shown(target)}: must be a text, such as localhost:{DEFAULT_PORT}")
    stripped = target.strip()
    if not stripped:
        raise ValueError("target: is empty; give the server as HOST:PORT")
    try:
        return _with_port(stripped)
    except ValueError as error:
        raise ValueError(f"target={shown(target)}: {error}") from None


def _with_port(target: str) -> str:
    if "://" in target and not target.startswith(tuple(f"{scheme}:" for scheme in GRPC_SCHEMES)):
        raise ValueError("is a URL; give the server as HOST:PORT, with --tls or tls=True for an encrypted one")
    scheme, _, rest = target.partition(":")
    if scheme in ("ipv4", "ipv6"):
        return f"{scheme}:{','.join(_address(address) for address in unquote(rest).split(','))}"
    if dns := _DNS.fullmatch(target):
        return dns[1] + _address(dns[2])
    if scheme in GRPC_SCHEMES and target != scheme:
        if not rest.strip("/"):
            raise ValueError(f"names nothing after {scheme}:, as unix:///run/attendant.sock does")
        return target
    if "/" in target:
        raise ValueError("has a path; give the server as HOST:PORT")
    return _address(target)


def _address(text: str) -> str:
    """Returns a host and its port, or a port of this machine, as HOST:PORT. Raises ValueError if it is neither."""
    if _is_ipv6(text):
        return f"[{text}]:{DEFAULT_PORT}"
    if text.startswith("["):
        host, bracket, port = text.partition("]")
        if not (bracket and _is_ipv6(host[1:]) and port[:1] in ("", ":")):
            raise ValueError("is not an IPv6 address and a port, such as [::1]:50051")
        return f"{host}]:{_port(port[1:]) if port else DEFAULT_PORT}"
    if "," in text:
        raise ValueError("has several servers; list their addresses as ipv4:10.0.0.1:50051,10.0.0.2:50051")
    if text.count(":") > 1:
        raise ValueError("has several colons; an IPv6 address with a port is written [::1]:50051")
    host, colon, port = text.partition(":")
    if not colon and host.isdecimal():
        return f"localhost:{_port(host)}"
    if host and not _HOST.fullmatch(host):
        raise ValueError("is not a host and port; give the server as HOST:PORT")
    return f"{host or 'localhost'}:{_port(port) if colon else DEFAULT_PORT}"


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_PORT):
        raise ValueError(
            f"port {shown(text)} must be a number from 1 to {MAX_PORT}; without its colon it is {DEFAULT_PORT}"
        )
    return int(text)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def is_this_machine(target: str) -> bool:
    """Returns whether data sent to a target certainly stays on this machine, by its name: nothing is looked up."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    addresses = re.sub(r"^(dns:(//[^/]*/)?|ipv[46]:)", "", unquote(target)).split(",")
    return all(map(_is_loopback, addresses))


def _is_loopback(address: str) -> bool:
    has_port = address.count(":") == 1 or "]" in address
    host = (re.sub(r":\d*$", "", address) if has_port else address).strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
