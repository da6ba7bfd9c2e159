"""From a folder to a model that may be served: everything that can refuse a bundle does so here."""

import logging
import threading
import time
from asyncio import Future, get_running_loop
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from typing import TypeVar

from attendant.runtime.bundle.bundle import Bundle, BundleRefused, open_bundle
from attendant.runtime.bundle.manifest import Limits, Precision, Provider
from attendant.runtime.bundle_stepper import default_precision, open_stepper
from attendant.runtime.cpu import available_cpus
from attendant.runtime.decoding.offline import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.runtime.golden_check import check_golden
from attendant.runtime.stepper import Stepper
from attendant.server.config import ServerConfig
from attendant.server.engine.queueing.scheduler import Budget
from attendant.server.models import limits_in_force

log = logging.getLogger(__name__)

BULK_PART = 0.5
"""Of the time that a request takes alone: how long it may be made to wait for a call on behalf of bulk work."""

MIN_BULK_SECONDS = 0.001
"""Less than that would not be noticed: the way to the engine and back takes as long."""

WARM_UP_SOURCES = 4
WARM_UP_STEPS = 3
NUM_TIMED = 7
TIMES_EACH = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A bundle whose graphs run here and give what they must.

    Attributes:
        request_seconds: what a request takes here, alone.
    """

    bundle: Bundle
    stepper: Stepper
    precision: Precision
    provider: Provider
    limits: Limits
    request_seconds: float


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


def threads_each(config: ServerConfig) -> int:
    """CPU threads of each engine: the budget, shared out among bundles and their workers, and at least one."""
    return max(1, (config.threads or available_cpus()) // (len(config.bundles) * config.workers))


def budget_of(config: ServerConfig, request_seconds: float) -> Budget:
    """What an engine may do at once.

    Args:
        request_seconds: what a request takes alone.
    """
    return Budget(
        max_rows=config.max_rows,
        max_source_positions=config.max_source_positions,
        bulk_seconds=config.bulk_seconds or max(MIN_BULK_SECONDS, BULK_PART * request_seconds),
    )


def load_model(bundle: Bundle, config: ServerConfig, threads: int) -> LoadedModel:
    """Loads a bundle's graphs, decodes its golden examples and warms up.

    Raises:
        UserError: the bundle is refused, or there is no such precision or provider here.
    """
    began = time.monotonic()
    precision = config.precision or default_precision(bundle.manifest, config.provider)
    stepper = open_stepper(bundle, precision, config.provider, threads, cuda_graphs=config.cuda_graphs == "on")
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
    return LoadedModel(
        bundle=bundle,
        stepper=stepper,
        precision=precision,
        provider=config.provider,
        limits=limits,
        request_seconds=_request_seconds(bundle, stepper, config.provider),
    )


def _warm_up(bundle: Bundle, stepper: Stepper, limits: Limits) -> None:
    """A few steps of the longest sources and the widest beam: the first request of that size finds memory ready."""
    symbol = bundle.source_tokenizer.vocabulary_size - 1
    source = bundle.source_ids(list(islice(cycle([symbol]), limits.max_source_tokens)))
    options = DecodingOptions(
        beam_size=limits.max_beam_size, max_length=min(WARM_UP_STEPS, limits.max_target_tokens), attention=True
    )
    decode_all(stepper, [source] * WARM_UP_SOURCES, options, bundle.manifest.special_ids)


def _request_seconds(bundle: Bundle, stepper: Stepper, provider: Provider) -> float:
    """The median over the sources of golden examples, each decoded greedily by itself, and taken at its quickest.

    Other programs only ever make it slower; what they take at this moment is no measure for the time to come. On a CPU
    it is therefore the time that this thread has computed: it does its share of every product.
    """
    clock = time.thread_time if provider == "cpu" else time.perf_counter
    quickest = []
    for example in bundle.golden[:NUM_TIMED]:
        source = bundle.source_ids(bundle.source_tokenizer.ids_of(example.source_tokens))
        options = DecodingOptions(max_length=max(1, len(example.target_tokens)))
        seconds = []
        for _ in range(TIMES_EACH):
            began = clock()
            decode_all(stepper, [source], options, bundle.manifest.special_ids)
            seconds.append(clock() - began)
        quickest.append(min(seconds))
    return median(quickest)


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
