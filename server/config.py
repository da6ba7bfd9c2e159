"""The server's options: from the command line, else from the environment, else their defaults.

Each option `--some-name` is also the variable `ATTENDANT_SOME_NAME`. Why not pydantic-settings (2.16, tried): its
errors don't tell a flag from a variable and say "unable to parse string as an integer" where we name the range, its
--help shows neither units nor variables, and ATTENDANT_PORT=tcp://... and a list of paths need sources of their own.
"""

# ruff: noqa: RUF009  # _option is dataclasses.field, with a few facts

import argparse
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from attendant.runtime.bundle.manifest import Precision, Provider
from attendant.runtime.errors import UserError
from attendant.runtime.limited import LOAD_MIB, LOAD_SECONDS
from attendant.server.engine.overload_control import LIGHT_ROWS
from attendant.server.engine.queueing.scheduler import Scheduler

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
Switch = Literal["on", "off"]
Openness = Literal["open", "closed"]
OpennessOrOff = Literal["open", "closed", "off"]

PREFIX = "ATTENDANT_"
BUNDLES_VARIABLE = PREFIX + "BUNDLES"
INJECTED = ("tcp://", "udp://", "sctp://")
"""Kubernetes sets NAME_PORT=tcp://... in every pod for each Service: one named `attendant` would set our port."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What values an option takes.

    Attributes:
        convert: from its text; raises ValueError.
        allows: whether it may be this value.
        must_be: for the message about a bad one.
        unit: after the option's name in --help; empty: an option without a value, which switches something on.
    """

    convert: Callable[[str], Any]
    allows: Callable[[Any], bool]
    must_be: str
    unit: str


def _whole(unit: str, least: int = 1, most: float = math.inf) -> Kind:
    limit = "" if most == math.inf else f" to {most}"
    return Kind(int, lambda value: least <= value <= most, f"a whole number from {least}{limit}", unit)


def _one_of(literal: Any) -> Kind:
    choices = get_args(literal)
    return Kind(str, choices.__contains__, f"one of {', '.join(choices)}", "|".join(choices))


PORT = _whole("PORT", 0, 65535)
ADDRESS = Kind(str.strip, bool, "an address or a name", "ADDRESS")
FILE = Kind(lambda text: text.strip() and Path(text), bool, "a file", "FILE")
PER_SECOND = Kind(float, lambda value: 0 < value < math.inf, "a number above 0", "NUMBER")
SECONDS = Kind(float, lambda value: 0 <= value < math.inf, "a number of seconds, 0 or more", "SECONDS")
SOME_SECONDS = Kind(float, lambda value: 0 < value < math.inf, "a number of seconds above 0", "SECONDS")
PEM_FILES = Kind(
    lambda text: tuple(Path(name) for name in text.split(os.pathsep) if name),
    lambda paths: bool(paths) and all(path.is_file() for path in paths),
    f"files that are there, separated by {os.pathsep}",
    "PEM",
)

FLAG = replace(_one_of(Switch), unit="")
ORIGINS = Kind(
    lambda text: tuple(one.strip().rstrip("/") for one in text.split(",")),
    lambda origins: all(re.fullmatch(r"https?://[^/\s*]+", one) for one in origins),
    "origins such as https://example.org, separated by commas",
    "ORIGINS",
)


def _option(default: Any, kind: Kind, about: str, default_text: str = "") -> Any:
    """A field that is an option; `default_text` says what happens by default where that is None."""
    return field(default=default, metadata={"kind": kind, "about": about, "default_text": default_text or str(default)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What `python -m server` was asked for.

    Attributes:
        scheduler: makes each engine's admission policy. No option: measurements put another one in its place.
    """

    bundles: tuple[Path, ...]
    host: str = _option("127.0.0.1", ADDRESS, "interface for gRPC and HTTP; 0.0.0.0 for all, as in a container")
    port: int = _option(50051, PORT, "port for gRPC; 0: a free one, which is printed")
    metrics_port: int = _option(
        9090, PORT, "port for HTTP: metrics, health, the API and the playground; 0: a free one, which is printed"
    )
    no_http: Switch = _option(
        "off", FLAG, "metrics and health only on that port, unencrypted: neither the API nor the playground", "both"
    )
    http_origins: tuple[str, ...] = _option(
        (),
        ORIGINS,
        "origins of web pages, separated by commas, that may use the API from a browser (CORS), e.g. "
        "https://example.org",
        "only the playground",
    )
    precision: Precision | None = _option(
        None, _one_of(Precision), "which of a bundle's graphs", "what the bundle names for the provider"
    )
    provider: Provider = _option("cpu", _one_of(Provider), "where the graphs run")
    cuda_graphs: Switch = _option(
        "off", _one_of(Switch), "whether steps on CUDA are recorded and replayed, where they can be"
    )
    threads: int | None = _option(
        None,
        _whole("THREADS"),
        "CPU threads for the graphs, shared out among the models and their workers",
        "as many as the CPU quota grants",
    )
    workers: int = _option(
        1,
        _whole("PROCESSES"),
        "engines per model behind one queue, each in a process of its own",
    )
    hang_seconds: float = _option(
        5.0,
        SOME_SECONDS,
        "an engine that has work and says nothing for so long, and for five times what its calls take, hangs: the "
        "server ends with status 1",
    )
    max_restarts: int = _option(
        10,
        _whole("RESTARTS", 0),
        "per model and ten minutes: how often an engine whose process died is started again; once more, and the "
        "server ends with status 1",
    )
    max_rows: int = _option(
        256,
        _whole("ROWS"),
        "rows (live hypotheses) that an engine may step together, and, times --workers, that all models and versions "
        "have together; a request takes beam_size of them",
    )
    max_source_positions: int = _option(
        32768,
        _whole("TOKENS"),
        "source tokens per engine that are held together, padding included; one request always fits",
    )
    max_waiting: int = _option(
        1024,
        _whole("REQUESTS"),
        "interactive requests per model that may wait for rows, of one client as many as there is room left for; one "
        "more is refused with RESOURCE_EXHAUSTED",
    )
    max_wait_seconds: float = _option(
        30.0, SOME_SECONDS, "an interactive request that is expected to wait longer for rows is refused likewise"
    )
    max_client_requests: int | None = _option(
        None,
        _whole("REQUESTS"),
        "interactive requests per model that one client may have in flight; one more is refused likewise",
        "as many as it likes: clients take turns",
    )
    max_client_rows: int | None = _option(
        None, _whole("ROWS"), "the same, in rows", "as many as it likes: clients take turns"
    )
    light_rows: int = _option(
        LIGHT_ROWS,
        _whole("ROWS"),
        "rows per model that a client may have in flight before its requests are stepped apart from those of others; "
        "--max-rows or more where all calls come through one proxy, and so from one address",
    )
    bulk_seconds: float | None = _option(
        None,
        SOME_SECONDS,
        "how long one call into a model for bulk work should take, so that others need not wait longer",
        "half of what a request takes alone here, measured at the start",
    )
    unread_seconds: float = _option(
        30.0,
        SOME_SECONDS,
        "how long what a stream sends may wait for its client to read; then the stream is ended",
    )
    max_connections: int = _option(
        1000, _whole("CONNECTIONS"), "connections for gRPC; one more is closed as soon as it is accepted"
    )
    max_calls_per_connection: int = _option(
        1000, _whole("CALLS"), "calls at once on one connection; a client keeps back those that are more"
    )
    connection_seconds: float | None = _option(
        None,
        SOME_SECONDS,
        "how long a connection for gRPC may last: then its client connects anew, and finds servers that have come "
        "meanwhile; calls that are under way go on",
        "as long as its client likes",
    )
    max_streams: int = _option(
        128,
        _whole("STREAMS"),
        "streaming calls at once; one more is refused with RESOURCE_EXHAUSTED; each may hold an unfinished message of "
        "256 KiB",
    )
    require_signature: tuple[Path, ...] = _option(
        (),
        PEM_FILES,
        "serve only bundles that are signed: by one of these public keys, or under one of these authorities' "
        f"certificates (files in PEM, separated by {os.pathsep})",
        "unsigned bundles are served too",
    )
    repository_seconds: float = _option(
        2.0, SECONDS, "how often repositories of models are looked at for changes; 0: only when an administrator asks"
    )
    load_seconds: float = _option(
        LOAD_SECONDS, SOME_SECONDS, "how long a bundle may take to be loaded and checked; a slower one is refused"
    )
    load_mib: int = _option(
        LOAD_MIB,
        _whole("MIB"),
        "memory, in MiB, that a bundle may take to be loaded and checked; a larger one is refused",
    )
    drain_seconds: float = _option(
        25.0, SECONDS, "after SIGTERM or SIGINT: how long requests that are in may take to end"
    )
    tls_certificate: Path | None = _option(
        None,
        FILE,
        "the server's certificate and those between it and its authority, PEM; with --tls-key, calls are encrypted. "
        "This and the other files below are read again when they change",
        "unencrypted",
    )
    tls_key: Path | None = _option(None, FILE, "the key of --tls-certificate, PEM, without a password", "none")
    tls_client_ca: Path | None = _option(
        None,
        FILE,
        "authorities, PEM: a client needs a certificate of one of them, for health checks too",
        "clients need no certificate",
    )
    tokens: Path | None = _option(
        None,
        FILE,
        "bearer tokens, a line each: NAME sha256:DIGEST, or NAME TOKEN; a call without one of them is UNAUTHENTICATED",
        "calls need no token",
    )
    admin_tokens: Path | None = _option(
        None,
        FILE,
        "tokens of administrators, in the same form: they may load and unload models, and make any other call",
        "nobody may",
    )
    health: Openness = _option(
        "open", _one_of(Openness), "whether health checks are answered without a token; closed: they need one"
    )
    reflection: OpennessOrOff | None = _option(
        None,
        _one_of(OpennessOrOff),
        "whether reflection is answered without a token; closed: it needs one; off: it is not there",
        "closed with --tokens, else open",
    )
    client_requests_per_second: float | None = _option(
        None,
        PER_SECOND,
        "requests of one client (its token, certificate or address); more are refused with RESOURCE_EXHAUSTED, and "
        "those of a bulk stream are read later",
        "no limit",
    )
    client_bytes_per_second: float | None = _option(
        None, PER_SECOND, "bytes of one client's requests, likewise", "no limit"
    )
    log_level: LogLevel = _option("info", _one_of(LogLevel), "what is logged, on standard error")
    log_format: LogFormat = _option("text", _one_of(LogFormat), "key=value text, or one JSON object per line")
    log_texts: Switch = _option(
        "off", _one_of(Switch), "whether log lines may hold what callers wrote: their tokens, and words of exceptions"
    )
    log_requests: Switch = _option(
        "off", _one_of(Switch), "whether each request has a line in the log at level info; otherwise at debug"
    )
    traces: Switch = _option(
        "off",
        _one_of(Switch),
        "whether requests are traced: sent by OTLP over gRPC, as OpenTelemetry's variables OTEL_* say; needs the extra "
        "otel",
    )
    scheduler: type[Scheduler] = Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A field of ServerConfig as the user sees it."""

    name: str
    default: Any
    kind: Kind
    about: str
    default_text: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def value(self, given: str | None, environment: Mapping[str, str]) -> Any:
        """The value that the command line gave, else the environment, else the default.

        Raises:
            UserError: it is not what it must be.
        """
        text, origin = given, self.flag
        if text is None:
            text, origin = environment.get(self.variable, ""), self.variable
            if not text or text.startswith(INJECTED):
                return self.default
        try:
            value = self.kind.convert(text)
            if self.kind.allows(value):
                return value
        except ValueError:
            pass
        raise UserError(f"{origin} is {text!r}, must be {self.kind.must_be}")


OPTIONS = tuple(
    Option(name=one.name, default=one.default, **one.metadata) for one in fields(ServerConfig) if one.metadata
)


def config_parser() -> argparse.ArgumentParser:
    """What the command line may say; see `config_of`."""
    parser = argparse.ArgumentParser(
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
        help="folders made by `python -m export`, or repositories of them, NAME/VERSION/, which are followed while the "
        f"server runs (docs/models.md) [env {BUNDLES_VARIABLE}, separated by {os.pathsep}]",
    )
    add_options(parser, OPTIONS)
    return parser


def add_options(parser: argparse._ActionsContainer, options: Iterable[Option]) -> None:
    """Lets a command line say these; see `config_of`."""
    for option in options:
        about = f"{option.about} (default: {option.default_text}) [env {option.variable}]"
        takes: dict[str, Any] = (
            {"metavar": option.kind.unit} if option.kind.unit else {"action": "store_const", "const": "on"}
        )
        parser.add_argument(option.flag, dest=option.name, help=about, **takes)


def config_of(parsed: argparse.Namespace, environment: Mapping[str, str]) -> ServerConfig:
    """The options of a command line and an environment.

    Raises:
        UserError: the first option whose value is not what it must be, or which another one makes void.
    """
    given = vars(parsed)
    values = {option.name: option.value(given.get(option.name), environment) for option in OPTIONS}
    if values["http_origins"] and values["no_http"] == "on":
        raise UserError("--http-origins: may use the API over HTTP, which --no-http takes away; leave one of them out")
    bundles = given["bundles"] or [path for path in environment.get(BUNDLES_VARIABLE, "").split(os.pathsep) if path]
    if not bundles:
        raise UserError(f"no bundle: name at least one folder that `python -m export` made, or set {BUNDLES_VARIABLE}")
    return ServerConfig(bundles=tuple(Path(bundle) for bundle in bundles), **values)
