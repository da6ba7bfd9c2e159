"""From folders to bundles that may be loaded: everything that can refuse their files does so here."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from attendant.runtime.bundle.bundle import Bundle, refuse_few_rows
from attendant.runtime.bundle.signature import open_signed_bundle
from attendant.runtime.errors import UserError
from attendant.runtime.process import limited, on_a_thread
from attendant.server.config import ServerConfig

T = TypeVar("T")


def open_bundles(config: ServerConfig) -> list[Bundle]:
    """Opens every bundle.

    Raises:
        UserError: a bundle that is refused, one line per difference; two bundles of one name; --signed-names without
            --require-signature.
    """
    if config.signed_names == "on" and not config.require_signature:
        raise UserError("--signed-names: no signatures are asked for; add --require-signature, or leave this out")
    bundles = [open_within_limits(path, config) for path in config.bundles]
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


def open_within_limits(path: Path, config: ServerConfig) -> Bundle:
    """Opens a bundle.

    Raises:
        UserError: it is refused, signed by nobody who is trusted, takes more time or memory than it may, or needs more
            rows than there are.
    """
    bundle = within_limits(
        partial(open_signed_bundle, path, config.require_signature, by_name=config.signed_names == "on"), path, config
    )
    refuse_few_rows(bundle.manifest, config.max_rows)
    return bundle


def within_limits(load: Callable[[], T], path: Path, config: ServerConfig) -> T:
    """What `load` returns of a bundle.

    Raises:
        UserError: it takes more time or memory than it may; or its own.
    """
    return limited(
        load,
        f"the bundle {path} is refused",
        seconds=config.load_seconds,
        mib=config.load_mib,
        remedy="; --load-seconds and --load-mib say what it may take",
    )


async def in_daemon_thread(function: Callable[[], T]) -> T:
    """Awaits a blocking function that may be left behind: a process that is told to end does not wait for it."""
    _, future = on_a_thread(function, "loading")
    return await asyncio.wrap_future(future)
