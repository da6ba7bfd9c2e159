"""The server's options: from the command line, else from the environment, else their defaults.

Each option `--some-name` is also the variable `ATTENDANT_SOME_NAME`.
"""

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from attendant.runtime.bundle.manifest import Precision, Provider
from attendant.runtime.errors import UserError

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
Switch = Literal["on", "off"]

PREFIX = "ATTENDANT_"
BUNDLES_VARIABLE = PREFIX + "BUNDLES"
INJECTED = ("tcp://", "udp://", "sctp://")
"""Kubernetes sets NAME_PORT=tcp://... in every pod for each Service: one named `attendant` would set our port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What `python -m server` was asked for; see OPTIONS for each."""

    bundles: tuple[Path, ...]
    host: str
    port: int
    metrics_port: int
    precision: Precision | None
    provider: Provider
    cuda_graphs: Switch
    threads: int | None
    workers: int
    max_rows: int
    max_source_positions: int
    max_waiting: int
    bulk_seconds: float | None
    drain_seconds: float
    log_level: LogLevel
    log_format: LogFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        parse: from its text; raises ValueError.
        must_be: what it must be, for the message.
        default: None where `default_text` says what happens then.
        unit: after its name in --help.
    """

    name: str
    parse: Callable[[str], Any]
    must_be: str
    default: Any
    unit: str
    about: str
    default_text: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < least or (most is not None and value > most):
            raise ValueError
        return value

    return parse


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError
    return value


def _positive_seconds(text: str) -> float:
    value = _seconds(text)
    if not value:
        raise ValueError
    return value


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return parse


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text.strip()


def _choice(name: str, choices: Sequence[str], about: str, default: str | None, default_text: str = "") -> Option:
    return Option(
        name=name,
        parse=_one_of(choices),
        must_be=f"one of {', '.join(choices)}",
        default=default,
        unit="|".join(choices),
        about=about,
        default_text=default_text,
    )


OPTIONS = (
    Option(
        name="host",
        parse=_text,
        must_be="an address or a name",
        default="127.0.0.1",
        unit="ADDRESS",
        about="interface for gRPC and metrics; 0.0.0.0 for all, as in a container",
    ),
    Option(
        name="port",
        parse=_whole(0, 65535),
        must_be="a whole number from 0 to 65535",
        default=50051,
        unit="PORT",
        about="port for gRPC; 0: a free one, which is printed",
    ),
    Option(
        name="metrics_port",
        parse=_whole(0, 65535),
        must_be="a whole number from 0 to 65535",
        default=9090,
        unit="PORT",
        about="port for GET /metrics; 0: a free one, which is printed",
    ),
    _choice(
        "precision", get_args(Precision), "which of a bundle's graphs", None, "what the bundle names for the provider"
    ),
    _choice("provider", get_args(Provider), "where the graphs run", "cpu"),
    _choice(
        "cuda_graphs", get_args(Switch), "whether steps on CUDA are recorded and replayed, where they can be", "off"
    ),
    Option(
        name="threads",
        parse=_whole(1),
        must_be="a whole number from 1",
        default=None,
        unit="THREADS",
        about="CPU threads for the graphs, shared out among the bundles and their workers",
        default_text="as many as the CPU quota grants",
    ),
    Option(
        name="workers",
        parse=_whole(1),
        must_be="a whole number from 1",
        default=1,
        unit="PROCESSES",
        about="engines per model behind one queue, each in a process of its own where there are several",
    ),
    Option(
        name="max_rows",
        parse=_whole(1),
        must_be="a whole number from 1",
        default=256,
        unit="ROWS",
        about="rows (live hypotheses) per engine that are stepped together; a request takes beam_size of them",
    ),
    Option(
        name="max_source_positions",
        parse=_whole(1),
        must_be="a whole number from 1",
        default=32768,
        unit="TOKENS",
        about="source tokens per engine that are held together, padding included; one request always fits",
    ),
    Option(
        name="max_waiting",
        parse=_whole(1),
        must_be="a whole number from 1",
        default=1024,
        unit="REQUESTS",
        about="interactive requests per model that may wait for rows; one more is refused with RESOURCE_EXHAUSTED",
    ),
    Option(
        name="bulk_seconds",
        parse=_positive_seconds,
        must_be="a number of seconds above 0",
        default=None,
        unit="SECONDS",
        about="how long one call into a model for bulk work should take, so that others need not wait longer",
        default_text="half of what a request takes alone here, measured at the start",
    ),
    Option(
        name="drain_seconds",
        parse=_seconds,
        must_be="a number of seconds, 0 or more",
        default=25.0,
        unit="SECONDS",
        about="after SIGTERM or SIGINT: how long requests that are in may take to end",
    ),
    _choice("log_level", get_args(LogLevel), "what is logged, on standard error", "info"),
    _choice("log_format", get_args(LogFormat), "key=value text, or one JSON object per line", "text"),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see python -m server --help")


def parse_config(arguments: Sequence[str], environment: Mapping[str, str]) -> ServerConfig:
    """Reads the options.

    Raises:
        UserError: the first option that is unknown, or whose value is not what it must be.
        SystemExit: after --help.
    """
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    values = {option.name: _value_of(option, given[option.name], environment) for option in OPTIONS}
    bundles = given["bundles"] or [path for path in environment.get(BUNDLES_VARIABLE, "").split(os.pathsep) if path]
    if not bundles:
        raise UserError(f"no bundle: name at least one folder that `python -m export` made, or set {BUNDLES_VARIABLE}")
    assert {field.name for field in fields(ServerConfig)} == {"bundles", *values}
    return ServerConfig(bundles=tuple(Path(bundle) for bundle in bundles), **values)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m server",
        allow_abbrev=False,
        description="Serves bundles over gRPC, with health checks and reflection, and metrics over HTTP.",
        epilog="The command line goes before the environment. Exit status: 0 drained after SIGTERM or SIGINT; "
        "1 the engine failed; 2 a bad option, a port in use, a refused bundle, no such provider.",
    )
    parser.add_argument(
        "bundles",
        metavar="BUNDLE",
        nargs="*",
        help=f"folders made by `python -m export`, one engine each [env {BUNDLES_VARIABLE}, separated by {os.pathsep}]",
    )
    for option in OPTIONS:
        default = option.default_text or option.default
        about = f"{option.about} (default: {default}) [env {option.variable}]"
        parser.add_argument(option.flag, dest=option.name, metavar=option.unit, help=about)
    return parser


def _value_of(option: Option, given: str | None, environment: Mapping[str, str]) -> Any:
    text, source = given, option.flag
    if text is None:
        text, source = environment.get(option.variable, ""), option.variable
        if not text or text.startswith(INJECTED):
            return option.default
    try:
        return option.parse(text)
    except ValueError:
        raise UserError(f"{source} is {text!r}, must be {option.must_be}") from None
