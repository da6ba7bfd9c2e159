"""How errors end the command: their line and their exit status."""

import json
import re
from argparse import Namespace

from attendant_client.errors import (
    AttendantError,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Overloaded,
    ServerError,
    TlsFailed,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from attendant_client.target import proxy_of

# Of a bulk run: whatever the line, the next one would end likewise.
_OF_EVERY_LINE = (NotFound, Unauthenticated, Unavailable, Unimplemented)

# Fields that may be wrong for this line alone: the source, and lengths, whose limit may follow from the source's.
_OF_ONE_LINE = re.compile(r"(text|tokens)\b.*|decoding\.(min_length|min_length_ratio|target_prefix\.tokens)")

_OTHER_TARGET = "is a server running there? name another with --target or ATTENDANT_TARGET"
_TLS_REMEDY = (
    "--tls and --insecure say whether to encrypt, --root-certificates and --server-name whom to trust, "
    "--client-certificate and --client-key who asks"
)


def status_of(error: AttendantError) -> int:
    """2: the user can mend it; 1: the server did not answer."""
    return 2 if isinstance(error, InvalidArgument | NotFound) else 1


def concerns_every_line(error: AttendantError) -> bool:
    """Whether the options, the model or the server are at fault, rather than the line."""
    if isinstance(error, InvalidArgument) and error.violations:
        return not any(_OF_ONE_LINE.fullmatch(violation.field) for violation in error.violations)
    return isinstance(error, _OF_EVERY_LINE)


def explain(error: AttendantError, options: Namespace) -> str:
    """One line: what happened, and how to mend it where that is known.

    Servers may be strangers: what is not printable in their words is escaped, as JSON does.
    """
    return printable(_explanation(error, options))


def printable(text: str) -> str:
    """Returns a server's words, in which what is not printable is escaped as in JSON: escape sequences of terminals."""
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def _explanation(error: AttendantError, options: Namespace) -> str:
    if isinstance(error, Unavailable):
        remedy = _TLS_REMEDY if isinstance(error, TlsFailed) else _OTHER_TARGET
        return f"{options.target} is unavailable ({error.message}); {remedy}"
    if isinstance(error, DeadlineExceeded):
        proxy = proxy_of(options.target)
        through = "" if proxy is None else f"; {proxy}"
        return f"no answer from {options.target} within {options.timeout:g} s; --timeout gives it more time{through}"
    if isinstance(error, Unimplemented):
        return f"the server at {options.target} does not offer this: {error.message}"
    if isinstance(error, Unauthenticated):
        return f"{error.message}; --token-file or ATTENDANT_TOKEN has the token that is sent"
    if isinstance(error, Overloaded) and error.retry_seconds is not None:
        return f"{error.message}; try again in {error.retry_seconds:.1f} s"
    names_request = isinstance(error, ServerError) and error.request_id
    return f"{error.message} ({error.request_id})" if names_request else error.message
