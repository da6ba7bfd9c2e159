"""From folders to bundles that may be loaded: everything that can refuse their files does so here."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.errors import UserError
from attendant.server.config import ServerConfig

T = TypeVar("T")


def open_bundles(config: ServerConfig) -> list[Bundle]:
    """Opens every bundle.

    Raises:
        UserError: a bundle that is refused, one line per difference; two bundles of one name.
    """
    bundles = [open_bundle(path) for path in config.bundles]
    paths: dict[str, object] = {}
    for bundle in bundles:
        name = bundle.manifest.name
        if name in paths:
            raise UserError(
                f"two bundles hold a model named {name}: {paths[name]} and {bundle.path}; requests choose by that "
                "name, so serve one of them, or export one under another name"
            )
        paths[name] = bundle.path
    return bundles


async def in_daemon_thread(function: Callable[[], T]) -> T:
    """Awaits a blocking function that may be left behind: a process that is told to end does not wait for it."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as raised:  # whatever it is, who awaits it gets it
            future.set_exception(raised)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await asyncio.wrap_future(future)
