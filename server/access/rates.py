"""How much each client may ask for: requests and bytes per second.

A token bucket, kept as the one number that it comes to: the time at which what was taken will have been paid for (the
generic cell rate algorithm, ITU-T I.371). A client may be ahead of its rate by one second's worth, and is let in whole
while it is not: what a large request takes too much is waited for afterwards.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

BURST_SECONDS = 1.0
MAX_CLIENTS = 16384
"""Whose account is kept. A client that was dropped begins anew, which gives it a second's worth at most."""

NO_LIMIT = float("inf")

Limits = tuple[float | None, float | None]
"""Requests and bytes per second; None: no limit."""


class Rates:
    """The accounts of the clients that were seen last.

    Attributes:
        limited: there is a limit; where there is none, `take` need not be called.
    """

    def __init__(
        self,
        requests_per_second: float | None = None,
        bytes_per_second: float | None = None,
        *,
        own_limits: Callable[[str], Limits] | None = None,
        max_clients: int = MAX_CLIENTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """None: no limit. `own_limits`: returns those of a client, each in the place of the common one."""
        self.limited = any((requests_per_second, bytes_per_second, own_limits))
        self._limits = requests_per_second, bytes_per_second
        self._own_limits = own_limits or (lambda client: (None, None))
        self._max_clients = max_clients
        self._clock = clock
        # Client -> when its requests, and its bytes, will have been paid for; who was seen last stands last.
        self._paid_at: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._paid_at)

    def take(self, client: str, num_bytes: int, num_requests: int = 1) -> float:
        """Charges a client for requests of so many bytes in all, and returns 0.

        A client that is too far ahead is charged nothing. What is returned then: the seconds until it would be let in.
        """
        now = self._clock()
        requests, of_bytes = self._paid_at.get(client, (now, now))
        wait = max(requests, of_bytes) - BURST_SECONDS - now
        if wait > 0:
            return wait
        self.charge(client, num_bytes, num_requests)
        return 0.0

    def charge(self, client: str, num_bytes: int, num_requests: int) -> None:
        """Charges a client that has been let in, however far ahead it is."""
        now = self._clock()
        requests, of_bytes = self._paid_at.get(client, (now, now))
        of_requests, of_all_bytes = (
            own or common or NO_LIMIT for own, common in zip(self._own_limits(client), self._limits, strict=True)
        )
        self._paid_at[client] = (
            max(requests, now) + num_requests / of_requests,
            max(of_bytes, now) + num_bytes / of_all_bytes,
        )
        self._paid_at.move_to_end(client)
        if len(self._paid_at) > self._max_clients:
            self._paid_at.popitem(last=False)
