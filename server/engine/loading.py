"""From a bundle's folder to an engine that may serve: all checks that refuse files or graphs.

The server opens the bundle; a worker process opens it again, loads its graphs and makes the engine.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

from attendant.runtime.bundle.bundle import Bundle, BundleRefused, limits_in_force, refuse_few_rows
from attendant.runtime.bundle.graph_io import position_bytes
from attendant.runtime.bundle.manifest import Precision, Provider
from attendant.runtime.bundle.signature import open_signed_bundle
from attendant.runtime.bundle_stepper import default_precision, open_checked
from attendant.runtime.command import set_variables
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError, reason_of
from attendant.runtime.process import MIB, abandonable, available_cpus, limited, processor
from attendant.runtime.stepper import Stepper, padded_width
from attendant.server.config import ServerConfig
from attendant.server.engine.engine import Engine
from attendant.server.engine.messages import Ready
from attendant.server.engine.scheduler import Budget, Scheduler

T = TypeVar("T")


def open_bundles(config: ServerConfig) -> list[Bundle]:
    """Opens every bundle.

    Raises:
        UserError: a bundle that is refused, one line per difference; two bundles of one name; --signed-names without
            --require-signature.
    """
    if config.signed_names == "on" and not config.require_signature:
        names = set_variables("signed_names")
        raise UserError(f"--signed-names: needs --require-signature; add it, or leave --signed-names out{names}")
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
        UserError: it is refused, has no trusted signature, takes more time or memory than it may, or needs more rows
            than there are.
    """
    bundle = within_limits(
        partial(open_signed_bundle, path, config.require_signature, by_name=config.signed_names == "on"), path, config
    )
    refuse_few_rows(bundle.manifest, config.max_rows, "--max-rows")
    return bundle


def within_limits(load: Callable[[], T], path: Path, config: ServerConfig) -> T:
    """Calls `load` within the limits of time and memory, and returns its result.

    Raises:
        UserError: it takes more than it may; or from `load`.
    """
    return limited(
        load,
        f"the bundle {path} is refused",
        seconds=config.load_seconds,
        mib=config.load_mib,
        remedy="; --load-seconds and --load-mib set the limits",
    )


async def in_daemon_thread(function: Callable[[], T]) -> T:
    """Awaits a blocking function on a thread that does not keep the process from ending."""
    with abandonable(function, "loading") as future:
        return await asyncio.wrap_future(future)


log = logging.getLogger(__name__)

BULK_PART = 0.5
"""Longest call for bulk work, in parts of the time of a lone request, which may have to wait for such a call."""

MIN_BULK_SECONDS = 0.001  # A shorter wait makes no difference: the way to the engine and back takes as long.
WARM_UP_SOURCES = 4
WARM_UP_STEPS = 3
NUM_TIMED = 7
TIMES_EACH = 5


def load_engine(bundle: Bundle, config: ServerConfig) -> tuple[Engine, Ready]:
    """Loads a bundle, decodes its golden examples, warms up and makes an engine, and its message to the server.

    Raises:
        UserError: the bundle is refused, or takes longer, or more memory, than the options allow; or there is no such
            precision or provider here.
    """
    return within_limits(lambda: _load_engine(bundle, config), bundle.path, config)


def _load_engine(bundle: Bundle, config: ServerConfig) -> tuple[Engine, Ready]:
    began, threads = time.monotonic(), config.threads or available_cpus()
    precision = config.precision or default_precision(bundle, config.provider)
    _refuse_large_state(bundle, precision, config)
    stepper = open_checked(bundle, precision, config.provider, threads)
    warm_up_size, warm_up_seconds = _warm_up(bundle, stepper, config)
    log.info(
        "bundle checked",
        extra={
            "model": bundle.manifest.name,
            "version": bundle.manifest.version,
            "precision": precision,
            "provider": config.provider,
            "processor": processor(),
            "golden_examples": len(bundle.golden),
            "threads": threads,
            "seconds": round(time.monotonic() - began, 3),
        },
    )
    budget = Budget(
        max_rows=config.max_rows,
        max_source_positions=config.max_source_positions,
        bulk_seconds=config.bulk_seconds
        or max(MIN_BULK_SECONDS, BULK_PART * _request_seconds(bundle, stepper, precision, config.provider)),
    )
    text_of = bundle.target_tokenizer.decode
    engine = Engine(
        stepper, budget, bundle.manifest.special_ids, scheduler=config.scheduler or Scheduler, text_of=text_of
    )
    return engine, Ready(bundle.manifest.version, precision, warm_up_size, warm_up_seconds)


def _refuse_large_state(bundle: Bundle, precision: Precision, config: ServerConfig) -> None:
    """Raises BundleRefused if the longest sources would take too much memory, before any of it is taken."""
    num_sources, longest = _num_longest(bundle, config), bundle.manifest.limits.max_source_tokens
    taken = num_sources * padded_width(longest + 1) * position_bytes(bundle.graphs_in(precision)) // MIB
    if taken > config.load_mib:
        state = f"limits.max_source_tokens: {num_sources} sources of {longest} tokens take {taken} MiB of state"
        raise BundleRefused(bundle.path, [f"{state}, may take {config.load_mib}; --load-mib sets the limit"])


def _num_longest(bundle: Bundle, config: ServerConfig) -> int:
    """Returns how many of the longest sources are decoded to warm up: no more than the engine may hold at once."""
    width = padded_width(bundle.manifest.limits.max_source_tokens + 1)
    return max(1, min(WARM_UP_SOURCES, config.max_source_positions // width))


def _warm_up(bundle: Bundle, stepper: Stepper, config: ServerConfig) -> tuple[int, float]:
    """Decodes the longest sources with the widest beam, so that the first such request finds its memory allocated.

    Returns:
        The rows and source positions of this work, and the seconds that it took.

    Raises:
        BundleRefused: they can't be decoded.
    """
    limits = limits_in_force(bundle.manifest, config.max_rows)
    symbol = bundle.source_tokenizer.vocabulary_size - 1
    source = bundle.source_ids([symbol] * limits.max_source_tokens)
    options = DecodingOptions(
        beam_size=limits.max_beam_size, max_length=min(WARM_UP_STEPS, limits.max_target_tokens), attention=True
    )
    began, num_sources = time.monotonic(), _num_longest(bundle, config)
    try:
        decode_all(stepper, [source] * num_sources, options, bundle.manifest.special_ids)
    except Exception as error:
        log.debug("warming up failed", exc_info=True)
        raise BundleRefused(bundle.path, [f"decoding the longest sources fails: {reason_of(error)}"]) from error
    return num_sources * (len(source) + limits.max_beam_size), time.monotonic() - began


def _request_seconds(bundle: Bundle, stepper: Stepper, precision: Precision, provider: Provider) -> float:
    """Returns the seconds of a lone request: the median over golden sources, each decoded greedily at its quickest.

    Other programs can only make it slower, and their load may change. So on a CPU it is the time that
    this thread has computed; the thread takes part in every product.
    """
    clock = time.thread_time if provider == "cpu" else time.perf_counter
    quickest = []
    examples = [example for example in bundle.golden if example.precision == precision]
    for example in examples[:NUM_TIMED]:
        source = bundle.source_ids(bundle.source_tokenizer.ids_of(example.source_tokens))
        options = DecodingOptions(max_length=max(1, len(example.target_tokens)))
        seconds = []
        for _ in range(TIMES_EACH):
            began = clock()
            decode_all(stepper, [source], options, bundle.manifest.special_ids)
            seconds.append(clock() - began)
        quickest.append(min(seconds))
    return median(quickest)
