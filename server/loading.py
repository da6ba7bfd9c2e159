"""From a folder to a model that may be served: everything that can refuse a bundle does so here."""

import logging
import threading
import time
from asyncio import Future, get_running_loop
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TypeVar

from runtime.bundle import Bundle, BundleRefused, open_bundle
from runtime.cpu import available_cpus
from runtime.decoding.offline import decode_all
from runtime.decoding.options import DecodingOptions
from runtime.errors import UserError
from runtime.golden import check_golden
from runtime.manifest import Limits, Precision, Provider
from runtime.onnx_stepper import OnnxStepper
from runtime.stepper import Stepper
from server.config import ServerConfig
from server.models import limits_in_force

log = logging.getLogger(__name__)

WARM_UP_SOURCES = 4
WARM_UP_STEPS = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A bundle whose graphs run here and give what they must."""

    bundle: Bundle
    stepper: Stepper
    precision: Precision
    provider: Provider
    limits: Limits


def load_models(config: ServerConfig) -> list[LoadedModel]:
    """Opens every bundle, loads its graphs, decodes its golden examples and warms up.

    Raises:
        UserError: a bundle that is refused, one line per difference; no such precision or provider here; two bundles
            of one name.
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
    threads = max(1, (config.threads or available_cpus()) // len(bundles))
    return [_load(bundle, config, threads) for bundle in bundles]


def _load(bundle: Bundle, config: ServerConfig, threads: int) -> LoadedModel:
    began = time.monotonic()
    precision = config.precision or bundle.manifest.default_precision.get(config.provider, "fp32")
    stepper = OnnxStepper(bundle, precision, config.provider, threads)
    if differences := check_golden(bundle, stepper, precision, config.provider):
        raise BundleRefused(bundle.path, differences)
    limits = limits_in_force(bundle.manifest, config.max_rows)
    _warm_up(bundle, stepper, limits)
    log.info(
        "bundle checked",
        extra={
            "model": bundle.manifest.name,
            "version": bundle.manifest.version,
            "precision": precision,
            "provider": config.provider,
            "golden_examples": len(bundle.golden),
            "threads": threads,
            "seconds": round(time.monotonic() - began, 3),
        },
    )
    return LoadedModel(bundle=bundle, stepper=stepper, precision=precision, provider=config.provider, limits=limits)


def _warm_up(bundle: Bundle, stepper: Stepper, limits: Limits) -> None:
    """A few steps of the longest sources and the widest beam: the first request of that size finds memory ready."""
    symbol = bundle.source_tokenizer.vocabulary_size - 1
    source = bundle.source_ids(list(islice(cycle([symbol]), limits.max_source_tokens)))
    options = DecodingOptions(
        beam_size=limits.max_beam_size, max_length=min(WARM_UP_STEPS, limits.max_target_tokens), attention=True
    )
    decode_all(stepper, [source] * WARM_UP_SOURCES, options, bundle.manifest.special_ids)


async def in_daemon_thread(function: Callable[[], T]) -> T:
    """Awaits a blocking function that may be left behind: a process that is told to end does not wait for it."""
    loop = get_running_loop()
    future: Future[T] = loop.create_future()

    def resolve(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:  # whatever it is, who awaits it gets it
            error = raised
        with suppress(RuntimeError):  # the loop has ended: nobody waits
            loop.call_soon_threadsafe(resolve, result, error)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await future
