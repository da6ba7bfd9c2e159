"""Bearer tokens: which client a call belongs to. The file need hold no secret, only the tokens' digests.

    # one token per line: the client's name, then the SHA-256 of its token, or the token itself
    search  sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    mail    yE3f...

    batch   sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752 expires=2027-01-31

A client may have several lines, e.g. while its token is being replaced. Facts may follow a token: `expires`, a date or
a time (UTC if it names no zone); `requests_per_second` and `bytes_per_second`, its client's own limits.
"""

import hashlib
import math
import re
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from hmac import compare_digest
from pathlib import Path
from typing import NamedTuple

from attendant.runtime.errors import UserError
from attendant.server.access.rates import Limits
from attendant.server.access.reloading import read_bytes
from attendant.server.errors import Unauthenticated

OPTION, ADMIN_OPTION = "--tokens", "--admin-tokens"
DIGEST_PREFIX = "sha256:"
MIN_TOKEN_CHARACTERS = 16
NAME = re.compile(r"[A-Za-z0-9._@/-]{1,64}")
DIGEST = re.compile(r"[0-9a-fA-F]{64}")
TOKEN = re.compile(r"[!-~]+")

# A digest's first bytes say where to look. They tell nothing of the token: whoever wants a digest that begins in a
# certain way has to search for it, and learns a few bits of a digest.
_INDEXED_BYTES = 4


class Token(NamedTuple):
    """A line of the file.

    Attributes:
        name: of the client.
        expires_at: in seconds since 1970.
        limits: requests and bytes per second; None where the options decide.
    """

    name: str
    digest: bytes
    expires_at: float = math.inf
    limits: Limits = (None, None)


class Tokens:
    """The tokens that are let in, by their digests; compared in constant time."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._found: dict[bytes, list[Token]] = {}
        self._limits: dict[str, Limits] = {}
        for token in tokens:
            self._found.setdefault(token.digest[:_INDEXED_BYTES], []).append(token)
            self._limits.setdefault(token.name, token.limits)

    def __len__(self) -> int:
        return len(self._found)

    def limits_of(self, client: str) -> Limits:
        """The limits in the first line of a client."""
        return self._limits.get(client, (None, None))

    def name_of(self, authorization: str) -> str:
        """The client whose token stands in an `authorization` header; empty: there is no header.

        Raises:
            Unauthenticated: no bearer token, or one that is not known.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("this server asks for a token; send it as `authorization: Bearer TOKEN`")
        presented = digest_of(token.strip())
        for one in self._found.get(presented[:_INDEXED_BYTES], ()):
            if compare_digest(one.digest, presented):
                if one.expires_at <= time.time():
                    raise Unauthenticated("the token has expired")
                return one.name
        raise Unauthenticated("the token is not known here; it may have been replaced")


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def read_tokens(path: Path, option: str = OPTION) -> Tokens:
    """Reads a file of tokens, which an option names.

    Raises:
        UserError: it can't be read, or has a line that is none; by the line's number, never its words.
    """
    found: dict[bytes, Token] = {}
    try:
        lines = read_bytes(option, path).decode().splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{option}: {path} is not UTF-8") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            token = _read_line(line)
            if found.setdefault(token.digest, token).name != token.name:
                raise ValueError("has the token of another client")
        except ValueError as error:
            raise UserError(f"{option}: {path}, line {number} {error}") from None
    return Tokens(found.values())


def _read_line(line: str) -> Token:
    fields = line.split()
    if len(fields) < 2:
        raise ValueError(f"must be NAME {DIGEST_PREFIX}DIGEST or NAME TOKEN")
    name, token, *facts = fields
    if not NAME.fullmatch(name):
        raise ValueError("begins with a name that is not 1 to 64 letters, digits or any of . _ @ / -")
    if token.startswith(DIGEST_PREFIX):
        digest = token.removeprefix(DIGEST_PREFIX)
        if not DIGEST.fullmatch(digest):
            raise ValueError(f"has no 64 hexadecimal digits after {DIGEST_PREFIX}")
        return _with_facts(Token(name, bytes.fromhex(digest)), facts)
    if len(token) < MIN_TOKEN_CHARACTERS or not TOKEN.fullmatch(token):
        raise ValueError(f"has a token that is not {MIN_TOKEN_CHARACTERS} or more printable ASCII characters")
    return _with_facts(Token(name, digest_of(token)), facts)


def _with_facts(token: Token, facts: Sequence[str]) -> Token:
    """The token with what follows it in its line."""
    numbers: dict[str, float | None] = {"requests_per_second": None, "bytes_per_second": None}
    for fact in facts:
        key, _, value = fact.partition("=")
        try:
            if key == "expires":
                moment = datetime.fromisoformat(value)
                token = token._replace(expires_at=moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
                continue
            if key in numbers and 0 < (number := float(value)) < math.inf:
                numbers[key] = number
                continue
        except ValueError:
            pass
        raise ValueError(f"must have, after its token, only expires=DATE and {'=NUMBER, '.join(numbers)}=NUMBER")
    return token._replace(limits=(numbers["requests_per_second"], numbers["bytes_per_second"]))
