"""Bearer tokens: which client a call belongs to. The file need hold no secret, only the tokens' digests.

    # one token per line: the client's name, then the SHA-256 of its token, or the token itself
    search  sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    mail    yE3f...

A client may have several lines, e.g. while its token is being replaced.
"""

import hashlib
import re
from collections.abc import Iterable
from hmac import compare_digest
from pathlib import Path

from attendant.runtime.errors import UserError
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


class Tokens:
    """The tokens that are let in, by their digests; compared in constant time."""

    def __init__(self, names_and_digests: Iterable[tuple[str, bytes]]) -> None:
        self._found: dict[bytes, list[tuple[bytes, str]]] = {}
        for name, digest in names_and_digests:
            self._found.setdefault(digest[:_INDEXED_BYTES], []).append((digest, name))

    def name_of(self, authorization: str) -> str:
        """The client whose token stands in an `authorization` header; empty: there is no header.

        Raises:
            Unauthenticated: no bearer token, or one that is not known.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("this server asks for a token; send it as `authorization: Bearer TOKEN`")
        presented = digest_of(token.strip())
        for digest, name in self._found.get(presented[:_INDEXED_BYTES], ()):
            if compare_digest(digest, presented):
                return name
        raise Unauthenticated("the token is not known here; it may have been replaced")


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def read_tokens(path: Path, option: str = OPTION) -> Tokens:
    """Reads a file of tokens, which an option names.

    Raises:
        UserError: it can't be read, holds no token, or has a line that is none; by the line's number, never its words.
    """
    names: dict[bytes, str] = {}
    try:
        lines = read_bytes(option, path).decode().splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{option}: {path} is not UTF-8") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            name, digest = _read_line(line)
            if names.setdefault(digest, name) != name:
                raise ValueError("has the token of another client")
        except ValueError as error:
            raise UserError(f"{option}: {path}, line {number} {error}") from None
    if not names:
        raise UserError(f"{option}: {path} holds no token, so nobody could call; a line is NAME {DIGEST_PREFIX}DIGEST")
    return Tokens((name, digest) for digest, name in names.items())


def _read_line(line: str) -> tuple[str, bytes]:
    fields = line.split()
    if len(fields) != 2:
        raise ValueError(f"must be NAME {DIGEST_PREFIX}DIGEST or NAME TOKEN")
    name, token = fields
    if not NAME.fullmatch(name):
        raise ValueError("begins with a name that is not 1 to 64 letters, digits or any of . _ @ / -")
    if token.startswith(DIGEST_PREFIX):
        digest = token.removeprefix(DIGEST_PREFIX)
        if not DIGEST.fullmatch(digest):
            raise ValueError(f"has no 64 hexadecimal digits after {DIGEST_PREFIX}")
        return name, bytes.fromhex(digest)
    if len(token) < MIN_TOKEN_CHARACTERS or not TOKEN.fullmatch(token):
        raise ValueError(f"has a token that is not {MIN_TOKEN_CHARACTERS} or more printable ASCII characters")
    return name, digest_of(token)
