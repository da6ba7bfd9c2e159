"""One budget of rows for all models and versions in a server. Pure.

A version's interactive and heavy requests go to its workers only when the server has rows for them. Rows that come free
go to the version that waits and holds fewest (max-min fairness): one that is alone may have all of them, several that
want more than there are come to have equally many. Rows count until their request has ended, whatever has become of its
version.

Bulk requests go to the workers at once, which choose among them. So the rows that they may run there are divided evenly
among the versions that have any. While they are alone, their calls into the model may take longer. Whether they are is
the server's to know: a worker does not see what others are asked, and every worker slows down all of them.
"""

import itertools
import math
from collections.abc import Callable

from attendant.server.engine.request import Priority

RESERVED = (Priority.INTERACTIVE, Priority.HEAVY)
"""The priorities whose requests are sent to a worker only once the server has rows for them."""

ALONE_SECONDS = 1.0
"""After which bulk work counts as alone, when nobody has asked for anything else, and nobody waits for an answer."""


class SharedRows:
    """The rows of a server. Each priority has a budget of its own, as it has in every engine."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._budgets = {priority: _Budget(max_rows) for priority in RESERVED}
        self._with_bulk: dict[Callable[[int, bool], None], None] = {}
        self._bulk_is_alone = False
        self._last_asked = -math.inf

    def share(self, priority: Priority, ask: Callable[[], None]) -> "RowShare":
        """A version's part of them; `ask`: called when it has waited for rows and may ask again."""
        return RowShare(self._budgets[priority], ask)

    def divide_bulk(self, tell: Callable[[int, bool], None], *, has_bulk: bool) -> None:
        """The workers of a version have bulk requests from now on, or have none any more.

        Args:
            tell: called, while they have some, with the number of versions of which that is true, and whether they are
                alone.
        """
        if has_bulk:
            self._with_bulk[tell] = None
        else:
            self._with_bulk.pop(tell, None)
        self._tell()

    def asked(self, now: float) -> None:
        """Somebody asks for something else than bulk work."""
        self._last_asked = now
        if self._bulk_is_alone:
            self._bulk_is_alone = False
            self._tell()

    def look(self, now: float) -> None:
        """Time has passed: bulk work may have come to be alone."""
        is_idle = all(budget.free == self._max_rows and not budget.waiting for budget in self._budgets.values())
        if not self._bulk_is_alone and is_idle and now - self._last_asked >= ALONE_SECONDS:
            self._bulk_is_alone = True
            self._tell()

    def _tell(self) -> None:
        for one in self._with_bulk:
            one(len(self._with_bulk), self._bulk_is_alone)


class _Budget:
    """The rows of one priority.

    Attributes:
        free: rows that no version holds.
        waiting: the shares that were refused rows.
        arrivals: numbers, by which these are told apart by when they began to wait.
    """

    def __init__(self, free: int) -> None:
        self.free = free
        self.waiting: set[RowShare] = set()
        self.arrivals = itertools.count()


class RowShare:
    """What one version holds.

    Attributes:
        held: rows of its requests that have been given to workers.
    """

    def __init__(self, budget: _Budget, ask: Callable[[], None]) -> None:
        self._budget = budget
        self._ask = ask
        # Of those that hold equally many, who has waited longest goes first.
        self._arrival = math.inf
        self.held = 0

    @property
    def _turn(self) -> tuple[int, float]:
        return self.held, self._arrival

    def take(self, num_rows: int) -> bool:
        """Takes so many rows; False: they are not free, or another version that waits goes first."""
        budget = self._budget
        if num_rows <= budget.free and (
            not budget.waiting or self._turn <= min(other._turn for other in budget.waiting)
        ):
            budget.waiting.discard(self)
            self._arrival = math.inf
            budget.free -= num_rows
            self.held += num_rows
            return True
        if self not in budget.waiting:
            budget.waiting.add(self)
            self._arrival = min(self._arrival, next(budget.arrivals))
        return False

    def give_back(self, num_rows: int) -> None:
        """Gives rows back, which `offer` then tells those that wait."""
        self._budget.free += num_rows
        self.held -= num_rows

    def offer(self) -> None:
        """Lets those that wait ask again, each in its turn; to be called after rows were given back."""
        budget = self._budget
        while budget.waiting:
            first, free = min(budget.waiting, key=lambda one: one._turn), budget.free
            budget.waiting.remove(first)
            first._ask()
            if first not in budget.waiting:
                first._arrival = math.inf
            elif budget.free == free:  # what it wants does not fit yet, and nobody goes before it
                return
