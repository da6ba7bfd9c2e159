"""From a folder to a model that may be served: everything that can refuse a bundle does so here."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import cycle, islice
from statistics import median
from typing import TypeVar

from attendant.runtime.bundle.bundle import Bundle, BundleRefused, open_bundle
from attendant.runtime.bundle.manifest import Limits, Provider
from attendant.runtime.bundle_stepper import open_stepper
from attendant.runtime.cpu import available_cpus
from attendant.runtime.decoding.offline import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.runtime.golden_check import check_golden
from attendant.runtime.stepper import Stepper
from attendant.server.config import ServerConfig
from attendant.server.engine.engine import Engine
from attendant.server.engine.queueing.scheduler import Budget
from attendant.server.models import limits_in_force, precision_of

log = logging.getLogger(__name__)

BULK_PART = 0.5
"""A call for bulk work may take half of what a request takes alone: so long may a request be made to wait for it."""

MIN_BULK_SECONDS = 0.001
"""A shorter wait would not be noticed: the way to the engine and back takes as long."""

WARM_UP_SOURCES = 4
WARM_UP_STEPS = 3
NUM_TIMED = 7
TIMES_EACH = 5

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


def threads_each(config: ServerConfig) -> int:
    """CPU threads of each engine: the budget, shared out among bundles and their workers, and at least one."""
    return max(1, (config.threads or available_cpus()) // (len(config.bundles) * config.workers))


def load_engine(bundle: Bundle, config: ServerConfig) -> Engine:
    """Loads a bundle's graphs, decodes its golden examples, warms up and makes an engine.

    Raises:
        UserError: the bundle is refused, or there is no such precision or provider here.
    """
    began, threads = time.monotonic(), threads_each(config)
    precision = precision_of(bundle.manifest, config)
    stepper = open_stepper(bundle, precision, config.provider, threads, cuda_graphs=config.cuda_graphs == "on")
    if differences := check_golden(bundle, stepper, precision, config.provider):
        raise BundleRefused(bundle.path, differences)
    _warm_up(bundle, stepper, limits_in_force(bundle.manifest, config.max_rows))
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
    budget = Budget(
        max_rows=config.max_rows,
        max_source_positions=config.max_source_positions,
        bulk_seconds=config.bulk_seconds
        or max(MIN_BULK_SECONDS, BULK_PART * _request_seconds(bundle, stepper, config.provider)),
    )
    return Engine(stepper, budget, bundle.manifest.special_ids, scheduler=config.scheduler)


def _warm_up(bundle: Bundle, stepper: Stepper, limits: Limits) -> None:
    """Decodes the longest sources with the widest beam, so that the first such request finds its memory allocated."""
    symbol = bundle.source_tokenizer.vocabulary_size - 1
    source = bundle.source_ids(list(islice(cycle([symbol]), limits.max_source_tokens)))
    options = DecodingOptions(
        beam_size=limits.max_beam_size, max_length=min(WARM_UP_STEPS, limits.max_target_tokens), attention=True
    )
    decode_all(stepper, [source] * WARM_UP_SOURCES, options, bundle.manifest.special_ids)


def _request_seconds(bundle: Bundle, stepper: Stepper, provider: Provider) -> float:
    """How long a request takes alone: the median over golden sources, each decoded greedily at its quickest.

    Other programs can only make it slower, and what they take now says nothing about later. So on a CPU it is the time
    that this thread has computed, which has its share in every product.
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
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as raised:  # whatever it is, who awaits it gets it
            future.set_exception(raised)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await asyncio.wrap_future(future)
