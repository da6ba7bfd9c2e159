"""The server's options: from the command line, else from the environment, else their defaults.

Each option `--some-name` is also the variable `ATTENDANT_SOME_NAME`. Why not pydantic-settings (2.16, tried): its
errors don't distinguish a flag from a variable, and have "unable to parse string as an integer" instead of a range;
its --help has neither units nor variables, and ATTENDANT_PORT=tcp://... and a list of paths need sources of their own.
"""

# ruff: noqa: RUF009  # _option is dataclasses.field, with a few facts

import argparse
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from attendant.runtime.bundle.manifest import Precision, Provider
from attendant.runtime.command import CommandParser, set_variables, suggestion
from attendant.runtime.errors import UserError, shown
from attendant.runtime.process import LOAD_MIB, LOAD_SECONDS, MAX_THREADS

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
AuditLevel = Literal["info", "warning", "off"]
Switch = Literal["on", "off"]
Openness = Literal["open", "closed"]
OpennessOrOff = Literal["open", "closed", "off"]

LIGHT_ROWS = 16
"""Rows that a client may have in flight before its requests count as heavy: a step with this many more rows takes
little longer for the requests of others in it. A heavy client becomes light again at half of that; otherwise its
requests would be stepped as two batches that take turns."""

PREFIX = "ATTENDANT_"
BUNDLES_VARIABLE = PREFIX + "BUNDLES"
INJECTED = ("tcp://", "udp://", "sctp://")
"""Kubernetes sets NAME_PORT=tcp://... in every pod for each Service: one named `attendant` would set our port."""
OTHERS = re.compile(
    r"TARGET|ROOT_CERTIFICATES|CLIENT_CERTIFICATE|CLIENT_KEY|SERVER_NAME|TOKEN|TOKEN_FILE"
    r"|(.+_)?(SERVICE_HOST|SERVICE_PORT.*|PORT_\d+_.+)"
)
"""Variables of the client, and those that Kubernetes sets for each Service, without the prefix."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kind:
    """The values of an option.

    Attributes:
        convert: makes the value from its text; raises ValueError.
        allows: returns whether the value is valid.
        must_be: describes valid values in an error.
        unit: in --help, after the option's name; empty for an option without a value, which switches something on.
    """

    convert: Callable[[str], Any]
    allows: Callable[[Any], bool]
    must_be: str
    unit: str


MAX_WHOLE = 10**9  # Largest whole number of an option: gRPC takes 32 bits.


def _whole(unit: str, least: int = 1, most: int = MAX_WHOLE) -> Kind:
    return Kind(int, lambda value: least <= value <= most, f"a whole number from {least} to {most}", unit)


def _one_of(literal: Any) -> Kind:
    choices = get_args(literal)
    return Kind(str, choices.__contains__, f"one of {', '.join(choices)}", "|".join(choices))


PORT = _whole("PORT", 0, 65535)
# IPv6 may be in brackets, as in the addresses that the server prints.
ADDRESS = Kind(lambda text: text.strip().strip("[]"), bool, "an address or a name", "ADDRESS")
FILE = Kind(lambda text: text.strip() and Path(text), bool, "a file", "FILE")
PER_SECOND = Kind(float, lambda value: 0 < value < math.inf, "a number above 0", "NUMBER")
SECONDS = Kind(float, lambda value: 0 <= value < math.inf, "a number of seconds, 0 or more", "SECONDS")
SOME_SECONDS = Kind(float, lambda value: 0 < value < math.inf, "a number of seconds above 0", "SECONDS")
CONNECTION_SECONDS = Kind(
    float, lambda value: 0.001 <= value <= 10**6, "a number of seconds from 0.001 to 1000000", "SECONDS"
)
PEM_FILES = Kind(
    lambda text: tuple(Path(name) for name in text.split(os.pathsep) if name),
    lambda paths: bool(paths) and all(map(os.path.isfile, paths)),
    f"files that are there, separated by {os.pathsep}",
    "PEM",
)

FLAG = replace(_one_of(Switch), unit="")
ORIGINS = Kind(
    lambda text: tuple(origin.strip().rstrip("/").lower() for origin in text.split(",")),
    lambda origins: all(re.fullmatch(r"https?://[^/\s*]+", origin) for origin in origins),
    "origins such as https://example.org, separated by commas",
    "ORIGINS",
)


def _option(default: Any, kind: Kind, about: str, default_text: str = "") -> Any:
    """Makes a field that is an option; `default_text` describes a default of None."""
    return field(default=default, metadata={"kind": kind, "about": about, "default_text": default_text or str(default)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The options of `attendant serve`.

    Attributes:
        scheduler: replaces each engine's Scheduler, for measurements; it is no option.
    """

    bundles: tuple[Path, ...]
    host: str = _option("127.0.0.1", ADDRESS, "interface for gRPC and HTTP; 0.0.0.0 for all, as in a container")
    port: int = _option(50051, PORT, "port for gRPC; 0: a free port, which is printed")
    metrics_port: int = _option(
        9090, PORT, "port for HTTP: metrics, health, the API and the playground; 0: a free port, which is printed"
    )
    no_http: Switch = _option(
        "off", FLAG, "serve only metrics and health on the port for HTTP, unencrypted", "API and playground too"
    )
    no_open_inference: Switch = _option(
        "off", FLAG, "do not serve the Open Inference Protocol, with its loading and unloading of models", "served"
    )
    http_origins: tuple[str, ...] = _option(
        (),
        ORIGINS,
        "origins, separated by commas, whose web pages may use the API from a browser (CORS), e.g. https://example.org",
        "only the playground",
    )
    precision: Precision | None = _option(
        None, _one_of(Precision), "precision of the graphs to serve", "the bundle's default for the provider"
    )
    provider: Provider = _option("cpu", _one_of(Provider), "device on which the graphs run")
    threads: int | None = _option(
        None,
        _whole("THREADS", 1, MAX_THREADS),
        "CPU threads for the graphs, divided among the models and their workers",
        "as many as the CPU quota grants",
    )
    workers: int = _option(
        1,
        _whole("PROCESSES", 1, MAX_THREADS),
        "engines per model; each is a separate process, and they share one queue",
    )
    hang_seconds: float = _option(
        5.0,
        SOME_SECONDS,
        "an engine that has work and sends nothing for this long, and for five times the duration of its calls, is "
        "killed and replaced, like an engine that died",
    )
    max_restarts: int = _option(
        10,
        _whole("RESTARTS", 0),
        "restarts of engines that died, per model and ten minutes; after one more death the model's calls are refused, "
        "and a server without another model exits with status 1",
    )
    max_rows: int = _option(
        256,
        _whole("ROWS"),
        "rows (live hypotheses) that one engine may decode at once; all models and versions together have this number "
        "times --workers; a request takes beam_size rows",
    )
    max_source_positions: int = _option(
        32768,
        _whole("TOKENS"),
        "source tokens that one engine holds at once, padding included; a single request always fits",
    )
    max_waiting: int = _option(
        1024,
        _whole("REQUESTS"),
        "interactive requests per model that may wait for rows; one client may have as many waiting as there are free "
        "places; further requests are refused with RESOURCE_EXHAUSTED",
    )
    max_wait_seconds: float = _option(
        30.0,
        SOME_SECONDS,
        "longest expected wait of an interactive request for rows; beyond it the request is refused with "
        "RESOURCE_EXHAUSTED",
    )
    max_client_requests: int | None = _option(
        None,
        _whole("REQUESTS"),
        "interactive requests per model that one client may have in flight; further ones are refused with "
        "RESOURCE_EXHAUSTED",
        "no limit: clients take turns",
    )
    max_client_rows: int | None = _option(
        None, _whole("ROWS"), "the same limit, in rows", "no limit: clients take turns"
    )
    light_rows: int = _option(
        LIGHT_ROWS,
        _whole("ROWS"),
        "a client with more rows in flight than this (per model) is heavy: its requests are decoded in separate steps; "
        "if all calls come through one proxy, i.e. from one address, set it to --max-rows or more",
    )
    bulk_seconds: float | None = _option(
        None,
        SOME_SECONDS,
        "target duration of one call into a model for bulk work, so that interactive requests wait no longer than this",
        "half of the time of a single request on this host, measured at startup",
    )
    unread_seconds: float = _option(
        30.0, SOME_SECONDS, "longest time that a message of a stream may stay unread; after that the stream is ended"
    )
    max_connections: int = _option(
        1000,
        _whole("CONNECTIONS"),
        "connections for gRPC; beyond this number, connections without a call are closed, the longest idle first",
    )
    max_calls_per_connection: int = _option(
        1000, _whole("CALLS"), "concurrent calls on one connection; the client itself holds further calls back"
    )
    connection_seconds: float | None = _option(
        None,
        CONNECTION_SECONDS,
        "longest duration of a gRPC connection; then its client connects again, and finds servers added meanwhile; "
        "calls in progress continue",
        "no limit",
    )
    max_streams: int = _option(
        128,
        _whole("STREAMS"),
        "concurrent streaming calls, of which one client may have as many as are still free; further ones are refused "
        "with RESOURCE_EXHAUSTED; each may hold an unfinished message of 256 KiB",
    )
    require_signature: tuple[Path, ...] = _option(
        (),
        PEM_FILES,
        "serve only bundles that are signed by one of these public keys, or under a certificate of one of these "
        f"authorities (PEM files, separated by {os.pathsep})",
        "unsigned bundles are served too",
    )
    signed_names: Switch = _option(
        "off",
        FLAG,
        "with --require-signature: a bundle must have been signed in a folder of the same name, so that a signed "
        "version cannot replace another one",
        "the folder's name is not compared",
    )
    repository_seconds: float = _option(
        2.0,
        SECONDS,
        "interval at which repositories of models are checked for changes; 0: only when an administrator loads a "
        "model, and on SIGHUP",
    )
    load_seconds: float = _option(
        LOAD_SECONDS, SOME_SECONDS, "longest time for loading and checking a bundle; a slower one is refused"
    )
    load_mib: int = _option(
        LOAD_MIB, _whole("MIB"), "largest memory, in MiB, for loading and checking a bundle; a larger one is refused"
    )
    drain_seconds: float = _option(
        25.0, SECONDS, "longest time for accepted requests to finish after SIGTERM or SIGINT"
    )
    tls_certificate: Path | None = _option(
        None,
        FILE,
        "the server's certificate, followed by any intermediate ones (PEM); with --tls-key, calls are encrypted. This "
        "and the other files below are read again when they change",
        "unencrypted",
    )
    tls_key: Path | None = _option(None, FILE, "private key of --tls-certificate (PEM, without a password)", "none")
    tls_client_ca: Path | None = _option(
        None,
        FILE,
        "certificate authorities (PEM): every client needs a certificate from one of them, even for health checks",
        "clients need no certificate",
    )
    tokens: Path | None = _option(
        None,
        FILE,
        "bearer tokens, one per line: NAME sha256:DIGEST, or NAME TOKEN; a call without one of them is UNAUTHENTICATED",
        "calls need no token",
    )
    admin_tokens: Path | None = _option(
        None,
        FILE,
        "tokens of administrators, in the same form; an administrator may load and unload models, and make any other "
        "call",
        "no administrators",
    )
    health: Openness = _option("open", _one_of(Openness), "whether health checks need a token (closed) or not (open)")
    reflection: OpennessOrOff | None = _option(
        None,
        _one_of(OpennessOrOff),
        "whether gRPC reflection needs a token (closed), needs none (open), or is switched off (off)",
        "closed with --tokens, else open",
    )
    client_requests_per_second: float | None = _option(
        None,
        PER_SECOND,
        "rate of requests of one client (a token, certificate or address); further ones are refused with "
        "RESOURCE_EXHAUSTED, and those of a bulk stream are read later",
        "no limit",
    )
    client_bytes_per_second: float | None = _option(
        None, PER_SECOND, "the same limit, in bytes of requests", "no limit"
    )
    log_level: LogLevel = _option("info", _one_of(LogLevel), "lowest level that is logged, on standard error")
    log_format: LogFormat = _option("text", _one_of(LogFormat), "key=value text, or one JSON object per line")
    audit_level: AuditLevel = _option(
        "info",
        _one_of(AuditLevel),
        "content of the audit log, on standard error: models that administrators load and unload, and calls that are "
        "refused for lack of credentials (info); only refused calls (warning); nothing (off)",
    )
    audit_format: LogFormat | None = _option(
        None, _one_of(LogFormat), "format of the audit log, whose logger is `audit`", "as --log-format"
    )
    log_texts: Switch = _option(
        "off",
        _one_of(Switch),
        "whether log lines may contain text from callers: tokens of their texts, and messages of exceptions",
    )
    log_requests: Switch = _option(
        "off", _one_of(Switch), "whether each request is logged at level info; otherwise at level debug"
    )
    traces: Switch = _option(
        "off",
        _one_of(Switch),
        "whether requests are traced; OpenTelemetry's variables OTEL_* configure the export by OTLP over gRPC; needs "
        "the extra `otel`",
    )
    scheduler: type[Any] | None = None


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

    def value(self, argument: str | None, environment: Mapping[str, str]) -> Any:
        """Returns the value from the command line, else from the environment, else the default.

        Raises:
            UserError: the value is invalid.
        """
        text, origin = argument, self.flag
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
        raise UserError(f"{origin} is {shown(text)}, must be {self.kind.must_be}")


OPTIONS = tuple(
    Option(name=option.name, default=option.default, **option.metadata)
    for option in fields(ServerConfig)
    if option.metadata
)


def config_parser() -> CommandParser:
    """Makes the parser of the command line; see `config_of`."""
    parser = CommandParser(
        prog="attendant serve",
        description="Serves bundles over gRPC, with health checks and reflection, and metrics over HTTP.",
        epilog="The command line takes precedence over the environment. Exit status: 0 drained after SIGTERM or "
        "SIGINT; 1 the engines of the last model failed permanently; 2 an invalid option, a port in use, a refused "
        "bundle or provider.",
    )
    parser.add_argument(
        "bundles",
        metavar="BUNDLE",
        type=Path,
        nargs="*",
        help="folders made by `attendant export`, or repositories of them (NAME/VERSION/), which are watched for "
        f"changes while the server runs (docs/models.md) [env {BUNDLES_VARIABLE}, separated by {os.pathsep}]",
    )
    add_options(parser, OPTIONS)
    return parser


def add_options(parser: argparse._ActionsContainer, options: Iterable[Option]) -> None:
    """Adds options to a parser; see `config_of`."""
    for option in options:
        about = f"{option.about} (default: {option.default_text}) [env {option.variable}]"
        takes: dict[str, Any] = (
            {"metavar": option.kind.unit} if option.kind.unit else {"action": "store_const", "const": "on"}
        )
        parser.add_argument(option.flag, dest=option.name, help=about, **takes)


def config_of(parsed: argparse.Namespace, environment: Mapping[str, str]) -> ServerConfig:
    """Returns the options of a command line and an environment.

    Raises:
        UserError: an option has an invalid value, or contradicts another one.
    """
    arguments = vars(parsed)
    values = {option.name: option.value(arguments.get(option.name), environment) for option in OPTIONS}
    if values["http_origins"] and values["no_http"] == "on":
        names = set_variables("http_origins", "no_http", environment=environment)
        raise UserError(
            f"--http-origins: may use the API over HTTP, which --no-http takes away; leave one of them out{names}"
        )
    named = environment.get(BUNDLES_VARIABLE, "").split(os.pathsep)
    bundles = arguments["bundles"] or [Path(name) for name in named if name]
    if not bundles:
        raise UserError(f"no bundle: name at least one folder that `attendant export` made, or set {BUNDLES_VARIABLE}")
    return ServerConfig(bundles=tuple(bundles), **values)


def warn_of_unknown_variables(environment: Mapping[str, str]) -> None:
    """Logs a warning for each variable that begins like those of options, e.g. a misspelt one."""
    known = [option.name.upper() for option in OPTIONS] + [BUNDLES_VARIABLE.removeprefix(PREFIX)]
    for variable, value in environment.items():
        name = variable.removeprefix(PREFIX)
        is_known = name in known or OTHERS.fullmatch(name) or value.startswith(INJECTED)
        if variable.startswith(PREFIX) and not is_known:
            nearest = suggestion(name, known, PREFIX)
            log.warning(f"no option has this variable{nearest}", extra={"variable": variable})
