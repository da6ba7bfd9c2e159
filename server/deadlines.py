"""Whether a call ended because its deadline passed, or because its caller went."""

from typing import Any, Final

EARLY_SECONDS: Final = 0.1
"""By which a caller may see its deadline pass before the server does.

The server's clock for a call starts when the call arrives, the caller's earlier; and a gRPC client whose deadline has
passed cancels the call, as it would for any other reason. Of 900 such calls on one busy machine, half were cancelled
before the server's deadline, by 0.067 s at most.
"""


def has_passed(remaining_seconds: float | None) -> bool:
    """Of a call that its caller gave up; `remaining_seconds`: until its deadline, None: it has none."""
    return remaining_seconds is not None and remaining_seconds <= EARLY_SECONDS


def cancellation_code(call: Any) -> str:
    """Why a call's task was cancelled: gRPC does not say, but the deadline does; `call`: gRPC's context."""
    return "DEADLINE_EXCEEDED" if has_passed(call.time_remaining()) else "CANCELLED"
