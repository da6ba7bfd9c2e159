"""The file of tokens, and who is let in by it."""

import hashlib
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.server.auth import open_access
from attendant.server.credentials import Token, Tokens, digest_of, read_tokens
from attendant.server.errors import Unauthenticated
from tests.configuration import parse_config

SEARCH, MAIL = "search-token-0123456789", "mail+token/0123456789=="

FACTS = "must have, after its token, only expires=DATE and requests_per_second=NUMBER, bytes_per_second=NUMBER"


def hashed(token: str) -> str:
    """As the documents say to make it: printf %s TOKEN | sha256sum."""
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def read(path: Path, *lines: str) -> Tokens:
    file = path / "tokens"
    file.write_text("\n".join(lines))
    return read_tokens(file)


def test_digests_and_tokens_themselves_name_their_client(tmp_path: Path) -> None:
    tokens = read(
        tmp_path, "# clients", "", f"  search\t{hashed(SEARCH)} ", f"mail {MAIL}", f"mail {hashed('new' * 9)}"
    )
    assert tokens.name_of(f"Bearer {SEARCH}") == "search"
    assert tokens.name_of(f"bearer  {SEARCH} ") == "search", "RFC 9110: the scheme's case does not matter"
    assert tokens.name_of(f"Bearer {MAIL}") == tokens.name_of(f"Bearer {'new' * 9}") == "mail"


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", SEARCH, f"Basic {SEARCH}", f"Bearer {SEARCH}x", f"Bearer {SEARCH[:-1]}",
     f"Bearer {hashed(SEARCH)}", "Bearer \udcff\u2028", "Bearer " + "x" * 100_000],
)  # fmt: skip
def test_anything_else_is_not_let_in_and_not_repeated(tmp_path: Path, authorization: str) -> None:
    tokens = read(tmp_path, f"search {hashed(SEARCH)}")
    with pytest.raises(Unauthenticated) as caught:
        tokens.name_of(authorization)
    assert SEARCH[:8] not in str(caught.value) and len(str(caught.value)) < 120


def test_digests_that_begin_alike_are_told_apart() -> None:
    digest = digest_of(SEARCH)
    other = digest[:-1] + bytes([digest[-1] ^ 1])
    assert Tokens([Token("other", other), Token("search", digest)]).name_of(f"Bearer {SEARCH}") == "search"
    with pytest.raises(Unauthenticated):
        Tokens([Token("other", other)]).name_of(f"Bearer {SEARCH}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("search", "must be NAME sha256:DIGEST or NAME TOKEN"),
        (f"search {SEARCH} {MAIL}", FACTS),
        (f"search {hashed(MAIL)} expires=soon", FACTS),
        (f"search {hashed(MAIL)} requests_per_second=0", FACTS),
        (f"se\x1brch {SEARCH}", "begins with a name that is not 1 to 64 letters, digits or any of . _ @ / -"),
        (f"{'s' * 65} {SEARCH}", "begins with a name that is not 1 to 64 letters, digits or any of . _ @ / -"),
        ("search sha256:12ab", "has no 64 hexadecimal digits after sha256:"),
        ("search short-token", "has a token that is not 16 or more printable ASCII characters"),
        ("search tökentökentökentöken", "has a token that is not 16 or more printable ASCII characters"),
        (f"mail {hashed(SEARCH)}", "has the token of another client"),
    ],
)
def test_a_line_that_is_none_is_named_by_its_number_alone(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, f"search {SEARCH}", line)
    assert str(caught.value) == f"--tokens: {tmp_path}/tokens, line 2 {message}"


def test_tokens_expire_and_have_limits_of_their_own(tmp_path: Path) -> None:
    tokens = read(
        tmp_path,
        f"search {SEARCH} expires=2020-01-01 requests_per_second=2 bytes_per_second=1e6",
        f"search {hashed(MAIL)} expires=2999-12-31T12:00:00+01:00",
    )
    with pytest.raises(Unauthenticated, match="expired"):
        tokens.name_of(f"Bearer {SEARCH}")
    assert tokens.name_of(f"Bearer {MAIL}") == "search"
    assert (tokens.limits_of("search"), tokens.limits_of("other")) == ((2.0, 1e6), (None, None))


def test_the_last_token_can_be_revoked(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"search {SEARCH}\n")
    access = open_access(parse_config(["bundle", "--tokens", str(file)], {}))
    assert access.tokens is not None and access.tokens.value.name_of(f"Bearer {SEARCH}") == "search"
    file.write_text("# nobody\n")
    access.reload()
    with pytest.raises(Unauthenticated):
        access.tokens.value.name_of(f"Bearer {SEARCH}")


def test_a_file_that_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nobody\n")
    with pytest.raises(UserError, match=r"holds no token, so nobody could call; a line is NAME sha256:DIGEST"):
        open_access(parse_config(["bundle", "--tokens", str(tmp_path / "empty")], {}))
    with pytest.raises(UserError, match=r"^--tokens: \S+/nothing can't be read: No such file or directory$"):
        read_tokens(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"search \xff\xfe")
    with pytest.raises(UserError, match=r"binary is not UTF-8$"):
        read_tokens(tmp_path / "binary")
